"""How long to wait for something that is away: a little at first, then twice as long each time.

    outage = Outage()
    while True:
        try:
            work()
        except DatabaseUnavailable as error:
            if not outage.is_on:
                log.warning("waits_for_database", reason=str(error))
            wait(outage.lost())
        else:
            if outage.over():
                log.info("recovered")

Promises: a pause is between `first` and `longest` seconds, a quarter more or less where there is a
source of chance (many who wait for one thing must not come back in the same moment).

Fails: never.  Pure.
"""

from __future__ import annotations

import random

from relay.jitter import jittered

FIRST, LONGEST = 0.1, 5.0
"""Seconds of the pauses unless told otherwise."""


class Outage:
    """Whether something is away, and the pause before the next attempt."""

    def __init__(
        self, first: float = FIRST, longest: float = LONGEST, rng: random.Random | None = None
    ) -> None:
        """Pauses in seconds; without `rng` they are not varied."""
        self._first = first
        self._longest = longest
        self._rng = rng
        self._pause = 0.0  # the last one; 0 when there is no outage
        self.attempts = 0
        """How many have failed since it began."""

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._pause > 0

    def lost(self) -> float:
        """An attempt failed; return the seconds to wait before the next."""
        self.attempts += 1
        self._pause = min(self._longest, self._pause * 2 or self._first)
        return self._pause if self._rng is None else jittered(self._pause, self._rng)

    def over(self) -> bool:
        """An attempt succeeded; return whether that ended an outage."""
        was_on, self._pause, self.attempts = self.is_on, 0.0, 0
        return was_on
