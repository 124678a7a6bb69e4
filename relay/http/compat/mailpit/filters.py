"""What people type to find mail in Mailpit, read: as its search filters are documented.  Pure.

    word  "a phrase"  -word  !word      in sender, recipients, subject or text
    from: to: cc: bcc: reply-to: addressed: subject: message-id:     a part of it
    tag:billing                         the whole tag
    is:read is:unread is:tagged  has:attachment has:inline
    before: after:                      by arrival; a time without a zone is of `tz`, else UTC
    larger:100k smaller:2m

Words are cut at blanks outside of double quotes, and quotes are dropped wherever they stand, so a
value with blanks is quoted (`subject:"your order"`) and none has a quote.  What looks like an
operator and is none is looked for as it stands; what has no letter and no digit is passed over.

Fails with `Invalid` for a time or a time zone that nobody can read (where Mailpit would search
without it) and for more terms than a search takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import cast
from zoneinfo import ZoneInfo

from relay.errors import Invalid
from relay.http.compat.mailpit.addresses import bcc_of
from relay.mailboxes.mails import Criteria, Mail
from relay.mailboxes.query import LONGEST, MOST_TERMS, Field, Term
from relay.times import parse_instant

_WORDS = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_MEANS_SOMETHING = re.compile(r"\w")
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s?(k|kb|m|mb)?")
_UNITS = {None: 1, "k": 1024, "kb": 1024, "m": 1024**2, "mb": 1024**2}
_IN_HEADERS = ("cc", "bcc", "reply-to", "message-id")
_TEXTS = ("to", "from", "subject", "tag")
_MOST_EITHER = 8  # two of `addressed:` are four searches, three of them eight

Test = Callable[[Mail], bool]


def parse(text: str, zone: str = "") -> Criteria:
    """Return what a search asks for; `zone`: a name such as Europe/Berlin, for times."""
    if len(text) > LONGEST:
        raise Invalid(f"query: at most {LONGEST} characters")
    either: list[tuple[Term, ...]] = [()]
    tests: list[Test] = []
    for word in _WORDS.findall(text):
        if len(either) > _MOST_EITHER or len(either[0]) + len(tests) >= MOST_TERMS:
            raise Invalid("query: too many terms")
        word = word.replace('"', "").strip()
        negated = len(word) > 1 and word[0] in "-!"
        word = word[1:] if negated else word
        if not _MEANS_SOMETHING.search(word):
            continue
        name, colon, value = word.partition(":")
        name, value = name.lower(), value.strip()
        if colon and name == "addressed" and value:
            both = (Term("from", value, negated), Term("to", value, negated))
            if negated:
                either = [(*terms, *both) for terms in either]
            else:
                either = [(*terms, one) for terms in either for one in both]
            continue
        test = _test(name, value) if colon else None
        if test is not None:
            tests.append(_negated(test) if negated else test)
            continue
        term = _operation(name, value, negated, zone) if colon else None
        term = term or Term("any", word, negated)
        either = [terms if term in terms else (*terms, term) for terms in either]
    if len(either) > _MOST_EITHER:
        raise Invalid("query: too many terms")
    return Criteria(tuple(either), _all_of(tests) if tests else None)


def _test(name: str, value: str) -> Test | None:
    """What is seen in the mail alone; None for what is no such operator."""
    wanted = value.casefold()
    if name in _IN_HEADERS and value:
        if name == "bcc":
            return lambda mail: any(
                wanted in f"{one.name} <{one.address}>".casefold() for one in bcc_of(mail)
            )
        return lambda mail: any(wanted in one.casefold() for one in mail.values(name))
    if (name, wanted) == ("is", "tagged"):
        return lambda mail: bool(mail.placed.tags)
    if name == "has" and wanted in {"inline", "inlines"}:
        return lambda mail: any(one.get("content_id") for one in mail.attachments)
    return None


def _operation(name: str, value: str, negated: bool, zone: str) -> Term | None:
    """The term of an operator with its value; None for what is none, or has none."""
    if not value:
        return None
    if name in _TEXTS:
        return Term(cast(Field, name), value, negated)
    if name == "is" and value.lower() in {"read", "unread"}:
        return Term("unread", "", negated != (value.lower() == "read"))
    if name == "has" and value.lower() in {"attachment", "attachments"}:
        return Term("attachment", "", negated)
    if name in {"before", "after"}:
        return Term("before", _instant(name, value, zone), negated != (name == "after"))
    if name in {"larger", "smaller"}:
        size = _SIZE.fullmatch(value.lower())
        if size is not None:
            return Term(cast(Field, name), int(float(size[1]) * _UNITS[size[2]]), negated)
    return None


def _instant(name: str, value: str, zone: str) -> datetime:
    instant = parse_instant(value)
    if instant is None:
        raise Invalid(f"query: {name}: takes a day (2026-11-01) or an RFC 3339 time")
    if not zone or datetime.fromisoformat(value).tzinfo is not None:
        return instant
    try:
        return instant.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, OSError, KeyError):
        raise Invalid(f"tz: there is no time zone {zone[:64]!r}") from None


def _negated(test: Test) -> Test:
    return lambda mail: not test(mail)


def _all_of(tests: list[Test]) -> Test:
    return lambda mail: all(test(mail) for test in tests)
