"""Faults as data: when, which, whom, for how long.

`plan` makes them of a seed, `simulation.injector` does them.  A plan can be written down, cut down
and played again (`simulation.shrink`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from simulation.day import after
from simulation.places import DATABASE, LEASE

KINDS = (
    "kill", "freeze", "partition", "cut", "database", "stall", "doubt", "clock", "peer",
    "failover", "disk",
)  # fmt: skip
"""What can be asked for."""

_EVERY = 60.0  # busy seconds between two faults on average
_SPEAKERS = (
    "", "client", "program", "submitter", "pusher", "device", "upstream", "hooks", "person",
)  # fmt: skip
"""Who speaks to the relay, and who has just got something from it."""
_ACTORS = (
    "claimer", "collector", "control", "device_store", "devices", "sender", "submission",
    "summariser", "ticker", "webhooks", "writer",
)  # fmt: skip
"""Those that say something to the database that would matter if it was cut off there."""
_LASTS = {
    "kill": (0.5, 30.0),  # until the node is started again
    "freeze": (0.5, 150.0),  # beyond a lease of a minute, at times
    "partition": (0.2, 90.0),
    "cut": (0.0, 0.0),
    "database": (0.1, 20.0),  # until the server is started again
    "stall": (0.2, 120.0),  # beyond what is waited for an answer, and beyond a lease at times
    "doubt": (0.0, 0.0),
    "clock": (5.0, 300.0),
    "peer": (5.0, 120.0),
    "failover": (0.5, 30.0),  # until the standby is promoted; or the old primary lives beside it
    "disk": (1.0, 100.0),  # until there is room again, or the server is started again
}
_SELDOM = {"failover": 7200.0}
"""Seconds in which there is at most one: each costs real seconds."""
_AWAY = 45.0  # seconds at most for which a standby is away: beyond what a commit is waited for
_TALK = 3.7  # the decimal logarithm of the bytes after which a connection is cut at most
BESIDE = "beside"
"""Of a failover: the old primary lives on beside the one that was promoted."""
FROZEN = "frozen"
"""Of a database: it is stopped, and goes on where it was; else it is killed."""
_FROZEN_LASTS = 5.0  # as long, in proportion: beyond a lease at times
OVERTAKEN = "overtaken"
"""Of a freeze: it begins with an answer of a server under way, and ends when another node is about
to hand over the same mail; after `lasts` at the latest."""
_OVERTAKEN_LASTS = LEASE + 15.0
HALF_OPEN = "half-open"
"""Of a cut: neither end hears of it, and nothing passes any more."""
_UNHEARD = 100.0  # seconds after which both ends have given up
LOG = "log"
"""Of a disk: what fails is a write of the log, at a commit of `whose`; else it is full."""
_LOG_LASTS = 0.2  # as long, in proportion


@dataclass(frozen=True)
class Fault:
    """One fault; times in virtual seconds."""

    at: float
    kind: str
    node: str = ""
    other: str = ""
    lasts: float = 0.0
    size: float = 0.0
    """Of a clock's step, in seconds; of a cut, the share of connections; of a failover, the seconds
    for which the standby is away before; of a freeze, those for which it lasts on once the node is
    overtaken."""
    amid: float = 0.0
    """Seconds after the node, or any, is next spoken to (0: at once): most of the time there is
    nothing to break."""
    whose: str = ""
    """By whom, then ("": by anybody); or, with `answers`, the actor that is to be hit."""
    answers: int = 0
    """So many answers of the database to that actor are waited for, and then `amid`: whoever had
    the last of them is the node."""
    after_bytes: int = 0
    """Of a cut: the node's next connection ends when so many have passed, and no other does."""


def plan(
    rng: random.Random,
    kinds: Sequence[str],
    nodes: Sequence[str],
    others: Sequence[str],
    began: float,
    ends: float,
) -> list[Fault]:
    """Return faults between two instants, in order.  `others`: hosts around the nodes."""
    faults: list[Fault] = []
    at = began
    while kinds:
        at = after(at, rng.expovariate(1 / _EVERY))
        if at >= ends:
            break
        kind, node = rng.choice(list(kinds)), rng.choice(list(nodes))
        if any(each.kind == kind and each.at > at - _SELDOM.get(kind, 0.0) for each in faults):
            continue
        low, high = _LASTS[kind]
        lasts = round(low + (high - low) * rng.random() ** 2, 3)
        other, size = "", 0.0
        if kind == "partition":
            other = rng.choice((DATABASE, rng.choice(list(others))))
        elif kind == "clock":
            size = round(rng.choice((-1, 1)) * 10 ** rng.uniform(-1, 4), 3)
        elif kind == "cut":
            size = rng.choice((0.2, 1.0))
            other = rng.choice(("", HALF_OPEN))
            lasts = _UNHEARD if other else 0.0
        elif kind == "freeze" and rng.random() < 0.4:
            other, lasts, size = OVERTAKEN, _OVERTAKEN_LASTS, rng.choice((0, 0.003))
        elif kind == "failover":
            other = rng.choice(("", "", BESIDE))
            size = round(rng.choice((0.0, 1.0)) * _AWAY * rng.random(), 3)
        elif kind == "disk":
            other = rng.choice(("", LOG))
        elif kind == "database":
            other = rng.choice(("", FROZEN))
            lasts = round(lasts * (_FROZEN_LASTS if other else 1.0), 3)
        if kind in {"database", "stall", "doubt", "peer", "failover", "disk"}:
            node = ""
        amid, whose, answers = 0.0, "", 0
        if kind == "doubt" or other == LOG:
            whose = rng.choice(_ACTORS)
            lasts = round(lasts * (_LOG_LASTS if other == LOG else 1.0), 3)
        if kind in {"kill", "freeze", "partition", "cut", "database", "stall", "failover"}:
            how = rng.random()
            if other == OVERTAKEN:
                size = round(size * rng.random(), 6)
                whose, amid = "upstream", round(0.0002 + 0.002 * rng.random(), 6)
                if rng.random() < 0.7:  # while outcomes wait for those before them
                    whose, answers = "sender", 1
            elif how < 0.35:
                whose = rng.choice(_SPEAKERS)
                amid = round(rng.choice((0.002, 0.01, 0.03)) * (0.01 + rng.random()), 6)
            elif how < 0.8:
                amid, whose = round(rng.choice((0.0, 0.002)) * rng.random(), 6), rng.choice(_ACTORS)
                answers = rng.randint(1, 4)
        size_of_talk = 0
        if kind == "cut" and rng.random() < 0.5:
            size_of_talk = int(10 ** rng.uniform(0, _TALK))
            amid, whose, answers, size = 0.0, "", 0, 0.0
        faults.append(
            Fault(round(at, 3), kind, node, other, lasts, size, amid, whose, answers, size_of_talk)
        )
    return faults


def named(kinds: Sequence[str]) -> str:
    """Return kinds as they are asked for."""
    return ",".join(kinds) or "none"


def asked(text: str) -> tuple[str, ...]:
    """Read what `named` wrote, or `all`; ValueError: there is no such kind."""
    if text == "all":
        return KINDS
    found = tuple(part.strip() for part in text.split(",") if part.strip() not in {"", "none"})
    for kind in found:
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
    return found


def written(faults: Sequence[Fault]) -> str:
    """Return a plan as one line of JSON."""
    return json.dumps([{k: v for k, v in asdict(each).items() if v} for each in faults])


def read(text: str) -> list[Fault]:
    """Read what `written` wrote."""
    return [Fault(**each) for each in json.loads(text)]
