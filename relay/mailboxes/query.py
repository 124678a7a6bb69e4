"""What people type to find mail (`q`), read: words, phrases and operators.  Pure.

    reset password               every word must occur in subject, sender, recipient or text
    "reset your password"        as it stands
    -draft   -from:ads@          must not
    from:shop  to:ada  subject:"your order"      in the sender (name or address), and so on
    tag:billing                  the whole tag
    has:attachment  is:unread  is:read
    before:2026-11-01  after:2026-11-01T08:00:00Z      by arrival; a day begins at midnight, UTC
    larger:100k  smaller:2m      bytes of the raw message; k, m, g by 1,024
    *                            everything

All of it must hold, in any order and without regard to case; what is looked for is a part of what
is there, but for a tag, which is meant whole.  Of two neighbouring days `before:` has all that
`after:` has not.

Promises
- What begins with letters and a colon is an operator, or refused with the way to say it otherwise;
  but an URL (`https://…`) is a word, and so is what is no operator with nothing behind its colon
  (`Re:`).  An operator with nothing behind it is refused: as a word it would find nothing, and
  hide why.
- No query has more than `MOST_TERMS` terms or `LONGEST` characters.

Fails with `Invalid`, whose text names what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

from relay.errors import Invalid
from relay.times import parse_instant

LONGEST = 1000
"""Characters of a query."""
MOST_TERMS = 24
"""Terms of a query; each is looked for in every message that the others leave."""

Field = Literal[
    "any", "from", "to", "subject", "tag", "attachment", "unread", "before", "larger", "smaller"
]


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that must hold, or with `negated` must not.

    `value`: of `any`, `from`, `to`, `subject`, `tag` the text that is looked for, of `before` the
    instant, of `larger` and `smaller` the bytes; of the others nothing.
    """

    field: Field
    value: str | datetime | int = ""
    negated: bool = False


OPERATORS = ("from", "to", "subject", "tag", "has", "is", "before", "after", "larger", "smaller")
_TEXTS = ("from", "to", "subject", "tag")

_OPERATOR = re.compile(r"([A-Za-z]+):(?!//)(?=\S)")
_BARE = re.compile(rf"({'|'.join(OPERATORS)}):(?!\S)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,12})([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_LARGEST = 2**40  # bytes; larger than any message, and PostgreSQL can compare it


def parse(text: str) -> tuple[Term, ...]:
    """Return the terms of a query, without repetitions; none for `*` and for white space.

    `Invalid` for an operator that there is not, a value that it does not take, and too much.
    """
    if len(text) > LONGEST:
        raise Invalid(f"q: at most {LONGEST} characters")
    if text.strip() == "*":
        return ()
    terms: dict[Term, None] = {}
    position = _blank(text, 0)
    while position < len(text):
        term, position = _term(text, position)
        if term is not None:
            terms[term] = None
        if len(terms) > MOST_TERMS:
            raise Invalid(f"q: at most {MOST_TERMS} terms")
        position = _blank(text, position)
    return tuple(terms)


def _term(text: str, start: int) -> tuple[Term | None, int]:
    """The term that begins at `start`, None for an empty phrase, and where it ends."""
    negated = text[start] == "-" and text[start + 1 : start + 2].strip() != ""
    begin = start + negated
    operator = _OPERATOR.match(text, begin)
    if operator is None:
        bare = _BARE.match(text, begin)
        if bare is not None:
            name = bare[1].lower()
            raise Invalid(
                f"q: {name}: needs a value right behind the colon; "
                f'in quotes ("{bare[0]}") it is looked for as it stands'
            )
        value, end = _value(text, begin)
        return (Term("any", value, negated) if value else None), end
    name = operator[1].lower()
    value, end = _value(text, operator.end())
    if name not in OPERATORS:
        known = ", ".join(f"{one}:" for one in OPERATORS)
        raise Invalid(
            f'q: there is no operator "{operator[1][:64]}:", only {known}; '
            f'in quotes ("{text[begin:end][:64]}") it is looked for as it stands'
        )
    return _operation(name, value, negated), end


def _operation(name: str, value: str, negated: bool) -> Term:
    """What an operator with its value means."""
    if not value:
        raise Invalid(f"q: {name}: needs a value")
    if name in _TEXTS:
        return Term(cast(Field, name), value, negated)
    if name == "has":
        if value.lower() not in {"attachment", "attachments"}:
            raise Invalid("q: has: takes attachment")
        return Term("attachment", "", negated)
    if name == "is":
        if value.lower() not in {"unread", "read"}:
            raise Invalid("q: is: takes unread or read")
        return Term("unread", "", negated != (value.lower() == "read"))
    if name in {"before", "after"}:
        return Term("before", _instant(name, value), negated != (name == "after"))
    return Term(cast(Field, name), _size(name, value), negated)


def _instant(name: str, value: str) -> datetime:
    found = parse_instant(value)
    if found is None:
        raise Invalid(f"q: {name}: takes a day (2026-11-01) or an RFC 3339 time")
    return found


def _size(name: str, value: str) -> int:
    match = _SIZE.fullmatch(value)
    if match is None:
        raise Invalid(f"q: {name}: takes bytes, or a number with k, m or g (100k)")
    return min(int(match[1]) * _UNITS[match[2].lower()], _LARGEST)


def _value(text: str, start: int) -> tuple[str, int]:
    """What stands at `start`, up to white space or within quotes, and where it ends.

    Quotes that are never closed reach to the end: somebody is typing yet.
    """
    if text[start] == '"':
        end = text.find('"', start + 1)
        return (text[start + 1 :], len(text)) if end < 0 else (text[start + 1 : end], end + 1)
    end = start
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[start:end], end


def _blank(text: str, start: int) -> int:
    """Where the white space that begins at `start` ends."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start
