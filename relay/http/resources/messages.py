"""`…/{address}/messages`: the messages of a mailbox, their raw bytes, HTML and attachments.

Promises
  * `raw` is byte for byte what was accepted.
  * A message's HTML runs no script, loads nothing from outside, not so much as connects there,
    and shares no origin with the relay's pages; an attachment is always a download, under a name
    that is only a name.
  * Attachments are extracted where hostile mail hurts nobody (`Deps.extract_attachment`), a few at
    a time.
  * A slow reader holds one piece of a message, or one attachment.  No owner (a key, or the address
    of one without a key) holds more than a quarter of the memory that there is for them, or more
    than some of the turns in which they are loaded; some of both is the administrator's.
"""

from __future__ import annotations

import html
import re
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Annotated
from urllib.parse import quote

from pydantic import Field, StringConstraints
from quart import Response, request

from relay.errors import TemporaryFailure
from relay.http.callers import owner_of
from relay.http.fair_limiter import Crowded, FairLimiter, Reservation
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Form,
    Operation,
    Query,
    Text,
    View,
    json_response,
    no_content,
)
from relay.http.paging import NEXT, next_link
from relay.http.problems import (
    Problem,
    mailbox_not_found,
    message_not_found,
    unavailable,
)
from relay.http.resources.mailboxes import PurgeQuery
from relay.http.routing import Api
from relay.http.tickets import PREVIEW
from relay.log import get_logger
from relay.mailboxes.messages import NotParsed
from relay.mailboxes.query import LONGEST, parse

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

# A link would lead the frame away from the message, to an error where the policy stops it.  Its
# tab would be a new one, which the sandbox does not allow: so nothing happens.  The first base with
# a target counts, and a doctype stays what comes first.
_DOCTYPE = re.compile(r"\s*<!doctype[^>]*>", re.IGNORECASE)
_STAYS = '<base target="_blank">'


class MessageEntry(View):
    """A message in a list; what needs parsing is null until it was parsed (below a second)."""

    id: str
    from_address: str | None
    subject: str | None
    received_at: str
    is_read: bool
    has_attachments: bool | None
    size: Annotated[int, Field(description="bytes of the raw message")]


class AttachmentEntry(View):
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


class PlacedEntry(MessageEntry):
    """A message in a list, and after a change of it."""

    mailbox: Annotated[str, Field(description="its address")]
    tags: list[str]
    snippet: Annotated[
        str | None, Field(description="how its text begins; null until it was parsed")
    ]
    otp: Annotated[str | None, Field(description="a one-time code, if one was found")]


class MessageChange(Form):
    """What is to be changed of a message; what is left out stays."""

    is_read: bool | None = None
    tags: Annotated[
        list[Annotated[Text, StringConstraints(min_length=1, max_length=100)]] | None,
        Field(max_length=20, description="all that it is to have; each counts once"),
    ] = None


class MessagesQuery(Query):
    """The messages that are asked for."""

    limit: Annotated[int, Field(ge=1, description="rows at most; more than 200 gives 200")] = 20
    offset: Annotated[int, Field(ge=0, le=1_000_000, description="rows to skip")] = 0
    cursor: Annotated[
        str | None, Field(max_length=512, description="from the Link header of the page before")
    ] = None
    q: Annotated[
        str | None,
        Field(max_length=LONGEST, description="what to look for, as in GET /api/v1/messages"),
    ] = None


log = get_logger()

_LOADED = 256 * 1024  # bytes of a message that are loaded at once
_PIECE = 64 * 1024  # bytes that are written at once
_LOADS, _LOADS_OF_ONE = 4, 2  # pieces that are being loaded: half of a small pool

GONE = Answer(404, "no such message, or the mailbox is over or not the caller's")


