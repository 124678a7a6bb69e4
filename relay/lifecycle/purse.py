"""The budget's state: one row of the database, which all collectors lock and share.

Promises: what is spent is written in the transaction that takes the tokens, so a rollback, a kill
or a failover spends nothing, and two nodes never spend the same letter.  Time is the database's.

Fails with `psycopg.Error` from the connection; the caller's transaction is then over.

Why a lock around the whole hand-over: a budget is a few letters a second at most, a hand-over
takes milliseconds, and leasing slices to nodes would strand what a dead node held.
"""

from __future__ import annotations

from relay.db.connection import Connection
from relay.lifecycle.budget import Budget, Saved, advance


async def take_out(connection: Connection, budget: Budget) -> Saved:
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


async def put_back(connection: Connection, saved: Saved) -> None:
    """Store what is left; belongs to the transaction that took it out."""
    await connection.execute(
        "UPDATE relay.token_budget SET at = to_timestamp(%s), letters = %s, spent = %s",
        (saved.at, saved.letters, saved.spent),
    )
