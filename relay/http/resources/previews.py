"""`…/{id}/html` and `/api/v1/pictures`: a message as its sender meant it to look.

Promises
  * A message's HTML runs no script, submits no form, leads nowhere and loads nothing but pictures:
    those in the message, which the relay hands out, and, where its reader asks for them, those
    elsewhere that were counted (`relay.mailboxes.pictures`), which the browser fetches itself:
    once, without a referrer, without cookies, and none from this relay's own host.  Before that
    not so much as a connection is made to anywhere else.
  * It shares no origin with the relay's pages; only where the page frames it (`framed`) it does,
    still without scripts, so that the page can see how tall it is and which link is pressed.  A
    page that a browser may be long about (`relay.mailboxes.effort`) never does, so that it has a
    process of its own where browsers have one for each origin: whoever reads goes on meanwhile.
  * Styles so deep that a browser may end of them are not applied.
  * A picture that the relay hands out is one by its bytes; each has an address of its own that
    works for two minutes (`relay.http.previews.picture_links`).
  * A long message is made ready beside the loop, one at a time for each who looks: nobody else
    waits for it.  It is held until it was sent, as what is read as JSON is (`Downloads`).

Why the page shares its origin with what it frames: nobody outside of a frame is told, else, how
tall it is to be, and a script inside, however small, would need scripts to be allowed.  Without
them an origin is worth nothing; that there are none is said twice, by the frame and by the policy.

Why the relay fetches no picture for its readers: the application whose mail is looked at often
runs on the reader's own machine, which a browser reaches and a relay must not be led to.
"""

from __future__ import annotations

import html
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

import trio
from pydantic import Field
from quart import Response, request

from relay.chance import time
from relay.http.credentials.callers import owner_of
from relay.http.credentials.tickets import PREVIEW
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.operations import Access, Answer, Call, Operation, Query
from relay.http.previews import picture_links
from relay.http.previews.pictures import kind_of
from relay.http.problems.details import from_status, message_not_found, unavailable
from relay.http.resources.messages import BASE, GONE
from relay.http.responses.downloads import Downloads, once
from relay.http.routing import Api
from relay.mailboxes.effort import is_long, is_too_deep
from relay.mailboxes.pictures import placed
from relay.mailboxes.records import ReceivedMessage

