"""What Amazon SES reports of mail that it took: bounces, complaints and delays, as JSON.

Format: the notifications of SES (`notificationType`) and its event publishing (`eventType`), which
say the same in the same members (the SES developer guide, "Amazon SNS notification contents" and
"Contents of event data").  What a message is known by is `mail.source`, the MAIL FROM with which
SES took it.

Promises
- What is reported is a `Report`, so that `relay.returns.law` says what follows, as for mail that
  comes back:

    SES says                              the report
    ------------------------------------  -----------------------------------------------------
    Bounce, Permanent                     failed; of SES's own decisions (`_OWN`) nobody is named
    Bounce, Transient; DeliveryDelay      delayed: answers of people on holiday are among these
    Complaint                             a complaint, of its complaintFeedbackType
    Complaint, by SES's own decision      failed, and nobody is named: it was never sent
    Bounce, Undetermined; anything else   none (`read` returns None)

- What is kept of a text is printable, and bounded.

Fails: `MalformedReport` for a report without the members that it needs.  Pure.  Whether it is
Amazon that says so is for the caller to find out first.
"""

from __future__ import annotations

import json
from typing import Any

from relay.returns.report import COMPLAINT, DSN, Recipient, Report
from relay.returns.upstream_report import MalformedReport, UpstreamReport, status_in, text_in

_RECIPIENTS = 100
_OWN = {"suppressed", "onaccountsuppressionlist", "unsubscribedrecipient"}
"""SES did not send it at all, for what it remembers: no receiver said anything of the address."""


def read(text: str) -> UpstreamReport | None:
    """Read a notification's message; None: nothing follows from it, whatever it is."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    kind = document.get("notificationType", document.get("eventType"))
    if kind == "Bounce":
        report = _bounce(_object(document, "bounce"))
    elif kind == "Complaint":
        report = _complaint(_object(document, "complaint"))
    elif kind == "DeliveryDelay":
        delay = _object(document, "deliveryDelay")
        report = Report(DSN, _recipients(delay, "delayedRecipients", "delayed"))
    else:
        return None
    source = _object(document, "mail").get("source")
    if not isinstance(source, str):
        raise MalformedReport("mail.source is not an address.")
    return None if report is None else UpstreamReport((source,), report)


def _bounce(bounce: dict[str, Any]) -> Report | None:
    kind = bounce.get("bounceType")
    if not isinstance(kind, str):
        raise MalformedReport("bounce.bounceType is missing or is not a string.")
    action = {"permanent": "failed", "transient": "delayed"}.get(kind.lower())
    recipients = _recipients(bounce, "bouncedRecipients", action or "")
    if action is None:
        return None
    if _is_own(bounce, "bounceSubType"):
        recipients = tuple(one._replace(final="") for one in recipients)
    return Report(DSN, recipients)


def _complaint(complaint: dict[str, Any]) -> Report:
    recipients = _recipients(complaint, "complainedRecipients", "failed")
    if _is_own(complaint, "complaintSubType"):
        said = "Amazon SES did not send it: the address is on the account's suppression list"
        return Report(DSN, tuple(one._replace(final="", diagnostic=said) for one in recipients))
    # Not every provider says of which kind it is.
    return Report(COMPLAINT, (), text_in(complaint, "complaintFeedbackType").lower() or "complaint")


def _is_own(said: dict[str, Any], name: str) -> bool:
    return text_in(said, name).lower() in _OWN


def _recipients(said: dict[str, Any], name: str, action: str) -> tuple[Recipient, ...]:
    entries = said.get(name)
    if not isinstance(entries, list):
        raise MalformedReport(f"{name} is missing or is not a list.")
    found = []
    for entry in entries[:_RECIPIENTS]:
        if not isinstance(entry, dict) or not isinstance(entry.get("emailAddress"), str):
            raise MalformedReport(f"{name} has an entry without an emailAddress.")
        found.append(
            Recipient(
                text_in(entry, "emailAddress"),
                "",
                action,
                status_in(entry, "status"),
                text_in(entry, "diagnosticCode"),
            )
        )
    # SES could not find out whom: there is one recipient, and it did not get it.
    return tuple(found) or (Recipient(action=action),)


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise MalformedReport(f"The notification lacks {name}, or it is not an object.")
    return value
