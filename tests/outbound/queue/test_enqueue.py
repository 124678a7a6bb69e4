"""Putting in: all or nothing, once per key, nothing for the suppressed."""

import dataclasses
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import uuid4

import psycopg
import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.channels import OUTBOUND
from relay.db.pool import Pool
from relay.errors import Invalid
from relay.ids import new_id, new_ids
from relay.outbound.composing.message import Address, Message, parse_address
from relay.outbound.queue.enqueue import (
    KeyConflict,
    Suppressed,
    announce,
    body_hash,
    domain_of,
    enqueue,
)
from relay.outbound.queue.lanes import lane_of
from relay.outbound.suppression.suppressions import Suppressions
from tests.actors.running import blocked
from tests.outbound.node import Node, put

HASH, OTHER = body_hash({"a": 1, "b": [2]}), body_hash({"a": 2})


async def count(pool: Pool) -> int:
    """How many messages there are."""
    return int(await pool.fetch_value("SELECT count(*) FROM relay.outbound_messages"))


async def test_ten_thousand_in_one_call(node: Node):
    """One statement, all of them due, in the order of the call."""
    recipients = [Address(f"u{n}@d{n % 7}.example") for n in range(10_000)]
    done = await enqueue(node.pool, [Message(Address("a@x.org"), recipients, "s", text="t")])
    assert [m.recipient for m in done.messages] == [r.address for r in recipients]
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_due") == 10_000
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_contents") == 1
    assert len(await node.drain(1000)) == 10_000


async def test_ids_rise_across_python_and_sql(node: Node):
    """A message that SQL queues sorts after one that was queued over HTTP before."""
    first = (await put(node.pool, "a@x.example"))[0].id
    sent = await node.pool.fetch_value("SELECT relay.send('a@x.org', 'b@x.org', 's', 't')")
    assert first < sent


async def test_the_same_key_gives_the_same_answer(any_pool: Pool):
    """Nothing is queued a second time, whoever asks again."""
    first = await put(any_pool, "a@x.example", "b@x.example", key="k", key_hash=HASH)
    again = await put(any_pool, "a@x.example", "b@x.example", key="k", key_hash=HASH)
    assert [(m.id, m.recipient) for m in again] == [(m.id, m.recipient) for m in first]
    assert await count(any_pool) == 2


async def test_the_same_key_with_another_body_is_a_conflict(any_pool: Pool):
    """And changes nothing; another owner's key of the same name is another key."""
    await put(any_pool, "a@x.example", key="k", key_hash=HASH)
    with pytest.raises(KeyConflict):
        await put(any_pool, "b@x.example", key="k", key_hash=OTHER)
    assert await count(any_pool) == 1
    await put(any_pool, "b@x.example", key="k", key_hash=OTHER, owner=uuid4())
    assert await count(any_pool) == 2


async def test_a_key_is_forgotten_after_24_hours(node: Node):
    """From then on it is new, also before the reaper has deleted it."""
    (first,) = await put(node.pool, "a@x.example", key="k", key_hash=HASH)
    age = "UPDATE relay.outbound_keys SET created_at = now() - make_interval(secs => %s)"
    await node.pool.execute(age, (24 * 3600 - 5,))
    assert (await put(node.pool, "a@x.example", key="k", key_hash=HASH))[0].id == first.id
    await node.pool.execute(age, (24 * 3600 + 5,))
    assert (await put(node.pool, "a@x.example", key="k", key_hash=OTHER))[0].id != first.id
    await node.pool.execute(age, (24 * 3600 + 5,))
    await node.queue.forget()
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_keys") == 0


async def test_of_many_at_once_with_one_key_one_queues(any_pool: Pool):
    """Ten callers, one message, one answer for all."""
    answers = []

    async def call() -> None:
        answers.append((await put(any_pool, "a@x.example", key="k", key_hash=HASH))[0].id)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(call)
    assert len(answers) == 10
    assert len(set(answers)) == 1
    assert await count(any_pool) == 1


