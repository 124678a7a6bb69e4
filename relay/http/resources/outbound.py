"""`/api/v1/outbound` and `/api/v1/queue`: what became of a message, and the queue as a whole.

A message is its owner's: the holder of the key that sent it, and nobody else but the
administrator, finds it.  The administrator sees the state of every message, but recipient and
subject only of their own (those sent with their token, and by `relay.send` in SQL); only `raw`
shows them any.

Promises
  * What is done by hand is what the law has (`relay.outbound.states`); what it has not is 409
    `wrong-state`, with the state that stands in the way.
  * A change is durable when its answer comes, on all nodes; the answer shows the message after it.
  * What cannot be an id is a message that is not there (404), not a malformed request.
  * `raw` is what goes out, byte for byte (dots unstuffed); few are in memory at once.

Fails with `DatabaseUnavailable`, a 503.  The change may have happened then; asked for again, a
retry, cancel or hold that did is 409.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.errors import PermanentFailure
from relay.http.callers import Caller
from relay.http.operations import Access, Answer, Call, Operation, Query, View, json_response
from relay.http.paging import NEXT, PageQuery, next_link
from relay.http.problems import Problem
from relay.http.resources.messages import Downloads, once
from relay.http.routing import Api
from relay.outbound.message import MalformedMessage
from relay.outbound.states import Forbidden, State
from relay.outbound.suppressions import plain_address
from relay.times import rfc3339


class OutboundQuery(PageQuery):
    """The messages that are asked for."""

    status: Annotated[State | None, Field(description="only messages in this state")] = None
    recipient: Annotated[
        str | None, Field(max_length=1000, description="only to this address, whatever its case")
    ] = None
    priority: Annotated[
        Literal["high", "normal", "bulk"] | None, Field(description="only of this priority")
    ] = None
    domain: Annotated[
        str | None, Field(max_length=255, description="only to addresses of this domain")
    ] = None


class OutboundMessage(View):
    """One message to one recipient; recipient, subject and tag are null to all but its owner."""

    id: str
    recipient: str | None
    subject: str | None
    status: State
    attempts: int
    next_retry_at: str | None
    sent_at: str | None
    priority: str
    error: str | None
    created_at: str
    not_after: str | None
    tag: str | None


class DeliveryEvent(View):
    """One phase of one delivery; `duration` in seconds, `code` null where no reply came."""

    phase: str
    code: int | None
    at: str
    duration: float | None
    attempt: int


class QueueState(View):
    """The queue at one moment: what is unfinished, and in `last_hour` what finished, by status."""

    paused: bool
    queued: int
    due: int
    processing: int
    held: int
    lost: int
    oldest_due_seconds: float | None
    by_priority: dict[str, int]
    last_hour: dict[str, int]


class FlushQuery(Query):
    """The deferred messages that are to be tried."""

    domain: Annotated[
        str | None, Field(max_length=255, description="only to addresses of this domain")
    ] = None
    route: Annotated[
        str | None,
        Field(
            max_length=2048,
            description="only what leaves by this upstream, as the list of destinations names it; "
            "default: the relay's own",
        ),
    ] = None


class Flushed(View):
    """What a flush did."""

    count: int


class Destination(View):
    """A route (`domain` null) or a destination in trouble; `opens_in` in seconds."""

    route: str
    domain: str | None
    window: int
    busy: int
    strikes: int
    opens_in: float


_HEADERS = 16 * 1024  # bytes of a message that its size does not count, at most, nearly always
_NONE = Answer(404, "there is no such message, or it is not the caller's")


def register(api: Api) -> None:
    """Declare the calls."""
    admin = api.deps.queue_admin

    @api.add(
        "GET",
        "/api/v1/outbound",
        Operation(
            "List the messages that were sent, newest first",
            "outbound",
            Access.SCOPE,
            (Answer(200, "a page of them", list[OutboundMessage], headers=NEXT),),
            scope="send",
            query=OutboundQuery,
            details="The holder of a key sees their own. The administrator sees everybody's, "
            "recipient and subject of their own only. Asked for by priority or domain, a page may "
            "hold less than its limit, or nothing, and still have a next one.",
        ),
    )
    async def list_(call: Call) -> Response:
        wanted: OutboundQuery = call.query
        before = None
        if wanted.cursor is not None:
            before = _uuid(wanted.cursor)
            if before is None:
                raise Problem(
                    422, "invalid", "cursor: it is not one of ours.", title="Invalid values"
                )
        try:
            recipient = None if wanted.recipient is None else plain_address(wanted.recipient)
        except MalformedMessage:
            return json_response([])  # nothing was ever sent to what is no address
        found = await admin.find(
            owner=_owner(call.caller),
            status=wanted.status,
            recipient=recipient,
            priority=wanted.priority,
            domain=wanted.domain,
            limit=wanted.rows,
            before=before,
        )
        cursor = None if found.before is None else str(found.before)
        return json_response(
            [_shown(row, call.caller) for row in found.rows], headers=next_link(cursor)
        )

    @api.add(
        "GET",
        "/api/v1/outbound/<message_id>",
        Operation(
            "Show a message that was sent",
            "outbound",
            Access.SCOPE,
            (Answer(200, "the message", OutboundMessage), _NONE),
            scope="send",
        ),
    )
    async def show(call: Call, message_id: str) -> Response:
        return json_response(await _one(call.caller, message_id))

    @api.add(
        "GET",
        "/api/v1/outbound/<message_id>/events",
        Operation(
            "Show what happened in each delivery of a message, oldest first",
            "outbound",
            Access.SCOPE,
            (Answer(200, "the phases", list[DeliveryEvent]), _NONE),
            scope="send",
        ),
    )
    async def events(call: Call, message_id: str) -> Response:
        wanted = _uuid(message_id)
        found = None if wanted is None else await admin.events(wanted, _owner(call.caller))
        if found is None:
            raise _not_found()
        return json_response([_event(event) for event in found])

    downloads = Downloads(api.deps.limits.download_bytes // 4)

    @api.add(
        "GET",
        "/api/v1/outbound/<message_id>/raw",
        Operation(
            "Fetch a message byte for byte as it was or will be sent",
            "outbound",
            Access.SCOPE,
            (
                Answer(200, "the message", media_type="message/rfc822"),
                _NONE,
                Answer(409, "it can never be sent: what was queued by SQL is no message"),
                Answer(503, "too many large messages are being read; try again"),
            ),
            scope="send",
            details="The same bytes at every attempt, with the Date and the Message-ID that go "
            "out. Its owner and the administrator see it.",
        ),
    )
    async def raw(call: Call, message_id: str) -> Response:
        wanted, owner = _uuid(message_id), _owner(call.caller)
        size = None if wanted is None else await admin.size(wanted, owner)
        if wanted is None or size is None:
            raise _not_found()
        # Stored, encoded, and joined: three times what was said, and its headers.
        held = downloads.hold(call.caller.owner_id, 3 * size + _HEADERS)
        try:
            mail = await admin.mail(wanted, owner)
            if mail is None:
                raise _not_found()  # noqa: TRY301 - what is held goes back below
        except PermanentFailure as error:
            held.release()
            raise Problem(409, "cannot-be-sent", f"The message cannot be sent: {error}.") from error
        except BaseException:
            held.release()
            raise
        held.shrink(mail.size)
        return downloads.response(
            once(mail.data),
            mail.size,
            held,
            "message/rfc822",
            {"Content-Disposition": f'attachment; filename="{wanted}.eml"'},
        )

    async def _by_hand(
        act: Callable[[UUID, UUID | None], Awaitable[State | None]], call: Call, message_id: str
    ) -> Response:
        wanted, owner = _uuid(message_id), _owner(call.caller)
        try:
            done = None if wanted is None else await api.committed(lambda: act(wanted, owner))
        except Forbidden as error:
            raise Problem(409, "wrong-state", f"{error}.".capitalize()) from error
        if done is None:
            raise _not_found()
        return json_response(await _one(call.caller, message_id))

    by_hand = (
        (
            "retry",
            admin.retry,
            "Queue a held, failed or bounced message again, or a deferred one at once",
            "it is queued and due, with a fresh set of attempts",
            "it is in a state in which there is nothing to retry",
        ),
        (
            "cancel",
            admin.cancel,
            "Cancel a queued or held message",
            "it will not be sent",
            "it is being delivered, or is finished",
        ),
        (
            "hold",
            admin.hold,
            "Set a queued message aside until it is retried",
            "it waits for a retry by hand",
            "it is being delivered, or is finished",
        ),
    )
    for name, act, summary, done, refused in by_hand:
        api.add(
            "POST",
            f"/api/v1/outbound/<message_id>/{name}",
            Operation(
                summary,
                "outbound",
                Access.SCOPE,
                (Answer(200, done, OutboundMessage), _NONE, Answer(409, refused)),
                scope="send",
            ),
        )(partial(_by_hand, act))

    @api.add(
        "GET",
        "/api/v1/queue/destinations",
        Operation(
            "List the routes and destinations that this node holds back",
            "outbound",
            Access.SCOPE,
            (Answer(200, "the worst first; what answers well is not here", list[Destination]),),
            scope="admin",
            details="Each node learns by itself how a destination takes its mail.",
        ),
    )
    async def destinations(call: Call) -> Response:
        return json_response([asdict(one) for one in api.deps.destinations()])

    @api.add(
        "GET",
        "/api/v1/queue",
        Operation(
            "Count the queue",
            "outbound",
            Access.SCOPE,
            (Answer(200, "the counts, of all nodes", QueueState),),
            scope="admin",
        ),
    )
    async def queue(call: Call) -> Response:
        return json_response((await admin.stats()).as_json())

    @api.add(
        "POST",
        "/api/v1/queue/pause",
        Operation(
            "Hold all deliveries, on all nodes, until resumed",
            "outbound",
            Access.SCOPE,
            (Answer(200, "nothing new is begun; what is under way ends", QueueState),),
            scope="admin",
        ),
    )
    async def pause(call: Call) -> Response:
        await api.committed(admin.pause)
        return json_response((await admin.stats()).as_json())

    @api.add(
        "POST",
        "/api/v1/queue/resume",
        Operation(
            "End a pause",
            "outbound",
            Access.SCOPE,
            (Answer(200, "deliveries go on", QueueState),),
            scope="admin",
        ),
    )
    async def resume(call: Call) -> Response:
        await api.committed(admin.resume)
        return json_response((await admin.stats()).as_json())

    @api.add(
        "POST",
        "/api/v1/queue/flush",
        Operation(
            "Try deferred mail now",
            "outbound",
            Access.SCOPE,
            (Answer(200, "how many messages became due", Flushed),),
            scope="admin",
            query=FlushQuery,
            details="Pauses of routes and destinations end on all nodes, with one delivery each "
            "to see. Scheduled mail keeps its time, and attempts are not counted anew.",
        ),
    )
    async def flush(call: Call) -> Response:
        wanted: FlushQuery = call.query
        count = await api.committed(lambda: admin.flush(wanted.domain, wanted.route))
        return json_response({"count": count})

    async def _one(caller: Caller, message_id: str) -> dict[str, Any]:
        wanted = _uuid(message_id)
        row = None if wanted is None else await admin.show(wanted, _owner(caller))
        if row is None:
            raise _not_found()
        return _shown(row, caller)


def _owner(caller: Caller) -> UUID | None:
    """The owner whose messages the caller finds; None: everybody's."""
    return None if caller.key is None else caller.owner_id


def _shown(row: dict[str, Any], caller: Caller) -> dict[str, Any]:
    own = row["owner"] == caller.owner_id
    return {
        "id": str(row["id"]),
        "recipient": row["recipient"] if own else None,
        "subject": row["subject"] if own else None,
        "status": row["status"],
        "attempts": row["attempts"],
        "next_retry_at": _instant(row["next_retry_at"]),
        "sent_at": _instant(row["sent_at"]),
        "priority": row["priority"],
        "error": row["error_log"],
        "created_at": _instant(row["created_at"]),
        "not_after": _instant(row["not_after"]),
        "tag": row["tag"] if own else None,
    }


def _event(event: dict[str, Any]) -> dict[str, Any]:
    at = event["at"]
    return {**event, "at": at if isinstance(at, str) else _instant(at)}


def _instant(value: Any) -> str | None:
    return None if value is None else rfc3339(value)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _not_found() -> Problem:
    return Problem(404, "outbound-not-found", "There is no such message, or it is not yours.")
