"""How often one caller may call: a bucket for each key, and one for each address without one.

The algorithm is `relay.gcra`'s: exact, and one number a caller.

Promises
  * The administrator has no limit; a key has its plan's; all others share their address's.
  * A refusal costs no query, and says after how many seconds the next call passes.
  * A credential that is wrong is charged to the address, so guessing is as slow as the rest.  So is
    the first call of a right key: until it was looked up, nothing tells it from a wrong one.
  * Memory is bounded: callers at rest are forgotten, and above `CALLERS` those
    who called longest ago.

Fails: never.  Kept by each node for itself: behind a balancer over n nodes a caller may have up to
n times the rate; a shared counter would cost every call a query.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import trio
from prometheus_client import Counter

from relay.access.keys import ApiKey
from relay.gcra import Gcra
from relay.http.problems.details import Problem
from relay.metrics import registry

CALLERS = 20_000
"""How many callers are remembered at once."""

BURST = 10.0
"""Seconds' worth of calls that may come at once."""

_REFUSED = Counter(
    "relay_http_limited", "Calls refused for their rate, by kind of caller.", ["caller"],
    registry=registry,
)  # fmt: skip


class RateLimits:
    """The buckets of one control plane.  Times are Trio's clock, in seconds."""

    def __init__(self, most: int = CALLERS) -> None:
        """`most`: callers that are remembered at once."""
        self._limit = Gcra[Hashable](most)

    def __len__(self) -> int:
        """How many callers are remembered."""
        return len(self._limit)

    def charge(self, caller: Hashable, rate: float) -> None:
        """Count one call of `caller`, who has `rate` a second (0: no limit); raise the 429."""
        if rate <= 0:
            return
        wait = self._limit.take(caller, trio.current_time(), 1 / rate, BURST)
        if wait:
            _REFUSED.labels("address" if isinstance(caller, str) else "key").inc()
            raise too_often(wait)


class KnownKeys:
    """The keys that were good when they were last looked up, by their token's hash.

    Only holders of good keys add to it, and above `most` the oldest is forgotten.
    """

    def __init__(self, most: int = CALLERS) -> None:
        self._most = most
        self._keys: dict[bytes, ApiKey] = {}

    def key(self, token_hash: bytes) -> ApiKey | None:
        """Return the key as it was last found, or None."""
        return self._keys.get(token_hash)

    def note(self, token_hash: bytes, key: ApiKey | None) -> None:
        """Remember what a look-up found; None: no key, or one that was revoked."""
        self._keys.pop(token_hash, None)
        if key is not None:
            if len(self._keys) >= self._most:
                del self._keys[next(iter(self._keys))]
            self._keys[token_hash] = key


def too_often(wait: float) -> Problem:
    """Return the 429; `wait` in seconds."""
    return Problem(
        429,
        "too-many-calls",
        "This caller calls more often than it may; see Retry-After.",
        headers={"Retry-After": str(max(1, math.ceil(wait)))},
    )
