"""Doubt: a commit that did not wait for its standby is no success, and a look is no proof."""

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from relay.cli.doctor.replication import inspect
from relay.db.arrays import TEXT
from relay.db.connection import Connection, Statement, connect
from relay.db.doubt import BARRIER, NotReplicated, is_doubt
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from tests.db.cluster import Cluster, Pair, binaries

PATIENCE = 0.3  # s; nothing here should take that long by itself
INSERT = Statement("INSERT INTO t VALUES ($1)", (TEXT,))


@pytest.fixture(scope="module", params=(18, 15), ids=lambda version: f"pg{version}")
def lonely(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A primary whose synchronous standby is away for good."""
    bin_dir = binaries(request.param)
    if bin_dir is None:
        pytest.skip(f"PostgreSQL {request.param} is not installed")
    cluster = Cluster(bin_dir)
    cluster.start()
    cluster.admin("CREATE TABLE t (a text PRIMARY KEY)")
    cluster.lose_standby()
    yield cluster
    cluster.remove()


@pytest.fixture
async def pool(lonely: Cluster) -> AsyncIterator[Pool]:
    """A pool on it, of little patience."""
    pool = Pool(lonely.dsn(), size=2, call_timeout=PATIENCE)
    yield pool
    await pool.close()


@pytest.fixture
async def local(lonely: Cluster) -> AsyncIterator[Pool]:
    """A pool whose commits wait for nobody: what it writes is visible, and on the primary alone."""
    pool = Pool(lonely.local_dsn())
    await pool.execute("TRUNCATE t")
    yield pool
    await pool.close()


async def cancel_waits(local: Pool, done: trio.Event) -> None:
    """Do what an operator does when everything hangs, until it has worked."""
    while not done.is_set():
        await local.fetch(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        await trio.sleep(0.01)


async def in_autocommit(conn: Connection) -> None:
    await conn.execute("INSERT INTO t VALUES ('a')")


async def in_a_transaction(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("INSERT INTO t VALUES ('a')")


async def as_a_statement(conn: Connection) -> None:
    await conn.run(INSERT, [b"a"])


WAYS = pytest.mark.parametrize("commit", [in_autocommit, in_a_transaction, as_a_statement])


@WAYS
async def test_a_wait_that_somebody_cancels_is_no_success(local, lonely, commit):
    """Whoever cancels it, and however it was committed: an error, though the row is there."""
    patient = Pool(lonely.dsn(), size=1, call_timeout=20.0)
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_waits, local, done)
        with pytest.raises(DatabaseUnavailable, match="synchronous standby"):
            async with patient.connection() as conn:
                await commit(conn)
        done.set()
    assert await local.fetch("SELECT a FROM t") == [("a",)]
    assert await patient.fetch_value("SELECT 1") == 1  # the doubt was that statement's alone
    assert patient.statistics().opened == 1
    await patient.close()


async def test_the_notice_is_known_by_its_source_and_by_its_words(local, lonely):
    """The function's name says it in every language; the words, where it does not come through."""
    seen: list[tuple[bool, str | None, str | None]] = []
    async with await connect(lonely.dsn()) as conn, trio.open_nursery() as nursery:
        conn.add_notice_handler(
            lambda notice: seen.append(
                (is_doubt(notice), notice.source_function, notice.message_primary)
            )
        )
        await conn.execute("DO $$ BEGIN RAISE WARNING 'of another kind'; END $$")
        done = trio.Event()
        nursery.start_soon(cancel_waits, local, done)
        with pytest.raises(NotReplicated):
            await conn.execute("INSERT INTO t VALUES ('a')")
        done.set()
        words = seen[-1][2]
        with pytest.raises(NotReplicated):
            await conn.execute(f"DO $$ BEGIN RAISE WARNING '{words}'; END $$".encode())
    assert [one[:2] for one in seen] == [
        (False, "exec_stmt_raise"),
        (True, "SyncRepWaitForLSN"),
        (True, "exec_stmt_raise"),
    ]


async def test_a_call_that_was_given_up_taints_nobody(local, lonely):
    """The warning that a client's own deadline causes is not held against the next statement."""
    pool = Pool(lonely.dsn(), size=1, call_timeout=20.0)
    async with pool.connection() as conn:
        with trio.move_on_after(PATIENCE) as scope:
            await conn.execute("INSERT INTO t VALUES ('a')")
        assert scope.cancelled_caught
        assert await (await conn.execute("SELECT a FROM t")).fetchall() == [("a",)]
    assert pool.statistics().idle == 1
    await pool.close()


@WAYS
async def test_a_deadline_leaves_a_commit_in_doubt(pool, local, commit):
    """It is visible, and whoever waited for it hears that nobody knows; the connection is gone."""
    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        async with pool.connection() as conn:
            await commit(conn)
    assert await local.fetch("SELECT a FROM t") == [("a",)]
    assert pool.statistics().idle == 0


async def test_what_is_found_is_promised_only_after_a_commit(pool, local):
    """A look sees the row at once; with the barrier it waits for the standby, or is in doubt."""
    await local.execute("INSERT INTO t VALUES ('a')")
    assert await pool.fetch("SELECT a FROM t") == [("a",)]
    with pytest.raises(DatabaseUnavailable):
        await pool.fetch_durable("SELECT a FROM t")
    with pytest.raises(DatabaseUnavailable):  # that there is none is a find, too
        await pool.execute_durable("DELETE FROM t WHERE a = %s", ["b"])


async def test_any_role_may_raise_the_barrier(any_pool):
    """It needs no right but to connect."""
    async with any_pool.connection() as conn, conn.transaction(force_rollback=True):
        await conn.execute("CREATE ROLE nobody_in_particular")
        await conn.execute("SET LOCAL ROLE nobody_in_particular")
        await conn.execute(BARRIER)


async def test_with_the_standby_there_both_are_promised():
    """Found or not found, in one transaction with a write of its own."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    with Pair(bin_dir) as pair:
        pair.primary.admin("CREATE TABLE t (a text PRIMARY KEY)")
        await trio.to_thread.run_sync(pair.begin)
        pool = Pool(pair.primary.dsn(), size=1)
        await pool.execute("INSERT INTO t VALUES ('a')")
        assert await pool.fetch_durable("SELECT a FROM t WHERE a = %s", ["a"]) == [("a",)]
        assert await pool.fetch_durable("SELECT a FROM t WHERE a = %s", ["b"]) == []
        assert await pool.execute_durable("DELETE FROM t WHERE a = %s", ["b"]) == 0
        assert await pool.execute_durable("DELETE FROM t WHERE a = %s", ["a"]) == 1
        await pool.close()
        async with await connect(pair.primary.dsn()) as conn:
            assert (await inspect(conn)).found == "commits wait for a standby (on)"
        # On a standby nothing can be confirmed, though everything can be seen.
        reader = Pool(pair.standby.dsn(), size=1)
        assert await reader.fetch("SELECT FROM t WHERE a = 'b'") == []
        with pytest.raises(DatabaseUnavailable, match="confirms nothing"):
            await reader.fetch_durable("SELECT FROM t")
        await reader.close()


async def test_the_doctor_sees_that_the_standby_is_away(lonely):
    """It says why mail gets 451, and that nothing is lost by it."""
    async with await connect(lonely.dsn()) as conn:
        found = await inspect(conn)
    assert (found.state, "mail gets 451" in found.found) == ("warn", True)


async def test_the_barrier_waits_like_any_commit(local, lonely):
    """It is no success either when somebody cancels its wait."""
    patient = Pool(lonely.dsn(), size=1, call_timeout=20.0)
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_waits, local, done)
        with pytest.raises(DatabaseUnavailable, match="synchronous standby"):
            await patient.fetch_durable("SELECT a FROM t")
        with pytest.raises(DatabaseUnavailable, match="synchronous standby"):
            await patient.execute(BARRIER.decode())
        done.set()
    await patient.close()
