"""How many to wait for before one statement answers them all.

A statement costs the same however many it is for, half of it here and half in PostgreSQL; while
one is under way, those who need the next one gather by themselves.  Where statements are quick and
many senders each wait for their answer, few gather so: whoever comes first takes along the few who
happen to be there, and the others come a moment later.  `Gathering` says for how many it pays to
wait that moment (PostgreSQL knows the same as `commit_delay` and `commit_siblings`).

The rule: where so many come that `FEW` might within `PATIENCE`, one gathering takes all of that
time to see how many do; `SHARE` of these is what the next ones wait for, never longer than
`PATIENCE`, and for no more than `ENOUGH`.  It is looked at anew every second, and when they do not
come, but then ten times a second at most, for a look takes all of `PATIENCE`; in between, fewer are
waited for.  (Senders who need two kinds of statement by turns can fall apart: half of them wait
for one, half for the other, and none comes to either.  Looking each time, 20 of them sent 1,300
messages a second and not 5,000, for seconds.)  Less traffic, or fewer senders, are never waited
for, so one message alone is as fast as ever.

Pure: times are seconds of any clock that only rises.

Why not a fixed pause after each statement: it is too long for few senders and too short for many,
or where the machine has other work.
"""

from __future__ import annotations

import math

PATIENCE = 0.005
"""Seconds that the first of them waits for the others, at most."""
FEW = 4
"""Below so many nobody waits for anybody."""
SHARE = 0.75
"""Of those who might come; the last ones may take long."""
ENOUGH = 16
"""So many are never kept waiting for more, which would gain each of them little."""

_LOOK_EVERY = 1.0  # s; while it pays
_JUDGE_EVERY = 0.1  # s; while it does not, or they do not come

_LOOK = int(ENOUGH / SHARE) + 1  # to wait for, to see how many might come


class Gathering:
    """Of those who wait for one kind of statement, each batch `least` and then `taken`."""

    __slots__ = ("_count", "_least", "_look_at", "_since")

    def __init__(self) -> None:
        self._least = 1
        self._since = self._look_at = -math.inf
        self._count = 0  # of those taken since then

    def least(self, now: float) -> int:
        """For how many to wait, `PATIENCE` at most; 1: for no others."""
        if now >= self._look_at:
            promising = self._count * PATIENCE >= FEW * (now - self._since)
            self._least = _LOOK if promising else 1
            self._since, self._count = now, 0
            self._look_at = now + (_LOOK_EVERY if promising else _JUDGE_EVERY)
        return self._least

    def taken(self, count: int, now: float) -> None:
        """So many had come."""
        self._count += count
        if self._least == _LOOK:
            self._least = min(int(count * SHARE), ENOUGH) if count >= FEW else 1
        elif count < FEW and count < self._least:  # in time, that is
            self._since = self._look_at = now
            self._count = 0  # those before tell nothing any more
        elif count < self._least:
            self._least = int(count * SHARE)
            self._look_at = min(self._look_at, self._since + _JUDGE_EVERY)
