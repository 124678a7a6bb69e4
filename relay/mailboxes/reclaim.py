"""Deleting mailboxes that were closed long ago: the statements, and how large a batch is.

Promises
- Nothing is deleted of a mailbox that was closed within the retention, or is active again.
- No transaction is large: messages go first, in batches that count rows and bytes; the mailbox's
  own row goes last, when the cascade has next to nothing left to do.
- A stale leader's statement carries its term and deletes nothing.

| a crash leaves …                    | and then                                        |
|-------------------------------------|-------------------------------------------------|
| a mailbox with some of its messages | it is closed for long enough still: found again |
| one with none                       | the same                                        |

Fails with `DatabaseUnavailable` from the pool.  Who calls when is up to `actors/reaper.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool

MAILBOXES = 500
"""Of a batch."""
_MESSAGES = 500  # a batch
_BYTES = 16 * 2**20  # a batch; a large message is thousands of rows to the database

_FIND = """
    SELECT id
    FROM relay.mailboxes
    WHERE NOT is_active
      AND closed_at < now() - make_interval(secs => %(retention)s)
    ORDER BY closed_at  -- relay.mailboxes_closed
    LIMIT %(limit)s
    """

# Deleting goes by the primary key, which the array keeps in the plan, whatever the statistics say.
_DELETE_MESSAGES = f"""
    DELETE FROM relay.messages
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM (
            SELECT id, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS bytes_before
            FROM (
                SELECT m.id, m.size
                FROM unnest(%(mailboxes)s::uuid[]) AS b (id)
                JOIN relay.messages m ON m.mailbox_id = b.id
                LIMIT %(limit)s
            ) batch
        ) counted
        WHERE bytes_before < %(bytes)s))
      AND {leases.FENCE}
    """  # noqa: S608 - constants of our own

_DELETE_MAILBOXES = f"""
    DELETE FROM relay.mailboxes
    WHERE id = ANY (%(mailboxes)s)
      AND NOT is_active  -- made active again meanwhile: left alone
      AND closed_at < now() - make_interval(secs => %(retention)s)
      AND {leases.FENCE}
    """  # noqa: S608 - constants of our own


async def closed(pool: Pool, *, retention: float) -> list[UUID]:
    """Up to `MAILBOXES` that were closed more than `retention` seconds ago, longest ago first."""
    rows = await pool.fetch(_FIND, {"retention": retention, "limit": MAILBOXES})
    return [row[0] for row in rows]


async def delete_messages(
    pool: Pool,
    lease: Lease,
    mailboxes: Sequence[UUID],
    *,
    rows: int = _MESSAGES,
    size: int = _BYTES,
) -> int:
    """Delete a batch of the mailboxes' messages and return how many went.

    At most `rows`, and none more once those before have `size` bytes together.  0: none is left.
    """
    return await pool.execute(
        _DELETE_MESSAGES,
        {"mailboxes": list(mailboxes), "limit": rows, "bytes": size, **lease.fence},
    )


async def delete_mailboxes(
    pool: Pool, lease: Lease, mailboxes: Sequence[UUID], *, retention: float
) -> int:
    """Delete those that are still closed for so long, and return how many went.

    0: the lease is lost, or all of them were made active again.
    """
    return await pool.execute(
        _DELETE_MAILBOXES, {"mailboxes": list(mailboxes), "retention": retention, **lease.fence}
    )


async def fold_usage(pool: Pool) -> None:
    """Fold what was appended to the counts of mailboxes, and remove that of those that are gone."""
    await pool.fetch_value("SELECT relay.fold_usage()")
