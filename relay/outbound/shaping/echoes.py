"""What a reply says by itself: its text without what it repeats of the mail that it answers.

Servers name the recipient, the sender, the subject.  Those are words of whoever wrote the mail: a
recipient called `"all messages from x will be permanently deferred"` is no reason to leave the
receiver alone.

Promises
- What stands in angle brackets, or in double quotes, is nobody's reason; where they are not closed,
  what follows is not either.
- A mail's own words are found in any case, quoted or escaped, with any spaces and marks between
  them, and written as URLs and HTML write them.
- The time hangs on the length of what is given alone.

What is left out and was the server's own (a recipient called `messages`) is a rule that does not
fit; that is the side to err on.

Fails: never.  Pure.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection

_CUT = "\u2026"
_BRACKETS = re.compile(r"<.*(?:>|$)", re.DOTALL)
_QUOTES = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?$)', re.DOTALL)
_CODED = re.compile(r"[%=]([0-9A-Fa-f]{2})")
_LONGEST = 4000  # characters; a reply that is longer is cut


def unechoed(text: str, words: Collection[str]) -> str:
    """The text of a reply without `words`: addresses of the mail that it answers, its subject."""
    return unquoted(without(text, words))


def unquoted(text: str) -> str:
    """A text without what it has in brackets and quotes."""
    return _QUOTES.sub(_CUT, _BRACKETS.sub(_CUT, text))


def without(text: str, words: Collection[str]) -> str:
    """The same with what it has in brackets and quotes: where words are looked for that would keep
    something from being done, more of them is the side to err on.
    """
    text = _plain(text[:_LONGEST])
    for word in sorted(_parts(words), key=len, reverse=True):
        text = _without(text, word)
    return text


def _plain(text: str) -> str:
    """As it is read: without the escapes of URLs, quoted-printable and HTML."""
    text = _CODED.sub(lambda found: chr(int(found[1], 16)), html.unescape(text))
    return unicodedata.normalize("NFKC", text)


def _parts(words: Collection[str]) -> set[str]:
    """The letters and digits of each, and of an address those of its local part and domain."""
    found = set()
    for word in words:
        local, _, domain = word.rpartition("@")
        for part in (word, local, domain):
            for read in (part, _plain(part)):
                found.add("".join(map(str.lower, filter(str.isalnum, read))))
    return found - {""}


def _without(text: str, word: str) -> str:
    """Cut a word out wherever it stands by itself; only its letters and digits count."""
    letters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        if character.isalnum():
            for letter in character.lower():
                letters.append(letter)
                places.append(place)
    whole = "".join(letters)
    kept, done, at = [], 0, 0
    while (at := whole.find(word, at)) >= 0:
        start, end = places[at], places[at + len(word) - 1] + 1
        if text[start - 1 : start].isalnum() or text[end : end + 1].isalnum() or start < done:
            at += 1
            continue
        kept += [text[done:start], _CUT]
        done = end
        at += len(word)
    return "".join(kept) + text[done:]
