"""`/api/v1/logs`: the structured log of this start, as NDJSON, and live."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from quart import Response

from relay.http.feeds import follow
from relay.http.operations import Access, Answer, Call, Operation, Query
from relay.log import matches

if TYPE_CHECKING:
    from relay.http.app import Api

_CHUNK = 256  # lines a write


class LogsQuery(Query):
    """Which lines."""

    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None,
        Field(description="this level and graver ones"),
    ] = None
    actor: Annotated[str | None, Field(max_length=100)] = None
    follow: Annotated[bool, Field(description="1: go on with new lines as they come")] = False


def register(api: Api) -> None:
    """Declare the call."""
    logs, draining = api.deps.logs, api.deps.draining

    @api.add(
        "GET",
        "/api/v1/logs",
        Operation(
            "Read the log",
            "operations",
            Access.SCOPE,
            (Answer(200, "one JSON object a line, oldest first",
                    media_type="application/x-ndjson"),),
            scope="admin",
            query=LogsQuery,
            stream=True,
            details="A follower that is too slow loses lines and is told how many, in a line of "
            "the event log.dropped.",
        ),
    )  # fmt: skip
    async def read(call: Call) -> Response:
        query: LogsQuery = call.query

        async def body() -> AsyncIterator[bytes]:
            # Follow first and read what is kept second, without a pause between: no gap, no
            # line twice.
            with logs.follow() as feed:
                kept = logs.lines(level=query.level, actor=query.actor)
                for at in range(0, len(kept), _CHUNK):
                    yield b"".join(map(_line, kept[at : at + _CHUNK]))
                if not query.follow:
                    return
                told = 0
                async with aclosing(follow(feed, stop=draining, quiet_after=60.0)) as items:
                    async for item in items:
                        if feed.dropped > told:
                            yield _line(
                                {"event": "log.dropped", "level": "warning", "actor": "control",
                                 "lines": feed.dropped - told}
                            )  # fmt: skip
                            told = feed.dropped
                        if item is not None and matches(item, level=query.level, actor=query.actor):
                            yield _line(item)

        return Response(body(), content_type="application/x-ndjson")


def _line(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)
    return (text + "\n").encode("utf-8", "replace")
