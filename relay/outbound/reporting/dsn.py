"""Reports to submitters: what became of their mail, as RFC 3464 has it.

`compose` writes one: a multipart/report (RFC 6522) of a text for people, a delivery status for
programs, and the message's header, or all of it where that was asked for.

Promises
- Each fact about a recipient is a line of its own, whatever a server said or a submitter named:
  no control character gets into a field, and no field is longer than lines may be.
- In ASCII, for any server, but where the submitter's own address is not (RFC 6533 then), and where
  a message that is returned whole has 8-bit bytes.
- The message is returned up to `FULL_MOST` bytes, its header up to `HEADER_MOST`; whole only with
  a failure (RFC 3461, 4.3).
- `relay.returns.report` reads it as what it says.

Fails: never.  Pure.
"""

from __future__ import annotations

import quopri
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from relay.outbound.composing.compose import date_of
from relay.smtp.dsn import from_xtext, original_recipient

FULL_MOST: Final = 64 * 1024
"""Bytes of a message that is returned whole; of a larger one its header is."""
HEADER_MOST: Final = 32 * 1024
"""Bytes of a header that are returned."""

EXPIRED, SUPPRESSED = "expired", "suppressed"
"""Errors of messages that were cancelled, in the words of the queue."""

_LINE = 76
_FIELD = 900  # characters of what was said


class Fate(NamedTuple):
    """The end, or the delay, of a message, which has one recipient.

    `action` is RFC 3464's: failed, delayed, relayed or delivered.  `code`, `enhanced`, `text` and
    `peer` are of the last attempt, or of what came back; `error` is why the message ended, where
    the queue says it in a word.  `attempted_at`: the last attempt; `until`: its deadline.
    """

    action: str
    recipient: str
    orcpt: str | None = None
    code: int | None = None
    enhanced: str | None = None
    text: str | None = None
    phase: str | None = None
    peer: str | None = None
    error: str | None = None
    attempted_at: datetime | None = None
    until: datetime | None = None


class Original(NamedTuple):
    """The message that is reported on.  `raw`: its first bytes, at least `FULL_MOST` if it has so
    many; `size`: how many it has; `envid` in xtext."""

    submitter: str
    created_at: datetime
    raw: bytes
    size: int
    ret: str | None = None
    envid: str | None = None


def compose(
    original: Original, fates: Sequence[Fate], *, hostname: str, id: UUID, now: datetime
) -> bytes:
    """Write a report, whose id makes its Message-ID; line ends are CRLF."""
    world = not original.submitter.isascii()
    boundary = f"=_relay_{id.hex}"
    human = _part("text/plain; charset=utf-8", _human(fates, hostname))
    kind = "message/global-delivery-status" if world else "message/delivery-status"
    status = _raw_part(kind, _status(original, fates, hostname, world=world))
    parts = [human, status, _returned(original, fates, world=world)]
    eight_bit = not all(part.isascii() for part in parts)
    head = [
        f"Date: {date_of(now)}",
        f"From: Mail Delivery System <MAILER-DAEMON@{hostname}>",
        f"To: <{_line(original.submitter)}>",
        f"Subject: {_subject(fates)}",
        f"Message-ID: <{id}@{hostname}>",
        *_about(original.raw),
        "Auto-Submitted: auto-replied",
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type=delivery-status;\r\n\tboundary="{boundary}"',
        *(["Content-Transfer-Encoding: 8bit"] if eight_bit else []),
    ]
    mark = b"--" + boundary.encode()
    pieces = ["\r\n".join([*head, "", "This is a MIME message.", ""]).encode()]
    for part in parts:
        pieces += [b"\r\n" if pieces[-1].endswith(b"\r\n") else b"\r\n\r\n", mark, b"\r\n", part]
    return b"".join((*pieces, b"\r\n", mark, b"--\r\n"))


# For people ---------------------------------------------------------------------------------------

_SUBJECTS = {
    "failed": "Undelivered mail returned to sender",
    "delayed": "Delayed mail (it is still being tried)",
    "relayed": "Mail was passed on",
    "delivered": "Mail was delivered",
}


