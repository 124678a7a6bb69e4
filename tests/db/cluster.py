"""PostgreSQL servers for the tests: plain child processes, stopped and started at will.

`relay.db.embedded` has its own tests; here the server is only a fixture, of either version, and
fsync is off unless a test is about durability.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from relay.db.cluster import binaries as embedded_binaries
from relay.db.cluster import namespace_command
from tests import orphans

_numbers = itertools.count(1)
_ROOM = 4 * 2**30  # bytes, for two servers of two versions with a heap of databases each


def binaries(version: int) -> Path | None:
    """The programs of a major version, or None where it is not installed."""
    if version == 18:
        return embedded_binaries()
    path = Path(f"/usr/lib/postgresql/{version}/bin")
    return path if (path / "postgres").exists() else None


def _place(*, fsync: bool) -> str | None:
    """Where a server's files are: in memory, where nothing is about the disk and there is room.

    Hundreds of databases are made and dropped, each of a thousand files, which stalls a disk that
    others use too.
    """
    memory = Path("/dev/shm")
    if fsync or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < _ROOM:
        return None
    return str(memory)


class Cluster:
    """One server on a Unix socket, and on 127.0.0.1 when `tcp_port` is given."""

    def __init__(
        self,
        bin_dir: Path,
        *,
        fsync: bool = False,
        tcp_port: int | None = None,
        settings: dict[str, str] | None = None,
        standby_of: Cluster | None = None,
    ):
        self.bin_dir = bin_dir
        # Short: a socket's path may have 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="relay-test-", dir=_place(fsync=fsync)))
        self.data = self.directory / "data"
        self.fsync = fsync
        self.tcp_port = tcp_port
        self.settings = settings or {}
        self.process: subprocess.Popen[bytes] | None = None
        self._maker: psycopg.Connection[Any] | None = None
        self.prefix = (namespace_command() or []) if os.geteuid() == 0 else []
        if standby_of is not None:
            copy = [str(bin_dir / "pg_basebackup"), "-d", standby_of.dsn(), "-D", str(self.data)]
            subprocess.run(
                [*self.prefix, *copy, "-R", "-X", "stream", "-c", "fast", "-N"],
                check=True,
                capture_output=True,
                timeout=60,
            )
            return
        initdb = [str(bin_dir / "initdb"), "-D", str(self.data), "-U", "relay", "-A", "trust"]
        subprocess.run(
            [*self.prefix, *initdb, "-N", "-E", "UTF8", "--locale=C", "--lc-ctype=C.UTF-8"],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def dsn(self, database: str = "postgres") -> str:
        """How to connect through the socket."""
        return make_conninfo("", host=str(self.directory), user="relay", dbname=database)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        on_off = "on" if self.fsync else "off"
        settings = {
            "unix_socket_directories": str(self.directory),
            "listen_addresses": "127.0.0.1" if self.tcp_port else "",
            "port": str(5432),
            "fsync": on_off,
            "full_page_writes": on_off,
            "timezone": "UTC",
            "shared_buffers": "64MB",
            "max_connections": "100",
        }
        if self.tcp_port:
            settings["port"] = str(self.tcp_port)
        settings |= self.settings
        options = [part for k, v in settings.items() for part in ("-c", f"{k}={v}")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(self.bin_dir / "postgres"), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        orphans.end_after_us(self.process.pid, str(self.data), signal.SIGQUIT)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.admin("SELECT 1")
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.directory / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, sign: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT fast, SIGQUIT as if it had crashed, SIGKILL as power does."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None
        if self.process is not None:
            backends = _children(self.process.pid)
            self.process.send_signal(sign)
            self.process.wait(30)
            self.process = None
            # After SIGKILL they see by themselves that it is gone.
            deadline = time.monotonic() + 30
            while any(Path(f"/proc/{pid}").exists() for pid in backends):
                if time.monotonic() > deadline:
                    raise RuntimeError("backends outlive their server")
                time.sleep(0.01)

    def signal_all(self, sign: signal.Signals) -> None:
        """Send a signal to the server and all its processes: SIGSTOP freezes it, SIGCONT thaws."""
        assert self.process is not None
        for pid in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is one."""
        # Not waiting in the statement: its snapshot may be what recovery waits for.
        self.admin("SELECT pg_promote(wait => false)")
        deadline = time.monotonic() + 30
        dsn = make_conninfo(self.dsn(), port=self.tcp_port or 5432)
        while True:
            with psycopg.connect(dsn, autocommit=True) as conn:
                if conn.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                    return
            if time.monotonic() > deadline:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.02)

    def remove(self) -> None:
        """Stop the server, frozen or not, and delete everything."""
        if self.process is not None:
            self.signal_all(signal.SIGCONT)
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory)

    def admin(self, sql: str, database: str = "postgres") -> None:
        """Run one statement as the superuser, waiting in the ordinary way."""
        dsn = make_conninfo(self.dsn(database), port=self.tcp_port or 5432)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql)

    def lose_standby(self) -> None:
        """Let commits wait for a synchronous standby that is away for good.

        Returns once one has waited: the checkpointer tells the others that they have to, some time
        after the configuration is read again.
        """
        self.admin("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.admin("SELECT pg_reload_conf()")
        dsn = make_conninfo(self.dsn(), port=self.tcp_port or 5432)
        deadline = time.monotonic() + 30
        with (
            psycopg.connect(dsn, autocommit=True) as looker,
            contextlib.closing(psycopg.connect(dsn)) as waiter,
        ):
            pid = waiter.info.backend_pid
            while not looker.execute(
                "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'", (pid,)
            ).fetchall():
                if time.monotonic() > deadline:
                    raise RuntimeError((self.directory / "log").read_text())
                waiter.pgconn.consume_input()
                if not waiter.pgconn.is_busy():
                    while waiter.pgconn.get_result():
                        pass
                    waiter.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'test', '')")
                time.sleep(0.005)
            looker.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def local_dsn(self) -> str:
        """The DSN of `dsn()` with commits that wait for no standby."""
        return make_conninfo(self.dsn(), options="-c synchronous_commit=local")

    def new_database(self, template: str | None = None) -> str:
        """Create a database (a copy of `template`) and return its name."""
        name = f"test_{next(_numbers)}"
        # Copied file by file: two thirds of what it takes to log each page.
        self._make(f"CREATE DATABASE {name} TEMPLATE {template or 'template1'} STRATEGY FILE_COPY")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, connections or not."""
        self._make(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _make(self, sql: str) -> None:
        """Run what makes or drops a database, on one connection for all that there are."""
        if self._maker is None:
            dsn = make_conninfo(self.dsn(), port=self.tcp_port or 5432)
            self._maker = psycopg.connect(dsn, autocommit=True)
        self._maker.execute(sql)


def family(pid: int) -> list[int]:
    """A process and all that it started, and they, in that order."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue  # it ended meanwhile
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # somebody else killed it
        return []


