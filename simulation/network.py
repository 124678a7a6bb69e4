"""The network between nodes and those around them: kernel sockets, joined by tasks that delay.

A connection is two pairs of connected Unix sockets with a task between them in each direction,
which takes what one side has written, holds it for as long as the link says, and writes it to the
other side.  So descriptors, epoll, partial reads and full buffers are the kernel's own, and are the
same each time: what is written to a Unix socket is there at once.

A host listens on a real Unix socket, and whoever connects is in the kernel's queue there.

A name is its own address, but for those that have one (`name`); a datagram goes to whoever answers
them there (`answer`).

Faults: `cut` ends connections, `cut_after` one as soon as so many bytes have passed, `part` keeps
everything between two hosts until `heal`.  What is under way then is late, as after a
retransmission; nothing is lost of a connection that lives.  Both cuts may be silent: then the
connection is half-open, as when a machine has lost its power or a firewall its memory.  Neither end
hears of it, nothing passes any more, and each has to find out by itself; `held` says who has not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from math import inf
from typing import Any

import trio

from simulation.world import NODE, Dead, World, host_of

Address = tuple[str, int]

Answering = Callable[[str, bytes], Awaitable[bytes | None]]
"""Answers a datagram of a host; None: says nothing."""

_CHUNK = 65_536


class _Doom:
    """What ends a connection in the middle of a piece; `silent`: leaves it half-open."""

    def __init__(self, left: float, *, silent: bool) -> None:
        self.silent = silent
        self.left = left
        """Bytes, of both directions, that still pass before."""
        self.met = trio.Event()


class _Pipe:
    """A connection between two hosts."""

    def __init__(self, ends: frozenset[str], scope: trio.CancelScope) -> None:
        self.ends = ends
        self.scope = scope
        self.doom: _Doom | None = None
        self.silent_since: float | None = None
        """Since when nothing passes, and nobody knows."""
        self.open = set(ends)
        """The hosts that have not closed it."""


class Datagrams:
    """A socket for datagrams to and from one address."""

    def __init__(self, network: Network, here: str, there: str) -> None:
        self._network = network
        self._link = (here, there)
        self._arrived: list[bytes] = []
        self._answered = trio.Event()

    def __enter__(self) -> Datagrams:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def send(self, data: bytes) -> int:
        """Send a datagram; what answers it is received later, or never."""
        await self._network.ask(*self._link, data, self._take)
        return len(data)

    async def recv(self, size: int) -> bytes:
        """Return what came back, cut at `size` bytes."""
        await self._answered.wait()
        return self._arrived[0][:size]

    def _take(self, data: bytes) -> None:
        self._arrived.append(data)
        self._answered.set()


class Network:
    """Who listens where, who is connected to whom, and which links are down."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("network")
        self._listeners: dict[Address, str] = {}  # address: name of the Unix socket
        self._own: dict[int, Address] = {}  # listener's descriptor: address
        self._peers: dict[str, Address] = {}  # name of a connecting socket: its address
        self._remote: dict[int, Address] = {}  # descriptor of a client's end: whom it reached
        self._pipes: dict[_Pipe, None] = {}
        self._dooms: dict[str, _Doom] = {}  # hosts whose next connection is cut
        self._hosts: dict[str, str] = {}  # address: name
        self._shown: dict[str, str] = {}  # host: the address that others see of it
        self._answering: dict[Address, Answering] = {}
        self._parted: Counter[frozenset[str]] = Counter()
        self._healed = trio.Event()
        self._numbers = 0
        self._nursery: trio.Nursery | None = None
        self.latency = (0.0002, 0.002)
        """Seconds that a chunk is under way, at least and at most."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections going until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    # What `relay.net` has

    def listen(self, host: str, port: int, *, share: bool = False) -> tuple[socket.socket, ...]:
        """Return a socket that listens at an address of the simulated network."""
        del share
        name = self._name()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen(1024)
        listener.setblocking(False)
        self._listeners[host, port] = name
        self._own[listener.fileno()] = (host, port)
        return (listener,)

    def forget(self, host: str) -> None:
        """Let nobody listen on a host any more."""
        for address in [each for each in self._listeners if each[0] == host]:
            del self._listeners[address]

    def name(self, host: str, address: str) -> None:
        """Have a host be reached by an address, too."""
        self._hosts[address] = host

    def show(self, host: str, address: str) -> None:
        """Have a host come from an address."""
        self._shown[host] = address

    def answer(self, host: str, port: int, answering: Answering) -> None:
        """Have datagrams to a host answered."""
        self._answering[host, port] = answering

    def accept(self, listener: socket.socket) -> tuple[socket.socket, Any]:
        """Take the connection that waits longest, and its peer's address."""
        sock, name = listener.accept()
        sock.setblocking(False)
        return sock, self._peers[name if isinstance(name, str) else name.decode()]

    def own_address(self, sock: socket.socket) -> Any:
        """Return the address that a socket listens at; of others none that says anything."""
        return self._own.get(sock.fileno(), ("0.0.0.0", 0))  # noqa: S104 - nothing is bound

    def peer_address(self, sock: socket.socket) -> Any:
        """Return the address of who is at the other end."""
        if sock.fileno() in self._remote:
            return self._remote[sock.fileno()]
        name = sock.getpeername()
        return self._peers.get(name if isinstance(name, str) else name.decode(), ("0.0.0.0", 0))  # noqa: S104 - nothing is bound

    def gethostname(self) -> str:
        """Return the name of whoever's turn it is."""
        return host_of(NODE.get())

    async def getaddrinfo(self, host: str, port: Any, **_: Any) -> list[Any]:
        """Resolve: every host's name is its address."""
        self._world.check_alive()
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port or 0)))]

    async def open_udp_socket(self, host: str, port: int) -> Any:
        """Return a socket for datagrams to whoever answers there."""
        self._world.check_alive()
        await trio.lowlevel.checkpoint()
        there = self._hosts.get(host, host)
        if (there, port) not in self._answering:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        return Datagrams(self, host_of(NODE.get()), f"{there}:{port}")

    async def ask(self, here: str, to: str, data: bytes, take: Callable[[bytes], None]) -> None:
        """Bring a datagram to whoever answers it, and the answer back; between hosts that are
        parted it is lost."""
        self._world.check_alive()
        there, _, port = to.rpartition(":")
        answering = self._answering[there, int(port)]

        async def bring() -> None:
            await trio.sleep(self._delay())
            if self.is_parted(here, there):
                return
            said = await answering(here, data)
            await trio.sleep(self._delay())
            if said is not None and not self.is_parted(here, there):
                take(said)

        assert self._nursery is not None
        token = NODE.set("world")
        try:
            self._nursery.start_soon(bring)
        finally:
            NODE.reset(token)
        await trio.lowlevel.checkpoint()

    async def leaving_addresses(self) -> list[str]:
        """No address leads to the internet."""
        await trio.lowlevel.checkpoint()
        return []

    async def open_tcp_stream_from(self, source: str, address: str, port: int) -> trio.SocketStream:
        """Connect to whoever listens there; every machine has one address only."""
        return await self.open_tcp_stream(address, port)

    async def open_tcp_stream(self, host: str, port: int, **_: Any) -> trio.SocketStream:
        """Connect to whoever listens there."""
        self._world.check_alive()
        here = host_of(NODE.get())
        there = self._hosts.get(host, host)
        link = frozenset({here, there})
        await trio.sleep(self._delay())
        while link in self._parted:
            await self._healed.wait()
        name = self._listeners.get((there, port))
        if name is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, inner = socket.socketpair()
        outer = socket.socket(socket.AF_UNIX)
        own = self._name()
        outer.bind(own)
        self._peers[own] = (self._shown.get(here, here), 40_000 + self._numbers % 20_000)
        for sock in (ours, inner, outer):
            sock.setblocking(False)
        try:
            outer.connect(name)
        except OSError:
            for sock in (ours, inner, outer):
                sock.close()
            raise
        reached = self._remote[ours.fileno()] = (host, port)
        assert self._nursery is not None
        # For nobody in particular: a node that is killed takes no part of the network along.
        token = NODE.set("world")
        try:
            self._nursery.start_soon(
                self._join, inner, outer, (here, there), ours.fileno(), reached
            )
        finally:
            NODE.reset(token)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    # Faults

    def part(self, one: str, other: str) -> None:
        """Keep everything between two hosts; twice, and it takes two to heal it."""
        self._parted[frozenset({one, other})] += 1

    def heal(self, one: str, other: str) -> None:
        """Let everything between two hosts through again."""
        self._parted -= Counter([frozenset({one, other})])
        self._healed.set()
        self._healed = trio.Event()

    def is_parted(self, one: str, other: str) -> bool:
        """Whether everything between two hosts is kept."""
        return frozenset({one, other}) in self._parted

    async def wait_healed(self) -> None:
        """Wait until some two hosts reach each other again."""
        await self._healed.wait()

    def cut(self, hosts: Iterable[str], share: float = 1.0, *, silent: bool = False) -> int:
        """End so great a share of the connections of these hosts; return how many.

        `silent`: they are half-open from then on.
        """
        wanted = set(hosts)
        count = 0
        for pipe in list(self._pipes):
            if pipe.ends & wanted and self._rng.random() < share:
                self._end(pipe, silent=silent)
                count += 1
        return count

    def _end(self, pipe: _Pipe, *, silent: bool) -> None:
        if not silent:
            pipe.scope.cancel()
        elif pipe.silent_since is None:
            pipe.silent_since = self._world.now()

    def held(self, hosts: Container[str], since: float) -> list[tuple[str, str]]:
        """Return the half-open connections that one of these hosts has not closed although nothing
        has passed since then: the host, and who was at the other end."""
        return [
            (host, next(iter(pipe.ends - {host}), host))
            for pipe in self._pipes
            if pipe.silent_since is not None and pipe.silent_since < since
            for host in sorted(pipe.open)
            if host in hosts
        ]

    async def cut_after(self, host: str, size: int, *, silent: bool = False) -> None:
        """End the next connection of a host once so many bytes have passed, in the middle of a
        piece; returns when it has ended.  `silent`: it is half-open from then on."""
        doom = self._dooms[host] = _Doom(size, silent=silent)
        try:
            await doom.met.wait()
        finally:
            doom.left = inf
            if self._dooms.get(host) is doom:
                del self._dooms[host]

    # The connections

    def _name(self) -> str:
        self._numbers += 1
        return f"\0relay-simulation/{os.getpid()}/{self._numbers}"

    def _delay(self) -> float:
        return self._rng.uniform(*self.latency)

    async def _join(
        self,
        inner: socket.socket,
        outer: socket.socket,
        hosts: tuple[str, str],
        client: int,
        reached: Address,
    ) -> None:
        scope, link = trio.CancelScope(), frozenset(hosts)
        pipe = _Pipe(link, scope)
        self._pipes[pipe] = None
        for host in sorted(link & self._dooms.keys()):
            pipe.doom = self._dooms.pop(host)
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass_on, inner, outer, pipe, hosts[0])
                    nursery.start_soon(self._pass_on, outer, inner, pipe, hosts[1])
        finally:
            del self._pipes[pipe]
            if self._remote.get(client) is reached:
                del self._remote[client]
            inner.close()
            outer.close()

    async def _pass_on(
        self, source: socket.socket, target: socket.socket, pipe: _Pipe, host: str
    ) -> None:
        """Pass on what a host says to the other."""
        link = pipe.ends
        while True:
            try:
                data = source.recv(_CHUNK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(source)
                continue
            except OSError:
                data = b""
            self._world.whisper("net.bytes", size=len(data), link=sorted(link))
            if not data:
                pipe.open.discard(host)
            await trio.sleep(self._delay())
            while link in self._parted:
                await self._healed.wait()
            if pipe.silent_since is not None:
                if not data:
                    return
                continue
            if not data:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
            if pipe.doom is not None:
                if pipe.doom.left <= len(data):
                    with contextlib.suppress(OSError):
                        target.send(data[: int(pipe.doom.left)])
                    self._world.whisper("net.cut", link=sorted(link), silent=pipe.doom.silent)
                    pipe.doom.met.set()
                    self._end(pipe, silent=pipe.doom.silent)
                    continue
                pipe.doom.left -= len(data)
            while data:
                try:
                    data = data[target.send(data) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(target)
                except OSError:
                    # Nobody reads there any more; who writes here finds out.
                    pipe.open.discard(host)
                    with contextlib.suppress(OSError):
                        source.shutdown(socket.SHUT_RD)
                    return


__all__ = ["Address", "Dead", "Network"]