_POLICY = (
    "sandbox{sandbox}; default-src 'none'; img-src data: {pictures}; style-src {styles}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""For a stranger's HTML: its own styles, pictures, and nothing else."""


def preview_policy(*, pictures: Iterable[str], sandbox: str = "", deep: bool = False) -> str:
    """The policy of a page; `deep`: its styles are so deep that they are not applied."""
    styles = "'none'" if deep else "'unsafe-inline'"
    return _POLICY.format(sandbox=sandbox, pictures=" ".join(pictures), styles=styles)


# A link would lead the frame away from the message, to an error where the policy stops it.  Its
# tab would be a new one, which the sandbox does not allow: so nothing happens.  The first base with
# a target counts, and a doctype stays what comes first.
_DOCTYPE = re.compile(r"\s*<!doctype[^>]*>", re.IGNORECASE)
_STAYS = '<meta name="referrer" content="no-referrer"><base target="_blank">'
_BLOCKED = (
    '<meta name="relay-blocked" content="{count}"><style>img[data-blocked]{{background:#8883}}'
    "</style>"
)
_LONG = 1 << 16  # characters of a page; shorter ones are made ready in some milliseconds
_Made = tuple[str, int, bool, bool]
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?", re.ASCII)


class PreviewQuery(Query):
    """How a message is shown."""

    images: Annotated[
        Literal["blocked", "loaded"],
        Field(description="whether the browser fetches pictures from elsewhere, as it shows them"),
    ] = "blocked"
    framed: Annotated[
        bool, Field(description="for the page, which sees how tall it is; no more is allowed")
    ] = False


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps
    messages, limits, keyring = deps.messages, deps.limits, deps.keyring
    parsing = FairLimiter(limits.attachments, max(1, limits.attachments // 4), kept=1, waiting=64)
    downloads = Downloads(limits.download_bytes)
    making = FairLimiter(2, 1, waiting=16)

    async def beside(call: Call, work: Callable[[], _Made]) -> _Made:
        try:
            async with making.turn(owner_of(call.caller, request, deps.trusted_proxies)):
                return await trio.to_thread.run_sync(work)
        except Crowded:
            raise unavailable("Too many messages are being shown; try again.") from None

    @api.add(
        "GET",
        f"{BASE}/<message_id>/html",
        Operation(
            "getMessageHtml",
            "Show a message's HTML in a sandbox",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "a page that can do nothing", media_type="text/html"),
                GONE,
                Answer(503, "too many long messages at once; try again"),
            ),
            scope="read",
            query=PreviewQuery,
            token_in_query=True,
            ticket=PREVIEW,
            details='A message without HTML is shown as text. Frame it with sandbox="".',
        ),
    )
    async def preview(call: Call, message_id: str) -> Response:
        message = await messages.get(call.mailbox.id, message_id, mark_read=False)
        if message is None:
            raise message_not_found()
        query: PreviewQuery = call.query
        page = message.body_html
        if page is None:
            page = f"<!doctype html><pre>{html.escape(message.body_text or '')}</pre>"
        loaded = query.images == "loaded"
        hosts = own_hosts(deps.urls)
        own = Own(hosts, request.scope.get("server"))

        def work() -> _Made:
            made, elsewhere = pictures_placed(
                page, message, call.mailbox.id, own, keyring.signing, loaded=loaded
            )
            return made, elsewhere, query.framed and is_long(made), is_too_deep(made)

        async def make() -> tuple[bytes, Mapping[str, str]]:
            shown, count, long, deep = await beside(call, work) if len(page) > _LONG else work()
            shares = query.framed and not long
            blocked = "" if loaded else _BLOCKED.format(count=count)
            begun = _begun(shown, _STAYS + (blocked if query.framed else ""))
            return begun.encode("utf-8", "replace"), {
                "Content-Security-Policy": preview_policy(
                    sandbox=" allow-same-origin" if shares else "",
                    pictures=(["http:", "https:"] if loaded else []) + picture_places(hosts),
                    deep=deep,
                ),
                # No cookie goes to another port of this host, nor where a picture leads back here.
                "Cross-Origin-Embedder-Policy": "credentialless",
                "Referrer-Policy": "no-referrer",
                "X-DNS-Prefetch-Control": "off",  # the names in links are not looked up ahead
                "Cross-Origin-Resource-Policy": "same-origin",
            }

        owner = owner_of(call.caller, request, deps.trusted_proxies)
        return await api.downloads.made(owner, make, message.loaded, "text/html; charset=utf-8")

    @api.add(
        "GET",
        f"{picture_links.BASE}<seal>/<mailbox_id>/<message_id>/<index>",
        Operation(
            "getPicture",
            "Show a picture that a message brought",
            "pages",
            Access.OPEN,
            (
                Answer(200, "the picture", media_type="image/*"),
                Answer(404, "the address is over, or it is no picture", cases=("not-found",)),
                Answer(503, "too many pictures at once; try again", cases=("unavailable",)),
            ),
            limited=False,
            details="Its address stands in the preview of the message, and works for "
            f"{picture_links.LASTS:.0f} seconds.",
        ),
    )
    async def part(call: Call, seal: str, mailbox_id: str, message_id: str, index: str) -> Response:
        if not re.fullmatch(r"[0-9]{1,6}", index, re.ASCII):
            raise from_status(404)
        wanted = int(index)
        try:
            mailbox, message = UUID(mailbox_id), UUID(message_id)
        except ValueError:
            raise from_status(404) from None
        if not picture_links.opens(seal, keyring.signing, time(), mailbox, message, wanted):
            raise from_status(404)
        owner = owner_of(call.caller, request, deps.trusted_proxies)
        size = await messages.raw_size(mailbox, message)
        if size is None:
            raise from_status(404)
        try:
            # Its turn first: a browser asks for all pictures of a message at once.
            async with parsing.turn(owner):
                held = downloads.hold(owner, size)
                try:
                    raw = await messages.raw(mailbox, message)
                    found = None if raw is None else await deps.extract_attachment(raw, wanted)
                    del raw
                    kind = None if found is None else kind_of(found[2])
                    if found is None or kind is None:
                        raise from_status(404)  # noqa: TRY301 - what is held goes back below
                except BaseException:
                    held.release()
                    raise
                held.shrink(len(found[2]))
        except Crowded:
            raise unavailable("Too many pictures are being shown; try again.") from None
        return downloads.response(once(found[2]), len(found[2]), held, kind, _PICTURE)


def own_hosts(urls: Iterable[str]) -> set[str]:
    """What this relay is called in the current request, and in `urls`; empty ones are none."""
    return {request.host, *(urlsplit(url).netloc for url in urls if url)}


def picture_places(hosts: Iterable[str]) -> list[str]:
    """Where the pictures that a message brought are, as a content policy names it."""
    # A host that a policy cannot name (an address of IPv6) is this origin, in all.
    return sorted(
        f"{host}{picture_links.BASE}" if _HOST.fullmatch(host) else "'self'" for host in hosts
    )


def pictures_placed(
    page: str,
    message: ReceivedMessage,
    mailbox_id: UUID,
    own: Own,
    signing: Sequence[bytes],
    *,
    loaded: bool,
) -> tuple[str, int]:
    """A message's page with addresses for its own pictures, and how many are from elsewhere."""
    now = time()
    parts = {
        one["content_id"]: one["index"]
        for one in reversed(message.attachments)
        if one.get("content_id")
    }

    def place(content_id: str) -> str | None:
        index = parts.get(content_id)
        if index is None:
            return None
        return picture_links.link(signing, now, mailbox_id, message.id, index)

    return placed(page, place, lambda url: not own.is_at(url), loaded=loaded)


_PICTURE = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    # A preview that stands alone has no origin.
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Content-Disposition": "inline",
    "Cache-Control": "private, max-age=120",
}


