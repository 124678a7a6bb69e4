"""Peers that hang up while they must wait for us.

Promises: `unless_hung_up` ends at once when the peer closes its side, or both; where it has sent
more than is read meanwhile, half a second later at the latest.  Nothing is read.

Fails with `HungUp`.

Why not by reading: what has come must stay for whoever reads next, and there may be any amount.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable

import trio
from trio.lowlevel import wait_readable

_LOOK_EVERY = 0.5  # s


class HungUp(ConnectionError):
    """The peer has closed its side of the connection."""


async def unless_hung_up(fileno: int, call: Callable[[], Awaitable[None]]) -> None:
    """Await `call` while the peer of a connected socket is there; raise `HungUp` when it is not.

    Nobody else may wait for the socket meanwhile.
    """
    ended = False
    failed: Exception | None = None

    async def watch() -> None:
        await wait_readable(fileno)
        # Where bytes have come, which nobody reads now, no event tells of the end behind them.
        while not _has_hung_up(fileno):  # noqa: ASYNC110 - see above
            await trio.sleep(_LOOK_EVERY)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await call()
        except Exception as error:
            failed = error  # raised below as it is, and not in a group
        ended = True
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if not ended:
        raise HungUp


def _has_hung_up(fileno: int) -> bool:
    look = select.poll()
    look.register(fileno, select.POLLRDHUP)
    return bool(look.poll(0))
