"""Counts of what mailboxes hold: exact in every snapshot, and in nobody's way."""

from __future__ import annotations

import random
from uuid import UUID

import psycopg
import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes.accept import Row, fold, full_among, insert_many, insert_one, room_in
from relay.mailboxes.records import Created
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Credential

COUNTED = """
    SELECT (SELECT coalesce(sum(messages), 0)::integer FROM relay.mailbox_usage),
           (SELECT coalesce(sum(messages), 0)::integer FROM relay.usage_changes)
    """


async def held(store: Store, mailbox: UUID) -> tuple[int, int, int]:
    """Messages, bytes and messages that are unread, as they are counted."""
    usage = await store.usage(mailbox)
    assert usage is not None
    return usage.messages, usage.bytes, usage.unread


async def really(pool: Pool, mailbox: UUID) -> tuple[int, int, int]:
    """Messages, bytes and messages that are unread, as they are."""
    row = await pool.fetch_row(
        "SELECT count(*), coalesce(sum(octet_length(raw_email)), 0)::bigint,"
        " count(*) FILTER (WHERE NOT is_read) FROM relay.messages WHERE mailbox_id = %s",
        (mailbox,),
    )
    assert row is not None
    return row[0], row[1], row[2]


async def deliver(pool: Pool, *boxes: Created, raw: bytes = b"x" * 100) -> None:
    """Store a message for each, in one statement."""
    rows = [Row(new_id(), box.mailbox.address, "a@b.example", raw) for box in boxes]
    assert len(await insert_many(pool, rows)) == len(boxes)


async def test_counts_follow_whoever_changes_messages(pool: Pool, store: Store):
    """The writer, SQL that inserts, updates, deletes and moves; a rollback changes nothing."""
    one, other = await store.create(), await store.create()
    boxes = [each.mailbox.id for each in (one, other)]
    await deliver(pool, one, one, other)
    # A large one for two; repeated, it is stored and counted once.
    both = [(new_id(), each.mailbox.address) for each in (one, other)]
    for _ in range(2):
        await insert_one(pool, "a@b.example", both, b"y" * 300_000)
    statements = """
        INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%(one)s, 'sql'), (%(one)s, 'sql')
        UPDATE relay.messages SET raw_email = 'longer than it was' WHERE raw_email = 'sql'
        UPDATE relay.messages SET is_read = true
        INSERT INTO relay.messages (mailbox_id, raw_email, is_read) VALUES (%(one)s, 'seen', true)
        UPDATE relay.messages SET is_read = false, raw_email = 'seen?' WHERE raw_email = 'seen'
        UPDATE relay.messages SET is_read = false WHERE size > 1000 AND mailbox_id = %(other)s
        UPDATE relay.messages SET is_read = is_read
        UPDATE relay.messages SET mailbox_id = %(other)s WHERE size = 100
        DELETE FROM relay.messages WHERE mailbox_id = %(one)s AND size > 1000
        SELECT relay.fold_usage(NULL, 1)
        UPDATE relay.messages SET is_read = NOT is_read
        DELETE FROM relay.messages WHERE mailbox_id = %(other)s
    """.strip().splitlines()  # fmt: skip
    for statement in statements:
        with pytest.raises(ZeroDivisionError):
            async with pool.transaction() as connection:
                await connection.execute(statement, {"one": boxes[0], "other": boxes[1]})
                raise ZeroDivisionError
        for box in boxes:
            assert await held(store, box) == await really(pool, box), statement
        await pool.execute(statement, {"one": boxes[0], "other": boxes[1]})
        for box in boxes:
            assert await held(store, box) == await really(pool, box), statement
    assert await held(store, boxes[1]) == (0, 0, 0)
    await pool.execute("TRUNCATE relay.messages CASCADE")
    assert await held(store, boxes[0]) == (0, 0, 0)


