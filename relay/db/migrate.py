"""Schema migrations: numbered SQL files, each in one transaction, under one lock.

Promises: `migrations/NNNN_name.sql` run in order, each exactly once, however many relays start
together; a file either took effect and is recorded (with its SHA-256, in
`relay.schema_migrations`) or left no trace.  The role needs to own the database and nothing
more: no superuser, no extension.  When `migrate` returns, all are durable; a crash before that may
take back the last few, which the next start applies again.

Fails with `SchemaTooNew` when the database knows a migration that this program does not, and
with `ConfigError` when the server is older than 15, the role may not, or a file was changed
after it had been applied.  `DatabaseUnavailable` when the server cannot be reached.

The lock is `pg_advisory_xact_lock`, which lives and dies with the transaction, so this works
through PgBouncer in transaction mode too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import psycopg

from relay.db.connection import Connection, connect
from relay.db.hosts import Hosts
from relay.errors import ConfigError, DatabaseUnavailable
from relay.log import get_logger

log = get_logger()

OLDEST_SERVER = 15
_LOCK = 0x72656C6179  # "relay": one number for all relays that share the database
_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class SchemaTooNew(ConfigError):
    """The database was migrated by a newer program than this one."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name, its text."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, as 64 hexadecimal digits."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The migrations that a database has, and those that it lacks, by number."""

    server_version: int
    applied: tuple[int, ...]
    pending: tuple[int, ...]


def migrations(directory: Traversable | None = None) -> list[Migration]:
    """The migrations that this program brings, in order.  `ConfigError` on a double number."""
    found: dict[int, Migration] = {}
    directory = directory or resources.files("relay.db") / "migrations"
    if directory.is_dir():
        for entry in directory.iterdir():
            if match := _NAME.fullmatch(entry.name):
                number = int(match[1])
                if number in found:
                    raise ConfigError(f"two migrations have the number {number:04}: {entry.name}")
                found[number] = Migration(number, entry.name, entry.read_text("utf-8"))
    return [found[number] for number in sorted(found)]


async def migrate(
    dsn: str, directory: Traversable | None = None, *, hosts: Hosts | None = None
) -> list[int]:
    """Apply what is pending and return its numbers.  `directory` replaces the program's own."""
    known = migrations(directory)
    applied: list[int] = []
    anew = False  # a database that has nothing yet: its schema is one line of the log
    async with _connected(dsn, hosts) as conn:
        # An ordinary start finds nothing to do and waits for nobody's lock.
        while pending := await _pending(conn, known):
            anew = anew or len(pending) == len(known)
            async with conn.transaction():
                await conn.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                await _make_table(conn)
                # Another relay may have applied it while this one waited for the lock.
                if not (pending := await _pending(conn, known)):
                    break
                migration = pending[0]
                if len(pending) > 1:
                    # Not each waits for the disk: the last one's commit has all on it.
                    await conn.execute("SET LOCAL synchronous_commit = off")
                await _apply(conn, migration)
            applied.append(migration.number)
            (log.debug if anew else log.info)("db.migrated", migration=migration.name)
    if anew and applied:
        log.info("db.migrated", migrations=len(applied), schema="new")
    return applied


async def check(
    dsn: str, directory: Traversable | None = None, *, hosts: Hosts | None = None
) -> SchemaStatus:
    """Report what is applied and what is pending, changing nothing."""
    known = migrations(directory)
    async with _connected(dsn, hosts) as conn:
        pending = {m.number for m in await _pending(conn, known)}
        return SchemaStatus(
            server_version=conn.info.server_version // 10_000,
            applied=tuple(m.number for m in known if m.number not in pending),
            pending=tuple(sorted(pending)),
        )


@asynccontextmanager
async def _connected(dsn: str, hosts: Hosts | None = None) -> AsyncIterator[Connection]:
    try:
        conn = await connect(
            dsn, application_name="relay-migrate", prepare_threshold=None, hosts=hosts
        )
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"the database URL cannot be read: {error}") from error
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"no connection to PostgreSQL: {error}") from error
    try:
        version = conn.info.server_version // 10_000
        if version < OLDEST_SERVER:
            raise ConfigError(
                f"the server is PostgreSQL {version}, and the relay needs {OLDEST_SERVER} or newer:"
                " upgrade it"
            )
        yield conn
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"the role {conn.info.user!r} may not change the schema: make it the owner of the"
            f" database {conn.info.dbname!r} ({error.diag.message_primary})"
        ) from error
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"PostgreSQL went away: {error}") from error
    finally:
        await conn.close()


async def _pending(conn: Connection, known: list[Migration]) -> list[Migration]:
    cursor = await conn.execute("SELECT to_regclass('relay.schema_migrations') IS NOT NULL")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return known
    cursor = await conn.execute("SELECT number, checksum FROM relay.schema_migrations")
    applied = dict(await cursor.fetchall())
    ours = {m.number: m for m in known}
    if strange := sorted(applied.keys() - ours.keys()):
        raise SchemaTooNew(
            f"the database has migration {strange[-1]:04}, and this relay knows none after"
            f" {max(ours, default=0):04}: run the newer relay"
        )
    for number, checksum in applied.items():
        if ours[number].checksum != checksum:
            raise ConfigError(
                f"{ours[number].name} is not the file that was applied to this database:"
                " restore it, and put the change into a new migration"
            )
    return [m for m in known if m.number not in applied]


async def _make_table(conn: Connection) -> None:
    await conn.execute("CREATE SCHEMA IF NOT EXISTS relay")
    await conn.execute(
        """
        CREATE TABLE IF NOT EXISTS relay.schema_migrations (
            number     integer PRIMARY KEY,
            name       text NOT NULL,
            checksum   text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        )
        """
    )


async def _apply(conn: Connection, migration: Migration) -> None:
    # Without parameters psycopg uses the simple protocol, which takes many statements at once.
    await conn.execute(migration.sql)
    await conn.execute(
        "INSERT INTO relay.schema_migrations (number, name, checksum) VALUES (%s, %s, %s)",
        [migration.number, migration.name, migration.checksum],
    )
