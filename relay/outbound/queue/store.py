"""The outbound queue in PostgreSQL: claim, finalise, renew, reap.

Promises
- Claimed once: a claim commits before any SMTP, and until its lease runs out nobody else gets the
  row.  Every claim raises the row's fence (its column `token`).
- Claimed on time: a lease that has run out is somebody else's only if the database has been heard
  of since, by whoever asked.  What is sent to one that stands still is carried out when it goes on,
  also where nobody waits for it any more, and finds leases whose workers are alive (`spare`).
- Finished once: `finalise` matches id **and fence alone**.  A worker that lost its lease, and a
  finalise that is repeated because its answer was lost, change nothing and are told so.
- The only window for a second copy is between the final dot and the commit of `finalise`.  It
  cannot be closed (SMTP has no transactions); a lost lease is recorded as an attempt with the
  outcome `lost`, and a message that says so is held instead of sent again (`begin_data`).
- States follow `relay.outbound.queue.states`; nothing here decides them.

Crash safety: which rows exist in which state, and what a kill leaves

    state       outbound_due                         outbound_log  a kill here leaves
    ----------  -----------------------------------  ------------  ------------------------------
    queued      node NULL, run_at = when it is due   none          it, unchanged
    claiming    either side of one commit            none          queued, or leased by the dead
                                                                   (who lives calls `recover`)
    processing  node, token+1, run_at = lease's end  none          due again at run_at; the next
                                                                   claim counts and records it
    DATA begun  the same; if an unknown outcome is   none          held, once the reaper finds the
                to be held: run_at = infinity,                     lease over; else due again,
                held_until = lease's end                           perhaps a second copy
    finalising  either side of one commit            either side   processing, or the outcome
    held        node NULL, run_at = infinity         none          it, unchanged
    finished    none                                 one row       it, unchanged

    A message with neither row cannot be: one statement inserts it and its due row (enqueue), one
    moves due to log (finalise, cancel), one moves it back (retry by hand).

Fails with `DatabaseUnavailable` from the pool.  Whether the statement took effect is then unknown:
a claim that did is given back by `recover`, and a `finalise` may be repeated with the same fences
(`again`: that nothing was left to record is no proof, see `relay.db.doubt`).

Why SQL functions for claim and finalise: see migration 0002 (plans made while the queue is empty).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import trio

from relay.chance import utc_now
from relay.db import arrays
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.outbound.queue.claimed import BODY, Batch, Claimed
from relay.outbound.queue.enqueue import KEY_LIFETIME
from relay.outbound.queue.lanes import Ask, DueLane
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import NOT_BEGUN, REPORTS, Cause

SPARED_FOR = 10.0
"""Seconds for which who is alive may tell after an outage what became of its messages."""
_FETCH_TIMEOUT = 60.0  # s; the largest message over a slow network
_LOOKED_FOR = 60.0  # s; how long a claim may still be running whose connection broke
_PARKED_FOR = 5.0  # s; a suspension that ends is noticed as soon
_EXPIRED_AT_ONCE = 1000  # messages that one statement cancels
_INLINE = 1 << 20  # bytes; what is larger is fetched by its sender alone, when it is its turn


@dataclass(frozen=True, slots=True)
class Reaped:
    """What the reaper found: leases lost and due again, set aside, held with unknown outcome."""

    lost: list[UUID]
    quarantined: list[UUID]
    unknown: list[UUID]


class Queue:
    """The queue, as one node sees it.  `node` is a fresh identity per start.

    `lease_timeout` in seconds; after `max_attempts` attempts a message has failed, unless it goes
    directly to the exchangers of its domain; after `max_losses` leases lost in a row it is set
    aside.  `direct`: whether mail goes so whose sender has no upstream.  `expired` is told which
    messages have expired, when that is recorded.
    """

    def __init__(
        self,
        pool: Pool,
        node: UUID,
        *,
        lease_timeout: float = 300.0,
        max_attempts: int = 10,
        max_losses: int = 3,
        direct: bool = False,
        expired: Callable[[Sequence[UUID]], Awaitable[object]] | None = None,
    ) -> None:
        self._pool = pool
        self.node = node
        self.lease_timeout = lease_timeout
        self.max_attempts = max_attempts
        self.max_losses = max_losses
        self.direct = direct
        self._expired = expired
        self._claims = 0
        self._heard: datetime | None = None
        """The database's clock, when it was last heard of."""
        self._orphaned: dict[UUID, float] = {}
        """Claims of which nobody has the messages, and until when they are looked for."""

    # Taking out -----------------------------------------------------------------------------------

    async def survey(self) -> tuple[list[DueLane], datetime]:
        """Return every lane and priority with anything in it, and the database's clock."""
        rows = await self._pool.fetch(
            """
            SELECT s.lane, s.priority, s.due_at, s.domain, s.owner, clock_timestamp()
            FROM (VALUES (1)) AS one (row)
            LEFT JOIN relay.outbound_survey() s ON true
            """
        )
        self._heard = rows[0][5]
        return [DueLane(*row[:5]) for row in rows if row[0] is not None], self._heard

    async def warm_up(self) -> None:
        """Have a connection plan what claims and finalises, by doing either with nothing.

        Else the first message pays for that.
        """
        nothing = Ask(0, 0, utc_now(), 0, "", self.node)
        async with self._pool.connection() as conn:
            await conn.execute(_CLAIM, self._claim_of(self.node, [nothing]), binary=True)
            await conn.run(_FINALISE, _columns(()))

    async def claim(self, asks: Sequence[Ask]) -> Batch:
        """Lease what `asks` name, committed, and return all that delivering it needs.

        Nothing is claimed while the queue is paused; of leases that have run out, those that had by
        the time of the last survey.  Suppressed and expired messages are cancelled here; a letter
        whose account is suspended is given back.
        """
        leased_until = trio.current_time() + self.lease_timeout
        if not asks:
            return Batch([], {}, leased_until)
        # Each claim has a name of its own, so that one whose answer is lost can be told apart.
        self._claims += 1
        claim = UUID(int=self.node.int ^ self._claims)
        try:
            rows = await self._pool.fetch(_CLAIM, self._claim_of(claim, asks), binary=True)
        except BaseException:
            self._disown(claim)
            raise
        batch = Batch([], {}, leased_until, claim)
        if rows and len(rows[0]) != len(Claimed._fields):
            raise TypeError("relay.outbound_claim has not the columns of a Claimed")
        skipped: list[Settled] = []
        bodies: dict[UUID, tuple[Any, ...]] = {}
        for row in rows:
            message = _claimed(row)
            # A body comes once, with the first of those that share it, for what a claim brings to
            # be bounded: tests/outbound/queue/test_store.py.
            if message.has_body:
                bodies[message.content_id] = row[BODY]
            elif body := bodies.get(message.content_id):
                message = _claimed((*row[: BODY.start], *body, *row[BODY.stop :]))
            lane = (message.lane, message.priority)
            count, _ = batch.claimed.get(lane, (0, None))
            batch.claimed[lane] = (count + 1, message.due_at)
            if message.lost:
                batch.lost.append(message.id)
            if message.quarantined:
                batch.quarantined.append(message.id)
            elif message.suppressed:
                skipped.append(_settled(message, Cause.SUPPRESSED, error="suppressed"))
            elif message.expired:
                skipped.append(_settled(message, Cause.EXPIRED, error="expired"))
            elif message.parked:
                skipped.append(_settled(message, Cause.RELEASED, delay=_PARKED_FOR))
            else:
                batch.messages.append(message)
        try:
            recorded = await self.finalise(skipped)
        except DatabaseUnavailable:
            # These are lost leases then; the others are claimed and must not be lost with them.
            return batch
        for each in skipped:
            if each.id in recorded and each.cause is Cause.SUPPRESSED:
                batch.suppressed.append(each.id)
            elif each.id in recorded and each.cause is Cause.EXPIRED:
                batch.expired.append(each.id)
        await self._tell_expired(batch.expired)
        return batch

    async def _tell_expired(self, ids: Sequence[UUID]) -> None:
        if ids and self._expired is not None:
            with suppress(DatabaseUnavailable):  # it has ended all the same
                await self._expired(ids)

    def _claim_of(self, claim: UUID, asks: Sequence[Ask]) -> tuple[Any, ...]:
        """What `_CLAIM` takes."""
        lanes, priorities, floors, limits, _, _ = map(list, zip(*asks, strict=True))
        return (
            *(claim, self.lease_timeout, lanes, priorities, floors, limits),
            *(self.max_attempts, self.max_losses, _INLINE, self.direct, self._heard),
        )

    async def expire(self) -> int:
        """Cancel what waits past its deadline and no claim meets; returns how many there were."""
        cancelled = 0
        while True:
            rows = await self._pool.fetch("SELECT relay.outbound_expire(%s)", (_EXPIRED_AT_ONCE,))
            cancelled += len(rows)
            await self._tell_expired([row[0] for row in rows])
            if len(rows) < _EXPIRED_AT_ONCE:
                return cancelled

    async def give_up(self, lanes: Collection[int], lifetime: float, why: str) -> int:
        """Give up what has waited in these lanes for `lifetime` seconds, and goes directly.

        For lanes of which an attempt has just shown that nobody takes their mail, and has not for
        long; `why`: what it met.  Nothing while the queue is paused, and nothing that is held, or
        leased by anybody.  Returns how many messages there were.
        """
        given_up = 0
        while True:
            rows = await self._pool.fetch(
                "SELECT relay.outbound_give_up(%s, %s, %s, %s, %s)",
                (list(lanes), lifetime, self.direct, why, _EXPIRED_AT_ONCE),
            )
            given_up += len(rows)
            if len(rows) < _EXPIRED_AT_ONCE:
                return given_up

    def disown(self, batch: Batch) -> None:
        """Say that nobody will deliver a batch: `recover` gives it back."""
        if batch.claim is not None:
            self._disown(batch.claim)

    def _disown(self, claim: UUID) -> None:
        self._orphaned[claim] = trio.current_time() + self.lease_timeout

    async def recover(self) -> list[UUID]:
        """Give back what was claimed and reached nobody; returns the messages that are due again.

        Without this they would wait for the end of their leases, and count as lost.  A claim that
        commits only later (its connection broke while it ran) is found by a later call.
        """
        now = trio.current_time()
        self._orphaned = {claim: until for claim, until in self._orphaned.items() if until > now}
        if not self._orphaned:
            return []
        rows = await self._pool.fetch(
            """
            UPDATE relay.outbound_due d
            SET token = d.token + 1, node = NULL, attempt = d.attempt - 1, run_at = now()
            WHERE d.node = ANY (%s)
            RETURNING d.id
            """,
            (list(self._orphaned),),
        )
        latest = now + _LOOKED_FOR  # the database answers again
        self._orphaned = {claim: min(until, latest) for claim, until in self._orphaned.items()}
        return [row[0] for row in rows]

    async def with_body(self, message: Claimed) -> Claimed | None:
        """Fetch the body of a large message, when its delivery is about to begin; None: it is gone.

        Its priority, lease and recipient stay as they were claimed.
        """
        body = await self._pool.fetch_row(
            """
            SELECT true, text_body, html_body, headers, attachments, blob
            FROM relay.outbound_contents
            WHERE id = %s
            """,
            (message.content_id,),
            timeout=_FETCH_TIMEOUT,
        )
        if body is None:
            return None
        return Claimed._make((*message[: BODY.start], *body, *message[BODY.stop :]))

    async def is_wanted(self, token: int) -> bool:
        """Whether a letter's token may be used now, so that the letter may be delivered."""
        found: bool = await self._pool.fetch_value(
            """
            SELECT EXISTS (
                SELECT
                FROM relay.tokens t
                JOIN relay.accounts a ON a.id = t.account
                WHERE t.id = %s
                  AND t.consumed_at IS NULL
                  AND t.expires_at > extract(epoch FROM clock_timestamp())
                  AND a.status = CASE t.action WHEN 'activation' THEN 'provisioned'
                                               ELSE 'active' END::relay.account_status
            )
            """,
            (token,),
        )
        return found

    async def begin_data(self, held: Iterable[tuple[UUID, int]]) -> set[UUID]:
        """Record, for messages with `hold_unknown`, that the dot may follow; return which may.

        From here on a lost worker leaves them held.  One that is not returned has lost its lease:
        its delivery must not go on.
        """
        ids, fences = _pairs(held)
        rows = await self._pool.fetch(
            """
            UPDATE relay.outbound_due d
            SET held_until = COALESCE(d.held_until, d.run_at), run_at = 'infinity'
            FROM unnest(%s::uuid[], %s::bigint[]) AS g (id, fence)
            WHERE d.id = g.id
              AND d.token = g.fence
              AND COALESCE(d.held_until, d.run_at) > now()
            RETURNING d.id
            """,
            (ids, fences),
        )
        return {row[0] for row in rows}

    async def renew(self, held: Iterable[tuple[UUID, int]]) -> set[UUID]:
        """Extend leases by `lease_timeout` from now; return the ids of those that could be.

        A delivery whose lease could not be renewed must be cancelled before its DATA.
        """
        ids, fences = _pairs(held)
        rows = await self._pool.fetch(
            """
            UPDATE relay.outbound_due d
            SET run_at = CASE WHEN d.held_until IS NULL
                              THEN clock_timestamp() + make_interval(secs => %(lease)s)
                              ELSE d.run_at END,
                held_until = CASE WHEN d.held_until IS NOT NULL
                                  THEN clock_timestamp() + make_interval(secs => %(lease)s) END
            FROM unnest(%(ids)s::uuid[], %(fences)s::bigint[]) AS g (id, fence)
            WHERE d.id = g.id
              AND d.token = g.fence
            RETURNING d.id
            """,
            {"ids": ids, "fences": fences, "lease": self.lease_timeout},
        )
        return {row[0] for row in rows}

    async def finalise(self, settled: Sequence[Settled], *, again: bool = False) -> set[UUID]:
        """Record what became of messages in one statement; return the ids that were recorded.

        The others had been claimed by somebody else since, or finalised already: nothing was
        changed for them.  `again`: an earlier call ended in doubt; what that one recorded is
        durable once this one returns.
        """
        if not settled:
            return set()
        found = await self._pool.run(_FINALISE_AGAIN if again else _FINALISE, _columns(settled))
        if found.ntuples == len(settled):
            return {done.id for done in settled}
        return {UUID(bytes=found.get_value(row, 0)) for row in range(found.ntuples)}

    async def spare(self) -> int:
        """Let leases that have run out last `SPARED_FOR` seconds more; return how many there were.

        Whoever finds the database back after an outage calls this before anything else.  An outage
        that is longer than a lease ends the leases of workers that are alive, and that know what
        became of their messages: whoever was first to ask would send these once more.
        """
        found: int = await self._pool.fetch_value(
            """
            WITH spared AS (
                UPDATE relay.outbound_due d
                SET run_at = CASE WHEN d.held_until IS NULL THEN s.until ELSE d.run_at END,
                    held_until = CASE WHEN d.held_until IS NOT NULL THEN s.until END
                FROM (SELECT now() + make_interval(secs => %s)) AS s (until)
                WHERE (d.node IS NOT NULL AND d.run_at < now()) OR d.held_until < now()
                RETURNING 1
            )
            SELECT count(*) FROM spared
            """,
            (SPARED_FOR,),
        )
        return found

    async def reap(self, *, grace: float = 10.0) -> Reaped:
        """Set right what workers that vanished left behind, and nobody has claimed since.

        A lease that ran out more than `grace` seconds ago is recorded as lost and its message
        queued, or held when it has been lost too often; one lost after `begin_data` is held.
        A claim does the same for what it meets, so this is for lanes that nobody claims from.
        """
        heard = await self._pool.fetch_value("SELECT clock_timestamp()")
        rows = await self._pool.fetch(
            """
            WITH stuck AS MATERIALIZED (
                SELECT d.id, d.attempt, d.claimed_at, d.held_until IS NOT NULL AS unknown,
                       d.held_until IS NULL
                       AND (d.losses + 1 >= %(max_losses)s
                            OR d.attempt - d.base >= %(max_attempts)s
                               AND NOT relay.outbound_is_direct(d.id, %(direct)s)) AS quarantined
                FROM relay.outbound_due d
                WHERE (d.node IS NOT NULL
                       AND d.run_at < %(heard)s - make_interval(secs => %(grace)s))
                   OR d.held_until < %(heard)s
                FOR NO KEY UPDATE SKIP LOCKED
            ), freed AS (
                UPDATE relay.outbound_due d
                SET token = d.token + 1,
                    node = NULL,
                    held_until = NULL,
                    losses = d.losses + 1,
                    run_at = CASE WHEN s.unknown OR s.quarantined THEN 'infinity' ELSE now() END
                FROM stuck s
                WHERE d.id = s.id
                RETURNING s.*
            ), noted AS (
                INSERT INTO relay.outbound_tries (message_id, at, attempt, duration, outcome, error)
                SELECT f.id, f.claimed_at, f.attempt, extract(epoch FROM now() - f.claimed_at),
                       'lost', 'the lease ran out; whether the message was delivered is unknown'
                FROM freed f
            )
            SELECT id, unknown, quarantined
            FROM freed
            """,
            {
                "max_losses": self.max_losses,
                "max_attempts": self.max_attempts,
                "grace": grace,
                "heard": heard,
                "direct": self.direct,
            },
        )
        return Reaped(
            lost=[i for i, unknown, quarantined in rows if not (unknown or quarantined)],
            quarantined=[i for i, _, quarantined in rows if quarantined],
            unknown=[i for i, unknown, _ in rows if unknown],
        )

    async def forget(self, *, keep: float = 30 * 86400.0) -> int:
        """Make partitions ahead, drop those past their time and keys past theirs.

        Returns how many partitions were dropped.  A message goes `keep` seconds after it
        finished, or up to a week later: they go week by week.
        """
        await self._pool.execute(
            "DELETE FROM relay.outbound_keys WHERE created_at < now() - make_interval(secs => %s)",
            (KEY_LIFETIME,),
        )
        # What the rates of the settings have left behind, and that counts for nothing any more.
        await self._pool.execute(
            """
            DELETE FROM relay.outbound_rates
            WHERE rate IS NULL
              AND burst IS NULL
              AND tat < now() - interval '1 hour'
            """
        )
        dropped: int = await self._pool.fetch_value(
            "SELECT relay.outbound_roll(make_interval(secs => %s))", (keep,)
        )
        return dropped


