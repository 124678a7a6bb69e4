"""`…/{address}/messages`: the messages of a mailbox, their raw bytes and attachments.

Promises
  * `raw` is byte for byte what was accepted.
  * An attachment is always a download, under a name that is only a name.
  * Attachments are extracted where hostile mail hurts nobody (`Deps.extract_attachment`), a few at
    a time.
  * A slow reader holds one piece of a message, one attachment, or what is large of an answer in
    JSON.  No owner (a key, or the address of one without a key) holds more than a quarter of the
    memory that there is for them, or more than some of the turns in which they are loaded; some of
    both is the administrator's.
  * What there is no room for is not marked read, nor what HEAD asks about.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictBool, StringConstraints
from quart import Response, request

from relay.http.credentials.callers import owner_of
from relay.http.credentials.tickets import PREVIEW
from relay.http.feeds.following_mail import loaded_of
from relay.http.feeds.parsed import until_parsed
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.limits.heavy_calls import SHORT
from relay.http.lists.paging import NEXT, next_link
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    Query,
    Text,
    View,
    json_response,
    no_content,
)
from relay.http.problems.details import (
    Problem,
    mailbox_not_found,
    message_not_found,
    unavailable,
)
from relay.http.resources.mailboxes import PurgeQuery
from relay.http.responses.downloads import disposition, once, plain_name
from relay.http.responses.raw_mail import RawMail
from relay.http.routing import Api
from relay.log import get_logger
from relay.mailboxes.changes import Change, NotParsed
from relay.mailboxes.messages import AT_ONCE
from relay.mailboxes.query import LONGEST, parse
from relay.mailboxes.records import Entry, Placed, ReceivedMessage
from relay.mailboxes.visibility import Reach

BASE = "/api/v1/mailboxes/<address>/messages"


class MessageEntry(View):
    """A message in a list; what needs parsing is null until it was parsed (below a second)."""

    id: str
    from_address: str | None
    subject: str | None
    received_at: Instant
    is_read: bool
    has_attachments: Annotated[
        bool | None, Field(description="other than pictures that its HTML shows; null: not parsed")
    ]
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
    from_name: Annotated[
        str | None, Field(description="what the sender is called beside the address")
    ]


class PlacedMessage(WholeMessage):
    """A message with everything that was found in it, and where it is."""

    mailbox: Annotated[str, Field(description="its address")]
    tags: list[str]
    snippet: str | None
    from_name: str | None


_Tags = tuple[Annotated[Text, StringConstraints(min_length=1, max_length=100)], ...]


class MessageChange(Form):
    """What is to be changed of a message; what is left out stays."""

    is_read: StrictBool | None = None
    tags: Annotated[
        _Tags | None,
        Field(max_length=20, description="all that it is to have; each counts once"),
    ] = None
    remove_tags: Annotated[
        _Tags, Field(max_length=20, description="those that it is to lose, in any case")
    ] = ()
    add_tags: Annotated[
        _Tags,
        Field(max_length=20, description="those that it is to get, while it has fewer than 20"),
    ] = ()

    @property
    def change(self) -> Change:
        """The same for the store."""
        return Change(self.is_read, self.tags, self.remove_tags, self.add_tags)


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
    whole: Annotated[
        bool,
        Field(
            description="give each as reading it does, and mark it read; of large ones fewer. The "
            "first page waits until what has come is parsed, some seconds at most"
        ),
    ] = False


log = get_logger()

_READ = {"is_read": True}  # as it is once it was given

GONE = Answer(
    404,
    "no such message, or the mailbox is over or not the caller's",
    cases=("mailbox-not-found", "message-not-found"),
)


async def listed(
    api: Api, call: Call, found: Sequence[tuple[Entry, Placed]], headers: Mapping[str, str]
) -> Response:
    """Entries as JSON, which senders may have made long."""
    shown = (entry.as_json() | placed.as_json() for entry, placed in found)
    owner = owner_of(call.caller, request, api.deps.trusted_proxies)
    return await api.downloads.json(owner, shown, loaded_of(found), headers)


def register(api: Api) -> None:
    """Declare the calls."""
    messages = api.deps.messages
    limits = api.deps.limits
    parsing = FairLimiter(limits.attachments, max(1, limits.attachments // 4), kept=1, waiting=16)
    downloads = api.downloads
    raw_mail = RawMail(messages, downloads)

    def owner_by(call: Call) -> Hashable:
        return owner_of(call.caller, request, api.deps.trusted_proxies)

    @api.add(
        "GET",
        BASE,
        Operation(
            "listMessages",
            "List messages, newest first",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "a page of them", list[PlacedEntry | PlacedMessage], headers=NEXT),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
            query=MessagesQuery,
        ),
    )
    async def list_(call: Call) -> Response:
        query: MessagesQuery = call.query
        terms = parse(query.q or "")
        # What has come since stands before the first page, and on no other.
        if query.whole and query.cursor is None:
            await until_parsed(api, call, Reach(mailbox_id=call.mailbox.id))
        asked: dict[str, Any] = {
            "limit": min(query.limit, 200),
            "offset": query.offset,
            "cursor": query.cursor,
            "terms": terms,
        }
        heavy = terms or query.whole or query.limit > SHORT
        async with api.heavy_calls.turn(call) if heavy else nullcontext():
            if query.whole:
                return await whole(call, asked)
            page = await messages.page(call.mailbox.id, **asked)
            if page is None:
                raise mailbox_not_found()
            # The cursor already stands behind the offset.
            return await listed(api, call, page.items, next_link(page.cursor, offset=0))

    async def whole(call: Call, asked: dict[str, Any]) -> Response:
        page = await messages.whole_page(call.mailbox.id, **asked, at_once=_marked_at_once())
        if page is None:
            raise mailbox_not_found()
        found = [message for message, _ in page.items]
        shown = (message.as_json() | placed.as_json() | _READ for message, placed in page.items)
        headers = next_link(page.cursor, offset=0)
        return await given(call, found, shown, headers)

    async def given(
        call: Call, found: Sequence[ReceivedMessage], shown: Any, headers: Mapping[str, str]
    ) -> Response:
        """Messages as JSON; what reading them has not marked is marked once there is room."""
        loaded = sum(one.loaded for one in found)
        answer = await downloads.json(owner_by(call), shown, loaded, headers)
        unread = [one.id for one in found if not one.is_read]
        if unread and request.method != "HEAD":
            await messages.mark_read(call.mailbox.id, unread)
        return answer

    @api.add(
        "GET",
        f"{BASE}/<message_id>",
        Operation(
            "getMessage",
            "Read a message, and mark it read",
            "messages",
            Access.MAILBOX,
            (Answer(200, "the message", WholeMessage), GONE),
            scope="read",
        ),
    )
    async def show(call: Call, message_id: str) -> Response:
        message = await messages.get(call.mailbox.id, message_id, at_once=_marked_at_once())
        if message is None:
            raise message_not_found()
        return await given(call, [message], message.as_json() | _READ, {})

    @api.add(
        "PATCH",
        f"{BASE}/<message_id>",
        Operation(
            "changeMessage",
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
                lambda: messages.change(call.mailbox.id, message_id, wanted.change)
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
            "deleteMessage",
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
            "getRawMessage",
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
        name = f'attachment; filename="{plain_name(message_id)}.eml"'
        answer = await raw_mail.response(
            owner, mailbox_id, message_id, size, "message/rfc822", {"Content-Disposition": name}
        )
        if answer is None:
            raise message_not_found()
        return answer

    @api.add(
        "GET",
        f"{BASE}/<message_id>/attachments/<index>",
        Operation(
            "getAttachment",
            "Download an attachment",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "its bytes", media_type="application/octet-stream"),
                replace(GONE, cases=(*GONE.cases, "attachment-not-found")),
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


def _marked_at_once() -> int:
    """Bytes of JSON that the statement marks read which reads them: of HEAD nothing is."""
    return -1 if request.method == "HEAD" else AT_ONCE
