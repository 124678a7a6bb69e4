"""The writer: group commit, redelivery, and a database that fails."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import trio

from actors import writer
from actors.messages import Accept
from relay.accepted import Accepted
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.ids import new_id
from relay.mailboxes import accept
from relay.metrics import registry
from supervisor import Backoff, ChildSpec, Mailbox, Ready, Supervisor, SupervisorSpec
from tests.actors.running import blocked, state
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually

BOB = "bob@relay.localhost"
EVE = "eve@relay.localhost"


@asynccontextmanager
async def writing(
    pool: Pool, *, attempts: int = 3, **arguments: Any
) -> AsyncIterator[tuple[Mailbox[Accept], Supervisor]]:
    """A supervised writer; yields its mailbox and its supervisor."""
    messages: Mailbox[Accept] = Mailbox("writer", attempts=attempts, on_dead=writer.dead)
    boss = Supervisor()
    spec = ChildSpec(
        "writer",
        functools.partial(writer.run, pool=pool, **arguments),
        mailbox=messages,
        backoff=Backoff(base=0.01, cap=0.02),
    )
    async with trio.open_nursery() as nursery:
        with boss.subscribe() as events:
            tree = SupervisorSpec(name="relay", children=(spec,), max_restarts=9)
            nursery.start_soon(boss.run, tree)
            async for event in events:
                if isinstance(event, Ready) and event.name == "writer":
                    break
        try:
            yield messages, boss
        finally:
            boss.shutdown()


async def make(pool: Pool, *addresses: str) -> None:
    """Make mailboxes that live for an hour."""
    for address in addresses:
        await pool.execute("INSERT INTO relay.mailboxes (address) VALUES (%s)", (address,))


def message(raw: bytes = b"x\r\n", *addresses: str) -> Accept:
    """One message for bob, or for those named."""
    recipients = tuple((new_id(), address) for address in addresses or (BOB,))
    return Accept("a@b.example", recipients, raw)


def failures() -> float:
    """Messages that could not be stored, as the metric counts them."""
    return registry.get_sample_value("relay_writer_failed_messages_total") or 0.0


async def stored(pool: Pool) -> dict[UUID, bytes]:
    """(id, raw) of what is stored."""
    rows = await pool.fetch("SELECT id, raw_email FROM relay.messages")
    return {identity: bytes(raw) for identity, raw in rows}


async def test_what_gathers_shares_a_commit(pool):
    """Messages sent while a commit is under way are stored by the next, all of them."""
    await make(pool, BOB)
    sent = [message(b"%d" % number) for number in range(500)]
    async with writing(pool) as (messages, _):
        before = await commits(pool)
        for one in sent:
            await messages.send(one)
        answers = [await one.reply.wait() for one in sent]
    assert [answer.stored for answer in answers] == [{BOB: one.recipients[0][0]} for one in sent]
    assert await stored(pool) == {one.recipients[0][0]: one.raw for one in sent}
    assert await commits(pool) - before < 250


class _Slow:
    """A pool whose statements take a tenth of a millisecond and store nothing."""

    def __init__(self) -> None:
        self.began: list[float] = []

    async def run(self, _statement: object, _columns: object) -> _Slow:
        self.began.append(trio.current_time())
        await trio.sleep(0.0001)
        return self

    async def fetch_value(self, _statement: str, _arguments: object) -> None:
        """Fold nothing."""

    ntuples = 0
    get_value = None


async def test_those_who_send_again_and_again_are_waited_for(autojump_clock):
    """Twenty senders share their commits, though their messages do not come at once."""
    pool, answered = _Slow(), 0

    async def send(number: int) -> None:
        nonlocal answered
        while trio.current_time() < ends:
            one = Accept("", ((new_id(), BOB),), b"x\r\n", admitted=True)
            messages.send_nowait(one)
            await one.reply.wait()
            answered += 1
            await trio.sleep(0.0011 + number * 0.00003)

    async with writing(pool) as (messages, _):  # type: ignore[arg-type]  # all that it uses of it
        ends = trio.current_time() + 1.5
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, number)
    assert answered >= 20 * 500
    assert len([began for began in pool.began if began > ends - 1]) <= 0.13 * answered * 2 / 3


class _Silent:
    """A database that does not answer."""

    call_timeout = 15.0

    async def run(self, *_: object, **__: object) -> None:
        await trio.sleep(self.call_timeout)
        raise DatabaseUnavailable("PostgreSQL did not answer within 15 s")

    fetch = fetch_durable = run


async def test_nobody_waits_for_two_silences(autojump_clock):
    """What comes while a commit gets no answer fails with it, in a batch or with a statement to
    itself; what comes later is tried again."""
    ends: dict[float, float] = {}

    async def send(at: float, *to: str) -> None:
        await trio.sleep(at)
        one = Accept("", tuple((new_id(), each) for each in to), b"x\r\n", admitted=True)
        messages.send_nowait(one)
        assert (await one.reply.wait()).error
        ends[at] = round(trio.current_time() - began, 1)

    async with writing(_Silent(), aside=1) as (messages, _):  # type: ignore[arg-type]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for at in (0, 1, 29, 40):
                nursery.start_soon(send, at, BOB)
            for at in (100, 101, 102):
                nursery.start_soon(send, at, BOB, EVE)
    assert ends == {0: 30, 1: 30, 29: 30, 40: 70, 100: 130, 101: 130, 102: 130}


async def commits(pool: Pool) -> int:
    """Transactions of this database so far."""
    await pool.execute("SELECT pg_stat_force_next_flush()")
    return int(
        await pool.fetch_value(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
    )


async def test_only_live_recipients_get_it(pool):
    """Expired, closed and unknown ones are missing from the answer; the rest is stored."""
    await make(pool, BOB, EVE, "closed@relay.localhost")
    await pool.execute(
        "UPDATE relay.mailboxes SET expires_at = clock_timestamp() WHERE address = %s", (EVE,)
    )
    await pool.execute(
        "UPDATE relay.mailboxes SET is_active = false WHERE address LIKE 'closed%'", ()
    )
    mixed = message(b"m", BOB, EVE, "closed@relay.localhost", "nobody@relay.localhost")
    alone = message(b"a", EVE)
    async with writing(pool) as (messages, _):
        await messages.send(mixed)
        await messages.send(alone)
        assert await mixed.reply.wait() == Accepted({BOB: mixed.recipients[0][0]})
        assert await alone.reply.wait() == Accepted({})
    assert await stored(pool) == {mixed.recipients[0][0]: b"m"}
    (row,) = await pool.fetch(
        "SELECT m.recipient, m.reverse_path, m.size, u.message_id IS NOT NULL "
        "FROM relay.messages m LEFT JOIN relay.unsummarised u ON u.message_id = m.id"
    )
    assert row == (BOB, "a@b.example", 1, True)


async def test_large_messages_travel_alone(pool):
    """A message of many megabytes is stored exactly, beside small ones."""
    await make(pool, BOB, EVE)
    sent = [message(b"s"), message(b"\x00\xff" * 4_000_000, BOB, EVE), message(b"t")]
    async with writing(pool) as (messages, _):
        for one in sent:
            await messages.send(one)
        for one in sent:
            assert (await one.reply.wait()).error is None
    found = await stored(pool)
    assert found == {identity: one.raw for one in sent for identity, _ in one.recipients}


async def test_a_poisonous_message_fails_alone(pool):
    """What the database refuses costs its batch-mates nothing."""
    await make(pool, BOB)
    sent = [message(b"1"), message(b"2"), message(b"3")]
    poison = Accept("nul\x00byte", sent[1].recipients, b"p")
    worse = Accept("half\ud800", message().recipients, b"p")  # nor can it be sent there
    failed = failures()
    async with writing(pool, attempts=1) as (messages, boss):
        boss.pause("writer")
        for one in (sent[0], poison, worse, sent[2]):
            await messages.send(one)
        boss.resume("writer")
        assert (await sent[0].reply.wait()).stored
        assert (await poison.reply.wait()).error
        assert (await worse.reply.wait()).error
        assert (await sent[2].reply.wait()).stored
    assert sorted((await stored(pool)).values()) == [b"1", b"3"]
    assert failures() == failed + 2


async def test_a_message_in_hand_when_the_writer_dies_is_stored_once(pool, monkeypatch):
    """A crash after COMMIT and before the answer: the next incarnation finds it stored, says so,
    and does not store it again."""
    await make(pool, BOB)
    one = message()
    insert, calls = accept.insert_many, []

    async def insert_and_crash(*args):
        calls.append(await insert(*args))
        if len(calls) == 1:
            raise RuntimeError("the writer dies here")
        return calls[-1]

    monkeypatch.setattr(writer, "insert_many", insert_and_crash)
    async with writing(pool) as (messages, _):
        await messages.send(one)
        assert (await one.reply.wait()).stored == {BOB: one.recipients[0][0]}
    assert [set(call) for call in calls] == [{one.recipients[0][0]}, set()]
    assert len(await stored(pool)) == 1


async def test_a_message_that_kills_every_writer_is_answered(pool, monkeypatch):
    """After its attempts it is dead, and its sender hears an error."""
    await make(pool, BOB)
    failed = failures()

    async def crash(*args):
        raise RuntimeError("every time")

    with monkeypatch.context() as patched:
        patched.setattr(writer, "insert_many", crash)
        async with writing(pool, attempts=2) as (messages, _):
            one = message()
            await messages.send(one)
            assert (await one.reply.wait()).error == "the message could not be stored"
    assert failures() == failed + 1


async def test_a_restart_in_mid_commit_loses_nothing(pool):
    """Cancelled while the database is at work, the writer finishes the commit first."""
    await make(pool, BOB)
    one = message()
    async with writing(pool) as (messages, boss), pool.transaction() as blocker:
        # The INSERT's foreign key waits for this lock.
        await blocker.execute("SELECT FROM relay.mailboxes FOR UPDATE")
        await messages.send(one)
        await blocked(pool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(boss.restart, "writer")
            await eventually(
                lambda: state(boss, "writer"),
                "it is asked to end",
                until=lambda found: found != "running",
            )
            await trio.testing.wait_all_tasks_blocked()
            await blocker.execute("ROLLBACK")
        assert (await one.reply.wait()).stored
    assert len(await stored(pool)) == 1


async def test_a_database_that_is_away_is_an_error_at_once_and_comes_back():
    """No message waits for it; the first after its return is stored."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        pool = Pool(cluster.dsn())
        await migrate(cluster.dsn())
        await make(pool, BOB)
        async with writing(pool) as (messages, _):
            first, second = message(b"1"), message(b"2")
            await messages.send(first)
            assert (await first.reply.wait()).stored
            await trio.to_thread.run_sync(cluster.stop)
            await messages.send(second)
            assert (await second.reply.wait()).error
            await trio.to_thread.run_sync(cluster.start)

            async def third() -> Any:
                again = message(b"3")
                await messages.send(again)
                return (await again.reply.wait()).stored

            await eventually(third, "mail is stored again")
        assert sorted((await stored(pool)).values()) == [b"1", b"3"]
        await pool.close()
    finally:
        cluster.remove()


