"""A value that somebody else finds out: given once, waited for, or told of."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from relay.futures import Future


async def test_who_waits_gets_the_value_before_and_after():
    """It may be there when the wait begins, or come while it lasts."""
    early: Future[str] = Future()
    late: Future[str] = Future()
    early.settle("early")
    heard = []

    async def wait() -> None:
        heard.append(await late.wait())

    assert await early.wait() == "early"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not late.settled
        late.settle("late")
    assert heard == ["late"]
    assert late.settled


async def test_an_error_is_raised_where_the_value_is_waited_for():
    """And wherever else it is asked for."""
    future: Future[str] = Future()
    future.fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await future.wait()
    with pytest.raises(OSError, match="gone"):
        future.result()


async def test_the_first_answer_counts():
    """Work that was done twice, or failed after it was done, changes nothing."""
    future: Future[int] = Future()
    future.settle(1)
    future.settle(2)
    future.fail(OSError("late"))
    assert await future.wait() == 1


async def test_a_wait_that_was_cancelled_leaves_the_future_to_be_settled():
    """Nobody is woken, and who asks afterwards is answered."""
    future: Future[int] = Future()
    with trio.move_on_after(0) as scope:
        await future.wait()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(future.wait)  # another may wait now
        await trio.testing.wait_all_tasks_blocked()
        future.settle(3)
    assert future.result() == 3


async def test_one_task_waits_at_a_time():
    """A second would never be woken, and is told so; the first goes on waiting."""
    future: Future[int] = Future()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(future.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="another task"):
            await future.wait()
        future.settle(4)
    assert await future.wait() == 4


async def test_who_cannot_wait_is_called():
    """Once: at once if there is an answer, else when it comes, be it an error."""
    future: Future[int] = Future()
    calls = []
    future.then(lambda: calls.append("then"))
    assert not calls
    future.fail(OSError("gone"))
    future.settle(1)
    assert calls == ["then"]
    future.then(lambda: calls.append("at once"))
    assert calls == ["then", "at once"]
