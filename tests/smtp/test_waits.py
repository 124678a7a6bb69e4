"""How sessions wait, on the trampoline and as plain tasks: what runs where, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import socket
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.futures import Future
from relay.smtp.trampoline import Trampoline
from tests.smtp.plain import Plain


@pytest.fixture(params=[Trampoline, Plain])
async def scheduling(request):
    """A running `Scheduling`: what holds for one kind holds for the other."""
    made = request.param()
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


async def test_only_pinned_does_a_session_stay_in_its_own_task(pair):
    """On the trampoline, what follows a wait else runs in the task that noticed the bytes."""
    ours, theirs = pair
    trampoline = Trampoline()
    waits = trampoline.waits(ours)
    ran_in = []

    async def session() -> Any:
        read = []
        for _ in range(3):
            read.append(await waits.read(10))
            ran_in.append(trio.lowlevel.current_task())
        async with waits.pinned():
            ran_in.append(trio.lowlevel.current_task())
            read.append(await waits.read(10))
            ran_in.append(trio.lowlevel.current_task())
        read.append(await waits.read(10))
        ran_in.append(trio.lowlevel.current_task())
        return read

    async def peer() -> Any:
        for byte in b"12345":
            await wait_all_tasks_blocked()
            theirs.send(bytes([byte]))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trampoline.run)
            nursery.start_soon(peer)
            assert await waits.host(session()) == [b"1", b"2", b"3", b"4", b"5"]
            nursery.cancel_scope.cancel()
    mine = trio.lowlevel.current_task()
    assert [task is mine for task in ran_in] == [False, False, False, True, True, False]


async def test_what_came_before_the_wait_is_read(scheduling, pair):
    """Bytes, more of them than are asked for, and the end of the stream, all there already."""
    ours, theirs = pair
    theirs.send(b"abcde")
    theirs.close()
    waits = scheduling.waits(ours)

    async def session() -> Any:
        async with waits.pinned() as pinned:
            await pinned.sleep(0)
        return [await waits.read(2) for _ in range(4)]

    assert await waits.host(session()) == [b"ab", b"cd", b"e", b""]


async def test_the_end_of_a_stream_that_comes_with_its_last_bytes_is_seen(scheduling, pair):
    """It is no event of its own then."""
    ours, theirs = pair
    waits = scheduling.waits(ours)

    async def session() -> Any:
        return [await waits.read(10), await waits.read(10)]

    async def peer() -> Any:
        await wait_all_tasks_blocked()
        theirs.send(b"bye")
        theirs.shutdown(socket.SHUT_WR)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        assert await waits.host(session()) == [b"bye", b""]


async def test_an_answer_is_waited_for_and_may_be_an_error(scheduling, pair):
    """Given before or after the wait begins; an exception is raised in the session."""
    waits = scheduling.waits(pair[0])
    early: Future[str] = Future()
    late: Future[str] = Future()
    never: Future[str] = Future()
    early.settle("early")

    async def session() -> Any:
        heard = [await waits.wait(early), await waits.wait(late)]
        with pytest.raises(OSError, match="gone"):
            await waits.wait(never)
        return heard

    async def others() -> Any:
        await wait_all_tasks_blocked()
        late.settle("late")
        await wait_all_tasks_blocked()
        never.fail(OSError("gone"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await waits.host(session()) == ["early", "late"]


async def test_bytes_that_come_during_another_wait_wait_too(scheduling, pair):
    """They do not end a wait for an answer, and are there afterwards."""
    ours, theirs = pair
    waits = scheduling.waits(ours)
    answer: Future[str] = Future()

    async def session() -> Any:
        first = await waits.read(10)
        return [first, await waits.wait(answer), await waits.read(10)]

    async def others() -> Any:
        for text in (b"one", b"two"):
            await wait_all_tasks_blocked()
            theirs.send(text)
        await wait_all_tasks_blocked()
        answer.settle("yes")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await waits.host(session()) == [b"one", "yes", b"two"]


@pytest.mark.parametrize("later", [False, True])
async def test_cancelling_ends_each_wait(scheduling, pair, later):
    """The first or one after another; an answer that comes later wakes nobody."""
    ours, theirs = pair
    for wait_for_answer in (False, True):
        waits = scheduling.waits(ours)
        answer: Future[str] = Future()
        cleaned: list[Any] = []

        async def session(
            waits: Any = waits,
            answer: Future[str] = answer,
            kind: bool = wait_for_answer,
            cleaned: list[Any] = cleaned,
        ) -> None:
            try:
                if later:
                    await waits.read(10)
                await (waits.wait(answer) if kind else waits.read(10))
            finally:
                cleaned.append(trio.lowlevel.current_task())

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waits.host, session())
                await wait_all_tasks_blocked()
                if later:
                    theirs.send(b"x")
                    await wait_all_tasks_blocked()
                scope.cancel()
                task = next(iter(nursery.child_tasks))
        assert cleaned == [task]
        answer.settle("late")
        await wait_all_tasks_blocked()


async def test_a_deadline_ends_a_read_and_the_session_goes_on(scheduling, pair):
    """In a pinned block; and after it as before."""
    ours, theirs = pair
    waits = scheduling.waits(ours)

    async def session() -> Any:
        heard = [await waits.read(10)]
        async with waits.pinned() as pinned:
            with pinned.move_on_after(0.01) as deadline:
                heard.append(await waits.read(10))
            assert deadline.cancelled_caught
            theirs.send(b"two")
            with pinned.move_on_after(5):
                heard.append(await waits.read(10))
        theirs.send(b"three")
        heard.append(await waits.read(10))
        return heard

    theirs.send(b"one")
    assert await waits.host(session()) == [b"one", b"two", b"three"]


async def test_pinned_blocks_may_lie_in_each_other(scheduling, pair):
    """The session is pinned until the last of them ends, also by what it raises."""
    ours, theirs = pair
    waits = scheduling.waits(ours)

    async def session() -> Any:
        await waits.read(1)
        async with waits.pinned() as outer:
            with pytest.raises(ZeroDivisionError):
                async with waits.pinned() as inner:
                    await inner.sleep(0)
                    raise ZeroDivisionError
            await outer.sleep(0)
            await waits.read(1)
            await outer.sleep(0)
        return await waits.read(1)

    theirs.send(b"xyz")
    assert await waits.host(session()) == b"z"


async def test_cancelled_on_its_way_to_its_task_a_session_is_not_pinned(scheduling, pair):
    """Where it is cut off meanwhile, nothing of the block runs."""
    ours, theirs = pair
    waits = scheduling.waits(ours)
    ran = []

    async def session() -> Any:
        await waits.read(1)
        waits.cut_off()
        async with waits.pinned() as pinned:
            await pinned.sleep(0)
            ran.append("on")

    theirs.send(b"x")
    assert await waits.host(session()) is None
    assert not ran


async def test_a_session_that_is_cut_off_ends(scheduling, pair):
    """Wherever it waits; what is around it goes on."""
    waits = scheduling.waits(pair[0])
    cleaned = []

    async def session() -> str:
        try:
            await waits.read(10)
        finally:
            cleaned.append(trio.lowlevel.current_task())
        return "not reached"

    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await wait_all_tasks_blocked()
            waits.cut_off()

        nursery.start_soon(end)
        assert await waits.host(session()) is None
    assert cleaned == [trio.lowlevel.current_task()]


async def test_a_socket_that_is_closed_by_others_leaves_its_number_to_the_next(pair):
    """Its session ends, and what has the number by then goes on being watched."""
    scheduling = Trampoline()
    ours, _ = pair
    number = ours.fileno()
    first = scheduling.waits(ours)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduling.run)
            nursery.start_soon(first.host, first.read(10))
            await wait_all_tasks_blocked()
            first.closing()
            ours.close()
            other, peer = socket.socketpair()
            other.setblocking(False)
            with other, peer:
                assert other.fileno() == number
                second = scheduling.waits(other)

                async def say() -> None:
                    await wait_all_tasks_blocked()  # the first has ended by then
                    peer.send(b"x")

                nursery.start_soon(say)
                assert await second.host(second.read(10)) == b"x"
            nursery.cancel_scope.cancel()


async def test_what_was_pinned_is_of_no_use_afterwards(pair):
    """Kept beyond its block it refuses, rather than to wait in another's task."""
    waits = Trampoline().waits(pair[0])

    async def session() -> str:
        async with waits.pinned() as kept:
            await kept.sleep(0)
        for use in (
            lambda: kept.move_on_after(1),
            partial(kept.sleep, 1),
            partial(kept.wait_writable, pair[0]),
            partial(kept.run, partial(trio.sleep, 1)),
        ):
            with pytest.raises(RuntimeError, match="no longer pinned"):
                await use()  # type: ignore[misc]  # the first raises before there is anything
        return "refused"

    assert await waits.host(session()) == "refused"


