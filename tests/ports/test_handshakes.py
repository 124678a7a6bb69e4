"""Who has the next turn for a handshake, and what others have between two."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from relay.metrics import registry
from relay.ports.handshakes import AT_ONCE, RATE, Handshakes
from relay.ports.peers import peer_key


async def test_turns_go_round_the_peers():
    """One that asks for many waits for its own."""
    handshakes = Handshakes()
    first = [handshakes.turn("a", begins=True) for _ in range(3)]
    other = handshakes.turn("b", begins=True)
    late = handshakes.turn("c", begins=True)
    order = [handshakes.next() for _ in range(5)]
    assert order == [first[0], other, late, first[1], first[2]]
    assert handshakes.next() is None


async def test_between_two_turns_others_have_as_much(autojump_clock: MockClock):
    """What a task does in its turn counts, also if it fails; who gave up does nothing."""
    handshakes, began = Handshakes(), list[float]()

    def work() -> None:
        began.append(trio.current_time())
        autojump_clock.jump(1.0)
        if len(began) == 1:
            raise OSError("it has gone")

    async def fails() -> None:
        with pytest.raises(OSError, match="it has gone"):
            await handshakes.take_turn("b", work, begins=True)

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as impatient:
            impatient.cancel()
            await handshakes.take_turn("a", work, begins=True)
        nursery.start_soon(fails)
        await wait_all_tasks_blocked()
        nursery.start_soon(partial(handshakes.take_turn, "c", work, begins=True))
        await wait_all_tasks_blocked()
        nursery.start_soon(handshakes.run)
        await handshakes.take_turn("d", work, begins=True)
        nursery.cancel_scope.cancel()
    assert began == [0.0, 2.0, 4.0]


async def test_ports_share_the_half(autojump_clock: MockClock):
    """However many are flooded at once."""
    ports, began = [Handshakes(), Handshakes(), Handshakes()], list[float]()

    def work() -> None:
        began.append(trio.current_time())
        autojump_clock.jump(1.0)

    async with trio.open_nursery() as nursery:
        for port in ports:
            nursery.start_soon(port.run)
        async with trio.open_nursery() as peers:
            for port in 2 * ports:
                peers.start_soon(partial(port.take_turn, "a", work, begins=True))
        nursery.cancel_scope.cancel()
    assert began == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


async def test_one_network_begins_so_many_a_second(autojump_clock: MockClock):
    """On all ports together, whatever addresses of an IPv6 /64 it takes; others, what has begun and
    this machine wait for nothing."""
    ports, begun = [Handshakes(), Handshakes()], list[float]()
    delayed = "relay_tls_handshakes_delayed_total"
    before = registry.get_sample_value(delayed) or 0.0

    async def begin(number: int, host: str, *, begins: bool = True) -> None:
        port = ports[number % 2]
        await port.take_turn(
            peer_key(host), lambda: begun.append(trio.current_time()), begins=begins
        )

    async with trio.open_nursery() as nursery:
        for port in ports:
            nursery.start_soon(port.run)
        async with trio.open_nursery() as peers:
            for number in range(AT_ONCE + 100):
                peers.start_soon(begin, number, f"2001:db8::{number:x}")
        assert trio.current_time() == pytest.approx(100 / RATE)
        assert begun[:AT_ONCE] == [0.0] * AT_ONCE
        assert begun[AT_ONCE:] == pytest.approx([number / RATE for number in range(1, 101)])
        assert registry.get_sample_value(delayed) == before + 100
        now = trio.current_time()
        for host in ("2001:db8:0:1::1", "192.0.2.1"):
            await begin(0, host)
        await begin(0, "2001:db8::1", begins=False)
        for number in range(2 * AT_ONCE):
            await begin(number, ("127.0.0.1", "::1")[number % 2])
        assert trio.current_time() == now
        nursery.cancel_scope.cancel()


async def test_a_port_that_had_nothing_to_do_takes_up_what_comes(autojump_clock: MockClock):
    """One whose time has not come keeps no other from its turn."""
    port, begun = Handshakes(), list[str]()

    async def begin(host: str) -> None:
        await port.take_turn(host, lambda: begun.append(host), begins=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        for _ in range(AT_ONCE):
            await begin("192.0.2.1")
        nursery.start_soon(begin, "192.0.2.1")
        await wait_all_tasks_blocked()
        await begin("192.0.2.2")
        assert begun[-1] == "192.0.2.2"
        await trio.sleep(1 / RATE)
        await wait_all_tasks_blocked()
        assert begun[-1] == "192.0.2.1"
        nursery.cancel_scope.cancel()
