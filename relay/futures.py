"""A value that one task waits for and somebody else finds out.

A `Future` is given its value (`settle`) or its error (`fail`) once: a `trio.Event` with an answer.

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

    __slots__ = ("_error", "_given", "_then", "_value")

    def __init__(self) -> None:
        self._given = trio.Event()
        self._value: T | None = None
        self._error: Exception | None = None
        self._then: Callable[[], object] | None = None

    @property
    def settled(self) -> bool:
        """Whether there is an answer, be it an error."""
        return self._given.is_set()

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
        self._given.set()
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
        await self._given.wait()
        return self.result()
