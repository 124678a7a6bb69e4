"""`/api/v1/history`: what moved in the last hours, minute by minute.

The administrator sees what all relays on the database have recorded (`relay/history.py`), which
knows no owners.  The holder of a key sees what became of their own mail, as the queue has it still.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from quart import Response

from relay.http.operations import (
    Access,
    Answer,
    Call,
    Instant,
    Operation,
    Query,
    View,
    json_response,
)
from relay.http.routing import Api
from relay.times import rfc3339


class HistoryQuery(Query):
    """How much is asked for."""

    hours: Annotated[int, Field(ge=1, le=24, description="how far back")] = 24


class HistoryMinute(View):
    """The minute that begins `at`, and what waited at its end; `oldest_due_seconds` null: nothing.

    `waiting` are the messages that were queued.  To the holder of a key, `received` and `waiting`
    are null: nobody counts them by owner.
    """

    at: Instant
    received: int | None
    sent: int
    failed: int
    bounced: int
    waiting: int | None
    oldest_due_seconds: float | None


def register(api: Api) -> None:
    """Declare the call."""
    history = api.deps.history

    @api.add(
        "GET",
        "/api/v1/history",
        Operation(
            "listHistory",
            "See what moved in the last hours",
            "operations",
            Access.SCOPE,
            (Answer(200, "the minutes, the oldest first", list[HistoryMinute]),),
            scope="send",
            query=HistoryQuery,
            details="The administrator sees the counts of all relays on the database: a minute in "
            "which none ran is not there, and that which is not over yet may be. The holder of a "
            "key sees what became of their own mail: of the newest 10,000 messages that were "
            "queued in these hours, in every minute since the first of them.",
        ),
    )
    async def minutes(call: Call) -> Response:
        wanted: HistoryQuery = call.query
        if call.caller.key is None:
            return json_response([one.as_json() for one in await history.last(wanted.hours)])
        own = await api.deps.queue_admin.minutes(call.caller.owner_id, wanted.hours)
        return json_response(
            [
                {
                    "at": rfc3339(at), "received": None, "sent": sent, "failed": failed,
                    "bounced": bounced, "waiting": None, "oldest_due_seconds": None,
                }
                for at, sent, failed, bounced in own
            ]
        )  # fmt: skip
