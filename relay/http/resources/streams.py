"""Waiting for mail: the long poll, Server-Sent Events, and the same as a WebSocket.

Promises, besides those of `relay.http.feeds.following_mail` (nothing polls; each message once, in
order; what a slow reader costs) and of `relay.http.waiting.waiters` (how many may wait)
  * An event stream also looks with every keep-alive, since wake-ups are hints.
  * A message is sent in its turn also when one that came earlier took longer to parse.
  * Everything here ends at the mailbox's end, at once when its page session does, and within two
    keep-alives of its key's: a wait with the answer that a new one would get, a stream by closing.

Fails: a database outage is a 503 for a wait that has to look for mail; streams outlive it and
look again, for mail and for their keys.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing, nullcontext
from typing import Annotated, Literal

import trio
from pydantic import Field
from quart import Response, request, websocket

from relay.http.credentials.callers import owner_of
from relay.http.credentials.tickets import STREAM
from relay.http.feeds.following_mail import (
    CHANGED,
    entries,
    events_of,
    in_vain,
    loaded_of,
    pause,
    until_next,
)
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Operation,
    Overtaken,
    Query,
)
from relay.http.problems.details import Problem, mailbox_not_found
from relay.http.resources.messages import BASE, PlacedEntry, WholeMessage
from relay.http.routing import Api
from relay.http.waiting.crowds import FEW
from relay.http.waiting.waiters import Waiter, Watch, watching
from relay.mailboxes.arrivals import Sought, parse_after
from relay.mailboxes.records import Entry, Mailbox, News, Placed
from relay.mailboxes.visibility import Reach

NEW_MESSAGE = "new_message"
"""What both streams call the arrival of a message."""
MAX_WAIT = 3600.0
"""Seconds that a call may wait."""
EVENTS = Answer(
    200,
    f"event: {NEW_MESSAGE}, id: the message's, data: its entry as JSON; event: {CHANGED}, data: "
    "what became of messages: changed, deleted and, of too many to name, reread",
    media_type="text/event-stream",
)
"""What a stream of Server-Sent Events answers."""
FOUND = (
    "the oldest match; it is not marked read; null when none came in time and `empty=null` was said"
)
"""What a wait answers."""
NOT_IN_TIME = Answer(204, "none came in time")


class WaitQuery(Query):
    """What to wait for."""

    timeout: Annotated[
        float, Field(ge=0, le=MAX_WAIT, allow_inf_nan=False, description="seconds")
    ] = 30.0
    sender: Annotated[
        str | None, Field(alias="from", max_length=1000, description="a part of the From address")
    ] = None
    subject: Annotated[str | None, Field(max_length=1000, description="a part of the subject")] = (
        None
    )
    after: Annotated[
        str | None, Field(max_length=64, description="a message id or a time, exclusive")
    ] = None
    empty: Annotated[
        Literal["null"] | None,
        Field(description="null: the time-out is 200 with the JSON null, not 204 with nothing"),
    ] = None


class StreamQuery(Query):
    """How to open a stream where headers cannot be set."""

    token: Annotated[str | None, Field(description="the session token, or the owner's key")] = None
    after: Annotated[
        str | None,
        Field(alias="last_event_id", max_length=64, description="like the header Last-Event-ID"),
    ] = None


def register(api: Api) -> None:
    """Declare the calls."""
    arrivals, hub, limits = api.deps.arrivals, api.deps.hub, api.deps.limits
    draining = api.deps.draining
    trusted = api.deps.trusted_proxies
    slots = api.waits
    busy = Answer(
        429,
        "too many calls wait on this mailbox, or of this address",
        cases=("too-many-waits",),
    )

    async def start(mailbox: Mailbox, last: str | None) -> int | None:
        """The cursor behind the message `last`; the present when none is given."""
        if last is None:
            present = await arrivals.news(mailbox.id, None)
            if present is None:
                raise mailbox_not_found()
            return present.cursor
        return await arrivals.cursor_after(mailbox.id, last)

    @api.add(
        "GET",
        f"{BASE}/wait",
        Operation(
            "waitForMessage",
            "Wait for a message",
            "waiting",
            Access.MAILBOX,
            (
                Answer(200, FOUND, WholeMessage | None),
                NOT_IN_TIME,
                MAILBOX_NOT_FOUND,
                busy,
            ),
            scope="read",
            query=WaitQuery,
            sees_end=True,
            stream=True,
            details="Answers at once when a match is there already, with 404 at the moment the "
            "mailbox ends, and soon after the key was revoked. Sub-strings match in any case.",
        ),
    )
    async def wait(call: Call) -> Response:
        query: WaitQuery = call.query
        after = None if query.after is None else parse_after(query.after)
        mailbox_id = call.mailbox.id
        waiter, null = Waiter.of(call, request, trusted), query.empty is not None
        owner = owner_of(call.caller, request, trusted)
        deadline, above, much = trio.current_time() + query.timeout, 0, False
        sought: Sought | None = None
        woken = looked = False
        with (
            slots.hold(waiter, "wait"),
            watching(hub, Reach(mailbox_id=mailbox_id), call) as watch,
        ):
            while True:
                turn = api.heavy_calls.turn(call) if much else api.heavy_calls.look(owner)
                async with turn:
                    found = await arrivals.next_match(
                        mailbox_id,
                        sender=query.sender, subject=query.subject,
                        after=after, above=above, brief=not much,
                    )  # fmt: skip
                if found is None:
                    raise Overtaken if call.believed and not looked else mailbox_not_found()
                looked = True
                if found.message is not None:
                    message = found.message
                    return await api.downloads.json(owner, message.as_json(), message.loaded)
                above = found.above
                if found.cut and not much:
                    much = True
                    continue
                much = found.cut
                left = deadline - trio.current_time()
                answer = in_vain(left, cut=much, null=null, draining=draining)
                if answer is not None:
                    return answer
                if crowded := not much and slots.on(mailbox_id) > FEW:
                    sought = sought or await arrivals.sought(query.sender, query.subject, after)
                with (
                    api.crowds.joined(mailbox_id, owner, watch, sought, above)
                    if crowded and sought is not None
                    else nullcontext(watch) as news
                ):
                    woken = await pause(
                        call,
                        news,
                        min(left, until_next(much, found.expires_in)),
                        rest=api.heavy_calls.looked_in_vain(owner) if woken else 0.0,
                        draining=draining,
                        keep_alive_every=limits.keep_alive_every,
                    )

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>/events",
        Operation(
            "followMailbox",
            "Follow a mailbox as Server-Sent Events",
            "waiting",
            Access.MAILBOX,
            (
                EVENTS,
                MAILBOX_NOT_FOUND,
                busy,
            ),
            scope="read",
            query=StreamQuery,
            stream=True,
            token_in_query=True,
            ticket=STREAM,
            details="Begins at the present, or behind Last-Event-ID; ends with the mailbox, and "
            "soon after its key was revoked.",
        ),
    )
    async def events(call: Call) -> Response:
        waiter = Waiter.of(call, request, trusted)
        slots.check(waiter)
        cursor = await start(call.mailbox, request.headers.get("Last-Event-ID", call.query.after))
        owner = owner_of(call.caller, request, trusted)
        return events_of(
            api,
            call,
            waiter,
            Reach(mailbox_id=call.mailbox.id),
            lambda watch: follow(call, owner, watch, cursor),
            as_event,
        )

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>/ws",
        Operation(
            "followMailboxSocket",
            "Follow a mailbox over a WebSocket",
            "waiting",
            Access.MAILBOX,
            (Answer(101, "each new message as JSON", ArrivedMessage), MAILBOX_NOT_FOUND, busy),
            scope="read",
            query=StreamQuery,
            stream=True,
            websocket=True,
            token_in_query=True,
            ticket=STREAM,
            details="Begins at the present, or behind last_event_id; closes with 1000 at the "
            "mailbox's end, with 1001 when the relay stops, with 1008 soon after its key was "
            "revoked. What the client sends is ignored.",
        ),
    )
    async def socket(call: Call) -> None:
        waiter = Waiter.of(call, websocket, trusted)
        slots.check(waiter)
        cursor = await start(call.mailbox, websocket.headers.get("Last-Event-ID", call.query.after))

        owner = owner_of(call.caller, websocket, trusted)

        async def discard() -> None:
            # Unread messages would fill hypercorn's queue, behind which the close frame waits.
            while True:
                await websocket.receive()

        with (
            slots.hold(waiter, "ws"),
            watching(hub, Reach(mailbox_id=call.mailbox.id), call) as watch,
        ):
            await websocket.accept()
            refused = crowded = False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discard)
                try:
                    async with aclosing(follow(call, owner, watch, cursor)) as pages:
                        async for page in pages:
                            with api.downloads.held(owner, loaded_of(page)):
                                for entry, placed in page:
                                    shown = entry.as_json() | placed.as_json()
                                    message = {"type": NEW_MESSAGE, **shown}
                                    await websocket.send(json.dumps(message, ensure_ascii=False))
                except Problem as problem:
                    refused, crowded = True, problem.status == 503
                nursery.cancel_scope.cancel()
            if crowded:
                await websocket.close(1013, "too much is being read; try again")
            elif refused:
                await websocket.close(1008, "the credential opens this no more")
            elif draining.is_set():
                await websocket.close(1001, "the relay is stopping")
            else:
                await websocket.close(1000, "the mailbox is over")

    def follow(
        call: Call, owner: Hashable, watch: Watch, cursor: int | None
    ) -> AsyncGenerator[list[tuple[Entry, Placed]], None]:
        mailbox: Mailbox = call.mailbox

        async def look(cursor: int | None) -> News[tuple[Entry, Placed]] | None:
            async with api.heavy_calls.look(owner):
                return await arrivals.news(mailbox.id, cursor)

        return entries(
            look, watch, cursor,
            expires_in=mailbox.expires_in, draining=draining,
            keep_alive_every=limits.keep_alive_every, refusal=call.refusal,
        )  # fmt: skip


class ArrivedMessage(PlacedEntry):
    """What a WebSocket sends for each new message."""

    type: Annotated[str, Field(description=f"always {NEW_MESSAGE}")]


def as_event(found: tuple[Entry, Placed]) -> bytes:
    """Return an entry of a list as a Server-Sent Event."""
    entry, placed = found
    shown = entry.as_json() | placed.as_json()
    data = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return f"event: {NEW_MESSAGE}\nid: {entry.id}\ndata: {data}\n\n".encode("utf-8", "replace")
