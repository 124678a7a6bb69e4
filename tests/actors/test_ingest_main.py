"""What an SMTP process does with what its relay says, seen from the other end of its channel."""

from __future__ import annotations

import socket
import sys
from array import array
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
import structlog.testing
import trio

from actors.ingest_main import _Process
from relay.db.hosts import Hosts
from relay.ports.memory_budget import PooledBudget
from relay.smtp import channel
from relay.smtp.channel import Channel, Kind, pack, pack_ids, pack_session
from relay.smtp.limits import SmtpLimits
from relay.smtp.server import Server
from tests.smtp.service import Nobody

PEER = ("127.0.0.1", 1)


class Relay:
    """The end of the channel that is not tested."""

    def __init__(self, end: Channel, nursery: trio.Nursery) -> None:
        self.channel = end
        self.nursery = nursery
        self._clients: list[socket.socket] = []

    def connect(self, id_: int) -> trio.SocketStream:
        """Pass a connection on, and return its other end."""
        ours, theirs = socket.socketpair()
        self._clients.append(ours)
        self.channel.put(pack_session(id_, PEER), theirs)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    def serve(self, process: _Process) -> Server:
        """Have the process serve what is passed on."""
        server = Server(Nobody(), str)
        self.nursery.start_soon(server.scheduling.run)
        self.nursery.start_soon(process.connections, server, self.nursery)
        return server

    def close(self) -> None:
        """Leave nothing open."""
        for client in self._clients:
            client.close()

    async def ended(self) -> Collection[int]:
        """Wait until sessions are said to be over."""
        (packet,) = await self.channel.receive()
        assert packet.kind == Kind.ENDED
        return channel.ids(packet.payload).tolist()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Relay, _Process]]:
    """Have a process listen, which serves nobody yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    budget = SmtpLimits().pooled_budget(memoryview(array("q", [0] * PooledBudget.NUMBERS)), 0)
    process = _Process(Channel(theirs), Hosts(), budget)
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.listen)
            nursery.start_soon(process.say_ended)
            relay = Relay(Channel(ours), nursery)
            try:
                yield relay, process
            finally:
                relay.close()
                nursery.cancel_scope.cancel()


async def test_one_that_cannot_read_what_to_run_with_says_so_and_is_not_for_another_try():
    """Its last word is a sentence, its status that of a configuration error; no traceback."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(pack(Kind.SETUP, b'.{"from": "another release"}'))
        process = await trio.run_process(
            [sys.executable, "-m", "actors.ingest_main", str(theirs.fileno()), "-1"],
            pass_fds=(theirs.fileno(),),
            capture_stderr=True,
            check=False,
        )
        (packet,) = Channel(ours).receive_nowait()
    assert (process.returncode, process.stderr) == (78, b"")
    assert packet.kind == Kind.FAILED
    assert b"restart it" in packet.payload


@pytest.mark.parametrize(
    "packet",
    [pack_ids(Kind.YIELD, (7,)), pack_ids(Kind.CUT, (7,)), pack(Kind.CUT), pack(Kind.CLEAR)],
)
async def test_a_connection_that_is_not_served_yet_ends_as_told(packet: bytes):
    """While the actor with the sessions is down: a newcomer may wait for the place."""
    async with listening() as (relay, _):
        client = relay.connect(7)
        relay.channel.put(packet)
        assert await relay.ended() == [7]
        assert await client.receive_some() == b""


async def test_a_connection_that_is_told_to_end_leaves_the_others():
    """Which are served when somebody serves."""
    async with listening() as (relay, process):
        relay.connect(7)
        other = relay.connect(8)
        relay.channel.put(pack_ids(Kind.YIELD, (7,)))
        assert await relay.ended() == [7]
        server = relay.serve(process)
        assert (await other.receive_some())[:4] == b"220 "
        assert len(server.sessions) == 1
        assert server.figures()["sessions"] == 1, "whoever let them in"


async def test_one_without_a_descriptor_for_it_costs_no_other():
    """It is over before it began, and the log says so, not for each."""
    async with listening() as (relay, process):
        relay.serve(process)
        client = relay.connect(1)
        assert (await client.receive_some())[:4] == b"220 "
        with structlog.testing.capture_logs() as lines:
            for id_ in (2, 3):
                relay.channel.put(pack_session(id_, PEER))  # as it comes then
                assert await relay.ended() == [id_]
        assert [line["event"] for line in lines] == ["ingest.connection_lost"]
        await client.send_all(b"NOOP\r\n")
        assert (await client.receive_some())[:3] == b"250"


async def test_one_that_is_cut_off_is_not_called_idle():
    """It may be busy: its place was taken while it was."""
    async with listening() as (relay, process):
        relay.serve(process)
        client = relay.connect(1)
        assert (await client.receive_some())[:4] == b"220 "
        relay.channel.put(pack_ids(Kind.CUT, (1,)))
        assert (await client.receive_some()).startswith(b"421 4.3.2 Shutting down")
        assert await relay.ended() == [1]
