"""The turns of questions to the DNS: so many are under way at once, and who is late makes room.

What a server is asked is answered within milliseconds, or within what the way to other servers
takes; or not at all, and then a name that a stranger chose keeps its place until its deadline.

Promises
- At most `places` have a turn; who comes when all are taken waits.  Who has the fewest questions
  under way goes first, and of these who came first: `ASKER` says whose a question is.
- While anybody waits, whoever has had a turn for `patience` seconds gives it to them and goes on
  without: he is late.
- At most `most_late` are late, so no more than `places + most_late` questions are under way.
  Beyond that a turn is kept until its end.
- The last `kept` of those are for who has nothing under way: however many questions somebody has
  whom nobody answers, another's is asked at once, unless there are as many of the former.
- So who comes behind questions that are never answered, of others who have one each, waits one
  `patience` for each `places` of them that came before, up to `most_late` and `places` together;
  behind more, until one ends.

Fails: never.  Who is cancelled while he waits has none.

Why on demand: where nobody waits, a slow answer is no harm, and no timer is set for a question.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextvars import ContextVar

import trio

AT_ONCE = 128
"""Questions that have a turn."""
MOST_LATE = 256
"""Questions that may go on without one."""
PATIENCE = 0.25
"""Seconds for which a question that is not answered may make others wait."""


ASKER: ContextVar[Hashable] = ContextVar("asker", default=None)
"""For whom the questions of a task are asked: a domain, say; None: each is one for itself."""


class Turn:
    """The right to be asking, of one question."""

    __slots__ = ("asker", "began_at", "overtaken")

    def __init__(self, asker: Hashable, began_at: float) -> None:
        self.asker = asker
        self.began_at = began_at
        self.overtaken = False
        """Whether it was given to another, and the question goes on without."""


class _Waiting:
    """One who waits for a turn."""

    __slots__ = ("asker", "called", "scope", "turn")

    def __init__(self, asker: Hashable) -> None:
        self.asker = asker
        self.called = trio.Event()
        self.scope = trio.CancelScope()
        """Ends when it is time to look whether somebody has become late."""
        self.turn: Turn | None = None


class Turns:
    """The turns of one resolver."""

    def __init__(self, places: int, *, patience: float, most_late: int) -> None:
        """`patience` in seconds."""
        self._places = places
        self._patience = patience
        self._most_late = most_late
        self._kept = places // 4
        self._taken: dict[Turn, None] = {}  # the oldest first
        self._waiting: dict[_Waiting, None] = {}  # the first first
        self._under_way: dict[Hashable, int] = {}  # of each asker
        self.late = 0
        """Questions that go on without a turn."""

    def __len__(self) -> int:
        """How many have a turn."""
        return len(self._taken)

    async def take(self) -> Turn:
        """Wait for a turn; `end` is to be called of it."""
        asker = ASKER.get()
        waiting = _Waiting(object() if asker is None else asker)
        self._waiting[waiting] = None
        try:
            while True:
                self._call()
                if waiting.turn is not None:
                    await trio.lowlevel.checkpoint()
                    return waiting.turn
                with waiting.scope:
                    await waiting.called.wait()
                waiting.scope = trio.CancelScope()
        except trio.Cancelled:
            if waiting.turn is not None:
                self.end(waiting.turn)
            else:
                del self._waiting[waiting]
                self._call()
            raise

    def end(self, turn: Turn) -> None:
        """Its question is over."""
        if turn.overtaken:
            self.late -= 1
        else:
            del self._taken[turn]
        left = self._under_way[turn.asker] - 1
        if left:
            self._under_way[turn.asker] = left
        else:
            del self._under_way[turn.asker]
        self._call()

    def _call(self) -> None:
        """Give turns to those who wait, as far as there are any."""
        now = trio.current_time()
        due = math.inf
        while self._waiting:
            one = self._next()
            due = self._free_at(one.asker)
            if due > now:
                break
            if len(self._taken) >= self._places:
                oldest = next(iter(self._taken))
                del self._taken[oldest]
                oldest.overtaken = True
                self.late += 1
            del self._waiting[one]
            one.turn = turn = Turn(one.asker, now)
            self._taken[turn] = None
            self._under_way[one.asker] = self._under_way.get(one.asker, 0) + 1
            one.called.set()
        if self._waiting:
            next(iter(self._waiting)).scope.deadline = due

    def _next(self) -> _Waiting:
        under_way = self._under_way
        for one in self._waiting:
            if one.asker not in under_way:
                return one
        return min(self._waiting, key=lambda one: under_way[one.asker])

    def _free_at(self, asker: Hashable) -> float:
        """The instant at which an asker may have a turn, if none ends."""
        most = self._places + self._most_late
        if asker in self._under_way:
            most = max(most - self._kept, self._places)
        if len(self._taken) < self._places:
            return -math.inf if len(self._taken) + self.late < most else math.inf
        if self.late >= self._most_late or len(self._taken) + self.late >= most:
            return math.inf
        return next(iter(self._taken)).began_at + self._patience
