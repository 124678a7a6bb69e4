"""The JSON that other programs' clients send: members by their names in any letters, at all levels.

Fails with a 400 that names the member which cannot be read: it never counts as left out, which
might mean everything.  A member that is null is left out.
"""

from __future__ import annotations

import json
from typing import Any

from relay.http.operations import Operation, read_body
from relay.http.problems.details import Problem

_MOST = 10_000  # characters of a text, unless it is said


class Unreadable(Problem):
    """The 400 for a value that is none that a member can have."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(400, "bad-request", f"{where}: it {reason}.")


class Members:
    """The members of an object; `where` it stands in its body."""

    def __init__(self, given: Any, where: str = "") -> None:
        if not isinstance(given, dict):
            raise Unreadable(where or "The body", "must be an object")
        self.where = where
        self._given: dict[str, Any] = given
        self._by_name = {name.lower(): value for name, value in given.items()}

    def at(self, name: str) -> str:
        """Return where a member stands in the body."""
        return f"{self.where}.{name}" if self.where else name

    def value(self, name: str) -> Any:
        """Return a member as it is."""
        return self._by_name.get(name.lower())

    def text(self, name: str, most: int = _MOST) -> str:
        """Return a text; none is empty."""
        given = self.value(name)
        return "" if given is None else _text(given, self.at(name), most)

    def truth(self, name: str) -> bool:
        """Return whether a member is true; none is not."""
        given = self.value(name)
        if given is None or isinstance(given, bool):
            return bool(given)
        raise Unreadable(self.at(name), "must be true or false")

    def number(self, name: str) -> int:
        """Return a whole number; none is 0."""
        given = self.value(name)
        if given is None or (isinstance(given, int) and not isinstance(given, bool)):
            return given or 0
        raise Unreadable(self.at(name), "must be a whole number")

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; none is empty."""
        return [_text(one, where, _MOST) for where, one in self._list(name)]

    def headers(self) -> dict[str, str]:
        """Return all members, each a text, by their names as they were written."""
        return {name: _text(one, self.at(name), _MOST) for name, one in self._given.items()}

    def object(self, name: str) -> Members | None:
        """Return an object's members, if there is one."""
        given = self.value(name)
        return None if given is None else Members(given, self.at(name))

    def objects(self, name: str) -> list[Members]:
        """Return a list of objects; none is empty."""
        return [Members(one, where) for where, one in self._list(name)]

    def _list(self, name: str) -> list[tuple[str, Any]]:
        where, given = self.at(name), self.value(name)
        if given is not None and not isinstance(given, list):
            raise Unreadable(where, "must be a list")
        return [(f"{where}[{place}]", one) for place, one in enumerate(given or ())]


def parsed(body: bytes) -> Members:
    """Return the members of a body; without one there are none."""
    try:
        given = json.loads(body) if body.strip() else None
    except (ValueError, RecursionError):
        raise Unreadable("The body", "is not valid JSON") from None
    return Members({} if given is None else given)


async def members_of(operation: Operation) -> Members:
    """Return the members of the current call's body."""
    return parsed(await read_body(operation))


def _text(given: Any, where: str, most: int) -> str:
    if not isinstance(given, str):
        raise Unreadable(where, "must be a text")
    if len(given) > most:
        raise Unreadable(where, f"has over {most:,} characters")
    return given
