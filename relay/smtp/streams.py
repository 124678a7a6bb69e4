"""A socket of ours, plain or inside TLS, as the SMTP client speaks through it.

Both streams `send` without passing through the scheduler where the kernel takes the bytes at once,
and say how much of the last `send` has not left (`unsent`): what a peer cannot have read.  Where
the delivery is `host`ed, a wait for bytes is one of a `relay.smtp.trampoline`: no switch of tasks
and no system call that arms the socket.

Promises: a send that the kernel takes at once is one system call; a TLS connection is used only
after its `handshake`, which verifies what the context says.

Fails with `OSError`, of which `ssl.SSLError` is one.  No deadlines here: the caller
ends a wait, by `close`, or by cancelling the task that `host`s it.

Why not Trio's streams: each of their sends and receives is a checkpoint, and TLS is two.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import trio

from relay.net import own_address, peer_address
from relay.smtp.trampoline import Trampoline, TrampolineWaits
from relay.system_tasks import OfThisRun

T = TypeVar("T")

CHUNK = 8192
"""Bytes read at once; replies are short."""


_trampoline = OfThisRun(Trampoline, "relay.smtp.streams.trampoline")
"""The trampoline of this run's clients."""


class PlainStream:
    """A connected, non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waits: TrampolineWaits | None = None
        self.unsent = 0
        """Bytes of the last `send` that the kernel has not taken."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        self.unsent = len(data)
        try:  # noqa: SIM105 - suppress() is 2 % of what a mail costs, and this is once a mail
            self.unsent -= self._sock.send(data)
        except BlockingIOError:
            pass
        if not self.unsent:
            return
        if self._waits is None:
            await self._send_rest(data)
        else:
            async with self._waits.pinned():
                await self._send_rest(data)

    async def _send_rest(self, data: bytes) -> None:
        rest = memoryview(data)
        while self.unsent:
            await trio.lowlevel.wait_writable(self._sock)
            with contextlib.suppress(BlockingIOError):
                self.unsent -= self._sock.send(rest[-self.unsent :])

    async def host(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """Run what sends and receives here on the trampoline.  None where `close` ended it.

        It may wait for nothing but `send` and `receive`; what it raises is raised here.
        """
        self._waits = _trampoline.get().waits(self._sock)
        try:
            return await self._waits.host(coro)
        finally:
            self._waits = None

    def receive(self) -> Awaitable[bytes]:
        """Wait for bytes and return at most `CHUNK`; none at the end of the stream."""
        return self._receive() if self._waits is None else self._waits.read(CHUNK)

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(CHUNK)
            except BlockingIOError:
                continue

    def address(self) -> str:
        """Return the IP address that was reached; raises OSError once the peer has gone."""
        return str(peer_address(self._sock)[0])

    def source(self) -> str:
        """Return the IP address of ours that the peer is spoken to from."""
        return str(own_address(self._sock)[0])

    def quiet(self) -> bool:
        """Whether the peer has neither spoken nor hung up."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def arrived(self) -> bytes:
        """Return what has arrived, without waiting."""
        try:
            return self._sock.recv(CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the socket; whoever waits on it gets `trio.ClosedResourceError`, what is hosted
        here is cut off."""
        if self._waits is not None:
            self._waits.closing()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


class TlsStream:
    """TLS over a `PlainStream`."""

    def __init__(self, plain: PlainStream, context: ssl.SSLContext, server_name: str) -> None:
        self._plain = plain
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)
        self.unsent = 0

    async def host(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """As `PlainStream.host`."""
        return await self._plain.host(coro)

    async def _flush(self) -> None:
        if self._out.pending:
            await self._plain.send(self._out.read())

    async def _fill(self) -> None:
        data = await self._plain.receive()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    @property
    def session(self) -> ssl.SSLObject:
        """What was agreed on, and the certificates that were shown."""
        return self._tls

    @property
    def version(self) -> str | None:
        """The version of TLS that the handshake agreed on, as `TLSv1.3`."""
        return self._tls.version()

    async def handshake(self) -> None:
        """Shake hands and verify; raises ssl.SSLError (an OSError)."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                # the alert that says why; whether the peer reads it is its own affair
                with contextlib.suppress(OSError):
                    await self._flush()
                raise
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        # A record counts as sent once any of it may have left: then the peer may have read it.
        self.unsent = len(data)
        self._tls.write(data)
        self.unsent = 0
        await self._flush()

    async def receive(self) -> bytes:
        """Wait for bytes and return at most `CHUNK`; none at the end of the stream."""
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def quiet(self) -> bool:
        """Whether the peer has neither spoken nor hung up."""
        return self._plain.quiet() and not self._in.pending and not self._tls.pending()

    def arrived(self) -> bytes:
        """Return what has arrived, without waiting."""
        self._in.write(self._plain.arrived())
        try:
            return self._tls.read(CHUNK)
        except ssl.SSLError:
            return b""

    def close(self) -> None:
        """Close the socket, without a farewell in TLS."""
        self._plain.close()
