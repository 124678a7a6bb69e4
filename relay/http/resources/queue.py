"""`/api/v1/queue`: the outbound queue as a whole, for the administrator; and why mail is held back,
for each owner of his own.

What it holds, where it goes and what holds it back; pause, resume and flush.  Single messages are
`outbound.py`'s.

Promises
  * Counts are of all nodes, but for `destinations`: each node learns by itself how one takes mail.
  * A pause, its end and a flush are durable when their answer comes, on all nodes.

Fails with `DatabaseUnavailable`, a 503.  The change may have happened then; it may be asked for
again.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, WithJsonSchema
from quart import Response

from relay.chance import utc_now
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
from relay.http.resources.outbound import Meant
from relay.http.routing import Api
from relay.outbound.admin import Traffic, Wanted
from relay.outbound.pacing.held_back import (
    MOST_DOMAINS,
    SAYS,
    Standing,
    Why,
    a_minute,
    connections,
)
from relay.outbound.shaping.destinations import by_domain
from relay.outbound.shaping.rules import Limits
from relay.times import rfc3339


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


class FlushQuery(Meant):
    """The deferred messages that are to be tried."""

    route: Annotated[
        Text | None,
        Field(
            max_length=2048,
            description="only what leaves by this upstream, as the list of destinations names it; "
            "default: the relay's own",
        ),
    ] = None

    @property
    def wanted(self) -> Wanted:
        """Which messages are meant, but for the route."""
        return Wanted(
            domain=self.domain, recipient=self.recipient, priority=self.priority, tag=self.tag
        )


class Deferred(View):
    """What was tried and waits for its next attempt."""

    count: Annotated[int, Field(description="messages")]


class DestinationsQuery(Query):
    """Of which mail it is asked."""

    domain: Annotated[
        Text | None, Field(max_length=255, description="only what holds back mail to this domain")
    ] = None


class Destination(View):
    """What is held back: a route (`domain` null), a destination, or with `owner` what is his.

    `opens_in` in seconds.
    """

    route: str
    domain: str | None
    window: Annotated[int | None, Field(description="deliveries at once; null: as many as ever")]
    busy: int
    strikes: int
    opens_in: float
    why: Annotated[
        str,
        WithJsonSchema({"type": "string", "enum": [str(one) for one in Why]}),
        Field(description="why it is held back"),
    ]
    says: Annotated[str, Field(description="the same in a sentence")]
    since: Annotated[Instant | None, Field(description="since when; null: nobody has noted that")]
    until: Annotated[
        Instant | None,
        Field(
            description="when it is over by itself; where `opens_in` is not 0, nothing goes before"
        ),
    ]
    reason: Annotated[
        str | None,
        Field(
            description="the phase of its last trouble, and what was replied (redacted; of "
            "another owner's mail the code alone)"
        ),
    ]
    rule: Annotated[
        str | None, Field(description="the traffic rule by which: its provider and its line")
    ]
    owner: Annotated[str | None, Field(description="the owner whose mail it is; null: everybody's")]
    domains: Annotated[list[str], Field(description="where mail goes that met it last; 20 at most")]


class DomainTraffic(View):
    """A destination: what is unfinished, what finished in the last hour, by status, and its limits.

    The limits are in force on this node now, by the traffic rules and by what the receiver has
    asked for; null: it has none.
    """

    domain: str
    held: Annotated[
        Destination | None, Field(description="what holds back everybody's mail to it, here")
    ]
    unfinished: int
    sent: int
    failed: int
    bounced: int
    most_per_minute: Annotated[float | None, Field(description="messages, of all nodes together")]
    most_connections: Annotated[int | None, Field(description="at once, of one node")]
    limits: Annotated[
        str | None, Field(description="both in words, but what `held` gives as the reason")
    ]


def register(api: Api) -> None:
    """Declare the calls."""
    admin = api.deps.queue_admin

    @api.add(
        "GET",
        "/api/v1/queue/destinations",
        Operation(
            "listDestinations",
            "List the routes and destinations that this node holds back",
            "queue",
            Access.SCOPE,
            (Answer(200, "the worst first; what answers well is not here", list[Destination]),),
            scope="send",
            query=DestinationsQuery,
            details="Each node learns by itself how a destination takes its mail. A key without "
            "`admin` is told what holds back its owner's.",
        ),
    )
    async def destinations(call: Call) -> Response:
        query: DestinationsQuery = call.query
        owner = _owner(call)
        domain = None if query.domain is None else query.domain.lower()
        now = utc_now()
        return json_response([_told(one, now) for one in api.deps.destinations(owner, domain)])

    @api.add(
        "GET",
        "/api/v1/queue/traffic",
        Operation(
            "listQueueTraffic",
            "Count what waits and what finished, by destination",
            "queue",
            Access.SCOPE,
            (Answer(200, "the busiest first, 100 at most", list[DomainTraffic]),),
            scope="send",
            details="Of all nodes: of 10,000 that are unfinished, and of the newest 10,000 that "
            "finished what did so in the last hour; for a key without `admin` of its owner's "
            "newest 10,000.",
        ),
    )
    async def traffic(call: Call) -> Response:
        owner = _owner(call)
        found = await admin.traffic(owner)
        now = utc_now()
        held = by_domain(api.deps.destinations(owner, None))
        limits = api.deps.limits_of({one.domain for one in found})
        return json_response(
            [
                _with(one, limits.get(one.domain, Limits()), held.get(one.domain), now)
                for one in found
            ]
        )

    @api.add(
        "GET",
        "/api/v1/queue",
        Operation(
            "getQueue",
            "Count the queue",
            "queue",
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
            "pauseQueue",
            "Pause all deliveries, on all nodes, until resumed",
            "queue",
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
            "resumeQueue",
            "End a pause",
            "queue",
            Access.SCOPE,
            (Answer(200, "deliveries go on", QueueState),),
            scope="admin",
        ),
    )
    async def resume(call: Call) -> Response:
        await api.committed(admin.resume)
        return json_response((await admin.stats()).as_json())

    @api.add(
        "GET",
        "/api/v1/queue/flush",
        Operation(
            "countDeferredMail",
            "Count the deferred mail that a flush would try",
            "queue",
            Access.SCOPE,
            (Answer(200, "how many messages would become due", Deferred),),
            scope="admin",
            query=FlushQuery,
        ),
    )
    async def deferred(call: Call) -> Response:
        query: FlushQuery = call.query
        count = await admin.count_deferred(route=query.route, wanted=query.wanted)
        return json_response({"count": count})

    @api.add(
        "POST",
        "/api/v1/queue/flush",
        Operation(
            "flushQueue",
            "Try deferred mail now",
            "queue",
            Access.SCOPE,
            (Answer(200, "how many messages became due", Changed),),
            scope="admin",
            query=FlushQuery,
            details="Pauses of routes and destinations end on all nodes, with one delivery each "
            "to see. Scheduled mail keeps its time, and attempts are not counted anew.",
        ),
    )
    async def flush(call: Call) -> Response:
        query: FlushQuery = call.query
        count = await api.committed(lambda: admin.flush(route=query.route, wanted=query.wanted))
        return json_response({"count": count})


def _owner(call: Call) -> UUID | None:
    """Whose mail is told of; None: everybody's."""
    return None if call.caller.allows("admin") else call.caller.owner_id


