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
from base64 import b64decode
from collections.abc import Mapping
from mimetypes import guess_type
from typing import NamedTuple

from quart import Response

from relay.addresses import canonical
from relay.chance import utc_now
from relay.http.compat.bodies import Members, Unreadable, parsed
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API
from relay.http.compat.mailpit.tags import tag_of
from relay.http.operations import Call, json_response, read_body
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
        except Unreadable as error:
            return _refused(error.detail)
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
        found = await deps.mails.find(call.reach, first)
        return json_response({"ID": first if found is None else str(found.id)})


def _refused(said: str, status: int = 400) -> Response:
    return json_response({"Error": said}, status)


def _mail(body: bytes) -> _Mail:
    """Return the mail that a body is, or raise Unreadable or MalformedMessage."""
    given = parsed(body)
    sender = _person(Members(given.value("From"), "From"))
    to, cc, reply_to = (_people(given, name) for name in ("To", "Cc", "ReplyTo"))
    bcc = [
        parse_address(address, f"Bcc[{place}]") for place, address in enumerate(given.texts("Bcc"))
    ]
    if not to:
        raise MalformedMessage("To", "names nobody")
    everybody = [*to, *cc, *bcc]
    if len(everybody) > MOST_RECIPIENTS:
        raise MalformedMessage("To", f"has over {MOST_RECIPIENTS} recipients with Cc and Bcc")
    text, html = (given.text(name, MAX_TEXT) for name in ("Text", "HTML"))
    ours = {
        "Cc": ", ".join(map(_shown, cc)),
        "Reply-To": ", ".join(map(_shown, reply_to)),
        "X-Tags": ", ".join(tag for each in given.texts("Tags") if (tag := tag_of(each))),
    }
    message = Message(
        sender=sender,
        recipients=to,
        subject=given.text("Subject"),
        text=text if text or not html else None,
        html=html or None,
        headers=_headers(given.object("Headers"), {k: v for k, v in ours.items() if v}),
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


def _headers(given: Members | None, ours: Mapping[str, str]) -> dict[str, str]:
    """The headers that a mail is given, with those that other members make."""
    theirs = {} if given is None else given.headers()
    made = {name.lower() for name in ours}
    if twice := [name for name in theirs if name.lower() in made]:
        raise MalformedMessage("Headers", f"has {twice[0]!a}, which another member makes")
    return {**theirs, **ours}


def _files(given: Members) -> list[Attachment]:
    listed = given.objects("Attachments")
    if len(listed) > _FILES:
        raise MalformedMessage("Attachments", f"are over {_FILES}")
    files: list[Attachment] = []
    for one in listed:
        if one.value("ContentID"):
            raise Unreadable(one.at("ContentID"), "is not taken: no part is shown inline")
        name, content = one.text("Filename"), one.text("Content", SEND_BODY)
        try:
            decoded = b64decode("".join(content.split()), validate=True)
        except (binascii.Error, ValueError):
            raise Unreadable(one.at("Content"), "is not base64") from None
        kind = one.text("ContentType") or guess_type(name)[0] or "application/octet-stream"
        files.append(Attachment(name, kind, decoded))
    if sum(len(one.content) for one in files) > MAX_FILES_BYTES:
        raise MalformedMessage("Attachments", f"have over {MAX_FILES_BYTES:,} bytes together")
    return files


def _people(given: Members, name: str) -> list[Address]:
    listed = given.objects(name)
    if len(listed) > MOST_RECIPIENTS:
        raise MalformedMessage(name, f"names over {MOST_RECIPIENTS}")
    return [_person(one) for one in listed]


def _person(given: Members) -> Address:
    return checked_address(Address(given.text("Email"), given.text("Name")), given.where)


def _shown(address: Address) -> str:
    """One address as a header has it that is composed from text."""
    name = address.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}" <{address.address}>' if name else address.address
