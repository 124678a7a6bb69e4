"""Messages in PostgreSQL: listed, searched, read, deleted, and until when."""

from functools import partial
from uuid import uuid4

import pytest
import trio

from relay.mailboxes.query import parse
from relay.times import rfc3339
from tests.eventually import eventually
from tests.mailboxes.mail import deliver

EXPIRE = "UPDATE relay.mailboxes SET expires_at = now() - interval '1 microsecond' WHERE id = %s"


async def test_every_read_ends_with_the_mailbox(pool, store, messages, arrivals):
    """From the instant of expires_at no call answers, though nobody has flipped the flag."""
    mailbox = (await store.create()).mailbox.id
    message = await deliver(pool, mailbox, "x")
    assert await messages.raw(mailbox, message) == b"Subject: x\r\n\r\n"
    await pool.execute(EXPIRE, (mailbox,))
    assert await pool.fetch_value("SELECT is_active FROM relay.mailboxes")
    assert await messages.page(mailbox) is None
    assert await messages.get(mailbox, message) is None
    assert await messages.raw(mailbox, message) is None
    assert await arrivals.next_match(mailbox) is None
    assert await arrivals.news(mailbox) is None
    assert not await messages.delete(mailbox, message)
    assert not await store.delete(mailbox)
    assert await pool.fetch_value("SELECT is_read FROM relay.messages") is False


async def test_pages_through_messages(pool, store, messages):
    """Messages come newest first; a page goes on behind the one before, whatever arrives."""
    mailbox = (await store.create()).mailbox.id
    for number in range(7):
        await deliver(pool, mailbox, str(number))
    first = await messages.page(mailbox, limit=3)
    assert [item.subject for item, _ in first.items] == ["6", "5", "4"]
    await deliver(pool, mailbox, "new")
    second = await messages.page(mailbox, limit=3, cursor=first.cursor)
    assert [item.subject for item, _ in second.items] == ["3", "2", "1"]
    third = await messages.page(mailbox, limit=3, cursor=second.cursor)
    assert [item.subject for item, _ in third.items] == ["0"]
    assert third.cursor is None
    skipped = await messages.page(mailbox, limit=2, offset=6)
    assert [item.subject for item, _ in skipped.items] == ["1", "0"]
    empty = await store.create()
    assert (await messages.page(empty.mailbox.id)).items == []


@pytest.mark.parametrize(
    ("query", "subjects"),
    [
        ("INVOICE", ["Your invoice"]),
        ("100%", ["100% off"]),
        ("%", ["100% off"]),
        ("_", ["snake_case"]),
        ("\\", ["back\\slash"]),
        ("shop@", ["Your invoice"]),
        ("HiDdEn", ["100% off"]),
        ("bounce@a", ["back\\slash", "snake_case", "100% off"]),
        ("ÄRGER", ["ärger"]),
        ("\x00", []),
        ("", ["ärger", "back\\slash", "snake_case", "100% off", "Your invoice"]),
    ],
)
async def test_searches_literally(pool, store, messages, query, subjects):
    """A search is a sub-string without regard to case; wild cards are ordinary letters."""
    mailbox = (await store.create()).mailbox.id
    await deliver(pool, mailbox, "Your invoice", sender="shop@x.example")
    await deliver(pool, mailbox, "100% off", text="something hidden")
    await deliver(pool, mailbox, "snake_case")
    await deliver(pool, mailbox, "back\\slash")
    await deliver(pool, mailbox, "ärger", sender="x@y")
    found = await messages.page(mailbox, terms=parse(query))
    assert [item.subject for item, _ in found.items] == subjects


async def test_shows_a_message_that_is_not_parsed_yet(pool, store, messages, arrivals):
    """Before its summary a message is listed with its reverse-path, size and nulls."""
    created = await store.create()
    mailbox = created.mailbox.id
    message = await pool.fetch_value(
        "INSERT INTO relay.messages (mailbox_id, raw_email, reverse_path) "
        "VALUES (%s, 'abc', 'a@b.example') RETURNING id",
        (mailbox,),
    )
    ((entry, _),) = (await messages.page(mailbox)).items
    assert entry.as_json() == {
        "id": str(message),
        "from_address": "a@b.example",
        "subject": None,
        "received_at": rfc3339(entry.received_at),
        "is_read": False,
        "has_attachments": None,
        "size": 3,
    }
    shown = await messages.get(mailbox, str(message))
    assert shown.as_json()["to"] == created.mailbox.address
    assert (await store.usage(created.mailbox.id)).messages == 1
    assert (await arrivals.next_match(mailbox)).message is None


