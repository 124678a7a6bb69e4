"""Mail in Mailpit's JSON (its API v1): names, order and types as its structures have them.  Pure.

Where they differ in what they know: `ID` is the message's id here, an attachment's `PartID` its
number; what has a Content-ID is `Inline`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from relay.http.compat.mailpit.addresses import Address, addresses, bcc_of
from relay.mailboxes.mails import Found, Mail
from relay.mailboxes.records import ReceivedMessage
from relay.times import rfc3339

SNIPPET = 250
"""Characters of a snippet."""

_HASHES = {"MD5": "md5", "SHA1": "sha1", "SHA256": "sha256"}
_LINK = re.compile(r"<([^<>]*)>")


def page(found: Found, start: int, total: int, unread: int, tags: Sequence[str]) -> dict[str, Any]:
    """A list (`MessagesSummary`); `total` and `unread` are of all mail, its entries made as they
    are gone through."""
    return {
        "total": total,
        "unread": unread,
        "count": len(found.mails),
        "messages_count": found.count,
        "messages_unread": found.unread,
        "start": start,
        "tags": list(tags),
        "messages": map(summary, found.mails),
    }


def summary(mail: Mail) -> dict[str, Any]:
    """An entry of a list (`MessageSummary`)."""
    entry = mail.entry
    return {
        "ID": str(mail.id),
        "MessageID": _message_id(mail),
        "Read": mail.is_read,
        **_people(mail),
        "Subject": entry.subject or "",
        "Created": rfc3339(entry.received_at),
        "Username": mail.login or "",
        "Tags": mail.placed.tags,
        "Size": entry.size,
        "Attachments": sum(not one.get("content_id") for one in mail.attachments),
        "Snippet": _snippet(mail),
    }


def message(
    mail: Mail, whole: ReceivedMessage, checksums: Mapping[int, Mapping[str, str]]
) -> dict[str, Any]:
    """A message (`Message`); `checksums`: of attachments, by their index."""
    people = _people(mail)
    sender = people["From"]["Address"]
    parts = [(one, attachment(one, checksums.get(one["index"]))) for one in mail.attachments]
    return {
        "ID": str(mail.id),
        "MessageID": _message_id(mail),
        **people,
        "ReturnPath": mail.value("return-path").strip("<> ") or mail.reverse_path or sender,
        "Subject": whole.subject or "",
        "ListUnsubscribe": _unsubscribe(mail),
        "Date": _date(mail),
        "Tags": mail.placed.tags,
        "Username": mail.login or "",
        "Text": whole.body_text or "",
        "HTML": whole.body_html or "",
        "Size": mail.entry.size,
        "Inline": [shown for one, shown in parts if one.get("content_id")],
        "Attachments": [shown for one, shown in parts if not one.get("content_id")],
    }


def attachment(found: Mapping[str, Any], checksums: Mapping[str, str] | None) -> dict[str, Any]:
    """An attachment (`Attachment`)."""
    return {
        "PartID": str(found["index"] + 1),
        "FileName": found.get("filename") or found.get("content_id") or "",
        "ContentType": found.get("content_type") or "",
        "ContentID": (found.get("content_id") or "").strip("<>"),
        "Size": found.get("size") or 0,
        "Checksums": dict(checksums or dict.fromkeys(_HASHES, "")),
    }


def checksums_of(content: bytes) -> dict[str, str]:
    """The checksums of an attachment."""
    return {
        name: hashlib.new(kind, content, usedforsecurity=False).hexdigest()
        for name, kind in _HASHES.items()
    }


def headers(fields: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The header fields of a message by their names, which are spelt as Go does, in order."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        found.setdefault("-".join(map(str.capitalize, name.split("-"))), []).append(value)
    return dict(sorted(found.items()))


def _people(mail: Mail) -> dict[str, Any]:
    sender = Address(mail.placed.from_name or "", mail.entry.from_address or "")
    return {
        "From": _person(sender),
        "To": [_person(one) for one in addresses(mail.values("to"))],
        "Cc": [_person(one) for one in addresses(mail.values("cc"))],
        "Bcc": [_person(one) for one in bcc_of(mail)],
        "ReplyTo": [_person(one) for one in addresses(mail.values("reply-to"))],
    }


def _person(address: Address) -> dict[str, str]:
    return {"Name": address.name, "Address": address.address}


def _message_id(mail: Mail) -> str:
    return mail.value("message-id").strip().strip("<>")


def _date(mail: Mail) -> str:
    """What Date says, or else when it came."""
    try:
        return rfc3339(parsedate_to_datetime(mail.value("date")))
    except (ValueError, TypeError, OverflowError):
        return rfc3339(mail.entry.received_at)


def _snippet(mail: Mail) -> str:
    text: str = mail.placed.as_json()["snippet"] or ""
    return text[:SNIPPET]


def _unsubscribe(mail: Mail) -> dict[str, Any]:
    header = mail.value("list-unsubscribe")
    links, errors = [], []
    for link in map(str.strip, _LINK.findall(header)):
        if re.match(r"(https?://|mailto:)\S", link, re.IGNORECASE):
            links.append(link)
        else:
            errors.append(f"unsupported link: {link}")
    if header and not links and not errors:
        errors.append("no links found")
    return {
        "Header": header,
        "Links": links,
        "Errors": "; ".join(errors),
        "HeaderPost": mail.value("list-unsubscribe-post"),
    }
