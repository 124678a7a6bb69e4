"""The addresses of the pictures that a message's preview shows: signed, for one picture each.

Format: `/api/v1/pictures/{seal}/{mailbox id}/{message id}/{index}`: a seal (`seals.py`) of its
instant and all that follows, the last of which is the index of an attachment.

Promises: an address opens that picture of that message and nothing else, for `LASTS` seconds,
whoever has it; only who may read a message is given one.  Pure.

Why no ticket of the page: a preview that stands alone has no origin, so that its requests carry no
cookie, and a ticket is worth nothing without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from relay.http.credentials import seals

LASTS = 120.0
"""Seconds that an address works."""
BASE = "/api/v1/pictures/"

_PURPOSE = b"relay picture"


def link(signing: Sequence[bytes], now: float, mailbox: UUID, message: UUID, index: int) -> str:
    """Return the address of a picture, by its attachment's `index`."""
    made = seals.seal(signing, _PURPOSE, _sealed(mailbox, message, index), now)
    return f"{BASE}{made}/{mailbox}/{message}/{index}"


def opens(
    seal: str, signing: Sequence[bytes], now: float, mailbox: UUID, message: UUID, index: int
) -> bool:
    """Whether an address whose part with the signature is `seal` opens that picture `now`."""
    sealed = _sealed(mailbox, message, index)
    return seals.holds(seal, signing, _PURPOSE, sealed, now=now, lasts=LASTS)


def _sealed(mailbox: UUID, message: UUID, index: int) -> bytes:
    return f"{mailbox} {message} part {index}".encode()
