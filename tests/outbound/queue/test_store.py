"""Claimed once, finished once: claim, finalise, renew, reap, on each PostgreSQL."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.outbound.admin import QueueAdmin
from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.lanes import Ask, lane_of
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause, State
from relay.outbound.queue.store import SPARED_FOR, Queue
from tests.eventually import eventually
from tests.outbound.node import Node, lose, put, status


async def test_a_claim_brings_all_that_delivery_needs_and_shows_processing(node: Node):
    """One round trip: envelope, names, body, headers, attachments, owner, route."""
    owner = uuid4()
    files = (Attachment("a.txt", "text/plain", b"alpha"), Attachment("b.bin", "x/y", b"\x00\xff"))
    message = Message(
        Address("Sender@example.org", "Sender"),
        (Address("Bob@Example.COM", "Bob"),),
        "Hello",
        text="text",
        html="<p>html</p>",
        headers={"X-One": "1"},
        attachments=files,
        owner=owner,
    )
    (queued,) = (await enqueue(node.pool, [message])).messages
    assert await status(node.pool, queued.id) == "queued"
    await node.pool.execute(
        "INSERT INTO relay.senders (owner, address, upstream, username, password)"
        " VALUES (%s, 'sender@example.org', 'smtps://up.example:465', 'u', 'secret')",
        (owner,),
    )
    batch = await node.look()
    (claimed,) = batch.messages
    assert (claimed.id, claimed.attempt, claimed.turn) == (queued.id, 1, 1)
    assert (claimed.sender, claimed.sender_name) == ("Sender@example.org", "Sender")
    assert (claimed.recipient, claimed.recipient_name) == ("Bob@Example.COM", "Bob")
    assert (claimed.domain, claimed.owner, claimed.subject) == ("example.com", owner, "Hello")
    assert (claimed.upstream, claimed.username) == ("smtps://up.example:465", "u")
    assert claimed.message == message
    assert await status(node.pool, queued.id) == "processing"


async def test_warming_up_plans_and_takes_nothing(node: Node):
    """A connection knows the statements afterwards; what is due is as it was."""
    (queued,) = await put(node.pool, "a@x.example")
    await node.queue.warm_up()
    assert await node.pool.fetch(
        "SELECT FROM pg_prepared_statements WHERE statement LIKE '%outbound_finalise%'"
    )
    assert await status(node.pool, queued.id) == "queued"
    (claimed,) = await node.claim()
    assert (claimed.fence, claimed.attempt, claimed.lost) == (1, 1, False)


async def test_recipients_of_one_message_share_its_body_in_storage_and_in_a_claim(node: Node):
    """Three recipients are three messages, one body."""
    await put(node.pool, "a@x.example", "b@x.example", "c@y.example")
    batch = await node.look()
    assert len(batch.messages) == 3
    assert [m.message.text for m in batch.messages] == ["text"] * 3
    assert len({id(m.text_body) for m in batch.messages}) == 1


async def test_a_large_body_is_fetched_apart(node: Node):
    """A claim of many does not bring gigabytes; the body is there when it is asked for."""
    file = Attachment("big", "application/octet-stream", b"x" * (1 << 20))
    message = Message(Address("a@x.org"), (Address("b@x.org"),), "s", text="t", attachments=(file,))
    await enqueue(node.pool, [message])
    batch = await node.look()
    (claimed,) = batch.messages
    assert not claimed.has_body
    assert claimed.blob is None
    whole = await node.queue.with_body(claimed)
    assert whole is not None
    assert whole.message == message
    assert (whole.id, whole.fence, whole.recipient) == (claimed.id, claimed.fence, "b@x.org")


async def test_sent_is_final_and_leaves_the_hot_table(node: Node):
    """The finished row is in the log, the due row is gone, the attempt is recorded."""
    (queued,) = await put(node.pool, "a@x.example")
    claimed = await node.claim()
    recorded = await node.finish(
        claimed, age=2.0, duration=1.5, phase="dot", code=250, enhanced="2.0.0"
    )
    assert recorded == {queued.id}
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_due") == 0
    row = await node.pool.fetch_row(
        "SELECT status, attempts, sent_at IS NOT NULL, error_log, next_retry_at"
        " FROM relay.outbound_messages WHERE id = %s",
        (queued.id,),
    )
    assert row == ("sent", 1, True, None, None)
    attempt = await node.pool.fetch_row(
        "SELECT attempt, outcome, phase, code, enhanced, duration FROM relay.outbound_attempts"
        " WHERE message_id = %s",
        (queued.id,),
    )
    assert attempt == (1, "sent", "dot", 250, "2.0.0", 1.5)
    assert await node.drain() == []


async def test_whom_each_attempt_spoke_to_is_recorded(node: Node):
    """Of an attempt that is followed by another, and of the last, which the message shows."""
    (queued,) = await put(node.pool, "a@x.example")
    late: dict[str, Any] = {"phase": "connect", "error": "no answer", "peer": "mx.example:25"}
    await node.finish(await node.claim(), Cause.DEFERRED, **late)
    shown = await QueueAdmin(node.pool).show(queued.id)
    assert shown is not None
    assert (shown["peer"], shown["tls"], shown["reply"]) == ("mx.example:25", None, None)
    await node.pool.execute("UPDATE relay.outbound_due SET run_at = now()")
    taken: dict[str, Any] = {"phase": "dot", "code": 250, "enhanced": "2.0.0"}
    taken |= {"peer": "mx.example[192.0.2.1]:25", "tls": "TLSv1.3", "reply": "Ok: queued as 4bX"}
    await node.finish(await node.claim(), **taken)
    shown = await QueueAdmin(node.pool).show(queued.id)
    assert shown is not None
    assert (shown["peer"], shown["tls"]) == (taken["peer"], taken["tls"])
    assert shown["reply"] == "250 2.0.0 Ok: queued as 4bX"
    assert await node.pool.fetch(
        "SELECT peer, tls, reply, error FROM relay.outbound_attempts ORDER BY attempt"
    ) == [
        ("mx.example:25", None, None, "no answer"),
        (taken["peer"], taken["tls"], "250 2.0.0 Ok: queued as 4bX", None),
    ]


async def test_whom_it_spoke_to_is_kept_of_what_failed_and_is_queued_again(node: Node):
    """It becomes an attempt before others."""
    (queued,) = await put(node.pool, "a@x.example")
    peer = "mx.example[192.0.2.1]:25"
    await node.finish(
        await node.claim(), Cause.REFUSED, phase="rcpt", code=550, error="no", peer=peer,
        tls="TLSv1.2",
    )  # fmt: skip
    await QueueAdmin(node.pool).retry(queued.id)
    assert await node.pool.fetch("SELECT peer, tls, reply FROM relay.outbound_tries") == [
        (peer, "TLSv1.2", None)
    ]


async def test_a_stale_worker_changes_nothing(any_pool: Pool):
    """After its lease was lost and another node claimed, its finalise is told so and is void."""
    first, second = Node(any_pool), Node(any_pool)
    (queued,) = await put(any_pool, "a@x.example")
    stale = await first.claim()
    await lose(any_pool, queued.id)
    fresh = await second.claim()
    assert fresh[0].fence > stale[0].fence
    assert (fresh[0].attempt, fresh[0].lost) == (2, True)
    for cause in (Cause.DELIVERED, Cause.DEFERRED, Cause.REFUSED, Cause.RELEASED):
        assert await first.finish(stale, cause) == set()
    assert await first.queue.renew([(m.id, m.fence) for m in stale]) == set()
    assert await first.queue.begin_data([(m.id, m.fence) for m in stale]) == set()
    assert await status(any_pool, queued.id) == "processing"
    assert await second.finish(fresh) == {queued.id}
    assert await status(any_pool, queued.id) == "sent"
    outcomes = await any_pool.fetch(
        "SELECT attempt, outcome FROM relay.outbound_attempts WHERE message_id = %s"
        " ORDER BY attempt",
        (queued.id,),
    )
    assert outcomes == [(1, "lost")]  # the second had no phase to record


async def test_a_stale_worker_stays_stale_after_release_and_retry_by_hand(any_pool: Pool):
    """The fence rises on every change of hands, so an old one never fits again."""
    node = Node(any_pool)
    (queued,) = await put(any_pool, "a@x.example")
    fences = []
    for cause in (Cause.RELEASED, Cause.DEFERRED, Cause.REFUSED):
        claimed = await node.claim()
        fences.append(claimed[0].fence)
        await node.finish(claimed, cause)
    await QueueAdmin(any_pool).retry(queued.id)
    fences.append((await node.claim())[0].fence)
    assert fences == sorted(set(fences))
    for fence in fences[:-1]:
        assert await node.queue.finalise([Settled(queued.id, fence, Cause.DELIVERED)]) == set()
    assert await status(any_pool, queued.id) == "processing"


async def test_a_repeated_finalise_is_void(node: Node):
    """Its answer was lost, it is sent again: one log row, one attempt."""
    await put(node.pool, "a@x.example", "b@x.example")
    claimed = await node.claim()
    assert len(await node.finish(claimed, phase="dot", code=250)) == 2
    assert await node.finish(claimed, phase="dot", code=250) == set()
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_log") == 2
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_attempts") == 2


async def test_concurrent_claims_never_share_a_message(any_pool: Pool):
    """Eight claimers at once take each of a thousand messages exactly once."""
    for start in range(0, 1000, 100):
        await put(any_pool, *(f"u{n}@d{n % 3}.example" for n in range(start, start + 100)))
    taken: Counter[UUID] = Counter()

    async def work() -> None:
        node = Node(any_pool)
        taken.update(message.id for message in await node.drain(capacity=20))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(work)
    assert len(taken) == 1000
    assert set(taken.values()) == {1}


async def test_a_lost_lease_is_due_again_by_itself(any_pool: Pool):
    """Its run_at is the lease's end: no scan, no reaper, just a short lease and time."""
    node = Node(any_pool, lease_timeout=0.05)
    (queued,) = await put(any_pool, "a@x.example")
    first = await node.claim()
    again = await eventually(node.look, "it is due again", until=lambda batch: batch.messages)
    assert again.lost == [queued.id]
    assert again.messages[0].fence > first[0].fence


