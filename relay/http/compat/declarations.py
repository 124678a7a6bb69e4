"""How calls that stand in for others' are declared, and what part of a list they ask for."""

from __future__ import annotations

import math

from quart import Response

from relay.http.compat.answers import bad
from relay.http.operations import Access, Answer, Call, Operation, Query
from relay.http.routing import Api

MOST_ROWS = 250
"""Mails that one answer lists."""
NO_EVENTS = "There are no such events here: see GET /api/v1/messages/events of the relay's own API."

_FURTHEST = 10_000  # places that a list may begin at


class Window(Query):
    """The part of a list that is asked for; what is no number counts as left out."""

    start: str = ""
    limit: str = ""

    @property
    def at(self) -> int:
        """The place of the first."""
        return min(_number(self.start, 0), _FURTHEST)

    @property
    def rows(self) -> int:
        """How many there may be; none, rather than others, where nobody looks."""
        if _number(self.start, 0) > _FURTHEST:
            return 0
        return min(_number(self.limit, 50), MOST_ROWS)


def compat(
    name: str,
    scope: str,
    *,
    query: type[Query] | None = None,
    body: bool = False,
    stores: bool = False,
    access: Access = Access.SCOPE,
    max_body: int = 512 * 1024,
) -> Operation:
    """Return the declaration of a call that stands in for another program's."""
    return Operation(
        name,
        name,
        "all-messages",
        access,
        (Answer(200, "as that program answers"),),
        scope=scope,
        query=query,
        raw_body="application/json" if body else None,
        max_body=max_body,
        stores=stores,
        compat=True,
    )


def not_there(
    api: Api,
    method: str,
    rule: str,
    name: str,
    scope: str,
    said: str,
    query: type[Query] | None = None,
) -> None:
    """Declare a call that this relay does not answer as a 400 that says so."""

    @api.add(method, rule, compat(name, scope, query=query))
    async def refused(call: Call, **parts: str) -> Response:
        raise bad(said)


def _number(text: str, default: int) -> int:
    try:
        number = float(text)
    except ValueError:
        return default
    return int(number) if math.isfinite(number) and number > 0 else default
