"""Request bodies that take memory only as their call is known.

Promises
  * Before it is known who calls and what, a body takes `MAX_BODY` at most: what follows stays in
    the peer's hands (TCP's flow control), and is read only when the call allows more.
  * Bodies over `MAX_BODY` are few in memory at once; the others wait, for a bounded time.

Why not the framework's own limit: it is one number for all calls, and it takes what comes as fast
as it comes, before anybody has asked for a credential.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, cast

import trio
from quart import request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from quart_trio.wrappers.request import TrioBody

from relay.http.operations import MAX_BODY, Operation
from relay.http.problems import unavailable

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable

    from relay.http.deps import Limits


class GatedBody(TrioBody):
    """A body whose limit is `MAX_BODY` until it is opened further."""

    def __init__(self, expected: int | None, limit: int | None) -> None:
        # What is announced is judged where the operation is known (operations.read_body).
        super().__init__(None, MAX_BODY)
        self._opened = trio.Event()

    def open(self, limit: int) -> None:
        """Take up to `limit` bytes from now on."""
        self._max_content_length = limit
        self._opened.set()

    async def wait_room(self, count: int) -> None:
        """Wait until `count` more bytes may be appended or the body has been opened."""
        if len(self._data) + count > MAX_BODY:
            await self._opened.wait()


class Request(TrioRequest):
    """A request with such a body."""

    body: GatedBody
    body_class = GatedBody  # type: ignore[assignment]  # declared as one class, used as a base


class Connection(TrioASGIHTTPConnection):
    """Reads from the peer no faster than the body's gate allows."""

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
        self._slots = trio.CapacityLimiter(limits.uploads)
        self._timeout = limits.upload_timeout

    @asynccontextmanager
    async def admitted(self, operation: Operation) -> AsyncIterator[None]:
        """Open the current request's body as far as `operation` takes; 503 when none has room."""
        length, body = request.content_length, cast(GatedBody, request.body)
        if operation.max_body <= MAX_BODY or (length is not None and length <= MAX_BODY):
            body.open(min(operation.max_body, MAX_BODY))
            yield
            return
        with trio.move_on_after(self._timeout):
            await self._slots.acquire_on_behalf_of(body)
        if body not in self._slots.statistics().borrowers:
            raise unavailable("Other large requests are being taken in; try again.")
        try:
            request.body_timeout = ceil(self._timeout)
            body.open(operation.max_body)
            yield
        finally:
            self._slots.release_on_behalf_of(body)
