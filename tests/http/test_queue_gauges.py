"""The gauges of what waits: counted in one statement, now and then, and never by a scrape."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import trio

from relay.db.pool import Pool
from relay.http.queue_gauges import EVERY, QueueGauges
from relay.metrics import registry
from tests.actors.running import make_mailbox
from tests.eventually import eventually
from tests.outbound.node import Node, put


def shown(gauges: QueueGauges) -> dict[str, float]:
    """What a scrape would show."""
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }


async def test_counts_what_is_unfinished_due_waiting_and_live(pool: Pool):
    """Each gauge says what its name says."""
    gauges = QueueGauges(pool)
    assert shown(gauges) == {}
    later = datetime.now(UTC) + timedelta(hours=1)
    first, _, held = await put(pool, "a@x.example", "b@x.example", "c@x.example")
    await put(pool, "later@x.example", send_at=later)
    await pool.execute(
        "UPDATE relay.outbound_due SET run_at = 'infinity' WHERE id = %s", (held.id,)
    )
    await pool.execute(
        "UPDATE relay.outbound_due SET run_at = now() - interval '1 minute' WHERE id = %s",
        (first.id,),
    )
    node = Node(pool)
    (claimed,) = await node.claim(1)
    assert claimed.id == first.id
    await pool.execute(
        """
        UPDATE relay.outbound_due
        SET run_at = now() - interval '90 seconds'
        WHERE node IS NULL AND run_at <= now()
        """
    )
    await pool.execute("INSERT INTO relay.accounts (email, login) VALUES ('a@x.example', 'a')")
    await make_mailbox(pool)
    await make_mailbox(pool, -1.0)
    rest = await gauges.count()
    assert rest >= EVERY
    found = shown(gauges)
    assert 90 <= found.pop("relay_queue_oldest_due_seconds") < 200
    assert found == {
        "relay_queue_messages/queued": 2,
        "relay_queue_messages/processing": 1,
        "relay_queue_messages/held": 1,
        "relay_queue_due": 1,
        "relay_tokens_waiting": 1,
        "relay_mailboxes_live": 1,
    }


async def test_old_figures_are_not_shown(pool: Pool, virtual: trio.testing.MockClock):
    """With the database away they are left out after a while; the scrape answers all the same."""
    gauges = QueueGauges(pool)
    rest = await gauges.count()
    assert shown(gauges)
    virtual.jump(7 * rest)
    assert shown(gauges) == {}
    assert {family.name for family in gauges.collect()} >= {"relay_queue_messages"}


async def test_an_outage_is_waited_out():
    """No exception reaches anybody, and it is tried again soon."""
    pool = Pool("host=/nowhere dbname=none")
    gauges = QueueGauges(pool)
    assert await gauges.count() == EVERY
    assert shown(gauges) == {}
    await pool.close()


async def test_it_is_registered_while_it_runs(pool: Pool):
    """A scrape finds it, and another start finds its place free."""
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(QueueGauges(pool).run)
            await eventually(
                lambda: registry.get_sample_value("relay_mailboxes_live"),
                "they are counted",
                until=lambda value: value is not None,
            )
            nursery.cancel_scope.cancel()
