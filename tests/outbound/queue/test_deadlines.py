"""Mail with a deadline: past it a message is cancelled, wherever it waits, and never begun."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from relay.db.pool import Pool
from relay.outbound.admin import QueueAdmin, Wanted
from relay.outbound.queue.states import Cause, State
from tests.outbound.node import Node, put, status
from tests.outbound.running import running_outbound
from tests.outbound.sink import Session, running_sink


def at(seconds: float) -> datetime:
    """So many seconds from now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def error(pool: Pool, message_id: UUID) -> str | None:
    """What the message says went wrong."""
    found: str | None = await pool.fetch_value(
        "SELECT error_log FROM relay.outbound_messages WHERE id = %s", (message_id,)
    )
    return found


async def events(pool: Pool) -> list[str]:
    """The kinds of the events that are to be told."""
    return [row[0] for row in await pool.fetch("SELECT kind FROM relay.webhook_events ORDER BY id")]


async def told_of_everything(pool: Pool) -> None:
    """A webhook for all events of the administrator's mail."""
    await pool.execute(
        """
        INSERT INTO relay.webhooks (url, events)
        VALUES ('https://hook.example/',
                '{message.delivered,message.failed,message.bounced,message.expired}')
        """
    )


async def test_a_claim_past_the_deadline_cancels_and_tells(node: Node):
    """It is not handed out, counts no attempt, says `expired`, and its owner's webhook hears."""
    await told_of_everything(node.pool)
    late, good = (
        await put(node.pool, "a@x.example", not_after=at(-1)),
        await put(node.pool, "b@x.example", not_after=at(60)),
    )
    batch = await node.look()
    assert [message.id for message in batch.messages] == [good[0].id]
    assert batch.expired == [late[0].id]
    assert await status(node.pool, late[0].id) == "cancelled"
    assert await error(node.pool, late[0].id) == "expired"
    attempts = "SELECT attempts FROM relay.outbound_messages WHERE id = %s"
    assert await node.pool.fetch_value(attempts, (late[0].id,)) == 0
    assert await events(node.pool) == ["message.expired"]


async def test_a_deferral_waits_no_longer_than_the_deadline(node: Node):
    """The next attempt is due at the deadline at the latest, where it ends."""
    (queued,) = await put(node.pool, "a@x.example", not_after=at(60))
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0, error="451 later")
    seconds = await node.pool.fetch_value(
        """
        SELECT extract(epoch FROM next_retry_at - not_after)::float8
        FROM relay.outbound_messages
        WHERE id = %s
        """,
        (queued.id,),
    )
    assert seconds == 0


async def test_what_no_claim_meets_is_cancelled_all_the_same(node: Node):
    """In a paused queue, where nothing is claimed, and what is held until somebody looks."""
    admin = QueueAdmin(node.pool)
    late, held = [(await put(node.pool, a, not_after=at(-1)))[0] for a in ("a@x.org", "b@x.org")]
    (good,) = await put(node.pool, "c@x.org", not_after=at(60))
    await admin.hold(held.id)
    await admin.pause()
    assert await node.claim() == []
    assert await node.queue.expire() == 2
    assert [await status(node.pool, one.id) for one in (late, held, good)] == [
        "cancelled",
        "cancelled",
        "queued",
    ]
    assert await error(node.pool, held.id) == "expired"
    await admin.resume()
    assert [message.id for message in await node.claim()] == [good.id]


async def test_an_upstream_that_is_away_past_the_deadline_delivers_nothing_later(pool: Pool):
    """Deferred until it is too late, it is cancelled by the running pair and never comes again."""
    away = True

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        return b"451 4.3.2 away\r\n" if away and verb == "MAIL" else None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, retry_unit=0.2, sweep_every=0.2) as outbound,
    ):
        (late,) = await put(pool, "ada@x.example", not_after=at(1.0))
        outbound.wake()
        await outbound.becomes(late.id, "cancelled")
        away = False
        (good,) = await put(pool, "bob@y.example", not_after=at(60))
        outbound.wake()
        await outbound.becomes(good.id, "sent")
    assert sink.recipients == ["bob@y.example"]
    assert await error(pool, late.id) == "expired"


async def test_relay_send_takes_a_deadline(any_pool: Pool):
    """It is the last parameter; one before send_at is refused, and the key covers it."""
    send = "SELECT relay.send('s@x.org', 'a@x.org', 'Hi', 'text', {})"
    made = await any_pool.fetch_value(send.format("not_after => '2099-01-01T00:00:00Z'"))
    row = await any_pool.fetch_row(
        "SELECT not_after = '2099-01-01Z' FROM relay.outbound_messages WHERE id = %s", (made,)
    )
    assert row == (True,)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="later than send_at"):
        await any_pool.fetch_value(
            send.format("send_at => '2099-01-01Z', not_after => '2098-01-01Z'")
        )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must be an instant"):
        await any_pool.fetch_value(send.format("not_after => 'infinity'"))
    keyed = "idempotency_key => 'k', not_after => '{}-01-01Z'"
    one = await any_pool.fetch_value(send.format(keyed.format(2099)))
    assert await any_pool.fetch_value(send.format(keyed.format(2099))) == one
    with pytest.raises(psycopg.errors.UniqueViolation):
        await any_pool.fetch_value(send.format(keyed.format(2098)))


