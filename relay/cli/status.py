"""`relay status`: the supervision tree of the running relay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
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
    api = Api.find(data_dir)
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
        output.line(node["last_event"]),
    )
    children = node["children"]
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
    if node["started_at"] is None or node["state"] in {"stopped", "failed", "backing_off"}:
        return ""
    started = datetime.fromisoformat(node["started_at"]).timestamp()
    return output.span(max(0.0, now - started))
