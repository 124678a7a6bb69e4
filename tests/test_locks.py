"""The lock that is had at once where it is free: in turn otherwise, and never by two."""

import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from relay.locks import Lock


async def test_a_free_lock_is_had_without_a_round_of_the_loop():
    """Also inside a scope that is cancelled: what has to be cleaned up there is."""
    lock = Lock()
    with assert_no_checkpoints():
        async with lock:
            assert not lock.acquire_nowait()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with lock:
            pass
    assert not scope.cancelled_caught
    assert lock.acquire_nowait()


async def test_those_who_wait_get_it_in_turn_but_for_who_was_cancelled(autojump_clock):
    """It is handed over: who comes while others wait comes after them."""
    lock, had = Lock(), []
    scopes = [trio.CancelScope() for _ in range(3)]

    async def wait(number: int) -> None:
        with scopes[number]:
            async with lock:
                had.append(number)
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with lock:
            for number in range(3):
                nursery.start_soon(wait, number)
                await wait_all_tasks_blocked()
            scopes[1].cancel()
            await wait_all_tasks_blocked()
        assert not lock.acquire_nowait()  # it is the first's already
    assert had == [0, 2]
    assert lock.acquire_nowait()
