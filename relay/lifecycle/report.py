"""What waits for the collectors, and what of the month's budget is used: for the operator's eyes.

Fails with `DatabaseUnavailable` from the pool.  Locks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.db.pool import Pool
from relay.lifecycle.budget import Budget, Saved, advance, allowance
from relay.lifecycle.token_queue import TokenCounts, counts


@dataclass(frozen=True)
class Spending:
    """The month so far: `spent` of `monthly` (money), and the letters that may go out at once."""

    monthly: float
    spent: float
    letters_spent: int
    letters_now: int
    letters_per_second: float


@dataclass(frozen=True)
class Report:
    """What waits, since how many seconds (None: nothing), and the budget if there is one."""

    due: TokenCounts
    oldest: float | None
    spending: Spending | None


async def report(pool: Pool, budget: Budget | None) -> Report:
    """Look at the queue of tokens and at the budget's row."""
    async with pool.transaction() as connection:
        waiting = await counts(connection)
        cursor = await connection.execute(
            """
            SELECT extract(epoch FROM at)::float8, letters, spent,
                   extract(epoch FROM clock_timestamp())::float8
            FROM relay.token_budget
            """
        )
        row = await cursor.fetchone()
    assert row is not None
    at, letters, spent, now = row
    oldest = None if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at)
    if budget is None:
        return Report(waiting, oldest, None)
    saved = advance(budget, None if at is None else Saved(at, letters, spent), now)
    return Report(
        waiting,
        oldest,
        Spending(
            budget.monthly,
            saved.spent * budget.per_thousand / 1000,
            saved.spent,
            allowance(budget, saved),
            budget.rate(now),
        ),
    )
