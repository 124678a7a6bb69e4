"""What follows for a message from what came back of it.

Promises

    the report says of our recipient         the message        its recipient is suppressed
    ---------------------------------------  -----------------  ---------------------------------
    failed, whatever its class               bounced            at once if the reason is that there
                                                                is no such address (`_GONE`); the
                                                                third time in `FULL_WITHIN` if the
                                                                mailbox is full (x.2.2)
    delayed                                  stays, `delayed`   no
    delivered, relayed, expanded             stays              no
    a complaint (abuse, fraud, opt-out)      stays, complained  at once
    anything else                            stays              no

- Never suppressed is who a receiver did not name, what it refused for policy (x.7.x, or words of
  it) or for now, and what it said of the sender (5.1.7, 5.1.8); nor whom a report of a failure
  names that is from somebody: such reports are from nobody, and some servers break that.
- Of several recipients that a report names ours is the one that counts; where it names others only
  (mail was forwarded), the message bounced and nobody is suppressed; of a text without a standard
  nothing follows then.
- A final refusal of our recipient while a message is delivered is a report of it (`refusal`), and
  so is one for now with which the relay gives a message up.

Pure.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from relay.returns.report import COMPLAINT, DSN, TEXT, Recipient, Report

FULL_WITHIN = 30
"""Days within which full mailboxes are counted,"""
FULL_MOST = 3
"""and how many of them suppress."""


class Kind(StrEnum):
    """What happened to a message after it was sent; the end of the name of its event."""

    BOUNCED = "bounced"
    DELAYED = "delayed"
    COMPLAINED = "complained"


class Finding(NamedTuple):
    """What follows from a report; `enhanced` and `error` are the receiver's words."""

    kind: Kind
    enhanced: str | None = None
    error: str = ""
    suppress: bool = False
    """Whether the recipient is suppressed at once."""
    is_full: bool = False
    """Whether their mailbox was full."""


_GONE = {"5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.6", "5.1.10"}
"""There is no such mailbox, no such domain, no such address, or it takes no mail."""
_ACTIONS = {"failed", "delayed", "delivered", "relayed", "expanded"}
_SAID = {"failure": "failed", "error": "failed", "fail": "failed", "delay": "delayed"}
_COMPLAINTS = {"abuse", "fraud", "opt-out", "opt-out-list", "complaint", "not-requested"}
_ENHANCED = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])")
_POLICY = re.compile(
    # what they think of the mail
    r"spam|virus|malware|phish|fraud|content|unsolicited|suspicious|abus|complain|unusual"
    # of whoever sends it
    r"|black ?-?list|block ?-?list|\bblocked\b|reputation|dnsbl|\brbl\b|spamhaus|\bzen\b"
    r"|(?<!not )(?<!n't )\blisted\b|\bip\b|rdns|reverse dns|sending activity|sender rejected"
    r"|dmarc|\bspf\b|dkim|authenticat|unauthori[sz]ed|resource record"
    # what they let nobody do
    r"|policy|denied|forbidden|prohibited|restrict|not (?:allowed|permitted|authori[sz]ed)"
    r"|relay(?:ing)? (?:access|not|is not)|(?:not|unable to|cannot|do not|don't|no) relay"
    r"|grey ?-?list|rate ?-?limit|throttl",
    re.IGNORECASE,
)
_PASSING = re.compile(r"temporar|try again|dns (?:failure|error|time)", re.IGNORECASE)


def may_be_gone(text: str) -> bool:
    """Whether the words of a refusal leave it to be for there being nobody: neither for policy nor,
    whatever its code, for now.
    """
    return not _is_for_policy(text) and _PASSING.search(_without_paths(text)) is None


def _is_for_policy(text: str) -> bool:
    return _POLICY.search(_without_paths(text)) is not None


def _without_paths(text: str) -> str:
    """Of a URL only the host counts (a block list's is a reason), not what its path says."""
    return " ".join(map(_unlinked, text.split()))


def _unlinked(word: str) -> str:
    """A word, without the path where it is a URL."""
    before, scheme, rest = word.partition("://")
    if scheme:
        return f"{before} {re.split('[/?#]', rest, maxsplit=1)[0]}"
    host, slash, _ = word.partition("/")
    is_host = slash and "." in host and any(map(str.isalpha, host))
    return host if is_host else word


def finding(report: Report, recipient: str, *, from_nobody: bool = True) -> Finding | None:
    """Return what follows from a report of mail to `recipient`; None: nothing.

    `from_nobody`: whether it came with the null sender.
    """
    found = _finding(report, recipient)
    if found is None or from_nobody or found.kind is Kind.COMPLAINED:
        return found
    return found._replace(suppress=False, is_full=False)


def _finding(report: Report, recipient: str) -> Finding | None:
    if report.kind == COMPLAINT:
        if report.feedback not in _COMPLAINTS:
            return None
        return Finding(Kind.COMPLAINED, error=report.feedback, suppress=True)
    if report.kind not in {DSN, TEXT}:
        return None
    ours = [one for one in report.recipients if _names(one, recipient)]
    if ours:
        # Refused and tried again in one report: what is worst counts.
        return max((_of(one, named=True) for one in ours), key=_weight)
    if report.kind == TEXT:
        return None
    found = [_of(one, named=False) for one in report.recipients]
    return max(found, key=_weight, default=None)


def refusal(enhanced: str, text: str) -> Finding | None:
    """What follows from a refusal of a message's one recipient, heard at once, that is final by its
    code (5yz), or as the relay has given up after it; None: nothing, as it says that it was none.
    """
    return _of(Recipient(action="failed", status=enhanced, diagnostic=text), named=True)


def _weight(found: Finding | None) -> int:
    return 0 if found is None else 2 if found.kind is Kind.BOUNCED else 1


def _of(one: Recipient, *, named: bool) -> Finding | None:
    action = _SAID.get(one.action, one.action)
    if action not in _ACTIONS:  # some leave it out, or have words of their own
        action = {"5": "failed", "4": "delayed"}.get(one.status[:1], "")
    enhanced = _enhanced(one)
    if action == "delayed":
        return Finding(Kind.DELAYED, enhanced, one.diagnostic)
    if action != "failed" or one.status.startswith("2"):
        return None
    fits = named and not _is_for_policy(one.diagnostic) and not _is_policy(one)
    return Finding(
        Kind.BOUNCED,
        enhanced,
        one.diagnostic,
        suppress=fits and enhanced in _GONE and may_be_gone(one.diagnostic),
        is_full=fits and enhanced is not None and enhanced.endswith(".2.2"),
    )


def _enhanced(one: Recipient) -> str | None:
    """The status that says most: that of the reply where the other is a general one."""
    said = _ENHANCED.search(one.diagnostic)
    if one.status and not one.status.endswith(".0.0"):
        return one.status
    return said[1] if said else one.status or None


def _is_policy(one: Recipient) -> bool:
    said = (one.status, *_ENHANCED.findall(one.diagnostic))
    return any(status.split(".")[1] == "7" for status in said if status)


def _names(one: Recipient, recipient: str) -> bool:
    wanted = recipient.lower()
    return wanted in {one.final.lower(), one.original.lower(), _xtext(one.original).lower()}


def _xtext(text: str) -> str:
    """An address as ORCPT carries it (RFC 3461, 4), decoded."""
    return re.sub(r"\+([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text)
