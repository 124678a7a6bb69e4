"""Mail that is parsed while it is being committed: readable sooner, never before it is durable."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio

from actors import summariser, writer
from actors.messages import Durable, OnTheWay, Wake
from relay.accepted import Origin
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.futures import Future
from relay.ids import new_id
from relay.mailboxes.accept import LARGE
from relay.mailboxes.parser import Parser
from supervisor import Mailbox
from tests.actors.running import a_turn, at_rest, becomes, make_mailbox, running
from tests.actors.test_summariser import HOSTILE, LEFT, MESSAGE
from tests.actors.test_writer import BOB, make, message, writing
from tests.eventually import eventually

SUBJECTS = "SELECT array_agg(subject ORDER BY seq) FROM relay.summaries"
CLAIMED = "SELECT count(*) FROM relay.parse_leases"


@asynccontextmanager
async def idle(pool: Pool) -> AsyncIterator[Mailbox[Any]]:
    """A summariser that has looked, and found nothing; it does not look again by itself, and needs
    no help."""
    quiet = {"sweep_every": 3600.0, "help_after": 3600.0}
    async with running(summariser.run, pool=pool, **quiet) as (_, inbox):
        await a_turn(inbox, Wake())
        await trio.sleep(summariser._LONGEST_REST)  # as it does in the midst of a turn, at most
        await at_rest(pool)
        yield inbox


async def store(pool: Pool, mailbox: UUID, coming: OnTheWay) -> None:
    """Do what the writer does: store what is on its way, and say so."""
    for id_, raw in coming.messages:
        await pool.execute(
            "INSERT INTO relay.messages (id, mailbox_id, raw_email) VALUES (%s, %s, %s)",
            (id_, mailbox, raw),
        )
    coming.reply.settle(Durable({id_: mailbox.bytes for id_, _ in coming.messages}))


def on_the_way(*raw: bytes) -> OnTheWay:
    """Messages that are being stored."""
    return OnTheWay(tuple((new_id(), one) for one in raw))


async def test_it_is_read_no_more_once_it_is_stored(pool, monkeypatch):
    """It is parsed from what the writer has in hand; nothing is looked for or claimed."""
    monkeypatch.setattr(summariser, "_AHEAD_PATIENCE", 60.0)
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        coming = on_the_way(MESSAGE % 1, MESSAGE % 2)
        inbox.send_nowait(coming)
        await at_rest(pool)
        assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 0
        await store(pool, mailbox, coming)
        await becomes(pool, LEFT, 0)
        assert await pool.fetch_value(SUBJECTS) == ["1", "2"]
        assert await pool.fetch_value(CLAIMED) == 0


async def test_what_is_not_stored_leaves_nothing(pool):
    """Neither all of it nor some; what comes after it is parsed as ever."""
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        refused, half = on_the_way(MESSAGE % 1), on_the_way(MESSAGE % 2, MESSAGE % 3)
        inbox.send_nowait(refused)
        refused.reply.settle(Durable({}))
        await a_turn(inbox, Wake())
        inbox.send_nowait(half)
        (id_, raw), _ = half.messages
        await store(pool, mailbox, OnTheWay(((id_, raw),)))
        half.reply.settle(Durable({id_: mailbox.bytes}))
        await becomes(pool, LEFT, 0)
        assert await pool.fetch_value(SUBJECTS) == ["2"]


async def test_what_takes_long_to_store_is_found_when_it_is(pool, monkeypatch):
    """Nobody else's mail waits for its commit, and it needs no other hint."""
    monkeypatch.setattr(summariser, "_AHEAD_PATIENCE", 0.01)
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        slow, other = on_the_way(MESSAGE % 1), on_the_way(MESSAGE % 2)
        inbox.send_nowait(slow)
        await eventually(
            lambda: inbox.statistics().depth, "it is taken", until=lambda depth: depth == 0
        )
        inbox.send_nowait(other)
        await store(pool, mailbox, other)
        await becomes(pool, SUBJECTS, ["2"])
        await store(pool, mailbox, slow)
        await becomes(pool, SUBJECTS, ["2", "1"])


