"""Following what becomes readable, and what is changed of it: pages of entries as they come, for
streams and for waits.

What calls on one mailbox (`resources/streams.py`) and on all (`resources/all_messages.py`) have in
common; `waiting` says what wakes them, and how many there may be.

Promises
  * Nothing polls: between two looks there is a wake-up, the instant of a mailbox's end, a moment
    where mail is being stored, or after an outage a second.
  * Each entry is given once, in the order in which they became readable; a slow reader costs one
    page, since the next is read when that has been written, and what is large of it is counted
    (`relay.http.responses.downloads`).
  * An event stream tells what is changed of messages, too, by whomever: as it is when it is looked,
    so that the last that is told of a message is how it is.
  * It ends with the mailbox, with the relay, and soon after the caller would be refused.

Fails: `entries` outlives an outage of the database, and looks again.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import TypeVar

import trio
from quart import Response, request

from relay.errors import DatabaseUnavailable
from relay.http.credentials.callers import owner_of
from relay.http.feeds.event_streams import event_stream
from relay.http.operations import Call, Refusal, json_response, no_content
from relay.http.problems.details import Problem, unavailable
from relay.http.routing import Api
from relay.http.waiting.crowds import Member
from relay.http.waiting.waiters import Waiter, Watch, watching
from relay.mailboxes.records import Entry, News, Placed
from relay.mailboxes.visibility import Reach

T = TypeVar("T")

CHANGED = "messages_changed"
"""What an event stream calls that messages were deleted, marked or tagged."""

_PIECE = 64 * 1024  # bytes of events that are written at once
_RETRY = 1.0  # s; before a stream looks again after an outage
_SOON = 0.05  # s; until the next look where something is being stored
_SLACK = 0.002  # s; so that a look at the end of a mailbox finds it ended


def loaded_of(page: Iterable[tuple[Entry, Placed]]) -> int:
    """Bytes of memory that a page of entries takes."""
    return sum(entry.loaded + placed.loaded for entry, placed in page)


def until_next(more: bool, expires_in: float | None) -> float:
    """Seconds until a look that no wake-up asks for (`News` says what the two are)."""
    if more:
        return _SOON
    return math.inf if expires_in is None else expires_in + _SLACK


def in_vain(left: float, *, cut: bool, null: bool, draining: trio.Event) -> Response | None:
    """What a wait answers that has found nothing and has `left` so many seconds; None: it goes on.

    `cut`: it has not looked at all that is there; `null`: the answer in time is JSON.  Raises the
    503 where it has not, and when the relay stops.
    """
    if left <= 0 and cut:
        raise unavailable(
            "There is more mail than a wait looks through in this time; say `after`, or more of "
            "what to wait for.",
            retry_after=1,
        )
    if left <= 0:
        return json_response(None) if null else no_content()
    if draining.is_set():
        raise unavailable("The relay is stopping; ask again.", retry_after=1)
    return None


async def pause(
    call: Call,
    watch: Watch | Member,
    seconds: float,
    *,
    rest: float,
    draining: trio.Event,
    keep_alive_every: float,
) -> bool:
    """Return at the next wake-up, or after `seconds`; whether there was one.

    Not before a `rest` of so many seconds, or those, unless the relay stops.  Raises the refusal of
    the call when there is one.
    """
    until = trio.current_time() + seconds
    rested = min(until, trio.current_time() + rest)
    woken = False
    # No look for mail only because one at the key is due: an outage would show.
    while (left := (rested if woken else until) - trio.current_time()) > 0:
        woken |= await watch.wait(min(left, keep_alive_every))
        if (refused := await call.refusal()) is not None:
            raise refused
        if draining.is_set():
            break
    return woken


async def entries(
    look: Callable[[int | None], Awaitable[News[T] | None]],
    watch: Watch,
    cursor: int | None,
    *,
    expires_in: float | None,
    draining: trio.Event,
    keep_alive_every: float,
    refusal: Refusal,
) -> AsyncGenerator[list[T], None]:
    """Yield what becomes readable after `cursor`, page by page, until the mailbox ends.

    `look` finds what is new behind a cursor; `expires_in`: seconds, if it is of one mailbox.  An
    empty page comes first (the stream stands), after each silent `keep_alive_every`, and when
    messages were changed (`watch.edited`).  Raises the `refusal` when there is one while the
    mailbox lives.
    """
    ends_at = trio.current_time() + (math.inf if expires_in is None else expires_in)
    started = False
    while not draining.is_set():
        refused = await refusal()  # first: one that is due to the mailbox's end is not raised
        try:
            news = await look(cursor)
        except DatabaseUnavailable:
            if trio.current_time() >= ends_at:
                return  # what was known last says that it is over
            yield []
            await watch.wait(_RETRY)
            continue
        if news is None:
            return
        if refused is not None:
            raise refused
        cursor = news.cursor
        if news.expires_in is not None:
            ends_at = trio.current_time() + news.expires_in
        if news.found:
            started = True
            yield news.found
            continue
        if not started:
            started = True
            yield []
        left = until_next(news.more, news.expires_in)
        woken_by = trio.current_time() + keep_alive_every
        await watch.wait(min(left, keep_alive_every))
        if trio.current_time() >= woken_by or watch.edited:
            yield []


def events_of(
    api: Api,
    call: Call,
    waiter: Waiter,
    reach: Reach,
    follow: Callable[[Watch], AsyncGenerator[list[tuple[Entry, Placed]], None]],
    as_event: Callable[[tuple[Entry, Placed]], bytes],
) -> Response:
    """Answer with what `follow` yields, and with what is changed of messages within reach, as
    Server-Sent Events.  Ask `Slots.check` first.

    What is large of a page is within the memory that there is for downloads; where it has no room
    the stream ends, and goes on for whoever comes again behind what was sent.
    """
    owner = owner_of(call.caller, request, api.deps.trusted_proxies)

    async def edited(watch: Watch) -> bytes:
        try:
            async with api.heavy_calls.look(owner):
                found = await api.deps.all_messages.edits(reach, watch.taken())
        except DatabaseUnavailable:
            watch.give_back()  # with the next page, then
            return b""
        if found is None:
            return b""
        return f"event: {CHANGED}\ndata: {json.dumps(found.as_json())}\n\n".encode()

    async def body() -> AsyncIterator[bytes]:
        with (
            api.waits.hold(waiter, "sse"),
            watching(api.deps.hub, reach, call, edits=True) as watch,
            suppress(Problem),  # refused by now, or no room: all that is left to say is the end
        ):
            yield b"retry: 1000\n\n"
            async with aclosing(follow(watch)) as pages:
                async for page in pages:
                    told, room = await api.downloads.collected(
                        owner, map(as_event, page), loaded_of(page)
                    )
                    page.clear()  # what is written next may take its reader long
                    try:
                        room(len(told))
                        if watch.edited:
                            told += await edited(watch)
                        for at in range(0, len(told), _PIECE):  # each has its own deadline
                            yield bytes(told[at : at + _PIECE])
                        if not told:
                            yield b": still here\n\n"
                    finally:
                        room.release()

    return event_stream(body())
