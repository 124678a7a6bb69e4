"""Searching with chunks finds what reading everything finds, in the same order."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from relay.db.pool import Pool
from relay.mailboxes import common_search, search
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.grams import holds, probes
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parser
from relay.mailboxes.query import parse
from relay.mailboxes.store import Store
from relay.mailboxes.summary import senders
from relay.mailboxes.visibility import Reach
from relay.mailboxes.worker import filter_of

MESSAGES, SIZE = 150, 8
WORDS = [
    *("order", "invoice", "Reset", "PASSWORD", "code", "4711", "straße", "École", "мир"),
    *("welcome", "x", "zebra", "shipping"),
]
NEEDLES = (
    *("order", "ORDER", "4711", "straße", "STRASSE", "éc", "мир", "МИР", "x", "zz", "unique-77"),
    *("nowhere to be found", "ada@", "bounce@", "%", "_", "\\", "n\x00l", "word Reset", "e"),
)


async def make(text: bytes, details: bytes) -> bytes:
    """The filter, without a child of its own."""
    return filter_of(text, details)


@pytest.fixture
async def filled(pool: Pool) -> tuple[Store, UUID]:
    """A mailbox whose messages came in another order than that of their summaries."""
    rng = random.Random(3)
    store = Store(pool, ["relay.localhost"])
    mailbox = (await store.create()).mailbox.id
    start = datetime.now(UTC) - timedelta(hours=1)
    rows: list[dict[str, Any]] = []
    for number in range(MESSAGES):
        words = rng.choices(WORDS, k=6)
        rows.append(
            {
                "mailbox": mailbox,
                "at": start + timedelta(seconds=number + rng.choice((0, 0, 0, 40))),
                "from": rng.choice(("ada@example.org", "Bob@shop.example", None)),
                "subject": " ".join(words[:3]),
                "text": rng.choice((" ".join(words[3:]), f"unique-{number}", None)),
            }
        )
    for row in rows:
        await pool.execute(
            """
            WITH message AS (
                INSERT INTO relay.messages (mailbox_id, received_at, reverse_path, raw_email)
                VALUES (%(mailbox)s, %(at)s, 'bounce@a.example', 'x')
                RETURNING id
            )
            INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject, body_text)
            SELECT id, %(mailbox)s, %(from)s, %(subject)s, %(text)s FROM message
            """,
            row,
        )
    await pool.execute("DELETE FROM relay.unsummarised")
    return store, mailbox


async def found(messages: Messages, mailbox: UUID, limit: int = 50) -> dict[str, list[UUID]]:
    """All that each needle finds, page by page."""
    answers: dict[str, list[UUID]] = {}
    for needle in NEEDLES:
        answers[needle], cursor = [], None
        while True:
            page = await messages.page(mailbox, limit=limit, cursor=cursor, terms=parse(needle))
            assert page is not None
            answers[needle] += [each.id for each, _ in page.items]
            if (cursor := page.cursor) is None:
                break
    return answers


async def waited(
    arrivals: Arrivals, mailbox: UUID, after: UUID | datetime | None
) -> list[UUID | None]:
    """What waits for each pair of sub-strings would answer."""
    answers: list[UUID | None] = []
    for sender in (None, "ada@", "SHOP", "nobody@"):
        for subject in (None, "reset", "zz"):
            match = await arrivals.next_match(mailbox, sender=sender, subject=subject, after=after)
            assert match is not None
            answers.append(match.message.id if match.message else None)
    return answers


async def test_chunks_change_no_answer(
    pool: Pool, filled: tuple[Store, UUID], messages: Messages, arrivals: Arrivals
):
    """Every needle, every page, every wait: as before; also beside mail that is in no chunk yet."""
    store, mailbox = filled
    ids = (await found(messages, mailbox))["e"]
    instant = await pool.fetch_value("SELECT max(received_at) FROM relay.messages")
    afters = (None, ids[-1], ids[len(ids) // 2], instant, instant - timedelta(minutes=1))
    all_of_it = await found(messages, mailbox)
    waits = [await waited(arrivals, mailbox, after) for after in afters]
    third = (await messages.page(mailbox, limit=5, offset=20, terms=parse("e"))).items  # type: ignore[union-attr]
    chunks = 0
    while await search.grow(pool, mailbox, make, size=SIZE):
        chunks += 1
    assert chunks == MESSAGES // SIZE
    assert not await search.lagging(pool, least=1, size=SIZE)
    assert await search.mark(pool, mailbox) > 0
    assert await found(messages, mailbox) == all_of_it
    assert await found(messages, mailbox, limit=3) == all_of_it
    assert [await waited(arrivals, mailbox, after) for after in afters] == waits
    page = await messages.page(mailbox, limit=5, offset=20, terms=parse("e"))
    assert page is not None
    assert page.items == third
    # What is deleted is gone from the answers; what is not parsed yet is found by its sender.
    await messages.delete(mailbox, ids[3])
    new = await pool.fetch_value(
        "INSERT INTO relay.messages (mailbox_id, reverse_path, raw_email)"
        " VALUES (%s, 'bounce@new', '') RETURNING id",
        (mailbox,),
    )
    again = await found(messages, mailbox)
    assert again["e"] == [new] + [each for each in ids if each != ids[3]]
    assert again["bounce@"][0] == new
    await store.delete(mailbox)
    assert await messages.page(mailbox, terms=parse("e")) is None
    assert await arrivals.next_match(mailbox, subject="zz") is None


async def test_large_mailboxes_lag_and_small_ones_never(pool: Pool, filled: tuple[Store, UUID]):
    """From so many messages on, while a whole chunk is missing; the count tells."""
    _, mailbox = filled
    await pool.fetch_value("SELECT relay.fold_usage(NULL, 1)")
    assert await search.lagging(pool, least=MESSAGES + 1, size=SIZE) == []
    assert await search.lagging(pool, least=MESSAGES, size=MESSAGES + 1) == []
    assert await search.lagging(pool, least=MESSAGES, size=SIZE) == [mailbox]
    async with Parser() as parser:
        assert await search.grow(pool, mailbox, parser.filter, size=MESSAGES)
    assert await search.lagging(pool, least=MESSAGES, size=SIZE) == []
    assert not await search.grow(pool, mailbox, make, size=SIZE)


async def test_a_chunk_holds_little_more_than_its_share(pool: Pool, filled: tuple[Store, UUID]):
    """Long texts make short chunks; and a mailbox that is deleted takes them along."""
    store, mailbox = filled
    await pool.execute("UPDATE relay.summaries SET body_text = repeat('long ', 20000)")
    assert await search.grow(pool, mailbox, make, size=SIZE)
    rows = await pool.fetch(
        "SELECT count(*) FROM relay.summaries s, relay.search_chunks c WHERE s.seq <= c.last_seq"
    )
    assert 0 < rows[0][0] < SIZE
    assert await store.purge(mailbox)
    assert await pool.fetch_value("SELECT count(*) FROM relay.search_chunks") == 0
    assert not await search.grow(pool, mailbox, make, size=SIZE)


async def refuse(text: bytes, details: bytes) -> bytes:
    """A filter is not made where there is one."""
    raise AssertionError(f"{len(text)} bytes of text, {len(details)} of details")


async def summarised(pool: Pool, mailbox: UUID, count: int) -> None:
    """So many messages more of a mailbox."""
    await pool.execute(
        """
        WITH made AS (
            INSERT INTO relay.messages (mailbox_id, raw_email)
            SELECT %s, convert_to(repeat('x', n), 'UTF8')
            FROM generate_series(1, %s) n
            RETURNING id, mailbox_id
        )
        INSERT INTO relay.summaries (message_id, mailbox_id, subject, has_attachments)
        SELECT id, mailbox_id, 'further ' || row_number() OVER (), true FROM made
        """,
        (mailbox, count),
    )


async def test_chunks_of_one_mailbox_are_chunks_of_all(pool: Pool, filled: tuple[Store, UUID]):
    """As far as nobody else has mail among theirs; none of their texts is read again."""
    store, mailbox = filled
    while await search.grow(pool, mailbox, make, size=SIZE):
        pass
    await common_search.grow(
        pool, refuse, settled=await common_search.settled(pool), size=SIZE, least=1
    )
    await summarised(pool, (await store.create()).mailbox.id, 1)
    await pool.execute(
        "UPDATE relay.messages SET recipient = 'other@elsewhere.example' WHERE id = ("
        "SELECT message_id FROM relay.summaries ORDER BY seq DESC LIMIT 1)"
    )
    await summarised(pool, mailbox, 3 * SIZE)
    while await search.grow(pool, mailbox, make, size=SIZE):
        pass
    settled = await common_search.settled(pool)
    while await common_search.grow(pool, make, settled=settled, size=SIZE, least=1):
        pass
    rows = await pool.fetch(
        """
        SELECT c.filter, s.subject,
               c.oldest_id <= m.id AND c.newest_id >= m.id
               AND c.oldest_at <= m.received_at AND c.newest_at >= m.received_at
               AND c.smallest <= m.size AND c.largest >= m.size
               AND CASE WHEN s.has_attachments THEN c.some_attached ELSE c.some_plain END
               AND (c.some_readdressed OR m.recipient IS NULL OR m.recipient = b.address)
        FROM relay.summaries s
        JOIN relay.messages m ON m.id = s.message_id
        JOIN relay.mailboxes b ON b.id = m.mailbox_id
        JOIN relay.common_chunks c ON s.seq > c.after_seq AND s.seq <= c.last_seq
        """
    )
    assert len(rows) > MESSAGES + 1 + 2 * SIZE
    for made, subject, within in rows:
        assert within
        assert holds(made, probes(subject))
    # Of most chunks a search for text reads no message that it does not find.
    rows = await pool.fetch("SELECT some_readdressed, count(*) FROM relay.common_chunks GROUP BY 1")
    counts: dict[bool, int] = dict(rows)
    assert 0 < counts[True] < counts[False]
    taken = "SELECT count(*) FROM relay.common_chunks JOIN relay.search_chunks USING (filter)"
    assert await pool.fetch_value(taken) >= MESSAGES // SIZE


async def test_a_filter_has_the_senders_of_details(pool: Pool) -> None:
    """As the database reads them, whatever stands around them."""
    for name, value in (
        ("From", 'Ada "the first" Lovelace <ada@example.org>'),
        ("FROM", "back\\slash \t and мир, 鈴木"),
        ("from", ""),
    ):
        for separators in ((",", ":"), (", ", ": ")):
            for ascii_only in (True, False):
                details = json.dumps(
                    {"headers": [["X-From", '"from","no"'], ["To", "from"], [name, value]]},
                    separators=separators,
                    ensure_ascii=ascii_only,
                )
                found = await pool.fetch_value("SELECT relay.sender_of(%s)", (details,))
                assert senders(f"{details}\n{details}") == [value, value] == [found, found]


def test_a_search_reads_as_many_chunks_as_will_do() -> None:
    """By what those before had; as many as are read in time, and never more than the most."""
    most = search.MOST_CHUNKS
    assert search.next_batch(2, 0.001, found=0, missing=51) == most
    assert search.next_batch(2, 0.001, found=6, missing=45) == 16
    assert search.next_batch(2, 0.001, found=50, missing=1) == 1
    assert search.next_batch(2, 0.001, found=1, missing=50) == most
    assert search.next_batch(2, 0.02, found=0, missing=1) == 10
    assert search.next_batch(most, 2.0, found=0, missing=1) == 1
    assert search.next_batch(1, 60.0, found=0, missing=1) == 1
    assert search.next_batch(2, 0.0, found=0, missing=1) == most


async def test_chunks_come_in_the_order_of_an_index(pool: Pool) -> None:
    """Each order in which they are looked for is one of an index's: none need be sorted."""
    plans: list[str] = []

    class Noting:
        async def fetch(self, sql: str, params: dict[str, Any]) -> list[Any]:
            async with pool.transaction() as conn:
                await conn.execute("SET LOCAL enable_sort = off")
                rows = await (await conn.execute(f"EXPLAIN {sql}", params)).fetchall()
            plans.append("\n".join(row[0] for row in rows))
            return []

    noting: Any = Noting()
    asked, most, top = probes("order"), search.AHEAD, UUID(int=2**128 - 1)
    for common in (None, common_search.Chunk(0, 500, top)):
        await common_search.backwards(noting, asked, None, behind=common, below=top, most=most)
    for behind in (None, search.Chunk(0, 500, datetime.now(UTC))):
        await search.backwards(noting, top, asked, behind=behind, before=None, most=most)
    await common_search.forwards(noting, asked, above=0, most=most)
    await search.forwards(noting, top, asked, above=0, since=None, most=most)
    for plan in plans:
        assert "Index Scan using" in plan, plan
        assert "Sort" not in plan, plan