async def test_a_renewed_lease_is_not_lost(any_pool: Pool):
    """A long delivery keeps its message."""
    node = Node(any_pool)
    (queued,) = await put(any_pool, "a@x.example")
    (claimed,) = await node.claim()
    await lose(any_pool, queued.id, seconds=-0.001)
    end = await any_pool.fetch_value("SELECT run_at::text FROM relay.outbound_due")
    over = f"SELECT clock_timestamp() > '{end}'"
    assert await node.queue.renew([(claimed.id, claimed.fence)]) == {queued.id}
    await eventually(lambda: any_pool.fetch_value(over), "the lease before would be over")
    assert await Node(any_pool).claim() == []
    assert await node.finish([claimed]) == {queued.id}


async def test_a_message_that_takes_its_workers_down_is_set_aside(any_pool: Pool):
    """The third lease lost in a row quarantines it, with an attempt recorded for each."""
    node = Node(any_pool, max_losses=3)
    (queued,) = await put(any_pool, "a@x.example")
    for _ in range(3):
        assert len(await node.claim()) == 1
        await lose(any_pool, queued.id)
    batch = await node.look()
    assert (batch.messages, batch.quarantined) == ([], [queued.id])
    assert await status(any_pool, queued.id) == "held"
    tries = await any_pool.fetch("SELECT attempt, outcome FROM relay.outbound_tries ORDER BY 1")
    assert tries == [(1, "lost"), (2, "lost"), (3, "lost")]
    assert await node.drain() == []
    await QueueAdmin(any_pool).retry(queued.id)
    assert [m.id for m in await node.claim()] == [queued.id]


