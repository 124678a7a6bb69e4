"""What waits to be parsed is claimed under leases, and summaries are stored once and in order."""

import json
import re
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes import summaries
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parsed
from relay.mailboxes.store import Store
from relay.mailboxes.summaries import Claimed
from relay.mailboxes.summary import COLUMNS, Summary, summarise
from tests.mailboxes import corpus

LEFT = "SELECT array_agg(message_id ORDER BY message_id) FROM relay.unsummarised"


async def _accept(pool: Pool, mailbox: UUID, count: int) -> list[UUID]:
    ids = [new_id() for _ in range(count)]
    for message in ids:
        await pool.execute(
            "INSERT INTO relay.messages (id, mailbox_id, raw_email) VALUES (%s, %s, %s)",
            (message, mailbox, b"Subject: %s\r\n\r\n" % str(message).encode()),
        )
    return ids


async def _claim(
    pool: Pool, ids: list[UUID], *, node: UUID, parser: int = 0, seconds: float = 60.0
) -> list[Claimed]:
    return await summaries.claim(
        pool, [one.bytes for one in ids], node=node, parser=parser, seconds=seconds
    )


def _parse(claimed: list[Claimed]) -> list[Parsed]:
    return [Parsed(summarise(message.raw).as_row(), 0.001) for message in claimed]


def _ids(claimed: list[Claimed]) -> set[UUID]:
    return {UUID(bytes=message.message_id) for message in claimed}


@pytest.fixture
async def mailbox(store: Store) -> UUID:
    """A mailbox."""
    return (await store.create(ttl_minutes=5)).mailbox.id


async def test_arrays_hold_what_was_found(pool):
    """Every value of every row comes out of PostgreSQL as it was put in, NULLs too."""
    found = [
        summarise(corpus.plain(1)),
        summarise(corpus.newsletter(1)),
        summarise(corpus.with_attachment(1)),
        summarise(b""),
        Summary(error="why"),
        *map(summarise, corpus.real()),
    ]
    columns = summaries.arrays([Parsed(one.as_row(), 0.0) for one in found])
    for column, kind, array in zip(COLUMNS, summaries.TYPES, columns, strict=True):
        sql = "SELECT v FROM unnest($1) WITH ORDINALITY AS t (v, n) ORDER BY n"
        result = await pool.run(Statement(sql, (kind,)), (array,))
        values = [result.get_value(row, 0) for row in range(result.ntuples)]
        if column == "details":
            kept = [json.loads(value) for value in values]
            assert [one["headers"] for one in kept] == [one.headers for one in found]
            assert [one["attachments"] for one in kept] == [one.attachments for one in found]
            assert [one["links"] for one in kept] == [one.links for one in found]
        elif column == "has_attachments":
            assert values == [bytes((one.has_attachments,)) for one in found]
        else:
            texts = [getattr(one, column) for one in found]
            assert values == [None if text is None else text.encode() for text in texts]


async def test_a_node_leaves_alone_what_another_has_in_hand(pool, mailbox):
    """Until the lease is over; the same node's parsers see to it themselves."""
    ids = await _accept(pool, mailbox, 3)
    one, other = uuid4(), uuid4()
    assert _ids(await _claim(pool, ids[:2], node=one)) == {*ids[:2]}
    assert _ids(await _claim(pool, ids, node=other)) == {ids[2]}
    assert _ids(await _claim(pool, ids, node=one, parser=1)) == {*ids[:2]}
    # The next claim of a parser lets go of what it had.
    assert _ids(await _claim(pool, [], node=one, parser=1)) == set()
    assert _ids(await _claim(pool, ids[:1], node=one)) == {ids[0]}
    assert _ids(await _claim(pool, ids, node=other)) == {ids[1], ids[2]}
    assert await pool.fetch_value("SELECT count(*) FROM relay.parse_leases") == 3


async def _claim_all(
    pool: Pool, *, node: UUID, messages: int = 64, size: int = 10_000
) -> list[tuple[UUID, bool]] | None:
    found = await summaries.claim_all(
        pool, node=node, parser=0, seconds=60.0, messages=messages, size=size
    )
    if found is None:
        return None
    for waiting, claimed in found:
        assert claimed is None or claimed[:2] == waiting[:2]
        assert claimed is None or len(claimed.raw) == waiting.size
    return [(UUID(bytes=one.message_id), claimed is not None) for one, claimed in found]


async def test_few_are_claimed_as_they_are_looked_at(pool, mailbox):
    """All that wait, in the order of arrival, with what was deleted named; others leave it alone
    then."""
    assert await _claim_all(pool, node=uuid4()) == []
    assert await pool.fetch_value("SELECT count(*) FROM relay.parse_leases") == 0
    ids = await _accept(pool, mailbox, 3)
    await pool.execute("DELETE FROM relay.messages WHERE id = %s", (ids[1],))
    one = uuid4()
    assert await _claim_all(pool, node=one) == [(ids[0], True), (ids[1], False), (ids[2], True)]
    assert await _claim(pool, ids, node=uuid4()) == []
    assert await _claim_all(pool, node=one) is not None  # as `claim` does