async def test_chunks_are_looked_for_many_at_once() -> None:
    """They come in their order, each once, and no look follows one that found fewer than asked."""
    for count in (0, 1, search.AHEAD - 1, search.AHEAD, 2 * search.AHEAD + 7):
        looks: list[tuple[int | None, int]] = []

        async def look(
            behind: int | None, most: int, count: int = count, looks: Any = looks
        ) -> list[int]:
            looks.append((behind, most))
            first = 0 if behind is None else behind + 1
            return list(range(first, min(first + most, count)))

        ahead = search.Ahead(look)
        taken: list[int] = []
        while batch := await ahead.take(5):
            assert len(batch) <= 5
            taken += batch
        assert taken == list(range(count))
        assert len(looks) == count // search.AHEAD + 1


async def test_a_statement_that_takes_long_is_begun_again_with_fewer_chunks(
    autojump_clock: MockClock,
) -> None:
    """None about more than one takes longer than it may; each chunk is read once, in order."""
    seconds = {number: 0.01 if number % 40 else 1.3 for number in range(100)}
    ended: list[tuple[float, int]] = []

    async def look(behind: int | None, most: int) -> list[int]:
        first = 0 if behind is None else behind + 1
        return list(range(first, min(first + most, len(seconds))))

    async def fetch(those: list[int]) -> list[int]:
        began = trio.current_time()
        try:
            await trio.sleep(sum(seconds[one] for one in those))
            return those
        finally:
            ended.append((trio.current_time() - began, len(those)))

    ahead, read = search.Ahead(look), []
    while taken := await ahead.take(search.MOST_CHUNKS):
        those, rows = await ahead.read(taken, fetch)
        assert those == rows
        read += rows
    assert read == list(seconds)
    assert all(took < search.LONGEST + 0.01 or count == 1 for took, count in ended)
    assert max(count for _, count in ended) == search.MOST_CHUNKS


