"""SMTP smuggling: a malformed end of DATA gives one message or a refusal, never two.

Each ending stands where a careless server would see the end of the message, and is followed by
commands that would send a second one.  The catalogue is that of the attack's publication
(SEC Consult, 2023) and its neighbours: every sequence of two to five of CR, LF, dot and NUL that
resembles the real end.  It is tried in clear, in TLS, behind PROXY headers, and within BDAT and
beside it; by the core, in processes, by aiosmtpd's class for every command, on the port for
submission, and by LMTP.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from relay.ports.certificate import Certificate
from relay.smtp.filtering import FilterClass
from relay.smtp.limits import SmtpLimits
from tests.actors.test_lmtp import BOB, EVE
from tests.actors.test_lmtp import message as lmtp_mail
from tests.actors.test_lmtp import serving as lmtp
from tests.actors.test_submission import TOKEN
from tests.actors.test_submission import serving as submitting
from tests.certificates import write
from tests.smtp.service import Client, Service, serving_by_loaded_processes
from tests.smtp.service import serving as serving_here

NAMED = [
    b"\n.\n",
    b"\r.\r",
    b"\n.\r\n",
    b"\r\n.\n",
    b"\r\n.\r",
    b"\r.\r\n",
    b"\n.\r",
    b"\r.\n",
    b"\r\n.\n\r",
    b"\n\r.\r\n",
    b"\n\r.\n\r",
    b"\r\r\n.\r\r\n",
    b"\r\n.\r\r\n",
    b"\r\r\n.\r\n",
    b"\n\n.\r\n",
    b"\r\n\n.\r\n",
    b"\r\n\x00.\r\n",
    b"\r\n.\x00\r\n",
    b"\r\x00\n.\r\n",
    b"\x00\r\n.\r\n\x00",
    b"\n.\n\x00",
]
BREAKS = [b"\r", b"\n", b"\r\n", b"\r\r\n", b"\r\n\n", b"\n\r", b"\r\n\r"]
NEIGHBOURS = [b"%b.%b" % pair for pair in itertools.product(BREAKS, BREAKS)]
REAL = b"\r\n.\r\n"
ENDINGS = [ending for ending in dict.fromkeys(NAMED + NEIGHBOURS) if ending != REAL]

SMUGGLED = (
    b"MAIL FROM:<evil@b.example>\r\nRCPT TO:<bob@relay.localhost>\r\nDATA\r\n"
    b"Subject: smuggled\r\n\r\nevil\r\n.\r\n"
)


class Agreeing:
    """A filter, with which no command is ordinary: the session has them all."""

    async def handle_RCPT(self, server, session, envelope, address, options):
        """Agree."""
        return "250 OK"


serving_without_core = functools.partial(
    serving_here, filter_=FilterClass("agreeing", Agreeing, frozenset({"RCPT"}))
)


@pytest.fixture(
    params=[serving_here, serving_without_core, serving_by_loaded_processes],
    ids=["here", "without-core", "processes"],
)
def serving(request):
    """Ingest with its sessions in this process, with the core and without it, and in others."""
    return request.param


PROXY = "127.0.0.2"
NAMES = b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n"
IN_BINARY = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\x0a\x00\x00\x01\x00\x01\x00\x02"
)
HEADER = {"proxy": NAMES, "proxy2": IN_BINARY}


@asynccontextmanager
async def connected(service: Service, way: str, trust: ssl.SSLContext) -> AsyncIterator[Client]:
    """A session that has said EHLO: in clear, in TLS, or by a proxy of either version."""
    if way in HEADER:
        made = await trio.open_tcp_stream("127.0.0.1", service.port, local_address=PROXY)
        async with made as stream:
            client = Client(stream)
            await client.send(HEADER[way])
            assert (await client.reply())[:3] == "220"
            assert (await client.ask("EHLO client.example"))[:3] == "250"
            yield client
    else:
        async with service.client() as client:
            if way == "tls":
                await client.start_tls(trust)
                assert (await client.ask("EHLO client.example"))[:3] == "250"
            yield client


@pytest.mark.parametrize("way", ["clear", "tls", "proxy"])
async def test_no_ending_of_the_catalogue_gives_a_second_message(pool, serving, tmp_path, way):
    """One reply to the message, nothing stored of what follows, and the sender is told 554."""
    certificate = write(tmp_path)
    trust = ssl.create_default_context(cafile=certificate[0])
    limits = SmtpLimits(smuggling_silence=0.05)
    async with serving(pool, limits=limits, certificate=certificate, proxies=[PROXY]) as service:
        bob = await service.mailbox()
        for ending in ENDINGS:
            await pool.execute("DELETE FROM relay.messages")
            async with connected(service, way, trust) as client:
                await client.begin(bob)
                await client.send(b"innocent" + ending + SMUGGLED + b"QUIT\r\n")
                replies = [reply[:9] for reply in await client.replies()]
            stored = await service.stored()
            message = ending.partition(b"\r\n.\r\n")[0].replace(b"\r\n", b"")
            if b"\r" in message or b"\n" in message:
                assert stored == [], ending
                assert replies[0] == "554 5.6.0", (ending, replies)
                assert replies[1:] in (["221 2.0.0"], ["421 4.7.0"]), (ending, replies)
            else:
                # A NUL is text like any other, and behind a real end stands no MAIL of its own.
                assert replies[0] == "250 2.6.0", (ending, replies)
                assert "250 2.1.0" not in replies[1:], (ending, replies)
                assert [path for _, path, _ in stored] == ["a@b.example"]


@pytest.mark.parametrize("way", ["clear", "tls"])
@pytest.mark.parametrize("chunked", [False, True], ids=["data", "bdat"])
async def test_no_ending_queues_a_second_message(pool, tmp_path, way, chunked):
    """On the port for submission: one reply to the message, and at most one in the queue."""
    cert = write(tmp_path)
    trust = ssl.create_default_context(cafile=cert[0])
    limits = SmtpLimits(smuggling_silence=0.05)
    certificate = Certificate.load(*cert)
    async with submitting(pool, certificate=certificate, limits=limits) as port:
        auth = b64encode(b"\0x\0" + TOKEN.encode()).decode()
        for ending in [REAL, *ENDINGS] if chunked else ENDINGS:
            await pool.execute("TRUNCATE relay.outbound_contents CASCADE")
            async with await trio.open_tcp_stream(*port.address) as stream:
                client = Client(stream)
                assert (await client.reply())[:3] == "220"
                assert (await client.ask("EHLO client.example"))[:3] == "250"
                if way == "tls":
                    await client.start_tls(trust)
                    assert (await client.ask("EHLO client.example"))[:3] == "250"
                assert (await client.ask(f"AUTH PLAIN {auth}"))[:3] == "235"
                text = b"Subject: s\r\n\r\ninnocent" + ending + SMUGGLED
                if chunked:
                    for command in ("MAIL FROM:<a@b.example>", "RCPT TO:<c@y.example>"):
                        assert (await client.ask(command))[:3] == "250"
                    text = b"BDAT %d LAST\r\n" % len(text) + text
                else:
                    await client.begin("c@y.example")
                await client.send(text + b"QUIT\r\n")
                replies = [reply[:9] for reply in await client.replies()]
            rows = await pool.fetch("SELECT blob FROM relay.outbound_contents")
            queued = [bytes(raw) for (raw,) in rows]
            message = b"" if chunked else ending.partition(REAL)[0].replace(b"\r\n", b"")
            if chunked:
                message = text.partition(b"\r\n")[2].replace(b"\r\n", b"")
            if b"\r" in message or b"\n" in message:
                assert queued == [], ending
                assert replies[0] == "554 5.6.0", (ending, replies)
                assert replies[1:] in (["221 2.0.0"], ["421 4.7.0"]), (ending, replies)
            else:
                assert replies[0] == "250 2.0.0", (ending, replies)
                assert "250 2.1.0" not in replies[1:], (ending, replies)
                (raw,) = queued
                assert b"innocent" in raw


@pytest.mark.parametrize("ending", [b"\n.\n", b"\r\n.\r", b"\r.\r\n", b"\r\r\n.\r\n", b"\n.\r\n"])
async def test_cutting_it_anywhere_changes_nothing(pool, serving, ending):
    """The same bytes in two segments, cut at every boundary about the ending, are refused too."""
    wire = b"x" + ending + SMUGGLED + b"QUIT\r\n"
    async with serving(pool, limits=SmtpLimits(smuggling_silence=0.05)) as service:
        bob = await service.mailbox()
        for cut in range(1, len(ending) + 4):
            async with service.client() as client:
                await client.begin(bob)
                await client.send(wire[:cut])
                await trio.sleep(0.003)
                await client.send(wire[cut:])
                replies = [reply[:3] for reply in await client.replies()]
            assert replies in (["554", "221"], ["554", "421"]), (cut, replies)
        assert await service.stored() == []


@pytest.mark.parametrize(
    ("way", "cut"),
    [("clear", False), ("clear", True), ("tls", True), ("proxy", True), ("proxy2", True)],
)
async def test_no_ending_within_a_chunk_is_one(pool, serving, tmp_path, way, cut):
    """A chunk is one message or none, whatever is in it, and whether it is cut in the ending."""
    made = write(tmp_path)
    trust = ssl.create_default_context(cafile=made[0])
    limits = SmtpLimits(smuggling_silence=0.05)
    async with serving(pool, limits=limits, certificate=made, proxies=[PROXY]) as service:
        bob = await service.mailbox()
        for ending in [REAL, *ENDINGS]:
            await pool.execute("DELETE FROM relay.messages")
            text = b"innocent" + ending + SMUGGLED
            first = len(b"innocent") + len(ending) // 2 if cut else 0
            async with connected(service, way, trust) as client:
                await begin_chunks(client, bob)
                if cut:
                    await client.send(b"BDAT %d\r\n" % first + text[:first])
                    assert (await client.reply())[:9] == "250 2.0.0"
                rest = text[first:]
                await client.send(b"BDAT %d LAST\r\n" % len(rest) + rest + b"QUIT\r\n")
                replies = [reply[:9] for reply in await client.replies()]
            assert replies == ["554 5.6.0" if has_bare(text) else "250 2.6.0", "221 2.0.0"], ending
            stored = [raw for _, _, raw in await service.stored()]
            assert stored == ([] if has_bare(text) else [text])


async def begin_chunks(client: Client, to: str) -> None:
    """Open a transaction up to its first chunk."""
    for command in ("MAIL FROM:<a@b.example>", f"RCPT TO:<{to}>"):
        assert (await client.ask(command))[:3] == "250"


def has_bare(text: bytes) -> bool:
    """Whether there is a CR or an LF that is not of a line end."""
    lines = text.replace(b"\r\n", b"")
    return b"\r" in lines or b"\n" in lines


@pytest.mark.parametrize("way", ["tls", "proxy2"])
async def test_chunks_beside_data(pool, serving, tmp_path, way):
    """A mail in chunks, one by DATA that is refused for its ending; nor does DATA amid chunks, nor
    a chunk amid what stands behind DATA, open another: each is one message or none."""
    made = write(tmp_path)
    trust = ssl.create_default_context(cafile=made[0])
    limits = SmtpLimits(smuggling_silence=0.05)
    chunk = b"BDAT 6 LAST\r\nchunk\n"
    async with serving(pool, limits=limits, certificate=made, proxies=[PROXY]) as service:
        bob = await service.mailbox()
        for ending in NAMED:
            await pool.execute("DELETE FROM relay.messages")
            async with connected(service, way, trust) as client:
                await begin_chunks(client, bob)
                await client.send(b"BDAT 7\r\nchunk\r\nDATA\r\nBDAT 5 LAST\r\nend\r\n")
                for reply in ("250 2.0.0", "503 5.5.1", "250 2.6.0"):
                    assert (await client.reply())[:9] == reply, ending
                await client.begin(bob)
                behind = b"MAIL FROM:<evil@b.example>\r\nRCPT TO:<%b>\r\n" % bob.encode() + chunk
                await client.send(b"innocent" + ending + behind + REAL + b"QUIT\r\n")
                replies = [reply[:9] for reply in await client.replies()]
            text = ending.partition(REAL)[0]
            stored = [(path, raw) for _, path, raw in await service.stored()]
            assert stored.pop(0) == ("a@b.example", b"chunk\r\nend\r\n")
            if has_bare(text):
                assert stored == [], ending
                assert replies[0] == "554 5.6.0", (ending, replies)
                assert replies[1:] in (["221 2.0.0"], ["421 4.7.0"]), (ending, replies)
            else:
                # No ending at all, or a real one: what a client says behind that is its own.
                assert len(stored) <= 1, ending
                assert "evil@b.example" not in dict(stored), ending


@pytest.mark.parametrize("chunked", [False, True], ids=["data", "bdat"])
async def test_no_ending_gives_lmtp_a_second_message(pool, tmp_path, chunked):
    """Both recipients get one message or none, and a reply each."""
    begin = lmtp_mail(BOB, EVE)
    async with lmtp(pool, tmp_path, limits=SmtpLimits(smuggling_silence=0.05)) as service:
        await service.mailbox(BOB)
        await service.mailbox(EVE)
        for ending in [REAL, *ENDINGS] if chunked else ENDINGS:
            await pool.execute("DELETE FROM relay.messages")
            text = b"innocent" + ending + SMUGGLED
            if chunked:
                said = begin.removesuffix(b"DATA\r\n") + b"BDAT %d LAST\r\n" % len(text) + text
                bare, kept = has_bare(text), text
            else:
                said, kept = begin + text, b""
                bare = has_bare(ending.partition(REAL)[0])
            replies = [reply[:9] for reply in await service.say(said) if reply[3] == " "]
            ends = replies[4 if chunked else 5 :]
            stored = await service.stored()
            if bare:
                assert stored == [], ending
                assert ends[:2] == ["554 5.6.0"] * 2, (ending, ends)
            else:
                assert [to for to, _ in stored] == [BOB, EVE], ending
                assert ends[:2] == ["250 2.6.0"] * 2, (ending, ends)
                assert {raw for _, raw in stored} == {kept} if chunked else True
            assert "250 2.1.0" not in ends, (ending, ends)


async def test_a_chunk_and_its_commands_cut_anywhere(pool, serving):
    """A chunk that holds a mail of its own, in two segments: one message."""
    wire = b"BDAT %d LAST\r\n" % len(SMUGGLED) + SMUGGLED + b"QUIT\r\n"
    async with serving(pool) as service:
        bob = await service.mailbox()
        for at in range(1, len(wire), 3):
            async with service.client() as client:
                for command in ("MAIL FROM:<a@b.example>", f"RCPT TO:<{bob}>"):
                    assert (await client.ask(command))[:3] == "250"
                await client.send(wire[:at])
                await trio.sleep(0.002)
                await client.send(wire[at:])
                assert [reply[:3] for reply in await client.replies()] == ["250", "221"]
        assert {(path, raw) for _, path, raw in await service.stored()} == {
            ("a@b.example", SMUGGLED)
        }


@pytest.mark.parametrize("line", [b"STARTTLS\r\n", b"starttls \r\n"])
async def test_nothing_before_tls_is_obeyed_in_it(pool, serving, tmp_path, line):
    """A mail behind STARTTLS, in its segment or in later ones, is never stored."""
    certificate = write(tmp_path)
    trust = ssl.create_default_context(cafile=certificate[0])
    behind = b"EHLO evil\r\n" + SMUGGLED + SMUGGLED
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        for at in (0, 1, 11, len(behind)):
            async with service.client() as client:
                await client.send(line + behind[:at])
                assert (await client.reply())[:3] == "220"
                assert await client.silent(0.02)
                if at == len(behind):
                    client.stream = trio.SSLStream(
                        client.stream, trust, server_hostname="localhost", https_compatible=True
                    )
                    assert (await client.ask("DATA"))[:9] == "503 5.5.1"
                    assert (await client.ask("EHLO client.example"))[:3] == "250"
                    assert (await client.deliver(b"good\r\n", bob))[:3] == "250"
                else:
                    await client.send(behind[at:])
                    heard = b""
                    with contextlib.suppress(trio.BrokenResourceError):
                        while more := await client.stream.receive_some(1000):
                            heard += more
                    assert heard[:1] in (b"", b"\x15")  # an alert of TLS
        assert [raw for _, _, raw in await service.stored()] == [b"good\r\n"]


HEADERS = [
    NAMES[:-2] + b"\n",
    NAMES[:-2] + b"\r",
    NAMES[:-2] + b"\n\r\n",
    NAMES[:-2] + b" \r\n",
    NAMES[:-2] + b"\x00\r\n",
    b"PROXY UNKNOWN " + b"x" * 100 + b"\r\n",
    b"\r\n" + NAMES,
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x04\x00\x00\x00\x00",
]


@pytest.mark.parametrize("header", HEADERS)
async def test_what_is_no_header_ends_the_connection(pool, serving, header):
    """A mail behind it is not read, and nothing is said."""
    async with serving(pool, proxies=[PROXY], limits=SmtpLimits(proxy_timeout=1.0)) as service:
        await service.mailbox()
        made = await trio.open_tcp_stream("127.0.0.1", service.port, local_address=PROXY)
        async with made as stream:
            client = Client(stream)
            await client.send(header + b"EHLO evil\r\n" + SMUGGLED)
            assert await client.replies() in ([], ["reset"])
        assert await service.stored() == []


async def test_a_second_header_is_no_command(pool, serving):
    """Behind the header everything is the session's: nobody names himself."""
    async with serving(pool, proxies=[PROXY]) as service:
        made = await trio.open_tcp_stream("127.0.0.1", service.port, local_address=PROXY)
        async with made as stream:
            client = Client(stream)
            await client.send(NAMES + NAMES + b"EHLO c\r\nQUIT\r\n")
            replies = [reply[:9] for reply in await client.replies()]
        assert replies[0] == "220 relay"
        assert replies[1] == "500 5.5.1"
        assert replies[-1] == "221 2.0.0"
        assert await service.stored() == []


