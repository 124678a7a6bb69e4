"""The declaration of a call: who may make it, what it takes, what it answers.

An `Operation` stands beside its handler.  The same declaration authenticates, authorises,
validates, limits the body, and is read by `openapi.py`, so the description cannot drift from
the behaviour, and a route without a declaration does not exist.

The order of a call is fixed: Host and Origin, the route and the rate (all `app.py`), the credential
and its permission, the names of parameters, free disk space, the body, its values, the handler.  So
a stranger learns nothing from a validation error.

Promises: a handler is called with names that are known and given once, and with values that its
models have checked; a body was read no further than its limit.

Fails with a `Problem`: 400 and 415 for what is no JSON, 413 for too much of it, 422 with a sentence
for each fault.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from quart import Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from relay.db.listen import Bell
from relay.http.credentials.cookies import TICKET
from relay.http.credentials.page_sessions import PageSession
from relay.http.problems.details import (
    Problem,
    from_status,
    invalid,
    repeated_parameter,
    unknown_parameter,
)
from relay.mailboxes.visibility import Reach

JSON_BODY = 64 * 1024
"""Bytes that a JSON body may have unless its operation says otherwise."""


MAX_BODY = 512 * 1024
"""Bytes that a body may have before its call is known; SNS posts at most 256 KiB, in JSON."""


class Access(enum.Enum):
    """Who may make a call."""

    OPEN = "anyone"
    OPTIONAL = "anyone, or a key"  # a credential is not needed, but a wrong one is refused
    MAILBOX = "the mailbox's session token, or its owner's key"
    OWN = "a mailbox's session token, or a key with the scope, for all that is theirs"
    SCOPE = "a key with the scope, or the administrator"


# No control characters: PostgreSQL's text has no NUL, and nothing here needs the others.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]


Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time of an answer, as RFC 3339 has it (`relay.times.rfc3339`); described, never checked."""


class Form(BaseModel):
    """Values from outside that are named in full: an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Query(BaseModel):
    """Values of a query string; a name that none has is refused before (`check_names`)."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, values: Any) -> Any:
        """Take no `1_0`, which is 10 to Python alone."""
        for name, one in cls.model_fields.items():
            given = values.get(one.alias or name)
            if one.annotation in {int, float} and isinstance(given, str) and "_" in given:
                values = {**values, one.alias or name: ""}
        return values


class View(BaseModel):
    """What an answer shows.  Most are described and never checked: built when first asked for."""

    model_config = ConfigDict(defer_build=True)


class Changed(View):
    """What a call on many things did."""

    count: Annotated[int, Field(description="messages that were changed")]


@dataclass(frozen=True)
class Answer:
    """One answer of a call: its status, what it means, and the form of its body."""

    status: int
    meaning: str
    model: Any = None  # a pydantic model or a typing form of models; None: no JSON body
    media_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # name to meaning
    cases: tuple[str, ...] = ()  # the problems of this status that are this call's own


MAILBOX_NOT_FOUND = Answer(
    404,
    "no such mailbox, or it is over, or it is not the caller's",
    cases=("mailbox-not-found",),
)
"""The answer of every call on a mailbox, as its declaration names it."""


@dataclass(frozen=True)
class Operation:
    """The declaration of one call.

    `name` is what generated clients call it, in camelCase; no two calls have one.
    """

    name: str
    summary: str
    tag: str
    access: Access
    answers: tuple[Answer, ...]
    scope: str | None = None  # with SCOPE: what is needed; with MAILBOX: of an owner's key
    query: type[Query] | None = None
    body: type[BaseModel] | None = None
    body_or_query: type[BaseModel] | None = None  # the same values from either, JSON first
    raw_body: str | None = None  # the media type of a body that the handler reads itself
    raw_form: type[BaseModel] | None = None  # its form, where it is JSON; described, never checked
    max_body: int = JSON_BODY
    stream: bool = False  # answers for as long as both sides like
    websocket: bool = False
    token_in_query: bool = False  # ?token= is a credential: browsers' streams have no headers
    any_host: bool = False  # whether probes that know no name of ours may ask, by any Host
    any_origin: bool = False  # whether others' pages may post it: its URL is all that it takes
    ticket: float = 0.0  # s that a ticket of the page opens it, in the URL; 0: none does
    limited: bool = True  # whether callers without a key are charged by their address
    purges: bool = False  # with MAILBOX and ?purge=true: also one that was deleted before
    sees_end: bool = False  # with MAILBOX: it looks itself whether the mailbox lives, and says 404
    stores: bool = False  # it adds data: refused while the disk is nearly full
    compat: bool = False  # as another program answers: Basic counts, refusals are text, undescribed
    details: str = ""


Refusal = Callable[[], Awaitable[Problem | None]]
"""What a call would be refused with by now, or None; cheap to ask often (`auth.Admission`)."""


