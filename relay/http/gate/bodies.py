"""Request bodies: a large one is read only when the caller may send it and there is room for it.

Promises
  * Before it is known who calls and what, a body takes `MAX_BODY` at most: what follows stays in
    the peer's hands (TCP's flow control), and is read only when the call allows more.
  * Bodies over `MAX_BODY` are few in memory at once; the others wait, for a bounded time.  A place
    is taken once more than `MAX_BODY` has come, whatever was announced, and is lost by a body that
    comes more slowly than `STEP` in `Limits.upload_every`.
  * No owner has more than half of the places, and one is kept for the administrator.

Why not the framework's own limit: it is one number for all calls, and it takes what comes as fast
as it comes, before anybody has asked for a credential.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import trio
from quart import request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from quart_trio.wrappers.request import TrioBody
from werkzeug.exceptions import RequestTimeout

from relay.http.deps import Limits
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.operations import MAX_BODY, Operation
from relay.http.problems.details import unavailable

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable


STEP = 64 * 1024
"""Bytes that a body which has a place must bring in `Limits.upload_every` seconds."""

_BUSY = "Other large requests are being taken in; try again."


class GatedBody(TrioBody):
    """A body whose limit is `MAX_BODY` until it is opened further."""

    def __init__(self, expected: int | None, limit: int | None) -> None:
        # What is announced is judged where the operation is known (operations.read_body).
        super().__init__(None, MAX_BODY)
        self._opened = trio.Event()
        self._known = trio.Event()  # whether it is over MAX_BODY: it is, or it is complete

    def open(self, limit: int) -> None:
        """Take up to `limit` bytes from now on."""
        self._max_content_length = limit
        self._opened.set()

    async def wait_room(self, count: int) -> None:
        """Wait until `count` more bytes may be appended or the body has been opened."""
        if len(self._data) + count > MAX_BODY:
            self._known.set()
            await self._opened.wait()

    def set_complete(self) -> None:
        """Take note of the end; the framework calls it."""
        super().set_complete()
        self._known.set()

    async def exceeds(self) -> bool:
        """Whether more than `MAX_BODY` came; returns as soon as that is known."""
        await self._known.wait()
        return not self._complete.is_set()

    async def arrive(self, every: float) -> None:
        """Return when all of it is here; 408 once less than `STEP` came in `every` seconds."""
        while not self._complete.is_set():
            before = len(self._data)
            with trio.move_on_after(every):
                await self._complete.wait()
            if not self._complete.is_set() and len(self._data) - before < STEP:
                raise RequestTimeout


class Request(TrioRequest):
    """A request with such a body."""

    body: GatedBody
    body_class = GatedBody  # type: ignore[assignment]  # declared as one class, used as a base


class Connection(TrioASGIHTTPConnection):
    """Reads from the peer no faster than the body's gate allows."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request; quart-trio's has a task more, which each request would pay for."""
        request = self._create_request_from_scope(send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handle_messages, nursery, request, receive)
            await self.handle_request(nursery, request, send)

    async def handle_messages(  # type: ignore[override]  # as quart-trio has it
        self, nursery: trio.Nursery, request: Any, receive: ASGIReceiveCallable
    ) -> None:
        """Hand the body on until the peer has gone; the answer cancels this."""

        async def gated() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                await request.body.wait_room(len(message.get("body", b"")))
            return message

        await super().handle_messages(nursery, request, gated)


class Uploads:
    """The few large bodies that may be in memory at once."""

    def __init__(self, limits: Limits) -> None:
        places = limits.uploads
        self._places = FairLimiter(places, places // 2, kept=1, waiting=32)
        self._begin = limits.body_timeout
        self._timeout = limits.upload_timeout
        self._every = limits.upload_every

    @asynccontextmanager
    async def admitted(self, operation: Operation, owner: Hashable) -> AsyncIterator[None]:
        """Open the current request's body as far as `operation` takes; 503 when none has room.

        Of a body that may be large, all has come when the block begins: 408 where it did not.
        """
        length, body = request.content_length, cast(GatedBody, request.body)
        if operation.max_body <= MAX_BODY or (length is not None and length <= MAX_BODY):
            body.open(min(operation.max_body, MAX_BODY))
            yield
            return
        if length is not None and length > operation.max_body:
            yield  # whoever reads the body refuses it by its length
            return
        with trio.move_on_after(self._begin) as beginning:
            large = await body.exceeds()
        if beginning.cancelled_caught:
            raise RequestTimeout
        async with AsyncExitStack() as place:
            if large:
                with trio.move_on_after(self._timeout) as waiting:
                    try:
                        await place.enter_async_context(self._places.turn(owner))
                    except Crowded:
                        raise unavailable(_BUSY) from None
                if waiting.cancelled_caught:
                    raise unavailable(_BUSY)
                body.open(operation.max_body)
                with trio.move_on_after(self._timeout) as arriving:
                    await body.arrive(self._every)
                if arriving.cancelled_caught:
                    raise RequestTimeout
            yield
