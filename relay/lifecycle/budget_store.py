"""The budget's state in the database: one row, which all who spend lock and share.

Those are the collectors or, where the budget covers all mail, the claimers (`lease`).

Promises: what is spent is written in the transaction that takes the tokens, so a rollback, a kill
or a failover spends nothing, and two nodes never spend the same letter.  Time is the database's.

Fails with `psycopg.Error` from the connection; the caller's transaction is then over.

Why a lock around the whole hand-over of a collector: a budget is a few letters a second at most,
a hand-over takes milliseconds, and leasing slices to nodes would strand what a dead node held. A
claimer leases all the same, about a second's worth, for it must know before it claims; it gives
back what it did not spend, and a node that dies strands that much.
"""

from __future__ import annotations

from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.lifecycle.budget import Budget, Saved, advance, allowance, spend, wait
from relay.outbound.pacing.shared_rates import SLICE, Grant


async def lock(connection: Connection, budget: Budget) -> Saved:
    """Lock the state until the transaction ends, and return what is saved now."""
    cursor = await connection.execute(
        """
        SELECT extract(epoch FROM at)::float8, letters, spent,
               extract(epoch FROM clock_timestamp())::float8
        FROM relay.token_budget
        FOR NO KEY UPDATE
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    at, letters, spent, now = row
    return advance(budget, None if at is None else Saved(at, letters, spent), now)


async def save(connection: Connection, saved: Saved) -> None:
    """Store what is left, in the transaction that locked it."""
    await connection.execute(
        "UPDATE relay.token_budget SET at = to_timestamp(%s), letters = %s, spent = %s",
        (saved.at, saved.letters, saved.spent),
    )


async def lease(pool: Pool, budget: Budget, want: int, unspent: int) -> Grant:
    """Give `unspent` messages back and lease up to `want`, in a transaction of its own."""
    async with pool.transaction() as connection:
        saved = await lock(connection, budget)
        saved = spend(saved, -min(unspent, saved.spent))  # a new month owes the old one nothing
        granted = min(want, allowance(budget, saved))
        left = spend(saved, granted)
        await save(connection, left)
    if granted == want:
        return Grant(granted, 0.0)
    return Grant(granted, wait(budget, left, limit=want - granted, timeout=SLICE))
