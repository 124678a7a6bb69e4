"""The reaper: reclaims what is old enough, in batches, and nothing else."""

from typing import Any
from uuid import UUID, uuid4

import structlog
import trio

from actors import reaper
from actors.messages import SweepNow
from relay.db import leases
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.mailboxes.store import Store
from relay.outbound.queue.store import Queue
from tests.actors.running import becomes, logged, make_mailbox, running, undisturbed
from tests.outbound.node import Node, lose, put, status

MAILBOXES = "SELECT count(*) FROM relay.mailboxes"
PARTITIONS = "SELECT relname FROM pg_class WHERE relname ~ '^outbound_[a-z]+_p[0-9]{8}$'"
CLOSE = "UPDATE relay.mailboxes SET is_active = false, closed_at = now() - interval '%s'"


async def _fill(pool: Pool, mailbox: UUID, count: int) -> None:
    await pool.execute(
        """
        INSERT INTO relay.messages (mailbox_id, raw_email)
        SELECT %s, 'Subject: x' FROM generate_series(1, %s)
        """,
        (mailbox, count),
    )


async def test_deletes_what_has_been_closed_long_enough(pool):
    """After the retention a mailbox goes with its messages and summaries."""
    old = await make_mailbox(pool)
    await _fill(pool, old, 3)
    await pool.execute(
        """
        INSERT INTO relay.summaries (message_id, mailbox_id)
        SELECT id, mailbox_id FROM relay.messages
        """
    )
    await pool.execute(CLOSE % "8 days")
    young = await make_mailbox(pool)
    await pool.execute(CLOSE % "6 days" + " WHERE id = %s", (young,))
    alive = await make_mailbox(pool, -3600)
    async with running(reaper.run, pool=pool):
        await becomes(pool, MAILBOXES, 2)
    assert set(await pool.fetch("SELECT id FROM relay.mailboxes")) == {(young,), (alive,)}
    assert await pool.fetch_value("SELECT count(*) FROM relay.messages") == 0
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 0


async def test_reports_go_when_full_mailboxes_are_not_counted_by_them_any_more(pool: Pool):
    """Those of the last thirty days stay, whether there is a domain for bounces or none."""
    await pool.execute(
        """
        INSERT INTO relay.outbound_reports (message_id, attempt, kind, owner, address, created_at)
        SELECT relay.uuidv7(), 1, 'bounced', relay.uuidv7(), 'a@b', now() - make_interval(days => d)
        FROM unnest(ARRAY[29, 31]) AS d
        """
    )
    queue = Queue(pool, uuid4())
    assert await reaper.Reaper(pool, retention=3600, queue=queue).round(undisturbed())
    days = "SELECT array_agg(extract(day FROM now() - created_at)::int) FROM relay.outbound_reports"
    assert await pool.fetch_value(days) == [29]


async def test_retention_counts_from_the_close(pool):
    """A mailbox closed by plain SQL a moment ago is kept, however old it is."""
    await make_mailbox(pool, -30 * 86400)
    await pool.execute("UPDATE relay.mailboxes SET is_active = false")
    assert await reaper.Reaper(pool, retention=3600).round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 1
    assert await reaper.Reaper(pool, retention=0).round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 0


async def test_a_purge_that_broke_off_is_finished(pool):
    """A mailbox closed at the beginning of time goes whatever the retention."""
    mailbox = await make_mailbox(pool, 3600)
    await _fill(pool, mailbox, 3)
    async with pool.transaction() as busy:
        # The purge closes the mailbox, and is cut off while it waits for a message.
        await busy.execute("SELECT FROM relay.messages FOR UPDATE")
        with trio.move_on_after(0.5) as cut:
            await Store(pool, ["relay.localhost"]).purge(mailbox)
        assert cut.cancelled_caught
    assert await pool.fetch_value(MAILBOXES) == 1
    assert await reaper.Reaper(pool, retention=86400 * 365).round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 0


async def test_deletes_a_full_mailbox_in_batches(pool):
    """Thousands of messages go in several transactions, the mailbox last."""
    await _fill(pool, await make_mailbox(pool), 2500)
    await pool.execute(CLOSE % "8 days")
    await pool.execute("CREATE TABLE batches (n integer)")
    await pool.execute(
        """
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO batches SELECT count(*) FROM gone;
            RETURN NULL;
        END $$
        """
    )
    await pool.execute(
        """
        CREATE TRIGGER note AFTER DELETE ON relay.messages REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION note()
        """
    )
    assert await reaper.Reaper(pool, retention=3600).round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 0
    rows = await pool.fetch("SELECT n FROM batches WHERE n > 0")
    assert rows == [(500,)] * 5


