"""`/compat/mailpit/…`: Mailpit's API v1, for suites that were written for it.

Promises
  * Paths, values, JSON and statuses are those that Mailpit documents, errors are plain texts with
    its statuses; docs/switching.md says what differs, and what of its clients passes.
  * Whoever calls sees and changes their own mail, the administrator all that there is.
  * A body that cannot be read changes nothing.  (Mailpit deletes everything then.)  Nor does a
    search that looks for nothing.

Fails with 400 and a sentence for what Mailpit does and this relay does not: SpamAssassin,
thumbnails, the stream of events.
"""

from __future__ import annotations

from functools import partial

from quart import Response

from relay.http.compat.answers import text
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import NO_EVENTS, compat, not_there
from relay.http.compat.mailpit import chaos, checks, lists, messages, sending, statistics, tags
from relay.http.compat.mailpit.shared import API, OK, ROOT, OfSearch
from relay.http.operations import Access, Call
from relay.http.routing import Api

_SPAM = "There is no SpamAssassin here: GET …/messages/{id}/checks of the relay's own API scores."
_THUMB = "There are no thumbnails here: fetch the part itself."


def register(api: Api) -> None:
    """Declare the calls; all load mail within one budget."""
    callers = CallersMail(api)
    lists.register(callers)
    messages.register(callers)
    checks.register(callers)
    sending.register(callers)
    tags.register(callers)
    statistics.register(callers)
    chaos.register(api)

    refused = partial(not_there, api)
    message = f"{API}/message/<message_id>"
    refused("GET", f"{message}/sa-check", "mailpitSpamCheck", "read", _SPAM, OfSearch)
    refused("GET", f"{message}/part/<index>/thumb", "mailpitThumb", "read", _THUMB, OfSearch)
    refused("GET", f"{ROOT}/api/events", "mailpitEvents", "read", NO_EVENTS)

    def alive(rule: str, name: str) -> None:
        @api.add("GET", rule, compat(name, "read", access=Access.OPEN))
        async def answer(call: Call) -> Response:
            return text(OK)

    alive(f"{ROOT}/livez", "mailpitLive")
    alive(f"{ROOT}/readyz", "mailpitReady")
