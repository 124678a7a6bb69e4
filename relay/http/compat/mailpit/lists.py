"""Mailpit's lists and searches, and what is done to all that they name.

A body that cannot be read changes nothing, nor does a search that looks for nothing.
"""

from __future__ import annotations

from quart import Response

from relay.http.compat.answers import bad, text
from relay.http.compat.bodies import members_of
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import Window, compat
from relay.http.compat.mailpit import shapes
from relay.http.compat.mailpit.filters import parse
from relay.http.compat.mailpit.shared import API, OK, OfSearch, criteria_of
from relay.http.operations import Call
from relay.mailboxes.changes import Change
from relay.mailboxes.mails import EVERYTHING, Criteria


class SearchQuery(Window, OfSearch):
    """A part of what a search finds."""


def register(callers: CallersMail) -> None:
    """Declare the calls."""
    api, deps, mails = callers.api, callers.deps, callers.mails

    async def listed(call: Call, criteria: Criteria | None) -> Response:
        window: Window = call.query
        owner, downloads = callers.owner(call), callers.downloads
        with downloads.growing(owner) as room:
            found = await callers.search(
                call, criteria or EVERYTHING, window.at, window.rows, room=room
            )
            total = found
            if criteria is not None:
                total = await callers.search(call, EVERYTHING, 0, 0, again=True)
            tags = await deps.all_messages.tags(call.reach)
        # Held again at once, as what the answer is made of.
        shown = shapes.page(found, window.at, total.count, total.unread, tags)
        loaded = sum(mail.loaded for mail in found.mails)
        return await downloads.json(owner, shown, loaded)

    @api.add("GET", f"{API}/messages", compat("mailpitMessages", "read", query=Window))
    async def list_(call: Call) -> Response:
        return await listed(call, None)

    @api.add("GET", f"{API}/search", compat("mailpitSearch", "read", query=SearchQuery))
    async def search(call: Call) -> Response:
        return await listed(call, criteria_of(call.query))

    deleting = compat("mailpitDelete", "send", body=True)

    @api.add("DELETE", f"{API}/messages", deleting)
    async def delete(call: Call) -> Response:
        ids = (await members_of(deleting)).texts("IDs")
        reach = call.reach
        if ids:
            await callers.change(call, lambda: mails.delete(reach, ids))
        else:
            await callers.change_found(call, lambda: deps.all_messages.delete(reach, ()))
        return text(OK)

    @api.add("DELETE", f"{API}/search", compat("mailpitDeleteFound", "send", query=OfSearch))
    async def delete_found(call: Call) -> Response:
        criteria, reach = _meant(criteria_of(call.query)), call.reach
        await callers.change_found(call, lambda: mails.delete_found(reach, criteria))
        return text(OK)

    marking = compat("mailpitMark", "read", query=OfSearch, body=True)

    @api.add("PUT", f"{API}/messages", marking)
    async def mark(call: Call) -> Response:
        members = await members_of(marking)
        ids, reach = members.texts("IDs"), call.reach
        read, searched = members.truth("Read"), members.text("Search")
        if ids and searched:
            raise bad("You may specify either IDs or a search query, not both.")
        change = Change(is_read=read)
        if ids:
            await callers.change(call, lambda: mails.change(reach, ids, change))
        elif searched:
            criteria = _meant(parse(searched, call.query.tz))
            await callers.change_found(call, lambda: mails.change_found(reach, criteria, change))
        else:
            await callers.change_found(call, lambda: deps.all_messages.change(reach, (), change))
        return text(OK)


def _meant(criteria: Criteria) -> Criteria:
    """The same, for what is to be changed: a search that looks for nothing would find all."""
    if criteria == EVERYTHING:
        raise bad("query: there is nothing in it to look for.")
    return criteria
