"""The trusted proxies of a port: their connections wait aside until they say for whom they are.

A connection of a trusted proxy counts as that of whoever the proxy names (`relay.ports.proxy`), and
not at all before it has: such wait aside, `UNNAMED` of them at most, for a few seconds.  The header
comes before anything else, a TLS handshake too.

Promises
  * Of a proxy's header no byte too many is read: what follows it is the session's.
  * A connection without a header that is good, or in time, is closed; nobody else's header is read
    as one.
  * Those that say nothing keep nobody out: where too many wait aside, the one that has waited
    longest is closed for the newcomer.  A proxy says whom it serves at once.

Fails: never by itself.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import trio

from relay.ports import proxy
from relay.throttle import Throttle

UNNAMED = 256
"""Connections of proxies that have not said yet for whom they are, at most."""

TIMEOUT = 5.0
"""Seconds from a proxy's connection to the end of its header."""


class TrustedProxies:
    """Those of one port, whatever sockets it listens on."""

    def __init__(
        self,
        networks: Sequence[proxy.Network],
        *,
        timeout: float = TIMEOUT,
        closed: Callable[[], object],
        complain: Callable[[str, str], object],
    ) -> None:
        """`timeout`: in seconds; `closed` is called when one of theirs is, and `complain`, once a
        second at most, with its host and the reason."""
        self._networks = networks
        self._timeout = timeout
        self._closed = closed
        self._complain = complain
        self._complaints = Throttle(1.0)
        # The oldest first; the first of a plain dict is found by walking over all that went.
        self._unnamed: OrderedDict[trio.CancelScope, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._networks)

    def hold(
        self,
        sock: socket.socket,
        address: Any,
        nursery: trio.Nursery,
        let_in: Callable[[socket.socket, Any], object],
    ) -> bool:
        """Take a connection, if it is of a trusted proxy; `let_in` gets it with its peer named.

        Whom it names: a `relay.ports.proxy.NamedPeer`; nobody: `address`, which is the proxy's own.
        """
        if not proxy.is_among(str(address[0]), self._networks):
            return False
        if len(self._unnamed) >= UNNAMED:
            oldest, _ = self._unnamed.popitem(last=False)
            oldest.cancel()
        patience = trio.CancelScope(deadline=trio.current_time() + self._timeout)
        self._unnamed[patience] = None
        nursery.start_soon(self._introduce, sock, address, patience, let_in)
        return True

    async def _introduce(
        self,
        sock: socket.socket,
        address: Any,
        patience: trio.CancelScope,
        let_in: Callable[[socket.socket, Any], object],
    ) -> None:
        named = await self._named(sock, address, patience)
        if named is not None:
            let_in(sock, named)

    async def _named(self, sock: socket.socket, address: Any, patience: trio.CancelScope) -> Any:
        """Return for whom a proxy has connected; None: it did not say, and is gone."""
        reason = "it said nothing in time"
        try:
            with patience:
                found = await _header(sock)
                return address if found is None else (*found, str(address[0]))
        except proxy.Malformed as error:
            reason = str(error)
        except OSError:
            reason = "it broke the connection"
        except BaseException:
            sock.close()
            raise
        finally:
            self._unnamed.pop(patience, None)
        if self._complaints.ready():
            self._complain(str(address[0]), reason)
        self._closed()
        sock.close()
        return None


async def _header(sock: socket.socket) -> tuple[str, int] | None:
    """Read a header of the PROXY protocol, and nothing behind it; return whom it names."""
    header = b""
    while True:
        try:
            seen = sock.recv(proxy.LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not seen:
            raise proxy.Malformed("it ended the connection")
        size, named = proxy.read(header + seen)
        # As long as it has not come whole, all that has come is part of it.
        header += sock.recv(size - len(header) if size else len(seen))
        if size:
            return named
