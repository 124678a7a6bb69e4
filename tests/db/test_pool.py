"""The pool: bounded, fair, with deadlines, and nothing is inherited from an earlier user."""

import os
import signal
from datetime import UTC

import psycopg
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.db.arrays import BIGINTS, TEXTS, bigints
from relay.db.connection import Statement, connect
from relay.db.pool import Pool
from relay.errors import ConfigError, DatabaseUnavailable, RolledBack
from tests.db.cluster import Cluster
from tests.eventually import eventually

INT4 = 23


async def backend(pool: Pool) -> int:
    pid = await pool.fetch_value("SELECT pg_backend_pid()")
    assert isinstance(pid, int)
    return pid


class TestCalls:
    async def test_each_helper_returns_its_shape(self, pool):
        """fetch gives rows, fetch_row one or None, fetch_value one column, execute a count."""
        assert await pool.fetch("SELECT n FROM generate_series(1, %s) n", [2]) == [(1,), (2,)]
        assert await pool.fetch_row("SELECT 1, 'a'") == (1, "a")
        assert await pool.fetch_row("SELECT 1 WHERE false") is None
        assert await pool.fetch_value("SELECT %(a)s::int", {"a": 5}) == 5
        assert await pool.fetch_value("SELECT 1 WHERE false") is None
        await pool.execute("CREATE TABLE t (n int)")
        assert await pool.execute("INSERT INTO t VALUES (1), (2)") == 2

    async def test_percent_is_plain_without_parameters(self, pool):
        """A statement without parameters may contain a per cent sign."""
        assert await pool.fetch_value("SELECT 'a' LIKE 'a%'") is True

    async def test_a_broken_statement_is_psycopgs_error(self, pool):
        """An error of the statement passes unchanged and the connection is kept."""
        pid = await backend(pool)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await pool.fetch("SELECT * FROM nothing")
        with pytest.raises(psycopg.ProgrammingError, match="didn't produce"):
            await pool.fetch("CREATE TABLE t (n int)")
        assert await backend(pool) == pid

    async def test_a_transaction_commits_or_rolls_back(self, pool):
        """transaction() is all or nothing."""
        await pool.execute("CREATE TABLE t (n int)")
        async with pool.transaction() as conn:
            await conn.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(ZeroDivisionError):
            async with pool.transaction() as conn:
                await conn.execute("INSERT INTO t VALUES (2)")
                raise ZeroDivisionError
        assert await pool.fetch("SELECT n FROM t") == [(1,)]


class TestStatements:
    DOUBLE = Statement("SELECT n * 2 FROM unnest($1) AS n ORDER BY n", (BIGINTS,))

    @pytest.mark.parametrize("prepare", [True, False])
    async def test_a_statement_travels_in_binary(self, database_url, prepare):
        """Prepared once a connection, or never for a PgBouncer that knows none."""
        pool = Pool(database_url, size=1, prepare=prepare)
        for numbers in ([3, 1], [], [2]):
            result = await pool.run(self.DOUBLE, (bigints(numbers).data,))
            found = [result.get_value(row, 0) for row in range(result.ntuples)]
            assert found == [(2 * n).to_bytes(8) for n in sorted(numbers)]
        names = await pool.fetch("SELECT name FROM pg_prepared_statements WHERE name ~ '^relay'")
        assert len(names) == int(prepare)
        await pool.hang_up()
        assert (await pool.run(self.DOUBLE, (bigints([1]).data,))).ntuples == 1
        await pool.close()

    async def test_its_rows_are_those_of_a_fetch(self, pool):
        """Values of every kind that is asked for so, and none; only times are in UTC."""
        sql = """
            SELECT n, n::float8, n::text, gen::uuid, n = 2, '2026-11-27 12:00:00.000001+02'
                   ::timestamptz, NULL::text
            FROM unnest({}::bigint[]) n
            CROSS JOIN (SELECT '01a1fe77-f8c8-7278-8db0-bae5d604828d' AS gen) g
            """
        for numbers in ([1, 2], []):
            statement = Statement(sql.format("$1"), (BIGINTS,))
            found = await pool.rows(statement, (bigints(numbers).data,))
            assert found == await pool.fetch(sql.format("%s"), (numbers,))
            assert {row[5].tzinfo for row in found} <= {UTC}

    async def test_it_survives_what_psycopg_deallocates(self, pool):
        """After a ROLLBACK psycopg forgets all prepared statements of the connection."""
        for _ in range(2):
            for _ in range(7):
                await pool.fetch("SELECT %s::int", (1,))  # psycopg prepares its own
            assert (await pool.run(self.DOUBLE, (bigints([1]).data,))).ntuples == 1
            with pytest.raises(ZeroDivisionError):
                async with pool.transaction() as conn:
                    assert (await conn.run(self.DOUBLE, (bigints([1, 2]).data,))).ntuples == 2
                    raise ZeroDivisionError
            await pool.fetch("SELECT 1")
        assert pool.statistics().opened == 1

    async def test_one_that_the_server_knows_already_is_run(self, database_url):
        """A PREPARE that ended in an error may be kept there; no other text has its name."""
        like = Statement(self.DOUBLE.sql.decode(), (BIGINTS,))
        others = Statement("SELECT $1", (BIGINTS,)), Statement(self.DOUBLE.sql.decode(), (TEXTS,))
        assert like.name == self.DOUBLE.name
        assert len({like.name, *(other.name for other in others)}) == 3
        async with await connect(database_url, autocommit=True) as conn:
            name, text = like.name.decode(), like.sql.decode()
            await conn.execute(f"PREPARE {name} (bigint[]) AS {text}", prepare=False)
            for _ in range(2):
                assert (await conn.run(like, (bigints([1, 2]).data,))).ntuples == 2

    async def test_its_errors_are_those_of_any_other(self, pool, database_url):
        """Psycopg's own, and the connection is kept; past the time-out it is thrown away."""
        pid = await backend(pool)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await pool.run(Statement("SELECT * FROM nothing", ()), ())
        with pytest.raises(psycopg.errors.DivisionByZero):
            await pool.run(Statement("SELECT 1 / $1", (INT4,)), ((0).to_bytes(4),))
        assert await backend(pool) == pid
        with pytest.raises(DatabaseUnavailable):
            await pool.run(Statement("SELECT pg_sleep(30)", ()), (), timeout=0.1)
        assert await backend(pool) != pid


