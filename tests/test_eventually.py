"""What is polled: how it ends, and what it says when it does not."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.eventually import eventually, eventually_sync


def counting() -> Callable[[], int]:
    """Return what counts its calls."""
    numbers = iter(range(1_000_000))
    return lambda: next(numbers)


async def test_what_was_seen_when_it_held_is_returned():
    """Of a plain look, and of one that is awaited."""

    async def soon() -> int:
        return count()

    count = counting()
    assert await eventually(counting(), "three", until=lambda n: n == 3) == 3
    assert await eventually(soon, "two", until=lambda n: n == 2) == 2
    assert eventually_sync(counting(), "four", until=lambda n: n == 4) == 4


async def test_what_never_comes_fails_with_the_last_look():
    """It says why, for how long, and what was seen."""
    with pytest.raises(AssertionError, match=r"^a dog: not so after 0\.\d s .* seen last: 'cat'$"):
        await eventually(lambda: "cat", "a dog", until=lambda seen: seen == "dog", within=0.05)
    with pytest.raises(AssertionError, match=r"^a dog: .* seen last: None$"):
        eventually_sync(lambda: None, "a dog", within=0.05)


async def test_a_look_that_hangs_fails_too():
    """Nothing was seen, and that is said."""
    with pytest.raises(AssertionError, match="the first look has not ended"):
        await eventually(trio.sleep_forever, "an answer", within=0.05)


async def test_what_a_look_raises_is_no_not_yet():
    """The failure of the look is the failure."""

    def broken() -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        await eventually(broken, "anything")
    with pytest.raises(LookupError):
        eventually_sync(broken, "anything")


async def test_a_clock_that_stands_still_does_not_keep_it_from_failing(mock_clock: MockClock):
    """The deadline is real time; the test's own time has not moved."""
    with pytest.raises(AssertionError, match="never"):
        await eventually(lambda: False, "never", within=0.05)
    assert trio.current_time() == 0


@pytest.fixture
def flowing() -> MockClock:
    """A clock that runs as real time does, and may be pushed on."""
    return MockClock(rate=1.0)


async def test_a_clock_that_jumps_does_not_make_it_fail(flowing: MockClock):
    """Hours of the test's time are no time at all."""
    count = counting()

    def look() -> int:
        flowing.jump(3600)
        return count()

    await eventually(look, "fifty looks", until=lambda looks: looks == 50)
