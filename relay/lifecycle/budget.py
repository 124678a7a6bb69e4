"""The budget of mail, as a rate: so much money a month, at a price for a thousand letters.

What is not spent is saved, within the month, and may be spent in a burst; nothing is saved over
the end of a month (UTC), since a bill has months too.  An installation that begins in the middle
of a month has saved nothing yet.

Promises
- The letters of a calendar month never cost more than its budget, whatever bursts, restarts or
  changed settings it saw.
- Where there is work, all of the budget can be used: the first letter of a month may go at once
  and the others become due evenly, the last at its end.
- A clock that steps back earns nothing twice.

The state (`Saved`) is a value: the collector keeps it in one row of the database, which all nodes
lock and share (`relay.lifecycle.budget_store`).  Instants are seconds of the epoch.  Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime


@dataclass(frozen=True)
class Budget:
    """`monthly` and `per_thousand` (the price of a thousand letters) in one currency."""

    monthly: float
    per_thousand: float

    @property
    def letters(self) -> int:
        """How many letters a month may have."""
        # Rounded first: 0.3 / 0.1 is a little less than 3.
        return math.floor(round(self.monthly / self.per_thousand * 1000, 6))

    def rate(self, at: float) -> float:
        """Letters a second in the month of `at`; about 0.38 for 100 at 0.10 a thousand."""
        start, end = month_of(at)
        return max(self.letters - 1, 0) / (end - start)


@dataclass(frozen=True)
class Saved:
    """At the instant `at`, `letters` may go out, and `spent` have gone out in its month."""

    at: float
    letters: float
    spent: int = 0


def month_of(at: float) -> tuple[float, float]:
    """Return the beginning and the end of the calendar month (UTC) of an instant."""
    day = datetime.fromtimestamp(at, UTC)
    start = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = start.replace(year=day.year + day.month // 12, month=day.month % 12 + 1)
    return start.timestamp(), end.timestamp()


def advance(budget: Budget, saved: Saved | None, at: float) -> Saved:
    """Return what is saved at `at`; None: nothing was ever recorded."""
    if saved is None:
        return Saved(at, 1.0)
    if at <= saved.at:
        return saved
    start, _ = month_of(at)
    if saved.at < start:
        saved = Saved(start, 1.0)
    return replace(saved, at=at, letters=saved.letters + (at - saved.at) * budget.rate(at))


def allowance(budget: Budget, saved: Saved) -> int:
    """How many letters may go out at `saved.at`."""
    # A hair more: a sum of many small gains must not miss the last letter of the month.
    earned = math.floor(saved.letters + 1e-6)
    return max(0, min(earned, budget.letters - saved.spent))


def spend(saved: Saved, letters: int) -> Saved:
    """Return what is left after `letters` have gone out."""
    return replace(saved, letters=saved.letters - letters, spent=saved.spent + letters)


def wait(budget: Budget, saved: Saved, *, limit: int, timeout: float) -> float:
    """Return the seconds after `saved.at` until it is worth looking again.

    That is until the next letter may go out; where the rate gives several within `timeout`
    seconds, until so many, at most `limit`: batches instead of letters one by one.
    """
    _, end = month_of(saved.at)
    rate = budget.rate(saved.at)
    left = budget.letters - saved.spent
    wanted = max(1.0, min(limit, math.floor(rate * timeout), left))
    if left < 1 or rate <= 0:
        return end - saved.at
    return min(max(0.0, (wanted - saved.letters) / rate), end - saved.at)
