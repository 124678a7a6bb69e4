"""Errors as RFC 9457 problem details: the one form in which the control plane says no.

Promises: every answer of 400 and above that the application makes is
`application/problem+json` with `type`, `title`, `status` and `detail`; `type` names the
case and stays the same over time, `detail` is one sentence for people.  Nothing internal
(exception texts, SQL, paths) appears in any of them.  `mailbox_not_found` is byte for byte
one answer, whatever the reason: unknown, expired, deleted, foreign, no credential.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from quart import Response

from relay.http.problems.types import MEDIA_TYPE, PREFIX, TYPES
from relay.storage import REASON, RETRY_AFTER

_SAID, _LONG = 8, 64  # how many unknown parameters an answer names, how much of each


class Problem(Exception):
    """A refusal that becomes the answer.

    `case` is the last part of `type`, one of `TYPES`, which has its title.
    """

    def __init__(
        self,
        status: int,
        case: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: list[str] | None = None,
        recipients: list[str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.case = case
        self.detail = detail
        self.title = TYPES[case].title
        self.headers = dict(headers or {})
        self.errors = errors
        self.recipients = recipients

    def response(self) -> Response:
        """Return the answer; equal problems give equal bytes."""
        body: dict[str, object] = {
            "type": PREFIX + self.case,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors is not None:
            body["errors"] = self.errors
        if self.recipients is not None:
            body["recipients"] = self.recipients
        return Response(
            json.dumps(body, ensure_ascii=False).encode(),
            status=self.status,
            headers=self.headers,
            content_type=MEDIA_TYPE,
        )


def unauthenticated(detail: str) -> Problem:
    """Return the 401 of a call that needs a credential and got none, or a wrong one."""
    return Problem(
        401,
        "unauthenticated",
        detail,
        headers={"WWW-Authenticate": 'Bearer realm="relay"'},
    )


def missing_scope(scope: str) -> Problem:
    """Return the 403 of a key that is valid but may not do this."""
    return Problem(
        403,
        "missing-scope",
        f"This call needs a key with the scope {scope!r}.",
        headers={
            "WWW-Authenticate": f'Bearer realm="relay", error="insufficient_scope", scope="{scope}"'
        },
    )


def mailbox_not_found() -> Problem:
    """Return the one 404 of every mailbox that the caller may not see, or that is no more."""
    return Problem(
        404,
        "mailbox-not-found",
        "There is no such mailbox, or it is over, or it is not yours.",
    )


def another_programs(name: str, place: str) -> Problem:
    """Return the 404 of a path of another program's own, whose calls are elsewhere here."""
    return Problem(
        404,
        "not-found",
        f"There is nothing at this address; {name}'s calls are under {place}.",
    )


def another_programs_too(name: str, place: str) -> Problem:
    """Return the 401 of a path that another program has, too, whose calls are elsewhere here."""
    return unauthenticated(
        "This call needs an Authorization header with a bearer token; "
        f"{name}'s calls are under {place}."
    )


def message_not_found() -> Problem:
    """Return the 404 of a message that is not in this mailbox."""
    return Problem(
        404,
        "message-not-found",
        "There is no such message in this mailbox.",
    )


def reserved_name(field: str) -> Problem:
    """Return the 403 of a role name (postmaster, admin …) that only the administrator may use."""
    return Problem(
        403,
        "reserved-name",
        f"{field}: this name is reserved for the administrator.",
    )


def over_quota(detail: str) -> Problem:
    """Return the 429 of a caller who has as much as the plan allows."""
    return Problem(429, "quota", detail, headers={"Retry-After": "60"})


def unavailable(detail: str, *, retry_after: int = 2) -> Problem:
    """Return the 503 of a trouble that passes; `retry_after` is in seconds."""
    return Problem(503, "unavailable", detail, headers={"Retry-After": str(retry_after)})


