"""`/api/v1/supervision`: the tree, its events, and an operator's hand in it.

Promises: a command that was taken is answered 202 with the actor as it is then; what it leads to is
seen in the tree and its events, and each command is in the log.  A follower that is too slow loses
the oldest events, and is told how many; nobody waits for it.

Fails with 404 for a name that is none, 409 for what an actor does not understand, 503 where it
cannot be told now.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from quart import Response

from relay.http.deps import Event, Logs, Node, NotNow, NotUnderstood, Supervision
from relay.http.feeds.event_streams import event_stream, follow
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Instant,
    Operation,
    View,
    json_response,
)
from relay.http.problems.details import Problem, unavailable
from relay.http.routing import Api
from relay.log import get_logger
from relay.times import rfc3339

log = get_logger()

_LACKING = {
    "sweep": "it has nothing that it does every so often",
    "report": "it has no figures of its own",
    "pause": "others need it while it runs, and it takes no work that could wait",
}


class TreeProcess(View):
    """A process that an actor runs; `restarts`: how often one ended and was replaced."""

    name: str
    pid: int | None
    restarts: int
    cpu_seconds: float | None


class LastLine(View):
    """The newest line of an actor's log."""

    level: str
    event: str
    at: Instant


class TreeNode(View):
    """An actor or a supervisor, the processes that it runs, and what is under it.

    `restart`: when it is started again; of a supervisor, `strategy` says who is started again with
    a child that failed, and after more than `max_restarts` failures (null: any number) `within` so
    many seconds it gives up.
    `last_event` is what supervision did to it last, `last_log` what it said itself; `commands` are
    those that it understands as it is now.
    """

    name: str
    state: str
    restarts: int
    restart: Literal["permanent", "transient", "temporary"]
    strategy: Literal["one_for_one", "one_for_all", "rest_for_one"] | None
    max_restarts: int | None
    within: float | None
    started_at: Instant | None
    mailbox_depth: int
    last_event: str | None
    last_event_at: Instant | None
    last_log: LastLine | None
    commands: list[str]
    processes: list[TreeProcess]
    children: list[TreeNode]


def as_json(node: Node, supervision: Supervision, logs: Logs) -> dict[str, Any]:
    """Return a node, with everything under it, as plain values."""
    line = logs.last(node.name)
    return {
        "name": node.name,
        "state": str(node.state),
        "restarts": node.restarts,
        "restart": node.restart.value,
        "strategy": node.strategy and node.strategy.value,
        "max_restarts": None
        if node.max_restarts is None or math.isinf(node.max_restarts)
        else int(node.max_restarts),
        "within": node.within,
        "started_at": _instant(node.started_at),
        "mailbox_depth": node.mailbox_depth,
        "last_event": node.last_event,
        "last_event_at": _instant(node.last_event_at),
        "last_log": None
        if line is None
        else {"level": line["level"], "event": line["event"], "at": line["timestamp"]},
        "commands": supervision.commands(node),
        "processes": [
            {
                "name": one.name,
                "pid": one.pid,
                "restarts": one.restarts,
                "cpu_seconds": one.cpu_seconds,
            }
            for one in node.processes
        ],
        "children": [as_json(child, supervision, logs) for child in node.children],
    }


def event_as_json(event: Event) -> dict[str, Any]:
    """Return an event as plain values; `type` is its kind."""
    return {
        "type": event.kind, "name": event.name, "at": _instant(event.at), "detail": str(event),
    }  # fmt: skip


def _instant(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def register(api: Api) -> None:
    """Declare the calls."""
    supervision, draining = api.deps.supervision, api.deps.draining
    shown = partial(as_json, supervision=supervision, logs=api.deps.logs)
    every = api.deps.limits.keep_alive_every

    @api.add(
        "GET",
        "/api/v1/supervision",
        Operation(
            "getTree",
            "Show the supervision tree",
            "supervision",
            Access.SCOPE,
            (Answer(200, "its root", TreeNode),),
            scope="admin",
        ),
    )
    async def tree(call: Call) -> Response:
        return json_response(shown(supervision.tree()))

    @api.add(
        "GET",
        "/api/v1/supervision/events",
        Operation(
            "followTree",
            "Follow what happens in the tree",
            "supervision",
            Access.SCOPE,
            (
                Answer(
                    200,
                    "each event as JSON {type, name, at, detail}; a first one of type tree "
                    "carries the tree",
                    media_type="text/event-stream",
                ),
            ),
            scope="admin",
            stream=True,
            details="A reader that is too slow loses the oldest events and is told how many. "
            "Ends at once with a page session, and soon after its key was revoked.",
        ),
    )
    async def events(call: Call) -> Response:
        async def body() -> AsyncIterator[bytes]:
            with supervision.subscribe() as feed:
                yield _event("tree", shown(supervision.tree()))
                told = 0
                following = follow(feed, stop=draining, quiet_after=every, admission=call.admission)
                async with aclosing(following) as items:
                    async for item in items:
                        if feed.dropped > told:
                            yield _event("dropped", {"count": feed.dropped - told})
                            told = feed.dropped
                        if item is None:
                            yield b": still here\n\n"
                        else:
                            event = event_as_json(item)
                            yield _event(event["type"], event)

        return event_stream(body())

    async def command(name: str, verb: str, act: Callable[[str], Any]) -> Response:
        try:
            name = supervision.node(name).name
            result = act(name)
            if result is not None:
                await result
        except KeyError as error:
            raise Problem(
                404, "actor-not-found", f"There is no actor or group named {name!r}.",
            ) from error  # fmt: skip
        except NotUnderstood as error:
            raise Problem(
                409, "not-understood",
                f"{name} does not understand {verb!r}: {_LACKING[verb]}.",
            ) from error  # fmt: skip
        except NotNow as error:
            raise unavailable(f"Not now: {error}.") from error
        log.info(f"supervision.{verb}", target=name)
        return json_response(shown(supervision.node(name)), 202)

    def declare(
        verb: str, summary: str, meaning: str, act: Callable[[str], Any], *others: Answer
    ) -> None:
        @api.add(
            "POST",
            f"/api/v1/supervision/<name>/{verb}",
            Operation(
                f"{verb}Actor",
                summary,
                "supervision",
                Access.SCOPE,
                (
                    Answer(202, meaning, TreeNode),
                    Answer(404, "there is no such actor or group", cases=("actor-not-found",)),
                    *others,
                ),
                scope="admin",
                details="The name is an actor's, or a group's: then all of it is meant. Names that "
                "actors had in earlier versions are understood.",
            ),
        )
        async def handle(call: Call, name: str) -> Response:
            return await command(name, verb, act)

    unknown = Answer(409, "it does not understand this", cases=("not-understood",))
    busy = Answer(503, "it cannot be told so now")
    declare("restart", "Restart an actor", "it is being drained and started", supervision.restart,
            busy)  # fmt: skip
    declare("pause", "Pause an actor", "it takes no more work; what waits is kept",
            supervision.pause, unknown)  # fmt: skip
    declare("resume", "Resume a paused actor", "it works again", supervision.resume)
    declare("sweep", "Have an actor do now what it does every so often",
            "it is told; one that is paused does it when resumed", supervision.sweep,
            unknown, busy)  # fmt: skip
    declare("report", "Have an actor write its figures to the log", "it is told",
            supervision.report, unknown, busy)  # fmt: skip


def _event(kind: str, value: dict[str, Any]) -> bytes:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"event: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")
