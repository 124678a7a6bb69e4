"""What clients send as text, read: ids, cursors, sub-strings.  Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from uuid import UUID

from relay.errors import Invalid


def parse_uuid(value: str | UUID) -> UUID | None:
    """Return an id, or None for what is none."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except ValueError:
        return None


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


def storable(value: str) -> str:
    """`value` without what PostgreSQL's text refuses (NUL, lone surrogates): such a character
    becomes U+FFFD, so the value matches nothing rather than raising."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def like_pattern(needle: str | None) -> str | None:
    """An ILIKE pattern for a literal sub-string; None or an empty string asks for nothing."""
    if not needle:
        return None
    return "%" + re.sub(r"([\\%_])", r"\\\1", storable(needle)) + "%"
