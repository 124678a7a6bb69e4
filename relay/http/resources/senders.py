"""`/api/v1/senders`: whose mail goes through which upstream."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.http.lists.entries import listed, removed
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
from relay.outbound.routing.senders import Sender
from relay.times import rfc3339


class NewSender(Form):
    """An address, and the server that takes its mail."""

    address: Annotated[str, Field(max_length=1000)]
    upstream: Annotated[
        str,
        Field(
            max_length=2048,
            repr=False,
            description="`loop:`, `mx:` (directly to the servers of each domain), or "
            "smtp+starttls:// or smtps://user:password@host:port (user and password "
            "percent-encoded); smtp:// to loopback only",
        ),
    ]


class SenderEntry(View):
    """A sender without its password."""

    address: str
    upstream: str
    username: str | None
    created_at: Instant


def register(api: Api) -> None:
    """Declare the calls."""
    senders = api.deps.senders

    @api.add(
        "POST",
        "/api/v1/senders",
        Operation(
            "setSender",
            "Make or replace a sender",
            "sending",
            Access.SCOPE,
            (
                Answer(201, "mail from this address takes this way from now on", SenderEntry),
                Answer(200, "it was there, and takes this way from now on", SenderEntry),
            ),
            scope="send",
            body=NewSender,
            details="A sender serves the mail of whoever made it. The relay connects to the "
            "upstream from where it runs, so a caller without the scope admin must name a server "
            "of the public internet (unless outbound.private_upstreams allows others). The "
            "password is stored encrypted and never shown.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewSender = call.body
        sender, made = await api.committed(
            lambda: senders.put(
                call.caller.owner_id,
                wanted.address,
                wanted.upstream,
                private=call.caller.allows("admin"),
            )
        )
        return json_response(_shown(sender, call.caller.owner_id), 201 if made else 200)

    listed(
        api,
        "/api/v1/senders",
        SenderEntry,
        senders.list,
        _shown,
        name="listSenders",
        summary="List the caller's senders, by address",
    )
    removed(
        api,
        "/api/v1/senders",
        senders.remove,
        name="deleteSender",
        summary="Remove a sender",
        gone="mail from this address takes the relay's own upstream from now on",
        missing="you have no sender with this address",
        case="sender-not-found",
    )


def _shown(sender: Sender, owner: UUID) -> dict[str, Any]:
    return {
        "address": sender.address,
        "upstream": sender.upstream,
        "username": sender.username,
        "created_at": rfc3339(sender.created_at),
    }
