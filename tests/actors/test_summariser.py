"""The summariser: everything accepted gets a summary, whatever it is."""

import os
import signal
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from actors import summariser
from actors.messages import SweepNow, Wake
from relay.db.pool import Pool
from relay.load import Load, Scheduled
from relay.mailboxes import search, summaries
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parser
from relay.metrics import registry
from supervisor import Mailbox
from tests.actors.running import a_turn, at_rest, becomes, make_mailbox, running, undisturbed
from tests.eventually import eventually

LEFT = "SELECT count(*) FROM relay.unsummarised"
HELD = "SELECT sum(cardinality(message_ids)) FROM relay.parse_leases"
MESSAGE = b"From: a@b.example\r\nSubject: %d\r\n\r\nYour code is 123456\r\n"
HOSTILE = MESSAGE % 0 + (b"https://" + b")" * 4080 + b"\r\n") * 15


def _context() -> Any:
    """A context that nobody drains or writes to."""
    context = undisturbed()
    context.inbox = Mailbox("actor")
    return context


async def _accept(pool: Pool, mailbox: UUID, *messages: bytes) -> list[UUID]:
    return [
        await pool.fetch_value(
            "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, %s) RETURNING id",
            (mailbox, raw),
        )
        for raw in messages
    ]


async def test_summarises_what_sql_inserted(pool):
    """A message inserted by plain SQL, naming mailbox and bytes alone, gets its summary."""
    mailbox = await make_mailbox(pool)
    (message,) = await _accept(pool, mailbox, MESSAGE % 1)
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    found = await Messages(pool).get(mailbox, message)
    assert found is not None
    assert (found.from_address, found.subject, found.otp) == ("a@b.example", "1", "123456")
    assert found.size == len(MESSAGE % 1)
    assert found.error is None


@pytest.mark.parametrize("message", [Wake(), SweepNow()], ids=["news", "command"])
async def test_is_woken_by_a_message(pool, message):
    """A message is enough, an operator's too; nothing waits for the sweep."""
    mailbox = await make_mailbox(pool)
    async with running(summariser.run, pool=pool, sweep_every=3600.0) as (_, inbox):
        await a_turn(inbox, Wake())
        await at_rest(pool)
        await _accept(pool, mailbox, MESSAGE % 1)
        await inbox.send(message)
        await becomes(pool, LEFT, 0)


async def test_numbers_summaries_in_the_order_of_arrival(pool):
    """Within a mailbox the order of becoming readable is that of arrival, over several batches."""
    mailbox = await make_mailbox(pool)
    ids = await _accept(pool, mailbox, *[MESSAGE % n for n in range(50)])
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    rows = await pool.fetch("SELECT message_id FROM relay.summaries ORDER BY seq")
    assert [row[0] for row in rows] == ids


async def test_announces_each_batch_once(pool):
    """Storing summaries notifies their mailboxes and the owners of those, once a statement."""
    mailbox, owned = await make_mailbox(pool), await make_mailbox(pool)
    owner = await pool.fetch_value(
        "UPDATE relay.mailboxes SET owner_id = relay.uuidv7() WHERE id = %s RETURNING owner_id",
        (owned,),
    )
    for one in (mailbox, owned):
        await _accept(pool, one, *[MESSAGE % n for n in range(5)])
    async with pool.connection() as conn:
        await conn.execute("LISTEN relay_summaries")
        async with Parser() as parser:
            await summariser.Summariser(pool, parser).round()
        await conn.execute("SELECT 1")
        heard = [n.payload async for n in conn.notifies(timeout=0.1)]
        await conn.execute("UNLISTEN *")
    assert [set(payload.split(",")) for payload in heard] == [
        {str(mailbox), str(owned), "=", f"={owner}"}
    ]


async def test_stores_bytes_that_are_no_mail(pool):
    """Empty messages, NULs, lone surrogates, 8-bit rubbish: each is stored with what there is."""
    mailbox = await make_mailbox(pool)
    await _accept(
        pool,
        mailbox,
        b"",
        b"\x00" * 100,
        b"Subject: a\x00b\r\n\r\n\xed\xa0\x80",
        bytes(range(256)) * 10,
        b"Content-Type: text/html\r\n\r\n<a href='http://x/&#xD800;&#0;'>",
        b"From: " + b"(" * 500,
    )
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 6


