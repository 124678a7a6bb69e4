"""Mailpit's call that sends: a mail given as JSON, which is kept here and never leaves.

Promises
  * It is stored as mail by SMTP is: in the mailboxes of its recipients, in captured ones for those
    in others' domains while the relay captures.  All of its recipients have it, or nobody.
  * A key sends what `POST /api/v1/messages/send` would let it, and to mailboxes of its own alone:
    captured mail is the administrator's.
  * Once it is answered the mail can be read, by the id in the answer (within 5 s, as lists wait).
  * It is composed as all mail is that leaves (`relay.outbound.composing.compose`).

Fails with 400 and Mailpit's JSON of an error, which names the member that is wrong.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from mimetypes import guess_type
from typing import Any, NamedTuple

from quart import Response

from relay.addresses import canonical
from relay.chance import utc_now
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API
from relay.http.compat.mailpit.tags import tag_of
from relay.http.operations import Call, json_response, read_body
from relay.http.resources.all_messages import reach_of
from relay.http.resources.send import MADE, MAX_FILES_BYTES, MAX_TEXT, SEND_BODY
from relay.ids import new_id
from relay.mailboxes.accept import NobodyThere
from relay.outbound.composing.compose import compose
from relay.outbound.composing.message import (
    Address,
    Attachment,
    MalformedMessage,
    Message,
    checked_address,
    parse_address,
)
from relay.outbound.submission.sending import Sending

MOST_RECIPIENTS = 100
"""Of To, Cc and Bcc together."""
_FILES = 100
_BESIDE = 16 * 1024  # bytes of a body from which it is read beside the loop


class _Mail(NamedTuple):
    """What is to be stored; `recipients`: as they were given, by canonical address."""

    sender: str
    recipients: dict[str, str]
    raw: bytes


def register(callers: CallersMail) -> None:
    """Declare the call."""
    api, deps = callers.api, callers.deps
    rights = Sending(deps.keys, deps.store.names, deps.enqueue, deps.wake_outbound)
    sending = compat("mailpitSend", "send", body=True, stores=True, max_body=SEND_BODY)

    @api.add("POST", f"{API}/send", sending)
    async def send(call: Call) -> Response:
        body = await read_body(sending)
        try:
            if len(body) > _BESIDE:
                mail = await callers.apart(call, lambda: _mail(body))
            else:
                mail = _mail(body)
        except MalformedMessage as error:
            return _refused(f"{error.field}: it {error.reason}.")
        if len(mail.raw) > deps.max_message_bytes:
            return _refused(f"The mail has over {deps.max_message_bytes:,} bytes.")
        key = call.caller.key
        await rights.check_senders(key, [mail.sender])
        if key is not None:
            for address, given in mail.recipients.items():
                if await deps.store.find(address, call.caller.credential) is None:
                    said = "This key has no such mailbox; captured mail is the administrator's"
                    return _refused(f"{said}: {given}.", 403)
        try:
            stored = await api.committed(lambda: deps.keep(mail.sender, mail.recipients, mail.raw))
        except NobodyThere as error:
            who = ", ".join(mail.recipients[address] for address in error.addresses[:10])
            return _refused(f"There is no such mailbox here, and nothing is captured for: {who}.")
        MADE.labels("stored").inc()
        await callers.until_parsed(call)
        first = str(min(stored.values()))
        found = await deps.mails.find(reach_of(call), first)
        return json_response({"ID": first if found is None else str(found.id)})


def _refused(said: str, status: int = 400) -> Response:
    return json_response({"Error": said}, status)


def _mail(body: bytes) -> _Mail:
    """Return the mail that a body is, or raise MalformedMessage."""
    try:
        given = _members(json.loads(body), "The body")
    except (ValueError, RecursionError):
        raise MalformedMessage("The body", "is no JSON object") from None
    sender = _person(given.get("from"), "From")
    to, cc, reply_to = (_people(given, name) for name in ("To", "Cc", "ReplyTo"))
    bcc = [
        parse_address(_text(address, f"Bcc[{place}]"), f"Bcc[{place}]")
        for place, address in enumerate(_list(given, "Bcc"))
    ]
    if not to:
        raise MalformedMessage("To", "names nobody")
    everybody = [*to, *cc, *bcc]
    if len(everybody) > MOST_RECIPIENTS:
        raise MalformedMessage("To", f"has over {MOST_RECIPIENTS} recipients with Cc and Bcc")
    text, html = (_text(given.get(name.lower()), name, MAX_TEXT) for name in ("Text", "HTML"))
    ours = {
        "Cc": ", ".join(map(_shown, cc)),
        "Reply-To": ", ".join(map(_shown, reply_to)),
        "X-Tags": ", ".join(
            tag for each in _list(given, "Tags") if (tag := tag_of(_text(each, "Tags")))
        ),
    }
    message = Message(
        sender=sender,
        recipients=to,
        subject=_text(given.get("subject"), "Subject"),
        text=text if text or not html else None,
        html=html or None,
        headers=_headers(given.get("headers"), {k: v for k, v in ours.items() if v}),
        attachments=_files(given),
    )
    raw = compose(message, id=str(new_id()), date=utc_now()).data
    recipients: dict[str, str] = {}
    for one in everybody:
        try:
            recipients.setdefault(canonical(one.address), one.address)
        except ValueError as error:
            raise MalformedMessage("To, Cc or Bcc", f"has an address that {error}") from error
    return _Mail(sender.address, recipients, raw)


def _headers(given: Any, ours: Mapping[str, str]) -> dict[str, str]:
    """The headers that a mail is given, with those that other members make."""
    if given is None:
        return dict(ours)
    if not isinstance(given, dict):
        raise MalformedMessage("Headers", "must be an object of texts")
    theirs = {name: _text(value, "Headers") for name, value in given.items()}
    made = {name.lower() for name in ours}
    if twice := [name for name in theirs if name.lower() in made]:
        raise MalformedMessage("Headers", f"has {twice[0]!a}, which another member makes")
    return {**theirs, **ours}


def _files(given: Mapping[str, Any]) -> list[Attachment]:
    listed = _list(given, "Attachments")
    if len(listed) > _FILES:
        raise MalformedMessage("Attachments", f"are over {_FILES}")
    files: list[Attachment] = []
    for place, each in enumerate(listed):
        where = f"Attachments[{place}]"
        members = _members(each, where)
        if members.get("contentid"):
            raise MalformedMessage(f"{where}.ContentID", "is not taken: no part is shown inline")
        name = _text(members.get("filename"), f"{where}.Filename")
        kind = _text(members.get("contenttype"), f"{where}.ContentType")
        content = _text(members.get("content"), f"{where}.Content", SEND_BODY)
        try:
            decoded = b64decode("".join(content.split()), validate=True)
        except (binascii.Error, ValueError):
            raise MalformedMessage(f"{where}.Content", "is not base64") from None
        kind = kind or guess_type(name)[0] or "application/octet-stream"
        files.append(Attachment(name, kind, decoded))
    if sum(len(one.content) for one in files) > MAX_FILES_BYTES:
        raise MalformedMessage("Attachments", f"have over {MAX_FILES_BYTES:,} bytes together")
    return files


def _people(given: Mapping[str, Any], name: str) -> list[Address]:
    listed = _list(given, name)
    if len(listed) > MOST_RECIPIENTS:
        raise MalformedMessage(name, f"names over {MOST_RECIPIENTS}")
    return [_person(one, f"{name}[{place}]") for place, one in enumerate(listed)]


def _person(given: Any, where: str) -> Address:
    members = _members(given, where)
    address = _text(members.get("email"), f"{where}.Email")
    return checked_address(Address(address, _text(members.get("name"), f"{where}.Name")), where)


def _shown(address: Address) -> str:
    """One address as a header has it that is composed from text."""
    name = address.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}" <{address.address}>' if name else address.address


def _members(given: Any, where: str) -> dict[str, Any]:
    """The members of an object by their names in small letters: Mailpit takes any."""
    if not isinstance(given, dict):
        raise MalformedMessage(where, "must be an object")
    return {name.lower(): value for name, value in given.items()}


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    listed = given.get(name.lower())
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise MalformedMessage(name, "must be a list")
    return listed


def _text(given: Any, where: str, most: int = 10_000) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise MalformedMessage(where, "must be a text")
    if len(given) > most:
        raise MalformedMessage(where, f"has over {most:,} characters")
    return given
