"""Accepting connections: who is let in, who is told why not, and what ends it."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import structlog.testing
import trio

from relay.ports.connections import accept
from relay.ports.peers import Place, PortGate, TurnedAway
from tests.eventually import eventually


class Port:
    """A listening socket whose connections are kept as they come."""

    def __init__(self, gate: PortGate, paused: Callable[[], bool]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.let_in: list[tuple[socket.socket, Any, Place]] = []
        self.turned_away: list[tuple[str, TurnedAway]] = []
        self.accept = partial(
            accept,
            self.listener,
            gate,
            welcome=lambda *welcomed: self.let_in.append(welcomed),
            turn_away=lambda _sock, peer, why: self.turned_away.append((peer[0], why)),
            starved="test.accept_failed",
            paused=paused,
        )

    async def knock(self) -> trio.SocketStream:
        """Connect to it."""
        return await trio.open_tcp_stream(*self.listener.getsockname())

    async def heard(self, count: int) -> None:
        """Wait until it has dealt with so many connections."""
        await eventually(
            lambda: len(self.let_in) + len(self.turned_away),
            f"{count} are dealt with",
            until=lambda dealt_with: dealt_with >= count,
        )


@asynccontextmanager
async def accepting(
    per_peer: int = 10, paused: Callable[[], bool] = lambda: False
) -> AsyncIterator[Port]:
    """Accept on a free port of the loopback until the block ends."""
    port = Port(PortGate("test", 10, per_peer, local_per_peer=per_peer), paused)
    with port.listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.accept)
            yield port
            nursery.cancel_scope.cancel()
        for sock, _, _ in port.let_in:
            sock.close()


async def test_who_is_let_in_has_a_place_and_a_socket_that_does_not_wait():
    """The socket is non-blocking and sends at once; it is the caller's."""
    async with accepting() as port, await port.knock() as stream:
        await port.heard(1)
        ((sock, peer, place),) = port.let_in
        assert peer == stream.socket.getsockname()
        assert isinstance(place, Place)
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        sock.send(b"hello")
        assert await stream.receive_some() == b"hello"


async def test_who_finds_no_place_hears_why_and_is_closed():
    """By the gate's cap; a place that is left can be had again."""
    async with accepting(per_peer=1) as port:
        async with await port.knock(), await port.knock() as second:
            assert await second.receive_some() == b""
            assert port.turned_away == [("127.0.0.1", TurnedAway.PEER)]
        port.let_in[0][2].leave()
        async with await port.knock():
            await port.heard(3)
        assert len(port.let_in) == 2


async def test_paused_nobody_is_let_in():
    """And no place is taken."""
    paused = True
    async with accepting(per_peer=1, paused=lambda: paused) as port:
        async with await port.knock() as stream:
            assert await stream.receive_some() == b""
        assert port.turned_away == [("127.0.0.1", TurnedAway.PAUSED)]
        paused = False
        async with await port.knock():
            await port.heard(2)
        assert len(port.let_in) == 1


async def test_without_file_descriptors_it_waits_and_says_so():
    """Whoever knocked meanwhile is let in as soon as there is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with structlog.testing.capture_logs() as logs, socket.socket() as late:
        late.setblocking(False)
        async with accepting() as port, await port.knock():
            await port.heard(1)
            free = os.dup(late.fileno())  # what accepting would get next
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                late.connect_ex(port.listener.getsockname())
                await eventually(lambda: logs, "it says so")
                assert len(port.let_in) == 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await port.heard(2)
    assert [line["event"] for line in logs] == ["test.accept_failed"]


async def test_a_broken_listener_is_told():
    """It is the socket's own failure, and supervision's business."""
    port = Port(PortGate("test", 10, 10), lambda: False)
    with port.listener:
        port.listener.shutdown(socket.SHUT_RD)
        with pytest.raises(OSError, match="Invalid argument"):
            await port.accept()
