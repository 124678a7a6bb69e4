"""Cursors as clients give them back.  Pure.

A cursor is opaque to them: the base64 of what the next page begins behind.
"""

from __future__ import annotations

import base64
import binascii
import json

from relay.errors import Invalid


def encode_cursor(*parts: str) -> str:
    """Return what `decode_cursor` gives back, as one opaque word."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, count: int) -> list[str] | None:
    """Return the `count` parts of a cursor, None without one; `Invalid` for what is not ours."""
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise Invalid("the cursor is not one of ours") from error
    if not (isinstance(parts, list) and len(parts) == count):
        raise Invalid("the cursor is not one of ours")
    return [part if isinstance(part, str) else "" for part in parts]