class StillAdmitted(Protocol):
    """Tells whether a call that was let in would still be (`auth.Admission`)."""

    async def refusal(self) -> Problem | None: ...
    def watched(self, bell: Bell) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Call:
    """What a handler is given, checked: `caller`, `mailbox` as its operation's access says.

    `began_at`: an instant on Trio's clock, before anything was looked up for the call.  `session`
    is the page session that authorised the call, if one did.  A handler that answers for
    long asks for the `refusal` from time to time, and at once when the bell rings by which
    its admission is `watched`, and ends with it.  `believed`: the mailbox is as this relay knew it;
    a handler that finds it over at its first look raises `Overtaken`.
    """

    caller: Any
    mailbox: Any
    query: Any
    body: Any
    session: PageSession | None
    admission: StillAdmitted
    began_at: float
    believed: bool = False

    @property
    def refusal(self) -> Refusal:
        """What this call would be refused with by now."""
        return self.admission.refusal

    @property
    def reach(self) -> Reach:
        """The mailboxes that it is about: the one that it names, or all that its caller may see."""
        if self.mailbox is not None:
            return Reach(mailbox_id=self.mailbox.id)
        return Reach(owner_id=None if self.caller.key is None else self.caller.key.id)


class Overtaken(Exception):
    """What a call was let in for is no more: it is to be let in anew, by the table (`believed`)."""


Handler = Callable[..., Awaitable[Any]]
Model = TypeVar("Model", bound=BaseModel)


def parameters(operation: Operation) -> frozenset[str]:
    """Return the names that a query string may hold here: those that the description shows."""
    models = (operation.query, operation.body_or_query)
    names = {
        field.alias or name
        for model in models
        if model is not None
        for name, field in model.model_fields.items()
    }
    if operation.token_in_query:
        names.add("token")
    if operation.ticket:
        names.add(TICKET)
    return frozenset(names)


def check_names(known: frozenset[str], given: Iterable[str]) -> None:
    """Raise the 422 that names each parameter which is not `known`, or is given twice.

    Of two values one would be dropped, and nobody agrees on which.  A misspelt condition that was
    let pass would be no condition: the call would answer with anything, and whoever asked would
    believe it.
    """
    times = Counter(given)
    unknown = [name for name in times if name not in known]
    if unknown:
        raise unknown_parameter(unknown, known)
    repeated = [name for name, count in times.items() if count > 1]
    if repeated:
        raise repeated_parameter(repeated, "The query parameter {} is given more than once.")


async def read_values(operation: Operation, arguments: Mapping[str, str]) -> tuple[Any, Any]:
    """Return the checked query and body of the current call; a `Problem` when it is wrong."""
    given = dict(arguments.items())
    query = None
    if operation.query is not None:
        query = check(operation.query, given, "query")
    if operation.body is not None:
        return query, check(operation.body, await _json(operation, required=True), "body")
    if operation.body_or_query is not None:
        body = await _json(operation, required=False)
        if body and given:
            check(operation.body_or_query, given, "query")  # what the body hides is read, too
        return query, check(operation.body_or_query, given | body, "request")
    return query, None


async def read_body(operation: Operation) -> bytes:
    """Return the body of the current request; 413 over the operation's limit, 408 if it drips."""
    if (request.content_length or 0) > operation.max_body:
        raise RequestEntityTooLarge
    raw = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if len(raw) > operation.max_body:
        raise RequestEntityTooLarge
    return raw


def check(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """Return `values` as `model`; the 422 that names each fault otherwise."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise invalid(error, where, known) from error


async def _json(operation: Operation, *, required: bool) -> dict[str, Any]:
    raw = await read_body(operation)
    if not raw and not required:
        return {}
    if raw and request.mimetype not in {"application/json", ""}:
        raise from_status(415)
    try:
        values = json.loads(raw, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "malformed-json", "The body is not valid JSON.") from error
    if not isinstance(values, dict):
        raise Problem(400, "malformed-json", "The body must be a JSON object.")
    return values


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; the 422 where a name comes twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        times = Counter(name for name, _ in pairs)
        raise repeated_parameter(
            [name for name in times if times[name] > 1], "The member {} is given more than once."
        )
    return members


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return plain values as application/json, in UTF-8, on one line."""
    return Response(
        json_bytes(value),
        status=status,
        headers=dict(headers or {}),
        content_type="application/json",
    )


def json_bytes(value: Any) -> bytes:
    """Return plain values as JSON in UTF-8, on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8",
        "backslashreplace",  # a lone surrogate of some header must not cost the answer
    )


def no_content() -> Response:
    """Return the 204."""
    response = Response(b"", status=204)
    response.headers.pop("Content-Type", None)
    return response
