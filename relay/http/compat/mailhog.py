"""`/compat/mailhog/…`: MailHog's API v2, and what of its v1 is called still.

Promises
  * Paths, values and JSON are MailHog's; docs/switching.md says what differs, and what of its
    clients passes.
  * Whoever calls sees and deletes their own mail, the administrator all that there is.
  * An answer holds `SHOWN` bytes of a message at most, and `AT_ONCE` of all: a longer message is
    cut (`…/download` has all of it), and a list ends early.  MailHog sends it all, three times.

Fails with 400 for a search of another kind than its three, and for one that looks for nothing; and
with 400 and a sentence for what MailHog does and this relay does not: Jim, releasing by this way,
the stream of events.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quart import Response

from relay.http.compat.answers import bad, json_of_list
from relay.http.compat.mailhog_json import message
from relay.http.compat.shared import (
    MOST_ROWS,
    NO_EVENTS,
    CallersMail,
    Window,
    compat,
    not_there,
)
from relay.http.operations import Call
from relay.http.problems import from_status
from relay.http.resources.all_messages import reach_of
from relay.http.routing import Api
from relay.mailboxes.mails import EVERYTHING, Criteria, Found
from relay.mailboxes.query import Field, Term

API = "/compat/mailhog/api"
SHOWN = 1 << 20
"""Bytes of a message that are shown."""
AT_ONCE = 4 << 20
"""Bytes of messages that one answer shows, but for the first."""

_JIM = "There is no Jim here: RELAY_SMTP__CHAOS=true has faults on demand."
_RELEASE = (
    "Mail is not released by this way: POST …/messages/{id}/release of the relay's own API does it."
)
_KINDS: dict[str, Field] = {"from": "from", "to": "to", "containing": "any"}


class SearchQuery(Window):
    """What is looked for."""

    kind: str = ""
    query: str = ""


def register(api: Api) -> None:
    """Declare the calls."""
    callers = CallersMail(api)
    deps, mails = callers.deps, callers.mails

    async def shown(call: Call, found: Found) -> list[dict[str, Any]]:
        """As much of what was found as one answer holds."""
        made: list[dict[str, Any]] = []
        left = AT_ONCE
        for mail in found.mails:
            size = min(mail.entry.size, SHOWN)
            left -= size
            if made and left < 0:
                break
            held = callers.downloads.hold(callers.owner(call), 4 * size)
            try:
                raw = await callers.beginning(mail, SHOWN)
                # Beside the loop: of a large one it takes a while.
                work = partial(message, mail, raw, deps.store.domains[0])
                made.append(await callers.apart(call, work) if size > _LONG else work())
            finally:
                held.release()
        return made

    async def written(call: Call, found: Found, value: Any) -> Response:
        """What is shown of mail as JSON, written beside the loop where it is much."""
        write = partial(json_of_list, value, "text/json")
        long = sum(mail.entry.size for mail in found.mails) > _LONG
        return await callers.apart(call, write) if long else write()

    async def listed(call: Call, criteria: Criteria) -> Response:
        window: Window = call.query
        found = await callers.search(call, criteria, window.at, window.rows)
        items = await shown(call, found)
        return await written(
            call,
            found,
            {"total": found.count, "count": len(items), "start": window.at, "items": items},
        )

    @api.add("GET", f"{API}/v2/messages", compat("mailhogMessages", "read", query=Window))
    async def list_(call: Call) -> Response:
        return await listed(call, EVERYTHING)

    @api.add("GET", f"{API}/v2/search", compat("mailhogSearch", "read", query=SearchQuery))
    async def search(call: Call) -> Response:
        query: SearchQuery = call.query
        if query.kind not in _KINDS:
            raise bad("kind: from, to or containing.")
        if not query.query:
            raise bad("query: it says what to look for.")
        return await listed(call, Criteria(((Term(_KINDS[query.kind], query.query[:1000]),),)))

    @api.add("GET", f"{API}/v1/messages", compat("mailhogAll", "read"))
    async def all_(call: Call) -> Response:
        found = await callers.search(call, EVERYTHING, 0, MOST_ROWS)
        return await written(call, found, await shown(call, found))

    @api.add("DELETE", f"{API}/v1/messages", compat("mailhogDeleteAll", "send"))
    async def delete_all(call: Call) -> Response:
        reach = reach_of(call)
        await callers.change_found(call, lambda: deps.all_messages.delete(reach, ()))
        return _nothing()

    @api.add("GET", f"{API}/v1/messages/<message_id>", compat("mailhogMessage", "read"))
    async def show(call: Call, message_id: str) -> Response:
        mail = await callers.find(call, message_id)
        found = Found([mail], 1, 0)
        return await written(call, found, (await shown(call, found))[0])

    @api.add("DELETE", f"{API}/v1/messages/<message_id>", compat("mailhogDelete", "send"))
    async def delete(call: Call, message_id: str) -> Response:
        mail, reach = await callers.find(call, message_id), reach_of(call)
        await callers.change(call, lambda: mails.delete(reach, [str(mail.id)]))
        return _nothing()

    @api.add("GET", f"{API}/v1/messages/<message_id>/download", compat("mailhogRaw", "read"))
    async def download(call: Call, message_id: str) -> Response:
        mail = await callers.find(call, message_id)
        kept = {"Content-Disposition": f'attachment; filename="{mail.id}.eml"'}
        return await callers.raw(call, mail, "message/rfc822", kept)

    @api.add("GET", f"{API}/v2/jim", compat("mailhogJim", "read"))
    async def jim(call: Call) -> Response:
        raise from_status(404)  # as MailHog says that he is off

    @api.add("DELETE", f"{API}/v2/jim", compat("mailhogJimOff", "admin"))
    async def jim_off(call: Call) -> Response:
        raise from_status(404)  # as MailHog says that he was off

    refused = partial(not_there, api)
    refused("POST", f"{API}/v2/jim", "mailhogJimOn", "admin", _JIM)
    refused("PUT", f"{API}/v2/jim", "mailhogJimChange", "admin", _JIM)
    release = f"{API}/v1/messages/<message_id>/release"
    refused("POST", release, "mailhogRelease", "send", _RELEASE)
    refused("GET", f"{API}/v2/outgoing-smtp", "mailhogOutgoing", "read", _RELEASE)
    refused("GET", f"{API}/v1/events", "mailhogEvents", "read", NO_EVENTS)
    refused("GET", f"{API}/v2/websocket", "mailhogSocket", "read", NO_EVENTS)


_LONG = 1 << 16  # bytes; a shorter one is taken apart in a millisecond


def _nothing() -> Response:
    return Response(b"", content_type="text/json")
