"""The embedded server: made whole, private, recovered after anything, stopped in good order."""

# ruff: noqa: ASYNC220, ASYNC240 - a test may block its own loop for a stat()

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
import structlog
import trio
from psycopg.conninfo import conninfo_to_dict

from relay.db.cluster import Cluster, servers_of
from relay.db.connection import connect
from relay.db.embedded import Embedded
from relay.db.migrate import check, migrate
from relay.errors import ConfigError, DatabaseUnavailable
from tests.eventually import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture
async def server(tmp_path: Path) -> Embedded:
    return Embedded(tmp_path / "postgres")


@asynccontextmanager
async def running(server: Embedded) -> AsyncIterator[trio.Event]:
    """The server while the block lasts, stopped in good order at its end."""
    accepts, stopping, ended = trio.Event(), trio.Event(), trio.Event()

    async def accepting() -> None:
        accepts.set()

    async def run() -> None:
        try:
            await server.run(accepting, stopping)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(60):
            await accepts.wait()
        yield ended
        stopping.set()


async def ask(server: Embedded, query: str) -> object:
    async with await connect(server.dsn) as conn:
        row = await (await conn.execute(query)).fetchone()
        assert row is not None
        return row[0]


async def being_made(server: Embedded) -> Path:
    """Where initdb works, once it does."""
    found: list[Path] = await eventually(
        lambda: [*server.cluster.base.glob("data.new-*")], "initdb works"
    )
    assert len(found) == 1
    return found[0]


async def test_a_directory_becomes_a_durable_private_server(server):
    """The first run makes the cluster: checksums, fsync, UTF-8, no TCP, mode 0700."""
    async with running(server):
        wanted = {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "listen_addresses": "",
            "TimeZone": "UTC",
        }
        assert {name: await ask(server, f"SHOW {name}") for name in wanted} == wanted
        assert await ask(server, "SHOW server_version") == "18.4"
        for path in (server.cluster.directory, conninfo_to_dict(server.dsn)["host"]):
            assert stat.S_IMODE(Path(str(path)).stat().st_mode) == 0o700
    assert server.pid is None


async def test_what_was_committed_is_there_after_a_stop_and_a_start(server):
    """A second run finds the cluster as the first left it."""
    async with running(server), await connect(server.dsn) as conn:
        await conn.execute("CREATE TABLE t AS SELECT 1 AS n")
    async with running(server):
        assert await ask(server, "SELECT n FROM t") == 1


async def test_a_killed_server_is_reported_and_recovers(server):
    """The end of the server is DatabaseUnavailable; the next run replays what was committed."""
    stopping = trio.Event()

    async def crash() -> None:
        async with await connect(server.dsn) as conn:
            await conn.execute("CREATE TABLE t AS SELECT 1 AS n")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(DatabaseUnavailable, match="ended by itself"):
        await server.run(crash, stopping)
    with structlog.testing.capture_logs() as lines:
        async with running(server):
            assert await ask(server, "SELECT n FROM t") == 1
    texts = [line.get("text", "") for line in lines]
    assert any("automatic recovery in progress" in text for text in texts)


async def test_an_orphan_is_stopped_first(server, tmp_path):
    """A server left by a relay that was killed ends before ours starts, with its data kept."""
    program = (
        "import sys, os, signal, trio\n"
        "from relay.db.embedded import Embedded\n"
        "from relay.db.connection import connect\n"
        "server = Embedded(sys.argv[1])\n"
        "async def die():\n"
        "    async with await connect(server.dsn) as conn:\n"
        "        await conn.execute('CREATE TABLE t AS SELECT 1 AS n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "trio.run(server.run, die, trio.Event())\n"
    )
    done = await trio.run_process(
        [sys.executable, "-c", program, str(server.cluster.directory)],
        check=False,
        capture_stdout=True,
    )
    assert done.returncode == -signal.SIGKILL
    orphan = int((server.cluster.directory / "data/postmaster.pid").read_text().split()[0])
    os.kill(orphan, 0)
    async with running(server):
        assert server.pid != orphan
        assert await ask(server, "SELECT n FROM t") == 1


