"""Every reply of the SMTP server, from real sockets against a real database."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import pytest
import structlog.testing
import trio
import trio.testing

from relay.metrics import registry
from relay.smtp.chaos import Chaos
from relay.smtp.limits import SmtpLimits
from relay.smtp.server import Server
from relay.smtp.session import Session
from tests.eventually import eventually
from tests.smtp.service import Client, Nobody


async def send_until_cut_off(client: Client, data: bytes, every: float = 0.0) -> None:
    """Send and read nothing until the server has closed the connection."""
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await client.send(data)
            await trio.sleep(every)


async def test_a_message_is_stored_byte_for_byte(pool, serving):
    """Dots, 8-bit text, NULs, long lines and no last line end: what was sent is what is kept."""
    texts = [
        b"Subject: x\r\n\r\n.\r\n..\r\n.dot\r\n",
        b"\x00\xff\xc3\xa4" + b"x" * 100_000 + b"\r\n",
        b"\r\n",
        b"",
        b"Subject: \xe4\r\n\r\n" + bytes(c for c in range(256) if c not in (10, 13)) + b"\r\n",
    ]
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            for text in texts:
                assert (await client.deliver(text, bob)).startswith("250 2.6.0 ")
        assert await service.stored() == [(bob, "a@b.example", text) for text in texts]


async def test_the_greeting_and_the_extensions(pool, serving):
    """EHLO lists what is offered, and neither AUTH nor STARTTLS; HELO lists nothing."""
    async with serving(pool) as service, service.raw_client() as client:
        assert await client.reply() == "220 relay.localhost ESMTP Relay"
        assert (await client.ask("EHLO x")).split("\n") == [
            "250-relay.localhost",
            "250-PIPELINING",
            "250-SIZE 26214400",
            "250-8BITMIME",
            "250-CHUNKING",
            "250-SMTPUTF8",
            "250-ENHANCEDSTATUSCODES",
            "250 HELP",
        ]
        assert await client.ask("HELO x") == "250 relay.localhost"


REPLIES: list[tuple[str | bytes, str]] = [
    ("NOOP", "250 2.0.0"),
    ("noop x", "250 2.0.0"),
    ("RSET", "250 2.0.0"),
    ("RSET x", "501 5.5.4"),
    ("VRFY bob", "252 2.5.2"),
    ("VRFY", "501 5.5.4"),
    ("EXPN list", "502 5.5.1"),
    (
        "HELP",
        "250 2.0.0 Supported commands: BDAT DATA EHLO EXPN HELO HELP MAIL NOOP QUIT RCPT RSET",
    ),
    ("HELP MAIL", "250 2.0.0 Syntax: MAIL FROM"),
    ("EHLO", "501 5.5.4"),
    ("HELO", "501 5.5.4"),
    ("AUTH PLAIN secret", "500 5.5.1 Command not recognized"),
    ("STARTTLS", "502 5.5.1"),
    (b"BDAT 2\r\n", "503 5.5.1"),
    ("", "500 5.5.1"),
    ("RCPT TO:<bob@relay.localhost>", "503 5.5.1"),
    ("DATA", "503 5.5.1"),
    ("MAIL", "501 5.5.4"),
    ("MAIL TO:<a@b>", "501 5.5.4"),
    ("MAIL FROM:<a", "501 5.1.7"),
    ('MAIL FROM:<"a@b>', "501 5.1.7"),
    ("MAIL FROM:<root>", "250 2.1.0"),
    ("MAIL FROM: a@b", "250 2.1.0"),
    ("MAIL FROM:<a@b> SIZE=26214401", "552 5.3.4"),
    ("MAIL FROM:<a@b> SIZE=99999999999999999999", "552 5.3.4"),
    ("MAIL FROM:<a@b> SIZE=x", "501 5.5.4"),
    ("MAIL FROM:<a@b> SIZE=\u00b2 SMTPUTF8", "501 5.5.4"),
    ("MAIL FROM:<a@b> BODY=9BIT", "501 5.5.4"),
    ("MAIL FROM:<a@b> AUTH=<>", "555 5.5.4"),
    ("MAIL FROM:<a@b> XFOO=1", "555 5.5.4"),
    ("MAIL FROM:<ä@b.example>", "553 5.6.7"),
    ("MAIL FROM:<ä@b.example> SMTPUTF8", "250 2.1.0"),
    (b"MAIL FROM:<a\x00@b>", "501 5.1.7"),
    (b"MAIL FROM:<a\x1b@b>", "501 5.1.7"),
    (b"MAIL FROM:<a\x7f@b>", "501 5.1.7"),
    (b"MAIL FROM:<\xff@b> SMTPUTF8", "501 5.1.7"),
    ("MAIL FROM:<a\u0085@b> SMTPUTF8", "501 5.1.7"),
    ("MAIL FROM:<a\u202e@b> SMTPUTF8", "501 5.1.7"),
    (b"RCPT TO:<a\x00@b>", "501 5.1.3"),
    (b"RCPT TO:<\xc3@b>", "501 5.1.3"),
    (b"NOOP \x00", "500 5.5.2"),
    (b"\xff\xfe", "500 5.5.2"),
    (b"NOOP\nNOOP", "500 5.5.2"),
    (b"NOOP\rNOOP", "500 5.5.2"),
    (b"MAIL FROM:<a@b>\nRCPT TO:<bob@relay.localhost>", "500 5.5.2"),
    (b"NOOP\n", "500 5.5.2"),
    ("NOOP " + "x" * 3000, "500 5.5.2"),
    ("NOOP " + "x" * 300_000, "500 5.5.2"),
]


async def test_every_command_has_its_reply(pool, serving):
    """One reply a command, with its enhanced code, and the session goes on."""
    async with serving(pool) as service, service.client() as client:
        for command, expected in REPLIES:
            reply = await client.ask(command)
            assert reply.startswith(expected), (command[:60], reply)
            assert (await client.ask("RSET"))[:3] == "250"
        assert await client.ask("QUIT") == "221 2.0.0 Bye"
        assert await client.reply() == ""


async def test_what_needs_helo_says_so(pool, serving):
    """MAIL before HELO is out of order; so is a second MAIL, and DATA without a recipient."""
    async with serving(pool) as service, service.raw_client() as client:
        await client.reply()
        for command in ("MAIL FROM:<a@b>", 'MAIL FROM:<"a"@b>', "RCPT TO:<a@b>", "DATA"):
            assert (await client.ask(command)).startswith("503 5.5.1"), command
        await client.ask("HELO x")
        assert (await client.ask("MAIL FROM:<a@b> SIZE=3")).startswith("501 5.5.4")
        assert (await client.ask("MAIL FROM:<a@b>"))[:3] == "250"
        assert (await client.ask("MAIL FROM:<a@b>")).startswith("503 5.5.1")
        assert (await client.ask("DATA")).startswith("503 5.5.1")
        assert (await client.ask("EHLO again"))[:3] == "250"
        assert (await client.ask("MAIL FROM:<a@b>"))[:3] == "250"


NO_ADDRESSES = (
    *("<nobody>", "<a@>", "<@b.example>", "<a@b@c.example>"),
    *("<a@-b.example>", "<a@b_c.example>", "<a@b.example"),
    *("<a@[300.1.1.1]x>", "<" + "x" * 65 + "@relay.localhost>", "<a@" + "b" * 300 + ">", "<>"),
)


async def test_recipients(pool, serving):
    """Unknown, expired, inactive and foreign ones are 550 5.1.1; case and quotes do not matter."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        await service.mailbox("gone@relay.localhost", seconds=-1)
        await service.mailbox("closed@relay.localhost")
        await pool.execute(
            "UPDATE relay.mailboxes SET is_active = false WHERE address = 'closed@relay.localhost'"
        )
        await service.mailbox("bücher@xn--bcher-kva.example")
        async with service.client() as client:
            assert (await client.ask("MAIL FROM:<> SMTPUTF8"))[:3] == "250"
            for wrong in (
                "nobody@relay.localhost",
                "gone@relay.localhost",
                "closed@relay.localhost",
                "bob@elsewhere.example",
                "bob+tag@relay.localhost",
                "postmaster",
                "bob%elsewhere.example@relay.localhost",
                '"a b"@relay.localhost',
            ):
                reply = await client.ask(f"RCPT TO:<{wrong}>")
                assert reply.startswith("550 5.1.1"), (wrong, reply)
            for none in NO_ADDRESSES:
                reply = await client.ask(f"RCPT TO:{none}")
                assert reply == "501 5.1.3 This is no address", (none, reply)
            for right in (
                bob,
                "BOB@Relay.LOCALHOST",
                '"bob"@relay.localhost',
                "bücher@BÜCHER.example",
            ):
                reply = await client.ask(f"RCPT TO:<{right}>")
                assert reply.startswith("250 2.1.5"), (right, reply)
            await client.ask("DATA")
            assert (await client.ask(b"x\r\n."))[:3] == "250"
        assert [(to, path) for to, path, _ in await service.stored()] == [
            (bob, ""),
            ("bücher@xn--bcher-kva.example", ""),
        ]


