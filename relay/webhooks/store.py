"""Webhooks in the database: who is told of what happens, and what waits to be told.

Promises
- An event is told at least once: it is deleted when its receiver has answered, and whoever has
  lost its lease changes nothing.  Receivers know a repetition by its id.
- Of each receiver (scheme, host and port) a few events are claimed at once, whatever waits; and of
  each owner, whose receivers may be many, no more than the caller says, in turn with others'.  All
  anonymous mailboxes together count as one owner: anybody makes as many as they like.

Crash safety: which row exists in which state, and what a kill leaves

    state      webhook_events                         a kill here leaves
    ---------  -------------------------------------  -----------------------------------------
    made       with what it tells of, by one commit   neither, or both
    due        run_at = when it is due                it, unchanged
    claiming   either side of one commit              due, or leased by the dead
    leased     token+1, attempt+1, run_at = lease's   due again at run_at; the attempt counts,
               end                                    and its receiver may have had it
    ending     either side of one commit              leased, or what is below
    told       none                                   -
    deferred   token+1, run_at later                  it, unchanged
    given up   run_at = infinity, given_up_at         it, unchanged, for `KEEP_GIVEN_UP`

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from relay.db.channels import WEBHOOKS
from relay.db.pool import Pool
from relay.errors import Bug
from relay.webhooks.kinds import ARRIVED, UNSUBSCRIBED

PER_RECEIVER = 4
"""Events of one receiver that are posted at once."""

ANONYMOUS = UUID(int=2**128 - 1)
"""Whose places the events of mailboxes without an owner take."""

KEEP_GIVEN_UP = 7 * 86400.0
"""Seconds for which an event that was given up is kept, to be looked at."""


class Event(NamedTuple):
    """An event that was claimed; `attempt` counts from 1, this one included.

    `fence` is the number of its lease, the column `token`; `owner` is whose places its post takes.
    """

    id: UUID
    fence: int
    attempt: int
    kind: str
    subject_id: UUID
    signer: UUID
    url: str
    origin: str
    detail: dict[str, Any]
    created_at: datetime
    owner: UUID


@dataclass(frozen=True, slots=True)
class Webhook:
    """The URL at which an owner is told of events of their outbound mail and accounts."""

    id: UUID
    url: str
    events: list[str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An event that its receiver would not take; `error` says why in our own words."""

    id: UUID
    kind: str
    subject_id: UUID
    url: str
    attempts: int
    error: str
    given_up_at: datetime


