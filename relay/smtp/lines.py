"""One SMTP connection's bytes: its commands, line by line, and the replies to them.

`Lines` reads what the peer sends, as commands or as the chunks of a message, and sends the replies
of a pipelined group together, when there is no further command to read.

Promises:
- Memory: one read (`CHUNK` of a message, `COMMANDS` of commands) and a command of
  `max_line_bytes`; a command that is longer is read to its end and dropped.
- A CR or LF that stands alone ends no line.
- A peer that reads no replies is not read from either: what it has not taken is sent first.

Fails with `SessionOver` when the peer has ended, or sends what can only end the session, and with
`OSError` when it broke the connection.

Deadlines are the session's business: `due` says when the peer is out of time, and whoever watches
the sessions breaks off the wait.
"""

from __future__ import annotations

import contextlib
import math
import socket

from relay.ports.tls import ByteSocket
from relay.smtp.limits import SmtpLimits
from relay.smtp.waits import Waits

CHUNK = 65536
"""The most bytes of a message read from a socket at once."""

COMMANDS = 8192
"""The most bytes of commands likewise: a pipelined group is obeyed without letting others run."""

_ENDLESS_LINE = 1024 * 1024  # bytes of one command line that are discarded before we hang up


class SessionOver(Exception):
    """The session ends now, after `reply` if there is one."""

    def __init__(self, reason: str, reply: str | None = None, *, linger: bool = False) -> None:
        """`linger`: the peer may be sending still, and must be read or it loses the reply."""
        super().__init__(reason)
        self.reason = reason
        self.reply = reply
        self.linger = linger


