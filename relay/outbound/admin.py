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
  Of bulk mail, the link to unsubscribe by is one of now.

Crash safety: what a kill leaves of a change by hand (one of many messages is several statements,
each of which changes some of them, whole or not at all)

    killed                            the messages
    --------------------------------  ---------------------------------------------------------
    before the commit of a statement  its own as they were; those of earlier ones are changed
    after it                          its own are changed; the rest as they were, and asked for
                                      again the same change goes on with them
    after the last, before the nodes  all are changed; what is due is found by the claimers'
    were told                         sweep, but a pause of routes that `flush` would have ended
                                      lasts as long as it would have

Fails with `Forbidden` (409) for what the law forbids and `DatabaseUnavailable` from the pool.

Error texts here are redacted when stored; recipient and subject are for the owner's eyes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.errors import Bug
from relay.outbound.delivery.render import written
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.enqueue import FLUSH, announce
from relay.outbound.queue.lanes import PRIORITIES
from relay.outbound.queue.states import FINISHED, IS_QUEUED, Cause, Forbidden, State, next_state
from relay.outbound.shaping.store import ShapingStore
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.smtp.client import Mail
from relay.times import rfc3339


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

GROUPED = 10_000
"""Messages that did not go well that are looked at for groups, at most; the newest."""

GROUPS = 100
"""Groups of failures that are told of, at most."""

CHANGED_AT_ONCE = 1000
"""Messages that one statement changes by hand."""

