"""By hand: cancel, hold, retry; lists, events, figures; each only for the owner."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.db.pool import Pool
from relay.ids import new_id
from relay.outbound.admin import Failure, QueueAdmin, Wanted
from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.delivery.render import mail_of
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause, Forbidden, State
from relay.outbound.queue.steps import pack
from tests.outbound.node import Node, lose, put, status


@pytest.fixture
def admin(any_pool: Pool) -> QueueAdmin:
    """The admin on the test's database."""
    return QueueAdmin(any_pool)


async def test_cancel_takes_a_message_out_before_its_turn(node: Node, admin: QueueAdmin):
    """It is never claimed, and is final."""
    one, two = await put(node.pool, "a@x.example", "b@x.example")
    assert await admin.cancel(one.id) is State.CANCELLED
    assert [m.id for m in await node.claim()] == [two.id]
    assert await status(node.pool, one.id) == "cancelled"
    for method in (admin.cancel, admin.hold, admin.retry):
        with pytest.raises(Forbidden):
            await method(one.id)


async def test_what_is_being_delivered_cannot_be_cancelled(node: Node, admin: QueueAdmin):
    """It may be gone already; a lost lease can."""
    (queued,) = await put(node.pool, "a@x.example")
    claimed = await node.claim()
    with pytest.raises(Forbidden, match="processing cannot be cancelled"):
        await admin.cancel(queued.id)
    await lose(node.pool, queued.id)
    assert await admin.cancel(queued.id) is State.CANCELLED
    assert await node.finish(claimed) == set()


async def test_a_held_message_waits_until_it_is_released(node: Node, admin: QueueAdmin):
    """hold, then retry: due at once; hold, then cancel: out."""
    one, two = await put(node.pool, "a@x.example", "b@x.example")
    for message in (one, two):
        assert await admin.hold(message.id) is State.HELD
    assert await node.claim() == []
    assert await admin.retry(one.id) is State.QUEUED
    assert await admin.cancel(two.id) is State.CANCELLED
    assert [m.id for m in await node.claim()] == [one.id]


@pytest.mark.parametrize("cause", [Cause.EXHAUSTED, Cause.REJECTED, Cause.REFUSED])
async def test_retry_queues_what_failed_or_bounced_with_fresh_attempts(
    node: Node, admin: QueueAdmin, cause: Cause
):
    """The count goes on, the back-off starts again, the history stays, an old fence never fits."""
    (queued,) = await put(node.pool, "a@x.example")
    (first,) = await node.claim()
    await node.finish([first], cause, phase="rcpt", code=550, error="no")
    assert await admin.retry(queued.id) is State.QUEUED
    (again,) = await node.claim()
    assert (again.attempt, again.turn) == (2, 1)
    assert again.fence > first.fence + 1
    await node.finish([again], phase="dot", code=250)
    events = await admin.events(queued.id)
    assert events is not None
    assert [(e["attempt"], e["phase"], e["code"]) for e in events] == [
        (1, "rcpt", 550),
        (2, "dot", 250),
    ]
    with pytest.raises(Forbidden):
        await admin.retry(queued.id)


async def test_retry_while_it_is_queued_is_forbidden(node: Node, admin: QueueAdmin):
    """It is waiting already."""
    (queued,) = await put(node.pool, "a@x.example")
    with pytest.raises(Forbidden):
        await admin.retry(queued.id)


async def test_what_is_held_before_its_time_keeps_it(node: Node, admin: QueueAdmin):
    """Queued again it is scheduled as before; a time that has passed meanwhile is now."""
    at = datetime.now(UTC) + timedelta(days=365)
    (later,) = await put(node.pool, "a@x.example", send_at=at)
    (soon,) = await put(node.pool, "b@x.example")
    for queued in (later, soon):
        assert await admin.hold(queued.id) is State.HELD
        assert await admin.retry(queued.id) is State.QUEUED
    row = await admin.show(later.id)
    assert row is not None
    assert row["next_retry_at"] == at
    assert [message.recipient for message in await node.claim()] == ["b@x.example"]
    with pytest.raises(Forbidden):
        await admin.retry(later.id)