class TestBounds:
    async def test_no_more_connections_than_its_size(self, database_url):
        """Many tasks share few connections, and each is served."""
        pool = Pool(database_url, size=3)
        pids = set()

        async def ask() -> None:
            pids.add(await pool.fetch_value("SELECT pg_backend_pid() FROM pg_sleep(0.005)"))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(ask)
        assert len(pids) == 3
        found = pool.statistics()
        assert (found.size, found.in_use, found.idle, found.waiting) == (3, 0, 3, 0)
        assert (found.opened, found.discarded) == (3, 0)
        await pool.close()

    async def test_waiting_ends_by_the_deadline(self, database_url):
        """Who gets no connection in time gets DatabaseUnavailable, and statistics tell."""
        pool = Pool(database_url, size=1)
        async with pool.connection():
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    with pytest.raises(DatabaseUnavailable, match="busy"):
                        async with pool.connection(timeout=0.05):
                            pass

                nursery.start_soon(wait)
                await wait_all_tasks_blocked(0.001)
                assert pool.statistics().waiting == 1
            assert pool.statistics().in_use == 1
        assert await pool.fetch_value("SELECT 1") == 1
        await pool.close()

    async def test_waiters_are_served_in_order(self, database_url):
        """A connection goes to who has waited longest."""
        pool = Pool(database_url, size=1)
        order = []

        async def ask(n: int) -> None:
            async with pool.connection():
                order.append(n)

        async with trio.open_nursery() as nursery, pool.connection():
            for n in range(5):
                nursery.start_soon(ask, n)
                await wait_all_tasks_blocked()
        assert order == [0, 1, 2, 3, 4]
        await pool.close()

    async def test_the_last_used_is_the_next_used(self, pool):
        """Connections are handed out last in, first out."""
        async with pool.connection() as first, pool.connection() as second:
            pids = (first.info.backend_pid, second.info.backend_pid)
        # The inner block ended first, so the outer one's connection lies on top.
        assert [await backend(pool) for _ in range(3)] == [pids[0]] * 3

    async def test_a_closed_pool_gives_nothing(self, database_url):
        """After close() idle connections are gone and a call is DatabaseUnavailable."""
        pool = Pool(database_url)
        async with pool.connection() as conn:
            await pool.fetch("SELECT")
            await pool.close()
        assert conn.closed
        assert pool.statistics().idle == 0
        with pytest.raises(DatabaseUnavailable, match="closed"):
            await pool.fetch("SELECT")


