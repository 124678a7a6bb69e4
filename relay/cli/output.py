"""What people and programs read: tables, JSON, notes, progress.

Promises
  * Tables and colours only on a terminal; piped, the same cells as plain aligned text.
    No colour code is written to anything but a terminal, nor where NO_COLOR is set.
  * Text that came from outside (subjects, names, bodies) cannot drive the terminal: control
    characters, bidirectional overrides and blanks without a width are shown as escapes, in JSON
    and in raw mail too.  Piped, JSON and raw mail are what they are, byte for byte.
  * Notes and progress go to stderr, results to stdout.

rich is imported inside the functions that draw: `relay mailbox create | xargs` never pays
for it.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TextIO

import click

Cell = str | tuple[str, str]  # text, or text and its style
Row = Sequence[Cell]

# C0 without tab and line feed, DEL, C1, what reorders the text around it, and blanks that take no
# room (not the joiners U+200C and U+200D, which scripts and emoji are written with).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_BREAKS = re.compile("[\t\n\u2028\u2029]")


def safe(text: str) -> str:
    """Return `text` with everything that could drive a terminal shown as `\\xNN` or `\\uNNNN`."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """Return JSON with everything that could drive a terminal spelt `\\uNNNN`: the same value."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def safe_chunks(chunks: Iterable[bytes]) -> Iterator[str]:
    """Return bytes that come in pieces as text that cannot drive a terminal, piece by piece."""
    decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
    rest = ""
    for chunk in chain(chunks, (b"",)):
        text = rest + decode(chunk, final=not chunk)
        # A line's end may be cut in two; alone, CR is an escape.
        rest = "\r" if chunk and text.endswith("\r") else ""
        yield safe(text.removesuffix(rest))


def line(text: object) -> str:
    """Return a value as one safe line; None is empty."""
    if type(text) is str and text.isprintable():
        return text  # no control, no format character, no break: nearly every text there is
    return "" if text is None else _BREAKS.sub(" ", safe(str(text)))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_terminal(stream: TextIO) -> bool:
    """Tell whether a person reads `stream` directly."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def has_colour(stream: TextIO) -> bool:
    """Tell whether colour codes may be written to `stream`."""
    return (
        is_terminal(stream)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") not in {"", "dumb"}
    )


def say(text: str = "") -> None:
    """Write a line of result to stdout."""
    click.echo(text)


def note(text: str) -> None:
    """Write a line about the result to stderr."""
    click.echo(text, err=True)


def document(value: Any) -> None:
    """Write one JSON document to stdout, UTF-8 whatever the locale; on a terminal, safe to read."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if is_terminal(sys.stdout):
        text = safe_json(text)
    click.echo(text.encode("utf-8", "backslashreplace") + b"\n", nl=False)


def table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows under headings: a table on a terminal, else plain columns two blanks apart."""
    if is_terminal(sys.stdout):
        _draw(columns, rows)
        return
    texts = [[column.upper() for column in columns]]
    texts += [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
    widths = [max(_cells(row[i]) for row in texts) for i in range(len(columns))]
    for row in texts:
        padded = [
            text + " " * (width - _cells(text)) for text, width in zip(row, widths, strict=True)
        ]
        say("  ".join(padded).rstrip())


def _cells(text: str) -> int:
    """Count terminal columns; only text beyond ASCII needs the table of wide characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _draw(columns: Sequence[str], rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        # The first column is what people copy: on a narrow terminal the others are folded.
        drawn.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        drawn.add_row(*(Text(c) if isinstance(c, str) else Text(c[0], style=c[1]) for c in row))
    Console(highlight=False).print(drawn)


def fields(pairs: Sequence[tuple[str, Cell]]) -> None:
    """Write `name: value` lines with the values in one column; empty values are left out."""
    shown = [(name, cell) for name, cell in pairs if (cell if isinstance(cell, str) else cell[0])]
    width = max((len(name) for name, _ in shown), default=0) + 2
    colour = has_colour(sys.stdout)
    for name, cell in shown:
        text, style = (cell, "") if isinstance(cell, str) else cell
        label = f"{name}:".ljust(width)
        say(
            click.style(label, dim=True) + click.style(text, fg=style or None)
            if colour
            else label + text
        )


def moment(value: object) -> str:
    """Return an RFC 3339 time in local time, to the second; what is none is shown as it is."""
    if not isinstance(value, str):
        return line(value)
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return line(value)


def until(value: object) -> str:
    """Return how far off an RFC 3339 time is: `in 12 min`, `3 h ago`."""
    try:
        seconds = (datetime.fromisoformat(str(value)) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return ""
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"


def span(seconds: float) -> str:
    """Return a length of time in its two largest units at most: `4.2 s`, `3 min`, `5 h 12 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def size(count: object) -> str:
    """Return a number of bytes in the unit a person would use."""
    if not isinstance(count, int):
        return ""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal, on stderr, that something takes its time."""
    if not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