async def test_a_stale_lock_file_with_a_recycled_pid_is_ignored(server):
    """A lock file that names a living process which is no server of ours does no harm."""
    async with running(server):
        pass
    with subprocess.Popen(["sleep", "60"]) as stranger:
        lock_file = server.cluster.directory / "data/postmaster.pid"
        lock_file.write_text(f"{stranger.pid}\n{server.cluster.directory / 'data'}\n0\n5432\n")
        async with running(server):
            assert await ask(server, "SELECT 1") == 1
        assert stranger.poll() is None
        stranger.kill()


async def test_a_half_made_cluster_is_made_again(server):
    """What an interrupted initdb left behind does not stop the next start."""
    server.cluster.prepare()
    (server.cluster.directory / "data.new").mkdir(mode=0o700)
    (server.cluster.directory / "data.new/PG_VERSION").write_text("18\n")
    async with running(server):
        assert await ask(server, "SELECT 1") == 1


async def test_a_cluster_may_be_begun_before_it_is_run(server):
    """What was begun is used: not made a second time."""
    server.cluster.begin()
    scratch = await being_made(server)
    async with running(server):
        assert await ask(server, "SELECT 1") == 1
    assert not scratch.exists()


async def test_what_is_begun_in_vain_is_taken_back(server):
    """Abandoned, it leaves neither a directory nor a process, and another can be begun."""
    server.cluster.begin()
    scratch = await being_made(server)
    server.cluster.abandon()
    assert servers_of(scratch) == set()
    async with running(server):
        assert await ask(server, "SELECT 1") == 1
    assert not list(server.cluster.base.glob("data.new*"))


async def test_an_initdb_that_fails_is_said_in_one_sentence(tmp_path):
    """It is a mistake of the machine's, with PostgreSQL's own reason, and leaves no cluster."""
    initdb = tmp_path / "initdb"
    lines = ("first", "the disk is full", 'initdb: removing data directory "data"')
    said = "".join(f"echo '{line}' >&2\n" for line in lines)
    initdb.write_text(f"#!/bin/sh\n{said}exit 1\n")
    initdb.chmod(0o755)
    (tmp_path / "place.json").write_text(json.dumps({"bin": str(tmp_path)}))
    server = Embedded(tmp_path)
    with pytest.raises(ConfigError, match=r"could not be set up in .*: the disk is full"):
        await server.run(trio.lowlevel.checkpoint, trio.Event())
    assert server.cluster.version is None


async def test_a_server_that_lets_nobody_in_is_unavailable(server):
    """Started, but not to be asked for the database: an outage, with PostgreSQL's own reason."""
    async with running(server):
        pass
    (server.cluster.data / "pg_hba.conf").write_text("local all all reject\n")
    with pytest.raises(DatabaseUnavailable, match=r"cannot be made: .*rejects connection"):
        await server.run(trio.lowlevel.checkpoint, trio.Event())