def _subject(fates: Sequence[Fate]) -> str:
    actions = {fate.action for fate in fates}
    return next(text for action, text in _SUBJECTS.items() if action in actions)


_SAID = {
    "failed": "Your message could not be delivered to this recipient. It is not tried again.",
    "delayed": "Your message is not delivered to this recipient yet. It is still being tried:\r\n"
    "you need not send it again.",
    "relayed": "Your message was passed on for this recipient to a server that does not report\r\n"
    "success. You may hear no more of it.",
    "delivered": "Your message was delivered to this recipient.",
}


def _human(fates: Sequence[Fate], hostname: str) -> str:
    lines = [f"This is the mail server {hostname}."]
    for fate in fates:
        lines += ["", f"<{_line(fate.recipient)}>", "", _SAID[fate.action]]
        why = _why(fate)
        if why:
            lines += ["", *(f"    {line}" for line in _wrapped(why, _LINE - 4))]
        if fate.action == "delayed" and fate.until is not None:
            lines += ["", f"It is given up at {date_of(fate.until)}."]
    return "\r\n".join([*lines, ""])


def _why(fate: Fate) -> str:
    """The reason as far as it is known, for people."""
    said = _line(fate.text or "")
    if fate.error == EXPIRED:
        return "Its deadline has passed." + (f" The last attempt: {said}" if said else "")
    if fate.error == SUPPRESSED:
        return "The recipient is on the suppression list."
    if fate.action in {"relayed", "delivered"}:
        return ""
    return said


# For programs -------------------------------------------------------------------------------------


def _status(original: Original, fates: Sequence[Fate], hostname: str, *, world: bool) -> str:
    blocks = [[f"Reporting-MTA: dns; {hostname}"]]
    if original.envid:
        blocks[0].append(f"Original-Envelope-Id: {_line(from_xtext(original.envid))}")
    blocks[0].append(f"Arrival-Date: {date_of(original.created_at)}")
    blocks += [_fields_of(fate, world=world) for fate in fates]
    return "\r\n\r\n".join("\r\n".join(map(_folded, block)) for block in blocks) + "\r\n"


def _fields_of(fate: Fate, *, world: bool) -> list[str]:
    fields = []
    found = original_recipient(fate.orcpt) if fate.orcpt else None
    if found is not None:
        fields.append(f"Original-Recipient: {_typed(*found, world=world)}")
    fields.append(f"Final-Recipient: {_typed('rfc822', fate.recipient, world=world)}")
    fields.append(f"Action: {fate.action}")
    fields.append(f"Status: {status_of(fate)}")
    if fate.peer and fate.action != "delivered":
        fields.append(f"Remote-MTA: dns; {_host(fate.peer)}")
    text = _line(fate.text or "")
    if text and fate.error != SUPPRESSED:
        kind = "smtp" if _REPLY.match(text) else "x-relay"
        if not world:
            text = text.encode("ascii", "replace").decode()
        fields.append(f"Diagnostic-Code: {kind}; {text}")
    if fate.attempted_at is not None:
        fields.append(f"Last-Attempt-Date: {date_of(fate.attempted_at)}")
    if fate.action == "delayed" and fate.until is not None:
        fields.append(f"Will-Retry-Until: {date_of(fate.until)}")
    return fields


_REPLY = re.compile(r"[245][0-9]{2}(?: |$)")
_CODE = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}")
_NETWORK = frozenset({"connect", "ehlo"})


def status_of(fate: Fate) -> str:
    """The status code of RFC 3463: the one that was said where it fits what became of it."""
    fits = {"failed": "45", "delayed": "4"}.get(fate.action, "2")
    if fate.error == SUPPRESSED:
        return "5.7.1"
    if fate.error == EXPIRED:
        return "4.4.7"
    if fate.enhanced and _CODE.fullmatch(fate.enhanced) and fate.enhanced[0] in fits:
        return fate.enhanced
    if fits == "2":
        return "2.0.0"
    if fate.code is None and fate.phase in _NETWORK:
        return "4.4.1"
    first = str(fate.code)[0] if fate.code else ""
    return f"{first if first and first in fits else fits[-1]}.0.0"