async def test_large_messages_do_not_hold_up_small_ones(pool):
    """Large and small messages are all summarised, bombs included."""
    mailbox = await make_mailbox(pool)
    large = MESSAGE % 0 + b"x" * 300_000
    bomb = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * 100_000
    await _accept(pool, mailbox, large, bomb, large, *[MESSAGE % n for n in range(80)])
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    errors = await pool.fetch("SELECT error FROM relay.summaries WHERE error IS NOT NULL")
    assert errors == [("more than 1000 parts",)]


async def test_takes_from_both_ends_under_a_backlog(pool):
    """The newest messages are summarised before a long backlog is through."""
    mailbox = await make_mailbox(pool)
    ids = sorted(await _accept(pool, mailbox, *[MESSAGE % n for n in range(150)]))
    async with Parser() as parser:
        one = summariser.Summariser(pool, parser)
        assert await one.round() == (64, True)
        assert await one.round(newest=True) == (64, True)
    stored = {row[0] for row in await pool.fetch("SELECT message_id FROM relay.summaries")}
    assert stored == {*ids[:64], *ids[-64:]}


async def test_mail_for_another_mailbox_is_in_the_next_group(pool):
    """However much waits for one mailbox, what comes for another is not behind it."""
    busy, quiet = await make_mailbox(pool), await make_mailbox(pool)
    await _accept(pool, busy, *[HOSTILE] * 12)
    async with Parser() as parser:
        one = summariser.Summariser(pool, parser)
        assert await one.round() == (2, True), "a group is of 128 kB"
        (message,) = await _accept(pool, quiet, MESSAGE % 1)
        await one.round()
    assert await pool.fetch_value(
        "SELECT count(*) FROM relay.summaries WHERE message_id = %s", (message,)
    )


async def test_mail_in_the_middle_of_a_long_backlog_is_found(pool):
    """Mail at neither end of what waits comes first, if little waits for its mailbox."""
    busy, quiet = await make_mailbox(pool), await make_mailbox(pool)
    fill = """
        INSERT INTO relay.messages (mailbox_id, raw_email)
        SELECT %s, convert_to(E'Subject: x\\r\\n\\r\\ny', 'UTF8') FROM generate_series(1, 600)
        """
    await pool.execute(fill, (busy,))
    (message,) = await _accept(pool, quiet, MESSAGE % 1)
    await pool.execute(fill, (busy,))
    async with Parser() as parser:
        one = summariser.Summariser(pool, parser)
        await one.round()
        await one.round(newest=True)
        await one.round()
    assert await pool.fetch_value(
        "SELECT count(*) FROM relay.summaries WHERE message_id = %s", (message,)
    )


async def test_a_group_is_cut_and_stored_when_its_time_is_over(pool):
    """What is parsed of a group is readable; the rest waits for the next, unharmed."""
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, *[MESSAGE % n + b"code 1234 " * 150 for n in range(64)])
    async with Parser() as parser:
        one = summariser.Summariser(pool, parser, slice_for=0.001)
        assert await one.round() == (64, True)
        stored = await pool.fetch_value("SELECT count(*) FROM relay.summaries")
        assert 1 <= stored < 64
        assert await pool.fetch_value(LEFT) == 64 - stored


async def test_a_burst_of_large_mail_is_parsed_in_one_go(pool):
    """Large messages do not wait for the sweep, two at a time."""
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, *[MESSAGE % n + b"word " * 32_000 for n in range(18)])
    async with running(summariser.run, pool=pool, sweep_every=3600.0):
        await becomes(pool, LEFT, 0)


async def test_a_message_slows_down_one_round_and_no_more(pool):
    """What announces mail is taken while a backlog is worked off: it rests once for it."""
    mailbox = await make_mailbox(pool)
    async with running(summariser.run, pool=pool, sweep_every=3600.0) as (_, inbox):
        await _accept(pool, mailbox, *[MESSAGE % n + b"word " * 26_000 for n in range(40)])
        await inbox.send(Wake())
        await eventually(lambda: pool.fetch_value(LEFT), "it begins", until=lambda left: left < 40)
        await inbox.send(Wake())
        await eventually(
            lambda: inbox.statistics().depth, "the letter is taken", until=lambda depth: depth == 0
        )
        assert await pool.fetch_value(LEFT) > 0
        await becomes(pool, LEFT, 0)


