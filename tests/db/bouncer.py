"""A PgBouncer in transaction mode for the tests: a plain child process on a Unix socket."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.db.cluster import namespace_command


class Bouncer:
    """In front of the server that `dsn` leads to; use it as a context manager."""

    def __init__(self, dsn: str) -> None:
        # Debian keeps it where only root looks.
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.skip("PgBouncer is not installed")
        server = conninfo_to_dict(dsn)
        self.directory = Path(tempfile.mkdtemp(prefix="relay-bouncer-"))
        self.dsn = make_conninfo(dsn, host=str(self.directory), port=6432)
        (self.directory / "users").write_text(f'"{server["user"]}" ""\n')
        (self.directory / "ini").write_text(
            "[databases]\n"
            f"* = host={server['host']} port={server.get('port') or 5432}\n"
            "[pgbouncer]\n"
            "listen_addr =\n"
            "listen_port = 6432\n"
            f"unix_socket_dir = {self.directory}\n"
            "auth_type = trust\n"
            f"auth_file = {self.directory / 'users'}\n"
            "pool_mode = transaction\n"
        )
        prefix = (namespace_command() or []) if os.geteuid() == 0 else []
        self._command = [*prefix, program, str(self.directory / "ini")]
        self.log = (self.directory / "log").open("wb")
        self._spawn()

    def _spawn(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )

    def restart(self) -> None:
        """Kill it, and start it again; returns when it answers."""
        self.process.kill()
        self.process.wait()
        self._spawn()
        self._answers()

    def turn_to(self, dsn: str) -> None:
        """Have it lead to another server, as RELOAD does: its clients stay connected."""
        host = conninfo_to_dict(dsn)["host"]
        ini = self.directory / "ini"
        ini.write_text(re.sub(r"\* = host=\S+", f"* = host={host}", ini.read_text()))
        self.process.send_signal(signal.SIGHUP)

    def __enter__(self) -> Bouncer:
        self._answers()
        return self

    def _answers(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    raise
                time.sleep(0.02)
            else:
                return

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory)
