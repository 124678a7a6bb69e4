r"""Patterns of what servers reply, which take a time that is bounded whatever is replied.

A pattern is a regular expression of a small kind, without regard to case:

| what                      | for example              |
|---------------------------|--------------------------|
| characters as they are    | `rate limited`           |
| any one character         | `.`                      |
| one of a class            | `[0-9]`, `\d`, `\s`, `\w` |
| one of several            | `(user|sender)`          |
| none or one, so many      | `s?`, `\d{1,3}`          |
| anything in between       | `from .* exceeded`       |
| the beginning, the end    | `^no`, `unavailable$`    |

`.*` stands between pieces, outside of parentheses: each piece is looked for behind the one before
it, and takes as much as it can.  There is no other repetition without an end, nothing that refers
back and nothing that looks around.

Promises: a pattern is refused when it is read, with a sentence, if a piece of it could be read in
more than `MOST_WAYS` ways; so looking costs at most that for each of the characters of a text, of
which `MOST_LOOKED_AT` are looked at.

Fails: `compile_pattern` with ValueError.

Why not Python's whole language: `(a+)+b` takes hours on thirty characters, which a stranger's
server chooses.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_WAYS = 256
"""Ways in which a piece may be read."""

MOST_LOOKED_AT = 500
"""Characters of a reply that are looked at."""

LONGEST = 300
"""Characters of a pattern."""

_COUNT = re.compile(r"\{(\d{1,3})(?:,(\d{1,3}))?\}", re.ASCII)
_CLASS = re.compile(r"\[\^?\]?(?:\\[dswDSW\\\]\[^.\-]|[^\\\]\[])+\]")
_ESCAPED = frozenset("dswDSWb.\\[](){}|?*+^$-/")


class Pattern:
    """A pattern that the text of a reply must fit."""

    __slots__ = ("_pieces", "source")

    def __init__(self, source: str, pieces: Sequence[re.Pattern[str]]) -> None:
        """For `compile_pattern` only."""
        self.source = source
        self._pieces = tuple(pieces)

    def __repr__(self) -> str:
        return f"Pattern({self.source!r})"

    def found_in(self, text: str) -> bool:
        """Whether the pieces stand in a text, one behind the other."""
        # Where it is cut it does not end.
        text = text[:MOST_LOOKED_AT] + ("\u2026" if len(text) > MOST_LOOKED_AT else "")
        at = 0
        for piece in self._pieces:
            match = piece.search(text, at)
            if match is None:
                return False
            at = match.end()
        return True


def compile_pattern(source: str) -> Pattern:
    """Return the pattern; ValueError, in a clause that says what is wrong with it."""
    if not source or len(source) > LONGEST:
        raise ValueError(f"a pattern has 1 to {LONGEST} characters")
    if not source.isprintable():
        raise ValueError("a pattern has printable characters")
    pieces = _Reader(source).read()
    try:
        compiled = [re.compile(piece, re.IGNORECASE | re.DOTALL) for piece in pieces]
    except re.error as error:
        raise ValueError(f"{source!r} is no pattern: {error.msg}") from error
    if any(piece.search("") for piece in compiled):
        raise ValueError(f"{source!r} has a piece that is in every text")
    return Pattern(source, compiled)


class _Reader:
    """Reads a pattern from left to right, and counts the ways in which it can be read."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0

    def read(self) -> list[str]:
        """The pieces between `.*`, which are regular expressions each."""
        pieces = []
        while True:
            began = self._at
            ways = self._alternatives(depth=0)
            if ways > MOST_WAYS:
                raise ValueError(f"{self._source!r} could be read in more than {MOST_WAYS} ways")
            piece = self._source[began : self._at]
            if not piece:
                raise ValueError(f"{self._source!r} has nothing beside a .*")
            pieces.append(piece)
            if self._at == len(self._source):
                return pieces
            if self._source[self._at] == ")":
                raise ValueError(f"{self._source!r} closes a parenthesis that was not opened")
            self._at += 2  # the .*

    def _alternatives(self, depth: int) -> int:
        if depth > 5:
            raise ValueError(f"{self._source!r} has too many parentheses in each other")
        ways = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            ways += self._sequence(depth)
        return ways

    def _sequence(self, depth: int) -> int:
        ways = 1
        while self._at < len(self._source):
            if self._peek() in {"|", ")"}:
                break
            if self._source.startswith(".*", self._at):
                if depth:
                    raise ValueError(f"{self._source!r} has a .* within parentheses")
                break
            ways = min(ways * self._repeated(self._atom(depth)), 10 * MOST_WAYS)
        return ways

    def _atom(self, depth: int) -> int:
        """Read one thing; return in how many ways it can be read."""
        character = self._source[self._at]
        if character == "(":
            if self._source.startswith("(?", self._at):
                raise ValueError(f"{self._source!r} has a (?, which patterns of replies have not")
            self._at += 1
            ways = self._alternatives(depth + 1)
            if self._peek() != ")":
                raise ValueError(f"{self._source!r} does not close a parenthesis")
            self._at += 1
            return ways
        if character == "[":
            match = _CLASS.match(self._source, self._at)
            if match is None:
                raise ValueError(f"{self._source!r} has a class of characters that cannot be read")
            self._at = match.end()
            return 1
        if character == "\\":
            if self._source[self._at + 1 : self._at + 2] not in _ESCAPED:
                raise ValueError(f"{self._source!r} has a backslash before what needs none")
            self._at += 2
            return 1
        if character in "?*+{":
            raise ValueError(
                f"{self._source!r} repeats without an end: of that there is only .* on its own"
                if character in "*+"
                else f"{self._source!r} repeats nothing"
            )
        self._at += 1
        return 1

    def _repeated(self, ways: int) -> int:
        """Read how often the last thing stands there; return in how many ways that can be read."""
        if self._peek() == "?":
            self._at += 1
            least, most = 0, 1
        elif self._peek() == "{":
            match = _COUNT.match(self._source, self._at)
            if match is None:
                raise ValueError(f"{self._source!r} has a {{ that is no count, as {{1,3}} is")
            self._at = match.end()
            least = int(match[1])
            most = int(match[2] or match[1])
            if least > most or most > 64:
                raise ValueError(f"{self._source!r} has a count that is none, or above 64")
        else:
            return ways
        if self._peek() in {"?", "+", "*", "{"}:
            raise ValueError(f"{self._source!r} repeats a repetition")
        total = 0
        for count in range(least, most + 1):
            total += min(ways**count, 10 * MOST_WAYS) if ways > 1 else 1
        return total

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]
