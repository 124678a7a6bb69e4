"""`/api/v1/session`, `…/{address}/session`, `…/{address}/tickets`: signing in to the page.

The page sends a token, or the code of a sign-in link, and gets a cookie and a page key, which are
explained in `cookies.py`; a ticket stands for the key where a browser can only send a URL.  How
long they live is in `page_sessions.py`.

Promises
  * A secret is shown once.  None stands in a URL but a ticket and, behind the `#`, a link's code.
  * Signing in again in the same browser ends the session that was there.
  * Signing out is done on this relay even where the database does not answer (503).
  * A sign-in link opens one session, whoever asks first; a page session or a key makes none.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from quart import Response, request

from relay.access.bearers import MAX_TOKEN
from relay.access.keys import SCOPES
from relay.chance import time
from relay.crypto import hash_token
from relay.http.credentials import tickets
from relay.http.credentials.callers import Caller
from relay.http.credentials.cookies import (
    MAILBOX,
    PAGE_KEY_HEADER,
    SESSION,
    SESSION_PATH,
    TICKET,
    put,
    shown,
)
from relay.http.credentials.page_sessions import Holder, Opened
from relay.http.gate.auth import identify
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    View,
    json_response,
    no_content,
)
from relay.http.paths import component, spelt
from relay.http.problems.details import Problem, unauthenticated
from relay.http.routing import Api
from relay.times import rfc3339

_LINK_LASTS = 60.0  # s
_MAILBOXES = "/api/v1/mailboxes/"

Token = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TOKEN)]


class Credentials(Form):
    """What the page sends once: a token, or the code of a sign-in link."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["token"]}, {"required": ["code"]}]}
    )

    token: Annotated[Token, Field(description="the administrator's, or an API key")] = ""
    code: Annotated[Token, Field(description="of a sign-in link")] = ""

    @model_validator(mode="after")
    def _one(self) -> Credentials:
        if bool(self.token) == bool(self.code):
            raise ValueError("either token or code is needed")
        return self


class Session(View):
    """Who is signed in: nobody without scopes; the administrator has no owner."""

    owner: str | None
    scopes: list[str]
    plan: str | None


class SignedIn(Session):
    """Who is signed in now, and the page's key, shown this once."""

    page_key: Annotated[str, Field(description=f"for the header {PAGE_KEY_HEADER}")]
    expires_at: Instant


class OpenedMailbox(View):
    """The page's key to a mailbox; null where the caller's own key opens it."""

    page_key: str | None


class NewLink(Form):
    """How long a sign-in link is to last."""

    lasts: Annotated[float, Field(ge=1, le=900, allow_inf_nan=False, description="seconds")] = (
        _LINK_LASTS
    )


class Link(View):
    """A link that signs a browser in as the administrator, once."""

    code: str
    url: Annotated[str, Field(description="on the host that this call was made to")]
    expires_at: Instant