async def test_leaves_what_became_active_again(pool):
    """A mailbox that SQL has made active again is not deleted."""
    await make_mailbox(pool)
    await pool.execute(CLOSE % "8 days")
    await pool.execute("UPDATE relay.mailboxes SET is_active = true")
    assert await reaper.Reaper(pool, retention=3600).round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 1


async def test_one_reaps_at_a_time(pool):
    """While another node holds the lease, nothing is touched."""
    await make_mailbox(pool)
    await pool.execute(CLOSE % "8 days")
    other = await leases.acquire(pool, "reaper", uuid4(), 30)
    assert other is not None
    one = reaper.Reaper(pool, retention=3600)
    assert not await one.round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 1
    await leases.release(pool, other)
    assert await one.round(undisturbed())
    assert await pool.fetch_value(MAILBOXES) == 0


async def test_an_outage_is_waited_out(pool):
    """Said once, tried again soon, and said when it is over."""
    attempts: list[float] = []
    healthy = pool.fetch_value

    async def fetch_value(*arguments: Any) -> Any:
        if len(attempts) < 3:
            attempts.append(trio.current_time())
            raise DatabaseUnavailable("away")
        return await healthy(*arguments)

    pool.fetch_value = fetch_value
    with structlog.testing.capture_logs() as lines:
        async with running(reaper.run, pool=pool, sweep_every=3600.0):
            await logged(lines, "reaper.recovered")
    assert [line["event"] for line in lines].count("reaper.waits_for_database") == 1
    assert attempts[2] - attempts[0] < 5.0  # not as rarely as it looks whether another reaps


async def test_reaps_on_command(pool):
    """A command starts a round at once."""
    async with running(reaper.run, pool=pool, sweep_every=3600.0) as (_, mailbox):
        await becomes(pool, "SELECT count(*) FROM relay.leases", 1)
        await make_mailbox(pool)
        await pool.execute(CLOSE % "8 days")
        await mailbox.send(SweepNow())
        await becomes(pool, MAILBOXES, 0)


async def test_sets_right_what_vanished_workers_left(pool):
    """A lost lease is queued and recorded; one lost after DATA began, to be held, is held."""
    node = Node(pool)
    (lost,) = await put(pool, "a@example.net")
    (unknown,) = await put(pool, "b@example.net", hold_unknown=True)
    claimed = {message.id: message for message in await node.drain()}
    await node.queue.begin_data([(unknown.id, claimed[unknown.id].fence)])
    await lose(pool, lost.id, unknown.id)
    async with running(reaper.run, pool=pool, queue=Queue(pool, uuid4())):
        await becomes(pool, "SELECT count(*) FROM relay.outbound_tries", 2)
    assert await status(pool, lost.id) == "queued"
    assert await status(pool, unknown.id) == "held"
    assert await pool.fetch("SELECT DISTINCT outcome FROM relay.outbound_tries") == [("lost",)]


async def test_trouble_with_the_outbound_queue_keeps_no_mailbox(any_pool: Pool):
    """Whatever the database says to either step is told without its words; the rest is done."""
    await make_mailbox(any_pool)
    await any_pool.execute(CLOSE % "8 days")
    queue = Queue(any_pool, uuid4())
    one = reaper.Reaper(any_pool, retention=3600, queue=queue)
    await any_pool.execute("ALTER FUNCTION relay.outbound_roll RENAME TO away")
    await any_pool.execute("ALTER TABLE relay.outbound_due RENAME TO outbound_away")
    with structlog.testing.capture_logs() as lines:
        assert await one.round(undisturbed())
    assert await any_pool.fetch_value(MAILBOXES) == 0
    told = [line for line in lines if line["event"] == "reaper.step_failed"]
    assert [(line["step"], line["error"]) for line in told] == [
        ("reap", "UndefinedTable"),
        ("roll", "UndefinedFunction"),
    ]


async def test_what_no_partition_covered_does_not_stop_the_reaper(any_pool: Pool):
    """Weeks without a relay, then mail by SQL: the reaper makes partitions, and goes on."""
    await make_mailbox(any_pool)
    await any_pool.execute(CLOSE % "8 days")
    for (name,) in await any_pool.fetch(PARTITIONS):
        await any_pool.execute(f"DROP TABLE relay.{name}")
    await any_pool.execute("SELECT relay.send('a@x.org', 'b@x.org', 'subject', 'text')")
    queue = Queue(any_pool, uuid4())
    with structlog.testing.capture_logs() as lines:
        assert await reaper.Reaper(any_pool, retention=3600, queue=queue).round(undisturbed())
    assert await any_pool.fetch_value(MAILBOXES) == 0
    assert len(await any_pool.fetch(PARTITIONS)) == 12
    assert await any_pool.fetch_value("SELECT count(*) FROM relay.outbound_letters_rest") == 0
    assert [line["event"] for line in lines] == ["mailbox.reclaimed"]
