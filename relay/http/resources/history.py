"""`/api/v1/history`: what moved in the last hours, minute by minute, over all relays."""

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


class HistoryQuery(Query):
    """How much is asked for."""

    hours: Annotated[int, Field(ge=1, le=24, description="how far back")] = 24


class HistoryMinute(View):
    """The minute that begins `at`, and what waited at its end; `oldest_due_seconds` null: nothing.

    `waiting` are the messages that were queued.
    """

    at: Instant
    received: int
    sent: int
    failed: int
    bounced: int
    waiting: int
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
            scope="admin",
            query=HistoryQuery,
            details="A minute in which no relay ran is not there, and that which is not over yet "
            "may be. Counts are those of all relays on the database.",
        ),
    )
    async def minutes(call: Call) -> Response:
        wanted: HistoryQuery = call.query
        return json_response([one.as_json() for one in await history.last(wanted.hours)])