async def test_a_mailbox_that_is_deleted_leaves_no_count(pool: Pool, store: Store):
    """Folded or not, whether its messages went before or with it."""
    for folded in (False, True):
        box = await store.create()
        await deliver(pool, box, box)
        if folded:
            await fold(pool, [box.mailbox.address])
        await pool.execute("DELETE FROM relay.mailboxes")
        assert await pool.fetch_row(COUNTED) == (0, 0)


async def test_folding_leaves_alone_what_it_would_wait_for(pool: Pool, store: Store):
    """A mailbox that somebody is deleting is folded later; nobody waits for that."""
    held_up, free = await store.create(), await store.create()
    await deliver(pool, held_up, free, free)
    async with pool.transaction() as connection:
        await connection.execute(
            "DELETE FROM relay.messages WHERE mailbox_id = %s", (free.mailbox.id,)
        )
        await connection.execute(
            "SELECT FROM relay.mailboxes WHERE id = %s FOR UPDATE", (held_up.mailbox.id,)
        )
        with trio.fail_after(10):
            await deliver(pool, free)
            await fold(pool, [held_up.mailbox.address, free.mailbox.address])
        assert await pool.fetch_row(COUNTED) == (3, 1)
        assert await held(store, free.mailbox.id) == (3, 300, 3)
    assert await held(store, free.mailbox.id) == await really(pool, free.mailbox.id) == (1, 100, 1)
    await pool.fetch_value("SELECT relay.fold_usage(NULL, 1)")
    assert await pool.fetch_row(COUNTED) == (2, 0)


async def test_what_is_unread_is_counted_for_who_may_see_it(pool: Pool, store: Store):
    """An owner's own, the administrator's all; up to so many, and without what is over."""
    owner = new_id()
    own, more, other = (
        await store.create(owner_id=owner, plan="pro"),
        await store.create(owner_id=owner, plan="pro"),
        await store.create(),
    )
    await deliver(pool, own, own, more, other, other)
    mine, everything = Credential(owner_id=owner), Credential(administrator=True)
    assert await store.count_unread(mine) == 3
    assert await store.count_unread(everything) == 5
    assert await store.count_unread(everything, most=4) == 4
    assert await store.count_unread(mine, mailboxes=1) == 1  # the newest
    assert await store.count_unread(Credential(owner_id=new_id())) == 0
    await pool.execute(
        "UPDATE relay.messages SET is_read = true WHERE mailbox_id = %s", (own.mailbox.id,)
    )
    await fold(pool, [own.mailbox.address, other.mailbox.address])
    assert await store.count_unread(mine) == 1
    assert await store.count_unread(everything) == 3
    await store.delete(other.mailbox.id)
    assert await store.count_unread(everything) == 1


async def test_a_full_mailbox_is_known_at_once(pool: Pool, store: Store):
    """By messages or by bytes, of whatever plan; the administrator's are never full."""
    await pool.execute("UPDATE relay.plans SET max_messages = 2 WHERE name = 'free'")
    await pool.execute("UPDATE relay.plans SET max_bytes = 150 WHERE name = 'pro'")
    boxes = {
        "few": await store.create(),
        "small": await store.create(plan="pro"),
        "boundless": await store.create(owner_id=ADMINISTRATOR_ID, plan="free"),
    }
    addresses = {each.mailbox.address: name for name, each in boxes.items()}

    async def full() -> set[str]:
        return {addresses[each] for each in await full_among(pool, addresses)}

    await deliver(pool, *boxes.values())
    assert await full() == set()
    await deliver(pool, *boxes.values())
    assert await full() == {"few", "small"}
    await fold(pool, addresses)
    assert await full() == {"few", "small"}
    await pool.execute(
        "DELETE FROM relay.messages WHERE mailbox_id = %s", (boxes["few"].mailbox.id,)
    )
    assert await full() == {"small"}
    await pool.execute("UPDATE relay.plans SET max_bytes = NULL WHERE name = 'pro'")
    assert await full() == set()


