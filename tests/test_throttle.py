"""What may happen once in so many seconds, however often it is asked for."""

from __future__ import annotations

import trio
import trio.testing

from relay.throttle import Throttle


async def test_once_in_so_many_seconds(autojump_clock):
    """The first is let through, then none until the time is over, counted from the last."""
    throttle = Throttle(10.0)
    began = trio.current_time()
    ready = []
    for _ in range(25):
        if throttle.ready():
            ready.append(trio.current_time() - began)
        await trio.sleep(1.0)
    assert ready == [0.0, 10.0, 20.0]


async def test_each_key_has_its_own_time(autojump_clock):
    """One that is asked for again and again holds up no other."""
    throttle = Throttle(60.0)
    assert throttle.ready("a")
    assert throttle.ready("b")
    assert not throttle.ready("a")
    await trio.sleep(60.0)
    assert throttle.ready("a")


async def test_many_keys_are_forgotten_rather_than_kept(autojump_clock):
    """Memory is bounded: above so many keys, each may be ready once more."""
    throttle = Throttle(60.0, keys=3)
    assert [throttle.ready(key) for key in "abcd"] == [True] * 4
    assert throttle.ready("a")
    assert not throttle.ready("d")
