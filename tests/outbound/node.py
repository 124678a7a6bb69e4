"""What the tests of the queue share: a node that claims whatever is due, and short messages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.claimed import Batch, Claimed
from relay.outbound.queue.enqueue import Queued, enqueue
from relay.outbound.queue.lanes import LaneBook
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue


class Node:
    """A queue with a lane book, as the claimer uses them."""

    def __init__(self, pool: Pool, **settings: Any) -> None:
        self.pool = pool
        self.queue = Queue(pool, uuid4(), **settings)
        self.book = LaneBook()

    async def look(self, capacity: int = 100) -> Batch:
        """Survey, plan, claim."""
        mark = self.book.mark()
        due_lanes, at = await self.queue.survey()
        self.book.learn(due_lanes, mark)
        plan = self.book.plan(capacity, at)
        batch = await self.queue.claim(plan)
        self.book.took(plan, batch.claimed)
        return batch

    async def claim(self, capacity: int = 100) -> list[Claimed]:
        """The messages of one look."""
        return (await self.look(capacity)).messages

    async def drain(self, capacity: int = 100) -> list[Claimed]:
        """Everything that is due now, claimed."""
        found: list[Claimed] = []
        while messages := await self.claim(capacity):
            found += messages
        return found

    async def finish(
        self,
        messages: Sequence[Claimed],
        cause: Cause = Cause.DELIVERED,
        *,
        age: float | None = None,
        duration: float | None = None,
        **values: Any,
    ) -> set[UUID]:
        """Report the same of each; `age`: seconds since the attempt began, `duration` of it."""
        if age is not None or duration is not None:
            began_at = trio.current_time() - (age or 0.0)
            values["began_at"] = began_at
            values["ended_at"] = None if duration is None else began_at + duration
        return await self.queue.finalise(
            [Settled(m.id, m.fence, cause, **values) for m in messages]
        )


async def put(
    pool: Pool,
    *addresses: str,
    sender: str = "sender@example.org",
    owner: UUID = ADMINISTRATOR_ID,
    priority: str = "normal",
    send_at: datetime | None = None,
    not_after: datetime | None = None,
    hold_unknown: bool = False,
    key: str | None = None,
    key_hash: bytes | None = None,
) -> list[Queued]:
    """Queue one short message to each address."""
    message = Message(
        Address(sender),
        [Address(address) for address in addresses],
        "Subject",
        text="text",
        owner=owner,
        priority=priority,
        send_at=send_at,
        not_after=not_after,
        hold_unknown=hold_unknown,
    )
    return (await enqueue(pool, [message], key=key, key_hash=key_hash)).messages


async def status(pool: Pool, message_id: UUID) -> str:
    """The status that relay.outbound_messages shows."""
    return str(
        await pool.fetch_value(
            "SELECT status FROM relay.outbound_messages WHERE id = %s", (message_id,)
        )
    )


async def lose(pool: Pool, *ids: UUID, seconds: float = 60.0) -> None:
    """Make leases run out, as if so much time had passed."""
    await pool.execute(
        """
        UPDATE relay.outbound_due
        SET run_at = CASE WHEN held_until IS NULL THEN now() - make_interval(secs => %(s)s)
                          ELSE run_at END,
            held_until = CASE WHEN held_until IS NOT NULL
                              THEN now() - make_interval(secs => %(s)s) END
        WHERE id = ANY(%(ids)s)
        """,
        {"s": seconds, "ids": list(ids)},
    )
