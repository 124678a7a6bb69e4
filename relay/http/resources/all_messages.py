"""`/api/v1/messages`: the mail of all mailboxes that the caller owns, at once.

With a session token that is its one mailbox; with a key, the key's; the administrator's token shows
everybody's, and what was captured.

Promises
  * Nothing polls: whoever waits subscribes first, looks in the database second and sleeps third.
    Only where something is being stored beside what is there already, the next look is soon.
  * Each message is sent once a stream, in the order in which messages became readable.
  * A bulk call names what it changes: without a `q` it is refused, `q=*` is everything.  One that
    takes too long is a 503; what it has done by then is done, and it may be called again.
  * Waits and streams end with their credential, as those of one mailbox do (`streams.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Any

import trio
from pydantic import Field
from quart import Response, request

from relay.errors import Invalid
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Operation,
    Query,
    View,
    json_response,
    no_content,
)
from relay.http.paging import NEXT, PageQuery, next_link
from relay.http.problems import mailbox_not_found, unavailable
from relay.http.resources.messages import PlacedEntry, WholeMessage
from relay.http.resources.streams import (
    EVENTS,
    FOUND,
    NOT_IN_TIME,
    StreamQuery,
    WaitQuery,
    as_event,
    entries,
    events_of,
    pause,
    until_next,
)
from relay.http.routing import Api
from relay.http.tickets import STREAM
from relay.http.waiting import Waiter, Watch, watching
from relay.mailboxes.arrivals import parse_after
from relay.mailboxes.query import LONGEST, Term, parse
from relay.mailboxes.records import Entry, Placed
from relay.mailboxes.visibility import Reach

BASE = "/api/v1/messages"


class PlacedMessage(WholeMessage):
    """A message with everything that was found in it, and where it is."""

    mailbox: Annotated[str, Field(description="its address")]
    tags: list[str]
    snippet: str | None


class Counted(View):
    """What a bulk call did."""

    count: Annotated[int, Field(description="messages that were changed")]


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


class WaitAnywhereQuery(WaitQuery):
    """What to wait for."""

    recipient: Annotated[
        str | None, Field(alias="to", max_length=1000, description="a part of the recipient")
    ] = None
    tag: Annotated[str | None, Field(max_length=1000, description="a tag, as a whole")] = None
    q: _Q = None


def as_json(entry: Entry, placed: Placed) -> dict[str, Any]:
    """The entry as lists over several mailboxes show it."""
    return entry.as_json() | placed.as_json()


def register(api: Api) -> None:
    """Declare the calls."""
    everything = api.deps.all_messages
    hub, limits, draining = api.deps.hub, api.deps.limits, api.deps.draining
    trusted, slots = api.deps.trusted_proxies, api.waits
    busy = Answer(429, "too many calls of this owner wait, or of this address")
    over = Answer(404, "the mailbox of the session token is over")

    @api.add(
        "GET",
        BASE,
        Operation(
            "List the messages of all of the caller's mailboxes, newest first",
            "messages",
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
        async with api.searches.turn(call, searches=bool(terms)):
            page = await everything.page(
                reach_of(call), terms, limit=query.rows, cursor=query.cursor
            )
        return json_response([as_json(*one) for one in page.items], headers=next_link(page.cursor))

    def bulk(
        method: str,
        rule: str,
        scope: str,
        summary: str,
        counted: str,
        change: Callable[[Reach, Sequence[Term]], Awaitable[int]],
    ) -> None:
        @api.add(
            method,
            rule,
            Operation(
                summary,
                "messages",
                Access.OWN,
                (Answer(200, counted, Counted),),
                scope=scope,
                query=BulkQuery,
                details="Those that `q` finds; `q=*` is all of them, an empty one is refused.",
            ),
        )
        async def handler(call: Call) -> Response:
            terms, reach = _named(call.query.q), reach_of(call)
            async with api.searches.turn(call, searches=bool(terms)):
                return json_response({"count": await api.committed(lambda: change(reach, terms))})

    bulk(
        "DELETE", BASE, "send", "Delete messages of the caller's mailboxes for good",
        "how many are gone", everything.delete,
    )  # fmt: skip
    bulk(
        "POST", f"{BASE}/read", "read", "Mark messages of the caller's mailboxes read",
        "how many were unread", everything.mark_read,
    )  # fmt: skip

    @api.add(
        "GET",
        f"{BASE}/wait",
        Operation(
            "Wait for a message in any of the caller's mailboxes",
            "messages",
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
        terms, reach = _terms(query), reach_of(call)
        deadline, above = trio.current_time() + query.timeout, 0
        reads_old = True  # what was there before, which may be much; later looks see what is new
        with (
            slots.hold(Waiter.of(call, request, trusted), "wait"),
            watching(hub, reach.mailbox_id, draining, call.admission) as watch,
        ):
            while True:
                async with api.searches.turn(call, searches=bool(terms) and reads_old):
                    match = await everything.next_match(reach, terms, after=after, above=above)
                if match is None:
                    raise mailbox_not_found()
                if match.message is not None:
                    message, placed = match.message
                    return json_response(message.as_json() | placed.as_json())
                above, reads_old = match.above, match.cut
                left = deadline - trio.current_time()
                if left <= 0 and match.cut:
                    raise unavailable(
                        "There is more mail than a wait looks through in this time; say `after`, "
                        "or more of what to wait for.",
                        retry_after=1,
                    )
                if left <= 0:
                    return no_content() if query.empty is None else json_response(None)
                if draining.is_set():
                    raise unavailable("The relay is stopping; ask again.", retry_after=1)
                await pause(
                    call,
                    watch,
                    min(left, until_next(match.more, match.expires_in)),
                    keep_alive_every=limits.keep_alive_every,
                )

    @api.add(
        "GET",
        f"{BASE}/events",
        Operation(
            "Follow all of the caller's mailboxes as Server-Sent Events",
            "messages",
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
        waiter, reach = Waiter.of(call, request, trusted), reach_of(call)
        slots.check(waiter)
        last = request.headers.get("Last-Event-ID", call.query.after)
        if last is None:
            present = await everything.news(reach)
            if present is None:
                raise mailbox_not_found()
            cursor = present.cursor
        else:
            cursor = await everything.cursor_after(reach, last)

        def follow(watch: Watch) -> AsyncGenerator[list[tuple[Entry, Placed]], None]:
            return entries(
                lambda cursor: everything.news(reach, cursor), watch, cursor,
                expires_in=None, draining=draining,
                keep_alive_every=limits.keep_alive_every, refusal=call.refusal,
            )  # fmt: skip

        return events_of(
            api,
            call,
            waiter,
            reach.mailbox_id,
            follow,
            as_event,
        )


def reach_of(call: Call) -> Reach:
    """The mailboxes that the caller of a call with `Access.OWN` may see."""
    if call.mailbox is not None:
        return Reach(mailbox_id=call.mailbox.id)
    return Reach(owner_id=None if call.caller.key is None else call.caller.key.id)


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
