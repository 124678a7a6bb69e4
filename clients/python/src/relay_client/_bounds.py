"""What the answer to one try may take, whoever gives it: time and bytes; and that it is HTTP.

httpx's own limits are for each read, so that whoever sends a byte now and then is read for ever.
Where calls block, nothing but the read itself can end it: the streams below a client are wrapped,
and each read and write is given what is left of its thread's time.  The asynchronous client has
AnyIO's scopes for that.  What both have wrapped is how an answer begins, which httpx does not tell
where it is no HTTP.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from relay_client._text import quoted

LATE = "it takes too long"
JSON_BYTES = 2 << 20
"""Of an answer that is neither a message nor a list of messages; none has as much.  Parsed, JSON
takes up to thirty times its size in memory."""

MESSAGE_BYTES = 32 << 20
"""More than a message's texts, headers and links can have in JSON (a million characters each), and
than a list of two hundred subjects, which strangers choose: of 64 KiB each where a relay does not
cut them."""

LIST_BYTES = 128 << 20
"""What all pages of a list may have together."""

RAW_BYTES = 256 << 20
"""Ten times the largest message that a relay takes unless its operator allows more."""

REFUSAL_BYTES = 1 << 20

_SAID = 100  # bytes that are shown of what is no relay's

_PIECE = 16384  # bytes that are written at a time, so that the time is looked at in between

_now = threading.local()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Have what this thread reads and writes in the block end in so many seconds."""
    _now.until = time.monotonic() + seconds
    try:
        yield
    finally:
        _now.until = None


Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


def bounded(http: Http) -> Http:
    """Return a client whose calls end as `time_limit` says, if they block, and with `NotHttp`.

    httpx has no public way to this: one whose inner names are others keeps its own limits, which a
    test finds.
    """
    wrapped = _Backend if isinstance(http, httpx.Client) else _AsyncBackend
    for transport in (http._transport, *http._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if backend is not None:
            pool._network_backend = wrapped(backend)  # type: ignore[union-attr]
    return http


class NotHttp(httpx.RemoteProtocolError):
    """What has answered speaks no HTTP; the text is what it said first, in quotes."""


def _begins(piece: bytes) -> None:
    """Raise `NotHttp` if a connection says this first, and it is a text (no proxy's, no TLS's)."""
    text = re.match(b"[!-~][ -~]*", piece)
    if text is not None and not piece.startswith(b"HTTP/"[: len(piece)]):
        raise NotHttp(beginning(text[0]))


def beginning(said: bytes) -> str:
    """Return in quotes how begins what no relay has said, unless it is markup."""
    begins = said[:_SAID].decode("utf-8", "replace").strip()
    return "it is a web page" if begins.startswith("<") else quoted(begins)


def _remaining(timeout: float | None, late: type[httpx.TimeoutException]) -> float | None:
    until = getattr(_now, "until", None)
    if until is None:
        return timeout
    remaining: float = until - time.monotonic()
    if remaining <= 0:
        raise late(LATE)
    return remaining if timeout is None else min(timeout, remaining)


class _Backend:
    """Stands before httpcore's `NetworkBackend`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def connect_tcp(self, *args: Any, **more: Any) -> _Stream:
        return _Stream(self._inner.connect_tcp(*args, **more))

    def connect_unix_socket(self, *args: Any, **more: Any) -> _Stream:
        return _Stream(self._inner.connect_unix_socket(*args, **more))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream:
    """Stands before its `NetworkStream`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._begun = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        came: bytes = self._inner.read(max_bytes, _remaining(timeout, httpx.ReadTimeout))
        if not self._begun:
            self._begun = True
            _begins(came)
        return came

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            piece = buffer[start : start + _PIECE]
            self._inner.write(piece, _remaining(timeout, httpx.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *args: Any, **more: Any) -> _Stream:
        return _Stream(self._inner.start_tls(*args, **more))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _AsyncBackend:
    """Stands before httpcore's `AsyncNetworkBackend`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def connect_tcp(self, *args: Any, **more: Any) -> _AsyncStream:
        return _AsyncStream(await self._inner.connect_tcp(*args, **more))

    async def connect_unix_socket(self, *args: Any, **more: Any) -> _AsyncStream:
        return _AsyncStream(await self._inner.connect_unix_socket(*args, **more))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _AsyncStream:
    """Stands before its `AsyncNetworkStream`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._begun = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        came: bytes = await self._inner.read(max_bytes, timeout)
        if not self._begun:
            self._begun = True
            _begins(came)
        return came

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(self, *args: Any, **more: Any) -> _AsyncStream:
        return _AsyncStream(await self._inner.start_tls(*args, **more))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class BodyReader:
    """Collects the pieces of a body, up to a number of bytes.

    One that is packed is not unpacked: how much it would become is not seen before.
    """

    def __init__(self, status: int, headers: httpx.Headers, max_bytes: int) -> None:
        self._max_bytes = max_bytes if 200 <= status < 300 else REFUSAL_BYTES
        self._pieces: list[bytes] = []
        self._remaining = self._max_bytes
        packing = headers.get("Content-Encoding", "identity")
        self.fault = None if packing.lower() == "identity" else f"it comes as {quoted(packing)}"
        """Why this is no relay's answer, if it is none."""

    def takes(self, piece: bytes) -> bool:
        """Take a piece, and tell whether more may come."""
        if self._remaining >= 0:
            self._pieces.append(piece)
        self._remaining -= len(piece)
        if self._remaining < 0:
            self.fault = f"it says more than {self._max_bytes >> 20} MiB"
        return self._remaining >= 0

    def content(self) -> bytes:
        """Return what has come, up to that."""
        return b"".join(self._pieces)[: self._max_bytes]
