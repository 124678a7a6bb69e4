"""`relay config`: what the settings are, and whether they are right."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output


@click.group()
def config() -> None:
    """The settings: show and check them."""


@config.command()
@options.config
@options.as_json
def show(config: Path | None, as_json: bool) -> None:
    """Show every setting and where its value comes from; secrets are masked.

    With --json: an object of the values by name.
    """
    from relay.settings import as_environment, load
    from relay.settings import show as shown

    values = shown(load(config=config))
    if as_json:
        output.document(values)
        return
    written = _written(config)
    output.table(
        ("setting", "value", "from", "environment variable"),
        [
            (
                name,
                output.line(json.dumps(value, ensure_ascii=False)),
                _source(name, as_environment(name), written, config),
                as_environment(name),
            )
            for name, value in values.items()
        ],
    )


@config.command()
@options.config
@options.as_json
def check(config: Path | None, as_json: bool) -> None:
    """Check the settings: exit code 0, or 78 and a sentence that says what to change."""
    from relay.lifecycle.letters import letters_of
    from relay.settings import load

    letters_of(load(config=config), "http://localhost")  # the templates, too
    if as_json:
        output.document({"valid": True})
    else:
        output.say("The settings are valid.")


def _written(config: Path | None) -> dict[str, Any]:
    return {} if config is None else tomllib.loads(config.read_text("utf-8"))


def _source(name: str, variable: str, written: dict[str, Any], config: Path | None) -> output.Cell:
    if variable in os.environ:
        return "environment", "cyan"
    section, _, key = name.partition(".")
    if section in written and (not key or key in written[section]):
        return str(config), "cyan"
    return "default", "bright_black"
