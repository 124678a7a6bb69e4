"""What came back, in PostgreSQL: kept within bounds, and done to its message once."""

from __future__ import annotations

from uuid import UUID

import pytest

from relay.access.owners import ADMINISTRATOR_ID, REPORTS_ID
from relay.db.pool import Pool
from relay.ids import new_id
from relay.outbound.bounces.returned import (
    BYTES,
    ROWS,
    About,
    Applied,
    Returned,
    Waiting,
    keep,
    waiting,
)
from relay.outbound.queue.states import State
from relay.returns.law import Finding, Kind
from tests.outbound.node import Node, put, status

COMPLAINT = Finding(Kind.COMPLAINED, error="abuse", suppress=True)


async def about(returned: Returned, message_id: UUID) -> About:
    found = await returned.about(message_id)
    assert found is not None
    return found


async def test_a_report_of_a_message_that_is_being_delivered_waits(node: Node):
    """It is neither done nor forgotten, nor before another attempt; when it is recorded it
    counts, once."""
    (queued,) = await put(node.pool, "Ada@x.example")
    returned = Returned(node.pool, b"key")
    await keep(node.pool, [(new_id(), queued.id, b"a complaint")])
    (came,) = await returned.claim()
    assert (came.message_id, came.raw) == (queued.id, b"a complaint")
    # An attempt whose 250 was lost is followed by another.
    assert await returned.apply(await about(returned, queued.id), COMPLAINT, came.id) is None
    messages = await node.claim()
    for found in (COMPLAINT, Finding(Kind.BOUNCED, "5.1.1", "no")):
        delivering = await about(returned, queued.id)
        assert (delivering.recipient, delivering.state) == ("ada@x.example", State.PROCESSING)
        assert await returned.apply(delivering, found, came.id) is None
    assert (await waiting(node.pool)).rows == 1
    await node.finish(messages)
    sent = await about(returned, queued.id)
    assert await returned.apply(sent, COMPLAINT, came.id) == Applied(True, True)
    assert await returned.apply(sent, COMPLAINT, came.id) == Applied(False, False)
    assert await status(node.pool, queued.id) == "sent"
    assert await waiting(node.pool) == Waiting(0, 0)


@pytest.mark.parametrize("letter", [False, True])
async def test_what_strangers_have_mailed_suppresses_for_nobody_else(node: Node, letter: bool):
    """Of a report of TLS or a letter with a token: to mail to the address is up to others still."""
    (queued,) = await put(
        node.pool, "Ada@x.example", owner=ADMINISTRATOR_ID if letter else REPORTS_ID
    )
    await node.finish(await node.claim())
    if letter:
        await node.pool.execute("UPDATE relay.outbound_letters SET token = 7")
    returned = Returned(node.pool, b"key")
    sent = await about(returned, queued.id)
    assert await returned.apply(sent, COMPLAINT) == Applied(True, not letter)
    (again,) = await put(node.pool, "Ada@x.example", owner=UUID(int=77))
    assert again.recipient == "Ada@x.example"
    await put(node.pool, "Ada@x.example")


async def test_there_is_nothing_about_a_message_that_is_not_there(node: Node):
    """Nor is anything done."""
    assert await Returned(node.pool, b"key").about(new_id()) is None


async def test_what_waits_is_counted_with_its_bytes(pool: Pool):
    """As long as each is, however it is stored."""
    await keep(pool, [(new_id(), None, b"x" * size) for size in (0, 10, 500_000)])
    assert await waiting(pool) == Waiting(3, 500_010)


@pytest.mark.parametrize(
    ("counted", "signed", "others"),
    [
        (Waiting(), True, True),
        (Waiting(ROWS // 4, 0), True, False),
        (Waiting(0, BYTES // 4), True, False),
        (Waiting(ROWS, 0), False, False),
        (Waiting(0, BYTES), False, False),
    ],
)
def test_what_anybody_may_send_leaves_room_for_what_is_signed(
    counted: Waiting, *, signed: bool, others: bool
):
    """A quarter of the rows and of the bytes is for complaints without a signed path."""
    assert counted.has_room(signed=True) == signed
    assert counted.has_room(signed=False) == others
