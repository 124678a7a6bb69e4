"""Mailpit's calls on one message, named by its id or as the latest, of a search too."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from quart import Response, request

from relay.http.compat.answers import bad, text
from relay.http.compat.bodies import members_of
from relay.http.compat.callers_mail import CallersMail, no_such_message
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit import shapes
from relay.http.compat.mailpit.shared import API, OK, ROOT, OfSearch, named
from relay.http.compat.mime_text import fields_of, text_of
from relay.http.operations import Call, json_response
from relay.http.problems.details import from_status
from relay.http.resources.previews import (
    Own,
    own_hosts,
    picture_places,
    pictures_placed,
    preview_policy,
)
from relay.http.resources.release import LONGEST, MOST_RECIPIENTS, Releasing
from relay.mailboxes.changes import Change
from relay.mailboxes.effort import is_too_deep
from relay.mailboxes.mails import Mail
from relay.mailboxes.records import ReceivedMessage

T = TypeVar("T")

_HEAD = 64 * 1024  # bytes of a message in which its header is looked for
_LONG = 64 * 1024  # characters of headers from which an answer is made beside the loop
_SUMMED = 20  # attachments of a message whose checksums are said
_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}", re.ASCII)


class RawQuery(OfSearch):
    """Whether it is to be kept as a file."""

    dl: str = ""


class ViewQuery(OfSearch):
    """Whether a page is to be shown inside of another."""

    embed: str = ""


def register(callers: CallersMail) -> None:
    """Declare the calls."""
    api, deps, mails = callers.api, callers.deps, callers.mails
    releasing = Releasing(api)

    async def beside(call: Call, mail: Mail, make: Callable[[], T]) -> T:
        """What is answered, made beside the loop where the sender had so much to say that it takes
        long."""
        return await callers.apart(call, make) if mail.length > _LONG else make()

    one = partial(named, callers)

    async def whole(call: Call, mail_id: str) -> tuple[Mail, ReceivedMessage]:
        mail = await one(call, mail_id)
        found = await deps.messages.get(mail.mailbox_id, str(mail.id), mark_read=False)
        if found is None:
            raise no_such_message()
        return mail, found

    async def mark_read(call: Call, mail: Mail) -> None:
        if not mail.is_read and request.method != "HEAD":
            read = partial(mails.change, call.reach, [str(mail.id)], Change(is_read=True))
            await callers.change(call, read)

    @api.add("GET", f"{API}/message/<message_id>", compat("mailpitMessage", "read", query=OfSearch))
    async def show(call: Call, message_id: str) -> Response:
        mail, found = await whole(call, message_id)
        indexes = [part["index"] for part in mail.attachments[:_SUMMED]]
        sums: dict[int, Mapping[str, str]] = {}
        if indexes:
            parts = await callers.parts(call, mail, indexes, shapes.checksums_of)
            sums = {index: part[2] for index, part in parts.items()}
        owner = callers.owner(call)
        with callers.downloads.held(owner, found.loaded):  # while it waits for its turn
            shown = await beside(call, mail, lambda: shapes.message(mail, found, sums))
        # Marked once there is room for it.
        answer = await callers.downloads.json(owner, shown, found.loaded)
        await mark_read(call, mail)
        return answer

    @api.add(
        "GET",
        f"{API}/message/<message_id>/headers",
        compat("mailpitHeaders", "read", query=OfSearch),
    )
    async def headers(call: Call, message_id: str) -> Response:
        mail = await one(call, message_id)
        raw = text_of(await callers.beginning(mail, _HEAD))
        head = re.split(r"\r?\n\r?\n", raw, maxsplit=1)[0]
        return json_response(shapes.headers(fields_of(head, " ")))

    @api.add("GET", f"{API}/message/<message_id>/raw", compat("mailpitRaw", "read", query=RawQuery))
    async def raw(call: Call, message_id: str) -> Response:
        mail = await one(call, message_id)
        kept = {}
        if call.query.dl == "1":
            kept = {"Content-Disposition": f'attachment; filename="{mail.id}.eml"'}
        return await callers.raw(call, mail, "text/plain; charset=utf-8", kept)

    @api.add(
        "GET",
        f"{API}/message/<message_id>/part/<index>",
        compat("mailpitPart", "read", query=OfSearch),
    )
    async def part(call: Call, message_id: str, index: str) -> Response:
        mail = await one(call, message_id)
        wanted = int(index) - 1 if re.fullmatch(r"[0-9]{1,6}", index, re.ASCII) else -1
        known = next((each for each in mail.attachments if each["index"] == wanted), None)
        if known is None:
            raise from_status(404)
        kind = known.get("content_type") or ""
        kind = kind if _TYPE.fullmatch(kind) else "application/octet-stream"
        return await callers.download(call, mail, wanted, kind)

    relaying = compat("mailpitRelease", "send", body=True, stores=True)

    @api.add("POST", f"{API}/message/<message_id>/release", relaying)
    async def release(call: Call, message_id: str) -> Response:
        to = (await members_of(relaying)).texts("To")
        if not 1 <= len(to) <= MOST_RECIPIENTS or any(len(one) > LONGEST for one in to):
            raise bad(f"To: 1 to {MOST_RECIPIENTS} addresses are wanted.")
        mail = await callers.find(call, message_id)
        await releasing.queue(call.caller, mail.mailbox_id, str(mail.id), to)
        return text(OK)

    @api.add("GET", f"{ROOT}/view/<name>", compat("mailpitView", "read", query=ViewQuery))
    async def view(call: Call, name: str) -> Response:
        mail_id, _, kind = name.rpartition(".")
        if kind not in {"html", "txt"}:
            raise from_status(404)
        mail, found = await whole(call, mail_id)
        hosts = own_hosts(deps.urls)
        own = Own(hosts, request.scope.get("server"))

        def page() -> tuple[bytes, bool]:
            made = found.body_html
            if made is None:
                made = f"<!doctype html><pre>{html.escape(found.body_text or '')}</pre>"
            made, _ = pictures_placed(
                made, found, mail.mailbox_id, own, deps.keyring.signing, loaded=False
            )
            return made.encode("utf-8", "replace"), is_too_deep(made)

        async def make() -> tuple[bytes, Mapping[str, str]]:
            if kind == "txt":
                return (found.body_text or "").encode(), {}
            made, deep = await callers.apart(call, page)
            policy = preview_policy(pictures=picture_places(hosts), deep=deep)
            return made, {"Content-Security-Policy": policy, "X-DNS-Prefetch-Control": "off"}

        answer = await callers.downloads.made(
            callers.owner(call),
            make,
            found.loaded,
            f"text/{'plain' if kind == 'txt' else 'html'}; charset=utf-8",
        )
        await mark_read(call, mail)
        return answer
