"""`/api/v1/overview`: the relay at one glance, and what needs a person first.

Counters are this process's, since its start: a page that asks every other second makes rates of
them, and of what they were `earlier` when it asks first.  What is counted in the database (the
queue, the mailboxes) is of all nodes.

What needs attention is worked out here and not in the page, so that the page, the terminal and an
agent are told the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from quart import Response

from relay.chance import time
from relay.errors import DatabaseUnavailable
from relay.history import counters
from relay.http.deps import Deps, Node
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Instant,
    Operation,
    View,
    json_response,
)
from relay.http.resources.health import notices, troubled
from relay.http.resources.queue import QueueState
from relay.http.routing import Api
from relay.outbound.admin import Stats
from relay.times import rfc3339

LATE = 60.0
"""Seconds of waiting after which mail that is due is late."""


class Concern(View):
    """Something that a person should look at; `about` names the view that shows it.

    `place`: where in that view; `command`: what mends it, in a terminal.
    """

    grade: Literal["error", "warning"]
    text: str
    about: Literal["now", "inboxes", "queue", "accounts", "devices", "logs", "settings"]
    place: str | None
    command: str | None


class Earlier(View):
    """What the counters were so many `seconds` before: one to two minutes, less after a start."""

    seconds: float
    counters: dict[str, int]


class Overview(View):
    """One glance; `earlier` is null where the relay has just begun."""

    at: Instant
    counters: dict[str, int]
    earlier: Earlier | None
    mailboxes: int | None
    unparsed: int | None
    queue: QueueState | None
    attention: list[Concern]


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps

    @api.add(
        "GET",
        "/api/v1/overview",
        Operation(
            "getOverview",
            "See the relay at one glance",
            "operations",
            Access.SCOPE,
            (Answer(200, "counters of this process since its start, counts of all", Overview),),
            scope="admin",
            details="With the database away, what it would say is null and `attention` says so.",
        ),
    )
    async def overview(call: Call) -> Response:
        earlier = deps.history.earlier()
        queue: Stats | None = None
        mailboxes: int | None = None
        unparsed: int | None = None
        try:
            queue = await deps.queue_admin.stats()
            mailboxes = await deps.store.count_active()
            unparsed = await deps.unparsed()
        except DatabaseUnavailable:
            pass  # said under attention
        return json_response(
            {
                "at": rfc3339(time()),
                "counters": counters(),
                "earlier": None
                if earlier is None
                else {"seconds": earlier[0], "counters": earlier[1]},
                "mailboxes": mailboxes,
                "unparsed": unparsed,
                "queue": None if queue is None else queue.as_json(),
                "attention": sorted(concerns(deps, queue), key=lambda one: one["grade"] != "error"),
            }
        )


def concerns(deps: Deps, queue: Stats | None) -> Iterator[dict[str, Any]]:
    """Yield what needs a person."""
    tree = deps.supervision.tree()
    for actor, trouble in troubled(tree):
        yield _concern("error", f"{trouble}.", "logs", actor, "relay doctor")
    if queue is None:
        yield _concern("error", "PostgreSQL does not answer.", "logs", command="relay doctor")
    elif deps.held_up() is not None:
        yield _concern("error", "PostgreSQL waits for a standby.", "logs", command="relay doctor")
    for name in _paused(tree):
        yield _concern("warning", f"{name} is paused.", "now", name, f"relay actor resume {name}")
    for notice in notices(deps):
        asked = deps.chaos is not None and notice == deps.chaos.notice
        yield _concern("warning", f"{notice}.", "settings", "smtp.chaos" if asked else "storage")
    if queue is None:
        return
    if queue.paused:
        yield _concern("warning", "All deliveries are paused.", "queue",
                       "overview", "relay queue resume")  # fmt: skip
    elif queue.oldest_due is not None and queue.oldest_due > LATE:
        yield _concern("error", f"Mail that is due waits for {_for(queue.oldest_due)}.", "queue",
                       "overview", "relay queue stats")  # fmt: skip
    if queue.lost:
        yield _concern("warning", f"{_count(queue.lost, 'delivery', 'deliveries')} lost its "
                       "worker and will be begun again.", "queue", "queued")  # fmt: skip
    if queue.held:
        yield _concern(
            "warning", f"{_count(queue.held, 'message')} held until somebody decides.", "queue",
            "held", "relay queue list --status held",
        )  # fmt: skip
    held = deps.destinations(None, None)
    refuse = [one for one in held if one.refuses]
    if refuse:
        yield _concern(
            "warning",
            f"Destinations held back: {len(held)}, of which {len(refuse)} refusing or silent.",
            *("queue", "overview", "relay queue destinations"),
        )
    finished = sum(queue.finished.values())
    unlucky = queue.finished.get("bounced", 0) + queue.finished.get("failed", 0)
    if unlucky * 20 > finished:
        yield _concern(
            "warning",
            f"{unlucky} of {finished} messages of the last hour bounced or failed.",
            "queue",
            "failures",
        )


def _paused(node: Node) -> Iterator[str]:
    if str(node.state) == "paused":
        yield node.name
    for child in node.children:
        yield from _paused(child)


def _concern(
    grade: str, text: str, about: str, place: str | None = None, command: str | None = None
) -> dict[str, Any]:
    # Its first letter only: capitalize() would make "smtp" of what is spelt SMTP.
    text = text[:1].upper() + text[1:]
    return {"grade": grade, "text": text, "about": about, "place": place, "command": command}


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _for(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
