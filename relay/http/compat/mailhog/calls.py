"""`/compat/mailhog/…`: MailHog's API v2, and what of its v1 is called still.

Promises
  * Paths, values and JSON are MailHog's; docs/switching.md says what differs, and what of its
    clients passes.
  * Whoever calls sees and deletes their own mail, the administrator all that there is.
  * An answer holds `SHOWN` bytes of a message at most, and has `AT_ONCE` itself: what is longer is
    cut (`…/download` has all of a message), and a list ends early.  MailHog sends it all, three
    times, and what is in parts of parts once more for each.
  * What is made is held in memory within a budget until it was sent.

Fails with 400 for a search of another kind than its three, and for one that looks for nothing; and
with 400 and a sentence for what MailHog does and this relay does not: Jim, releasing by this way,
the stream of events.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quart import Response

from relay.http.compat.answers import bad
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import MOST_ROWS, NO_EVENTS, Window, compat, not_there
from relay.http.compat.mailhog.shapes import message
from relay.http.operations import Call, json_bytes
from relay.http.problems.details import from_status
from relay.http.responses.json_pieces import json_pieces
from relay.http.routing import Api
from relay.mailboxes.mails import EVERYTHING, Criteria, Found, Mail
from relay.mailboxes.query import Field, Term

API = "/compat/mailhog/api"
SHOWN = 1 << 20
"""Bytes of a message that are shown."""
AT_ONCE = 4 << 20
"""Bytes of the messages' JSON in one answer."""

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

    async def answered(
        call: Call,
        found: Found,
        before: Callable[[int], bytes] = lambda _: b"",
        behind: bytes = b"",
    ) -> Response:
        """As much of what was found as one answer holds, separated by commas, between what is
        written before so many and behind them."""
        host, owner = deps.store.domains[0], callers.owner(call)
        made: list[bytes] = []
        length = 0
        with callers.downloads.kept(owner) as room:
            for mail in found.mails:
                size = min(mail.entry.size, SHOWN)
                if made and length + size > AT_ONCE:
                    break
                room(length + 4 * size)
                raw = await callers.beginning(mail, SHOWN)
                # Beside the loop: of a large one it takes a while.
                work = partial(_written, mail, raw, host)
                one = await callers.apart(call, work) if size > _LONG else work()
                if made and length + len(one) > AT_ONCE:
                    break
                made += [b",", one] if made else [one]
                length += len(one)
                room(length)
        count = (len(made) + 1) // 2
        return callers.downloads.written([before(count), *made, behind], room, "text/json")

    async def listed(call: Call, criteria: Criteria) -> Response:
        window: Window = call.query
        with callers.downloads.growing(callers.owner(call)) as room:
            found = await callers.search(call, criteria, window.at, window.rows, room=room)

            def before(count: int) -> bytes:
                counts = {"total": found.count, "count": count, "start": window.at}
                return json_bytes(counts)[:-1] + b',"items":['

            return await answered(call, found, before, b"]}")

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
        with callers.downloads.growing(callers.owner(call)) as room:
            found = await callers.search(call, EVERYTHING, 0, MOST_ROWS, room=room)
            return await answered(call, found, lambda _: b"[", b"]")

    @api.add("DELETE", f"{API}/v1/messages", compat("mailhogDeleteAll", "send"))
    async def delete_all(call: Call) -> Response:
        reach = call.reach
        await callers.change_found(call, lambda: deps.all_messages.delete(reach, ()))
        return _nothing()

    @api.add("GET", f"{API}/v1/messages/<message_id>", compat("mailhogMessage", "read"))
    async def show(call: Call, message_id: str) -> Response:
        mail = await callers.find(call, message_id)
        return await answered(call, Found([mail], 1, 0))

    @api.add("DELETE", f"{API}/v1/messages/<message_id>", compat("mailhogDelete", "send"))
    async def delete(call: Call, message_id: str) -> Response:
        mail, reach = await callers.find(call, message_id), call.reach
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


def _written(mail: Mail, raw: bytes, host: str) -> bytes:
    """A message as JSON; where that is more than an answer holds, as much of its beginning as it
    does."""
    while True:
        written = bytearray()
        for piece in json_pieces(message(mail, raw, host), deep=len(raw) > _LONG):
            written += piece
            if len(written) > AT_ONCE and raw:
                break
        else:
            return bytes(written)
        raw = raw[: len(raw) // 2]


def _nothing() -> Response:
    return Response(b"", content_type="text/json")
