"""Flows of calls (`relay_client._exchange`) and their JSON: what `Relay` and `AsyncRelay` do.

Times are seconds.  A wait is asked for in parts of `_PART` seconds, less than the time after which
a proxy in between ends a connection on which nothing moves.
"""

from __future__ import annotations

import base64
import inspect
import math
import mimetypes
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from enum import Enum
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Union, get_args
from urllib.parse import quote

from relay_client import _answers
from relay_client._bounds import JSON_BYTES, LIST_BYTES, MESSAGE_BYTES, RAW_BYTES
from relay_client._exchange import (
    Answer,
    ApiRequest,
    Flow,
    Pause,
    call,
    call_json,
    decoded,
    no_relay,
)
from relay_client._records import JSON, OutboundEntry, State, parsed_entry, parsed_time
from relay_client._text import NAME, in_a_line, quoted
from relay_client._wanted import Wanted
from relay_client.errors import (
    NotDelivered,
    Refused,
    RelayError,
    UnexpectedMail,
    Unreachable,
    WaitTimeout,
)

__tracebackhide__ = True  # a test that fails shows the test
NewAttachment = Union[str, "os.PathLike[str]", tuple[str, bytes], tuple[str, bytes, str]]
"""A file's path, or a name and the bytes, and perhaps their type."""

Params = Mapping[str, Union[str, float]]

MAILBOXES = "/api/v1/mailboxes"

LIST_TIMEOUT = 60.0
"""Seconds within which a list is read, with all of its pages, unless it is said."""

TIMEOUT = 10.0
"""Seconds for which mail is waited for, unless it is said."""


class OwnTimeout(Enum):
    """That a timeout is not said, and the inbox's is meant; None would be no number."""

    INBOX = "inbox"


OWN_TIMEOUT = OwnTimeout.INBOX
Timeout = Union[float, OwnTimeout]

CLOSES_WITHIN = 2.0
"""Seconds within which an inbox is ended, or left to its time."""

_PART = 20.0  # s
# What is said to who may not know of captured mail, where nothing else came.
_UNTOLD = (
    "If the application mailed another address, that is not shown to an API key. Look for it on the"
    " relay's page (relay open), or set RELAY_TOKEN to the administrator's token: admin_token in"
    " run/relay.json of the relay's data directory."
)
_HELD_UP = (
    "This wait held up the event loop that it was called in: an application in the same loop could"
    " send nothing meanwhile. Await that of an AsyncRelay's inbox (in pytest: async_inbox)."
)
_OTHERS = 20  # lines of other mail in a failure
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # s between two parts that end at once
_LOOKS_THROUGH = 1.0  # s for which what has come is still held against a pattern, after the time
_LOOK_CAPTURED = 0.25  # s between two looks for a mailbox that its first mail makes
_LISTS_WITHIN = 2.0  # s until they are there, or left out
_PAGE = 200
_SLIP = 3  # characters of an address that may differ
_MAX_EMPTY_PAGES = 1000  # pages of a list with nothing on them; a relay looks for a second for each
_LOOK, _LAST_LOOK = 0.02, 0.5  # s between two looks at what was sent
_STATES: tuple[str, ...] = get_args(State)
_ENDS = frozenset({"sent", "failed", "bounced", "cancelled"})


class _CurrentTest:
    """What the pytest plug-in knows of the test that runs."""

    login: str | None = None


CURRENT_TEST = _CurrentTest()