_claimed: Callable[[tuple[Any, ...]], Claimed] = partial(tuple.__new__, Claimed)
"""`Claimed._make` without its frame and its look at the length, which is the same for all rows."""

_CLAIM = """
    SELECT *
    FROM relay.outbound_claim(%b, %s, %b::bigint[], %b::smallint[], %b::timestamptz[],
                              %b::integer[], %s, %s, %s, %s, %b::timestamptz)
    """
_RECORD = """
    SELECT id
    FROM relay.outbound_finalise($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                                 $16)
    """
_COLUMNS = (
    *(arrays.UUIDS, arrays.BIGINTS, arrays.TEXTS, arrays.DOUBLES, arrays.BOOLEANS, arrays.DOUBLES),
    *(arrays.REALS, arrays.TEXTS, arrays.SMALLINTS, arrays.TEXTS, arrays.TEXTS, arrays.BYTEAS),
    *(arrays.TEXTS, arrays.TEXTS, arrays.TEXTS, arrays.TEXTS),
)
_FINALISE = Statement(_RECORD, _COLUMNS)
# What the first try recorded is only found: this commit must be one of its own, though it may have
# nothing to record.
_FINALISE_AGAIN = Statement(
    _RECORD
    + """
    UNION ALL
    SELECT NULL
    WHERE pg_logical_emit_message(true, 'relay', '') IS NULL
    """,
    _COLUMNS,
)


