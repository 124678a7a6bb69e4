"""Connects to one of several addresses, whichever answers first (RFC 8305, "happy eyeballs").

Promises
- An address is tried when one before it has failed, or the last has not answered for `DELAY`
  seconds; the first connection wins and the others are closed.
- At most `AT_ONCE` sockets are open.  An address is given up for one that waits when it has had
  `GIVEN` seconds, or its share of the time until the caller's deadline, so that each is tried
  before that.
- No name is resolved here: the addresses are those that the caller has checked.
- Where it is said from which addresses of ours to connect, it is done from these alone: who is of a
  family that there is none of is not tried.

Fails with the `OSError` of the address that was given up last; there is no deadline but the
caller's.

Why not `trio.open_tcp_stream`, which races too: it takes a name, asks the system for it, and opens
a socket for each of the name's addresses: a stranger publishes as many as he likes.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from relay.net import NoSuchSource, open_tcp_stream, open_tcp_stream_from

DELAY = 0.25
"""Seconds that an address has to itself (RFC 8305, 5)."""
AT_ONCE = 2
"""Sockets of one race: one of each family."""
GIVEN = 2.0
"""Seconds that an address has while others wait: a SYN that was lost is sent again after one."""


async def race(
    addresses: Sequence[str], port: int, sources: Sequence[str] = ()
) -> trio.SocketStream:
    """Return a connection to one of the addresses, tried in this order.

    `sources`: ours to connect from, one of a family; none: whatever the system chooses.
    """
    if sources:
        addresses = [one for one in addresses if _source_for(one, sources) is not None]
        if not addresses:
            raise NoSuchSource("no address of a family that the source has")
    if len(addresses) == 1:
        return await _connect(addresses[0], port, sources)
    rest = trio.current_effective_deadline() - trio.current_time()
    given = min(GIVEN, rest * AT_ONCE / max(len(addresses), 1))
    won: list[trio.SocketStream] = []
    failure = OSError("no address")
    under_way: dict[trio.CancelScope, float] = {}  # since when, the oldest first
    ended = trio.lowlevel.ParkingLot()  # of this function alone, until one of them has

    async def attempt(address: str, scope: trio.CancelScope) -> None:
        nonlocal failure
        try:
            with scope:
                won.append(await _connect(address, port, sources))
                nursery.cancel_scope.cancel()
        except OSError as error:
            failure = error
        finally:
            del under_way[scope]
            ended.unpark()

    try:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                while len(under_way) == AT_ONCE:
                    oldest, began = next(iter(under_way.items()))
                    with trio.move_on_at(began + given) as within:
                        await ended.park()
                    if within.cancelled_caught and oldest in under_way:
                        oldest.cancel()
                        await ended.park()
                scope = trio.CancelScope()
                under_way[scope] = trio.current_time()
                nursery.start_soon(attempt, address, scope)
                with trio.move_on_after(DELAY):
                    await ended.park()
    except BaseException:
        for stream in won:
            await trio.aclose_forcefully(stream)
        raise
    for late in won[1:]:  # two answered in the same moment
        await trio.aclose_forcefully(late)
    if not won:
        raise failure
    return won[0]


def _source_for(address: str, sources: Sequence[str]) -> str | None:
    return next((one for one in sources if (":" in one) == (":" in address)), None)


async def _connect(address: str, port: int, sources: Sequence[str]) -> trio.SocketStream:
    source = _source_for(address, sources)
    if source is None:
        return await open_tcp_stream(address, port)
    return await open_tcp_stream_from(source, address, port)
