"""`POST /api/v1/messages/send`: putting mail into the outbound queue.

Promises
  * The answer 202 comes after the commit that queued a message for each recipient; after a refusal
    (4xx) nothing is queued.
  * What was accepted can be composed: each body, header and file was tried (`compose.check`).
  * With an Idempotency-Key the same call is queued once, however often it is made in 24 hours.
  * A refusal repeats no address: whoever gets the answer may log it.
  * Large calls are checked in a thread: nobody else waits for them.

Fails with `DatabaseUnavailable`, a 503, after which the mail may have been queued: the
Idempotency-Key is for that.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar
from uuid import UUID

import trio
from prometheus_client import Counter
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field
from quart import Response, request

from relay.errors import Invalid
from relay.http.operations import Access, Answer, Call, Form, Operation, View, json_response
from relay.http.problems.details import Problem, reserved_name
from relay.http.routing import Api
from relay.metrics import registry
from relay.outbound.composing.compose import check
from relay.outbound.composing.message import (
    EARLIEST,
    LATEST,
    Attachment,
    MalformedMessage,
    Message,
    parse_address,
    parse_recipients,
)
from relay.outbound.queue.enqueue import Enqueued, KeyConflict, Suppressed, body_hash
from relay.outbound.submission.sending import ForeignSender, ReservedSender, Sending

T = TypeVar("T")

MADE = Counter(
    "relay_http_messages",
    "Messages that calls made: queued, by sending and releasing, or stored, to see one come.",
    ["became"],
    registry=registry,
)
MAX_RECIPIENTS = 10_000
MAX_TEXT = 5_000_000
"""Characters of each of the two bodies."""
MAX_FILES_BYTES = 26_214_400
"""Bytes of all attachments of a call together."""
SEND_BODY = 48 * 1024 * 1024
"""Bytes of the JSON: the attachments in base64, and as much again for what is written."""

_IN_A_THREAD = 256 * 1024  # bytes of a body from which checking it would be felt by others


def _instant(value: object) -> object:
    """Let through what is written as RFC 3339 has it; a number would be read as epoch seconds."""
    if value is not None and not isinstance(value, str):
        raise ValueError("an instant is written like 2026-01-31T12:00:00Z")
    return value


def _in_range(value: datetime | None) -> datetime | None:
    """Return an instant in UTC, or refuse one that not every client of the database can hold."""
    if value is None:
        return None
    try:
        moved = value.astimezone(UTC)
    except OverflowError:
        moved = None
    if moved is None or not EARLIEST <= moved < LATEST:
        raise ValueError("an instant lies between the years 1970 and 9998")
    return moved


Instant = Annotated[AwareDatetime | None, BeforeValidator(_instant), AfterValidator(_in_range)]


class NewAttachment(Form):
    """A file to go with a message."""

    filename: Annotated[str, Field(min_length=1, max_length=255)]
    content_type: Annotated[str, Field(max_length=255)] = "application/octet-stream"
    content: Annotated[str, Field(description="the bytes, in base64", repr=False)]


class NewMessage(Form):
    """What is to be sent to whom."""

    sender: Annotated[
        str, Field(alias="from", max_length=1000, description="an address, or Name <address>")
    ]
    to: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...] | Annotated[str, Field(max_length=1000)],
        Field(description="addresses, each of which gets a message of its own"),
    ]
    subject: Annotated[str, Field(max_length=2000)] = ""
    text: Annotated[str | None, Field(max_length=MAX_TEXT)] = None
    html: Annotated[str | None, Field(max_length=MAX_TEXT)] = None
    headers: Annotated[
        dict[str, str],
        Field(
            max_length=50,
            description="further headers, such as Reply-To and List-Unsubscribe; those that the "
            "relay makes (From, To, Subject, Date, Message-ID, MIME) cannot be given",
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    attachments: Annotated[tuple[NewAttachment, ...], Field(max_length=100)] = ()
    priority: Literal["high", "normal", "bulk"] = "normal"
    send_at: Annotated[
        Instant, Field(description="not before then; what is past means at once")
    ] = None
    not_after: Annotated[
        Instant,
        Field(
            description="not after then: what waits still is cancelled, with the error expired, "
            "and webhooks are told message.expired"
        ),
    ] = None
    unknown_outcome: Annotated[
        Literal["retry", "hold"],
        Field(
            description="what to do when a connection broke between the end of the message and "
            "its answer: send again, perhaps a second copy, or hold it for a person to decide"
        ),
    ] = "retry"


class QueuedMessage(View):
    """One message of the queue."""

    id: str
    recipient: str
    status: str


class Sent(View):
    """What a call queued: one message a recipient, in the order of `to`."""

    messages: list[QueuedMessage]


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps
    sending = Sending(deps.keys, deps.store.names, deps.enqueue, deps.wake_outbound)

    @api.add(
        "POST",
        "/api/v1/messages/send",
        Operation(
            "sendMessage",
            "Send a message to one or more recipients",
            "sending",
            Access.SCOPE,
            (
                Answer(202, "queued, durably; each is delivered at least once", Sent),
                Answer(
                    403,
                    "`from` is a role name or the collector's sender in a domain of the relay's "
                    "own, and the caller is not the administrator; or the key is limited to "
                    "other addresses, or lacks the scope; or a foreign Host or Origin",
                    cases=("reserved-name", "foreign-sender"),
                ),
                Answer(
                    409,
                    "the Idempotency-Key was used for another body within 24 hours",
                    cases=("idempotency-key-reused",),
                ),
                Answer(
                    422,
                    "malformed, or a recipient is on the suppression list: nothing queued",
                    cases=("suppressed",),
                ),
            ),
            scope="send",
            body=NewMessage,
            max_body=SEND_BODY,
            stores=True,
            details="Each recipient gets a message of their own, and sees no other's address. With "
            "an Idempotency-Key header (1 to 255 bytes) the same call again within 24 hours gives "
            "the same answer and sends nothing; keys belong to the credential. Any address may "
            "be `from`, except that role names (postmaster, noreply …) of the relay's own domains "
            "are the administrator's; one that has a sender goes through its upstream, any other "
            "through the relay's own.",
        ),
    )
    async def send(call: Call) -> Response:
        wanted: NewMessage = call.body
        key = idempotency_key()
        owner: UUID = call.caller.owner_id
        large = (request.content_length or SEND_BODY) > _IN_A_THREAD

        def prepare() -> tuple[Message, bytes | None]:
            return _checked(wanted, owner), None if key is None else _hash(wanted)

        ready, key_hash = await (_in_thread(prepare) if large else _here(prepare))
        await sending.check_senders(call.caller.key, [ready.sender.address])
        queued = await api.committed(lambda: sending.queue(ready, key=key, key_hash=key_hash))
        return answer_queued(queued)


def answer_queued(queued: Enqueued) -> Response:
    """The 202: one message a recipient."""
    if not queued.replayed:
        MADE.labels("queued").inc(len(queued.messages))
    return json_response(
        {
            "messages": [
                {"id": str(item.id), "recipient": item.recipient, "status": "queued"}
                for item in queued.messages
            ]
        },
        202,
    )


async def _here(work: Callable[[], T]) -> T:
    return work()


async def _in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


def idempotency_key() -> str | None:
    """Return the call's Idempotency-Key as its sender wrote it, None without one."""
    value = request.headers.get("Idempotency-Key")  # as Latin-1, which the framework reads bytes as
    if value is None:
        return None
    try:
        text = value.encode("latin-1").decode()
    except UnicodeError:
        text = value
    if not text.isprintable():
        raise Invalid("an idempotency key holds no control characters")
    return text


