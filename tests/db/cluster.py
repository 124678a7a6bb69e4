"""PostgreSQL servers for the tests: plain child processes, stopped and started at will.

`relay.db.embedded` has its own tests; here the server is only a fixture, of either version, and
fsync is off unless a test is about durability.
"""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from relay.db import embedded

_numbers = itertools.count(1)


def binaries(version: int) -> Path | None:
    """The programs of a major version, or None where it is not installed."""
    if version == 18:
        return embedded.binaries()
    path = Path(f"/usr/lib/postgresql/{version}/bin")
    return path if (path / "postgres").exists() else None


class Cluster:
    """One server on a Unix socket, and on 127.0.0.1 when `tcp_port` is given."""

    def __init__(
        self,
        bin_dir: Path,
        *,
        fsync: bool = False,
        tcp_port: int | None = None,
        settings: dict[str, str] | None = None,
    ):
        self.bin_dir = bin_dir
        # Short: a socket's path may have 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="relay-test-"))
        self.data = self.directory / "data"
        self.fsync = fsync
        self.tcp_port = tcp_port
        self.settings = settings or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.prefix = (embedded.namespace_command() or []) if os.geteuid() == 0 else []
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
        """Stop the server: SIGINT fast, SIGQUIT as if it had crashed."""
        if self.process is not None:
            self.process.send_signal(sign)
            self.process.wait(30)
            self.process = None

    def remove(self) -> None:
        """Stop the server and delete everything."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory)

    def admin(self, sql: str, database: str = "postgres") -> None:
        """Run one statement as the superuser, waiting in the ordinary way."""
        dsn = make_conninfo(self.dsn(database), port=self.tcp_port or 5432)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql)

    def new_database(self, template: str | None = None) -> str:
        """Create a database (a copy of `template`) and return its name."""
        name = f"test_{next(_numbers)}"
        self.admin(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, connections or not."""
        self.admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
