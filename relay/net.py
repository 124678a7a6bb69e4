"""The network, as far as the relay asks the system for it: listen, accept, connect, resolve.

One place for all of it, so that there is one place to put another network instead: whoever needs
one of these takes it from here by its name, bound when the module that needs it is loaded, and
`relay simulate` binds its own before it loads anything of the relay (`simulation/seams.py`).  What
is done with a socket once there is one (reading, writing, TLS) is done with the socket.

Two do not come by here: PostgreSQL, whose connections libpq makes (`relay/db/waits.py` has their
waiting), and httpx, which has its connections from `trio.open_tcp_stream` by way of httpcore.
tests/test_seams.py finds who else goes around this module.

Fails: with the `OSError` of the system.
"""

from __future__ import annotations

import contextlib
import socket
from socket import gethostname
from typing import Any

import trio
from trio import open_tcp_stream
from trio.socket import getaddrinfo

__all__ = [
    "UNIX",
    "NoSuchSource",
    "accept",
    "getaddrinfo",
    "gethostname",
    "leaving_addresses",
    "listen",
    "open_tcp_stream",
    "open_tcp_stream_from",
    "open_udp_socket",
    "own_address",
    "peer_address",
]

_BIND_ADDRESS_NO_PORT = 24  # of Linux

UNIX = ("unix", 0)
"""What stands for the address of a peer that came by a Unix socket."""


class NoSuchSource(OSError):
    """An address that was to be connected from is none of this machine's."""


def listen(host: str, port: int, *, share: bool = False) -> tuple[socket.socket, ...]:
    """Return sockets that listen on every address of `host`, all on one port; they do not block.

    Port 0: one that is free.  `share`: others of this machine may listen there, too.
    """
    bound: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind, proto)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A free port, once taken, is the port of the host's other addresses too.
            listener.bind((address[0], port or bound[0].getsockname()[1], *address[2:]))
            listener.listen(1024)
            listener.setblocking(False)
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return tuple(bound)


def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Take the connection that waits longest: its socket, which does not block and has no delay of
    Nagle's, and its peer's address, the host first.

    `BlockingIOError` when none waits, `ConnectionAbortedError` when it failed before we had it.
    """
    sock, address = listener.accept()
    try:
        sock.setblocking(False)
        if isinstance(address, tuple):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            address = UNIX
    except OSError as error:
        sock.close()
        raise ConnectionAbortedError("the connection failed at once") from error
    return sock, address


async def open_tcp_stream_from(source: str, address: str, port: int) -> trio.SocketStream:
    """Connect to an IP address from one of this machine's, of the same family.

    `NoSuchSource` where it is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        # The port when it is known who is connected to: else there are 28,000 for all together.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        try:
            await sock.bind((source, 0))
        except OSError as error:
            raise NoSuchSource(error.errno, error.strerror) from error
        await sock.connect((address, port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def open_udp_socket(host: str, port: int) -> trio.socket.SocketType:
    """Return a socket for datagrams to and from one address, at a port chosen anew."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = trio.socket.socket(family, socket.SOCK_DGRAM)
    try:
        await sock.connect((host, port))  # so that nobody else's datagram arrives here
    except BaseException:
        sock.close()
        raise
    return sock


async def leaving_addresses() -> list[str]:
    """Return the addresses of this machine that the system connects to the internet from.

    One of each family that leads there, private ones included.  Nothing is sent.
    """
    found: list[str] = []
    for documented in ("192.0.2.1", "2001:db8::1"):  # nobody's; the route is the default one
        with contextlib.suppress(OSError), await open_udp_socket(documented, 9) as sock:
            found.append(sock.getsockname()[0])
    return found


def own_address(sock: socket.socket) -> Any:
    """Return the address that a socket is bound to, the host first."""
    return sock.getsockname()


def peer_address(sock: socket.socket) -> Any:
    """Return the address of who is at the other end, the host first; `OSError` if nobody is."""
    return sock.getpeername()
