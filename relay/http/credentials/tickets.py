"""Tickets: what stands in a URL for the page's key, where a browser can set no header.

A ticket is a seal (`seals.py`) of the instant, the session's id and the path.  Its purpose has the
hash of the session's page key, which is in the database while the session is and in no backup.

Promises: a ticket opens one path (in the one spelling of `relay.http.paths`, without query) by GET,
for the session that it was made for, whose cookie must come along, for the seconds that the call
allows; it dies with the session.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from relay.http.credentials.seals import holds, seal

PREVIEW = 120.0
"""Seconds that a ticket opens a frame or a download."""
STREAM = 15.0
"""Seconds within which a stream must be begun with its ticket."""

_PURPOSE = b"relay ticket"


def issue(
    signing: Sequence[bytes], session: UUID, page_key_hash: bytes, path: str, now: float
) -> str:
    """Return a ticket for `path`, made `now` (epoch seconds)."""
    return seal(signing, _PURPOSE + page_key_hash, _sealed(session, path), now)


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
    sealed = _sealed(session, path)
    return holds(ticket, signing, _PURPOSE + page_key_hash, sealed, now=now, lasts=lasts)


def _sealed(session: UUID, path: str) -> bytes:
    return f"{session} {path}".encode("utf-8", "surrogatepass")