async def test_what_a_session_raises_is_raised_in_its_own_task(scheduling, pair):
    """The others never hear of it."""
    ours, theirs = pair
    waits = scheduling.waits(ours)

    async def session() -> Any:
        await waits.read(10)
        raise ZeroDivisionError

    theirs.send(b"x")
    with pytest.raises(ZeroDivisionError):
        await waits.host(session())


async def test_waiting_unpinned_for_something_of_trios_is_a_bug_that_is_told(pair):
    """In the session, which may go on; nothing else is disturbed."""
    ours, theirs = pair
    trampoline = Trampoline()
    waits = trampoline.waits(ours)

    async def session() -> Any:
        await waits.read(1)
        with pytest.raises(RuntimeError, match="waits unpinned"):
            await trio.sleep(1)
        return await waits.read(1)

    theirs.send(b"xy")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trampoline.run)
            assert await waits.host(session()) == b"y"
            nursery.cancel_scope.cancel()


async def test_a_peer_that_floods_leaves_the_others_their_turns(scheduling, pair):
    """It gets one read a pass, however much is there."""
    ours, theirs = pair
    waits = scheduling.waits(ours)
    theirs.send(b"x" * 1000)
    passes = 0

    async def count() -> Any:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def session() -> Any:
        for _ in range(1000):
            assert await waits.read(1) == b"x"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await waits.host(session())
        nursery.cancel_scope.cancel()
    assert passes >= 500


