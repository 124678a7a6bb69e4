"""The front of several SMTP processes: who serves a newcomer, and limits that hold for all."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.smtp import channel
from relay.smtp.channel import Channel, Kind, Packet, unread
from relay.smtp.front import FULL, Front, Link
from relay.smtp.limits import SmtpLimits
from tests.eventually import eventually


class Process:
    """A process that serves nobody, and remembers what it was told."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = Channel(self.theirs)
        self.paused = False
        self.link = Link(Channel(self.ours), lambda: self.paused)
        self.sessions: dict[int, socket.socket] = {}
        self.asked: list[int] = []
        self.told: list[int] = []

    def look(self) -> None:
        """Read what has come."""
        while packets := self.channel.receive_nowait():
            for packet in packets:
                if packet.sock is not None:
                    id_, _ = channel.session(packet.payload)
                    self.sessions[id_] = packet.sock
                elif packet.kind == Kind.YIELD:
                    self.asked += channel.ids(packet.payload)
                else:
                    self.told.append(packet.kind)

    async def has(self, count: int) -> None:
        """Wait until it has so many sessions."""

        def now() -> int:
            self.look()
            return len(self.sessions)

        await eventually(now, f"{count} sessions", until=lambda n: n == count)

    def end(self, *ids: int) -> None:
        """Say that sessions are over."""
        for id_ in ids:
            self.sessions.pop(id_).close()
        self.front.ended(self.link, ids)

    def die(self, left: Sequence[Packet] = ()) -> None:
        """Be gone, as `actors/ingest_process.py` says it."""
        for sock in self.sessions.values():
            sock.close()
        self.sessions.clear()
        self.front.lost(self.link, [*unread(self.theirs), *self.link.channel.unsent(), *left])

    def close(self) -> None:
        """Leave nothing open."""
        for packet in self.link.channel.unsent() + unread(self.theirs):
            if packet.sock is not None:
                packet.sock.close()
        for sock in (*self.sessions.values(), self.ours, self.theirs):
            sock.close()


class Port:
    """A front that accepts, and clients of it."""

    def __init__(self, front: Front, address: tuple[str, int]) -> None:
        self.front = front
        self.address = address
        self.clients: list[socket.socket] = []
        self.processes: list[Process] = []
        self.paused = False

    def process(self) -> Process:
        """One more, that serves."""
        one = Process(self.front)
        self.processes.append(one)
        self.front.join(one.link)
        return one

    async def connect(self, count: int = 1, host: str = "127.0.0.1") -> socket.socket:
        """Connect so often, let it be dealt with, and return the last one."""
        for _ in range(count):
            client = socket.create_connection(self.address, source_address=(host, 0))
            client.setblocking(False)
            self.clients.append(client)
        await wait_all_tasks_blocked(0.01)
        return self.clients[-1]


@asynccontextmanager
async def opened(places: int = 2, **limits: float) -> AsyncIterator[Port]:
    """Serve a port until the block ends."""
    front = Front(SmtpLimits(**limits), places)  # type: ignore[arg-type]  # counts, by name
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = Port(front, listener.getsockname())
    try:
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                await front.accept(listener, paused=lambda: port.paused)

            nursery.start_soon(accept)
            yield port
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        for client in port.clients:
            client.close()
        for process in port.processes:
            process.close()


def refusal(client: socket.socket) -> bytes:
    """What a client was told, or nothing."""
    try:
        return client.recv(1000)
    except BlockingIOError:
        return b""


async def test_the_process_with_the_fewest_sessions_serves():
    """So both have the same, and whose sessions end gets the next ones."""
    async with opened() as port:
        one, two = port.process(), port.process()
        await port.connect(6)
        await one.has(3)
        await two.has(3)
        two.end(*list(two.sessions)[:2])
        await port.connect(2)
        await two.has(3)