async def test_a_second_parser_goes_on_when_one_is_busy(pool):
    """While one message holds the parser, mail for other mailboxes is parsed; no large mail, and
    none for the same mailbox."""
    stuck, quiet = await make_mailbox(pool), await make_mailbox(pool)
    async with Parser() as parser, Parser() as second, trio.open_nursery() as nursery:
        await parser.summarise([b""])
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        one = summariser.Summariser(pool, parser, [second], help_after=0.05)
        nursery.start_soon(one.assist)
        await _accept(pool, stuck, MESSAGE % 1)
        nursery.start_soon(one.turn, _context())
        await eventually(lambda: pool.fetch_value(HELD), "it holds what it parses")
        (small,) = await _accept(pool, quiet, MESSAGE % 2)
        await _accept(pool, quiet, MESSAGE % 3 + b"x" * 100_000)
        await _accept(pool, stuck, MESSAGE % 4)
        await becomes(pool, "SELECT array_agg(message_id) FROM relay.summaries", [small])
        assert parser.restarts == 0
        os.kill(parser.pid, signal.SIGCONT)
        await becomes(pool, "SELECT count(*) FROM relay.summaries WHERE subject = '1'", 1)
        await one.turn(_context())
        await becomes(pool, LEFT, 0)
        nursery.cancel_scope.cancel()
    subjects = await pool.fetch("SELECT subject FROM relay.summaries")
    assert sorted(subjects) == [("1",), ("2",), ("3",), ("4",)]


async def test_a_second_parser_takes_what_is_smaller_than_what_holds_the_first(pool):
    """Mail above 64 kB does not wait for a message that is larger still."""
    stuck, quiet = await make_mailbox(pool), await make_mailbox(pool)
    async with Parser() as parser, Parser() as second, trio.open_nursery() as nursery:
        await parser.summarise([b""])
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        one = summariser.Summariser(pool, parser, [second], help_after=0.05)
        nursery.start_soon(one.assist)
        await _accept(pool, stuck, MESSAGE % 1 + b"x" * 300_000)
        nursery.start_soon(one.turn, _context())
        await eventually(lambda: pool.fetch_value(HELD), "it holds what it parses")
        await _accept(pool, quiet, MESSAGE % 3 + b"x" * 400_000)
        (medium,) = await _accept(pool, quiet, MESSAGE % 2 + b"x" * 200_000)
        await becomes(pool, "SELECT array_agg(message_id) FROM relay.summaries", [medium])
        nursery.cancel_scope.cancel()


async def test_a_second_parser_helps_with_what_waits_behind_many_short_groups(pool):
    """It begins by the age of what waits, however short each group of the first is."""
    for mailbox in [await make_mailbox(pool) for _ in range(10)]:
        await _accept(pool, mailbox, *[HOSTILE] * 8)
    async with Parser() as parser, Parser() as second, trio.open_nursery() as nursery:
        await parser.summarise([b""])  # its start is not part of a group
        idle = Load(lambda: Scheduled(0.0, 0.0))
        one = summariser.Summariser(
            pool, parser, [second], slice_for=0.001, help_after=0.2, load=idle
        )
        nursery.start_soon(one.assist)
        await one.turn(_context())
        assert second.pid is not None
        nursery.cancel_scope.cancel()


def test_rests_no_longer_than_what_waits_can_bear():
    """A rest is for what arrives, and ends before anything has waited for a tenth of a second; only
    a third of the time belongs to accepting, whatever waits."""
    assert summariser.rest(10.0, 10.01) == pytest.approx(0.03)
    assert summariser.rest(10.0, 10.05) == pytest.approx(0.05)
    assert summariser.rest(10.0, 10.01, oldest=9.92) == pytest.approx(0.01)
    assert summariser.rest(10.0, 10.01, oldest=9.0) == pytest.approx(0.005)
    assert summariser.rest(10.0, 10.2) == pytest.approx(0.1)
    assert summariser.rest(10.0, 15.0) == 0.25  # one slow message makes no long rest


def test_rests_eight_ninths_of_the_time_while_mail_comes_in_as_fast_as_it_is_let():
    """Whatever waits then: accepting comes first."""
    assert summariser.rest(10.0, 10.01, oldest=5.0, flooded=True) == pytest.approx(0.08)
    assert summariser.rest(10.0, 11.0, oldest=5.0, flooded=True) == 0.25


