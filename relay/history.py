"""The last day, a row a minute: what all relays on one database received and sent, and what waited.

Each relay counts in memory and adds what it counted to the row of the minute, by one statement a
minute; that also removes what is older than `KEPT`.  So two relays share a row, charts begin full,
and nothing is written when mail moves.

Promises
- What a relay counted is added once: what could not be written yet is in the next row.
- A minute in which no relay ran has no row.  Minutes are those of the database's clock.

Fails with `DatabaseUnavailable`.  When the answer of a commit is lost, a minute may count twice;
what a relay counted since its last row is lost when it is killed.

Why counted in memory and not in the tables: messages are deleted, those of tests within the second,
and counting rows would cost by the message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import trio

from relay.db.pool import Pool
from relay.metrics import registry
from relay.outbound.queue.states import IS_QUEUED
from relay.times import rfc3339

KEPT = 25
"""Hours that a row is kept: a full day, whenever one looks."""

_TIMEOUT = 30.0  # s; it counts all that is queued
_SOON = 0.5  # s after the end of a minute, so that a clock a little off does not cut it short

_APART = 30.0  # s, at least, between two notes of the counters

_COUNTED = {
    "received": (("relay_smtp_messages", "outcome", "accepted"),),
    "refused": (("relay_smtp_messages", "outcome", "rejected"),),
    "parsed": (("relay_messages_summarised", "", ""),),
    "claimed": (("relay_outbound_claimed", "", ""),),
    "sent": (("relay_outbound_outcomes", "cause", "delivered"),),
    "failed": (
        ("relay_outbound_outcomes", "cause", "rejected"),
        ("relay_outbound_outcomes", "cause", "exhausted"),
    ),
    "deferred": (("relay_outbound_outcomes", "cause", "deferred"),),
    "bounced": (
        ("relay_outbound_outcomes", "cause", "refused"),
        ("relay_returns", "outcome", "bounced"),
    ),
    "submitted": (("relay_submission_messages", "outcome", "accepted"),),
    "posted": (("relay_http_messages", "became", "queued"),),
    "put": (("relay_http_messages", "became", "stored"),),
    "looped": (("relay_loop_messages", "", ""),),
    "notified": (("relay_sns_posts", "outcome", "stored"),),
    "told": (("relay_webhook_posts", "outcome", "delivered"),),
}
_KEPT_OF_THESE = ("received", "sent", "failed", "bounced")


@dataclass(frozen=True, slots=True)
class Minute:
    """One row: counts of the minute that begins `at`, and what waited at its end."""

    at: datetime
    received: int
    sent: int
    failed: int
    bounced: int
    waiting: int
    oldest_due_seconds: float | None

    def as_json(self) -> dict[str, Any]:
        """An element of the answer of `GET /api/v1/history`."""
        return {
            "at": rfc3339(self.at),
            "received": self.received,
            "sent": self.sent,
            "failed": self.failed,
            "bounced": self.bounced,
            "waiting": self.waiting,
            "oldest_due_seconds": self.oldest_due_seconds,
        }


class History:
    """The rows, and what this process has not added to them yet."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._added = dict.fromkeys(_COUNTED, 0)
        self._added_at: float | None = None  # by Trio's clock
        self._noted: deque[tuple[float, dict[str, int]]] = deque(maxlen=2)

    def earlier(self) -> tuple[float, dict[str, int]] | None:
        """Return what the counters were, and how many seconds ago: one to two minutes.

        Sooner after the start; None where nothing is recorded in this process.
        """
        if not self._noted:
            return None
        at, counters = self._noted[0]
        return trio.current_time() - at, counters

    async def record(self) -> float:
        """Add what was counted since the last time; return the seconds to the next minute's end.

        It belongs to the minute in which most of that time was, the last one of an outage.
        """
        counted, now = counters(), trio.current_time()
        if not self._noted or now - self._noted[-1][0] >= _APART:
            self._noted.append((now, counted))
        since = 0.0 if self._added_at is None else now - self._added_at
        rest = await self._pool.fetch_value(
            f"""
            WITH gone AS (
                DELETE FROM relay.history
                WHERE at < now() - make_interval(hours => %(kept)s)
            )
            INSERT INTO relay.history AS h
                (at, received, sent, failed, bounced, waiting, oldest_due_seconds)
            SELECT date_trunc('minute', now() - make_interval(secs => %(back)s)),
                   %(received)s, %(sent)s, %(failed)s, %(bounced)s,
                   count(*) FILTER (WHERE {IS_QUEUED}),
                   extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
            FROM relay.outbound_due
            ON CONFLICT (at) DO UPDATE
            SET received = h.received + excluded.received,
                sent = h.sent + excluded.sent,
                failed = h.failed + excluded.failed,
                bounced = h.bounced + excluded.bounced,
                waiting = excluded.waiting,
                oldest_due_seconds = excluded.oldest_due_seconds
            RETURNING 60 - extract(second FROM clock_timestamp())::float8
            """,  # noqa: S608 - a constant of the law
            {
                "kept": KEPT,
                "back": min(since, 60.0) / 2,
                **{name: counted[name] - self._added[name] for name in _KEPT_OF_THESE},
            },
            timeout=_TIMEOUT,
        )
        self._added, self._added_at = counted, now
        return float(rest) + _SOON

    async def last(self, hours: int) -> list[Minute]:
        """Return the minutes of so many hours, the oldest first."""
        rows = await self._pool.fetch(
            """
            SELECT at, received, sent, failed, bounced, waiting, oldest_due_seconds
            FROM relay.history
            WHERE at >= now() - make_interval(hours => %(hours)s)
            ORDER BY at
            """,
            {"hours": hours},
        )
        return [Minute(*row) for row in rows]


def counters() -> dict[str, int]:
    """What the counters of this relay say now, those of its SMTP processes among them."""
    wanted = {name for sources in _COUNTED.values() for name, _, _ in sources}
    found: dict[tuple[str, str, str], float] = {}
    for metric in registry.collect():
        if metric.name in wanted:
            for sample in metric.samples:
                for label, value in (sample.labels or {"": ""}).items():
                    key = metric.name, label, value
                    found[key] = found.get(key, 0.0) + sample.value  # whatever its other labels
    return {
        name: int(sum(found.get(source, 0.0) for source in sources))
        for name, sources in _COUNTED.items()
    }