def _columns(settled: Sequence[Settled]) -> list[bytes]:
    """What `_FINALISE` takes of reports."""
    ids, fences, causes, delays, began, ended, phases, codes, enhanced, errors, steps, *said = (
        zip(*settled, strict=True) if settled else ((),) * len(Settled._fields)
    )
    now = trio.current_time()
    ages = [None if at is None else now - at for at in began]
    durations = [
        None if at is None or end is None else end - at
        for at, end in zip(began, ended, strict=True)
    ]
    columns = (
        arrays.uuids(ids),
        arrays.bigints(fences),
        arrays.texts([REPORTS[cause] for cause in causes]),
        arrays.doubles(delays),
        arrays.booleans([cause not in NOT_BEGUN for cause in causes]),
        arrays.doubles(ages),
        arrays.reals(durations),
        arrays.texts(phases),
        arrays.smallints(codes),
        arrays.texts(enhanced),
        arrays.texts(errors),
        arrays.byteas(steps),
        *map(arrays.texts, said),  # peers, versions of TLS, replies, notices
    )
    return [column.data for column in columns]


def _settled(message: Claimed, cause: Cause, **values: Any) -> Settled:
    return Settled(message.id, message.fence, cause, **values)


def _pairs(held: Iterable[tuple[UUID, int]]) -> tuple[list[UUID], list[int]]:
    pairs = list(held)
    return [message_id for message_id, _ in pairs], [fence for _, fence in pairs]
