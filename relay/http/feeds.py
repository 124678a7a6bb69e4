"""Reading a live feed for a client: with a bound on silence, and an end when the relay stops or
the client may read it no more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import trio

from relay.http.operations import Refusal


async def follow(
    feed: AsyncIterable[Any], *, stop: trio.Event, quiet_after: float, refusal: Refusal
) -> AsyncGenerator[Any, None]:
    """Yield the items of `feed`, and None after each `quiet_after` seconds without one.

    Ends with the feed, once `stop` is set, and once there is a `refusal`.  The feed's `__anext__`
    must lose nothing when it is cancelled.
    """
    source = aiter(feed)
    while not stop.is_set():
        item, ended = None, False

        async def until_stop(nursery: trio.Nursery) -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        with trio.move_on_after(quiet_after):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_stop, nursery)
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    ended = True
                nursery.cancel_scope.cancel()
        if ended or await refusal() is not None:
            return
        yield item
