"""Demand: a claimer that does as it is told always has work for a sender that has none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.active_queue.demand import Demand


class Claimer:
    """Claims other mail than high, as far as it has room for it; there is no end of it."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.room = self.kept = self.held = 0
        self.hear(fresh=True)

    def hear(self, *, fresh: bool = False) -> None:
        """Listen to what the sender says."""
        said = self.demand.grant(self.held, fresh=fresh)
        if said is not None:
            self.room = said.room if fresh else self.room + said.room
            self.kept = said.kept

    def claim(self, most: int, *, high: bool = False) -> int:
        """Claim up to `most`; how many."""
        count = min(most, self.room if high else max(self.room - self.kept, 0))
        self.room -= count
        self.held += count
        self.demand.claimed(count)
        return count


def test_a_sender_at_rest_wants_what_it_can_deliver_and_keeps_half_as_much_for_high():
    """Thirty-two of anything, sixteen of lanes of which little is in hand, eight of such owners,
    sixteen of high."""
    claimer = Claimer(Demand(32))
    assert claimer.kept == 16
    assert claimer.claim(10**6) == 32 + 16 + 8
    assert claimer.claim(10**6) == 0
    assert claimer.claim(10**6, high=True) == 16


def test_what_is_delivered_lately_is_wanted_ahead():
    """Two thousand a second: three hundred more, and a quarter of all to spare."""
    demand = Demand(32)
    demand.note(200, 0.1)
    claimer = Claimer(demand)
    assert claimer.kept == 83
    assert claimer.claim(10**6) == 332 + 83 + 42


def test_little_is_not_worth_a_letter():
    """Unless nothing is held at all."""
    demand = Demand(32)
    claimer = Claimer(demand)
    claimer.claim(10**6)
    assert demand.grant(claimer.held - 7) is None
    assert demand.grant(claimer.held - 8) is not None


def test_what_was_kept_shrinks_with_the_demand():
    """An upstream that was fast becomes slow, and nothing is left behind."""
    demand = Demand(32)
    demand.note(600, 0.1)
    claimer = Claimer(demand)
    claimer.claim(10**6)
    demand.note(0, 0.1)
    claimer.held = 0  # all delivered, one by one
    claimer.hear()
    assert claimer.claim(10**6) > 0


moves = st.tuples(
    st.sampled_from(["deliver", "claim", "high", "tick", "hear"]), st.integers(0, 2000)
)


@given(st.integers(1, 64), st.lists(moves, max_size=80))
def test_who_holds_nothing_gets_something(concurrency: int, what: list[tuple[str, int]]):
    """Whatever happened before, the next look gives other mail room."""
    demand = Demand(concurrency)
    claimer = Claimer(demand)
    for move, number in what:
        if move == "deliver":
            claimer.held -= min(number, claimer.held)
        elif move in {"claim", "high"}:
            claimer.claim(number, high=move == "high")
        elif move == "tick":
            demand.note(number, 0.1)
        claimer.hear()
    claimer.held = 0
    demand.note(0, 0.1)
    claimer.hear()
    assert claimer.claim(10**6) > 0


def test_other_mail_than_high_has_room_where_nothing_ends():
    """Thirty hang; what a few codes have used of the room is given again, as nothing else ends."""
    demand = Demand(32)
    granted = demand.grant(30, fresh=True)
    assert granted == (42, 16)
    demand.claimed(3)
    assert demand.grant(30) is None
    assert demand.grant(30, still=True) == (3, 16)
    assert demand.grant(30, still=True) is None