class TestCleanliness:
    async def test_an_open_transaction_is_not_inherited(self, pool):
        """A connection that comes back inside a transaction is rolled back."""
        await pool.execute("CREATE TABLE t (n int)")
        async with pool.connection() as conn:
            await conn.execute("BEGIN")
            await conn.execute("INSERT INTO t VALUES (1)")
            pid = conn.info.backend_pid
        async with pool.connection() as conn:
            assert conn.info.backend_pid == pid
            assert conn.at_rest()
        assert await pool.fetch_value("SELECT count(*) FROM t") == 0

    async def test_a_failed_transaction_is_not_inherited(self, pool):
        """So is one whose transaction had failed."""
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with pool.connection() as conn:
                await conn.execute("BEGIN")
                await conn.execute("SELECT 1 / 0")
        assert await pool.fetch_value("SELECT 1") == 1

    async def test_a_busy_connection_is_not_inherited(self, pool):
        """A connection that comes back in the middle of an answer is closed."""
        async with pool.connection() as conn:
            conn.pgconn.send_query(b"SELECT pg_sleep(60)")
        assert conn.closed
        assert await pool.fetch_value("SELECT 1") == 1
        assert pool.statistics().discarded == 1

    async def test_a_cancelled_call_keeps_the_pool_whole(self, pool):
        """A caller that is cancelled in mid-query leaves a clean connection behind."""
        pid = await backend(pool)
        with trio.move_on_after(0.05) as scope:
            await pool.fetch("SELECT pg_sleep(60)")
        assert scope.cancelled_caught
        assert await backend(pool) == pid
        assert pool.statistics().in_use == 0

    async def test_cancellation_at_any_moment_loses_no_slot(self, database_url):
        """Callers cancelled while waiting, connecting or asking leave every slot free."""
        pool = Pool(database_url, size=2)

        async def ask(after: float) -> None:
            with trio.move_on_after(after):
                async with pool.transaction() as conn:
                    await conn.execute("SELECT pg_sleep(0.002)")

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for n in range(40):
                    nursery.start_soon(ask, n * 0.0005)
        found = pool.statistics()
        assert (found.in_use, found.waiting) == (0, 0)
        assert found.idle <= 2
        assert await pool.fetch_value("SELECT 1") == 1
        await pool.close()