async def test_a_deferred_message_may_be_retried_at_once_and_a_scheduled_one_not(node: Node):
    """Retry by hand makes it due now with fresh attempts; before its send_at nothing is retried."""
    admin = QueueAdmin(node.pool)
    (deferred,) = await put(node.pool, "a@x.example")
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0, error="451 later")
    (scheduled,) = await put(node.pool, "b@x.example", send_at=at(3600))
    assert await admin.retry(deferred.id) is State.QUEUED
    (again,) = await node.claim()
    assert (again.id, again.attempt, again.turn) == (deferred.id, 2, 1)
    with pytest.raises(Exception, match="queued cannot be retried"):
        await admin.retry(scheduled.id)


async def test_a_flush_makes_deferred_mail_due_by_domain_and_by_route(node: Node):
    """Only what was tried and waits, only what is asked for; scheduled mail keeps its time."""
    admin = QueueAdmin(node.pool)
    await node.pool.execute(
        "INSERT INTO relay.senders (address, upstream) VALUES ('own@example.org', 'smtps://up:465')"
    )
    own = await node.pool.fetch_value(
        "SELECT relay.send('own@example.org', 'c@z.example', 'Hi', 'text')"
    )
    one, two = await put(node.pool, "a@x.example", "b@y.example")
    await node.finish(await node.drain(), Cause.DEFERRED, delay=3600.0, error="451 later")
    await put(node.pool, "later@x.example", send_at=at(3600))
    assert await node.claim() == []
    assert await admin.flush(domain="X.example") == 1
    assert [message.id for message in await node.claim()] == [one.id]
    assert await admin.flush(route="smtps://up:465") == 1
    assert [message.id for message in await node.claim()] == [own]
    assert await admin.flush(route="smtps://other:465") == 0
    for other in (Wanted(tag="no"), Wanted(priority="bulk"), Wanted(recipient="a@y.example")):
        assert await admin.count_deferred(wanted=other) == await admin.flush(wanted=other) == 0
    meant = Wanted(recipient="B@Y.example", priority="normal")
    assert await admin.count_deferred(route="default", wanted=meant) == 1
    assert await admin.flush(route="default", wanted=meant) == 1
    assert [message.id for message in await node.claim()] == [two.id]
    assert await admin.flush() == 0


async def test_a_flush_ends_the_pause_of_a_route(pool: Pool):
    """A route that was left alone for minutes is tried at once, and its mail goes out."""
    away = True

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        return b"421 4.3.2 away\r\n" if away and verb == "connect" else None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, retry_unit=600.0) as outbound,
    ):
        (one,) = await put(pool, "ada@x.example")
        outbound.wake()
        await outbound.becomes(one.id, "queued", 1)
        away = False
        assert await QueueAdmin(pool).flush() == 1
        outbound.flush()
        await outbound.becomes(one.id, "sent")
    assert sink.recipients == ["ada@x.example"]


async def test_an_instant_that_nobody_can_read_is_refused_and_stops_nobody(node: Node):
    """Beyond the year 9999 a row would fail every claim and list that meets it."""
    admin = QueueAdmin(node.pool)
    send = "SELECT relay.send('s@x.org', 'a@x.org', 'Hi', 'text', {} => '{}')"
    for name in ("send_at", "not_after"):
        for instant in ("20000-01-01Z", "9999-12-31 23:59:59-12", "1969-01-01Z"):
            with pytest.raises(psycopg.errors.CheckViolation, match=name):
                await node.pool.fetch_value(send.format(name, instant))
    (old,) = await put(node.pool, "a@x.example")
    # As a relay without that law may have left it.
    async with node.pool.connection() as conn:
        for table in ("outbound_letters", "outbound_due"):
            await conn.execute(
                f"ALTER TABLE relay.{table} DROP CONSTRAINT {table}_not_after_is_out_of_range"
            )
            await conn.execute(
                f"UPDATE relay.{table} SET not_after = '20000-01-01Z' WHERE id = %s", (old.id,)
            )
    shown = await admin.show(old.id)
    assert shown is not None
    assert shown["not_after"].year == 9999
    assert [row["id"] for row in (await admin.find()).rows] == [old.id]
    assert [message.id for message in await node.claim()] == [old.id]