class Wanted(Form):
    """What a ticket is to open."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=2048)]


class Ticket(View):
    """The path with a ticket."""

    url: str


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps
    sessions = deps.sessions

    @api.add(
        "POST",
        "/api/v1/session",
        Operation(
            "signIn",
            "Sign in: a token, or a link's code, for a cookie and a page key",
            "keys",
            Access.OPEN,
            (
                Answer(200, "who is signed in, and the page's key this once", SignedIn),
                Answer(
                    401,
                    "the token opens nothing, or the code opens nothing any more",
                    cases=("unauthenticated",),
                ),
                Answer(503, "the database does not answer", cases=("unavailable",)),
            ),
            body=Credentials,
            details="For this relay's own pages. A call needs both: the cookie, which goes to "
            f"every port of the host, and the key in the header {PAGE_KEY_HEADER}. They end by "
            "signing out, after twelve hours, with the key's revocation, and the administrator's "
            "with the relay's next start.",
        ),
    )
    async def sign_in(call: Call) -> Response:
        if call.body.code:
            holder = await api.committed(lambda: sessions.redeem(call.body.code))
            if holder is None:
                raise unauthenticated(
                    "The sign-in link was used, or is too old: run `relay open` for another."
                )
            caller = Caller(None)
        else:
            found = await identify(deps, call.body.token)
            if found is None:
                raise unauthenticated("The token is unknown or revoked.")
            caller = found
            holder = sessions.administrator
            if caller.key is not None:
                holder = Holder("key", key_id=caller.key.id)
        before = shown(request, deps.urls, ticket=False).cookies
        opened = await api.committed(lambda: sessions.open(holder, replacing=before))
        response = json_response(
            {**_shown(caller), "page_key": opened.page_key, "expires_at": _from_now(opened.lasts)}
        )
        _put(response, SESSION, opened, SESSION_PATH)
        return response

    @api.add(
        "GET",
        "/api/v1/session",
        Operation(
            "getSession",
            "Tell who is signed in",
            "keys",
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
        Operation(
            "signOut",
            "Sign out",
            "keys",
            Access.OPEN,
            (
                Answer(204, "cookie, page key and tickets open nothing; streams have ended"),
                Answer(
                    503,
                    "the database does not answer; on this relay it is over all the same",
                    cases=("unavailable",),
                ),
            ),
            details="On every relay of the database. Needs the cookie and the page's key.",
        ),
    )
    async def sign_out(call: Call) -> Response:
        given = shown(request, deps.urls, ticket=False)
        await api.committed(lambda: sessions.close(given))
        response = no_content()
        put(response, request, deps.urls, SESSION, "", path=SESSION_PATH, max_age=0)
        return response

    @api.add(
        "POST",
        "/api/v1/session/links",
        Operation(
            "createSignInLink",
            "Make a link that signs a browser in, once",
            "keys",
            Access.SCOPE,
            (
                Answer(201, "its code, which POST /api/v1/session takes once", Link),
                Answer(
                    403,
                    "only the administrator's token makes one; no key, no page session",
                    cases=("administrator-only",),
                ),
            ),
            scope="admin",
            body_or_query=NewLink,
            details="For whoever starts a browser for the operator, such as `relay open`. The "
            "code stands behind the # of the URL, which browsers send to nobody.",
        ),
    )
    async def make_link(call: Call) -> Response:
        if call.session is not None or call.caller.key is not None:
            raise Problem(
                403, "administrator-only", "Only the administrator's token makes sign-in links."
            )
        lasts: float = call.body.lasts
        code = await api.committed(lambda: sessions.new_code(lasts))
        url = f"{request.host_url}#/signin?code={code}"
        made = {"code": code, "url": url, "expires_at": _from_now(lasts)}
        return json_response(made, 201)

    @api.add(
        "POST",
        "/api/v1/mailboxes/<address>/session",
        Operation(
            "openMailbox",
            "Open a mailbox to this browser: its session token for a cookie and a page key",
            "pages",
            Access.MAILBOX,
            (
                Answer(200, "the cookie goes to this mailbox's calls alone", OpenedMailbox),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
        ),
    )
    async def open_mailbox(call: Call) -> Response:
        token = request.headers.get("X-Session-Token")
        if token is None:
            # The owner's key opened it: signing in is what they need.
            return json_response({"page_key": None})
        lasts = max(1.0, call.mailbox.expires_in)
        holder = Holder("mailbox", token_hash=hash_token(token))
        opened = await api.committed(lambda: sessions.open(holder, lasts))
        response = json_response({"page_key": opened.page_key})
        _put(response, MAILBOX, opened, _MAILBOXES + component(call.mailbox.address))
        return response

    @api.add(
        "POST",
        "/api/v1/mailboxes/<address>/tickets",
        Operation(
            "createTicket",
            "Get a link to one thing of a mailbox, for a frame, a download or a stream",
            "pages",
            Access.MAILBOX,
            (
                Answer(201, "the path with its ticket", Ticket),
                Answer(
                    403,
                    "a page session alone gets one, as others can send their credential",
                    cases=("not-from-the-page",),
                ),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
            body=Wanted,
            details="For the page. The ticket stands for the page's key, beside the cookie, on "
            f"that path alone: {tickets.PREVIEW:.0f} seconds for what is shown or downloaded, "
            f"{tickets.STREAM:.0f} to begin a stream, and no longer than the session.",
        ),
    )
    async def make_ticket(call: Call) -> Response:
        session = call.session
        if session is None:
            raise Problem(403, "not-from-the-page", "Tickets are for page sessions.")
        # As the relay will see it: in one spelling, without a query.
        path = spelt(urlsplit(call.body.path).path)
        if not path.startswith(_MAILBOXES) or call.body.path != urlsplit(call.body.path).path:
            raise Problem(422, "invalid", "path: it is no path of a mailbox.")  # fmt: skip
        ticket = tickets.issue(
            deps.keyring.signing, session.id, session.page_key_hash, path, time()
        )
        return json_response({"url": f"{call.body.path}?{TICKET}={ticket}"}, 201)

    def _put(response: Response, name: str, opened: Opened, path: str) -> None:
        put(response, request, deps.urls, name, opened.cookie, path=path, max_age=opened.lasts)


def _from_now(seconds: float) -> str:
    return rfc3339(time() + seconds)


def _shown(caller: Caller) -> dict[str, Any]:
    if caller.key is None:
        return {"owner": None, "scopes": list(SCOPES), "plan": caller.plan}
    return {
        "owner": caller.key.owner, "scopes": list(caller.key.scopes), "plan": caller.key.plan,
    }  # fmt: skip
