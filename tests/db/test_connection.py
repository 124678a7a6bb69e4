"""The contract: what the relay uses of psycopg works on Trio, on every supported PostgreSQL."""

import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg
import pytest
import trio
from psycopg import sql
from psycopg.conninfo import make_conninfo

from relay.db.connection import Connection, connect
from tests.db.cluster import Cluster, binaries

CANCELLED_AFTER = 0.1  # s: the query has reached the server by then


@pytest.fixture
async def conn(any_database_url: str) -> AsyncIterator[Connection]:
    conn = await connect(any_database_url)
    yield conn
    await conn.close()


async def value(conn: Connection, query: str) -> object:
    row = await (await conn.execute(sql.SQL(query))).fetchone()
    assert row is not None
    return row[0]


async def still_running(dsn: str, marker: str) -> int:
    """How many backends run a statement that contains the marker."""
    async with await connect(dsn) as watcher:
        cursor = await watcher.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()",
            [f"%{marker}%"],
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


class TestStatements:
    @pytest.mark.parametrize("many", [False, True])
    async def test_an_error_quotes_no_value_of_a_row(self, conn, many):
        """What a refused row holds stands in the diagnostics alone, whoever logs the error."""
        await conn.execute("CREATE TEMPORARY TABLE t (who text CHECK (who <> 'bob@x.example'))")
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            if many:
                await conn.cursor().executemany("INSERT INTO t VALUES (%s)", [["bob@x.example"]])
            else:
                await conn.execute("INSERT INTO t VALUES (%s)", ["bob@x.example"])
        assert str(caught.value).startswith("new row for relation")
        assert "bob" not in repr(caught.value)
        assert "bob" in (caught.value.diag.message_detail or "")

    async def test_rows_come_back_with_their_types(self, conn):
        """A cursor returns Python values, in order, and says how many."""
        cursor = await conn.execute("SELECT n, 'x' || n FROM generate_series(1, %s) n", [3])
        assert cursor.rowcount == 3
        assert await cursor.fetchall() == [(1, "x1"), (2, "x2"), (3, "x3")]

    async def test_a_failed_statement_leaves_the_connection_usable(self, conn):
        """An error is psycopg's own, and the next statement works."""
        with pytest.raises(psycopg.errors.DivisionByZero):
            await conn.execute("SELECT 1 / 0")
        assert conn.at_rest()
        assert await value(conn, "SELECT 2") == 2

    async def test_an_answer_of_many_megabytes_arrives_whole(self, conn):
        """A row far larger than any socket buffer is read to its end."""
        assert await value(conn, "SELECT repeat('x', 30000000)") == "x" * 30_000_000

    async def test_a_long_answer_is_not_read_one_turn_of_a_busy_loop_a_piece(self, conn):
        """What is there is read at once, and still others get their turns meanwhile."""
        turns = 0
        begun = trio.Event()

        async def others() -> None:
            nonlocal turns
            while True:
                begun.set()
                turns += 1
                time.sleep(0.003)  # noqa: ASYNC251 - what a busy loop does
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await begun.wait()
            cursor = await conn.execute(
                "SELECT repeat('x', 1000) FROM generate_series(1, 20000)", binary=True
            )
            nursery.cancel_scope.cancel()
        assert cursor.rowcount == 20000
        # A turn a piece would be over a thousand; a server that waits for a core costs some, too.
        assert 1 < turns < 400

    async def test_a_statement_of_many_megabytes_is_sent_whole(self, conn):
        """A parameter far larger than the send buffer waits for the socket and arrives."""
        data = os.urandom(30_000_000)
        cursor = await conn.execute("SELECT %s::bytea", [data], binary=True)
        assert await cursor.fetchone() == (data,)

    async def test_executemany_runs_each_row_and_returns_results(self, conn):
        """executemany() goes through a pipeline and gives every result back."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        cursor = conn.cursor()
        rows = [(n,) for n in range(1000)]
        await cursor.executemany("INSERT INTO t VALUES (%s) RETURNING n", rows, returning=True)
        seen = [await cursor.fetchone()]
        while cursor.nextset():
            seen.append(await cursor.fetchone())
        assert seen == rows

    async def test_a_server_side_cursor_is_read_in_steps(self, conn):
        """A named cursor in a transaction fetches what is asked and no more."""
        async with conn.transaction(), conn.cursor("steps") as cursor:
            await cursor.execute("SELECT * FROM generate_series(1, 1000)")
            assert await cursor.fetchmany(2) == [(1,), (2,)]
            assert [row async for row in cursor][-1] == (1000,)

    async def test_a_stream_is_read_row_by_row(self, conn):
        """stream() yields rows while the server still sends."""
        rows = [row async for row in conn.cursor().stream("SELECT generate_series(1, 500)")]
        assert rows[0] == (1,)
        assert len(rows) == 500

    async def test_a_statement_is_prepared_after_five_uses(self, any_database_url):
        """Repeated statements become prepared ones, and never when that is switched off."""
        counts = []
        for threshold in (5, None):
            async with await connect(any_database_url, prepare_threshold=threshold) as conn:
                for _ in range(7):
                    await conn.execute("SELECT %s::int", [1])
                counts.append(await value(conn, "SELECT count(*) FROM pg_prepared_statements"))
        assert counts == [1, 0]

    async def test_two_tasks_may_share_a_connection_in_turns(self, conn):
        """The lock lets one statement finish before the next begins."""
        seen: list[int] = []

        async def ask(n: int) -> None:
            seen.append(int(str(await value(conn, f"SELECT {n} FROM pg_sleep(0.01)"))))

        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(ask, n)
        assert sorted(seen) == [0, 1, 2, 3, 4]


class TestTransactions:
    async def test_a_block_commits_and_a_failing_block_rolls_back(self, conn):
        """Leaving the block commits; leaving it by an exception undoes it."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        async with conn.transaction():
            await conn.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("INSERT INTO t VALUES (2)")
                raise ZeroDivisionError
        assert await value(conn, "SELECT array_agg(n) FROM t") == [1]

    async def test_a_nested_block_is_a_savepoint(self, conn):
        """An inner block that fails takes only its own work with it."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        async with conn.transaction():
            await conn.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with conn.transaction("inner"):
                    await conn.execute("INSERT INTO t VALUES (2)")
                    await conn.execute("SELECT 1 / 0")
            await conn.execute("INSERT INTO t VALUES (3)")
        assert await value(conn, "SELECT array_agg(n ORDER BY n) FROM t") == [1, 3]

    async def test_a_cancelled_block_is_rolled_back(self, conn):
        """The rollback runs although the scope around it is cancelled."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        with trio.CancelScope() as scope:
            async with conn.transaction():
                await conn.execute("INSERT INTO t VALUES (1)")
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert conn.at_rest()
        assert await value(conn, "SELECT count(*) FROM t") == 0

    async def test_a_query_cancelled_in_a_block_rolls_the_block_back(self, conn):
        """Cancellation in mid-query inside a transaction leaves the connection at rest."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        with trio.move_on_after(CANCELLED_AFTER) as scope:
            async with conn.transaction():
                await conn.execute("INSERT INTO t VALUES (1)")
                await conn.execute("SELECT pg_sleep(60)")
        assert scope.cancelled_caught
        assert conn.at_rest()
        assert await value(conn, "SELECT count(*) FROM t") == 0


class TestCopy:
    async def test_rows_go_in_and_come_out(self, conn):
        """COPY FROM STDIN stores what is written, COPY TO STDOUT reads it back."""
        await conn.execute("CREATE TEMP TABLE t (n int, s text)")
        async with conn.cursor().copy("COPY t FROM STDIN") as copy:
            for n in range(20_000):
                await copy.write_row((n, "x" * 100))
        seen = []
        async with conn.cursor().copy("COPY (SELECT n, s FROM t ORDER BY n) TO STDOUT") as copy:
            copy.set_types(["int4", "text"])
            seen = [row async for row in copy.rows()]
        assert seen == [(n, "x" * 100) for n in range(20_000)]

    async def test_others_run_while_a_copy_never_waits(self, conn):
        """A COPY whose socket is always ready still gives other tasks their turns."""
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            async with conn.cursor().copy(
                "COPY (SELECT * FROM generate_series(1, 200000)) TO STDOUT"
            ) as copy:
                async for _ in copy:
                    pass
            during = turns
            nursery.cancel_scope.cancel()
        assert during > 5

    async def test_a_failing_writer_stores_nothing(self, conn):
        """An exception inside the block makes the server discard the rows."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        with pytest.raises(ZeroDivisionError):
            async with conn.cursor().copy("COPY t FROM STDIN") as copy:
                await copy.write_row((1,))
                raise ZeroDivisionError
        assert conn.at_rest()
        assert await value(conn, "SELECT count(*) FROM t") == 0

    @pytest.mark.parametrize(
        "statement",
        [
            "COPY t FROM STDIN",
            "COPY (SELECT repeat('x', 1000), generate_series(1, 100000000)) TO STDOUT",
        ],
        ids=["in", "out"],
    )
    async def test_a_cancelled_copy_ends_on_both_sides(self, conn, statement):
        """Cancellation inside a COPY block leaves the connection at rest and usable."""
        await conn.execute("CREATE TEMP TABLE t (n text)")
        with trio.CancelScope() as scope:
            async with conn.cursor().copy(statement) as copy:
                for n in range(10**9):
                    if statement.endswith("STDIN"):
                        await copy.write_row(("x" * 1000,))
                    else:
                        await copy.read()
                    if n == 1000:
                        scope.cancel()
        assert scope.cancelled_caught
        assert conn.at_rest()
        assert await value(conn, "SELECT count(*) FROM t") == 0

    async def test_a_copy_cancelled_before_its_first_row_is_not_left_busy(self, conn):
        """Cancellation while the server prepares the rows ends the query or the connection."""
        with trio.move_on_after(CANCELLED_AFTER) as scope:
            async with conn.cursor().copy("COPY (SELECT pg_sleep(60)) TO STDOUT") as copy:
                async for _ in copy:
                    pass
        assert scope.cancelled_caught
        assert conn.at_rest() or conn.closed


