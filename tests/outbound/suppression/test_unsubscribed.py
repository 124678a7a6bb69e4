"""Who unsubscribed, in PostgreSQL: no bulk mail of that owner, and all other mail."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.ids import new_id
from relay.outbound.bounces.returned import About, Returned
from relay.outbound.queue.enqueue import Suppressed
from relay.outbound.queue.states import State
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Link
from relay.returns.law import Finding, Kind
from relay.webhooks.kinds import KINDS
from relay.webhooks.store import Webhooks
from tests.outbound.node import Node, put, status

MINE, YOURS = UUID(int=2**100 + 1), UUID(int=2**100 + 2)
ADA = "ada@x.example"
OWNERS = [MINE, ADMINISTRATOR_ID]


async def bulk(pool: Pool, owner: UUID = MINE, to: str = ADA) -> Link:
    """Queue a bulk mail: its link."""
    (queued,) = await put(pool, to, owner=owner, priority="bulk")
    return Link(owner, queued.id, to)


async def accepted(pool: Pool, owner: UUID, priority: str, to: str = ADA) -> bool:
    """Whether such mail may be queued."""
    try:
        await put(pool, to, owner=owner, priority=priority)
    except Suppressed as error:
        assert error.addresses == [to.lower()]
        return False
    return True


async def entry(pool: Pool, owner: UUID = MINE, address: str = ADA) -> Any:
    """Cause, whether unsubscribed, and by which message."""
    return await pool.fetch_row(
        """
        SELECT cause, unsubscribed_at IS NOT NULL, unsubscribed_by
        FROM relay.suppressions
        WHERE address = %s AND owner = %s
        """,
        (address, owner),
    )


@pytest.mark.parametrize("owner", OWNERS)
async def test_it_stops_that_owners_bulk_at_the_call_and_nothing_else(any_pool: Pool, owner: UUID):
    """Not normal or high mail, not others' bulk: not even where the administrator is the owner."""
    link = await bulk(any_pool, owner)
    assert await Suppressions(any_pool).unsubscribe(link)
    assert await entry(any_pool, owner) == ("unsubscribed", True, link.message)
    for other in (MINE, YOURS, ADMINISTRATOR_ID):
        for priority in ("high", "normal", "bulk"):
            wanted = not (other == owner and priority == "bulk")
            assert await accepted(any_pool, other, priority) == wanted, (other, priority)
    assert await accepted(any_pool, owner, "bulk", "bob@x.example")
    assert not await accepted(any_pool, owner, "bulk", "ADA@x.example")
    assert not await Suppressions(any_pool).holds(owner, ADA), "it says so of all mail"


@pytest.mark.parametrize("owner", OWNERS)
async def test_what_was_queued_before_is_cancelled_at_its_turn(node: Node, owner: UUID):
    """That owner's bulk; the rest is delivered."""
    link = await bulk(node.pool, owner)
    kept = [
        (await put(node.pool, ADA, owner=owner, priority=priority))[0].id
        for priority in ("high", "normal")
    ]
    for other in {MINE, YOURS, ADMINISTRATOR_ID} - {owner}:
        kept.append((await put(node.pool, ADA, owner=other, priority="bulk"))[0].id)
    assert await Suppressions(node.pool).unsubscribe(link)
    assert {message.id for message in await node.drain()} == set(kept)
    assert await status(node.pool, link.message) == "cancelled"
    error = "SELECT error_log FROM relay.outbound_messages WHERE id = %s"
    assert await node.pool.fetch_value(error, (link.message,)) == "suppressed"


async def test_a_whole_call_is_refused_and_names_who_unsubscribed(any_pool: Pool):
    """As for every suppression, nothing of it is queued."""
    await Suppressions(any_pool).unsubscribe(await bulk(any_pool))
    with pytest.raises(Suppressed) as refused:
        await put(any_pool, "bob@x.example", ADA, owner=MINE, priority="bulk")
    assert refused.value.addresses == [ADA]
    assert await any_pool.fetch_value("SELECT count(*) FROM relay.outbound_due") == 1


async def test_what_sql_queues_is_cancelled_at_its_turn(node: Node):
    """relay.send raises for no suppression; its mail is the nil owner's."""
    link = await bulk(node.pool, ADMINISTRATOR_ID)
    await Suppressions(node.pool).unsubscribe(link)
    send = "SELECT relay.send('s@x.example', %s, 'x', 'y', priority => %s)"
    stopped = await node.pool.fetch_value(send, (f"Ada <{ADA.upper()}>", "bulk"))
    normal = await node.pool.fetch_value(send, (ADA, "normal"))
    assert [message.id for message in await node.drain()] == [normal]
    assert await status(node.pool, stopped) == "cancelled"


async def test_the_address_is_that_of_the_queue(any_pool: Pool):
    """However it is written; of a message that is not kept any more, that of the link."""
    suppressions, address = Suppressions(any_pool), "Grüße@BÜCHER.example"
    (queued,) = await put(any_pool, "Grüße@xn--bcher-kva.example", owner=MINE, priority="bulk")
    assert await suppressions.unsubscribe(Link(MINE, queued.id, queued.recipient))
    assert await entry(any_pool, address="grüße@xn--bcher-kva.example")
    assert await suppressions.remove(MINE, address)
    assert await suppressions.unsubscribe(Link(MINE, new_id(), "Ada@X.example"))
    assert not await accepted(any_pool, MINE, "bulk")
    # The id of somebody else's message says nothing of whom this owner mailed.
    theirs = await bulk(any_pool, YOURS, "eve@x.example")
    await suppressions.unsubscribe(Link(MINE, theirs.message, "bob@x.example"))
    assert await entry(any_pool, address="eve@x.example") is None


