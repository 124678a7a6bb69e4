"""The two calls that every list of a caller's own things has: show a page of it, remove an entry.

Senders, suppressions, webhooks and keys are such lists; each declares here that it can be listed
and its entries removed, and says beside it how one is made.  A list goes by one column, which is
its cursor and names an entry: an address (ascending) or an id (newest first).

Promises: whoever follows the cursors sees each entry that stays there once.  What is somebody
else's is not there: 404, as for what never was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel
from quart import Response

from relay.db.text import storable
from relay.http.lists.paging import NEXT, PageQuery, next_link
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Operation,
    Query,
    json_response,
    no_content,
)
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.outbound.composing.message import MalformedMessage

T = TypeVar("T")


class Column(NamedTuple):
    """The column that orders a list and names its entries.

    `name` is the field of an entry; `cursor` and `entry` read it from a text, as a cursor and as
    the name of an entry.  Both raise ValueError for what cannot be one.
    """

    name: str
    cursor: Callable[[str], Any]
    entry: Callable[[str], Any]


def of_caller(call: Call) -> UUID:
    """Whose list a call means, where it may mean no other."""
    owner: UUID = call.caller.owner_id
    return owner


BY_ADDRESS = Column("address", storable, str)
BY_ID = Column("id", UUID, UUID)


def listed(
    api: Api,
    path: str,
    model: type[BaseModel],
    find: Callable[[Any, int, Any], Awaitable[Sequence[T]]],
    shown: Callable[[T, Any], Any],
    *,
    name: str,
    summary: str,
    tag: str = "sending",
    scope: str = "send",
    column: Column = BY_ADDRESS,
    query: type[PageQuery] = PageQuery,
    meant: Callable[[Call], Any] = of_caller,
) -> None:
    """Declare `GET path`: a page of the caller's entries.

    `find(owner, limit, cursor)` gives them in order from beyond the cursor, or from the beginning
    if that is None; `shown(entry, owner)` makes JSON of one.  `meant` says whose list a call with
    this `query` means, or raises the `Problem` that refuses it.
    """

    @api.add(
        "GET",
        path,
        Operation(
            name,
            summary,
            tag,
            Access.SCOPE,
            (Answer(200, "a page of them", list[model], headers=NEXT),),  # type: ignore[valid-type]  # made here
            scope=scope,
            query=query,
        ),
    )
    async def list_(call: Call) -> Response:
        owner, rows, text = meant(call), call.query.rows, call.query.cursor
        try:
            cursor = None if text is None else column.cursor(text)
        except ValueError as error:
            raise Problem(422, "invalid", "cursor: it is not one of ours.") from error
        found = await find(owner, rows + 1, cursor)
        last = str(getattr(found[rows - 1], column.name)) if len(found) > rows else None
        return json_response([shown(item, owner) for item in found[:rows]], headers=next_link(last))


def removed(
    api: Api,
    path: str,
    remove: Callable[[UUID, Any], Awaitable[bool]],
    *,
    name: str,
    summary: str,
    gone: str,
    missing: str,
    case: str,
    tag: str = "sending",
    scope: str = "send",
    column: Column = BY_ADDRESS,
    query: type[Query] | None = None,
    meant: Callable[[Call], Any] = of_caller,
    instead: Callable[[Any, Any], Awaitable[Problem | None]] | None = None,
) -> None:
    """Declare `DELETE path/<entry>`: 204, which means `gone`, or the 404 `case`, where `missing`.

    `remove(owner, entry)` is False where the owner has no such entry; `meant` as for `listed`;
    `instead` gives another refusal, where that is not all there is to say.
    """

    @api.add(
        "DELETE",
        f"{path}/<entry>",
        Operation(
            name,
            summary,
            tag,
            Access.SCOPE,
            (Answer(204, gone), Answer(404, missing, cases=(case,))),
            scope=scope,
            query=query,
        ),
    )
    async def delete(call: Call, entry: str) -> Response:
        owner, may_be = meant(call), True
        try:
            wanted = column.entry(entry)
            done = await api.committed(lambda: remove(owner, wanted))
        except (ValueError, MalformedMessage):
            done = may_be = False  # no entry is named so
        if not done:
            if may_be and instead is not None and (why := await instead(owner, entry)) is not None:
                raise why
            raise Problem(404, case, f"{missing[0].upper()}{missing[1:]}.")
        return no_content()
