"""`/api/v1/keys`: who else may call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, StringConstraints, field_validator
from quart import Response

from relay.http.entries import BY_ID, listed, removed
from relay.http.mailboxes import Text
from relay.http.operations import Access, Answer, Call, Form, Operation, json_response
from relay.mailboxes.keys import ApiKey

if TYPE_CHECKING:
    from relay.http.app import Api


class NewKey(Form):
    """What a new key is to be."""

    owner: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    scopes: Annotated[
        tuple[str, ...], Field(min_length=1, max_length=3, description="of read, send, admin")
    ] = ("read",)
    plan: Annotated[Text, StringConstraints(max_length=64)] = "free"

    @field_validator("scopes", mode="before")
    @classmethod
    def _scopes(cls, value: Any) -> Any:
        # "read,send" is how the command line and people write it.
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class KeyEntry(BaseModel):
    """A key without its token."""

    id: str
    owner: str
    scopes: list[str]
    plan: str
    created_at: str
    revoked_at: str | None


class CreatedKey(KeyEntry):
    """A key just made; its token is shown this once."""

    token: str


def register(api: Api) -> None:
    """Declare the calls."""
    keys = api.deps.keys

    @api.add(
        "POST",
        "/api/v1/keys",
        Operation(
            "Make an API key",
            "keys",
            Access.SCOPE,
            (Answer(201, "the key, and its token this once", CreatedKey),),
            scope="admin",
            body=NewKey,
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewKey = call.body
        key, token = await api.committed(
            lambda: keys.create(wanted.owner, wanted.scopes, wanted.plan)
        )
        return json_response({**key.as_json(), "token": token}, 201)

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
        summary="List the API keys, newest first",
        tag="keys",
        scope="admin",
        column=BY_ID,
    )
    removed(
        api,
        "/api/v1/keys",
        revoke,
        summary="Revoke an API key",
        gone="it opens nothing from now on; streams that it opened end within half a minute",
        missing="there is no such key, or it was revoked before",
        case="key-not-found",
        tag="keys",
        scope="admin",
        column=BY_ID,
    )
