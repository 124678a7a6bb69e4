"""What many tasks of one run share, and a system task of that run keeps going."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio


class Runs(Protocol):
    """Something with a task of its own, which must never raise: a system task that does ends the
    process."""

    async def run(self) -> None: ...


T = TypeVar("T", bound=Runs)


class OfThisRun(Generic[T]):
    """One `T` for each run of Trio, made and started when it is first wanted."""

    def __init__(self, make: Callable[[], T], name: str) -> None:
        """`name` is the task's."""
        self._make = make
        self._name = name
        self._one: trio.lowlevel.RunVar[T] = trio.lowlevel.RunVar(name)

    def get(self) -> T:
        """Return this run's."""
        try:
            return self._one.get()
        except LookupError:
            one = self._make()
            self._one.set(one)
            trio.lowlevel.spawn_system_task(one.run, name=self._name)
            return one
