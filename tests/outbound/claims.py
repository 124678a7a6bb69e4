"""Claimed messages without a database, for what is pure."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from relay.access.owners import ADMINISTRATOR_ID
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.lanes import lane_of

AT = datetime(2026, 11, 20, 20, 0, 0, 123456, tzinfo=UTC)
ID = UUID(int=7)


def claimed(**values: Any) -> Claimed:
    """A claimed message to b@y.example, of its own lane; what is not given is empty."""
    row: dict[str, Any] = dict.fromkeys(Claimed._fields)
    row |= {"id": ID, "fence": 1, "priority": 1, "attempt": 1, "turn": 1, "lost": False}
    row |= {"created_at": AT, "due_at": AT, "first_due_at": AT}
    row |= {"sender": "a@x.example", "recipient": "b@y.example", "subject": "s"}
    row |= {"hold_unknown": False, "owner": ADMINISTRATOR_ID, "domain": "y.example"}
    row |= {"has_body": True}
    row |= values
    lane = lane_of(row["owner"], row["domain"], row["sender_id"])
    return Claimed(**{**row, "lane": values.get("lane", lane)})


def another(**values: Any) -> Claimed:
    """One with an id of its own."""
    return claimed(id=uuid4(), **values)
