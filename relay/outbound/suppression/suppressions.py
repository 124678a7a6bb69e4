"""The suppression list: addresses that get no mail.

Promises
- An address is one entry however it is written: without regard to case, its domain as A-labels.
- What the administrator suppresses (the nil owner) gets mail from nobody; what the holder of a key
  suppresses gets none from that key.  Whoever asks says whose entries are meant, or everybody's.
- An entry refuses new mail at once, and cancels what is queued when its turn comes.
- An address that unsubscribed gets no bulk mail of that owner's, and all other mail.  That holds
  whatever else puts the address here, until it is taken back by itself.
- Whom a reply or a report suppresses is so for the owner of the mail, and nobody else; what
  somebody put on the list stays as it is.
- Who unsubscribes is told so after COMMIT.  Webhooks are told by the same commit, once, however
  often it is asked for and by whichever of the owner's messages.

Fails with `MalformedMessage` for what is no address and `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.errors import Bug
from relay.outbound.composing.message import check_text, plain_address
from relay.outbound.suppression.unsubscribing import Link
from relay.returns.law import FULL_MOST, FULL_WITHIN, refusal
from relay.smtp.client import ABOUT_RECIPIENT

MAX_REASON = 500
"""Characters of a reason."""

UNLESS_SUPPRESSED = """
        -- Who unsubscribed from bulk gets nothing now; what somebody put there stays as it is.
        ON CONFLICT (address, owner) DO UPDATE
        SET cause = excluded.cause, reason = excluded.reason
        WHERE suppressions.cause = 'unsubscribed'
"""
"""How an INSERT into `relay.suppressions` of what a receiver said ends."""

FULL_LATELY = """
            (SELECT count(*)
             FROM relay.outbound_reports p
             WHERE p.address = r.address
               AND p.owner = r.owner
               AND p.is_full
               AND p.created_at > now() - make_interval(days => %(within)s))
"""
"""How often the mailbox of `r` was full before, within so many days (`relay.returns.law`)."""

_COUNT_FULL = f"""
    WITH told AS (
        SELECT *
        FROM unnest(%(ids)s::uuid[], %(attempts)s::smallint[], %(enhanced)s::text[],
                    %(words)s::text[]) AS t (id, attempt, enhanced, words)
    ), reported AS (
        INSERT INTO relay.outbound_reports (message_id, attempt, kind, owner, address, is_full,
                                            enhanced, error)
        SELECT t.id, t.attempt, 'bounced', l.owner, l.address, true, t.enhanced, t.words
        FROM told t
        CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = t.id OFFSET 0) l
        ON CONFLICT (message_id, attempt, kind) DO NOTHING
        RETURNING address, owner, error
    ), r AS (
        SELECT address, owner, max(error) AS reason, count(*) AS times
        FROM reported
        GROUP BY address, owner
    )
    INSERT INTO relay.suppressions (address, owner, reason, cause)
    SELECT r.address, r.owner, left(r.reason, {MAX_REASON}), 'bounced'
    FROM r
    WHERE %(most)s <= r.times + {FULL_LATELY}
    ORDER BY r.address, r.owner
    {UNLESS_SUPPRESSED}
    """  # noqa: S608 - constants

# Not of a letter with a token, whose address others have said, nor of a mailbox of this relay.
_SAID_LAST = """
    SELECT e.id, t.attempt, t.enhanced, t.error
    FROM unnest(%s::uuid[]) AS e (id)
    CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = e.id OFFSET 0) l
    CROSS JOIN LATERAL (
        SELECT *
        FROM relay.outbound_tries
        WHERE message_id = e.id
        ORDER BY attempt DESC, at DESC
        LIMIT 1
    ) t
    WHERE l.token IS NULL
      AND t.peer IS NOT NULL
      AND t.enhanced IS NOT NULL
      AND t.phase = ANY (%s)
    """

_REASON = "unsubscribed from bulk mail"
_LAST = UUID(int=(1 << 128) - 1)  # behind every owner


# The address as the queue spells it, where the message is there still: that is what is compared.
_UNSUBSCRIBE = """
    WITH put AS (
        INSERT INTO relay.suppressions AS s (address, owner, cause, reason, unsubscribed_by)
        SELECT COALESCE((SELECT l.address
                         FROM relay.outbound_letters l
                         WHERE l.id = %(message)s
                           AND l.owner = %(owner)s), %(address)s),
               %(owner)s, 'unsubscribed', %(reason)s, %(message)s
        ON CONFLICT (address, owner) DO UPDATE
        SET unsubscribed_at = excluded.unsubscribed_at, unsubscribed_by = excluded.unsubscribed_by
        WHERE s.unsubscribed_at IS NULL
        RETURNING s.owner
    ), told AS (
        INSERT INTO relay.webhook_events (kind, subject_id, signer, url, detail)
        SELECT 'message.unsubscribed', %(message)s, w.owner, w.url,
               jsonb_build_object('attempts', (SELECT m.attempts
                                               FROM relay.outbound_messages m
                                               WHERE m.id = %(message)s),
                                  'code', NULL, 'error', NULL)
        FROM put p
        JOIN relay.webhooks w ON w.owner = p.owner AND 'message.unsubscribed' = ANY (w.events)
        RETURNING id
    )
    SELECT EXISTS (SELECT FROM put),
           (SELECT count(pg_notify('relay_webhooks', '')) FROM told LIMIT 1)
    """


class Refused(NamedTuple):
    """A recipient whom a reply has suppressed."""

    owner: UUID
    address: str
    reason: str


class Full(NamedTuple):
    """An attempt that was refused because the recipient's mailbox was full."""

    message_id: UUID
    attempt: int
    enhanced: str
    words: str


