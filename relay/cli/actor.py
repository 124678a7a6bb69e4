"""`relay actor`: an operator's hand in the supervision tree."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from relay.cli import completion, options, output
from relay.cli.client import Api, segment
from relay.cli.status import COLUMNS, rows


@click.group()
def actor() -> None:
    """An actor or a group of them: restart, pause, resume, sweep, report.

    `relay status` shows the names. What is said to a group is said to all in it.
    """


def _declare(verb: str, text: str) -> None:
    def command(name: str, data_dir: Path, as_json: bool) -> None:
        answer = Api.find(data_dir).call("POST", f"/api/v1/supervision/{segment(name)}/{verb}")
        node = answer.json()
        if as_json:
            output.document(node)
        else:
            output.table(COLUMNS, list(rows(node, time.time())))
            if verb in {"sweep", "report"} and node["state"] == "paused":
                output.note(f"{node['name']} is paused: it does so when resumed")

    decorated: Callable[..., None] = command
    for decorate in (
        options.as_json,
        options.data_dir,
        click.argument("name", shell_complete=completion.actors),
    ):
        decorated = decorate(decorated)
    actor.command(verb, help=text)(decorated)


_declare("restart", "Drain it and start it again.")
_declare(
    "pause",
    "Let it take no more work, until resumed; what waits is kept. All but postgres, listener and "
    "control, which have no work that can wait.",
)
_declare("resume", "Let it work again.")
_declare(
    "sweep",
    "Have it do now what it does every so often: ticker, reaper, summariser, claimer, collector, "
    "tls_reporter, returns, notifier, webhooks.",
)
_declare(
    "report",
    "Have it write its figures to the log: device_store, ingest (and each of ingest-1 and so on), "
    "lmtp, submission, pop3, devices, control.",
)