async def test_what_is_held_after_an_attempt_is_due_at_once_when_queued_again(
    node: Node, admin: QueueAdmin
):
    """Its time was that of the back-off, which a retry by hand ends."""
    (queued,) = await put(node.pool, "a@x.example")
    (first,) = await node.claim()
    await node.finish([first], Cause.DEFERRED, phase="rcpt", code=450, delay=3600.0)
    assert await admin.hold(queued.id) is State.HELD
    assert await admin.retry(queued.id) is State.QUEUED
    assert [message.attempt for message in await node.claim()] == [2]


async def test_to_a_stranger_a_message_is_not_there(node: Node, admin: QueueAdmin):
    """Not to look at, not to touch; to its owner it is."""
    mine, yours = uuid4(), uuid4()
    (queued,) = await put(node.pool, "a@x.example", owner=mine)
    for method in (admin.state, admin.show, admin.events, admin.cancel, admin.hold, admin.retry):
        assert await method(queued.id, yours) is None
        assert await method(new_id(), None) is None
    assert (await admin.find(Wanted(yours))).rows == []
    assert await admin.state(queued.id, mine) is State.QUEUED
    assert [m["id"] for m in (await admin.find(Wanted(mine))).rows] == [queued.id]


async def test_lists_are_newest_first_by_state_recipient_and_page(node: Node, admin: QueueAdmin):
    """Every filter agrees with the view, page by page."""
    names = ("sent", "failed", "bounced", "queued", "held", "processing", "cancelled")
    causes = {"sent": Cause.DELIVERED, "failed": Cause.REJECTED, "bounced": Cause.REFUSED}
    await put(node.pool, *(f"{name}@x.example" for name in names for _ in range(3)))
    for message in await node.claim():
        name = message.recipient.partition("@")[0]
        cause = causes.get(name, Cause.RELEASED)
        if name != "processing":
            await node.queue.finalise([Settled(message.id, message.fence, cause)])
        if name == "held":
            await admin.hold(message.id)
        if name == "cancelled":
            await admin.cancel(message.id)
    everything = (await admin.find(limit=200)).rows
    assert len(everything) == 21
    assert [m["id"] for m in everything] == sorted((m["id"] for m in everything), reverse=True)
    for name in names:
        found = (await admin.find(Wanted(status=State(name)))).rows
        assert [m["recipient"] for m in found] == [f"{name}@x.example"] * 3
        assert found == [m for m in everything if m["status"] == name]
        assert (await admin.find(Wanted(recipient=f"{name.upper()}@X.example"))).rows == found
        assert (await admin.find(Wanted(status=State(name)), limit=2)).rows == found[:2]
        assert (await admin.find(Wanted(status=State(name)), before=found[1]["id"])).rows == found[
            2:
        ]
    assert (await admin.find(before=everything[10]["id"], limit=5)).rows == everything[11:16]


async def test_what_has_no_index_is_sifted_page_by_page(node: Node):
    """By priority or domain a page looks at so many messages; together the pages hold all."""
    admin = QueueAdmin(node.pool, sifted=4)
    await put(node.pool, *(f"a@{'x' if n % 7 else 'y'}.example" for n in range(20)))
    found: list[Any] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        listing = await admin.find(
            Wanted(domain="Y.example", status=State.QUEUED), limit=2, before=before
        )
        found += listing.rows
        before, pages = listing.before, pages + 1
    assert [m["recipient"] for m in found] == ["a@y.example"] * 3
    assert pages >= 5
    assert (await admin.find(Wanted(domain="y.example", priority="bulk"), limit=200)).rows == []


