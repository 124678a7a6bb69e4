"""How far a search over all mailboxes goes at once: steps, budget, where it goes on, by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes import common_search, matching, search, walks
from relay.mailboxes.all_messages import AllMessages, CutShort
from relay.mailboxes.changes import Change
from relay.mailboxes.messages import Messages
from relay.mailboxes.query import Term, parse
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Reach
from relay.mailboxes.walks import Walk
from relay.mailboxes.worker import filter_of
from tests.mailboxes.mail import deliver

MESSAGES = 600
EVERYTHING = Reach()
MINE = new_id()


async def make(text: bytes, details: bytes) -> bytes:
    """A filter, without a child of its own."""
    return filter_of(text, details)


@pytest.fixture
async def ids(pool: Pool) -> list[UUID]:
    """Messages of one mailbox, newest first; the oldest is of another owner's."""
    mailboxes = [
        await pool.fetch_value(
            "INSERT INTO relay.mailboxes (address, owner_id, expires_at)"
            " VALUES (%s, %s, now() + interval '1 hour') RETURNING id",
            (f"{owner}@{domain}", owner),
        )
        for owner, domain in ((new_id(), "relay.localhost"), (MINE, "xn--bcher-kva.example"))
    ]
    ids = sorted(new_id() for _ in range(MESSAGES))
    await pool.execute(
        """
        WITH message AS (
            INSERT INTO relay.messages
                (id, mailbox_id, reverse_path, recipient, raw_email, is_read)
            SELECT id, CASE WHEN n = 1 THEN %s::uuid ELSE %s::uuid END,
                   CASE WHEN n = 6 THEN 'Bounce@away.example' ELSE '' END,
                   CASE WHEN n = 5 THEN 'Other@elsewhere.example' END,
                   convert_to(repeat('x', n::int), 'UTF8'), n <= 10
            FROM unnest(%s::uuid[]) WITH ORDINALITY made (id, n)
            RETURNING id, mailbox_id, size
        )
        INSERT INTO relay.summaries
            (message_id, mailbox_id, from_address, subject, body_text, has_attachments, tags)
        SELECT id, mailbox_id, CASE WHEN size <> 6 THEN 'a@x.example' END,
               'order ' || size, 'text', size <= 20,
               CASE WHEN size <= 30 THEN '{Old}'::text[] END
        FROM message
        ORDER BY size
        """,
        (mailboxes[1], mailboxes[0], ids),
    )
    await pool.execute("DELETE FROM relay.unsummarised")
    return ids[::-1]


async def grow(pool: Pool, size: int = 16) -> None:
    """Make all chunks."""
    settled = await common_search.settled(pool)
    while await common_search.grow(pool, make, settled=settled, size=size, least=1):
        pass


async def pages(
    pool: Pool, query: str, *, seconds: float, limit: int = 5, reach: Reach = EVERYTHING
) -> list[list[UUID]]:
    """What each page of a search finds, to its end."""
    found: list[list[UUID]] = []
    below: UUID | None = None
    while True:
        stretch = await Walk(pool, reach, parse(query), seconds=seconds).find(
            below=below, limit=limit
        )
        assert stretch.below is None or below is None or stretch.below < below
        found.append(stretch.ids)
        if (below := stretch.below) is None:
            return found


def flat(found: Sequence[Sequence[UUID]]) -> list[UUID]:
    """All of them."""
    return [one for page in found for one in page]


# What each finds, of the ids newest first.
FINDS = {
    "order": slice(None),
    "larger:590": slice(0, 10),
    "smaller:11": slice(-10, None),
    "-larger:20": slice(-20, None),
    "-smaller:591": slice(0, 10),
    "has:attachment": slice(-20, None),
    "-has:attachment": slice(0, -20),
    "tag:old": slice(-30, None),
    "-tag:old": slice(0, -30),
    "is:read": slice(-10, None),
    "is:unread": slice(0, -10),
    "tag:old is:unread order": slice(-30, -10),
    "before:2020-01-01": slice(0, 0),
    "after:2020-01-01": slice(None),
    "-order": slice(0, 0),
    "to:BÜCHER.example": slice(-1, None),
    "ücher": slice(-1, None),
    "to:xn--bcher-kva": slice(-1, None),
    "-to:büch": slice(0, -1),
    # Stored by SQL, for somebody else's address; and from nobody but the reverse-path.
    "to:OTHER@elsewhere": slice(-5, -4),
    "elsewhere.example": slice(-5, -4),
    "from:bounce@AWAY": slice(-6, -5),
}


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("query", FINDS)
async def test_a_search_without_time_goes_on_where_it_came_to(
    pool: Pool, ids: list[UUID], query: str, chunks: bool
) -> None:
    """Page by page it finds what one that has time finds, and each page comes further."""
    if chunks:
        await grow(pool)
    assert flat(await pages(pool, query, seconds=0.0)) == ids[FINDS[query]]
    assert flat(await pages(pool, query, seconds=60.0)) == ids[FINDS[query]]


