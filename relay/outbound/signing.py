"""Messages that are composed and signed in threads, before a worker takes them.

A signature by RSA takes as long as several deliveries and does without the interpreter, so it is
made beside the loop, a few messages a time: the way to a thread costs as much as a signature.

Promises
- High mail is signed before other, and waits for no more than the batches under way.
- Nothing is kept running: tasks end when there is nothing to sign, so a nursery can end.
- What one message fails with is its own.

Fails: never; how each message failed is told with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import trio

from relay.outbound.claimed import Claimed
from relay.outbound.jobs import Job
from relay.outbound.lanes import PRIORITIES
from relay.smtp.client import Mail

L = TypeVar("L")

AT_ONCE = 2
"""Threads that sign: with the loop's own they keep two processors busy."""
BATCH = 8
"""Messages that go to a thread together: some milliseconds."""

Compose = Callable[[Claimed], Mail]
"""Makes the mail of a message; called in a thread."""


class Signing(Generic[L]):
    """The messages that wait to be signed, each with the line that it goes to then."""

    def __init__(
        self, compose: Compose, made: Callable[[Sequence[tuple[L, Job, Mail | Exception]]], None]
    ) -> None:
        """`made` is told of each batch what came of it."""
        self._compose = compose
        self._made = made
        self._waiting: tuple[deque[tuple[L, Job]], ...] = tuple(deque() for _ in PRIORITIES)
        self._tasks = 0

    def put(self, line: L, job: Job, nursery: trio.Nursery) -> None:
        """Have a job's mail made and signed, by a task in `nursery`."""
        self._waiting[job.priority].append((line, job))
        if self._tasks < AT_ONCE:
            self._tasks += 1
            nursery.start_soon(self._work)

    def take_all(self) -> list[tuple[L, Job]]:
        """Take out what no thread has begun."""
        found: list[tuple[L, Job]] = []
        for waiting in self._waiting:
            found += waiting
            waiting.clear()
        return found

    def _batch(self) -> list[tuple[L, Job]]:
        for waiting in self._waiting:
            if waiting:
                return [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        return []

    async def _work(self) -> None:
        try:
            while batch := self._batch():
                made: list[Any] = await trio.to_thread.run_sync(
                    self._mails, [job.message for _, job in batch]
                )
                self._made(
                    [(line, job, mail) for (line, job), mail in zip(batch, made, strict=True)]
                )
        finally:
            self._tasks -= 1

    def _mails(self, messages: Sequence[Claimed]) -> list[Mail | Exception]:
        found: list[Mail | Exception] = []
        for message in messages:
            try:
                found.append(self._compose(message))
            except Exception as error:  # its own, and none of the others'
                found.append(error)
        return found
