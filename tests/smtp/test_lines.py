"""One connection's bytes: commands, chunks of a message, and the replies between them."""

from __future__ import annotations

import math
import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.smtp.limits import SmtpLimits
from relay.smtp.lines import Lines, SessionOver
from tests.smtp.plain import PlainWaits

LIMITS = SmtpLimits(max_line_bytes=40, bare_line_timeout=0.05)


@pytest.fixture
def pair():
    """Two ends of a connection; the first does not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def lines(pair):
    """Lines of the first end."""
    return Lines(pair[0], PlainWaits(pair[0]), LIMITS)


@pytest.fixture
def theirs(pair):
    """The second end, which does not block either."""
    pair[1].setblocking(False)
    return pair[1]


async def test_commands_come_one_by_one_however_they_were_cut(lines, theirs):
    """Several at once, and one in parts; a command is over at its CRLF only."""
    read = []

    async def session() -> None:
        for _ in range(3):
            read.append(await lines.line(math.inf))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session)
        for part in (b"EHLO x\r\nMA", b"IL FROM:<>\r", b"\nDATA\r\n"):
            theirs.send(part)
            await wait_all_tasks_blocked()
    assert read == [b"EHLO x", b"MAIL FROM:<>", b"DATA"]


async def test_the_end_of_the_stream_ends_the_session_once_all_is_read(lines, theirs):
    """Also when it came along with the last bytes; what was begun is no command."""
    theirs.send(b"NOOP\r\nQUI")
    theirs.shutdown(socket.SHUT_WR)
    assert await lines.line(math.inf) == b"NOOP"
    with pytest.raises(SessionOver, match="closed"):
        await lines.line(math.inf)


async def test_replies_wait_for_each_other_and_leave_before_the_next_wait(lines, theirs):
    """A pipelined group is answered in one piece."""
    theirs.send(b"RSET\r\nNOOP\r\n")
    for reply in (b"250 one\r\n", b"250 two\r\n"):
        await lines.line(math.inf)
        lines.say(reply)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
    with trio.move_on_after(0):
        await lines.line(math.inf)
    assert theirs.recv(100) == b"250 one\r\n250 two\r\n"


async def test_a_command_that_is_too_long_is_read_to_its_end(lines, theirs):
    """And is None; the one behind it is read as ever."""
    theirs.send(b"x" * 5000 + b"\r\nNOOP\r\n")
    assert await lines.line(math.inf) is None
    assert await lines.line(math.inf) == b"NOOP"


async def test_who_ends_lines_with_lf_alone_is_told(lines, theirs):
    """Nothing of it becomes a command."""
    theirs.send(b"NOOP\nNOOP\n")
    with pytest.raises(SessionOver) as over:
        await lines.line(math.inf)
    assert over.value.reply is not None
    assert over.value.reply.startswith("500 5.5.2 ")


async def test_what_follows_a_message_is_the_next_command(lines, theirs):
    """A chunk is all that has come; its end can be given back."""
    theirs.send(b"DATA\r\ntext\r\n.\r\nQUIT\r\n")
    assert await lines.line(math.inf) == b"DATA"
    assert await lines.chunk(math.inf) == b"text\r\n.\r\nQUIT\r\n"
    assert not lines.unread
    lines.give_back(b"QUIT\r\n")
    assert lines.unread
    assert await lines.line(math.inf) == b"QUIT"


async def test_peeking_reads_nothing(lines, theirs):
    """It says whether there is more, or comes soon."""
    assert not await lines.peek(0.01)
    theirs.send(b"NOOP\r\n")
    assert await lines.peek(1.0)
    assert await lines.line(math.inf) == b"NOOP"


async def test_a_peer_that_does_not_read_is_not_read_from(lines, theirs):
    """What it has not taken is sent first, and it has so long for that."""
    theirs.send(b"NOOP\r\n")
    lines.say(b"250 x\r\n" * 1_000_000)
    began = trio.current_time()
    read: list[bytes | None] = []

    async def session() -> None:
        read.append(await lines.line(math.inf))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session)
        await wait_all_tasks_blocked()
        assert not read
        assert began < lines.due <= trio.current_time() + LIMITS.reply_timeout
        received = 0
        while received < 7_000_000:
            try:
                received += len(theirs.recv(1 << 20))
            except BlockingIOError:
                await trio.lowlevel.wait_readable(theirs)
    assert read == [b"NOOP"]


async def test_a_deadline_is_that_of_the_command_or_the_callers(lines, theirs):
    """Whichever is earlier; of a message, that of the next chunk."""
    for wait, timeout in (
        (lines.line, LIMITS.command_timeout),
        (lines.chunk, LIMITS.data_timeout),
    ):
        began = trio.current_time()
        with trio.move_on_after(0):
            await wait(math.inf)
        assert began + timeout <= lines.due <= trio.current_time() + timeout
        with trio.move_on_after(0):
            await wait(began + 1.0)
        assert lines.due == began + 1.0


async def test_a_deadline_that_has_begun_goes_on(lines):
    """The first bytes of a command, which somebody else read, buy no time."""
    lines.await_command(trio.current_time() - 100.0, math.inf)
    before = lines.due
    lines.give_back(b"NOO")
    with trio.move_on_after(0):
        await lines.line(math.inf, begun=True)
    assert lines.due == before


async def test_a_flood_leaves_the_others_their_turns(lines, theirs):
    """However much has come, others run between one read of commands and the next."""
    theirs.setblocking(True)
    theirs.settimeout(5)
    flood = b"NOOP\r\n" * 15_000
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        nursery.start_soon(trio.to_thread.run_sync, theirs.sendall, flood)
        for _ in range(15_000):
            assert await lines.line(math.inf) == b"NOOP"
        nursery.cancel_scope.cancel()
    assert passes >= len(flood) // 8192
