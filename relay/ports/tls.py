"""TLS under a session: a socket that encrypts, and the handshake that begins it.

`TlsSocket` is to a session what its plain socket was (both are a `ByteSocket`): the same `recv` and
`send`, which never block.  Each protocol shakes hands in its own way of waiting, by `shake` and
`push`.

Promises:
- Nothing is said in clear through a `TlsSocket`, whatever becomes of the handshake.
- Nothing is made for a peer that has not begun its handshake; one that has holds a few kilobytes
  more.  Of a handshake, of overhead without content, and of what a peer does not read so much is
  taken, and the connection ends.
- `recv` returns fewer bytes than asked for only when there is nothing more to be had.

Fails with `OSError`, of which `ssl.SSLError` is one, as a socket does.  The end of the stream is
the end, with or without a farewell of TLS: a message has an end of its own.  No deadlines here: the
session has them.

Why on `ssl.MemoryBIO` and not on `SSLSocket`: an SMTP session reads as a socket is read, by whoever
notices its bytes (`relay.smtp.trampoline`), and a handshake must be done in turns
(`relay.ports.handshakes`).  A plain session is not touched by any of it.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Protocol

from relay.metrics import Counts

_RECORD = 16_384 + 512  # bytes read at once: a full record of TLS with its overhead
HELLO = 4096
"""Bytes of a handshake that are read at once."""
_LONGEST_HANDSHAKE = 65_536  # bytes of the peer's that are taken in all
_OVERHEAD = 65_536  # bytes of records without any content, or of ours that nobody reads

_done, _failed = Counts(
    "relay_tls_handshakes",
    "TLS handshakes on the ports of SMTP, submission and POP3.",
    "outcome",
    ("done", "failed"),
).of.values()


class ByteSocket(Protocol):
    """What a session reads from and writes to, without blocking: a socket, or TLS on one."""

    def fileno(self) -> int:
        """The number of the socket."""

    def recv(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end; fewer only if there is no more now.

        BlockingIOError: nothing now.
        """

    def send(self, data: bytes, /) -> int:
        """Return how many bytes left; BlockingIOError: not all could, and what is sent next must
        begin with them again."""

    def shutdown(self, how: int, /) -> None:
        """As a socket's."""

    def close(self) -> None:
        """Close the socket."""


class TlsSocket:
    """The server's end of a TLS connection on a connected socket that does not block."""

    __slots__ = (
        "_barren", "_in", "_out", "_shaken", "_sock", "_taken", "_tls", "_unsent", "established",
    )  # fmt: skip

    def __init__(self, sock: ByteSocket) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None  # what takes memory is made when it is needed
        self._unsent = b""  # encrypted, and not in the kernel
        self._taken = 0  # bytes of the last `send` that are among these
        self._barren = 0  # bytes read since there was content
        self._shaken = 0  # bytes of the handshake that have come
        self.established = False
        """Whether hands were shaken."""

    @property
    def begun(self) -> bool:
        """Whether anything of the handshake has been read."""
        return self._tls is not None

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    # ------------------------------------------------------------------------ handshake

    def shake(self, data: bytes, context: ssl.SSLContext) -> None:
        """Go on with what has come of the peer's handshake, at least one byte.

        What there is to say is sent by `push`.  Raises ssl.SSLError, and has said why then; for a
        handshake that does not end it says nothing.
        """
        self._shaken += len(data)
        if self._shaken > _LONGEST_HANDSHAKE:
            raise ssl.SSLError("the handshake does not end")
        if self._tls is None:
            self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self.push()  # the alert
            raise
        else:
            self.established = True

    def push(self) -> bool:
        """Send what is encrypted; whether the kernel took it all."""
        if self._out.pending:
            self._unsent += self._out.read()
        if not self._unsent:
            return True
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return False
        self._unsent = self._unsent[sent:]
        return not self._unsent

    # ------------------------------------------------------------------------ as a socket

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end of the stream.  BlockingIOError: there is
        nothing now."""
        assert self._tls is not None
        content = self._read(size)
        if content is None:
            raise BlockingIOError
        if 0 < len(content) < size:
            # A record is returned by itself, and others may stand behind it.
            parts, found = [content], len(content)
            while found < size and (more := self._read(size - found)):
                parts.append(more)
                found += len(more)
            content = b"".join(parts)
        return content

    def _read(self, size: int) -> bytes | None:
        """Return bytes of one record; None: there are none now."""
        assert self._tls is not None
        while True:
            try:
                content = self._tls.read(size)
            except ssl.SSLWantReadError:
                self._answer()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                self._barren = 0
                return content
            try:
                data = self._sock.recv(_RECORD)
            except BlockingIOError:
                return None
            self._barren += len(data)
            if self._barren > _OVERHEAD:
                raise ConnectionAbortedError("records without content")
            if data:
                self._in.write(data)
            else:
                self._in.write_eof()

    def _answer(self) -> None:
        """Send what TLS itself has to say (to a new key of the peer's, for example)."""
        if self._out.pending and not self.push() and len(self._unsent) > _OVERHEAD:
            raise ConnectionAbortedError("the peer reads nothing")

    def send(self, data: bytes) -> int:
        """Send, and return how many bytes of `data` have left.

        BlockingIOError: not all of them could.  They are encrypted all the same, so the next call
        must begin with the same bytes.
        """
        if not self.established:
            raise ConnectionAbortedError("no hands were shaken")
        assert self._tls is not None
        if not self._taken:
            self._taken = self._tls.write(data)
        if not self.push():
            raise BlockingIOError
        taken, self._taken = self._taken, 0
        return taken

    def shutdown(self, how: int) -> None:
        """Say that nothing more follows."""
        self._part()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Say so, and close the socket."""
        self._part()
        self._sock.close()

    def _part(self) -> None:
        if self.established:
            assert self._tls is not None
            with contextlib.suppress(OSError):  # it wants to hear the peer's farewell, too
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.push()


def count(tls: TlsSocket) -> None:
    """Count a handshake that is over, one way or the other."""
    (_done if tls.established else _failed).value += 1
