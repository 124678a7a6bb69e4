"""How an actor that works now and then waits: until a time, a message, or the drain.

For actors whose messages lose nothing if they are lost, as most are hints: what they point at is in
the database, and the next sweep finds it anyway.  So a message is done as soon as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from actors.messages import Report
from relay.log import get_logger
from supervisor import Context

log = get_logger()

_MOST = 4096  # messages taken at once; more are only more of the same hint


async def wait_for_messages(ctx: Context, seconds: float) -> list[Any]:
    """Wait until messages arrive or `seconds` have passed, and return the messages.

    While the child is paused it does not return.  Raises `supervisor.Drained` when draining.
    """
    messages: list[Any] = []
    while True:
        with trio.move_on_after(max(0.0, seconds)):
            messages += await _taken(ctx)
        ctx.beat()
        if ctx.draining.is_set():
            # Raises Drained once the box is empty, and when paused: a timed-out wait above must
            # not hide it.
            return messages + await _taken(ctx)
        if not ctx.paused:
            return messages
        await _paused(ctx)
        seconds = 0.0


async def report_when_told(ctx: Context, figures: Callable[[], Mapping[str, object]]) -> None:
    """Log the figures at each `Report`: for an actor that is told nothing else; until drained."""
    async for message in ctx.inbox:
        if isinstance(message, Report):
            log.info("actor.report", **figures())


async def _taken(ctx: Context) -> list[Any]:
    messages = []
    for held in await ctx.inbox.take(_MOST):
        held.done()
        messages.append(held.message)
    return messages


async def _paused(ctx: Context) -> None:
    """Wait for the resume, or for the drain."""
    async with trio.open_nursery() as nursery:

        async def until_draining() -> None:
            await ctx.draining.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_draining)
        while ctx.paused:
            await ctx.wait_pause_changed()
        nursery.cancel_scope.cancel()