async def test_a_lost_answer_to_a_commit_is_looked_up(pool, database_url, monkeypatch):
    """The connection breaks after COMMIT: the message is found by its id, and counts as stored."""
    await make(pool, BOB)
    insert = accept.insert_many

    async def insert_and_lose(*args):
        await insert(*args)
        raise DatabaseUnavailable("connection lost")

    monkeypatch.setattr(writer, "insert_many", insert_and_lose)
    async with writing(pool) as (messages, _):
        one = message()
        await messages.send(one)
        assert (await one.reply.wait()).stored == {BOB: one.recipients[0][0]}


async def test_a_repeat_vouches_for_nobody_else(pool, monkeypatch):
    """The connection breaks before COMMIT: that a repeat is there says nothing of its mates."""
    await make(pool, BOB)
    async with writing(pool) as (messages, boss):
        repeat, fresh = message(b"1"), message(b"2")
        await messages.send(repeat)
        assert (await repeat.reply.wait()).stored

        async def lose(*_):
            raise DatabaseUnavailable("connection lost")

        monkeypatch.setattr(writer, "insert_many", lose)
        repeated = Accept(repeat.reverse_path, repeat.recipients, repeat.raw)
        boss.pause("writer")
        await messages.send(repeated)
        await messages.send(fresh)
        boss.resume("writer")
        assert (await repeated.reply.wait()).stored == {BOB: repeat.recipients[0][0]}
        outcome = await fresh.reply.wait()
        assert (outcome.stored, bool(outcome.error)) == ({}, True)


