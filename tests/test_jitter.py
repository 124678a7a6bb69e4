"""Times that differ by chance: a quarter more or less, and by a seed always the same."""

import random

from relay.chance import new_rng
from relay.jitter import jittered


def test_a_quarter_more_or_less():
    """Never beyond it, and over the whole of it."""
    rng = random.Random(1)
    found = [jittered(8.0, rng) for _ in range(2000)]
    assert 6.0 <= min(found) < 6.1
    assert 9.9 < max(found) <= 10.0


def test_two_sources_differ():
    """Each has its own chance."""
    assert jittered(1.0, new_rng()) != jittered(1.0, new_rng())