class Webhooks:
    """`relay.webhooks` and `relay.webhook_events`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # Who is told ----------------------------------------------------------------------------------

    async def put(self, owner: UUID, url: str, events: Sequence[str]) -> tuple[Webhook, bool]:
        """Tell `owner` at `url` of `events` from now on; True if the URL is new."""
        row = await self._pool.fetch_row(
            """
            INSERT INTO relay.webhooks (owner, url, events)
            VALUES (%s, %s, %s)
            ON CONFLICT (owner, url) DO UPDATE
            SET events = excluded.events
            RETURNING id, url, events, created_at, xmax = 0
            """,
            (owner, url, sorted(set(events))),
        )
        if row is None:
            raise Bug("an insert without a row")
        return Webhook(*row[:4]), row[4]

    async def list(self, owner: UUID, limit: int, before: UUID | None = None) -> list[Webhook]:
        """The owner's webhooks, newest first, from below the id `before`."""
        rows = await self._pool.fetch(
            """
            SELECT id, url, events, created_at
            FROM relay.webhooks
            WHERE owner = %(owner)s
              AND (%(before)s::uuid IS NULL OR id < %(before)s)
            ORDER BY id DESC
            LIMIT %(limit)s
            """,
            {"owner": owner, "before": before, "limit": limit},
        )
        return [Webhook(*row) for row in rows]

    async def remove(self, owner: UUID, webhook_id: UUID) -> bool:
        """Tell it nothing more, not even what is due; False if there was none."""
        removed = await self._pool.execute_durable(
            """
            WITH gone AS (
                DELETE FROM relay.webhooks
                WHERE id = %s
                  AND owner = %s
                RETURNING owner, url
            ), untold AS (
                DELETE FROM relay.webhook_events e
                USING gone g
                WHERE e.signer = g.owner
                  AND e.url = g.url
                  AND e.kind <> 'message.arrived'
            )
            SELECT FROM gone
            """,
            (webhook_id, owner),
        )
        return removed > 0

    # What is to be told ---------------------------------------------------------------------------

    async def claim(
        self,
        count: int,
        lease: float,
        busy: Mapping[str, int],
        owners: Mapping[UUID, int] | None = None,
        each: int | None = None,
    ) -> tuple[Sequence[Event], datetime]:
        """Lease up to `count` due events for `lease` seconds; `busy`: posts under way by origin.

        `owners`: likewise by `Event.owner`; `each`: how many one may have at once, None: any.
        Returns them, and the instant by which they were due.
        """
        owners = owners or {}
        rows = await self._pool.fetch(
            """
            WITH RECURSIVE origins AS (
                -- A loose index scan: from each receiver straight to the next.
                (SELECT origin FROM relay.webhook_events ORDER BY origin LIMIT 1)
                UNION ALL
                SELECT (SELECT e.origin
                        FROM relay.webhook_events e
                        WHERE e.origin > o.origin
                        ORDER BY e.origin
                        LIMIT 1)
                FROM origins o
                WHERE o.origin IS NOT NULL
            ), room AS MATERIALIZED (
                SELECT o.origin, %(most)s - COALESCE(b.posts, 0) AS posts
                FROM origins o
                LEFT JOIN unnest(%(origins)s::text[], %(posts)s::integer[]) AS b (origin, posts)
                    ON b.origin = o.origin
                WHERE o.origin IS NOT NULL
                  AND COALESCE(b.posts, 0) < %(most)s
            ), due AS MATERIALIZED (
                SELECT n.id, n.run_at, n.owner
                FROM room r
                CROSS JOIN LATERAL (
                    SELECT e.id, e.run_at, o.owner
                    FROM relay.webhook_events e
                    -- A mailbox signs for itself when it has no owner.  Asked row by row, as a
                    -- scalar: a join, or EXISTS, might read all mailboxes first.
                    CROSS JOIN LATERAL (
                        SELECT CASE
                            WHEN (SELECT true FROM relay.mailboxes m WHERE m.id = e.signer)
                            THEN %(anonymous)s::uuid
                            ELSE e.signer
                        END AS owner
                    ) o
                    WHERE e.origin = r.origin
                      AND e.run_at <= now()
                      AND o.owner <> ALL (%(full)s::uuid[])
                    ORDER BY e.run_at
                    LIMIT r.posts
                    FOR NO KEY UPDATE OF e SKIP LOCKED
                ) n
            ), ranked AS (
                SELECT d.id, d.run_at, d.owner,
                       COALESCE(b.posts, 0)
                       + row_number() OVER (PARTITION BY d.owner ORDER BY d.run_at) AS place
                FROM due d
                LEFT JOIN unnest(%(owners)s::uuid[], %(of_owners)s::integer[])
                    AS b (owner, posts) ON b.owner = d.owner
            ), picked AS MATERIALIZED (
                SELECT id, owner
                FROM ranked
                WHERE place <= COALESCE(%(each)s::integer, place)
                ORDER BY place, run_at
                LIMIT %(count)s
            ), claimed AS (
                UPDATE relay.webhook_events e
                SET token = e.token + 1,
                    attempt = e.attempt + 1,
                    run_at = clock_timestamp() + make_interval(secs => %(lease)s)
                FROM picked p
                WHERE e.id = p.id
                RETURNING e.id, e.token, e.attempt, e.kind, e.subject_id, e.signer, e.url,
                          e.origin, e.detail, e.created_at, p.owner
            )
            SELECT now(), c.*
            FROM (SELECT) one
            LEFT JOIN claimed c ON true
            """,
            {
                "most": PER_RECEIVER,
                "origins": list(busy),
                "posts": list(busy.values()),
                "anonymous": ANONYMOUS,
                "owners": list(owners),
                "of_owners": list(owners.values()),
                "each": each,
                "full": [one for one, posts in owners.items() if each and posts >= each],
                "count": count,
                "lease": lease,
            },
        )
        return [Event(*row[1:]) for row in rows if row[1] is not None], rows[0][0]

    async def next_due(self, after: datetime) -> float | None:
        """Seconds until the first event becomes due of those due later than `after`, the instant of
        a claim; None: there is none.

        Below 0 when it became so meanwhile.
        """
        seconds: float | None = await self._pool.fetch_value(
            """
            WITH RECURSIVE origins AS (
                (SELECT origin FROM relay.webhook_events ORDER BY origin LIMIT 1)
                UNION ALL
                SELECT (SELECT e.origin
                        FROM relay.webhook_events e
                        WHERE e.origin > o.origin
                        ORDER BY e.origin
                        LIMIT 1)
                FROM origins o
                WHERE o.origin IS NOT NULL
            )
            SELECT extract(epoch FROM min(n.run_at) - clock_timestamp())::float8
            FROM origins o
            CROSS JOIN LATERAL (
                SELECT e.run_at
                FROM relay.webhook_events e
                WHERE e.origin = o.origin
                  AND e.run_at > %s
                  AND e.run_at < 'infinity'
                ORDER BY e.run_at
                LIMIT 1
            ) n
            """,
            (after,),
        )
        return seconds

    async def body(self, event: Event) -> bytes | None:
        """Return what is to be posted, or None when there is nothing left to tell.

        The same event gives the same body each time: what it tells of does not change.
        """
        if event.kind == ARRIVED:
            data = await self._arrived(event)
        elif event.kind.startswith("account."):
            data = await self._account(event)
        else:
            data = await self._outcome(event)
        if data is None:
            return None
        return json.dumps(
            {
                "id": str(event.id),
                "type": event.kind,
                "timestamp": _instant(event.created_at),
                "data": data,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode("utf-8", "backslashreplace")

    async def _outcome(self, event: Event) -> dict[str, Any] | None:
        row = await self._pool.fetch_row(
            """
            SELECT l.recipient, c.subject, (ARRAY['high', 'normal', 'bulk'])[l.priority + 1]
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.id = %s
            """,
            (event.subject_id,),
        )
        if row is None and event.kind == UNSUBSCRIBED:
            row = await self._unsubscribed(event)
        if row is None:
            return None
        recipient, subject, priority = row
        return {
            "id": str(event.subject_id),
            "recipient": recipient,
            "subject": subject,
            "priority": priority,
            **event.detail,
        }

    async def _unsubscribed(self, event: Event) -> tuple[Any, ...] | None:
        """Who unsubscribed by a message that is deleted by now, while they are unsubscribed."""
        return await self._pool.fetch_row(
            """
            SELECT address, NULL, 'bulk'
            FROM relay.suppressions
            WHERE unsubscribed_by = %s
              AND owner = %s
              AND unsubscribed_at IS NOT NULL
            """,
            (event.subject_id, event.signer),
        )

    async def _account(self, event: Event) -> dict[str, Any] | None:
        number = event.subject_id.int
        row = await self._pool.fetch_row(
            "SELECT email, login, status FROM relay.accounts WHERE id = %s", (number,)
        )
        if row is None:
            return None
        email, login, status = row
        return {"id": str(number), "email": email, "login": login, "status": status}

    async def _arrived(self, event: Event) -> dict[str, Any] | None:
        row = await self._pool.fetch_row(
            """
            SELECT COALESCE(b.said, b.address), COALESCE(s.from_address, m.reverse_path),
                   s.subject, m.received_at, COALESCE(s.has_attachments, false), m.size, s.otp
            FROM relay.messages m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            LEFT JOIN relay.summaries s ON s.message_id = m.id
            WHERE m.id = %s
              AND b.is_active
              AND b.expires_at > now()
            """,
            (event.subject_id,),
        )
        if row is None:
            return None
        address, from_address, subject, received_at, has_attachments, size, otp = row
        return {
            "id": str(event.subject_id),
            "mailbox": address,
            "from_address": from_address,
            "subject": subject,
            "received_at": _instant(received_at),
            "has_attachments": has_attachments,
            "size": size,
            "otp": otp,
        }

    async def told(self, event: Event) -> bool:
        """Delete an event that its receiver has; False when the lease had been lost."""
        changed = await self._pool.execute(
            "DELETE FROM relay.webhook_events WHERE id = %s AND token = %s",
            (event.id, event.fence),
        )
        return changed > 0

    async def defer(self, event: Event, delay: float, error: str) -> bool:
        """Try an event again in `delay` seconds; False when the lease had been lost."""
        changed = await self._pool.execute(
            """
            UPDATE relay.webhook_events
            SET token = token + 1,
                run_at = clock_timestamp() + make_interval(secs => %s),
                error = %s
            WHERE id = %s
              AND token = %s
            """,
            (delay, error, event.id, event.fence),
        )
        return changed > 0

    async def give_up(self, event: Event, error: str) -> bool:
        """Set an event aside for good; False when the lease had been lost."""
        changed = await self._pool.execute(
            """
            UPDATE relay.webhook_events
            SET token = token + 1, run_at = 'infinity', given_up_at = now(), error = %s
            WHERE id = %s
              AND token = %s
            """,
            (error, event.id, event.fence),
        )
        return changed > 0

    async def given_up(
        self, owner: UUID, limit: int, before: UUID | None = None
    ) -> Sequence[GivenUp]:
        """What was given up of the owner's events, newest first, from below the id `before`."""
        rows = await self._pool.fetch(
            """
            SELECT id, kind, subject_id, url, attempt, COALESCE(error, ''), given_up_at
            FROM relay.webhook_events
            WHERE given_up_at IS NOT NULL
              AND signer = %(owner)s
              AND (%(before)s::uuid IS NULL OR id < %(before)s)
            ORDER BY id DESC
            LIMIT %(limit)s
            """,
            {"owner": owner, "before": before, "limit": limit},
        )
        return [GivenUp(*row) for row in rows]

    async def retry(self, owner: UUID, event_id: UUID) -> bool:
        """Post an event of the owner's again that was given up; False if there is none."""
        changed = await self._pool.execute_durable(
            """
            WITH again AS (
                UPDATE relay.webhook_events
                SET token = token + 1, run_at = clock_timestamp(), attempt = 0, given_up_at = NULL
                WHERE id = %s
                  AND signer = %s
                  AND given_up_at IS NOT NULL
                RETURNING id
            )
            SELECT pg_notify(%s, '') FROM again
            """,
            (event_id, owner, WEBHOOKS),
        )
        return changed > 0

    async def forget(self) -> int:
        """Delete what was given up longer ago than `KEEP_GIVEN_UP`; returns how many."""
        return await self._pool.execute(
            """
            DELETE FROM relay.webhook_events
            WHERE given_up_at < now() - make_interval(secs => %s)
            """,
            (KEEP_GIVEN_UP,),
        )


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