class InboxHandle:
    """An inbox as calls name it: its path, and the token that opens it, if it is anonymous."""

    def __init__(
        self, address: str, session_token: str | None, expires_at: datetime | None = None
    ) -> None:
        self.address = address
        self.expires_at = expires_at
        self.path = f"{MAILBOXES}/{_part(address, safe='@')}"
        if session_token is not None and not _answers.is_token(session_token):
            raise RelayError("the inbox's token has characters that no token has")
        self.session_token = session_token
        self.login = CURRENT_TEST.login
        """As whom the application signs in that sends to it, where that is known."""
        self.by_key = False
        """Whether a key opens it: what is captured is the administrator's, and not told."""
        self.headers = {} if session_token is None else {"X-Session-Token": session_token}
        self.blocks = False
        """Whether its calls hold up their thread."""
        self.closed = False
        self.awaits_capture: bool | None = None
        """Whether the first mail to it makes it; None where nobody has asked yet."""

    def get(
        self,
        path: str,
        params: Params = MappingProxyType({}),
        *,
        long_poll: float | None = None,
        max_bytes: int = JSON_BYTES,
    ) -> ApiRequest:
        """Return a call that reads."""
        return ApiRequest(
            "GET",
            f"{self.path}{path}",
            params,
            headers=self.headers,
            long_poll=long_poll,
            max_bytes=max_bytes,
        )

    def get_raw(self, path: str) -> ApiRequest:
        """Return a call that reads what is no JSON."""
        return ApiRequest("GET", f"{self.path}{path}", headers=self.headers, max_bytes=RAW_BYTES)

    def delete(self, path: str = "") -> ApiRequest:
        """Return a call that removes."""
        return ApiRequest("DELETE", f"{self.path}{path}", headers=self.headers)


def _part(text: str, safe: str = "") -> str:
    """Return an address or an id as a part of a path."""
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise RelayError(f"nothing is called so: {quoted(text)}") from None


def make_inbox(ttl: float | None, local_part: str | None, domain: str | None) -> Flow[InboxHandle]:
    """Make an inbox; `ttl` minutes."""
    if ttl is not None and not _is_finite(ttl):
        raise RelayError(f"an inbox's ttl is a number of minutes, not {ttl!r}")
    body = {"ttl_minutes": ttl, "local_part": local_part, "domain": domain}
    body = {name: value for name, value in body.items() if value is not None}
    request = ApiRequest("POST", MAILBOXES, body=body, idempotent=False)
    made = yield from call_json(request, _answers.INBOX)
    return InboxHandle(made["address"], made["session_token"], parsed_time(made["expires_at"]))


def remove_inbox(handle: InboxHandle, *, strict: bool) -> Flow[None]:
    """End an inbox.  If that fails its life ends it, which is an error if `strict`."""
    handle.closed = True
    with nullcontext() if strict else suppress(RelayError):
        yield from call(handle.delete(), time.monotonic() + CLOSES_WITHIN)


def wait(handle: InboxHandle, wanted: Wanted, timeout: float) -> Flow[JSON]:
    """Wait for the oldest message that matches; `WaitTimeout` if none comes."""
    found = yield from _next(handle, wanted, _deadline(timeout))
    if found is None:
        raise (yield from _in_vain(handle, wanted.in_words(), timeout))
    return found


def wait_none(handle: InboxHandle, wanted: Wanted, seconds: float) -> Flow[None]:
    """See that nothing comes that matches; `UnexpectedMail` as soon as something does."""
    found = yield from _next(handle, wanted, _deadline(seconds))
    if found is not None:
        raise UnexpectedMail(f"mail came where none was to come:\n  {_line(found)}")


def wait_many(handle: InboxHandle, wanted: Wanted, count: int, timeout: float) -> Flow[list[JSON]]:
    """Wait for so many that match, the oldest first; `WaitTimeout` if too few come."""
    if not _is_finite(count) or count < 0 or count % 1:
        raise RelayError(f"so many messages cannot be waited for: {count!r}")
    deadline = _deadline(timeout)
    found: list[JSON] = []
    while len(found) < count:
        rest = replace(wanted, after=found[-1]["id"]) if found else wanted
        one = yield from _next(handle, rest, deadline)
        if one is None:
            ids = [one["id"] for one in found]
            raise (yield from _in_vain(handle, wanted.in_words(count), timeout, ids))
        found.append(one)
    return found


