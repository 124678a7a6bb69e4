"""A database that Patroni manages: three servers and an etcd, all of Debian, as plain processes.

Patroni, etcd and what they need are fetched from Debian into the user's cache, unpacked and never
installed, so no service starts; PostgreSQL 15 is the one that the tests use anyway.  Synchronous
mode, strict: a commit waits for one of the two standbys, so what it promised survives its server.

`Missing` where that cannot be had.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.conninfo import make_conninfo

from relay.db.cluster import namespace_command
from relay.db.doubt import BARRIER
from tests.cached import Missing, cached, run
from tests.db.cluster import binaries, family

NAMES = ("a", "b", "c")

TTL = 20
"""Seconds for which the leader's key holds; Patroni takes no less.  So long a dead one leads on."""

_PACKAGES = (
    "patroni", "etcd-server", "python3-psycopg2", "python3-etcd", "python3-dateutil",
    "python3-yaml", "python3-click", "python3-prettytable", "python3-psutil", "python3-urllib3",
    "python3-cdiff", "python3-six", "python3-dnspython", "python3-wcwidth",
)  # fmt: skip
_PYTHON = "/usr/bin/python3"  # Debian's, for which its modules are made
_PATIENCE = 90.0  # s; for three servers to be made


@dataclass
class Server:
    """One of the three, with the Patroni that looks after it."""

    name: str
    port: int
    api: str
    data: Path
    process: subprocess.Popen[bytes]

    def dsn(self) -> str:
        """How to connect to it, whatever it is."""
        return make_conninfo("", host="127.0.0.1", port=self.port, user="postgres", dbname="mail")

    def kill(self) -> None:
        """Kill the server and its Patroni at once, as power does."""
        _kill([*family(self.process.pid), *self._backends()])
        self.process.wait()

    def orphan(self) -> None:
        """Kill its Patroni alone: the server goes on, and nobody tells it to step down."""
        _kill(family(self.process.pid))
        self.process.wait()

    def lives(self) -> bool:
        """Whether the server runs without its Patroni."""
        return self.process.poll() is not None and len(self._backends()) > 1

    def _backends(self) -> list[int]:
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return []
        return family(pid)

    def state(self) -> dict[str, Any]:
        """What its Patroni says of it; empty when nobody answers."""
        try:
            found: dict[str, Any] = httpx.get(f"{self.api}/patroni", timeout=2).json()
        except (httpx.HTTPError, json.JSONDecodeError):
            return {}
        return found


class Managed:
    """Use it as a context manager: within, all three run and two follow the one."""

    def __init__(self) -> None:
        programs = _unpacked()
        bin_dir = binaries(15)
        if bin_dir is None:
            raise Missing("PostgreSQL 15 is not installed")
        self.directory = Path(tempfile.mkdtemp(prefix="relay-patroni-"))
        self._prefix = (namespace_command() or []) if os.geteuid() == 0 else []
        self._log = (self.directory / "log").open("wb")
        client, peer, *ports = _free_ports(2 + 2 * len(NAMES))
        etcd = f"http://127.0.0.1:{client}"
        self._etcd = self._spawn(
            [
                *(str(programs / "usr/bin/etcd"), "--data-dir", str(self.directory / "etcd")),
                *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
                *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
            ]
        )
        modules = {"PYTHONPATH": str(programs / "usr/lib/python3/dist-packages")}
        self.servers = []
        for name, port, api in zip(NAMES, ports[::2], ports[1::2], strict=True):
            file = self.directory / f"{name}.yaml"  # JSON is YAML
            file.write_text(json.dumps(self._settings(name, port, api, client, bin_dir)))
            command = [_PYTHON, str(programs / "usr/bin/patroni"), str(file)]
            process = self._spawn(command, **modules)
            data = self.directory / name
            self.servers.append(Server(name, port, f"http://127.0.0.1:{api}", data, process))

    def _spawn(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._prefix, *command],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _settings(self, name: str, port: int, api: int, etcd: int, bin_dir: Path) -> dict[str, Any]:
        return {
            "scope": "mail",
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{api}", "connect_address": f"127.0.0.1:{api}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "postgresql": {"parameters": {"max_connections": 100}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
                "pg_hba": [
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{port}",
                "connect_address": f"127.0.0.1:{port}",
                "data_dir": str(self.directory / name),
                "bin_dir": str(bin_dir),
                "pgpass": str(self.directory / f"{name}.pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "p"},
                    "replication": {"username": "replicator", "password": "p"},
                },
                "parameters": {
                    "unix_socket_directories": str(self.directory),
                    "timezone": "UTC",
                    "shared_buffers": "32MB",
                },
            },
        }

    def __enter__(self) -> Managed:
        try:
            self._until(lambda: self.leader() is not None and len(self._followers()) == 2)
            self._until(lambda: bool(self._synchronous()))
            with psycopg.connect(self._admin(), autocommit=True) as sql:
                sql.execute("CREATE ROLE relay LOGIN")
                sql.execute("CREATE DATABASE mail OWNER relay")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()
        _kill([self._etcd.pid])
        self._etcd.wait()
        self._log.close()
        shutil.rmtree(self.directory)

    def leader(self) -> Server | None:
        """The server that takes writes, by its own word."""
        for server in self.servers:
            if server.process.poll() is None:
                state = server.state()
                if state.get("role") in ("master", "primary") and state["state"] == "running":
                    return server
        return None

    def wait_for_leader(self, *, but: Server) -> Server:
        """Wait until another one leads, and a commit there was confirmed by a standby."""
        found: list[Server] = []

        def another() -> bool:
            leader = self.leader()
            found[:] = [] if leader is None or leader is but else [leader]
            return bool(found)

        self._until(another)
        with psycopg.connect(found[0].dsn(), autocommit=True) as sql:
            sql.execute(BARRIER)
        return found[0]

    def switch_over(self, leader: Server) -> None:
        """Have another server take over from this one, in order."""
        asked = {"leader": leader.name}
        answer = httpx.post(f"{leader.api}/switchover", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text

    def dsn(self) -> str:
        """How to connect to whichever takes writes."""
        return make_conninfo(
            "",
            host=",".join("127.0.0.1" for _ in self.servers),
            port=",".join(str(server.port) for server in self.servers),
            user="relay",
            dbname="mail",
            target_session_attrs="read-write",
        )

    def _admin(self) -> str:
        return make_conninfo(self.dsn(), user="postgres", dbname="postgres")

    def _followers(self) -> list[Server]:
        return [
            server
            for server in self.servers
            if (state := server.state()).get("role") == "replica"
            and state["state"] in ("running", "streaming")
        ]

    def _synchronous(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._admin(), autocommit=True) as sql:
            return sql.execute(
                "SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
            ).fetchall()

    def _until(self, is_so: Any) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError((self.directory / "log").read_text()[-4000:])
            time.sleep(0.02)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _unpacked() -> Path:
    """The folder in which Debian's files of Patroni and etcd are; `Missing`."""

    def install(place: Path) -> None:
        for tool in ("apt-get", "dpkg"):
            if shutil.which(tool) is None:
                raise Missing("Patroni and etcd are taken from Debian, and this is none")
        with tempfile.TemporaryDirectory() as folder:
            fetch = 'cd "$0" && apt-get -qq -o APT::Sandbox::User=root download "$@"'
            run(["sh", "-c", fetch, folder, *_PACKAGES], "patroni")
            for package in Path(folder).glob("*.deb"):
                run(["dpkg", "-x", str(package), str(place)], "patroni")

    return cached("patroni", Path(__file__), install)


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody had a moment ago."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            found.append(int(sock.getsockname()[1]))
        return found
