"""Two relays, one database and a moody upstream, or exchangers, while all is killed in turn.

What must hold after any number of rounds: every message that was queued is sent, each copy beyond
the first is one that the records admit (a lost lease, or an answer that never came), and nobody
gets mail for a message that was recorded as sent before.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.outbound.admin import QueueAdmin
from relay.outbound.queue.enqueue import announce
from tests.db.cluster import Cluster, binaries
from tests.faults.outbound import LEASE, relay_process, sent, ways_out
from tests.outbound.node import put
from tests.outbound.sink import HangUp, Script, Session
from tests.relay_process import RelayProcess

A_ROUND = 40  # messages
DOMAINS = [f"d{number}.example" for number in range(5)]
WAYS = pytest.mark.parametrize("way", ["upstream", "mx"])


class Mood:
    """What the upstream is like: `trouble` is how often it does something unpleasant."""

    def __init__(self, seed: int, trouble: float) -> None:
        self._rng = random.Random(seed)
        self.trouble = trouble

    def script(self) -> Script:
        """A script for the sink."""

        async def script(session: Session, verb: str, line: str) -> bytes | None:
            rng = self._rng
            await trio.sleep(rng.uniform(0.0, 0.02))
            if rng.random() > self.trouble or verb in {"RSET", "QUIT"}:
                return None
            match rng.randrange(6):
                case 0:
                    raise HangUp
                case 1:
                    raise HangUp(b"421 4.3.2 going down\r\n")
                case 2 | 3:
                    return b"" if verb == "body" else b"451 4.3.0 not now\r\n"
                case 4:
                    await trio.sleep(rng.uniform(0.2, 1.5))
                    return None
                case _:
                    return b"" if verb == "body" else b"\xff\xfe what?\r\n"

        return script


async def rounds_of_chaos(
    folder: Path,
    dsn: str,
    faults: Sequence[str],
    seed: int,
    cluster: Cluster | None = None,
    way: str = "upstream",
) -> Counter[str]:
    """Break something each round, then let it end well; returns what was counted."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    wanted: dict[str, str] = {}  # recipient -> id
    mood = Mood(seed, trouble=0.06)
    async with AsyncExitStack() as stack:
        # Names are looked up again and again: a kill meets that, too.
        out = await stack.enter_async_context(ways_out(way, mood.script(), DOMAINS, ttl=1))
        pool = Pool(dsn)
        stack.push_async_callback(pool.close)
        relays = [
            relay_process(
                folder / name,
                dsn,
                out.upstream,
                RELAY_OUTBOUND__RETRY_UNIT="0.05",
                RELAY_OUTBOUND__MAX_ATTEMPTS="100",
                RELAY_LOG__LEVEL="warning",
                **out.env,
            )
            for name in ("one", "two")
        ]
        async with trio.open_nursery() as starting:
            for relay in relays:
                stack.push_async_callback(_end, relay)
                starting.start_soon(trio.to_thread.run_sync, relay.start)
        for number, what in enumerate(faults):
            addresses = [f"m{number}-{n}@{DOMAINS[n % 5]}" for n in range(A_ROUND)]
            for queued in await put(pool, *addresses):
                wanted[queued.recipient] = str(queued.id)
            await announce(pool)
            await trio.sleep(rng.uniform(0.0, 0.8))
            counts[what] += 1
            await _break(what, rng, rng.choice(relays), pool, cluster)
        mood.trouble = 0.0
        await _settled(pool, len(wanted))
        for relay in relays:
            assert await trio.to_thread.run_sync(relay.stop) == 0
        await _check(pool, wanted, Counter(out.sink.recipients), counts)
    return counts


async def _break(
    what: str, rng: random.Random, relay: RelayProcess, pool: Pool, cluster: Cluster | None
) -> None:
    match what:
        case "kill":
            await trio.to_thread.run_sync(relay.kill)
            await trio.sleep(rng.uniform(0.0, 0.5))
            await trio.to_thread.run_sync(relay.start)
        case "stop":
            os.kill(relay.pid, signal.SIGSTOP)
            await trio.sleep(rng.uniform(0.5, 1.5) * LEASE)
            os.kill(relay.pid, signal.SIGCONT)
        case "crash" if cluster is not None:
            await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
            await trio.sleep(rng.uniform(0.0, 1.5) * LEASE)
            await trio.to_thread.run_sync(cluster.start)
        case "cut":
            await pool.execute(
                """
                SELECT pg_terminate_backend(pid)
                FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                """
            )


async def _settled(pool: Pool, count: int) -> None:
    """Wait until all are sent; what was set aside after lost leases is sent on by hand."""
    admin = QueueAdmin(pool)
    with trio.fail_after(120):
        while True:
            try:
                if await sent(pool) >= count:
                    return
                for (held,) in await pool.fetch(
                    "SELECT id FROM relay.outbound_messages WHERE status = 'held'"
                ):
                    await admin.retry(held)
            except DatabaseUnavailable:
                pass
            await trio.sleep(0.1)


async def _check(
    pool: Pool, wanted: dict[str, str], copies: Counter[str], counts: Counter[str]
) -> None:
    assert set(copies) == set(wanted), "a message was lost, or never asked for"
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_due") == 0
    rows = await pool.fetch(
        """
        SELECT message_id::text, count(*)
        FROM relay.outbound_tries
        WHERE outcome = 'lost' OR (phase = 'dot' AND code IS NULL)
        GROUP BY message_id
        """
    )
    admitted: Counter[str] = Counter(dict(rows))
    beyond = {
        recipient: count - 1
        for recipient, count in copies.items()
        if count - 1 > admitted[wanted[recipient]]
    }
    assert not beyond, f"second copies that nothing accounts for: {beyond}"
    counts["messages"] = len(wanted)
    counts["second copies"] = copies.total() - len(copies)
    counts["lost leases and unknown outcomes"] = admitted.total()


async def _end(relay: RelayProcess) -> None:
    with trio.CancelScope(shield=True):
        if relay.process is not None and relay.process.poll() is None:
            os.kill(relay.pid, signal.SIGCONT)
            await trio.to_thread.run_sync(relay.stop)


@WAYS
async def test_a_few_rounds_of_chaos_lose_nothing(tmp_path: Path, database_url: str, way: str):
    """Killed, stopped and cut off, with a moody upstream or exchangers: all arrives."""
    faults = ("kill", "cut", "stop", "kill")
    counts = await rounds_of_chaos(tmp_path, database_url, faults, seed=5, way=way)
    assert counts["messages"] == len(faults) * A_ROUND


@pytest.mark.soak
@WAYS
async def test_many_rounds_of_chaos_lose_nothing(tmp_path: Path, way: str):
    """The same, many times over, with a database that crashes, too."""
    seed = time.time_ns()
    faults = random.Random(seed).choices(("kill", "kill", "stop", "crash", "cut", "none"), k=60)
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True)
    try:
        await trio.to_thread.run_sync(cluster.start)
        dsn = cluster.dsn(cluster.new_database())
        await migrate(dsn)
        counts = await rounds_of_chaos(tmp_path, dsn, faults, seed, cluster, way)
    finally:
        await trio.to_thread.run_sync(cluster.remove)
    print(dict(counts))
    assert counts["messages"] == 60 * A_ROUND
