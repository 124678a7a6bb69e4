"""A relay of its own for a test: the real program, on free ports and a temporary directory."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import trio

from relay.db.embedded import Embedded
from relay.db.migrate import migrate
from tests import loaded, orphans

START_TIMEOUT = 60.0  # initdb on a busy machine; an ordinary start takes under two seconds


@functools.cache
def embedded_server() -> Path | None:
    """A cluster as a first start leaves it, with the schema in it; made once a process.

    None where the server does not live in its relay's directory (root without namespaces).
    """
    directory = Path(tempfile.mkdtemp(prefix="relay-test-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = Embedded(directory / "postgres")
    if server.cluster.base != server.cluster.directory:
        return None

    async def make() -> None:
        stopping = trio.Event()

        async def accepting() -> None:
            await migrate(server.dsn)
            stopping.set()

        await server.run(accepting, stopping)

    # In a thread, because Trio may run here already.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(trio.run, make).result()
    return server.cluster.data


class RelayProcess:
    """`relay up` in a process; use it as a context manager, or start and stop it by hand.

    It may be started again after it ended, on the same data directory and, if `keep_ports`,
    on the same ports.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        env: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        open_files: int | None = None,
        module: str = "relay",
        first_start: bool = False,
        forked: bool = True,
    ) -> None:
        """`open_files`: how many it may open at most; None: as many as we may.

        `module` is run with the arguments of `relay up`.  `first_start`: it makes its embedded
        server itself; else it finds one that was made once, with the schema and nothing in it,
        which saves a second or two.  `forked`: in tests, where nothing of what is asked for matters
        to the load, it is a fork of a process that has loaded the program (`tests.loaded`).
        """
        self.data_dir = data_dir
        self.module = module
        self.first_start = first_start
        self.open_files = open_files
        self.forked = (
            forked
            and "PYTEST_VERSION" in os.environ  # what is measured starts as people start it
            and module == "relay"
            and open_files is None
            and not first_start
        )
        self.env = {
            f"RELAY_{name}": "127.0.0.1:0"
            for name in (
                "SMTP__BIND",
                "SUBMISSION__BIND",
                "HTTP__BIND",
                "DEVICES__PUSH_BIND",
                "DEVICES__RECEIVE_BIND",
            )
        }
        self.env.update(env or {})
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.run: dict[str, Any] = {}
        self.log_file = data_dir.with_name(data_dir.name + ".log")

    def __enter__(self) -> RelayProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the program without waiting for it to be ready."""
        self.run_file.unlink(missing_ok=True)
        if not self.first_start and "RELAY_DATABASE__URL" not in self.env:
            self.lay_server()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        words = ("up", "--data-dir", str(self.data_dir), *self.arguments)
        env = {**os.environ, **self.env}
        with open(self.log_file, "ab") as log:
            if self.forked and all(name.startswith("RELAY_") for name in self.env):
                self.process = loaded.start(words, env, log.fileno())
                return self.process
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            orphans.end_after_us(self.process.pid, str(self.data_dir))
        if self.open_files is not None:  # it raises its soft limit to the hard one: in time, both
            limits = (self.open_files, self.open_files)
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limits)
        return self.process

    def lay_server(self) -> None:
        """Give it the embedded server that was made once, if it has none."""
        directory, made = self.data_dir / "postgres", embedded_server()
        if made is None or directory.exists():
            return
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        shutil.copytree(made, directory / "data")

    def start(self) -> float:
        """Start and wait until it is ready; returns the seconds that took."""
        began = time.monotonic()
        process = self.spawn()
        while not self.run_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"relay ended with {process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > began + START_TIMEOUT:
                self.kill()
                raise RuntimeError(f"relay was not ready in time:\n{self.log_tail()}")
            time.sleep(0.005)
        took = time.monotonic() - began
        self.run = json.loads(self.run_file.read_text())
        return took

    @property
    def run_file(self) -> Path:
        """Where the relay publishes how to reach it."""
        return self.data_dir / "run" / "relay.json"

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self.process is not None
        return self.process.pid

    def keep_ports(self) -> None:
        """Let the next start take the ports of this one."""
        self.env["RELAY_SMTP__BIND"] = self.run["smtp"]
        if "submission" in self.run:
            self.env["RELAY_SUBMISSION__BIND"] = self.run["submission"]
        self.env["RELAY_HTTP__BIND"] = self.run["http"].removeprefix("http://")
        for name in ("push", "receive"):
            if f"devices_{name}" in self.run:
                self.env[f"RELAY_DEVICES__{name.upper()}_BIND"] = self.run[f"devices_{name}"]

    def stop(self, timeout: float = 30.0) -> int:
        """Ask it to stop (SIGTERM), and return its exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill it with SIGKILL, as an outage would; its database server may live on."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what it wrote."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    @property
    def smtp(self) -> tuple[str, int]:
        """Host and port of the SMTP listener."""
        host, _, port = self.run["smtp"].rpartition(":")
        return host.strip("[]"), int(port)

    def http(self, **headers: str) -> httpx.Client:
        """Return a client of the HTTP API, as the administrator unless headers say otherwise."""
        return httpx.Client(
            base_url=self.run["http"],
            headers=headers or {"Authorization": f"Bearer {self.run['admin_token']}"},
            timeout=40.0,
        )

    def create_mailbox(self, **query: Any) -> str:
        """Create a mailbox as the administrator, and return its address."""
        with self.http() as client:
            answer = client.post("/api/v1/mailboxes", params=query)
            answer.raise_for_status()
            return str(answer.json()["address"])
