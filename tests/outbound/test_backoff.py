"""Back-off: n² units with jitter; pauses of a route."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.backoff import LONGEST_PAUSE, pause, retry_delay


@given(st.integers(1, 100), st.floats(0.001, 3600), st.integers())
def test_the_delay_after_attempt_n_is_n_squared_units_within_a_fifth(
    n: int, unit: float, seed: int
):
    """1, 4, 9 … units, never more than 20 % off."""
    delay = retry_delay(n, unit, random.Random(seed))
    assert 0.8 * n * n * unit <= delay * (1 + 1e-9)
    assert delay <= 1.2 * n * n * unit * (1 + 1e-9)


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
