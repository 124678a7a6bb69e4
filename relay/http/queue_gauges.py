"""Gauges of what waits in the database: a task counts in the background, `/metrics` shows the last.

So `/metrics` never asks the database.  One statement counts all, so that the figures are of one
moment.  The task rests `_REST` times as long as it took, at least `EVERY`: with a
million queued messages it looks less often and costs the same.

Fails: never.  While the database is away there is nothing to show; figures that are older than
`_STALE` rests are left out rather than shown as if they were of now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import psycopg
import trio
from prometheus_client.core import GaugeMetricFamily, Metric

from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.metrics import Collector, registry
from relay.outbound.queue.states import IS_QUEUED

log = get_logger()

EVERY = 5.0
"""Seconds between two counts, at least."""

_AFTER_FAILURE = 40.0  # s
_REST = 40.0  # times as long as it took
_STALE = 6.0
_TIMEOUT = 30.0  # s

_COUNT = f"""
    SELECT q.*, t.waiting, m.live
    FROM (SELECT count(*) FILTER (WHERE waits),
                 count(*) FILTER (WHERE node IS NOT NULL AND run_at > now()),
                 count(*) FILTER (WHERE node IS NULL AND NOT isfinite(run_at)),
                 count(*) FILTER (WHERE run_at <= now()),
                 COALESCE(extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now())), 0)
                     ::float8
          FROM relay.outbound_due
          CROSS JOIN LATERAL (SELECT {IS_QUEUED}) AS one (waits)
         ) AS q (queued, processing, held, due, oldest)
    CROSS JOIN (SELECT count(*) AS waiting
                FROM relay.token_queue
                WHERE ready AND expires_at > extract(epoch FROM now())) AS t
    CROSS JOIN (SELECT count(*) AS live
                FROM relay.mailboxes
                WHERE is_active AND expires_at > now()) AS m
    """  # noqa: S608 - a constant of the law


class QueueGauges(Collector):
    """The gauges, and the task that counts (`run`)."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._found: tuple[float, ...] | None = None
        self._fresh_until = -math.inf

    async def run(self) -> None:
        """Count, rest, count again, for ever."""
        registry.register(self)
        try:
            while True:
                rest = await self.count()
                await trio.sleep(rest)
        finally:
            registry.unregister(self)

    async def count(self) -> float:
        """Count once; returns the seconds to rest."""
        began = trio.current_time()
        try:
            self._found = await self._pool.fetch_row(_COUNT, timeout=_TIMEOUT)
        except DatabaseUnavailable:
            return EVERY
        except psycopg.Error as error:
            log.warning("gauges.failed", error=type(error).__name__)
            return _AFTER_FAILURE
        now = trio.current_time()
        rest = max(EVERY, _REST * (now - began))
        self._fresh_until = now + _STALE * rest
        return rest

    def collect(self) -> Iterator[Metric]:
        """Show what was counted last."""
        messages = GaugeMetricFamily(
            "relay_queue_messages", "Outbound messages that are unfinished.", labels=["status"]
        )
        others = [
            GaugeMetricFamily(name, text)
            for name, text in (
                ("relay_queue_due", "Outbound messages that are due now."),
                ("relay_queue_oldest_due_seconds", "How long the oldest of them has been due."),
                ("relay_tokens_waiting", "Tokens whose letter is not queued yet."),
                ("relay_mailboxes_live", "Mailboxes that accept mail."),
            )
        ]
        if self._found is not None and trio.current_time() < self._fresh_until:
            for status, count in zip(("queued", "processing", "held"), self._found, strict=False):
                messages.add_metric([status], count)
            for family, value in zip(others, self._found[3:], strict=True):
                family.add_metric([], value)
        yield messages
        yield from others
