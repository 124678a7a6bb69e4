"""Cookies that stand for a credential in a browser: `relay_session` and `relay_mailbox`.

A page's scripts never hold a token for longer than it takes to send it once: the relay answers
with a cookie that scripts cannot read, and frames, downloads and event streams, which cannot set
headers, send it by themselves.

Format: `expiry "." hash "." signature`, base64url without padding: seconds since 1970 in decimal,
the SHA-256 of the token (32 bytes), and HMAC-SHA256 of both (32 bytes) under a key derived from
the relay's signing key.  So a cookie holds no token, needs no store, survives a restart as long as
its token does, and is checked by every node that shares the keys.

Promises
  * A cookie counts only for requests that this relay's own pages made: not from another site
    (`SameSite=Strict`, and `Sec-Fetch-Site`, which tells other ports of this host apart, too).
  * What changes anything needs the header `X-Relay-Page` besides, which no form and no foreign
    script can send without asking first, and nobody who asks is let.
  * A mailbox's cookie is sent to that mailbox's calls alone.

Fails: a cookie that is forged, expired or malformed is no cookie.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Sequence
from typing import Any

from quart import Response

from relay.http.problems import Problem

SESSION = "relay_session"
MAILBOX = "relay_mailbox"
SESSION_AGE = 12 * 3600
"""Seconds after which a signed-in page has to sign in again."""

PAGE_HEADER = "X-Relay-Page"
_SAFE = {"GET", "HEAD"}
_OWN = {None, "same-origin", "none"}  # none: typed into the address bar
_MAX = 200


def issue(signing: Sequence[bytes], token_hash: bytes, expires_at: float) -> str:
    """Return the cookie's value for a token's hash (32 bytes), good until `expires_at` (epoch)."""
    signed = f"{int(expires_at)}.{_text(token_hash)}"
    return f"{signed}.{_text(_sign(signing[0], signed))}"


def read(signing: Sequence[bytes], value: str | None, now: float) -> bytes | None:
    """Return the token's hash in a cookie's value, or None; every key of `signing` verifies."""
    if value is None or len(value) > _MAX or value.count(".") != 2 or not value.isascii():
        return None
    signed, _, signature = value.rpartition(".")
    expiry, _, token_hash = signed.partition(".")
    given = _bytes(signature)
    if not any(hmac.compare_digest(given, _sign(key, signed)) for key in signing):
        return None
    return _bytes(token_hash) if float(expiry) > now else None


def hash_of(name: str, signing: Sequence[bytes], connection: Any) -> bytes | None:
    """Return the token's hash in the request's cookie `name`, whatever the request would do."""
    value = connection.cookies.get(name)
    if value is None or connection.headers.get("Sec-Fetch-Site") not in _OWN:
        return None
    return read(signing, value, time.time())


def cookie_of(name: str, signing: Sequence[bytes], connection: Any) -> bytes | None:
    """Return the token's hash that the request's cookie `name` stands for, or None.

    Raises the 403 of a change without the page's header.
    """
    token_hash = hash_of(name, signing, connection)
    if token_hash is not None and connection.scope["type"] == "http":
        _check_page(connection.method, PAGE_HEADER in connection.headers)
    return token_hash


def _check_page(method: str, from_page: bool) -> None:
    if method not in _SAFE and not from_page:
        raise Problem(
            403,
            "not-from-the-page",
            f"A change that a cookie authorises needs the header {PAGE_HEADER}.",
        )


def put(
    response: Response, name: str, value: str, *, path: str, max_age: float, secure: bool
) -> None:
    """Set a cookie that no script can read and no other site can have sent."""
    response.set_cookie(
        name, value, max_age=int(max_age), path=path, secure=secure, httponly=True,
        samesite="Strict",
    )  # fmt: skip


def _sign(key: bytes, text: str) -> bytes:
    # A key of its own, so that no other signature of the relay's passes as a cookie.
    return hmac.digest(hmac.digest(key, b"relay cookie", "sha256"), text.encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
