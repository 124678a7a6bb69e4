"""Capture: mail for domains that are not the relay's own is kept in mailboxes made for it.

An application under development sends to addresses of the world; each gets a mailbox here, of owner
type `capture`, the administrator's, that lives for a time from its last mail.  It is made in the
statement that stores the first message, so that nothing is left of mail that is not accepted.

Promises
- `store` makes what mailboxes are missing and stores the messages in one statement: a message that
  is stored has its mailbox, and was not captured before it is durable.
- One mailbox an address, whoever captures at the same moment, on whatever node.
- An address whose mailbox is over gets a new one; what the old one held does not come back.
- A live mailbox that was made otherwise takes the mail as ever, and lives as long as it would have.
- `evict` closes those whose last mail is oldest until no more than so many live.

Fails as `relay.mailboxes.accept` does.  Nothing of it runs for mail to the relay's own domains.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast
from uuid import UUID

from relay.accepted import Origin
from relay.access.owners import ADMINISTRATOR_ID
from relay.addresses import canonical_domain
from relay.db.arrays import (
    BIGINTS,
    BYTEAS,
    DOUBLE,
    TEXTS,
    UUIDS,
    bigints,
    byteas,
    texts,
    uuids,
)
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.mailboxes.accept import SHED

_ASIDE = "expired.invalid"
"""The domain of mailboxes that lost their address; nobody can send to it (RFC 2606)."""

_seconds = struct.Struct(">d").pack


@dataclass(frozen=True)
class Capture:
    """What is captured: all that is not for a domain in `own` (in its canonical spelling).

    `ttl`: seconds that a mailbox lives after its last mail; `most`: how many may live at once.
    """

    own: frozenset[str]
    ttl: float = 86400.0
    most: int = 10_000

    @classmethod
    def beside(cls, domains: Iterable[str], ttl: float, most: int) -> Capture:
        """All but these domains."""
        own = {canonical_domain(domain) for domain in domains}
        return cls(frozenset(own | {_ASIDE}), ttl, most)

    def takes(self, address: str) -> bool:
        """Whether mail to a canonical address is captured."""
        return address.rpartition("@")[2] not in self.own

    def among(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Which of these are captured."""
        return tuple(address for address in addresses if self.takes(address))


class Captured(NamedTuple):
    """A message with what capture knows of it.

    `recipients`: (message id, canonical address); `captured`: those among the addresses whose
    mailbox may be made; `login`: as whom its sender signed in; `origin`: where it came from.
    """

    recipients: Sequence[tuple[UUID, str]]
    reverse_path: str
    raw: bytes
    login: str | None
    captured: Sequence[str]
    origin: Origin | None = None


# Sorted by whoever calls, so that two who capture for the same addresses wait for each other in one
# order.  A mailbox that is over keeps its row and gives none here.
_STORE = Statement(
    f"""
    WITH made AS (
        INSERT INTO relay.mailboxes AS b (address, owner_type, owner_id, captured_at, expires_at)
        SELECT address, 'capture', '{ADMINISTRATOR_ID}', at, at + make_interval(secs => $8)
        FROM unnest($7) AS wanted (address)
        CROSS JOIN (
            SELECT clock_timestamp() AS at,
                   set_config('relay.quiet', 'on', true),  -- until the commit
                   set_config('relay.counted', 'on', true)
        ) said
        ON CONFLICT (address) DO UPDATE
        SET captured_at = excluded.captured_at,
            expires_at = greatest(b.expires_at, excluded.expires_at)
        WHERE b.is_active
          AND b.expires_at > clock_timestamp()
          AND b.captured_at IS NOT NULL
        RETURNING id, address, xmax = 0 AS is_new
    ), live AS (
        SELECT id, address FROM made
        UNION ALL
        SELECT b.id, b.address
        FROM relay.mailboxes b
        CROSS JOIN (
            SELECT set_config('relay.quiet', 'on', true), set_config('relay.counted', 'on', true)
        ) said
        WHERE b.address = ANY ((SELECT $2)::text[])
          AND b.is_active
          AND b.expires_at > clock_timestamp()
          AND (b.captured_at IS NULL OR b.address <> ALL ((SELECT $7)::text[]))
    ), stored AS (
        INSERT INTO relay.messages
            (id, mailbox_id, received_at, reverse_path, recipient, raw_email, login, client, helo)
        SELECT r.id, live.id, clock_timestamp(), m.reverse_path, r.address, m.raw, m.login,
               m.client::inet, m.helo
        FROM unnest($1, $2, $3) AS r (id, address, number)
        JOIN live ON live.address = r.address
        JOIN unnest($4, $5, $6, $9, $10) WITH ORDINALITY
                AS m (reverse_path, raw, login, client, helo, number)
            ON m.number = r.number
        ON CONFLICT (id) DO NOTHING
        RETURNING id, mailbox_id, size
    ), queued AS (
        INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
        SELECT id, mailbox_id, size FROM stored
        ON CONFLICT (message_id) DO NOTHING
    ), counted AS (
        INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
        SELECT mailbox_id, count(*), sum(size)
        FROM stored
        GROUP BY mailbox_id
    )
    SELECT id, EXISTS (SELECT FROM made WHERE is_new) FROM stored
    """,  # noqa: S608 - a constant of ours
    (UUIDS, TEXTS, BIGINTS, TEXTS, BYTEAS, TEXTS, TEXTS, DOUBLE, TEXTS, TEXTS),
)

