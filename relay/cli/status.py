"""`relay status`: the supervision tree of the running relay, once or live (`relay.cli.watch`).

Below it, on stderr, stands what needs a person: what the operator's page says under attention.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output
from relay.cli.client import Api, read_run
from relay.cli.exits import Failure

STYLES = {
    "running": "green",
    "starting": "cyan",
    "draining": "cyan",
    "paused": "yellow",
    "backing_off": "yellow",
    "stopped": "bright_black",
    "failed": "red",
}

GRADES = {"error": "red", "warning": "yellow"}
ATTENTION_TIMEOUT = 10.0  # seconds; the tree has been shown

COLUMNS = ("actor", "state", "restarts", "mailbox", "up", "last event")


@click.command()
@click.option(
    "-w", "--watch", is_flag=True, help="Go on, live, with the flow of mail, until Ctrl-C."
)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch, how often to look.",
)
@click.option("--ready", is_flag=True, help="Say nothing; exit code 1 unless every actor is ready.")
@options.data_dir
@options.as_json
def status(watch: bool, every: float, ready: bool, data_dir: Path, as_json: bool) -> None:
    """Show the supervision tree: state, restarts, mailbox depth, last event.

    What needs attention follows on stderr. With --watch and --json, or piped, one line a sample.
    --ready is for health checks; what is not ready is said on stderr.
    """
    if ready:
        try:
            Api.find(data_dir).call("GET", "/readyz")
        except Failure as failure:
            raise Failure(str(failure)) from failure  # one exit code, whatever is amiss
        return
    if watch:
        from relay.cli.watch import watch as go_on

        go_on(data_dir, every, as_json, rows)
        return
    api = Api.find(data_dir)
    tree = api.get("/api/v1/supervision")
    if as_json:
        output.document(tree)
        return
    output.table(COLUMNS, list(rows(tree, time.time())))
    show_attention(api)
    run = read_run(data_dir)
    if run.get("settings", {}).get("smtp.processes") == "auto" and "smtp_processes" in run:
        count = run["smtp_processes"]
        what = "the relay itself" if count == 1 else f"{count} processes"
        output.note(f"RELAY_SMTP__PROCESSES is auto: {what} on these cores.")


def show_attention(api: Api) -> None:
    """Write what needs a person, the gravest first; nothing where nothing does."""
    try:
        seen = api.call("GET", "/api/v1/overview", timeout=ATTENTION_TIMEOUT).json()
    except Failure as failure:
        output.note(f"What needs attention is not known: {output.line(failure)}")
        return
    colour = output.has_colour(sys.stderr)
    for concern in seen["attention"]:
        grade = output.line(concern["grade"])
        label = click.style(f"{grade}:", fg=GRADES.get(grade)) if colour else f"{grade}:"
        mends = output.line(concern["command"])
        output.note(f"{label} {output.line(concern['text'])}" + (mends and f" ({mends})"))


def rows(node: dict[str, Any], now: float, lead: str = "", below: str = "") -> Iterator[output.Row]:
    """Yield a row for `node` and everything under it; `now`: epoch seconds."""
    state = str(node["state"])
    yield (
        lead + output.line(node["name"]),
        (state, STYLES.get(state, "")),
        str(node["restarts"]),
        output.line(node["mailbox_depth"]),
        uptime(node, now),
        output.line(node["last_event"]),
    )
    children = node["children"]
    for one in node.get("processes", ()):  # an actor has those, a group has children
        last = one is node["processes"][-1] and not children
        yield (
            below + ("└─ " if last else "├─ ") + output.line(one["name"]),
            "" if one["pid"] is None else ("running", STYLES["running"]),
            str(one["restarts"]),
            "",
            "",
            _process(one),
        )
    for child in children:
        last = child is children[-1]
        yield from rows(
            child,
            now,
            below + ("└─ " if last else "├─ "),
            below + ("   " if last else "│  "),
        )


def _process(one: dict[str, Any]) -> str:
    if one["pid"] is None:
        return "none now"
    used = one["cpu_seconds"]
    return f"pid {one['pid']}" + ("" if used is None else f", {used:.1f} s of CPU")


def uptime(node: dict[str, Any], now: float) -> str:
    """Return how long this incarnation has been up; empty where it is not."""
    if node["started_at"] is None or node["state"] in {"stopped", "failed", "backing_off"}:
        return ""
    started = datetime.fromisoformat(node["started_at"]).timestamp()
    return output.span(max(0.0, now - started))