async def test_a_terminated_backend_is_an_error_and_no_more(pool, database_url):
    """The statement dies with its backend: nothing is stored, the sender may try again."""
    await make(pool, BOB)
    async with writing(pool) as (messages, _):
        async with pool.transaction() as blocker:
            await blocker.execute("SELECT FROM relay.mailboxes FOR UPDATE")
            one = message()
            await messages.send(one)
            await blocked(pool)
            await blocker.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock'"
            )
            assert (await one.reply.wait()).error
        again = message()
        await messages.send(again)
        assert (await again.reply.wait()).stored
    with psycopg.connect(database_url) as conn:
        assert conn.execute("SELECT count(*) FROM relay.messages").fetchone() == (1,)


async def test_what_does_not_fit_a_mailbox_with_all_before_it_is_refused_whole(pool):
    """Its own size counts, and that of what came with it; a companion with room gets nothing."""
    await make(pool, BOB, EVE)
    await pool.execute("UPDATE relay.plans SET max_bytes = 1000000, max_messages = 3")
    await pool.execute("UPDATE relay.mailboxes SET owner_id = NULL, owner_type = 'anonymous'")
    await pool.execute("UPDATE relay.plans SET max_bytes = NULL WHERE name <> 'free'")
    await pool.execute("UPDATE relay.mailboxes SET plan = 'pro' WHERE address = %s", (EVE,))
    large, small = b"x" * 600_000, b"x" * 300_000
    both = message(large, EVE, BOB)
    sent = [message(large), both, message(small), message(b"x" * 1_100_000)]
    async with writing(pool) as (messages, _):
        answers = []
        for one in sent:
            await messages.send(one)
            answers.append(await one.reply.wait())
        together = [message(b"y") for _ in range(4)]
        for one in together:
            await messages.send(one)
        last = [await one.reply.wait() for one in together]
    assert [set(answer.stored) for answer in answers] == [{BOB}, set(), {BOB}, set()]
    assert [answer.full for answer in answers] == [
        frozenset(), frozenset({BOB}), frozenset(), frozenset({BOB}),
    ]  # fmt: skip
    # One more message fits, of four that came at once.
    assert sorted(len(answer.stored) for answer in last) == [0, 0, 0, 1]
    assert await pool.fetch_value("SELECT count(*) FROM relay.messages") == 3