class Pair:
    """A primary whose commits wait for its one standby; use it as a context manager."""

    def __init__(self, bin_dir: Path):
        self.primary = Cluster(bin_dir)
        self.primary.start()
        self.standby = Cluster(bin_dir, standby_of=self.primary)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.remove()
        self.standby.remove()

    def begin(self) -> None:
        """From now on every commit waits for the standby."""
        self.primary.lose_standby()
        self.standby.start()
        self.wait_in_step()

    def wait_in_step(self) -> None:
        """Return when a commit on the primary ends."""
        deadline = time.monotonic() + 30
        with psycopg.connect(self.primary.dsn(), autocommit=True) as conn:
            while not conn.execute(
                "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchall():
                if time.monotonic() > deadline:
                    raise RuntimeError((self.standby.directory / "log").read_text())
                time.sleep(0.02)

    def fail_over(self) -> None:
        """Kill the primary for good and have the standby take its place, with what it has."""
        self.primary.stop(signal.SIGKILL)
        if self.standby.process is None:
            self.standby.start()
        self.standby.promote()

    def dsn(self, database: str = "postgres") -> str:
        """How to connect to whichever of the two takes writes."""
        return make_conninfo(
            "",
            host=f"{self.primary.directory},{self.standby.directory}",
            user="relay",
            dbname=database,
            target_session_attrs="read-write",
        )


class TwoHosts:
    """A primary, its standby, and a DSN that names both, the first one first."""

    def __init__(self, version: int) -> None:
        bin_dir = binaries(version)
        if bin_dir is None:
            pytest.skip(f"PostgreSQL {version} is not installed")
        self.old = Cluster(bin_dir, settings={"cluster_name": "old"})
        self.old.start()
        self.old.admin("CREATE ROLE ordinary LOGIN")
        self.old.admin("CREATE DATABASE mail OWNER ordinary")
        self.new = Cluster(bin_dir, settings={"cluster_name": "new"}, standby_of=self.old)
        self.new.start()
        both = f"{self.old.directory},{self.new.directory}"
        self.dsn = make_conninfo("", host=both, user="ordinary", dbname="mail")

    def remove(self) -> None:
        """Stop both and delete everything."""
        self.new.remove()
        self.old.remove()
