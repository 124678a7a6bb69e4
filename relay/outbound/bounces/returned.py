"""What came back of mail that was sent: kept, and made the truth of its message.

`keep` makes durable what came to a return path; `claim` gives some of it to be read; `apply` does
what follows (`relay.returns.law`), in one statement that also forgets what was kept.

Promises
- A message is bounced only from `sent` (`states.TRANSITIONS`); the attempt that had sent it stays
  among its attempts.  A complaint or a delay changes no state.
- Each report counts once for each attempt of a message, however often it comes; one that was
  posted under an id counts once.
- The recipient of the message is suppressed for its owner, and nobody else, whatever a report says.
  The administrator's and SQL's own mail is to whom they chose, and whom they may not mail nobody
  may (`suppressions.py`); a letter with a token goes where others said, and suppresses nobody.
- A report of a message that is still being delivered (its 250 is not recorded yet, or was lost and
  there is another attempt) waits for that.
- What waits to be read is bounded (`ROWS`, `BYTES`), and what comes without a signed path takes a
  quarter of that at most (`has_room`).  Of one message little waits (`PATH_ROWS`, `PATH_BYTES`):
  whoever got a mail knows its return path, and may not shut others out by it.

Crash safety: what a kill leaves
    before `keep` has committed   nothing; the peer heard no 250, and sends it again
    after it                      the row, which is read when its time comes; sent again, it counts
                                  once
    while it is read              the row, which is due again when its lease is over
    within `apply`                either side of one commit

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from prometheus_client import Counter

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.arrays import BYTEAS, UUIDS, byteas, uuids_of
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.queue.states import Cause, State, next_state
from relay.outbound.suppression.suppressions import FULL_LATELY, MAX_REASON, UNLESS_SUPPRESSED
from relay.redact import redact
from relay.returns.law import FULL_MOST, FULL_WITHIN, Finding, Kind

log = get_logger()

AT_ONCE = 8
"""Returned mails that are claimed together."""

_LEASE = 120.0  # s; of which each may take the parser its deadline of 5 s and another start

ROWS = 20_000
"""Returned mails that wait to be read, at most,"""
BYTES = 256 * 2**20
"""and their bytes; a second's worth more may come, for they are counted once a second."""

PATH_ROWS = 4
"""Returned mails of one message that wait to be read, at most; its bounce, a delay and a complaint
hardly come within the same minute."""
PATH_BYTES = 256 * 2**10
"""Bytes of them, past which no other is taken: the first may have as many as are read of one."""

POSTS_KEPT = 3600.0
"""Seconds for which the id of a post is kept at least: far longer than it can be proved."""

RETURNS = Counter(
    "relay_returns", "What came back of mail that was sent, by what followed.", ["outcome"],
    registry=registry,
)  # fmt: skip
for _outcome in (*Kind, "ignored", "unread"):
    RETURNS.labels(str(_outcome))


class Came(NamedTuple):
    """A mail that came back; `message_id` None: to the address for complaints."""

    id: UUID
    message_id: UUID | None
    raw: bytes
    attempt: int


class About(NamedTuple):
    """The message that a report is about, as it is now."""

    id: UUID
    recipient: str
    state: State


class Applied(NamedTuple):
    """What became of a report.

    `changed`: it counted; `suppressed`: for it, the recipient is suppressed now.
    """

    changed: bool
    suppressed: bool


class Waiting(NamedTuple):
    """What waits to be read."""

    rows: int = 0
    size: int = 0

    def has_room(self, *, signed: bool) -> bool:
        """Whether another may wait, too; `signed`: it came to a message's own return path."""
        part = 1 if signed else 4
        return self.rows < ROWS // part and self.size < BYTES // part

    def of_a_message_has_room(self) -> bool:
        """The same of what waits of one message."""
        return self.rows < PATH_ROWS and self.size < PATH_BYTES

    def and_one(self, size: int) -> Waiting:
        """This and another of so many bytes."""
        return Waiting(self.rows + 1, self.size + size)


_KEEP = Statement(
    """
    INSERT INTO relay.returns (id, message_id, raw)
    SELECT id, nullif(message_id, '00000000-0000-0000-0000-000000000000'), raw
    FROM unnest((SELECT $1)::uuid[], (SELECT $2)::uuid[], (SELECT $3)::bytea[])
         AS r (id, message_id, raw)
    ON CONFLICT (id) DO NOTHING
    """,
    (UUIDS, UUIDS, BYTEAS),
)
_NOBODY = bytes(16)

