"""How far a search over all mailboxes goes at once: steps, budget, where it goes on, by what."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes import common_search, search
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.grams import make_filter, runs
from relay.mailboxes.query import Term, parse
from relay.mailboxes.visibility import Reach
from relay.mailboxes.walks import Walk

MESSAGES = 600
EVERYTHING = Reach()
MINE = new_id()


async def make(text: bytes) -> bytes:
    """A filter, without a child of its own."""
    return make_filter(runs(text.decode()))


@pytest.fixture
async def ids(pool: Pool) -> list[UUID]:
    """Messages of one mailbox, newest first; the oldest is of another owner's."""
    mailboxes = [
        await pool.fetch_value(
            "INSERT INTO relay.mailboxes (address, owner_id, expires_at)"
            " VALUES (%s, %s, now() + interval '1 hour') RETURNING id",
            (f"{owner}@relay.localhost", owner),
        )
        for owner in (new_id(), MINE)
    ]
    ids = sorted(new_id() for _ in range(MESSAGES))
    await pool.execute(
        """
        WITH message AS (
            INSERT INTO relay.messages (id, mailbox_id, reverse_path, raw_email, is_read)
            SELECT id, CASE WHEN n = 1 THEN %s::uuid ELSE %s::uuid END, '',
                   convert_to(repeat('x', n::int), 'UTF8'), n <= 10
            FROM unnest(%s::uuid[]) WITH ORDINALITY made (id, n)
            RETURNING id, mailbox_id, size
        )
        INSERT INTO relay.summaries
            (message_id, mailbox_id, from_address, subject, body_text, has_attachments, tags)
        SELECT id, mailbox_id, 'a@x.example', 'order ' || size, 'text', size <= 20,
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
    while await common_search.grow(pool, make, size=size, least=1):
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
    assert await AllMessages(pool, seconds=0.0).mark_read(EVERYTHING, parse("tag:old")) == 20
    assert await AllMessages(pool, seconds=0.0).delete(EVERYTHING, parse("tag:old")) == 30


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