async def test_postmaster_is_the_first_domains(pool, serving):
    """RFC 5321's one recipient without a domain is a mailbox like any other."""
    async with serving(pool) as service:
        await service.mailbox("postmaster@relay.localhost")
        async with service.client() as client:
            assert (await client.ask("MAIL FROM:<a@b>"))[:3] == "250"
            assert (await client.ask("RCPT TO:<Postmaster>"))[:3] == "250"


async def test_a_mailbox_that_expires_before_the_dot(pool, serving):
    """Of two recipients the live one gets the message; if none is left, the dot is a 550."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        await service.mailbox("eve@relay.localhost")
        expire = (
            "UPDATE relay.mailboxes SET expires_at = clock_timestamp() "
            "WHERE address = 'eve@relay.localhost'"
        )
        async with service.client() as client:
            await client.begin(bob, "eve@relay.localhost")
            await pool.execute(expire)
            assert (await client.ask(b"one\r\n."))[:3] == "250"
            await pool.execute(
                "UPDATE relay.mailboxes SET expires_at = clock_timestamp() + interval '1 h' "
                "WHERE address = 'eve@relay.localhost'"
            )
            await client.begin("eve@relay.localhost")
            await pool.execute(expire)
            assert (await client.ask(b"two\r\n.")).startswith("550 5.1.1 ")
        assert await service.stored() == [(bob, "a@b.example", b"one\r\n")]


async def test_pipelined_commands_are_answered_in_one_segment(pool, serving):
    """MAIL, RCPT, DATA, text, dot and QUIT in one write: the replies come in order."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            await client.send(
                b"MAIL FROM:<a@b> SIZE=3\r\nRCPT TO:<no@x>\r\nRCPT TO:<%b>\r\nDATA\r\n"
                % bob.encode()
            )
            codes = [(await client.reply())[:3] for _ in range(4)]
            assert codes == ["250", "550", "250", "354"]
            await client.send(b"x\r\n.\r\nMAIL FROM:<c@d>\r\nRSET\r\nQUIT\r\n")
            assert [reply[:3] for reply in await client.replies()] == ["250", "250", "250", "221"]
        assert len(await service.stored()) == 1


