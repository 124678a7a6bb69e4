"""Whether a browser may be long about laying a page out, by what its time grows with.

What: `is_long(page)`, of a page as `pictures.placed` wrote it.
- `turns`: how many pieces of text are written from right to left, at most.  A browser cuts each
  paragraph into runs of one direction (UAX #9), of which there are at most two a piece and one
  more, and finds each by going through those before: that grows with the square of their number.
- `tags`: each is something to be laid out.
- `matches`: how many elements it may look at to know which rules hold: each for each rule, and for
  one that looks through siblings all of them for each.

What: `is_too_deep(page)`: its styles are so deep that a browser may end of them (Chromium goes down
by its own stack: 6,000 rules in each other, 40 kB, end the process of the page that shows them).
- `depth`: how many braces and parentheses are open at once, at most.  What is certain to be closed
  is left out: from its beginning to its end there is no quote, comment, escape or tag.

Promises: no piece is missed, however it is written: as an entity, by an element or an attribute
that turns what is in it, or by a style; one that might turn text is taken to turn that of every
tag.  Where tags or lines end, pieces are counted apart though they may be one, and so are numbers
in Arabic digits.  Time linear in the page, whatever it is.

A bound of what is usual, not of what is possible: measured in Chromium on a small machine, what is
at one of the bounds takes it half a second or less.

Pure.
"""

from __future__ import annotations

import re

from relay.mailboxes.extract import unescape
from relay.unseen import TURNS

MOST_TURNS = 1000
MOST_TAGS = 10_000
MOST_MATCHES = 4_000_000
MOST_DEPTH = 2000

_RIGHT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff"
_DIGITS = (
    "\u0600-\u0605\u0660-\u0669\u066b\u066c\u06dd\u06f0-\u06f9\u0890\u0891\u08e2"
    "\U00010d30-\U00010d39\U00010e60-\U00010e7e"
)
"""Arabic digits and what goes with them, which are written from left to right."""
_NEUTRAL = re.compile(rf"[^\w\n\r\f<>\u2028\u2029{TURNS}{_RIGHT}]+")
"""What takes the direction of the letters around it."""
_PIECE = re.compile(rf"[{TURNS}]|[{_DIGITS}]+|(?:(?![{_DIGITS}])[{_RIGHT}])+")
_TURNS = re.compile(r"<bd[io]\b|\bdir[\t\n\f\r ]*=", re.IGNORECASE)
_MAY_TURN = re.compile(r"unicode-bidi|\\[\w-][\w\s-]*:", re.IGNORECASE)  # or so, by an escape
_LOOKS = re.compile(r":has\(|~(?!=)|:nth-|:only-|-of-type", re.IGNORECASE)
_CLOSED = re.compile(r"""\([^(){}"'/\\<]*\)|\{[^(){}"'/\\<]*\}""")
_INSIDE = 5  # how deep what is closed is found: functions of a value, a rule, a rule around it


def is_long(page: str) -> bool:
    """Return whether a browser may be long about a page."""
    return tags(page) > MOST_TAGS or matches(page) > MOST_MATCHES or turns(page) > MOST_TURNS


def tags(page: str) -> int:
    """Return how many tags a page has; what ends an element is one, too."""
    return page.count("<")


def matches(page: str) -> int:
    """Return how many elements may be looked at for the styles of a page."""
    return tags(page) * page.count("{") + tags(page) ** 2 * len(_LOOKS.findall(page))


def turns(page: str) -> int:
    """Return how many pieces of a page's text may be written from right to left."""
    text = unescape(page)
    found = len(_TURNS.findall(text))
    if _MAY_TURN.search(text):
        found += text.count("<")
    if not text.isascii():
        found += len(_PIECE.findall(_NEUTRAL.sub("", text)))
    return found


def is_too_deep(page: str) -> bool:
    """Return whether a browser may end of the styles of a page, which it is to be shown without."""
    return depth(page) > MOST_DEPTH


def depth(page: str) -> int:
    """Return how deep the styles of a page may be."""
    # In an attribute an entity is what it stands for, in an element it is not.
    return max(_open(page), _open(unescape(page)))


def _open(text: str) -> int:
    for _ in range(_INSIDE):
        text = _CLOSED.sub("", text)
    return text.count("{") + text.count("(")