def test_rests_a_moment_where_few_come():
    """However long the round took: then others have the CPU, and somebody may wait for the mail.
    Many are a flood."""
    for flooded in (False, True):
        assert summariser.rest(10.0, 10.1, flooded=flooded, done=1) == pytest.approx(0.003)
        assert summariser.rest(10.0, 10.1, flooded=flooded, done=8) == pytest.approx(0.024)
        assert summariser.rest(10.0, 10.1, flooded=flooded, done=0) == pytest.approx(0.003)
    assert summariser.rest(10.0, 10.01, done=50) == summariser.rest(10.0, 10.01)
    assert summariser.rest(10.0, 10.02, flooded=True, done=54) == pytest.approx(0.16)


def test_rests_not_at_all_where_few_come_and_somebody_waits():
    """Whoever waits would wait for the rest; of many it is as long as ever."""
    for flooded in (False, True):
        assert summariser.rest(10.0, 10.1, flooded=flooded, done=8, awaited=True) == 0.0
        assert summariser.rest(
            10.0, 10.1, flooded=flooded, done=9, awaited=True
        ) == summariser.rest(10.0, 10.1, flooded=flooded, done=9)


def test_no_second_parser_helps_while_accepting_lacks_the_cpu():
    """Unless a group holds the first: what waits behind short ones is what floods do."""
    assert summariser.helps_since(began=9.0, oldest=5.0) == 5.0
    assert summariser.helps_since(began=9.0, oldest=5.0, flooded=True) == 9.0


def test_parsers_leave_a_core_to_accepting():
    """One a core but one; two at least, as one may be kept busy for long, and no crowd."""
    found = {cores: summariser.parsers_on(cores) for cores in (1, 2, 3, 4, 9, 64)}
    assert found == {1: 2, 2: 2, 3: 2, 4: 3, 9: 8, 64: 8}


async def test_a_third_parser_goes_on_when_two_are_busy(pool):
    """As many as there are help while something waits, the mail of one mailbox too if it is small
    and long."""
    mailbox = await make_mailbox(pool)
    async with AsyncExitStack() as stack:
        parsers = [await stack.enter_async_context(Parser()) for _ in range(3)]
        nursery = await stack.enter_async_context(trio.open_nursery())
        for parser in parsers[:2]:
            await parser.summarise([b""])
            assert parser.pid is not None
            os.kill(parser.pid, signal.SIGSTOP)
        await _accept(pool, mailbox, *[MESSAGE % n for n in range(1500)])
        one = summariser.Summariser(pool, parsers[0], parsers[1:], help_after=0.05)
        nursery.start_soon(one.assist, 1)
        nursery.start_soon(one.assist, 2)
        nursery.start_soon(one.turn, _context())
        await becomes(pool, "SELECT count(*) > 0 FROM relay.summaries", True)
        await becomes(pool, "SELECT count(*) FROM relay.parse_leases", 3)  # in whatever order
        nursery.cancel_scope.cancel()


async def test_large_mailboxes_get_chunks_when_nothing_waits(pool):
    """So that a search that finds nothing reads next to nothing; small ones get none."""
    large, small = await make_mailbox(pool), await make_mailbox(pool)
    for mailbox, messages in ((large, search.LEAST + 10), (small, search.SIZE + 1)):
        await pool.execute(
            """
            WITH filled AS (
                INSERT INTO relay.messages (mailbox_id, raw_email)
                SELECT %s, 'x' FROM generate_series(1, %s)
                RETURNING id, mailbox_id
            )
            INSERT INTO relay.summaries (message_id, mailbox_id) SELECT id, mailbox_id FROM filled
            """,
            (mailbox, messages),
        )
    await pool.execute("DELETE FROM relay.unsummarised")
    await pool.fetch_value("SELECT relay.fold_usage()")
    chunks = "SELECT array_agg(DISTINCT mailbox_id), count(*) FROM relay.search_chunks"
    async with running(summariser.run, pool=pool):
        await becomes(pool, chunks.replace("array_agg(DISTINCT mailbox_id), ", ""), 8)
    assert await pool.fetch_row(chunks) == ([large], search.LEAST // search.SIZE)


async def test_counts_what_it_parses(pool):
    """The metric of summaries moves."""
    before = registry.get_sample_value("relay_messages_summarised_total") or 0.0
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, *[MESSAGE % n for n in range(3)])
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    assert registry.get_sample_value("relay_messages_summarised_total") == before + 3


