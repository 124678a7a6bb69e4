"""What a browser shows of a page session: the cookie, the page's key, a ticket.

A page session (`page_sessions.py`) has two secrets.  The cookie (`relay_session`, or
`relay_mailbox` for one anonymous inbox, with the port that the browser asked) no script can read,
but the browser sends it to every port of the host, since cookies know no port.  The page's key only
scripts of the page's own origin can read, and nothing sends it by itself: it comes in the header
`X-Relay-Page-Key`.  Neither authorises anything without the other.  Frames, downloads and browsers'
own streams cannot set headers; for one path and a short time a ticket in the URL (`tickets.py`)
stands for the key, beside the cookie.

Promises
  * A cookie counts only for requests that this relay's own pages made: not from another site
    (`SameSite=Strict`, and `Sec-Fetch-Site`, which tells other ports of this host apart, too).
  * It goes no further than it must: to `/api/v1` alone, a mailbox's to that mailbox's calls alone;
    under TLS as `__Host-relay_session…`, which no other host and no plain HTTP can have set (the
    prefix demands the path `/`), a mailbox's as `__Secure-relay_mailbox…`.
  * Relays at different ports of one host keep apart: neither replaces the other's cookie.

Fails: what is malformed, too long or too much is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from quart import Response

from relay.crypto import hash_token

SESSION = "relay_session"
MAILBOX = "relay_mailbox"
SESSION_PATH = "/api/v1"

PAGE_KEY_HEADER = "X-Relay-Page-Key"
TICKET = "ticket"
"""The query parameter that carries a ticket."""

_PORT = re.compile(r":([0-9]{1,5})\Z")  # of a Host header
_OWN = {None, "same-origin", "none"}  # none: typed into the address bar
_MAX = 128  # characters of a secret
_MOST = 8  # of a kind; another port of this host may have set some of the cookies


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows of page sessions: hashes of its cookies and of its page keys."""

    cookies: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    ticket: str | None = None

    def __bool__(self) -> bool:
        return bool(self.cookies and (self.keys or self.ticket))


def shown(connection: Any, public_urls: Iterable[str], *, ticket: bool) -> Shown:
    """Return what a request shows; `ticket`: whether its call takes one.

    The header may name several keys, separated by commas: the page's, and an inbox's.
    """
    if connection.headers.get("Sec-Fetch-Site") not in _OWN:
        return Shown()
    tls = is_tls(connection, public_urls)
    cookies = [
        value
        for name in (SESSION, MAILBOX)
        for value in connection.cookies.getlist(full_name(name, connection.host, tls))[:_MOST]
    ]
    keys = connection.headers.get(PAGE_KEY_HEADER, "").split(",")[:_MOST]
    given = connection.args.get(TICKET) if ticket else None
    return Shown(_hashes(cookies), _hashes(keys), given if given and len(given) <= _MAX else None)


def is_tls(connection: Any, public_urls: Iterable[str]) -> bool:
    """Whether the browser speaks TLS, to this relay or to the proxy of one of its public URLs."""
    if connection.scheme in {"https", "wss"}:
        return True
    host = urlsplit(f"//{connection.host}").hostname
    public = map(urlsplit, public_urls)
    return any(url.scheme == "https" and url.hostname == host for url in public)


def full_name(name: str, host: str, tls: bool) -> str:
    """Return a cookie's name with the port of `host`, if it has one, and the prefix under TLS."""
    if port := _PORT.search(host):
        name = f"{name}_{port[1]}"
    if not tls:
        return name
    return ("__Host-" if name.startswith(SESSION) else "__Secure-") + name


def put(
    response: Response,
    connection: Any,
    public_urls: Iterable[str],
    name: str,
    value: str,
    *,
    path: str,
    max_age: float,
) -> None:
    """Set a cookie that no script can read and no other site can have sent."""
    tls = is_tls(connection, public_urls)
    if tls and name == SESSION:
        path = "/"  # or browsers refuse the prefix
    response.set_cookie(
        full_name(name, connection.host, tls), value, max_age=int(max_age), path=path, secure=tls,
        httponly=True, samesite="Strict",
    )  # fmt: skip


def _hashes(secrets: list[str]) -> tuple[bytes, ...]:
    return tuple(hash_token(text) for secret in secrets if 0 < len(text := secret.strip()) <= _MAX)
