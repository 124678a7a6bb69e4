"""Texts from outside as PostgreSQL takes them, and as it looks for them.  Pure."""

from __future__ import annotations

import re


def storable(text: str) -> str:
    """Return a text without what PostgreSQL's text refuses: NUL, and lone surrogates.

    Each becomes U+FFFD or "?", so that a text which is only compared matches nothing, and does not
    raise.
    """
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def like_pattern(needle: str | None) -> str | None:
    """Return an ILIKE pattern for a literal sub-string; None where nothing is asked for."""
    if not needle:
        return None
    return "%" + re.sub(r"([\\%_])", r"\\\1", storable(needle)) + "%"
