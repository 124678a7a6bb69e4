"""FairLimiter: what one owner may hold, what is kept, who comes next."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.access.owners import ADMINISTRATOR_ID
from relay.http.limits.fair_limiter import Crowded, FairLimiter


def test_an_owner_has_his_share_and_the_administrator_what_is_kept():
    """No owner has more than a share, all of them not what is kept; what is given back is free."""
    limiter = FairLimiter(10, 5, kept=2)
    assert limiter.take("a", 3)
    assert limiter.take("a", 3) is None
    second = limiter.take("a", 2)
    assert second
    assert limiter.take("b", 4) is None
    assert limiter.take("b", 3)
    assert limiter.take("c", 1) is None
    assert limiter.take(ADMINISTRATOR_ID, 2)
    assert limiter.take(ADMINISTRATOR_ID, 1) is None
    second.release()
    second.release()
    assert limiter.take("c", 2)
    assert limiter.take("d", 1) is None


def test_what_is_larger_than_a_share_counts_as_one():
    """It fits where its owner holds nothing, or nobody could ever have it."""
    limiter = FairLimiter(8, 2)
    held = limiter.take("a", 100)
    assert held
    assert held.amount == 2
    assert limiter.take("a", 1) is None
    held.shrink(1)
    assert limiter.take("a", 1)


def test_what_is_held_grows_where_there_is_room():
    """To a share at most, where it is the owner's only one; what does not fit changes nothing."""
    limiter = FairLimiter(10, 6)
    first, second = limiter.take("a", 2), limiter.take("a", 2)
    assert first
    assert second
    assert first.grow(1)
    assert first.amount == 2
    assert not first.grow(5)
    assert first.grow(4)
    assert limiter.take("a", 1) is None
    second.release()
    assert first.grow(100)
    assert first.amount == 6
    first.release()
    assert limiter.take("b", 6)
    assert limiter.take("a", 4)
    assert limiter.take("c", 1) is None


async def test_who_holds_least_comes_next():
    """A second owner's first turn comes before the first owner's third, who asked earlier."""
    limiter, order = FairLimiter(2, 2), []
    leave = {name: trio.Event() for name in ("a1", "a2", "a3", "b1")}

    async def one(name: str) -> None:
        async with limiter.turn(name[0]):
            order.append(name)
            await leave[name].wait()

    async with trio.open_nursery() as nursery:
        for name in leave:
            nursery.start_soon(one, name)
            await wait_all_tasks_blocked()
        leave["a1"].set()
        await wait_all_tasks_blocked()
        assert order == ["a1", "a2", "b1"]
        for event in leave.values():
            event.set()
    assert order[-1] == "a3"


async def test_who_leaves_while_waiting_takes_nothing():
    """Cancelled before or with the grant: the place is free for the next; many waiters are told."""
    limiter = FairLimiter(1, 1, waiting=16)
    held = limiter.take("a")
    assert held
    scope = trio.CancelScope()

    async def wait() -> None:
        with scope:
            async with limiter.turn("b"):
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        held.release()
        scope.cancel()
    held = limiter.take("a")
    assert held
    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(limiter.turn("b").__aenter__)
        await wait_all_tasks_blocked()
        with pytest.raises(Crowded):
            async with limiter.turn("b"):
                pass
        nursery.cancel_scope.cancel()


async def test_a_turn_is_waited_for_no_longer_than_one_has_patience(autojump_clock):
    """And whoever gave up leaves nothing taken."""
    limiter = FairLimiter(1, 1)
    async with limiter.turn("one"):
        began = trio.current_time()
        with pytest.raises(Crowded):
            async with limiter.turn("other", patience=5.0):
                pass
        assert trio.current_time() - began == pytest.approx(5.0)
    async with limiter.turn("other", patience=5.0):
        pass
