"""Refusals that take the same time whatever the reason, so that a clock tells a guesser nothing.

Promises: a failure is answered a multiple of `STEP` after the question; a success at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")

STEP = 0.05
"""Seconds; well above what the database takes, so nearly every failure takes exactly one."""


async def pad_failure_time(work: Callable[[], Awaitable[T | None]]) -> T | None:
    """Return what `work` returns; None, its failure, only at a multiple of `STEP` seconds."""
    started = trio.current_time()
    done = await work()
    if done is None:
        passed = trio.current_time() - started
        await trio.sleep_until(started + max(1, math.ceil(passed / STEP)) * STEP)
    return done
