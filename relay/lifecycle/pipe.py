"""Writing lines to a pipe without blocking the loop, and hearing whether the reader took them.

Promises
- Never blocks the loop: a pipe that says it is writable has room for a page, so it is given a page
  at a time.  (The descriptor is left blocking: others, a shell say, may share it.)
- A reader that has gone is `Closed`, noticed while idle too.
- `taken` tells when the reader has taken from the pipe all that was written: what it leaves in
  there when it is killed is lost with it.

Fails with `Closed`, and with `OSError` for what is no reader's doing (a full disk).

What is no pipe (a file, a terminal, a socket) counts as taken once it is written.  Linux only.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import stat
import termios
import time

import trio

_PAGE = 4096  # PIPE_BUF; what a writable pipe takes without blocking
_SPIN = 0.0002  # s; an awake reader is faster than a round through the loop
_PATIENCE = 1.0  # s; for a reader that does not read


class Closed(Exception):
    """The reader has gone."""


class Pipe:
    """The writing end.  One task writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._can_wait = _can_wait(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._rest = memoryview(b"")
        self.written = 0
        """Bytes written so far."""
        self._unread_at_rest = 0  # what a reader that does not read has left in the pipe

    async def room(self) -> None:
        """Wait until something can be written."""
        while not self._writable():
            await trio.lowlevel.wait_writable(self._fd)

    async def write(self, lines: bytes, within: float) -> bool:
        """Write `lines`; False when the reader did not make room within so many seconds.

        Then a part of them is out, and `finish` writes the rest.
        """
        self._rest = memoryview(lines)
        with trio.move_on_after(within):
            await self.finish()
        return not self._rest

    async def finish(self) -> None:
        """Write what is left of the lines."""
        while self._rest:
            if not self._writable():
                await trio.lowlevel.wait_writable(self._fd)
                continue
            try:
                written = os.write(self._fd, self._rest[:_PAGE])
            except BrokenPipeError as error:
                raise Closed from error
            self._rest = self._rest[written:]
            self.written += written

    @property
    def waiting(self) -> int:
        """Bytes of the lines in hand that have found no room yet."""
        return len(self._rest)

    @property
    def read(self) -> int:
        """Bytes of those that the reader has taken from the pipe so far."""
        return self.written - self._unread()

    @property
    def accepted(self) -> int:
        """Bytes that the reader has or can still have: all written, unless it has gone."""
        try:
            self._writable()
        except Closed:
            return self.read
        return self.written

    async def taken(self) -> bool:
        """Wait until the reader has taken what was written; not for one that does not read (False).

        The first time that nothing moves for a second, the reader is taken for one that reads
        later; it is waited for again when it has begun.
        """
        unread = self._unread()
        if not unread:
            self._unread_at_rest = 0
            return True
        if self._unread_at_rest:
            if unread >= self._unread_at_rest:
                self._unread_at_rest = unread
                return False
            self._unread_at_rest = 0
        spin_until = time.perf_counter() + _SPIN
        while time.perf_counter() < spin_until:
            os.sched_yield()
            if not self._unread():
                return True
        pause, until = 0.0005, trio.current_time() + _PATIENCE
        while unread := self._unread():
            self._writable()  # raises Closed
            if trio.current_time() >= until:
                self._unread_at_rest = unread
                return False
            await trio.sleep(pause)
            pause = min(2 * pause, 0.02)
        return True

    async def closed(self) -> None:
        """Wait until the reader has gone; for ever if that cannot be told."""
        if not self._is_pipe:
            await trio.sleep_forever()
        try:
            while True:
                # The writing end is never readable, but errors wake whoever waits for that.
                await trio.lowlevel.wait_readable(self._fd)
                self._writable()
                await trio.sleep(0.05)
        except Closed:
            return

    def _writable(self) -> bool:
        """Whether a page can be written now; `Closed` when nobody will read it."""
        ready = self._poll.poll(0)
        if not ready:
            return not self._can_wait
        _, events = ready[0]
        if events & (select.POLLERR | select.POLLHUP):
            raise Closed
        return bool(events & select.POLLOUT)

    def _unread(self) -> int:
        """How many bytes are in the pipe."""
        if not self._is_pipe:
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, count)
        return count[0]


def _can_wait(fd: int) -> bool:
    """Whether this is something that can be waited for; files are always ready."""
    with select.epoll() as epoll:
        try:
            epoll.register(fd, select.EPOLLOUT)
        except PermissionError:
            return False
    return True
