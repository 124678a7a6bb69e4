"""`/api/v1/suppressions`: addresses that get no mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field
from quart import Response

from relay.http.mailboxes import NEXT, PageQuery, next_link
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Operation,
    json_response,
    no_content,
)
from relay.http.problems import Problem
from relay.http.senders import storable
from relay.mailboxes.store import rfc3339
from relay.outbound.message import MalformedMessage
from relay.outbound.suppressions import MAX_REASON, Suppression

if TYPE_CHECKING:
    from relay.http.app import Api


class NewSuppression(Form):
    """An address that is to get no mail, and why."""

    address: Annotated[str, Field(max_length=1000)]
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


class SuppressionEntry(BaseModel):
    """An address that gets no mail."""

    address: str
    reason: str
    created_at: str


def register(api: Api) -> None:
    """Declare the calls."""
    suppressions = api.deps.suppressions

    @api.add(
        "POST",
        "/api/v1/suppressions",
        Operation(
            "Suppress an address",
            "outbound",
            Access.SCOPE,
            (
                Answer(201, "it gets no mail from now on", SuppressionEntry),
                Answer(200, "it got none before, and has this reason now", SuppressionEntry),
            ),
            scope="send",
            body=NewSuppression,
            details="The administrator's entries hold for everybody's mail, a key's for its own. "
            "Mail that is queued for the address is cancelled when its turn comes.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewSuppression = call.body
        entry, made = await api.committed(
            lambda: suppressions.add(call.caller.owner_id, wanted.address, wanted.reason)
        )
        return json_response(_shown(entry), 201 if made else 200)

    @api.add(
        "GET",
        "/api/v1/suppressions",
        Operation(
            "List the caller's suppressions, by address",
            "outbound",
            Access.SCOPE,
            (Answer(200, "a page of them", list[SuppressionEntry], headers=NEXT),),
            scope="send",
            query=PageQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        rows = call.query.rows
        found = await suppressions.list(
            call.caller.owner_id, limit=rows + 1, after=storable(call.query.cursor)
        )
        cursor = found[rows - 1].address if len(found) > rows else None
        return json_response([_shown(item) for item in found[:rows]], headers=next_link(cursor))

    @api.add(
        "DELETE",
        "/api/v1/suppressions/<entry>",
        Operation(
            "Let an address have mail again",
            "outbound",
            Access.SCOPE,
            (
                Answer(204, "it may be sent to from now on"),
                Answer(404, "the caller has no such entry"),
            ),
            scope="send",
        ),
    )
    async def delete(call: Call, entry: str) -> Response:
        try:
            removed = await api.committed(lambda: suppressions.remove(call.caller.owner_id, entry))
        except MalformedMessage:
            removed = False
        if not removed:
            raise Problem(404, "suppression-not-found", "You have no such suppression.")
        return no_content()


def _shown(entry: Suppression) -> dict[str, Any]:
    return {
        "address": entry.address,
        "reason": entry.reason,
        "created_at": rfc3339(entry.created_at),
    }