async def test_a_pipeline_may_be_cut_anywhere(pool, serving):
    """A command that comes in two parts is no longer for all that comes behind its end."""
    async with serving(pool) as service, service.client() as client:
        await client.send(b"MAIL FROM:<a@b")
        await trio.testing.wait_all_tasks_blocked()  # it is read
        await client.send(b".example>\r\n" + b"NOOP of some length\r\n" * 200)
        codes = [(await client.reply())[:3] for _ in range(201)]
        assert codes == ["250"] * 201


@pytest.mark.parametrize("word", ["=ff", "=00", "=0d=0a", "=1b"])
async def test_an_encoded_word_is_no_way_in(pool, serving, word):
    """aiosmtpd's parser decodes it; what cannot be stored or shown is no address."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            reply = await client.ask(f"MAIL FROM:  <=?utf-8?q?{word}?=@x.example>")
            assert reply[:3] in ("501", "553"), reply
            assert (await client.ask(f"RCPT TO:  <=?utf-8?q?{word}?=@x.example>"))[0] == "5"
            await client.begin(bob)
            assert (await client.ask(b"x\r\n."))[:3] == "250"


async def test_a_recipient_named_again_and_again_is_one(pool, serving):
    """It is said once to the store, and only so often by the peer."""
    limits = SmtpLimits(max_idle_commands=50)
    async with serving(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            await client.ask("MAIL FROM:<a@b>")
            assert (await client.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
            await client.send(f"RCPT TO:<{bob}>\r\n".encode() * 100)
            codes = [reply[:3] for reply in await client.replies()]
            assert codes[0] == "250"
            assert codes[-1] == "421"


async def test_a_group_of_replies_leaves_in_one_segment(pool, serving):
    """One system call, so one segment, for the replies to a pipelined group."""
    async with serving(pool) as service, service.client() as client:
        await client.send(b"NOOP\r\n" * 500)
        received = await client.stream.receive_some(65536)
        assert received == b"250 2.0.0 OK\r\n" * 500


async def test_sizes(pool, serving):
    """The limit itself fits; a byte more is read to the dot and 552; ten times it ends all."""
    async with serving(pool, limits=SmtpLimits(max_message_bytes=10_000)) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            assert (await client.ask("MAIL FROM:<a@b> SIZE=10001")).startswith("552 5.3.4")
            assert (await client.deliver(b"x" * 9_998 + b"\r\n", bob))[:3] == "250"
            assert (await client.deliver(b"x" * 9_999 + b"\r\n", bob)).startswith("552 5.3.4")
            assert (await client.deliver(b"x" * 90_000 + b"\r\n", bob)).startswith("552 5.3.4")
            assert (await client.deliver(b"after\r\n", bob))[:3] == "250"
            await client.begin(bob)
            await client.send(b"x" * 150_000)
            assert [reply[:9] for reply in await client.replies()] == ["421 5.3.4"]
        assert len(await service.stored()) == 2


async def test_recipients_above_the_limit(pool, serving):
    """452 4.5.3 for each further one, and the message goes to those before."""
    async with serving(pool, limits=SmtpLimits(max_recipients=3)) as service:
        boxes = [await service.mailbox(f"b{number}@relay.localhost") for number in range(4)]
        async with service.client() as client:
            await client.ask("MAIL FROM:<a@b>")
            for box in boxes[:3]:
                assert (await client.ask(f"RCPT TO:<{box}>"))[:3] == "250"
            for _ in range(200):
                assert (await client.ask(f"RCPT TO:<{boxes[3]}>")).startswith("452 4.5.3")
            await client.ask("DATA")
            assert (await client.ask(b"x\r\n."))[:3] == "250"
        assert [to for to, _, _ in await service.stored()] == boxes[:3]


async def buffered(size: int) -> None:
    """Wait until so much of unfinished messages has been read."""
    await eventually(
        lambda: registry.get_sample_value("relay_smtp_buffered_bytes"),
        f"{size} bytes are read",
        until=lambda held: held >= size,
    )


async def test_no_room_for_more_mail_in_flight(pool, serving):
    """When all messages together are too much, this one is read to its end and 452 4.3.1."""
    limits = SmtpLimits(max_message_bytes=50_000, max_buffered_bytes=60_000)
    async with serving(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as first, service.client() as second:
            await first.begin(bob)
            await first.send(b"x" * 40_000)
            await buffered(40_000)
            assert (await second.deliver(b"y" * 40_000 + b"\r\n", bob)).startswith("452 4.3.1")
            assert (await first.ask(b"\r\n."))[:3] == "250"
            assert (await second.deliver(b"y" * 40_000 + b"\r\n", bob))[:3] == "250"


ROOMY = SmtpLimits(max_message_bytes=1 << 20, max_buffered_bytes=5 << 19, slow_rate=0)
"""Limits with room for two large messages, of which none is too slow."""


async def by_data(client: Client, raw: bytes, bob: str) -> str:
    """Send a message by DATA, without its size."""
    return await client.deliver(raw, bob)


async def by_chunks(client: Client, raw: bytes, bob: str) -> str:
    """Send a message by BDAT, in two chunks; the reply to the last."""
    await client.ask("MAIL FROM:<a@b.example>")
    await client.ask(f"RCPT TO:<{bob}>")
    middle = len(raw) // 2
    await client.send(b"BDAT %d\r\n" % middle + raw[:middle])
    await client.send(b"BDAT %d LAST\r\n" % (len(raw) - middle) + raw[middle:])
    first = await client.reply()
    last = await client.reply()
    return last if first[:3] == "250" else first


@pytest.mark.parametrize("send", [by_data, by_chunks])
async def test_large_messages_wait_for_room_and_all_are_taken(pool, serving, send):
    """Six at once, with room for two: the others are read later; small mail does not wait."""
    raw = b"x" * 70 + b"\r\n"
    raw *= 1_000_000 // len(raw)
    async with serving(pool, limits=ROOMY) as service:
        bob = await service.mailbox()
        said: list[str] = []

        async def deliver() -> None:
            async with service.client() as client:
                said.append((await send(client, raw, bob))[:9])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(deliver)
                async with service.client() as other:
                    assert (await other.deliver(b"y\r\n" * 2000, bob))[:3] == "250"
        assert said == ["250 2.6.0"] * 6
        assert sorted(len(text) for _, _, text in await service.stored()) == [6000] + [len(raw)] * 6


async def test_large_messages_wait_for_room_where_each_is_looked_at(pool, serving_here):
    """As well where it is not ordinary mail to the session."""
    raw = (b"x" * 70 + b"\r\n") * 13_000
    async with serving_here(pool, limits=ROOMY, chaos=Chaos()) as service:
        bob = await service.mailbox()
        said: list[str] = []

        async def deliver() -> None:
            async with service.client() as client:
                said.append((await client.deliver(raw, bob))[:9])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(deliver)
        assert said == ["250 2.6.0"] * 5


async def test_a_large_message_waits_only_so_long(pool, serving_here):
    """Two that do not go on have the room; the third is read to its end then, and 452 4.3.1."""
    limits = replace(ROOMY, room_timeout=0.1, command_timeout=0.4)
    raw = (b"x" * 70 + b"\r\n") * 13_000
    async with serving_here(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as one, service.client() as two, service.client() as three:
            for client in (one, two):
                await client.begin(bob)
                await client.send(raw[:-72])
            await buffered(2 * len(raw) - 1000)
            with trio.fail_after(30):
                assert (await three.deliver(raw, bob)).startswith("452 4.3.1")
            for client in (one, two):
                assert (await client.ask(raw[-72:] + b"."))[:3] == "250"
            assert (await three.deliver(raw, bob))[:3] == "250"
            assert registry.get_sample_value("relay_smtp_buffered_bytes") == 0


async def test_a_message_that_drips_makes_room(pool, serving_here, virtual):
    """When there is none, it is forgotten and deferred at its dot; the other one is stored."""
    limits = SmtpLimits(
        max_message_bytes=50_000,
        max_buffered_bytes=60_000,
        slow_after=0.2,
        command_timeout=2.0,  # a quarter of it is how often the server looks at its clock
    )
    async with serving_here(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as slow:
            await slow.begin(bob)
            await slow.send(b"x" * 40_000)
            await buffered(40_000)
            virtual.jump(1.2)
            async with service.client() as other:
                assert (await other.deliver(b"y" * 40_000 + b"\r\n", bob))[:3] == "250"
            await slow.send(b"x" * 9_000)
            assert (await slow.ask(b"\r\n.")).startswith("452 4.3.1")
            assert (await slow.deliver(b"z\r\n", bob))[:3] == "250"
        assert len(await service.stored()) == 2
        assert registry.get_sample_value("relay_smtp_buffered_bytes") == 0


@pytest.mark.parametrize(
    ("limits", "command", "allowed"),
    [
        (SmtpLimits(max_unknown=5), "XYZZY", 5),
        (SmtpLimits(max_errors=5), "MAIL", 5),
        (SmtpLimits(max_idle_commands=50), "NOOP", 49),
        (SmtpLimits(max_idle_commands=50), "RSET", 49),
    ],
)
async def test_too_much_nonsense_ends_the_session(pool, serving, limits, command, allowed):
    """So many are answered, then 421 4.7.0."""
    async with serving(pool, limits=limits) as service, service.client() as client:
        for _ in range(allowed):
            assert (await client.ask(command))[:3] != "421"
        await client.send(f"{command}\r\n".encode())
        assert (await client.replies())[-1].startswith("421 4.7.0")


async def test_a_browser_is_sent_away(pool, serving):
    """An HTTP request is no list of unknown commands."""
    async with serving(pool) as service, service.raw_client() as client:
        await client.reply()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nMAIL FROM:<a@b>\r\n")
        assert [reply[:9] for reply in await client.replies()] == ["421 4.7.0"]


async def test_who_comes_just_before_the_drain_does_not_wait():
    """A session that has not begun to wait for a command when all are told to end, ends itself."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        server = Server(Nobody(), str)
        session = Session(server.shared, ours, server.scheduling.waits(ours), ("127.0.0.1", 1))
        server.drain()
        with trio.fail_after(20):
            await session.run()
        assert [reply[:4] for reply in theirs.recv(1000).splitlines()] == [b"220 ", b"421 "]


