"""Flows that wait for mail, and say of a wait in vain what there is in its place.

Times are seconds.  A wait is asked for in parts of `_PART` seconds, less than the time after which
a proxy in between ends a connection on which nothing moves.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Union

from relay_client import _answers
from relay_client._bounds import MESSAGE_BYTES
from relay_client._exchange import ApiRequest, Flow, Pause, call_json
from relay_client._mailboxes import PAGE, InboxHandle, info, is_finite
from relay_client._records import JSON
from relay_client._text import MAX_NAME, in_a_line, quoted
from relay_client._wanted import Wanted
from relay_client.errors import Refused, RelayError, UnexpectedMail, WaitTimeout

__tracebackhide__ = True  # a test that fails shows the test

TIMEOUT = 10.0
"""Seconds for which mail is waited for, unless it is said."""


class OwnTimeout(Enum):
    """That a timeout is not said, and the inbox's is meant; None would be no number."""

    INBOX = "inbox"


OWN_TIMEOUT = OwnTimeout.INBOX
Timeout = Union[float, OwnTimeout]
_PART = 20.0  # s
# What is said to who may not know of captured mail, where nothing else came.
_UNTOLD = (
    "If the application mailed another address, that is not shown {}. Look for it on the"
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
FIRST_LOOK, LAST_LOOK = 0.02, 0.5  # s between two looks at what will change soon


def wait(
    handle: InboxHandle, wanted: Wanted, timeout: float, *, blocks: bool = False
) -> Flow[JSON]:
    """Wait for the oldest message that matches; `WaitTimeout` if none comes.

    `blocks`: whether the flow is run by what holds up its thread.
    """
    found = yield from _next(handle, wanted, deadline_after(timeout))
    if found is None:
        raise (yield from _in_vain(handle, wanted.in_words(), timeout, blocks=blocks))
    return found


def wait_none(handle: InboxHandle, wanted: Wanted, seconds: float) -> Flow[None]:
    """See that nothing comes that matches; `UnexpectedMail` as soon as something does."""
    found = yield from _next(handle, wanted, deadline_after(seconds))
    if found is not None:
        raise UnexpectedMail(f"mail came where none was to come:\n  {_line(found)}")


def wait_many(
    handle: InboxHandle, wanted: Wanted, count: int, timeout: float, *, blocks: bool = False
) -> Flow[list[JSON]]:
    """Wait for so many that match, the oldest first; `WaitTimeout` if too few come.

    `blocks` as for `wait`.
    """
    if not is_finite(count) or count < 0 or count % 1:
        raise RelayError(f"so many messages cannot be waited for: {count!r}")
    deadline = deadline_after(timeout)
    found: list[JSON] = []
    while len(found) < count:
        later = replace(wanted, after=found[-1]["id"]) if found else wanted
        one = yield from _next(handle, later, deadline)
        if one is None:
            ids = [one["id"] for one in found]
            raise (yield from _in_vain(handle, wanted.in_words(count), timeout, ids, blocks=blocks))
        found.append(one)
    return found


def _next(handle: InboxHandle, wanted: Wanted, deadline: float) -> Flow[JSON | None]:
    """Wait for one; what has come by the deadline is looked through a moment longer."""
    handle.must_be_open()
    later = wanted  # than what came and does not fit

    def part() -> ApiRequest:
        left = min(_PART, max(0.0, deadline - time.monotonic()))
        query: dict[str, str | float] = {"empty": "null", **later.query, "timeout": round(left, 3)}
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
                said = f"the inbox {handle.address} was closed while {what} was waited for"
                raise RelayError(said) from None
            yield from _expect(handle, error, max(deadline, time.monotonic() + 1.0))
            found = None
        now = time.monotonic()
        if found is not None and wanted.fits(found):
            return found
        if found is not None and now < deadline + _LOOKS_THROUGH:
            later = replace(later, after=found["id"])
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


def deadline_after(seconds: float) -> float:
    """When a wait ends that begins now; a time that never comes to its end is none."""
    if not is_finite(seconds) or seconds < 0:
        raise RelayError(f"a time to wait is a number of seconds, 0 or more, not {seconds!r}")
    return time.monotonic() + seconds


def _in_vain(
    handle: InboxHandle,
    what: str,
    timeout: float,
    found: Sequence[str] = (),
    *,
    blocks: bool,
) -> Flow[WaitTimeout]:
    """Return what a wait in vain ends with; `found` are the ids of what was waited for and came."""
    limit = min(len(found) + _OTHERS + 1, PAGE)
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
    hints = [_HELD_UP] if blocks and _is_in_a_coroutine() else []
    if not (others or found or rejected or captured):
        if handle.anonymous:  # who may not ask whether the relay captures
            hints.append(_UNTOLD.format("without a token"))
        elif (yield from _is_untold(handle, deadline)):
            hints.append(_UNTOLD.format("to an API key"))
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
    pause = FIRST_LOOK
    while True:
        entries: list[JSON] = yield from call_json(
            handle.get("/messages", {"limit": limit}, max_bytes=MESSAGE_BYTES),
            _answers.LIST,
            deadline,
        )
        # Null is said of a message that is not parsed yet, and so has no subject either.
        parsed = all(entry.get("has_attachments", False) is not None for entry in entries)
        if parsed or time.monotonic() + pause > until:
            return entries
        yield Pause(pause)
        pause = min(2 * pause, LAST_LOOK)


def _rejected(handle: InboxHandle, deadline: float) -> Flow[list[str]]:
    """Ask whom SMTP rejected of this inbox's sender, or nearly under its address.

    Others, such as of tests beside this one, the relay leaves out; where it does not answer nobody
    is named.
    """
    params = {"login": handle.login or ""}  # of none: what is nearly the address alone
    try:
        found: list[JSON] = yield from call_json(
            handle.get("/refused", params), _answers.REJECTED, deadline
        )
    except RelayError:
        return []
    return [f"{one['address']} ({one['reply']})" for one in found]


def _captured(handle: InboxHandle, deadline: float) -> Flow[list[str]]:
    """Ask for whom mail was captured that may have been meant for this inbox.

    The relay tells its administrator.
    """
    params = {} if handle.login is None else {"login": handle.login}
    try:
        found: list[JSON] = yield from call_json(
            handle.get("/captured", params), _answers.CAPTURED, deadline
        )
    except RelayError:
        return []
    return [_recipient(one) for one in found]


def _recipient(one: JSON) -> str:
    known = [] if one["count"] == 1 else [f"{one['count']} messages"]
    if not one.get("attributed", True):
        known.append("nobody signed in: perhaps another test's")
    return f"{one['address']} ({'; '.join(known)})" if known else str(one["address"])


def _is_untold(handle: InboxHandle, deadline: float) -> Flow[bool]:
    """Whether mail may have been captured of which the relay does not tell who asks."""
    if not handle.by_key:
        return False
    try:
        return bool((yield from info(deadline))["capture"])
    except RelayError:
        return False


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
    sender = in_a_line(entry["from_address"] or "<>", MAX_NAME)
    return f"{entry['received_at']} from {sender}: {subject}"
