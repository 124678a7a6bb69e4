"""`relay up`: run the relay in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import options


@click.command()
@options.config
@options.data_dir
@click.option(
    "--only",
    metavar="A,B",
    help="Run only these actors, separated by commas; others may run on other machines.",
)
def up(config: Path | None, data_dir: Path, only: str | None) -> int:
    """Run the relay until a signal.

    SIGTERM or Ctrl-C stops it cleanly, a second one at once. The log goes to stdout, errors
    go to stderr. Without a database in the settings it runs a PostgreSQL of its own in the
    data directory.
    """
    from relay.app import up as run
    from relay.settings import load

    names = None
    if only is not None:
        names = frozenset(name.strip() for name in only.split(",") if name.strip())
        if not names:
            raise click.BadParameter("name at least one actor, for example ingest,control")
    return run(load(config=config), data_dir, only=names, config=config)