_APPLY = f"""
    WITH done AS (
        DELETE FROM relay.returns
        WHERE id = %(came)s
    ), taken AS (
        INSERT INTO relay.notifications (id)
        SELECT %(post)s::text
        WHERE %(post)s::text IS NOT NULL
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    ), is_new AS (
        SELECT
        WHERE %(post)s::text IS NULL OR EXISTS (SELECT FROM taken)
    ), gone AS (
        DELETE FROM relay.outbound_log
        WHERE id = %(id)s
          AND EXISTS (SELECT FROM is_new)
          AND status = 'sent'
          AND %(kind)s = 'bounced'
        RETURNING *
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, code, duration, outcome, phase,
                                          enhanced, error, steps, peer, tls, reply)
        SELECT id, COALESCE(claimed_at, finished_at), attempt, code, duration, status, phase,
               enhanced, error, steps, peer, tls, reply
        FROM gone
    ), logged AS (
        INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, enhanced, error,
                                        peer, tls)
        SELECT id, claimed_at, token + 1, attempt, 'bounced', %(enhanced)s, %(error)s, peer, tls
        FROM gone
    ), about AS (
        SELECT id, attempt FROM gone
        UNION ALL
        SELECT id, attempt
        FROM relay.outbound_log
        WHERE id = %(id)s
          AND EXISTS (SELECT FROM is_new)
          AND %(kind)s <> 'bounced'
          AND (status = 'sent' OR status = 'bounced' AND %(kind)s = 'complained')
    ), reported AS (
        INSERT INTO relay.outbound_reports (message_id, attempt, kind, owner, address, is_full,
                                            enhanced, error)
        SELECT a.id, a.attempt, %(kind)s, l.owner, l.address, %(full)s, %(enhanced)s, %(error)s
        FROM about a
        JOIN relay.outbound_letters l ON l.id = a.id
        ON CONFLICT (message_id, attempt, kind) DO NOTHING
        RETURNING message_id, attempt, owner, address
    ), suppressed AS (
        INSERT INTO relay.suppressions (address, owner, reason, cause)
        SELECT r.address, r.owner, left(%(reason)s, {MAX_REASON}), %(cause)s
        FROM reported r
        WHERE NOT EXISTS (SELECT FROM relay.outbound_letters l
                          WHERE l.id = r.message_id AND l.owner = '{ADMINISTRATOR_ID}'
                            AND l.token IS NOT NULL)
          AND (%(suppress)s
           OR %(full)s AND %(most)s <= 1 + {FULL_LATELY})
        {UNLESS_SUPPRESSED}
        RETURNING address
    ), told AS (
        INSERT INTO relay.webhook_events (kind, subject_id, signer, url, detail)
        SELECT 'message.' || %(kind)s, r.message_id, w.owner, w.url,
               jsonb_build_object('attempts', r.attempt, 'code', NULL, 'error', %(error)s::text)
        FROM reported r
        JOIN relay.webhooks w ON w.owner = r.owner AND 'message.' || %(kind)s = ANY (w.events)
        WHERE %(kind)s <> 'bounced'  -- of which a trigger tells
        RETURNING id
    )
    SELECT (SELECT count(*) FROM reported) + (SELECT count(*) FROM gone) > 0,
           (SELECT count(*) FROM suppressed) > 0,
           (SELECT count(pg_notify('relay_webhooks', '')) FROM told LIMIT 1)
    """  # noqa: S608 - constants


