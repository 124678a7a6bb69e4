"""Reasons for people: one line of bounded length, whatever a stranger's record or header held.

Pure.
"""

from __future__ import annotations

MOST = 500
"""Characters of a detail."""
MOST_QUOTED = 100
"""Characters of what is quoted in one."""


def quoted(text: str) -> str:
    """The beginning of a stranger's text, in quotes, with what cannot be shown escaped."""
    return repr(text[:MOST_QUOTED])


def in_one_line(text: str, most: int = MOST) -> str:
    """A text cut to `most` characters; each that cannot be shown is a question mark."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)
