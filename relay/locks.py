"""A fair lock that is had at once where it is free, without a round of the loop.

`trio.Lock` always checkpoints: that costs a round through the loop, which may have much to do, and
inside a cancelled scope stops whatever is to be done under the lock before it begins.

Promises: one holder at a time; those who wait get it in the order in which they came; who is
cancelled while it waits gets nothing, and holds up nobody.

Fails: never.  It does not notice a task that takes it twice (that waits for itself for ever), nor
one that gives back what is another's.  Who never has to wait never lets others run.

`tests/test_locks.py` and `tests/db/test_connection.py` hold it to that; `python -m tests.bench db`
is where it pays.
"""

from __future__ import annotations

from types import TracebackType

import trio


class Lock:
    """A fair lock that does not pass through the scheduler when it is free."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting = trio.lowlevel.ParkingLot()

    def acquire_nowait(self) -> bool:
        """Take the lock if it is free; whether it was."""
        if self._held:
            return False
        self._held = True
        return True

    async def acquire(self) -> None:
        """Take the lock, in turn."""
        if not self.acquire_nowait():
            await self._waiting.park()  # whoever lets go hands the lock over

    def release(self) -> None:
        """Hand the lock over to who has waited longest, if anybody waits."""
        if self._waiting:
            self._waiting.unpark()
        else:
            self._held = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.release()
