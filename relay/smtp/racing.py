"""Connects to one of several addresses, whichever answers first (RFC 8305, "happy eyeballs").

Promises: an address is tried when the one before it has failed, or has not answered for `DELAY`
seconds; the first connection wins and the others are closed.  No name is resolved here: the
addresses are those that the caller has checked.  Where it is said from which addresses of ours to
connect, it is done from these alone: who is of a family that there is none of is not tried.

Fails with the `OSError` of the address that was given up last; there is no deadline but the
caller's.

Why not `trio.open_tcp_stream`, which races too: it takes a name, and asks the system for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from relay.net import NoSuchSource, open_tcp_stream, open_tcp_stream_from

DELAY = 0.25
"""Seconds that an address has to itself (RFC 8305, 5)."""


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
    won: list[trio.SocketStream] = []
    failure = OSError("no address")

    async def attempt(address: str, over: trio.Event) -> None:
        nonlocal failure
        try:
            stream = await _connect(address, port, sources)
        except OSError as error:
            failure = error
            over.set()
        else:
            won.append(stream)
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                over = trio.Event()
                nursery.start_soon(attempt, address, over)
                with trio.move_on_after(DELAY):
                    await over.wait()
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
