"""`relay collect` from within: what only a machine that is busy at the wrong moment shows."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.lifecycle.batching import Adaptive, Fixed
from relay.lifecycle.collect import Collect
from relay.lifecycle.pipe import Pipe
from tests.actors.running import logged
from tests.db.cluster import TwoHosts
from tests.eventually import eventually
from tests.lifecycle.collecting import KEY, batches
from tests.lifecycle.people import insert


@asynccontextmanager
async def following(
    pool: Pool, law: type[Adaptive] | type[Fixed], **wiring: Any
) -> AsyncIterator[int]:
    """Follow until the block ends, and never sweep; yields the reading end of the pipe."""
    reading, writing = os.pipe()
    pipe = Pipe(writing)
    run = Collect(
        pool.dsn, pipe, law(10, 0.3), lambda: KEY, timeout=0.3, sweep_every=3600.0, **wiring
    )
    try:
        async with trio.open_nursery() as nursery:
            with structlog.testing.capture_logs() as lines:
                nursery.start_soon(run.follow)
                await logged(lines, "collector.listening")
                yield reading
                run.stop()
    finally:
        os.close(reading)
        os.close(writing)


async def line(reading: int) -> list[str]:
    """Whom the next line is about."""
    await trio.lowlevel.wait_readable(reading)
    (one,) = batches(os.read(reading, 1 << 16))
    return one


@pytest.mark.parametrize("law", [Adaptive, Fixed])
async def test_what_is_announced_while_a_batch_is_in_hand_is_not_forgotten(pool, law):
    """Its row is not in that batch, whose end must not pass for an answer to it."""
    with trio.fail_after(20):
        async with following(pool, law) as reading:
            await insert(pool, prefix="drained")
            assert await line(reading) == ["drained1@example.org"]
            await insert(pool, prefix="first")
            await trio.lowlevel.wait_readable(reading)  # written, and not taken yet
            await insert(pool, prefix="second")
            await trio.sleep(0.3)  # its announcement comes
            assert await line(reading) == ["first1@example.org"]
            assert await line(reading) == ["second1@example.org"]


async def test_it_goes_over_to_the_server_that_was_promoted():
    """The old primary lives, answers and is first in the URL: what is committed on the new one
    is written nonetheless, and nothing is taken from the old one any more."""
    pair = TwoHosts(18)
    old, new = Pool(pair.old.dsn("mail")), Pool(pair.new.dsn("mail"))
    try:
        await migrate(pair.dsn)
        await insert(old, prefix="before")
        with trio.fail_after(30):
            async with following(Pool(pair.dsn), Adaptive, look_every=0.2) as reading:
                assert await line(reading) == ["before1@example.org"]
                queued = "SELECT count(*) FROM relay.token_queue"
                await eventually(
                    lambda: old.fetch_value(queued), "it is taken", until=lambda n: n == 0
                )
                lsn = await old.fetch_value("SELECT pg_current_wal_lsn()")
                await eventually(
                    lambda: new.fetch_value("SELECT pg_last_wal_replay_lsn() >= %s", (lsn,)),
                    "the standby has all of it",
                )
                await trio.to_thread.run_sync(pair.new.promote)
                await insert(new, 2, prefix="after")
                assert await line(reading) == ["after1@example.org", "after2@example.org"]
                await insert(new, prefix="later")
                assert await line(reading) == ["later1@example.org"]
                await insert(old, prefix="lost")
                await insert(new, prefix="last")
                assert await line(reading) == ["last1@example.org"]
                assert await old.fetch_value(queued) == 1
    finally:
        await old.close()
        await new.close()
        pair.remove()
