"""`/api/v1/suppressions`: addresses that get no mail."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.http.entries import listed, removed
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    View,
    json_response,
)
from relay.http.routing import Api
from relay.outbound.suppressions import MAX_REASON, Suppression
from relay.times import rfc3339


class NewSuppression(Form):
    """An address that is to get no mail, and why."""

    address: Annotated[str, Field(max_length=1000)]
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


class SuppressionEntry(View):
    """An address that gets no mail."""

    address: str
    reason: str
    cause: Literal["manual", "bounced", "complained", "unsubscribed"]
    created_at: Instant


def register(api: Api) -> None:
    """Declare the calls."""
    suppressions = api.deps.suppressions

    @api.add(
        "POST",
        "/api/v1/suppressions",
        Operation(
            "suppressAddress",
            "Suppress an address",
            "sending",
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
        return json_response(_shown(entry, call.caller.owner_id), 201 if made else 200)

    listed(
        api,
        "/api/v1/suppressions",
        SuppressionEntry,
        suppressions.list,
        _shown,
        name="listSuppressions",
        summary="List the caller's suppressions, by address",
    )
    removed(
        api,
        "/api/v1/suppressions",
        suppressions.remove,
        name="deleteSuppression",
        summary="Let an address have mail again",
        gone="it may be sent to from now on",
        missing="you have no such suppression",
        case="suppression-not-found",
    )


def _shown(entry: Suppression, owner: UUID) -> dict[str, Any]:
    return {
        "address": entry.address,
        "reason": entry.reason,
        "cause": entry.cause,
        "created_at": rfc3339(entry.created_at),
    }
