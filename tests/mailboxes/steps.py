"""Counts the steps that a regular expression takes: a small backtracking matcher of its own.

It reads what Python's own parser makes of a pattern and tries the same things in the same order
as Python's matcher, one step for each character that is looked at and each repetition that is
given up.  Steps, unlike seconds, are the same on every machine and at every load.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_Next = Callable[[int], bool]
_WORD = re.compile(r"\w")
_CLASSES = {
    op.CATEGORY_DIGIT: re.compile(r"\d"),
    op.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    op.CATEGORY_SPACE: re.compile(r"\s"),
    op.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    op.CATEGORY_WORD: _WORD,
    op.CATEGORY_NOT_WORD: re.compile(r"\W"),
}


class Matcher:
    """A pattern that counts.  `steps` grows with each call."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source = pattern.pattern
        self._tree = _parser.parse(
            source, pattern.flags & ~re.UNICODE if isinstance(source, bytes) else pattern.flags
        )
        self._folds = bool(pattern.flags & re.IGNORECASE)
        self._all = bool(pattern.flags & re.DOTALL)
        self._lines = bool(pattern.flags & re.MULTILINE)
        self._known: dict[tuple[int, str], bool] = {}
        self.steps = 0

    def spans(self, text: str, *, once: bool = False) -> list[tuple[int, int]]:
        """The spans that `finditer` gives; `once`: that `match` gives at the beginning."""
        # Groups are matched by calls within calls.  Only here: with such a limit the parsers of C
        # overflow their stack before they see that something is nested too deep.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 200_000))
        try:
            return self._spans(text, once)
        finally:
            sys.setrecursionlimit(limit)

    def _spans(self, text: str, once: bool) -> list[tuple[int, int]]:
        self._text = text
        found: list[tuple[int, int]] = []
        position, barred = 0, -1  # `barred`: where an empty match would repeat the one before
        while position <= (0 if once else len(text)):
            end = self._at(position, barred)
            if end is None:
                position += 1
                continue
            found.append((position, end))
            barred = end if end == position else -1
            position = end
        return found

    def _at(self, position: int, barred: int) -> int | None:
        end: list[int] = []

        def done(reached: int) -> bool:
            if reached == position == barred:
                return False
            end.append(reached)
            return True

        return end[0] if self._match(list(self._tree), 0, position, done) else None

    def _match(self, nodes: list[Any], index: int, position: int, following: _Next) -> bool:
        if index == len(nodes):
            return following(position)
        kind, value = nodes[index]

        def rest(reached: int) -> bool:
            return self._match(nodes, index + 1, reached, following)

        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self._one(kind, value, position) and rest(position + 1)
        if kind is op.BRANCH:
            return any(self._match(list(b), 0, position, rest) for b in value[1])
        if kind is op.SUBPATTERN:
            return self._match(list(value[3]), 0, position, rest)
        if kind is op.AT:
            self.steps += 1
            return self._stands(value, position) and rest(position)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, body = value
            start = position if direction > 0 else position - body.getwidth()[0]
            holds = start >= 0 and self._match(list(body), 0, start, lambda _: True)
            return holds == (kind is op.ASSERT) and rest(position)
        assert kind is op.MAX_REPEAT, kind  # what else there is, no pattern of ours uses
        least, most, body = value
        if len(body) == 1 and body[0][0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            reached = position
            while reached - position < most and self._one(body[0][0], body[0][1], reached):
                reached += 1
            while reached - position >= least:
                self.steps += 1
                if rest(reached):
                    return True
                reached -= 1
            return False
        return self._repeat(list(body), least, int(most), position, rest)

    def _repeat(self, body: list[Any], least: int, most: int, position: int, rest: _Next) -> bool:
        self.steps += 1
        if most > 0:

            def again(reached: int) -> bool:
                if reached == position:
                    return False  # an empty round gets nowhere
                return self._repeat(body, least - 1, most - 1, reached, rest)

            if self._match(body, 0, position, again):
                return True
        return least <= 0 and rest(position)

    def _one(self, kind: Any, value: Any, position: int) -> bool:
        self.steps += 1
        if position >= len(self._text):
            return False
        character = self._text[position]
        if kind is op.ANY:
            return self._all or character != "\n"
        key = (id(value) if kind is op.IN else value, character)
        if kind is op.LITERAL:
            return self._is(value, character)
        if kind is op.NOT_LITERAL:
            return not self._is(value, character)
        if key not in self._known:
            self._known[key] = self._among(value, character)
        return self._known[key]

    def _is(self, code: int, character: str) -> bool:
        return ord(character) == code or (self._folds and character.lower() == chr(code).lower())

    def _among(self, members: list[Any], character: str) -> bool:
        spellings = (
            {character, character.lower(), character.upper()} if self._folds else {character}
        )
        negated = members[0][0] is op.NEGATE
        found = False
        for kind, value in members[1:] if negated else members:
            if kind is op.LITERAL:
                found |= any(s == chr(value) for s in spellings)
            elif kind is op.RANGE:
                found |= any(len(s) == 1 and value[0] <= ord(s) <= value[1] for s in spellings)
            else:
                found |= _CLASSES[value].match(character) is not None
        return found != negated

    def _stands(self, where: Any, position: int) -> bool:
        if where is op.AT_BOUNDARY:
            return self._wordy(position - 1) != self._wordy(position)
        if where is op.AT_BEGINNING:
            return position == 0 or (self._lines and self._text[position - 1] == "\n")
        if where is op.AT_END_STRING:
            return position == len(self._text)
        if where is op.AT_END:
            if self._lines:
                return self._text[position : position + 1] in ("", "\n")
            return self._text[position:] in ("", "\n")
        raise AssertionError(where)

    def _wordy(self, position: int) -> bool:
        return 0 <= position < len(self._text) and bool(_WORD.match(self._text[position]))
