"""Searching the plain way: every term against every message, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from relay.mailboxes.query import Term


@dataclass
class Mail:
    """A message as its reader knows it."""

    sender: str
    name: str
    recipient: str
    subject: str
    text: str
    received_at: datetime
    size: int
    is_read: bool = False
    has_attachments: bool = False
    tags: list[str] = field(default_factory=list)


def matches(mail: Mail, terms: Sequence[Term]) -> bool:
    """Whether a message fulfils all terms."""
    return all(_holds(mail, term) != term.negated for term in terms)


def _holds(mail: Mail, term: Term) -> bool:
    value = term.value
    if isinstance(value, datetime):
        return mail.received_at < value
    if isinstance(value, int):
        return mail.size > value if term.field == "larger" else mail.size < value
    if term.field == "unread":
        return not mail.is_read
    if term.field == "attachment":
        return mail.has_attachments
    needle = value.lower()
    if term.field == "tag":
        return needle in [tag.lower() for tag in mail.tags]
    header = f"{mail.name} <{mail.sender}>" if mail.name else mail.sender
    fields = {
        "from": [mail.sender, header],
        "to": [mail.recipient],
        "subject": [mail.subject],
    }
    fields["any"] = [*fields["from"], *fields["to"], *fields["subject"], mail.text]
    return any(needle in text.lower() for text in fields[term.field])
