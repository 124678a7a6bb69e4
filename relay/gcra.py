"""GCRA: how often each of many may do something, at a rate, and in a burst after a while of rest.

The generic cell rate algorithm (ITU-T I.371, the virtual scheduling form) keeps for each key one
instant, at which all that it has used up is earned back.  What a thing costs and how much may be
saved are both seconds: at 20 a second one costs 0.05 s, and 500 at once are a burst of 25 s.

Promises
- In any t seconds a key has no more than `burst` + t seconds' worth, and it is exact: nothing is
  rounded to windows.
- What is refused changes nothing.
- One may always come: what costs more than the burst passes for a key that is at rest.
- Memory: who is at rest is forgotten when the table has doubled; of more keys than `most` the
  quarter that was used longest ago is.  Sweeping costs nothing by the key.

Fails: never.  Pure: the caller reads the clock (seconds, which do not go back).
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")

_EXACT = 1e-9  # s; less is the floating point's


class Gcra(Generic[K]):
    """The limit for any number of keys.  `most`: of them are remembered at once; None: all."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._whole_at: dict[K, float] = {}  # with `most`, in the order of their last use
        self._sweep_at = self._next_sweep()

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._whole_at)

    def __contains__(self, key: K) -> bool:
        return key in self._whole_at

    def used(self, key: K, now: float) -> float:
        """Return how many seconds' worth a key has used up and not earned back."""
        whole_at = self._whole_at.get(key, now)
        return whole_at - now if whole_at > now else 0.0

    def wait(self, key: K, now: float, cost: float, burst: float) -> float:
        """Return 0 if what costs so much may be done now, else the seconds until it may."""
        left = self.used(key, now) + cost - (burst if burst > cost else cost)
        return left if left > _EXACT else 0.0

    def spend(self, key: K, now: float, cost: float) -> None:
        """Count what costs so much, whether it may be done or not."""
        table = self._whole_at
        whole_at = table.get(key, now) if self._most is None else table.pop(key, now)
        table[key] = (whole_at if whole_at > now else now) + cost
        if len(table) >= self._sweep_at:
            self._sweep(now)

    def give_back(self, key: K, cost: float) -> None:
        """Take back what was spent and need not have been."""
        if key in self._whole_at:
            self._whole_at[key] -= cost

    def take(self, key: K, now: float, cost: float, burst: float) -> float:
        """Spend `cost` and return 0 if that may be now; else return the seconds to `wait`."""
        left = self.wait(key, now, cost, burst)
        if not left:
            self.spend(key, now, cost)
        return left

    def _sweep(self, now: float) -> None:
        """Forget who is at rest, and of more than so many those who came longest ago."""
        left = [(key, whole_at) for key, whole_at in self._whole_at.items() if whole_at > now]
        if self._most is not None and len(self._whole_at) > self._most:
            left = left[-(self._most * 3 // 4) :]
        self._whole_at = dict(left)
        self._sweep_at = self._next_sweep()

    def _next_sweep(self) -> int:
        """The number of keys at which to sweep: so many that a sweep costs nothing by the key."""
        wanted = 2 * len(self._whole_at) + 1024
        return wanted if self._most is None else min(wanted, self._most + 1)
