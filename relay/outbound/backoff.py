"""How long to wait: after a failed attempt, and for a destination that throttles.

Promises: the delay after attempt n is n² units, give or take at most a fifth, and never below
nought; a pause never exceeds ten units, jitter included.  The jitter is what keeps an outage's
messages from coming back all in the same second.

Fails with `ValueError` for an attempt below 1.  Pure; the random source is given, so a test knows
what comes.
"""

from __future__ import annotations

import random

JITTER = 0.2
"""Largest part of a delay by which it is longer or shorter than the formula says."""

MOMENT = 1 / 16
"""Units after which what stands in the way may be over: the first pause, and the shortest wait."""

LONGEST_PAUSE = 10
"""Units that a throttled or failing route is left alone at most."""


def retry_delay(attempt: int, unit: float, rng: random.Random) -> float:
    """Return the seconds to wait after the failed attempt number `attempt` (from 1)."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    return attempt**2 * unit * rng.uniform(1 - JITTER, 1 + JITTER)


def pause(strikes: int, unit: float, rng: random.Random) -> float:
    """Return the seconds to leave a route alone after `strikes` troubles in a row (from 1).

    A sixteenth of a unit at first, doubling with each, at most `LONGEST_PAUSE` units.
    """
    if strikes < 1:
        raise ValueError(f"strikes are counted from 1, not {strikes}")
    units = min(2.0 ** min(strikes - 1, 30) * MOMENT, LONGEST_PAUSE / (1 + JITTER))
    return units * unit * rng.uniform(1 - JITTER, 1 + JITTER)
