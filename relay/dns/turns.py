"""The turns of questions to the DNS: so many are under way at once, and who is late makes room.

What a server is asked is answered within milliseconds, or within what the way to other servers
takes; or not at all, and then a name that a stranger chose keeps its place until its deadline.

Promises
- At most `places` have a turn; who comes when all are taken waits, the first who came goes first.
- While anybody waits, whoever has had a turn for `patience` seconds gives it to them and goes on
  without: he is late.
- At most `most_late` are late, so no more than `places + most_late` questions are under way.
  Beyond that a turn is kept until its end.
- So who comes behind questions that are never answered waits one `patience` for each `places` of
  them that came before, up to `most_late` and `places` together; behind more, until one ends.

Fails: never.  Who is cancelled while he waits has none.

Why on demand: where nobody waits, a slow answer is no harm, and no timer is set for a question.
"""

from __future__ import annotations

import math

import trio

AT_ONCE = 128
"""Questions that have a turn."""
MOST_LATE = 256
"""Questions that may go on without one."""
PATIENCE = 0.25
"""Seconds for which a question that is not answered may make others wait."""


class Turn:
    """The right to be asking, of one question."""

    __slots__ = ("began_at", "overtaken")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.overtaken = False
        """Whether it was given to another, and the question goes on without."""


class Turns:
    """The turns of one resolver."""

    def __init__(self, places: int, *, patience: float, most_late: int) -> None:
        """`patience` in seconds."""
        self._places = places
        self._patience = patience
        self._most_late = most_late
        self._taken: dict[Turn, None] = {}  # the oldest first
        self._door = trio.Lock()  # whoever has it is the next
        self._ended = trio.lowlevel.ParkingLot()  # of that one, until one ends
        self.late = 0
        """Questions that go on without a turn."""

    def __len__(self) -> int:
        """How many have a turn."""
        return len(self._taken)

    async def take(self) -> Turn:
        """Wait for a turn; `end` is to be called of it."""
        async with self._door:
            while len(self._taken) >= self._places:
                oldest = next(iter(self._taken))
                due = math.inf
                if self.late < self._most_late:
                    due = oldest.began_at + self._patience
                if trio.current_time() >= due:
                    del self._taken[oldest]
                    oldest.overtaken = True
                    self.late += 1
                    break
                with trio.move_on_at(due):
                    await self._ended.park()
            turn = Turn(trio.current_time())
            self._taken[turn] = None
            return turn

    def end(self, turn: Turn) -> None:
        """Its question is over."""
        if turn.overtaken:
            self.late -= 1
        else:
            del self._taken[turn]
        self._ended.unpark()