@pytest.mark.parametrize("hints", [9, 16])
async def test_a_box_that_may_have_been_full_is_a_reason_to_look(pool, hints):
    """What found no room in it is stored by now; it is there with the others."""
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        held = on_the_way(MESSAGE % 0)
        inbox.send_nowait(held)  # and meanwhile many come
        await at_rest(pool)
        many = [on_the_way(MESSAGE % (number + 1)) for number in range(hints + 1)]
        for one in many[:-1]:
            inbox.send_nowait(one)
        for one in [*many, held]:
            await store(pool, mailbox, one)
        await becomes(pool, LEFT, 0)
        assert len(await pool.fetch_value(SUBJECTS)) == hints + 2


async def test_what_waits_already_is_not_forgotten(pool):
    """News beside it is a reason to look, though all that was heard of could be parsed ahead."""
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        coming, later = on_the_way(MESSAGE % 1), on_the_way(MESSAGE % 3)
        await store(pool, mailbox, on_the_way(MESSAGE % 2))  # of which nobody says anything
        inbox.send_nowait(coming)
        inbox.send_nowait(Wake())
        inbox.send_nowait(later)
        await becomes(pool, SUBJECTS, ["2"])
        await store(pool, mailbox, coming)
        await store(pool, mailbox, later)
        await becomes(pool, LEFT, 0)


async def test_behind_what_is_slow_to_parse_mail_comes_in_its_turn(pool, monkeypatch):
    """Where hostile mail came a moment ago, what comes is claimed in the order of fairness."""
    monkeypatch.setattr(summariser, "_AHEAD_PATIENCE", 60.0)
    monkeypatch.setattr(summariser, "_AHEAD_REST", 60.0)
    mailbox = await make_mailbox(pool)
    async with idle(pool) as inbox:
        for number, raw in enumerate((HOSTILE, MESSAGE % 1)):
            coming = on_the_way(raw)
            inbox.send_nowait(coming)
            await store(pool, mailbox, coming)
            await becomes(pool, LEFT, 0)
            assert await pool.fetch_value(CLAIMED) == number


async def test_the_writer_tells_of_a_few_small_messages(pool):
    """Before they are stored, and of the others' commits afterwards."""
    await make(pool, BOB)
    told: list[OnTheWay] = []
    woken: list[int] = []

    def ahead(coming: OnTheWay) -> bool:
        assert not coming.reply.settled
        told.append(coming)
        return len(told) == 1  # its box is full from then on

    def wake() -> None:
        woken.append(len(told))

    async with writing(pool, parse_ahead=ahead, wake_summariser=wake) as (messages, boss):
        for raw in (b"1", b"2", b"x" * 70_000, b"x" * (LARGE + 1)):
            one = message(raw)
            await messages.send(one)
            assert (await one.reply.wait()).stored
        boss.pause("writer")
        many = [message(b"%d" % number) for number in range(9)]
        for one in many:
            await messages.send(one)
        boss.resume("writer")
        for one in many:
            assert (await one.reply.wait()).stored
    mailbox = await pool.fetch_value("SELECT id FROM relay.mailboxes")
    assert [[raw for _, raw in one.messages] for one in told] == [[b"1"], [b"2"]]
    ((id_, _),) = told[0].messages
    assert told[0].reply.result() == Durable({id_: mailbox.bytes})
    assert woken == [2, 2, 2, 2]


@pytest.mark.parametrize("lost", [DatabaseUnavailable("gone"), RuntimeError("the writer dies")])
async def test_who_parses_ahead_hears_of_a_failure(pool, monkeypatch, lost):
    """Whatever becomes of the commit, nobody waits for it for ever."""
    await make(pool, BOB)
    told: list[OnTheWay] = []

    async def lose(*_: Any) -> None:
        raise lost

    async with writing(pool, attempts=1, parse_ahead=partial(_heard, told)) as (messages, _):
        monkeypatch.setattr(writer, "insert_many", lose)
        one = message()
        await messages.send(one)
        assert (await one.reply.wait()).error
    with trio.fail_after(5):
        assert await told[0].reply.wait() == Durable()


