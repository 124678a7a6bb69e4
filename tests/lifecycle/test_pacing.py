"""The clockwork of a collector, on a clock of the test's own."""

from __future__ import annotations

import math
import random

import pytest

from relay.lifecycle.batching import Adaptive, Fixed
from relay.lifecycle.pacing import Pacing


def drained(law: Fixed | Adaptive) -> Pacing:
    """A pacing whose drain of the start, and first sweep, are over."""
    pacing = Pacing(law, 4.0, random.Random(1))
    assert pacing.decide(0.0) == "drain"
    law.sent(0, 0.0, "drain")
    assert pacing.wants_sweep(0.0)
    pacing.swept(0.0, 0)
    return pacing


def test_it_begins_with_what_is_queued_and_a_sweep():
    """Then it has nothing to do until the next sweep, a quarter early or late."""
    pacing = drained(Fixed(3, 5.0))
    assert pacing.decide(0.0) is None
    assert 3.0 <= pacing.next_at() <= 5.0


def test_many_wake_ups_have_one_count():
    """A count that took 10 ms is followed by 50 ms without one, and then there is one."""
    law = Fixed(3, 5.0)
    pacing = drained(law)
    law.woken(1.0)
    assert pacing.wants_count(1.0)
    pacing.counted(2, 1.0, 1.01)
    assert pacing.decide(1.01) is None
    law.woken(1.02)
    assert not pacing.wants_count(1.02)
    assert pacing.decide(1.02) is None
    assert pacing.next_at() == pytest.approx(1.06)
    assert pacing.wants_count(1.06)
    pacing.counted(3, 1.06, 1.07)
    assert pacing.decide(1.07) == "limit"


def test_adaptive_needs_no_count():
    """It takes and sees."""
    law = Adaptive(3, 5.0)
    pacing = drained(law)
    law.woken(1.0)
    assert not pacing.wants_count(1.0)
    assert pacing.decide(1.0) == "drain"


def test_it_rests_while_the_budget_has_nothing():
    """And looks again by itself, at the latest after a minute."""
    law = Adaptive(3, 5.0)
    pacing = drained(law)
    pacing.rest(1.0, 2.5)
    law.woken(2.0)
    assert pacing.decide(2.0) is None
    assert pacing.decide(3.5) == "drain"
    pacing.rest(4.0, 86400.0)
    pacing.swept(4.0, 0)
    assert pacing.decide(63.0) is None
    assert pacing.decide(64.0) == "drain"


@pytest.mark.parametrize("law", [Fixed(10, 5.0), Adaptive(10, 5.0)])
def test_what_was_refused_leaves_letters_for_the_next_batch_at_once(law: Fixed | Adaptive):
    """However short the batch was: nobody has to announce what waits."""
    pacing = drained(law)
    pacing.rest(1.0, 0.0)
    assert pacing.next_at() == -math.inf
    assert pacing.decide(1.0) == "drain"


def test_what_a_sweep_finds_goes_out():
    """Without any wake-up."""
    for law, at in ((Adaptive(3, 5.0), 4.0), (Fixed(3, 5.0), 4.5)):
        pacing = drained(law)
        pacing.swept(4.0, 1)
        if pacing.wants_count(at):
            pacing.counted(1, at, at)
        assert pacing.decide(at) == ("drain" if isinstance(law, Adaptive) else "timeout")


def test_outages_are_met_with_growing_pauses():
    """Up to five seconds, give or take; afterwards everything is looked at anew."""
    law = Fixed(3, 5.0)
    pacing = drained(law)
    pauses = [pacing.lost() for _ in range(10)]
    assert 0.07 < pauses[0] < 0.13
    assert all(3.75 <= pause <= 6.25 for pause in pauses[-3:])
    assert pacing.is_lost
    assert pacing.decide(9.0) == "drain"
    assert pacing.wants_sweep(9.0)
    assert pacing.next_at() == -math.inf
    pacing.recovered()
    assert not pacing.is_lost
    assert pacing.lost() < 0.13