async def test_events_show_each_phase_of_each_attempt(node: Node, admin: QueueAdmin):
    """As recorded, or the deciding phase where nothing more was."""
    (queued,) = await put(node.pool, "a@x.example")
    assert await admin.events(queued.id) == []
    steps = pack([("mail", 250, 10.5, 0.125), ("rcpt", 450, 3000.25, 2990.5)], 10.0)
    await node.finish(
        await node.claim(), Cause.DEFERRED, age=3000.0, phase="rcpt", code=450, enhanced="4.2.2",
        error="450 4.2.2 full", steps=steps, peer="mx.example[192.0.2.1]:25", tls="TLSv1.3",
    )  # fmt: skip
    await node.finish(
        await node.claim(), phase="dot", code=250, enhanced="2.0.0", duration=0.5, reply="Ok"
    )
    events = await admin.events(queued.id)
    assert events is not None
    first, second = (datetime.fromisoformat(event.pop("at")) for event in events[:2])
    assert second - first == timedelta(seconds=2989.75)
    assert abs(datetime.now(UTC) - first - timedelta(seconds=2999.5)) < timedelta(seconds=60)
    of = {"attempt": 1, "peer": "mx.example[192.0.2.1]:25", "tls": "TLSv1.3", "reply": None}
    assert events[:2] == [
        {"phase": "mail", "code": 250, "duration": 0.125, "enhanced": None, "error": None} | of,
        {"phase": "rcpt", "code": 450, "duration": 2990.5, "enhanced": "4.2.2",
         "error": "450 4.2.2 full"} | of,
    ]  # fmt: skip
    assert (events[2]["phase"], events[2]["code"], events[2]["duration"]) == ("dot", 250, 0.5)
    assert (events[2]["enhanced"], events[2]["error"]) == ("2.0.0", None)
    assert (events[2]["reply"], events[2]["peer"]) == ("250 2.0.0 Ok", None)


async def test_events_show_what_no_reply_came_to(node: Node, admin: QueueAdmin):
    """Behind the replies that came; and the error stands at what decided, not at what followed."""
    silent, refused = await put(node.pool, "a@x.example", "b@x.example")
    replies = [("mail", 250, 10.5, 0.125), ("rcpt", 550, 10.6, 0.1), ("data", 503, 10.7, 0.1)]
    claimed = {message.id: message for message in await node.claim()}
    await node.finish(
        [claimed[silent.id]], Cause.DEFERRED, phase="rcpt", error="no reply in time",
        duration=60.0, steps=pack(replies[:1], 10.0),
    )  # fmt: skip
    await node.finish(
        [claimed[refused.id]], Cause.REFUSED, phase="rcpt", code=550, enhanced="5.1.1",
        error="550 5.1.1 nobody", steps=pack(replies, 10.0),
    )  # fmt: skip
    events = await admin.events(silent.id)
    assert events is not None
    assert [(e["phase"], e["code"], e["duration"], e["error"]) for e in events] == [
        ("mail", 250, 0.125, None),
        ("rcpt", None, None, "no reply in time"),
    ]
    assert datetime.fromisoformat(events[0]["at"]) < events[1]["at"]
    events = await admin.events(refused.id)
    assert events is not None
    assert [(e["phase"], e["enhanced"], e["error"]) for e in events] == [
        ("mail", None, None),
        ("rcpt", "5.1.1", "550 5.1.1 nobody"),
        ("data", None, None),
    ]


async def test_the_figures_count_every_state(node: Node, admin: QueueAdmin):
    """queued, due, processing, held, lost; and what finished within the hour."""
    await put(node.pool, *(f"u{n}@x.example" for n in range(6)))
    claimed = await node.claim(5)
    await node.finish(claimed[:1])
    await node.finish(claimed[1:2], Cause.REFUSED)
    await node.finish(claimed[2:3], Cause.DEFERRED, delay=600)
    await lose(node.pool, claimed[3].id)
    await admin.hold((await admin.find(Wanted(status=State.QUEUED))).rows[0]["id"])
    stats = await admin.stats()
    assert (stats.queued, stats.due, stats.processing, stats.held, stats.lost) == (2, 1, 1, 1, 1)
    assert stats.finished == {"sent": 1, "bounced": 1}
    assert stats.oldest_due is not None
    assert stats.oldest_due >= 60
    assert stats.as_json()["paused"] is False


