"""Paths of requests: as they came, in one spelling.

A path is cut at its slashes first and decoded second, part by part, so that an address with a slash
in it (`a%2Fb@shop.example`) is one part.  The framework decodes first, and has lost by then which
slashes were the client's own.

Promises
  * Two spellings of one path come out alike, two paths apart; the one spelling is that of
    JavaScript's encodeURIComponent, which is what browsers compare a cookie's Path with.

Never fails: what is no UTF-8 is replaced, and names nothing here.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from quart.routing import QuartRule
from werkzeug.routing import BaseConverter

_SPELT = re.compile(r"[A-Za-z0-9_.\-~!*'()/]*", re.ASCII)


def component(text: str) -> str:
    """Return `text` as a part of a path, to the letter as JavaScript's encodeURIComponent does.

    A browser compares a cookie's Path with a request's by their letters: `%40` is not `@`.
    """
    return quote(text, safe="!~*'()")


def spelt(path: str) -> str:
    """Return an encoded path in the one spelling."""
    if _SPELT.fullmatch(path):
        return path
    return "/".join(component(unquote(part)) for part in path.split("/"))


def path_of(connection: Any) -> str:
    """Return the path of Quart's request or websocket in the one spelling, without its query."""
    raw: bytes = connection.scope["raw_path"]
    return spelt(raw.decode("latin-1"))


class Part(BaseConverter):
    """A part of a route's path: matched as it is spelt, given to the handler decoded."""

    def to_python(self, value: str) -> str:
        """Return the text that the part spells."""
        return unquote(value)


class Rule(QuartRule):
    """The path of a route, to be matched; nothing here is asked to build one from it.

    The framework writes and compiles two functions a route that do: a quarter of a millisecond
    each, at every start.  Here that is done when one is called.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        def build(rule: QuartRule, **values: Any) -> tuple[str, str]:
            compiled = QuartRule._compile_builder(rule, append_unknown)
            return compiled.__get__(rule, None)(**values)  # type: ignore[no-any-return]

        return build