def _told(one: Standing, now: datetime) -> dict[str, Any]:
    held_for, ends = one.held_for, one.opens_in or one.ends_in
    return {
        "route": one.route,
        "domain": one.domain,
        "window": one.window,
        "busy": one.busy,
        "strikes": one.strikes,
        "opens_in": one.opens_in,
        "why": one.why,
        "says": SAYS[one.why],
        "since": None if held_for is None else rfc3339(now - timedelta(seconds=held_for)),
        "until": rfc3339(now + timedelta(seconds=ends)) if ends else None,
        "reason": one.reason,
        "rule": one.rule,
        "owner": str(UUID(int=one.owner)) if isinstance(one.owner, int) else None,
        "domains": list(one.domains[:MOST_DOMAINS]),
    }


def _with(one: Traffic, limits: Limits, held: Standing | None, now: datetime) -> dict[str, Any]:
    rate = None if limits.rate is None else round(60 * limits.rate.rate, 3)
    words = [] if limits.rate is None else [a_minute(limits.rate.rate)]
    words += [] if limits.connections is None else [connections(limits.connections)]
    told = [] if held is None else (held.reason or "").split("; ")
    return {
        **asdict(one),
        "held": None if held is None else _told(held, now),
        "most_per_minute": rate,
        "most_connections": limits.connections,
        "limits": "; ".join(word for word in words if word not in told) or None,
    }
