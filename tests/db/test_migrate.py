"""Migrations: each exactly once, whole or not at all, and never backwards."""

from pathlib import Path

import psycopg
import pytest
import trio
from psycopg.conninfo import make_conninfo

from relay.db.connection import connect
from relay.db.migrate import SchemaTooNew, check, migrate, migrations
from relay.errors import ConfigError, DatabaseUnavailable


@pytest.fixture
def empty_url(any_database_url: str) -> str:
    """A database without the schema `relay`."""
    with psycopg.connect(any_database_url, autocommit=True) as conn:
        conn.execute("DROP SCHEMA IF EXISTS relay CASCADE")
    return any_database_url


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two migrations, of which the second uses the first."""
    (tmp_path / "0001_one.sql").write_text(
        "CREATE TABLE relay.one (n int);\n"
        "CREATE FUNCTION relay.two() RETURNS int LANGUAGE sql AS $$ SELECT 2; $$;\n"
    )
    (tmp_path / "0002_two.sql").write_text("INSERT INTO relay.one VALUES (relay.two());\n")
    (tmp_path / "README").write_text("not a migration\n")
    return tmp_path


async def rows(dsn: str, table: str = "relay.one") -> list[tuple[int]]:
    async with await connect(dsn) as conn:
        return await (await conn.execute(f"SELECT n FROM {table}")).fetchall()


async def test_pending_files_run_in_order_and_once(empty_url, files):
    """The first run applies everything, the second nothing."""
    assert (await check(empty_url, files)).pending == (1, 2)
    assert await migrate(empty_url, files) == [1, 2]
    assert await migrate(empty_url, files) == []
    assert await rows(empty_url) == [(2,)]
    found = await check(empty_url, files)
    assert (found.applied, found.pending) == ((1, 2), ())
    assert found.server_version in (15, 18)


async def test_a_later_file_is_added(empty_url, files):
    """A database of an older program is brought up to date."""
    await migrate(empty_url, files)
    (files / "0003_three.sql").write_text("INSERT INTO relay.one VALUES (3)")
    assert await migrate(empty_url, files) == [3]


async def test_a_failing_file_leaves_no_trace(empty_url, files):
    """A file runs whole or not at all; those before it stay."""
    (files / "0003_bad.sql").write_text("INSERT INTO relay.one VALUES (3); SELECT 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(empty_url, files)
    assert (await check(empty_url, files)).pending == (3,)
    assert await rows(empty_url) == [(2,)]


async def test_relays_that_start_together_apply_each_file_once(empty_url, files):
    """Concurrent migrators take turns and none repeats another's work."""
    applied: list[int] = []

    async def start() -> None:
        applied.extend(await migrate(empty_url, files))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(start)
    assert sorted(applied) == [1, 2]
    assert await rows(empty_url) == [(2,)]


async def test_a_newer_schema_is_refused(empty_url, files):
    """An older program says in one sentence that the database is ahead of it."""
    await migrate(empty_url, files)
    (files / "0002_two.sql").unlink()
    with pytest.raises(SchemaTooNew, match="has migration 0002, and this relay knows none after"):
        await migrate(empty_url, files)


async def test_a_changed_file_is_refused(empty_url, files):
    """A file that was edited after it had been applied is found by its checksum."""
    await migrate(empty_url, files)
    (files / "0001_one.sql").write_text("CREATE TABLE relay.other (n int)")
    with pytest.raises(ConfigError, match=r"0001_one\.sql is not the file that was applied"):
        await migrate(empty_url, files)


async def test_a_double_number_is_refused(files):
    """Two files of one number are a mistake of the program's makers."""
    (files / "0002_again.sql").write_text("SELECT 1")
    with pytest.raises(ConfigError, match="number 0002"):
        migrations(files)


async def test_owning_the_database_is_enough(empty_url, clusters):
    """The program's own migrations need no superuser; without ownership the error says so."""
    name = psycopg.conninfo.conninfo_to_dict(empty_url)["dbname"]
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute("CREATE ROLE plain LOGIN")
        try:
            plain = make_conninfo(empty_url, user="plain")
            with pytest.raises(ConfigError, match="make it the owner"):
                await migrate(plain)
            conn.execute(f"ALTER DATABASE {name} OWNER TO plain")
            assert await migrate(plain) == [m.number for m in migrations()]
        finally:
            conn.execute(f"ALTER DATABASE {name} OWNER TO relay")
            conn.execute("REASSIGN OWNED BY plain TO relay")
            conn.execute("DROP OWNED BY plain")
            conn.execute("DROP ROLE plain")


async def test_no_server_is_unavailable():
    """An unreachable server is an outage, a DSN that cannot be read a mistake."""
    with pytest.raises(DatabaseUnavailable):
        await migrate("host=/nowhere user=x dbname=x")
    with pytest.raises(ConfigError, match="cannot be read"):
        await migrate("postgres//nonsense")
