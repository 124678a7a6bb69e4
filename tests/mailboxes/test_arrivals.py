"""Waiting in PostgreSQL: what arrives is found once, in the order in which it became readable."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from relay.db.pool import Pool
from relay.errors import Invalid
from relay.mailboxes import search
from relay.mailboxes.arrivals import Arrivals, parse_after
from relay.mailboxes.store import Store
from relay.mailboxes.worker import filter_of
from tests.mailboxes.mail import deliver


async def make(text: bytes, details: bytes) -> bytes:
    """A filter, without a child of its own."""
    return filter_of(text, details)


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


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_look_is_bounded_and_looks_at_nothing_twice(
    pool: Pool, store: Store, chunked: bool
):
    """It says where the next one begins, in chunks or not; what comes later is found."""
    mailbox = (await store.create()).mailbox.id
    for number in range(9):
        last = await deliver(pool, mailbox, f"order {number}")
        if chunked:
            await search.grow(pool, mailbox, make, size=3)
    hasty = Arrivals(pool, seconds=-1, step=4)
    # Its parts are in every filter, and it is in no subject.
    look, looks, above = None, 0, 0
    while look is None or look.cut:
        look = await hasty.next_match(mailbox, subject="order order", above=above, brief=not looks)
        assert look is not None
        assert look.message is None
        looks, above = looks + 1, look.above
    assert looks == 3
    change = "UPDATE relay.summaries SET subject = 'order order' WHERE message_id = %s"
    await pool.execute(change, (last,))
    again = await hasty.next_match(mailbox, subject="order order", above=above)
    assert again is not None
    assert again.message is None
    later = await deliver(pool, mailbox, "Order order now")
    again = await hasty.next_match(mailbox, subject="order order", above=above)
    assert again is not None
    assert again.message is not None
    assert again.message.id == later


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
