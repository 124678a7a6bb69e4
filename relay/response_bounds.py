"""How much of an HTTP answer that somebody else writes is read, before anything makes sense of it.

httpcore reads past interim answers (1xx) for ever, and parses whatever one read has brought in one
piece: an answer without end kept the loop to itself, 64 of them for seconds.

Promises
- What comes before the body is `MOST_HEAD` bytes, `MOST_LINES` lines and `MOST_INTERIM` interim
  answers at most, and what comes after it as many bytes as it was given.
- A read brings `AT_ONCE` bytes, and is a checkpoint: between two of them others have their turn.
- TLS and plain alike; what is sent is left alone.

Fails with httpcore's `RemoteProtocolError`, which says that bounds were passed; `Bounds.passed`
remembers.
"""

# ruff: noqa: ASYNC109 - httpcore's interface

from __future__ import annotations

import ssl
from collections.abc import Iterable

import httpcore
import httpx
from httpcore import SOCKET_OPTION

MOST_INTERIM = 8
MOST_LINES = 256
MOST_HEAD = 32 * 1024
"""Bytes, those of interim answers among them."""
AT_ONCE = 4096

_TOO_MUCH = "the answer has more than is read"


class Bounds:
    """What may still come of one answer."""

    def __init__(self, body: int) -> None:
        """`body`: bytes of it, and of what frames it."""
        self.passed = False
        self._head = MOST_HEAD
        self._lines = MOST_LINES
        self._interim = MOST_INTERIM
        self._body = body
        self._line = bytearray()  # that has begun
        self._begins = True  # the next line is the first of a head
        self._is_last = False  # this head is followed by the body
        self._in_body = False

    def take(self, data: bytes) -> None:
        """Count what came.  Raises `httpcore.RemoteProtocolError`."""
        if not self._in_body:
            self._head -= len(data)
            data = self._after_head(data)
        self._body -= len(data) if self._in_body else 0
        if min(self._head, self._lines, self._interim, self._body) < 0:
            self.passed = True
            raise httpcore.RemoteProtocolError(_TOO_MUCH)

    def _after_head(self, data: bytes) -> bytes:
        """Go through the lines of heads; returns what belongs to the body."""
        start = 0
        while self._lines >= 0 and self._interim >= 0:
            end = data.find(b"\n", start)
            if end < 0:
                self._line += data[start:]
                return b""
            self._line += data[start:end]
            start = end + 1
            self._lines -= 1
            self._has_line(bytes(self._line.rstrip(b"\r")))
            self._line.clear()
            if self._in_body:
                return data[start:]
        return b""

    def _has_line(self, line: bytes) -> None:
        if self._begins:
            # 101 is no interim answer: nothing of HTTP follows it.
            status = line.partition(b" ")[2][:3]
            self._is_last = not status.startswith(b"1") or status == b"101"
            self._begins = False
        elif not line:
            self._begins = True
            self._in_body = self._is_last
            self._interim -= not self._is_last


class _Stream(httpcore.AsyncNetworkStream):
    """A connection of which so much is read."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, bounds: Bounds) -> None:
        self._inner = inner
        self._bounds = bounds

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(min(max_bytes, AT_ONCE), timeout)
        self._bounds.take(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(inner, self._bounds)

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects by Trio."""

    def __init__(self, bounds: Bounds) -> None:
        self._inner = httpcore.TrioBackend()
        self._bounds = bounds

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(inner, self._bounds)


class BoundedTransport(httpx.AsyncHTTPTransport):
    """What a client of httpx sends one request by; its answer is within `bounds`."""

    def __init__(self, tls: ssl.SSLContext, bounds: Bounds) -> None:
        super().__init__(verify=tls, trust_env=False)
        # httpx takes no backend of its caller's.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, max_connections=1, network_backend=_Backend(bounds)
        )