def test_a_cluster_is_begun_without_what_takes_long_to_load():
    """Neither Trio nor psycopg, so that initdb works while they are loaded."""
    script = (
        "import sys, relay.db.cluster;"
        "print([m for m in ('trio', 'psycopg', 'structlog') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


async def test_what_was_migrated_survives_a_kill(server):
    """The whole schema is durable once `migrate` has returned, though not each commit waited."""
    stopping = trio.Event()

    async def crash() -> None:
        await migrate(server.dsn)
        os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(DatabaseUnavailable, match="ended by itself"):
        await server.run(crash, stopping)
    async with running(server):
        assert (await check(server.dsn)).pending == ()


async def test_a_second_relay_on_the_directory_is_refused(server):
    """Two relays on one directory: the second is told so in one sentence."""
    async with running(server):
        with pytest.raises(ConfigError, match="another relay is running"):
            await Embedded(server.cluster.directory).run(trio.lowlevel.checkpoint, trio.Event())
        assert await ask(server, "SELECT 1") == 1


async def test_another_major_version_is_refused(server):
    """A directory of an older PostgreSQL is left alone, with a sentence that says what to do."""
    server.cluster.prepare()
    (server.cluster.directory / "data").mkdir(mode=0o700)
    (server.cluster.directory / "data/PG_VERSION").write_text("16\n")
    with pytest.raises(ConfigError, match="written by PostgreSQL 16"):
        await server.run(trio.lowlevel.checkpoint, trio.Event())


async def test_cancelling_ends_the_server(server):
    """Cancelled without a drain, the server is gone when run() is."""
    with trio.CancelScope() as scope:

        async def cancel() -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint()

        await server.run(cancel, trio.Event())
    assert scope.cancelled_caught
    assert servers_of(server.cluster.directory / "data") == set()


async def test_a_deep_directory_gets_a_short_socket(tmp_path):
    """A path too long for a socket is answered with a private directory elsewhere, kept."""
    server = Embedded(tmp_path / ("x" * 100) / "postgres")
    host = Path(str(conninfo_to_dict(server.dsn)["host"]))
    assert len(str(host / ".s.PGSQL.5432")) <= 107
    assert stat.S_IMODE(host.stat().st_mode) == 0o700
    async with running(server):
        assert await ask(server, "SELECT 1") == 1
    assert Embedded(server.cluster.directory).dsn == server.dsn
    host.rmdir()


async def test_a_squatted_socket_directory_is_not_used(tmp_path):
    """A recorded socket directory that others may enter is replaced by a fresh one."""
    server = Embedded(tmp_path / ("x" * 100) / "postgres")
    host = Path(str(conninfo_to_dict(server.dsn)["host"]))
    host.chmod(0o755)
    fresh = Path(str(conninfo_to_dict(Embedded(server.cluster.directory).dsn)["host"]))
    assert fresh != host
    fresh.rmdir()
    host.rmdir()


@needs_root
async def test_root_changes_no_mode_above_the_directory(tmp_path):
    """As root the server runs below directories that nobody else may enter, left as they are."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = Embedded(closed / "postgres")
    async with running(server):
        assert await ask(server, "SELECT 1") == 1
        assert server.pid is not None
        assert Path(f"/proc/{server.pid}").stat().st_uid == 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@needs_root
async def test_root_falls_back_to_an_account(tmp_path):
    """Where namespaces are forbidden an unprivileged account runs it, said in one line."""
    with structlog.testing.capture_logs() as lines:
        # Below /tmp itself: the account must be able to reach it, as it can /var/lib.
        process = await trio.run_process(["mktemp", "-d"], capture_stdout=True)
        base = Path(process.stdout.decode().strip())
        base.chmod(0o755)
        server = Embedded(Cluster(tmp_path / "postgres", account="nobody", account_base=base))
        async with running(server):
            assert await ask(server, "SELECT 1") == 1
            assert server.pid is not None
            owner = Path(f"/proc/{server.pid}").stat().st_uid
            assert pwd.getpwuid(owner).pw_name == "nobody"
    assert [line["event"] for line in lines].count("postgres.account") == 1
    assert json.loads((server.cluster.directory / "place.json").read_text())["account"] == "nobody"
    await trio.run_process(["rm", "-r", str(base)])


async def test_statements_that_fail_do_not_put_their_data_into_the_log(server):
    """The server's log tells what happened, not what was in the row."""
    with structlog.testing.capture_logs() as lines:
        async with running(server), await connect(server.dsn) as conn:
            await conn.execute("CREATE TABLE t (a text PRIMARY KEY)")
            await conn.execute("INSERT INTO t VALUES ('secret@example.com')")
            with pytest.raises(psycopg.errors.UniqueViolation):
                await conn.execute("INSERT INTO t VALUES ('secret@example.com')")
            with pytest.raises(psycopg.errors.RaiseException):
                await conn.execute("DO $$ BEGIN RAISE 'refused by a function'; END $$")
            with pytest.raises(psycopg.errors.UndefinedTable):
                await conn.execute("SELECT FROM missing")

    def levels(part: str) -> list[str]:
        return [line["log_level"] for line in lines if part in str(line.get("text"))]

    # Whoever sent it was told; what only a fault of ours can cause is a warning.
    # (Debug lines are dropped where another test has set the level.)
    assert {*levels("duplicate key")} <= {"debug"}
    assert {*levels("refused by a function")} <= {"debug"}
    assert levels("missing") == ["warning"]
    assert not [line for line in lines if "00000" in str(line.get("text"))]
    assert "secret" not in str(lines)
