"""Identifiers: their form, and their order."""

import time

from relay.ids import Ids, new_id, new_ids


def test_ids_are_of_version_7_with_their_time_in_front():
    """Version and variant as RFC 9562 has them, and the milliseconds of the clock."""
    before = time.time_ns() // 1_000_000
    made = [new_id() for _ in range(2000)]
    after = time.time_ns() // 1_000_000
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}
    assert all(before <= one.int >> 80 <= after + 1 for one in made)
    together = new_ids(100)
    assert made[-1] < together[0] < together[-1] < new_id()
    assert together == sorted(together)
    assert len({one.int & (1 << 62) - 1 for one in made}) == len(made)


def test_ids_of_one_moment_rise():
    """However coarse the clock is, and however many are made at once."""
    ids = Ids(lambda: 1_795_209_753_123_456_789)
    made = [ids.new() for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert made[0].int >> 80 == 1_795_209_753_123


def test_a_clock_that_is_set_back_starts_anew():
    """By a little, ids go on rising; by more than a second they have the new time."""
    clock = [1_795_209_753_000_000_000]
    ids = Ids(lambda: clock[0])
    first = ids.new()
    clock[0] -= 900_000_000
    assert first < ids.new()
    clock[0] -= 3_600_000_000_000
    assert ids.new().int >> 80 == clock[0] // 1_000_000


def test_ids_that_are_made_together_lie_together():
    """The copies of one mail are told by it: whoever makes them may be held up in between."""
    clock = iter(range(1_795_209_753_000_000_000, 2_000_000_000_000_000_000, 1_000_000_000))
    ids = Ids(lambda: next(clock))
    made = ids.several(1000)
    assert made == sorted(made)
    assert made[-1].int - made[0].int < 1 << 80  # a millisecond