def no_space(status: int = 503) -> Problem:
    """Return the refusal of what is new while the disk is nearly full: 503, or 507 for a blob."""
    return Problem(
        status,
        "insufficient-storage",
        REASON,
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def invalid(error: ValidationError, where: str, known: Collection[str] = ()) -> Problem:
    """Return the 422 for values that pydantic refused: one sentence for each.

    `known`: the fields that there are, of which the nearest is named for one that there is not.
    """
    sentences: list[str] = []
    for item in error.errors(include_url=False, include_input=False):
        message = _plain(item["type"], item["msg"], item.get("ctx", {}))
        near = known if len(sentences) < _SAID else ()  # looking for the nearest costs time
        sentences.append(_sentence(item["loc"], message, item["type"], near))
    return Problem(
        422,
        "invalid",
        sentences[0] if len(sentences) == 1 else f"The {where} has {len(sentences)} faults.",
        errors=sentences,
    )


def unknown_parameter(names: Sequence[str], known: Collection[str]) -> Problem:
    """Return the 422 for query parameters that the call has not; each with the nearest it has."""
    takes = ", ".join(sorted(known)) or "none"
    sentences = []
    for name in names[:_SAID]:
        shown = name if len(name) <= _LONG else f"{name[:_LONG]}…"
        near = difflib.get_close_matches(name[:_LONG], sorted(known), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"this call takes {takes}."
        sentences.append(f"There is no query parameter {shown!r} here; {hint}")
    return Problem(422, "unknown-parameter", sentences[0], errors=sentences)


def repeated_parameter(names: Sequence[str], sentence: str) -> Problem:
    """Return the 422 for what is given more than once: parameters, or members of a JSON object;
    the sentence has `{}` for its name."""
    sentences = []
    for name in names[:_SAID]:
        shown = name if len(name) <= _LONG else f"{name[:_LONG]}…"
        shown = shown.encode("utf-8", "replace").decode()  # JSON may name half a character
        sentences.append(sentence.format(repr(shown)))
    return Problem(422, "repeated-parameter", sentences[0], errors=sentences)


def _plain(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Return pydantic's message, or ours where it speaks of Python or of patterns, or has a part
    that no language but English can have."""
    if kind in {"tuple_type", "list_type"}:
        return 'it must be a list, such as ["one", "two"]'
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern", ""))
        if pattern.startswith(r"^[^\x00-\x20]"):
            return "it must have no blank and no control character"
        if pattern.startswith(r"^[^\x00-\x1f"):
            return "it must have no control character"
    if kind in {"literal_error", "enum"}:
        return f"it must be one of {context['expected'].replace(' or ', ', ')}"
    if kind.startswith("datetime_"):
        return "an instant is written like 2026-01-31T12:00:00Z"
    if kind == "uuid_parsing":
        return "it must be a UUID"
    if kind in {"string_too_long", "too_long"}:
        return f"its length must be at most {context['max_length']}"
    if kind in {"string_too_short", "too_short"}:
        return f"its length must be at least {context['min_length']}"
    return message


def _sentence(
    location: tuple[int | str, ...], message: str, kind: str, known: Collection[str]
) -> str:
    name = ".".join(str(part) for part in location) or "the value"
    if kind == "extra_forbidden":
        there_are = sorted(known) if len(location) == 1 else []
        near = difflib.get_close_matches(name[:_LONG], there_are, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"{name}: there is no such field{hint}"
    if kind == "missing":
        return f"{name}: it is required."
    return f"{name}: {message.removeprefix('Value error, ').rstrip('.')}."


CASES_BY_STATUS: Mapping[int, tuple[str, str]] = {
    400: ("bad-request", "The request cannot be understood."),
    404: ("not-found", "There is nothing at this address."),
    405: ("method-not-allowed", "This address does not take this method."),
    408: ("request-timeout", "The body did not arrive in time."),
    413: ("too-large", "The body is larger than this call takes."),
    415: ("unsupported-media-type", "The body must be application/json."),
    500: ("internal", "Something went wrong inside the relay; its log says what."),
}
"""What the framework's own refusals are called: status to case and detail."""


def from_status(status: int, *, headers: Mapping[str, str] | None = None) -> Problem:
    """Return the problem of a refusal that came from the framework, not from a call."""
    case, detail = CASES_BY_STATUS.get(status, ("refused", "The request was refused."))
    return Problem(status, case, detail, headers=headers)
