"""Failover: how long nothing is accepted when the database's primary goes, and what is lost.

Two relays on a primary and its synchronous standby, both in their URL, four connections to each
that send without a pause.  After two seconds the primary is killed (SIGKILL), or it and all its
processes freeze (SIGSTOP), one second later its standby is promoted, as a manager would; a frozen
one thaws two seconds after the relays have found the new one, and still takes writes.  `PgBouncer`:
two relays behind one in transaction mode, which is killed and started again.  `Patroni`: three
servers, strictly synchronous, each under Patroni, with an etcd (`tests.db.patroni`): a switchover;
the leader killed with its Patroni, as power does; its Patroni alone, so that it goes on taking
writes beside the one that was promoted.  A leader's death is believed after 20 seconds, the least
that Patroni can be set to.

- `pause`: seconds from the end of the promotion (from the pooler's answering again) until a
  relay's next 250, median and worst of all relays and rounds.
- `down`: the longest time between two 250s of a relay, median and worst.
- `accepted`: answered 250; `lost`: of those, what the new primary does not have at the end.
- `strays`: messages that reached the old primary after it thawed.
"""

from __future__ import annotations

import functools
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from relay.db.migrate import migrate
from tests.cached import Missing
from tests.db.bouncer import Bouncer
from tests.db.cluster import Cluster, Pair, binaries
from tests.db.patroni import Managed, Server
from tests.faults.failing_over import Posting, lost, stored
from tests.relay_process import RelayProcess

RELAYS = 2
STEADY = 2.0  # s; before, and after
NOTICED = 1.0  # s; from the failure until somebody promotes
WITHIN = 60.0  # s; given to a relay to accept again

Measured = dict[str, Any]
"""`pauses` and `downs` in seconds, one each relay; counts."""


@contextmanager
def posting(url: str, **env: str) -> Iterator[Posting]:
    """Relays on this database, and somebody who sends to all of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-")))
        settings = {
            "RELAY_LOG__LEVEL": "warning",
            "RELAY_DATABASE__URL": url,
            "RELAY_SECRET_KEY": "b" * 64,
            **env,
        }
        relays = [
            stack.enter_context(RelayProcess(folder / str(number), env=settings))
            for number in range(RELAYS)
        ]
        with Posting(relays, relays[0].create_mailbox(ttl_minutes=60)) as found:
            yield found


@contextmanager
def pair() -> Iterator[Pair]:
    """A primary and its synchronous standby, with the schema."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    with Pair(bin_dir) as found:
        trio.run(functools.partial(migrate, found.primary.dsn()))
        found.begin()
        yield found


def go_on(load: Posting) -> float:
    """Mail can be stored again, from now on: the moment.  Returns some time after it is."""
    moment = time.monotonic()
    load.resume(WITHIN)
    time.sleep(STEADY)
    return moment


def ended(load: Posting, dsn: str, moment: float) -> Measured:
    """Count, once nothing is sent any more; `moment`: since when mail could be stored again."""
    return {
        "pauses": [first - moment for first in load.firsts(moment)],
        "downs": [gap.seconds for gap in load.gaps()],
        "accepted": len(load.accepted),
        "lost": len(lost(load, dsn)),
    }


def killed() -> Measured:
    """The primary is killed for good."""
    with pair() as servers:
        with posting(servers.dsn()) as load:
            time.sleep(STEADY)
            servers.primary.stop(signal.SIGKILL)
            time.sleep(NOTICED)
            servers.standby.promote()
            moment = go_on(load)
        return ended(load, servers.standby.dsn(), moment)


def frozen() -> Measured:
    """The primary freezes, and thaws when its standby has taken its place."""
    with pair() as servers:
        with posting(servers.dsn()) as load:
            time.sleep(STEADY)
            servers.primary.signal_all(signal.SIGSTOP)
            time.sleep(NOTICED)
            servers.standby.promote()
            moment = go_on(load)
            servers.primary.signal_all(signal.SIGCONT)
            thawed = time.monotonic()
            time.sleep(STEADY)
        late = {one.subject for one in load.accepted if one.at > thawed}
        strays = len(late & stored(servers.primary.dsn()))
        return ended(load, servers.standby.dsn(), moment) | {"strays": strays}


def pooler_restarted() -> Measured:
    """PgBouncer is killed and started again; the database stays."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    server = Cluster(bin_dir)
    try:
        server.start()
        trio.run(functools.partial(migrate, server.dsn()))
        settings = {"RELAY_DATABASE__PREPARE": "false", "RELAY_DATABASE__DIRECT_URL": server.dsn()}
        with Bouncer(server.dsn()) as bouncer:
            with posting(bouncer.dsn, **settings) as load:
                time.sleep(STEADY)
                bouncer.restart()
                moment = go_on(load)
            return ended(load, server.dsn(), moment)
    finally:
        server.remove()


def managed(change: Callable[[Managed, Server], object]) -> Measured:
    """Patroni has another server take over, after this has happened to the leader."""
    with Managed() as servers:
        with posting(servers.dsn()) as load:
            time.sleep(STEADY)
            leader = servers.leader()
            assert leader is not None
            change(servers, leader)
            new = servers.wait_for_leader(but=leader)
            moment = go_on(load)
        found = ended(load, new.dsn(), moment)
        if leader.lives():
            late = {one.subject for one in load.accepted if one.at > moment}
            found["strays"] = len(late & stored(leader.dsn()))
        return found


VARIANTS: dict[str, Callable[[], Measured]] = {
    "primary killed": killed,
    "primary frozen": frozen,
    "PgBouncer restarted": pooler_restarted,
    "Patroni, switchover": lambda: managed(Managed.switch_over),
    "Patroni, leader killed": lambda: managed(lambda _, leader: leader.kill()),
    "Patroni alone killed": lambda: managed(lambda _, leader: leader.orphan()),
}


def run(rounds: int) -> dict[str, Any]:
    """Fail each way `rounds` times, interleaved."""
    taken: dict[str, list[Measured]] = {}
    missing: dict[str, str] = {}
    for _ in range(rounds):
        for name, fail in VARIANTS.items():
            try:
                taken.setdefault(name, []).append(fail())
            except (Missing, pytest.skip.Exception) as why:
                del taken[name]
                missing[name] = str(why)
    results = {name: _figures(measured) for name, measured in taken.items()}
    worst = {name: found["pause, worst"] for name, found in results.items()}
    return {
        "name": "failover",
        "unit": "seconds",
        "results": results,
        "ratios": {
            "killed: pause, median": {
                "value": results["primary killed"]["pause"], "at_most": 2.0,
            },
            "killed: pause, worst": {"value": worst["primary killed"], "at_most": 10.0},
            "frozen: pause, worst": {"value": worst["primary frozen"], "at_most": 30.0},
            "lost, and on the old primary after it thawed": {
                "value": sum(row["lost"] + row.get("strays", 0) for row in results.values()),
                "at_most": 0,
            },
        },
        "missing": missing,
    }  # fmt: skip


def _figures(measured: list[Measured]) -> dict[str, Any]:
    pauses = [pause for one in measured for pause in one["pauses"]]
    downs = [down for one in measured for down in one["downs"]]
    found = {
        "pause": statistics.median(pauses),
        "pause, worst": max(pauses),
        "down": statistics.median(downs),
        "down, worst": max(downs),
    }
    counts = {
        count: sum(one[count] for one in measured)
        for count in ("accepted", "lost", "strays")
        if count in measured[0]
    }
    return found | counts
