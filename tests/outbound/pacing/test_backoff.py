"""Back-off: n² units with jitter; pauses of a route."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.pacing.backoff import LONGEST_PAUSE, Schedule, pause, retry_delay


@given(st.integers(1, 100), st.floats(0.001, 3600), st.integers())
def test_the_delay_after_attempt_n_is_n_squared_units_within_a_fifth(
    n: int, unit: float, seed: int
):
    """1, 4, 9 … units, never more than 20 % off."""
    delay = retry_delay(n, unit, random.Random(seed))
    assert 0.8 * n * n * unit <= delay * (1 + 1e-9)
    assert delay <= 1.2 * n * n * unit * (1 + 1e-9)


def test_attempts_that_are_counted_end_by_their_number_alone():
    """However old the message is; the delays grow without an end."""
    schedule = Schedule(60.0, 10)
    assert [schedule.is_last(n, 1e9) for n in (1, 9, 10, 11)] == [False, False, True, True]
    assert schedule.delay(100, random.Random(1)) >= 0.8 * 100**2 * 60.0


def test_five_days_are_about_as_many_attempts_as_hours():
    """Of a message that nothing else holds up, in its own time: each of the gaps is within 72 min,
    and the last is behind the lifetime."""
    day = 86_400.0
    schedule, rng = Schedule.for_lifetime(60.0, 5 * day), random.Random(1)
    attempt, age, gaps = 1, 0.0, []
    while not schedule.is_last(attempt, age):
        gaps.append(schedule.delay(attempt, rng))
        attempt, age = attempt + 1, age + gaps[-1]
    assert 5 * day <= age <= 5 * day + 1.2 * 3600.0
    assert 120 <= attempt <= 130
    assert max(gaps) <= 1.2 * 3600.0


def test_what_may_have_been_taken_is_copied_some_thirty_times_at_most():
    """By one who takes it each time and never says so, within five days."""
    schedule, rng = Schedule.for_lifetime(60.0, 5 * 86_400.0), random.Random(1)
    attempt, age = 1, 0.0
    while not schedule.is_last(attempt, age):
        age += schedule.delay(attempt, rng, in_doubt=True)
        attempt += 1
    assert attempt <= 30


def test_a_count_of_attempts_stays_within_what_the_database_takes():
    """A lifetime without an end, and no delay at all, are no endless attempts."""
    schedule = Schedule.for_lifetime(0.0, float("inf"))
    assert next(n for n in range(1, 2**15) if schedule.is_last(n, 0.0)) <= 2**15 // 3


def test_the_jitter_spreads_over_its_whole_width():
    """An outage's messages do not come back in one second."""
    rng = random.Random(1)
    delays = [retry_delay(1, 60.0, rng) for _ in range(1000)]
    assert min(delays) < 49
    assert max(delays) > 71


@given(st.integers(1, 10**9), st.floats(0.001, 3600), st.integers())
def test_a_pause_is_above_nought_and_never_above_ten_units(strikes: int, unit: float, seed: int):
    """However long a destination throttles, it is tried again soon enough to be noticed."""
    assert 0 < pause(strikes, unit, random.Random(seed)) <= LONGEST_PAUSE * unit


def test_pauses_grow_with_the_strikes():
    """Each trouble in a row doubles the pause, up to the longest."""
    rng = random.Random(2)
    means = [sum(pause(n, 1.0, rng) for _ in range(500)) / 500 for n in range(1, 9)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(1 / 16, rel=0.05)


def test_there_is_no_attempt_nought():
    """Counting from nought would retry at once, for ever."""
    for function in (retry_delay, pause):
        with pytest.raises(ValueError, match="counted from 1"):
            function(0, 1.0, random.Random(0))
