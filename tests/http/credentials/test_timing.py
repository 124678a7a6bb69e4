"""Refusals that take one time."""

from functools import partial

import pytest
import trio

from relay.http.credentials.timing import STEP, pad_failure_time


async def test_refusals_leave_at_the_same_time(autojump_clock):
    """Whatever took how long within a step; what succeeds is not held up."""

    async def refuse(after: float) -> str | None:
        await trio.sleep(after)
        return None

    for seconds, wanted in ((0.0, 1), (0.001, 1), (0.049, 1), (0.051, 2), (0.12, 3)):
        began = trio.current_time()
        assert await pad_failure_time(partial(refuse, seconds)) is None
        assert trio.current_time() - began == pytest.approx(wanted * STEP)