async def test_few_are_claimed_by_a_plan_that_is_kept(pool):
    """Planning it anew would take longer than to run it."""
    for _ in range(10):  # on the connection that was used last
        await _claim_all(pool, node=uuid4())
    plans = await pool.fetch(
        "SELECT generic_plans > 0 FROM pg_prepared_statements WHERE statement LIKE '%WITH waiting%'"
    )
    assert plans == [(True,)]


async def test_many_and_what_others_have_in_hand_are_not_claimed_as_they_are_looked_at(
    pool, mailbox
):
    """By number, by size, by a lease: then nothing is claimed."""
    ids = await _accept(pool, mailbox, 3)
    other = uuid4()
    assert await _claim_all(pool, node=uuid4(), messages=2) is None
    assert await _claim_all(pool, node=uuid4(), size=100) is None
    assert _ids(await _claim(pool, ids[:1], node=other)) == {ids[0]}
    assert await _claim_all(pool, node=uuid4()) is None
    assert _ids(await _claim(pool, ids, node=other)) == {*ids}


async def test_a_lease_ends(pool, mailbox):
    """A node that was killed keeps nothing for longer than it said."""
    ids = await _accept(pool, mailbox, 2)
    assert _ids(await _claim(pool, ids, node=uuid4(), seconds=0.0)) == {*ids}
    assert _ids(await _claim(pool, ids, node=uuid4())) == {*ids}
    assert await _claim(pool, ids, node=uuid4()) == []


async def test_what_is_parsed_twice_is_stored_once(pool, mailbox):
    """Two that claimed at one instant: the second changes nothing, and the queue is empty."""
    ids = await _accept(pool, mailbox, 3)
    node = uuid4()
    twice = [await _claim(pool, ids, node=node), await _claim(pool, ids, node=node)]
    for claimed in twice:
        assert await summaries.store(pool, claimed, _parse(claimed)) == {i.bytes for i in ids}
    assert await pool.fetch_value(LEFT) is None
    rows = await pool.fetch("SELECT message_id, subject FROM relay.summaries ORDER BY seq")
    assert rows == [(message, str(message)) for message in ids]


async def test_the_claim_shows_the_bytes_and_the_store_all_that_was_found(pool, mailbox):
    """From the raw bytes to what a reader is shown."""
    message = new_id()
    await pool.execute(
        "INSERT INTO relay.messages (id, mailbox_id, raw_email) VALUES (%s, %s, %s)",
        (message, mailbox, corpus.with_attachment(3)),
    )
    claimed = await _claim(pool, [message], node=uuid4())
    assert [(one.mailbox_id, one.raw) for one in claimed] == [
        (mailbox.bytes, corpus.with_attachment(3))
    ]
    assert await summaries.store(pool, claimed, _parse(claimed)) == {message.bytes}
    shown = await Messages(pool).get(mailbox, message)
    expected = summarise(corpus.with_attachment(3))
    assert shown is not None
    for name in ("from_address", "subject", "has_attachments", "body_text", "body_html"):
        assert getattr(shown, name) == getattr(expected, name)
    for name in ("headers", "attachments", "links", "otp", "error"):
        assert getattr(shown, name) == getattr(expected, name)


async def test_numbers_follow_the_order_of_arrival(pool, mailbox):
    """Whatever the order in which a group was claimed and parsed."""
    ids = await _accept(pool, mailbox, 5)
    claimed = await _claim(pool, ids, node=uuid4())
    claimed.sort(key=lambda one: one.message_id, reverse=True)
    await summaries.store(pool, claimed, _parse(claimed))
    rows = await pool.fetch("SELECT message_id FROM relay.summaries ORDER BY seq")
    assert [row[0] for row in rows] == ids


async def test_a_message_that_is_gone_gets_no_summary(pool, mailbox):
    """Deleted while it was parsed: the others are stored, and it leaves the queue as an orphan."""
    ids = await _accept(pool, mailbox, 3)
    claimed = await _claim(pool, ids, node=uuid4())
    await pool.execute("DELETE FROM relay.messages WHERE id = %s", (ids[1],))
    stored = await summaries.store(pool, claimed, _parse(claimed))
    assert stored == {ids[0].bytes, ids[2].bytes}
    assert await pool.fetch_value(LEFT) == [ids[1]]
    assert await _claim(pool, ids, node=uuid4()) == []
    await summaries.drop_orphans(pool, [ids[1].bytes])
    assert await pool.fetch_value(LEFT) is None


