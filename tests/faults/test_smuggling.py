"""SMTP smuggling: a malformed end of DATA gives one message or a refusal, never two.

Each ending stands where a careless server would see the end of the message, and is followed by
commands that would send a second one.  The catalogue is that of the attack's publication
(SEC Consult, 2023) and its neighbours: every sequence of two to five of CR, LF, dot and NUL that
resembles the real end.
"""

from __future__ import annotations

import itertools

import pytest
import trio

from relay.smtp.limits import SmtpLimits
from tests.smtp.service import serving as serving_here
from tests.smtp.service import serving_by_processes

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


@pytest.fixture(autouse=True)
async def _in_time():
    with trio.fail_after(100):
        yield


@pytest.fixture(params=[serving_here, serving_by_processes], ids=["here", "processes"])
def serving(request):
    """Ingest with its sessions in this process, and in others."""
    return request.param


async def test_no_ending_of_the_catalogue_gives_a_second_message(pool, serving):
    """One reply to the message, nothing stored of what follows, and the sender is told 554."""
    async with serving(pool, limits=SmtpLimits(smuggling_silence=0.05)) as service:
        bob = await service.mailbox()
        for ending in ENDINGS:
            await pool.execute("DELETE FROM relay.messages")
            async with service.client() as client:
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