async def test_losses_count_in_a_row_only(any_pool: Pool):
    """A finished attempt between two lost ones clears the count."""
    node = Node(any_pool, max_losses=2)
    (queued,) = await put(any_pool, "a@x.example")
    for _ in range(3):
        await node.claim()
        await lose(any_pool, queued.id)
        (claimed,) = await node.claim()
        await node.finish([claimed], Cause.DEFERRED)
    assert await status(any_pool, queued.id) == "queued"


async def test_a_lease_lost_in_the_last_attempt_starts_no_further_one(any_pool: Pool):
    """Ten attempts in all, the one that ended in the dark included."""
    node = Node(any_pool, max_attempts=2)
    (queued,) = await put(any_pool, "a@x.example")
    await node.finish(await node.claim(), Cause.DEFERRED)
    await node.claim()
    await lose(any_pool, queued.id)
    assert (await node.look()).quarantined == [queued.id]
    assert await status(any_pool, queued.id) == "held"


@pytest.mark.parametrize("reaped", [False, True], ids=["claimed", "reaped"])
async def test_no_attempt_is_the_last_of_what_goes_directly(any_pool: Pool, reaped: bool):
    """By whose route it goes is known where its lease is found lost: of those that were tried more
    often than attempts are counted, only what has an upstream is set aside."""
    upstream, direct = ("up@example.org", "smtps://up.example:465"), ("mx@example.org", "mx:")
    for address, url in (upstream, direct):
        await any_pool.execute(
            "INSERT INTO relay.senders (address, upstream) VALUES (%s, %s)", (address, url)
        )
    ids = {}
    for default in (False, True):
        node = Node(any_pool, max_attempts=2, direct=default)
        for sender in ("up@example.org", "mx@example.org", "none@example.org"):
            (queued,) = await put(any_pool, f"{default}@x.example", sender=sender)
            ids[sender] = queued.id
        for _ in range(2):
            await node.finish(await node.drain(), Cause.DEFERRED)
        assert len(await node.drain()) == 3
        await lose(any_pool, *ids.values())
        if reaped:
            found = await node.queue.reap()
            aside, lost = found.quarantined, found.lost
        else:
            batches = [await node.look() for _ in range(3)]
            aside = [one for batch in batches for one in batch.quarantined]
            lost = [one.id for batch in batches for one in batch.messages]
            assert {one.turn for batch in batches for one in batch.messages} == {4}
        counted = {ids["up@example.org"], *([] if default else [ids["none@example.org"]])}
        assert set(aside) == counted
        assert set(lost) == set(ids.values()) - counted
        await any_pool.execute("DELETE FROM relay.outbound_due")