def _heard(told: list[OnTheWay], coming: OnTheWay) -> bool:
    told.append(coming)
    return True


class Parsing:
    """Whoever is told of mail, and parses it, or does with it what a test says."""

    def __init__(self, nursery: trio.Nursery, **answers: Any) -> None:
        self._nursery = nursery
        self._answers = answers
        self.told: list[OnTheWay] = []

    def __call__(self, coming: OnTheWay) -> bool:
        """As the summariser's mailbox does."""
        self.told.append(coming)
        self._nursery.start_soon(self._parse, coming)
        return True

    async def _parse(self, coming: OnTheWay) -> None:
        parser = Parser(deadline=5.0)
        try:
            found = await parser.summarise([raw for _, raw in coming.messages])
        finally:
            parser.close()
        coming.parsed.settle(self._answers.get("instead", lambda found: found)(found))


@asynccontextmanager
async def parsing(
    pool: Pool, *, awaited: bool = True, **answers: Any
) -> AsyncIterator[tuple[Mailbox[Any], Parsing]]:
    """A writer beside which all mail is parsed."""
    async with trio.open_nursery() as nursery:
        ahead = Parsing(nursery, **answers)
        async with writing(pool, parse_ahead=ahead, awaited=lambda: awaited) as (messages, _):
            yield messages, ahead


async def accepted(messages: Mailbox[Any], one: Any) -> Any:
    """What the writer answers."""
    await messages.send(one)
    return await one.reply.wait()


async def test_mail_that_people_wait_for_is_readable_with_its_250(pool, monkeypatch):
    """It and its summary are one commit: who waits hears of it, hooks fire, tags and counts are
    there, and nothing is left to be parsed; so for mail from elsewhere."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    await make(pool, BOB)
    await pool.execute("UPDATE relay.mailboxes SET webhook_url = 'https://hook.example/'")
    mailbox = await pool.fetch_value("SELECT id FROM relay.mailboxes")
    async with parsing(pool) as (messages, ahead), pool.connection() as conn:
        await conn.execute("LISTEN relay_summaries")
        for number, origin in enumerate((None, Origin("192.0.2.7", "there.example"))):
            one = dataclasses.replace(message(MESSAGE % number), origin=origin)
            assert (await accepted(messages, one)).stored
            assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == number + 1
            assert await pool.fetch_value(LEFT) == 0
            assert await ahead.told[-1].reply.wait() == Durable(
                {one.recipients[0][0]: mailbox.bytes}, summarised=True
            )
        heard = [note.payload async for note in conn.notifies(timeout=0.2)]
        await conn.execute("UNLISTEN *")
    assert await pool.fetch_value(SUBJECTS) == ["0", "1"]
    assert set(heard) == {f"=,{mailbox}"} or set(heard) == {f"{mailbox},="}
    assert await pool.fetch_value("SELECT count(*) FROM relay.webhook_events") == 2
    assert await pool.fetch_value("SELECT sum(messages) FROM relay.usage_changes") == 2
    assert await pool.fetch_value(
        "SELECT array_agg(host(client) ORDER BY id) FROM relay.messages"
    ) == [None, "192.0.2.7"]


async def test_it_is_tagged_as_all_mail_is(pool, monkeypatch):
    """By its header, and by what stands behind the plus of its address."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    await make(pool, "bob+news@relay.localhost")
    async with parsing(pool) as (messages, _):
        one = message(b"X-Tags: one, two\r\n" + MESSAGE % 1, "bob+news@relay.localhost")
        assert (await accepted(messages, one)).stored
    assert set(await pool.fetch_value("SELECT tags FROM relay.summaries")) == {"news", "one", "two"}