class _Heavy:
    """Takes ten bytes at a time and a millisecond for each ten, a hundred bytes in all."""

    size = 10

    def __init__(self, order: list[str], clock: trio.testing.MockClock) -> None:
        self._order = order
        self._clock = clock
        self._left = 10

    def take(self, chunk: bytes, now: float) -> bool:
        """Work."""
        self._order.append("heavy")
        self._clock.jump(0.001)
        self._left -= 1
        return self._left > 0

    def answered(self, now: float) -> bool:
        """Nothing was asked."""
        raise AssertionError


async def test_those_that_have_much_to_read_share_a_turn(mock_clock):
    """However many they are, others run every few milliseconds; and each comes to its end."""
    order: list[str] = []
    trampoline = Trampoline()
    count = 20

    async def session(ours: socket.socket) -> None:
        waits = trampoline.waits(ours)
        await waits.host(waits.converse(_Heavy(order, mock_clock)))

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            order.append("other")

    with contextlib.ExitStack() as stack:
        async with trio.open_nursery() as service:
            service.start_soon(trampoline.run)
            service.start_soon(other)
            async with trio.open_nursery() as sessions:
                for _ in range(count):
                    ours, theirs = socket.socketpair()
                    stack.enter_context(ours)
                    stack.enter_context(theirs)
                    ours.setblocking(False)
                    theirs.send(b"x" * 100)
                    sessions.start_soon(session, ours)
            service.cancel_scope.cancel()
    assert order.count("heavy") == 10 * count
    turns = [len(list(group)) for kind, group in itertools.groupby(order) if kind == "heavy"]
    assert all(turn <= 6 for turn in turns if turn < count)
    assert sum(turn >= count for turn in turns) <= 1  # of those that have just begun
