"""Flows that list: page by page, up to a limit, and in a time."""

from __future__ import annotations

import re
import time

from relay_client import _answers
from relay_client._bounds import LIST_BYTES, MESSAGE_BYTES
from relay_client._exchange import Answer, ApiRequest, Flow, call, decoded, no_relay
from relay_client._mailboxes import PAGE, InboxHandle
from relay_client._records import JSON
from relay_client._text import quoted
from relay_client._waiting import deadline_after
from relay_client.errors import RelayError, Unreachable

__tracebackhide__ = True  # a test that fails shows the test

LIST_TIMEOUT = 60.0
"""Seconds within which a list is read, with all of its pages, unless it is said."""

_MAX_EMPTY_PAGES = 1000  # pages of a list with nothing on them; a relay looks for a second for each


def messages(
    handle: InboxHandle,
    q: str | None,
    limit: int,
    timeout: float,
    *,
    max_bytes: int = LIST_BYTES,
    found: list[JSON] | None = None,
) -> Flow[list[JSON]]:
    """Read the messages of an inbox, all or those that match a search, the newest first.

    `Unreachable` where that takes longer than `timeout` in all, `RelayError` where there is more
    beyond `max_bytes`; what was read before that is in `found`, if that is given.  A page of them
    by a call; one may be empty and have a next one: of a search that looked for long enough.
    """
    deadline = deadline_after(timeout)
    params: dict[str, str | float] = {"limit": min(limit, PAGE), "whole": "true"}
    if q is not None:
        params["q"] = q
    found = [] if found is None else found
    seen = set[str]()
    empty = size = 0
    following: str | None = None

    def may_go_on() -> None:
        if size > max_bytes:
            said = f"more than {max_bytes >> 20} MiB: ask for fewer messages at once"
            raise RelayError(f"the list of {handle.address} has {said}")
        if time.monotonic() >= deadline:
            raise Unreachable(f"the list of {handle.address} has not ended after {timeout:g} s")

    while len(found) < limit:
        if following is None:
            request = handle.get("/messages", params, max_bytes=MESSAGE_BYTES)
        else:
            path = _of_at_most(following, limit - len(found))
            request = ApiRequest(
                "GET", path, headers=handle.headers, max_bytes=MESSAGE_BYTES, says=handle.says
            )
        answer = yield from call(request, deadline, shared=True)
        size += len(answer.content)
        page: list[JSON] = decoded(answer, _answers.MESSAGES)
        following = _following(answer)
        found += page[: limit - len(found)]
        if following is None or len(found) >= limit:
            break
        if following in seen:
            raise no_relay(answer, "its next page is one that came before")
        empty += not page
        if empty == _MAX_EMPTY_PAGES:
            raise no_relay(answer, f"{empty} pages of its list are empty, and it goes on")
        seen.add(following)
        may_go_on()
    return found


def _of_at_most(following: str, count: int) -> str:
    """Return the path of a next page that has no more than so many: what it has is marked read."""
    return re.sub(r"([?&]limit=)\d+", rf"\g<1>{min(count, PAGE)}", following)


def _following(answer: Answer) -> str | None:
    """Return path and query of the next page, if there is one.

    A relay names it from its root on, wherever that is: to another place no token goes.
    """
    following = answer.following
    if following and not re.fullmatch(r"/(?![/\\])[!-~]*", following):
        raise no_relay(answer, f"its next page is at {quoted(following[:200])}")
    return following or None
