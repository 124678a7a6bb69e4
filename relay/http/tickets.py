"""Tickets: what stands in a URL for the page's key, where a browser can set no header.

Format: `instant "." signature`: milliseconds since 1970 in decimal, and HMAC-SHA256 (base64url
without padding) of the instant, the session's id and the path.  The key is derived from the
relay's signing key and the hash of the session's page key, which is in the database while the
session is and in no backup.

Promises: a ticket opens one path (decoded, without query) by GET, for the session that it was made
for, whose cookie must come along, for the seconds that the call allows; it dies with the session.
Rotated signing keys go on verifying.  Pure.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence
from uuid import UUID

PREVIEW = 120.0
"""Seconds that a ticket opens a frame or a download."""
STREAM = 15.0
"""Seconds within which a stream must be begun with its ticket."""

_FORM = re.compile(r"([0-9]{1,15})\.([A-Za-z0-9_-]{43})", re.ASCII)
_AHEAD = 30.0  # s; how far another node's clock may be ahead of ours


def issue(
    signing: Sequence[bytes], session: UUID, page_key_hash: bytes, path: str, now: float
) -> str:
    """Return a ticket for `path`, made `now` (epoch seconds)."""
    instant = str(int(now * 1000))
    return f"{instant}.{_sign(signing[0], session, page_key_hash, path, instant)}"


def opens(
    ticket: str,
    signing: Sequence[bytes],
    session: UUID,
    page_key_hash: bytes,
    path: str,
    *,
    now: float,
    lasts: float,
) -> bool:
    """Whether a ticket opens `path` for the session `now`, `lasts` seconds after it was made."""
    form = _FORM.fullmatch(ticket)
    if form is None or not -_AHEAD <= now - int(form[1]) / 1000 < lasts:
        return False
    return any(
        hmac.compare_digest(form[2], _sign(key, session, page_key_hash, path, form[1]))
        for key in signing
    )


def _sign(key: bytes, session: UUID, page_key_hash: bytes, path: str, instant: str) -> str:
    # A key of its own, so that no other signature of the relay's passes as a ticket.
    own = hmac.digest(key, b"relay ticket" + page_key_hash, "sha256")
    signed = f"{instant} {session} {path}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.digest(own, signed, "sha256")).rstrip(b"=").decode()