async def test_the_limit_of_connections_is_that_of_all_processes():
    """In all and of one peer; what ends makes room, wherever it was."""
    async with opened(max_connections=4, max_connections_per_peer=3, idle_patience=60) as port:
        one, two = port.process(), port.process()
        await port.connect(3)
        assert refusal(await port.connect()).startswith(b"421 4.7.0")
        await port.connect(1, host="127.0.0.2")
        assert refusal(await port.connect(1, host="127.0.0.3")).startswith(b"421 4.3.2")
        await one.has(2)
        await two.has(2)
        assert port.front.figures() == {"sessions": 4, "buffered_bytes": 0}
        one.end(next(iter(one.sessions)))
        await port.connect(1, host="127.0.0.3")
        await one.has(2)


async def test_while_no_process_serves_connections_wait_in_the_ports_queue():
    """Neither refused nor accepted; the next process has them."""
    async with opened() as port:
        client = await port.connect()
        assert refusal(client) == b""
        assert port.front.gate.open == 0
        one = port.process()
        await one.has(1)
        port.front.part(one.link)
        await port.connect()
        one.die()  # which parts with it once more
        await port.connect()
        assert port.front.gate.open == 0
        await port.process().has(2)


async def test_a_process_that_dies_gives_its_places_back():
    """Its sessions are closed, the others' are not; what it had not read goes to another."""
    async with opened(max_connections=4, max_connections_per_peer=4, idle_patience=60) as port:
        one, two = port.process(), port.process()
        await port.connect(2)
        await one.has(1)
        await two.has(1)
        late = await port.connect(2)  # nobody reads these
        one.die()
        await two.has(3)
        assert port.front.gate.open == 3
        assert refusal(late) == b""
        await port.connect()
        await two.has(4)


async def test_what_waits_for_a_process_that_takes_nothing_goes_to_another():
    """Its channel is full; nobody is refused while another has room."""
    async with opened(max_connections=5000, max_connections_per_peer=5000) as port:
        hung = port.process()
        while hung.link.channel.backlog < FULL:
            hung.link.channel.put(channel.pack(Kind.TICK))
        await port.connect(2)
        other = port.process()
        assert refusal(port.clients[0]).startswith(b"421 4.3.2"), "all there was were full"
        await port.connect(2)
        await other.has(2)
        assert not hung.link.guests


async def test_a_paused_process_gets_none_and_all_paused_refuse():
    """As an operator says it: of one, of all, of the port."""
    async with opened() as port:
        one, two = port.process(), port.process()
        one.paused = True
        await port.connect(2)
        await two.has(2)
        two.paused = True
        assert refusal(await port.connect()).startswith(b"421 4.3.2 Paused")
        one.paused = two.paused = False
        port.paused = True
        assert refusal(await port.connect()).startswith(b"421 4.3.2 Paused")
        port.paused = False
        await port.connect()
        await one.has(1)


async def test_a_silent_connection_gives_way_when_its_process_agrees():
    """The newcomer waits for that, so there are never more than the limit says."""
    async with opened(max_connections_per_peer=1, idle_patience=0) as port:
        one = port.process()
        await port.connect()
        await one.has(1)
        (silent,) = one.sessions
        newcomer = await port.connect()
        one.look()
        assert one.asked == [silent]
        assert list(one.sessions) == [silent], "the newcomer has no process yet"
        assert port.front.gate.open == 1
        one.end(silent)
        await one.has(1)
        assert refusal(newcomer) == b""
        assert port.front.gate.open == 1


async def test_one_that_has_something_in_hand_after_all_goes_on():
    """Its process says so; the newcomer is refused, and every place is counted once."""
    async with opened(max_connections_per_peer=1, idle_patience=0) as port:
        one = port.process()
        await port.connect()
        await one.has(1)
        (busy,) = one.sessions
        newcomer = await port.connect()
        one.front.busy(one.link, (busy,))
        assert refusal(newcomer).startswith(b"421 4.7.0")
        assert port.front.gate.open == 1
        assert refusal(await port.connect()).startswith(b"421 4.7.0"), "it is not asked again"
        one.front.idle(one.link, [(busy, 5.0)])
        await port.connect()
        one.look()
        assert one.asked == [busy, busy], "until it is idle again"
        one.end(busy)
        await one.has(1)


