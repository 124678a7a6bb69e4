"""`/api/v1/logs`: the structured log of this start, as NDJSON, and live.

Promises: a follower that is too slow loses the oldest lines and never holds up the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from quart import Response

from relay.http.deps import Supervision
from relay.http.feeds.event_streams import follow
from relay.http.operations import Access, Answer, Call, Operation, Query
from relay.http.responses.downloads import as_asked
from relay.http.routing import Api
from relay.log import Selection, render_json

_CHUNK = 256  # lines a write


class LogsQuery(Query):
    """The lines that are asked for."""

    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None,
        Field(description="this level and graver ones"),
    ] = None
    actor: Annotated[
        str | None,
        Field(
            max_length=100,
            description="an actor's lines, or a group's: its own and those of all in it",
        ),
    ] = None
    grep: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern="^[^=]+=",
            description="K=V: lines whose field K is V, such as id=01a1… or event=relay.ready",
        ),
    ] = None
    follow: Annotated[bool, Field(description="1: go on with new lines as they come")] = False


def register(api: Api) -> None:
    """Declare the call."""
    logs, draining, supervision = api.deps.logs, api.deps.draining, api.deps.supervision
    every = api.deps.limits.keep_alive_every

    @api.add(
        "GET",
        "/api/v1/logs",
        Operation(
            "readLogs",
            "Read the log",
            "operations",
            Access.SCOPE,
            (Answer(200, "one JSON object a line, oldest first",
                    media_type="application/x-ndjson"),),
            scope="admin",
            query=LogsQuery,
            stream=True,
            details="A follower that is too slow loses lines and is told how many, in a line of "
            "the event log.dropped. Ends at once with a page session, and soon after its key was "
            "revoked.",
        ),
    )  # fmt: skip
    async def read(call: Call) -> Response:
        query: LogsQuery = call.query
        actors = None if query.actor is None else _actors(supervision, query.actor)
        select = Selection(level=query.level, actors=actors, grep=query.grep)

        async def body() -> AsyncIterator[bytes]:
            # Follow first and read what is kept second, without a pause between: no gap, no
            # line twice.
            with logs.follow() as feed:
                for chunk in _chunks(select(logs.lines())):
                    yield chunk
                if not query.follow:
                    return
                told = 0
                following = follow(feed, stop=draining, quiet_after=every, admission=call.admission)
                async with aclosing(following) as news:
                    async for lines in news:
                        if feed.dropped > told:
                            yield _chunk(
                                [{"event": "log.dropped", "level": "warning", "actor": "control",
                                  "lines": feed.dropped - told}]
                            )  # fmt: skip
                            told = feed.dropped
                        for chunk in _chunks(select(lines or [])):
                            yield chunk

        return Response(body(), content_type=as_asked("application/x-ndjson"))


def _actors(supervision: Supervision, name: str) -> set[str]:
    """Return whose lines are meant: an actor's; a group's, its own and those of all in it."""
    try:
        node = supervision.node(name)
    except KeyError:
        return {name}  # it may be another program's word for itself, or one that ran before
    if node.name == supervision.tree().name:
        return {node.name}  # what no actor said
    return {node.name, *(child.name for child in node.children)}


def _chunks(lines: list[dict[str, Any]]) -> Iterator[bytes]:
    for at in range(0, len(lines), _CHUNK):
        yield _chunk(lines[at : at + _CHUNK])


def _chunk(lines: list[dict[str, Any]]) -> bytes:
    text = "\n".join([render_json(line) for line in lines])
    return (text + "\n").encode("utf-8", "replace")