@dataclass(frozen=True, slots=True)
class Suppression:
    """One entry of the list."""

    address: str
    reason: str
    cause: str
    """What put it there: manual, bounced, complained or (of bulk mail alone) unsubscribed."""
    created_at: datetime
    owner: UUID
    """Whose mail it gets none of; the administrator's: nobody's at all."""
    owner_name: str | None = None
    """What that key is called, if it is a key's."""

    @property
    def place(self) -> str:
        """Where it is in everybody's list."""
        return f"{self.address} {self.owner}"


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
            RETURNING address, reason, cause, created_at, owner, xmax = 0
            """,
            (plain_address(address), owner, check_text(reason, "reason", limit=MAX_REASON)),
        )
        if row is None:
            raise Bug("an insert without a row")
        return Suppression(*row[:5]), row[5]

    async def list(
        self, owner: UUID | None, limit: int, after: str | None = None
    ) -> list[Suppression]:
        """An owner's entries, or for None everybody's, by address, from beyond that `place`, or
        beyond all of an address.
        """
        address, _, text = (after or f" {ADMINISTRATOR_ID}").rpartition(" ")
        try:
            whose = UUID(text)
        except ValueError:
            address, whose = after or "", _LAST
        rows = await self._pool.fetch(
            """
            SELECT s.address, s.reason, s.cause, s.created_at, s.owner, k.owner
            FROM relay.suppressions s
            LEFT JOIN relay.api_keys k ON k.id = s.owner
            WHERE (s.address, s.owner) > (%(address)s::text COLLATE "C", %(whose)s::uuid)
              AND (%(owner)s::uuid IS NULL OR s.owner = %(owner)s)
            ORDER BY s.address, s.owner
            LIMIT %(limit)s
            """,
            {"address": address, "whose": whose, "owner": owner, "limit": limit},
        )
        return [Suppression(*row) for row in rows]

    async def remove(self, owner: UUID, address: str) -> bool:
        """Remove an entry of the owner's; False if there was none.

        One that had unsubscribed before it bounced (or whatever it is there for) stays
        unsubscribed; to remove it again takes that back, too.
        """
        rows = await self._pool.fetch_durable(
            """
            WITH kept AS (
                UPDATE relay.suppressions
                SET cause = 'unsubscribed', reason = %(reason)s
                WHERE address = %(address)s
                  AND owner = %(owner)s
                  AND cause <> 'unsubscribed'
                  AND unsubscribed_at IS NOT NULL
                RETURNING 1
            ), gone AS (
                DELETE FROM relay.suppressions
                WHERE address = %(address)s
                  AND owner = %(owner)s
                  AND (cause = 'unsubscribed' OR unsubscribed_at IS NULL)
                RETURNING 1
            )
            SELECT FROM kept
            UNION ALL
            SELECT FROM gone
            """,
            {"address": plain_address(address), "owner": owner, "reason": _REASON},
        )
        return bool(rows)

    async def unsubscribe(self, link: Link) -> bool:
        """Stop the bulk mail of an owner to whom a link was mailed; True if that is new."""
        rows = await self._pool.fetch_durable(
            _UNSUBSCRIBE,
            {
                "owner": link.owner,
                "message": link.message,
                "address": link.address.lower(),
                "reason": _REASON,
            },
        )
        return bool(rows[0][0])

    async def sender_of(self, link: Link) -> str | None:
        """Who sent the message that a link was in; None: the relay has forgotten it."""
        row = await self._pool.fetch_row(
            """
            SELECT c.sender
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.id = %s
            """,
            (link.message,),
        )
        return None if row is None else str(row[0])

    async def unsubscribe_recipient(self, message_id: UUID) -> bool:
        """Stop the bulk mail of a message's owner to its recipient; True if that is new."""
        row = await self._pool.fetch_row(
            "SELECT owner, address FROM relay.outbound_letters WHERE id = %s", (message_id,)
        )
        return row is not None and await self.unsubscribe(Link(row[0], message_id, row[1]))

    async def suppress(self, refused: Sequence[Refused]) -> int:
        """Put recipients on their owners' lists; returns how many were written down."""
        last = {(one.owner, one.address.lower()): one for one in refused}
        rows = [last[key] for key in sorted(last)]
        if not rows:
            return 0
        return await self._pool.execute(
            f"""
            INSERT INTO relay.suppressions (address, owner, reason, cause)
            SELECT DISTINCT ON (address, owner) address, owner,
                   left(reason, {MAX_REASON}), 'bounced'
            FROM unnest(%s::text[], %s::uuid[], %s::text[]) AS one (address, owner, reason)
            ORDER BY address, owner
            {UNLESS_SUPPRESSED}
            """,  # noqa: S608 - constants
            (
                [one.address for one in rows],
                [one.owner for one in rows],
                [one.reason for one in rows],
            ),
        )

    async def count_full(self, full: Sequence[Full]) -> int:
        """Count full mailboxes as reports of them, each attempt once; returns how many recipients
        were suppressed for it.
        """
        if not full:
            return 0
        ids, attempts, enhanced, words = map(list, zip(*full, strict=True))
        return await self._pool.execute(
            _COUNT_FULL,
            {
                "ids": ids,
                "attempts": attempts,
                "enhanced": enhanced,
                "words": words,
                "most": FULL_MOST,
                "within": FULL_WITHIN,
            },
        )

    async def count_expired(self, ids: Sequence[UUID]) -> int:
        """Count the mailboxes that messages which have expired were for as full, where that was
        what their last attempt met; returns how many recipients were suppressed for it.
        """
        rows = await self._pool.fetch(_SAID_LAST, (list(ids), sorted(ABOUT_RECIPIENT)))
        full = []
        for message_id, attempt, enhanced, words in rows:
            found = refusal(enhanced, words or "")
            if found is not None and found.is_full:
                full.append(Full(message_id, attempt, enhanced, words or ""))
        return await self.count_full(full)

    async def holds(self, owner: UUID, address: str) -> bool:
        """Whether mail of the owner's to an address would be refused, whatever its priority."""
        found: bool = await self._pool.fetch_value(
            """
            SELECT EXISTS (
                SELECT
                FROM relay.suppressions s
                WHERE s.address = %s
                  AND s.owner IN (%s, %s)
                  AND s.cause <> 'unsubscribed'
            )
            """,
            (plain_address(address), ADMINISTRATOR_ID, owner),
        )
        return found
