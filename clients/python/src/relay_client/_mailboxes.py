"""Flows of calls to mailboxes and what is in them: made, ended, mail fetched and deleted.

Times are seconds.  What a flow is stands in `relay_client._exchange`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from numbers import Real
from types import MappingProxyType
from typing import Union
from urllib.parse import quote

from relay_client import _answers
from relay_client._bounds import JSON_BYTES, RAW_BYTES
from relay_client._current_test import CURRENT_TEST
from relay_client._exchange import ApiRequest, Flow, call, call_json
from relay_client._records import JSON, parsed_time
from relay_client._text import quoted
from relay_client.errors import Refused, RelayError

__tracebackhide__ = True  # a test that fails shows the test

Params = Mapping[str, Union[str, float]]
MAILBOXES = "/api/v1/mailboxes"

CLOSES_WITHIN = 2.0
"""Seconds within which an inbox is ended, or left to its time."""

_CLOCKS_DIFFER = timedelta(seconds=10)
"""By as much this machine's clock may be behind the relay's, by which an inbox's time ends."""

_STARTED_AGAIN = (
    " If the relay was started again, the token of its run/relay.json is another by now."
)

PAGE = 200
"""Entries of a page of a list, at most."""


class InboxHandle:
    """An inbox as calls name it: its path, and the token that opens it, if it is anonymous."""

    def __init__(
        self, address: str, session_token: str | None, expires_at: datetime | None = None
    ) -> None:
        self.address = address
        self.expires_at = expires_at
        self.path = f"{MAILBOXES}/{part_of(address, safe='@')}"
        session_token = session_token and session_token.strip()
        if session_token is not None and not _answers.is_token(session_token):
            raise RelayError("the inbox's token has characters that no token has")
        self.session_token = session_token
        self.login = CURRENT_TEST.login
        """As whom the application signs in that sends to it, where that is known."""
        self.by_key = False
        """Whether a key opens it: what is captured is the administrator's, and not told."""
        self.anonymous = False
        """Whether nothing opens it but its own token."""
        self.headers = {} if session_token is None else {"X-Session-Token": session_token}
        self.closed = False
        self.report: str | None = None
        """What it had as a test failed in its block, for the report, since it ends before that."""
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
            self._path_of(path),
            params,
            headers=self.headers,
            long_poll=long_poll,
            max_bytes=max_bytes,
            says=self.says,
        )

    def get_raw(self, path: str) -> ApiRequest:
        """Return a call that reads what is no JSON."""
        path = self._path_of(path)
        return ApiRequest("GET", path, headers=self.headers, max_bytes=RAW_BYTES, says=self.says)

    def delete(self, path: str = "") -> ApiRequest:
        """Return a call that removes."""
        return ApiRequest("DELETE", self._path_of(path), headers=self.headers, says=self.says)

    def says(self, problem: str, said: str) -> str:
        """Return what is said of a refusal: of an inbox that is not there, which, and why."""
        if problem != "mailbox-not-found":
            return said
        ends = self.expires_at
        if ends is None or ends - datetime.now(timezone.utc) > _CLOCKS_DIFFER:
            # One that was made here, by the token that opens it no more.
            hint = _STARTED_AGAIN if ends and self.session_token is None else ""
            return f"{said} ({self.address}){hint}"
        at = ends.isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"The inbox {self.address} is over: its time ended at {at}."

    def must_be_open(self) -> None:
        """Raise a `RelayError` where it was closed, and is empty."""
        if self.closed:
            raise RelayError(
                f"the inbox {self.address} was closed, and its mail is gone: read it before that"
            )

    def _path_of(self, path: str) -> str:
        """Return the path of something in it, of an inbox that must be open."""
        if path:
            self.must_be_open()
        return f"{self.path}{path}"


def part_of(text: str, safe: str = "") -> str:
    """Return an address or an id as a part of a path."""
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise RelayError(f"nothing is called so: {quoted(text)}") from None


def make_inbox(ttl: float | None, local_part: str | None, domain: str | None) -> Flow[InboxHandle]:
    """Make an inbox; `ttl` minutes."""
    if ttl is not None and not (is_finite(ttl) and ttl > 0):
        raise RelayError(f"an inbox's ttl is a number of minutes above 0, not {ttl!r}")
    body = {"ttl_minutes": ttl, "local_part": local_part, "domain": domain}
    body = {name: value for name, value in body.items() if value is not None}

    def says(problem: str, said: str) -> str:
        if problem != "address-taken" or local_part is None:
            return said
        name = quoted(local_part if domain is None else f"{local_part}@{domain}")
        return (
            f"{name} is taken: a relay gives an address out once while it remembers it, for days"
            " after its inbox has ended. Put something of the run in it, or let the relay choose."
        )

    request = ApiRequest("POST", MAILBOXES, body=body, idempotent=False, says=says)
    made = yield from call_json(request, _answers.INBOX)
    return InboxHandle(made["address"], made["session_token"], parsed_time(made["expires_at"]))


def remove_inbox(handle: InboxHandle, *, strict: bool) -> Flow[None]:
    """End an inbox.  If that fails its life ends it, which is an error if `strict`."""
    handle.closed = True
    began = time.monotonic()
    within = CLOSES_WITHIN if strict else min(CLOSES_WITHIN, max(0.0, CURRENT_TEST.closes_within))
    ended = False
    try:
        with nullcontext() if strict else suppress(RelayError):
            yield from call(handle.delete(), began + within)
            ended = True
    finally:
        if not ended:
            CURRENT_TEST.closes_within -= time.monotonic() - began


def is_finite(number: object) -> bool:
    return isinstance(number, Real) and math.isfinite(number)


def of_message(message_id: str, more: str = "") -> str:
    """Return the path of a message in its inbox, or of something of it."""
    return f"/messages/{part_of(message_id)}{more}"


def raw(handle: InboxHandle, message_id: str) -> Flow[bytes]:
    """Fetch a message byte for byte."""
    answer = yield from call(handle.get_raw(of_message(message_id, "/raw")))
    return answer.content


def attachment(handle: InboxHandle, message_id: str, index: int) -> Flow[bytes]:
    """Fetch an attachment."""
    answer = yield from call(handle.get_raw(of_message(message_id, f"/attachments/{index}")))
    return answer.content


def checks(handle: InboxHandle, message_id: str) -> Flow[JSON]:
    """Fetch what the world would say of a message."""
    request = handle.get(of_message(message_id, "/checks"))
    found: JSON = yield from call_json(request, _answers.CHECKS)
    return found


def delete_message(handle: InboxHandle, message_id: str) -> Flow[None]:
    """Delete a message for good; one that is gone already is."""
    try:
        yield from call(handle.delete(of_message(message_id)))
    except Refused as refused:
        if refused.problem != "message-not-found":
            raise


def info(deadline: float | None = None) -> Flow[JSON]:
    """Ask where the relay takes mail."""
    request = ApiRequest("GET", "/api/v1/info")
    found: JSON = yield from call_json(request, _answers.INFO, deadline)
    return found
