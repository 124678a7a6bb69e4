"""The channel between a relay and its SMTP processes: packets, and connections along with them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from relay.smtp import channel
from relay.smtp.channel import Channel, Kind, Setup, pack, pack_json, unread
from relay.smtp.limits import SmtpLimits

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pair[0], pair[1]:
        yield pair


@pytest.fixture
def connection() -> Iterator[Ends]:
    """A connection over TCP, its server's end first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with server, client:
        yield server, client


def test_what_is_packed_is_read_as_it_was():
    """Every payload that has a form of its own."""
    address = ("2001:db8::7", 4711, 0, 3)
    assert channel.session(channel.pack_session(2**40, address)[1:]) == (2**40, address)
    assert list(channel.ids(channel.pack_ids(Kind.ENDED, (1, 2**63))[1:])) == [1, 2**63]
    rows = [(1, 2.5), (2, None), (3, float("inf"))]
    assert channel.idle(channel.pack_idle(rows)[1:]) == rows
    setup = Setup(
        3, "info", "postgresql:///x", 4, True, 1.5, ("a.example",), SmtpLimits(free_misses=7)
    )
    assert Setup.unpack(setup.pack()[1:]) == setup


async def test_a_connection_goes_along_with_its_packet(ends, connection):
    """It is the receiver's then, and closed at the sender's."""
    ours, theirs = map(Channel, ends)
    server, client = connection
    ours.put(channel.pack_session(5, ("127.0.0.1", 1)), server)
    assert server.fileno() == -1
    (packet,) = await theirs.receive()
    assert packet.kind == Kind.SESSION
    assert packet.sock is not None
    with packet.sock as passed:
        assert not passed.getblocking()
        passed.send(b"hello")
    assert client.recv(10) == b"hello"


async def test_what_the_socket_does_not_take_waits_in_order(ends, connection):
    """`put` never waits; `run` sends on, connections among the rest."""
    ours, theirs = map(Channel, ends)
    count = 0
    while not ours.backlog:
        ours.put(pack_json(Kind.TICK, count))
        count += 1
    server, _ = connection
    ours.put(channel.pack_session(5, ("127.0.0.1", 1)), server)
    assert server.fileno() > 0, "it was not passed on yet"
    kinds: list[tuple[int, bytes]] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.run)
            while len(kinds) <= count:
                for packet in await theirs.receive():
                    kinds.append((packet.kind, packet.payload))
                    if packet.sock is not None:
                        packet.sock.close()
            await ours.flushed()
            nursery.cancel_scope.cancel()
    assert [payload for _, payload in kinds[:-1]] == [str(n).encode() for n in range(count)]
    assert kinds[-1][0] == Kind.SESSION


async def test_the_end_of_the_other_side_is_seen(ends):
    """After all that it had said."""
    ours, theirs = map(Channel, ends)
    ours.put(pack(Kind.WAKE))
    ends[0].close()
    assert [packet.kind for packet in await theirs.receive()] == [Kind.WAKE]
    assert theirs.closed
    theirs.put(pack(Kind.BEAT))
    assert theirs.backlog == 1, "kept, and no error"


async def test_what_nobody_has_read_can_be_taken_back(ends, connection):
    """From the other end, by whoever has it, too; and what was not sent from this one."""
    ours = Channel(ends[0])
    server, client = connection
    ours.put(channel.pack_session(5, ("127.0.0.1", 1)), server)
    (packet,) = unread(ends[1])
    assert packet.sock is not None
    with packet.sock as back:
        back.send(b"again")
    assert client.recv(10) == b"again"
    while not ours.backlog:
        ours.put(pack(Kind.WAKE))
    assert [packet.kind for packet in ours.unsent()] == [Kind.WAKE]
    assert not ours.backlog
