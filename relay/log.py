"""Structured logs: one event a line, kept in memory so that they can be tailed.

Promises: every line has `timestamp` (RFC 3339, UTC), `level`, `event` and `actor`; values
are JSON; the last `RING_LINES` lines since this start can be read back and followed, by
the HTTP call and by `relay tail`.

Fails: never.  A reader that is slower than the log loses the oldest lines it has not read
and is told how many; writing a line never waits for a reader.  A closed stdout is ignored
(the relay outlives its terminal).

structlog's context variables are separate per Trio task, so the actor's name is bound by
whoever runs the actor (`relay.app`), not by the actors.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

import structlog
import trio

from relay.systemd import journal_stream

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_PRIORITIES = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}
"""What the journal takes from the front of a line as its priority, so that it can select by it."""
RING_LINES = 20_000

Line = dict[str, Any]


class LogFollower:
    """A bounded view of the lines written from now on; iterate it asynchronously, list by list.

    All that has come at once: a reader of a busy log is woken a few times a second, not a
    hundred thousand.
    """

    def __init__(self, capacity: int) -> None:
        self._lines: deque[Line] = deque(maxlen=capacity)
        self._more = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self.dropped = 0

    def offer(self, line: Line) -> None:
        """Add a line, from any thread; the oldest unread one goes when there is no room."""
        if len(self._lines) == self._lines.maxlen:
            self.dropped += 1
        self._lines.append(line)
        if threading.get_ident() == self._thread:
            self._more.set()
        else:
            self._token.run_sync_soon(self._more.set)

    def __aiter__(self) -> AsyncIterator[list[Line]]:
        return self

    async def __anext__(self) -> list[Line]:
        """Return all that has come, as soon as there is something: never an empty list."""
        while not self._lines:
            self._more = trio.Event()
            await self._more.wait()
        lines = []
        while self._lines:  # line by line, for another thread may be writing one
            lines.append(self._lines.popleft())
        return lines


_PASSING = frozenset({"loop.blocked"})


class LogRing:
    """The newest lines of this start, and those who follow them."""

    def __init__(self, capacity: int = RING_LINES) -> None:
        self._lines: deque[Line] = deque(maxlen=capacity)
        self._followers: set[LogFollower] = set()
        self._last: dict[Any, Line] = {}

    def append(self, line: Line) -> None:
        """Keep a line and hand it to every follower."""
        self._lines.append(line)
        if line.get("event") not in _PASSING:
            self._last[line.get("actor")] = line
        for follower in tuple(self._followers):
            follower.offer(line)

    def lines(self) -> list[Line]:
        """Return the lines kept, oldest first."""
        return list(self._lines)

    def last(self, actor: str) -> Line | None:
        """Return the newest line of an actor, or None where it has said nothing yet.

        That it blocked the loop is over when it is told, and stands for nobody's last line.
        """
        return self._last.get(actor)

    @contextmanager
    def follow(self, capacity: int = 10_000) -> Iterator[LogFollower]:
        """Give an asynchronous iterator over the lines from now on."""
        follower = LogFollower(capacity)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)


class Selection:
    """The lines that are wanted: of `actors` alone, from `level` up, with the field K being V.

    K and V are those of `grep` (`K=V`).
    A value is compared as text: a string as it is, anything else as its JSON.
    """

    def __init__(
        self,
        *,
        level: str | None = None,
        actors: Collection[str] | None = None,
        grep: str | None = None,
    ) -> None:
        self._actors = actors
        self._levels = (
            None
            if level is None
            else frozenset(name for name, grade in LEVELS.items() if grade >= LEVELS[level])
        )
        self._field, equals, self._text = ("", "", "") if grep is None else grep.partition("=")
        if grep is not None and not (equals and self._field):
            raise ValueError("it must be K=V")

    def __call__(self, lines: list[Line]) -> list[Line]:
        """Return those of the lines that are meant, in their order."""
        if (actors := self._actors) is not None:
            lines = [line for line in lines if line.get("actor") in actors]
        if (levels := self._levels) is not None:
            lines = [line for line in lines if line.get("level") in levels]
        if field := self._field:
            text = self._text
            lines = [line for line in lines if field in line and _as_text(line[field]) == text]
        return lines


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float, list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


ring = LogRing()


_encode = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":")).encode


def render_json(line: Mapping[str, Any]) -> str:
    """Return a line as one line of JSON; what JSON cannot say is shown as text."""
    return _encode(line)


class _Stream:
    """The end of every line: into the ring, then to the stream in the form chosen."""

    def __init__(self, stream: TextIO, *, readable: bool) -> None:
        self._stream = stream
        self._prefixes = _PRIORITIES if journal_stream(stream) else {}
        self._console = structlog.dev.ConsoleRenderer(colors=readable) if readable else None

    def __call__(self, line: Line) -> None:
        ring.append(line)
        text = (
            str(self._console(None, line["level"], dict(line)))
            if self._console is not None
            else render_json(line)
        )
        try:
            self._stream.write(f"{self._prefixes.get(line['level'], '')}{text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads our stdout any more; the ring still has the line


class _Last:
    """The last processor: a line is whole, and goes where lines go."""

    def __init__(self, write: Callable[[Line], None], level: str) -> None:
        self.write = write
        self.level = level

    def __call__(self, _: Any, __: str, event: structlog.typing.EventDict) -> str:
        self.write(dict(event))
        raise structlog.DropEvent


def _describe(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put what every line has first, and give the lines of no actor the name `relay`."""
    ordered: structlog.typing.EventDict = {
        "timestamp": event.pop("timestamp"),
        "level": event.pop("level"),
        "event": event.pop("event"),
        "actor": event.pop("actor", "relay"),
    }
    ordered.update(event)
    return ordered


_last = _Last(lambda line: None, "info")


def configure(
    level: str = "info",
    *,
    stream: TextIO | None = None,
    readable: bool = False,
    write: Callable[[Line], None] | None = None,
) -> None:
    """Set logging up for this process; calling it again changes the level (SIGHUP).

    `write`: what takes the lines, instead of ring and stream.
    """
    global _last
    if write is None:
        write = _Stream(sys.stdout if stream is None else stream, readable=readable)
    _last = _Last(write, level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _describe,
            _last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=False,
    )


def level() -> str:
    """Return the level that was configured last."""
    return _last.level


def repeat(line: Line) -> None:
    """Write a line that another process of this relay has made, as if it were ours."""
    _last.write(line)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; the first argument of a call is the event's dotted name."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger())