async def test_reading_marks_read(pool, store, messages):
    """One look marks a message read, a look without marking does not."""
    mailbox = (await store.create()).mailbox.id
    message = await deliver(pool, mailbox, "x")
    assert not (await messages.get(mailbox, message, mark_read=False)).is_read
    assert not (await messages.page(mailbox)).items[0][0].is_read
    assert (await messages.get(mailbox, message)).is_read
    assert (await messages.page(mailbox)).items[0][0].is_read


@pytest.mark.parametrize("terms", ["", "text"])
async def test_reads_a_page_of_whole_messages(pool, store, messages, terms):
    """Each as reading it gives it, and marked read: those of the page, and no others."""
    mailbox, other = (await store.create()).mailbox.id, (await store.create()).mailbox.id
    for number in range(5):
        await deliver(pool, mailbox, str(number), text=f"text {number}")
    unread = await deliver(pool, other, "x", text="text")
    terms = parse(terms)
    page = await messages.whole_page(mailbox, limit=2, offset=1, terms=terms)
    assert [message.body_text for message, _ in page.items] == ["text 3", "text 2"]
    assert page.items == [
        (await messages.get(mailbox, message.id, mark_read=False), placed)
        for message, placed in page.items
    ]
    listed = (await messages.page(mailbox)).items
    assert [entry.is_read for entry, _ in listed] == [False, True, True, False, False]
    assert [placed for _, placed in listed[1:3]] == [placed for _, placed in page.items]
    rest = await messages.whole_page(mailbox, cursor=page.cursor, terms=terms)
    assert [message.subject for message, _ in rest.items] == ["1", "0"]
    assert all(message.is_read for message, _ in rest.items)
    assert rest.cursor is None
    assert not (await messages.get(other, unread, mark_read=False)).is_read
    empty = await messages.whole_page((await store.create()).mailbox.id, terms=terms)
    assert (empty.items, empty.cursor) == ([], None)
    await pool.execute(EXPIRE, (other,))
    assert await messages.whole_page(other, terms=terms) is None
    assert await pool.fetch_value(
        "SELECT is_read FROM relay.messages WHERE id = %s", (unread,)
    ) is (False)


@pytest.mark.parametrize("terms", ["", "text"])
async def test_a_page_of_whole_messages_locks_what_it_marks_in_the_order_of_bulk_calls(
    pool, store, messages, terms
):
    """While it waits for the first of them by its id, it holds none of the others: whoever has
    that one goes on to those and waits for nobody."""
    mailbox = (await store.create()).mailbox.id
    ids = sorted([await deliver(pool, mailbox, str(number), text="text") for number in range(20)])
    # It lies behind the others in the table, too.
    await pool.execute("UPDATE relay.messages SET is_read = false WHERE id = %s", (ids[0],))
    async with trio.open_nursery() as nursery, pool.transaction() as bulk:
        lock = "SELECT FROM relay.messages WHERE id = ANY (%s) ORDER BY id FOR UPDATE NOWAIT"
        await bulk.execute(lock, (ids[:1],))
        nursery.start_soon(partial(messages.whole_page, mailbox, limit=20, terms=parse(terms)))
        await eventually(
            lambda: pool.fetch_value(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ),
            "the page waits for it",
        )
        await bulk.execute(lock, (ids,))
    assert all(entry.is_read for entry, _ in (await messages.page(mailbox)).items)