class Lines:
    """Reads commands and messages from a socket and writes replies to it.

    Used by one task at a time.
    """

    __slots__ = (
        "_at",
        "_command_timeout",
        "_input",
        "_limits",
        "_waits",
        "cut",
        "due",
        "encrypted",
        "replies",
        "sock",
        "waiting",
        "waiting_since",
    )

    def __init__(self, sock: ByteSocket, waits: Waits, limits: SmtpLimits) -> None:
        """`sock` is connected and does not block; `waits` waits for it."""
        self.sock = sock
        """What replies are sent to."""
        self.encrypted = False
        """Whether they go on in TLS."""
        self._waits = waits
        self._limits = limits
        self._command_timeout = limits.command_timeout
        self._input = b""
        self._at = 0  # how much of it was read
        self.cut = b""
        """What the last command began with that was too long to keep."""
        self.replies: list[bytes] = []
        """What is to be said, in order."""
        self.due = math.inf
        """The instant at which the peer is out of time, on Trio's clock."""
        self.waiting = False
        """Whether it is the peer who must say the next command, or the rest of it …"""
        self.waiting_since = -math.inf
        """… and since when."""

    # ------------------------------------------------------------------------ reading

    @property
    def unread(self) -> bool:
        """Whether something has come that was not read."""
        return self._at < len(self._input)

    async def line(self, until: float, *, begun: bool = False) -> bytes | None:
        """Return the next command without its CRLF, or None when it was too long to keep (`cut`).

        The peer has `command_timeout` for it, and no longer than `until`; where that has `begun`
        before its first bytes came, it goes on.
        """
        end = self._input.find(b"\r\n", self._at)
        if end < 0:
            if not begun:
                self.await_command(self._waits.now(), until)
            while end < 0:
                self.waiting = True
                if self.unread:
                    await self._rest_of_line()
                else:
                    await self._fill(COMMANDS)
                self.waiting = False
                end = self._input.find(b"\r\n", self._at)
                if end < 0 and len(self._input) - self._at > self._limits.max_line_bytes:
                    self.cut = self._input[self._at : self._at + self._limits.max_line_bytes]
                    await self._skip_line()
                    return None
        self.waiting = False
        line = self._input[self._at : end]
        self._at = end + 2
        if len(line) <= self._limits.max_line_bytes:
            return line
        self.cut = line[: self._limits.max_line_bytes]
        return None

    def await_command(self, now: float, until: float) -> None:
        """From now on the peer must say a command, and has as long for it as `line` gives."""
        self.waiting = True
        self.waiting_since = now
        due = now + self._command_timeout
        self.due = due if due < until else until

    async def chunk(self, until: float, most: int = CHUNK) -> bytes:
        """Return what has come of a message, or at most `most` bytes of what comes next.

        The peer has `data_timeout` for it, and no longer than `until`.
        """
        if not self.unread:
            self.await_text(self._waits.now(), until)
            await self._fill(most)
        chunk = self._input if self._at == 0 else self._input[self._at :]
        self._input, self._at = b"", 0
        return chunk

    async def octets(self, most: int, until: float) -> bytes:
        """Return at most so many octets of a chunk, at least one; what follows stays unread.

        Deadlines as for `chunk`.
        """
        if not self.unread:
            self.await_text(self._waits.now(), until)
            await self._fill(min(max(most, COMMANDS), CHUNK))
        octets = self._input[self._at : self._at + most]
        self._at += len(octets)
        return octets

    def await_text(self, now: float, until: float) -> None:
        """From now on the peer must go on with its message, and has as long as `chunk` gives."""
        self.waiting = False
        due = now + self._limits.data_timeout
        self.due = due if due < until else until

    def all_unread(self) -> bytes:
        """Return what has come and was not read, and have it read."""
        rest = self._input[self._at :]
        self._input, self._at = b"", 0
        return rest

    def give_back(self, rest: bytes) -> None:
        """Have `rest`, the end of what was read last, read again: it is the next commands."""
        self._input, self._at = rest, 0

    async def peek(self, seconds: float) -> bool:
        """Whether more has come already, or comes within `seconds`; nothing is read from it."""
        if not self.unread:
            async with self._waits.pinned() as pinned:
                with pinned.move_on_after(seconds):
                    self.give_back(await self._waits.read(COMMANDS))
        return self.unread

    async def _fill(self, size: int) -> None:
        """Send what there is to say, then add at least one byte to the input."""
        await self.flush()
        chunk = await self._waits.read(size)
        if not chunk:
            raise SessionOver("closed")
        rest = self._input[self._at :]
        self._input = rest + chunk if rest else chunk
        self._at = 0

    async def _rest_of_line(self) -> None:
        """Read on in a command that has come in part."""
        part = self._input[self._at :]
        if b"\n" not in part and b"\r" not in part[:-1]:
            await self._fill(COMMANDS)
            return
        # Whoever ends lines with LF alone waits for our reply and will not send a CRLF.  It is
        # told, and the session ends: what it says next must not become a command of its own.
        async with self._waits.pinned() as pinned:
            with pinned.move_on_after(self._limits.bare_line_timeout):
                await self._fill(COMMANDS)
                return
        raise SessionOver("bare_line_end", "500 5.5.2 Lines end with CR LF; good-bye")

    async def _skip_line(self) -> None:
        """Read to the end of a command that is too long, keeping nothing."""
        skipped = 0
        while (end := self._input.find(b"\r\n", self._at)) < 0:
            skipped += len(self._input) - self._at - 1
            if skipped > _ENDLESS_LINE:
                raise SessionOver("endless_line", "421 4.7.0 Line too long; good-bye", linger=True)
            self._at = len(self._input) - 1  # its last byte may be the CR
            await self._fill(COMMANDS)
        self._at = end + 2

    # ------------------------------------------------------------------------ writing

    def say(self, reply: bytes) -> None:
        """Queue a reply, its line ends included; it leaves when the next command is awaited."""
        self.replies.append(reply)

    async def flush(self) -> None:
        """Send what was queued; a peer that does not read it has `reply_timeout`."""
        if not self.flush_nowait():
            await self._send_on()

    def flush_nowait(self) -> bool:
        """Send what was queued; return whether the socket took it all at once."""
        replies = self.replies
        if not replies:
            return True
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        replies.clear()
        if sent < len(data):
            replies.append(data[sent:])
            return False
        return True

    async def _send_on(self) -> None:
        before, self.due = self.due, self._waits.now() + self._limits.reply_timeout
        async with self._waits.pinned() as pinned:
            while not self.flush_nowait():
                await pinned.wait_writable(self.sock)
        self.due = before

    def part(self, reply: bytes) -> None:
        """Say a last reply if the socket takes it at once: nobody waits for who is leaving."""
        self.replies.append(reply)
        with contextlib.suppress(OSError):  # it is gone, or reads nothing
            self.sock.send(b"".join(self.replies))

    async def linger(self) -> None:
        """Read on for a moment: closing with unread input would take our last reply back (RST)."""
        self.sock.shutdown(socket.SHUT_WR)
        async with self._waits.pinned() as pinned:
            with pinned.move_on_after(self._limits.linger_timeout):
                while await self._waits.read(CHUNK):
                    pass

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
