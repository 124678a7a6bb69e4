"""`relay status`: the supervision tree of the running relay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output
from relay.cli.client import Api

STYLES = {
    "running": "green",
    "starting": "cyan",
    "draining": "cyan",
    "paused": "yellow",
    "backing_off": "yellow",
    "stopped": "bright_black",
    "failed": "red",
}


@click.command()
@options.data_dir
@options.as_json
def status(data_dir: Path, as_json: bool) -> None:
    """Show the supervision tree: state, restarts, mailbox depth, last event."""
    with Api.find(data_dir) as api:
        tree = api.get("/api/v1/supervision")
    if as_json:
        output.document(tree)
        return
    output.table(
        ("actor", "state", "restarts", "mailbox", "up", "last event"),
        list(rows(tree, time.time())),
    )


def rows(node: dict[str, Any], now: float, lead: str = "", below: str = "") -> Iterator[output.Row]:
    """Yield a row for `node` and everything under it; `now`: epoch seconds."""
    state = str(node["state"])
    yield (
        lead + output.line(node["name"]),
        (state, STYLES.get(state, "")),
        str(node["restarts"]),
        output.line(node["mailbox_depth"]),
        uptime(node, now),
        describe(node["last_event"]),
    )
    children = node.get("children") or []
    for child in children:
        last = child is children[-1]
        yield from rows(
            child,
            now,
            below + ("└─ " if last else "├─ "),
            below + ("   " if last else "│  "),
        )


def uptime(node: dict[str, Any], now: float) -> str:
    """Return how long this incarnation has been up; empty where it is not."""
    if node["state"] in {"stopped", "failed", "backing_off"}:
        return ""
    started = node.get("started_at")
    if isinstance(started, str):
        from datetime import datetime

        started = datetime.fromisoformat(started).timestamp()
    return output.span(max(0.0, now - started)) if isinstance(started, (int, float)) else ""


def describe(event: Any) -> str:
    """Return an event as one line, whether the API gives a name or an object."""
    if isinstance(event, dict):
        return output.line(event.get("event") or event.get("type") or json.dumps(event))
    return output.line(event)
