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
    Bounce, Transient: MailboxFull,       failed, for SES has given up ("Transient bounces are sent
    or with a status of x.2.2             to you when a message has soft bounced several times, and
                                          Amazon SES has stopped trying to re-deliver it"): a full
                                          mailbox
    Bounce, Transient, of other kinds     likewise, and nobody is named: it was of the mail, or is
    (`_GAVE_UP`)                          of a time that is over
    Bounce, Transient, General            what the attached report says; without one, nothing
    DeliveryDelay                         delayed
    Complaint                             a complaint, of its complaintFeedbackType
    Complaint, by SES's own decision      failed, and nobody is named: it was never sent
    Bounce, Undetermined; anything else   none (`read` returns None)

- What is kept of a text is printable, and bounded.

Why General hangs on the report: answers of people on holiday (RFC 3834) come as such bounces, too
(the guide, "Bounce types"; its simulator's ooto@ makes one).  They are no DSN, and `action` and
`status` are there only "if a DSN is attached".  With one it is what no other kind fits: a domain
that SES could not reach (5.4.4, "failed"), say.

Fails: `MalformedReport` for a report without the members that it needs.  Pure.  Whether it is
Amazon that says so is for the caller to find out first.
"""

from __future__ import annotations

import json
from typing import Any

from relay.returns.report import COMPLAINT, DSN, Recipient, Report
from relay.returns.upstream_report import MalformedReport, UpstreamReport, status_in, text_in

_RECIPIENTS = 100
_OWN = {
    *("suppressed", "onaccountsuppressionlist", "ontenantsuppressionlist"),
    *("emailvalidationsuppressed", "unsubscribedrecipient"),
}
"""SES did not send it at all, for what it remembers: no receiver said anything of the address."""
_FULL = "mailboxfull"
_GAVE_UP = {
    *(_FULL, "messagetoolarge", "contentrejected", "attachmentrejected", "customtimeoutexceeded")
}
"""Kinds of Transient that say themselves that SES has given up."""


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
    recipients = _recipients(bounce, "bouncedRecipients", "failed")
    sub = text_in(bounce, "bounceSubType").lower()
    if kind.lower() == "permanent":
        if sub in _OWN:
            recipients = tuple(one._replace(final="") for one in recipients)
        return Report(DSN, recipients)
    if kind.lower() != "transient":
        return None
    entries = [*bounce["bouncedRecipients"], {}]  # there is one recipient, whom none may name
    found = [
        _gave_up_on(one, sub, text_in(entry, "action").lower())
        for one, entry in zip(recipients, entries, strict=False)
    ]
    known = tuple(filter(None, found))
    return Report(DSN, known) if known else None


def _gave_up_on(one: Recipient, sub: str, action: str) -> Recipient | None:
    """Who is in a Transient bounce, with which SES has given up; None: it may be an answer."""
    if action not in {"failed", "delayed"}:
        if sub not in _GAVE_UP:
            return None
        action = "failed"
    one = one._replace(action=action)
    if one.status.endswith(".2.2"):
        return one
    return one._replace(status="5.2.2") if sub == _FULL else one._replace(final="")


def _complaint(complaint: dict[str, Any]) -> Report:
    recipients = _recipients(complaint, "complainedRecipients", "failed")
    if text_in(complaint, "complaintSubType").lower() in _OWN:
        said = "Amazon SES did not send it: the address is on the account's suppression list"
        return Report(DSN, tuple(one._replace(final="", diagnostic=said) for one in recipients))
    # Not every provider says of which kind it is.
    return Report(COMPLAINT, (), text_in(complaint, "complaintFeedbackType").lower() or "complaint")


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
