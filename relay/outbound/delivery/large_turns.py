"""The turns of large messages: so many of them are in memory at once.

Promises
- At most `at_once` have a turn, and of those that go to strangers, who may never answer, fewer;
  who comes first goes first.
- A turn ends when the message has left memory: it was sent, let go, or its job has ended.
- While others wait, a turn that has lasted `PATIENCE` seconds since the message was made is
  `overdue`.  Of one that is being sent it is passed on, as long as those passed on have no more
  than `MOST_LATE` bytes together; of any other the message is let go, and made again for its peer.
- So in memory are `at_once` messages, `MOST_LATE` bytes, and the one message that goes beyond
  those.

Fails: never.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AsyncExitStack

import trio

from relay.outbound.active_queue.jobs import Job

PATIENCE = 0.25
"""Seconds for which a message may be in others' way."""
MOST_LATE = 32 << 20


class LargeTurn:
    """The right of one job to have its message in memory."""

    __slots__ = ("_late", "_turns", "job", "made_at", "to_stranger")

    def __init__(self, turns: LargeTurns, job: Job, *, to_stranger: bool) -> None:
        self._turns = turns
        self.job = job
        self.to_stranger = to_stranger
        self.made_at = math.inf
        """Since when the message is there, and may be let go."""
        self._late = 0  # its bytes, once it was passed on

    def pass_on(self, size: int) -> None:
        """Others may go, though the message, of `size` bytes, is in memory still."""
        turns = self._turns
        if not self._late and turns.late < MOST_LATE:
            turns._end(self)
            self._late = size
            turns.late += size

    def end(self) -> None:
        """The message is in memory no more.  May be called any number of times."""
        if self._late:
            self._turns.late -= self._late
            self._late = 0
        else:
            self._turns._end(self)


class LargeTurns:
    """The turns of one sender."""

    def __init__(self, at_once: int, to_strangers: int | None = None) -> None:
        """`to_strangers`: None: as many as there are."""
        self._all = trio.CapacityLimiter(at_once)
        self._strangers = trio.CapacityLimiter(at_once if to_strangers is None else to_strangers)
        self._taken: dict[LargeTurn, None] = {}  # oldest first
        self.late = 0
        """Bytes of messages whose turns were passed on."""

    async def take(self, job: Job, *, to_stranger: bool = False) -> None:
        """Wait for the turn of a job, which has it then; it ends with the job at the latest."""
        turn = LargeTurn(self, job, to_stranger=to_stranger)
        async with AsyncExitStack() as unless_taken:
            if to_stranger:
                await self._strangers.acquire_on_behalf_of(turn)
                unless_taken.callback(self._strangers.release_on_behalf_of, turn)
            await self._all.acquire_on_behalf_of(turn)
            unless_taken.pop_all()
        self._taken[turn] = None
        job.turn = turn

    def overdue(self, now: float) -> Iterator[LargeTurn]:
        """The turns that are in others' way."""
        for_all = self._all.statistics().tasks_waiting
        if for_all or self._strangers.statistics().tasks_waiting:
            for turn in list(self._taken):
                if now > turn.made_at + PATIENCE and (for_all or turn.to_stranger):
                    yield turn

    def _end(self, turn: LargeTurn) -> None:
        if turn in self._taken:
            del self._taken[turn]
            self._all.release_on_behalf_of(turn)
            if turn.to_stranger:
                self._strangers.release_on_behalf_of(turn)
