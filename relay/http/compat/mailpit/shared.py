"""What Mailpit's calls have in common: places, searches, and a mail by its path."""

from __future__ import annotations

from relay.http.compat.answers import bad
from relay.http.compat.callers_mail import CallersMail, no_such_message
from relay.http.compat.mailpit.filters import parse
from relay.http.operations import Call, Query
from relay.mailboxes.mails import EVERYTHING, Criteria, Mail

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


async def named(callers: CallersMail, call: Call, mail_id: str) -> Mail:
    """Return the mail that a path names: by its id, or the latest, of a search too; 404."""
    if mail_id != "latest":
        return await callers.find(call, mail_id)
    query: OfSearch = call.query
    criteria = criteria_of(query) if query.query.strip() else EVERYTHING
    found = await callers.search(call, criteria, 0, 1)
    if not found.mails:
        raise no_such_message()
    # Whole: of a search a mail has what lists show.
    return await callers.find(call, str(found.mails[0].id))