async def test_a_page_that_is_short_has_a_next_one(pool: Pool, ids: list[UUID]) -> None:
    """Also one that is empty; a call of a list shows the same."""
    short = await pages(pool, "-order", seconds=0.0)
    assert len(short) > 3
    assert flat(short) == []
    assert len(await pages(pool, "-order", seconds=60.0)) == 1
    page = await AllMessages(pool, seconds=0.0).page(EVERYTHING, parse("-order"), limit=5)
    assert page.items == []
    assert page.cursor is not None
    page = await AllMessages(pool).page(EVERYTHING, parse("-order"), limit=5)
    assert page.cursor is None


async def test_a_bulk_call_goes_on_to_the_end(pool: Pool, ids: list[UUID]) -> None:
    """Whatever the time of one search."""
    everything = AllMessages(pool, seconds=0.0)
    assert await everything.change(EVERYTHING, parse("tag:old"), Change(is_read=True)) == 20
    # What is changed is what was looked for: still each of them, and once.
    change = Change(remove=["old"], add=["older"])
    assert await everything.change(EVERYTHING, parse("tag:old"), change) == 30
    assert await everything.change(EVERYTHING, parse("tag:old"), change) == 0
    assert await everything.delete(EVERYTHING, parse("tag:older")) == 30


async def test_a_bulk_call_without_time_says_how_far_it_came(pool: Pool, ids: list[UUID]) -> None:
    """And called again it goes on, to the end."""
    everything = AllMessages(pool, bulk_seconds=0.0)
    marked = deleted = 0
    with pytest.raises(CutShort) as cut:
        await everything.change(EVERYTHING, parse("is:unread"), Change(is_read=True))
    marked = cut.value.count
    assert 0 < marked < len(ids) - 10
    (read,) = await pool.fetch("SELECT count(*) FROM relay.messages WHERE is_read")
    assert read == (marked + 10,)
    calls = 0
    while True:
        calls += 1
        try:
            deleted += await everything.delete(EVERYTHING, ())
        except CutShort as more:
            deleted += more.count
        else:
            break
    assert calls > 1
    assert deleted == len(ids)
    assert await pool.fetch_value("SELECT count(*) FROM relay.messages") == 0


async def test_a_wait_without_time_goes_on_where_it_came_to(pool: Pool, ids: list[UUID]) -> None:
    """Look by look, by chunks as well; the last look says that it was all."""
    everything = AllMessages(pool, seconds=0.0, step=50)
    for _ in range(2):
        for query, found in (("subject:600", ids[0]), ("-order", None), ("tag:old", ids[-1])):
            above, looks = 0, 0
            while True:
                match = await everything.next_match(EVERYTHING, parse(query), above=above)
                assert match is not None
                if not match.cut:
                    break
                assert match.above > above
                above, looks = match.above, looks + 1
            assert (match.message and match.message[0].id) == found
            assert (looks > 1) == (query == "-order" or not await common_search.mark(pool)) or (
                found == ids[-1]
            )
        await grow(pool)


async def test_who_has_few_messages_is_not_led_past_all_others(pool: Pool, ids: list[UUID]) -> None:
    """One message, the oldest of all, in one page, whatever is asked."""
    for _ in range(2):
        for query in ("", "order", "tag:old", "is:read"):
            found = await pages(pool, query, seconds=0.0, reach=Reach(owner_id=MINE))
            assert flat(found) == [ids[-1]], query
            assert len(found) <= 2, query
        await grow(pool)


