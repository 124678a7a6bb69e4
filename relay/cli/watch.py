"""`relay status --watch`: the tree, the queue, what needs attention and the flow of mail, live.

Promises
  * What is shown is at most one interval old; the relay may restart meanwhile, and the view goes
    on when it is back.
  * On a terminal the view is drawn in place and leaves the terminal as it was; piped, each sample
    is one line of text, or with `--json` one JSON document a line.
  * Rates are those of the interval, reckoned from the relay's own counters (`/metrics`); nothing
    is asked that a busy relay would feel: three small calls an interval.

Why a thread beside: warnings come by a stream of the log, which blocks; everything else is asked.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.cli import output
from relay.cli.client import Api, read_run
from relay.cli.exits import Failure
from relay.cli.tail import Renderer, blocks

if TYPE_CHECKING:
    from rich.console import RenderableType

KEPT = 60  # samples in a plot
WARNINGS = 5  # lines of the log
_BARS = " ▁▂▃▄▅▆▇█"
_SAMPLE = re.compile(rb'^(relay_\w+)(?:\{(?:\w+="(\w+)")?[^}]*\})? ([0-9.e+-]+)$', re.MULTILINE)

# What is plotted: its name, the counter, the value of its first label (None: all of them).
FLOWS = (
    ("mail in", "relay_smtp_messages_total", "accepted"),
    ("mail out", "relay_outbound_outcomes_total", "delivered"),
)
_TROUBLE = (
    ("relay_smtp_messages_total", "deferred"),
    ("relay_outbound_outcomes_total", "deferred"),
    ("relay_outbound_outcomes_total", "rejected"),
    ("relay_outbound_outcomes_total", "refused"),
    ("relay_outbound_outcomes_total", "exhausted"),
    ("relay_writer_failed_messages_total", None),
)


def counters(text: bytes) -> dict[tuple[str, str | None], float]:
    """Return the relay's samples of a `/metrics` page by name and value of the first label.

    The sum over all labels stands under None.
    """
    found: dict[tuple[str, str | None], float] = {}
    for match in _SAMPLE.finditer(text):
        name, value = match[1].decode(), float(match[3])
        keys = {(name, None), (name, match[2].decode() if match[2] else None)}
        for key in keys:
            found[key] = found.get(key, 0.0) + value
    return found


def sparkline(values: list[float]) -> str:
    """Return a plot of the values, as tall as the largest, one character each."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[1] * len(values)
    return "".join(_BARS[1 + round(value / top * (len(_BARS) - 2))] for value in values)


@dataclass
class Sample:
    """The relay at one moment; rates are per second."""

    at: float  # epoch seconds
    base: str
    pid: int
    tree: dict[str, Any]
    queue: dict[str, Any] | None  # None: the relay does not say, for want of its database
    attention: list[dict[str, Any]]  # what needs a person, the gravest first
    totals: dict[str, float]
    rates: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "at": self.at,
            "queue": self.queue,
            "attention": self.attention,
            "rates": {name: round(rate, 3) for name, rate in self.rates.items()},
            "tree": self.tree,
        }


@dataclass
class Watch:
    """Takes samples of the relay on a data directory, and keeps what the plots need."""

    data_dir: Path
    rates: dict[str, deque[float]] = field(default_factory=dict)
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=WARNINGS))
    _before: tuple[float, int, dict[tuple[str, str | None], float]] | None = None

    def sample(self) -> Sample:
        """Ask the relay; a `Failure` when there is none."""
        api = Api.find(self.data_dir, patience=0.0)  # the next sample is the next try
        pid = int(read_run(self.data_dir, patience=0.0)["pid"])
        tree = api.get("/api/v1/supervision")
        seen: dict[str, Any] = {"queue": None, "attention": []}
        with suppress(Failure):  # the tree is there without a database
            seen = api.get("/api/v1/overview")
        now, found = time.monotonic(), counters(api.call("GET", "/metrics").content)
        rates: dict[str, float] = {}
        if self._before is not None and self._before[1] == pid:
            elapsed = max(now - self._before[0], 1e-6)
            earlier = self._before[2]
            for name, metric, label in FLOWS:
                grown = found.get((metric, label), 0.0) - earlier.get((metric, label), 0.0)
                rates[name] = max(0.0, grown) / elapsed
            trouble = sum(found.get(key, 0.0) - earlier.get(key, 0.0) for key in _TROUBLE)
            rates["trouble"] = max(0.0, trouble) / elapsed
        self._before = now, pid, found
        for name, rate in rates.items():
            self.rates.setdefault(name, deque(maxlen=KEPT)).append(rate)
        totals = {name: found.get((metric, label), 0.0) for name, metric, label in FLOWS}
        totals["trouble"] = sum(found.get(key, 0.0) for key in _TROUBLE)
        return Sample(
            time.time(), api.base, pid, tree, seen["queue"], seen["attention"], totals, rates
        )

    def listen(self) -> None:
        """Collect warnings from the log, for as long as the program lives."""
        render = Renderer(colour=False)
        while True:
            with suppress(Failure, OSError):
                api = Api.find(self.data_dir)
                with api.stream("/api/v1/logs", quiet=None, level="warning", follow="1") as chunks:
                    for block in blocks(chunks):
                        self.warnings.extend(render.lines([block.rstrip()]).splitlines())
            time.sleep(1.0)


