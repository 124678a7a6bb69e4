"""The rate limit by key: bursts, rates, and what is remembered."""

import random

import pytest

from relay.gcra import Gcra

COST, BURST = 0.05, 25.0  # 20 a second, 500 at once


def take(limit: Gcra[str], key: str, now: float) -> float:
    """Take one at 20 a second and 500 at once."""
    return limit.take(key, now, cost=COST, burst=BURST)


def test_a_burst_passes_then_the_rate_holds():
    """Five hundred at once, then one every twentieth of a second, and the wait is exact."""
    limit = Gcra[str]()
    assert [take(limit, "a", 7.0) for _ in range(500)] == [0.0] * 500
    assert take(limit, "a", 7.0) == pytest.approx(COST)
    assert take(limit, "a", 7.02) == pytest.approx(0.03)
    assert take(limit, "a", 7.05) == 0.0
    assert take(limit, "a", 7.05) > 0
    assert take(limit, "b", 7.05) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_burst_and_rate_in_any_time(seed: int):
    """However it is asked for: counted over every interval between two that passed."""
    rng, limit, now = random.Random(seed), Gcra[str](), 0.0
    passed = []
    for _ in range(2000):
        now += rng.choice((0.0, 0.001, 0.04, 0.3))
        if not limit.take("a", now, cost=0.1, burst=1.0):
            passed.append(now)
    for first in range(0, len(passed), 7):
        for last in range(first, len(passed), 13):
            assert last - first + 1 <= 10 + (passed[last] - passed[first]) / 0.1 + 1e-6


def test_one_may_always_come():
    """What costs more than the burst passes for who is at rest, and is paid for then."""
    limit = Gcra[str]()
    assert limit.take("a", 0.0, cost=60.0, burst=30.0) == 0.0
    assert limit.take("a", 10.0, cost=1.0, burst=30.0) == pytest.approx(21.0)


def test_a_refusal_changes_nothing():
    """Nothing is remembered of it, and the wait grows no longer."""
    limit = Gcra[str]()
    for _ in range(500):
        take(limit, "a", 0.0)
    waits = {take(limit, "a", 0.0) for _ in range(100)}
    assert len(waits) == 1
    assert limit.wait("b", 0.0, cost=COST, burst=BURST) == 0.0
    assert len(limit) == 1


def test_what_is_spent_without_asking_counts():
    """For what is only known afterwards, as a wrong code is."""
    limit = Gcra[str]()
    for _ in range(20):
        assert limit.wait("a", 0.0, 15.0, 300.0) == 0.0
        limit.spend("a", 0.0, 15.0)
    assert limit.wait("a", 0.0, 15.0, 300.0) == pytest.approx(15.0)
    assert limit.used("a", 100.0) == pytest.approx(200.0)


def test_who_is_at_rest_is_forgotten():
    """The table follows the uses of the last burst's time."""
    limit = Gcra[int]()
    for number in range(100_000):
        limit.take(number, number * 0.01, cost=COST, burst=BURST)
        assert len(limit) < 1100


def test_above_the_most_who_used_it_longest_ago_is_forgotten():
    """Whatever strangers invent; who has just come is remembered."""
    limit = Gcra[int](100)
    for number in range(1000):
        limit.spend(number, 0.0, 10.0)
        limit.spend(-1, 0.0, 0.1)
        assert len(limit) <= 100
    assert limit.used(-1, 0.0) == pytest.approx(100.0)
    assert all(number in limit for number in range(950, 1000))
    assert 0 not in limit