class Returned:
    """What came back, in the database."""

    def __init__(self, pool: Pool, redact_key: bytes) -> None:
        self._pool = pool
        self._key = redact_key

    async def claim(self, most: int = AT_ONCE) -> list[Came]:
        """Lease some of what is due, the oldest first."""
        rows = await self._pool.fetch(
            """
            UPDATE relay.returns r
            SET run_at = clock_timestamp() + make_interval(secs => %s), attempt = attempt + 1
            WHERE id = ANY (ARRAY(
                SELECT id
                FROM relay.returns
                WHERE run_at <= clock_timestamp()
                ORDER BY run_at
                LIMIT %s
                FOR UPDATE SKIP LOCKED
            ))
            RETURNING id, message_id, raw, attempt
            """,
            (_LEASE, most),
        )
        return [Came(*row) for row in rows]

    async def about(self, message_id: UUID) -> About | None:
        """The message of this id, or None when there is none (any more)."""
        row = await self._pool.fetch_row(
            """
            SELECT m.id, l.address, m.status
            FROM relay.outbound_messages m
            JOIN relay.outbound_letters l ON l.id = m.id
            WHERE m.id = %s
            """,
            (message_id,),
        )
        return None if row is None else About(row[0], row[1], State(row[2]))

    async def apply(
        self, about: About, finding: Finding, came: UUID | None = None, *, post: str | None = None
    ) -> Applied | None:
        """Do what follows for a message, and forget what came.

        Where its state does not allow it nothing changes; what came is forgotten all the same.
        None: the message is being delivered, or waits for another attempt after one of which nobody
        knows how it ended; so nothing is done yet, nor forgotten.  `post`: the id under which it is
        to be done once, whatever becomes of the message meanwhile.
        """
        if about.state in {State.PROCESSING, State.QUEUED}:
            return None
        next_state(State.SENT, Cause.RETURNED)  # the law has it; the statement says the same
        words, enhanced = finding.error, finding.enhanced
        if enhanced and enhanced not in words.split():  # receivers mostly say it themselves
            words = f"{enhanced} {words}".rstrip()
        error = redact(words, self._key, [about.recipient]) or "the receiver gave no reason"
        row = await self._pool.fetch_row(
            _APPLY,
            {
                "came": came,
                "post": post,
                "id": about.id,
                "kind": str(finding.kind),
                "enhanced": finding.enhanced,
                "error": error,
                "reason": error,
                "cause": "complained" if finding.kind is Kind.COMPLAINED else "bounced",
                "suppress": finding.suppress,
                "full": finding.is_full,
                "most": FULL_MOST,
                "within": FULL_WITHIN,
            },
        )
        return Applied(False, False) if row is None else Applied(*row[:2])

    async def drop(self, came: UUID) -> None:
        """Forget what came: nothing follows from it."""
        await self._pool.execute("DELETE FROM relay.returns WHERE id = %s", (came,))

    async def later(self, came: UUID, seconds: float) -> None:
        """Have it read again in so many seconds."""
        await self._pool.execute(
            """
            UPDATE relay.returns
            SET run_at = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s
            """,
            (seconds, came),
        )


def tell(about: About, found: Finding, applied: Applied) -> None:
    """Count what became of a report, and write it to the log if it counted."""
    RETURNS.labels(str(found.kind) if applied.changed else "ignored").inc()
    if applied.changed:
        log.info(
            "outbound.returned",
            id=str(about.id),
            outcome=str(found.kind),
            enhanced=found.enhanced,
            suppressed=applied.suppressed,
        )


async def forget_reports(pool: Pool) -> None:
    """Delete reports that are older than full mailboxes are counted, and ids of posts."""
    await pool.execute(
        """
        WITH posts AS (
            DELETE FROM relay.notifications
            WHERE created_at < now() - make_interval(secs => %(posts)s)
        )
        DELETE FROM relay.outbound_reports
        WHERE created_at < now() - make_interval(days => %(reports)s)
        """,
        {"posts": POSTS_KEPT, "reports": FULL_WITHIN},
    )


async def waiting(pool: Pool) -> Waiting:
    """Count what waits to be read, to `ROWS` of it."""
    # The length of what is stored apart is asked for, not its bytes.
    row = await pool.fetch_row(
        """
        SELECT count(*), COALESCE(sum(octet_length(raw)), 0)
        FROM (SELECT raw FROM relay.returns LIMIT %s) AS r
        """,
        (ROWS,),
    )
    return Waiting() if row is None else Waiting(row[0], int(row[1]))


async def waiting_of(pool: Pool, messages: Collection[UUID]) -> dict[UUID, Waiting]:
    """Count what waits to be read of each of these messages, where anything does."""
    # By reading the table, whose rows are short without `raw`: an index would be kept for each.
    rows = await pool.fetch(
        """
        SELECT message_id, count(*), sum(octet_length(raw))
        FROM relay.returns
        WHERE message_id = ANY (%s)
        GROUP BY message_id
        """,
        (list(messages),),
    )
    return {message: Waiting(count, int(size)) for message, count, size in rows}


async def keep(pool: Pool, came: Sequence[tuple[UUID, UUID | None, bytes]]) -> None:
    """Make mails that came to return paths durable.

    Of each: an id of the caller's, under which it is kept once; the message whose return path it
    came to, None: the address for complaints; and as much of the mail as is to be read.
    """
    await pool.run(
        _KEEP,
        (
            uuids_of([id.bytes for id, _, _ in came]).data,
            uuids_of([_NOBODY if m is None else m.bytes for _, m, _ in came]).data,
            byteas([raw for _, _, raw in came]).data,
        ),
    )
