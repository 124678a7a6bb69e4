"""`…/messages`: what arrived in a mailbox; read, raw, shown in a sandbox, taken apart.

Promises
  * `raw` is byte for byte what was accepted.
  * A message's HTML runs no script, loads nothing from outside, not so much as connects there,
    and shares no origin with the relay's pages; an attachment is always a download, under a name
    that is only a name.
  * Attachments are taken apart in threads, a few at a time.
"""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import trio
from pydantic import BaseModel, Field
from quart import Response

from relay.http.mailboxes import NEXT, NOT_FOUND, next_link
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Operation,
    Query,
    json_response,
    no_content,
)
from relay.http.problems import (
    Problem,
    mailbox_not_found,
    message_not_found,
    unavailable,
)

if TYPE_CHECKING:
    from relay.http.app import Api

BASE = "/api/v1/mailboxes/<address>/messages"

PREVIEW_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""For a stranger's HTML: its own styles and embedded pictures, and nothing else."""

# Chromium obeys `rel=preconnect` and connects ahead for a frame whatever the policy says, and so
# tells a sender that the message was opened.  A tag begins with "<" and its name, always; renamed,
# it is an element that nobody knows, and no renaming makes a new tag.
_CONNECTS = re.compile(
    r"<(?=(?:link|iframe|frame|object|embed|fencedframe|portal)\b)", re.IGNORECASE
)


class MessageEntry(BaseModel):
    """A message in a list; what needs parsing is null until it was parsed (below a second)."""

    id: str
    from_address: str | None
    subject: str | None
    received_at: str
    is_read: bool
    has_attachments: bool | None
    size: Annotated[int, Field(description="bytes of the raw message")]


class AttachmentEntry(BaseModel):
    """An attachment, by its index."""

    index: int
    filename: str | None
    content_type: str
    size: int
    content_id: str | None


class WholeMessage(MessageEntry):
    """A message with everything that was found in it."""

    to: str
    headers: Annotated[
        dict[str, str | list[str]], Field(description="a name that repeats has a list of values")
    ]
    body_text: str | None
    body_html: str | None
    attachments: list[AttachmentEntry]
    otp: Annotated[str | None, Field(description="a one-time code, if one was found")]
    links: list[str]
    error: Annotated[str | None, Field(description="why parsing was partial")]


class MessagesQuery(Query):
    """Which messages."""

    limit: Annotated[int, Field(ge=1, description="rows at most; more than 200 gives 200")] = 20
    offset: Annotated[int, Field(ge=0, le=1_000_000, description="rows to skip")] = 0
    cursor: Annotated[
        str | None, Field(max_length=512, description="from the Link header of the page before")
    ] = None
    q: Annotated[
        str | None,
        Field(max_length=1000, description="a part of sender, subject or body, in any case"),
    ] = None


_PIECE = 64 * 1024

GONE = Answer(404, "no such message, or the mailbox is over or not the caller's")