async def test_a_message_that_is_being_deleted_is_waited_for_by_nobody(pool, mailbox):
    """It stays in the queue; should it not be deleted after all, it is stored the next time."""
    ids = await _accept(pool, mailbox, 2)
    claimed = await _claim(pool, ids, node=uuid4())
    async with pool.transaction() as conn:
        await conn.execute("SELECT FROM relay.messages WHERE id = %s FOR UPDATE", (ids[0],))
        with trio.fail_after(10):
            assert await summaries.store(pool, claimed, _parse(claimed)) == {ids[1].bytes}
    assert await pool.fetch_value(LEFT) == [ids[0]]
    assert await summaries.store(pool, claimed, _parse(claimed)) == {ids[0].bytes, ids[1].bytes}
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 2


async def test_those_who_store_the_same_do_not_wait_for_each_other_for_ever(pool, store):
    """Mail of many mailboxes, in opposite orders, again and again: no deadlock, each once."""
    mailboxes = [(await store.create(ttl_minutes=5)).mailbox.id for _ in range(6)]
    ids = [one for mailbox in mailboxes for one in await _accept(pool, mailbox, 5)]
    claimed = await _claim(pool, ids, node=uuid4())
    found = dict(zip(claimed, _parse(claimed), strict=True))

    async def store_some(order: list[Claimed]) -> None:
        for begin in range(0, len(order), 10):
            some = order[begin : begin + 10]
            await summaries.store(pool, some, [found[one] for one in some])

    async with trio.open_nursery() as nursery:
        for step in (1, -1, 1, -1):
            nursery.start_soon(store_some, claimed[::step])
    assert await pool.fetch_value(LEFT) is None
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == len(ids)


async def test_readers_see_numbers_in_order(pool, mailbox):
    """Whoever has seen a number has seen all below it, though several store at once."""
    ids = await _accept(pool, mailbox, 120)
    seen: list[int] = []
    done = trio.Event()

    async def store_every(start: int) -> None:
        for begin in range(start, len(ids), 3):
            claimed = await _claim(pool, ids[begin : begin + 1], node=uuid4(), seconds=0.0)
            await summaries.store(pool, claimed, _parse(claimed))

    async def read() -> None:
        while True:
            rows = await pool.fetch("SELECT seq FROM relay.summaries ORDER BY seq")
            now = [row[0] for row in rows]
            assert now[: len(seen)] == seen  # nothing came in below what was seen
            seen[:] = now
            if done.is_set():
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async with trio.open_nursery() as writers:
            for start in range(3):
                writers.start_soon(store_every, start)
        done.set()
    assert len(seen) == len(ids)


async def test_summaries_of_before_are_read(pool, mailbox):
    """Rows that have headers, attachments and links in columns of their own show the same."""
    (message,) = await _accept(pool, mailbox, 1)
    found = summarise(corpus.with_attachment(2))
    await pool.execute(
        "INSERT INTO relay.summaries (message_id, mailbox_id, headers, attachments, links)"
        " VALUES (%s, %s, %s, %s, %s)",
        (message, mailbox, *map(json.dumps, (found.headers, found.attachments, ["https://a/"]))),
    )
    shown: Any = await Messages(pool).get(mailbox, message)
    assert (shown.headers, shown.attachments) == (found.headers, found.attachments)
    assert shown.links == ["https://a/"]


async def test_leases_of_nodes_that_are_gone_are_forgotten(pool, mailbox):
    """Each start of a relay is a node of its own: their rows do not gather."""
    ids = await _accept(pool, mailbox, 1)
    await _claim(pool, ids, node=uuid4(), seconds=-61.0)
    await _claim(pool, ids, node=uuid4(), seconds=-1.0)
    await pool.execute("DELETE FROM relay.messages")
    await summaries.tidy(pool)
    assert await pool.fetch_value("SELECT count(*) FROM relay.parse_leases") == 1
    assert await pool.fetch_value(LEFT) is None


@pytest.mark.parametrize("name", ["_CLAIM", "_claiming_all", "_STORE", "_ORPHANS_AMONG"])
async def test_plans_look_rows_up(pool, name):
    """Planned while the tables were empty, kept for when they are not: by keys all the same."""
    found = getattr(summaries, name)
    statement = found if isinstance(found, Statement) else found(64, 100_000)
    kinds = {
        2951: "uuid[]",
        1009: "text[]",
        1000: "boolean[]",
        2950: "uuid",
        21: "int2",
    }
    types = ", ".join(kinds.get(oid, "float8") for oid in statement.types)
    async with pool.transaction() as conn:
        await conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await conn.execute(f"PREPARE looked_at ({types}) AS {statement.sql.decode()}")
        nothing = ", ".join("NULL" for _ in statement.types)
        cursor = await conn.execute(f"EXPLAIN EXECUTE looked_at ({nothing})")
        plan = "\n".join(row[0] for row in await cursor.fetchall())
        await conn.execute("DEALLOCATE looked_at")
    assert re.search(r"Scan (on|using) unsummarised_pkey", plan)
    assert re.search(r"Scan (on|using) messages_pkey", plan)
    assert not re.search(r"Seq Scan on (messages|unsummarised|summaries)\b", plan)
