"""The text of a message as it came: its header fields undecoded, and its parts by their boundaries.

Pure.  What MailHog shows of mail is its text and nothing that was made of it, and so is what
Mailpit shows of the header fields alone (`…/headers`).  So nothing is decoded here, and nobody is
harmed by what is inside: every part is found by looking for its boundary.

Promises: at most `MOST_PARTS` parts and `DEEPEST` levels; what is beyond is not looked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MOST_PARTS = 500
"""Parts that are found in a message."""
DEEPEST = 5
"""Levels of parts in parts."""

_LONGEST_HEAD = 64 * 1024  # characters of a head that are read
_BOUNDARY = re.compile(r';\s*boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)


@dataclass
class Content:
    """Header fields by their names as they are written, the text behind them, and its parts.

    `parts` is None for what has none.
    """

    headers: dict[str, list[str]]
    body: str
    size: int
    parts: list[Content] | None = field(default=None)


def text_of(raw: bytes) -> str:
    """The bytes of a message as text, whatever they are."""
    return raw.decode("utf-8", "replace")


def fields_of(head: str, joint: str = "") -> list[tuple[str, str]]:
    """Names and values of a head; a folded line goes on behind `joint`, in place of its fold.

    Without one its leading blanks stay.
    """
    found: list[tuple[str, list[str]]] = []
    for line in head[:_LONGEST_HEAD].split("\n"):
        line = line.removesuffix("\r")
        if line[:1] in {" ", "\t"} and found:
            found[-1][1].append(joint + line.strip() if joint else line)
            continue
        name, colon, value = line.partition(":")
        if colon and name and " " not in name:
            found.append((name, [value.strip()]))
    return [(name, "".join(pieces)) for name, pieces in found]


def content_of(text: str) -> Content:
    """A message, taken apart."""
    left = [MOST_PARTS]
    return _content(text, 0, left)


def _content(text: str, depth: int, left: list[int]) -> Content:
    head, body = _halves(text)
    headers: dict[str, list[str]] = {}
    for name, value in fields_of(head):
        headers.setdefault(name, []).append(value)
    content = Content(headers, body, len(text.encode("utf-8", "replace")))
    kind = next(
        (values[0] for name, values in headers.items() if name.lower() == "content-type"), ""
    )
    if depth < DEEPEST and kind.lower().startswith("multipart/"):
        boundary = _BOUNDARY.search(kind)
        content.parts = []
        if boundary is not None:
            pieces = body.split(f"--{boundary[1] or boundary[2]}", left[0] + 1)[1:-1]
            left[0] -= len(pieces)
            content.parts = [
                _content(piece.strip("\r\n"), depth + 1, left) for piece in pieces if piece
            ]
    return content


def _halves(text: str) -> tuple[str, str]:
    """A head, and what is behind its blank line."""
    for blank in ("\r\n\r\n", "\n\n"):
        head, found, body = text.partition(blank)
        if found:
            return head, body
    return ("", text) if ":" not in text.partition("\n")[0] else (text, "")
