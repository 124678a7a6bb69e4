"""`relay up`: run the relay in the foreground.

Fails with `Occupied` where another relay, or another program, has a port or the data directory; the
error then has the command by which a relay starts beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli import options, output
from relay.datadir import DataDir
from relay.db.cluster import Cluster
from relay.errors import ConfigError, Occupied
from relay.memory import loading

if TYPE_CHECKING:
    from relay.settings import Settings


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
        try:
            data.prepare()
        except Occupied as error:
            error.command = beside(settings, _free_beside(data_dir), config, only)
            raise
        cluster = None
        if not settings.database.url:
            # Made by another process while this one loads.
            cluster = Cluster(data.postgres)
            undone.callback(cluster.abandon)
            with contextlib.suppress(ConfigError, OSError):  # it is tried again, and said, later
                cluster.begin()
        from relay.app import up as run

        undone.pop_all()
    try:
        return run(
            settings,
            data,
            only=names,
            config=config,
            origins=origins,
            greet=greet if output.is_terminal(sys.stdout) else None,
            cluster=cluster,
        )
    except Occupied as error:
        error.command = beside(settings, data_dir, config, only)
        raise


def beside(settings: Settings, data_dir: Path, config: Path | None, only: str | None) -> str:
    """Return what starts a relay by these settings on free ports, for a shell to be given.

    Every port that they have moves, whoever has it now: which of them another relay has is not
    known before all have been tried.
    """
    from relay.settings import as_environment, known_names, parse_endpoint

    words = []
    for name in known_names():
        section, _, key = name.rpartition(".")
        if not key.endswith("bind"):
            continue
        address = str(getattr(getattr(settings, section), key))
        if address and parse_endpoint(address)[1]:
            words.append(f"{as_environment(name)}={shlex.quote(_any_port(address))}")
    if settings.smtp.lmtp:
        path = f"{settings.smtp.lmtp}.{data_dir.name}"
        words.append(f"{as_environment('smtp.lmtp')}={shlex.quote(path)}")
    words += [*_ourselves(), "up"]
    for option, value in (("--config", config), ("--data-dir", data_dir), ("--only", only)):
        if value is not None and value != options.DEFAULT_DATA_DIR:
            words += [option, shlex.quote(str(value))]
    return " ".join(words)


def _any_port(address: str) -> str:
    return f"{address.rpartition(':')[0]}:0"


def _free_beside(data_dir: Path) -> Path:
    """Return a data directory beside this one that no relay holds."""
    found = (data_dir.with_name(f"{data_dir.name}-{n}") for n in itertools.count(2))
    return next(one for one in found if not DataDir(one).is_held())


def _ourselves() -> list[str]:
    """Return how this program is called from here."""
    program = sys.argv[0]
    if not os.access(program, os.X_OK):
        return [shlex.quote(sys.executable), "-m", "relay"]
    name = Path(program).name
    found = shutil.which(name)
    at_hand = found is not None and Path(found).absolute() == Path(program).absolute()
    return [name if at_hand else shlex.quote(program)]