async def test_it_is_done_once_and_told_once(any_pool: Pool):
    """By the same link or another of the same owner, ten at once; again when it was taken back."""
    suppressions, webhooks = Suppressions(any_pool), Webhooks(any_pool)
    await webhooks.put(MINE, "https://shop.example/hook", KINDS)
    await webhooks.put(MINE, "https://shop.example/other", ["message.delivered"])
    await webhooks.put(YOURS, "https://your.example/hook", KINDS)
    first, second = await bulk(any_pool), await bulk(any_pool)
    done: list[bool] = []

    async def ask(link: Link) -> None:
        done.append(await suppressions.unsubscribe(link))

    async with trio.open_nursery() as nursery:
        for link in (first, second) * 5:
            nursery.start_soon(ask, link)
    assert sorted(done) == [False] * 9 + [True]
    by = (await entry(any_pool))[2]
    events, _ = await webhooks.claim(10, 60.0, {})
    assert [(e.kind, e.subject_id, e.url) for e in events] == [
        ("message.unsubscribed", by, "https://shop.example/hook")
    ]
    body = await webhooks.body(events[0])
    assert body is not None
    assert b'"recipient":"ada@x.example"' in body
    assert b'"priority":"bulk"' in body
    assert await suppressions.remove(MINE, ADA)
    assert not await suppressions.remove(MINE, ADA)
    assert await accepted(any_pool, MINE, "bulk")
    assert await suppressions.unsubscribe(first)
    assert await any_pool.fetch_value("SELECT count(*) FROM relay.webhook_events") == 2


async def test_it_is_told_of_a_message_that_is_not_kept_any_more(any_pool: Pool):
    """Who unsubscribed is known by the suppression, while there is one."""
    suppressions, webhooks = Suppressions(any_pool), Webhooks(any_pool)
    await webhooks.put(MINE, "https://shop.example/hook", KINDS)
    await suppressions.unsubscribe(Link(MINE, old := new_id(), ADA))
    ((event,), _) = await webhooks.claim(10, 60.0, {})
    body = await webhooks.body(event)
    assert body is not None
    assert b'"id":"%b","recipient":"%b","subject":null' % (str(old).encode(), ADA.encode()) in body
    assert await webhooks.body(event) == body
    assert await webhooks.body(event._replace(signer=YOURS)) is None
    await suppressions.remove(MINE, ADA)
    assert await webhooks.body(event) is None


async def test_other_causes_stop_all_mail_and_leave_it_unsubscribed(any_pool: Pool):
    """A manual entry over it, and one that was there: to remove it leaves bulk stopped."""
    suppressions = Suppressions(any_pool)
    link = await bulk(any_pool)
    for manual_first in (True, False):
        steps = [suppressions.add(MINE, ADA, "asked"), suppressions.unsubscribe(link)]
        for step in steps if manual_first else reversed(steps):
            await step
        assert (await entry(any_pool))[:2] == ("manual", True)
        assert not await accepted(any_pool, MINE, "normal")
        assert await suppressions.holds(MINE, ADA)
        assert await suppressions.remove(MINE, ADA)
        assert await entry(any_pool) == ("unsubscribed", True, link.message)
        assert await accepted(any_pool, MINE, "normal")
        assert not await accepted(any_pool, MINE, "bulk")
        assert await suppressions.remove(MINE, ADA)
        assert await entry(any_pool) is None
        assert await accepted(any_pool, MINE, "bulk")


async def test_who_bounces_after_that_is_unsubscribed_still(node: Node):
    """The cause becomes the bounce's, which stops all; forgotten, bulk stays stopped."""
    suppressions = Suppressions(node.pool)
    link = await bulk(node.pool)
    await node.finish(await node.claim())
    await suppressions.unsubscribe(link)
    finding = Finding(Kind.BOUNCED, "5.1.1", "no such user", suppress=True)
    returned = Returned(node.pool, b"key")
    await returned.apply(About(link.message, ADA, State.SENT), finding)
    assert (await entry(node.pool))[:2] == ("bounced", True)
    assert not await accepted(node.pool, MINE, "high")
    assert await suppressions.remove(MINE, ADA)
    assert (await entry(node.pool))[:2] == ("unsubscribed", True)


async def test_sql_may_bring_who_unsubscribed_elsewhere(any_pool: Pool):
    """By the cause alone; since when is filled in, and a later word for it is kept."""
    await any_pool.execute(
        "INSERT INTO relay.suppressions (address, owner, cause) VALUES (%s, %s, 'unsubscribed')",
        (ADA.upper(), MINE),
    )
    assert await entry(any_pool) == ("unsubscribed", True, None)
    assert not await accepted(any_pool, MINE, "bulk")
    assert await accepted(any_pool, MINE, "normal")
    assert not await Suppressions(any_pool).unsubscribe(Link(MINE, uuid4(), ADA))
    assert await entry(any_pool) == ("unsubscribed", True, None)
