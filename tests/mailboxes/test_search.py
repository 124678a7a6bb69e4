"""Searching with chunks finds what reading everything finds, in the same order."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from relay.db.pool import Pool
from relay.mailboxes import search
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.grams import make_filter, runs
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parser
from relay.mailboxes.query import parse
from relay.mailboxes.store import Store

MESSAGES, SIZE = 150, 8
WORDS = [
    *("order", "invoice", "Reset", "PASSWORD", "code", "4711", "straße", "École", "мир"),
    *("welcome", "x", "zebra", "shipping"),
]
NEEDLES = (
    *("order", "ORDER", "4711", "straße", "STRASSE", "éc", "мир", "МИР", "x", "zz", "unique-77"),
    *("nowhere to be found", "ada@", "bounce@", "%", "_", "\\", "n\x00l", "word Reset", "e"),
)


async def make(text: bytes) -> bytes:
    """The filter, without a child of its own."""
    return make_filter(runs(text.decode()))


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