async def test_a_key_waits_for_the_transaction_that_used_it_first(any_pool: Pool):
    """If that is rolled back, the second caller's message is the one that is queued."""
    async with trio.open_nursery() as nursery:
        try:
            async with any_pool.transaction() as conn:
                message = Message(Address("a@x.org"), [Address("first@x.org")], "s", text="t")
                await enqueue(any_pool, [message], key="k", key_hash=HASH, conn=conn)
                nursery.start_soon(lambda: put(any_pool, "second@x.org", key="k", key_hash=HASH))
                await blocked(any_pool)
                assert await count(any_pool) == 0
                raise InterruptedError
        except InterruptedError:
            pass
    rows = await any_pool.fetch("SELECT recipient FROM relay.outbound_messages")
    assert rows == [("second@x.org",)]


async def test_a_time_that_has_passed_counts_as_none(any_pool: Pool):
    """By the database's clock, whatever that of who asks says; one that has not is waited for."""
    now = await any_pool.fetch_value("SELECT clock_timestamp()")
    for seconds in (-3600.0, 3600.0):
        at = now + timedelta(seconds=seconds)
        one = Message(Address("a@x.org"), [Address("b@x.org")], "s", text="t", send_at=at)
        queued = await enqueue(any_pool, [one])
        due = await any_pool.fetch_value(
            "SELECT run_at FROM relay.outbound_due WHERE id = %s", (queued.messages[0].id,)
        )
        assert queued.due_at == due
        assert due == at if seconds > 0 else now <= due < now + timedelta(seconds=60)


async def test_one_suppressed_recipient_refuses_the_whole_call(any_pool: Pool):
    """Nothing is queued, and the key is not used up."""
    await any_pool.execute("INSERT INTO relay.suppressions (address) VALUES ('B@x.example')")
    with pytest.raises(Suppressed) as caught:
        await put(any_pool, "a@x.example", "b@X.example", key="k", key_hash=HASH)
    assert caught.value.addresses == ["b@x.example"]
    assert await count(any_pool) == 0
    assert len(await put(any_pool, "a@x.example", key="k", key_hash=OTHER)) == 1


async def test_what_was_queued_is_answered_though_its_recipient_is_suppressed_by_now(
    any_pool: Pool,
):
    """With its key, in the same way; another body is a conflict; and without it, or when the key is
    forgotten, it is refused."""
    (first,) = await put(any_pool, "a@x.example", key="k", key_hash=HASH)
    await any_pool.execute("INSERT INTO relay.suppressions (address) VALUES ('a@x.example')")
    assert [m.id for m in await put(any_pool, "a@x.example", key="k", key_hash=HASH)] == [first.id]
    with pytest.raises(KeyConflict):
        await put(any_pool, "a@x.example", key="k", key_hash=OTHER)
    with pytest.raises(Suppressed):
        await put(any_pool, "a@x.example")
    await any_pool.execute("UPDATE relay.outbound_keys SET created_at = now() - interval '25 h'")
    with pytest.raises(Suppressed):
        await put(any_pool, "a@x.example", key="k", key_hash=HASH)
    assert await count(any_pool) == 1


@pytest.mark.parametrize("form", ["NFC", "NFD"])
async def test_a_suppressed_recipient_is_known_however_its_letters_are_composed(
    any_pool: Pool, form: Literal["NFC", "NFD"]
):
    """A letter with its mark, or followed by it: one address."""
    address, suppressions = "Grüße@bücher.example", Suppressions(any_pool)
    await suppressions.add(ADMINISTRATOR_ID, unicodedata.normalize(form, address))
    for other in (address, unicodedata.normalize("NFD", address)):
        recipient = parse_address(other, "to")
        assert await suppressions.holds(new_id(), recipient.address)
        with pytest.raises(Suppressed):
            await enqueue(any_pool, [Message(Address("a@x.org"), [recipient], "s", text="t")])
    assert await suppressions.remove(ADMINISTRATOR_ID, address)


async def test_a_call_repeated_with_its_ids_stores_nothing_twice(any_pool: Pool):
    """The answer of the first was lost; also when its message is finished by then."""
    ids = new_ids(2)
    message = Message(Address("a@x.org"), [Address("b@x.org"), Address("c@x.org")], "s", text="t")
    node = Node(any_pool)
    for _ in range(2):
        done = await enqueue(any_pool, [message], ids=ids)
        assert [m.id for m in done.messages] == ids
    await node.finish(await node.claim())
    await enqueue(any_pool, [message], ids=ids)
    assert await node.claim() == []
    assert await count(any_pool) == 2


