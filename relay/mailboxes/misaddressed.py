"""Whose business mail is that went elsewhere: who may hear that it was refused, or captured.

Who holds a mailbox may hear that mail was refused for
- its own address, and the addresses of other mailboxes of the same owner, whether they are over or
  not;
- an address that is nobody's and is nearly its own: all but `_SLIP` characters in one place, of a
  local part of at least `_LEAST`.  That much of it the holder knows already; of short names, which
  people choose, a neighbour may be meant.
The administrator may hear of all, and nobody else of captured mail, which is the administrator's.
Who asks as whom their sender signs in means what that one sent, and what is nearly the mailbox's
own address (`is_near`), of however short a name.

Promises: nobody else is told of an address that somebody has or had, as long as the relay remembers
(`RELAY_EXPIRY__RETENTION`).  Of captured mail is told what is a mailbox's by its sign: to its local
part at another domain, or from who signed in by the name that is asked for.  Only where there is
none of that is told what came from who had not signed in, which may be anybody's.

Fails with `DatabaseUnavailable` (temporary) from the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass
from datetime import datetime

from relay.db.pool import Pool
from relay.mailboxes.records import SHOWN, Mailbox
from relay.mailboxes.visibility import LIVE

_LOOKED_AT = 10_000  # mailboxes of captured mail, those with the newest
_SLIP = 3  # characters that may differ, at most
_LEAST = 12  # characters of a local part


@dataclass(frozen=True)
class Astray:
    """A recipient for whom mail was captured: `count` messages, the last one at `at`.

    `attributed`: whether it is a mailbox's by its sign.
    """

    address: str
    at: datetime
    count: int
    attributed: bool


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

    async def captured(self, mailbox: Mailbox, login: str | None, limit: int) -> list[Astray]:
        """Return for whom mail was captured since `mailbox` was made, the last one first: for its
        own local part, and what came from who signed in as `login`; where there is none, what came
        from who had not signed in.  It is for the administrator.
        """
        rows = await self._pool.fetch(
            f"""
            SELECT {SHOWN}, m.at, m.count, m.attributed
            FROM (
                SELECT *
                FROM relay.mailboxes b
                WHERE b.is_active
                  AND b.captured_at >= %(since)s  -- that of the last mail (mailboxes_captured)
                ORDER BY b.captured_at DESC, b.id DESC
                LIMIT {_LOOKED_AT}
            ) b
            CROSS JOIN LATERAL (
                SELECT max(received_at) AS at, count(*) AS count, attributed
                FROM (
                    SELECT received_at, login, starts_with(b.address, %(local_part)s || '@')
                                               OR coalesce(login = %(login)s::text, false)
                    FROM relay.messages
                    WHERE mailbox_id = b.id
                      AND received_at >= %(since)s  -- messages_mailbox
                ) one (received_at, login, attributed)
                WHERE attributed OR login IS NULL
                GROUP BY attributed
            ) m
            WHERE {LIVE}
              AND b.id <> %(mailbox)s
            ORDER BY m.attributed DESC, m.at DESC
            LIMIT %(limit)s
            """,  # noqa: S608 - constants of ours
            {
                "since": mailbox.created_at,
                "login": login,
                "local_part": mailbox.address.rpartition("@")[0],
                "mailbox": mailbox.id,
                "limit": limit,
            },
        )
        found = [Astray(*row) for row in rows]
        return [one for one in found if one.attributed] or found


def is_near(written: str, meant: str) -> bool:
    """Whether an address is another, or is but for a few characters in one place, and no more than
    half of its local part."""
    shared = min(len(written), len(meant))
    before = _alike(written, meant)
    after = min(_alike(written[::-1], meant[::-1]), shared - before)
    differing = max(len(written), len(meant)) - before - after
    local_part = max(len(one.rpartition("@")[0]) for one in (written, meant))
    return differing <= min(_SLIP, local_part // 2)


def is_slip(written: str, meant: str) -> bool:
    """Whether an address is nearly another, of whose holder it then tells nothing new."""
    local_part = meant.rpartition("@")[0]
    return written != meant and len(local_part) >= _LEAST and is_near(written, meant)


def _alike(one: str, other: str) -> int:
    """How many characters two texts have in common before they differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
