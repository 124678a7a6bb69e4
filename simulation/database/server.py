"""A private server of the product's own binaries, with a clock that is set from outside."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import signal
import subprocess
from collections.abc import Container, Sequence
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from simulation.database.patience import PATIENCE, Stuck, await_, looks
from simulation.database.room import Room

_CONNECTIONS = 14  # of a node, at most, and of those that were killed with it
_DIGITS = 16  # of microseconds since 1970


class Server:
    """A private server of the product's own binaries."""

    def __init__(
        self, directory: Path, *, own_room: bool = False, ahead: float = 0.0, nodes: int = 3
    ) -> None:
        from relay.db.cluster import Cluster

        if own_room:
            directory.mkdir()
        self.room = Room(directory) if own_room else None
        """The file system that it has for itself."""
        self._ahead = round(ahead * 1_000_000)  # microseconds by which its clock is
        self._connections = max(100, _CONNECTIONS * nodes)
        self._cluster = Cluster(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._clock: mmap.mmap | None = None

    def make(self) -> None:
        """Make the cluster, if it is not there."""
        self._cluster.prepare()
        self._cluster.begin()
        self._cluster.wait()
        self._cluster.finish()
        path = self._cluster.data / "clock"
        path.write_bytes(b"0" * _DIGITS)
        path.chmod(0o644)
        self._open_clock()
        # Nobody is waited for until a standby is there (`Database.attach`).
        with (self._cluster.data / "postgresql.auto.conf").open("a") as file:
            file.write("synchronous_commit = local\n")

    def copy(self, other: Server) -> None:
        """Make the cluster as a standby of another server, which runs."""
        shutil.rmtree(self._cluster.data, ignore_errors=True)
        command, how = self._cluster.command(
            "pg_basebackup", "--dbname", other.dsn("postgres"), "--pgdata", str(self._cluster.data),
            "--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync",
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, check=False, **how)  # noqa: S603 - ours
        if done.returncode:
            raise Stuck(done.stderr.decode())
        self._open_clock()

    def _open_clock(self) -> None:
        with (self._cluster.data / "clock").open("r+b") as file:
            self._clock = mmap.mmap(file.fileno(), _DIGITS)

    def set_clock(self, microseconds: int) -> None:
        """Set the clock that SQL sees (`shadows.sql`): as far ahead as it is."""
        if self._clock is not None:
            self._clock[:] = b"%0*d" % (_DIGITS, microseconds + self._ahead)

    @property
    def socket(self) -> str:
        """The directory of its socket, which is its name among hosts."""
        return self._cluster.socket

    def dsn(self, database: str) -> str:
        """Return how to connect."""
        return dsn_of([self], database)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        from relay.db.embedded import SETTINGS

        settings = SETTINGS | {
            "unix_socket_directories": self._cluster.socket,
            # A process is killed here, never the machine: what was written is there.
            "fsync": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
            "shared_buffers": "64MB",
            "max_wal_size": "256MB",
            "max_connections": str(self._connections),
            # By the simulation's clock or not at all.
            "deadlock_timeout": "1h",
            "wal_sender_timeout": "0",
            "wal_receiver_timeout": "0",
            "synchronous_standby_names": "*",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command, how = self._cluster.command("postgres", "-D", str(self._cluster.data), *options)
        (self._cluster.data / "postmaster.pid").unlink(missing_ok=True)
        with (self._cluster.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **how,
            )  # fmt: skip
        for _ in looks(self._log, 0.005):
            if self._cluster.is_ready(self._process.pid):
                return
            if self._process.poll() is not None:
                raise Stuck(self._log())

    def _log(self) -> str:
        return (self._cluster.directory / "log").read_text()[-2000:]

    def send(self, sign: signal.Signals, *, but: Container[int] = ()) -> None:
        """Send a signal to all of its processes but some."""
        from relay.db.cluster import servers_of

        for pid in servers_of(self._cluster.data):
            if pid not in but:
                send_signal(pid, sign)

    @property
    def postmaster(self) -> int:
        """The process that starts the others."""
        assert self._process is not None
        return self._process.pid

    def hold_postmaster(self, *, held: bool) -> None:
        """Have the first process, which starts others and ends them all when one fails, wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)

    def stop(self, sign: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server and wait until all of its processes are gone; SIGKILL: all of them."""
        from relay.db.cluster import servers_of

        if self._process is None:
            return
        data = self._cluster.data
        if sign == signal.SIGKILL:
            # Held first: who sees others of them die would still say something.
            for each in (signal.SIGSTOP, sign):
                self.send(each)
        else:
            for pid in servers_of(data) & {_recorded(data)}:
                os.kill(pid, sign)
        self._process.wait(PATIENCE)
        await_(lambda: not servers_of(data), "the server's processes outlive it", 0.002)
        self._process = None


def dsn_of(servers: Sequence[Server], database: str) -> str:
    """Return how to connect to whichever of these servers takes writes."""
    hosts = ",".join(server.socket for server in servers)
    ports = ",".join("5432" for _ in servers)
    return make_conninfo("", host=hosts, port=ports, user="relay", dbname=database)


def send_signal(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def connect_behind(dsn: str) -> None:
    """Connect after all who have asked before; their queue may be full for a moment."""
    for _ in looks("the server lets nobody in", 0.002):
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError as error:
            if os.strerror(errno.EAGAIN) not in str(error):
                raise
        else:
            return


def _recorded(data: Path) -> int:
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return 0
