"""Texts from outside as PostgreSQL takes them, and as it looks for them.  Pure."""

from __future__ import annotations

import re

_SHORT = 16  # characters of a needle that LIKE looks for, at no more than thrice its usual cost


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


def holds(text: str, name: str, needle: str) -> str:
    """Return the condition that `text`, in SQL, holds a sub-string, in any case: as ILIKE says.

    `name`: the parameter that has `sought(needle)`.
    """
    # What has no case, as codes and numbers do, need not be folded: a third of the cost.
    cased = not needle.isascii() or any(map(str.isalpha, needle))
    if len(needle) <= _SHORT:
        return f"{text} {'ILIKE' if cased else 'LIKE'} %({name})s"
    return f"lower({text}) ~ lower(%({name})s)" if cased else f"{text} ~ %({name})s"


def sought(needle: str) -> str:
    """Return the value of the parameter that `holds` names."""
    # As a regular expression that stands for itself: PostgreSQL makes an automaton of it, which
    # takes each character of the text once.  LIKE begins anew at each, and takes text times needle
    # where both are of one letter: 5 s a megabyte, for a needle of 1,000, and 0.05 s so.
    return like_pattern(needle) or "" if len(needle) <= _SHORT else f"***={storable(needle)}"