@pytest.mark.parametrize("terms", ["", "a"])
async def test_a_page_of_whole_messages_is_bounded(pool, store, messages, terms):
    """By bytes of what was found, not by characters; one alone may have more; what is left comes
    with the next page, and is not marked read before."""
    mailbox = (await store.create()).mailbox.id
    for letter in "dcba":
        await deliver(pool, mailbox, letter, text="ä" * 50 + "a")
    terms = parse(terms)
    found = []
    cursor, pages = None, []
    while True:
        page = await messages.whole_page(
            mailbox, cursor=cursor, terms=terms, most=206
        )  # quotes too
        pages.append([message.subject for message, _ in page.items])
        found += page.items
        marked = {
            entry.subject for entry, _ in (await messages.page(mailbox)).items if entry.is_read
        }
        assert marked == {message.subject for message, _ in found}
        if (cursor := page.cursor) is None:
            break
    assert pages == [["a", "b"], ["c", "d"]]
    for most in (0, 205):
        page = await messages.whole_page(mailbox, limit=3, terms=terms, most=most)
        assert [message.subject for message, _ in page.items] == ["a"]
        rest = await messages.whole_page(mailbox, limit=3, terms=terms, cursor=page.cursor)
        assert [message.subject for message, _ in rest.items] == ["b", "c", "d"]
        assert rest.cursor is None


_LONG = "x" * 94


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body_html", _LONG),
        ("body_text", "\x01" * 15 + "\\\n"),
        ("details", f'{{"links": ["{_LONG}"]}}'),
        ("headers", f'[["{_LONG}", ""]]'),
        ("attachments", f'["{_LONG}"]'),
        ("links", f'["{_LONG}"]'),
    ],
)
async def test_a_page_of_whole_messages_counts_all_that_was_found(
    pool, store, messages, column, value
):
    """HTML, headers, links and attachments like the text, whichever columns they are in."""
    mailbox = (await store.create()).mailbox.id
    for subject in "ba":
        await deliver(pool, mailbox, subject)
    await pool.execute(f"UPDATE relay.summaries SET {column} = %s", (value,))
    for most, subjects in ((150, ["a"]), (300, ["a", "b"])):
        page = await messages.whole_page(mailbox, most=most)
        assert [message.subject for message, _ in page.items] == subjects


async def test_what_is_long_is_marked_read_by_another_call(pool, store, messages):
    """Whoever shows it may have no room: read so it stays unread, and says so, alone and in a
    page, until it is marked; in its own mailbox, and those that are named."""
    mailbox, other = (await store.create()).mailbox.id, (await store.create()).mailbox.id
    ids = [await deliver(pool, mailbox, "x", text="\x01" * 1000) for _ in range(3)]
    for at_once, is_read in ((5999, False), (6100, True)):
        for wanted in ids[:2]:
            assert (await messages.get(mailbox, wanted, at_once=at_once)).is_read is is_read
    assert [entry.is_read for entry, _ in (await messages.page(mailbox)).items] == [
        False, True, True,
    ]  # fmt: skip
    page = await messages.whole_page(mailbox, at_once=18_000)
    assert [one.is_read for one, _ in page.items] == [False, True, True]
    await messages.mark_read(other, ids)
    await messages.mark_read(mailbox, ids[:2])
    assert not (await messages.get(mailbox, ids[2], mark_read=False)).is_read
    await messages.mark_read(mailbox, ids)
    assert (await messages.get(mailbox, ids[2], mark_read=False)).is_read


async def test_a_message_belongs_to_its_mailbox(pool, store, messages):
    """Another mailbox's message, an unknown and a malformed id are not there."""
    mine, other = (await store.create()).mailbox.id, (await store.create()).mailbox.id
    message = await deliver(pool, mine, "x")
    for wanted in (message, uuid4(), "nonsense", ""):
        assert await messages.get(other, wanted) is None
        assert await messages.raw(other, wanted) is None
        assert not await messages.delete(other, wanted)
    assert await messages.delete(mine, message)
    assert await messages.get(mine, message) is None


async def test_returns_the_raw_bytes(pool, store, messages):
    """Any bytes come back as they were stored, small and large."""
    mailbox = (await store.create()).mailbox.id
    for raw in (b"", bytes(range(256)), bytes(range(256)) * 20_000):
        message = await pool.fetch_value(
            "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, %s) RETURNING id",
            (mailbox, raw),
        )
        assert await messages.raw(mailbox, message) == raw
