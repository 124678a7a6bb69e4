"""BDAT: chunks of a message, what is refused, and where the next command is."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.chunks import ChunkedMessage
from relay.smtp.limits import SmtpLimits
from tests.smtp.service import Client


async def begin(client: Client, *recipients: str) -> None:
    """Open a transaction."""
    assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
    for recipient in recipients:
        assert (await client.ask(f"RCPT TO:<{recipient}>"))[:3] == "250"


def bdat(octets: bytes, *, last: bool = False) -> bytes:
    """A chunk with its command."""
    return b"BDAT %d%b\r\n%b" % (len(octets), b" LAST" if last else b"", octets)


async def test_chunks_make_a_message(pool, serving):
    """Each is answered; what looks like the end of DATA, or like a command, is text."""
    text = b"Subject: x\r\n\r\n.\r\nQUIT\r\n..\r\n.x\r\n\x00\xff"
    with trio.fail_after(50):
        async with serving(pool) as service, service.client() as client:
            bob = await service.mailbox()
            assert "CHUNKING" in (await client.ask("EHLO c"))
            for cut in (0, 1, 15, len(text)):
                await begin(client, bob)
                await client.send(bdat(text[:cut]))
                assert (await client.reply()) == f"250 2.0.0 {cut} octets"
                await client.send(bdat(text[cut:], last=True))
                assert (await client.reply())[:9] == "250 2.6.0"
            assert (await client.ask("NOOP"))[:3] == "250"
            assert [raw for _, _, raw in await service.stored()] == [text] * 4


async def test_a_pipeline_may_be_cut_anywhere(pool, serving):
    """Commands and chunks of two messages, and DATA after them, in one segment or in two."""
    with trio.fail_after(50):
        async with serving(pool) as service:
            bob = await service.mailbox()
            head = b"MAIL FROM:<a@b.example>\r\nRCPT TO:<%b>\r\n" % bob.encode()
            wire = (
                head
                + bdat(b"one\r")
                + bdat(b"\n", last=True)
                + head
                + b"bdat 5 last\r\ntwo\r\n"
                + head
                + b"DATA\r\nthree\r\n.\r\nQUIT\r\n"
            )
            expected = [*["250"] * 9, "354", "250", "221"]
            for cut in range(0, len(wire), 5):
                async with service.client() as client:
                    await client.send(wire[:cut])
                    await trio.sleep(0.002)
                    await client.send(wire[cut:])
                    assert [reply[:3] for reply in await client.replies()] == expected
            stored = [raw for _, _, raw in await service.stored()]
            assert stored == [b"one\r\n", b"two\r\n", b"three\r\n"] * (len(stored) // 3)


async def test_a_large_message(pool, serving):
    """Of many chunks of many reads."""
    text = b"".join(b"%07d %b\r\n" % (n, b"x" * 60) for n in range(30_000))
    with trio.fail_after(50):
        async with serving(pool) as service, service.client() as client:
            bob = await service.mailbox()
            await begin(client, bob)
            for at in range(0, len(text), 500_000):
                await client.send(bdat(text[at : at + 500_000]))
                assert (await client.reply())[:3] == "250"
            assert (await client.ask("BDAT 0 LAST"))[:9] == "250 2.6.0"
            assert [raw for _, _, raw in await service.stored()] == [text]


@pytest.mark.parametrize("last", [False, True])
async def test_a_chunk_that_is_refused_is_swallowed(pool, serving, last):
    """Without MAIL, without RCPT: 503, and what it holds is no command."""
    evil = b"MAIL FROM:<evil@b.example>\r\nRCPT TO:<bob@relay.localhost>\r\nDATA\r\nevil\r\n.\r\n"
    with trio.fail_after(50):
        async with serving(pool) as service, service.client() as client:
            bob = await service.mailbox()
            for before in ([], ["MAIL FROM:<a@b.example>"]):
                for line in before:
                    assert (await client.ask(line))[:3] == "250"
                await client.send(bdat(evil, last=last) + b"NOOP\r\n")
                assert (await client.reply())[:9] == "503 5.5.1"
                assert (await client.reply())[:9] == "250 2.0.0"
                assert (await client.ask("RSET"))[:3] == "250"
            assert await service.stored() == []
            await begin(client, bob)
            await client.send(bdat(b"good\r\n", last=True))
            assert (await client.reply())[:3] == "250"


async def test_sizes(pool, serving):
    """Over the limit it is 552 at that chunk; further chunks are swallowed; LAST begins anew."""
    limits = SmtpLimits(max_message_bytes=2000)
    with trio.fail_after(50):
        async with serving(pool, limits=limits) as service, service.client() as client:
            bob = await service.mailbox()
            await begin(client, bob)
            await client.send(bdat(b"x" * 1500) + bdat(b"x" * 501))
            assert (await client.reply())[:3] == "250"
            assert (await client.reply())[:9] == "552 5.3.4"
            await client.send(bdat(b"QUIT\r\n") + bdat(b"QUIT\r\n", last=True))
            assert (await client.reply())[:9] == "503 5.5.1"
            assert (await client.reply())[:9] == "503 5.5.1"
            await begin(client, bob)
            await client.send(bdat(b"x" * 2000) + bdat(b"", last=True))
            assert (await client.reply())[:3] == "250"
            assert (await client.reply())[:3] == "250"
            await begin(client, bob)
            await client.send(bdat(b"x" * 2001, last=True))
            assert (await client.reply())[:9] == "552 5.3.4"
            await begin(client, bob)
            assert (await client.ask("BDAT 20001"))[:9] == "421 5.3.4"
        assert [len(raw) for _, _, raw in await service.stored()] == [2000]


async def test_no_room_for_more_mail_in_flight(pool, serving):
    """A message for which there is no room is 452, at the chunk that found none."""
    limits = SmtpLimits(max_message_bytes=50_000, max_buffered_bytes=50_000)
    with trio.fail_after(50):
        async with serving(pool, limits=limits) as service:
            bob = await service.mailbox()
            async with service.client() as client, service.client() as other:
                await begin(client, bob)
                await client.send(bdat(b"x" * 40_000))
                assert (await client.reply())[:3] == "250"
                await begin(other, bob)
                await other.send(bdat(b"x" * 20_000))
                assert (await other.reply())[:9] == "452 4.3.1"
                await client.send(bdat(b"", last=True))
                assert (await client.reply())[:3] == "250"
                assert (await other.ask("RSET"))[:3] == "250"
                await begin(other, bob)
                await other.send(bdat(b"x" * 20_000, last=True))
                assert (await other.reply())[:3] == "250"


@pytest.mark.parametrize("command", ["DATA", "RCPT TO:<bob@relay.localhost>", "MAIL FROM:<a@b.c>"])
async def test_data_and_bdat_do_not_mix(pool, serving, command):
    """503; the message goes on, or RSET and EHLO forget it."""
    with trio.fail_after(50):
        async with serving(pool) as service, service.client() as client:
            bob = await service.mailbox()
            for end in ("RSET", "EHLO c", ""):
                await begin(client, bob)
                await client.send(bdat(b"x"))
                assert (await client.reply())[:3] == "250"
                assert (await client.ask(command))[:9] == "503 5.5.1"
                assert (await client.ask("NOOP"))[:3] == "250"
                if end:
                    assert (await client.ask(end))[:3] == "250"
            await client.send(bdat(b"y", last=True))
            assert (await client.reply())[:3] == "250"
            assert [raw for _, _, raw in await service.stored()] == [b"xy"]


@pytest.mark.parametrize(
    "line",
    ["BDAT", "BDAT LAST", "BDAT -1", "BDAT x LAST", "BDAT 5 FIRST", "BDAT 5LAST", "BDAT ٥ LAST",
     "BDAT 5 LAST\x00", "BDAT 5 \nLAST", "BDAT 1234567890123456",
     " BDAT 86 LAST", "\u2003BDAT 86 LAST", f"BDAT 86 {' ' * 2100}LAST"],
)  # fmt: skip
async def test_a_chunk_whose_end_is_unknown_ends_the_session(pool, serving, line):
    """What follows is not read as commands."""
    with trio.fail_after(50):
        async with serving(pool) as service, service.client() as client:
            bob = await service.mailbox()
            await begin(client, bob)
            evil = b"RSET\r\nMAIL FROM:<evil@b.example>\r\nRCPT TO:<%b>\r\nDATA\r\nx\r\n.\r\n"
            await client.send(line.encode() + b"\r\n" + evil % bob.encode())
            replies = await client.replies()
            assert replies[0][:9] in ("501 5.5.4", "500 5.5.2")
            assert replies[1:] in ([], ["reset"])
            assert await service.stored() == []


async def test_a_peer_that_does_not_send_its_chunk_is_timed_out(pool, serving):
    """As within DATA."""
    with trio.fail_after(50):
        async with serving(pool, limits=SmtpLimits(data_timeout=0.4)) as service:
            bob = await service.mailbox()
            async with service.client() as client:
                await begin(client, bob)
                await client.send(b"BDAT 10 LAST\r\nfew")
                assert await client.replies() == ["421 4.4.2 Timed out"]
            assert await service.stored() == []


@given(st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\x00", b"\r\n")), max_size=8))
def test_any_cutting_counts_the_same(parts):
    """Text and bare line ends do not depend on the chunks."""
    text = b"".join(parts)
    message, whole = ChunkedMessage(1000), ChunkedMessage(1000)
    for part in parts:
        message.add(part)
    whole.add(text)
    assert message.bare == whole.bare == (b"\r" in text.replace(b"\r\n", b"") or b"\n" in
                                          text.replace(b"\r\n", b""))  # fmt: skip
    assert message.take() == whole.take() == text
    assert message.held == 0
