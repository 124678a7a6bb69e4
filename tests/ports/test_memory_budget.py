"""What the messages of all sessions may hold together."""

from __future__ import annotations

import math
from array import array

import pytest

from relay.ports.memory_budget import SMALL, MemoryBudget, PooledBudget, Share

MIB = 1024 * 1024
CHUNK = 64 * 1024
LARGEST = 25 * MIB


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
    budget = MemoryBudget(100, slow_after=10.0, slow_rate=2)
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
    budget = MemoryBudget(100, slow_after=10.0, slow_rate=2)
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
    budget = MemoryBudget(100, slow_after=10.0, slow_rate=2)
    new, whole = Message(budget, 11.0), Message(budget, 0.0)
    new.share.grow(10, 12.0)
    whole.share.grow(1, 20.0)
    whole.share.keep()
    late = Message(budget, 20.0)
    late.share.grow(95, 21.0)
    assert late.share.lost
    assert not new.share.lost
    assert not whole.share.lost


def pooled(places: int = 2) -> list[PooledBudget]:
    """The budgets of so many processes with one board."""
    board = memoryview(array("q", [0] * 3 * places))
    return [
        PooledBudget(board, place, 10 * MIB, largest=MIB, slow_after=10.0, slow_rate=MIB)
        for place in range(places)
    ]


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


# ---------------------------------------------------------------------------- large ones


def roomy(patience: float = 120.0) -> MemoryBudget:
    """The budget of a port as it is by default."""
    return MemoryBudget(
        64 * MIB, slow_after=10.0, slow_rate=256 * 1024, largest=LARGEST, patience=patience
    )


class Sender:
    """One that sends a message at a pace (bytes a second), for as long as it is read."""

    def __init__(
        self,
        budget: MemoryBudget,
        began: float,
        size: int,
        pace: float = math.inf,
        *,
        stalls_at: float = math.inf,
        announced: int = 0,
        peer: str = "",
    ) -> None:
        self.share = budget.share(began, self._forget, announced, peer)
        self.size, self._pace, self._stalls_at = size, pace, stalls_at
        self.sent = self._due = 0.0
        self.taken = 0
        """What the relay has of it."""
        self.waits = False
        self.accepted = self.refused = False

    def _forget(self) -> None:
        self.taken = 0

    def _go_on(self) -> None:
        self.waits = False
        self._woken = True

    def step(self, now: float, seconds: float) -> None:
        """Send on for so long, one chunk at most."""
        if self.accepted or self.refused or self.waits:
            return
        if getattr(self, "_woken", False):
            self._woken = False
            self.share.go_on(now)
        self._due = min(self._due + self._pace * seconds, CHUNK)
        most = CHUNK if not 0 < self.taken < SMALL else SMALL - self.taken
        count = int(min(self._due, most, self.size - self.sent, self._stalls_at - self.sent))
        self._due -= count if self._pace < math.inf else 0
        if count <= 0:
            return
        self.sent += count
        if not self.share.lost:
            self.taken += count
            waiting = self.share.grow(self.taken, now)
            if self.sent < self.size and waiting is not None and not waiting.settled:
                self.waits = True
                waiting.then(self._go_on)
        if self.sent == self.size:
            self.share.keep()
            self.accepted, self.refused = not self.share.lost, self.share.lost
            self.share.end()


def run(
    budget: MemoryBudget,
    senders: list[Sender],
    until: float,
    began: float = 0.0,
    awaited: list[Sender] | None = None,
) -> float:
    """Have them all send until the awaited (all) are done, or it is so late; return the instant.

    The budget is looked at every second, and never overdrawn.
    """
    now, looked = began, began
    step = 0.05
    while now < until and not all(one.accepted or one.refused for one in awaited or senders):
        now += step
        for one in senders:
            one.step(now, step)
        assert sum(one.share.size for one in senders) <= budget.used <= budget.total
        if now - looked >= 1.0:
            looked = now
            budget.relieve(now)
    return now


def test_a_hundred_large_messages_at_once_are_all_taken():
    """Those for whom there is no room wait, and two at least are read at any time."""
    budget = roomy(patience=math.inf)
    senders = [Sender(budget, 0.0, LARGEST) for _ in range(100)]
    one_alone = LARGEST / CHUNK * 0.05
    took = run(budget, senders, 10_000)
    assert all(one.accepted for one in senders)
    assert took < 1.1 * 100 * one_alone / 2
    assert budget.used == 0
    assert not budget._line
    assert not budget._rooms
    assert budget._beside == 0


