"""`/api/v1/suppressions`: addresses that get no mail.

Each caller has a list of their own.  The administrator, and a key with the scope admin, read and
lift those of others by `owner`: a key's by its id, everybody's, or that of the relay's own reports
of TLS, whose bounces and complaints fill it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.access.owners import ADMINISTRATOR_ID, REPORTS_ID
from relay.db.text import storable
from relay.http.lists.entries import Column, listed, of_caller, removed
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
from relay.http.problems.details import Problem, missing_scope
from relay.http.routing import Api
from relay.outbound.suppression.suppressions import MAX_REASON, Suppression
from relay.times import rfc3339


class NewSuppression(Form):
    """An address that is to get no mail, and why."""

    address: Annotated[str, Field(max_length=1000)]
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


_BY_PLACE = Column("place", storable, str)
_OF_REPORTS = "reports: of the relay's own reports of TLS"
_ELSE = "the caller's own if left out; another's for the scope admin alone"


class SuppressionsQuery(PageQuery):
    """The part of a list that is asked for, and whose."""

    owner: Annotated[
        UUID | Literal["all", "reports"] | None,
        Field(description=f"the id of a key; all: everybody's; {_OF_REPORTS}; {_ELSE}"),
    ] = None


class SuppressionQuery(Query):
    """Whose entry it is."""

    owner: Annotated[
        UUID | Literal["reports"] | None,
        Field(
            description=f"the id of a key, of zeros for the administrator; {_OF_REPORTS}; {_ELSE}"
        ),
    ] = None


def _owner(call: Call) -> UUID | None:
    """Whose entries are meant; None: everybody's."""
    wanted = call.query.owner
    if wanted is None:
        return of_caller(call)
    if not call.caller.allows("admin"):
        raise missing_scope("admin")
    if wanted == "all":
        return None
    return REPORTS_ID if wanted == "reports" else UUID(str(wanted))


class SuppressionEntry(View):
    """An address that gets no mail."""

    address: str
    reason: str
    cause: Literal["manual", "bounced", "complained", "unsubscribed"]
    created_at: Instant
    owner: Annotated[
        str,
        Field(
            description="the key whose mail it does not get, by its id; of zeros: the "
            "administrator, and it gets nobody's"
        ),
    ]
    owner_name: Annotated[str | None, Field(description="what that key is called")]


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
        return json_response(_shown(entry), 201 if made else 200)

    async def everybodys(owner: UUID, address: str) -> Problem | None:
        if owner == ADMINISTRATOR_ID or not await suppressions.holds(ADMINISTRATOR_ID, address):
            return None
        return Problem(
            404,
            "suppression-not-found",
            "The administrator has suppressed this address, for everybody's mail.",
        )

    listed(
        api,
        "/api/v1/suppressions",
        SuppressionEntry,
        suppressions.list,
        lambda entry, _: _shown(entry),
        name="listSuppressions",
        summary="List the caller's suppressions, by address, or others'",
        column=_BY_PLACE,
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
        instead=everybodys,
    )


def _shown(entry: Suppression) -> dict[str, Any]:
    return {
        "address": entry.address,
        "reason": entry.reason,
        "cause": entry.cause,
        "created_at": rfc3339(entry.created_at),
        "owner": str(entry.owner),
        "owner_name": entry.owner_name,
    }
