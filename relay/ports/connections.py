"""Accepting connections: one loop for every port, held to what its gate allows.

`accept` takes what a listening socket has, asks the port's `relay.ports.peers.PortGate` about each
peer, and hands the connection either to `welcome`, with its place, or to `turn_away`, with the
reason.  A connection of a trusted proxy is asked for whom it is before that
(`relay.ports.trusted_proxies`).

Promises
  * `BURST` connections are taken before other tasks have a turn, however many knock.
  * One that is turned away costs no task.
  * Out of file descriptors or memory it waits for connections to end, and says so in the log, at
    most once in ten seconds.
  * Sockets are handed over non-blocking, without Nagle's delay.

Fails: with the `OSError` of the listening socket itself, for supervision.  A connection that failed
before we had it is passed over.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import trio
from trio.lowlevel import wait_readable

from relay import net
from relay.log import get_logger
from relay.ports.peers import Place, PortGate, TurnedAway
from relay.ports.trusted_proxies import TrustedProxies
from relay.throttle import Throttle

log = get_logger()

BURST = 64
_PAUSE = 0.1  # s; without descriptors: let connections end first
_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_LISTENER_BROKEN = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}


async def accept(
    listener: socket.socket,
    gate: PortGate,
    *,
    welcome: Callable[[socket.socket, Any, Place], object],
    turn_away: Callable[[socket.socket, Any, TurnedAway], object],
    starved: str,
    paused: Callable[[], bool] = lambda: False,
    proxies: TrustedProxies | None = None,
) -> NoReturn:
    """Let in whoever connects, until cancelled.

    `listener` listens and does not block.  `welcome` and `turn_away` get the socket and its peer's
    address (the host first; a `relay.ports.proxy.NamedPeer` where one of `proxies` has named it),
    and must not raise.  The first owns the socket from then on, and leaves the place when it closes
    it; behind the second it is closed.  `starved` is the event logged when there are no
    descriptors.  While `paused`, everybody is turned away.
    """

    def let_in(sock: socket.socket, address: Any) -> None:
        place: Place | TurnedAway = TurnedAway.PAUSED
        if not paused():
            place = gate.enter(str(address[0]), trio.current_time())
        if isinstance(place, Place):
            welcome(sock, address, place)
        else:
            turn_away(sock, address, place)
            sock.close()

    if not proxies:
        await _take(listener, let_in, starved)
    async with trio.open_nursery() as nursery:

        def ask(sock: socket.socket, address: Any) -> None:
            if not proxies.hold(sock, address, nursery, let_in):
                let_in(sock, address)

        await _take(listener, ask, starved)
    raise AssertionError  # not reached: the loop ends by an exception only


async def _take(
    listener: socket.socket, take: Callable[[socket.socket, Any], object], starved: str
) -> NoReturn:
    """Hand over what a listening socket has, until cancelled."""
    complaints = Throttle(10.0)

    def complain(error: OSError) -> None:
        if complaints.ready():
            log.error(starved, error=str(error))

    while True:
        await wait_readable(listener)
        for _ in range(BURST):
            try:
                sock, address = net.accept(listener)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _LISTENER_BROKEN:
                    raise
                if error.errno in _OUT_OF:
                    complain(error)
                    await trio.sleep(_PAUSE)
                    break
                continue  # ECONNABORTED and its kin
            take(sock, address)


def endpoint(listener: socket.socket) -> str:
    """Return `host:port` at which this machine reaches a bound socket; IPv6 in brackets."""
    # Bound to every address: say one of them, for "any" is no name that a request may carry.
    return _shown(listener, {"0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104 - compared only


def bound(listener: socket.socket) -> str:
    """Return the `host:port` that a socket is bound to, which tells who reaches it."""
    return _shown(listener, {})


def _shown(listener: socket.socket, instead: Mapping[str, str]) -> str:
    host, port = net.own_address(listener)[:2]
    host = instead.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
