"""`/api/v1/session` and `…/{address}/session`: a token for a cookie, for the operator's page.

What the cookies are and what they may do is in `cookies.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, StringConstraints
from quart import Response, request

from relay.crypto import hash_token
from relay.http.auth import MAX_TOKEN, Caller, identify
from relay.http.cookies import MAILBOX, SESSION, SESSION_AGE, issue, put
from relay.http.mailboxes import NOT_FOUND
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Operation,
    component,
    json_response,
    no_content,
)
from relay.http.problems import unauthenticated

if TYPE_CHECKING:
    from relay.http.app import Api


class Credentials(Form):
    """What the page sends once."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TOKEN)]


class Session(BaseModel):
    """Who is signed in: nobody without scopes; the administrator has no owner."""

    owner: str | None
    scopes: list[str]
    plan: str | None


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps

    @api.add(
        "POST",
        "/api/v1/session",
        Operation(
            "Sign in: a token for a cookie",
            "pages",
            Access.OPEN,
            (Answer(200, "who is signed in", Session), Answer(401, "the token opens nothing")),
            body=Credentials,
            details="The cookie counts for this relay's own pages alone.",
        ),
    )
    async def sign_in(call: Call) -> Response:
        caller = await identify(deps, call.body.token)
        if caller is None:
            raise unauthenticated("The token is unknown or revoked.")
        response = json_response(_shown(caller))
        value = issue(deps.keyring.signing, hash_token(call.body.token), time.time() + SESSION_AGE)
        put(response, SESSION, value, path="/", max_age=SESSION_AGE, secure=_tls())
        return response

    @api.add(
        "GET",
        "/api/v1/session",
        Operation(
            "Tell who is signed in",
            "pages",
            Access.OPTIONAL,
            (Answer(200, "who", Session),),
        ),
    )
    async def show(call: Call) -> Response:
        if call.caller is None:
            return json_response({"owner": None, "scopes": [], "plan": None})
        return json_response(_shown(call.caller))

    @api.add(
        "DELETE",
        "/api/v1/session",
        Operation("Sign out", "pages", Access.OPEN, (Answer(204, "the cookie is gone"),)),
    )
    async def sign_out(call: Call) -> Response:
        response = no_content()
        put(response, SESSION, "", path="/", max_age=0, secure=_tls())
        return response

    @api.add(
        "POST",
        "/api/v1/mailboxes/<address>/session",
        Operation(
            "Open a mailbox to this browser: its session token for a cookie",
            "pages",
            Access.MAILBOX,
            (Answer(204, "the cookie goes to this mailbox's calls alone"), NOT_FOUND),
            scope="read",
        ),
    )
    async def open_mailbox(call: Call) -> Response:
        token = request.headers.get("X-Session-Token")
        if token is None:
            return no_content()  # the owner's key opened it: signing in is what they need
        lasts = max(1.0, call.mailbox.expires_in)
        value = issue(deps.keyring.signing, hash_token(token), time.time() + lasts)
        response = no_content()
        path = f"/api/v1/mailboxes/{component(call.mailbox.address)}"
        put(response, MAILBOX, value, path=path, max_age=lasts, secure=_tls())
        return response

    def _tls() -> bool:
        public = urlsplit(deps.public_url)
        return request.scheme == "https" or (
            public.scheme == "https" and request.host.partition(":")[0] == public.hostname
        )


def _shown(caller: Caller) -> dict[str, Any]:
    if caller.key is None:
        return {"owner": None, "scopes": ["read", "send", "admin"], "plan": caller.plan}
    return {
        "owner": caller.key.owner, "scopes": list(caller.key.scopes), "plan": caller.key.plan,
    }  # fmt: skip
