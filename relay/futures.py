"""A value that one task waits for and somebody else finds out.

A `Future` is given its value (`settle`) or its error (`fail`) once.

Promises
  * The first answer counts and later ones do nothing, so work may be done twice.
  * Cancelling a wait leaves the future as it is: it may be settled afterwards.

Fails: `result` and `wait` raise what `fail` was given.

Not for threads: they settle it by way of Trio's token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Future(Generic[T]):
    """One answer, and where it is waited for."""

    __slots__ = ("_error", "_event", "_then", "_value", "settled")

    def __init__(self) -> None:
        self.settled = False
        """Whether there is an answer, be it an error."""
        self._value: T | None = None
        self._error: Exception | None = None
        self._then: Callable[[], object] | None = None
        self._event: trio.Event | None = None  # made by the first who waits

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
        if self._event is not None:
            self._event.set()
        if self._then is not None:
            self._then()
            self._then = None

    def then(self, call: Callable[[], object]) -> None:
        """Have `call`, which raises nothing, called once there is an answer.  One a future."""
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
        """Wait for the answer: return the value, or raise the error."""
        if self._event is None:
            self._event = trio.Event()
            if self.settled:
                self._event.set()
        await self._event.wait()
        return self.result()
