"""How long to wait: after a failed attempt, until the last, and for who throttles.

Promises
- The delay after attempt n is n² units, give or take at most a fifth, and never below nought.
- Of mail whose attempts are counted, number `max_attempts` is the last, as the settings say.
- Mail with a lifetime is due again within an hour (of 60 units, jitter apart) of each failure, and
  until it is so old: an outage of its receiver that is shorter loses none of it (RFC 5321, 4.5.4.1,
  asks for four or five days).  Behind a gate it may wait for longer than an hour.  One failure ends
  nothing: mail that waited here for so long, where the relay itself was away or paused, is not
  given up for being told to come again.
- After an attempt that its receiver may have taken the delay grows on, n² units whatever the
  lifetime: one that takes all and never says so gets 28 copies in five days, and not 125.
- A pause never exceeds ten units, jitter included.

The jitter is what keeps an outage's messages from coming back all in the same second.

Fails with `ValueError` for an attempt below 1.  Pure; the random source is given, so a test knows
what comes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Self

JITTER = 0.2
"""Largest part of a delay by which it is longer or shorter than the formula says."""

MOMENT = 1 / 16
"""Units after which what stands in the way may be over: the first pause, and the shortest wait."""

LONGEST_DELAY = 60
"""Units between two attempts of mail with a lifetime, jitter apart: an hour of minutes."""

MOST_ATTEMPTS = 10_000
"""Attempts of mail with a lifetime, however long that is: a count has 15 bits in the database."""

LONGEST_PAUSE = 10
"""Units that a throttled or failing route is left alone at most."""


def retry_delay(attempt: int, unit: float, rng: random.Random, longest: float = math.inf) -> float:
    """Return the seconds to wait after the failed attempt number `attempt` (from 1).

    `longest`: how many units at most, jitter apart.
    """
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    return min(attempt**2, longest) * unit * rng.uniform(1 - JITTER, 1 + JITTER)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a message is tried again, and which attempt is its last.

    `unit` and `lifetime` in seconds, `longest` in units.  Attempts are counted from 1, since the
    message was queued or queued again by hand; so is its age, from when it was first due.
    """

    unit: float
    max_attempts: int
    lifetime: float = math.inf
    longest: float = math.inf

    @classmethod
    def for_lifetime(cls, unit: float, lifetime: float) -> Self:
        """The schedule of mail that is tried for `lifetime` seconds, and not so many times."""
        return cls(unit, MOST_ATTEMPTS, lifetime, LONGEST_DELAY)

    def is_last(self, attempt: int, age: float) -> bool:
        """Whether none follows failed attempt number `attempt`, at an age of `age` seconds."""
        return attempt >= self.max_attempts or (attempt > 1 and age >= self.lifetime)

    def delay(self, attempt: int, rng: random.Random, *, in_doubt: bool = False) -> float:
        """Return the seconds to wait after the failed attempt number `attempt`.

        `in_doubt`: the receiver may have taken it.
        """
        return retry_delay(attempt, self.unit, rng, math.inf if in_doubt else self.longest)


def pause(strikes: int, unit: float, rng: random.Random) -> float:
    """Return the seconds to leave a route alone after `strikes` troubles in a row (from 1).

    A sixteenth of a unit at first, doubling with each, at most `LONGEST_PAUSE` units.
    """
    if strikes < 1:
        raise ValueError(f"strikes are counted from 1, not {strikes}")
    units = min(2.0 ** min(strikes - 1, 30) * MOMENT, LONGEST_PAUSE / (1 + JITTER))
    return units * unit * rng.uniform(1 - JITTER, 1 + JITTER)
