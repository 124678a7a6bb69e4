"""Flows of what is sent: queued, looked at, and waited for."""

from __future__ import annotations

import base64
import mimetypes
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Union, get_args

from relay_client import _answers
from relay_client._exchange import ApiRequest, Flow, Pause, call_json
from relay_client._mailboxes import part_of
from relay_client._records import JSON, OutboundEntry, State, parsed_entry
from relay_client._text import quoted
from relay_client._waiting import FIRST_LOOK, LAST_LOOK, deadline_after
from relay_client.errors import NotDelivered, RelayError, WaitTimeout

__tracebackhide__ = True  # a test that fails shows the test

NewAttachment = Union[str, "os.PathLike[str]", tuple[str, bytes], tuple[str, bytes, str]]
"""A file's path, or a name and the bytes, and perhaps their type."""

_STATES: tuple[str, ...] = get_args(State)
_ENDS = frozenset({"sent", "failed", "bounced", "cancelled"})


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
    request = ApiRequest("GET", f"/api/v1/outbound/{part_of(message_id)}")
    return parsed_entry((yield from call_json(request, _answers.OUTBOUND, deadline)))


def wait_outbound(message_id: str, status: str, timeout: float) -> Flow[None]:
    """Wait until a message that was sent has a status; `NotDelivered` once it never will."""
    deadline = deadline_after(timeout)
    if status not in _STATES:
        known = ", ".join(_STATES)
        raise RelayError(f"{quoted(str(status))} is no state of a message: it is one of {known}")
    pause = FIRST_LOOK
    while True:
        found = yield from outbound(message_id, max(deadline, time.monotonic() + 1.0))
        if found.status == status:
            return
        if found.status in _ENDS:
            raise NotDelivered(found.status, status, found.error)
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"{message_id} to be {status}", timeout, f"it is {found.status}")
        yield Pause(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, LAST_LOOK)
