"""Rates that all nodes share: messages a second through a route, and to a domain.

The algorithm is GCRA (ITU-T I.371, the virtual scheduling form): one instant a key, the
theoretical arrival time, says how much of the rate has been given away already.  A node leases
what it will need in about the next second (`SharedRates.lease`, one call for all its keys) and
spends it from memory (`Meter`), so a message costs no query.

Promises
- Whatever the number of nodes, no more than `burst + rate × t` messages are granted in any t
  seconds, by the database's clock.  What a node was granted and did not spend within a slice is
  lost: a limit errs on the side of too little.
- Two nodes that lease several keys at once take the rows in one order and cannot deadlock.
- A budget that covers all mail is one more key, under which every lane falls; what a node leased
  of it and did not spend it gives back with its next lease, for money does not come again.
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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.db.pool import Pool

SLICE = 1.0
"""Seconds for which a node leases ahead."""

_LEAST, _MOST = 8, 4096  # messages that a node asks for at once
_MOST_LANES = 256  # lanes that one claim is shared among


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


def grant(tat: float, now: float, rate: float, burst: float, want: int) -> tuple[Grant, float]:
    """Grant up to `want` messages at `now` (seconds); return what, and the new arrival time.

    `tat` is the theoretical arrival time so far.  After the wait there is half a slice's worth, or
    the burst if that is less, so that nobody has to ask for each message.
    """
    start = max(tat, now)
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
    ) -> None:
        """`route`, `domain`: messages a second where the table says nothing else; 0: no limit.

        Their burst is one second's worth.  `budget` pays for all mail, if there is one.
        """
        self._pool = pool
        self._budget = budget
        self._defaults = {"route": route or None, "domain": domain or None}

    async def limited(self) -> bool:
        """Whether anything has a limit."""
        if self._budget is not None or any(self._defaults.values()):
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
        rows = await self._pool.fetch(
            """
            SELECT key, granted, wait
            FROM relay.outbound_lease(%s::text[], %s::integer[], %s::float8[], %s)
            """,
            (
                list(wants),
                list(wants.values()),
                [self._defaults.get(key.partition(":")[0]) for key in wants],
                SLICE / 2,
            ),
        )
        grants |= {key: Grant(granted, wait) for key, granted, wait in rows}
        return grants


@dataclass(slots=True)
class _Account:
    left: int | None = 0  # None: no limit
    asked: int = _LEAST // 2  # by the last lease
    granted: int = _LEAST // 2
    spent: int = _LEAST // 2  # since then
    reserved: int = 0  # promised to lanes of the claim that is being planned
    sharers: int = 0  # lanes of that claim
    asked_at: float = -math.inf
    wait_until: float = -math.inf

    def want(self) -> int:
        """How many to ask for, by how the last lease went."""
        if self.spent < self.granted:
            return max(self.spent, _LEAST)
        return min(2 * self.asked, _MOST) if self.granted >= self.asked else self.asked

    def lacks(self, now: float) -> bool:
        """Whether it is to be leased: its slice is over, or spent and worth asking again."""
        if self.left is None or self.left > 0:
            return now >= self.asked_at + SLICE
        return now >= self.wait_until


class Meter:
    """What one node may still send of each key before it must lease again.  Pure.

    Times are seconds of any clock that only rises.  A claim goes: `survey` the lanes, lease what
    it says and tell `leased`, survey again, `share` for each lane, `spend` for each message.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self.next_at: float | None = None
        """When the earliest lane that was surveyed and is out of messages can have more."""

    def survey(self, lanes: Iterable[Sequence[str]], now: float) -> dict[str, int]:
        """Look at the keys of each lane that has something due; return what to lease first."""
        for account in self._accounts.values():
            account.reserved = account.sharers = 0
        self.next_at = None
        wants: dict[str, int] = {}
        found = 0
        for keys in lanes:
            accounts = [self._accounts.setdefault(key, _Account()) for key in keys]
            lacking = False
            wait_until = -math.inf
            for key, account in zip(keys, accounts, strict=True):
                if account.lacks(now):
                    lacking = True
                    wants[key] = account.want()
                elif account.left is not None and account.left <= 0:
                    wait_until = max(wait_until, account.wait_until)
            if wait_until > now:
                self.next_at = wait_until if self.next_at is None else min(self.next_at, wait_until)
                continue
            for account in accounts:
                account.sharers += 1
            found += not lacking
            if found == _MOST_LANES or len(wants) >= _MOST_LANES:
                break
        return wants

    def leased(self, wants: Mapping[str, int], grants: Mapping[str, Grant], now: float) -> None:
        """Take over the answer to `wants`, which was asked at `now`.

        What was left of the slice before is forgotten, overdrafts are not.
        """
        for key, want in wants.items():
            account = self._accounts.setdefault(key, _Account())
            account.asked_at = now
            found = grants.get(key)
            if found is None:
                account.left = None
                continue
            account.asked, account.granted, account.spent = want, found.granted, 0
            account.left = min(account.left or 0, 0) + found.granted
            account.wait_until = now + found.wait if found.granted < want else now

    def share(self, keys: Sequence[str]) -> int | None:
        """How many messages a lane under all of `keys` may claim; None: no limit.

        They are promised to it until the next survey.
        """
        room: int | None = None
        limited = []
        for key in keys:
            account = self._accounts.get(key)
            if account is None:
                return 0
            if account.left is not None:
                limited.append(account)
                part = -(-account.left // max(account.sharers, 1))
                part = min(part, account.left - account.reserved)
                room = part if room is None else min(room, part)
        if room is not None:
            room = max(room, 0)
            for account in limited:
                account.reserved += room
        return room

    def unspent(self, keys: Iterable[str]) -> dict[str, int]:
        """What is left of the last lease of each of `keys` that has something left."""
        accounts = ((key, self._accounts[key]) for key in keys if key in self._accounts)
        return {key: account.left for key, account in accounts if account.left}

    def unknown(self, keys: Iterable[str]) -> bool:
        """Whether any of `keys` was never leased."""
        return any(key not in self._accounts for key in keys)

    def room(self, keys: Iterable[str]) -> bool:
        """Whether one more message under all of `keys` may go."""
        accounts = (self._accounts.get(key) for key in keys)
        return all(a is not None and (a.left is None or a.left > 0) for a in accounts)

    def spend(self, keys: Iterable[str]) -> None:
        """A message under `keys` goes out, room or none."""
        for key in keys:
            account = self._accounts.get(key)
            if account is not None and account.left is not None:
                account.left -= 1
                account.spent += 1

    def wait(self, keys: Iterable[str], now: float) -> float:
        """Seconds after which there may be room under `keys` again."""
        accounts = [self._accounts[key] for key in keys if key in self._accounts]
        return max((account.wait_until - now for account in accounts), default=0.0)

    def forget(self, now: float) -> None:
        """Drop the accounts that nobody has needed for a while."""
        for key in [k for k, a in self._accounts.items() if now > a.asked_at + 60 * SLICE]:
            del self._accounts[key]
