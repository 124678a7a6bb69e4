"""TLS under an SMTP session: a socket that encrypts, and the handshake that begins it.

`TlsSocket` is to a session what its plain socket was: the same `recv` and `send`, which never
block.  `begin` is what STARTTLS leads to: it drops what had come in clear, shakes hands, and has
everything from then on go through the `TlsSocket`.

Promises:
- Nothing that came before the handshake is read after it (RFC 3207, section 4.2): of what the
  session had read it is dropped, and what follows STARTTLS in the socket is no handshake.
- Nothing is said in clear once `begin` was called, whatever becomes of the handshake.
- Nothing is made for a peer that has not begun its handshake; one that has holds a few kilobytes
  more, and what is held for one that reads nothing or says nothing but overhead is bounded.
- `recv` returns fewer bytes than asked for only when there is nothing more to be had.

Fails with `OSError`, of which `ssl.SSLError` is one, as a socket does; `begin` with `SessionOver`.
The end of the stream is the end, with or without a farewell of TLS: a message has an end of its
own.  No deadlines here: the session has them.

Why on `ssl.MemoryBIO` and not on `SSLSocket`: a session reads as a socket is read, by whoever
notices its bytes (`relay.smtp.trampoline`), and a handshake must be done in turns
(`relay.smtp.handshakes`).  A plain session is not touched by any of it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable

from relay.metrics import Counts
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.waits import Answer, ByteSocket, Waits

_RECORD = 16_384 + 512  # bytes read at once: a full record of TLS with its overhead
HELLO = 4096
"""Bytes of a handshake that are read at once."""
LONGEST_HANDSHAKE = 65_536
"""Bytes of the peer's that are read in all."""
_OVERHEAD = 65_536  # bytes of records without any content, or of ours that nobody reads

_done, _failed = Counts(
    "relay_tls_handshakes",
    "TLS handshakes on the ports of SMTP, submission and POP3.",
    "outcome",
    ("done", "failed"),
).of.values()


class TlsSocket:
    """The server's end of a TLS connection on a connected socket that does not block."""

    __slots__ = ("_barren", "_in", "_out", "_sock", "_taken", "_tls", "_unsent", "established")

    def __init__(self, sock: ByteSocket) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None  # what takes memory is made when it is needed
        self._unsent = b""  # encrypted, and not in the kernel
        self._taken = 0  # bytes of the last `send` that are among these
        self._barren = 0  # bytes read since there was content
        self.established = False
        """Whether hands were shaken."""

    def fileno(self) -> int:
        """The socket's."""
        return self._sock.fileno()

    # ------------------------------------------------------------------------ handshake

    def shake(self, data: bytes, context: ssl.SSLContext) -> None:
        """Go on with what has come of the peer's handshake, at least one byte.

        What there is to say is sent by `push`.  Raises ssl.SSLError, and has said why then.
        """
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


async def begin(
    lines: Lines, waits: Waits, context: ssl.SSLContext, turn: Callable[[], Answer[None]]
) -> None:
    """Shake hands, once STARTTLS is answered, and go on in TLS.

    `turn` gives the answer to wait for before each part of the handshake.
    """
    await lines.flush()
    lines.all_unread()
    tls = TlsSocket(lines.sock)
    lines.sock = tls  # from now on nothing is said in clear
    try:
        await _shake(tls, waits, context, turn)
    except ssl.SSLError as error:
        raise SessionOver("tls") from error
    finally:
        count(tls)
    waits.go_through(tls)
    lines.encrypted = True


async def _shake(
    tls: TlsSocket, waits: Waits, context: ssl.SSLContext, turn: Callable[[], Answer[None]]
) -> None:
    received = 0
    while not tls.established:
        data = await waits.read(HELLO)
        received += len(data)
        if not data or received > LONGEST_HANDSHAKE:
            raise SessionOver("closed")
        await waits.wait(turn())
        tls.shake(data, context)
        if not tls.push():
            async with waits.pinned() as pinned:
                while not tls.push():
                    await pinned.wait_writable(tls)
