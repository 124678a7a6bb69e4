"""Looks again and again until something holds, and fails after a while with what it saw last.

What a test cannot be told of it polls: `await eventually(look, why)`, or where nothing is
asynchronous `eventually_sync(look, why)`.  Both return what was seen when it held.  `until` says
what is waited for (by default anything true), so that the failure can show the last thing seen:

    await eventually(lambda: pool.fetch(LEFT), "two are left", until=lambda rows: len(rows) == 2)

Deadlines are real time, under a `MockClock` too: a database or a peer is as slow as it is, however
fast the test's clock runs.  A mock clock at rate zero stands still between two looks: what the
test wants to happen by the clock it brings about by `jump`.
"""

import inspect
import time
from collections.abc import Callable
from typing import Any

import trio
from trio.testing import MockClock

WITHIN = 20.0  # s; far longer than anything takes, and shorter than a test's own time-out
EVERY = 0.005  # s


class _Look:
    """What has been seen so far, and for how long."""

    def __init__(self, why: str, until: Callable[[Any], object]) -> None:
        self._why = why
        self._until = until
        self._began = time.monotonic()
        self._seen: object = "nothing yet: the first look has not ended"
        self._looks = 0

    def settles(self, seen: object) -> bool:
        """Note what was seen; whether it is what is waited for."""
        self._seen = seen
        self._looks += 1
        return bool(self._until(seen))

    def is_over(self, within: float) -> bool:
        """Whether it has been waited long enough."""
        return time.monotonic() - self._began >= within

    def failure(self) -> AssertionError:
        """Say why it is a failure, for how long it was looked, and what was seen last."""
        took = time.monotonic() - self._began
        return AssertionError(
            f"{self._why}: not so after {took:.1f} s and {self._looks} looks;"
            f" seen last: {self._seen!r}"
        )


async def eventually(
    look: Callable[[], Any],
    why: str,
    *,
    until: Callable[[Any], object] = bool,
    within: float = WITHIN,
    every: float = EVERY,
) -> Any:
    """Look until it is so, at most `within` seconds, and return what was seen then.

    `look` may return an awaitable.  What it raises is raised at once: that is no "not yet".
    """
    watch = _Look(why, until)
    clock = trio.lowlevel.current_clock()
    mocked = isinstance(clock, MockClock)
    stands = isinstance(clock, MockClock) and clock.rate == 0
    # A look that hangs is a failure of its own; by a mock clock nobody can tell.
    with trio.move_on_after(float("inf") if mocked else within):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if watch.settles(seen):
                return seen
            if watch.is_over(within):
                break
            if stands:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(every)
    raise watch.failure()


def eventually_sync(
    look: Callable[[], Any],
    why: str,
    *,
    until: Callable[[Any], object] = bool,
    within: float = WITHIN,
    every: float = EVERY,
) -> Any:
    """Do what `eventually` does, in a test that is not asynchronous."""
    watch = _Look(why, until)
    while not watch.settles(seen := look()):
        if watch.is_over(within):
            raise watch.failure()
        time.sleep(every)
    return seen
