"""Pacing of a collector: when to count what waits, take it, rest, sweep, and try again.

Around the timing of batches (`batching`) it decides for the relay's collector and `relay collect`
alike: how often counting is worth what it costs, how long to rest when the budget is used up, when
to look for what nobody announced, how long to wait for a database that is away.

Fails: never.  Pure: instants are of the caller's clock, in seconds, and nothing here waits.
"""

from __future__ import annotations

import math
import random

from relay.db import channels
from relay.jitter import jittered
from relay.lifecycle.batching import Adaptive, Batching, Reason
from relay.outage import Outage

_LONGEST_REST = 60.0  # s; then the budget is looked at again, for somebody may have changed it
_COUNT_SHARE = 5  # counting takes at most one part in so many of the time


class Pacing:
    """The pacing of one collector.  `sweep_every`: seconds, a quarter more or less."""

    def __init__(self, batching: Batching, sweep_every: float, rng: random.Random) -> None:
        self.batching = batching
        self._sweep_every = sweep_every
        self._rng = rng
        self._sweep_at = -math.inf
        self._rests_until = -math.inf
        self._count_at = -math.inf  # not to be counted again before
        self._uncounted = False  # and it was wanted
        self._waiting = 0
        self._outage = Outage(rng=rng)
        batching.connected()

    def described(self) -> dict[str, object]:
        """Return what the log says of it at the start."""
        law = self.batching
        return {
            "channel": channels.TOKENS,
            "limit": law.limit,
            "timeout": law.timeout,
            "adaptive": isinstance(law, Adaptive),
            "health_check": self._sweep_every,
        }

    # Taking -----------------------------------------------------------------------------------

    def wants_count(self, at: float) -> bool:
        """Whether `decide` goes by how many rows wait: count them, and say so to `counted`.

        A count costs as much as it finds, so many wake-ups have one count.
        """
        self._uncounted = False
        self._waiting = 0
        due_at = self.batching.next_at
        if not self.batching.counts or math.isinf(due_at) or at < self._rests_until:
            return False
        if at < min(self._count_at, due_at):
            self._uncounted = True
            self._waiting = 1  # some; enough to keep the window open
            return False
        return True

    def counted(self, waiting: int, began: float, ended: float) -> None:
        """Take in how many rows wait, and how long counting took."""
        self._waiting = waiting
        self._count_at = ended + _COUNT_SHARE * (ended - began)

    def decide(self, at: float) -> Reason | None:
        """Why a batch should be taken now, or None."""
        return None if at < self._rests_until else self.batching.decide(at, self._waiting)

    def rest(self, at: float, seconds: float) -> None:
        """The budget has nothing left for so long; there may be more than it paid for.

        No time at all: what was refused is still to be spent, and the rest goes out at once.
        """
        if seconds <= 0:
            self.batching.connected()
            return
        self._rests_until = at + min(seconds, _LONGEST_REST)
        self.batching.woken(at)

    # Sweeping ---------------------------------------------------------------------------------

    def sweep_now(self) -> None:
        """Note that a sweep was asked for."""
        self._sweep_at = -math.inf

    def wants_sweep(self, at: float) -> bool:
        """Whether it is time to look for what nobody announced."""
        return at >= self._sweep_at

    def swept(self, at: float, waiting: int) -> None:
        """A sweep found so many rows that wait."""
        if waiting:
            self.batching.found(at)
        self._sweep_at = at + jittered(self._sweep_every, self._rng)

    # Outages ----------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the database is away."""
        return self._outage.is_on

    def lost(self) -> float:
        """The database is away; returns the seconds until the next attempt."""
        self.batching.connected()  # whatever was announced meanwhile was missed
        self.sweep_now()
        return self._outage.lost()

    def recovered(self) -> None:
        """The database is back."""
        self._outage.over()

    def next_at(self) -> float:
        """The instant at which there is something to do again if nothing happens."""
        due_at = self.batching.next_at
        if self._uncounted:
            due_at = min(due_at, self._count_at)
        return min(max(due_at, self._rests_until), self._sweep_at)