def register(api: Api) -> None:
    """Declare the calls."""
    store = api.deps.store
    parsing = trio.CapacityLimiter(api.deps.limits.attachments)
    downloads = Downloads(api.deps.limits.download_bytes)

    @api.add(
        "GET",
        BASE,
        Operation(
            "List messages, newest first",
            "messages",
            Access.MAILBOX,
            (Answer(200, "a page of them", list[MessageEntry], headers=NEXT), NOT_FOUND),
            scope="read",
            query=MessagesQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        query: MessagesQuery = call.query
        page = await store.messages(
            call.mailbox.id,
            limit=min(query.limit, 200),
            offset=query.offset,
            cursor=query.cursor,
            query=query.q,
        )
        if page is None:
            raise mailbox_not_found()
        return json_response(
            [entry.as_json() for entry in page.items],
            headers=next_link(page.cursor, offset=0),  # the cursor already stands behind it
        )

    @api.add(
        "GET",
        f"{BASE}/<message_id>",
        Operation(
            "Read a message, and mark it read",
            "messages",
            Access.MAILBOX,
            (Answer(200, "the message", WholeMessage), GONE),
            scope="read",
        ),
    )
    async def show(call: Call, message_id: str) -> Response:
        message = await store.message(call.mailbox.id, message_id)
        if message is None:
            raise message_not_found()
        return json_response(message.as_json())

    @api.add(
        "DELETE",
        f"{BASE}/<message_id>",
        Operation(
            "Delete a message for good",
            "messages",
            Access.MAILBOX,
            (Answer(204, "it is gone"), GONE),
            scope="read",
        ),
    )
    async def delete(call: Call, message_id: str) -> Response:
        if not await api.committed(lambda: store.delete_message(call.mailbox.id, message_id)):
            raise message_not_found()
        return no_content()

    @api.add(
        "GET",
        f"{BASE}/<message_id>/raw",
        Operation(
            "Fetch a message byte for byte as it was accepted",
            "messages",
            Access.MAILBOX,
            (Answer(200, "the message", media_type="message/rfc822"), GONE),
            scope="read",
        ),
    )
    async def raw(call: Call, message_id: str) -> Response:
        content = await store.raw(call.mailbox.id, message_id)
        if content is None:
            raise message_not_found()
        return downloads.response(
            content,
            "message/rfc822",
            {"Content-Disposition": f'attachment; filename="{_plain(message_id)}.eml"'},
        )

    @api.add(
        "GET",
        f"{BASE}/<message_id>/html",
        Operation(
            "Show a message's HTML in a sandbox",
            "messages",
            Access.MAILBOX,
            (Answer(200, "a page that can do nothing", media_type="text/html"), GONE),
            scope="read",
            token_in_query=True,
            details='A message without HTML is shown as text. Frame it with sandbox="".',
        ),
    )
    async def preview(call: Call, message_id: str) -> Response:
        message = await store.message(call.mailbox.id, message_id, mark_read=False)
        if message is None:
            raise message_not_found()
        page = message.body_html
        if page is None:
            page = f"<!doctype html><pre>{html.escape(message.body_text or '')}</pre>"
        return Response(
            _CONNECTS.sub("<x-", page).encode("utf-8", "replace"),
            content_type="text/html; charset=utf-8",
            headers={
                "Content-Security-Policy": PREVIEW_POLICY,
                "X-DNS-Prefetch-Control": "off",  # the names in links are not looked up ahead
                "Cross-Origin-Resource-Policy": "same-origin",
            },
        )

    @api.add(
        "GET",
        f"{BASE}/<message_id>/attachments/<index>",
        Operation(
            "Download an attachment",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "its bytes", media_type="application/octet-stream"),
                GONE,
                Answer(503, "too many downloads at once; try again"),
            ),
            scope="read",
        ),
    )
    async def attachment(call: Call, message_id: str, index: str) -> Response:
        content = await store.raw(call.mailbox.id, message_id)
        if content is None:
            raise message_not_found()
        found: tuple[str, str, bytes] | None = None
        if re.fullmatch(r"[0-9]{1,6}", index, re.ASCII):
            if parsing.statistics().tasks_waiting >= 10 * parsing.total_tokens:
                raise unavailable("Too many attachments are being taken apart; try again.")
            async with parsing:
                found = await api.deps.attachment(content, int(index))
        if found is None:
            raise Problem(
                404, "attachment-not-found", "The message has no attachment of this index.",
                title="Attachment not found",
            )  # fmt: skip
        return downloads.response(
            found[2],
            "application/octet-stream",
            {
                "Content-Disposition": disposition(found[0] or f"attachment-{index}"),
                "Content-Security-Policy": "sandbox; default-src 'none'",
            },
        )


class Downloads:
    """Whole messages on their way to clients, written piece by piece within a memory budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0

    def response(self, content: bytes, content_type: str, headers: dict[str, str]) -> Response:
        """Return `content` as a response; the 503 while too much is on its way to slow readers."""
        if self._held and self._held + len(content) > self._budget:
            raise unavailable("Too many large messages are being read; try again.")

        async def body() -> AsyncIterator[bytes]:
            self._held += len(content)
            try:
                view = memoryview(content)
                for at in range(0, len(content), _PIECE):  # each write has its own deadline
                    yield bytes(view[at : at + _PIECE])
            finally:
                self._held -= len(content)

        return Response(
            body(),
            content_type=content_type,
            headers={"Content-Length": str(len(content)), **headers},
        )


def disposition(filename: str) -> str:
    """Return a `Content-Disposition` that downloads under `filename` (RFC 6266, RFC 8187).

    Only a name: no path, no control characters, no leading dots; in ASCII for old readers and
    in UTF-8 for all others.
    """
    name = re.split(r"[/\\]", filename)[-1]
    # Beside controls also what reorders text on screen (exe.fdp shown as pdf.exe).
    name = "".join(c for c in name if c.isprintable() and not "\u202a" <= c <= "\u202e")
    name = name.strip().lstrip(".")[:200] or "attachment"
    name = name.encode("utf-8", "replace").decode()
    return f"attachment; filename=\"{_plain(name)}\"; filename*=UTF-8''{quote(name, safe='')}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9 ._()+-]", "_", name)
