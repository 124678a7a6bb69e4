"""`relay up`: run the relay in the foreground."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output
from relay.datadir import DataDir
from relay.db.cluster import Cluster
from relay.errors import ConfigError
from relay.memory import loading


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
    names = None
    if only is not None:
        names = frozenset(name.strip() for name in only.split(",") if name.strip())
        if not names:
            raise click.BadParameter("name at least one actor, for example ingest,control")

    def greet(entries: Mapping[str, Any]) -> None:
        from relay.cli.open import banner

        output.say(banner(entries, data_dir))

    with contextlib.ExitStack() as undone, loading():
        from relay.settings import forget_secrets, load, sources

        settings = load(config=config)
        origins = sources(config=config)
        forget_secrets()
        # Held before the rest of the program is loaded, which takes most of a start: whoever gives
        # a command meanwhile sees that a relay is starting.
        data = DataDir(data_dir)
        data.prepare()
        cluster = None
        if not settings.database.url:
            # Made by another process while this one loads.
            cluster = Cluster(data.postgres)
            undone.callback(cluster.abandon)
            with contextlib.suppress(ConfigError, OSError):  # it is tried again, and said, later
                cluster.begin()
        from relay.app import up as run

        undone.pop_all()
    return run(
        settings,
        data,
        only=names,
        config=config,
        origins=origins,
        greet=greet if output.is_terminal(sys.stdout) else None,
        cluster=cluster,
    )
