"""The options that many commands share, each defined once.

A command takes what it needs: `--data-dir` to find a running relay, `--config` where it
reads settings itself, `--json` where it lists or shows.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA_DIR = Path("var")


def naming(data_dir: Path) -> list[str]:
    """Return what a command needs beside its own words to be about `data_dir`, in any shell."""
    usual = data_dir.absolute() == DEFAULT_DATA_DIR.absolute()
    return [] if usual else ["--data-dir", str(data_dir)]


def starting(data_dir: Path) -> str:
    """Return the line that runs a relay on `data_dir`."""
    return shlex.join(["relay", "up", *naming(data_dir)])


def data_dir(command: F) -> F:
    """Add `--data-dir` (else `$RELAY_DATA_DIR`, else `./var`)."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="RELAY_DATA_DIR",
        default=DEFAULT_DATA_DIR,
        show_default="$RELAY_DATA_DIR, else ./var",
        metavar="DIR",
        help="The relay's data directory.",
    )(command)


def config(command: F) -> F:
    """Add `--config` (else `$RELAY_CONFIG`, else none)."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="RELAY_CONFIG",
        default=None,
        metavar="FILE",
        help="A TOML file of settings; an environment variable RELAY_SECTION__NAME wins over it.",
    )(command)


def as_json(command: F) -> F:
    """Add `--json`: one JSON document instead of text for people."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document, for programs.")(
        command
    )


def token(command: F) -> F:
    """Add `--token`: act as the holder of a mailbox or of an API key."""
    return click.option(
        "--token",
        metavar="TOKEN",
        help="A session token or an API key instead of the administrator's token; "
        "- reads it from standard input, where other users cannot see it.",
    )(command)


def token_from(token: str | None) -> str | None:
    """Return the value of `--token`, read from standard input where it is `-`."""
    return sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 - not a secret


def idempotency_key(command: F) -> F:
    """Add `--idempotency-key`, for what is queued."""
    return click.option(
        "--idempotency-key", metavar="K", help="The same key within 24 hours sends nothing twice."
    )(command)


def key_header(key: str | None) -> dict[str, str]:
    """Return the header that carries an idempotency key, none without one."""
    if key is None:
        return {}
    if not key.isprintable() or not key.strip():
        raise click.UsageError("--idempotency-key is empty or holds control characters.")
    # Headers are bytes, written as Latin-1, so that UTF-8 is spelt in it.
    return {"Idempotency-Key": key.encode().decode("latin-1")}


def limit(default: int) -> Callable[[F], F]:
    """Add `--limit` and `--all`."""

    def add(command: F) -> F:
        command = click.option("--all", "everything", is_flag=True, help="No limit.")(command)
        return click.option(
            "--limit",
            type=click.IntRange(1),
            default=default,
            show_default=True,
            help="At most so many.",
        )(command)

    return add
