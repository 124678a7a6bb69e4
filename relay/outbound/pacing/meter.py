"""What one node may still send of each rate, from what it has leased.

A node leases for about a second ahead (`relay.outbound.pacing.shared_rates`) and spends from here.
It asks for little at first and for twice as much whenever that was not enough: what it leases in
vain, no other node has.

Promises: a lane under several keys gets what the scarcest of them allows, shared evenly among the
owners with lanes that are due, and an owner's part among those: to how many domains of a provider
somebody writes makes no difference to the others; a message never goes out that no key has room
for, but where its lane's key was not known when it was claimed (then it is put back).

Fails: never.  Pure: instants are handed in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relay.outbound.pacing.shared_rates import SLICE, Grant

_LEAST, _MOST = 8, 4096  # messages that a node asks for at once
_MOST_LANES = 256  # lanes that one claim is shared among


@dataclass(slots=True)
class _Account:
    left: int | None = 0  # None: no limit
    asked: int = _LEAST // 2  # by the last lease
    granted: int = _LEAST // 2
    spent: int = _LEAST // 2  # since then
    reserved: Counter[Hashable] = field(default_factory=Counter)
    """Promised to lanes of the claim that is being planned, by their owners."""
    sharers: Counter[Hashable] = field(default_factory=Counter)
    """Lanes of that claim, by their owners."""
    asked_at: float = -math.inf
    wait_until: float = -math.inf

    def want(self) -> int:
        """How many to ask for, by how the last lease went."""
        if self.spent < self.granted:
            return max(self.spent, _LEAST)
        return min(2 * self.asked, _MOST) if self.granted >= self.asked else self.asked

    def part_of(self, owner: Hashable, left: int) -> int:
        """How many of `left` a lane of an owner may have."""
        of_owner = -(-left // max(len(self.sharers), 1))
        of_lane = -(-of_owner // max(self.sharers[owner], 1))
        return min(of_lane, of_owner - self.reserved[owner], left - self.reserved.total())

    def lacks(self, now: float) -> bool:
        """Whether it is to be leased: its slice is over, or spent and worth asking again."""
        if self.left is None or self.left > 0:
            return now >= self.asked_at + SLICE
        return now >= self.wait_until


class Meter:
    """What one node may still send of each key before it must lease again.

    Times are seconds of any clock that only rises.  A claim goes: `survey` the lanes, lease what
    it says and tell `leased`, survey again, `share` for each lane, `spend` for each message.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self.next_at: float | None = None
        """The earliest instant at which a surveyed lane that is out of messages may have more."""

    def survey(self, lanes: Iterable[tuple[Sequence[str], Hashable]], now: float) -> dict[str, int]:
        """Look at the keys and the owner of each lane that has something due; return what to lease
        first."""
        for account in self._accounts.values():
            account.reserved.clear()
            account.sharers.clear()
        self.next_at = None
        wants: dict[str, int] = {}
        found = 0
        for keys, owner in lanes:
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
                account.sharers[owner] += 1
            found += not lacking
            if found == _MOST_LANES or len(wants) >= _MOST_LANES:
                break
        return wants

    def leased(self, wants: Mapping[str, int], grants: Mapping[str, Grant], now: float) -> None:
        """Take over the answer to `wants`, which was asked at `now`.

        What was left of the slice before was given back, overdrafts stay.
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

    def share(self, keys: Sequence[str], owner: Hashable) -> int | None:
        """How many messages a lane of an owner, under all of `keys`, may claim; None: no limit.

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
                part = account.part_of(owner, account.left)
                room = part if room is None else min(room, part)
        if room is not None:
            room = max(room, 0)
            for account in limited:
                account.reserved[owner] += room
        return room

    def unspent(self, keys: Iterable[str]) -> dict[str, int]:
        """What is left of the last lease of each of `keys` that has something left."""
        accounts = ((key, self._accounts[key]) for key in keys if key in self._accounts)
        return {key: account.left for key, account in accounts if account.left}

    def idle(self, now: float) -> dict[str, int]:
        """What is left of leases whose slice is over, which is to be given back: it is not here
        any more."""
        found = {}
        for key, account in self._accounts.items():
            if account.left is not None and account.left > 0 and now >= account.asked_at + SLICE:
                found[key], account.left = account.left, 0
        return found

    def unknown(self, keys: Iterable[str]) -> bool:
        """Whether any of `keys` was never leased."""
        return any(key not in self._accounts for key in keys)

    def room(self, keys: Iterable[str]) -> bool:
        """Whether one more message under all of `keys` may go."""
        accounts = (self._accounts.get(key) for key in keys)
        return all(a is not None and (a.left is None or a.left > 0) for a in accounts)

    def short(self, keys: Iterable[str]) -> str | None:
        """The key that has no room for one more message, or None."""
        known = (key for key in keys if key in self._accounts)
        return next((key for key in known if not self.room((key,))), None)

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
