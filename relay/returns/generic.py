"""Reports of an upstream without a form of its own: one JSON object, in the words of this relay.

Format: `type` is bounced, delayed or complained; `message` is the return path of a message or its
token (`relay.returns.paths`); of `recipient`, `status` (RFC 3463) and `text`, the receiver's words,
each may be missing.

Promises: what is reported is a `Report`, so that `relay.returns.law` says what follows, as for mail
that comes back: without `recipient` nobody is suppressed for a bounce.

Fails: `MalformedReport` for anything else, other members included.  Pure.
"""

from __future__ import annotations

from typing import Any

from relay.returns.report import COMPLAINT, DSN, Recipient, Report
from relay.returns.upstream_report import MalformedReport, UpstreamReport, status_in, text_in

TYPES = {"bounced": "failed", "delayed": "delayed", "complained": ""}
"""Types of reports, each with its action (RFC 3464)."""
MEMBERS = ("type", "message", "recipient", "status", "text")


def read(said: dict[str, Any]) -> UpstreamReport:
    """Read an object."""
    for name in said:
        if name not in MEMBERS:
            raise MalformedReport(f"The members are {', '.join(MEMBERS)}, and no others.")
    for name in MEMBERS:
        value = said.get(name)
        if value is not None and not isinstance(value, str):
            raise MalformedReport(f"{name} is not a string.")
    action = TYPES.get(said.get("type") or "")
    if action is None:
        raise MalformedReport(f"type must be one of {', '.join(TYPES)}.")
    if not said.get("message"):
        raise MalformedReport("message is missing: the return path or the token of a message.")
    status = status_in(said, "status")
    if said.get("status") is not None and not status:
        raise MalformedReport("status is no enhanced status code, such as 5.1.1.")
    names = (str(said["message"]),)
    if not action:
        return UpstreamReport(names, Report(COMPLAINT, (), "abuse"))
    one = Recipient(text_in(said, "recipient"), "", action, status, text_in(said, "text"))
    return UpstreamReport(names, Report(DSN, (one,)))
