"""The writing end of a pipe: whole lines, and whether somebody took them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from relay.lifecycle.pipe import Closed, Pipe

PAGE = 4096


@dataclass
class Ends:
    """A small pipe: `out` writes what `reader` reads."""

    reader: int
    writer: int
    out: Pipe

    def read(self, count: int = 1 << 20) -> bytes:
        """What is in the pipe, at most so much."""
        return os.read(self.reader, count)

    def close(self) -> None:
        """The reader goes away."""
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A pipe of four pages."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * PAGE)
    pair = Ends(reader, writer, Pipe(writer))
    yield pair
    if pair.reader >= 0:
        os.close(pair.reader)
    os.close(writer)


async def test_a_line_that_fits_is_written_at_once(ends):
    """And counts as read when it was read."""
    assert await ends.out.write(b"one\n", 1.0)
    assert (ends.out.written, ends.out.read) == (4, 0)
    assert ends.read() == b"one\n"
    assert ends.out.read == 4
    assert await ends.out.taken()


async def test_a_long_line_waits_for_room_and_no_longer_than_told(ends, autojump_clock):
    """Then the rest is written when there is room."""
    line = b"x" * (6 * PAGE) + b"\n"
    assert not await ends.out.write(line, 2.0)
    assert trio.current_time() == pytest.approx(2.0)
    read = ends.read(PAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.out.finish)
        while len(read) < len(line):
            await trio.lowlevel.wait_readable(ends.reader)
            read += ends.read(PAGE)
    assert read == line


async def test_one_who_does_not_read_is_waited_for_once(ends, autojump_clock):
    """A second the first time, not at all the next; again after it has read."""
    waits = []
    for line in (b"a\n", b"b\n", b"c\n"):
        await ends.out.write(line, 1.0)
        began = trio.current_time()
        assert not await ends.out.taken()
        waits.append(trio.current_time() - began)
    assert waits == [pytest.approx(1.0, abs=0.05), 0, 0]
    ends.read()
    assert await ends.out.taken()
    await ends.out.write(b"d\n", 1.0)
    began = trio.current_time()
    assert not await ends.out.taken()
    assert trio.current_time() - began == pytest.approx(1.0, abs=0.05)


async def test_one_who_reads_late_is_waited_for(ends, autojump_clock):
    """Within the second."""
    await ends.out.write(b"a\n", 1.0)

    async def read_late() -> None:
        await trio.sleep(0.6)
        ends.read()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_late)
        assert await ends.out.taken()


async def test_a_reader_that_has_gone_is_noticed(ends):
    """On writing, on waiting for room or for the reader, and while idle; what it left is known."""
    await ends.out.write(b"read\nleft\n", 1.0)
    assert ends.read(5) == b"read\n"
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.out.closed)
            await trio.testing.wait_all_tasks_blocked()
            assert ends.out.accepted == 10
            ends.close()
    assert ends.out.read == ends.out.accepted == 5
    for use in (ends.out.room, ends.out.taken):
        with pytest.raises(Closed):
            await use()
    with pytest.raises(Closed):
        await ends.out.write(b"more\n", 1.0)


async def test_a_file_has_room_and_no_reader(tmp_path, autojump_clock):
    """What is written is taken."""
    with (tmp_path / "out").open("wb") as file:
        out = Pipe(file.fileno())
        await out.room()
        assert await out.write(b"x" * (3 * PAGE), 1.0)
        assert await out.taken()
        with trio.move_on_after(10) as scope:
            await out.closed()
        assert scope.cancelled_caught
    assert (tmp_path / "out").stat().st_size == 3 * PAGE