async def test_mail_for_which_nobody_waits_is_stored_at_once(pool, monkeypatch):
    """And parsed after that."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 3600.0)
    await make(pool, BOB)
    async with writing(pool, parse_ahead=lambda _: True, awaited=lambda: False) as (messages, _):
        assert (await accepted(messages, message(MESSAGE % 1))).stored
    assert await pool.fetch_value(LEFT) == 1


async def test_no_commit_waits_for_a_parser_that_does_not_answer(pool, monkeypatch):
    """After one that waited in vain, none does for a while."""
    monkeypatch.setattr(writer, "_PARSED_REST", 3600.0)
    await make(pool, BOB)
    async with writing(pool, parse_ahead=lambda _: True, awaited=lambda: True) as (messages, _):
        assert (await accepted(messages, message(MESSAGE % 1))).stored
        monkeypatch.setattr(writer, "_PARSED_WITHIN", 3600.0)
        assert (await accepted(messages, message(MESSAGE % 2))).stored
    assert await pool.fetch_value(LEFT) == 2


async def test_no_commit_of_a_stream_waits_for_the_parser(pool, monkeypatch):
    """Who sends many, one after the other, waits for each 250."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 3600.0)
    monkeypatch.setattr(writer, "_STREAM", 1)
    await make(pool, BOB)
    async with writing(pool, parse_ahead=lambda _: True, awaited=lambda: True) as (messages, _):
        assert (await accepted(messages, message(MESSAGE % 1))).stored
    assert await pool.fetch_value(LEFT) == 1


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param(lambda _: (), id="it parses nothing now"),
        pytest.param(
            lambda found: [one._replace(row=one.row.replace(b"13", b"\x00\xff")) for one in found],
            id="the database takes no such summary",
        ),
    ],
)
async def test_mail_whose_summary_cannot_be_stored_is_stored(pool, monkeypatch, instead):
    """It waits to be parsed, as ever."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    await make(pool, BOB)
    async with parsing(pool, instead=instead) as (messages, ahead):
        one = message(MESSAGE % 13)
        assert (await accepted(messages, one)).stored
        assert not (await ahead.told[0].reply.wait()).summarised
    assert await pool.fetch_value(LEFT) == 1
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 0


async def test_what_nobody_may_receive_leaves_nothing_behind(pool, monkeypatch):
    """Its mailbox has ended since RCPT: neither mail nor summary is stored."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    await make(pool, BOB)
    await pool.execute("UPDATE relay.mailboxes SET is_active = false")
    async with parsing(pool) as (messages, _):
        assert not (await accepted(messages, message(MESSAGE % 1))).stored
    for table in ("messages", "summaries", "unsummarised", "usage_changes"):
        assert await pool.fetch_value(f"SELECT count(*) FROM relay.{table}") == 0


async def test_what_comes_again_is_stored_once(pool, monkeypatch):
    """Under an id that is there already; its summary is the one that it has."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    await make(pool, BOB)
    one = message(MESSAGE % 1)
    async with parsing(pool) as (messages, _):
        assert (await accepted(messages, one)).stored
        again = dataclasses.replace(one, reply=Future())
        assert (await accepted(messages, again)).error is None
    assert await pool.fetch_value(SUBJECTS) == ["1"]
    assert await pool.fetch_value("SELECT count(*) FROM relay.messages") == 1


async def test_what_was_stored_with_its_summary_is_done(pool, monkeypatch):
    """The summariser has nothing left to do with it, and goes on with what comes next."""
    monkeypatch.setattr(writer, "_PARSED_WITHIN", 60.0)
    monkeypatch.setattr(writer, "_STREAM_WITHIN", 0.0)
    monkeypatch.setattr(summariser, "_AHEAD_SLOW", 60.0)
    await make(pool, BOB)
    told: list[OnTheWay] = []
    async with idle(pool) as inbox:

        def ahead(coming: OnTheWay) -> bool:
            told.append(coming)
            inbox.send_nowait(coming)
            return True

        async with writing(pool, parse_ahead=ahead, awaited=lambda: True) as (messages, _):
            for number in range(20):
                assert (await accepted(messages, message(MESSAGE % number))).stored
                assert (await told[-1].reply.wait()).summarised
    assert await pool.fetch_value(SUBJECTS) == [str(number) for number in range(20)]
    assert await pool.fetch_value(CLAIMED) == 0
