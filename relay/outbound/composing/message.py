"""An outbound message as its author means it, checked field by field.

`Message` is the one shape of it: what `POST /messages/send`, a token's letter and the tests make,
what `enqueue` stores, and what is composed again when it is claimed.  `Address` is one address with
its display name; `parse_address` reads the form in which callers write one.

Promises: what passed holds no control character and no line separator where a header will be
made from it, and every address in it is one that SMTP can carry.  A domain outside ASCII becomes
its A-label, so that only a local part outside ASCII needs SMTPUTF8; that is in NFC, so that lists
of addresses find it however its letters were composed.

Fails with `MalformedMessage`, one sentence that names the field, before anything is stored.

Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from relay.access.owners import ADMINISTRATOR_ID
from relay.addresses import ATEXT, MAX_BYTES, MAX_LOCAL_BYTES, a_labels
from relay.errors import PermanentFailure
from relay.smtp.dsn import NO_PARAMETERS, MailParameters, RcptParameters

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""The instants that a message may have; as in migration 0015."""

MAX_FIELD_CHARS = 10_000
"""Characters of one header field; a subject of more is a mistake."""

_ATOM = rf"[{ATEXT}\u00a1-\ud7ff\uf900-\U0010ffff]+"
_DOT_ATOM = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*|\[(?:[0-9.]{{7,15}}|IPv6:[0-9A-Fa-f:.]{{2,45}})\]")


class MalformedMessage(PermanentFailure, ValueError):
    """A field of a message is not usable; the sentence names it, and so does `field`; `reason` is
    the rest of it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.field = name
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Address:
    """One address and its display name: local part as written, in NFC, domain in lower-case
    A-labels."""

    address: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to go with a message."""

    filename: str
    content_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskedFor:
    """What was asked for with a message that came by submission.

    `rcpt_parameters` by a recipient's address in lower case; who is missing asked for nothing.
    `reports`: whether its submitter is told anything, and the next server what was asked for.
    """

    mail_parameters: MailParameters = NO_PARAMETERS
    rcpt_parameters: Mapping[str, RcptParameters] = field(default_factory=dict)
    reports: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be sent to whom: becomes one queued message a recipient.

    `send_at` None means now, `not_after` that it is cancelled instead of delivered from then on,
    `letter_of` that it is the letter of that token and ends with it, `hold_unknown` that an unknown
    outcome is held instead of tried again.
    `tls_optional`: it goes whatever TLS the recipients' domains ask for (RFC 8689, 3).
    `submitted`: what its submitter wants to be told, None where it did not come by submission;
    `route_as`: of a report to a submitter, the address whose upstream it takes.
    """

    sender: Address
    recipients: Sequence[Address]
    subject: str
    text: str | None = None
    html: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    attachments: Sequence[Attachment] = ()
    priority: str = "normal"
    send_at: datetime | None = None
    not_after: datetime | None = None
    letter_of: int | None = None
    hold_unknown: bool = False
    owner: UUID = ADMINISTRATOR_ID
    raw: bytes | None = field(default=None, repr=False)
    tag: str | None = None
    tls_optional: bool = False
    submitted: AskedFor | None = None
    route_as: str | None = None


def check_text(text: str, name: str, *, limit: int | None = MAX_FIELD_CHARS) -> str:
    """Return `text` if a header can be made of it, else raise MalformedMessage."""
    if limit is not None and len(text) > limit:
        raise MalformedMessage(name, f"has over {limit} characters")
    if not (text.isascii() and text.isprintable()):
        for character in text:
            kind = unicodedata.category(character)
            if kind in {"Cc", "Zl", "Zp", "Cs"} and character != "\t":
                raise MalformedMessage(name, "holds a control character or a line break")
    return text


def parse_address(text: str, name: str) -> Address:
    """Read `a@b`, `<a@b>`, `Name <a@b>` or `"Name, the" <a@b>`; one address, no group."""
    text = check_text(text, name).strip()
    if not text.endswith(">"):
        return Address(_address(text, name))
    shown, found, address = text[:-1].rpartition("<")
    if not found:
        raise MalformedMessage(name, "has a > without its <")
    shown = shown.strip()
    quoted = _QUOTED.fullmatch(shown)
    if quoted is not None:
        shown = re.sub(r"\\(.)", r"\1", quoted[1])
    elif any(mark in shown for mark in '<>"'):
        raise MalformedMessage(name, "has quotes or angle brackets that do not match")
    return Address(_address(address.strip(), name), shown)


def bare_address(text: str, name: str) -> str:
    """Read an address that comes without a display name: as written, its domain as A-labels."""
    address = parse_address(text, name)
    if address.name:
        raise MalformedMessage(name, "must be an address alone, without a display name")
    return address.address


def plain_address(text: str, name: str = "address") -> str:
    """Return an address in the one form in which lists hold it; `MalformedMessage` if it is none.

    In lower case, without a display name, its domain as A-labels.
    """
    return bare_address(text, name).lower()


def parse_recipients(texts: Iterable[str], names: str) -> dict[str, Address]:
    """Return the recipients by their plain addresses: each once, as it was written first.

    `names` is what a `MalformedMessage` calls each, with its place as `{}`.
    """
    once: dict[str, Address] = {}
    for place, text in enumerate(texts):
        recipient = parse_address(text, names.format(place))
        once.setdefault(recipient.address.lower(), recipient)
    return once


def checked_address(address: Address, name: str) -> Address:
    """Return an address as `parse_address` would: whoever queued by SQL may have stored any."""
    if not address.name:
        return parse_address(address.address, name)
    shown = check_text(address.name, name)
    return Address(_address(check_text(address.address, name).strip(), name), shown)


def _address(text: str, name: str) -> str:
    """Return one addr-spec, its domain in A-labels, its local part unquoted where that can be."""
    local, found, domain = unicodedata.normalize("NFC", text).rpartition("@")
    if not found or not local or not domain:
        raise MalformedMessage(name, "is not an address (local-part@domain)")
    quoted = _QUOTED.fullmatch(local)
    if quoted is not None:
        bare = re.sub(r"\\(.)", r"\1", quoted[1])
        if "<" in bare or ">" in bare:  # a careless server takes it for the end of the path
            raise MalformedMessage(name, "has an angle bracket in its local part")
        local = (
            bare
            if _DOT_ATOM.fullmatch(bare)
            else '"' + bare.replace("\\", "\\\\").replace('"', '\\"') + '"'
        )
    elif not _DOT_ATOM.fullmatch(local) or any(map(str.isspace, local)):
        raise MalformedMessage(name, "has a local part that needs quotes or is no local part")
    if not domain.isascii():
        try:
            domain = a_labels(domain)
        except ValueError as error:
            raise MalformedMessage(name, f"has a domain that {error}") from error
    if not _DOMAIN.fullmatch(domain):
        raise MalformedMessage(name, "has a domain that is no domain name")
    address = f"{local}@{domain if domain.startswith('[') else domain.lower()}"
    if len(address.encode()) > MAX_BYTES or len(local.encode()) > MAX_LOCAL_BYTES:
        raise MalformedMessage(name, "is too long for an address")
    return address
