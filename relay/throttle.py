"""At most once in so many seconds: for log lines and for work that strangers can cause at will.

Pure, but for Trio's clock.
"""

from __future__ import annotations

from collections.abc import Hashable

import trio


class Throttle:
    """Says yes once in `every` seconds, for each key apart.

    Above `keys` of them all are forgotten, which lets each through once more.
    """

    def __init__(self, every: float, *, keys: int = 10_000) -> None:
        self._every = every
        self._keys = keys
        self._said: dict[Hashable, float] = {}

    def ready(self, key: Hashable = None) -> bool:
        """Whether the thing may be done for `key` now; if so, not again for `every` seconds."""
        now = trio.current_time()
        said = self._said.get(key)
        if said is not None and now - said < self._every:
            return False
        if len(self._said) >= self._keys:
            self._said.clear()
        self._said[key] = now
        return True
