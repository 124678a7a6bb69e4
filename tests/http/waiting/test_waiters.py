"""What wakes whoever waits or follows: whose mail, what is changed of messages, and how often."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from relay.db.channels import CHANGES, MAILBOXES, SUMMARIES, of_owner
from relay.db.listen import Bell, Hub
from relay.http.waiting.waiters import Watch, watching
from relay.ids import new_id
from relay.mailboxes.visibility import Reach


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

    changed = Bell()
    with hub.subscribe(CHANGES, "box", bell=changed) as changes:
        watch = Watch(Bell(), [changes], changed=changed)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            while await watch.wait(2):
                told.append((round(trio.current_time() - began, 1), watch.taken()))
    assert told == [(0.0, None), (1.0, None), (2.0, None)]

    with hub.subscribe(CHANGES, "box", bell=changed) as changes:
        watch = Watch(Bell(), [changes], changed=changed)
        hub.publish(CHANGES, None)
        assert await watch.wait(2)
        assert watch.taken() is None
        began = trio.current_time()
        hub.publish(CHANGES, {"box:message"})
        assert await watch.wait(2)
        assert watch.taken() == {"box:message"}
        assert trio.current_time() == began


@pytest.mark.parametrize("edits", [False, True])
async def test_others_mail_wakes_nobody_who_waits_for_their_own(
    autojump_clock: MockClock, edits: bool
) -> None:
    """Neither does what becomes of others' mailboxes, nor of so many that they are not named."""
    mine, others, mailbox, another = (new_id() for _ in range(4))
    hub, admission = Hub(), SimpleNamespace(watched=lambda _: nullcontext())
    call: Any = SimpleNamespace(admission=admission, mailbox=SimpleNamespace(owner_id=mine))
    own, one, all_of_it = Reach(owner_id=mine), Reach(mailbox_id=mailbox), Reach()
    message = f"{another}:{new_id()}"
    for reach, channel, keys, wakes in (
        (own, CHANGES, {message, of_owner(others)}, False),
        (own, CHANGES, {message, of_owner(mine), of_owner(others)}, edits),
        (own, CHANGES, {message}, edits),
        (one, CHANGES, {message, of_owner(mine)}, False),
        (all_of_it, CHANGES, {message, of_owner(others)}, edits),
        (own, SUMMARIES, {str(another), of_owner(others)}, False),
        (own, SUMMARIES, {str(mailbox), of_owner(mine), of_owner(others)}, True),
        (own, SUMMARIES, {str(another)}, True),  # of a relay that names no owners
        (own, MAILBOXES, {str(mailbox)}, edits),  # of a database before 0052
        (own, MAILBOXES, {str(mailbox), of_owner(mine)}, edits),
        (own, MAILBOXES, {str(another), of_owner(others)}, False),
        (own, MAILBOXES, {"*", of_owner(others)}, False),
        (all_of_it, MAILBOXES, {str(another), of_owner(None)}, edits),
        (one, CHANGES, {"*"}, edits),
        (one, CHANGES, {"*", of_owner(mine)}, edits),
        (one, CHANGES, {"*", of_owner(others), of_owner(None)}, False),
        (one, MAILBOXES, {"*", of_owner(others)}, False),
        (one, MAILBOXES, {"*", of_owner(mine)}, True),
        (one, SUMMARIES, {str(another), of_owner(mine)}, False),
        (one, SUMMARIES, {str(mailbox), of_owner(mine)}, True),
        (one, MAILBOXES, {str(mailbox)}, True),
        (all_of_it, SUMMARIES, {str(another), of_owner(others)}, True),
    ):
        with watching(hub, reach, call, edits=edits) as watch:
            hub.publish(channel, keys)
            assert await watch.wait(1) is wakes, (reach, channel, keys)
            told = watch.taken() or set()
            assert told <= {message, str(mailbox), str(another)}, "of owners nobody is told"


async def test_that_mailboxes_ended_wakes_once_a_second(autojump_clock: MockClock) -> None:
    """Tests end them one after the other: whoever shows all mail is told of the first at once, and
    of the others together; after a reconnect, which wakes for all, once."""
    hub, admission = Hub(), SimpleNamespace(watched=lambda _: nullcontext())
    call: Any = SimpleNamespace(admission=admission, mailbox=None)
    ended = [str(new_id()) for _ in range(50)]
    told: list[tuple[float, set[str] | None]] = []

    async def end() -> None:
        for mailbox in ended:
            hub.publish(MAILBOXES, [mailbox, of_owner(None)])
            await trio.sleep(0.01)

    with watching(hub, Reach(), call, edits=True) as watch:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            while await watch.wait(2):
                told.append((round(trio.current_time() - began, 1), watch.taken()))
        assert told == [(0.0, set(ended[:1])), (1.0, set(ended[1:]))]
        hub.publish_all()
        again = []
        while await watch.wait(2):
            again.append(watch.taken())
        assert again.count(None) == 1
