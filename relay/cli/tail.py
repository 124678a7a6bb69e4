"""`relay tail`: the structured log of the running relay, filtered, live with `-f`.

Promises
  * `--level`, `--actor` and one `--grep K=V` are applied by the relay, so that what is not wanted
    is never sent; the others here; several are ANDed.
  * A line that cannot match is dropped on a search of its bytes and never parsed, a whole
    chunk at once where the text sought does not occur in it at all; a line that plainly does
    match is not parsed either.  `tests/cli/test_tail_filter.py` holds that to parsing each line,
    and `python -m tests.bench tail` is where it pays.
  * With `--json` the relay's own lines are passed on, byte for byte.

Fails: when the relay stops, what has come is shown, a note says so, and the exit code is 0.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import click

from relay.cli import completion, options, output
from relay.cli.client import Api
from relay.cli.exits import Failure

LEVELS = ("debug", "info", "warning", "error", "critical")
_REMEMBERED = 1000  # names that are not formatted anew for each line

# Characters that every JSON writer spells as themselves, so that bytes can be searched.
_PLAIN = re.compile(r"[ !#-.0-;=?-\[\]-~]*")

_RESET, _DIM, _BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
_COLOURS = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[1;31m",
}


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what is logged from now on.")
@click.option(
    "--actor",
    metavar="A",
    shell_complete=completion.actors,
    help="Only what this actor logged; a group: all in it.",
)
@click.option("--level", type=click.Choice(LEVELS), help="Only this level and graver ones.")
@click.option(
    "--grep",
    "terms",
    multiple=True,
    metavar="TEXT|K=V",
    help="Only lines in which TEXT occurs; K=V: whose field K is V; K=~REGEX: whose field K "
    "matches. May be repeated.",
)
@options.data_dir
@click.option("--json", "as_json", is_flag=True, help="The log's own lines of JSON.")
def tail(
    follow: bool,
    actor: str | None,
    level: str | None,
    terms: tuple[str, ...],
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show the newest 20,000 lines of the log, of this start; with -f, live."""
    filters = [Term.parse(term) for term in terms]
    write = _writer(as_json, output.has_colour(sys.stdout))
    api = Api.find(data_dir)
    began = shown = False
    try:
        with api.stream(
            "/api/v1/logs",
            quiet=None if follow else 30.0,
            level=level,
            actor=actor,
            grep=next((term.plain for term in filters if term.plain is not None), None),
            follow="1" if follow else None,
        ) as chunks:
            began = True
            for lines in matching(blocks(chunks), filters):
                write(lines)
                shown = True
    except Failure as failure:
        if not (follow and began):
            raise
        output.note(f"relay: {failure}")
    else:
        if follow:
            output.note("relay: The relay has stopped.")
        elif terms and not shown:
            output.note(
                "relay: No line of the log is meant by that. --grep K=V takes the whole value of a "
                "field, --grep TEXT and K=~REGEX a part of it."
            )


class Term:
    """One `--grep`: field K is V, or matches a regular expression; or a text occurs in the line.

    Without a `field` the text is looked for in the names and values of all of them.
    """

    def __init__(self, field: str, text: str, pattern: re.Pattern[str] | None = None) -> None:
        self.field, self.text, self.pattern = field, text, pattern
        # What the relay understands.
        self.plain = f"{field}={text}" if field and pattern is None else None
        exact = pattern is None and _PLAIN.fullmatch(text) is not None
        named = bool(field) and _PLAIN.fullmatch(field) is not None
        # All of these occur in every line that matches.
        needles = [f'"{field}"'] if named else []
        needles += [text] if exact else []
        self.needles = tuple(needle.encode() for needle in needles)
        # A line without nested objects in which one of these occurs does match: a quote within a
        # string is escaped, so nothing but a member of the one object is spelt like this.
        spelt = [f'"{field}":"{text}"']
        if text.isdigit():
            spelt += [f'"{field}":{text},', f'"{field}":{text}}}']
        self._proofs = tuple(
            (before + member).encode() for member in spelt for before in ("{", ",")
        )[: None if exact and named else 0]

    def surely_matches(self, line: bytes) -> bool:
        """Tell whether the bytes alone prove that the line matches."""
        return any(proof in line for proof in self._proofs) and line.count(b"{") == 1

    @classmethod
    def parse(cls, term: str) -> Term:
        """Read `K=V`, `K=~REGEX`, or what has no `=`: a text."""
        field, equals, text = term.partition("=")
        if not equals and field:
            return cls("", term)
        if not field:
            raise click.BadParameter(f"{term!r} is neither a text nor K=V", param_hint="--grep")
        if not text.startswith("~"):
            return cls(field, text)
        try:
            return cls(field, text[1:], re.compile(text[1:]))
        except re.error as error:
            raise click.BadParameter(
                f"{text[1:]!r} is not a regular expression ({error})", param_hint="--grep"
            ) from error

    def matches(self, line: dict[str, Any]) -> bool:
        """Tell whether a parsed line has the field, and the field the value."""
        if not self.field:
            return any(self.text in text for text in _texts(line))
        if self.field not in line:
            return False
        value = line[self.field]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return self.pattern.search(text) is not None if self.pattern else text == self.text