# Locked in the order in which `_STORE` locks them.
_SET_ASIDE = f"""
    UPDATE relay.mailboxes
    SET address = id::text || '@{_ASIDE}'
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM relay.mailboxes
        WHERE address = ANY (%s)
          AND NOT (is_active AND expires_at > clock_timestamp())
        ORDER BY address
        FOR UPDATE))
    """  # noqa: S608 - a constant of ours

# Those that are due and not flipped yet count, too: they go first.  Closed at the beginning of
# time, their rows are what the reaper takes next.
_EVICT = """
    UPDATE relay.mailboxes
    SET is_active = false, closed_at = '-infinity'
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM relay.mailboxes
        WHERE is_active AND captured_at IS NOT NULL
        ORDER BY captured_at, id
        LIMIT greatest(0, -%(most)s + (
            SELECT count(*)
            FROM (SELECT FROM relay.mailboxes
                  WHERE is_active AND captured_at IS NOT NULL
                  LIMIT %(most)s + 10000) live))
        FOR NO KEY UPDATE SKIP LOCKED))
    """


async def store(pool: Pool, messages: Sequence[Captured], ttl: float) -> tuple[set[UUID], bool]:
    """Store messages, small together or one alone; return the ids stored now, and whether any
    mailbox was made for them.

    Not stored is what was stored before, and what is for a mailbox that is over (`set_aside`).
    """
    recipients = [
        (id_, address, number)
        for number, message in enumerate(messages, 1)
        for id_, address in message.recipients
    ]
    columns = (
        uuids([id_ for id_, _, _ in recipients]).data,
        texts([address for _, address, _ in recipients]).data,
        bigints([number for _, _, number in recipients]).data,
        texts([message.reverse_path for message in messages]).data,
        byteas([message.raw for message in messages]).data,
        texts([message.login for message in messages]).data,
        texts(sorted({address for message in messages for address in message.captured})).data,
        _seconds(ttl),
        texts([one.origin and one.origin.client for one in messages]).data,
        texts([one.origin and one.origin.helo for one in messages]).data,
    )
    async with pool.connection() as conn:
        result = await conn.run(_STORE, columns)
        if sum(len(message.raw) for message in messages) > SHED:
            await conn.close()
    stored = {UUID(bytes=cast(bytes, result.get_value(row, 0))) for row in range(result.ntuples)}
    return stored, bool(result.ntuples) and result.get_value(0, 1) == b"\x01"


async def set_aside(pool: Pool, addresses: Sequence[str]) -> int:
    """Free the addresses of mailboxes that are over; return of how many."""
    return await pool.execute(_SET_ASIDE, (list(addresses),))


async def evict(pool: Pool, most: int) -> int:
    """Close the mailboxes of capture beyond `most`, longest without mail first; return how many."""
    return await pool.execute(_EVICT, {"most": most})
