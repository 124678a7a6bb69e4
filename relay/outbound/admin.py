"""Administration of the outbound queue: look, cancel, hold, retry, flush, pause.

What an operator may do with every message, and an owner with their own.

Promises
- Whether something may be done to a message is asked of `states`; the statement tests again what
  the law was asked about, so of two at once the second looks again.
- An owner sees and touches only their own; to everybody else a message is not there.
- Lists are read by keyset from whichever table has few rows of the kind, so a page costs the same
  with five million finished messages behind it.
- A refusal rests on a state that is durable, as a change does.
- What was sent can be looked at as it went out: it is composed anew, by what composes deliveries.

Fails with `Forbidden` (409) for what the law forbids and `DatabaseUnavailable` from the pool.

Error texts here are redacted when stored; recipient and subject are for the owner's eyes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.errors import Bug
from relay.outbound.claimed import Claimed
from relay.outbound.enqueue import FLUSH, announce
from relay.outbound.lanes import PRIORITIES
from relay.outbound.render import mail_of
from relay.outbound.states import FINISHED, Cause, Forbidden, State, next_state
from relay.smtp.client import Mail


@dataclass(frozen=True, slots=True)
class Stats:
    """The queue at one moment.

    `oldest_due` in seconds; `waiting` what is `queued`, by priority; `finished` of the last hour,
    by status, counted up to `COUNTED`.  One statement counts all that is unfinished.
    """

    paused: bool
    queued: int
    due: int
    processing: int
    held: int
    lost: int
    oldest_due: float | None
    waiting: dict[str, int]
    finished: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """The answer of `GET /api/v1/queue`."""
        return {
            "paused": self.paused,
            "queued": self.queued,
            "due": self.due,
            "processing": self.processing,
            "held": self.held,
            "lost": self.lost,
            "oldest_due_seconds": self.oldest_due,
            "by_priority": self.waiting,
            "last_hour": self.finished,
        }


SIFTED = 5000
"""Messages that a page looks at when it is asked for by what has no index."""

FLUSHED_AT_ONCE = 5000
"""Messages that one statement of a flush makes due."""

_FLUSH_TIMEOUT = 60.0  # s; it looks through all that waits
_RAW_TIMEOUT = 60.0  # s; the largest message over a slow network

COUNTED = 10_000
"""Messages of the last hour that are counted, at most; those that failed or bounced first."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of messages, as rows by name; the next one is from below `before` (None: no more).

    A page may hold less than it was asked for, and still have a next one.
    """

    rows: list[dict[str, Any]]
    before: UUID | None


class QueueAdmin:
    """The messages in the database, to be looked at and changed by hand."""

    def __init__(self, pool: Pool, sifted: int = SIFTED) -> None:
        """`sifted`: how many messages a page looks at for what has no index."""
        self._pool = pool
        self._sifted = sifted

    async def state(self, message_id: UUID, owner: UUID | None = None) -> State | None:
        """The state of a message, or None when there is none (or it is not `owner`'s)."""
        status = await self._pool.fetch_value(_STATE, {"id": message_id, "owner": owner})
        return State(status) if status else None

    async def cancel(self, message_id: UUID, owner: UUID | None = None) -> State | None:
        """Cancel a queued or held message.  None: there is none; `Forbidden`: too late."""
        return await self._by_hand(message_id, owner, Cause.CANCELLED)

    async def hold(self, message_id: UUID, owner: UUID | None = None) -> State | None:
        """Set a queued message aside until `retry`.  None and `Forbidden` as in `cancel`."""
        return await self._by_hand(message_id, owner, Cause.HELD)

    async def retry(self, message_id: UUID, owner: UUID | None = None) -> State | None:
        """Queue a held, failed, bounced or deferred message, due now, with a fresh set of attempts.

        What was held before its first attempt keeps its `send_at`.  All nodes are told.  None and
        `Forbidden` as in `cancel`.
        """
        after = await self._by_hand(message_id, owner, Cause.RETRIED)
        if after is not None:
            await announce(self._pool)
        return after

    async def _by_hand(self, message_id: UUID, owner: UUID | None, cause: Cause) -> State | None:
        for _ in range(5):
            before = await self.state(message_id, owner)
            if before is None:
                return None
            refusal: Forbidden | None = None
            try:
                after = next_state(before, cause)
            except Forbidden as error:
                refusal = error
            if refusal is None and cause is Cause.RETRIED and before is State.QUEUED:
                row = await self.show(message_id, owner)
                if row is not None and row["status"] == State.QUEUED and not row["attempts"]:
                    refusal = Forbidden(before, cause)  # it waits for its turn, or its send_at
            if refusal is not None:
                # It says what became of the message, perhaps to the caller whose doing that was.
                rows = await self._pool.fetch_durable(_STATE, {"id": message_id, "owner": owner})
                if [(str(before),)] == rows:
                    raise refusal
                continue
            changed = await self._pool.fetch(
                _BY_HAND[before in FINISHED, cause], {"id": message_id}
            )
            if changed:
                return after
            # Somebody was quicker: look again, and ask the law again.
        raise Bug(f"message {message_id} changes too fast to be {cause}")

    async def flush(self, domain: str | None = None, route: str | None = None) -> int:
        """Make deferred messages due now, and end the pauses of routes and destinations.

        Only those to `domain`, only those that leave by `route` (the upstream of their sender, as
        `GET /queue/destinations` names it; `default`: the relay's own).  What was not tried yet
        waits for its time.  Returns how many there were; all nodes are told.
        """
        flushed = 0
        while True:
            rows = await self._pool.fetch(
                """
                UPDATE relay.outbound_due d
                SET run_at = clock_timestamp()
                WHERE d.id = ANY (ARRAY(
                    SELECT p.id
                    FROM relay.outbound_due p
                    JOIN relay.outbound_letters l ON l.id = p.id
                    WHERE p.node IS NULL
                      AND p.held_until IS NULL
                      AND isfinite(p.run_at)
                      AND p.run_at > clock_timestamp()
                      AND p.attempt > 0
                      AND (%(domain)s::text IS NULL OR l.domain = %(domain)s)
                      AND (%(route)s::text IS NULL OR %(route)s = COALESCE(
                            (SELECT s.upstream
                             FROM relay.outbound_contents c
                             JOIN relay.senders s
                               ON s.owner = l.owner AND s.address = lower(c.sender)
                             WHERE c.id = l.content_id),
                            'default'))
                    LIMIT %(limit)s
                    FOR NO KEY UPDATE OF p SKIP LOCKED
                ))
                RETURNING d.id
                """,
                {
                    "domain": None if domain is None else domain.lower(),
                    "route": route,
                    "limit": FLUSHED_AT_ONCE,
                },
                timeout=_FLUSH_TIMEOUT,
            )
            flushed += len(rows)
            if len(rows) < FLUSHED_AT_ONCE:
                break
        await announce(self._pool, FLUSH)
        return flushed

    async def pause(self) -> None:
        """Hold claims on all nodes until `resume`; what is under way is finished."""
        await self._switch(True)

    async def resume(self) -> None:
        """End a pause, and wake all nodes."""
        await self._switch(False)
        await announce(self._pool)

    async def _switch(self, paused: bool) -> None:
        await self._pool.execute(
            """
            UPDATE relay.outbound_control
            SET paused = %(paused)s,
                paused_at = CASE WHEN %(paused)s THEN COALESCE(paused_at, now()) END
            """,  # also if it is so already: the commit makes it durable whoever did it
            {"paused": paused},
        )

    async def stats(self) -> Stats:
        """Count what is unfinished, and what finished within the last hour."""
        row = await self._pool.fetch_row(
            """
            SELECT (SELECT paused FROM relay.outbound_control),
                   count(*) FILTER (WHERE waits),
                   count(*) FILTER (WHERE run_at <= now()),
                   count(*) FILTER (WHERE node IS NOT NULL AND run_at > now()),
                   count(*) FILTER (WHERE node IS NULL AND NOT isfinite(run_at)),
                   count(*) FILTER (WHERE node IS NOT NULL AND run_at <= now()),
                   extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8,
                   jsonb_build_object('high', count(*) FILTER (WHERE waits AND priority = 0),
                                      'normal', count(*) FILTER (WHERE waits AND priority = 1),
                                      'bulk', count(*) FILTER (WHERE waits AND priority = 2)),
                   (SELECT COALESCE(jsonb_object_agg(status, n), '{}')
                    FROM relay.outbound_recent('1 hour', %s) f)
            FROM relay.outbound_due
            CROSS JOIN LATERAL (
                SELECT node IS NULL AND isfinite(run_at) OR node IS NOT NULL AND run_at <= now()
            ) AS one (waits)
            """,
            (COUNTED,),
        )
        if row is None:
            raise Bug("an aggregate without a row")
        return Stats(*row)

    async def show(self, message_id: UUID, owner: UUID | None = None) -> dict[str, Any] | None:
        """One message as a row of relay.outbound_messages, or None."""
        rows = await self._pool.fetch(
            f"""
            SELECT {_COLUMNS}
            FROM relay.outbound_messages
            WHERE id = %(id)s
              AND (%(owner)s::uuid IS NULL OR owner = %(owner)s)
            """,  # noqa: S608 - constants of this module only
            {"id": message_id, "owner": owner},
        )
        return dict(zip(_NAMES, rows[0], strict=True)) if rows else None

    async def find(
        self,
        *,
        owner: UUID | None = None,
        status: State | None = None,
        recipient: str | None = None,
        priority: str | None = None,
        domain: str | None = None,
        limit: int = 50,
        before: UUID | None = None,
    ) -> Listing:
        """Messages, newest first, from below the id `before`; `owner` None sees everybody's.

        `recipient` is a whole address, compared without case; `domain` is what follows its @.
        """
        values = {
            "owner": owner,
            "status": None if status is None else str(status),
            "recipient": None if recipient is None else recipient.lower(),
            "priority": None if priority is None else PRIORITIES.index(priority),
            "domain": None if domain is None else domain.lower(),
            "limit": limit + 1,
            "before": before,
        }
        # Which table leads decides how many rows are read for a page: the unfinished and the
        # unlucky are few and each in an index of their own, however many were sent.
        if status is None or status is State.SENT:
            leading = "relay.outbound_letters"
            condition = """
                AND (%(owner)s::uuid IS NULL OR x.owner = %(owner)s)
                AND (%(recipient)s::text IS NULL OR x.address = %(recipient)s)"""
        elif status in FINISHED:
            leading, condition = "relay.outbound_log", "AND x.status <> 'sent'"
        else:
            leading, condition = "relay.outbound_due", ""
        if priority is not None or domain is not None:
            return await self._sift(leading, condition, values, limit)
        rows = await self._pool.fetch(
            f"""
            SELECT {", ".join("m." + name for name in _NAMES)}
            FROM (SELECT x.id FROM {leading} x
                  WHERE (%(before)s::uuid IS NULL OR x.id < %(before)s) {condition}) i
            CROSS JOIN LATERAL (
                SELECT {_COLUMNS}
                FROM relay.outbound_messages o
                WHERE o.id = i.id
                OFFSET 0
            ) m
            WHERE (%(status)s::text IS NULL OR m.status = %(status)s)
              AND (%(owner)s::uuid IS NULL OR m.owner = %(owner)s)
              AND (%(recipient)s::text IS NULL OR lower(m.recipient) = %(recipient)s)
            ORDER BY i.id DESC
            LIMIT %(limit)s
            """,  # noqa: S608 - constants of this module only
            values,
        )
        found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
        return Listing(found[:limit], found[limit - 1]["id"] if len(found) > limit else None)

    async def _sift(
        self, leading: str, condition: str, values: dict[str, Any], limit: int
    ) -> Listing:
        """Find by what has no index: a page looks at so many messages, and no more."""
        row = await self._pool.fetch_row(
            f"""
            WITH scanned AS MATERIALIZED (
                SELECT x.id, l.owner, l.address, l.priority, l.domain
                FROM {leading} x
                JOIN relay.outbound_letters l ON l.id = x.id
                WHERE (%(before)s::uuid IS NULL OR x.id < %(before)s) {condition}
                ORDER BY x.id DESC
                LIMIT {self._sifted}
            )
            SELECT ARRAY(SELECT s.id
                         FROM scanned s
                         WHERE (%(priority)s::smallint IS NULL OR s.priority = %(priority)s)
                           AND (%(domain)s::text IS NULL OR s.domain = %(domain)s)
                           AND (%(owner)s::uuid IS NULL OR s.owner = %(owner)s)
                           AND (%(recipient)s::text IS NULL OR s.address = %(recipient)s)
                         ORDER BY s.id DESC
                         LIMIT %(limit)s),
                   (SELECT s.id FROM scanned s ORDER BY s.id LIMIT 1),
                   (SELECT count(*) FROM scanned)
            """,  # noqa: S608 - constants of this module, and a number
            values,
        )
        if row is None:
            raise Bug("an aggregate without a row")
        ids, last, scanned = row
        further = last if scanned == self._sifted else None
        rows = await self._pool.fetch(
            f"""
            SELECT {_COLUMNS}
            FROM relay.outbound_messages
            WHERE id = ANY (%(ids)s)
              AND (%(status)s::text IS NULL OR status = %(status)s)
            ORDER BY id DESC
            """,  # noqa: S608 - constants of this module only
            {"ids": ids[:limit], "status": values["status"]},
        )
        found = [dict(zip(_NAMES, row, strict=True)) for row in rows]
        return Listing(found, ids[limit - 1] if len(ids) > limit else further)

    async def size(self, message_id: UUID, owner: UUID | None = None) -> int | None:
        """Bytes of what was said in a message, all parts together; None as in `show`."""
        size: int | None = await self._pool.fetch_value(
            """
            SELECT c.size
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.id = %(id)s
              AND (%(owner)s::uuid IS NULL OR l.owner = %(owner)s)
            """,
            {"id": message_id, "owner": owner},
        )
        return size

    async def mail(self, message_id: UUID, owner: UUID | None = None) -> Mail | None:
        """The mail that was or will be sent, as each attempt composes it; None as in `show`.

        `PermanentFailure` for what can never be sent: whoever queued by SQL may have stored such a
        thing.
        """
        row = await self._pool.fetch_row(
            """
            SELECT l.id, l.owner, l.recipient, l.recipient_name, l.priority, l.hold_unknown,
                   l.created_at, l.content_id, c.sender, c.sender_name, c.subject, c.size,
                   c.text_body, c.html_body, c.headers, c.attachments, c.blob
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.id = %(id)s
              AND (%(owner)s::uuid IS NULL OR l.owner = %(owner)s)
            """,
            {"id": message_id, "owner": owner},
            timeout=_RAW_TIMEOUT,
        )
        if row is None:
            return None
        said = dict.fromkeys(Claimed._fields) | dict(zip(_SAID, row, strict=True))
        claimed = Claimed(**said | {"has_body": True})  # type: ignore[arg-type]  # by name
        # In a thread, as a large one takes as long as a thousand ordinary ones.
        return await trio.to_thread.run_sync(mail_of, claimed)

    async def events(
        self, message_id: UUID, owner: UUID | None = None
    ) -> list[dict[str, Any]] | None:
        """What happened in each delivery: `{attempt, phase, code, at, duration}`, oldest first.

        None when there is no such message (or it is not `owner`'s).
        """
        rows = await self._pool.fetch(
            """
            SELECT a.attempt, a.phase, a.code, a.at, a.duration, a.events
            FROM relay.outbound_letters l
            LEFT JOIN relay.outbound_attempts a ON a.message_id = l.id AND a.phase IS NOT NULL
            WHERE l.id = %(id)s
              AND (%(owner)s::uuid IS NULL OR l.owner = %(owner)s)
            ORDER BY a.attempt, a.at
            """,
            {"id": message_id, "owner": owner},
        )
        if not rows:
            return None
        found: list[dict[str, Any]] = []
        for attempt, phase, code, at, duration, events in rows:
            if phase is not None:
                whole = [{"phase": phase, "code": code, "at": at, "duration": duration}]
                found += [{"attempt": attempt, **event} for event in events or whole]
        return found


_STATE = """
    SELECT status
    FROM relay.outbound_messages
    WHERE id = %(id)s
      AND (%(owner)s::uuid IS NULL OR owner = %(owner)s)
    """

_SAID = (
    *("id", "owner", "recipient", "recipient_name", "priority", "hold_unknown"),
    *("created_at", "content_id", "sender", "sender_name", "subject", "size"),
    *("text_body", "html_body", "headers", "attachments", "blob"),
)

_NAMES = (
    "id",
    "sender",
    "recipient",
    "subject",
    "priority",
    "status",
    "created_at",
    "attempts",
    "next_retry_at",
    "processing_started_at",
    "sent_at",
    "error_log",
    "owner",
    "not_after",
    "tag",
)
_COLUMNS = ", ".join(_NAMES)

# By whether the message is finished, and what is to happen.  Each tests again what the law was
# asked about, so of two at once the second changes nothing.
_BY_HAND: dict[tuple[bool, Cause], str] = {
    (False, Cause.CANCELLED): """
        WITH gone AS (
            DELETE FROM relay.outbound_due
            WHERE id = %(id)s
              AND held_until IS NULL
              AND (node IS NULL OR run_at <= now())
            RETURNING *
        )
        INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, error)
        SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'cancelled',
               (SELECT t.error FROM relay.outbound_tries t
                WHERE t.message_id = g.id ORDER BY t.attempt DESC, t.at DESC LIMIT 1)
        FROM gone g
        RETURNING id
        """,
    (False, Cause.HELD): """
        UPDATE relay.outbound_due
        SET run_at = 'infinity', node = NULL, token = token + 1,
            send_at = CASE WHEN attempt = 0 THEN LEAST(run_at, '9998-12-31Z') END
        WHERE id = %(id)s
          AND isfinite(run_at)
          AND (node IS NULL OR run_at <= now())
        RETURNING id
        """,
    (False, Cause.RETRIED): """
        UPDATE relay.outbound_due
        SET run_at = LEAST(run_at, GREATEST(send_at, clock_timestamp())), send_at = NULL,
            token = token + 1, base = attempt, losses = 0
        WHERE id = %(id)s
          AND node IS NULL
          AND held_until IS NULL
          AND (NOT isfinite(run_at) OR attempt > 0)
        RETURNING id
        """,
    (True, Cause.RETRIED): """
        WITH gone AS (
            DELETE FROM relay.outbound_log
            WHERE id = %(id)s
              AND status IN ('failed', 'bounced')
            RETURNING *
        ), noted AS (
            INSERT INTO relay.outbound_tries (message_id, at, attempt, code, duration, outcome,
                                              phase, enhanced, error, steps)
            SELECT id, COALESCE(claimed_at, finished_at), attempt, code, duration, status, phase,
                   enhanced, error, steps
            FROM gone
        )
        INSERT INTO relay.outbound_due (id, lane, token, run_at, priority, attempt, base, not_after)
        SELECT g.id, relay.outbound_lane(l.owner, l.domain), g.token + 1, clock_timestamp(),
               l.priority, g.attempt, g.attempt, l.not_after
        FROM gone g
        JOIN relay.outbound_letters l ON l.id = g.id
        RETURNING id
        """,
}
