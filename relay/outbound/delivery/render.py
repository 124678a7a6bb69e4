"""From a claimed message to the bytes and the envelope that go out.

Promises: the same message gives the same bytes at every attempt (its id makes the Message-ID, its
creation the Date).  One that its author wrote whole goes out as it is.

Fails with `MalformedMessage` (permanent) for what can never be sent; whoever queued by SQL may have
stored such a thing.

Plain mail (text alone, ASCII, short headers) is written by a template: the same mail as `compose`
makes of it, in a third of the time.  tests/outbound/delivery/test_render.py holds the two together;
the bench `outbound` pays for it.  Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from relay.outbound.composing.compose import MAX_LINE, SEVEN_BIT, compose, date_of
from relay.outbound.queue.claimed import Claimed
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.smtp.client import Mail

_ADDRESS = re.compile(r"[A-Za-z0-9_+\-]+(?:\.[A-Za-z0-9_+\-]+)*@[a-z0-9]+(?:[.\-][a-z0-9]+)*")
"""Addresses that `compose` would leave as they are; `Mail.plain` wants no more."""
_SUBJECT = re.compile(r"[!-~]+(?: [!-~]+)*")
"""Subjects in ASCII without runs of spaces, or some at an end, which folding would lose."""
_SHORT = 60  # characters; no header made of so many needs to be folded


def mail_of(claimed: Claimed) -> Mail:
    """Return the mail that a claimed message (with its body) is."""
    mail = _plain(claimed)
    if mail is not None:
        return mail
    raw = claimed.raw
    if raw is not None:
        head = raw[: raw.find(b"\r\n\r\n") + 1]
        return Mail(
            claimed.sender,
            (claimed.recipient,),
            raw,
            utf8_fields=not head.isascii(),
            dsn=claimed.dsn,
            require_tls=claimed.require_tls is True,
        )
    # In one zone, whatever the session's is: an instant is written in many ways.
    date = claimed.created_at.astimezone(UTC)
    return compose(claimed.message, id=str(claimed.id), date=date)


def written(claimed: Claimed, unsubscribing: Unsubscribing | None) -> Mail:
    """Return the mail that goes out: with its fields to unsubscribe by, which signatures cover."""
    mail = mail_of(claimed)
    return mail if unsubscribing is None else unsubscribing.mail(mail, claimed)


def _plain(claimed: Claimed) -> Mail | None:
    """The mail that a message is which needs none of `compose`'s care, or None."""
    recipient, subject = claimed.recipient, claimed.subject
    if (
        claimed.text_body is None
        or claimed.html_body is not None
        or claimed.headers
        or claimed.attachments
        or claimed.sender_name
        or claimed.recipient_name
        or len(recipient) > _SHORT
        or len(subject) > _SHORT
        or not _ADDRESS.fullmatch(recipient)
        or not _SUBJECT.fullmatch(subject)
        or "=?" in subject
    ):
        return None
    around = _around(claimed.sender)
    body = _body(claimed.text_body)
    if around is None or body is None:
        return None
    first, last = around
    head = (
        f"{first}{recipient}\r\n"
        f"Subject: {subject}\r\n"
        f"Date: {_date(int(claimed.created_at.timestamp()))}\r\n"
        f"Message-ID: <{claimed.id}{last}"
    )
    return Mail.plain(claimed.sender, recipient, head.encode() + body)


@lru_cache(maxsize=64)
def _around(sender: str) -> tuple[str, str] | None:
    """What stands before and after all that differs between the plain mails of a sender."""
    if len(sender) > _SHORT or not _ADDRESS.fullmatch(sender):
        return None
    return f"From: {sender}\r\nTo: ", (
        f"@{sender.rpartition('@')[2]}>\r\n"
        "MIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        "Content-Transfer-Encoding: 7bit\r\n\r\n"
    )


def _body(text: str) -> bytes | None:
    """A text as it may follow the headers, its line ends CRLF; None if it needs encoding.

    The recipients of one content, who share its text (`Queue.claim`), share what is made of it.
    """
    global _shared
    if len(text) > _MOST_SHARED:
        return _made_body(text)
    of, body = _shared
    if of is not text:
        body = _made_body(text)
        _shared = text, body
    return body


_MOST_SHARED = 100_000  # characters; a larger text is not kept
_shared: tuple[str, bytes | None] = ("", b"\r\n")
"""The text that was composed last, and its body."""


def _made_body(text: str) -> bytes | None:
    if not text.isascii():
        return None
    body = text.encode()
    if body.translate(None, SEVEN_BIT):
        return None
    start = 0
    while len(body) - start > MAX_LINE:
        start = body.rfind(b"\n", start, start + MAX_LINE + 1) + 1
        if not start:
            return None  # there is a longer line
    if not body.endswith(b"\n"):
        body += b"\n"
    return body.replace(b"\n", b"\r\n")


@lru_cache(maxsize=64)
def _date(second: int) -> str:
    """A second since the epoch as a Date header has it."""
    return date_of(datetime.fromtimestamp(second, UTC))
