"""The right of way of high mail: while some is on its way, nothing lower is begun.

It is held from when high mail is known to be due until it is delivered, no longer than
`RightOfWay.MOST` seconds; then others go for at least as long as they were held up.  So a one-time
code does not wait behind a backlog, and no stream of codes stops everything else.

Fails: never.  Pure: instants are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable


class RightOfWay:
    """Whether what is not high has to wait, because something high is on its way."""

    MOST = 1.0
    """Seconds that the rest is held up at most."""

    __slots__ = ("_began", "_expected", "_rests_until", "_under_way", "until")

    def __init__(self) -> None:
        self.until = -math.inf
        """The instant at which the rest may go on at the latest."""
        self._began = -math.inf
        self._expected = False
        self._rests_until = -math.inf
        self._under_way: set[Hashable] = set()

    def held(self, now: float) -> bool:
        """Whether nothing lower may be begun."""
        return now < self.until

    def expect(self, now: float) -> None:
        """High mail is being queued, or is due and being claimed."""
        if self._hold(now):
            self._expected = True

    def nothing(self, now: float) -> bool:
        """What was expected does not come.  True if the rest may go on."""
        self._expected = False
        return self._release(now)

    def arrived(self, job: Hashable, now: float) -> None:
        """A high job is in hand."""
        if self._hold(now):
            self._expected = False
            self._under_way.add(job)

    def ended(self, job: Hashable, now: float) -> bool:
        """A high job has ended.  True if the rest may go on."""
        self._under_way.discard(job)
        return self._release(now)

    def _hold(self, now: float) -> bool:
        """Whether it is held now, from now on if need be."""
        if now < self.until:
            return True
        if self.until > self._began:  # what was on its way took too long
            self._rests_until = self.until + self.MOST
            self._under_way.clear()
        self._began = self.until = now
        if now < self._rests_until:
            return False
        self.until = now + self.MOST
        return True

    def _release(self, now: float) -> bool:
        if now >= self.until or self._expected or self._under_way:
            return False
        self._rests_until = now + (now - self._began)
        self._began = self.until = now
        return True
