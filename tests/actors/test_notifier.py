"""The notifier: woken or not, it tells what is due, and what waits for long."""

from __future__ import annotations

import contextlib
from typing import Any

import structlog
import trio

from actors import notifier
from actors.messages import SweepNow, Wake
from relay.db.channels import NOTICES, OUTBOUND
from relay.db.listen import Notification, notifications
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.metrics import registry
from relay.outbound.queue.states import Cause
from relay.outbound.reporting.notices import Notices, Told
from relay.storage import Space
from tests.actors.running import becomes, running
from tests.eventually import eventually
from tests.outbound.node import Node
from tests.outbound.reporting.test_notices import FROM_THE_START, age, submit

REPORTS = "SELECT count(*) FROM relay.outbound_contents WHERE route_as IS NOT NULL"
FOR_EVER = 3600.0
FOR_LONG: dict[str, Any] = {
    "delayed_after": FOR_EVER, "mx_lifetime": FOR_EVER, "direct": False,
}  # fmt: skip


def wired(pool: Pool, **more: Any) -> dict[str, Any]:
    return {
        "pool": pool,
        "notices": Notices(pool, "mail.x.example", **FOR_LONG),
        "sweep_every": FOR_EVER,
        "watch_every": FOR_EVER,
        **more,
    }


async def refuse(node: Node, *to: str) -> None:
    for each in to:
        await submit(node.pool, each)
    await node.finish([one for one in await node.drain() if not one.is_dsn], Cause.REFUSED)


async def test_it_tells_when_it_is_woken(pool: Pool):
    """What was there at its start, then what a message says; and its claimer is told at once."""
    node = Node(pool)
    await refuse(node, "a@y.example")
    told: list[Any] = []
    async with running(notifier.run, **wired(pool, wake_outbound=told.append)) as (_, mailbox):
        await becomes(pool, REPORTS, 1)
        await refuse(node, "b@y.example", "c@y.example")
        mailbox.send_nowait(Wake())
        await becomes(pool, REPORTS, 3)
        await eventually(lambda: len(told), "its claimer is told", until=lambda count: count >= 2)
    assert {lane.domain for lanes in told for lane in lanes} == {"x.example"}


async def test_it_looks_unasked(pool: Pool):
    """Should a wake-up be lost."""
    node = Node(pool)
    async with running(notifier.run, **wired(pool, sweep_every=0.05)):
        await refuse(node, "a@y.example")
        await becomes(pool, REPORTS, 1)


async def test_the_database_says_when_there_is_something(database_url: str, pool: Pool):
    """On a channel of its own; and where no claimer runs here, others are told of the report."""
    node = Node(pool)
    heard: list[str] = []

    async def listen() -> None:
        async with contextlib.aclosing(notifications(database_url, [NOTICES, OUTBOUND])) as found:
            async for one in found:
                heard.append(one.channel if isinstance(one, Notification) else "listening")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await eventually(lambda: "listening" in heard, "it listens")
        await refuse(node, "a@y.example")
        await eventually(lambda: NOTICES in heard, "it is announced")
        async with running(notifier.run, **wired(pool)):
            await eventually(lambda: OUTBOUND in heard, "claimers are told")
        nursery.cancel_scope.cancel()


async def test_what_waits_for_long_is_looked_for(pool: Pool):
    """By the clock, and when somebody says so."""
    await pool.execute(FROM_THE_START)
    (one,) = await submit(pool, "a@y.example")
    async with running(notifier.run, **wired(pool)) as (_, mailbox):
        await becomes(pool, "SELECT looked_to > '01a00000-0000-7000-8000-000000000000'"
                      " FROM relay.outbound_watch", True)  # fmt: skip
        await age(pool, one.id, 2.0)
        await pool.execute(FROM_THE_START)
        mailbox.send_nowait(Wake())
        mailbox.send_nowait(SweepNow())
        await becomes(pool, REPORTS, 1)


def waiting() -> float:
    """How often reports had to wait for the disk."""
    return registry.get_sample_value("relay_storage_refused_total", {"what": "report"}) or 0.0


async def test_a_disk_that_is_nearly_full_makes_reports_wait(pool: Pool):
    """They are told once there is room again."""
    node = Node(pool)
    await refuse(node, "a@y.example")
    disk = Space()
    disk.tell((0, 1, True))
    before = waiting()
    async with running(notifier.run, **wired(pool, space=disk, sweep_every=0.05)):
        await eventually(lambda: waiting() > before + 2, "it has looked, and waits")
        assert await pool.fetch_value(REPORTS) == 0
        disk.tell((2, 1, False))
        await becomes(pool, REPORTS, 1)


async def test_an_outage_is_waited_for(pool: Pool):
    """With one line in the log, and one when it is over."""

    class Away(Notices):
        left = 3

        async def tell(self) -> Told:
            if self.left:
                self.left -= 1
                raise DatabaseUnavailable("away")
            return await super().tell()

    node = Node(pool)
    await refuse(node, "a@y.example")
    away = Away(pool, "mail.x.example", **FOR_LONG)
    with structlog.testing.capture_logs() as lines:
        async with running(notifier.run, **wired(pool, notices=away, sweep_every=0.05)):
            await becomes(pool, REPORTS, 1)
            await eventually(
                lambda: [line["event"] for line in lines],
                "it has recovered",
                until=lambda events: "notifier.recovered" in events,
            )
    events = [line["event"] for line in lines]
    assert events.count("notifier.waits_for_database") == 1
