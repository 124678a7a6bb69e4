"""Messages, attachments, checks and the like, as plain values, as they are read of a relay.

What needs another call (`raw`, an attachment's `content`, `checks()`) is added by what `Relay` and
`AsyncRelay` give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from relay_client._links import is_like
from relay_client._text import MAX_LINK, MAX_NAME, in_a_line, quoted, shown_match, visible
from relay_client.errors import NoSuchLink

__tracebackhide__ = True  # a test that fails shows the test

_LISTED = 20  # links, where none is like the one that is wanted

JSON = dict[str, Any]

State = Literal["queued", "processing", "sent", "failed", "bounced", "cancelled", "held"]
"""Where a message that was sent is."""


class Headers(Mapping[str, str]):
    """A message's header fields, decoded; names in any case.

    Of a field that repeats (`Received`) this is the first; `get_all` has the others.
    """

    def __init__(self, fields: Mapping[str, str | list[str]]) -> None:
        self._fields = {
            name: [found] if isinstance(found, str) else list(found)
            for name, found in fields.items()
        }
        self._names = {name.lower(): name for name in reversed(list(fields))}

    def __getitem__(self, name: str) -> str:
        return self._fields[self._names[name.lower()]][0]

    def get_all(self, name: str) -> list[str]:
        """Return what each field of that name says, in their order; empty if there is none."""
        key = name.lower()
        return [
            value for one, found in self._fields.items() if one.lower() == key for value in found
        ]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return visible(f"Headers({self._fields!r})")


class MessageData:
    """A message as it came."""

    def __init__(self, found: JSON) -> None:
        self.id: str = found["id"]
        self.sender: str | None = found["from_address"]
        """The From header's address; None if there is none."""
        self.to: str = found["to"]
        """The recipient, as the sender's server named it."""
        self.subject: str | None = found["subject"]
        self.received_at: datetime = parsed_time(found["received_at"])
        self.size: int = found["size"]
        """Bytes of the raw message."""
        self.text: str | None = found["body_text"]
        self.html: str | None = found["body_html"]
        self.code: str | None = found["otp"]
        """The likeliest one-time code in it."""
        self.links: list[str] = list(found["links"])
        """The links in it, each once."""
        self.headers = Headers(found["headers"])

    def link(self, match: str | re.Pattern[str] | None = None) -> str:
        """Return the first link that matches; `NoSuchLink` if none does.

        A text with a dot and no slash is a host, itself or a parent domain (`shop.example`), one
        with a scheme the beginning of the link, with its whole host (`https://shop.example/reset`);
        any other is a part of path and query (`/reset`); a pattern is searched for in the whole
        link.  Without one it is the first link of all.  What has a host that not everybody reads
        alike is like none but a pattern.
        """
        for link in self.links:
            if match is None or _matches(link, match):
                return link
        where = "a message without a subject" if self.subject is None else quoted(self.subject)
        if match is None:
            raise NoSuchLink(f"no link in {where}")
        listed = "".join(f"\n  {in_a_line(link, MAX_LINK)}" for link in self.links[:_LISTED])
        if len(self.links) > _LISTED:
            listed += f"\n  and {len(self.links) - _LISTED} more"
        listed = listed or " none"
        raise NoSuchLink(f"no link like {shown_match(match)} in {where}; its links:{listed}")

    def __repr__(self) -> str:
        subject = None if self.subject is None else quoted(self.subject)
        sender = in_a_line(self.sender or "", MAX_NAME) or self.sender
        return f"<{type(self).__name__} {subject} from {sender}>"


def id_of(message: MessageData | str | None) -> str | None:
    """Return the id of a message, or what is one."""
    return message.id if isinstance(message, MessageData) else message


def _matches(link: str, match: str | re.Pattern[str]) -> bool:
    if not isinstance(match, str):
        return match.search(link) is not None
    return is_like(link, match)


