"""What people and programs read: tables, JSON, notes, progress.

Promises
  * Tables and colours only on a terminal; piped, the same cells as plain aligned text.
  * What lists things has a line for each, however narrow the terminal: times are said as ago, texts
    cut with an ellipsis, columns left out.  Piped, nothing is.
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

from relay.unseen import UNSEEN

Cell = str | tuple[str, str]  # text, or text and its style
Row = Sequence[Cell]

_LEAST = 10  # terminal columns that a text keeps when it is cut

_UNSAFE = re.compile(rf"(?![\t\n])[{UNSEEN}]")
# Latin letters, and what the tree of `relay status` is drawn with: one column each.
_NARROW = re.compile("[ -~\u00c0-\u024f\u2026│├└─]*")
_BREAKS = re.compile("[\t\n\u2028\u2029]")


def safe(text: str) -> str:
    """Return `text` with everything that could drive a terminal shown as `\\xNN`, `\\uNNNN` or
    `\\UNNNNNNNN`."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """Return JSON with everything that could drive a terminal spelt `\\uNNNN`: the same value."""
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


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
    if code > 0xFFFF:
        return f"\\U{code:08x}"
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


def listing(columns: Sequence[str], rows: Sequence[Row], spare: Sequence[str] = ()) -> None:
    """Write rows under headings as `table` does, but one line each, on a terminal too.

    The first column, which people copy, is shown whole.  Where there is no room for the others,
    times are said as ago, texts are cut, and the columns in `spare` are left out, the first first.
    """
    if is_terminal(sys.stdout):
        _list(columns, rows, spare)
        if not rows:
            note("(none)")
    else:
        table(columns, rows)


def _list(columns: Sequence[str], rows: Sequence[Row], spare: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    texts = [[Text(column, style="bold") for column in columns]]
    texts += [
        [Text(c) if isinstance(c, str) else Text(c[0], style=c[1]) for c in row] for row in rows
    ]
    widths = [max(_cells(row[i].plain) for row in texts) for i in range(len(columns))]
    if sum(widths) + 2 * (len(widths) - 1) > console.width:
        for cells, row in zip(texts[1:], rows, strict=True):
            for i, cell in enumerate(row):
                if isinstance(cell, Moment):
                    cells[i] = Text(cell.ago)
        widths = [max(_cells(row[i].plain) for row in texts) for i in range(len(columns))]
    widths, without = _fitted(columns, widths, console.width, spare)
    for shown in texts:
        drawn = Text()
        for text, width in zip(shown, widths, strict=True):
            if width:
                text.truncate(width, overflow="ellipsis", pad=True)
                drawn.append_text(text).append("  ")
        drawn.rstrip()
        console.print(drawn, no_wrap=True, overflow="ignore", crop=False)
    if without and is_terminal(sys.stderr):
        note(f"({', '.join(without)}: on a wider terminal, piped or with --json)")


def _fitted(
    columns: Sequence[str], natural: Sequence[int], room: int, spare: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Return how wide each column is, 0 where it is left out, and the names of those."""
    widths = [width if i == 0 else min(width, _LEAST) for i, width in enumerate(natural)]
    left = room + 2 - sum(width + 2 for width in widths)
    without = []
    for name in spare:
        if left >= 0:
            break
        at = columns.index(name)
        left += widths[at] + 2
        widths[at] = 0
        without.append(name)
    while left > 0:
        growing = [i for i, width in enumerate(widths) if 0 < width < natural[i]]
        if not growing:
            break
        widths[min(growing, key=widths.__getitem__)] += 1
        left -= 1
    return widths, without


def _cells(text: str) -> int:
    """Count terminal columns; few texts need the table of wide characters."""
    if text.isascii() or _NARROW.fullmatch(text):
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


class Moment(str):
    """A time as it is shown where there is room; `ago`: where there is little."""

    __slots__ = ("ago",)
    ago: str


def moment(value: object) -> str:
    """Return an RFC 3339 time in local time, to the second; what is none is shown as it is."""
    if not isinstance(value, str):
        return line(value)
    try:
        at = datetime.fromisoformat(value).astimezone()
    except ValueError:
        return line(value)
    shown = Moment(at.strftime("%Y-%m-%d %H:%M:%S"))
    words = until(value).split()
    shown.ago = " ".join(words[:3] if words[:1] == ["in"] else [*words[:2], *words[-1:]])
    return shown


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