def register(api: Api) -> None:
    """Declare the calls."""
    messages = api.deps.messages
    limits = api.deps.limits
    parsing = FairLimiter(limits.attachments, max(1, limits.attachments // 4), kept=1, waiting=16)
    loading = FairLimiter(_LOADS, _LOADS_OF_ONE, kept=1)
    downloads = Downloads(limits.download_bytes)

    def owner_by(call: Call) -> Hashable:
        return owner_of(call.caller, request, api.deps.trusted_proxies)

    @api.add(
        "GET",
        BASE,
        Operation(
            "List messages, newest first",
            "messages",
            Access.MAILBOX,
            (Answer(200, "a page of them", list[PlacedEntry], headers=NEXT), MAILBOX_NOT_FOUND),
            scope="read",
            query=MessagesQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        query: MessagesQuery = call.query
        terms = parse(query.q or "")
        async with api.searches.turn(call, searches=bool(terms)):
            page = await messages.page(
                call.mailbox.id,
                limit=min(query.limit, 200),
                offset=query.offset,
                cursor=query.cursor,
                terms=terms,
            )
        if page is None:
            raise mailbox_not_found()
        return json_response(
            [entry.as_json() | placed.as_json() for entry, placed in page.items],
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
        message = await messages.get(call.mailbox.id, message_id)
        if message is None:
            raise message_not_found()
        return json_response(message.as_json())

    @api.add(
        "PATCH",
        f"{BASE}/<message_id>",
        Operation(
            "Mark a message read or unread, and tag it",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "the message as it is now", PlacedEntry),
                GONE,
                Answer(503, "tags: it is being parsed, or a store does not answer; try again"),
            ),
            scope="read",
            body=MessageChange,
        ),
    )
    async def change(call: Call, message_id: str) -> Response:
        wanted: MessageChange = call.body
        try:
            changed = await api.committed(
                lambda: messages.change(
                    call.mailbox.id, message_id, is_read=wanted.is_read, tags=wanted.tags
                )
            )
        except NotParsed:
            raise unavailable("The message is being parsed; try again.", retry_after=1) from None
        if changed is None:
            raise message_not_found()
        entry, placed = changed
        return json_response(entry.as_json() | placed.as_json())

    @api.add(
        "DELETE",
        f"{BASE}/<message_id>",
        Operation(
            "Delete a message for good",
            "messages",
            Access.MAILBOX,
            (Answer(204, "it is gone"), GONE),
            scope="send",
            query=PurgeQuery,
            details="With purge or without: raw mail, summary and attachments go with the answer.",
        ),
    )
    async def delete(call: Call, message_id: str) -> Response:
        if not await api.committed(lambda: messages.delete(call.mailbox.id, message_id)):
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
            ticket=PREVIEW,
        ),
    )
    async def raw(call: Call, message_id: str) -> Response:
        owner, mailbox_id = owner_by(call), call.mailbox.id
        size = await messages.raw_size(mailbox_id, message_id)
        if size is None:
            raise message_not_found()
        held = downloads.hold(owner, min(size, _LOADED))

        async def piece(at: int) -> bytes | None:
            async with loading.turn(owner):
                return await messages.raw_piece(mailbox_id, message_id, at, _LOADED)

        try:
            first = await piece(0)  # while the answer may still be another
            if first is None:
                raise message_not_found()  # noqa: TRY301 - what is held goes back below
        except BaseException:
            held.release()
            raise

        async def pieces(loaded: bytes | None) -> AsyncGenerator[bytes, None]:
            at = 0
            while loaded:
                yield loaded
                at += len(loaded)
                loaded = None
                if at >= size:
                    return
                # Less than was announced ends the connection, which tells its reader.
                try:
                    loaded = await piece(at)
                except TemporaryFailure as error:
                    log.warning("http.unavailable", error=str(error))

        return downloads.response(
            pieces(first),
            size,
            held,
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
            ticket=PREVIEW,
            details='A message without HTML is shown as text. Frame it with sandbox="".',
        ),
    )
    async def preview(call: Call, message_id: str) -> Response:
        message = await messages.get(call.mailbox.id, message_id, mark_read=False)
        if message is None:
            raise message_not_found()
        page = message.body_html
        if page is None:
            page = f"<!doctype html><pre>{html.escape(message.body_text or '')}</pre>"
        return Response(
            _staying(_CONNECTS.sub("<x-", page)).encode("utf-8", "replace"),
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
            ticket=PREVIEW,
        ),
    )
    async def attachment(call: Call, message_id: str, index: str) -> Response:
        owner = owner_by(call)
        size = await messages.raw_size(call.mailbox.id, message_id)
        if size is None:
            raise message_not_found()
        found: tuple[str, str, bytes] | None = None
        held = downloads.hold(owner, size)
        try:
            if re.fullmatch(r"[0-9]{1,6}", index, re.ASCII):
                async with parsing.turn(owner):
                    content = await messages.raw(call.mailbox.id, message_id)
                    if content is None:
                        raise message_not_found()  # noqa: TRY301 - likewise
                    found = await api.deps.extract_attachment(content, int(index))
                    del content
            if found is None:
                raise Problem(  # noqa: TRY301 - likewise
                    404, "attachment-not-found", "The message has no attachment of this index.",
                    title="Attachment not found",
                )  # fmt: skip
        except Crowded:
            held.release()
            raise unavailable("Too many attachments are being taken apart; try again.") from None
        except BaseException:
            held.release()
            raise
        held.shrink(len(found[2]))
        return downloads.response(
            once(found[2]),
            len(found[2]),
            held,
            "application/octet-stream",
            {
                "Content-Disposition": disposition(found[0] or f"attachment-{index}"),
                "Content-Security-Policy": "sandbox; default-src 'none'",
            },
        )


def _staying(page: str) -> str:
    """The page, whose links lead its frame nowhere."""
    doctype = _DOCTYPE.match(page)
    at = doctype.end() if doctype else 0
    return page[:at] + _STAYS + page[at:]


_BUSY = "Too many large messages are being read; try again."


async def once(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield all of it."""
    yield content


class Downloads:
    """What is on its way to clients, written piece by piece within a memory budget."""

    def __init__(self, budget: int) -> None:
        self._budget = FairLimiter(budget, budget // 4, kept=budget // 8)

    def hold(self, owner: Hashable, size: int) -> Reservation:
        """Reserve memory before anything is loaded; the 503 while there is none left."""
        held = self._budget.take(owner, size)
        if held is None:
            raise unavailable(_BUSY)
        return held

    def response(
        self,
        contents: AsyncGenerator[bytes, None],
        size: int,
        held: Reservation,
        content_type: str,
        headers: dict[str, str],
    ) -> Response:
        """Return `contents` as a response of `size` bytes; `held` is given back at its end."""

        async def body() -> AsyncIterator[bytes]:
            try:
                async with aclosing(contents):
                    async for content in contents:
                        view = memoryview(content)
                        for at in range(0, len(content), _PIECE):  # each write has its own deadline
                            yield bytes(view[at : at + _PIECE])
            finally:
                held.release()

        written = body()
        # A client that has gone before the first byte: the body is dropped without having begun.
        weakref.finalize(written, held.release).atexit = False
        return Response(
            written,
            content_type=content_type,
            headers={"Content-Length": str(size), **headers},
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