class TestPipeline:
    async def test_many_statements_share_a_round_trip(self, conn):
        """Statements are sent without waiting for answers, which all arrive."""
        async with conn.pipeline():
            cursors = [await conn.execute("SELECT %s::int", [n]) for n in range(500)]
        assert [await c.fetchone() for c in cursors] == [(n,) for n in range(500)]
        assert conn.at_rest()

    async def test_both_sides_full_does_not_deadlock(self, conn):
        """Large statements with large answers fill both socket buffers and still get through."""
        data = "x" * 1_000_000
        async with conn.pipeline():
            cursors = [await conn.execute("SELECT %s::text", [data]) for _ in range(30)]
        assert [await c.fetchone() for c in cursors] == [(data,)] * 30

    async def test_an_error_ends_the_rest_of_the_pipeline(self, conn):
        """What follows an error up to the next sync is not run, and the connection recovers."""
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with conn.pipeline():
                await conn.execute("SELECT 1 / 0")
                await conn.execute("SELECT 1")
        assert conn.at_rest()
        assert await value(conn, "SELECT 3") == 3

    async def test_a_cancelled_pipeline_ends_or_the_connection_does(self, conn, any_database_url):
        """Cancellation inside a pipeline never leaves the connection busy."""
        with trio.move_on_after(CANCELLED_AFTER) as scope:
            async with conn.pipeline() as pipeline:
                await conn.execute("SELECT pg_sleep(60) AS in_pipeline")
                await pipeline.sync()
        assert scope.cancelled_caught
        assert conn.at_rest() or conn.closed
        assert await still_running(any_database_url, "in_pipeline") == 0