def _hash(wanted: NewMessage) -> bytes:
    said = wanted.model_dump(mode="json", by_alias=True)
    if wanted.not_after is None:
        del said["not_after"]  # as it was before there was one: keys outlive an upgrade
    return body_hash(said)


def _checked(wanted: NewMessage, owner: UUID) -> Message:
    """Return what is to be queued, or raise `MalformedMessage`: what passed can be composed."""
    to = (wanted.to,) if isinstance(wanted.to, str) else wanted.to
    if not to:
        raise MalformedMessage("to", "names nobody")
    if len(to) > MAX_RECIPIENTS:
        raise MalformedMessage("to", f"names over {MAX_RECIPIENTS} recipients")
    if wanted.text is None and wanted.html is None and not wanted.attachments:
        raise MalformedMessage("text", "is required where there is no html")
    files = tuple(
        Attachment(item.filename, item.content_type, _decoded(item, index))
        for index, item in enumerate(wanted.attachments)
    )
    if sum(len(item.content) for item in files) > MAX_FILES_BYTES:
        raise MalformedMessage("attachments", f"have over {MAX_FILES_BYTES} bytes together")
    if wanted.not_after and wanted.send_at and wanted.not_after <= wanted.send_at:
        raise MalformedMessage("not_after", "must be later than send_at")
    sender = parse_address(wanted.sender, "from")
    recipients = parse_recipients(to, "to[{}]")
    message = Message(
        sender=sender,
        recipients=tuple(recipients.values()),
        subject=wanted.subject,
        text=wanted.text,
        html=wanted.html,
        headers=wanted.headers,
        attachments=files,
        priority=wanted.priority,
        send_at=wanted.send_at,
        not_after=wanted.not_after,
        hold_unknown=wanted.unknown_outcome == "hold",
        owner=owner,
    )
    check(message)
    return message


def _decoded(item: NewAttachment, index: int) -> bytes:
    try:
        return b64decode("".join(item.content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage(f"attachments[{index}].content", "is not base64") from error


def answer_refusal(error: Exception) -> Problem | None:
    """Map an error of the outbound queue to its HTTP problem; None for any other error.

    No sentence repeats an address, for it may be logged: those on the suppression list are in a
    field of their own.
    """
    if isinstance(error, MalformedMessage):
        return _invalid([f"{error.field}: it {error.reason}."])
    if isinstance(error, ReservedSender):
        return reserved_name("from")
    if isinstance(error, ForeignSender):
        return Problem(403, "foreign-sender", "from: this key may not send from this address.")
    if isinstance(error, Suppressed):
        count = len(error.addresses)
        who = "A recipient is" if count == 1 else f"{count} recipients are"
        return Problem(
            422,
            "suppressed",
            f"{who} on the suppression list, so nothing was queued.",
            recipients=error.addresses,
        )
    if isinstance(error, KeyConflict):
        return Problem(
            409,
            "idempotency-key-reused",
            "The Idempotency-Key was used for another body within 24 hours.",
        )
    return None


def _invalid(sentences: list[str]) -> Problem:
    return Problem(422, "invalid", sentences[0], errors=sentences)