class _Writer(Protocol):
    def __call__(self, lines: list[bytes]) -> None: ...


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what has come, cut at the last complete line; a rest without an end comes last."""
    rest = b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
            continue
        yield rest + chunk[:end]
        rest = chunk[end:]
    if rest:
        yield rest


def matching(found: Iterable[bytes], terms: list[Term]) -> Iterator[list[bytes]]:
    """Yield, block by block, the lines that every term matches."""
    needles = [needle for term in terms for needle in term.needles]
    for block in found:
        if not all(needle in block for needle in needles):
            continue
        lines = [line for line in block.split(b"\n") if line]
        for needle in needles:
            lines = [line for line in lines if needle in line]
        for term in terms:
            lines = [line for line in lines if term.surely_matches(line) or _agrees(line, term)]
        if lines:
            yield lines


def _texts(value: Any) -> Iterator[str]:
    """Yield the names and values in a parsed line, however deep, as it spells them."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _agrees(line: bytes, term: Term) -> bool:
    try:
        # Numbers that are looked through are left as the line has them.
        parsed = (
            json.loads(line) if term.field else json.loads(line, parse_float=str, parse_int=str)
        )
    except ValueError:
        return False
    return isinstance(parsed, dict) and term.matches(parsed)


def _writer(as_json: bool, colour: bool) -> _Writer:
    if as_json and output.is_terminal(sys.stdout):

        def write(lines: list[bytes]) -> None:
            text = b"\n".join(lines).decode("utf-8", "backslashreplace")
            sys.stdout.write(output.safe_json(text) + "\n")
            sys.stdout.flush()

    elif as_json:

        def write(lines: list[bytes]) -> None:
            sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
            sys.stdout.buffer.flush()

    else:
        render = Renderer(colour)

        def write(lines: list[bytes]) -> None:
            sys.stdout.write(render.lines(lines))
            sys.stdout.flush()

    return write


class Renderer:
    """Turns lines of JSON into ones that are read by people."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._minutes: dict[str, str] = {}  # a minute in UTC -> the same in local time
        self._heads: dict[tuple[Any, ...], str] = {}  # level, actor, event -> as they are shown
        self._keys: dict[str, str] = {}
        self._decode = json.JSONDecoder().raw_decode

    def lines(self, raw: list[bytes]) -> str:
        """Return lines, each with its line feed."""
        text = b"\n".join(raw).decode("utf-8", "backslashreplace")
        return "".join([self(line) + "\n" for line in text.split("\n")])

    def __call__(self, raw: str) -> str:
        """Return the time (local), level, actor, event and every other field as key=value."""
        try:
            line, end = self._decode(raw)
        except (ValueError, RecursionError):
            line, end = None, 0
        if type(line) is not dict or end != len(raw):
            return output.line(raw)
        pop = line.pop
        stamp = self._local(str(pop("timestamp", "")))
        names = pop("level", None), pop("actor", None), pop("event", None)
        try:
            head = self._heads[names]
        except (KeyError, TypeError):  # TypeError: a list is no key, and no name either
            head = self._head(*names)
        if self._colour:
            stamp = f"{_DIM}{stamp}{_RESET}"
        keys = self._keys
        return f"{stamp} {head}" + "".join(
            [(keys.get(key) or self._key(key)) + _value(value) for key, value in line.items()]
        )

    def _head(self, *names: Any) -> str:
        level, actor, event = (output.line(name) for name in names)
        head = (
            f"{_COLOURS.get(level, '')}{level:<8}{_RESET} {actor:<10} {_BOLD}{event}{_RESET}"
            if self._colour
            else f"{level:<8} {actor:<10} {event}"
        )
        if len(self._heads) < _REMEMBERED and all(type(name) is str for name in names):
            self._heads[names] = head
        return head

    def _key(self, key: str) -> str:
        shown = output.line(key)
        shown = f" {_DIM}{shown}={_RESET}" if self._colour else f" {shown}="
        if len(self._keys) < _REMEMBERED:
            self._keys[key] = shown
        return shown

    def _local(self, stamp: str) -> str:
        # Zones differ by whole minutes, so a conversion a minute is enough: "2026-11-20T19:46".
        minute = stamp[:16]
        local = self._minutes.get(minute)
        if local is None:
            try:
                local = datetime.fromisoformat(minute + "+00:00").astimezone().strftime("%H:%M")
            except ValueError:
                return output.line(stamp)
            self._minutes[minute] = local
        return local + output.line(stamp[16:23])


def _value(value: Any) -> str:
    if type(value) is int or type(value) is float:
        return repr(value)
    if type(value) is str:
        if value.isprintable() and value and " " not in value and '"' not in value:
            return value  # nearly every one
        text = output.line(value)
        return text if text and " " not in text and '"' not in text else json.dumps(text)
    return output.line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
