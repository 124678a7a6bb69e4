"""`/compat/mailpit/…`: Mailpit's API v1, for suites that were written for it.

Promises
  * Paths, values, JSON and statuses are those that Mailpit documents, errors are plain texts with
    its statuses; docs/switching.md says what differs, and what of its clients passes.
  * Whoever calls sees and changes their own mail, the administrator all that there is.
  * A body that cannot be read changes nothing.  (Mailpit deletes everything then.)  Nor does a
    search that looks for nothing.

Fails with 400 and a sentence for what Mailpit does and this relay does not: SpamAssassin, tables of
what mail clients support, thumbnails, sending by this way, the stream of events.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from quart import Response, request

from relay.chance import time
from relay.db.text import storable
from relay.http.compat import mailpit_json as shapes
from relay.http.compat.answers import bad, text
from relay.http.compat.mailpit_query import parse
from relay.http.compat.mime_text import fields_of, text_of
from relay.http.compat.shared import (
    NO_EVENTS,
    CallersMail,
    Window,
    compat,
    members_of,
    no_such_message,
    not_there,
    texts_of,
)
from relay.http.operations import Access, Call, Query, json_response
from relay.http.problems import from_status
from relay.http.resources.all_messages import reach_of
from relay.http.resources.previews import (
    Own,
    own_hosts,
    picture_places,
    pictures_placed,
    preview_policy,
)
from relay.http.resources.release import LONGEST, MOST_RECIPIENTS, Releasing
from relay.http.routing import Api
from relay.mailboxes.changes import Change
from relay.mailboxes.effort import is_too_deep
from relay.mailboxes.mails import EVERYTHING, Criteria, Mail
from relay.mailboxes.query import Term
from relay.mailboxes.records import ReceivedMessage
from relay.metrics import registry
from relay.outbound.senders import LOOP
from relay.smtp.chaos import Chaos, Rate

T = TypeVar("T")

ROOT = "/compat/mailpit"
API = f"{ROOT}/api/v1"
OK = "ok"

_COUNTED = ("process_", "relay_smtp_messages", "relay_smtp_received_bytes")
_HEAD = 64 * 1024  # bytes of a message in which its header is looked for
_LONG = 64 * 1024  # characters of headers from which an answer is made beside the loop
_SUMMED = 20  # attachments of a message whose checksums are said
_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}", re.ASCII)
_TRIGGERS = {"Sender": "mail", "Recipient": "rcpt"}
_NO_CHAOS = "Chaos is not enabled: set RELAY_SMTP__CHAOS=true and start the relay again."
_SEND = "Mail is not sent here: it comes by SMTP, and leaves by POST /api/v1/messages/send."
_CHECKS = (
    "There is no such check here: GET …/messages/{id}/checks of the relay's own API has others."
)
_THUMB = "There are no thumbnails here: fetch the part itself."


class OfSearch(Query):
    """A search; `tz`: of times in it."""

    query: str = ""
    tz: str = ""


class SearchQuery(Window, OfSearch):
    """A part of what a search finds."""


class RawQuery(OfSearch):
    """Whether it is to be kept as a file."""

    dl: str = ""


class FollowQuery(OfSearch):
    """Whether redirects of links are to be followed."""

    follow: str = ""


class ViewQuery(OfSearch):
    """Whether a page is to be shown inside of another."""

    embed: str = ""


def register(api: Api) -> None:
    """Declare the calls."""
    callers = CallersMail(api)
    deps, mails = callers.deps, callers.mails
    releasing = Releasing(api)

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
            tags = await deps.all_messages.tags(reach_of(call))
        # Held again at once, as what the answer is made of.
        shown = shapes.page(found, window.at, total.count, total.unread, tags)
        loaded = sum(mail.loaded for mail in found.mails)
        return await downloads.json(owner, shown, loaded)

    async def beside(call: Call, mail: Mail, make: Callable[[], T]) -> T:
        """What is answered, made beside the loop where the sender had so much to say that it takes
        long."""
        return await callers.apart(call, make) if mail.length > _LONG else make()

    async def one(call: Call, mail_id: str) -> Mail:
        """The mail that a path names: by its id, or the latest, of a search too."""
        if mail_id != "latest":
            return await callers.find(call, mail_id)
        query: OfSearch = call.query
        criteria = parse(query.query, query.tz) if query.query.strip() else EVERYTHING
        found = await callers.search(call, criteria, 0, 1)
        if not found.mails:
            raise no_such_message()
        # Whole: of a search a mail has what lists show.
        return await callers.find(call, str(found.mails[0].id))

    async def whole(call: Call, mail_id: str) -> tuple[Mail, ReceivedMessage]:
        mail = await one(call, mail_id)
        found = await deps.messages.get(mail.mailbox_id, str(mail.id), mark_read=False)
        if found is None:
            raise no_such_message()
        return mail, found

    async def mark_read(call: Call, mail: Mail) -> None:
        if not mail.is_read and request.method != "HEAD":
            read = partial(mails.change, reach_of(call), [str(mail.id)], Change(is_read=True))
            await callers.change(call, read)

    @api.add("GET", f"{API}/messages", compat("mailpitMessages", "read", query=Window))
    async def list_(call: Call) -> Response:
        return await listed(call, None)

    @api.add("GET", f"{API}/search", compat("mailpitSearch", "read", query=SearchQuery))
    async def search(call: Call) -> Response:
        return await listed(call, _criteria(call.query))

    deleting = compat("mailpitDelete", "send", body=True)

    @api.add("DELETE", f"{API}/messages", deleting)
    async def delete(call: Call) -> Response:
        ids = texts_of(await members_of(deleting), "IDs")
        reach = reach_of(call)
        if ids:
            await callers.change(call, lambda: mails.delete(reach, ids))
        else:
            await callers.change_found(call, lambda: deps.all_messages.delete(reach, ()))
        return text(OK)

    @api.add("DELETE", f"{API}/search", compat("mailpitDeleteFound", "send", query=OfSearch))
    async def delete_found(call: Call) -> Response:
        criteria, reach = _meant(_criteria(call.query)), reach_of(call)
        await callers.change_found(call, lambda: mails.delete_found(reach, criteria))
        return text(OK)

    marking = compat("mailpitMark", "read", query=OfSearch, body=True)

    @api.add("PUT", f"{API}/messages", marking)
    async def mark(call: Call) -> Response:
        members = await members_of(marking)
        ids, reach = texts_of(members, "IDs"), reach_of(call)
        read, searched = members.get("read", False), members.get("search") or ""
        if not isinstance(read, bool) or not isinstance(searched, str):
            raise bad("Read is true or false, Search a text.")
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
        to = texts_of(await members_of(relaying), "To")
        if not 1 <= len(to) <= MOST_RECIPIENTS or any(len(one) > LONGEST for one in to):
            raise bad(f"To: 1 to {MOST_RECIPIENTS} addresses are wanted.")
        mail = await callers.find(call, message_id)
        await releasing.queue(call.caller, mail.mailbox_id, str(mail.id), to)
        return text(OK)

    @api.add("GET", f"{API}/tags", compat("mailpitTags", "read"))
    async def tags(call: Call) -> Response:
        await callers.caught_up(call)
        return json_response(await deps.all_messages.tags(reach_of(call)))

    tagging = compat("mailpitTag", "read", body=True)

    @api.add("PUT", f"{API}/tags", tagging)
    async def tag(call: Call) -> Response:
        members = await members_of(tagging)
        ids, reach = texts_of(members, "IDs"), reach_of(call)
        change = Change(tags=[_tag(each) for each in texts_of(members, "Tags") if _tag(each)])
        await callers.change(call, lambda: mails.change(reach, ids, change))
        return text(OK)

    renaming = compat("mailpitRenameTag", "read", body=True)

    @api.add("PUT", f"{API}/tags/<name>", renaming)
    async def rename(call: Call, name: str) -> Response:
        wanted = (await members_of(renaming)).get("name")
        if not isinstance(wanted, str) or not _tag(wanted):
            raise bad("Name: a text is wanted.")
        return await retagged(call, name, Change(remove=[storable(name)], add=[_tag(wanted)]))

    @api.add("DELETE", f"{API}/tags/<name>", compat("mailpitDeleteTag", "read"))
    async def remove(call: Call, name: str) -> Response:
        return await retagged(call, name, Change(remove=[storable(name)]))

    async def retagged(call: Call, name: str, change: Change) -> Response:
        reach = reach_of(call)
        terms = (Term("tag", name),)
        await callers.change_found(call, lambda: deps.all_messages.change(reach, terms, change))
        return text(OK)

    @api.add("GET", f"{API}/info", compat("mailpitInfo", "read"))
    async def info(call: Call) -> Response:
        found = await callers.search(call, EVERYTHING, 0, 0)
        everything = call.caller is not None and call.caller.key is None
        return json_response(
            {
                "Version": f"relay {deps.version}",
                "LatestVersion": f"relay {deps.version}",
                "Database": "",
                "DatabaseSize": await mails.database_size() if everything else 0,
                "Messages": found.count,
                "Unread": found.unread,
                "Tags": await callers.tags(call),
                "RuntimeStats": _runtime_stats(everything),
            }
        )

    @api.add("GET", f"{API}/webui", compat("mailpitConfiguration", "read"))
    async def configuration(call: Call) -> Response:
        texts = (
            "SMTPServer", "ReturnPath", "AllowedRecipients", "BlockedRecipients", "OverrideFrom",
            "RecipientAllowlist",
        )  # fmt: skip
        enabled = bool(deps.release_to) and deps.upstream != LOOP
        relays = {"Enabled": enabled, **dict.fromkeys(texts, ""), "PreserveMessageIDs": True}
        return json_response(
            {
                "Label": "Relay",
                "MessageRelay": relays,
                "SpamAssassin": False,
                "ChaosEnabled": deps.chaos is not None,
                "DuplicatesIgnored": False,
                "HideDeleteAllButton": False,
            }
        )

    @api.add("GET", f"{API}/chaos", compat("mailpitChaos", "admin"))
    async def chaos(call: Call) -> Response:
        return json_response(_triggers(_chaos(deps.chaos)))

    triggering = compat("mailpitSetChaos", "admin", body=True)

    @api.add("PUT", f"{API}/chaos", triggering)
    async def set_chaos(call: Call) -> Response:
        now, members = _chaos(deps.chaos), await members_of(triggering)
        if _rate(members, "Authentication", 535) is not None:
            raise bad("Authentication is not refused by chance here; Sender and Recipient are.")
        rates = {phase: _rate(members, name, 451) for name, phase in _TRIGGERS.items()}
        now.rates = {phase: rate for phase, rate in rates.items() if rate is not None}
        return json_response(_triggers(now))

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

    refused = partial(not_there, api)
    message = f"{API}/message/<message_id>"
    refused("GET", f"{message}/html-check", "mailpitHtmlCheck", "read", _CHECKS, OfSearch)
    refused("GET", f"{message}/link-check", "mailpitLinkCheck", "read", _CHECKS, FollowQuery)
    refused("GET", f"{message}/sa-check", "mailpitSpamCheck", "read", _CHECKS, OfSearch)
    refused("GET", f"{message}/part/<index>/thumb", "mailpitThumb", "read", _THUMB, OfSearch)
    refused("POST", f"{API}/send", "mailpitSend", "send", _SEND)
    refused("GET", f"{ROOT}/api/events", "mailpitEvents", "read", NO_EVENTS)

    def alive(rule: str, name: str) -> None:
        @api.add("GET", rule, compat(name, "read", access=Access.OPEN))
        async def answer(call: Call) -> Response:
            return text(OK)

    alive(f"{ROOT}/livez", "mailpitLive")
    alive(f"{ROOT}/readyz", "mailpitReady")


def _runtime_stats(everything: bool) -> dict[str, int]:
    """What the counters of this relay say; nothing to whom they do not concern."""
    found: dict[tuple[str, str], float] = {}
    if everything:
        for metric in registry.collect():
            if metric.name.startswith(_COUNTED):
                for sample in metric.samples:
                    key = sample.name, sample.labels.get("outcome", "")
                    found[key] = found.get(key, 0.0) + sample.value
    began = found.get(("process_start_time_seconds", ""))
    messages = "relay_smtp_messages_total"
    return {
        "Uptime": 0 if began is None else max(0, int(time() - began)),
        "Memory": int(found.get(("process_resident_memory_bytes", ""), 0)),
        "MessagesDeleted": 0,  # not counted here
        "SMTPAccepted": int(found.get((messages, "accepted"), 0)),
        "SMTPAcceptedSize": int(found.get(("relay_smtp_received_bytes_total", ""), 0)),
        "SMTPRejected": int(found.get((messages, "rejected"), 0)),
        "SMTPIgnored": 0,  # nothing is
    }


def _criteria(query: OfSearch | SearchQuery) -> Criteria:
    if not query.query.strip():
        raise bad("Error: no search query")
    return parse(query.query, query.tz)


def _meant(criteria: Criteria) -> Criteria:
    """The same, for what is to be changed: a search that looks for nothing would find all."""
    if criteria == EVERYTHING:
        raise bad("query: there is nothing in it to look for.")
    return criteria


def _tag(given: str) -> str:
    """A tag as it can be kept: Mailpit's letters, others are blanks."""
    return " ".join(re.sub(r"[^\w \-.@]", " ", given).split())[:100]


def _chaos(chaos: Chaos | None) -> Chaos:
    if chaos is None:
        raise bad(_NO_CHAOS)
    return chaos


def _triggers(chaos: Chaos) -> dict[str, dict[str, int]]:
    found = {}
    for name, phase in _TRIGGERS.items():
        rate = chaos.rates.get(phase, Rate(451, 0))
        found[name] = {"ErrorCode": rate.code, "Probability": round(100 * rate.rate)}
    return {**found, "Authentication": {"ErrorCode": 535, "Probability": 0}}


def _rate(members: Mapping[str, Any], name: str, default: int) -> Rate | None:
    """A trigger of a body as a rate; None where it is off."""
    given = members.get(name.lower())
    if given is None:
        return None
    if not isinstance(given, dict):
        raise bad(f"{name}: an object is wanted.")
    code, chance = given.get("ErrorCode") or default, given.get("Probability") or 0
    if not (isinstance(code, int) and 400 <= code <= 599):
        raise bad(f"{name}: ErrorCode is from 400 to 599.")
    if not (isinstance(chance, int) and 0 <= chance <= 100):
        raise bad(f"{name}: Probability is from 0 to 100.")
    return Rate(code, chance / 100) if chance else None