def test_small_messages_never_wait_and_find_room_whatever_large_ones_do():
    """A sixteenth is theirs, and then the room of those who wait."""
    budget = roomy()
    large = [Sender(budget, 0.0, LARGEST) for _ in range(1000)]
    for tick in range(1, 20):
        for one in large:
            one.step(tick * 0.05, 0.05)
    lost = sum(one.share.lost for one in large)
    small = [Message(budget, 2.0) for _ in range(700)]
    for message in small:
        assert message.share.grow(SMALL - 1, 2.0) is None
        assert not message.share.lost
    assert budget.used <= budget.total
    more = [one for one in large if one.share.lost]
    assert len(more) > lost
    assert not any(one.share.room for one in more), "who has a room keeps it"
    assert len(budget._rooms) >= 1
    for message in small:
        message.share.end()


@pytest.mark.parametrize("first", [2 * SMALL, 8 * MIB, 20 * MIB])
def test_who_stalls_in_a_room_does_not_keep_it(first: int):
    """However much came before: another large message is taken soon."""
    budget = roomy()
    stalled = [Sender(budget, 0.0, LARGEST, stalls_at=first) for _ in range(100)]
    run(budget, stalled, until=first / CHUNK * 0.05 * 4 + 1)
    began = 60.0
    honest = Sender(budget, began, LARGEST, peer="another")
    took = run(budget, [*stalled, honest], began + 60, began, [honest]) - began
    assert honest.accepted, took
    assert any(one.waits for one in stalled)


def test_a_hundred_slow_senders_do_not_hold_up_a_fast_one():
    """It goes before those that wait, and rooms are taken back from those that have them."""
    budget = roomy()
    slow = [Sender(budget, 0.0, LARGEST, pace=20 * 1024) for _ in range(100)]
    assert run(budget, slow, until=60.0) >= 60.0
    honest = Sender(budget, 60.0, LARGEST)
    took = run(budget, [*slow, honest], until=200.0, began=60.0, awaited=[honest]) - 60.0
    assert honest.accepted
    alone = LARGEST / CHUNK * 0.05
    assert took < alone + 10
    assert not any(one.accepted for one in slow)


def test_slow_senders_alone_are_all_taken():
    """Nobody else wants their room."""
    budget = roomy()
    slow = [Sender(budget, 0.0, 2 * MIB, pace=50 * 1024) for _ in range(4)]
    run(budget, slow, until=100.0)
    assert all(one.accepted for one in slow)


def test_nobody_waits_for_ever():
    """After so many seconds it is refused, at its end, as if nothing had been read of it."""
    budget = roomy(patience=5.0)
    whole = [Message(budget, 0.0) for _ in range(2)]
    for one in whole:
        assert one.share.grow(29 * MIB, 1.0) is None
        one.share.keep()  # it is being stored
    late = Sender(budget, 1.0, LARGEST)
    run(budget, [late], until=5.0, began=1.0)
    assert late.waits
    run(budget, [late], until=100.0, began=5.0)
    assert late.refused
    assert late.share.lost
    assert budget.used == 58 * MIB


def test_who_announces_its_size_needs_no_more_room_than_that():
    """So that more than two are read at once, and a wrong announcement gains nothing."""
    rooms: dict[int, int] = {}
    for announced in (0, 4 * MIB):
        budget = roomy()
        senders = [Sender(budget, 0.0, 4 * MIB, announced=announced) for _ in range(100)]
        for tick in range(1, 40):
            for one in senders:
                one.step(tick * 0.05, 0.05)
        rooms[announced] = sum(one.share.room for one in senders)
        run(budget, senders, until=1000.0, began=2.0)
        assert all(one.accepted for one in senders)
        assert budget.used == 0
    assert rooms[0] <= 2
    assert rooms[4 * MIB] >= 10
    budget = roomy(patience=math.inf)
    liars = [Sender(budget, 0.0, LARGEST, announced=MIB) for _ in range(100)]
    honest = Sender(budget, 0.0, LARGEST)
    run(budget, [*liars, honest], until=2_000.0)
    assert honest.accepted
    assert sum(one.accepted for one in liars) > 20
    assert budget.used == 0


