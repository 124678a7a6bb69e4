"""The way from every earlier schema to this one: nothing is lost, and the end is the same."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from relay.db.migrate import SchemaTooNew, migrate, migrations
from tests.conftest import VERSIONS, Clusters
from tests.db.cluster import Cluster
from tests.db.legacy import HERITAGE, RELEASED, dump, inherited, load, settle

LAST = migrations()[-1].number


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"pg{version}")
def cluster(clusters: Clusters, request: pytest.FixtureRequest) -> Cluster:
    """A server of each supported version."""
    return clusters.get(request.param)


class Past:
    """A database that goes through the schemas in order, of which a test takes a copy."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._name = ""
        self._at = 0

    def as_of(self, number: int) -> str:
        """Return the name of a database as a relay of that migration left it; nobody may write."""
        if not self._name or number < self._at:
            self.forget()
            self._directory.mkdir()
            self._name = self._cluster.new_database()
        settle(self._cluster.dsn(self._name), number, self._directory, self._at)
        self._at = number
        return self._name

    def forget(self) -> None:
        """Leave nothing of it."""
        if self._name:
            self._cluster.drop_database(self._name)
            shutil.rmtree(self._directory)
        self._name, self._at = "", 0


@pytest.fixture(scope="module")
def past(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """What earlier relays left; to make it anew for each test would be half of all migrations."""
    past = Past(cluster, tmp_path_factory.mktemp("past") / "migrations")
    yield past
    past.forget()


@pytest.fixture
def left(cluster: Cluster, past: Past) -> Iterator[Callable[[int], str]]:
    """Makes a database of the test's own as a relay of a migration left it; its DSN."""
    made: list[str] = []

    def make(number: int) -> str:
        made.append(cluster.new_database(past.as_of(number)))
        return cluster.dsn(made[-1])

    yield make
    for name in made:
        cluster.drop_database(name)


def upgrade(dsn: str) -> list[int]:
    return trio.run(functools.partial(migrate, dsn))


@pytest.mark.parametrize("start", range(1, LAST + 1), ids=lambda number: f"from_{number:04}")
def test_what_an_earlier_relay_held_is_there_after_the_upgrade(
    left: Callable[[int], str], start: int
) -> None:
    """From each migration on, with the data of its time, the rest applies and the data stays."""
    dsn = left(start)
    assert inherited(dsn, start) == {}
    outbound = start >= next(m.number for m in migrations() if m.name.endswith("_outbound.sql"))
    if outbound:
        leave_by_default(dsn)
    assert upgrade(dsn) == list(range(start + 1, LAST + 1))
    assert inherited(dsn, start) == {}
    assert upgrade(dsn) == []
    if outbound:
        assert moved_by_default(dsn) == (4, [(1,)] * 4)


def leave_by_default(dsn: str) -> None:
    """Leave a message of a week that no partition covers, as a clock far ahead does."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute(
            """
            INSERT INTO relay.outbound_contents_rest (id, sender, subject)
            VALUES (relay.uuidv7_floor('2080-01-03Z'), 'a@x.org', 'Ahead')
            """
        )
        sql.execute(
            """
            INSERT INTO relay.outbound_letters_rest (id, content_id, owner, recipient, address,
                                                     domain, priority)
            SELECT id, id, owner, 'b@x.org', 'b@x.org', 'x.org', 1
            FROM relay.outbound_contents_rest
            WHERE subject = 'Ahead'
            """
        )
        sql.execute(
            """
            INSERT INTO relay.outbound_log_rest (id, finished_at, token, attempt, status)
            VALUES (relay.uuidv7_floor('2080-01-03Z'), '2080-01-03Z', 1, 1, 'sent')
            """
        )
        sql.execute(
            """
            INSERT INTO relay.outbound_tries_rest (message_id, at, attempt, outcome)
            VALUES (relay.uuidv7_floor('2080-01-03Z'), '2080-01-03Z', 1, 'queued')
            """
        )


def moved_by_default(dsn: str) -> tuple[int, list[Any]]:
    """Make that week's partitions; return how many were made, and the rows of each."""
    week = [f"outbound_{what}_p20800101" for what in ("contents", "letters", "log", "tries")]
    with psycopg.connect(dsn, autocommit=True) as sql:
        made = sql.execute("SELECT relay.outbound_partition('2080-01-03Z')").fetchone()
        assert made is not None
        rows = [sql.execute(f"SELECT count(*) FROM relay.{name}").fetchone() for name in week]
        return made[0], rows


def test_each_migration_has_a_heritage() -> None:
    """Whoever adds a migration says what its users will have, so that the next one is tested."""
    assert {part.since for part in HERITAGE} == {migration.number for migration in migrations()}


def test_every_released_schema_is_brought_up_to_date(
    cluster: Cluster, left: Callable[[int], str]
) -> None:
    """A dump of each release, and of now, is migrated to exactly the schema of a fresh start."""
    here = left(LAST)
    fresh = dump(here, schema_only=True)
    dumps = {file.stem: file.read_text() for file in sorted(RELEASED.glob("*.sql"))}
    for version, text in {**dumps, "now": dump(here)}.items():
        name = cluster.new_database()
        try:
            dsn = cluster.dsn(name)
            load(dsn, text)
            with psycopg.connect(dsn) as sql:
                row = sql.execute("SELECT max(number) FROM relay.schema_migrations").fetchone()
                assert row is not None
            upgrade(dsn)
            assert inherited(dsn, row[0]) == {}, version
            # Partitions of a day are named by it, so those of an older dump differ.
            partition = re.compile(r"_(?:p?\d{8}|\d{4}_\d\d(?:_\d\d)?)\b")
            assert partition.sub("", dump(dsn, schema_only=True)) == partition.sub("", fresh)
        finally:
            cluster.drop_database(name)


def test_an_older_relay_refuses_a_newer_schema(left: Callable[[int], str], tmp_path: Path) -> None:
    """The program of every earlier release would say so, and touch nothing."""
    dsn = left(LAST)
    for migration in migrations()[:-1]:
        (tmp_path / migration.name).write_text(migration.sql)
    with pytest.raises(SchemaTooNew):
        trio.run(functools.partial(migrate, dsn, tmp_path))
    assert inherited(dsn, LAST) == {}


def test_what_was_read_before_it_was_counted_is_counted(left: Callable[[int], str]) -> None:
    """Mail that was read, in an earlier relay, is not unread again; nor is what is deleted then."""
    unread = next(m.number for m in migrations() if m.name.endswith("_unread.sql"))
    dsn = left(unread - 1)
    counts = """
        SELECT sum(messages)::integer, sum(was_read)::integer
        FROM (SELECT messages, was_read FROM relay.mailbox_usage UNION ALL
              SELECT messages, was_read FROM relay.usage_changes) counted
        """
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("UPDATE relay.messages SET is_read = true")
        upgrade(dsn)
        assert sql.execute(counts).fetchone() == (2, 2)
        sql.execute("SELECT relay.fold_usage(NULL, 1)")
        sql.execute("DELETE FROM relay.messages WHERE id = (SELECT min(id::text)::uuid"
                    " FROM relay.messages)")  # fmt: skip
        assert sql.execute(counts).fetchone() == (1, 1)


@pytest.mark.parametrize("granted", [False, True])
def test_who_might_call_relay_send_still_may(left: Callable[[int], str], granted: bool) -> None:
    """The function was made anew with one parameter more; grants and revocations are kept."""
    deadlines = next(m.number for m in migrations() if m.name.endswith("_deadlines.sql"))
    dsn = left(deadlines - 1)
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE relay_test_product")
        try:
            if granted:
                sql.execute("REVOKE EXECUTE ON FUNCTION relay.send FROM PUBLIC")
                sql.execute("GRANT EXECUTE ON FUNCTION relay.send TO relay_test_product")
            upgrade(dsn)
            may = sql.execute(
                """
                SELECT has_function_privilege('relay_test_product', p.oid, 'EXECUTE'),
                       has_function_privilege('public', p.oid, 'EXECUTE')
                FROM pg_proc AS p
                WHERE p.proname = 'send' AND p.pronamespace = 'relay'::regnamespace
                """
            ).fetchall()
            assert may == [(True, not granted)]
        finally:
            sql.execute("DROP OWNED BY relay_test_product")
            sql.execute("DROP ROLE relay_test_product")
