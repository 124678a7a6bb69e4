"""`relay config`: what the settings are, and whether they are right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from relay.cli import options, output


@click.group()
def config() -> None:
    """The settings: show and check them."""


@config.command()
@options.config
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Those of the relay that runs on this data directory, as it was started.",
)
@options.as_json
def show(config: Path | None, data_dir: Path | None, as_json: bool) -> None:
    """Show every setting and where its value comes from; secrets are masked.

    With --json: an object of the values by name.
    """
    from relay.settings import Settings, as_environment, load, sources
    from relay.settings import show as shown

    processes: int | None
    given: Mapping[str, object]
    if data_dir is None:
        settings = load(config=config)
        values, processes = shown(settings), settings.smtp_processes
        given = sources(config=config)
    else:
        from relay.cli.client import read_run

        run = read_run(data_dir)
        values = shown(Settings()) | run["settings"]
        processes, given = run.get("smtp_processes"), run["settings"]
    if as_json:
        output.document(values)
        return

    def source(name: str) -> output.Cell:
        if name not in given:
            return "default", "bright_black"
        if data_dir is not None:
            return "its start", "cyan"
        return str(config) if given[name] == "file" else "environment", "cyan"

    def spelt(name: str, value: object) -> str:
        text = output.line(json.dumps(value, ensure_ascii=False))
        automatic = name == "smtp.processes" and value == "auto" and processes is not None
        return f"{text} ({processes} here)" if automatic else text

    output.table(
        ("setting", "value", "from", "environment variable"),
        [
            (name, spelt(name, value), source(name), as_environment(name))
            for name, value in values.items()
        ],
    )


@config.command()
@options.config
@options.as_json
def check(config: Path | None, as_json: bool) -> None:
    """Check the settings: exit code 0, or 78 and a sentence that says what to change.

    The files that they name are read, too, as a start reads them: what is wrong with them `relay
    up` would refuse. Ports, the data directory and the database are left alone.
    """
    from relay import configured
    from relay.settings import load

    configured.check(load(config=config))
    if as_json:
        output.document({"valid": True})
    else:
        output.say("The settings are valid.")
