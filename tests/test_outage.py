"""Pauses in an outage: they double up to a bound, and begin anew after it."""

import random

import pytest

from relay.outage import Outage


def test_pauses_double_up_to_the_longest():
    """From a tenth of a second to five."""
    outage = Outage()
    assert [outage.lost() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_the_next_outage_begins_with_the_first_pause():
    """What ended one is told once."""
    outage = Outage(1.0, 60.0)
    assert not outage.is_on
    assert not outage.over()
    outage.lost()
    outage.lost()
    assert outage.is_on
    assert outage.attempts == 2
    assert outage.over()
    assert not outage.is_on
    assert outage.attempts == 0
    assert not outage.over()
    assert outage.lost() == 1.0


def test_many_who_wait_do_not_come_back_together():
    """A quarter more or less, and the doubling is of what was meant."""
    outages = [Outage(1.0, 4.0, random.Random(seed)) for seed in range(50)]
    for meant in (1.0, 2.0, 4.0, 4.0):
        pauses = [outage.lost() for outage in outages]
        assert min(pauses) == pytest.approx(0.75 * meant, rel=0.05)
        assert max(pauses) == pytest.approx(1.25 * meant, rel=0.05)
