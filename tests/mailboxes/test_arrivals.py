"""Waiting in PostgreSQL: what arrives is found once, in the order in which it became readable."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from relay.errors import Invalid
from relay.mailboxes.arrivals import parse_after
from tests.mailboxes.mail import deliver


async def test_waiters_get_the_oldest_match(pool, store, arrivals):
    """The oldest message that matches comes first, then the one after it, each once."""
    mailbox = (await store.create(ttl_minutes=1)).mailbox.id
    first = await deliver(pool, mailbox, "Welcome", sender="shop@x.example")
    second = await deliver(pool, mailbox, "Your code", sender="Auth@x.example")
    found = await arrivals.next_match(mailbox)
    assert found.message.id == first
    assert 0 < found.expires_in <= 60
    assert not found.message.is_read
    assert (await arrivals.next_match(mailbox, after=first)).message.id == second
    assert (await arrivals.next_match(mailbox, after=second)).message is None
    assert (await arrivals.next_match(mailbox, sender="AUTH@")).message.id == second
    assert (await arrivals.next_match(mailbox, subject="CODE")).message.id == second
    assert (await arrivals.next_match(mailbox, subject="code", sender="shop")).message is None
    assert (await arrivals.next_match(mailbox, subject="%")).message is None
    at = found.message.received_at
    assert (await arrivals.next_match(mailbox, after=at)).message.id == second
    assert (await arrivals.next_match(mailbox, after=at - timedelta(seconds=1))).message.id == first


async def test_after_a_message_that_is_gone_goes_on(pool, store, arrivals):
    """Waiting after a message that was deleted finds what came later, and nothing earlier."""
    mailbox = (await store.create()).mailbox.id
    gone = await pool.fetch_value("SELECT relay.uuidv7()")
    await pool.execute("SELECT pg_sleep(0.003)")
    later = await deliver(pool, mailbox, "later")
    assert (await arrivals.next_match(mailbox, after=gone)).message.id == later
    await pool.execute("SELECT pg_sleep(0.003)")
    gone = await pool.fetch_value("SELECT relay.uuidv7()")
    assert (await arrivals.next_match(mailbox, after=gone)).message is None


async def test_events_go_on_from_a_cursor(pool, store, arrivals):
    """A stream starts at the present, then sees each entry once in the order of summaries."""
    mailbox = (await store.create()).mailbox.id
    await deliver(pool, mailbox, "before")
    start = await arrivals.news(mailbox)
    assert start.found == []
    for number in range(3):
        await deliver(pool, mailbox, str(number))
    found = await arrivals.news(mailbox, start.cursor, limit=2)
    assert [entry.subject for entry, _ in found.found] == ["0", "1"]
    found = await arrivals.news(mailbox, found.cursor)
    assert [entry.subject for entry, _ in found.found] == ["2"]
    assert (await arrivals.news(mailbox, found.cursor)).found == []
    assert (await arrivals.news(mailbox, found.cursor)).cursor == found.cursor
    assert len((await arrivals.news(mailbox, 0)).found) == 4


@pytest.mark.parametrize(
    "value", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+01:00", str(UUID(int=7))]
)
def test_reads_what_a_waiter_waits_after(value):
    """Times and ids are told apart."""
    assert isinstance(parse_after(value), (UUID, datetime))


@pytest.mark.parametrize("value", ["", "yesterday", "12", "9999-12-31T23:59:59-23:00", "\x00"])
def test_refuses_what_is_neither(value):
    """Anything else is refused."""
    with pytest.raises(Invalid):
        parse_after(value)
