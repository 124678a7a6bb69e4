"""Reports of TLS (RFC 8460), from what was counted to who gets them: one for a domain's day.

Every node adds what it counted to `relay.tls_results`; one node at a time reports the days that are
over, under a lease.

Promises
- Results are added once a minute, many in a statement, off the way of any mail.
- A day (UTC) is reported when it is over, at a time within `SPREAD` after that is the domain's by
  chance, to all that the domain's record names then: by mail through the queue, and by POST to
  https: URLs at public addresses.  A domain without a record has its results forgotten.
- A report is mailed only if it will be signed: if the domain it is from has an active key
  (RFC 8460, 3).  Else it goes to URLs alone.
- A report is mailed once: that it was is noted in the commit that queues it (`mailed`), which
  removes what was counted, too, unless it is to be posted still.  Then its counts stay until that
  has ended.  What is posted may come twice, after a crash; its id tells.
- What cannot be posted, or whose record cannot be asked for, is tried `MOST_ATTEMPTS` times,
  `AGAIN` seconds apart and more, and then given up.
- An organisation and an address get so many reports a day of a node (`MOST_OF_ORGANISATION`,
  `MOST_TO_ONE`) and no more; what is beyond that is forgotten.  Who has many domains waits behind
  those who have few.
- Reports are counted in no report (`relay.outbound.delivery.workers`).
- What is older than `KEPT` days is removed, whatever became of it.

Fails with `DatabaseUnavailable`.  When the answer of a commit is lost, a minute may count twice.

What a crash leaves

| it crashes                  | then                                                              |
|-----------------------------|-------------------------------------------------------------------|
| before results are stored   | those of the last minute are lost                                 |
| before a report is queued   | it is made anew by whoever leads next                             |
| between a post and its      | it is posted once more                                            |
| commit                      |                                                                   |
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import trio
from prometheus_client import Counter

from relay.chance import new_rng, utc_now
from relay.db.leases import FENCE, Lease
from relay.db.pool import Pool
from relay.dns.questions import Answer, Question, Status
from relay.errors import PermanentFailure, TemporaryFailure
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.composing.message import Address
from relay.outbound.mx.policy import Published
from relay.outbound.mx.tls_results import MOST_OF_DOMAIN, TlsResult, TlsResults, others
from relay.outbound.queue.enqueue import Enqueued, enqueue
from relay.outbound.reporting.tls_report import Report, mail_of, receivers, report_of

log = get_logger()

SPREAD = 4 * 3600.0
"""Seconds after the end of a day over which its reports are made: not all at midnight (4.1)."""
EARLIER = 30.0
"""Seconds by which what is stored is taken to be older: it was counted in the minute before."""
LATE = EARLIER + 270.0
"""Seconds after the end of a day in which nodes add what they counted: after `EARLIER` nothing is
dated to it any more, and what was has so long to be committed."""
AGAIN = 1800.0
"""Seconds from the first attempt that failed to the next; after the second twice as many, and so
on, a tenth more or less."""
MOST_ATTEMPTS = 8
"""Attempts at one report, of its posts or of asking who wants it; after the last it is given up."""
KEPT = 4
"""Days for which results and reports are kept at most."""
MOST_ROWS = 2 * MOST_OF_DOMAIN
"""Results that one report tells of; a few nodes at once may store more than `MOST_OF_DOMAIN`."""
MOST_OF_ORGANISATION = 20
"""Domains of an organisation (`relay.checks.dmarc`) that one node reports to in a day,"""
MOST_TO_ONE = 100
"""and reports that an address or a URL gets: a stranger's record may name anybody's."""
MOST_AT_ONCE = 50
"""Reports that one round makes."""

_REPORTS = Counter(
    "relay_tls_reports",
    "Reports of TLS to domains: mailed (queued), posted, unwanted (the domain has no record), or "
    "failed (given up).",
    ["outcome"],
    registry=registry,
)

Ask = Callable[[Question], Awaitable[Answer]]
Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[int]]
"""Posts, and returns the status; raises `TemporaryFailure`."""


class Due(NamedTuple):
    """A report that is to be made."""

    day: date
    domain: str
    id: UUID
    mailed: bool
    urls: Sequence[str] | None
    attempts: int


class TlsReports:
    """What was counted, and who is told."""

    def __init__(
        self,
        pool: Pool,
        results: TlsResults,
        ask: Ask,
        post: Post,
        *,
        sender: Address,
        rng: random.Random | None = None,
    ) -> None:
        """`sender`: whom reports are from; `ask` the DNS; `post` where somebody else says."""
        self._pool = pool
        self._results = results
        self._ask = ask
        self._post = post
        self._sender = sender
        self._rng = rng or new_rng()
        self._warned = False
        self._today: date | None = None
        self._told: dict[str, int] = {}

    # What was counted -----------------------------------------------------------------------------

    async def store(self) -> None:
        """Add what this node has counted since the last time."""
        taken = self._results.take()
        if not taken:
            return
        rows = [(*_row(result), count, *_key_of(others(result))) for result, count in taken.items()]
        columns = map(list, zip(*rows, strict=True))
        try:
            await self._pool.execute(
                """
                WITH today AS MATERIALIZED (
                    SELECT ((now() - make_interval(secs => %(earlier)s))
                            AT TIME ZONE 'UTC')::date AS day
                ), counted AS MATERIALIZED (
                    SELECT n.*, EXISTS (SELECT FROM relay.tls_results r
                                        WHERE r.day = today.day
                                          AND r.domain = n.domain
                                          AND r.key = n.key) AS is_there
                    FROM today CROSS JOIN unnest(
                            %(keys)s::bytea[], %(domains)s::text[], %(policies)s::text[],
                            %(faults)s::text[], %(hosts)s::text[], %(addresses)s::text[],
                            %(sources)s::text[], %(counts)s::bigint[], %(o_keys)s::bytea[],
                            %(o_policies)s::text[], %(o_faults)s::text[])
                        AS n (key, domain, policy, fault, host, address, source, count,
                              o_key, o_policy, o_fault)
                ), known AS MATERIALIZED (
                    SELECT d.domain, (SELECT count(*)
                                      FROM relay.tls_results r
                                      WHERE r.day = today.day AND r.domain = d.domain) AS rows
                    FROM today CROSS JOIN (SELECT DISTINCT domain FROM counted) AS d
                ), placed AS (
                    SELECT c.*, c.is_there OR k.rows + row_number() OVER (
                               PARTITION BY c.domain, c.is_there ORDER BY c.key) <= %(most)s AS fits
                    FROM counted c JOIN known k USING (domain)
                ), named AS (
                    SELECT domain, count,
                           CASE WHEN fits THEN key ELSE o_key END AS key,
                           CASE WHEN fits THEN policy ELSE o_policy END AS policy,
                           CASE WHEN fits THEN fault ELSE o_fault END AS fault,
                           CASE WHEN fits THEN host ELSE '' END AS host,
                           CASE WHEN fits THEN address ELSE '' END AS address,
                           CASE WHEN fits THEN source ELSE '' END AS source
                    FROM placed
                )
                INSERT INTO relay.tls_results AS r
                    (day, domain, key, policy, fault, host, address, source, count)
                SELECT today.day, n.domain, n.key, n.policy::jsonb, n.fault, n.host, n.address,
                       n.source, sum(n.count)
                FROM today CROSS JOIN named n
                GROUP BY today.day, n.domain, n.key, n.policy, n.fault, n.host, n.address, n.source
                ORDER BY n.domain, n.key  -- two nodes lock the rows in one order
                ON CONFLICT (day, domain, key) DO UPDATE
                SET count = r.count + excluded.count
                """,
                {
                    "earlier": EARLIER,
                    "most": MOST_OF_DOMAIN,
                    **dict(zip(_COLUMNS, columns, strict=True)),
                },
            )
        except BaseException:
            self._results.put_back(taken)
            raise

    # Who is told ----------------------------------------------------------------------------------

    async def due(self, lease: Lease) -> list[Due]:
        """The reports that are to be made now, those that fail often last."""
        await self._pool.execute(
            f"""
            WITH old AS (
                DELETE FROM relay.tls_results
                WHERE day < (now() AT TIME ZONE 'UTC')::date - %(kept)s::integer
            ), forgotten AS (
                DELETE FROM relay.tls_reports
                WHERE day < (now() AT TIME ZONE 'UTC')::date - %(kept)s::integer
            )
            INSERT INTO relay.tls_reports (day, domain, id, due_at)
            SELECT d.day, d.domain, gen_random_uuid(),
                   (d.day + 1)::timestamp AT TIME ZONE 'UTC'
                   + make_interval(secs => %(late)s + %(spread)s * random())
            FROM (SELECT DISTINCT r.day, r.domain
                  FROM relay.tls_results r
                  WHERE (r.day + 1)::timestamp AT TIME ZONE 'UTC'
                        < now() - make_interval(secs => %(late)s)
                    AND r.day >= (now() AT TIME ZONE 'UTC')::date - %(kept)s::integer) AS d
            WHERE {FENCE}
            ON CONFLICT DO NOTHING
            """,  # noqa: S608 - a constant
            {"kept": KEPT, "late": LATE, "spread": SPREAD, **lease.fence},
        )
        rows = await self._pool.fetch(
            """
            SELECT day, domain, id, mailed, urls, attempts
            FROM relay.tls_reports
            WHERE due_at <= now()
            -- One of each name before the second of any: many below one name hold up no other.
            ORDER BY attempts,
                     row_number() OVER (PARTITION BY attempts, substring(domain, '[^.]*[.]?[^.]*$')
                                        ORDER BY due_at),
                     day, due_at
            LIMIT %(most)s
            """,
            {"most": MOST_AT_ONCE},
        )
        return [Due(*row) for row in rows]

    async def make(self, due: Due, lease: Lease) -> Enqueued | None:
        """Make one report and have it go to all who want it; returns what was queued, if any."""
        urls = due.urls
        addresses: Sequence[str] = ()
        if urls is None:
            answer = await self._ask(Question(f"_smtp._tls.{due.domain}", "TXT"))
            if answer.status is Status.FAILED:
                await self._later(due, None, lease, answer.detail)
                return None
            addresses, urls = receivers(answer.records)
            if not addresses and not urls:
                _REPORTS.labels("unwanted").inc()
                await self._done(due, lease)
                return None
            if not await self._may_have_another(due.domain):
                _REPORTS.labels("failed").inc()
                log.info("tls_reporter.too_many", domain=due.domain)
                await self._done(due, lease)
                return None
            if addresses and not await self._is_signed():
                _REPORTS.labels("failed").inc()
                addresses = ()
            addresses = [one for one in addresses if self._take(one.lower(), MOST_TO_ONE)]
            urls = [one for one in urls if self._take(one, MOST_TO_ONE)]
        counted = await self._counted(due)
        write = partial(
            report_of, due.domain, due.day, counted, sender=self._sender, id=str(due.id)
        )
        report = await trio.to_thread.run_sync(write)  # others' records may be long
        left, why = await self._posted(report, urls)
        queued = await self._queue(due, report, addresses, left, lease)
        if queued is not None:
            log.info("tls_reporter.mailed", domain=due.domain, report=str(due.id))
        if left:
            await self._later(due, left, lease, why)
        return queued

    async def _is_signed(self) -> bool:
        """Whether what is mailed will be signed (RFC 8460, 3); warns once that it will not."""
        domain = self._sender.address.rpartition("@")[2].lower()
        found: bool = await self._pool.fetch_value(
            "SELECT EXISTS (SELECT FROM relay.dkim_keys WHERE domain = %s AND state = 'active')",
            (domain,),
        )
        if not (found or self._warned):
            log.warning("tls_reporter.unsigned", domain=domain)
        self._warned = not found
        return found

    async def _may_have_another(self, domain: str) -> bool:
        """Whether an organisation gets a report of one more of its domains."""
        organisation = await trio.to_thread.run_sync(_organisation, domain)
        return self._take(f"@{organisation}", MOST_OF_ORGANISATION)

    def _take(self, whom: str, most: int) -> bool:
        """Count a report that somebody gets today, if that is not too many."""
        today = utc_now().date()
        if self._today != today:
            self._today, self._told = today, {}
        told = self._told.get(whom, 0)
        if told >= most:
            return False
        self._told[whom] = told + 1
        return True

    async def _counted(self, due: Due) -> list[tuple[TlsResult, int]]:
        rows = await self._pool.fetch(
            """
            SELECT policy, fault, host, address, source, count
            FROM relay.tls_results
            WHERE day = %(day)s AND domain = %(domain)s
            ORDER BY count DESC
            LIMIT %(most)s
            """,
            {"day": due.day, "domain": due.domain, "most": MOST_ROWS},
        )
        return [
            (TlsResult(due.domain, _published(policy), fault, host, address, source), count)
            for policy, fault, host, address, source, count in rows
        ]

    async def _posted(self, report: Report, urls: Sequence[str]) -> tuple[list[str], str]:
        """Post a report (5.4); returns where it did not arrive, and why."""
        left, why = [], ""
        for url in urls:
            try:
                headers = {"Content-Type": "application/tlsrpt+gzip"}
                status = await self._post(url, report.body, headers)
            except TemporaryFailure as error:
                left.append(url)
                why = str(error)
                continue
            if 200 <= status < 300:
                _REPORTS.labels("posted").inc()
                log.info("tls_reporter.posted", domain=report.domain, report=report.id)
            else:
                left.append(url)
                why = f"it was answered {status}"
        return left, why

    async def _queue(
        self, due: Due, report: Report, addresses: Sequence[str], left: Sequence[str], lease: Lease
    ) -> Enqueued | None:
        """Queue the mail of a report, and remove what it says if nobody else is to get it."""
        queued = None
        async with self._pool.transaction() as conn:
            cursor = await conn.execute(
                f"""
                UPDATE relay.tls_reports
                SET mailed = true
                WHERE day = %(day)s AND domain = %(domain)s AND {FENCE}
                RETURNING true
                """,  # noqa: S608 - a constant
                {"day": due.day, "domain": due.domain, **lease.fence},
            )
            if await cursor.fetchone() is None:
                return None  # somebody else leads
            if addresses and not due.mailed:
                message = mail_of(report, addresses, sender=self._sender, at=utc_now())
                try:
                    queued = await enqueue(self._pool, [message], conn=conn)
                except PermanentFailure as error:  # suppressed, or none that can be sent to
                    log.info("tls_reporter.not_mailed", domain=due.domain, reason=str(error))
                    _REPORTS.labels("failed").inc()
                else:
                    _REPORTS.labels("mailed").inc()
            if not left:
                await conn.execute(_FORGET, {"day": due.day, "domain": due.domain, **lease.fence})
        return queued

    async def _later(self, due: Due, urls: Sequence[str] | None, lease: Lease, why: str) -> None:
        """Have another attempt made, or give up."""
        if due.attempts + 1 >= MOST_ATTEMPTS:
            _REPORTS.labels("failed").inc()
            log.warning("tls_reporter.given_up", domain=due.domain, report=str(due.id), reason=why)
            await self._done(due, lease)
            return
        await self._pool.execute(
            f"""
            UPDATE relay.tls_reports
            SET urls = %(urls)s,
                attempts = attempts + 1,
                due_at = now() + make_interval(secs => %(again)s)
            WHERE day = %(day)s AND domain = %(domain)s AND {FENCE}
            """,  # noqa: S608 - a constant
            {
                "urls": None if urls is None else list(urls),
                "again": AGAIN * (due.attempts + 1) * self._rng.uniform(0.9, 1.1),
                "day": due.day,
                "domain": due.domain,
                **lease.fence,
            },
        )
        log.info("tls_reporter.not_reported", domain=due.domain, report=str(due.id), reason=why)

    async def _done(self, due: Due, lease: Lease) -> None:
        await self._pool.execute(_FORGET, {"day": due.day, "domain": due.domain, **lease.fence})


_COLUMNS = (
    "keys",
    "domains",
    "policies",
    "faults",
    "hosts",
    "addresses",
    "sources",
    "counts",
    "o_keys",
    "o_policies",
    "o_faults",
)

_FORGET = f"""
    WITH done AS (
        DELETE FROM relay.tls_reports
        WHERE day = %(day)s AND domain = %(domain)s AND {FENCE}
        RETURNING day, domain
    )
    DELETE FROM relay.tls_results r
    USING done
    WHERE r.day = done.day AND r.domain = done.domain
"""  # noqa: S608 - a constant


def _organisation(domain: str) -> str:
    """The organisational domain of a domain; takes a moment, the first time."""
    from relay.checks.dmarc import organisational_domain

    return organisational_domain(domain)


def _row(result: TlsResult) -> tuple[bytes, str, str, str, str, str, str]:
    """Key, domain, policy, fault, host, address and source of a result."""
    policy = json.dumps(result.published._asdict(), sort_keys=True)
    parts = (policy, result.fault, result.host, result.address, result.source)
    # Without a source as a relay of before has it, which adds to the same row.
    key = hashlib.sha256("\0".join(parts).removesuffix("\0").encode()).digest()
    return (key, result.domain, *parts)


def _key_of(result: TlsResult) -> tuple[bytes, str, str]:
    """Key, policy and fault of a result that has nothing else."""
    key, _, policy, fault, *_ = _row(result)
    return key, policy, fault


def _published(policy: dict[str, Any]) -> Published:
    return Published(policy["type"], tuple(policy["strings"]), tuple(policy["hosts"]))
