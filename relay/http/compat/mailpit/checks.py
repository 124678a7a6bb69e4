"""Mailpit's calls that check a mail's HTML and its links, by Relay's own checks.

What differs is told in docs/switching.md.  Of HTML Relay knows which clients ignore a feature (the
data is caniemail.com's, as Mailpit's is), not which support it in part, and that it is there,
not how often; links are asked as `GET …/checks?links=true` asks them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from quart import Response

from relay.checks import findings
from relay.http.compat.answers import bad
from relay.http.compat.callers_mail import CallersMail, no_such_message
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API, OfSearch, named
from relay.http.operations import Call, json_response
from relay.http.probes.links import Asked
from relay.mailboxes.examination import Examined

_FAMILIES = {
    "Outlook for Windows": ("Outlook", "windows"),
    "Outlook for Mac": ("Outlook", "macos"),
    "Outlook.com": ("Outlook", "outlook-com"),
    "Outlook for iOS": ("Outlook", "ios"),
    "Outlook for Android": ("Outlook", "android"),
    "Gmail": ("Gmail", "desktop-webmail"),
    "Gmail on the mobile web": ("Gmail", "mobile-webmail"),
    "Gmail for iOS": ("Gmail", "ios"),
    "Gmail for Android": ("Gmail", "android"),
    "Apple Mail": ("Apple Mail", "macos"),
    "Apple Mail on iOS": ("Apple Mail", "ios"),
}
"""Family and platform of each client, by their names at caniemail.com."""
_LEFT_OUT = "not asked: there are too many links, or too slow ones"


class FollowQuery(OfSearch):
    """Whether redirects of links are to be followed."""

    follow: str = ""


def register(callers: CallersMail) -> None:
    """Declare the calls."""
    api, deps = callers.api, callers.deps
    message = f"{API}/message/<message_id>"

    @asynccontextmanager
    async def examined(call: Call, message_id: str) -> AsyncIterator[Examined]:
        mail = await named(callers, call, message_id)
        async with api.checking.examined(
            callers.owner(call), mail.mailbox_id, str(mail.id), mail.entry.size
        ) as found:
            if found is None:
                raise no_such_message()
            yield found

    @api.add("GET", f"{message}/html-check", compat("mailpitHtmlCheck", "read", query=OfSearch))
    async def html(call: Call, message_id: str) -> Response:
        async with examined(call, message_id) as found:
            if found.names is None:
                raise bad("The message does not contain HTML.")
            return json_response(html_check(found))

    @api.add("GET", f"{message}/link-check", compat("mailpitLinkCheck", "read", query=FollowQuery))
    async def links(call: Call, message_id: str) -> Response:
        async with examined(call, message_id) as found:
            if deps.links is None:
                raise bad("This relay asks no links.")
            return json_response(link_check(*await deps.links.ask(found.links)))


def html_check(found: Examined) -> dict[str, Any]:
    """What clients ignore of a mail's HTML (`HTMLCheckResponse`)."""
    clients = findings.clients()
    platforms: dict[str, list[str]] = {}
    for family, platform in _FAMILIES.values():
        platforms.setdefault(platform, []).append(family)
    lost = sum(len(one.clients) for one in found.ignored) / len(clients)
    return {
        "Total": {
            "Tests": findings.features(),
            "Nodes": found.names,
            **_shares(lost / max(1, found.names or 0)),
        },
        "Platforms": platforms,
        "Warnings": [
            {
                "Slug": one.slug,
                "Title": one.title,
                "Description": "",
                "URL": f"https://www.caniemail.com/features/{one.slug}/",
                "Category": one.slug.partition("-")[0],
                "Tags": [],
                "Keywords": "",
                "Results": [
                    {
                        "Name": client,
                        "Family": _FAMILIES[client][0],
                        "Platform": _FAMILIES[client][1],
                        "Version": "",
                        "Support": "no",
                        "NoteNumber": "",
                    }
                    for client in one.clients
                ],
                "NotesByNumber": {},
                "Score": {"Found": 1, **_shares(len(one.clients) / len(clients))},
            }
            for one in found.ignored
        ],
    }


def _shares(ignored: float) -> dict[str, float]:
    """Per cent of what is supported and what is not."""
    lost = round(100 * min(1.0, ignored), 2)
    return {"Supported": round(100 - lost, 2), "Partial": 0, "Unsupported": lost}


def link_check(asked: list[Asked], left_out: list[str]) -> dict[str, Any]:
    """What came of a mail's links (`LinkCheckResponse`)."""
    links = [
        {
            "URL": one.link,
            "StatusCode": one.status or 0,
            "Status": one.said if one.status is None else _phrase(one.status),
        }
        for one in asked
    ]
    links += [{"URL": link, "StatusCode": 0, "Status": _LEFT_OUT} for link in left_out]
    failed = sum(one.status is None or one.status >= 400 for one in asked)
    return {"Errors": failed + len(left_out), "Links": links}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