async def test_what_was_sent_can_be_looked_at_as_each_attempt_composes_it(
    node: Node, admin: QueueAdmin
):
    """Before, during and after; each recipient's own; parts and files too; its owner's alone."""
    owner = uuid4()
    rich = Message(
        Address("s@x.example", "Sh\u00f6p"), [Address("a@x.example", "A"), Address("b@x.example")],
        "Gr\u00fc\u00dfe", text="t\u00e4xt", html="<p>x</p>", headers={"Reply-To": "r@x.example"},
        attachments=[Attachment("a.bin", "application/x-a", bytes(range(256)) * 9)], owner=owner,
    )  # fmt: skip
    queued = (await enqueue(node.pool, [rich])).messages
    queued += await put(node.pool, "c@x.example", owner=owner)
    before = {one.id: await admin.mail(one.id, owner) for one in queued}
    claimed = await node.claim()
    assert len(claimed) == len(queued)
    for message in claimed:
        found = before[message.id]
        assert found is not None
        assert found.data == mail_of(message).data
        assert str(message.id).encode() in found.data
        assert await admin.size(message.id, owner) == message.size
    await node.finish(claimed, Cause.DELIVERED, phase="dot", code=250)
    for one in queued:
        after = await admin.mail(one.id)
        assert after is not None
        assert (after.data, after.recipients) == (before[one.id].data, (one.recipient,))  # type: ignore[union-attr]  # looked at above
        assert await admin.mail(one.id, uuid4()) is None
        assert await admin.size(one.id, uuid4()) is None
    assert await admin.mail(uuid4()) is None


async def test_failures_are_counted_and_retried_by_destination_and_error(
    node: Node, admin: QueueAdmin
):
    """Each only of its owner's; the filter that counts is the one that retries."""
    mine, theirs = uuid4(), uuid4()
    await put(node.pool, "a@x.example", "b@x.example", "c@y.example", owner=mine)
    await put(node.pool, "d@x.example", owner=theirs)
    await node.finish(await node.claim(), Cause.REFUSED, phase="rcpt", code=550, error="550 no")
    await put(node.pool, "e@x.example", "f@x.example", owner=mine)
    sent, rejected = await node.claim()
    await node.finish([sent], phase="dot", code=250)
    await node.finish([rejected], Cause.REJECTED)

    def told(found: list[Failure]) -> list[tuple[Any, ...]]:
        return [(one.count, one.status, one.domain, one.error) for one in found]

    everything = await admin.failures()
    assert told(everything)[0] == (3, "bounced", "x.example", "550 no")
    assert sorted(told(await admin.failures(Wanted(mine))), key=str) == [
        (1, "bounced", "y.example", "550 no"),
        (1, "failed", "x.example", None),
        (2, "bounced", "x.example", "550 no"),
    ]
    assert await status(node.pool, everything[0].latest) == "bounced"
    assert everything[0].as_json()["latest"] == str(everything[0].latest)
    assert told(await admin.failures(Wanted(mine, error=""))) == [(1, "failed", "x.example", None)]
    assert await admin.retry_failures(Wanted(theirs, domain="y.example")) == 0
    assert await admin.retry_failures(Wanted(mine, domain="X.example", error="550 no")) == 2
    assert [one.turn for one in await node.claim()] == [1, 1]
    assert await admin.retry_failures(Wanted(mine, error="")) == 1
    assert told(await admin.failures(Wanted(domain="x.example"))) == [
        (1, "bounced", "x.example", "550 no")
    ]
    assert await admin.retry_failures(Wanted(status=State.FAILED)) == 0
    assert await admin.retry_failures() == 2
    assert await admin.failures() == []
