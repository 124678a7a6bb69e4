"""Mailboxes and messages as they are read, and the columns that each record is read from.

A record is made of a row by position: `ENTRY_COLUMNS` are the fields of `Entry` in their order,
and so on.  `as_json` is what the HTTP API shows of it.  In the SQL `b` is relay.mailboxes, `m`
relay.messages and `s` relay.summaries.  Pure.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from relay.mailboxes.summary import text_of
from relay.mailboxes.usage import LIMITED, USED, Usage
from relay.times import rfc3339

T = TypeVar("T")


@dataclass(frozen=True)
class Mailbox:
    """A live mailbox; `expires_in` is the seconds it had left when it was read.

    `usage` is None where nobody asked for it.
    """

    id: UUID
    address: str
    plan: str
    owner_type: str
    owner_id: UUID | None
    webhook_url: str | None
    created_at: datetime
    expires_at: datetime
    expires_in: float
    is_active: bool
    usage: Usage | None = None

    def as_json(self) -> dict[str, Any]:
        """The mailbox as the HTTP API shows it, which needs its `usage`."""
        usage = self.usage or Usage()
        return {
            "address": self.address,
            "expires_at": rfc3339(self.expires_at),
            "is_active": self.is_active,
            "owner_type": self.owner_type,
            "message_count": usage.messages,
            "unread_count": usage.unread,
            "bytes": usage.bytes,
            "max_messages": usage.max_messages,
            "max_bytes": usage.max_bytes,
            "plan": self.plan,
            "created_at": rfc3339(self.created_at),
        }


@dataclass(frozen=True)
class Created:
    """A new mailbox; `session_token` is None when a key or the administrator owns it."""

    mailbox: Mailbox
    session_token: str | None

    def as_json(self) -> dict[str, Any]:
        """The answer of the call that creates a mailbox."""
        return {
            "address": self.mailbox.address,
            "expires_at": rfc3339(self.mailbox.expires_at),
            "session_token": self.session_token,
            "plan": self.mailbox.plan,
        }


@dataclass(frozen=True)
class Entry:
    """A message as a list shows it; `summarised` is False while it still waits for parsing."""

    id: UUID
    from_address: str
    subject: str | None
    received_at: datetime
    is_read: bool
    has_attachments: bool | None
    size: int
    summarised: bool
    seq: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as the HTTP API shows it."""
        return {
            "id": str(self.id),
            "from_address": self.from_address,
            "subject": self.subject,
            "received_at": rfc3339(self.received_at),
            "is_read": self.is_read,
            "has_attachments": self.has_attachments,
            "size": self.size,
        }

    @property
    def loaded(self) -> int:
        """Bytes of memory that its texts take, which are the most of it."""
        # Of one wide character a text has as many bytes for each.
        return sys.getsizeof(self.subject)


class Arrived(NamedTuple):
    """How a message arrived.

    `reverse_path`: empty for the null one; `at`: seconds since 1970; `client`: the IP address that
    it came from (None: this machine, or nobody knows), which called itself `helo`.
    """

    size: int
    reverse_path: str
    at: float
    client: str | None = None
    helo: str = ""


@dataclass(frozen=True)
class ReceivedMessage(Entry):
    """One message with everything that was parsed; `error` says why parsing was partial."""

    to: str = ""
    headers: list[list[str]] = field(default_factory=list)
    body_text: str | None = None
    body_html: str | None = None
    attachments: list[dict[str, Any]] = field(default_factory=list)
    otp: str | None = None
    links: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def loaded(self) -> int:
        """The same."""
        return sys.getsizeof(self.body_text) + sys.getsizeof(self.body_html)

    def as_json(self) -> dict[str, Any]:
        """The message as the HTTP API shows it.

        `headers` is an object; a name that occurs several times has a list of values.
        """
        headers: dict[str, str | list[str]] = {}
        for name, value in self.headers:
            known = headers.get(name)
            if known is None:
                headers[name] = value
            elif isinstance(known, list):
                known.append(value)
            else:
                headers[name] = [known, value]
        return {
            **super().as_json(),
            "to": self.to,
            "headers": headers,
            "body_text": self.body_text,
            "body_html": self.body_html,
            "attachments": self.attachments,
            "otp": self.otp,
            "links": self.links,
            "error": self.error,
        }


@dataclass(frozen=True)
class Placed:
    """Where a message is, how it is tagged, how its text begins, the code in it, and what its
    sender is called.

    `beginning` is of the text, or of the HTML of a message without one (`is_html`).
    """

    mailbox: str
    tags: list[str]
    beginning: str | None
    is_html: bool
    otp: str | None = None
    from_name: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What lists show beside an entry, and calls over several mailboxes beside a message."""
        text = self.beginning or ""
        if self.is_html:
            text = text_of(text)
        snippet = _shortened(" ".join(text.split()), SNIPPET)
        return {
            "mailbox": self.mailbox,
            "tags": self.tags,
            "snippet": None if self.beginning is None else snippet,
            "otp": self.otp,
            "from_name": self.from_name,
        }

    @property
    def loaded(self) -> int:
        """Bytes of memory that its texts take."""
        return sys.getsizeof(self.beginning) + sum(map(sys.getsizeof, self.tags))


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list; `cursor` asks for the next part and is None at the end."""

    items: list[T]
    cursor: str | None


