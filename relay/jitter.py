"""Chance for times, so that many do not come in the same moment: a quarter more or less.

Pure.
"""

from __future__ import annotations

import random

SHARE = 0.25
"""How much more or less `jittered` gives at most."""


def jittered(seconds: float, rng: random.Random) -> float:
    """So many seconds, a quarter more or less."""
    return seconds * rng.uniform(1 - SHARE, 1 + SHARE)