async def test_a_newcomer_looks_for_another_when_the_first_is_busy():
    """A few times; that is still one newcomer and one place."""
    async with opened(max_connections_per_peer=2, idle_patience=0) as port:
        one = port.process()
        await port.connect(2)
        await one.has(2)
        await port.connect()
        one.look()
        (first,) = one.asked
        one.front.busy(one.link, (first,))
        one.look()
        (_, second) = one.asked
        assert second != first
        one.end(second)
        await one.has(2)
        assert port.front.gate.open == 2


async def test_the_turn_of_a_newcomer_comes_by_a_death_too():
    """Its process goes elsewhere."""
    async with opened(max_connections_per_peer=1, idle_patience=0) as port:
        one = port.process()
        await port.connect()
        await one.has(1)
        await port.connect()
        two = port.process()
        one.die()
        await two.has(1)
        assert port.front.gate.open == 1


async def test_at_the_end_all_are_told_and_waited_for():
    """`clear` says it, `emptied` waits for the last; `cut` does not wait."""
    async with opened() as port:
        one, two = port.process(), port.process()
        await port.connect(2)
        await one.has(1)
        await two.has(1)
        port.front.clear()
        with trio.move_on_after(0.05) as waiting:
            await port.front.emptied()
        assert waiting.cancelled_caught
        one.end(*one.sessions)
        two.end(*two.sessions)
        await port.front.emptied()
        port.front.cut()
        for process in (one, two):
            process.look()
            assert process.told == [Kind.CLEAR, Kind.CUT]


async def test_it_is_known_whether_one_of_them_lacks_the_cpu():
    """As long as it serves."""
    async with opened() as port:
        one, two = port.process(), port.process()
        assert not port.front.lacking()
        two.link.lacking = True
        assert port.front.lacking()
        two.die()
        assert not port.front.lacking()
        assert not one.link.guests


@pytest.mark.parametrize("how", ["ended", "died", "busy"])
async def test_nobody_is_served_after_the_end_was_told(how: str):
    """Not even who waited for another's turn: a session would undo the drain of its process."""
    async with opened(max_connections_per_peer=2, idle_patience=0) as port:
        one = port.process()
        await port.connect()
        await one.has(1)
        two = port.process()
        await port.connect()
        await two.has(1)
        newcomer = await port.connect()
        one.look()
        assert one.asked == list(one.sessions), "the newcomer waits for it"
        port.front.clear()
        if how == "ended":
            one.end(*one.asked)
        elif how == "died":
            one.die()
        else:
            port.front.busy(one.link, one.asked)
        assert refusal(newcomer).startswith(b"421 4.3.2 Paused")
        one.look()
        two.look()
        assert two.asked == []
        assert len(two.sessions) == 1
        assert port.front.gate.open == (2 if how == "busy" else 1)
        two.end(*two.sessions)


async def test_who_accepts_again_after_the_end_serves():
    """`ingest` is restarted, and the processes stay."""
    async with opened() as port, trio.open_nursery() as nursery:
        one = port.process()
        port.front.clear()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)

            async def accept() -> None:
                await port.front.accept(listener, paused=lambda: False)

            nursery.start_soon(accept)
            await wait_all_tasks_blocked()
            port.address = listener.getsockname()
            await port.connect()
            await one.has(1)
            nursery.cancel_scope.cancel()


async def test_one_that_goes_on_has_nobody_evicted_for_it():
    """Its place was taken meanwhile: it is cut off, and a guesser who is made to wait stays."""
    async with opened(max_connections_per_peer=2, idle_patience=0) as port:
        one = port.process()
        await port.connect(2)
        await one.has(2)
        await port.connect()
        one.look()
        (busy,) = one.asked
        (other,) = set(one.sessions) - {busy}
        one.front.idle(one.link, [(other, float("inf"))])
        taken = one.link.guests[busy]
        assert taken.newcomer is not None
        newcomer, taken.newcomer = taken.newcomer, None  # its turn came by another way
        one.front.busy(one.link, (busy,))
        one.look()
        assert one.asked == [busy], "nobody else is"
        assert one.told == [Kind.CUT]
        newcomer.sock.close()
