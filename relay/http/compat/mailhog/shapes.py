"""Mail in MailHog's JSON (its API v2, and what of v1 is called still).  Pure.

It is the text of the mail: fields as they are written, parts by their boundaries, nothing decoded;
`Received` and `Return-Path` are added as MailHog adds them.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

from relay.http.compat.mime_text import Content, content_of, text_of
from relay.mailboxes.mails import Mail
from relay.times import rfc3339


def message(mail: Mail, raw: bytes, host: str) -> dict[str, Any]:
    """A message; `raw`: of a very long one the beginning.  `host`: what this relay is called."""
    text = text_of(raw)
    content = content_of(text)
    _received(content, mail, host)
    return {
        "ID": str(mail.id),
        "From": _path(mail.reverse_path),
        "To": [_path(one) for one in mail.recipients],
        "Content": _content(content, None),
        "Created": rfc3339(mail.entry.received_at),
        "MIME": _parts(content),
        "Raw": {
            "From": mail.reverse_path,
            "To": mail.recipients,
            "Data": text,
            "Helo": "",
        },
    }


def _received(content: Content, mail: Mail, host: str) -> None:
    names = {name.lower(): name for name in content.headers}
    if "message-id" not in names:
        content.headers["Message-ID"] = [f"{mail.id}@{host}"]
    came = formatdate(mail.entry.received_at.timestamp())
    received = f"by {host} (Relay)\r\n          id {mail.id}; {came}"
    for name, value in (("Received", received), ("Return-Path", f"<{mail.reverse_path}>")):
        content.headers.setdefault(names.get(name.lower(), name), []).append(value)


def _content(content: Content, parts: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "Headers": content.headers,
        "Body": content.body,
        "Size": content.size,
        "MIME": parts,
    }


def _parts(content: Content) -> dict[str, Any] | None:
    if content.parts is None:
        return None
    return {"Parts": [_content(part, _parts(part)) for part in content.parts]}


def _path(address: str) -> dict[str, Any]:
    mailbox, _, domain = address.partition("@")
    return {"Relays": None, "Mailbox": mailbox, "Domain": domain, "Params": ""}
