"""`/api/v1/suppressions`: addresses that get no mail.

Each caller has a list of their own.  That of the relay's own reports of TLS, whose bounces and
complaints fill it, nobody is the holder of: the administrator reads it and removes from it by
`owner=reports`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.access.owners import REPORTS_ID
from relay.http.lists.entries import listed, of_caller, removed
from relay.http.lists.paging import PageQuery
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    Query,
    View,
    json_response,
)
from relay.http.problems.details import missing_scope
from relay.http.routing import Api
from relay.outbound.suppression.suppressions import MAX_REASON, Suppression
from relay.times import rfc3339


class NewSuppression(Form):
    """An address that is to get no mail, and why."""

    address: Annotated[str, Field(max_length=1000)]
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


Whose = Annotated[
    Literal["reports"] | None,
    Field(description="reports: of the relay's own reports of TLS, for the scope admin alone"),
]


class SuppressionsQuery(PageQuery):
    """The part of a list that is asked for, and whose."""

    owner: Whose = None


class SuppressionQuery(Query):
    """Whose entry it is."""

    owner: Whose = None


def _owner(call: Call) -> UUID:
    if call.query.owner is None:
        return of_caller(call)
    if not call.caller.allows("admin"):
        raise missing_scope("admin")
    return REPORTS_ID


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
        query=SuppressionsQuery,
        meant=_owner,
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
        query=SuppressionQuery,
        meant=_owner,
    )


def _shown(entry: Suppression, owner: UUID) -> dict[str, Any]:
    return {
        "address": entry.address,
        "reason": entry.reason,
        "cause": entry.cause,
        "created_at": rfc3339(entry.created_at),
    }
