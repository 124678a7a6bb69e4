"""Whose business an address is that took no mail: who may hear that mail for it was refused.

Who holds a mailbox may hear of
- its own address, and the addresses of other mailboxes of the same owner, whether they are over or
  not;
- an address that is nobody's and is nearly its own: all but `_SLIP` characters in one place, of a
  local part of at least `_LEAST`.  That much of it the holder knows already; of short names, which
  people choose, a neighbour may be meant.
The administrator may hear of all.

Promises: nobody else is told of an address that somebody has or had, as long as the relay remembers
(`RELAY_EXPIRY__RETENTION`).

Fails with `DatabaseUnavailable` (temporary) from the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from relay.db.pool import Pool
from relay.mailboxes.records import Mailbox

_SLIP = 3  # characters that may differ, at most
_LEAST = 12  # characters of a local part


class Misaddressed:
    """Says of addresses whose business they are."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def told_of(
        self, mailbox: Mailbox, addresses: Collection[str], *, administrator: bool = False
    ) -> Set[str]:
        """Return those of these canonical addresses of which the holder of `mailbox` may hear."""
        if administrator or not addresses:
            return frozenset(addresses)
        rows = await self._pool.fetch(
            """
            SELECT b.address,
                   b.id = %(mailbox)s OR (b.owner_id = %(owner)s AND b.captured_at IS NULL)
            FROM relay.mailboxes b
            WHERE b.address = ANY (%(addresses)s)
            """,
            {
                "mailbox": mailbox.id,
                "owner": mailbox.owner_id,
                "addresses": list(addresses),
            },
        )
        had = {address: bool(own) for address, own in rows}
        return frozenset(
            address
            for address in addresses
            if (had[address] if address in had else is_slip(address, mailbox.address))
        )


def is_slip(written: str, meant: str) -> bool:
    """Whether an address is another but for a few characters in one place."""
    if written == meant or len(meant.rpartition("@")[0]) < _LEAST:
        return False
    shared = min(len(written), len(meant))
    before = _alike(written, meant)
    after = min(_alike(written[::-1], meant[::-1]), shared - before)
    return max(len(written), len(meant)) - before - after <= _SLIP


def _alike(one: str, other: str) -> int:
    """How many characters two texts have in common before they differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
