"""Lists come in pages: `limit` and `cursor` in the query, the next page in the `Link` header.

Promises: the next page's address keeps every parameter of this one but the credential in it, and
spells the path as the page does; `limit` above 200 gives 200.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from pydantic import Field
from quart import request

from relay.http.operations import Query
from relay.http.paths import path_of


class PageQuery(Query):
    """The part of a list that is asked for."""

    limit: Annotated[int, Field(ge=1, description="rows at most; more than 200 gives 200")] = 50
    cursor: Annotated[
        str | None, Field(max_length=512, description="from the Link header of the page before")
    ] = None

    @property
    def rows(self) -> int:
        """The limit, cut to what one answer holds."""
        return min(self.limit, 200)


NEXT = {"Link": 'the next page, rel="next"; absent on the last'}
"""The headers of an answer that is a page, as its declaration names them."""


def next_link(cursor: str | None, **also: object) -> dict[str, str]:
    """Return the `Link` header of a page; empty on the last one."""
    if cursor is None:
        return {}
    values = request.args.to_dict() | {name: str(value) for name, value in also.items()}
    values.pop("token", None)
    values["cursor"] = cursor
    # In the page's spelling: a mailbox's cookie goes to no other one of its path.
    return {"Link": f'<{path_of(request)}?{urlencode(values)}>; rel="next"'}