async def test_since_when_a_message_is_due_outlasts_all_but_a_retry_by_hand(any_pool: Pool):
    """Whatever becomes of its claims, and however late its next is; what is scheduled is due at
    its time."""
    at = datetime.now(UTC) - timedelta(hours=3)
    node, admin = Node(any_pool, max_losses=9), QueueAdmin(any_pool)
    (queued,) = await put(any_pool, "a@x.example")
    await any_pool.execute("UPDATE relay.outbound_due SET first_due_at = %s, run_at = %s", (at, at))
    due = "UPDATE relay.outbound_due SET run_at = now() - interval '1 minute'"
    for cause in (Cause.RELEASED, Cause.DEFERRED, None, Cause.DEFERRED):
        (message,) = await node.claim()
        assert message.first_due_at == at
        if cause is None:
            await lose(any_pool, queued.id)
        else:
            await node.finish([message], cause, delay=3600.0)
            await any_pool.execute(due)
    for before in (Cause.DEFERRED, Cause.EXHAUSTED, Cause.UNCERTAIN):
        await node.finish(await node.claim(), before, delay=3600.0)
        earlier = datetime.now(UTC) - timedelta(minutes=1)
        assert await admin.retry(queued.id) is State.QUEUED
        (message,) = await node.claim()
        assert message.turn == 1
        assert message.first_due_at == message.due_at > earlier
        await node.finish([message], Cause.DEFERRED)


async def test_what_was_tried_before_that_was_noted_is_due_since_its_next_claim(any_pool: Pool):
    """A row that an earlier relay has left."""
    node = Node(any_pool)
    await put(any_pool, "a@x.example")
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0)
    at = datetime.now(UTC) - timedelta(hours=3)
    await any_pool.execute("UPDATE relay.outbound_due SET first_due_at = NULL, run_at = %s", (at,))
    for _ in range(2):
        (message,) = await node.claim()
        assert message.first_due_at == at
        await node.finish([message], Cause.DEFERRED)


async def test_the_reaper_frees_what_nobody_claims(any_pool: Pool):
    """In a lane that is throttled or paused too, a lost lease is counted, recorded and released."""
    node = Node(any_pool)
    one, two = await put(any_pool, "a@x.example", "b@x.example")
    stale = await node.claim()
    await lose(any_pool, one.id)
    reaped = await node.queue.reap()
    assert (reaped.lost, reaped.quarantined, reaped.unknown) == ([one.id], [], [])
    assert (await node.queue.reap()).lost == []
    assert await status(any_pool, two.id) == "processing"
    assert await node.finish([m for m in stale if m.id == one.id]) == set()
    assert [m.id for m in await node.claim()] == [one.id]


