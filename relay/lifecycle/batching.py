"""The timing of a batch of tokens: two rules with one interface (`Batching`).

- `Fixed`, the timing of docs/collect.md: at the limit, or when the timeout has passed since the
  first wake-up (limit 3, timeout 5 s, five accounts: three at once, two after 5 s).
- `Adaptive`: at once while little happens; under load batches are spaced a little, so that they
  grow to the limit.

Instants are float seconds of a clock that the caller reads, from any origin.

Under both, what is queued when the collector connects goes out at once (`connected`).

A wake-up is a hint, never a row: PostgreSQL folds the notifications of a transaction into one, so
whoever obeys `Fixed` counts the rows in the table (`counts`) and tells `decide` how many there are.

A loop: tell it what happens (`connected`, `woken`, `found`), ask `decide`; given a reason take a
batch and report it with `sent`, else sleep until `next_at` or the next event.

Fails: never; a batch that finds nothing is a batch of none.  Pure.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, get_args

Reason = Literal["limit", "timeout", "drain"]
"""Why a batch went out: it was full, its time had come, or it was handed over at once as all that
waited: what was queued before we connected, or arrived while there was nothing to wait for."""

REASONS: tuple[Reason, ...] = get_args(Reason)

LINGER = 0.01
"""Seconds, at most, that `Adaptive` waits for company under load."""

_MEMORY = 0.1  # s; how far back `Adaptive` looks to tell load from idleness
_GRACE = 0.5  # s; in which the announcement of what a sweep found may still come


class Batching(Protocol):
    """What the two rules have in common.  Instants are of the caller's clock, in seconds."""

    limit: int
    timeout: float
    counts: bool
    """Whether `decide` needs to know how many rows wait."""

    def connected(self) -> None:
        """We are connected (again): what is queued goes out at once."""

    def woken(self, at: float) -> None:
        """Something was announced at `at`."""

    def found(self, at: float) -> None:
        """A sweep found at `at` what nobody had announced."""

    def decide(self, at: float, waiting: int = 0) -> Reason | None:
        """Why a batch should be taken now, or None; `waiting` rows are there (up to the limit)."""

    def sent(self, rows: int, at: float, reason: Reason) -> Reason:
        """A batch of `rows` has gone out for `reason`; returns the reason to report."""

    @property
    def next_at(self) -> float:
        """The instant to ask again at if nothing happens; infinite: not before something does."""


class Fixed:
    """At the limit, or at the timeout: the timing of docs/collect.md."""

    counts = True

    def __init__(self, limit: int, timeout: float) -> None:
        self.limit = limit
        self.timeout = timeout
        self._draining = False
        self._announced = False
        self._until = math.inf  # when the open window closes; infinite: none is open

    def connected(self) -> None:
        """See `Batching.connected`."""
        self._draining = True

    def woken(self, at: float) -> None:
        """Open the window, unless one is open."""
        if not self._announced:
            self._announced = True
            self._until = at + self.timeout

    def found(self, at: float) -> None:
        """Open a short window: what a sweep finds has waited already.

        Not at once: it may have been committed this moment, and its announcement be on the way.
        """
        if self._until == math.inf:
            self._until = at + min(_GRACE, self.timeout)

    def decide(self, at: float, waiting: int = 0) -> Reason | None:
        """See `Batching.decide`.  Nothing waiting closes the window."""
        if self._draining:
            return "drain"
        if waiting == 0:
            self._close()
        if self._until == math.inf:
            return None
        if waiting >= self.limit:
            return "limit"
        return "timeout" if at >= self._until else None

    def sent(self, rows: int, at: float, reason: Reason) -> Reason:
        """See `Batching.sent`.  What a full batch left behind begins to wait now."""
        if reason == "drain":
            self._draining = rows >= self.limit
        elif reason == "timeout":
            self._close()
        else:
            self._until = at + self.timeout
        return reason

    @property
    def next_at(self) -> float:
        """See `Batching.next_at`."""
        return -math.inf if self._draining else self._until

    def _close(self) -> None:
        self._announced = False
        self._until = math.inf


class Adaptive:
    """At once when idle, in batches under load.

    Load is what went out lately, as a rate that fades within a tenth of a second.  Where two rows
    or more may be expected within `LINGER`, batches are spaced so that one can fill: by the time
    that the limit takes at that rate, at most by `LINGER`.
    """

    counts = False

    def __init__(self, limit: int, timeout: float) -> None:
        self.limit = limit
        self.timeout = timeout
        self._linger = min(LINGER, timeout)
        self._draining = False
        self._drains = False  # with the batch that was decided on
        self._lingers = False  # for company
        self._awaits = False  # something was announced and not looked for yet
        self._load = 0.0  # rows lately
        self._sent_at = -math.inf
        self._next_at = -math.inf

    def connected(self) -> None:
        """See `Batching.connected`."""
        self._draining = True

    def woken(self, at: float) -> None:
        """See `Batching.woken`."""
        self._awaits = True

    found = woken

    def decide(self, at: float, waiting: int = 0) -> Reason | None:
        """See `Batching.decide`."""
        self._drains = self._draining
        if self._draining:
            return "drain"
        if not self._awaits or at < self._next_at:
            return None
        return "timeout" if self._lingers else "drain"

    def sent(self, rows: int, at: float, reason: Reason) -> Reason:
        """See `Batching.sent`.  A full batch is followed by the next at once."""
        self._load = self._load * math.exp((self._sent_at - at) / _MEMORY) + rows
        self._sent_at = at
        full = rows >= self.limit
        if self._drains:
            self._draining = full
            return reason
        self._awaits = full
        rate = self._load / _MEMORY
        self._lingers = not full and rate * self._linger >= 2
        self._next_at = at + min(self._linger, self.limit / rate) if self._lingers else at
        return "limit" if full else reason

    @property
    def next_at(self) -> float:
        """See `Batching.next_at`."""
        if self._draining:
            return -math.inf
        return self._next_at if self._awaits else math.inf
