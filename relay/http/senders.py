"""`/api/v1/senders`: whose mail goes through which upstream."""

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
from relay.mailboxes.store import rfc3339
from relay.outbound.message import MalformedMessage
from relay.outbound.senders import Sender

if TYPE_CHECKING:
    from relay.http.app import Api


class NewSender(Form):
    """An address, and the server that takes its mail."""

    address: Annotated[str, Field(max_length=1000)]
    upstream: Annotated[
        str,
        Field(
            max_length=2048,
            repr=False,
            description="`loop:`, or smtp+starttls:// or smtps://user:password@host:port (user and "
            "password percent-encoded); smtp:// to loopback only",
        ),
    ]


class SenderEntry(BaseModel):
    """A sender without its password."""

    address: str
    upstream: str
    username: str | None
    created_at: str


def register(api: Api) -> None:
    """Declare the calls."""
    senders = api.deps.senders

    @api.add(
        "POST",
        "/api/v1/senders",
        Operation(
            "Make or replace a sender",
            "outbound",
            Access.SCOPE,
            (
                Answer(201, "mail from this address takes this way from now on", SenderEntry),
                Answer(200, "it was there, and takes this way from now on", SenderEntry),
            ),
            scope="send",
            body=NewSender,
            details="A sender serves the mail of whoever made it. The relay connects to the "
            "upstream from where it runs. The password is stored encrypted and never shown.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewSender = call.body
        sender, made = await api.committed(
            lambda: senders.put(call.caller.owner_id, wanted.address, wanted.upstream)
        )
        return json_response(_shown(sender), 201 if made else 200)

    @api.add(
        "GET",
        "/api/v1/senders",
        Operation(
            "List the caller's senders, by address",
            "outbound",
            Access.SCOPE,
            (Answer(200, "a page of them", list[SenderEntry], headers=NEXT),),
            scope="send",
            query=PageQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        rows = call.query.rows
        found = await senders.list(
            call.caller.owner_id, limit=rows + 1, after=storable(call.query.cursor)
        )
        cursor = found[rows - 1].address if len(found) > rows else None
        return json_response([_shown(item) for item in found[:rows]], headers=next_link(cursor))

    @api.add(
        "DELETE",
        "/api/v1/senders/<entry>",
        Operation(
            "Remove a sender",
            "outbound",
            Access.SCOPE,
            (
                Answer(204, "mail from this address takes the relay's own upstream from now on"),
                Answer(404, "the caller has no such sender"),
            ),
            scope="send",
        ),
    )
    async def delete(call: Call, entry: str) -> Response:
        try:
            removed = await api.committed(lambda: senders.remove(call.caller.owner_id, entry))
        except MalformedMessage:
            removed = False
        if not removed:
            raise Problem(404, "sender-not-found", "You have no sender with this address.")
        return no_content()


def storable(cursor: str | None) -> str:
    """Return a cursor that is an address as a text that PostgreSQL takes; it is compared only."""
    return (cursor or "").replace("\x00", "").encode("utf-8", "replace").decode()


def _shown(sender: Sender) -> dict[str, Any]:
    return {
        "address": sender.address,
        "upstream": sender.upstream,
        "username": sender.username,
        "created_at": rfc3339(sender.created_at),
    }
