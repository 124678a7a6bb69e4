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
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

from quart import Response, request

from relay.http.limits.fair_limiter import FairLimiter, Reservation
from relay.http.problems.details import unavailable
from relay.http.responses.json_pieces import in_turns, json_pieces

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


class Room:
    """Memory that is held for one answer while it is made: none as long as it is little."""

    def __init__(self, hold: Callable[[int], Reservation]) -> None:
        self._hold = hold
        self._held: Reservation | None = None

    def __call__(self, size: int) -> None:
        """Hold so much, more or less than before, where that is much (`UNHELD`); the 503."""
        if self._held is not None:
            if not self._held.grow(size):
                raise unavailable(_BUSY)
            self._held.shrink(size)
        elif size > UNHELD:
            self._held = self._hold(size)

    def release(self) -> None:
        """Give it back, once or more often."""
        if self._held is not None:
            self._held.release()


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

    @contextmanager
    def growing(self, owner: Hashable) -> Iterator[Room]:
        """Hold memory for the block: as much as it says last."""
        with self.kept(owner) as room:
            yield room
        room.release()

    @contextmanager
    def kept(self, owner: Hashable) -> Iterator[Room]:
        """The same, and beyond the block where it ends well: then `written` gives it back."""
        room = Room(partial(self.hold, owner))
        try:
            yield room
        except BaseException:
            room.release()
            raise

    @contextmanager
    def held(self, owner: Hashable, size: int) -> Iterator[None]:
        """Hold so much for the block."""
        with self.growing(owner) as room:
            room(size)
            yield

    async def collected(
        self, owner: Hashable, pieces: Iterator[bytes], loaded: int
    ) -> tuple[bytearray, Room]:
        """Return the pieces as one, and what is held for it, to be released.

        `loaded`: bytes of what they are made of, in turns (`in_turns`).  The 503 where there is no
        room for both.
        """
        written = bytearray()
        with self.kept(owner) as room:
            room(loaded)
            async with aclosing(in_turns(pieces)) as made:
                async for piece in made:
                    written += piece
                    room(loaded + len(written))
        return written, room

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
        written, room = await self.collected(owner, json_pieces(value), loaded)
        return self.written([written], room, JSON, headers)

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
        with self.kept(owner) as room:
            room(loaded)
            content, headers = await make()
            room(loaded + len(content))
        return self.written([content], room, content_type, headers)

    def written(
        self,
        contents: Sequence[bytes | bytearray],
        room: Room,
        content_type: str,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Return what was written as a response; what is held for it is given back at its end."""
        size = sum(map(len, contents))
        if size <= UNHELD:
            room.release()
            return Response(b"".join(contents), headers=dict(headers), content_type=content_type)
        room(size)
        return self._sent(_each(contents), size, room, content_type, headers)

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
        held: Reservation | Room,
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