def _next(handle: InboxHandle, wanted: Wanted, deadline: float) -> Flow[JSON | None]:
    """Wait for one; what has come by the deadline is looked through a moment longer."""
    if handle.closed:
        raise RelayError(f"the inbox was closed before {wanted.in_words()} was waited for")
    rest = wanted  # of what comes; what does not fit is behind it

    def part() -> ApiRequest:
        left = min(_PART, max(0.0, deadline - time.monotonic()))
        query: dict[str, str | float] = {"empty": "null", **rest.query, "timeout": round(left, 3)}
        return handle.get("/messages/wait", query, long_poll=left, max_bytes=MESSAGE_BYTES)

    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            found: JSON | None = yield from call_json(
                part, _answers.MESSAGE_OR_NONE, max(deadline, time.monotonic() + 1.0)
            )
        except RelayError as error:
            # As another thread or task does that has given the test up.
            if handle.closed:
                what = wanted.in_words()
                raise RelayError(f"the inbox was closed while {what} was waited for") from error
            yield from _expect(handle, error, max(deadline, time.monotonic() + 1.0))
            found = None
        now = time.monotonic()
        if found is not None and wanted.fits(found):
            return found
        if found is not None and now < deadline + _LOOKS_THROUGH:
            rest = replace(rest, after=found["id"])
            continue
        if now >= deadline:
            return None
        if now - began < min(_PART, deadline - began) / 2:
            # No relay ends a part so early, or not often: nobody is asked without a rest.
            yield Pause(min(pause, deadline - now))
            pause = min(2 * pause, _LOOK_CAPTURED if handle.awaits_capture else _LAST_PAUSE)


def _expect(handle: InboxHandle, error: RelayError, deadline: float) -> Flow[None]:
    """Raise what a wait failed with, unless the mailbox is one that its first mail makes.

    Which is so for the administrator, where the relay captures mail for the address.
    """
    if not isinstance(error, Refused) or not _is_not_there(error) or handle.session_token:
        raise error
    if handle.awaits_capture is None:
        try:
            found = yield from info(deadline)
        except RelayError:
            raise error from None
        domain = handle.address.rpartition("@")[2].lower()
        handle.awaits_capture = found["capture"] and domain not in found["domains"]
    if handle.awaits_capture and handle.by_key:
        handle.awaits_capture = False
        said = f"{error.detail} Captured mail opens only to the administrator's token."
        raise Refused(error.status, error.problem, said, title=error.title) from None
    if not handle.awaits_capture:
        raise error


def _is_not_there(error: RelayError) -> bool:
    return isinstance(error, Refused) and error.problem == "mailbox-not-found"


def _deadline(seconds: float) -> float:
    """When a wait ends that begins now; a time that never comes to its end is none."""
    if not _is_finite(seconds) or seconds < 0:
        raise RelayError(f"a time to wait is a number of seconds, 0 or more, not {seconds!r}")
    return time.monotonic() + seconds


def _is_finite(number: object) -> bool:
    return isinstance(number, Real) and math.isfinite(number)


def _in_vain(
    handle: InboxHandle, what: str, timeout: float, found: Sequence[str] = ()
) -> Flow[WaitTimeout]:
    """Return what a wait in vain ends with; `found` are the ids of what was waited for and came."""
    limit = min(len(found) + _OTHERS + 1, _PAGE)
    deadline = time.monotonic() + _LISTS_WITHIN
    try:
        entries = yield from _parsed(handle, limit, deadline)
    except RelayError as error:
        if handle.awaits_capture and _is_not_there(error):
            return WaitTimeout(what, timeout, "nothing came, so it has no mailbox yet")
        return WaitTimeout(what, timeout, f"what came cannot be listed: {error}")
    others = [_line(entry) for entry in entries if entry["id"] not in found]
    rejected = yield from _rejected(handle, deadline)
    captured = yield from _captured(handle, deadline)
    instead = _instead(len(others), len(found))
    hints = [_HELD_UP] if handle.blocks and _is_in_a_coroutine() else []
    if not (others or found or rejected or captured) and (yield from _is_untold(handle, deadline)):
        hints.append(_UNTOLD)
    hint = "\n".join(hints)
    return WaitTimeout(what, timeout, instead, others[:_OTHERS], rejected, captured, hint)


