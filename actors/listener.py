"""listener: the one LISTEN connection of this process.

What it hears it publishes to the hub (waiters in this process) and hands to the routes (other
actors' inboxes, wired by the tree).  After a (re)connect it wakes everybody, since notifications
may have been lost.  Ready when the first LISTEN is in effect.

Never fails by an outage: `notifications()` waits that out.  A route that raises `WouldBlock`
has a full inbox, hence a wake-up waiting in it already; that is left at that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from relay.db.channels import ALL
from relay.db.hosts import Hosts
from relay.db.listen import EVERYONE, Hub, Reconnected, notifications

if TYPE_CHECKING:
    from supervisor import Context


async def run(
    ctx: Context,
    *,
    dsn: str,
    hub: Hub,
    routes: Mapping[str, Callable[[str], None]],
    channels: tuple[str, ...] = ALL,
    hosts: Hosts | None = None,
) -> None:
    """Listen on `channels` until draining begins.

    `dsn` leads to PostgreSQL itself (LISTEN does not survive PgBouncer's transaction mode).
    Payloads are keys joined by commas; "*" and the empty one concern everyone on the channel.
    `hosts` is what this process knows of the servers.
    """
    async with trio.open_nursery() as nursery:

        async def end_with_drain() -> None:
            await ctx.draining.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end_with_drain)
        async with aclosing(notifications(dsn, channels, hosts=hosts)) as heard:
            async for event in heard:
                if isinstance(event, Reconnected):
                    hub.publish_all()
                    for route in routes.values():
                        _hand(route, "")
                    if event.first:
                        ctx.ready()
                    continue
                payload = event.payload
                hub.publish(
                    event.channel, None if payload in ("", EVERYONE) else payload.split(",")
                )
                if event.channel in routes:
                    _hand(routes[event.channel], payload)


def _hand(route: Callable[[str], None], payload: str) -> None:
    try:
        route(payload)
    except trio.WouldBlock:
        return  # the inbox is full, so its owner will look anyway
