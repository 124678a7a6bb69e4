"""What Mailpit's calls have in common: where they are, and how a search is asked for."""

from __future__ import annotations

from relay.http.compat.answers import bad
from relay.http.compat.mailpit.filters import parse
from relay.http.operations import Query
from relay.mailboxes.mails import Criteria

ROOT = "/compat/mailpit"
API = f"{ROOT}/api/v1"
OK = "ok"


class OfSearch(Query):
    """A search; `tz`: of times in it."""

    query: str = ""
    tz: str = ""


def criteria_of(query: OfSearch) -> Criteria:
    """Return what a search asks for; 400 without one."""
    if not query.query.strip():
        raise bad("Error: no search query")
    return parse(query.query, query.tz)