def test_those_that_wait_for_each_other_lose_the_last():
    """Whatever brought them there: the first goes on."""
    budget = roomy()
    crowd = [Sender(budget, 0.0, LARGEST) for _ in range(6)]
    for one in crowd:
        one.share.grow(SMALL + 1, 0.5)
        one.taken = one.share.size
    for one in crowd:  # as no message grows
        one.taken = 10 * MIB
        waiting = one.share.grow(one.taken, 0.6)
        one.sent = one.taken
        one.waits = waiting is not None
        if waiting is not None:
            waiting.then(one._go_on)
    run(budget, crowd, until=100.0)
    assert all(one.accepted or one.refused for one in crowd)
    assert sum(one.accepted for one in crowd) >= 3
    assert crowd[0].accepted
    assert crowd[-1].refused
    assert budget.used == 0


def test_who_ends_while_it_waits_leaves_the_line():
    """And what it had is for the next, at once."""
    budget = roomy()
    crowd = [Sender(budget, 0.0, LARGEST) for _ in range(200)]
    for tick in range(1, 40):
        for one in crowd:
            one.step(tick * 0.05, 0.05)
    waiting = [one for one in crowd if one.waits]
    assert len(waiting) > 100
    for one in crowd:
        one.share.end()
    assert budget.used == 0
    assert not any(one.waits for one in crowd)
    assert not budget._line


def test_one_that_keeps_nothing_any_more_gives_its_room_back():
    """A message over the limit is read to its end, in no room."""
    budget = roomy()
    one = Message(budget, 0.0)
    one.share.grow(24 * MIB, 1.0)
    assert one.share.room
    one.share.grow(4, 1.0)
    assert (one.share.room, budget.used) == (False, 4)
    one.share.end()
    assert budget.used == 0


def test_a_crowd_that_is_served_from_within_is_served_flat():
    """What is settled may give back, and that may settle more, as often as it likes."""
    budget = MemoryBudget(64 * MIB, largest=MIB)
    shares = [Message(budget, 0.0).share for _ in range(900)]
    for share in shares:
        share.grow(SMALL, 0.0)
    waiting = [share for share in shares if share.waiting]
    assert len(waiting) > 400
    for share in waiting:
        assert share.waiting is not None
        share.waiting.then(share.end)
    for share in shares:
        if share not in waiting:
            share.end()
    assert budget.used == 0


def test_processes_share_rooms_too():
    """Who waits here goes on when there is room there, a second later, and nothing is overdrawn."""
    board = memoryview(array("q", [0] * 6))
    here, there = (
        PooledBudget(
            board, place, 64 * MIB, largest=LARGEST, slow_after=10.0, slow_rate=256 * 1024
        )
        for place in range(2)
    )  # fmt: skip
    senders = [Sender(here, 0.0, LARGEST) for _ in range(20)]
    others = [Sender(there, 0.0, LARGEST) for _ in range(20)]
    now = 0.0
    while now < 2000 and not all(one.accepted or one.refused for one in senders + others):
        now += 0.05
        for one in senders + others:
            one.step(now, 0.05)
        assert here.used + there.used <= 64 * MIB
        if int(now) != int(now - 0.05):
            here.relieve(now)
            there.relieve(now)
    assert sum(one.accepted for one in senders + others) == 40, now
    assert (here.used, there.used) == (0, 0)


def test_a_room_that_two_processes_take_at_once_is_given_back():
    """Neither has looked after the other had written: both see it, and wait."""
    board = memoryview(array("q", [0] * 6))
    here, there = (PooledBudget(board, place, 50 * MIB, largest=LARGEST) for place in range(2))

    class Late(PooledBudget):
        """Somebody else takes a room just after it has looked."""

        def _lacking(self, share: Share) -> int:
            lacking = super()._lacking(share)
            board[3] = 40 * MIB
            return lacking

    here = Late(board, 0, 50 * MIB, largest=LARGEST)
    crowd = [Message(here, 0.0) for _ in range(4)]
    for one in crowd:
        one.share.grow(3 * MIB, 0.0)
    assert not any(one.share.room for one in crowd)
    assert any(one.share.waiting for one in crowd)
    for one in crowd:
        one.share.end()
    assert (here.used, board[2], there.used, board[3]) == (0, 0, 0, 40 * MIB)
