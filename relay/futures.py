"""A value that one task waits for and somebody else finds out.

A `Future` is given its value (`settle`) or its error (`fail`) once.

Promises
  * The first answer counts and later ones do nothing, so work may be done twice.
  * Cancelling a wait leaves the future as it is: it may be settled, and waited for, afterwards.

Fails: `result` and `wait` raise what `fail` was given.

Not for threads: they settle it by way of Trio's token.

Why no `trio.Event`: it serves many waiters, at ten calls; here one task waits (`python -m
tests.bench device_sessions`, `tests/test_futures.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Future(Generic[T]):
    """One answer, and where it is waited for."""

    __slots__ = ("_error", "_task", "_then", "_value", "settled")

    def __init__(self) -> None:
        self.settled = False
        """Whether there is an answer, be it an error."""
        self._value: T | None = None
        self._error: Exception | None = None
        self._then: Callable[[], object] | None = None
        self._task: trio.lowlevel.Task | None = None  # that waits

    def settle(self, value: T) -> None:
        """Give the value; of no effect if there is an answer already."""
        if not self.settled:
            self._value = value
            self._answer()

    def fail(self, error: Exception) -> None:
        """Give an error, which must be this future's own (it gets a traceback); likewise."""
        if not self.settled:
            self._error = error
            self._answer()

    def _answer(self) -> None:
        self.settled = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        if self._then is not None:
            self._then()
            self._then = None

    def then(self, call: Callable[[], object]) -> None:
        """Have `call`, which raises nothing, called once there is an answer.

        One a future: a later one takes its place.
        """
        if self.settled:
            call()
        else:
            self._then = call

    def result(self) -> T:
        """Return the value, or raise the error; once settled."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # given when settled, always

    async def wait(self) -> T:
        """Wait for the answer: return the value, or raise the error.  One task at a time."""
        if self.settled:
            await trio.lowlevel.checkpoint()
        else:
            if self._task is not None:
                raise RuntimeError("another task waits for this future")
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self.result()

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
