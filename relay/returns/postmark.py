"""Reports of Postmark of mail that it took: bounces, spam complaints, changes of suppressions.

Format: the webhooks of Postmark (its developer documentation, "Webhooks"; the types of bounces:
"Bounce API").  `RecordType` says which it is.  Postmark has return paths of its own and repeats no
field of a message but those whose name begins with `X-PM-Metadata-`: their values are in
`Metadata`, and that of the field that we write is what a message is known by.  The others are
whoever's who wrote the message.

Promises
- A webhook is read as a `Report`, so that `relay.returns.law` says what follows, as for mail that
  comes back:

    Postmark says                            the report
    ---------------------------------------  ---------------------------------------------------
    HardBounce; SoftBounce, with which it    failed; the status stands in the words of the
    gives up                                 receiver, which are Details
    Blocked, SpamNotification, DMARCPolicy   failed, and nobody is named: it was for policy
    BadEmailAddress, ManuallyDeactivated,    failed, and nobody is named: Postmark did not send it
    SMTPApiError
    Transient, DnsError: it tries again      delayed
    SpamComplaint, as a record or a bounce   a complaint
    SubscriptionChange after a complaint     a complaint
    SubscriptionChange of the recipient's    none, but the recipient is unsubscribed
    anything else                            none (`read` returns None)

- A SubscriptionChange after a bounce says nothing: the bounce does, and with the receiver's words.

Fails: `MalformedReport` for a record without the members that it needs.  Pure.  Whether it is
Postmark that says so is for the caller to find out first.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from relay.returns.report import COMPLAINT, DSN, NOTHING, Recipient, Report
from relay.returns.upstream_report import MalformedReport, UpstreamReport, text_in

_PREFIX = "x-pm-metadata-"

_FAILED = {"hardbounce", "softbounce"}
_UNSENT = {
    *("blocked", "spamnotification", "dmarcpolicy"),
    *("bademailaddress", "manuallydeactivated", "smtpapierror"),
}
_DELAYED = {"transient", "dnserror"}


def read(record: dict[str, Any], field: str) -> UpstreamReport | None:
    """Read a record; None: nothing follows from it, whatever it is.

    `field`: the name of that by which messages are known; another than Postmark's: none is.
    """
    kind = record["RecordType"]
    if not isinstance(kind, str):
        raise MalformedReport("RecordType is not a string.")
    report = _report(kind.lower(), record)
    unsubscribes = kind.lower() == "subscriptionchange" and _unsubscribes(record)
    if report is None and not unsubscribes:
        return None
    metadata = record.get("Metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise MalformedReport("Metadata is not an object.")
    field = field.lower()
    names = (
        value
        for name, value in metadata.items()
        if isinstance(value, str) and _PREFIX + name.lower() == field
    )
    return UpstreamReport(tuple(islice(names, 1)), report or NOTHING, unsubscribes)


def _report(kind: str, record: dict[str, Any]) -> Report | None:
    if kind == "bounce":
        return _bounce(record)
    if kind == "spamcomplaint":
        return Report(COMPLAINT, (), "abuse")
    if kind == "subscriptionchange":
        if not isinstance(record.get("SuppressSending"), bool):
            raise MalformedReport("SuppressSending is missing or is not a boolean.")
        reason = text_in(record, "SuppressionReason").lower()
        if record["SuppressSending"] and reason == "spamcomplaint":
            return Report(COMPLAINT, (), "abuse")
    return None


def _unsubscribes(record: dict[str, Any]) -> bool:
    """Whether the recipient has followed a link of Postmark's, and none of ours."""
    reason, origin = (text_in(record, name).lower() for name in ("SuppressionReason", "Origin"))
    return bool(record["SuppressSending"]) and (reason, origin) == (
        "manualsuppression",
        "recipient",
    )


def _bounce(record: dict[str, Any]) -> Report | None:
    kind = record.get("Type")
    if not isinstance(kind, str):
        raise MalformedReport("Type is missing or is not a string.")
    if not isinstance(record.get("Email"), str):
        raise MalformedReport("Email is missing or is not a string.")
    kind = kind.lower()
    if kind == "spamcomplaint":
        return Report(COMPLAINT, (), "abuse")
    said = text_in(record, "Details") or text_in(record, "Description")
    if kind in _FAILED:
        return Report(DSN, (Recipient(text_in(record, "Email"), action="failed", diagnostic=said),))
    if kind in _UNSENT:
        return Report(DSN, (Recipient(action="failed", diagnostic=said),))
    if kind in _DELAYED:
        one = Recipient(text_in(record, "Email"), action="delayed", diagnostic=said)
        return Report(DSN, (one,))
    return None
