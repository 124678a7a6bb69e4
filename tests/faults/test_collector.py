"""Lifecycle mail through faults: every token once, none skipped, none lost."""

from __future__ import annotations

import fcntl
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import structlog
import trio

from actors.messages import SweepNow
from relay.db.connection import connect
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.lifecycle.batching import Fixed
from relay.lifecycle.collect import Collect
from relay.lifecycle.pipe import Pipe
from tests.actors.running import a_turn, becomes, logged
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.faults.outbound import database_proxy, dead, disconnected
from tests.lifecycle.collecting import KEY, Collector, batches, collect, collecting, mailed
from tests.lifecycle.people import insert
from tests.relay_process import RelayProcess

WAITING = "SELECT count(*) FROM relay.token_queue"
QUEUED = "SELECT count(*) FROM relay.outbound_messages"


def emails(written: bytes) -> list[str]:
    """The emails of all whole lines."""
    return [email for line in batches(written) for email in line]


async def rest(process: Collector) -> bytes:
    """All that it writes until its end."""
    return await trio.to_thread.run_sync(process.rest)


# What is taken --------------------------------------------------------------------------------


async def test_ids_that_commit_out_of_order_are_not_skipped(pool, database_url):
    """An account of a lower id, committed after a higher one has been mailed, is mailed too."""
    async with await connect(database_url, autocommit=False) as slow:
        await slow.execute(
            "INSERT INTO relay.accounts (email, login) VALUES ('low@example.org', 'low')"
        )
        await insert(pool, prefix="high")
        with collect(database_url) as process:
            assert emails(await rest(process)) == ["high1@example.org"]
    with collect(database_url) as process:
        assert emails(await rest(process)) == ["low@example.org"]
    ids = dict(await pool.fetch("SELECT login, id FROM relay.accounts"))
    assert ids["low"] < ids["high1"]


async def test_two_collectors_on_twenty_thousand_tokens(pool, database_url):
    """None twice, none lost, whatever they do to each other."""
    await insert(pool, 20_000, prefix="n")
    written: list[str] = []

    async def drain(process: Collector) -> None:
        written.extend(emails(await rest(process)))

    with (
        collect(database_url, batch_limit="10") as first,
        collect(database_url, batch_limit="37") as second,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, first)
            nursery.start_soon(drain, second)
        for process in (first, second):
            assert await trio.to_thread.run_sync(process.wait, 10) == 0, process.log
    assert Counter(Counter(written).values()) == {1: 20_000}
    assert await pool.fetch_value(WAITING) == 0


async def test_a_relay_and_a_collector_share_the_tokens(pool, database_url):
    """Each account has a letter or a row in a line, and not both."""
    await insert(pool, 2_000, prefix="n")
    async with collecting(pool):
        with collect(database_url) as process:
            written = emails(await rest(process))
        await becomes(pool, WAITING, 0)
    assert Counter(Counter(written + await mailed(pool)).values()) == {1: 2_000}


# The reader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [1, 40])
async def test_a_reader_that_dies_loses_nothing(pool, database_url, lines):
    """Of what it did not read, everything comes again; what it read whole does not."""
    await insert(pool, 1_000, prefix="n")
    with collect(database_url, batch_limit="5") as process:
        read = b"".join([await trio.to_thread.run_sync(process.line) for _ in range(lines)])
        assert process.stdout is not None
        process.stdout.close()
        assert await trio.to_thread.run_sync(process.wait, 10) == 0, process.log
    with collect(database_url) as process:
        again = await rest(process)
    assert set(emails(read)) | set(emails(again)) == {f"n{n}@example.org" for n in range(1, 1_001)}
    # Read, and not yet committed when the reader died: at most the last line.
    assert len(set(emails(read)) & set(emails(again))) <= 5
    assert max(Counter(emails(read) + emails(again)).values()) <= 2


async def test_killed_in_the_middle_nothing_is_lost(pool, database_url):
    """kill -9 of the collector: whole lines, an unfinished one perhaps, and the rest again."""
    await insert(pool, 5_000, prefix="n")
    with collect(database_url) as process:
        read = b""
        while read.count(b"\n") < 50:
            read += await trio.to_thread.run_sync(os.read, process.descriptor, 1 << 16)
        process.kill()
        read += await rest(process)
    await disconnected(pool, "relay-collect")
    with collect(database_url) as process:
        again = await rest(process)
    assert set(emails(read)) | set(emails(again)) == {f"n{n}@example.org" for n in range(1, 5_001)}