async def test_an_older_relays_statement_is_counted_and_queued(pool: Pool, store: Store):
    """While nodes are upgraded one by one: it says relay.quiet, and nothing of counting."""
    box = await store.create()
    await pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email) SELECT id, 'x' FROM relay.mailboxes"
        " CROSS JOIN (SELECT set_config('relay.quiet', 'on', true)) quiet"
    )
    assert await held(store, box.mailbox.id) == (1, 1, 1)
    assert await pool.fetch_value("SELECT count(*) FROM relay.unsummarised") == 1


async def test_limits_are_not_negative(pool: Pool):
    """A plan says how many, or nothing."""
    with pytest.raises(psycopg.errors.CheckViolation):
        await pool.execute("UPDATE relay.plans SET max_bytes = -1")


async def test_whoever_asks_whether_a_mailbox_is_full_hears_the_same(pool: Pool, store: Store):
    """By the function that RCPT asks, by the room that is left, by what lists show: over generated
    plans and uses, folded or not, of all kinds of owners."""
    chosen = random.Random(1)
    await pool.execute(
        """
        INSERT INTO relay.plans
            (name, default_ttl_minutes, max_ttl_minutes, max_messages, max_bytes)
        SELECT format('%s messages, %s bytes', messages, bytes), 60, 60, messages, bytes
        FROM unnest('{0,1,3,NULL}'::integer[]) messages,
            unnest('{0,1,100,5000000000,NULL}'::bigint[]) bytes
        """
    )
    plans = [plan for (plan,) in await pool.fetch("SELECT name FROM relay.plans")]
    boxes: dict[str, UUID] = {}
    for number in range(400):
        address = f"full{number}@relay.localhost"
        boxes[address] = await pool.fetch_value(
            """
            INSERT INTO relay.mailboxes
                (address, plan, owner_id, captured_at, created_at, expires_at, is_active)
            VALUES (%s, %s, %s, CASE WHEN %s THEN now() END, now() - interval '1 h',
                now() + %s * interval '1 min', %s)
            RETURNING id
            """,
            (
                address,
                chosen.choice(plans),
                chosen.choice([None, ADMINISTRATOR_ID, new_id()]),
                chosen.random() < 0.3,
                chosen.choice([-1, 10, 10, 10]),
                chosen.random() < 0.9,
            ),
        )
        messages, size = (chosen.choice([0, 1, 3, 4]) for _ in range(2))
        size = chosen.choice([0, 1, size, 99, 100, 101, 5_000_000_000])
        taken = chosen.randint(-2, 2)  # what came or went since it was folded
        if chosen.random() < 0.6:
            await pool.execute(
                "INSERT INTO relay.mailbox_usage VALUES (%s, %s, %s)",
                (boxes[address], messages - taken, size - taken),
            )
        for _ in range(abs(taken)):
            change = taken // abs(taken)
            await pool.execute(
                "INSERT INTO relay.usage_changes VALUES (%s, %s, %s)",
                (boxes[address], change, change),
            )
    by_function: dict[str, bool | None] = dict(
        await pool.fetch(
            "SELECT address, is_full FROM relay.find_mailboxes(%s)", ([*boxes, "none@x"],)
        )
    )
    rooms = await room_in(pool, boxes)
    seen = set()
    for address, box in boxes.items():
        usage = await store.usage(box)
        if usage is None:
            said = None
        else:
            said = any(
                most is not None and held >= most
                for held, most in (
                    (usage.messages, usage.max_messages),
                    (usage.bytes, usage.max_bytes),
                )
            )
            left = rooms.get(address, ())
            assert any(room is not None and room <= 0 for room in left) == said, address
        assert by_function[address] is said, (address, usage)
        seen.add(said)
    assert by_function.keys() == boxes.keys()
    assert seen == {None, False, True}
    assert await full_among(pool, boxes) == {one for one, full in by_function.items() if full}
