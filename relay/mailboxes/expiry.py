"""Flipping mailboxes that are due (`is_active` false): the statements, and how large a batch is.

Promises
- `flip` flips what is due, a batch a transaction, in the order of `expires_at`; a row that somebody
  has locked is passed over, and found again by whoever begins anew at `START`.
- A stale leader's statement carries its term and changes nothing.
- With the sizes of `resized` a statement takes about `STATEMENT` seconds, however many are due.

Nothing here is enforcement: every statement that reads or accepts tests the time stamp itself.

Fails with `DatabaseUnavailable` from the pool.  Who calls when is up to `actors/ticker.py`.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool

STATEMENT = 0.006
"""Seconds that one batch should take."""
_SMALLEST, _LARGEST = 50, 4000


class Position(NamedTuple):
    """Where a batch ended: the `expires_at` of its last mailbox, as text, and its id."""

    expires_at: str
    id: UUID


START = Position("-infinity", UUID(int=0))
"""Before every mailbox."""

_FLIP = f"""
    WITH due AS MATERIALIZED (
        SELECT id, expires_at
        FROM relay.mailboxes
        WHERE is_active
          AND expires_at <= now()
          AND (expires_at, id) > (%(at)s::timestamptz, %(id)s::uuid)
          AND {leases.FENCE}
        ORDER BY expires_at, id  -- relay.mailboxes_due, from where the batch before ended
        LIMIT %(limit)s
        -- NO KEY: a delivery holds a key-share lock on its mailbox, and must not hide it here.
        FOR NO KEY UPDATE SKIP LOCKED
    ), flipped AS (
        UPDATE relay.mailboxes
        SET is_active = false,
            closed_at = now()
        -- The array keeps the primary key in the plan, whatever the statistics say.
        WHERE id = ANY (ARRAY(SELECT id FROM due))
        RETURNING id
    )
    SELECT (SELECT count(*) FROM flipped), last.expires_at::text, last.id
    FROM (SELECT) one
    LEFT JOIN (
        SELECT expires_at, id FROM due ORDER BY expires_at DESC, id DESC LIMIT 1
    ) last ON true
    """  # noqa: S608 - constants of our own

_NEXT = """
    SELECT extract(epoch FROM now())::float8,
           (SELECT extract(epoch FROM expires_at)::float8
            FROM relay.mailboxes
            WHERE is_active
            ORDER BY expires_at, id
            LIMIT 1)
    """


async def flip(
    pool: Pool, lease: Lease, after: Position, limit: int
) -> tuple[int, Position | None]:
    """Flip up to `limit` mailboxes that are due and come after a position.

    Returns how many, and the position of the last one; None: there was none to flip.
    """
    row = await pool.fetch_row(
        _FLIP, {"at": after.expires_at, "id": after.id, "limit": limit, **lease.fence}
    )
    assert row is not None
    flipped, expires_at, last = row
    return flipped, None if last is None else Position(expires_at, last)


async def next_due(pool: Pool) -> tuple[float, float | None]:
    """The database's clock, and the earliest `expires_at` of a live mailbox, None if there is none.

    Both in seconds since 1970: delays are differences of one clock.
    """
    row = await pool.fetch_row(_NEXT)
    assert row is not None
    return row[0], row[1]


def resized(batch: int, rows: int, took: float) -> int:
    """The next batch, such that a statement takes about `STATEMENT` seconds.

    It halves or doubles at most, and learns from full batches only.
    """
    if rows < batch:
        return batch
    factor = min(2.0, max(0.5, STATEMENT / max(took, 1e-6)))
    return min(_LARGEST, max(_SMALLEST, round(batch * factor)))
