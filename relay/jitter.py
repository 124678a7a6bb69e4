"""Chance for times, so that many do not come in the same moment: a quarter more or less.

Never for secrets.  Who is to be tested with seeds takes an `rng`, and asks `new_rng` for one when
it was given none.

Pure.
"""

from __future__ import annotations

import random

SHARE = 0.25
"""How much more or less `jittered` gives at most."""


def new_rng() -> random.Random:
    """A source of chance of one's own."""
    return random.Random()  # noqa: S311 - for times, not for secrets


def jittered(seconds: float, rng: random.Random) -> float:
    """So many seconds, a quarter more or less."""
    return seconds * rng.uniform(1 - SHARE, 1 + SHARE)