@pytest.mark.parametrize("chunks", [False, True])
async def test_one_mailbox_with_much_mail_is_searched_by_its_index(
    pool: Pool, ids: list[UUID], chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a search of all finds there, whatever is asked and however little time there is."""
    monkeypatch.setattr(walks, "FEW", 0)
    if chunks:
        await grow(pool)
    mailbox = await pool.fetch_value(
        "SELECT mailbox_id FROM relay.messages WHERE id = %s", (ids[0],)
    )
    for query, wanted in (*FINDS.items(), ("", slice(None))):
        for seconds in (0.0, 60.0):
            found = await pages(pool, query, seconds=seconds, reach=Reach(mailbox_id=mailbox))
            assert flat(found) == [one for one in ids[wanted] if one != ids[-1]], query


def test_chunks_are_asked_for_what_bounds_say() -> None:
    """Only sizes, times and attachments say something of a chunk."""
    assert common_search.narrow(parse("order is:unread tag:x -from:a")) is None
    narrowed = common_search.narrow(parse("larger:1k -has:attachment order"))
    assert narrowed is not None
    assert narrowed.sql == "largest > %(n0)s::bigint AND some_plain"
    assert narrowed.values == {"n0": 1024}
    assert search.asked([Term("tag", "x")]) == []


async def test_tags_are_kept_as_they_change(pool: Pool, ids: list[UUID]) -> None:
    """Given, changed and taken away by whoever writes summaries; gone with their message."""

    async def tagged() -> set[tuple[str, UUID]]:
        return {(row[0], row[1]) for row in await pool.fetch("SELECT * FROM relay.tagged")}

    assert await tagged() == {("old", one) for one in ids[-30:]}
    await pool.execute("UPDATE relay.summaries SET tags = NULL WHERE tags IS NOT NULL")
    assert await tagged() == set()
    await pool.execute(
        "UPDATE relay.summaries SET tags = '{A,a,B}' WHERE message_id = %s", (ids[3],)
    )
    assert await tagged() == {("a", ids[3]), ("b", ids[3])}
    await pool.execute("UPDATE relay.summaries SET tags = '{b}' WHERE message_id = %s", (ids[3],))
    assert await tagged() == {("b", ids[3])}
    await pool.execute("DELETE FROM relay.messages WHERE id = %s", (ids[3],))
    assert await tagged() == set()


async def test_news_of_few_among_many_come_in_steps(pool: Pool, ids: list[UUID]) -> None:
    """A look that has no time left says where to go on, and that there is more."""
    mine = Reach(owner_id=MINE)
    everything = AllMessages(pool, seconds=0.0, step=50)
    newest = await everything.news(EVERYTHING)
    assert newest is not None
    found, cursor, looks, more = [], 0, 0, True
    while more:
        news = await everything.news(mine, cursor)
        assert news is not None
        assert news.cursor > cursor
        found += [entry.id for entry, _ in news.found]
        cursor, looks, more = news.cursor, looks + 1, news.more
    assert found == [ids[-1]]
    assert looks == MESSAGES // 50
    assert cursor == newest.cursor
    whole = await AllMessages(pool, step=50).news(mine, 0)
    assert whole is not None
    assert [entry.id for entry, _ in whole.found] == found
    assert (whole.cursor, whole.more) == (cursor, False)
    all_of_it = await AllMessages(pool, step=50).news(EVERYTHING, 0, limit=120)
    assert all_of_it is not None
    assert [entry.id for entry, _ in all_of_it.found] == ids[::-1][:120]


@pytest.mark.parametrize("query", ["is:read", "larger:590", "tag:old", "-is:unread", "order -text"])
async def test_lists_of_one_mailbox_go_step_by_step(
    pool: Pool, ids: list[UUID], query: str
) -> None:
    """Whatever a page has no time for is in those that follow; all find what one statement does."""
    mailbox = await pool.fetch_value(
        "SELECT mailbox_id FROM relay.messages WHERE id = %s", (ids[0],)
    )
    wanted = await pages(pool, query, seconds=9.0, limit=200, reach=Reach(mailbox_id=mailbox))
    for seconds, longest in ((0.0, 50), (9.0, 50), (9.0, 4096)):
        messages = Messages(pool, seconds=seconds, longest=longest)
        found: list[UUID] = []
        cursor, empty = None, 0
        while True:
            page = await messages.page(mailbox, limit=7, cursor=cursor, terms=parse(query))
            assert page is not None
            found += [entry.id for entry, _ in page.items]
            empty += not page.items
            if (cursor := page.cursor) is None:
                break
        assert found == flat(wanted)
        assert empty > 0 or seconds or query != "is:read"
        skipped = await messages.page(mailbox, limit=3, offset=2, terms=parse(query))
        assert skipped is not None
        assert [entry.id for entry, _ in skipped.items] == found[2:5]


@pytest.mark.parametrize("ahead", [1, 5])
async def test_chunks_beyond_those_looked_for_at_once_are_searched(
    pool: Pool, ids: list[UUID], monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Over all mailboxes and in one, whether or not a look finds as many as it asks for."""
    monkeypatch.setattr(search, "AHEAD", ahead)
    await grow(pool)
    for query in ("order", "order smaller:11"):
        found = await pages(pool, query, seconds=60.0, limit=MESSAGES)
        assert flat(found) == ids[FINDS.get(query, FINDS["smaller:11"])]
    mailbox_id = await pool.fetch_value("SELECT mailbox_id FROM relay.messages ORDER BY size DESC")
    while await search.grow(pool, mailbox_id, make, size=16):
        pass
    page = await Messages(pool).page(mailbox_id, limit=MESSAGES, terms=parse("order"))
    assert page is not None
    assert len(page.items) == MESSAGES - 1


@pytest.mark.parametrize("chunks", [3, 99])
async def test_a_search_of_one_mailbox_goes_on_where_it_came_to(
    pool: Pool, ids: list[UUID], chunks: int
) -> None:
    """Through its chunks and what is in none, page by page, each a step further."""
    mailbox_id = await pool.fetch_value("SELECT mailbox_id FROM relay.messages ORDER BY size DESC")
    for _ in range(chunks):
        await search.grow(pool, mailbox_id, make, size=16)
    for query, wanted in (
        ("order", ids[:-1]),
        ("order -tag:old", ids[:-30]),
        ("order subject:98", None),
    ):
        found: dict[float, list[UUID]] = {}
        counts: dict[float, int] = {}
        for seconds in (0.0, 60.0):
            messages = Messages(pool, seconds=seconds, longest=64)
            found[seconds], counts[seconds], cursor = [], 0, None
            while counts[seconds] == 0 or cursor is not None:
                page = await messages.page(mailbox_id, limit=50, terms=parse(query), cursor=cursor)
                assert page is not None
                found[seconds] += [entry.id for entry, _ in page.items]
                counts[seconds] += 1
                cursor = page.cursor
        assert found[0.0] == found[60.0]
        if wanted is not None:
            assert found[60.0] == wanted
        assert counts[0.0] >= counts[60.0]
    assert counts[60.0] == 1
    assert counts[0.0] > 3


async def test_a_step_looks_through_so_much_text_at_most(pool: Pool, monkeypatch):
    """However large the bodies: two of a hundred letters at once, here; what asks for none, all."""
    monkeypatch.setattr(matching, "TEXT_BYTES", 150)
    store = Store(pool, ["relay.localhost"])
    mailbox = (await store.create()).mailbox.id
    made = [await deliver(pool, mailbox, "order", text="a" * 100) for _ in range(6)]
    reach, longer = Reach(mailbox_id=mailbox), "b" * 30
    messages, everything = Messages(pool, seconds=-1), AllMessages(pool, seconds=-1)

    async def pages(read: Any, query: str) -> tuple[int, list[UUID]]:
        count, found, cursor = 0, [], None
        while count == 0 or cursor is not None:
            page = await read(query, cursor)
            count, cursor = count + 1, page.cursor
            found += [entry.id for entry, _ in page.items]
        return count, found

    for read in (
        lambda query, cursor: messages.page(mailbox, terms=parse(query), cursor=cursor),
        lambda query, cursor: everything.page(reach, parse(query), cursor=cursor),
    ):
        assert await pages(read, longer) == (3, [])
        count, found = await pages(read, f"-{longer}")
        assert count > 1
        assert sorted(found) == sorted(made)
        at = [one.int >> 80 for one in found]  # in milliseconds, of one of which any comes first
        assert at == sorted(at, reverse=True)
        assert await pages(read, f"-subject:{longer}") == (1, found)
