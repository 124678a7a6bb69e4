"""Rates that all nodes share: messages a second through a route, to a domain, to a receiver.

The algorithm is GCRA (ITU-T I.371, the virtual scheduling form): one instant a key, the
theoretical arrival time, says how much of the rate has been given away already.  A node leases
what it will need in about the next second (`SharedRates.lease`, one call for all its keys) and
spends it from memory (`relay.outbound.pacing.meter`), so a message costs no query.

Promises
- Whatever the number of nodes, no more than `burst + rate × t` messages are granted in any t
  seconds, by the database's clock.  What a node was granted and did not spend within a slice it
  gives back; what a node had that dies is lost: a limit errs on the side of too little.
- Two nodes that lease several keys at once take the rows in one order and cannot deadlock.
- A budget that covers all mail is one more key, under which every lane falls; what a node leased
  of it and did not spend it gives back with its next lease.
- Where nothing is limited, nothing is asked but once a sweep whether that is still so.

Fails with `DatabaseUnavailable` from the pool; the meter then allows nothing of a limited key
until a lease succeeds.

Why leased: counting from each worker's own snapshot overspends, and a query a message would cost
more than the message.  A node asks for little at first and for twice as much whenever that was not
enough: what it leases in vain, no other node has.  `grant` is pure and is the same arithmetic as
`relay.outbound_lease`; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import trio

from relay.db.pool import Pool
from relay.outbound.pacing.rate import Rate

SLICE = 1.0
"""Seconds for which a node leases ahead."""


class Grant(NamedTuple):
    """What a lease got: how many messages, and the seconds until it is worth asking for more."""

    granted: int
    wait: float


BUDGET = "budget"
"""The key of the budget, where it covers all mail."""

LeaseBudget = Callable[[int, int], Awaitable[Grant]]
"""Take up to so many messages out of the budget, having put back so many."""


def route_key(url: str) -> str:
    """The key of a route, by its URL without credentials."""
    return f"route:{url}"


def domain_key(domain: str) -> str:
    """The key of a destination domain."""
    return f"domain:{domain}"


class NamedRates(Protocol):
    """Rates of keys that neither the table nor the settings say: of receivers and of sources."""

    @property
    def limits_rates(self) -> bool:
        """Whether there may be any."""

    def rate(self, key: str, now: float) -> Rate | None:
        """That of a key, None for no limit; `now` on Trio's clock."""


def grant(
    tat: float, now: float, rate: float, burst: float, want: int, unspent: int = 0
) -> tuple[Grant, float]:
    """Grant up to `want` messages at `now` (seconds); return what, and the new arrival time.

    `tat` is the theoretical arrival time so far; `unspent` is given back first.  After the wait
    there is half a slice's worth, or the burst if that is less, so that nobody has to ask for each
    message.
    """
    start = max(tat - unspent / rate, now)
    # Earned by now: the burst, less what of it is still to be paid back.
    free = max(math.floor((now - start) * rate + burst + 1e-6), 0)
    count = min(want, free)
    tat = start + count / rate
    if count == want:
        return Grant(count, 0.0), tat
    worth = max(min(math.floor(burst), math.floor(rate * SLICE / 2)), 1)
    return Grant(count, max(tat - now - (burst - worth) / rate, 0.0)), tat


class SharedRates:
    """The limits in `relay.outbound_rates`, and those that every route and domain has."""

    def __init__(
        self,
        pool: Pool,
        *,
        route: float = 0.0,
        domain: float = 0.0,
        budget: LeaseBudget | None = None,
        named: NamedRates | None = None,
    ) -> None:
        """`route`, `domain`: messages a second where the table says nothing else; 0: no limit.

        Their burst is one second's worth.  `budget` pays for all mail, if there is one; `named`:
        the rates of receivers and sources.
        """
        self._named = named
        self._pool = pool
        self._budget = budget
        self._defaults = {"route": route or None, "domain": domain or None}

    async def limited(self) -> bool:
        """Whether anything has a limit."""
        if self._budget is not None or any(self._defaults.values()):
            return True
        if self._named is not None and self._named.limits_rates:
            return True
        return bool(
            await self._pool.fetch_value("SELECT EXISTS (SELECT FROM relay.outbound_rates)")
        )

    @property
    def shared(self) -> tuple[str, ...]:
        """The keys that every message falls under."""
        return () if self._budget is None else (BUDGET,)

    async def lease(
        self, wants: Mapping[str, int], unspent: Mapping[str, int] | None = None
    ) -> dict[str, Grant]:
        """Take up to so many messages of each key; `unspent`: what is left of the last lease.

        A key that is missing in the answer has no limit.
        """
        wants = dict(wants)
        grants: dict[str, Grant] = {}
        if BUDGET in wants and self._budget is not None:
            left = (unspent or {}).get(BUDGET, 0)
            grants[BUDGET] = await self._budget(wants.pop(BUDGET), left)
        if not wants:
            return grants
        spare = unspent or {}
        limits = [self._limit(key) for key in wants]
        rows = await self._pool.fetch(
            """
            SELECT key, granted, wait
            FROM relay.outbound_lease(%s::text[], %s::integer[], %s::float8[], %s::float8[],
                                      %s::integer[], %s)
            """,
            (
                list(wants),
                list(wants.values()),
                [rate for rate, _ in limits],
                [burst for _, burst in limits],
                [max(spare.get(key, 0), 0) for key in wants],
                SLICE / 2,
            ),
        )
        grants |= {key: Grant(granted, wait) for key, granted, wait in rows}
        return grants

    async def give_back(self, unspent: Mapping[str, int]) -> None:
        """Give back what was leased and is not needed now."""
        await self.lease(dict.fromkeys(unspent, 0), unspent)

    def _limit(self, key: str) -> tuple[float | None, float | None]:
        """The rate and the burst of a key where the table says nothing else; None: no limit."""
        rate = self._defaults.get(key.partition(":")[0])
        if rate is not None or self._named is None:
            return rate, None
        return self._named.rate(key, trio.current_time()) or (None, None)