def _is_in_a_coroutine() -> bool:
    """Whether one is waiting for what is being called: of any event loop.

    That one runs in the thread is not enough: Playwright for Python runs its own beside a test that
    is none.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return True
        frame = frame.f_back
    return False


def _parsed(handle: InboxHandle, limit: int, deadline: float) -> Flow[list[JSON]]:
    """List the newest; where they are not parsed, again, for half of the time that there is."""
    until = (time.monotonic() + deadline) / 2
    pause = _LOOK
    while True:
        entries: list[JSON] = yield from call_json(
            handle.get("/messages", {"limit": limit}, max_bytes=MESSAGE_BYTES),
            _answers.LIST,
            deadline,
        )
        parsed = all(entry.get("has_attachments", False) is not None for entry in entries)
        if parsed or time.monotonic() + pause > until:
            return entries
        yield Pause(pause)
        pause = min(2 * pause, _LAST_LOOK)


def _rejected(handle: InboxHandle, deadline: float) -> Flow[list[str]]:
    """Ask whom SMTP rejected of this inbox's sender, or nearly under its address.

    Others, such as of tests beside this one, are left out; a relay that does not know says nobody.
    """
    try:
        found: list[JSON] = yield from call_json(
            handle.get("/refused"), _answers.REJECTED, deadline
        )
    except RelayError:
        return []
    return [
        f"{one['address']} ({one['reply']})"
        for one in found
        if (handle.login is not None and one.get("login") == handle.login)
        or is_near(one["address"], handle.address)
    ]


def _captured(handle: InboxHandle, deadline: float) -> Flow[list[str]]:
    """Ask for whom mail was captured that may have been meant for this inbox.

    The relay tells its administrator; one that does not know says nobody, too.
    """
    params = {} if handle.login is None else {"login": handle.login}
    try:
        found: list[JSON] = yield from call_json(
            handle.get("/captured", params), _answers.CAPTURED, deadline
        )
    except RelayError:
        return []
    return [
        one["address"] if one["count"] == 1 else f"{one['address']} ({one['count']} messages)"
        for one in found
    ]


def _is_untold(handle: InboxHandle, deadline: float) -> Flow[bool]:
    """Whether mail may have been captured of which the relay does not tell who asks."""
    if not handle.by_key:
        return False
    try:
        return bool((yield from info(deadline))["capture"])
    except RelayError:
        return False


def is_near(written: str, meant: str) -> bool:
    """Whether an address is another, or is but for a slip: a few characters in one place."""
    one, _, domain = written.lower().rpartition("@")
    other, _, own = meant.lower().rpartition("@")
    longer, shorter = max(len(one), len(other)), min(len(one), len(other))
    alike = min(_beginning(one, other) + _beginning(one[::-1], other[::-1]), shorter)
    return domain == own and longer - alike <= _SLIP and 2 * alike >= longer


def _beginning(one: str, other: str) -> int:
    """How many characters two texts begin with that are the same."""
    differ = (at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1])
    return next(differ, min(len(one), len(other)))


def _instead(count: int, found: int) -> str:
    """Say in words how many came that were not waited for, beside those that were."""
    if count == 0:
        return f"{found} came, and nothing else" if found else "nothing came"
    others = f"{count} other{'s' if count > 1 else ''}"
    if count > _OTHERS:
        others = "others"
    newest = f", the newest {_OTHERS}" if count > _OTHERS else ""
    return (f"{found} came, and {others}" if found else f"{others} came") + newest


def _line(entry: JSON) -> str:
    subject = "(no subject)" if entry["subject"] is None else quoted(entry["subject"])
    sender = in_a_line(entry["from_address"] or "<>", NAME)
    return f"{entry['received_at']} from {sender}: {subject}"


def messages(handle: InboxHandle, q: str | None, limit: int, timeout: float) -> Flow[list[JSON]]:
    """Read the messages of an inbox, all or those that match a search, the newest first.

    `Unreachable` where that takes longer than `timeout` in all, `RelayError` where it says more
    than `LIST_BYTES`.  A page of them by a call; of an older relay, each by one of its own.  A page
    may be empty and have a next one: of a search that looked for long enough.
    """
    overall_deadline = _deadline(timeout)
    params: dict[str, str | float] = {"limit": min(limit, _PAGE)}
    if q is not None:
        params["q"] = q
    entries: list[JSON] = []
    seen = set[str]()
    empty = size = 0
    following: str | None = None
    while len(entries) < limit:
        if following is None:
            answer = yield from _first_page(handle, params, overall_deadline)
        else:
            path = _of_at_most(following, limit - len(entries))
            request = ApiRequest("GET", path, headers=handle.headers, max_bytes=MESSAGE_BYTES)
            answer = yield from call(request, overall_deadline=overall_deadline)
        size = _counted(handle, size, answer)
        page: list[JSON] = decoded(answer, _answers.LIST)
        entries += page
        following = _following(answer)
        if following is None or len(entries) >= limit:
            break
        if following in seen:
            raise no_relay(answer, "its next page is one that came before")
        empty += not page
        if empty == _MAX_EMPTY_PAGES:
            raise no_relay(answer, f"{empty} pages of its list are empty, and it goes on")
        seen.add(following)
        if time.monotonic() >= overall_deadline:
            raise _late(handle, timeout)
    found: list[JSON] = []
    for entry in entries[:limit]:
        if not _answers.MESSAGE(entry):
            if time.monotonic() >= overall_deadline:
                raise _late(handle, timeout)
            request = handle.get(_of_message(entry["id"]), max_bytes=MESSAGE_BYTES)
            answer = yield from call(request, overall_deadline=overall_deadline)
            size = _counted(handle, size, answer)
            entry = decoded(answer, _answers.MESSAGE)
        found.append(entry)
    return found


def _counted(handle: InboxHandle, size: int, answer: Answer) -> int:
    """Return what a list has said with this answer, in bytes."""
    size += len(answer.content)
    if size > LIST_BYTES:
        said = f"more than {LIST_BYTES >> 20} MiB: ask for fewer messages at once"
        raise RelayError(f"the list of {handle.address} has {said}")
    return size


def _late(handle: InboxHandle, timeout: float) -> Unreachable:
    return Unreachable(f"the list of {handle.address} has not ended after {timeout:g} s")


def _first_page(handle: InboxHandle, params: Params, overall_deadline: float) -> Flow[Answer]:
    """Ask for whole messages; of a relay that does not know them, for what lists show."""
    try:
        whole = handle.get("/messages", {**params, "whole": "true"}, max_bytes=MESSAGE_BYTES)
        return (yield from call(whole, overall_deadline=overall_deadline))
    except Refused as refused:
        if refused.problem != "unknown-parameter":
            raise
    listed = handle.get("/messages", params, max_bytes=MESSAGE_BYTES)
    return (yield from call(listed, overall_deadline=overall_deadline))


def _of_at_most(following: str, count: int) -> str:
    """Return the path of a next page that has no more than so many: what it has is marked read."""
    return re.sub(r"([?&]limit=)\d+", rf"\g<1>{min(count, _PAGE)}", following)


def _following(answer: Answer) -> str | None:
    """Return path and query of the next page, if there is one.

    A relay names it from its root on, wherever that is: to another place no token goes.
    """
    following = answer.following
    if following and not re.fullmatch(r"/(?![/\\])[!-~]*", following):
        raise no_relay(answer, f"its next page is at {quoted(following[:200])}")
    return following or None


def _of_message(message_id: str, more: str = "") -> str:
    """Return the path of a message in its inbox, or of something of it."""
    return f"/messages/{_part(message_id)}{more}"


def raw(handle: InboxHandle, message_id: str) -> Flow[bytes]:
    """Fetch a message byte for byte."""
    answer = yield from call(handle.get_raw(_of_message(message_id, "/raw")))
    return answer.content


def attachment(handle: InboxHandle, message_id: str, index: int) -> Flow[bytes]:
    """Fetch an attachment."""
    answer = yield from call(handle.get_raw(_of_message(message_id, f"/attachments/{index}")))
    return answer.content


def checks(handle: InboxHandle, message_id: str) -> Flow[JSON]:
    """Fetch what the world would say of a message."""
    request = handle.get(_of_message(message_id, "/checks"))
    found: JSON = yield from call_json(request, _answers.CHECKS)
    return found


def delete_message(handle: InboxHandle, message_id: str) -> Flow[None]:
    """Delete a message for good; one that is gone already is."""
    try:
        yield from call(handle.delete(_of_message(message_id)))
    except Refused as refused:
        if refused.problem != "message-not-found":
            raise


def send(
    *,
    from_: str,
    to: str | Sequence[str],
    subject: str,
    text: str | None,
    html: str | None,
    headers: Mapping[str, str] | None,
    attachments: Iterable[NewAttachment],
    idempotency_key: str | None,
) -> Flow[list[JSON]]:
    """Queue a message; an entry for each recipient.  Asked again, it is queued once."""
    body = {
        "from": from_,
        "to": to if isinstance(to, str) else list(to),
        "subject": subject,
        "text": text,
        "html": html,
        "headers": dict(headers or {}),
        "attachments": [_encoded(one) for one in attachments],
    }
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    request = ApiRequest("POST", "/api/v1/messages/send", body=body, headers=key)
    sent = yield from call_json(request, _answers.SENT)
    queued: list[JSON] = sent["messages"]
    return queued


def _encoded(given: NewAttachment) -> JSON:
    if isinstance(given, tuple):
        name, content = given[0], given[1]
        kind = given[2] if len(given) > 2 else None
    else:
        path = Path(given)
        name, content, kind = path.name, path.read_bytes(), None
    kind = kind or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {
        "filename": name,
        "content_type": kind,
        "content": base64.b64encode(content).decode(),
    }


def outbound(message_id: str, deadline: float | None = None) -> Flow[OutboundEntry]:
    """Look at a message that was sent."""
    request = ApiRequest("GET", f"/api/v1/outbound/{_part(message_id)}")
    return parsed_entry((yield from call_json(request, _answers.OUTBOUND, deadline)))


def wait_outbound(message_id: str, status: str, timeout: float) -> Flow[None]:
    """Wait until a message that was sent has a status; `NotDelivered` once it never will."""
    deadline = _deadline(timeout)
    if status not in _STATES:
        known = ", ".join(_STATES)
        raise RelayError(f"{quoted(str(status))} is no state of a message: it is one of {known}")
    pause = _LOOK
    while True:
        found = yield from outbound(message_id, max(deadline, time.monotonic() + 1.0))
        if found.status == status:
            return
        if found.status in _ENDS:
            raise NotDelivered(found.status, status, found.error)
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"{message_id} to be {status}", timeout, f"it is {found.status}")
        yield Pause(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, _LAST_LOOK)


def info(deadline: float | None = None) -> Flow[JSON]:
    """Ask where the relay takes mail."""
    request = ApiRequest("GET", "/api/v1/info")
    found: JSON = yield from call_json(request, _answers.INFO, deadline)
    return found