async def test_terminated_in_the_middle_nothing_comes_twice(pool, database_url):
    """SIGTERM: the lines in hand are finished, and only they are gone from the queue."""
    await insert(pool, 5_000, prefix="n")
    with collect(database_url) as process:
        read = b""
        while read.count(b"\n") < 50:
            read += await trio.to_thread.run_sync(os.read, process.descriptor, 1 << 16)
        process.send_signal(signal.SIGTERM)
        read += await rest(process)
        assert await trio.to_thread.run_sync(process.wait, 10) == 0, process.log
    assert read.endswith(b"\n")
    assert await pool.fetch_value(WAITING) == 5_000 - len(emails(read))
    with collect(database_url) as process:
        again = await rest(process)
    assert Counter(Counter(emails(read + again)).values()) == {1: 5_000}


@contextmanager
def a_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for end in (reader, writer):
            os.close(end)


async def test_no_transaction_stays_open_on_a_reader_that_stalls(pool, database_url):
    """Its line is given up to the queue meanwhile, and is done with when it was read at last."""
    await insert(pool, 2_000, prefix="n")
    with a_pipe() as (reader, writer):
        pipe = Pipe(writer)
        run = Collect(database_url, pipe, Fixed(1_000, 5.0), lambda: KEY, timeout=5.0, hold=0.2)
        read = b""

        async def read_on() -> None:
            nonlocal read
            while read.count(b"\n") < 2:
                await trio.lowlevel.wait_readable(reader)
                read += os.read(reader, 1 << 16)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.drain)
            # A line of 1,000 rows is more than a pipe holds.
            await stalled(pool, pipe, held=False)
            assert await pool.fetch_value(WAITING) == 2_000
            nursery.start_soon(read_on)
        assert await pool.fetch_value(WAITING) == 0
        assert Counter(Counter(emails(read)).values()) == {1: 2_000}


@pytest.mark.parametrize("held", [True, False])
async def test_whole_lines_to_a_reader_that_stopped_do_not_come_again(pool, database_url, held):
    """Several lines are in hand, the pipe takes some of them, and SIGTERM ends it: those are out.

    The others come again, that of which a part is in the pipe too.  SIGTERM comes while the lines
    are held, or after that.
    """
    await insert(pool, 2_000, prefix="n")
    with a_pipe() as (reader, writer), trio.fail_after(30):
        run, pipe = small_steps(database_url, writer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.drain)
            read = await some(reader, 50)
            await stalled(pool, pipe, held=held)
            run.stop()
        read += os.read(reader, 1 << 20)
    assert not read.endswith(b"\n")
    with collect(database_url) as process:
        again = await rest(process)
    assert Counter(Counter(emails(read) + emails(again)).values()) == {1: 2_000}


async def test_lines_read_by_one_who_stalled_and_died_do_not_come_again(pool, database_url):
    """It goes on after a pause, and dies: what was written in between and not read comes again."""
    await insert(pool, 2_000, prefix="n")
    reader, writer = os.pipe()
    try:
        with trio.fail_after(30):
            run, pipe = small_steps(database_url, writer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.drain)
                read = await some(reader, 50)
                await stalled(pool, pipe, held=False)
                accepted = pipe.written
                # A pipe makes room page by page; the first may have been read in part.
                read += os.read(reader, 3 * 4096)
                await eventually(
                    lambda: pipe.written, "it goes on", until=lambda written: written > accepted
                )
                os.close(reader)
    finally:
        os.close(writer)
    with collect(database_url) as process:
        again = await rest(process)
    assert not set(emails(read)) & set(emails(again))
    # Of what it left in the pipe, only that is gone which was there when it stalled.
    lost = 2_000 - len(emails(read)) - len(emails(again))
    assert lost * 100 <= accepted - (read.rfind(b"\n") + 1)  # a row has over 100 bytes


def small_steps(dsn: str, writer: int) -> tuple[Collect, Pipe]:
    """A run whose reader soon stalls: ten rows a line, many lines at once, and a pipe for some
    hundred rows."""
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * 4096)
    pipe = Pipe(writer)
    run = Collect(dsn, pipe, Fixed(10, 5.0), lambda: KEY, timeout=5.0, hold=0.2, quick=60.0)
    return run, pipe


async def some(reader: int, lines: int) -> bytes:
    """Read at least so many lines, as they come."""
    read = b""
    while read.count(b"\n") < lines:
        await trio.lowlevel.wait_readable(reader)
        read += os.read(reader, 4096)
    return read


