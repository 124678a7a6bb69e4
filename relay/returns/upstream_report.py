"""A report of an upstream, over HTTP, of mail that it took, whoever the upstream is.

Promises: what is kept of a text is one printable line, and bounded.

Fails: `MalformedReport` is for readers of reports to raise.  Pure.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from relay.errors import PermanentFailure
from relay.returns.report import Report

_TEXT = 2000  # characters
_STATUS = re.compile(r"[245]\.\d{1,3}\.\d{1,3}", re.ASCII)


class MalformedReport(PermanentFailure):
    """A post calls itself a report, and is none."""


class UpstreamReport(NamedTuple):
    """The report of a message, and the names of the message."""

    names: tuple[str, ...]
    """Names of the message, each a return path or a token (`relay.returns.paths`)."""
    report: Report
    unsubscribes: bool = False
    """Whether its recipient wants no more bulk mail; `report` then says nothing."""


def text_in(said: dict[str, Any], name: str) -> str:
    """A text that may be missing or null, as one line: JSON can spell NUL and lone surrogates."""
    value = said.get(name)
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:_TEXT]).strip()


def status_in(said: dict[str, Any], name: str) -> str:
    """An enhanced status code (RFC 3463), or nothing."""
    status = text_in(said, name)
    return status if _STATUS.fullmatch(status) else ""
