"""Columns of secrets that are sealed (`relay.crypto.Vault`), and their move to the newest key.

Promises: `reseal` moves every secret of a column, a few rows at a time while all goes on.  Stopped
anywhere, it goes on where it was: a row says which key sealed it.

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from relay.crypto import Unreadable, Vault
from relay.db.pool import Pool

_BATCH = 100  # rows re-encrypted by one look


@dataclass(frozen=True, slots=True)
class Resealed:
    """What `Sealed.reseal` did: secrets moved to the newest key, and those no key opens."""

    moved: int
    unreadable: int

    def __add__(self, other: Resealed) -> Resealed:
        return Resealed(self.moved + other.moved, self.unreadable + other.unreadable)


class Sealed:
    """A column of a table with `id` and `key_id`; both names are the program's own."""

    def __init__(self, pool: Pool, vault: Vault, table: str, column: str) -> None:
        self._pool = pool
        self._vault = vault
        self._table = table
        self._column = column

    async def stale(self) -> int:
        """How many secrets are sealed with another key than the newest."""
        count: int = await self._pool.fetch_value(
            f"""
            SELECT count(*)
            FROM {self._table}
            WHERE {self._column} IS NOT NULL
              AND key_id IS DISTINCT FROM %s
            """,  # noqa: S608 - names of the program's own
            (self._vault.key_id,),
        )
        return count

    async def reseal(self) -> Resealed:
        """Seal every secret with the newest key.

        What another key opens is moved; what none opens stays as it is, and is counted.
        """
        moved = unreadable = 0
        after = UUID(int=0)
        while True:
            # Durable: that none is left is what older keys are thrown away on.
            rows = await self._pool.fetch_durable(
                f"""
                SELECT id, {self._column}
                FROM {self._table}
                WHERE id > %s
                  AND {self._column} IS NOT NULL
                  AND key_id IS DISTINCT FROM %s
                ORDER BY id
                LIMIT %s
                """,  # noqa: S608 - names of the program's own
                (after, self._vault.key_id, _BATCH),
            )
            if not rows:
                return Resealed(moved, unreadable)
            for account, sealed in rows:
                after = account
                try:
                    secret = self._vault.open(account, sealed)
                except Unreadable:
                    unreadable += 1
                    continue
                # Only if nobody replaced it meanwhile: the replacement is sealed anew already.
                moved += await self._pool.execute(
                    f"""
                    UPDATE {self._table}
                    SET {self._column} = %s, key_id = %s
                    WHERE id = %s
                      AND {self._column} = %s
                    """,  # noqa: S608 - names of the program's own
                    (self._vault.seal(account, secret), self._vault.key_id, account, sealed),
                )
