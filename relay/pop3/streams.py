"""One connection's bytes: command lines in, replies out, in clear or in TLS.

Promises:
- Memory: one read, a command of `max_line_bytes`, and what is being sent.
- A peer that reads nothing is not read from either.
- What came in clear before TLS is dropped (RFC 2595, 4), and nothing is said in clear from then on.
- Others have a turn between two reads, however fast bytes come.

Fails with `Ended` when the peer has ended or is out of time, and with `OSError` when it broke the
connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from functools import partial

import trio
from trio.lowlevel import checkpoint, wait_readable, wait_writable

from relay.pop3.limits import Pop3Limits
from relay.ports.handshakes import Handshakes
from relay.ports.tls import HELLO, ByteSocket, TlsSocket, count

_READ = 4096


class Ended(Exception):
    """The session ends now, after `reply` if there is one."""

    def __init__(self, reason: str, reply: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class Stream:
    """A connected socket that does not block."""

    def __init__(self, sock: socket.socket, limits: Pop3Limits) -> None:
        self._raw = sock
        self._sock: ByteSocket = sock
        self._limits = limits
        self._input = b""
        self.waiting_since: float | None = None
        """Since when it is the peer whom we wait for, on Trio's clock; None: it is not."""
        self.encrypted = False

    def fileno(self) -> int:
        """The number of the socket."""
        return self._raw.fileno()

    async def line(self, patience: float) -> bytes:
        """Return the next command without its line end; a bare LF is one.

        The peer has `patience` seconds for all of it.
        """
        self.waiting_since = trio.current_time()
        with trio.move_on_after(patience) as deadline:
            while (end := self._input.find(b"\n")) < 0:
                if len(self._input) >= self._limits.max_line_bytes:
                    raise Ended("endless_line", b"-ERR Line too long; good-bye\r\n")
                chunk = await self._read(_READ)
                if not chunk:
                    raise Ended("closed")
                self._input += chunk
        if deadline.cancelled_caught:
            raise Ended("timeout", b"-ERR [SYS/TEMP] Timed out; good-bye\r\n")
        self.waiting_since = None
        if end >= self._limits.max_line_bytes:
            raise Ended("endless_line", b"-ERR Line too long; good-bye\r\n")
        line, self._input = self._input[:end], self._input[end + 1 :]
        return line.removesuffix(b"\r")

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        while data:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                self.waiting_since = trio.current_time()
                with trio.move_on_after(self._limits.reply_timeout) as deadline:
                    await wait_writable(self._raw)
                self.waiting_since = None
                if deadline.cancelled_caught:
                    raise Ended("unread") from None
            else:
                data = data[sent:]
        await checkpoint()

    async def begin_tls(
        self, context: ssl.SSLContext, handshakes: Handshakes, peer_key: str
    ) -> None:
        """Shake hands; what was read and not obeyed is dropped."""
        self._input = b""
        tls = TlsSocket(self._raw)
        self._sock = tls
        self.waiting_since = trio.current_time()
        try:
            with trio.move_on_after(self._limits.handshake_timeout):
                while not tls.established:
                    data = await self._read_from(self._raw, HELLO)
                    if not data:
                        raise Ended("closed")
                    await handshakes.take_turn(
                        peer_key, partial(tls.shake, data, context), begins=not tls.begun
                    )
                    while not tls.push():
                        await wait_writable(self._raw)
        except ssl.SSLError as error:
            raise Ended("tls") from error
        finally:
            count(tls)
        if not tls.established:
            raise Ended("timeout")
        self.waiting_since = None
        self.encrypted = True

    async def _read(self, size: int) -> bytes:
        return await self._read_from(self._sock, size)

    async def _read_from(self, sock: ByteSocket, size: int) -> bytes:
        await checkpoint()
        while True:
            try:
                return sock.recv(size)
            except BlockingIOError:
                await wait_readable(self._raw)

    async def linger(self) -> None:
        """Read on for a moment: closing with unread input would take our last reply back (RST)."""
        self._sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(self._limits.linger_timeout):
            while await self._read(_READ):
                pass

    def part(self, reply: bytes) -> None:
        """Say a last reply if the socket takes it at once: nobody waits for who is leaving."""
        with contextlib.suppress(OSError):  # it is gone, or reads nothing
            self._sock.send(reply)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
