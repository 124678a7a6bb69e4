"""What one stranger, and all together, may take."""

from __future__ import annotations

import itertools
from array import array

from relay.smtp.limits import MemoryBudget, Misses, PooledBudget, SmtpLimits, part_of

LIMITS = SmtpLimits(max_buffered_bytes=100, slow_after=10.0, slow_rate=2)


def test_who_guesses_is_told_ever_later_and_nobody_else():
    """The first misses are free, then each is later than the one before, up to a bound."""
    misses = Misses(SmtpLimits())
    delays = [misses.note("a", 0.0) for _ in range(300)]
    assert delays[:100] == [0.0] * 100
    assert all(later > sooner for sooner, later in itertools.pairwise(delays[99:199]))
    assert delays[-1] == 5.0
    assert misses.note("b", 0.0) == 0.0


def test_a_guesser_alone_comes_down_to_a_miss_a_second():
    """However long it goes on: 5,800 a second was the rate without."""
    misses, now, count = Misses(SmtpLimits()), 0.0, 0
    while now < 3600:
        now += misses.note("a", now) + 0.0002
        count += 1
    assert count < 3600 + 200


def test_an_hour_of_guessing_is_forgotten_in_minutes():
    """Whoever has the address next, or shares it, does not wait for what was guessed before."""
    misses = Misses(SmtpLimits())
    for number in range(360_000):
        misses.note("a", number / 100)
    assert misses.note("a", 3600.0) == 5.0
    assert misses.note("a", 3600.0 + 201.0) == 0.0
    never = Misses(SmtpLimits(miss_delay=0.0))
    assert {never.note("a", 0.0) for _ in range(300)} == {0.0}


def test_misses_are_forgotten_with_time_and_so_are_peers():
    """An hour later nobody waits; memory is bounded, whatever addresses strangers have."""
    misses = Misses(SmtpLimits())
    for _ in range(1000):
        misses.note("a", 0.0)
    assert misses.note("a", 3600.0) == 0.0
    for number in range(2 * Misses.PEERS):
        misses.note(str(number), 3600.0)
    assert len(misses) <= Misses.PEERS


class Message:
    """One that says when it is forgotten."""

    def __init__(self, budget: MemoryBudget, began: float) -> None:
        self.forgotten = 0
        self.share = budget.share(began, self.forget)

    def forget(self) -> None:
        """Its text is dropped."""
        self.forgotten += 1


def test_the_budget_is_never_overdrawn():
    """What does not fit is forgotten whole, and what it had is for the others."""
    budget = MemoryBudget(LIMITS)
    one, two, three = (Message(budget, 0.0) for _ in range(3))
    one.share.grow(70, 1.0)
    two.share.grow(20, 1.0)
    assert budget.used == 90
    two.share.grow(31, 1.0)
    assert (two.share.lost, two.forgotten, budget.used) == (True, 1, 70)
    two.share.grow(5, 1.0)
    assert (two.share.lost, two.forgotten, budget.used) == (True, 1, 70)
    three.share.grow(30, 1.0)
    assert not three.share.lost
    for message in (one, two, three, three):
        message.share.end()
    assert budget.used == 0


def test_slow_messages_make_room_for_others():
    """The slowest first, no more of them than needed, and only if it helps."""
    budget = MemoryBudget(LIMITS)
    slowest, slow, fast = (Message(budget, 0.0) for _ in range(3))
    slowest.share.grow(20, 1.0)
    slow.share.grow(30, 1.0)
    fast.share.grow(45, 1.0)
    late = Message(budget, 20.0)
    late.share.grow(60, 20.0)  # the slow ones would give 50, which with 5 is too little
    assert late.share.lost
    assert not slowest.share.lost
    later = Message(budget, 20.0)
    later.share.grow(25, 20.0)
    assert not later.share.lost
    assert (slowest.share.lost, slowest.forgotten) == (True, 1)
    assert not slow.share.lost
    assert budget.used == 100
    slow.share.grow(31, 20.0)  # it is the slowest itself
    assert slow.share.lost
    assert not fast.share.lost
    assert budget.used == 70


