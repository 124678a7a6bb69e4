"""`relay db`: migrate, check, and the URL for psql.

These need no running relay.  With an external database they connect by the settings.  With
the embedded one they use the server of a running relay, else start it for the time of the
command, holding the data directory, so that no relay can start meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from relay.cli import exits, options, output
from relay.cli.exits import Failure
from relay.cli.lazy import LazyGroup
from relay.datadir import DataDir

T = TypeVar("T")


@click.group(
    cls=LazyGroup,
    elsewhere={
        "backup": (
            "relay.cli.backup:backup",
            "Write database, devices' blobs and keys to FILE, while the relay runs or not.",
        ),
        "restore": (
            "relay.cli.backup:restore",
            "Put what FILE holds into the database and the data directory.",
        ),
    },
)
def db() -> None:
    """The database: migrate, check, connect."""


@db.command()
@options.config
@options.data_dir
@options.as_json
def migrate(config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Bring the schema up to date; `relay up` does so by itself."""
    from relay.db.migrate import migrate as apply

    with output.working("Migrating the database"):
        applied = with_database(config, data_dir, apply)
    if as_json:
        output.document({"applied": applied})
    elif applied:
        output.say(f"Applied {', '.join(f'{number:04}' for number in applied)}.")
    else:
        output.say("The schema is current.")


@db.command()
@options.config
@options.data_dir
@options.as_json
def check(config: Path | None, data_dir: Path, as_json: bool) -> int:
    """Check that the database can be reached and its schema is current, changing nothing.

    Exit code 1 when migrations are missing, 69 when there is no database, 78 when it was made
    by a newer relay.
    """
    from relay.db.migrate import check as inspect

    with output.working("Checking the database"):
        status = with_database(config, data_dir, inspect, make=False)
    if as_json:
        output.document(
            {
                "server_version": status.server_version,
                "applied": list(status.applied),
                "pending": list(status.pending),
            }
        )
    elif status.pending:
        missing = ", ".join(f"{number:04}" for number in status.pending)
        output.say(
            f"PostgreSQL {status.server_version}; missing {missing}: run `relay db migrate`."
        )
    else:
        output.say(f"PostgreSQL {status.server_version}; the schema is current.")
    return exits.REFUSED if status.pending else exits.OK


@db.command()
@options.config
@options.data_dir
@options.as_json
def url(config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Print the connection string, password included, as psql takes it."""
    dsn = known_url(config, data_dir)
    if dsn is None:
        raise Failure(
            f"No relay runs on {data_dir.absolute()}, so its embedded PostgreSQL does not run "
            f"either; start it with `{options.starting(data_dir)}`.",
            exits.UNAVAILABLE,
        )
    if as_json:
        output.document({"database_url": dsn})
    else:
        output.say(dsn)


def known_url(config: Path | None, data_dir: Path) -> str | None:
    """Return the URL of a server that should be up: the settings', else the running relay's."""
    from relay.settings import load

    if external := load(config=config).database.url:
        return external
    run = DataDir(data_dir).read_run()
    return None if run is None else str(run["database_url"])


def with_database(
    config: Path | None, data_dir: Path, work: Callable[[str], Awaitable[T]], *, make: bool = True
) -> T:
    """Return what `work` makes of the database's URL; the embedded server runs meanwhile.

    `make`: create the embedded database where there is none yet; else that is a `Failure`.
    """
    import trio

    from relay import log

    log.configure("warning", stream=sys.stderr)
    dsn = known_url(config, data_dir)
    if dsn is not None:
        return trio.run(work, dsn)
    data = DataDir(data_dir)
    if not make and not data.postgres.is_dir():
        raise Failure(
            f"There is no database in {data.path} yet; `relay up` or `relay db migrate` makes it.",
            exits.UNAVAILABLE,
        )
    data.prepare()
    try:
        return trio.run(_with_embedded, data.postgres, work)
    finally:
        data.release()


async def _with_embedded(directory: Path, work: Callable[[str], Awaitable[T]]) -> T:
    import trio

    from relay.db.embedded import Embedded

    server = Embedded(directory)
    stopping = trio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    async def accepting() -> None:
        try:
            results.append(await work(server.dsn))
        except Exception as error:  # raised below, once the server has stopped in good order
            errors.append(error)
        stopping.set()

    await server.run(accepting, stopping)
    for error in errors:
        raise error
    return results[0]
