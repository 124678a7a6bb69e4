"""Mailpit's calls on tags: which there are, and what has them."""

from __future__ import annotations

import re

from quart import Response

from relay.db.text import storable
from relay.http.compat.answers import text
from relay.http.compat.bodies import Unreadable, members_of
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API, OK
from relay.http.operations import Call, json_response
from relay.mailboxes.changes import Change
from relay.mailboxes.query import Term


def register(callers: CallersMail) -> None:
    """Declare the calls."""
    api, deps, mails = callers.api, callers.deps, callers.mails

    @api.add("GET", f"{API}/tags", compat("mailpitTags", "read"))
    async def tags(call: Call) -> Response:
        await callers.until_parsed(call)
        return json_response(await deps.all_messages.tags(call.reach))

    tagging = compat("mailpitTag", "read", body=True)

    @api.add("PUT", f"{API}/tags", tagging)
    async def tag(call: Call) -> Response:
        members = await members_of(tagging)
        ids, reach = members.texts("IDs"), call.reach
        change = Change(tags=[tag for each in members.texts("Tags") if (tag := tag_of(each))])
        await callers.change(call, lambda: mails.change(reach, ids, change))
        return text(OK)

    renaming = compat("mailpitRenameTag", "read", body=True)

    @api.add("PUT", f"{API}/tags/<name>", renaming)
    async def rename(call: Call, name: str) -> Response:
        wanted = tag_of((await members_of(renaming)).text("Name"))
        if not wanted:
            raise Unreadable("Name", "must be a tag")
        return await retagged(call, name, Change(remove=[storable(name)], add=[wanted]))

    @api.add("DELETE", f"{API}/tags/<name>", compat("mailpitDeleteTag", "read"))
    async def remove(call: Call, name: str) -> Response:
        return await retagged(call, name, Change(remove=[storable(name)]))

    async def retagged(call: Call, name: str, change: Change) -> Response:
        reach = call.reach
        terms = (Term("tag", name),)
        await callers.change_found(call, lambda: deps.all_messages.change(reach, terms, change))
        return text(OK)


def tag_of(given: str) -> str:
    """A tag as it can be kept: Mailpit's letters, others are blanks."""
    return " ".join(re.sub(r"[^\w \-.@]", " ", given).split())[:100]
