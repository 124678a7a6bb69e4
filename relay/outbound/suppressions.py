"""The suppression list: addresses that get no mail.

Promises
- An address is one entry however it is written: without regard to case, its domain as A-labels.
- What the administrator suppresses (the nil owner) gets mail from nobody; what the holder of a key
  suppresses gets none from that key.  Everybody sees and removes their own entries only.
- An entry refuses new mail at once, and cancels what is queued when its turn comes.

Fails with `MalformedMessage` for what is no address and `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.errors import Bug
from relay.outbound.message import check_text, plain_address

MAX_REASON = 500
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """One entry of the list."""

    address: str
    reason: str
    cause: str
    """What put it there: manual, bounced, complained or unsubscribed."""
    created_at: datetime


class Suppressions:
    """The entries of `relay.suppressions`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, owner: UUID, address: str, reason: str = "") -> tuple[Suppression, bool]:
        """Add an entry, or give the one that is there another reason; True if it was made."""
        row = await self._pool.fetch_row(
            """
            INSERT INTO relay.suppressions (address, owner, reason)
            VALUES (%s, %s, %s)
            ON CONFLICT (address, owner) DO UPDATE
            SET reason = excluded.reason, cause = 'manual'
            RETURNING address, reason, cause, created_at, xmax = 0
            """,
            (plain_address(address), owner, check_text(reason, "reason", limit=MAX_REASON)),
        )
        if row is None:
            raise Bug("an insert without a row")
        return Suppression(*row[:4]), row[4]

    async def list(self, owner: UUID, limit: int, after: str | None = None) -> list[Suppression]:
        """The owner's entries by address, from beyond `after`."""
        rows = await self._pool.fetch(
            """
            SELECT address, reason, cause, created_at
            FROM relay.suppressions
            WHERE owner = %s
              AND address > %s
            ORDER BY address
            LIMIT %s
            """,
            (owner, after or "", limit),
        )
        return [Suppression(*row) for row in rows]

    async def remove(self, owner: UUID, address: str) -> bool:
        """Remove an entry of the owner's; False if there was none."""
        removed = await self._pool.execute_durable(
            "DELETE FROM relay.suppressions WHERE address = %s AND owner = %s",
            (plain_address(address), owner),
        )
        return removed > 0

    async def holds(self, owner: UUID, address: str) -> bool:
        """Whether mail of the owner's to an address would be refused."""
        found: bool = await self._pool.fetch_value(
            """
            SELECT EXISTS (
                SELECT
                FROM relay.suppressions s
                WHERE s.address = %s
                  AND s.owner IN (%s, %s)
            )
            """,
            (plain_address(address), ADMINISTRATOR_ID, owner),
        )
        return found
