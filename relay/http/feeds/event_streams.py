"""Live feeds (the log, the tree's events) for one client: never silent for long, and ended in time.

A feed ends when the relay stops, and when the client would not be let in any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

import trio
from quart import Response

from relay.db.listen import Bell
from relay.http.operations import StillAdmitted


async def follow(
    feed: AsyncIterable[Any], *, stop: trio.Event, quiet_after: float, admission: StillAdmitted
) -> AsyncGenerator[Any, None]:
    """Yield the items of `feed`, and None after each `quiet_after` seconds without one.

    Ends with the feed, once `stop` is set, and once the caller would be refused.  The feed's
    `__anext__` must lose nothing when it is cancelled.
    """
    source, bell = aiter(feed), Bell()
    with admission.watched(bell):
        while not stop.is_set():
            item, ended = None, False

            async def until(wait: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            with trio.move_on_after(quiet_after):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(until, stop.wait, nursery)
                    nursery.start_soon(until, bell.wait, nursery)
                    try:
                        item = await anext(source)
                    except StopAsyncIteration:
                        ended = True
                    nursery.cancel_scope.cancel()
            if ended or await admission.refusal() is not None:
                return
            yield item


def event_stream(body: AsyncIterator[bytes]) -> Response:
    """Return a response of Server-Sent Events that nobody buffers or keeps."""
    return Response(
        body,
        content_type="text/event-stream; charset=utf-8",
        headers={"Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no"},
    )
