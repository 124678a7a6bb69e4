"""Months of sending on a virtual clock, within a budget."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from relay.lifecycle.budget import Budget, Saved, advance, allowance, month_of, spend, wait


def instant(*parts: int) -> float:
    """Epoch seconds of a day and time in UTC."""
    year, month, day, *rest = parts
    return datetime(year, month, day, *rest, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


class Collector:
    """Sends what may be sent, waits as the budget says; `sent` is (instant, letters)."""

    def __init__(self, budget: Budget, at: float, limit: int = 10) -> None:
        self.budget = budget
        self.limit = limit
        self.at = at
        self.saved: Saved | None = None
        self.queued = 0
        self.sent: list[tuple[float, int]] = []
        self.looks = 0

    def run_until(self, end: float) -> None:
        """Work until `end`."""
        while True:
            self.looks += 1
            state = advance(self.budget, self.saved, self.at)
            rows = min(self.limit, allowance(self.budget, state), self.queued)
            if rows:
                self.queued -= rows
                self.sent.append((self.at, rows))
            self.saved = spend(state, rows)
            if not self.queued:
                break
            if rows < self.limit:
                pause = wait(self.budget, self.saved, limit=self.limit, timeout=5.0)
                assert pause > 0
                if self.at + pause >= end:
                    break
                self.at += pause
        self.at = end

    def cost(self, month: float) -> float:
        """What the letters of the month of an instant cost."""
        start, end = month_of(month)
        letters = sum(rows for at, rows in self.sent if start <= at < end)
        return letters * self.budget.per_thousand / 1000


def month_with_bursts(seed: int) -> tuple[float, int]:
    """A month that is quiet at first and has bursts later, over what it can pay.

    Returns the share of the budget that was used, and how many letters were left over.
    """
    rng = random.Random(seed)
    budget = Budget(monthly=10.0, per_thousand=0.10)  # 100,000 letters
    start, end = month_of(instant(2026, 2 + seed % 11, 1))
    collector = Collector(budget, start)
    first = start + (end - start) * 0.3
    for at in sorted([first, *(rng.uniform(first, end) for _ in range(19))]):
        collector.run_until(at)
        collector.queued += rng.randint(5_000, 20_000)
    collector.run_until(end)
    return collector.cost(start) / budget.monthly, collector.queued
