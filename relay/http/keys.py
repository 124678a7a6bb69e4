"""`/api/v1/keys`: who else may call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, StringConstraints, field_validator
from quart import Response

from relay.http.mailboxes import NEXT, PageQuery, Text, next_link
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

    @api.add(
        "GET",
        "/api/v1/keys",
        Operation(
            "List the API keys, newest first",
            "keys",
            Access.SCOPE,
            (Answer(200, "a page of them", list[KeyEntry], headers=NEXT),),
            scope="admin",
            query=PageQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        after = None if call.query.cursor is None else _uuid(call.query.cursor)
        if call.query.cursor is not None and after is None:
            raise Problem(422, "invalid", "cursor: it is not one of ours.", title="Invalid values")
        # Keys are few, and the store gives all of them by descending id.
        found = [key for key in await keys.list() if after is None or key.id < after]
        page = found[: call.query.rows]
        cursor = str(page[-1].id) if len(found) > len(page) else None
        return json_response([key.as_json() for key in page], headers=next_link(cursor))

    @api.add(
        "DELETE",
        "/api/v1/keys/<key_id>",
        Operation(
            "Revoke an API key",
            "keys",
            Access.SCOPE,
            (Answer(204, "it opens nothing from now on"), Answer(404, "there is no such key")),
            scope="admin",
        ),
    )
    async def revoke(call: Call, key_id: str) -> Response:
        wanted = _uuid(key_id)
        if wanted is None or not await api.committed(lambda: keys.revoke(wanted)):
            raise Problem(404, "key-not-found", "There is no such key, or it was revoked before.")
        return no_content()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