@pytest.mark.parametrize("part", [b"", b"NOO", b"MAIL FROM:<a@b>\r\n", b"DATA"])
async def test_a_silent_peer_is_timed_out(pool, serving, part):
    """421 4.4.2, at any point of a command."""
    limits = SmtpLimits(command_timeout=0.2)
    async with serving(pool, limits=limits) as service, service.client() as client:
        await client.send(part)
        assert (await client.replies())[-1] == "421 4.4.2 Timed out"


async def test_dripping_bytes_buy_no_time(pool, serving):
    """Neither within a command nor within DATA."""
    limits = SmtpLimits(command_timeout=0.3, data_timeout=0.3, transaction_timeout=0.6)
    async with serving(pool, limits=limits) as service:
        bob = await service.mailbox()

        async with service.client() as client:
            await send_until_cut_off(client, b"x", every=0.02)
        async with service.client() as client:
            await client.begin(bob)
            await send_until_cut_off(client, b"x", every=0.02)
        assert await service.stored() == []


async def test_a_lf_only_client_is_told(pool, serving):
    """A line that ends in LF gets 500 5.5.2 after a moment, and the session ends."""
    limits = SmtpLimits(bare_line_timeout=0.1)
    async with serving(pool, limits=limits) as service, service.client() as client:
        await client.send(b"NOOP\n")
        assert [reply[:9] for reply in await client.replies()] == ["500 5.5.2"]


