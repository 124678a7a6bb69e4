"""Identifiers of rows: UUIDs of version 7.

An id is its time, then chance, so rows made together lie together in every index (RFC 9562, 5.7):
48 bits of milliseconds, 12 bits of their fraction (6.2, method 3), 62 random bits.

Promises: ids that a process makes rise, those of one moment too (each is at least a 4096th of a
millisecond after the one before; a clock that is set back by more than a second starts anew).  The
random bits are the system's, so nobody guesses an id and no two processes make the same.

`parse_uuid` reads an id as a client gives it back.

Fails: never.  Two threads that make ids at once may get them in either order.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from relay.chance import time_ns, urandom

_SECOND = 4_096_000  # in the unit of `Ids._last`


class Ids:
    """Makes ids; `clock` gives nanoseconds since the epoch."""

    def __init__(self, clock: Callable[[], int] = time_ns) -> None:
        self._clock = clock
        self._last = 0  # 4096ths of a millisecond since the epoch

    def new(self) -> UUID:
        """Return an id of now, above the one before."""
        return self._of(self._clock())

    def several(self, count: int) -> list[UUID]:
        """Return ids of one instant in rising order, however long they take to be made."""
        now = self._clock()
        return [self._of(now) for _ in range(count)]

    def _of(self, nanoseconds: int) -> UUID:
        at = nanoseconds * 4096 // 1_000_000
        if self._last - _SECOND < at <= self._last:
            at = self._last + 1
        self._last = at
        chance = int.from_bytes(urandom(8), "big") >> 2
        return UUID(int=at >> 12 << 80 | 0x7 << 76 | (at & 0xFFF) << 64 | 0x2 << 62 | chance)


_ids = Ids()

new_id = _ids.new
"""Return an id of now, above those that this process made before."""

new_ids = _ids.several
"""Return so many ids of one instant in rising order: up to 4,096 lie within a millisecond."""


def parse_uuid(value: str | UUID) -> UUID | None:
    """Return an id, or None for what is none."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except ValueError:
        return None