class TestNotifies:
    async def test_notifications_arrive_with_channel_and_payload(self, conn, any_database_url):
        """notifies() yields what others sent, and gives the connection back when closed."""
        await conn.execute("LISTEN news")
        async with await connect(any_database_url) as other:
            await other.execute("SELECT pg_notify('news', 'one'), pg_notify('news', 'two')")
        async with aclosing(conn.notifies(timeout=5)) as stream:
            first = await anext(stream)
            second = await anext(stream)
        assert [(n.channel, n.payload) for n in (first, second)] == [
            ("news", "one"),
            ("news", "two"),
        ]
        assert await value(conn, "SELECT 1") == 1

    async def test_a_quiet_time_ends_by_the_time_out(self, conn):
        """notifies(timeout) ends by itself and the connection stays usable."""
        assert [n async for n in conn.notifies(timeout=0.01)] == []
        assert await value(conn, "SELECT 1") == 1


class TestCancellation:
    async def test_the_server_stops_too(self, conn, any_database_url):
        """A cancelled query is cancelled on the server, and the connection is at rest."""
        with trio.move_on_after(CANCELLED_AFTER) as scope:
            await conn.execute("SELECT pg_sleep(60) AS to_be_cancelled")
        assert scope.cancelled_caught
        assert conn.at_rest()
        assert await still_running(any_database_url, "to_be_cancelled") == 0
        assert await value(conn, "SELECT 7") == 7

    async def test_nobody_meets_anothers_answer(self, conn):
        """After cancellations at every moment of short queries, answers belong to questions."""
        for n in range(60):
            with trio.move_on_after(n * 0.00002):
                await conn.execute("SELECT 'stale' FROM generate_series(1, 100)")
            assert await value(conn, f"SELECT {n}") == n

    async def test_a_cancelled_scope_sends_nothing(self, conn):
        """A statement inside a scope that is already cancelled does not reach the server."""
        await conn.execute("CREATE TEMP TABLE t (n int)")
        with trio.CancelScope() as scope:
            scope.cancel()
            await conn.execute("INSERT INTO t VALUES (1)")
        assert await value(conn, "SELECT count(*) FROM t") == 0

    async def test_a_cancelled_stream_leaves_the_connection_at_rest(self, conn):
        """stream() cancelled in the middle is ended on the server."""
        with trio.move_on_after(CANCELLED_AFTER) as scope:
            async with aclosing(
                conn.cursor().stream("SELECT n, pg_sleep(0.01) FROM generate_series(1, 9999) n")
            ) as rows:
                async for _ in rows:
                    pass
        assert scope.cancelled_caught
        assert conn.at_rest() or conn.closed

    async def test_a_stopped_backend_costs_the_connection(self, conn):
        """When the server cannot cancel in time, the connection is closed, not handed back."""
        conn.cleanup_timeout = 0.2
        pid = conn.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with trio.fail_after(10), trio.move_on_after(CANCELLED_AFTER) as scope:
                await conn.execute("SELECT 1")
            assert scope.cancelled_caught
            assert conn.closed
        finally:
            os.kill(pid, signal.SIGCONT)

    async def test_cancel_safe_ends_another_tasks_query(self, conn):
        """cancel_safe() from another task makes the query fail with QueryCanceled."""
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await trio.sleep(CANCELLED_AFTER)
                await conn.cancel_safe()

            nursery.start_soon(cancel)
            with pytest.raises(psycopg.errors.QueryCanceled):
                await conn.execute("SELECT pg_sleep(60)")


