"""A capacity limiter that is fair: no owner takes all, and some is kept for the administrator.

What: `FairLimiter` counts what each owner holds of a total that all have together: places, turns,
bytes.  An owner is whoever answers for a call: a key, the administrator, or a peer's address
(`callers.owner_of`).

Promises
  * An owner other than the administrator holds `each` at most, and all of them together leave
    `kept` to the administrator.
  * What comes free goes to the owner, of those that wait, who holds least; among equals to the one
    who came first.
  * Whoever is cancelled while waiting leaves nothing taken.

Fails: never; what does not fit is refused (`take`) or waits (`turn`).

Why not one limiter for all: the first to come would hold it for as long as they are slow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio

from relay.access.owners import ADMINISTRATOR_ID


class Crowded(Exception):
    """An owner waits for too many turns already, or waited for too long."""


class Reservation:
    """What an owner took of a total; given back with `release`, once or more often."""

    def __init__(self, limiter: FairLimiter, owner: Hashable, amount: int) -> None:
        self._limiter, self._owner, self.amount = limiter, owner, amount

    def grow(self, amount: int) -> bool:
        """Have so much in all, or as much as the owner may ever have; False where it does not fit
        now, and nothing has changed."""
        more = min(amount, self._limiter._most(self._owner)) - self.amount
        if more > 0 and self._limiter.take(self._owner, more) is None:
            return False
        self.amount += max(more, 0)
        return True

    def shrink(self, amount: int) -> None:
        """Keep so much of it at most."""
        spare = self.amount - amount
        if spare > 0:
            self.amount = amount
            self._limiter._give_back(self._owner, spare)

    def release(self) -> None:
        """Give it all back."""
        self.shrink(0)


class _Waiter:
    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.granted: Reservation | None = None
        self.called = trio.Event()


class FairLimiter:
    """A total that is shared by owners."""

    def __init__(self, total: int, each: int, kept: int = 0, waiting: float = math.inf) -> None:
        """`waiting`: turns that one owner may wait for at once."""
        self._total = total
        self._each = max(1, min(each, total))
        self._others = max(1, total - kept)  # what all but the administrator have together
        self._held: Counter[Hashable] = Counter()
        self._sum = 0
        self._waiters: dict[_Waiter, None] = {}  # in the order they came
        self._most_waiting = waiting
        self._waiting: Counter[Hashable] = Counter()

    def take(self, owner: Hashable, amount: int = 1) -> Reservation | None:
        """Take `amount`, or as much as the owner may ever have; None where it does not fit now."""
        amount = min(amount, self._most(owner))
        if self._sum + amount > self._total:
            return None
        if owner != ADMINISTRATOR_ID:
            others = self._sum - self._held[ADMINISTRATOR_ID]
            if others + amount > self._others or self._held[owner] + amount > self._each:
                return None
        self._held[owner] += amount
        self._sum += amount
        return Reservation(self, owner, amount)

    @asynccontextmanager
    async def turn(self, owner: Hashable, patience: float = math.inf) -> AsyncIterator[None]:
        """Hold one for the block, waiting for it, `patience` seconds at most.

        `Crowded` after that, and where the owner waits for many.
        """
        held = self.take(owner) or await self._wait(owner, patience)
        try:
            yield
        finally:
            held.release()

    async def _wait(self, owner: Hashable, patience: float) -> Reservation:
        if self._waiting[owner] >= self._most_waiting:
            raise Crowded
        waiter = _Waiter(owner)
        self._waiters[waiter] = None
        self._waiting[owner] += 1
        try:
            with trio.move_on_after(patience):
                await waiter.called.wait()
        except BaseException:
            if waiter.granted is not None:
                waiter.granted.release()
            raise
        finally:
            self._waiters.pop(waiter, None)
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner]
        if waiter.granted is None:
            raise Crowded
        return waiter.granted

    def _most(self, owner: Hashable) -> int:
        return self._total if owner == ADMINISTRATOR_ID else min(self._each, self._others)

    def _give_back(self, owner: Hashable, amount: int) -> None:
        self._sum -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
        # Stable: among those who hold equally much, the first to come stays first.
        for waiter in sorted(self._waiters, key=lambda one: self._held[one.owner]):
            if self._sum >= self._total:
                break
            waiter.granted = self.take(waiter.owner)
            if waiter.granted is not None:
                del self._waiters[waiter]
                waiter.called.set()
