"""Rates that all nodes share: messages a second through a route, to a domain, within a budget.

The algorithm is GCRA (ITU-T I.371, the virtual scheduling form): one instant a key, the
theoretical arrival time, says how much of the rate has been given away already.  A node leases
what it will need in about the next second (`Rates.lease`, one statement for all its keys) and
spends it from memory (`Meter`), so a message costs no query.

Promises
- Whatever the number of nodes, no more than `burst + rate × t` messages are granted in any t
  seconds, by the database's clock.  What a node was granted and did not spend is lost after a
  slice: a limit errs on the side of too little.
- A key without a row has no limit, and costs one look a slice.
- Two nodes that lease several keys at once take the rows in one order and cannot deadlock.

Fails with `DatabaseUnavailable` from the pool; the meter then allows nothing of a limited key
until a lease succeeds.

Why leased: counting from each worker's own snapshot overspends, and a query a message would cost
more than the message.  `grant` is pure and is the same arithmetic as the statement's; a test holds
the two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from relay.db.pool import Pool

SLICE = 1.0
"""Seconds for which a node leases ahead."""


class Grant(NamedTuple):
    """What a lease got: how many messages, and the seconds until more can be had (0: now)."""

    granted: int
    wait: float


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit: `rate` messages a second on average, `burst` at once after a silence."""

    key: str
    rate: float
    burst: float = 1.0


def route_key(url: str) -> str:
    """The key of a route, by its URL without credentials."""
    return f"route:{url}"


def domain_key(domain: str) -> str:
    """The key of a destination domain."""
    return f"domain:{domain}"


def budget_rate(monthly_budget: float, price_per_thousand: float) -> float:
    """Messages a second that a monthly budget pays for, a month being 30 days.

    $100 at $0.10 a thousand are a million messages, one every 2.592 s.
    """
    return monthly_budget / price_per_thousand * 1000 / (30 * 86400)


def grant(tat: float, now: float, rate: float, burst: float, want: int) -> tuple[Grant, float]:
    """Grant up to `want` messages at `now` (seconds); return what, and the new arrival time.

    `tat` is the theoretical arrival time so far.
    """
    start = max(tat, now)
    # Earned by now: the burst, less what of it is still to be paid back.
    free = max(math.floor((now - start) * rate + burst + 1e-6), 0)
    count = min(want, free)
    tat = start + count / rate
    wait = 0.0 if count == want else max(tat - now - (burst - 1) / rate, 0.0)
    return Grant(count, wait), tat


class Rates:
    """The limits in `relay.outbound_rates`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def put(self, rate: Rate) -> None:
        """Set a limit, or change it; what was granted before still counts."""
        await self._pool.execute(
            """
            INSERT INTO relay.outbound_rates (key, rate, burst)
            VALUES (%s, %s, %s)
            ON CONFLICT (key) DO UPDATE
            SET rate = excluded.rate, burst = excluded.burst
            """,
            (rate.key, rate.rate, rate.burst),
        )

    async def remove(self, key: str) -> bool:
        """Lift a limit.  False: there was none."""
        return (
            await self._pool.execute("DELETE FROM relay.outbound_rates WHERE key = %s", (key,)) > 0
        )

    async def list(self) -> list[Rate]:
        """Every limit, by key."""
        rows = await self._pool.fetch(
            """
            SELECT key, rate, burst
            FROM relay.outbound_rates
            ORDER BY key
            """
        )
        return [Rate(*row) for row in rows]

    async def lease(self, wants: Mapping[str, int]) -> dict[str, Grant]:
        """Take up to so many messages of each key; keys that are missing in the answer have no
        limit."""
        if not wants:
            return {}
        rows = await self._pool.fetch(
            """
            WITH wanted AS (
                SELECT w.key, w.want
                FROM unnest(%s::text[], %s::integer[]) AS w (key, want)
            ), locked AS MATERIALIZED (
                -- In the order of the keys: two nodes meet on the first row they share.
                SELECT r.key, r.rate, r.burst, w.want, GREATEST(r.tat, clock_timestamp()) AS start,
                       clock_timestamp() AS at
                FROM relay.outbound_rates r
                JOIN wanted w ON w.key = r.key
                ORDER BY r.key
                FOR NO KEY UPDATE OF r
            ), granted AS MATERIALIZED (
                SELECT l.*,
                       LEAST(l.want, GREATEST(floor(
                           extract(epoch FROM l.at - l.start)::float8 * l.rate + l.burst + 1e-6),
                       0))::integer AS count
                FROM locked l
            )
            UPDATE relay.outbound_rates r
            SET tat = CASE WHEN g.count > 0 THEN g.start + make_interval(secs => g.count / g.rate)
                           ELSE r.tat END
            FROM granted g
            WHERE r.key = g.key
            RETURNING r.key, g.count,
                      CASE WHEN g.count = g.want THEN 0
                           ELSE GREATEST(0, extract(epoch FROM g.start - g.at)::float8
                                            + (g.count - g.burst + 1) / g.rate) END
            """,
            (list(wants), list(wants.values())),
        )
        return {key: Grant(count, float(wait)) for key, count, wait in rows}


@dataclass(slots=True)
class _Account:
    left: int | None = 0  # None: no limit
    asked_at: float = -math.inf
    wait_until: float = -math.inf


class Meter:
    """What one node may still send of each key before it must lease again.  Pure.

    Times are seconds of any clock that only rises.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def room(self, keys: Iterable[str]) -> int | None:
        """How many messages that fall under all of `keys` may go now; None: no limit."""
        room: int | None = None
        for key in keys:
            left = self._accounts[key].left if key in self._accounts else 0
            if left is not None:
                room = left if room is None else min(room, left)
        return room

    def spend(self, keys: Iterable[str], count: int = 1) -> None:
        """`count` messages that fall under `keys` go out."""
        for key in keys:
            account = self._accounts.get(key)
            if account is not None and account.left is not None:
                account.left -= count

    def wants(self, keys: Iterable[str], now: float, most: int) -> dict[str, int]:
        """What to lease now for the `keys` in use: those whose slice is over or spent.

        `most` messages of each at the most: what the node can send in a slice.
        """
        wants: dict[str, int] = {}
        for key in keys:
            account = self._accounts.setdefault(key, _Account())
            stale = now >= account.asked_at + SLICE
            spent = account.left is not None and account.left <= 0
            if (stale or spent) and now >= account.wait_until:
                wants[key] = most
        return wants

    def leased(self, wants: Mapping[str, int], grants: Mapping[str, Grant], now: float) -> None:
        """Take over the answer to `wants`, which was asked at `now`.

        What was left of the slice before is forgotten, overdrafts are not.
        """
        for key in wants:
            account = self._accounts.setdefault(key, _Account())
            account.asked_at = now
            found = grants.get(key)
            if found is None:
                account.left = None
                continue
            account.left = min(account.left or 0, 0) + found.granted
            account.wait_until = now + found.wait if found.granted == 0 else now

    def next_at(self) -> float | None:
        """When the earliest key that is out of messages can be leased again; None: none is."""
        empty = [a for a in self._accounts.values() if a.left is not None and a.left <= 0]
        return min((account.wait_until for account in empty), default=None)