def watch(data_dir: Path, every: float, as_json: bool, rows: Rows) -> None:
    """Show samples, `every` so many seconds, until an interrupt."""
    view = Watch(data_dir)
    first = view.sample()  # without a relay to begin with, this is a failure like any other's
    if as_json or not output.is_terminal(sys.stdout):
        for found in _samples(view, every, first):
            if isinstance(found, Sample):
                output.say(json.dumps(found.as_json()) if as_json else brief(found))
                sys.stdout.flush()
            else:
                output.note(f"relay: {found}")
        return
    threading.Thread(target=view.listen, daemon=True).start()
    _draw(view, every, first, rows)


def _samples(view: Watch, every: float, first: Sample) -> Iterator[Sample | Failure]:
    """Yield a sample an interval, and each failure once, however long it lasts."""
    yield first
    time.sleep(every)
    said = ""
    while True:
        began = time.monotonic()
        try:
            found: Sample | Failure = view.sample()
        except Failure as failure:
            found = failure
        if isinstance(found, Sample) or str(found) != said:
            yield found
        said = "" if isinstance(found, Sample) else str(found)
        time.sleep(max(0.0, began + every - time.monotonic()))


def brief(sample: Sample) -> str:
    """Return a sample as one line."""
    nodes = list(_flat(sample.tree))
    ill = [f"{n['name']} {n['state']}" for n in nodes if n["state"] not in {"running", "paused"}]
    parts = [time.strftime("%H:%M:%S", time.localtime(sample.at))]
    parts += [f"{name} {rate:.1f}/s" for name, rate in sample.rates.items()]
    if sample.queue is not None:
        parts.append(f"queued {sample.queue['queued']}")
    parts.append(f"restarts {sum(n['restarts'] for n in nodes)}")
    return "  ".join([*parts, *ill])


def _flat(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from _flat(child)


Rows = Callable[[dict[str, Any], float], Iterator[output.Row]]
"""`relay.cli.status.rows`: the tree as rows of a table."""


def _draw(view: Watch, every: float, first: Sample, rows: Rows) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for found in _samples(view, every, first):
            if isinstance(found, Sample):
                live.update(picture(found, view, rows), refresh=True)
            else:
                live.update(Text(f"{found}\nWaiting for it.", style="yellow"), refresh=True)


def picture(sample: Sample, view: Watch, rows: Rows) -> RenderableType:
    """Return the view: the flow of mail, the queue, what needs attention, the tree, warnings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        ("relay ", "bold"),
        (f"pid {sample.pid}, {sample.base}", "dim"),
        (time.strftime("   %H:%M:%S", time.localtime(sample.at)), "dim"),
    )
    flow = Table.grid(padding=(0, 2))
    for name in ("mail in", "mail out", "trouble"):
        series = list(view.rates.get(name, ()))
        bad = name == "trouble" and any(series)
        flow.add_row(
            Text(name, style="red" if bad else "bold"),
            Text(sparkline(series).rjust(KEPT), style="red" if bad else "cyan"),
            Text(f"{sample.rates.get(name, 0.0):,.1f}/s"),
            Text(f"{sample.totals[name]:,.0f} in all", style="dim"),
        )
    tree = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("actor", "state", "restarts", "mailbox", "up", "last event"):
        tree.add_column(column, no_wrap=True)
    for row in rows(sample.tree, sample.at):
        tree.add_row(*(Text(c) if isinstance(c, str) else Text(c[0], style=c[1]) for c in row))
    parts: list[RenderableType] = [head, Text(), flow, _queue(sample.queue), Text()]
    for concern in sample.attention:
        style = "red" if concern["grade"] == "error" else "yellow"
        parts.append(Text(f"{concern['grade']}: {output.line(concern['text'])}", style=style))
    parts += [Text(), tree] if sample.attention else [tree]
    if view.warnings:
        parts += [Text(), Text("last warnings", style="bold")]
        parts += [Text(line, style="yellow", no_wrap=True) for line in tuple(view.warnings)]
    return Group(*parts)


def _queue(queue: dict[str, Any] | None) -> RenderableType:
    from rich.text import Text

    if queue is None:
        return Text("queue     unknown: no database", style="red")
    oldest = queue["oldest_due_seconds"]
    text = Text.assemble(
        ("queue     ", "bold"),
        f"{queue['queued']:,} queued, {queue['due']:,} due",
        "" if oldest is None else f" for {output.span(oldest)}",
        f", {queue['processing']:,} under way, {queue['held']:,} held",
    )
    if queue["paused"]:
        text.append("   paused", style="yellow")
    return text
