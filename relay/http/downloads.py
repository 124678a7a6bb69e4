"""Downloads: what is on its way to clients, written piece by piece within a memory budget.

Promises
  * Memory is reserved before anything is loaded, by owner, and given back when the answer has been
    written, or its client has gone.
  * Each piece is a write with a deadline of its own, so a slow reader is no stuck one.
  * JSON of mail (`json`) and pages that show it (`made`) are held likewise where they are large,
    from when what they are made of was loaded, and are written a piece at a time.
  * `disposition` makes a name of whatever a mail calls its attachment: only a name.

Fails with a 503 while there is no room.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

from quart import Response, request

from relay.http.fair_limiter import FairLimiter, Reservation
from relay.http.json_pieces import in_turns, json_pieces
from relay.http.problems import unavailable

T = TypeVar("T", bytes, bytearray)

OCTETS = "application/octet-stream"
AS_OCTETS = frozenset({"message/rfc822", "application/x-ndjson", "image/*"})
"""What is given as `OCTETS`, too, to whoever asks for that: some generators of clients know no
other bytes."""

JSON = "application/json"
UNHELD = 64 * 1024
"""Bytes of JSON that are not counted: a connection has them at once, whether or not it is read."""

_PIECE = 64 * 1024  # bytes that are written at once
_BUSY = "Too many large messages are being read; try again."


async def once(content: T) -> AsyncGenerator[T, None]:
    """Yield all of it."""
    yield content


async def _each(
    contents: Sequence[bytes | bytearray],
) -> AsyncGenerator[bytes | bytearray, None]:
    for content in contents:
        yield content


class Downloads:
    """What is on its way to clients, written piece by piece within a memory budget."""

    def __init__(self, budget: int) -> None:
        self._budget = FairLimiter(budget, budget // 4, kept=budget // 8)

    def hold(self, owner: Hashable, size: int) -> Reservation:
        """Reserve memory before anything is loaded; the 503 while there is none left."""
        held = self._budget.take(owner, size)
        if held is None:
            raise unavailable(_BUSY)
        return held

    def grow(self, held: Reservation, size: int) -> None:
        """Hold so much, if that is more; the 503 likewise."""
        if not held.grow(size):
            raise unavailable(_BUSY)

    @contextmanager
    def growing(self, owner: Hashable) -> Iterator[Callable[[int], None]]:
        """Hold memory for the block: as much as it says last, where that is much; the 503
        likewise."""
        held: Reservation | None = None

        def room(size: int) -> None:
            nonlocal held
            if held is not None:
                self.grow(held, size)
                held.shrink(size)
            elif size > UNHELD:
                held = self.hold(owner, size)

        try:
            yield room
        finally:
            if held is not None:
                held.release()

    @contextmanager
    def held(self, owner: Hashable, size: int) -> Iterator[None]:
        """Hold so much for the block."""
        with self.growing(owner) as room:
            room(size)
            yield

    async def collected(
        self, owner: Hashable, pieces: Iterator[bytes], loaded: int
    ) -> tuple[bytearray, Reservation | None]:
        """Return the pieces as one, and what is held for it; of little nothing is.

        `loaded`: bytes of what they are made of, in turns (`in_turns`).  The 503 where there is no
        room for both.
        """
        written = bytearray()
        held: Reservation | None = None
        try:
            if loaded > UNHELD:
                held = self.hold(owner, loaded)
            async with aclosing(in_turns(pieces)) as made:
                async for piece in made:
                    written += piece
                    amount = loaded + len(written)
                    if held is None and amount > UNHELD:
                        held = self.hold(owner, amount)
                    elif held is not None:
                        self.grow(held, amount)
        except BaseException:
            if held is not None:
                held.release()
            raise
        return written, held

    async def json(
        self,
        owner: Hashable,
        value: Any,
        loaded: int,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Return plain values (`json_pieces`) as a JSON response.

        `loaded`: bytes of what they are made of, which is in memory until this returns.  The 503
        where there is no room for both.
        """
        return await self.json_of(owner, json_pieces(value), loaded, headers)

    async def json_of(
        self,
        owner: Hashable,
        pieces: Iterator[bytes],
        loaded: int,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """The same, of pieces of JSON."""
        written, held = await self.collected(owner, pieces, loaded)
        if held is None:
            return Response(bytes(written), headers=dict(headers), content_type=JSON)
        return self.written([written], held, JSON, headers)

    async def made(
        self,
        owner: Hashable,
        make: Callable[[], Awaitable[tuple[bytes, Mapping[str, str]]]],
        loaded: int,
        content_type: str,
    ) -> Response:
        """Return the bytes and headers that `make` gives as a response; `loaded`: as of `json`.

        The 503 where there is no room for both.
        """
        held = self.hold(owner, loaded) if loaded > UNHELD else None
        try:
            content, headers = await make()
            amount = loaded + len(content)
            if held is None and amount > UNHELD:
                held = self.hold(owner, amount)
            elif held is not None:
                self.grow(held, amount)
        except BaseException:
            if held is not None:
                held.release()
            raise
        if held is None:
            return Response(content, headers=dict(headers), content_type=content_type)
        return self.written([content], held, content_type, headers)

    def written(
        self,
        contents: Sequence[bytes | bytearray],
        held: Reservation,
        content_type: str,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Return what was written as a response; as much of `held` as it has is given back at its
        end."""
        size = sum(map(len, contents))
        if size <= UNHELD:
            held.release()
            return Response(b"".join(contents), headers=dict(headers), content_type=content_type)
        held.shrink(size)
        return self._sent(_each(contents), size, held, content_type, headers)

    def response(
        self,
        contents: AsyncGenerator[bytes, None],
        size: int,
        held: Reservation,
        content_type: str,
        headers: dict[str, str],
    ) -> Response:
        """Return `contents` as a response of `size` bytes; `held` is given back at its end."""
        return self._sent(contents, size, held, as_asked(content_type), headers)

    def _sent(
        self,
        contents: AsyncGenerator[bytes | bytearray, None],
        size: int,
        held: Reservation,
        content_type: str,
        headers: Mapping[str, str],
    ) -> Response:
        async def body() -> AsyncIterator[bytes]:
            try:
                async with aclosing(contents):
                    async for content in contents:
                        view = memoryview(content)
                        for at in range(0, len(content), _PIECE):  # each write has its own deadline
                            yield bytes(view[at : at + _PIECE])
            finally:
                held.release()

        written = body()
        # A client that has gone before the first byte: the body is dropped without having begun.
        weakref.finalize(written, held.release).atexit = False
        return Response(
            written,
            content_type=content_type,
            headers={"Content-Length": str(size), **headers},
        )


def as_asked(content_type: str) -> str:
    """Return the type, or that of any bytes where a call asks for that and no other."""
    return OCTETS if request.headers.get("Accept", "").strip() == OCTETS else content_type


def disposition(filename: str) -> str:
    """Return a `Content-Disposition` that downloads under `filename` (RFC 6266, RFC 8187).

    Only a name: no path, no control characters, no leading dots; in ASCII for old readers and
    in UTF-8 for all others.
    """
    name = re.split(r"[/\\]", filename)[-1]
    # Beside controls also what reorders text on screen (exe.fdp shown as pdf.exe), and is not seen.
    name = "".join(filter(str.isprintable, name))
    name = name.strip().lstrip(".")[:200] or "attachment"
    name = name.encode("utf-8", "replace").decode()
    return f"attachment; filename=\"{plain_name(name)}\"; filename*=UTF-8''{quote(name, safe='')}"


def plain_name(name: str) -> str:
    """Return `name` with nothing in it that a header or a file system reads otherwise."""
    return re.sub(r"[^A-Za-z0-9 ._()+-]", "_", name)