class Own:
    """Whether an address is one of this relay's own, however it is written.

    `hosts`: as it is called, with ports; `server`: the address and port that it was reached at.
    """

    def __init__(self, hosts: Iterable[str], server: tuple[str, int | None] | None) -> None:
        parts = [urlsplit(f"//{host}") for host in hosts]
        self._names = {_name_of(each.hostname) for each in parts}
        self._ports = {each.port for each in parts}
        if server is not None:
            self._names.add(_name_of(server[0]))
            self._ports.add(server[1])

    def is_at(self, url: str) -> bool:
        """Whether `url`, or an address that nobody can make out, leads here."""
        try:
            parts = urlsplit(url)
            name, port = _name_of(parts.hostname), parts.port
        except ValueError:
            return True
        usual = {"http": {80, None}, "https": {443, None}}.get(parts.scheme, {80, 443, None})
        at = {port} if port not in usual else usual
        return bool(at & self._ports) and (name == _HERE or name in self._names)


_HERE = "localhost"


def _name_of(host: str | None) -> str:
    """The one name of a host, which a browser takes in many spellings."""
    name = (host or "").lower().rstrip(".")
    try:
        packed = socket.inet_aton(name)  # 127.1 and 0x7f000001 are this machine, too
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(packed)
    except OSError:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return _HERE if name.endswith(".localhost") else name
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return _HERE if address.is_loopback or address.is_unspecified else str(address)


def _begun(page: str, begin: str) -> str:
    """The page with `begin` in front, behind its doctype."""
    doctype = _DOCTYPE.match(page)
    at = doctype.end() if doctype else 0
    return page[:at] + begin + page[at:]