async def test_a_transaction_that_is_rolled_back_queued_nothing(any_pool: Pool):
    """Enqueued on the caller's connection, it is the caller's decision."""
    message = Message(Address("a@x.org"), [Address("b@x.org")], "s", text="t")
    for keep in (False, True):
        async with any_pool.connection() as conn, conn.transaction(force_rollback=not keep):
            await enqueue(any_pool, [message], conn=conn)
        assert await count(any_pool) == int(keep)


async def test_values_that_cannot_be_stored_are_refused(any_pool: Pool):
    """With a sentence for whoever gave them, and nothing stored."""
    to = [Address("b@x.org")]
    for message in (
        Message(Address("a@x.org"), to, "s", text="nul \0"),
        Message(Address("a@x.org"), to, "s", text="t", priority="urgent"),
    ):
        with pytest.raises(Invalid):
            await enqueue(any_pool, [message])
    for key in ("", "k" * 256):
        with pytest.raises(Invalid):
            await put(any_pool, "b@x.org", key=key, key_hash=HASH)
    assert await count(any_pool) == 0
    assert (await enqueue(any_pool, [])).messages == []


def test_a_destination_is_its_domain_in_one_spelling():
    """Case, a final dot and Unicode make no second lane."""
    assert domain_of("A@Example.COM.") == "example.com"
    assert domain_of("a@bücher.example") == "xn--bcher-kva.example"
    # Not strasse.example, which is somebody else's: its rates and its lane are its own.
    assert domain_of("a@straße.example") == "xn--strae-oqa.example"


# relay.send ------------------------------------------------------------------------------------


async def test_send_in_a_transaction_that_is_rolled_back_is_no_mail(node: Node):
    """The user's order was not placed, so its confirmation is not sent."""
    async with node.pool.connection() as conn:
        async with conn.transaction(force_rollback=True):
            await conn.execute("SELECT relay.send('a@x.org', 'b@x.org', 's', 't')")
        assert await node.claim() == []
        async with conn.transaction():
            await conn.execute("SELECT relay.send('a@x.org', 'b@x.org', 's', 't')")
            assert await Node(node.pool).claim() == []
    assert len(await node.claim()) == 1


async def test_send_takes_all_that_docs_sql_says(node: Node):
    """Names, both bodies, priority, a time, a key; the view shows it."""
    when = datetime.now(UTC) + timedelta(days=1)
    sent = await node.pool.fetch_value(
        "SELECT relay.send('Shop <Shop@x.org>', 'Bob <Bob@X.example>', 'Hi', 'text',"
        " html_body => '<p>', priority => 'bulk', send_at => %s, idempotency_key => 'k')",
        (when,),
    )
    row = await node.pool.fetch_row(
        "SELECT sender, recipient, subject, priority, status, attempts, next_retry_at"
        " FROM relay.outbound_messages WHERE id = %s",
        (sent,),
    )
    assert row == ("Shop@x.org", "Bob@X.example", "Hi", "bulk", "queued", 0, when)


async def test_both_ways_of_queueing_give_the_lane_of_the_sender(node: Node):
    """The same for the same message, whatever else the call queues, and no other owner's."""
    sender = await node.pool.fetch_value(
        "INSERT INTO relay.senders (address, upstream) VALUES ('own@x.org', 'smtps://up:465')"
        " RETURNING id"
    )
    mine = uuid4()
    messages = [
        Message(Address(address), [Address("b@y.example"), Address("c@z.example")], "s", text="t")
        for address in ("none@x.org", "OWN@x.org")
    ]
    messages.append(dataclasses.replace(messages[1], owner=mine))
    queued = (await enqueue(node.pool, messages)).messages
    routes = [(ADMINISTRATOR_ID, None), (ADMINISTRATOR_ID, sender), (mine, None)]
    expected = [
        lane_of(owner, domain, route)
        for owner, route in routes
        for domain in ("y.example", "z.example")
    ]
    assert [each.lane for each in queued] == expected
    stored = dict(await node.pool.fetch("SELECT id, lane FROM relay.outbound_due"))
    assert [stored[each.id] for each in queued] == expected
    for address, lane in (("none@x.org", expected[0]), ("Own <OWN@x.org>", expected[2])):
        sent = await node.pool.fetch_value(
            "SELECT relay.send(%s, 'b@Y.example', 's', 't')", (address,)
        )
        assert lane == await node.pool.fetch_value(
            "SELECT lane FROM relay.outbound_due WHERE id = %s", (sent,)
        )


