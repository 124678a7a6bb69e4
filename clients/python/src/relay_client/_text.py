r"""Strangers' texts, as errors and reports show them: to be read, and to drive nothing.

What a mail says, or whoever answers in a relay's place, ends up on terminals and in the logs of CI.
What neither shows is spelt there (`\u001b`): control characters, those that turn the direction of a
text, and those that have no width (not the joiners U+200C and U+200D, which scripts and emoji are
written with).  So are the first characters of what CI obeys.  GitHub Actions
obeys lines that begin with `::error::` and its like, and `##[…]` anywhere; Azure Pipelines
`##vso[task…]` and TeamCity `##teamcity[…]` wherever they stand.

No more of it is shown than a reader wants, or a stranger could fill a log: a subject of invisible
characters grows to nine times its size.

The TypeScript client does the same in text.ts; clients/cases.json holds both to it.
"""

from __future__ import annotations

import re

_CHARACTERS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_DRIVES = re.compile(_CHARACTERS)
_COLOUR = "(?:0?[0-4]|[39][1-7]|[349]9)"  # and bold and the like; not hidden, nor of the background
_DRIVES_MORE_THAN_COLOURS = re.compile(rf"(?!\x1b\[(?:{_COLOUR}(?:;{_COLOUR})*)?m){_CHARACTERS}")
_COMMANDS = re.compile(
    r"^([^\S\n]*):(?=:)|#(?=#(?:\[|vso\[|teamcity\[))", re.MULTILINE | re.IGNORECASE
)
_ENDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PART = re.compile(r"\\(?:u[{0-9a-f]*)?$")

MAX_NAME = 200
"""Characters that are shown of a name, a subject and their like."""

MAX_LINK = 1000
"""The same of a link."""


def visible(text: str, max_length: int | None = None, *, colours: bool = False) -> str:
    """Return a text of several lines, with all that could drive its reader spelt.

    No more than `max_length` characters, if that is said; what is left out is an ellipsis.
    `colours`: those that a terminal gives to letters are left as they are.
    """
    drives = _DRIVES_MORE_THAN_COLOURS if colours else _DRIVES
    some = text if max_length is None else text[: 9 * max_length]  # no fewer than may be shown
    shown = drives.sub(_spelt, some.replace("\r\n", "\n"))
    shown = _COMMANDS.sub(
        lambda found: f"{found[1]}\\u003a" if found[1] is not None else "\\u0023", shown
    )
    if max_length is None or len(shown) <= max_length:
        return shown
    return _PART.sub("", shown[: max_length - 1]) + "\u2026"


def in_a_line(text: str, max_length: int | None = None) -> str:
    """Return the same on one line."""
    some = text if max_length is None else text[: 9 * max_length]
    return visible(re.sub("[\n\r\t]", lambda found: _ENDS[found[0]], some), max_length)


def quoted(text: str) -> str:
    """Return the same on one line and in quotes, as much of it as of a name."""
    line = in_a_line(text.replace("\\", "\\\\"), MAX_NAME)
    if "'" in line and '"' not in line:
        return f'"{line}"'
    return "'" + line.replace("'", "\\'") + "'"


def shown_match(match: str | re.Pattern[str]) -> str:
    """Return what is looked for: a text in quotes, or a pattern between slashes."""
    return quoted(match) if isinstance(match, str) else f"/{in_a_line(match.pattern, MAX_NAME)}/"


def _spelt(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\u{{{number:x}}}"
