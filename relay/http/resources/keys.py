"""`/api/v1/keys`: API keys, made, listed, renewed and revoked.

A key outlives the page session that makes or renews it, so the page must show a token again before
it does: whoever takes a session over cannot keep what it opens.

Promises: a key's token is in the answer that makes it and nowhere else; a revoked key opens nothing
more, and what it has open ends within half a minute.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, StringConstraints, field_validator
from quart import Response

from relay.access.bearers import MAX_TOKEN
from relay.access.keys import ApiKey
from relay.http.gate.auth import identify
from relay.http.lists.entries import BY_ID, listed, removed
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    Text,
    View,
    json_response,
)
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.ids import parse_uuid

MAX_LIFE = 30 * 86_400.0
"""Seconds that a key which has an end may be given at once."""


class NewKey(Form):
    """What a new key is to be."""

    owner: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    scopes: Annotated[
        tuple[str, ...],
        Field(min_length=1, max_length=4, description="of read, send, accounts, admin"),
    ] = ("read",)
    plan: Annotated[Text, StringConstraints(max_length=64)] = "free"
    confirm: Annotated[
        Annotated[str, StringConstraints(max_length=MAX_TOKEN)] | None,
        Field(description="from a page session: the administrator's token, or a key's with admin"),
    ] = None
    senders: Annotated[
        tuple[Annotated[Text, StringConstraints(max_length=320)], ...] | None,
        Field(
            alias="from",
            min_length=1,
            max_length=50,
            description="what it may send from: addresses, @domain, or own for the addresses of "
            "its own live mailboxes; any address when left out",
        ),
    ] = None
    kind: Annotated[
        Literal["api", "mcp"], Field(description="the owner type of the mailboxes that it makes")
    ] = "api"
    expires_in: Annotated[
        float | None,
        Field(
            ge=1,
            le=MAX_LIFE,
            description="seconds until it ends, unless it is renewed; it is deleted then, and when "
            "it is revoked. It has no end when left out",
        ),
    ] = None

    @field_validator("scopes", mode="before")
    @classmethod
    def _scopes(cls, value: Any) -> Any:
        # "read,send" is how the command line and people write it.
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class Renewal(Form):
    """How long a key that has an end shall live on."""

    expires_in: Annotated[float, Field(ge=1, le=MAX_LIFE, description="seconds from now")]
    confirm: Annotated[
        Annotated[str, StringConstraints(max_length=MAX_TOKEN)] | None,
        Field(description="from a page session: the administrator's token, or a key's with admin"),
    ] = None


class KeyEntry(View):
    """A key without its token.  `last_used_at` is to the minute."""

    id: str
    owner: str
    scopes: list[str]
    plan: str
    created_at: Instant
    revoked_at: Instant | None
    expires_at: Instant | None
    last_used_at: Instant | None
    senders: Annotated[list[str] | None, Field(alias="from")]
    kind: str


class CreatedKey(KeyEntry):
    """A key just made; its token is shown this once."""

    token: str


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps
    keys = deps.keys

    async def confirm(token: str | None) -> None:
        holder = await identify(deps, token or "")
        if holder is None or not holder.allows("admin"):
            raise Problem(
                403,
                "token-needed",
                "That token makes no keys, and renews none."
                if token
                else "This needs the token again: the administrator's, or an admin key's.",
            )

    @api.add(
        "POST",
        "/api/v1/keys",
        Operation(
            "createKey",
            "Make an API key",
            "keys",
            Access.SCOPE,
            (
                Answer(201, "the key, and its token this once", CreatedKey),
                Answer(
                    403,
                    "no scope for it; or a page session without `confirm`",
                    cases=("token-needed",),
                ),
            ),
            scope="admin",
            body=NewKey,
            details="`read` opens the key's mailboxes and makes some, and deletes nothing; `send` "
            "queues mail, and deletes mailboxes and messages; `accounts` is for the accounts; "
            "`admin` includes all.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewKey = call.body
        if call.session is not None:
            await confirm(wanted.confirm)
        key, token = await api.committed(
            lambda: keys.create(
                wanted.owner,
                wanted.scopes,
                wanted.plan,
                kind=wanted.kind,
                senders=wanted.senders,
                expires_in=wanted.expires_in,
            )
        )
        return json_response({**key.as_json(), "token": token}, 201)

    @api.add(
        "POST",
        "/api/v1/keys/<key_id>/renew",
        Operation(
            "renewKey",
            "Renew an API key that has an end",
            "keys",
            Access.SCOPE,
            (
                Answer(200, "it lives on, also if it had just ended", KeyEntry),
                Answer(
                    403,
                    "no scope for it; or a page session without `confirm`",
                    cases=("token-needed",),
                ),
                Answer(404, "there is no such key, or it has no end", cases=("key-not-found",)),
            ),
            scope="admin",
            body=Renewal,
        ),
    )
    async def renew(call: Call, key_id: str) -> Response:
        wanted: Renewal = call.body
        if call.session is not None:
            await confirm(wanted.confirm)
        which = parse_uuid(key_id)
        key = None
        if which is not None:
            key = await api.committed(lambda: keys.renew(which, wanted.expires_in))
        if key is None:
            raise Problem(404, "key-not-found", "There is no such key, or it has no end.")
        return json_response(key.as_json())

    # Whose keys they are does not matter: they are the administrator's to see and revoke.
    async def find(_: UUID, limit: int, after: UUID | None) -> list[ApiKey]:
        # Keys are few, and the store gives all of them by descending id.
        return [key for key in await keys.list() if after is None or key.id < after][:limit]

    async def revoke(_: UUID, key_id: UUID) -> bool:
        return await keys.revoke(key_id)

    listed(
        api,
        "/api/v1/keys",
        KeyEntry,
        find,
        lambda key, _: key.as_json(),
        name="listKeys",
        summary="List the API keys, newest first",
        tag="keys",
        scope="admin",
        column=BY_ID,
    )
    removed(
        api,
        "/api/v1/keys",
        revoke,
        name="revokeKey",
        summary="Revoke an API key",
        gone="it opens nothing from now on; streams that it opened end within half a minute",
        missing="there is no such key, or it was revoked before",
        case="key-not-found",
        tag="keys",
        scope="admin",
        column=BY_ID,
    )