async def test_a_parser_that_is_killed_costs_no_code(pool):
    """The message it had in hand is parsed by another: stored as the others, with what is in it."""
    mailbox = await make_mailbox(pool)
    ids = await _accept(pool, mailbox, *[MESSAGE % n for n in range(3)])
    async with Parser() as parser:
        await parser.summarise([b""])
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        one = summariser.Summariser(pool, parser)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.round)
            await eventually(lambda: pool.fetch_value(HELD), "it holds what it parses")
            await trio.testing.wait_all_tasks_blocked(0.05)  # the parser has been asked
            os.kill(parser.pid, signal.SIGKILL)
    rows = await pool.fetch(
        "SELECT message_id, subject, otp, error FROM relay.summaries ORDER BY seq"
    )
    assert rows == [(ids[n], f"{n}", "123456", None) for n in range(3)]
    assert await pool.fetch_value(LEFT) == 0


async def test_two_share_the_work(pool):
    """Two summarisers on one database store each message once, and parse few of them twice."""
    mailbox = await make_mailbox(pool)
    before = registry.get_sample_value("relay_messages_summarised_total") or 0.0
    await _accept(pool, mailbox, *[MESSAGE % n for n in range(1000)])
    async with running(summariser.run, pool=pool), running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 1000
    parsed = (registry.get_sample_value("relay_messages_summarised_total") or 0.0) - before
    assert 1000 <= parsed <= 1300


async def test_what_a_killed_node_had_in_hand_is_parsed_by_another(pool):
    """When its lease is over, at the latest a second later."""
    mailbox = await make_mailbox(pool)
    (message,) = await _accept(pool, mailbox, MESSAGE % 1)
    taken = await summaries.claim(pool, [message.bytes], node=uuid4(), parser=0, seconds=0.5)
    assert [one.raw for one in taken] == [MESSAGE % 1]  # and no more is heard of that node
    async with running(summariser.run, pool=pool, sweep_every=3600.0):
        await becomes(pool, LEFT, 0)
    assert await pool.fetch_value("SELECT subject FROM relay.summaries") == "1"


async def test_a_message_that_is_held_for_deletion_waits(pool):
    """It is neither stored nor parsed over and over; when it is let go, it is summarised."""
    mailbox = await make_mailbox(pool)
    held, other = await _accept(pool, mailbox, MESSAGE % 1, MESSAGE % 2)
    async with Parser() as parser:
        one = summariser.Summariser(pool, parser, lease_for=0.0)
        async with pool.transaction() as conn:
            await conn.execute("SELECT FROM relay.messages WHERE id = %s FOR UPDATE", (held,))
            assert await one.round() == (2, False)
            assert await one.round() == (0, False)
            stored = await pool.fetch("SELECT message_id FROM relay.summaries")
            assert stored == [(other,)]
        assert await pool.fetch("SELECT message_id FROM relay.unsummarised") == [(held,)]
        assert await summariser.Summariser(pool, parser).round() == (1, False)
    assert await pool.fetch_value(LEFT) == 0


async def test_a_deleted_message_leaves_nothing_behind(pool):
    """What waits for a summary of a message that is gone is dropped."""
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, MESSAGE % 1)
    await pool.execute("DELETE FROM relay.messages")
    assert await pool.fetch_value(LEFT) == 1
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)


async def test_summaries_are_json_that_postgresql_takes(pool):
    """Every column arrives with its type."""
    mailbox = await make_mailbox(pool)
    raw = b"Content-Disposition: attachment; filename=x\r\n\r\nhttps://a.example/"
    await _accept(pool, mailbox, raw)
    async with running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    row = await pool.fetch_row(
        "SELECT has_attachments, details::jsonb, body_text FROM relay.summaries"
    )
    assert row is not None
    assert row[0] is True
    assert row[1]["attachments"][0]["filename"] == "x"
    assert row[1]["links"] == []
    assert row[1]["headers"] == [["Content-Disposition", "attachment; filename=x"]]
    assert row[2] is None