async def test_a_peer_that_reads_nothing_is_cut_off(pool, serving):
    """Replies nobody reads are not kept, and hold nobody up."""
    limits = SmtpLimits(reply_timeout=0.3, max_idle_commands=10**9)
    async with serving(pool, limits=limits) as service, service.client() as client:
        await send_until_cut_off(client, b"HELP\r\n" * 10_000)


async def test_who_guesses_recipients_waits_and_nobody_else_does(pool, serving):
    """After a few misses, over all its sessions, each one's answer comes later; known recipients
    of the same peer are answered as before.  Expired ones wait like those that never were."""
    limits = SmtpLimits(free_misses=3, miss_delay=30.0, longest_miss=30.0, misses_forgotten=0.0)
    async with serving(pool, limits=limits) as service:
        bob = await service.mailbox()
        gone = await service.mailbox("gone@relay.localhost", -1.0)
        async with service.client() as first, service.client() as second, service.client() as third:
            for client in (first, second, third):
                await client.ask("MAIL FROM:<a@b.example>")
            replies = {
                await first.ask(f"RCPT TO:<{address}>")
                for address in (gone, "never@relay.localhost", "no mailbox@relay.localhost")
            }
            assert replies == {"550 5.1.1 No such mailbox here"}
            await first.send(f"RCPT TO:<{gone}>\r\n".encode())
            await second.send(b"RCPT TO:<never@relay.localhost>\r\n")
            assert await first.silent(0.3)
            assert await second.silent(0.01)
            with trio.fail_after(10):
                assert (await third.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
                async with await trio.open_tcp_stream(
                    "127.0.0.1", service.port, local_address="127.0.0.9"
                ) as stream:
                    other = Client(stream)
                    assert (await other.reply())[:3] == "220"
                    await other.ask("EHLO x")
                    await other.ask("MAIL FROM:<a@b.example>")
                    assert (await other.ask("RCPT TO:<never@relay.localhost>"))[:3] == "550"
                service.supervisor.shutdown()  # nor does the end wait for those that wait
                assert [reply[:3] for reply in await first.replies()] == ["421"]


async def test_sessions_that_wait_for_what_they_guessed_keep_no_place(pool, serving_here):
    """Those of one address, which has no place left, give way at once, without any patience."""
    limits = SmtpLimits(
        max_connections_per_peer=2, free_misses=0, miss_delay=30.0, longest_miss=30.0
    )
    async with serving_here(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as first, service.client() as second:
            for client in (first, second):
                await client.ask("MAIL FROM:<a@b.example>")
                await client.send(b"RCPT TO:<never@relay.localhost>\r\n")
            assert await second.silent(0.3)
            with trio.fail_after(10):
                async with service.client() as newcomer:
                    assert [reply[:3] for reply in await first.replies()] == ["421"]
                    assert (await newcomer.deliver(b"x\r\n", bob))[:3] == "250"


async def test_why_recipients_were_refused_is_logged_and_counted_without_them(pool, serving_here):
    """One line a session, however many; replies tell unknown from expired as little as before."""

    def counted(why: str) -> float:
        name = "relay_smtp_recipients_refused_total"
        return registry.get_sample_value(name, {"why": why}) or 0.0

    before = {why: counted(why) for why in ("unknown", "expired", "over_quota")}
    await pool.execute("UPDATE relay.plans SET max_messages = 1 WHERE name = 'free'")
    async with serving_here(pool) as service:
        full = await service.mailbox()
        gone = await service.mailbox("gone@relay.localhost", -1.0)
        async with service.client() as client:
            assert (await client.deliver(b"x\r\n", full))[:3] == "250"
        with structlog.testing.capture_logs() as lines:
            async with service.client() as client:
                await client.ask("MAIL FROM:<a@b.example>")
                said = [
                    (await client.ask(f"RCPT TO:<{address}>"))[:9]
                    for address in (full, gone, "never@relay.localhost", "n@elsewhere.example")
                ]
                assert said == ["452 4.2.2", "550 5.1.1", "550 5.1.1", "550 5.1.1"]
                assert (await client.ask("QUIT"))[:3] == "221"
            ended = await eventually(
                lambda: [line for line in lines if "recipients_unknown" in line],
                "the session's line is logged",
            )
    assert {why: counted(why) - before[why] for why in before} == {
        "unknown": 2, "expired": 1, "over_quota": 1,
    }  # fmt: skip
    (line,) = ended
    told = {key: line[key] for key in line if key.startswith("recipients_")}
    assert told == {
        "recipients_unknown": 2, "recipients_expired": 1, "recipients_over_quota": 1,
    }  # fmt: skip
    assert "relay.localhost" not in str(lines)


@pytest.mark.parametrize(
    "address", ['"a>b"@x.example', '"a<b"@x.example', '"> SIZE=1 <"@relay.localhost', '"\\>"@x']
)
async def test_an_angle_bracket_in_quotes_is_refused(pool, serving, address):
    """A program behind us that does not read quotes would find another address."""
    async with serving(pool) as service, service.client() as client:
        bob = await service.mailbox()
        assert (await client.ask(f"MAIL FROM:<{address}>"))[:3] in ("501", "553")
        await client.ask("MAIL FROM:<>")
        assert (await client.ask(f"RCPT TO:<{address}>"))[:3] in ("501", "553")
        assert (await client.ask(f"RCPT TO:<{bob}>"))[:3] == "250"


async def test_connection_caps(pool, serving):
    """By peer and in all: 421 at once; who leaves makes room."""
    for limits, code in (
        (SmtpLimits(max_connections_per_peer=2), "421 4.7.0"),
        (SmtpLimits(max_connections=2), "421 4.3.2"),
    ):
        async with serving(pool, limits=limits) as service:
            async with service.client(), service.client(), service.raw_client() as third:
                assert [reply[:9] for reply in await third.replies()] == [code]
            while True:
                async with service.raw_client() as again:
                    if (await again.reply())[:3] == "220":
                        break


async def test_an_internal_error_is_a_451_without_its_text(pool, serving_here, monkeypatch):
    """Nothing of the exception reaches the peer, and the session goes on."""

    def broken(address):
        raise RuntimeError("secret of the house")

    monkeypatch.setattr("actors.accepting.canonical", broken)
    async with serving_here(pool) as service, service.client() as client:
        await client.ask("MAIL FROM:<a@b>")
        reply = await client.ask("RCPT TO:<bob@relay.localhost>")
        assert reply == "451 4.3.0 Internal error, try again later"
        assert (await client.ask("NOOP"))[:3] == "250"
