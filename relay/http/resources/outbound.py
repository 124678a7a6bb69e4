"""`/api/v1/outbound`: what became of a message, and what is done by hand with one or with many.

A message is its owner's: the holder of the key that sent it, and nobody else but the
administrator, finds it.  The administrator sees the state of every message, but sender, recipient
and subject only of their own (those sent with their token, and by `relay.send` in SQL); only `raw`
shows them any.

Promises
  * What is done by hand is what the law has (`relay.outbound.queue.states`); what it has not is 409
    `wrong-state`, with the state that stands in the way.
  * A change is durable when its answer comes, on all nodes; the answer shows the message after it.
  * What cannot be an id is a message that is not there (404), not a malformed request.
  * `raw` is what goes out, byte for byte (dots unstuffed); few are in memory at once.

Fails with `DatabaseUnavailable`, a 503.  The change may have happened then; asked for again, a
retry, cancel or hold that did is 409.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.db.text import storable
from relay.errors import PermanentFailure
from relay.http.credentials.callers import Caller
from relay.http.lists.paging import NEXT, PageQuery, next_link
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Changed,
    Instant,
    Operation,
    Query,
    Text,
    View,
    json_response,
)
from relay.http.problems.details import Problem
from relay.http.responses.downloads import Downloads, once
from relay.http.routing import Api
from relay.ids import parse_uuid
from relay.outbound.admin import COUNTED, Wanted
from relay.outbound.composing.message import MalformedMessage, plain_address
from relay.outbound.queue.states import Cause, Forbidden, State
from relay.times import rfc3339


class Meant(Query):
    """Which messages are meant, whatever their state; nothing given means all."""

    recipient: Annotated[
        Text | None, Field(max_length=1000, description="only to this address, whatever its case")
    ] = None
    priority: Annotated[
        Literal["high", "normal", "bulk"] | None, Field(description="only of this priority")
    ] = None
    domain: Annotated[
        Text | None, Field(max_length=255, description="only to addresses of this domain")
    ] = None
    tag: Annotated[Text | None, Field(max_length=255, description="only with this tag")] = None


class OutboundFilter(Meant):
    """The messages that are meant."""

    status: Annotated[State | None, Field(description="only messages in this state")] = None


class OutboundQuery(OutboundFilter, PageQuery):
    """The messages that are asked for."""


class Matching(View):
    """How many messages of a filter each command would change now."""

    retry: int
    cancel: int
    hold: int


class OutboundCounts(View):
    """How many messages are kept, and how many of them are in each state."""

    all: int
    queued: int
    processing: int
    held: int
    sent: int
    failed: int
    bounced: int
    cancelled: int
    more: Annotated[list[str], Field(description="of which there may be more than were counted")]


class OutboundMessage(View):
    """One message to one recipient; sender, recipient, subject and tag are null to all but its
    owner.
    """

    id: str
    sender: Annotated[str | None, Field(description="its reverse-path")]
    recipient: str | None
    subject: str | None
    status: State
    attempts: int
    next_retry_at: Instant | None
    sent_at: Instant | None
    priority: str
    error: str | None
    created_at: Instant
    not_after: Instant | None
    tag: str | None
    peer: Annotated[str | None, Field(description="that of the last attempt, as in its events")]
    tls: Annotated[str | None, Field(description="that of the last attempt, as in its events")]
    reply: Annotated[
        str | None, Field(description="what the server said that took it, redacted as `error` is")
    ]


class DeliveryEvent(View):
    """One phase of one delivery, or what was reported of it later; `duration` in seconds, `code`
    null where no reply came.
    """

    phase: Annotated[
        str, Field(description="of the delivery; or `bounced`, `delayed`, `complained`: reported")
    ]
    code: int | None
    enhanced: Annotated[
        str | None, Field(description="the enhanced status code, of what decided the attempt")
    ]
    error: Annotated[
        str | None, Field(description="what was said where it failed, redacted as in the message")
    ]
    reply: Annotated[
        str | None, Field(description="what was said where it was taken, redacted likewise")
    ]
    peer: Annotated[
        str | None,
        Field(
            description="the server of this attempt, as `host[address]:port`, or `host:port` where "
            "no address was reached; null where there was none, as in the loop"
        ),
    ]
    tls: Annotated[
        str | None, Field(description="the version of TLS that was agreed on; null: none")
    ]
    at: Instant
    duration: float | None
    attempt: int


class FailuresQuery(OutboundFilter):
    """The messages that failed or bounced."""

    status: Annotated[
        Literal[State.FAILED, State.BOUNCED] | None, Field(description="only what ended so")
    ] = None
    error: Annotated[
        str | None,
        Field(
            max_length=500,
            description="only with this error, as the list of failures tells it; empty: with none",
        ),
    ] = None


class Failure(View):
    """What failed or bounced at one destination for one reason; `latest` is the id of one."""

    status: str
    domain: str
    error: str | None
    count: int
    latest: str
    finished_at: Instant


_HEADERS = 16 * 1024  # bytes of a message that its size does not count, at most, nearly always
VERBS = {"retry": Cause.RETRIED, "cancel": Cause.CANCELLED, "hold": Cause.HELD}
_NONE = Answer(
    404, "there is no such message, or it is not the caller's", cases=("outbound-not-found",)
)


def register(api: Api) -> None:
    """Declare the calls."""
    admin = api.deps.queue_admin

    @api.add(
        "GET",
        "/api/v1/outbound",
        Operation(
            "listSentMessages",
            "List the messages that were sent, newest first",
            "sent",
            Access.SCOPE,
            (Answer(200, "a page of them", list[OutboundMessage], headers=NEXT),),
            scope="send",
            query=OutboundQuery,
            details="The holder of a key sees their own. The administrator sees everybody's, "
            "sender, recipient and subject of their own only. Asked for by priority, domain or "
            "tag, a page may hold less than its limit, or nothing, and still have a next one.",
        ),
    )
    async def list_(call: Call) -> Response:
        query: OutboundQuery = call.query
        before = None
        if query.cursor is not None:
            before = parse_uuid(query.cursor)
            if before is None:
                raise Problem(422, "invalid", "cursor: it is not one of ours.")
        wanted = _wanted(call)
        if wanted is None:
            return json_response([])
        found = await admin.find(wanted, limit=query.rows, before=before)
        cursor = None if found.before is None else str(found.before)
        return json_response(
            [_shown(row, call.caller) for row in found.rows], headers=next_link(cursor)
        )

    @api.add(
        "GET",
        "/api/v1/outbound/failures",
        Operation(
            "listFailures",
            "Count what failed or bounced, by destination and error",
            "sent",
            Access.SCOPE,
            (Answer(200, "the groups, the largest first", list[Failure]),),
            scope="send",
            query=FailuresQuery,
            details="Of the newest 10,000 messages that did not go well; 100 groups at most. "
            "The holder of a key counts their own.",
        ),
    )
    async def failures(call: Call) -> Response:
        wanted = _wanted(call)
        found = [] if wanted is None else await admin.failures(wanted)
        return json_response([one.as_json() for one in found])

    @api.add(
        "POST",
        "/api/v1/outbound/failures/retry",
        Operation(
            "retryFailures",
            "Queue again what failed or bounced, by destination and error",
            "sent",
            Access.SCOPE,
            (Answer(200, "how many are queued and due", Changed),),
            scope="send",
            query=FailuresQuery,
            details="What the list of failures counts by the same filter: each with a fresh set "
            "of attempts. The holder of a key retries their own.",
        ),
    )
    async def retry_failures(call: Call) -> Response:
        wanted = _wanted(call)
        if wanted is None:
            return json_response({"count": 0})
        count = await api.committed(lambda: admin.retry_failures(wanted))
        return json_response({"count": count})

    @api.add(
        "GET",
        "/api/v1/outbound/counts",
        Operation(
            "countSentMessages",
            "Count the messages in each state",
            "sent",
            Access.SCOPE,
            (Answer(200, "how many each list would show", OutboundCounts),),
            scope="send",
            details=f"The holder of a key counts their own. Up to {COUNTED:,} messages are "
            "counted, and as many that did not go well, the newest: what there may be more of is "
            "named in `more`. The administrator's counts of what is unfinished are whole.",
        ),
    )
    async def counts(call: Call) -> Response:
        found, more = await admin.count(_owner(call.caller))
        return json_response({**found, "more": more})

    @api.add(
        "GET",
        "/api/v1/outbound/matching",
        Operation(
            "countMatchingSentMessages",
            "Count the messages that a filter means, by what may be done with them",
            "sent",
            Access.SCOPE,
            (Answer(200, "how many each command would change", Matching),),
            scope="send",
            query=OutboundFilter,
            details="The holder of a key counts their own. Of what failed or bounced, the newest "
            "10,000 are looked at.",
        ),
    )
    async def matching(call: Call) -> Response:
        wanted = _wanted(call)
        counts = {} if wanted is None else await admin.count_matching(wanted)
        return json_response({verb: counts.get(cause, 0) for verb, cause in VERBS.items()})

    async def _to_all(cause: Cause, call: Call) -> Response:
        wanted = _wanted(call)
        if wanted is None:
            return json_response({"count": 0})
        count = await api.committed(lambda: admin.change_matching(cause, wanted))
        return json_response({"count": count})

    to_all = (
        ("retry", "Retry all messages of a filter", "how many are queued and due"),
        ("cancel", "Cancel all messages of a filter", "how many will not be sent"),
        ("hold", "Set all queued messages of a filter aside", "how many wait for a retry by hand"),
    )
    for verb, meant, changed in to_all:
        api.add(
            "POST",
            f"/api/v1/outbound/matching/{verb}",
            Operation(
                f"{verb}MatchingSentMessages",
                meant,
                "sent",
                Access.SCOPE,
                (Answer(200, changed, Changed),),
                scope="send",
                query=OutboundFilter,
                details="What may be done with one of them is done with each, the others are left "
                "as they are; 100,000 a call at most. The holder of a key changes their own.",
            ),
        )(partial(_to_all, VERBS[verb]))

    @api.add(
        "GET",
        "/api/v1/outbound/<message_id>",
        Operation(
            "getSentMessage",
            "Show a message that was sent",
            "sent",
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
            "listDeliveryEvents",
            "Show what happened in each delivery of a message, oldest first",
            "sent",
            Access.SCOPE,
            (Answer(200, "the phases", list[DeliveryEvent]), _NONE),
            scope="send",
            details="What came back of it stands behind the attempt that had sent it, for 30 days.",
        ),
    )
    async def events(call: Call, message_id: str) -> Response:
        wanted = parse_uuid(message_id)
        found = None if wanted is None else await admin.events(wanted, _owner(call.caller))
        if found is None:
            raise _not_found()
        return json_response([_event(event) for event in found])

    downloads = Downloads(api.deps.limits.download_bytes // 4)

    @api.add(
        "GET",
        "/api/v1/outbound/<message_id>/raw",
        Operation(
            "getRawSentMessage",
            "Fetch a message byte for byte as it was or will be sent",
            "sent",
            Access.SCOPE,
            (
                Answer(200, "the message", media_type="message/rfc822"),
                _NONE,
                Answer(
                    409,
                    "it can never be sent: what was queued by SQL is no message",
                    cases=("cannot-be-sent",),
                ),
                Answer(503, "too many large messages are being read; try again"),
            ),
            scope="send",
            details="The same bytes at every attempt, with the Date and the Message-ID that go "
            "out, without the signatures of DKIM in front of them. Its owner fetches it, and the "
            "administrator anybody's: no other call shows them what another owner sends.",
        ),
    )
    async def raw(call: Call, message_id: str) -> Response:
        wanted, owner = parse_uuid(message_id), _owner(call.caller)
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
            why = str(error)
            if isinstance(error, MalformedMessage):
                why = f"{error.field}: it {error.reason}"
            raise Problem(409, "cannot-be-sent", f"The message cannot be sent: {why}.") from error
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
        wanted, owner = parse_uuid(message_id), _owner(call.caller)
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
                f"{name}SentMessage",
                summary,
                "sent",
                Access.SCOPE,
                (
                    Answer(200, done, OutboundMessage),
                    _NONE,
                    Answer(409, refused, cases=("wrong-state",)),
                ),
                scope="send",
            ),
        )(partial(_by_hand, act))

    async def _one(caller: Caller, message_id: str) -> dict[str, Any]:
        wanted = parse_uuid(message_id)
        row = None if wanted is None else await admin.show(wanted, _owner(caller))
        if row is None:
            raise _not_found()
        return _shown(row, caller)


def _wanted(call: Call) -> Wanted | None:
    """Which messages of the caller's a call means; None: what is no address has none."""
    wanted: OutboundFilter = call.query
    try:
        recipient = None if wanted.recipient is None else plain_address(wanted.recipient)
    except MalformedMessage:
        return None
    error = wanted.error if isinstance(wanted, FailuresQuery) else None
    if error is not None:
        error = storable(error)
    return Wanted(
        _owner(call.caller), wanted.status, recipient, wanted.priority, wanted.domain, wanted.tag,
        error,
    )  # fmt: skip


def _owner(caller: Caller) -> UUID | None:
    """The owner whose messages the caller finds; None: everybody's."""
    return None if caller.key is None else caller.owner_id


def _shown(row: dict[str, Any], caller: Caller) -> dict[str, Any]:
    own = row["owner"] == caller.owner_id
    return {
        "id": str(row["id"]),
        "sender": row["sender"] if own else None,
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
        "peer": row["peer"],
        "tls": row["tls"],
        "reply": row["reply"],
    }


def _event(event: dict[str, Any]) -> dict[str, Any]:
    at = event["at"]
    return {**event, "at": at if isinstance(at, str) else _instant(at)}


def _instant(value: Any) -> str | None:
    return None if value is None else rfc3339(value)


def _not_found() -> Problem:
    return Problem(404, "outbound-not-found", "There is no such message, or it is not yours.")