async def test_send_needs_no_more_rights_than_docs_sql_says(node: Node):
    """Its lane is found for a role that may not read relay.senders."""
    role = f"shop_{uuid4().hex}"
    async with node.pool.connection() as conn:
        await conn.execute(f"CREATE ROLE {role}")
        try:
            await conn.execute(f"GRANT USAGE ON SCHEMA relay TO {role}")
            await conn.execute(
                "GRANT INSERT ON relay.outbound_contents, relay.outbound_letters,"
                f" relay.outbound_due TO {role}"
            )
            await conn.execute(f"GRANT SELECT, INSERT, UPDATE ON relay.outbound_keys TO {role}")
            await conn.execute(f"SET ROLE {role}")
            await conn.execute(
                "SELECT relay.send('a@x.org', 'b@x.org', 's', 't', idempotency_key => 'k')"
            )
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute("SELECT FROM relay.senders")
        finally:
            await conn.execute("RESET ROLE")
            await conn.execute(f"DROP OWNED BY {role}")
            await conn.execute(f"DROP ROLE {role}")
    assert await count(node.pool) == 1


async def test_send_with_the_same_key_gives_the_same_id_and_with_another_body_raises(node: Node):
    """Also from two transactions at once, of which the second waits."""
    sql = "SELECT relay.send('a@x.org', 'b@x.org', %s, 't', idempotency_key => 'k')"
    ids = []

    async def send() -> None:
        ids.append(await node.pool.fetch_value(sql, ("s",)))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send)
    assert len(ids) == 4
    assert len(set(ids)) == 1
    with pytest.raises(psycopg.errors.UniqueViolation):
        await node.pool.fetch_value(sql, ("another",))


@pytest.mark.parametrize(
    "arguments",
    [
        "NULL, 'b@x.org', 's', 't'",
        "'a@x.org', 'no address', 's', 't'",
        "'a@x.org', 'a@b@c', 's', 't'",
        "'a@x.org', E'b@x.org\\r\\nRCPT TO:<c@x.org>', 's', 't'",
        "'a@x.org', '@x.org', 's', 't'",
        "'a@x.org', 'b@bücher.example', 's', 't'",
        "'a@x.org', 'b@', 's', 't'",
        "'a@x.org', 'b@.org', 's', 't'",
        "'a@x.org', 'b@x.org', E's\\nBcc: c@x.org', 't'",
        "'a@x.org', 'b@x.org', NULL, 't'",
        "'a@x.org', 'b@x.org', 's', NULL",
        "'a@x.org', 'b@x.org', 's', 't', priority => 'urgent'",
        "'a@x.org', 'b@x.org', 's', 't', priority => NULL",
        "'a@x.org', 'b@x.org', 's', 't', send_at => 'infinity'",
        "'a@x.org', 'b@x.org', 's', 't', idempotency_key => ''",
    ],
)
async def test_send_raises_for_malformed_values(pool: Pool, arguments: str):
    """The caller's statement fails with a sentence, and no mail is queued."""
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        await pool.fetch_value(f"SELECT relay.send({arguments})")
    assert await count(pool) == 0


async def test_send_wakes_the_nodes_at_commit_once(any_pool: Pool):
    """A hundred calls in a transaction are one notification; the relay's own inserts are none."""
    async with any_pool.connection() as conn:
        await conn.execute(f"LISTEN {OUTBOUND}")
        await put(any_pool, "a@x.example")
        await any_pool.execute(
            "SELECT relay.send('a@x.org', 'b@x.org', 's', 't') FROM generate_series(1, 100)"
        )
        heard = [note.payload async for note in conn.notifies(timeout=0.3)]
        assert heard == [""]
        await announce(any_pool)
        assert len([note async for note in conn.notifies(timeout=5, stop_after=1)]) == 1
        await conn.execute("UNLISTEN *")
