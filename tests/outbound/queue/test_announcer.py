"""Announcements: one for all that was queued meanwhile, and no more than so many."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import trio
from trio.testing import MockClock

from relay.errors import DatabaseUnavailable
from relay.outbound.queue.announcer import Announcer
from relay.outbound.queue.enqueue import HIGH


@asynccontextmanager
async def running(
    fails: int = 0, **options: float
) -> AsyncIterator[tuple[Announcer, list[tuple[float, str]]]]:
    """An announcer that runs, and what it announced: when, and with which payload."""
    told: list[tuple[float, str]] = []
    started = trio.current_time()

    async def announce(payload: str) -> None:
        told.append((round(trio.current_time() - started, 3), payload))
        if len(told) <= fails:
            raise DatabaseUnavailable("away")

    announcer = Announcer(announce, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announcer.run)
        yield announcer, told
        nursery.cancel_scope.cancel()


async def test_what_comes_while_it_lingers_is_announced_together(autojump_clock: MockClock):
    """Once, as high mail if any of it was; what comes later has its own."""
    async with running(linger=0.03) as (announcer, told):
        announcer.soon()
        await trio.sleep(0.01)
        announcer.soon(high=True)
        await trio.sleep(1.0)
        announcer.soon()
        await trio.sleep(1.0)
    assert told == [(0.03, HIGH), (1.04, "")]


async def test_it_announces_at_once_and_rests_then(autojump_clock: MockClock):
    """Of a hundred within a second every twentieth part of it has one announcement."""
    async with running(rest=0.05) as (announcer, told):
        for _ in range(100):
            announcer.soon()
            await trio.sleep(0.01)
        await trio.sleep(1.0)
    assert told[0] == (0.0, "")
    assert len(told) <= 21
    assert all(round(later - sooner, 3) >= 0.05 for (sooner, _), (later, _) in pairwise(told))


async def test_an_outage_ends_nothing(autojump_clock: MockClock):
    """An announcement that failed is not repeated, and the next goes out."""
    async with running(fails=1) as (announcer, told):
        announcer.soon()
        await trio.sleep(1.0)
        announcer.soon()
        await trio.sleep(1.0)
    assert told == [(0.0, ""), (1.0, "")]
