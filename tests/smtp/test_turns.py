"""Sessions that are carried on by others: where they run, how they end, who hears of it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.smtp.turns import Seat, Turns


class Said:
    """An answer that a test gives."""

    def __init__(self) -> None:
        self.settled = False
        self._value: object = None
        self._wake: Callable[[], None] | None = None

    def then(self, wake: Callable[[], None]) -> None:
        """Keep whom to wake."""
        self._wake = wake

    def result(self) -> Any:
        """The answer, or what prevented it."""
        if isinstance(self._value, Exception):
            raise self._value
        return self._value

    def settle(self, value: object) -> None:
        """Give the answer."""
        self.settled, self._value = True, value
        if self._wake is not None:
            self._wake()


@pytest.fixture
async def turns():
    """A running `Turns`."""
    made = Turns()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()


@pytest.fixture
def pair():
    """Two ends of a connection; the first does not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_a_read_is_served_without_the_sessions_own_task(turns, pair):
    """What follows a wait runs in the task that noticed the bytes, until the session goes home."""
    ours, theirs = pair
    seat = Seat(turns, ours)
    ran_in = []

    async def session() -> Any:
        read = []
        for _ in range(3):
            read.append(await seat.read(10))
            ran_in.append(trio.lowlevel.current_task())
        await seat.go_home()
        ran_in.append(trio.lowlevel.current_task())
        read.append(await seat.read(10))
        ran_in.append(trio.lowlevel.current_task())
        return read

    async def peer() -> Any:
        for byte in b"1234":
            await wait_all_tasks_blocked()
            theirs.send(bytes([byte]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        assert await seat.host(session()) == [b"1", b"2", b"3", b"4"]
    mine = trio.lowlevel.current_task()
    assert mine not in ran_in[:3]
    assert ran_in[3:] == [mine, mine]


async def test_what_came_before_the_wait_is_read(turns, pair):
    """Bytes, more of them than are asked for, and the end of the stream, all there already."""
    ours, theirs = pair
    theirs.send(b"abcde")
    theirs.close()
    seat = Seat(turns, ours)

    async def session() -> Any:
        await seat.go_home()
        await trio.lowlevel.checkpoint()
        return [await seat.read(2) for _ in range(4)]

    assert await seat.host(session()) == [b"ab", b"cd", b"e", b""]


async def test_the_end_of_a_stream_that_comes_with_its_last_bytes_is_seen(turns, pair):
    """It is no event of its own then."""
    ours, theirs = pair
    seat = Seat(turns, ours)

    async def session() -> Any:
        return [await seat.read(10), await seat.read(10)]

    async def peer() -> Any:
        await wait_all_tasks_blocked()
        theirs.send(b"bye")
        theirs.shutdown(socket.SHUT_WR)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        assert await seat.host(session()) == [b"bye", b""]


async def test_an_answer_is_waited_for_and_may_be_an_error(turns, pair):
    """Given before or after the wait begins; an exception is raised in the session."""
    seat = Seat(turns, pair[0])
    early, late, never = Said(), Said(), Said()
    early.settle("early")

    async def session() -> Any:
        heard = [await seat.wait(early), await seat.wait(late)]
        with pytest.raises(OSError, match="gone"):
            await seat.wait(never)
        return heard

    async def others() -> Any:
        await wait_all_tasks_blocked()
        late.settle("late")
        await wait_all_tasks_blocked()
        never.settle(OSError("gone"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await seat.host(session()) == ["early", "late"]


async def test_bytes_that_come_during_another_wait_wait_too(turns, pair):
    """They do not end a wait for an answer, and are there afterwards."""
    ours, theirs = pair
    seat, answer = Seat(turns, ours), Said()

    async def session() -> Any:
        first = await seat.read(10)
        return [first, await seat.wait(answer), await seat.read(10)]

    async def others() -> Any:
        for text in (b"one", b"two"):
            await wait_all_tasks_blocked()
            theirs.send(text)
        await wait_all_tasks_blocked()
        answer.settle("yes")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await seat.host(session()) == [b"one", "yes", b"two"]


@pytest.mark.parametrize("away", [False, True])
async def test_cancelling_ends_each_wait(turns, pair, away):
    """At home or carried on by others; an answer that comes later wakes nobody."""
    ours, theirs = pair
    for wait_for_answer in (False, True):
        seat, answer = Seat(turns, ours), Said()
        cleaned: list[Any] = []

        async def session(
            seat: Seat = seat,
            answer: Said = answer,
            kind: bool = wait_for_answer,
            cleaned: list[Any] = cleaned,
        ) -> None:
            try:
                if away:
                    await seat.read(10)
                await (seat.wait(answer) if kind else seat.read(10))
            finally:
                cleaned.append(trio.lowlevel.current_task())

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seat.host, session())
                await wait_all_tasks_blocked()
                if away:
                    theirs.send(b"x")
                    await wait_all_tasks_blocked()
                scope.cancel()
                task = next(iter(nursery.child_tasks))
        assert cleaned == [task]
        answer.settle("late")
        await wait_all_tasks_blocked()


async def test_a_deadline_at_home_ends_a_read_and_the_session_goes_on(turns, pair):
    """`go_home` first, then the scope; afterwards out again."""
    ours, theirs = pair
    seat = Seat(turns, ours)

    async def session() -> Any:
        heard = [await seat.read(10)]
        await seat.go_home()
        with trio.move_on_after(0.01):
            heard.append(await seat.read(10))
        theirs.send(b"two")
        with trio.move_on_after(5):
            heard.append(await seat.read(10))
        seat.go_out()
        theirs.send(b"three")
        heard.append(await seat.read(10))
        return heard

    theirs.send(b"one")
    assert await seat.host(session()) == [b"one", b"two", b"three"]


async def test_what_a_session_raises_is_raised_in_its_own_task(turns, pair):
    """The others never hear of it."""
    ours, theirs = pair
    seat = Seat(turns, ours)

    async def session() -> Any:
        await seat.read(10)
        raise ZeroDivisionError

    theirs.send(b"x")
    with pytest.raises(ZeroDivisionError):
        await seat.host(session())


async def test_using_trio_away_from_home_is_a_bug_that_is_told(turns, pair):
    """In the session, which may go on; nothing else is disturbed."""
    ours, theirs = pair
    seat = Seat(turns, ours)

    async def session() -> Any:
        await seat.read(1)
        with pytest.raises(RuntimeError, match="away from home"):
            await trio.sleep(1)
        return await seat.read(1)

    theirs.send(b"xy")
    assert await seat.host(session()) == b"y"


async def test_a_peer_that_floods_leaves_the_others_their_turns(turns, pair):
    """It gets one read a pass, however much is there."""
    ours, theirs = pair
    seat = Seat(turns, ours)
    theirs.send(b"x" * 1000)
    passes = 0

    async def count() -> Any:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def session() -> Any:
        for _ in range(1000):
            assert await seat.read(1) == b"x"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await seat.host(session())
        nursery.cancel_scope.cancel()
    assert passes >= 500
