"""The turns of questions: who waits, for how long, and who goes on without one."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from relay.dns.turns import ASKER, Turns


class Asking:
    """Questions that are never answered, and when each had its turn."""

    def __init__(self, turns: Turns, nursery: trio.Nursery) -> None:
        self.turns = turns
        self.nursery = nursery
        self.began: dict[int, float] = {}
        self.scopes: dict[int, trio.CancelScope] = {}

    async def ask(self, number: int) -> None:
        with trio.CancelScope() as scope:
            self.scopes[number] = scope
            turn = await self.turns.take()
            self.began[number] = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                self.turns.end(turn)

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.nursery.start_soon(self.ask, number)
            await wait_all_tasks_blocked()


async def test_who_waits_goes_first_by_first(autojump_clock):
    """What ends makes room at once, what does not after the patience of whoever waits."""
    turns = Turns(2, patience=1.0, most_late=9)
    async with trio.open_nursery() as nursery:
        asking = Asking(turns, nursery)
        await asking.start(0, 1, 2, 3, 4)
        assert (asking.began, turns.late) == ({0: 0.0, 1: 0.0}, 0)
        await trio.sleep(0.5)
        asking.scopes[1].cancel()
        await wait_all_tasks_blocked()
        assert asking.began == {0: 0.0, 1: 0.0, 2: 0.5}
        await trio.sleep(5.0)
        assert asking.began == {0: 0.0, 1: 0.0, 2: 0.5, 3: 1.0, 4: 1.5}
        assert (len(turns), turns.late) == (2, 2)
        nursery.cancel_scope.cancel()
    assert (len(turns), turns.late) == (0, 0)


async def test_where_nobody_waits_nobody_is_late(autojump_clock):
    """However long it takes."""
    turns = Turns(2, patience=1.0, most_late=9)
    async with trio.open_nursery() as nursery:
        await Asking(turns, nursery).start(0, 1)
        await trio.sleep(100.0)
        assert (len(turns), turns.late) == (2, 0)
        nursery.cancel_scope.cancel()


async def test_no_more_are_late_than_may_be(autojump_clock):
    """Then a turn is kept until its end, or until one of those that are late has ended."""
    turns = Turns(1, patience=1.0, most_late=2)
    async with trio.open_nursery() as nursery:
        asking = Asking(turns, nursery)
        await asking.start(*range(5))
        await trio.sleep(10.0)
        assert (sorted(asking.began), turns.late) == ([0, 1, 2], 2)
        asking.scopes[0].cancel()
        await wait_all_tasks_blocked()
        assert (sorted(asking.began), turns.late) == ([0, 1, 2, 3], 2)
        nursery.cancel_scope.cancel()
    assert (len(turns), turns.late) == (0, 0)


async def test_who_gives_up_waiting_is_passed_over(autojump_clock):
    """Whether he is the next or not."""
    turns = Turns(1, patience=1.0, most_late=9)
    async with trio.open_nursery() as nursery:
        asking = Asking(turns, nursery)
        await asking.start(0, 1, 2, 3)
        asking.scopes[1].cancel()
        asking.scopes[2].cancel()
        await trio.sleep(1.5)
        assert asking.began == {0: 0.0, 3: 1.0}
        nursery.cancel_scope.cancel()
    assert (len(turns), turns.late) == (0, 0)


async def test_who_asks_much_waits_behind_who_asks_little(autojump_clock):
    """However many of his questions wait, and came first; and the last turns of all are for who
    has nothing under way."""
    turns = Turns(8, patience=1.0, most_late=4)
    began: list[str] = []

    async def ask(asker: str) -> None:
        ASKER.set(asker)
        turn = await turns.take()
        began.append(asker)
        try:
            await trio.sleep_forever()
        finally:
            turns.end(turn)

    async with trio.open_nursery() as nursery:
        for asker in ("a", "b", "c"):
            for _ in range(10):
                nursery.start_soon(ask, asker)
                await wait_all_tasks_blocked()
        await trio.sleep(5.0)
        assert sorted(began) == ["a"] * 8 + ["b", "c"]
        nursery.start_soon(ask, "d")
        nursery.start_soon(ask, "e")
        await wait_all_tasks_blocked()
        assert began[10:] == ["d", "e"] or began[10:] == ["e", "d"]
        nursery.cancel_scope.cancel()
    assert (len(turns), turns.late) == (0, 0)
