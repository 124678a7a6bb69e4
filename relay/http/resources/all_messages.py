"""`/api/v1/messages`: the mail of all mailboxes that the caller owns, at once; and what is changed
of many messages of one mailbox by one call.

With a session token that is its one mailbox; with a key, the key's; the administrator's token shows
everybody's, and what was captured.

Promises, besides those of `relay.http.feeds.following_mail` and `relay.http.waiting.waiters`
  * A bulk call names what it changes: by a `q`, without which it is refused (`q=*` is everything),
    or by ids, of which those that are not there any more are passed over.  One that takes too long
    is a 503 that says how many it has done, and so is one that tags what was not parsed yet; what
    it has done by then is done, and called again it goes on.
  * Waits and streams end with their credential, as those of one mailbox do
    (`following_mail.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any
from uuid import UUID

import trio
from pydantic import Field
from quart import Response, request

from relay.errors import Invalid, TemporaryFailure
from relay.http.credentials.callers import owner_of
from relay.http.credentials.tickets import STREAM
from relay.http.feeds.following_mail import entries, events_of, in_vain, pause, until_next
from relay.http.limits.heavy_calls import SHORT
from relay.http.lists.paging import NEXT, PageQuery, next_link
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Changed,
    Form,
    Operation,
    Query,
    View,
    json_response,
)
from relay.http.problems.details import mailbox_not_found, unavailable
from relay.http.resources.messages import (
    MessageChange,
    PlacedEntry,
    PlacedMessage,
    listed,
)
from relay.http.resources.streams import (
    EVENTS,
    FOUND,
    NOT_IN_TIME,
    StreamQuery,
    WaitQuery,
    as_event,
)
from relay.http.routing import Api
from relay.http.waiting.waiters import Waiter, Watch, watching
from relay.log import get_logger
from relay.mailboxes.all_messages import CutShort
from relay.mailboxes.arrivals import parse_after
from relay.mailboxes.changes import Change, NotParsed
from relay.mailboxes.query import LONGEST, Term, parse
from relay.mailboxes.records import Entry, News, Placed
from relay.mailboxes.visibility import Reach

BASE = "/api/v1/messages"
OF_ONE = "/api/v1/mailboxes/<address>/messages"

_CUT_SHORT = (
    "The call was cut short: it took too long, or a store does not answer. What it has changed is "
    "changed; call again for the rest."
)
_CAME_TO = (
    "The call was cut short: it took too long, or a store does not answer. {count:,} messages are "
    "done; call again for the rest."
)

log = get_logger()


class Tag(View):
    """A tag that there is."""

    tag: str


_Q = Annotated[
    str | None,
    Field(
        max_length=LONGEST,
        description='words, "phrases", -not, from: to: subject: tag: has:attachment is:unread '
        "is:read before: after: larger: smaller:, all of which must hold; * is everything",
    ),
]


class SearchQuery(PageQuery):
    """The messages that are asked for."""

    q: _Q = None


class BulkQuery(Query):
    """The messages that are to be changed."""

    q: _Q = None


class CountQuery(Query):
    """The messages that are to be counted."""

    q: _Q = None


class Counted(View):
    """How many messages there are of a kind."""

    count: int
    more: Annotated[bool, Field(description="there may be more: counting took too long")]


class MessagesToDelete(Form):
    """The messages that are to go."""

    ids: Annotated[
        tuple[UUID, ...],
        Field(min_length=1, max_length=1000, description="those that are gone do not count"),
    ]


class WaitAnywhereQuery(WaitQuery):
    """What to wait for."""

    recipient: Annotated[
        str | None, Field(alias="to", max_length=1000, description="a part of the recipient")
    ] = None
    tag: Annotated[str | None, Field(max_length=1000, description="a tag, as a whole")] = None
    q: _Q = None


def register(api: Api) -> None:
    """Declare the calls."""
    everything = api.deps.all_messages
    hub, limits, draining = api.deps.hub, api.deps.limits, api.deps.draining
    trusted, slots = api.deps.trusted_proxies, api.waits
    busy = Answer(
        429,
        "too many calls of this owner wait, or of this address",
        cases=("too-many-waits",),
    )
    over = Answer(404, "the mailbox of the session token is over", cases=("mailbox-not-found",))

    @api.add(
        "GET",
        BASE,
        Operation(
            "listAllMessages",
            "List the messages of all of the caller's mailboxes, newest first",
            "all-messages",
            Access.OWN,
            (Answer(200, "a page of them", list[PlacedEntry], headers=NEXT),),
            scope="read",
            query=SearchQuery,
            details="The administrator sees everybody's. docs/http.md says how to search.",
        ),
    )
    async def list_(call: Call) -> Response:
        query: SearchQuery = call.query
        terms = parse(query.q or "")
        heavy = terms or query.rows > SHORT
        async with api.heavy_calls.turn(call) if heavy else nullcontext():
            page = await everything.page(call.reach, terms, limit=query.rows, cursor=query.cursor)
            return await listed(api, call, page.items, next_link(page.cursor))

    @api.add(
        "GET",
        "/api/v1/tags",
        Operation(
            "listTags",
            "List the tags of the caller's mail, by the alphabet",
            "all-messages",
            Access.OWN,
            (Answer(200, "at most 200", list[Tag]),),
            scope="read",
            details="Each once, whatever its case. Of a key with much mail, those of the newest.",
        ),
    )
    async def tags(call: Call) -> Response:
        return json_response([{"tag": tag} for tag in await everything.tags(call.reach)])

    async def counted_as(change: Callable[[], Awaitable[int]]) -> Response:
        """How many a change came to; the 503 that says so where it was cut short."""
        try:
            count = await api.committed(change)
        except NotParsed as error:
            # What it has done by then is done, as of any bulk call that is cut short.
            raise unavailable(
                f"{str(error).capitalize()}; the others are changed. Try again.", retry_after=1
            ) from None
        except TemporaryFailure as error:
            log.warning("http.unavailable", error=str(error))
            done = error.count if isinstance(error, CutShort) else 0
            said = _CAME_TO.format(count=done) if done else _CUT_SHORT
            raise unavailable(said, retry_after=1) from None
        return json_response({"count": count})

    def counting(name: str, rule: str, whose: str) -> None:
        of_one = rule == OF_ONE

        @api.add(
            "GET",
            f"{rule}/count",
            Operation(
                name,
                f"Count the messages of {whose}",
                "messages" if of_one else "all-messages",
                Access.MAILBOX if of_one else Access.OWN,
                (
                    Answer(200, "how many there are", Counted),
                    *((MAILBOX_NOT_FOUND,) if of_one else ()),
                ),
                scope="read",
                query=CountQuery,
                details="Those that `q` finds; without one, all of them.",
            ),
        )
        async def handler(call: Call) -> Response:
            terms, reach = parse(call.query.q or ""), call.reach
            async with api.heavy_calls.turn(call) if terms else nullcontext():
                count, more = await everything.count(reach, terms)
            return json_response({"count": count, "more": more})

    def by_ids(name: str, rule: str, whose: str) -> None:
        of_one = rule == OF_ONE

        @api.add(
            "POST",
            f"{rule}/delete",
            Operation(
                name,
                f"Delete messages of {whose} for good, by their ids",
                "messages" if of_one else "all-messages",
                Access.MAILBOX if of_one else Access.OWN,
                (
                    Answer(200, "how many are gone", Changed),
                    *((MAILBOX_NOT_FOUND,) if of_one else ()),
                ),
                scope="send",
                body=MessagesToDelete,
                details="Those that are not the caller's, or not there any more, are passed over.",
            ),
        )
        async def handler(call: Call) -> Response:
            return await counted_as(lambda: everything.delete_these(call.reach, call.body.ids))

    def bulk(
        name: str,
        method: str,
        rule: str,
        scope: str,
        summary: str,
        counted: str,
        change: Callable[[Reach, Sequence[Term], Any], Awaitable[int]],
        body: type[MessageChange] | None = None,
    ) -> None:
        of_one = rule == OF_ONE

        @api.add(
            method,
            rule,
            Operation(
                name,
                summary,
                "messages" if of_one else "all-messages",
                Access.MAILBOX if of_one else Access.OWN,
                (Answer(200, counted, Changed), *((MAILBOX_NOT_FOUND,) if of_one else ())),
                scope=scope,
                query=BulkQuery,
                body=body,
                details="Those that `q` finds; `q=*` is all of them, an empty one is refused.",
            ),
        )
        async def handler(call: Call) -> Response:
            terms, reach = _named(call.query.q), call.reach
            if body is not None and call.body.change == Change():
                raise Invalid("a bulk call says what it changes: is_read, tags, add_tags …")
            async with api.heavy_calls.turn(call) if terms else nullcontext():
                return await counted_as(lambda: change(reach, terms, call.body))

    for rule, of, whose in (
        (OF_ONE, "Mailbox", "a mailbox"),
        (BASE, "", "the caller's mailboxes"),
    ):
        bulk(
            f"delete{of}Messages", "DELETE", rule, "send",
            f"Delete messages of {whose} for good",
            "how many are gone", lambda reach, terms, _: everything.delete(reach, terms),
        )  # fmt: skip
        bulk(
            f"change{of}Messages", "PATCH", rule, "read",
            f"Mark messages of {whose} read or unread, and tag them",
            "how many it made a difference to",
            lambda reach, terms, wanted: everything.change(reach, terms, wanted.change),
            MessageChange,
        )  # fmt: skip
        by_ids(f"deleteThese{of}Messages", rule, whose)
        counting(f"count{of}Messages", rule, whose)
    bulk(
        "markMessagesRead", "POST", f"{BASE}/read", "read",
        "Mark messages of the caller's mailboxes read",
        "how many were unread",
        lambda reach, terms, _: everything.change(reach, terms, Change(is_read=True)),
    )  # fmt: skip

    @api.add(
        "GET",
        f"{BASE}/wait",
        Operation(
            "waitForAnyMessage",
            "Wait for a message in any of the caller's mailboxes",
            "all-messages",
            Access.OWN,
            (
                Answer(200, FOUND, PlacedMessage | None),
                NOT_IN_TIME,
                over,
                busy,
            ),
            scope="read",
            query=WaitAnywhereQuery,
            stream=True,
            details="Answers at once when a match is there already, and soon after the key was "
            "revoked. Sub-strings match in any case; `from` is looked for in the sender's name and "
            "address.",
        ),
    )
    async def wait(call: Call) -> Response:
        query: WaitAnywhereQuery = call.query
        after = None if query.after is None else parse_after(query.after)
        terms, reach = _terms(query), call.reach
        deadline, above, woken = trio.current_time() + query.timeout, 0, False
        reads_old = True  # what was there before, which may be much; later looks see what is new
        by_text = any(term.field == "any" for term in terms)
        owner, null = owner_of(call.caller, request, trusted), query.empty is not None
        with (
            slots.hold(Waiter.of(call, request, trusted), "wait"),
            watching(hub, reach, call) as watch,
        ):
            while True:
                much = terms and (reads_old or by_text)
                async with api.heavy_calls.turn(call) if much else api.heavy_calls.look(owner):
                    match = await everything.next_match(reach, terms, after=after, above=above)
                if match is None:
                    raise mailbox_not_found()
                if match.message is not None:
                    message, placed = match.message
                    shown = message.as_json() | placed.as_json()
                    return await api.downloads.json(owner, shown, message.loaded)
                above, reads_old = match.above, match.cut
                left = deadline - trio.current_time()
                answer = in_vain(left, cut=match.cut, null=null, draining=draining)
                if answer is not None:
                    return answer
                woken = await pause(
                    call,
                    watch,
                    min(left, until_next(match.more, match.expires_in)),
                    rest=api.heavy_calls.looked_in_vain(owner) if woken else 0.0,
                    draining=draining,
                    keep_alive_every=limits.keep_alive_every,
                )

    @api.add(
        "GET",
        f"{BASE}/events",
        Operation(
            "followAllMessages",
            "Follow all of the caller's mailboxes as Server-Sent Events",
            "all-messages",
            Access.OWN,
            (
                EVENTS,
                over,
                busy,
            ),
            scope="read",
            query=StreamQuery,
            stream=True,
            token_in_query=True,
            ticket=STREAM,
            details="Begins at the present, or behind Last-Event-ID; ends with the mailbox of a "
            "session token, and soon after its key was revoked.",
        ),
    )
    async def events(call: Call) -> Response:
        waiter, reach = Waiter.of(call, request, trusted), call.reach
        slots.check(waiter)
        last = request.headers.get("Last-Event-ID", call.query.after)
        if last is None:
            present = await everything.news(reach)
            if present is None:
                raise mailbox_not_found()
            cursor = present.cursor
        else:
            cursor = await everything.cursor_after(reach, last)

        owner = owner_of(call.caller, request, trusted)

        async def look(cursor: int | None) -> News[tuple[Entry, Placed]] | None:
            async with api.heavy_calls.look(owner):
                return await everything.news(reach, cursor)

        def follow(watch: Watch) -> AsyncGenerator[list[tuple[Entry, Placed]], None]:
            return entries(
                look, watch, cursor,
                expires_in=None, draining=draining,
                keep_alive_every=limits.keep_alive_every, refusal=call.refusal,
            )  # fmt: skip

        return events_of(
            api,
            call,
            waiter,
            reach,
            follow,
            as_event,
        )


def _named(q: str | None) -> tuple[Term, ...]:
    """The terms of a bulk call, which must say what it means."""
    terms = parse(q or "")
    if not terms and (q or "").strip() != "*":
        raise Invalid("q: a bulk call says what it changes; * is everything")
    return terms


def _terms(query: WaitAnywhereQuery) -> tuple[Term, ...]:
    found = list(parse(query.q or ""))
    if query.sender:
        found.append(Term("from", query.sender))
    if query.recipient:
        found.append(Term("to", query.recipient))
    if query.subject:
        found.append(Term("subject", query.subject))
    if query.tag:
        found.append(Term("tag", query.tag))
    return tuple(found)
