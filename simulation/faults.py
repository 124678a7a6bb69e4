"""Faults as data: when, which, whom, for how long.

`plan` makes them of a seed, `simulation.injector` does them.  A plan can be written down, cut down
and played again (`simulation.shrink`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

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
    "claimer", "collector", "control", "device_store", "devices", "notifier", "reaper", "returns",
    "sender", "submission", "summariser", "ticker", "webhooks", "writer",
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
_AIMED = {"kill", "freeze", "partition", "cut", "database", "stall", "failover"}
"""Those that mostly begin when there is something to break."""
_AWAY = 45.0  # seconds at most for which a standby is away: beyond what a commit is waited for
_TALK = 5.0  # the decimal logarithm of the bytes after which a connection is cut at most
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
SYNC = "sync"
"""Of a disk: the log is written at a commit of `whose`, and to bring it to the disk fails: it is
there when the server is started again."""
_LOG_LASTS = 0.2  # as long, in proportion
WITHIN = "within"
"""Of a doubt: the connection breaks in place of an answer within a transaction; else of that which
ends it."""


@dataclass(frozen=True)
class Fault:
    """One fault; times in virtual seconds."""

    at: float
    kind: str
    node: str = ""
    lasts: float = 0.0
    how: str = ""
    """One of the words above; "": plainly."""
    party: str = ""
    """Of a partition: from whom the node is cut off."""
    step: float = 0.0
    """Of a clock: seconds by which it is ahead."""
    share: float = 0.0
    """Of a cut: of so many of the node's connections."""
    away: float = 0.0
    """Of a failover: seconds for which the standby is away before."""
    lasts_on: float = 0.0
    """Of a freeze: seconds for which it lasts on once the node is overtaken."""
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
        if kind in {"database", "stall", "doubt", "peer", "failover", "disk"}:
            node = ""
        fault = _details(rng, Fault(round(at, 3), kind, node, lasts), others)
        faults.append(_when(rng, fault))
    return faults


def _details(rng: random.Random, fault: Fault, others: Sequence[str]) -> Fault:
    """Return a fault with how it is done."""
    lasts = fault.lasts
    match fault.kind:
        case "partition":
            return replace(fault, party=rng.choice((DATABASE, rng.choice(list(others)))))
        case "clock":
            step = rng.choice((-1, 1)) * 10 ** rng.uniform(-1, 4)
            return replace(fault, step=round(step, 3))
        case "cut":
            how = rng.choice(("", HALF_OPEN))
            fault = replace(fault, how=how, lasts=_UNHEARD if how else 0.0)
            if rng.random() < 0.5:
                return replace(fault, after_bytes=int(10 ** rng.uniform(0, _TALK)))
            return replace(fault, share=rng.choice((0.2, 1.0)))
        case "freeze" if rng.random() < 0.4:
            on = round(rng.choice((0, 0.003)) * rng.random(), 6)
            return replace(fault, how=OVERTAKEN, lasts=_OVERTAKEN_LASTS, lasts_on=on)
        case "failover":
            away = round(rng.choice((0.0, 1.0)) * _AWAY * rng.random(), 3)
            return replace(fault, how=rng.choice(("", "", BESIDE)), away=away)
        case "disk":
            how = rng.choice(("", LOG, SYNC))
            return replace(fault, how=how, lasts=round(lasts * (_LOG_LASTS if how else 1.0), 3))
        case "database":
            how = rng.choice(("", FROZEN))
            return replace(fault, how=how, lasts=round(lasts * (_FROZEN_LASTS if how else 1.0), 3))
        case "doubt":
            return replace(fault, how=rng.choice(("", "", WITHIN)))
    return fault


def _when(rng: random.Random, fault: Fault) -> Fault:
    """Return a fault with what it waits for."""
    if fault.kind == "doubt" or fault.how in {LOG, SYNC}:
        return replace(fault, whose=rng.choice(_ACTORS))
    if fault.how == OVERTAKEN:
        fault = replace(fault, whose="upstream", amid=round(0.0002 + 0.002 * rng.random(), 6))
        if rng.random() < 0.7:  # while outcomes wait for those before them
            return replace(fault, whose="sender", answers=1)
        return fault
    if fault.after_bytes or fault.kind not in _AIMED:
        return fault
    of = rng.random()
    if of < 0.35:
        amid = rng.choice((0.002, 0.01, 0.03)) * (0.01 + rng.random())
        return replace(fault, whose=rng.choice(_SPEAKERS), amid=round(amid, 6))
    if of < 0.8:
        amid = round(rng.choice((0.0, 0.002)) * rng.random(), 6)
        return replace(fault, whose=rng.choice(_ACTORS), amid=amid, answers=rng.randint(1, 4))
    return fault


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