async def test_a_search_whose_statements_are_cut_short_finds_the_same(
    pool: Pool, filled: tuple[Store, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cancelled is looked at again: by lists, by walks, and by those who wait."""
    _, mailbox = filled
    while await search.grow(pool, mailbox, make, size=SIZE):
        pass
    settled = await pool.fetch_value("SELECT relay.settled_seq()")
    while await common_search.grow(pool, make, settled=settled, size=SIZE, least=1):
        pass
    messages, everything, arrivals = Messages(pool), AllMessages(pool), Arrivals(pool)
    reach = Reach(mailbox_id=mailbox)

    async def found() -> list[Any]:
        all_found: list[Any] = []
        for needle in ("order", "order order", "unique-77", "nowhere to be found"):
            terms = parse(f'"{needle}"')
            page = await messages.page(mailbox, limit=100, terms=terms)
            whole = await everything.page(Reach(), limit=100, terms=terms)
            assert page is not None
            all_found += [page.items, whole.items]
            above = 0
            while (one := await everything.next_match(reach, terms, above=above)) is not None:
                all_found.append(one.message)
                if one.message is None:
                    break
                above = one.above
            after = None
            while first := await arrivals.next_match(mailbox, subject=needle, after=after):
                if first.message is None:
                    break
                all_found.append(first.message)
                after = first.message.id
        return all_found

    wanted = await found()
    monkeypatch.setattr(search, "LONGEST", 0.0)
    assert await found() == wanted