@dataclass(frozen=True)
class Found:
    """What a waiter found: the oldest match if any, and the seconds until the mailbox expires.

    `above`: where the next look begins, if there is no match.  `cut`: not all was looked at yet,
    what is there already is beyond `above`.
    """

    message: ReceivedMessage | None
    expires_in: float
    above: int = 0
    cut: bool = False


@dataclass(frozen=True)
class News(Generic[T]):
    """What became readable after a cursor, and the cursor to go on from.

    `expires_in`: seconds, of the one mailbox that is looked at.  `more`: something is readable that
    comes behind what is being stored; look again soon.
    """

    found: list[T]
    cursor: int
    expires_in: float | None
    more: bool = False


SHOWN = "coalesce(b.said, b.address)"
"""A mailbox's address, its domain as it was said."""
MAILBOX_COLUMNS = f"""
    b.id, {SHOWN}, b.plan, b.owner_type::text, b.owner_id, b.webhook_url, b.created_at,
    b.expires_at, extract(epoch FROM b.expires_at - now())::float8, b.is_active"""
USAGE_COLUMNS = f"""
    used.messages, used.bytes, used.unread,
    CASE WHEN {LIMITED} THEN p.max_messages END, CASE WHEN {LIMITED} THEN p.max_bytes END"""
WITH_USAGE = f"LEFT JOIN relay.plans p ON p.name = b.plan CROSS JOIN LATERAL ({USED}) used"
"""The join that `USAGE_COLUMNS` are read from."""
SUBJECT = 1000
"""Characters of a message's subject that lists show: a line of a mail has no more (RFC 5322)."""
_ENTRY = """
    m.id, coalesce(s.from_address, m.reverse_path), {subject}, m.received_at, m.is_read,
    s.has_attachments, m.size, s.message_id IS NOT NULL, s.seq"""
ENTRY_COLUMNS = _ENTRY.format(subject=f"left(s.subject, {SUBJECT + 1})")
MESSAGE_COLUMNS = (
    _ENTRY.format(subject="s.subject")
    + """, coalesce(b.said, m.recipient, b.address), s.body_text, s.body_html, s.otp, s.error,
    coalesce(s.details, CASE WHEN s.headers IS NOT NULL THEN json_build_object(
        'headers', s.headers, 'attachments', s.attachments, 'links', s.links)::text END)"""
)  # rows from before `details` have the three columns
_ENTRY_WIDTH, _PLACED_WIDTH = 9, 6
SNIPPET = 160
"""Characters of a message's text that lists show."""
PLACED_COLUMNS = f"""
    {SHOWN}, s.tags, CASE WHEN s.body_text IS NULL THEN left(s.body_html, 4000)
    ELSE left(s.body_text, 400) END, s.body_text IS NULL, s.otp,
    s.from_name"""


def message_of(row: tuple[Any, ...]) -> ReceivedMessage:
    """Return the record of a row of `MESSAGE_COLUMNS`."""
    to, text, html, otp, error, written = row[_ENTRY_WIDTH:]
    details = json.loads(written) if written else {}
    headers, attachments, links = (
        details.get(name) or [] for name in ("headers", "attachments", "links")
    )
    fields: list[Any] = [*row[:_ENTRY_WIDTH], to, headers, text, html]
    fields += [attachments, otp, links, error]
    return ReceivedMessage(*fields)


def whole_of(row: tuple[Any, ...]) -> tuple[ReceivedMessage, Placed]:
    """Return the records of a row of `MESSAGE_COLUMNS` and `PLACED_COLUMNS`."""
    return message_of(row[:-_PLACED_WIDTH]), placed_of(row[-_PLACED_WIDTH:])


def entry_of(row: tuple[Any, ...]) -> tuple[Entry, Placed]:
    """Return the records of a row of `ENTRY_COLUMNS` and `PLACED_COLUMNS`."""
    message_id, sender, subject, *others = row[:_ENTRY_WIDTH]
    if subject is not None:
        subject = _shortened(subject, SUBJECT)
    return Entry(message_id, sender, subject, *others), placed_of(row[_ENTRY_WIDTH:])


def placed_of(row: tuple[Any, ...]) -> Placed:
    """Return the record of a row of `PLACED_COLUMNS`."""
    address, tags, beginning, is_html, otp, from_name = row
    return Placed(address, tags or [], beginning, is_html, otp, from_name)


def _shortened(text: str, most: int) -> str:
    """So many characters of it, the last of which says that there are more."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