class AttachmentData:
    """What is known of an attachment before it is fetched."""

    def __init__(self, found: JSON) -> None:
        self.index: int = found["index"]
        self.filename: str | None = found["filename"]
        self.content_type: str = found["content_type"]
        self.size: int = found["size"]
        """Bytes of the content."""
        self.content_id: str | None = found["content_id"]

    def __repr__(self) -> str:
        name = None if self.filename is None else quoted(self.filename)
        kind = in_a_line(self.content_type, MAX_NAME)
        return f"<{type(self).__name__} {name} {kind} {self.size} bytes>"


class _Shown:
    """A record whose `repr` has what strangers said as errors have it."""

    def __repr__(self) -> str:
        found = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return visible(f"{type(self).__name__}({found})")


@dataclass(frozen=True, repr=False)
class Check(_Shown):
    """What SPF, DKIM or DMARC says: a `result` of its RFC, and why."""

    result: str
    detail: str


@dataclass(frozen=True, repr=False)
class Finding(_Shown):
    """Something that receivers or readers would mind."""

    id: str
    severity: str
    text: str


@dataclass(frozen=True, repr=False)
class Checks(_Shown):
    """Whether the world would take a message."""

    spf: Check
    dkim: Check
    dmarc: Check
    score: float
    """0 to 10."""
    reasons: tuple[str, ...]
    """What it is short of 10 for, and by."""
    findings: tuple[Finding, ...]


def parsed_checks(found: JSON) -> Checks:
    """Read the answer of `…/checks`."""

    def check(name: str) -> Check:
        return Check(found[name]["result"], found[name]["detail"])

    findings = tuple(Finding(one["id"], one["severity"], one["text"]) for one in found["findings"])
    return Checks(
        check("spf"),
        check("dkim"),
        check("dmarc"),
        found["score"],
        tuple(found["reasons"]),
        findings,
    )


@dataclass(frozen=True, repr=False)
class Info(_Shown):
    """Where a relay takes mail: `host:port` each, None for what it does not serve."""

    version: str
    smtp: str | None
    submission: str | None
    domains: tuple[str, ...]
    """Its own domains; with `capture` it takes mail for all others, too."""
    capture: bool
    starttls: bool
    public_url: str


def parsed_info(found: JSON) -> Info:
    """Read the answer of `/api/v1/info`."""
    return Info(
        found["version"],
        found["smtp"],
        found["submission"],
        tuple(found["domains"]),
        found["capture"],
        found["starttls"],
        found["public_url"],
    )


@dataclass(frozen=True, repr=False)
class OutboundEntry(_Shown):
    """What has become of a message that was sent."""

    id: str
    sender: str | None
    """Its reverse-path."""
    recipient: str | None
    subject: str | None
    status: State
    attempts: int
    next_retry_at: datetime | None
    sent_at: datetime | None
    priority: str
    error: str | None
    created_at: datetime
    not_after: datetime | None
    tag: str | None
    peer: str | None
    """The server that the last attempt spoke to."""
    tls: str | None
    """The version of TLS of the last attempt."""
    reply: str | None
    """What the server said that took it, redacted as `error` is."""


def parsed_entry(found: JSON) -> OutboundEntry:
    """Read the answer of `/api/v1/outbound/{id}`."""

    def at(name: str) -> datetime | None:
        return None if found[name] is None else parsed_time(found[name])

    return OutboundEntry(
        id=found["id"],
        sender=found["sender"],
        recipient=found["recipient"],
        subject=found["subject"],
        status=found["status"],
        attempts=found["attempts"],
        next_retry_at=at("next_retry_at"),
        sent_at=at("sent_at"),
        priority=found["priority"],
        error=found["error"],
        created_at=parsed_time(found["created_at"]),
        not_after=at("not_after"),
        tag=found["tag"],
        peer=found["peer"],
        tls=found["tls"],
        reply=found["reply"],
    )


def parsed_time(text: str) -> datetime:
    """Read an instant of the relay's; it has an offset."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