async def test_one_byte_a_segment(pool, serving):
    """A good message and its successor, every byte sent alone, are two messages, unharmed."""
    wire = b"..a\r\n\r\n.b\r\n.\r\n"
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            for _ in range(2):
                await client.begin(bob)
                for byte in wire:
                    await client.send(bytes([byte]))
                    await trio.sleep(0.001)
                assert (await client.reply())[:3] == "250"
        assert [raw for _, _, raw in await service.stored()] == [b".a\r\n\r\nb\r\n"] * 2


async def test_the_session_goes_on_after_a_refusal(pool, serving):
    """A client that waits for its 554 may send the next message."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            await client.begin(bob)
            assert (await client.ask(b"a\nb\r\n."))[:9] == "554 5.6.0"
            assert (await client.deliver(b"good\r\n", bob))[:3] == "250"
        assert [raw for _, _, raw in await service.stored()] == [b"good\r\n"]


COMMANDS = [
    b"MAIL FROM:<a@b>\nRCPT TO:<bob@relay.localhost>",
    b"MAIL FROM:<a@b>\rRCPT TO:<bob@relay.localhost>",
    b"MAIL FROM:<a@b>\n\rNOOP",
    b"NOOP\n",
    b"NOOP\r",
    b"\nNOOP",
    b"\rNOOP",
    b"NOOP\n\nNOOP",
    b"RCPT TO:<bob@relay.localhost\n>",
    b"EHLO a\nNOOP",
]


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_with_a_bare_line_end_is_one_refusal(pool, serving, command):
    """500 5.5.2 once, whole or in pieces, and no command of it is obeyed."""
    async with serving(pool) as service, service.client() as client:
        for cut in range(len(command) + 1):
            await client.send(command[:cut])
            await trio.sleep(0.002)
            await client.send(command[cut:] + b"\r\n")
            assert (await client.reply())[:9] == "500 5.5.2", cut
        assert (await client.ask("DATA"))[:9] == "503 5.5.1"  # the next reply there is
