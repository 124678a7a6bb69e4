"""What a stream hears of changed messages, and how often."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from relay.db.channels import CHANGES
from relay.db.listen import Bell, Hub
from relay.http.waiters import Watch


async def test_that_any_message_may_be_changed_wakes_once_a_second(
    autojump_clock: MockClock,
) -> None:
    """Whoever changes mail of very many mailboxes, again and again, does not have everybody's
    streams look as often; what names a message is told at once."""
    hub = Hub()
    told: list[tuple[float, set[str] | None]] = []

    async def flood() -> None:
        for _ in range(100):
            hub.publish(CHANGES, None)
            await trio.sleep(0.02)

    with hub.subscribe(CHANGES, "box") as changes:
        watch = Watch(Bell(), changes)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            while await watch.wait(2):
                told.append((round(trio.current_time() - began, 1), watch.taken()))
    assert told == [(0.0, None), (1.0, None), (2.0, None), (3.0, None)]

    with hub.subscribe(CHANGES, "box") as changes:
        watch = Watch(Bell(), changes)
        hub.publish(CHANGES, None)
        assert await watch.wait(2)
        assert watch.taken() is None
        began = trio.current_time()
        hub.publish(CHANGES, {"box:message"})
        assert await watch.wait(2)
        assert watch.taken() == {"box:message"}
        assert trio.current_time() == began
