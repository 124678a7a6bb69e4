"""The turns of large messages: who waits, who is in the way, and how much memory that is."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.outbound.active_queue.jobs import Job
from relay.outbound.delivery.large_turns import MOST_LATE, PATIENCE, LargeTurns
from tests.outbound.claims import another


class House:
    """Jobs that take turns."""

    def __init__(self, nursery: trio.Nursery, at_once: int, to_strangers: int) -> None:
        self._nursery = nursery
        self.turns = LargeTurns(at_once, to_strangers)
        self.has: list[str] = []
        """Who has, or had, a turn, in order."""
        self.jobs: dict[str, Job] = {}

    def comes(self, name: str, *, stranger: bool = False) -> None:
        """A job waits for its turn."""
        job = self.jobs[name] = Job(another(), 60.0, 0.0)

        async def take() -> None:
            await self.turns.take(job, to_stranger=stranger)
            self.has.append(name)

        self._nursery.start_soon(take)

    def turn(self, name: str) -> Any:
        """The turn of a job that has one."""
        return self.jobs[name].turn

    def overdue(self, now: float) -> list[str]:
        """Who is in the way."""
        jobs = {job: name for name, job in self.jobs.items()}
        return [jobs[turn.job] for turn in self.turns.overdue(now)]


@pytest.fixture
async def house(nursery: trio.Nursery) -> House:
    """Three turns, two of them to strangers."""
    return House(nursery, 3, 2)


async def test_strangers_have_some_turns_and_the_first_goes_first(house: House):
    """A turn that has ended is the next one's, and may be ended again."""
    for name in ("a", "b", "c"):
        house.comes(name, stranger=True)
        await wait_all_tasks_blocked()
    house.comes("d")
    await wait_all_tasks_blocked()
    assert sorted(house.has) == ["a", "b", "d"]
    house.turn("a").end()
    house.turn("a").end()
    await wait_all_tasks_blocked()
    assert house.has[3:] == ["c"]


async def test_what_is_there_is_in_the_way_once_others_wait(house: House):
    """Not before it was made, nor for a moment; who is no stranger is in no stranger's way."""
    house.comes("a")
    house.comes("b", stranger=True)
    house.comes("c", stranger=True)
    await wait_all_tasks_blocked()
    later = 1.0 + 2 * PATIENCE
    house.turn("a").made_at = house.turn("b").made_at = 1.0
    assert house.overdue(later) == []
    house.comes("d", stranger=True)
    await wait_all_tasks_blocked()
    assert house.overdue(1.0 + PATIENCE / 2) == []
    assert house.overdue(later) == ["b"]
    house.comes("e")
    await wait_all_tasks_blocked()
    assert sorted(house.overdue(later)) == ["a", "b"]


async def test_a_turn_is_passed_on_as_long_as_memory_lasts(house: House):
    """What is in memory still counts until it is gone."""
    for name in "abcdefg":
        house.comes(name)
        await wait_all_tasks_blocked()
    half = MOST_LATE // 2 + 1
    house.turn("a").pass_on(half)
    house.turn("b").pass_on(half)
    house.turn("c").pass_on(half)
    await wait_all_tasks_blocked()
    assert (sorted(house.has), house.turns.late) == (list("abcde"), 2 * half)
    house.turn("a").end()
    house.turn("c").pass_on(half)
    await wait_all_tasks_blocked()
    assert (sorted(house.has), house.turns.late) == (list("abcdef"), 2 * half)
    for name in "bcdef":
        house.turn(name).end()
    await wait_all_tasks_blocked()
    assert (sorted(house.has), house.turns.late) == (list("abcdefg"), 0)


async def test_who_is_cancelled_while_he_waits_has_no_turn(house: House):
    """Nor keeps one of those for strangers."""
    for name in "ab":
        house.comes(name, stranger=True)
    house.comes("c")
    await wait_all_tasks_blocked()
    house.turn("a").end()
    house.comes("d")
    await wait_all_tasks_blocked()
    with trio.move_on_after(0):
        await house.turns.take(Job(another(), 60.0, 0.0), to_stranger=True)
    house.turn("c").end()
    house.comes("e", stranger=True)
    await wait_all_tasks_blocked()
    assert house.has[-1] == "e"