class TestLostConnections:
    async def test_a_terminated_backend_is_an_operational_error(self, conn, any_database_url):
        """A backend terminated in mid-query raises, and the connection is closed."""
        async with trio.open_nursery() as nursery:

            async def terminate() -> None:
                await trio.sleep(CANCELLED_AFTER)
                async with await connect(any_database_url) as other:
                    await other.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])

            nursery.start_soon(terminate)
            with pytest.raises(psycopg.OperationalError):
                await conn.execute("SELECT pg_sleep(60)")
        assert conn.closed

    async def test_a_killed_server_is_an_operational_error(self, server: Cluster):
        """A server that crashes under a query raises, and connecting works after its restart."""
        conn = await connect(server.dsn())
        async with trio.open_nursery() as nursery:

            async def crash() -> None:
                await trio.sleep(CANCELLED_AFTER)
                await trio.to_thread.run_sync(server.stop, signal.SIGQUIT)

            nursery.start_soon(crash)
            with pytest.raises(psycopg.OperationalError):
                await conn.execute("SELECT pg_sleep(60)")
        assert conn.closed
        with pytest.raises(psycopg.OperationalError):
            await connect(server.dsn())
        await trio.to_thread.run_sync(server.start)
        async with await connect(server.dsn()) as fresh:
            assert await value(fresh, "SELECT 1") == 1

    async def test_closing_wakes_the_task_that_waits(self, conn):
        """A task that waits for an answer gets an error when the connection is closed."""
        async with trio.open_nursery() as nursery:

            async def close() -> None:
                await trio.sleep(CANCELLED_AFTER)
                await conn.close()

            nursery.start_soon(close)
            with pytest.raises(psycopg.OperationalError):
                await conn.execute("SELECT pg_sleep(60)")

    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_closing_between_an_answer_and_its_readers_turn(self, conn, cancelled):
        """The same when the answer has just come: psycopg would go on with what libpq freed,
        and the process would end."""
        reader = trio.lowlevel.current_task()

        class Closing(trio.abc.Instrument):
            """Closes it when the task that waits is to run for an answer, and has not yet."""

            scheduled = False

            def task_scheduled(self, task: trio.lowlevel.Task) -> None:
                self.scheduled |= task is reader

            def after_io_wait(self, timeout: float) -> None:
                if self.scheduled and not conn.abandoned and conn.has_input():
                    conn.abandon()
                self.scheduled = False

        closing = Closing()
        trio.lowlevel.add_instrument(closing)
        try:
            with trio.move_on_after(CANCELLED_AFTER if cancelled else 60.0) as scope:
                with pytest.raises((psycopg.OperationalError, trio.Cancelled)) as caught:
                    await conn.execute("SELECT pg_sleep(60)" if cancelled else "SELECT 1")
                if cancelled:
                    raise caught.value
                assert "closed while it was waited for" in str(caught.value)
        finally:
            trio.lowlevel.remove_instrument(closing)
        assert conn.abandoned
        assert scope.cancelled_caught == cancelled


