"""The summariser: everything accepted gets a summary, whatever it is."""

import json
import os
import signal
from uuid import UUID

import trio

from actors import summariser
from actors.letters import Wake
from relay.db.pool import Pool
from relay.mailboxes.parser import Parser
from relay.mailboxes.store import Store
from tests.actors.running import becomes, make_mailbox, running

LEFT = "SELECT count(*) FROM relay.unsummarised"
MESSAGE = b"From: a@b.example\r\nSubject: %d\r\n\r\nYour code is 123456\r\n"


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
    found = await Store(pool, ["relay.localhost"]).message(mailbox, message)
    assert found is not None
    assert (found.from_address, found.subject, found.otp) == ("a@b.example", "1", "123456")
    assert found.size == len(MESSAGE % 1)
    assert found.error is None


async def test_is_woken_by_a_letter(pool):
    """A letter is enough; nothing waits for the sweep."""
    mailbox = await make_mailbox(pool)
    async with running(summariser.run, pool=pool, sweep_every=3600.0) as (_, inbox):
        await trio.sleep(0.1)
        await _accept(pool, mailbox, MESSAGE % 1)
        await inbox.send(Wake())
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
    """Storing summaries notifies their mailboxes, once a statement."""
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, *[MESSAGE % n for n in range(10)])
    async with pool.connection() as conn:
        await conn.execute("LISTEN relay_summaries")
        async with Parser() as parser:
            await summariser.Summariser(pool, parser).round()
        await conn.execute("SELECT 1")
        heard = [n.payload async for n in conn.notifies(timeout=0.1)]
        await conn.execute("UNLISTEN *")
    assert heard == [str(mailbox)]


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
        assert await one.round() == 64
        assert await one.round(newest=True) == 64
    stored = {row[0] for row in await pool.fetch("SELECT message_id FROM relay.summaries")}
    assert stored == {*ids[:64], *ids[-64:]}


async def test_a_message_that_kills_the_parser_is_not_retried(pool):
    """When the child dies, its message is stored with the reason, the others as usual."""
    mailbox = await make_mailbox(pool)
    ids = await _accept(pool, mailbox, *[MESSAGE % n for n in range(3)])
    async with Parser() as parser:
        await parser.summarise([b""])
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        one = summariser.Summariser(pool, parser)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.round)
            await trio.sleep(0.1)
            os.kill(parser.pid, signal.SIGKILL)
    rows = await pool.fetch("SELECT message_id, subject, error FROM relay.summaries ORDER BY seq")
    assert rows == [
        (ids[0], "0", "the parser died of it"),
        (ids[1], "1", None),
        (ids[2], "2", None),
    ]
    assert await pool.fetch_value(LEFT) == 0


async def test_two_share_the_work(pool):
    """Two summarisers on one database store each message once, and in order for a reader."""
    mailbox = await make_mailbox(pool)
    await _accept(pool, mailbox, *[MESSAGE % n for n in range(300)])
    async with running(summariser.run, pool=pool), running(summariser.run, pool=pool):
        await becomes(pool, LEFT, 0)
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 300


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
        "SELECT has_attachments, attachments, links, headers, body_text FROM relay.summaries"
    )
    assert row is not None
    assert row[0] is True
    assert json.loads(json.dumps(row[1]))[0]["filename"] == "x"
    assert row[2:] == ([], [["Content-Disposition", "attachment; filename=x"]], None)