def _typed(kind: str, address: str, *, world: bool) -> str:
    """An address as RFC 3464 has it, and outside ASCII RFC 6533."""
    if address.isascii():
        return f"{kind}; {_line(address)}"
    if not world:
        address = "".join(
            each if each.isascii() else rf"\x{{{ord(each):X}}}" for each in address
        )  # fmt: skip
    return f"utf-8; {_line(address)}"


def _host(peer: str) -> str:
    """The name in `host[address]:port`."""
    return _line(peer.partition("[")[0] or peer.rpartition(":")[0]).partition(":")[0]


# What is returned ---------------------------------------------------------------------------------


def _returned(original: Original, fates: Sequence[Fate], *, world: bool) -> bytes:
    failed = any(fate.action == "failed" for fate in fates)
    raw = original.raw
    if original.ret == "FULL" and failed and original.size <= min(FULL_MOST, len(raw)):
        kind = "message/global" if world else "message/rfc822"
        encoding = b"" if raw.isascii() else b"Content-Transfer-Encoding: 8bit\r\n"
        return b"Content-Type: %b\r\n%b\r\n%b" % (kind.encode(), encoding, raw)
    header = _header(raw)
    if world:
        encoding = b"" if header.isascii() else b"Content-Transfer-Encoding: 8bit\r\n"
        return b"Content-Type: message/global-headers\r\n%b\r\n%b" % (encoding, header)
    if header.isascii() and all(len(line) <= _LONGEST for line in header.split(b"\r\n")):
        return b"Content-Type: text/rfc822-headers\r\n\r\n" + header
    return _quoted("text/rfc822-headers; charset=utf-8", header)


_LONGEST = 998


def _header(raw: bytes) -> bytes:
    """The header of a message, as far as it is returned, up to the end of a line."""
    if raw.startswith(b"\r\n"):
        return b""
    end = raw.find(b"\r\n\r\n")
    header = raw if end < 0 else raw[: end + 2]
    if len(header) > HEADER_MOST:
        header = header[: header.rfind(b"\r\n", 0, HEADER_MOST) + 2]
    return header


_MESSAGE_ID = re.compile(
    rb"^message-id:(?:[ \t]|\r\n[ \t])*(<[!-;=?-~]{1,250}>)[ \t]*\r\n", re.IGNORECASE | re.MULTILINE
)


def _about(raw: bytes) -> list[str]:
    """The fields that make a thread of it for readers."""
    found = _MESSAGE_ID.search(_header(raw))
    if found is None:
        return []
    named = found[1].decode("ascii")
    return [f"In-Reply-To: {named}", f"References: {named}"]


# Lines and parts ----------------------------------------------------------------------------------


def _line(text: str) -> str:
    """A text as one line, cut."""
    text = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(text.split())[:_FIELD]


def _wrapped(text: str, width: int) -> list[str]:
    """A line cut between words."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def _folded(field: str) -> str:
    return "\r\n\t".join(_wrapped(field, _LINE))


def _part(kind: str, text: str) -> bytes:
    """A text, quoted where it must be."""
    if text.isascii() and all(len(line) <= _LONGEST for line in text.split("\r\n")):
        return f"Content-Type: {kind}\r\n\r\n{text}".encode("ascii")
    return _quoted(kind, text.encode("utf-8", "replace"))


def _raw_part(kind: str, text: str) -> bytes:
    encoding = "" if text.isascii() else "Content-Transfer-Encoding: 8bit\r\n"
    return f"Content-Type: {kind}\r\n{encoding}\r\n{text}".encode("utf-8", "replace")


def _quoted(kind: str, content: bytes) -> bytes:
    quoted = quopri.encodestring(content.replace(b"\r\n", b"\n")).replace(b"\n", b"\r\n")
    head = f"Content-Type: {kind}\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    return head.encode() + quoted


def in_utc(at: datetime | None) -> datetime | None:
    """An instant as `date_of` shows it alike, whatever zone the session has."""
    return None if at is None else at.astimezone(UTC)