OPEN = """
    SELECT count(*)
    FROM pg_stat_activity
    WHERE application_name = 'relay-collect'
      AND datname = current_database()
      AND xact_start IS NOT NULL
    """


async def stalled(pool: Pool, pipe: Pipe, *, held: bool) -> None:
    """Wait until a line does not fit into the pipe: its rows are held, or given back again."""

    async def look() -> tuple[int, int]:
        return pipe.waiting, await pool.fetch_value(OPEN)

    await eventually(
        look,
        "a line waits for room",
        until=lambda seen: seen[0] and bool(seen[1]) is held,
    )


# The database ---------------------------------------------------------------------------------


async def test_terminated_backends_are_replaced(pool, database_url):
    """While idle and at work, listening or taking: it goes on by itself, and nothing is missing."""
    with collect(database_url, "--follow", "--adaptive") as process:
        await trio.to_thread.run_sync(process.listens)
        read = b""
        for round_ in range(3):
            await insert(pool, 20, prefix=f"r{round_}n")
            await pool.execute(
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND datname = current_database()
                  AND application_name LIKE 'relay-%'
                """
            )
            while len(set(emails(read))) < 20 * (round_ + 1):
                read += await trio.to_thread.run_sync(process.line)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait, 10) == 0, process.log
    assert len(set(emails(read))) == 60


async def test_a_restart_of_the_database_is_waited_out():
    """Crashed and started again: both collectors resume, and what was inserted first thing goes."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        dsn = cluster.dsn()
        await migrate(dsn)
        pool = Pool(dsn)
        with collect(dsn, "--follow") as process:
            await trio.to_thread.run_sync(process.listens)
            await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
            await trio.to_thread.run_sync(process.logs, "collector.waits_for_database")
            await trio.to_thread.run_sync(cluster.start)
            await insert(pool, 10, prefix="n")
            read = await trio.to_thread.run_sync(process.line)
            assert len(emails(read)) == 10
            await trio.to_thread.run_sync(process.logs, "collector.recovered", "db.listening_again")
        async with collecting(pool, sweep_every=0.2) as (_, mailbox):
            await a_turn(mailbox, SweepNow())
            with structlog.testing.capture_logs() as lines:
                await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
                await logged(lines, "collector.waits_for_database")
            await trio.to_thread.run_sync(cluster.start)

            async def inserted() -> bool:
                with suppress(DatabaseUnavailable):
                    await insert(pool, 10, prefix="m")
                    return True
                return False

            await eventually(inserted, "the database is back")
            await becomes(pool, QUEUED, 10)
        await pool.close()
    finally:
        cluster.remove()


# The relay ------------------------------------------------------------------------------------

# Statements of one hand-over, in their order.
STATEMENTS = {
    "take": b"relay.take_tokens(",
    "queue": b"INSERT INTO relay.outbound_contents",
    "commit": b"COMMIT",
}


@pytest.mark.parametrize(
    ("statement", "when"),
    [("take", "running"), ("queue", "asked"), ("queue", "running"), ("commit", "running"),
     ("commit", "answered")],
)  # fmt: skip
async def test_killed_between_taking_and_handing_over(
    pool, database_url, tmp_path, statement, when
):
    """kill -9 at each statement of a hand-over: each account has one letter in the end."""
    victim: RelayProcess | None = None
    taking = False

    async def moment(name: str, now: str) -> bool:
        nonlocal taking
        taking = taking or name == "take"
        if taking and (name, now) == (statement, when) and victim is not None:
            victim.kill()
            return False
        return True

    await insert(pool, 3, prefix="n")
    async with database_proxy(database_url, STATEMENTS, moment) as proxy:
        victim = RelayProcess(
            tmp_path / "victim",
            env={
                "RELAY_DATABASE__URL": proxy.dsn("victim"),
                "RELAY_DATABASE__DIRECT_URL": database_url,
                "RELAY_DATABASE__PREPARE": "false",
                "RELAY_HTTP__PUBLIC_URL": "https://shop.example",
            },
            arguments=("--only", "collector"),
        )
        await trio.to_thread.run_sync(victim.spawn)
        assert await dead(victim) == -signal.SIGKILL
        await disconnected(pool, "victim")
    async with collecting(pool):
        await becomes(pool, WAITING, 0)
    assert sorted(await mailed(pool)) == [f"n{n}@example.org" for n in (1, 2, 3)]
