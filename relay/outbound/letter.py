"""A claimed message as the bytes and the envelope that go out.

Promises: the same message gives the same bytes at every attempt (its id makes the Message-ID, its
creation the Date), and what many recipients share is composed once while it is in demand.

Fails with `MalformedMessage` or `UnfitMail` (permanent) for what can never be sent; whoever
queued by SQL may have stored such a thing.  Pure.
"""

from __future__ import annotations

from relay.outbound.compose import compose
from relay.outbound.message import Attachment, Message
from relay.outbound.queue import Claimed, Content
from relay.smtp.client import Mail


def mail_of(claimed: Claimed, content: Content) -> Mail:
    """Return the mail that a claimed message is."""
    composed = compose(
        Message(
            id=str(claimed.id),
            sender=_mailbox(claimed.sender, claimed.sender_name),
            to=(_mailbox(claimed.recipient, claimed.recipient_name),),
            subject=claimed.subject,
            date=claimed.created_at,
            text=content.text,
            html=content.html,
            headers=content.headers,
            attachments=tuple(
                Attachment(file.filename, file.content_type, file.content)
                for file in content.files()
            ),
        )
    )
    return Mail(composed.sender, composed.recipients, composed.data, smtputf8=composed.smtputf8)


def _mailbox(address: str, name: str | None) -> str:
    if not name:
        return address
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" <{address}>'
