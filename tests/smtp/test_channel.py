"""The channel between a relay and its SMTP processes: packets, and connections along with them."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator

import pytest
import trio

from relay.errors import ConfigError
from relay.smtp import channel
from relay.smtp.channel import MAX_PACKET, Channel, Kind, Setup, pack, pack_json, unread
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


@pytest.mark.parametrize("count", [1, 20_000])
async def test_what_a_process_runs_with_may_be_large(ends, count):
    """Thousands of domains are more than one packet holds, and than the socket takes at once."""
    domains = tuple(f"{number}.some-domain.example" for number in range(count))
    setup = Setup(3, "info", "postgresql:///x", 4, True, 1.5, domains, SmtpLimits(free_misses=7))
    ours = Channel(ends[0])
    for packet in setup.packets():
        ours.put(packet)
    ours.put(pack(Kind.TICK))
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.run)
            assert await trio.to_thread.run_sync(Setup.receive, ends[1]) == setup
            (after,) = await Channel(ends[1]).receive()
            assert after.kind == Kind.TICK
            nursery.cancel_scope.cancel()


def test_a_process_whose_relay_is_gone_is_told_nothing(ends):
    """Nor does it wait."""
    ends[0].send(Setup(0, "info", "", 1, True, 1.0, ("x" * MAX_PACKET,), SmtpLimits()).packets()[0])
    ends[0].close()
    assert Setup.receive(ends[1]) is None


@pytest.mark.parametrize(
    "text",
    [b"rubbish", b"[]", b"{}", b'{"limits": {"unknown": 1}, "domains": []}',
     b'{"limits": {}, "domains": [], "place": 1, "more": 2}', b"\xff"],
)  # fmt: skip
def test_what_a_process_cannot_run_with_is_said_in_a_sentence(ends, text):
    """As a fault that no second try mends."""
    ends[0].send(pack(Kind.SETUP, b"." + text))
    with pytest.raises(ConfigError, match=r"Relay was replaced while it ran; restart it$"):
        Setup.receive(ends[1])


def test_no_packet_is_larger_than_it_may_be():
    """Neither by what it says nor by how many it names; the largest is packed."""
    assert len(pack(Kind.LOG, bytes(MAX_PACKET - 1))) == MAX_PACKET
    with pytest.raises(ValueError, match="LOG"):
        pack(Kind.LOG, bytes(MAX_PACKET))
    assert len(channel.pack_ids(Kind.ENDED, range(channel.ID_ROWS))) <= MAX_PACKET
    assert len(channel.pack_idle([(1, None)] * channel.IDLE_ROWS)) <= MAX_PACKET


def test_a_metric_with_many_samples_goes_in_parts():
    """All that has moved arrives, once."""
    samples = [("things_total", {"kind": f"{number:0100}"}, 1.0) for number in range(2000)]
    steps = [("things", samples), ("others", samples[:1])]
    packets = list(channel.pack_metrics(steps))
    assert len(packets) > 2
    found: dict[str, list[object]] = {"things": [], "others": []}
    for packet in packets:
        assert len(packet) <= MAX_PACKET
        for name, some in json.loads(packet[1:]):
            found[name] += [(one, labels, growth) for one, labels, growth in some]
    assert found == dict(steps)


async def test_what_no_socket_takes_is_an_error(ends, connection):
    """Too large, or no socket at all: to try again would hold up all that follows."""
    ours, theirs = map(Channel, ends)
    with pytest.raises(OSError, match="too long"):
        ours.put(bytes(10_000_000))
    ends[0].send(bytes(MAX_PACKET + 1))
    with pytest.raises(ValueError, match="more than"):
        await theirs.receive()
    connection[0].close()
    with pytest.raises(OSError, match="descriptor"):
        ours.put(channel.pack_session(5, ("127.0.0.1", 1)), connection[0])
    ours.put(pack(Kind.WAKE))
    assert [packet.kind for packet in await theirs.receive()] == [Kind.WAKE]


async def test_without_a_descriptor_left_the_packet_comes_alone(ends, connection):
    """The connection is gone, and its id is known."""
    ours, theirs = map(Channel, ends)
    server, client = connection
    ours.put(channel.pack_session(5, ("127.0.0.1", 1)), server)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        (packet,) = theirs.receive_nowait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert packet.sock is None
    assert channel.session(packet.payload)[0] == 5
    assert client.recv(10) == b""
