"""How late those who guess are answered."""

from __future__ import annotations

import itertools

from relay.smtp.misses import Misses


def seconds_of(delay: float) -> Misses:
    """A hundred free misses, and each one more so much later."""
    return Misses(100, delay=delay, longest=5.0, forgotten=1.0)


def test_who_guesses_is_told_ever_later_and_nobody_else():
    """The first misses are free, then each is later than the one before, up to a bound."""
    misses = seconds_of(0.05)
    delays = [misses.note("a", 0.0) for _ in range(300)]
    assert delays[:100] == [0.0] * 100
    assert all(later > sooner for sooner, later in itertools.pairwise(delays[99:199]))
    assert delays[-1] == 5.0
    assert misses.note("b", 0.0) == 0.0


def test_a_guesser_alone_comes_down_to_a_miss_a_second():
    """However long it goes on: 5,800 a second was the rate without."""
    misses, now, count = seconds_of(0.05), 0.0, 0
    while now < 3600:
        now += misses.note("a", now) + 0.0002
        count += 1
    assert count < 3600 + 200


def test_an_hour_of_guessing_is_forgotten_in_minutes():
    """Whoever has the address next, or shares it, does not wait for what was guessed before."""
    misses = seconds_of(0.05)
    for number in range(360_000):
        misses.note("a", number / 100)
    assert misses.note("a", 3600.0) == 5.0
    assert misses.note("a", 3600.0 + 201.0) == 0.0
    never = seconds_of(0.0)
    assert {never.note("a", 0.0) for _ in range(300)} == {0.0}


def test_misses_are_forgotten_with_time_and_so_are_peers():
    """An hour later nobody waits; memory is bounded, whatever addresses strangers have."""
    misses = seconds_of(0.05)
    for _ in range(1000):
        misses.note("a", 0.0)
    assert misses.note("a", 3600.0) == 0.0
    for number in range(2 * Misses.PEERS):
        misses.note(str(number), 3600.0)
    assert len(misses) <= Misses.PEERS