class TestConnecting:
    async def test_a_dead_first_host_is_passed_over(self, any_database_url):
        """A host that refuses costs nothing when another one answers."""
        hosts = psycopg.conninfo.conninfo_to_dict(any_database_url)
        dsn = make_conninfo(
            any_database_url, host=f"127.0.0.1,/nowhere,{hosts['host']}", port="1,5432,5432"
        )
        async with await connect(dsn) as conn:
            assert await value(conn, "SELECT 1") == 1

    async def test_a_silent_first_host_uses_up_only_its_share(self, any_database_url):
        """A host that accepts and never speaks is given up in time for the next."""
        hosts = psycopg.conninfo.conninfo_to_dict(any_database_url)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            dsn = make_conninfo(
                any_database_url, host=f"127.0.0.1,{hosts['host']}", port=f"{port},5432"
            )
            async with await connect(dsn, connect_timeout=1.0) as conn:
                assert await value(conn, "SELECT 1") == 1

    async def test_only_a_writable_host_will_do(self, any_database_url):
        """With target_session_attrs=read-write a read-only server is passed over."""
        bin_dir = binaries(18)
        assert bin_dir is not None
        standby = Cluster(bin_dir, settings={"default_transaction_read_only": "on"})
        try:
            await trio.to_thread.run_sync(standby.start)
            writable = psycopg.conninfo.conninfo_to_dict(any_database_url)["host"]
            for first, second in (
                (standby.directory, writable),
                (writable, standby.directory),
            ):
                dsn = make_conninfo(
                    any_database_url,
                    host=f"{first},{second}",
                    dbname="postgres",
                    target_session_attrs="read-write",
                )
                async with await connect(dsn) as conn:
                    assert conn.info.host == writable
        finally:
            await trio.to_thread.run_sync(standby.remove)

    async def test_every_failure_is_named(self):
        """When no host will have us, the error says why for each."""
        dsn = "host=127.0.0.1,/nowhere port=1,2 user=x dbname=x"
        with pytest.raises(
            psycopg.OperationalError,
            match=r"us: 127\.0\.0\.1:1: Connection refused; /nowhere port 2: No such file",
        ):
            await connect(dsn)

    async def test_silence_ends_by_the_time_out(self):
        """A single host that never speaks raises ConnectionTimeout after connect_timeout."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} user=x dbname=x"
            with trio.fail_after(20), pytest.raises(psycopg.errors.ConnectionTimeout):
                await connect(dsn, connect_timeout=0.1)

    async def test_an_unknown_host_is_an_operational_error(self):
        """A name that does not resolve is reported as such."""
        with pytest.raises(psycopg.OperationalError, match="failed to resolve"):
            await connect("host=nowhere.invalid user=x dbname=x")

    async def test_a_name_is_looked_up(self, clusters):
        """A host given by name is resolved without blocking, to each of its addresses; the
        kernel is told when to give up a peer that has vanished (`tcp_user_timeout`, keepalives)."""
        bin_dir = binaries(18)
        assert bin_dir is not None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cluster = Cluster(bin_dir, tcp_port=port)
        try:
            await trio.to_thread.run_sync(cluster.start)
            dsn = f"postgresql://relay@localhost:{port}/postgres"
            async with await connect(dsn) as conn:
                assert conn.info.hostaddr == "127.0.0.1"
                with socket.socket(fileno=os.dup(conn.fileno())) as tcp:
                    found = [
                        tcp.getsockopt(socket.IPPROTO_TCP, option)
                        for option in (
                            socket.TCP_USER_TIMEOUT,
                            socket.TCP_KEEPIDLE,
                            socket.TCP_KEEPINTVL,
                            socket.TCP_KEEPCNT,
                        )
                    ]
                    assert found == [5_000, 5, 2, 3]
                    assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        finally:
            await trio.to_thread.run_sync(cluster.remove)

    async def test_the_dsn_overrides_our_defaults(self, any_database_url):
        """An application name in the DSN wins over the caller's."""
        named = make_conninfo(any_database_url, application_name="mine")
        async with await connect(named) as conn:
            assert await value(conn, "SHOW application_name") == "mine"
        async with await connect(any_database_url, application_name="ours") as conn:
            assert await value(conn, "SHOW application_name") == "ours"