CHANGED_BY_CALL = 100_000
"""Messages that one call changes by hand, at most."""

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


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed or bounced for one reason at one destination; `latest` is one of them."""

    status: str
    domain: str
    error: str | None
    count: int
    latest: UUID
    finished_at: datetime

    def as_json(self) -> dict[str, Any]:
        """An element of the answer of `GET /api/v1/outbound/failures`."""
        return {
            "status": self.status,
            "domain": self.domain,
            "error": self.error,
            "count": self.count,
            "latest": str(self.latest),
            "finished_at": rfc3339(self.finished_at),
        }


@dataclass(frozen=True, slots=True)
class Traffic:
    """A destination: what is unfinished, and what finished in the last hour, by status."""

    domain: str
    unfinished: int
    sent: int
    failed: int
    bounced: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are meant: all that every value which is not None fits.

    `owner` None: everybody's; `recipient` is a whole address, `domain` what follows its @, both
    compared without case.  `error` is that of what failed or bounced, as `failures` tells it; an
    empty one is that of what has none.
    """

    owner: UUID | None = None
    status: State | None = None
    recipient: str | None = None
    priority: str | None = None
    domain: str | None = None
    tag: str | None = None
    error: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of statements that find by it."""
        return {
            "owner": self.owner,
            "status": None if self.status is None else str(self.status),
            "recipient": None if self.recipient is None else self.recipient.lower(),
            "priority": None if self.priority is None else PRIORITIES.index(self.priority),
            "domain": None if self.domain is None else self.domain.lower(),
            "tag": self.tag,
            "error": self.error,
        }


ALL: Final = Wanted()
"""Every message there is."""


class QueueAdmin:
    """The messages in the database, to be looked at and changed by hand."""

    def __init__(
        self,
        pool: Pool,
        sifted: int = SIFTED,
        receivers_of: Callable[[str], Collection[str]] = lambda _domain: (),
        *,
        unsubscribing: Unsubscribing | None = None,
    ) -> None:
        """`sifted`: how many messages a page looks at for what has no index; `receivers_of`: the
        names of those to whom a domain's mail is known to go; `unsubscribing`: the links of
        bulk mail, None: it has none."""
        self._unsubscribing = unsubscribing
        self._pool = pool
        self._shaping = ShapingStore(pool)
        self._receivers_of = receivers_of
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
                _BY_HAND[before in FINISHED, cause], {"ids": [message_id]}
            )
            if changed:
                return after
            # Somebody was quicker: look again, and ask the law again.
        raise Bug(f"message {message_id} changes too fast to be {cause}")

    async def failures(self, wanted: Wanted = ALL) -> list[Failure]:
        """What failed or bounced, by destination and error, the most first, `GROUPS` at most.

        Of the newest `GROUPED` of all owners that did not go well, those that the filter means.
        """
        rows = await self._pool.fetch(
            f"""
            SELECT f.status, f.domain, f.error, count(*),
                   (array_agg(f.id ORDER BY f.id DESC))[1], max(f.finished_at)
            FROM ({_FAILED}) f
            GROUP BY f.status, f.domain, f.error
            ORDER BY count(*) DESC, max(f.finished_at) DESC
            LIMIT {GROUPS}
            """,  # noqa: S608 - constants of this module only
            wanted.values,
            timeout=_FLUSH_TIMEOUT,
        )
        return [Failure(*row) for row in rows]

    async def retry_failures(self, wanted: Wanted = ALL) -> int:
        """Retry what `failures` counts by the same filter, as `retry` does each; how many it were.

        What somebody else retries meanwhile is theirs.  All nodes are told.
        """
        rows = await self._pool.fetch(_FAILED, wanted.values, timeout=_FLUSH_TIMEOUT)
        ids = [message_id for message_id, *_ in rows]
        retried = 0
        for at in range(0, len(ids), CHANGED_AT_ONCE):
            retried += await self._change(_RETRY_FINISHED, ids[at : at + CHANGED_AT_ONCE])
        await announce(self._pool)
        return retried

    async def count(self, owner: UUID | None = None) -> tuple[dict[str, int], list[str]]:
        """How many messages there are, as `all`, and in each state; and of which there may be more.

        Looked at are the newest `COUNTED` of `owner` (None: everybody's, and all that is
        unfinished), and the newest `GROUPED` of everybody's that did not go well.
        """
        rows = await self._pool.fetch(
            _COUNTS[owner is None], {"owner": owner}, timeout=_FLUSH_TIMEOUT
        )
        counts = dict.fromkeys(("all", *map(str, State)), 0)
        counts |= {name: count for name, count, _ in rows}
        more = []
        if counts["all"] > COUNTED:
            counts["all"] = COUNTED
            more = ["all", str(State.SENT)]
            if owner is not None:
                more += [str(one) for one in State if one not in FINISHED]
        if max(looked for _, _, looked in rows) >= GROUPED:
            more += [str(one) for one in State if one in FINISHED and one is not State.SENT]
        rest = sum(count for name, count in counts.items() if name not in ("all", State.SENT))
        counts[str(State.SENT)] = max(0, counts["all"] - rest)
        return counts, more

    async def count_matching(self, wanted: Wanted) -> dict[Cause, int]:
        """How many messages of a filter `change_matching` would change now, by cause."""
        counts = await self._pool.fetch_row(
            f"""
            SELECT count(*) FILTER (WHERE {_MAY[Cause.RETRIED]}),
                   count(*) FILTER (WHERE {_MAY[Cause.CANCELLED]}),
                   count(*) FILTER (WHERE {_MAY[Cause.HELD]}),
                   (SELECT count(*) FROM ({_FAILED}) f)
            FROM relay.outbound_due d
            JOIN relay.outbound_letters l ON l.id = d.id
            WHERE {_WANTED}
            """,  # noqa: S608 - constants of this module only
            wanted.values,
            timeout=_FLUSH_TIMEOUT,
        )
        if counts is None:
            raise Bug("an aggregate without a row")
        retried, cancelled, held, unlucky = counts
        return {
            Cause.RETRIED: retried + unlucky,
            Cause.CANCELLED: cancelled,
            Cause.HELD: held,
        }

    async def change_matching(self, cause: Cause, wanted: Wanted) -> int:
        """Do to all messages of a filter what `retry`, `cancel` or `hold` does to one.

        `cause`: which of the three.  What the law forbids, and what somebody else changes
        meanwhile, is left as it is; of what failed or bounced the newest `GROUPED` are looked at,
        and no more than `CHANGED_BY_CALL` are changed.  Returns how many were; all nodes are told.
        """
        changed = 0
        after: UUID | None = None
        while changed < CHANGED_BY_CALL:
            rows = await self._pool.fetch(
                f"""
                SELECT d.id
                FROM relay.outbound_due d
                JOIN relay.outbound_letters l ON l.id = d.id
                WHERE {_WANTED}
                  AND {_MAY[cause]}
                  AND (%(after)s::uuid IS NULL OR d.id > %(after)s)
                ORDER BY d.id
                LIMIT {CHANGED_AT_ONCE}
                """,  # noqa: S608 - constants of this module only
                {**wanted.values, "after": after},
                timeout=_FLUSH_TIMEOUT,
            )
            ids = [one for (one,) in rows]
            changed += await self._change(_BY_HAND[False, cause], ids)
            if len(ids) < CHANGED_AT_ONCE:
                break
            after = ids[-1]
        if cause is Cause.RETRIED:
            changed += await self.retry_failures(wanted)
        return changed

    async def _change(self, statement: str, ids: list[UUID]) -> int:
        return len(await self._pool.fetch(statement, {"ids": ids}, timeout=_FLUSH_TIMEOUT))

    async def flush(
        self, domain: str | None = None, route: str | None = None, *, wanted: Wanted = ALL
    ) -> int:
        """Make deferred messages due now, and end the pauses of routes and destinations.

        Only those to `domain`, only those that leave by `route` (the upstream of their sender, as
        `GET /queue/destinations` names it; `default`: the relay's own), only those that `wanted`
        fits, of which the state says nothing here.  What was not tried yet waits for its time.
        What receivers have asked for ends, too, but of none other than the domain's (or the
        recipient's), and of none but the one that is named so; where only tag or priority is
        wanted, of none.  Returns how many there were; all nodes are told.
        """
        domain = domain or wanted.domain
        values = _deferred(domain, route, wanted)
        flushed = 0
        while True:
            rows = await self._pool.fetch(
                f"""
                UPDATE relay.outbound_due d
                SET run_at = clock_timestamp()
                WHERE d.id = ANY (ARRAY(
                    SELECT p.id
                    {_DEFERRED}
                    LIMIT %(limit)s
                    FOR NO KEY UPDATE OF p SKIP LOCKED
                ))
                RETURNING d.id
                """,  # noqa: S608 - a constant of this module
                {**values, "limit": FLUSHED_AT_ONCE},
                timeout=_FLUSH_TIMEOUT,
            )
            flushed += len(rows)
            if len(rows) < FLUSHED_AT_ONCE:
                break
        if domain is None and wanted.recipient is not None:
            domain = wanted.recipient.rpartition("@")[2]
        domain = None if domain is None else domain.lower()
        names = () if domain is None else self._receivers_of(domain)
        if domain is not None or route is not None or wanted == ALL:
            await self._shaping.let_go(domain=domain, route=route, names=names)
        await announce(self._pool, FLUSH)
        return flushed

    async def count_deferred(
        self, domain: str | None = None, route: str | None = None, *, wanted: Wanted = ALL
    ) -> int:
        """How many messages `flush` would make due now."""
        count: int = await self._pool.fetch_value(
            f"SELECT count(*) {_DEFERRED}",
            _deferred(domain or wanted.domain, route, wanted),
            timeout=_FLUSH_TIMEOUT,
        )
        return count

    async def pause(self) -> None:
        """Pause claims on all nodes until `resume`; what is under way is finished."""
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
            f"""
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
                   (SELECT COALESCE(jsonb_object_agg(status, n), '{{}}')
                    FROM relay.outbound_recent('1 hour', %s) f)
            FROM relay.outbound_due
            CROSS JOIN LATERAL (SELECT {IS_QUEUED}) AS one (waits)
            """,  # noqa: S608 - a constant of the law
            (COUNTED,),
        )
        if row is None:
            raise Bug("an aggregate without a row")
        return Stats(*row)

    async def traffic(self, owner: UUID | None = None) -> list[Traffic]:
        """What waits for each destination, and what finished there in the last hour; most first.

        Of the unfinished and of the newest finished `COUNTED` each, or of the newest `COUNTED` of
        `owner`; `GROUPS` destinations at most.
        """
        one = _UNFINISHED_OR_LATELY if owner is None else _UNFINISHED_OR_LATELY_OF
        rows = await self._pool.fetch(
            f"""
            SELECT l.domain, count(*) FILTER (WHERE one.status IS NULL),
                   count(*) FILTER (WHERE one.status = 'sent'),
                   count(*) FILTER (WHERE one.status = 'failed'),
                   count(*) FILTER (WHERE one.status = 'bounced')
            FROM ({one}) one
            JOIN relay.outbound_letters l ON l.id = one.id
            GROUP BY l.domain
            ORDER BY count(*) DESC, l.domain
            LIMIT {GROUPS}
            """,  # noqa: S608 - constants of this module only
            {"owner": owner},
            timeout=_FLUSH_TIMEOUT,
        )
        return [Traffic(*row) for row in rows]

    async def minutes(self, owner: UUID, hours: int) -> list[tuple[datetime, int, int, int]]:
        """What finished of `owner`'s mail in each of the last minutes: sent, failed, bounced.

        Looked at are the newest `COUNTED` that were queued in these hours; where there are more,
        the minutes begin with the first that ended of them.
        """
        return await self._pool.fetch(
            f"""
            WITH kept AS MATERIALIZED (
                SELECT l.id FROM relay.outbound_letters l
                WHERE l.owner = %(owner)s
                  AND l.id >= relay.uuidv7_floor(now() - make_interval(hours => %(hours)s))
                ORDER BY l.id DESC
                LIMIT {COUNTED}
            ), ended AS (
                SELECT date_trunc('minute', g.finished_at) AS at, g.status
                FROM kept k
                JOIN relay.outbound_log g ON g.id = k.id
                WHERE g.finished_at >= now() - make_interval(hours => %(hours)s)
            ), since AS (
                SELECT CASE WHEN (SELECT count(*) FROM kept) < {COUNTED}
                            THEN now() - make_interval(hours => %(hours)s)
                            ELSE (SELECT min(at) FROM ended) END AS at
            )
            SELECT m.at, count(*) FILTER (WHERE e.status = 'sent'),
                   count(*) FILTER (WHERE e.status = 'failed'),
                   count(*) FILTER (WHERE e.status = 'bounced')
            FROM since s
            CROSS JOIN generate_series(date_trunc('minute', s.at), now(), '1 minute') m (at)
            LEFT JOIN ended e ON e.at = m.at
            GROUP BY m.at
            ORDER BY m.at
            """,  # noqa: S608 - constants of this module only
            {"owner": owner, "hours": hours},
            timeout=_FLUSH_TIMEOUT,
        )

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
        self, wanted: Wanted = ALL, *, limit: int = 50, before: UUID | None = None
    ) -> Listing:
        """Messages, newest first, from below the id `before`."""
        values = {**wanted.values, "limit": limit + 1, "before": before}
        status = wanted.status
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
        if any(one is not None for one in (wanted.priority, wanted.domain, wanted.tag)):
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
                SELECT x.id, l.owner, l.address, l.priority, l.domain, l.content_id
                FROM {leading} x
                JOIN relay.outbound_letters l ON l.id = x.id
                WHERE (%(before)s::uuid IS NULL OR x.id < %(before)s) {condition}
                ORDER BY x.id DESC
                LIMIT {self._sifted}
            )
            SELECT ARRAY(SELECT l.id
                         FROM scanned l
                         WHERE {_OF_LETTER}
                         ORDER BY l.id DESC
                         LIMIT %(limit)s),
                   (SELECT l.id FROM scanned l ORDER BY l.id LIMIT 1),
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
        return await trio.to_thread.run_sync(written, claimed, self._unsubscribing)

    async def events(
        self, message_id: UUID, owner: UUID | None = None
    ) -> list[dict[str, Any]] | None:
        """What happened in each delivery, oldest first: `{attempt, phase, code, at, duration,
        enhanced, error, reply, peer, tls}`; and behind an attempt what was reported of it later,
        of which `phase` is the kind (`relay.returns.law.Kind`), as long as reports are kept.

        What decided an attempt has its enhanced status code and its error or reply, redacted; where
        no reply decided it, it stands behind those that came, without a code.  None when there is
        no such message (or it is not `owner`'s).
        """
        rows = await self._pool.fetch(
            """
            SELECT a.attempt, a.phase, a.code, a.at, a.duration, a.events, a.enhanced, a.error,
                   a.reply, a.peer, a.tls
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
        for attempt, phase, code, at, duration, events, enhanced, error, reply, peer, tls in rows:
            if phase is None:
                continue
            steps: list[dict[str, Any]] = [
                {"enhanced": None, "error": None, "reply": None} | e for e in events or ()
            ]
            decided = next((one for one in reversed(steps) if one["phase"] == phase), None)
            if decided is None:
                decided = {"phase": phase, "code": code, "at": at, "duration": duration}
                if steps:  # how long it waited for what never came
                    decided["at"] = at + timedelta(seconds=duration or 0)
                    decided["duration"] = None
                steps.append(decided)
            decided |= {"enhanced": enhanced, "error": error, "reply": reply}
            found += [{"attempt": attempt, **one, "peer": peer, "tls": tls} for one in steps]
        reports = await self._pool.fetch(
            """
            SELECT attempt, kind, created_at, enhanced, error
            FROM relay.outbound_reports
            WHERE message_id = %s
            ORDER BY created_at
            """,
            (message_id,),
        )
        for attempt, kind, at, enhanced, error in reports:
            came = dict.fromkeys(("code", "duration", "reply", "peer", "tls"))
            came |= {"attempt": attempt, "phase": kind, "at": at, "enhanced": enhanced}
            found.append({**came, "error": error})
        return sorted(found, key=lambda one: one["attempt"])  # and as they are, otherwise


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
    "peer",
    "tls",
    "reply",
)
_COLUMNS = ", ".join(_NAMES)

_OF_LETTER = """
    (%(owner)s::uuid IS NULL OR l.owner = %(owner)s)
    AND (%(recipient)s::text IS NULL OR l.address = %(recipient)s)
    AND (%(priority)s::smallint IS NULL OR l.priority = %(priority)s)
    AND (%(domain)s::text IS NULL OR l.domain = %(domain)s)
    AND (%(tag)s::text IS NULL OR %(tag)s = (SELECT c.tag FROM relay.outbound_contents c
                                             WHERE c.id = l.content_id))
    """

_UNFINISHED_OR_LATELY = f"""
    SELECT * FROM (SELECT id, NULL AS status FROM relay.outbound_due LIMIT {COUNTED}) d
    UNION ALL
    SELECT g.id, g.status
    FROM (SELECT id, status, finished_at FROM relay.outbound_log ORDER BY id DESC
          LIMIT {COUNTED}) g
    WHERE g.finished_at > now() - interval '1 hour'
    """  # noqa: S608 - a constant of this module
_UNFINISHED_OR_LATELY_OF = f"""
    SELECT k.id, g.status
    FROM (SELECT l.id FROM relay.outbound_letters l WHERE l.owner = %(owner)s ORDER BY l.id DESC
          LIMIT {COUNTED}) k
    LEFT JOIN relay.outbound_log g ON g.id = k.id
    WHERE g.id IS NULL OR g.finished_at > now() - interval '1 hour'
    """  # noqa: S608 - a constant of this module

# The state of what is unfinished, as `relay.outbound_messages` shows it.
_STATE_OF_DUE = """CASE WHEN d.held_until IS NOT NULL THEN 'processing'
                        WHEN NOT isfinite(d.run_at) THEN 'held'
                        WHEN d.node IS NOT NULL AND d.run_at > now() THEN 'processing'
                        ELSE 'queued' END"""

_WANTED = f"""
    {_OF_LETTER}
    AND (%(status)s::text IS NULL OR %(status)s = {_STATE_OF_DUE})
    """


def _counts(of_all: bool) -> str:
    """Counts by name, and of how many: of everybody's, or of `owner`'s."""
    mine = "" if of_all else "WHERE l.owner = %(owner)s"
    due = "" if of_all else "JOIN kept k ON k.id = d.id"
    return f"""
    WITH kept AS MATERIALIZED (
        SELECT l.id FROM relay.outbound_letters l {mine} ORDER BY l.id DESC LIMIT {COUNTED + 1}
    ), unlucky AS MATERIALIZED (
        SELECT id, status FROM relay.outbound_log WHERE status <> 'sent'
        ORDER BY id DESC
        LIMIT {GROUPED}
    )
    SELECT 'all', count(*), 0::bigint FROM kept
    UNION ALL
    SELECT s.status, count(*), 0 FROM (SELECT {_STATE_OF_DUE} AS status
                                       FROM relay.outbound_due d {due}) s
    GROUP BY s.status
    UNION ALL
    SELECT u.status, count(*), (SELECT count(*) FROM unlucky)
    FROM unlucky u
    JOIN relay.outbound_letters l ON l.id = u.id {mine}
    GROUP BY u.status
    """  # noqa: S608 - constants of this module only


_COUNTS = {of_all: _counts(of_all) for of_all in (True, False)}

_DEFERRED = f"""
    FROM relay.outbound_due p
    JOIN relay.outbound_letters l ON l.id = p.id
    WHERE p.node IS NULL
      AND p.held_until IS NULL
      AND isfinite(p.run_at)
      AND p.run_at > clock_timestamp()
      AND p.attempt > 0
      AND {_OF_LETTER}
      AND (%(route)s::text IS NULL OR %(route)s = COALESCE(
            (SELECT s.upstream
             FROM relay.outbound_contents c
             JOIN relay.senders s
               ON s.owner = l.owner AND s.address = lower(c.sender)
             WHERE c.id = l.content_id),
            'default'))
    """  # noqa: S608 - a constant of this module


def _deferred(domain: str | None, route: str | None, wanted: Wanted) -> dict[str, Any]:
    """The parameters of `_DEFERRED`."""
    return {**replace(wanted, domain=domain).values, "route": route}


# What the statements of `_BY_HAND` test again.
_MAY = {
    Cause.RETRIED: "(d.node IS NULL AND d.held_until IS NULL"
    " AND (NOT isfinite(d.run_at) OR d.attempt > 0))",
    Cause.CANCELLED: "(d.held_until IS NULL AND (d.node IS NULL OR d.run_at <= now()))",
    Cause.HELD: "(isfinite(d.run_at) AND (d.node IS NULL OR d.run_at <= now()))",
}

_FAILED = f"""
    SELECT g.id, g.status, l.domain, left(g.error, 500) AS error, g.finished_at
    FROM (SELECT id, status, error, finished_at
          FROM relay.outbound_log
          WHERE status <> 'sent'
          ORDER BY id DESC
          LIMIT {GROUPED}) g
    JOIN relay.outbound_letters l ON l.id = g.id
    WHERE g.status IN ('failed', 'bounced')
      AND (%(status)s::text IS NULL OR g.status = %(status)s)
      AND (%(error)s::text IS NULL OR COALESCE(left(g.error, 500), '') = %(error)s)
      AND {_OF_LETTER}
    """  # noqa: S608 - constants of this module only

_RETRY_FINISHED = """
    WITH gone AS (
        DELETE FROM relay.outbound_log
        WHERE id = ANY (%(ids)s)
          AND status IN ('failed', 'bounced')
        RETURNING *
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, code, duration, outcome,
                                          phase, enhanced, error, steps, peer, tls, reply)
        SELECT id, COALESCE(claimed_at, finished_at), attempt, code, duration, status, phase,
               enhanced, error, steps, peer, tls, reply
        FROM gone
    )
    INSERT INTO relay.outbound_due (id, lane, token, run_at, priority, attempt, base, not_after)
    SELECT g.id,
           relay.outbound_lane(
               l.owner, l.domain,
               (SELECT s.id
                FROM relay.outbound_contents c
                JOIN relay.senders s ON s.owner = l.owner AND s.address = lower(c.sender)
                WHERE c.id = l.content_id)
           ),
           g.token + 1, clock_timestamp(), l.priority, g.attempt, g.attempt, l.not_after
    FROM gone g
    JOIN relay.outbound_letters l ON l.id = g.id
    RETURNING id
"""

# By whether the message is finished, and what is to happen.  Each tests again what the law was
# asked about, so of two at once the second changes nothing.
_BY_HAND: dict[tuple[bool, Cause], str] = {
    (False, Cause.CANCELLED): """
        WITH gone AS (
            DELETE FROM relay.outbound_due
            WHERE id = ANY (%(ids)s)
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
        WHERE id = ANY (%(ids)s)
          AND isfinite(run_at)
          AND (node IS NULL OR run_at <= now())
        RETURNING id
        """,
    (False, Cause.RETRIED): """
        UPDATE relay.outbound_due
        SET run_at = LEAST(run_at, GREATEST(send_at, clock_timestamp())), send_at = NULL,
            token = token + 1, base = attempt, losses = 0, first_due_at = NULL
        WHERE id = ANY (%(ids)s)
          AND node IS NULL
          AND held_until IS NULL
          AND (NOT isfinite(run_at) OR attempt > 0)
        RETURNING id
        """,
    (True, Cause.RETRIED): _RETRY_FINISHED,
}