async def test_who_lost_its_leases_in_an_outage_tells_first_what_became_of_them(any_pool: Pool):
    """Whoever finds the database back spares leases that ran out, neither claims nor reaps what
    others may have sent, and takes nothing from those who renew: for ten seconds."""
    node, other = Node(any_pool, lease_timeout=60.0), Node(any_pool)
    one, two = await put(any_pool, "a@x.example", "b@x.example")
    (held,) = await put(any_pool, "c@x.example", hold_unknown=True)
    taken = {message.id: message for message in await node.claim()}
    begun = taken[held.id]
    assert await node.queue.begin_data([(begun.id, begun.fence)]) == {begun.id}
    await lose(any_pool, *taken)
    assert await other.queue.spare() == 3
    assert await other.claim() == []
    reaped = await other.queue.reap()
    assert (reaped.lost, reaped.unknown) == ([], [])
    left = await any_pool.fetch_value(
        """
        SELECT max(extract(epoch FROM COALESCE(held_until, run_at) - now()))
        FROM relay.outbound_due
        """
    )
    assert 5 < left <= SPARED_FOR
    assert await node.finish([taken[one.id], begun]) == {one.id, held.id}
    assert await other.queue.spare() == 0, "what has time left keeps its end"
    await lose(any_pool, two.id)
    assert [message.id for message in await other.claim()] == [two.id]


async def test_what_comes_late_takes_no_lease_that_ran_out_on_its_way(any_pool: Pool):
    """A claim that a database which stood still carries out at last takes what is due and nobody
    has leased; a lease only once the database was heard of since its end.  So does the reaper."""
    node, other = Node(any_pool), Node(any_pool)
    (leased,) = await put(any_pool, "a@x.example")
    (taken,) = await node.claim()
    (due,) = await put(any_pool, "b@x.example")
    ask = Ask(taken.lane, 1, datetime(2026, 1, 1, tzinfo=UTC), 100, taken.domain, taken.owner)
    await other.queue.survey()
    await lose(any_pool, leased.id, seconds=0.0)
    late = await other.queue.claim([ask])
    assert ([message.id for message in late.messages], late.lost) == ([due.id], [])
    assert await node.queue.renew([(taken.id, taken.fence)]) == {leased.id}
    await lose(any_pool, leased.id, seconds=0.0)
    await other.queue.survey()
    assert (await other.queue.claim([ask])).lost == [leased.id]