def test_what_is_new_or_whole_makes_no_room():
    """A message has its time, and one that is being stored keeps its place."""
    budget = MemoryBudget(LIMITS)
    new, whole = Message(budget, 11.0), Message(budget, 0.0)
    new.share.grow(10, 12.0)
    whole.share.grow(1, 20.0)
    whole.share.keep()
    late = Message(budget, 20.0)
    late.share.grow(95, 21.0)
    assert late.share.lost
    assert not new.share.lost
    assert not whole.share.lost


def test_the_budget_holds_two_messages_at_least():
    """However large a message may be."""
    assert SmtpLimits().buffered_bytes == 64 * 1024 * 1024
    assert SmtpLimits(max_message_bytes=10**9).buffered_bytes == 2 * 10**9
    assert SmtpLimits(max_buffered_bytes=5).buffered_bytes == 5


MIB = 1024 * 1024
SHARED = SmtpLimits(
    max_message_bytes=MIB, max_buffered_bytes=10 * MIB, slow_after=10.0, slow_rate=MIB
)


def pooled(places: int = 2) -> list[PooledBudget]:
    """The budgets of so many processes with one board."""
    board = memoryview(array("q", [0] * 2 * places))
    return [PooledBudget(SHARED, board, place) for place in range(places)]


def test_what_one_process_holds_the_others_do_not_have():
    """And whatever two take at the same instant, all together never have more than the limit."""
    here, there = pooled()
    mine, theirs = Message(here, 0.0), Message(there, 0.0)
    mine.share.grow(6 * MIB, 1.0)
    theirs.share.grow(3 * MIB, 1.0)
    assert (here.used, there.used) == (6 * MIB, 3 * MIB)
    assert here.hold(MIB // 2)
    assert not there.hold(MIB // 2), "of a message that came whole"
    here.free(MIB // 2)
    theirs.share.grow(10 * MIB - 6 * MIB, 1.0)
    assert theirs.share.lost, "what may come at once is kept free"
    assert there.used == 0
    mine.share.end()
    late = Message(there, 1.0)
    late.share.grow(9 * MIB, 1.0)
    assert not late.share.lost


def test_a_process_that_lacks_room_is_given_it_by_slow_messages_elsewhere():
    """Not at once: the message that found none is lost, and one a moment later is not."""
    here, there = pooled()
    slow, fast = Message(here, 0.0), Message(here, 19.0)
    slow.share.grow(5 * MIB, 1.0)
    fast.share.grow(4 * MIB, 20.0)
    late = Message(there, 20.0)
    late.share.grow(2 * MIB, 20.0)
    assert late.share.lost
    here.relieve(20.5)
    assert (slow.share.lost, slow.forgotten, fast.share.lost) == (True, 1, False)
    later = Message(there, 21.0)
    later.share.grow(2 * MIB, 21.0)
    assert not later.share.lost


def test_room_that_was_lacked_long_ago_costs_nobody_anything():
    """What was lost was lost; the others are told for a few seconds."""
    here, there = pooled()
    slow = Message(here, 0.0)
    slow.share.grow(9 * MIB, 1.0)
    Message(there, 1.0).share.grow(2 * MIB, 1.0)
    here.relieve(2.0)
    assert not slow.share.lost, "it is not slow yet"
    there.relieve(5.0)
    here.relieve(60.0)
    assert not slow.share.lost
    there.relieve(60.0)
    assert slow.forgotten == 0


def test_of_what_a_peer_may_guess_each_process_has_a_part():
    """Its sessions may be anywhere, and all other limits are as they were."""
    part = part_of(SmtpLimits(), 4)
    assert (part.free_misses, part.misses_forgotten) == (25, 0.25)
    assert part.max_connections == SmtpLimits().max_connections