class TestTrouble:
    async def test_an_unanswered_call_costs_the_connection(self, pool):
        """Past its deadline a call is DatabaseUnavailable and its connection is thrown away."""
        pid = await backend(pool)
        with pytest.raises(DatabaseUnavailable, match="did not answer"):
            await pool.fetch("SELECT pg_sleep(60)", timeout=0.05)
        assert await backend(pool) != pid

    async def test_a_stopped_backend_does_not_hold_the_caller(self, pool):
        """SIGSTOP defeats the server's own time-outs, not ours."""
        pid = await backend(pool)
        os.kill(pid, signal.SIGSTOP)
        try:
            with trio.fail_after(10), pytest.raises(DatabaseUnavailable):
                await pool.fetch("SELECT 1", timeout=0.05)
            assert await backend(pool) != pid
        finally:
            os.kill(pid, signal.SIGCONT)

    @pytest.mark.parametrize("stopped_at", ["BEGIN", "a statement", "COMMIT", "ROLLBACK"])
    async def test_a_stopped_backend_does_not_hold_a_block(self, database_url, stopped_at):
        """Each answer of a transaction has a deadline, also that of BEGIN and of COMMIT."""
        pool = Pool(database_url, size=1, call_timeout=0.05)
        pid = await backend(pool)

        def stop(at: str) -> None:
            if at == stopped_at:
                os.kill(pid, signal.SIGSTOP)

        try:
            with trio.fail_after(10), pytest.raises(DatabaseUnavailable):
                stop("BEGIN")
                patience = 20.0 if stopped_at == "COMMIT" else None  # for statements alone
                async with pool.transaction(patience=patience) as conn:
                    stop("a statement")
                    await conn.execute("SELECT 1")
                    stop("COMMIT")
                    if stopped_at == "ROLLBACK":
                        stop(stopped_at)
                        raise DatabaseUnavailable("the caller's own trouble")
            assert (pool.statistics().in_use, pool.statistics().idle) == (0, 0)
            assert await backend(pool) != pid
        finally:
            os.kill(pid, signal.SIGCONT)
            await pool.close()

    async def test_a_block_may_take_its_time_between_statements(self, database_url, virtual):
        """The deadline is the server's; what the block does with the answers does not count."""
        pool = Pool(database_url, size=1, call_timeout=0.2)
        async with pool.transaction() as conn:
            await conn.execute("CREATE TABLE t (n int)")
            virtual.jump(0.3)
        async with pool.transaction(patience=20.0) as conn:
            await conn.execute("SELECT pg_sleep(0.3)")
        assert await pool.fetch("SELECT n FROM t") == []
        await pool.close()

    async def test_a_terminated_idle_backend_is_noticed_before_use(self, pool, database_url):
        """An idle connection that died is replaced without an error."""
        pid = await backend(pool)
        async with await connect(database_url) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", [pid])

            async def left() -> object:
                cursor = await other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid])
                return await cursor.fetchone()

            await eventually(left, "it is gone", until=lambda row: row is None)
        assert await backend(pool) != pid

    async def test_a_backend_terminated_in_use_is_unavailable(self, pool):
        """A connection that breaks under a statement is DatabaseUnavailable, from the cause."""
        with pytest.raises(DatabaseUnavailable) as caught:
            await pool.fetch("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
        assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        with pytest.raises(DatabaseUnavailable):
            async with pool.transaction() as conn:
                await conn.execute("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
        assert await pool.fetch_value("SELECT 1") == 1

    async def test_a_restart_of_the_server_is_survived(self, server: Cluster):
        """Down: DatabaseUnavailable at once; back: the next call works, without an error."""
        pool = Pool(server.dsn(), size=4)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(pool.fetch, "SELECT pg_sleep(0.01)")
        assert pool.statistics().idle == 4
        await trio.to_thread.run_sync(server.stop)
        with pytest.raises(DatabaseUnavailable, match="no connection"):
            await pool.fetch("SELECT 1")
        await trio.to_thread.run_sync(server.start)
        assert await pool.fetch_value("SELECT 1") == 1
        assert pool.statistics().idle == 1
        await pool.close()

    async def test_a_read_only_server_is_unavailable(self, database_url):
        """A server that became a standby refuses writes; that is an outage, not a bug."""
        pool = Pool(database_url, size=1)
        await pool.execute("CREATE TABLE t (n int)")
        with pytest.raises(DatabaseUnavailable):
            async with pool.transaction() as conn:
                await conn.execute("SET TRANSACTION READ ONLY")
                await conn.execute("INSERT INTO t VALUES (1)")
        await pool.close()

    @pytest.mark.parametrize("whole", [True, False])
    async def test_what_is_rolled_back_for_others_may_be_tried_again(self, pool, whole):
        """A deadlock, a lock that does not come: said as such, and the connection is kept."""
        await pool.execute("CREATE TABLE t (n int PRIMARY KEY, m int)")
        await pool.execute("INSERT INTO t VALUES (1), (2)")
        lock = "SELECT FROM t WHERE n = %s FOR UPDATE"
        ended = []

        async def one(mine: int, others: int) -> None:
            async with pool.transaction() as conn:
                await conn.execute(lock, (mine,))
                have.append(mine)
                await eventually(lambda: len(have), "both have one", until=lambda n: n == 2)
                await conn.execute(lock, (others,))

        async def ends(mine: int, others: int) -> None:
            try:
                await one(mine, others)
                ended.append("committed")
            except RolledBack:
                ended.append("rolled back")

        have: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends, 1, 2)
            nursery.start_soon(ends, 2, 1)
        assert sorted(ended) == ["committed", "rolled back"]
        async with pool.transaction() as holder:
            await holder.execute(lock, (1,))
            async with pool.connection() as conn:
                pid = conn.pgconn.backend_pid
                await conn.execute("SET lock_timeout = '50ms'")
            with pytest.raises(RolledBack):
                if whole:
                    await pool.execute("UPDATE t SET m = 1 WHERE n = 1")
                else:
                    async with pool.connection() as conn:
                        await conn.execute("UPDATE t SET m = 1 WHERE n = 1")
            assert await backend(pool) == pid

    async def test_too_many_connections_is_unavailable(self, server: Cluster):
        """A server without a free connection is an outage."""
        server.admin("CREATE DATABASE narrow CONNECTION LIMIT 0")
        server.admin("DROP ROLE IF EXISTS guest")
        server.admin("CREATE ROLE guest LOGIN")
        dsn = server.dsn("narrow").replace("user=relay", "user=guest")
        pool = Pool(dsn)
        with pytest.raises(DatabaseUnavailable, match="too many connections"):
            await pool.fetch("SELECT 1")
        assert pool.statistics().in_use == 0
        server.drop_database("narrow")

    def test_a_dsn_that_cannot_be_read_is_a_config_error(self):
        """A typing mistake in the DSN is told before anything starts."""
        with pytest.raises(ConfigError, match="database URL"):
            Pool("postgres//nonsense")