class Slow(Pool):
    """Every lease runs out before a statement of many rows arrives: the database stood still."""

    async def fetch(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        await self.execute("UPDATE relay.outbound_due SET run_at = clock_timestamp()")
        return await super().fetch(*args, **kwargs)


async def test_a_late_reaper_reaps_no_lease_that_ran_out_on_its_way(any_pool: Pool):
    """It hears of the database first, and a lease that runs out after that is not lost for it."""
    ids = {each.id for each in await put(any_pool, "a@x.example", "b@x.example")}
    await Node(any_pool).claim()
    slow = Slow(any_pool.dsn, size=1)
    try:
        assert (await Queue(slow, uuid4()).reap(grace=0.0)).lost == []
    finally:
        await slow.close()
    assert set((await Queue(any_pool, uuid4()).reap(grace=0.0)).lost) == ids


async def test_a_worker_lost_after_data_leaves_a_message_held_that_asked_for_it(any_pool: Pool):
    """hold_unknown: no second copy without somebody's decision; an outcome that comes is taken."""
    node = Node(any_pool)
    lost, answered = await put(any_pool, "a@x.example", "b@x.example", hold_unknown=True)
    claimed = await node.claim()
    pairs = [(m.id, m.fence) for m in claimed]
    assert await node.queue.begin_data(pairs) == {lost.id, answered.id}
    assert await node.queue.begin_data(pairs) == {lost.id, answered.id}
    assert await status(any_pool, lost.id) == "processing"
    assert await node.finish([m for m in claimed if m.id == answered.id]) == {answered.id}
    await lose(any_pool, lost.id)
    assert await node.claim() == []
    assert await node.queue.begin_data(pairs) == set()
    assert (await node.queue.reap()).unknown == [lost.id]
    assert await status(any_pool, lost.id) == "held"
    assert await node.finish([m for m in claimed if m.id == lost.id]) == set()


async def test_a_deferred_message_comes_back_when_it_is_due_and_shows_why(node: Node):
    """next_retry_at and error_log are there meanwhile, and attempts counts."""
    (queued,) = await put(node.pool, "a@x.example")
    claimed = await node.claim()
    await node.finish(claimed, Cause.DEFERRED, delay=3600.0, phase="rcpt", code=450, error="busy")
    row = await node.pool.fetch_row(
        "SELECT status, attempts, error_log,"
        " extract(epoch FROM next_retry_at - now()) BETWEEN 3590 AND 3600"
        " FROM relay.outbound_messages WHERE id = %s",
        (queued.id,),
    )
    assert row == ("queued", 1, "busy", True)
    assert await node.claim() == []
    due_lanes, at = await node.queue.survey()
    assert timedelta(minutes=59) < due_lanes[0].due_at - at < timedelta(minutes=61)
    await lose(node.pool, queued.id)
    (again,) = await node.claim()
    assert (again.attempt, again.turn, again.lost) == (2, 2, False)


async def test_a_released_message_counts_no_attempt(node: Node):
    """Given back before it began, it is due again at once."""
    (queued,) = await put(node.pool, "a@x.example")
    await node.finish(await node.claim(), Cause.RELEASED)
    assert await status(node.pool, queued.id) == "queued"
    (again,) = await node.claim()
    assert again.attempt == 1
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_tries") == 0


async def test_many_outcomes_of_all_kinds_go_into_one_statement(node: Node):
    """One statement records sent, failed, bounced, deferred and held, each for itself."""
    names = ("sent", "failed", "bounced", "queued", "held")
    await put(node.pool, *(f"{name}@x.example" for name in names))
    causes = {
        "sent": Cause.DELIVERED,
        "failed": Cause.REJECTED,
        "bounced": Cause.REFUSED,
        "queued": Cause.DEFERRED,
        "held": Cause.UNCERTAIN,
    }
    claimed = await node.claim()
    outcomes = [
        Settled(m.id, m.fence, causes[m.recipient.partition("@")[0]], delay=60) for m in claimed
    ]
    assert len(await node.queue.finalise(outcomes)) == 5
    for message in claimed:
        assert await status(node.pool, message.id) == message.recipient.partition("@")[0]


async def test_scheduled_mail_waits_for_its_time(node: Node):
    """send_at in the future is not claimed, and the survey says when to wake up."""
    when = datetime.now(UTC) + timedelta(hours=2)
    (queued,) = await put(node.pool, "a@x.example", send_at=when)
    assert await node.claim() == []
    due_lanes, _ = await node.queue.survey()
    assert due_lanes[0].due_at == when
    shown = await QueueAdmin(node.pool).show(queued.id)
    assert shown is not None
    assert shown["next_retry_at"] == when


async def test_high_goes_first_and_bulk_is_not_starved(node: Node):
    """With 200 of each due and room for 20 at a time, bulk has its share in every stretch."""
    for priority in ("bulk", "normal", "high"):
        await put(node.pool, *(f"u{n}@x.example" for n in range(200)), priority=priority)
    first = [message.priority for _ in range(10) for message in await node.claim(20)]
    assert Counter(first)[0] >= 170
    assert Counter(first)[2] >= 10
    assert Counter(first)[1] >= 10


async def test_a_lane_with_a_backlog_does_not_hold_up_another(node: Node):
    """A hundred thousand to one domain first, one to another after: both are in the first claim."""
    await put(node.pool, *(f"u{n}@big.example" for n in range(500)))
    (small,) = await put(node.pool, "a@small.example")
    assert small.id in {message.id for message in await node.claim(20)}


async def test_messages_of_a_lane_go_in_the_order_in_which_they_came(node: Node):
    """First come, first sent, within one call too."""
    queued = [
        message.id
        for start in (0, 10, 20)
        for message in await put(node.pool, *(f"u{start + n}@x.example" for n in range(10)))
    ]
    assert [message.id for message in await node.drain(7)] == queued


async def test_a_pause_stops_every_node_and_resume_starts_them(any_pool: Pool):
    """Nothing is claimed meanwhile; what is under way is finished."""
    one, two = Node(any_pool), Node(any_pool)
    await put(any_pool, "a@x.example", "b@x.example")
    claimed = await one.claim(1)
    admin = QueueAdmin(any_pool)
    await admin.pause()
    assert await two.claim() == []
    assert (await admin.stats()).paused
    assert len(await one.finish(claimed)) == 1
    await admin.resume()
    assert len(await two.claim()) == 1
    assert not (await admin.stats()).paused


async def test_suppressed_after_queueing_is_cancelled_at_its_turn(node: Node):
    """Whatever the case; no attempt is counted, and others are delivered."""
    stop, go = await put(node.pool, "Stop@X.example", "go@x.example")
    await node.pool.execute("INSERT INTO relay.suppressions (address) VALUES ('sTOP@x.EXAMPLE')")
    batch = await node.look()
    assert [message.id for message in batch.messages] == [go.id]
    assert batch.suppressed == [stop.id]
    row = await node.pool.fetch_row(
        "SELECT status, attempts, error_log FROM relay.outbound_messages WHERE id = %s", (stop.id,)
    )
    assert row == ("cancelled", 0, "suppressed")


async def test_an_owners_suppression_stops_only_his_own_mail(node: Node):
    """Another tenant's list is not mine; the administrator's is everybody's."""
    mine, yours = uuid4(), uuid4()
    await put(node.pool, "a@x.example", owner=mine)
    await put(node.pool, "a@x.example", owner=yours)
    await put(node.pool, "a@x.example")
    await node.pool.execute(
        "INSERT INTO relay.suppressions (address, owner) VALUES ('a@x.example', %s)", (mine,)
    )
    assert {message.owner for message in await node.drain()} == {yours, ADMINISTRATOR_ID}


async def test_an_identity_is_used_for_its_owners_mail_alone(node: Node):
    """A stranger who names my address as the sender does not get my upstream."""
    mine = uuid4()
    await node.pool.execute(
        "INSERT INTO relay.senders (owner, address, upstream)"
        " VALUES (%s, 'sender@example.org', 'smtps://up.example:465')",
        (mine,),
    )
    await put(node.pool, "a@x.example", owner=mine)
    await put(node.pool, "a@x.example")
    routes = {message.owner: message.upstream for message in await node.drain()}
    assert routes == {mine: "smtps://up.example:465", ADMINISTRATOR_ID: None}


async def lanes(pool: Pool) -> dict[UUID, int]:
    """The lane of each message that waits."""
    return dict(await pool.fetch("SELECT id, lane FROM relay.outbound_due"))


async def make_sender(pool: Pool, address: str, upstream: str = "smtps://up.example:465") -> UUID:
    """A sender of the administrator's with an upstream of its own; its id."""
    made: UUID = await pool.fetch_value(
        "INSERT INTO relay.senders (address, upstream) VALUES (%s, %s) RETURNING id",
        (address, upstream),
    )
    return made


@pytest.mark.parametrize(
    ("cause", "values"),
    [(Cause.DEFERRED, {"delay": 0.0}), (Cause.RELEASED, {"delay": 0.0}), (Cause.UNCERTAIN, {})],
)
async def test_what_is_put_back_goes_into_the_lane_of_its_route(node: Node, cause, values):
    """A sender that was made since, or removed, is noticed; what ends beside it is recorded."""
    plain = lane_of(ADMINISTRATOR_ID, "x.example")
    await make_sender(node.pool, "late@example.org")
    gone = await put(node.pool, "a@x.example", sender="late@example.org")
    await node.pool.execute("DELETE FROM relay.senders")
    made = await put(node.pool, "a@x.example", sender="Early@example.org")
    sender = await make_sender(node.pool, "early@example.org")
    own = lane_of(ADMINISTRATOR_ID, "x.example", sender)
    other = await put(node.pool, "b@x.example")
    messages = {message.id: message for message in await node.drain()}
    assert messages[made[0].id].lane == messages[other[0].id].lane == plain
    assert messages[made[0].id].own_lane == own
    assert messages[gone[0].id].lane != plain
    assert messages[gone[0].id].own_lane == plain
    reports = [
        Settled(message.id, message.fence, Cause.DELIVERED)
        if message.id == other[0].id
        else Settled(message.id, message.fence, cause, **values)
        for message in messages.values()
    ]
    assert await node.queue.finalise(reports) == set(messages)
    assert await lanes(node.pool) == {made[0].id: own, gone[0].id: plain}


async def test_what_failed_and_is_queued_again_goes_into_the_lane_of_its_route(node: Node):
    """By the sender as it is then."""
    (one,) = await put(node.pool, "a@x.example")
    await node.finish(await node.claim(), Cause.REJECTED)
    sender = await make_sender(node.pool, "sender@example.org")
    await QueueAdmin(node.pool).retry(one.id)
    assert await lanes(node.pool) == {one.id: lane_of(ADMINISTRATOR_ID, "x.example", sender)}


async def reads(pool: Pool) -> tuple[int, int]:
    """How often the server says it has scanned outbound_due whole, and rows read of its index."""
    row = await pool.fetch_row(
        "SELECT seq_scan, (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes"
        "                  WHERE indexrelname = 'outbound_due_pkey')"
        " FROM pg_stat_user_tables WHERE relname = 'outbound_due'"
    )
    assert row is not None
    return row[0], row[1]


async def test_what_is_too_old_is_given_up_where_nobody_takes_it(any_pool: Pool):
    """As if a last attempt had failed; what is younger, leased or held, or in another lane, stays,
    and all of it while the queue is paused."""
    node = Node(any_pool, direct=True)
    old, new, held, away = await put(any_pool, *(f"{n}@y.example" for n in ("a", "b", "c", "d")))
    (other,) = await put(any_pool, "a@z.example")
    admin = QueueAdmin(any_pool)
    await admin.hold(held.id)
    aged = "UPDATE relay.outbound_due SET run_at = run_at - interval '5 d' WHERE id = ANY (%s)"
    await any_pool.execute(aged, ([away.id],))
    (leased,) = await node.claim(1)
    assert leased.id == away.id
    await any_pool.execute(aged, ([old.id, other.id],))
    await admin.pause()
    assert await node.queue.give_up([old.lane], 5 * 86400.0, "connect: no answer") == 0
    await admin.resume()
    by_upstream = Node(any_pool).queue
    assert await by_upstream.give_up([old.lane], 5 * 86400.0, "connect: no answer") == 0
    assert await node.queue.give_up([old.lane], 5 * 86400.0, "connect: no answer") == 1
    assert [await status(any_pool, each.id) for each in (old, new, held, away, other)] == [
        *("failed", "queued", "held", "processing", "queued")
    ]
    entry = await any_pool.fetch_row(
        "SELECT attempt, phase, enhanced, error FROM relay.outbound_log WHERE id = %s", (old.id,)
    )
    why = "too old, and nobody takes mail for its domain; connect: no answer"
    assert entry == (0, "connect", "4.4.7", why)
    assert await node.finish([leased]) == {away.id}


async def test_a_plan_made_while_the_queue_is_empty_still_uses_the_index(any_pool: Pool):
    """Statements that were prepared on an empty table probe a full one once a row."""
    pool = Pool(any_pool.dsn, size=1)
    node = Node(pool)
    await pool.execute("VACUUM ANALYZE relay.outbound_due")  # now it is known to be empty
    for _ in range(12):
        await node.queue.survey()
        await node.queue.claim(
            [Ask(1, 1, datetime(2026, 1, 1, tzinfo=UTC), 100, "x.example", ADMINISTRATOR_ID)]
        )
        await node.queue.finalise([Settled(uuid4(), 1, Cause.DELIVERED)])
    await put(any_pool, *(f"u{n}@x.example" for n in range(2000)))
    before = await reads(any_pool)
    claimed = await node.drain(100)
    for start in range(0, 2000, 100):
        assert len(await node.finish(claimed[start : start + 100])) == 100
    await pool.close()
    after = await eventually(
        lambda: reads(any_pool), "all is counted", until=lambda now: now[1] >= before[1] + 4000
    )
    assert after[0] == before[0]
    # A claim and a finalise for each, some versions of a row twice; not 2,000 for each hundred.
    assert after[1] - before[1] < 20_000
