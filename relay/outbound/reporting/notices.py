"""Notices, in the database: what submitters are to be told, found and made reports of.

A *notice* is a row of `relay.outbound_notices`: of which message, and what.  Triggers write it in
the transaction that ends the message, whoever ends it (a delivery, its deadline, a bounce that came
late); `watch` writes it of what waits for long.  `tell` makes reports of notices (`dsn.py`).

Promises
- A submitter is told once of each end of a message, and once that it waits: the notice goes in the
  transaction that queues its report.
- No report goes to a submitter who asked for none (NOTIFY) or is on the suppression list; none is
  made of mail with the null reverse-path (so of no report), nor of an end that holds no more (the
  message was queued again by hand before its failure was told).
- A report is queued for the owner of the message, by the upstream of its submitter, with the null
  reverse-path; it asks for no report.  Of a message that required TLS it requires TLS, and returns
  the header alone (RFC 8689, 5).
- Of one message that went to many a submitter gets few reports, however its failures are spaced:
  two at once, the first whole if that was asked for; the next gather for a time that grows
  (`GATHER`); all but the first return the header alone; behind `MOST_REPORTS` in a day the rest is
  one summary at its end.  Each node knows of its own reports, since it was started.
- A notice of which no report can be made holds up no other.  What the database refuses is tried
  again later, and dropped after `ATTEMPTS`; what cannot be composed, a fault of ours that would
  come again, is dropped at once.  Either is an error in the log.

Crash safety: what a kill leaves

    killed                              notice         report   the submitter
    ----------------------------------  -------------  -------  -----------------------------------
    before the outcome is recorded      none           none     hears nothing; the message is due
                                                                again, as the queue says
    after that                          one            none     hears of it once it is looked at
    while the report is made            one            none     the same: the row's lock is gone
    in the commit that queues it        one, or none   none, or one  either side of one commit
    after that                          none           queued   gets it, as any mail: a second copy
                                                                only where a dot's answer is lost

Fails with `DatabaseUnavailable` from the pool; whether a commit in doubt took place then does not
matter, for either way the next look is right.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

import psycopg
from prometheus_client import Counter

from relay.chance import utc_now
from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.ids import new_ids
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.composing.message import Address, AskedFor, Message
from relay.outbound.queue.enqueue import Suppressed, enqueue
from relay.outbound.queue.lanes import DueLane
from relay.outbound.reporting.dsn import FULL_MOST, Fate, Original, compose, in_utc
from relay.smtp.dsn import MailParameters

log = get_logger()

AT_ONCE = 50
"""Notices that one transaction makes reports of."""
ATTEMPTS = 5
GATHER = 30.0
"""Seconds from the second report of a message to its third; each further one takes longer."""
MOST_REPORTS = 5
"""Reports of one message in a day."""

_LONGER = 6
_DAY = timedelta(days=1)
_MOST_KNOWN = 10_000  # messages whose reports are remembered
_LATER = 60.0  # s; after which a notice that could not be told is tried again
_WATCHED_AT_ONCE = 5_000  # messages that one statement looks at

NOTICES = Counter(
    "relay_submission_notices", "What was to be told to submitters, by what became of that.",
    ["outcome"], registry=registry,
)  # fmt: skip
for _outcome in ("failed", "delayed", "relayed", "delivered", "moot", "suppressed", "untold"):
    NOTICES.labels(_outcome)


class Told(NamedTuple):
    """The result of a look: how many notices were done with, and where reports are due now."""

    notices: int
    due_lanes: Collection[DueLane]


class _Notice(NamedTuple):
    """A notice, and what its report is made of."""

    message_id: UUID
    action: str
    content_id: UUID
    owner: UUID
    submitter: str
    created_at: datetime
    raw: bytes
    size: int
    ret: str | None
    envid: str | None
    require_tls: bool | None
    recipient: str
    orcpt: str | None
    until: datetime | None
    status: str | None
    error: str | None
    code: int | None
    enhanced: str | None
    text: str | None
    phase: str | None
    peer: str | None
    attempted_at: datetime | None

    @property
    def is_so(self) -> bool:
        """Whether the state of the message is still the one to be told."""
        if self.action == "failed":
            return self.status in {"failed", "bounced", "cancelled"}
        if self.action == "delayed":
            # Taken, and reported as waiting by who took it; or it waits here.
            return self.status in {None, "sent"}
        return self.status in {"sent", "bounced"}

    @property
    def fate(self) -> Fate:
        return Fate(
            self.action,
            self.recipient,
            self.orcpt,
            self.code,
            self.enhanced,
            self.text,
            self.phase,
            self.peer,
            self.error,
            in_utc(self.attempted_at),
            in_utc(self.until),
        )


class _Done(NamedTuple):
    """What became of a notice once the transaction is committed; `fault`: why it was not told."""

    outcome: str
    notice: _Notice
    fault: str = ""


_SOON = 2
"""Reports of a message that wait for nothing: that it waits or was taken, and how it ended."""


class _Reports(NamedTuple):
    """Reports of one message: how many in the day that began with the first, and the last."""

    made: int
    first: datetime
    last: datetime

    def next(self, gather: float) -> datetime:
        """From when there may be another."""
        if self.made >= MOST_REPORTS:
            return self.first + _DAY
        if self.made < _SOON:
            return self.last
        return self.last + timedelta(seconds=gather * _LONGER ** (self.made - _SOON))

    def another(self, now: datetime) -> _Reports:
        """These, and one that was made now."""
        if now >= self.first + _DAY:
            return _Reports(1, now, now)
        return _Reports(self.made + 1, self.first, now)


# OFFSET 0: each is looked up by its id, whatever is known of how many there are.
_TAKE = f"""
    WITH due AS MATERIALIZED (
        SELECT message_id, action
        FROM relay.outbound_notices
        WHERE run_at <= clock_timestamp()
        ORDER BY run_at
        LIMIT %(most)s
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM relay.outbound_notices n
        USING due d
        WHERE n.message_id = d.message_id
          AND n.action = d.action
        RETURNING n.message_id, n.action
    )
    SELECT k.message_id, k.action, l.content_id, l.owner, c.sender, l.created_at,
           substr(c.blob, 1, {FULL_MOST}), c.size, c.ret, c.envid, c.require_tls,
           l.recipient, l.orcpt,
           -- What goes directly may be given up before its deadline.
           LEAST(l.not_after,
                 (SELECT d.first_due_at + make_interval(secs => %(lifetime)s)
                  FROM relay.outbound_due d
                  WHERE d.id = k.message_id
                    AND relay.outbound_is_direct(d.id, %(direct)s))),
           g.status,
           CASE WHEN g.status = 'cancelled' THEN g.error END,
           t.code, t.enhanced, t.text, t.phase, t.peer, t.at
    FROM gone k
    CROSS JOIN LATERAL (
        SELECT * FROM relay.outbound_letters WHERE id = k.message_id OFFSET 0
    ) l
    CROSS JOIN LATERAL (
        SELECT * FROM relay.outbound_contents WHERE id = l.content_id OFFSET 0
    ) c
    LEFT JOIN LATERAL (
        SELECT * FROM relay.outbound_log WHERE id = k.message_id OFFSET 0
    ) g ON true
    -- What was said last: by who ended it; else of its last attempt, or by who reports a delay.
    LEFT JOIN LATERAL (
        SELECT g.code, g.enhanced, COALESCE(g.error, g.reply) AS text, g.phase, g.peer,
               g.claimed_at AS at
        WHERE g.status IN ('failed', 'bounced')
           OR g.status = 'sent' AND k.action <> 'delayed'
        UNION ALL
        (SELECT NULL, r.enhanced, r.error, NULL, NULL, r.created_at
         FROM relay.outbound_reports r
         WHERE r.message_id = k.message_id
           AND r.kind = 'delayed'
           AND g.status = 'sent'
           AND k.action = 'delayed'
         ORDER BY r.created_at DESC
         LIMIT 1)
        UNION ALL
        (SELECT y.code, y.enhanced, y.error, y.phase, y.peer, y.at
         FROM relay.outbound_tries y
         WHERE y.message_id = k.message_id
           AND (g.status IS NULL OR g.status = 'cancelled')
         ORDER BY y.attempt DESC, y.at DESC
         LIMIT 1)
    ) t ON true
    ORDER BY l.content_id, k.message_id
    """  # noqa: S608 - constants of this module only


class Notices:
    """The notices of one relay, which calls itself `hostname`.

    `delayed_after`: seconds after which submitters are told that their mail waits; `mx_lifetime`:
    for how many mail is tried that goes directly to the exchangers of its domain, `direct`: whether
    that is so where its sender has no upstream; `gather`: what `GATHER` says; `held`: why mail of
    an owner to a domain waits, as far as this node knows: an enhanced status code, and in words.
    """

    def __init__(
        self,
        pool: Pool,
        hostname: str,
        *,
        delayed_after: float,
        mx_lifetime: float,
        direct: bool,
        gather: float = GATHER,
        held: Callable[[UUID, str], tuple[str, str] | None] = lambda _owner, _domain: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._pool = pool
        self._hostname = hostname
        self._delayed_after = delayed_after
        self._until = {"lifetime": mx_lifetime, "direct": direct}
        self._gather = gather
        self._held = held
        self._now = now
        self._reports: OrderedDict[UUID, _Reports] = OrderedDict()

    async def watch(self) -> int:
        """Write down what has waited for so long; returns how many messages that are."""
        count = 0
        while True:
            row = await self._pool.fetch_row(
                "SELECT looked, waiting FROM relay.outbound_watch_delays(%s, %s)",
                (self._delayed_after, _WATCHED_AT_ONCE),
            )
            count += 0 if row is None else int(row[1])
            if row is None or row[0] < _WATCHED_AT_ONCE:
                return count

    async def tell(self) -> Told:
        """Make reports of some of what is due, and queue them."""
        try:
            return await self._tell(AT_ONCE)
        except DatabaseUnavailable:
            raise
        except psycopg.Error:
            # One of them, and which is not known: each by itself.
            return await self._one()

    async def _one(self) -> Told:
        try:
            return await self._tell(1)
        except DatabaseUnavailable:
            raise
        except psycopg.Error as error:
            return Told(await self._put_off(type(error).__name__), ())

    async def _tell(self, most: int) -> Told:
        done: list[_Done] = []
        lanes: set[DueLane] = set()
        reported: set[UUID] = set()
        now = self._now()
        async with self._pool.transaction() as connection:
            cursor = await connection.execute(_TAKE, {"most": most, **self._until})
            notices = [_Notice(*row) for row in await cursor.fetchall()]
            for content, group in groupby(notices, lambda notice: notice.content_id):
                of_one = list(group)
                done += [_Done("moot", notice) for notice in of_one if not notice.is_so]
                told = [notice for notice in of_one if notice.is_so]
                if not told:
                    continue
                before = self._reports.get(content)
                if before is not None and (next := before.next(self._gather)) > now:
                    await _gather(connection, told, (next - now).total_seconds())
                    continue
                lanes |= await self._report(connection, told, done)
                reported.add(content)
        for content in reported:
            self._has_reported(content, now)
        for outcome, notice, fault in done:
            NOTICES.labels(outcome).inc()
            id = str(notice.message_id)
            if outcome == "untold":
                log.error("outbound.untold", id=id, error=fault)
            else:
                log.info("outbound.told", id=id, outcome=outcome)
        return Told(len(notices), lanes)

    def _has_reported(self, content: UUID, now: datetime) -> None:
        before = self._reports.pop(content, None)
        self._reports[content] = _Reports(1, now, now) if before is None else before.another(now)
        if len(self._reports) > _MOST_KNOWN:
            self._reports.popitem(last=False)

    async def _report(
        self, connection: Connection, notices: Sequence[_Notice], done: list[_Done]
    ) -> set[DueLane]:
        """Queue the report of notices of one content."""
        first = notices[0]
        (id,) = new_ids(1)
        original = Original(
            first.submitter,
            _utc(first.created_at),
            bytes(first.raw or b""),
            first.size,
            "HDRS" if first.require_tls or first.content_id in self._reports else first.ret,
            first.envid,
        )
        fates = [self._fate(notice) for notice in notices]
        try:
            raw = compose(original, fates, hostname=self._hostname, id=id, now=utc_now())
        except Exception as error:  # a fault of ours, which would come again at each look
            # Its name alone: its text could hold the message.
            done += [_Done("untold", notice, type(error).__name__) for notice in notices]
            return set()
        parameters = MailParameters(require_tls=first.require_tls is True)
        message = Message(
            sender=Address(""),
            recipients=(Address(first.submitter),),
            subject=_subject(raw),
            raw=raw,
            owner=first.owner,
            tls_optional=first.require_tls is False,
            submitted=AskedFor(parameters, reports=False),
            route_as=first.submitter,
        )
        try:
            queued = await enqueue(self._pool, [message], ids=[id], conn=connection)
        except Suppressed:
            done += [_Done("suppressed", notice) for notice in notices]
            return set()
        done += [_Done(notice.action, notice) for notice in notices]
        return queued.due_lanes

    def _fate(self, notice: _Notice) -> Fate:
        """What became of a message; of one that no attempt says anything of, why it waits."""
        fate = notice.fate
        if notice.action != "delayed" or fate.text:
            return fate
        held = self._held(notice.owner, notice.recipient.rpartition("@")[2].lower())
        return fate if held is None else fate._replace(enhanced=held[0], text=held[1])

    async def _put_off(self, why: str) -> int:
        """Try the next notice later, or drop it: its report was refused by the database."""
        row = await self._pool.fetch_row(
            """
            WITH next AS MATERIALIZED (
                SELECT message_id, action, attempt
                FROM relay.outbound_notices
                WHERE run_at <= clock_timestamp()
                ORDER BY run_at
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ), dropped AS (
                DELETE FROM relay.outbound_notices n
                USING next x
                WHERE n.message_id = x.message_id AND n.action = x.action AND x.attempt >= %(most)s
                RETURNING n.message_id
            ), later AS (
                UPDATE relay.outbound_notices n
                SET attempt = n.attempt + 1,
                    run_at = clock_timestamp() + make_interval(secs => %(later)s)
                FROM next x
                WHERE n.message_id = x.message_id AND n.action = x.action AND x.attempt < %(most)s
            )
            SELECT x.message_id, EXISTS (SELECT FROM dropped)
            FROM next x
            """,
            {"most": ATTEMPTS - 1, "later": _LATER},
        )
        if row is None:
            return 0
        if row[1]:
            NOTICES.labels("untold").inc()
            log.error("outbound.untold", id=str(row[0]), error=why)
        return 1


async def _gather(connection: Connection, notices: Sequence[_Notice], seconds: float) -> None:
    """Have notices that were taken wait for so long."""
    await connection.execute(
        """
        INSERT INTO relay.outbound_notices (message_id, action, run_at)
        SELECT n.message_id, n.action, clock_timestamp() + make_interval(secs => %s)
        FROM unnest(%s::uuid[], %s::text[]) n (message_id, action)
        """,
        (
            seconds,
            [notice.message_id for notice in notices],
            [notice.action for notice in notices],
        ),
    )


def _subject(raw: bytes) -> str:
    """The subject of a report, for lists."""
    return next(
        line[9:].decode() for line in raw.split(b"\r\n", 20) if line.startswith(b"Subject: ")
    )


def _utc(at: datetime) -> datetime:
    found = in_utc(at)
    assert found is not None
    return found
