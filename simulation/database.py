"""PostgreSQL in a simulated world: a real server, whose answers are waited for and then delayed.

The product talks to a server of its own binaries over its own connections.  When it waits for an
answer, the whole loop stands still until the answer is there; then the answer is late by the
virtual clock.  So a statement takes no virtual time in the server, its answer takes some, and
between the two the node may be killed, as between COMMIT and 250.

What runs in the server beside the statement that is waited for has to be known:
- A statement that waits for a lock (`pg_blocking_pids`) lets the loop go on, and is looked at again
  after every other answer.  Its backend is stopped meanwhile: two that one lock let go at once
  would race each other (for a row's new version, say); so they go on one after the other, in the
  order in which they began to wait.
- Notifications are signals between processes.  An observer listens to the same channels; once it
  has answered after a commit that notifies, its backend has been given what the others have been
  given, and the loop stands still until these bytes are in the sockets of those who listen.  Which
  commits notify is in their answers (`pg_notify` in shadows.sql), at which the simulation looks
  before the product reads them: the others cost no more round trips than in life.
- Background work is off (autovacuum), or changes nothing that is seen (checkpoints).

PostgreSQL's own clock and chance are shadowed (`shadows.sql`).  What only the server can time
(deadlock_timeout, statement_timeout, lock_timeout) is off.

A second server is made a standby of the first when a failover is to come (`attach`): a real copy,
streamed to, and every commit waits for it.  Once it is cut off (`hold`) it has all that was written
until then, to the byte, and nothing of what comes after; commits wait like those that wait for a
lock, and only a cancellation ends that.  So which commits a promotion loses is no matter of luck.

A server may be stopped with all of its processes (`freeze`): what it was sent then is done when it
goes on (`thaw`), though whoever asked has given up.  Backends go on one after the other, in the
order in which they began, and the process that takes connections and cancellations as the last.

A disk fails in two ways.  It is full (`fill`): the server's file system has no room for another
block, and the kernel says so to whoever needs one.  Or the log cannot be written (`fail_log`): the
backend of whoever is to be hit may not write where the log is at, so it panics at its COMMIT, as it
does when a write or fsync of the log fails, and the server is gone.  What it said of that is taken
away (it names places in files that are no matter of the seed): its client sees a broken connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import mmap
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import structlog
import trio
from psycopg import pq
from psycopg.conninfo import make_conninfo

from simulation.network import Network
from simulation.room import Room
from simulation.world import EPOCH, NODE, Dead, World, host_of

HOST = "db"
"""The database's name in the network."""

_ACTIVE = pq.TransactionStatus.ACTIVE
_GOOD = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
_PATIENCE = 30.0  # real seconds after which a server that says nothing is a fault of the simulation
_LOOK = 2  # real ms; a statement that takes longer may be waiting for a lock
_PEEK = 65_536  # bytes of an answer that are looked at
_PEEK_ALL = 1 << 20  # more than a socket holds
_READY = b"Z\0\0\0\5"  # ReadyForQuery, but for the transaction's status, its last byte
_NOTIFIES = b"application_name\0notified "
_PANIC = b"VPANIC\0"  # of an ErrorResponse, its severity
_LOG_AT, _LOG_UNTIL = 4 << 20, 12 << 20  # bytes of a segment of the log; no other file is as large
_DIGITS = 16  # of microseconds since 1970
_GARBAGE = (200, 10_000, 100_000)  # statements after which garbage of each generation is collected
_OVERHEAD = 11  # bytes of a NotificationResponse besides its two strings: type, length, pid, 2 NULs


class Stuck(RuntimeError):
    """The server does not do what the simulation waits for: a fault of the simulation."""


class Server:
    """A private server of the product's own binaries."""

    def __init__(self, directory: Path, *, own_room: bool = False) -> None:
        from relay.db.cluster import Cluster

        if own_room:
            directory.mkdir()
        self.room = Room(directory) if own_room else None
        """The file system that it has for itself."""
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
        """Set the clock that SQL sees (`shadows.sql`)."""
        if self._clock is not None:
            self._clock[:] = b"%0*d" % (_DIGITS, microseconds)

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
        until = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(OSError, IndexError):
                lines = (self._cluster.data / "postmaster.pid").read_text().splitlines()
                if lines[7].strip() == "ready":
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                raise Stuck((self._cluster.directory / "log").read_text()[-2000:])
            time.sleep(0.005)

    def send(self, sign: signal.Signals, *, but: Container[int] = ()) -> None:
        """Send a signal to all of its processes but some."""
        from relay.db.cluster import servers_of

        for pid in servers_of(self._cluster.data):
            if pid not in but:
                _signal(pid, sign)

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
        self._process.wait(_PATIENCE)
        until = time.monotonic() + _PATIENCE
        while servers_of(data):
            if time.monotonic() > until:
                raise Stuck("the server's processes outlive it")
            time.sleep(0.002)
        self._process = None


def dsn_of(servers: Sequence[Server], database: str) -> str:
    """Return how to connect to whichever of these servers takes writes."""
    hosts = ",".join(server.socket for server in servers)
    ports = ",".join("5432" for _ in servers)
    return make_conninfo("", host=hosts, port=ports, user="relay", dbname=database)


def _signal(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def _connect_behind(dsn: str) -> None:
    """Connect after all who have asked before; their queue may be full for a moment."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError as error:
            if os.strerror(errno.EAGAIN) not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.002)
        else:
            return


def _recorded(data: Path) -> int:
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return 0


class _Listener:
    """A connection that listens, and how much of what it was sent is in its socket."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self.had = 0


class _Site:
    """A server, and the simulation's own connections to it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.dsn = server.dsn(name)
        self.down = True
        """Whether nobody writes to it: it was killed, or is a standby."""
        self.held = False
        """Whether its standby is cut off: commits wait for what does not come."""
        self.frozen: list[int] = []
        """Backends that were there when it was stopped, in the order in which they began."""
        self.orphans: set[int] = set()
        """Backends that may be at work although nobody waits for them."""
        self.cancelled: set[int] = set()
        """Backends that were told to end their statement."""
        self._paused: dict[int, None] = {}  # backends stopped while they wait for a lock
        self._observer: psycopg.Connection[Any] | None = None
        # Not the same: psycopg takes notifications out of a connection that it asks something on.
        self._asker: psycopg.Connection[Any] | None = None

    def observe(self) -> None:
        """Connect, and listen."""
        from relay.db import channels

        options = "-c search_path=pg_catalog -c synchronous_commit=off"
        self._observer = psycopg.connect(self.dsn, autocommit=True, options=options)
        self._asker = psycopg.connect(self.dsn, autocommit=True, options=options)
        for channel in channels.ALL:
            self._exec(b"LISTEN " + channel.encode())
        self.down = False

    def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask the server something; the loop stands still."""
        assert self._asker is not None
        cursor = self._asker.execute(sql, params, prepare=False)
        return [] if cursor.description is None else cursor.fetchall()

    def waiting(self, pids: Sequence[int]) -> set[int]:
        """Return those of the backends that wait for a lock, or for a standby that is away."""
        if not pids:
            return set()
        rows = self.query(
            "SELECT pid FROM unnest(%s) AS pid WHERE cardinality(pg_blocking_pids(pid)) > 0",
            [list(pids)],
        )
        if self.held:
            rows += self.query(
                "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event = 'SyncRep'",
                [list(pids)],
            )
        return {pid for (pid,) in rows} - self.cancelled

    def pause(self, pid: int) -> None:
        """Stop a backend that waits for a lock: when that is free it goes on in its turn."""
        self._paused[pid] = None
        _signal(pid, signal.SIGSTOP)

    def resume(self, pid: int) -> None:
        """Let a backend go on, if it is stopped while it waits for a lock."""
        if pid in self._paused:
            del self._paused[pid]
            _signal(pid, signal.SIGCONT)

    def is_paused(self, pid: int) -> bool:
        """Whether a backend is stopped while it waits for a lock."""
        return pid in self._paused

    def next_free(self) -> int | None:
        """Return the first backend that is stopped and has nothing to wait for any more."""
        waiting = self.waiting(list(self._paused))
        return next((pid for pid in self._paused if pid not in waiting), None)

    def sends(self, pid: int) -> bool:
        """Whether a backend cannot go on before more of its answer is read."""
        return bool(
            self.query(
                "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'ClientWrite'", [pid]
            )
        )

    def heard(self) -> int:
        """Return the bytes of all notifications since the last time."""
        self._exec(b"")
        assert self._observer is not None
        size = 0
        while note := self._observer.pgconn.notifies():
            size += _OVERHEAD + len(note.relname) + len(note.extra)
        return size

    def _exec(self, sql: bytes) -> None:
        assert self._observer is not None
        result = self._observer.pgconn.exec_(sql)
        if result.status not in _GOOD:
            raise Stuck(result.error_message.decode())

    def close(self) -> None:
        """Disconnect."""
        self.down = True
        for pid in list(self._paused):
            self.resume(pid)
        for conn in (self._observer, self._asker):
            if conn is not None:
                conn.close()
        self._observer = self._asker = None


class Database:
    """A database of one world, and the waiting for it.

    `servers`: one, or two that take turns as the primary.
    """

    def __init__(
        self, world: World, network: Network, servers: Sequence[Server], name: str
    ) -> None:
        self._world = world
        self._network = network
        self._rng = world.rng("database")
        self._sites = {server.socket: _Site(server, name) for server in servers}
        self._primary = next(iter(self._sites.values()))
        self.dsn = dsn_of(servers, name)
        self._name = name
        self._by_fileno: dict[int, Any] = {}
        self._owners: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._where: WeakKeyDictionary[Any, _Site] = WeakKeyDictionary()
        self._listeners: dict[int, _Listener] = {}
        self._blocked: dict[Any, trio.Event] = {}
        self._notifying: set[int] = set()  # descriptors whose transactions notify at their end
        self._thawed = trio.Event()
        self._attached = 0
        self.suffers = ""
        """The fault of the server's own that is at work: one at a time."""
        self._awaited: dict[str, tuple[trio.Event, list[str]]] = {}
        self._failing: dict[str, trio.Event] = {}  # actors, at whose next commit the log fails
        self._doomed: Any = None  # the connection whose backend cannot write the log
        self._losing: dict[str, trio.Event] = {}  # actors, of whom an answer is to be lost
        self.latency = (0.0002, 0.002)
        self.statements = 0
        self._begun = 0  # calls of `begin`

    # Before the run

    def make(self) -> None:
        """Make the database, with the shadows in it."""
        with psycopg.connect(self._primary.server.dsn("postgres"), autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {self._name}")
            conn.execute(f"ALTER DATABASE {self._name} SET search_path = sim, pg_catalog, public")
            conn.execute(f"ALTER DATABASE {self._name} SET sim.seed = '{self._world.seed}'")
        with psycopg.connect(self._primary.dsn, autocommit=True) as conn:
            conn.execute(Path(__file__).with_name("shadows.sql").read_text())
        self._primary.observe()
        self.tick()

    def shadow_functions(self) -> None:
        """Have the functions that set a search path or a time-out of their own do as the others."""
        for signature, config in self.query(
            "SELECT oid::regprocedure::text, proconfig FROM pg_proc"
            " WHERE proconfig IS NOT NULL AND pronamespace = 'relay'::regnamespace ORDER BY 1"
        ):
            for setting in config:
                key, _, value = setting.partition("=")
                if key == "search_path":
                    self.query(f"ALTER FUNCTION {signature} SET search_path = sim, {value}")
                elif key == "lock_timeout":
                    self.query(f"ALTER FUNCTION {signature} RESET lock_timeout")

    def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask the primary something on the simulation's own account; the loop stands still."""
        return self._primary.query(sql, params)

    def tick(self) -> None:
        """Set the servers' clock."""
        for site in self._sites.values():
            site.server.set_clock(int((EPOCH + self._world.now()) * 1_000_000))

    # What the product's connections wait by

    def begin(self, conn: Any) -> None:
        """Called before a connection sends anything: `relay.db.connection.Connection.wait`."""
        self._world.check_alive()
        self._world.whisper("db.begins")
        self._collect_garbage()
        pgconn = conn.pgconn
        if pgconn.status == pq.ConnStatus.OK:
            self._by_fileno[pgconn.socket] = conn
            if conn not in self._owners:
                self._owners[conn] = NODE.get()
                self._where[conn] = self._sites[pgconn.host.decode()]
        self.tick()
        self._before_sending()
        if self._failing and conn in self._where:
            self._may_doom(conn)

    def _collect_garbage(self) -> None:
        """Do what Python does of itself at instants of its own: what goes may be a socket."""
        self._begun += 1
        for generation in (2, 1, 0):
            if self._begun % _GARBAGE[generation] == 0:
                gc.collect(generation)
                return

    def _before_sending(self) -> None:
        """Look what listeners have not read: what comes on top of it is new."""
        for fileno, listener in list(self._listeners.items()):
            # One that was abandoned has given its descriptor to whoever came next.
            if listener.conn.pgconn.status != pq.ConnStatus.OK:
                del self._listeners[fileno]
            else:
                listener.had = _unread(fileno)

    async def wait_readable(self, fileno: int) -> None:
        """Wait for an answer, or for a notification where nothing was asked."""
        self._world.check_alive()
        conn = self._by_fileno.get(fileno)
        if conn is not None and (
            conn.pgconn.status != pq.ConnStatus.OK or conn.pgconn.socket != fileno
        ):
            del self._by_fileno[fileno]
            conn = None
        if conn is not None and conn.pgconn.transaction_status != _ACTIVE:
            await self._wait_notified(fileno, conn)
            return
        self.statements += 1
        answered = self._answered(fileno, conn)
        if conn is not None and conn is self._doomed:
            self._meet_doom(fileno, conn, answered=answered)
        if not answered and conn is None:
            await self._thawed.wait()
            self._answered(fileno, None)
        if conn is None:
            if not any(site.frozen for site in self._sites.values()):
                _await_greeting(fileno)
        elif not answered:
            await self._wait_unlocked(conn)
            self._world.whisper("db.unlocked", fd=fileno)
        if fileno in self._listeners and conn is self._listeners[fileno].conn:
            _await_end_of_answer(fileno)
        self._world.whisper("db.answered", fd=fileno)
        self._settle_after(fileno)
        if self._losing and conn is not None:
            self._may_lose(fileno, conn)
        await self._be_late()

    def _may_lose(self, fileno: int, conn: Any) -> None:
        """Have the connection break in place of an answer, where one is to be lost: a transaction
        has ended, and whoever ended it does not hear how."""
        actor = structlog.contextvars.get_contextvars().get("actor")
        data = _peek(fileno)
        if actor not in self._losing or len(data) == _PEEK or data[-6:] != _READY + b"I":
            return
        self._losing.pop(actor).set()
        self._world.tell("db.answer_lost", actor=actor)
        _shut(fileno)
        while _take(fileno):
            pass
        self._await_end(self._where[conn], [conn.pgconn.backend_pid])

    async def lose_answer(self, actor: str) -> None:
        """Lose the next answer to such an actor that says how a transaction ended."""
        event = self._losing.setdefault(actor, trio.Event())
        try:
            await event.wait()
        finally:
            if self._losing.get(actor) is event:
                del self._losing[actor]

    def _may_doom(self, conn: Any) -> None:
        """Have the backend be unable to write the log, if its actor is to meet that now."""
        actor = structlog.contextvars.get_contextvars().get("actor")
        site = self._where[conn]
        if actor not in self._failing or site is not self._primary or site.down:
            return
        ((at,),) = site.query(
            "SELECT file_offset FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())"
        )
        if at > _LOG_UNTIL:
            site.query("SELECT pg_switch_wal()")
            at = 0
        if at < _LOG_AT:
            site.query("SELECT pg_logical_emit_message(false, 'sim', repeat('-', %s))", [_LOG_AT])
        self._doomed = conn
        # It would end the others when one of them fails, and they would say so in their own time.
        site.server.hold_postmaster(held=True)
        self._limit(conn, _LOG_AT)

    @staticmethod
    def _limit(conn: Any, size: int) -> None:
        pid = conn.pgconn.backend_pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))

    def _meet_doom(self, fileno: int, conn: Any, *, answered: bool) -> None:
        """See whether the backend has met its end; the next statement may, if it has not."""
        self._doomed = None
        site = self._where[conn]
        until = time.monotonic() + _PATIENCE
        while answered:
            data = _peek(fileno, _PEEK_ALL)
            if _PANIC in data or not data:
                break
            if data[-6:-1] == _READY or (
                len(data) >= _PEEK and site.sends(conn.pgconn.backend_pid)
            ):
                answered = False
            elif time.monotonic() > until:
                raise Stuck(f"backend {conn.pgconn.backend_pid} does not end its answer")
        if not answered:
            self._limit(conn, resource.RLIM_INFINITY)
            site.server.hold_postmaster(held=False)
            return
        _await_hangup(fileno)
        _shut(fileno)
        while _take(fileno):
            pass
        self._crash(site)
        actor = structlog.contextvars.get_contextvars()["actor"]
        self._world.tell("db.log_failed", actor=actor)
        self._failing.pop(actor).set()

    async def fail_log(self, actor: str) -> None:
        """Have the log fail at the next commit of such an actor, and wait until it has."""
        event = self._failing.setdefault(actor, trio.Event())
        try:
            await event.wait()
        finally:
            if self._failing.get(actor) is event:
                del self._failing[actor]

    async def _be_late(self) -> None:
        """Take the time that an answer takes to whoever's turn it is, if it can come at all."""
        here = host_of(NODE.get())
        actor = structlog.contextvars.get_contextvars().get("actor")
        if actor in self._awaited:
            answered, nodes = self._awaited.pop(actor)
            nodes.append(here)
            answered.set()
        await trio.sleep(self._rng.uniform(*self.latency))
        while self._network.is_parted(here, HOST):
            await self._network.wait_healed()
        self._world.check_alive()
        self._before_sending()  # the next statement, without anybody's turn in between

    async def wait_answer(self, actor: str) -> str:
        """Wait until an answer is on its way to such an actor; returns its node."""
        answered, nodes = self._awaited.setdefault(actor, (trio.Event(), []))
        await answered.wait()
        return nodes[0]

    async def _wait_notified(self, fileno: int, conn: Any) -> None:
        if fileno not in self._listeners or self._listeners[fileno].conn is not conn:
            self._listeners[fileno] = _Listener(conn)
        self._world.whisper("db.listens", fd=fileno)
        await trio.lowlevel.wait_readable(fileno)
        self._world.whisper("db.hears", fd=fileno, size=_unread(fileno))
        await self._be_late()

    def more_now(self, fileno: int, wanted: int) -> int:
        """Return what is ready once the rest of an answer, or the next one of the same call, is
        there; 0 where it waits for a lock."""
        conn = self._by_fileno[fileno]
        if not self._answered(fileno, conn):
            return 0
        self._settle_after(fileno)
        self._before_sending()
        return wanted

    def cancelled(self, conn: Any) -> None:
        """Told when a server was asked to end a statement: that one is answered for certain."""
        if conn in self._where and conn.pgconn.status == pq.ConnStatus.OK:
            self._where[conn].cancelled.add(conn.pgconn.backend_pid)
            self._where[conn].resume(conn.pgconn.backend_pid)

    def abandoned(self, conn: Any, pid: int) -> None:
        """Told when a connection was closed without a word: its backend rolls back and ends now, or
        as soon as it waits for nothing any more."""
        site = self._where.get(conn)
        if site is None or site.down:
            return
        if site.frozen or site.is_paused(pid):
            site.orphans.add(pid)
        elif self._come_to_rest(site, pid, ends=True):
            site.pause(pid)
            site.orphans.add(pid)

    def _answered(self, fileno: int, conn: Any) -> bool:
        """Whether the server has answered; if not, it waits for a lock, or for its standby."""
        site = None if conn is None else self._where.get(conn)
        if any(each.frozen for each in ([site] if site else self._sites.values())):
            return _poll(fileno, 0)
        pid = 0 if site is None else conn.pgconn.backend_pid
        until = time.monotonic() + _PATIENCE
        seen = 0
        while not _poll(fileno, _LOOK):
            if site is not None and pid and not site.down:
                seen = seen + 1 if site.waiting([pid]) else 0
                if seen > 1:  # twice: not a lock that is had for a moment
                    return False
            if time.monotonic() > until:
                raise Stuck(f"backend {pid} neither answers nor waits for a lock")
        if site is not None:
            site.orphans.discard(pid)
            site.cancelled.discard(pid)
        return True

    async def _wait_unlocked(self, conn: Any) -> None:
        site, pid = self._where[conn], conn.pgconn.backend_pid
        event = self._blocked[conn] = trio.Event()
        if not site.frozen:
            site.pause(pid)
        try:
            await event.wait()
        except trio.Cancelled:
            site.orphans.add(pid)  # its statement may go on in the server
            raise
        finally:
            self._blocked.pop(conn, None)
        if conn.pgconn.status != pq.ConnStatus.OK:
            raise trio.ClosedResourceError("another task closed this connection")

    def _settle_after(self, fileno: int) -> None:
        """After an answer: the same, if it can have set off anything."""
        data = _await_rest(fileno)
        if _NOTIFIES in data:
            self._notifying.add(fileno)
        orphans = any(site.orphans for site in self._sites.values())
        if len(data) < _PEEK and data[-6:-1] == _READY:
            if data[-1:] == b"T":
                if not orphans:
                    return  # a transaction is under way
            elif not (fileno in self._notifying or self._blocked or orphans):
                return  # nobody waits for what has ended, or failed
            else:
                self._notifying.discard(fileno)
        self._settle()

    def _settle(self) -> None:
        """Let everything in the servers come to rest that is under way."""
        self._look_at_blocked()
        for site in self._sites.values():
            if site.down or site.frozen:
                continue
            self._wait_for_orphans(site)
            if size := site.heard():
                self._world.whisper("db.notified", size=size)
                for fileno, listener in self._listeners.items():
                    # One that was given up while the server stood still hears nothing.
                    there = listener.conn.pgconn.status == pq.ConnStatus.OK
                    if there and self._where.get(listener.conn) is site:
                        self._await_bytes(fileno, listener.had + size)
                        self._world.whisper(
                            "db.sent", fd=fileno, had=listener.had, has=_unread(fileno)
                        )

    def _look_at_blocked(self) -> None:
        """Wake those whose statements wait no more."""
        for site in self._sites.values():
            self._let_go_on(site)
        until = time.monotonic() + _PATIENCE
        woken, looked = set(), dict.fromkeys(self._blocked, 0)
        while looked:
            for conn in list(looked):
                site, pgconn = self._where[conn], conn.pgconn
                if pgconn.status != pq.ConnStatus.OK:
                    woken.add(conn)
                    del looked[conn]
                elif _poll(pgconn.socket, 0):
                    _await_rest(pgconn.socket)
                    woken.add(conn)
                    del looked[conn]
                elif site.frozen or site.is_paused(pgconn.backend_pid):
                    del looked[conn]
            for site in self._sites.values():
                pids = {c.pgconn.backend_pid: c for c in looked if self._where[c] is site}
                if not pids:
                    continue
                waiting = site.waiting(list(pids))
                for pid, conn in pids.items():
                    looked[conn] = looked[conn] + 1 if pid in waiting else 0
                    if looked[conn] > 1:
                        del looked[conn]  # it goes on waiting
            if looked:
                time.sleep(_LOOK / 1000)
                if time.monotonic() > until:
                    raise Stuck("backends neither answer nor wait for a lock")
        for conn in [each for each in self._blocked if each in woken]:
            if conn.pgconn.status == pq.ConnStatus.OK:
                site = self._where[conn]
                site.orphans.discard(conn.pgconn.backend_pid)
                site.cancelled.discard(conn.pgconn.backend_pid)
            self._blocked.pop(conn).set()

    def _let_go_on(self, site: _Site) -> None:
        """Let backends go on whose locks are free, each until it has answered or waits again."""
        while not (site.down or site.frozen) and (pid := site.next_free()) is not None:
            site.resume(pid)
            if self._come_to_rest(site, pid):
                site.pause(pid)

    def _await_bytes(self, fileno: int, wanted: int) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                if _unread(fileno) >= wanted:
                    return
            except OSError:
                return  # it was closed
            if time.monotonic() > until:
                raise Stuck("who listens is not told of a notification")
            time.sleep(0.00005)

    def _wait_for_orphans(self, site: _Site) -> None:
        until = time.monotonic() + _PATIENCE
        while site.orphans:
            self._let_go_on(site)
            rows = site.query(
                "SELECT pid, state <> 'active' FROM pg_stat_activity WHERE pid = ANY(%s)",
                [sorted(site.orphans)],
            )
            site.orphans &= {pid for pid, _ in rows}
            busy = {pid for pid, rests in rows if not rests}
            if not busy - site.waiting(sorted(busy)):
                return
            if time.monotonic() > until:
                raise Stuck(f"backends {site.orphans} do not come to rest")

    # Faults

    def sever(self, node: str) -> None:
        """End every connection of a node that was killed, as the kernel does."""
        ended: dict[_Site, list[int]] = {site: [] for site in self._sites.values()}
        for conn, owner in list(self._owners.items()):
            if owner == node and conn.pgconn.status == pq.ConnStatus.OK:
                site = self._where[conn]
                ended[site].append(conn.pgconn.backend_pid)
                self._listeners.pop(conn.pgconn.socket, None)
                self._by_fileno.pop(conn.pgconn.socket, None)
                if conn in self._blocked:
                    site.orphans.add(conn.pgconn.backend_pid)
                _shut(conn.pgconn.socket)
        for site, pids in ended.items():
            self._await_end(site, pids)
        self._settle()

    def _await_end(self, site: _Site, pids: list[int]) -> None:
        """Let backends end whose connections have ended, but for those that wait for a lock."""
        if site.frozen:
            return
        until = time.monotonic() + _PATIENCE
        while not site.down and site.query(
            "SELECT FROM pg_stat_activity WHERE pid = ANY(%s) AND NOT pid = ANY(%s)",
            [pids, sorted(site.orphans)],
        ):
            if time.monotonic() > until:
                raise Stuck(f"backends {pids} do not end")
            time.sleep(0.001)

    def crash(self) -> None:
        """Kill the primary with all of its processes."""
        self._crash(self._primary)

    def _crash(self, site: _Site) -> None:
        site.close()
        site.server.stop(signal.SIGKILL)
        site.held = False
        site.orphans.clear()
        site.cancelled.clear()
        there = [conn for conn in list(self._owners) if self._where[conn] is site]
        for conn in there:
            if conn.pgconn.status == pq.ConnStatus.OK:
                _await_hangup(conn.pgconn.socket)
        for conn in [each for each in self._blocked if self._where[each] is site]:
            self._blocked.pop(conn).set()
        for fileno, listener in list(self._listeners.items()):
            if self._where[listener.conn] is site:
                del self._listeners[fileno]

    def recover(self) -> None:
        """Start the server again; it has recovered when this returns."""
        self._primary.server.start()
        self._primary.observe()
        self.tick()

    def freeze(self) -> None:
        """Stop the primary with all of its processes."""
        site = self._primary
        rows = site.query(
            "SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND application_name <> ''"
            " ORDER BY backend_start, pid"
        )
        # Where there is none, something has to say that it is frozen.
        site.frozen = [pid for (pid,) in rows] or [0]
        site.server.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, with what it was asked meanwhile first."""
        site = self._primary
        pids, site.frozen = site.frozen, []
        site.server.send(signal.SIGCONT, but={site.server.postmaster, *pids})
        living = {
            conn.pgconn.backend_pid: conn
            for conn in list(self._owners)
            if self._where[conn] is site and conn.pgconn.status == pq.ConnStatus.OK
        }
        for pid in pids:
            if not pid or site.is_paused(pid):
                continue
            _signal(pid, signal.SIGCONT)
            conn = living.get(pid)
            if conn is None:  # nobody waits: it does what it was asked, and ends
                if self._come_to_rest(site, pid, ends=True):
                    site.pause(pid)
                    site.orphans.add(pid)
            elif conn in self._blocked and self._come_to_rest(site, pid):
                site.pause(pid)
        site.server.hold_postmaster(held=False)
        # Connections that were asked for meanwhile are taken before this one.
        _connect_behind(site.dsn)
        self._thawed.set()
        self._thawed = trio.Event()
        self._settle()

    def _come_to_rest(self, site: _Site, pid: int, *, ends: bool = False) -> bool:
        """Wait until a backend has answered, or waits for a lock: whether it does.

        `ends`: its client has gone, so it will.
        """
        waited_for = (
            conn for conn in self._blocked
            if self._where[conn] is site and conn.pgconn.status == pq.ConnStatus.OK
            and conn.pgconn.backend_pid == pid
        )  # fmt: skip
        conn = next(waited_for, None)
        until, seen = time.monotonic() + _PATIENCE, 0
        while True:
            if conn is not None and _poll(conn.pgconn.socket, 0):
                return False
            if conn is None and not site.query(
                "SELECT FROM pg_stat_activity WHERE pid = %s AND (%s OR state = 'active')",
                [pid, ends],
            ):
                return False
            seen = seen + 1 if site.waiting([pid]) else 0
            if seen > 1:
                return True
            if time.monotonic() > until:
                raise Stuck(f"backend {pid} does not come to rest")
            time.sleep(_LOOK / 1000)

    def attach(self) -> None:
        """Make the other server the standby of the primary; every commit waits for it from now."""
        primary, other = self._primary, self._other()
        other.server.copy(primary.server)
        other.server.start()
        self._attached += 1
        primary.query("ALTER SYSTEM SET synchronous_commit = 'on'")
        primary.query(f"ALTER SYSTEM SET sim.attached = '{self._attached}'")
        primary.query("SELECT pg_reload_conf()")
        self._await(
            lambda: primary.query(
                "SELECT FROM pg_stat_replication"
                " WHERE sync_state = 'sync' AND current_setting('sim.attached', true) = %s",
                [str(self._attached)],
            ),
            "the standby does not follow",
        )

    def hold(self) -> None:
        """Cut the standby off: it has all that was written until now, and gets no more."""
        self._primary.query("SET synchronous_commit = on")
        self._primary.query("SELECT pg_logical_emit_message(true, 'sim', '')")
        self._primary.query("SET synchronous_commit = off")
        with psycopg.connect(self._other().dsn, autocommit=True) as standby:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            self._await(
                lambda: not standby.execute("SELECT FROM pg_stat_wal_receiver").fetchall(),
                "the standby still follows",
            )
        self._await(
            lambda: not self._primary.query("SELECT FROM pg_stat_replication"),
            "the standby is still followed",
        )
        self._primary.held = True

    def promote(self) -> None:
        """Make the standby the primary, whatever becomes of the old one."""
        other = self._other()
        with psycopg.connect(other.server.dsn("postgres"), autocommit=True) as standby:
            standby.execute("SELECT pg_promote(true)")
        other.observe()
        self._primary = other
        self.tick()

    def fill(self) -> None:
        """Leave the primary's disk no room but for its log."""
        site = self._primary
        assert site.server.room is not None
        # A whole segment: how much of the last is left is no matter of the seed.
        site.query("SET synchronous_commit = local")
        site.query("SELECT pg_switch_wal()")
        site.query("SELECT pg_logical_emit_message(true, 'sim', '')")
        site.query("SET synchronous_commit = off")
        site.server.room.take()

    def empty(self) -> None:
        """Let there be room again."""
        assert self._primary.server.room is not None
        self._primary.server.room.give_back()

    def retire(self) -> None:
        """Kill the primary that was left behind, if it lives."""
        if not self._other().down:
            self._crash(self._other())

    def _other(self) -> _Site:
        (other,) = (site for site in self._sites.values() if site is not self._primary)
        return other

    @staticmethod
    def _await(condition: Callable[[], Any], why: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise Stuck(why)
            time.sleep(0.005)

    @property
    def is_down(self) -> bool:
        """Whether the primary was killed and is not back."""
        return self._primary.down

    def close(self) -> None:
        """Disconnect the simulation's own connections."""
        for site in self._sites.values():
            site.close()


def _poll(fileno: int, milliseconds: int) -> bool:
    poller = select.poll()
    poller.register(fileno, select.POLLIN)
    return bool(poller.poll(milliseconds))


def _await_hangup(fileno: int) -> None:
    """Wait until the other end is closed: a process that has gone may hold it for a moment more."""
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    if not poller.poll(_PATIENCE * 1000):
        raise Stuck("a connection outlives the server")


_libc = ctypes.CDLL(None, use_errno=True)
_peeked = ctypes.create_string_buffer(_PEEK_ALL)


def _peek(fileno: int, most: int = _PEEK) -> bytes:
    """What is in a socket, without taking it; nothing where it has failed."""
    size = _libc.recv(fileno, _peeked, most, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return ctypes.string_at(_peeked, size) if size > 0 else b""


def _take(fileno: int) -> int:
    """Throw away what is in a socket; how much that was."""
    size: int = _libc.recv(fileno, _peeked, _PEEK, socket.MSG_DONTWAIT)
    return max(0, size)


def _is_part(data: bytes) -> bool:
    """Whether the last message of an answer is an error or a notice (as of a commit that no longer
    waits for its standby): the server sends these at once, and the rest when it has come to it."""
    at, last = 0, b""
    while at + 5 <= len(data):
        last = data[at : at + 1]
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return at == len(data) and last in (b"E", b"N")


def _await_rest(fileno: int) -> bytes:
    """Wait for what follows an error or a notice (ReadyForQuery, or the end); what there is then.

    Whoever reads waits for each piece, so it is to be one.
    """
    data = _peek(fileno)
    if not _is_part(data):
        return data
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + _PATIENCE
    while not poller.poll(0) and time.monotonic() < until:
        if not _is_part(data := _peek(fileno)):
            return data
        time.sleep(0.00005)
    return _peek(fileno)


def _await_end_of_answer(fileno: int) -> None:
    """Wait for all of the answer that has begun to come to a listener's own question.

    It comes in one piece or in several, and what is there of it is counted as had.
    """
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + _PATIENCE
    while not (_has_ended(_peek(fileno)) or poller.poll(0)) and time.monotonic() < until:
        time.sleep(0.00005)


def _has_ended(data: bytes) -> bool:
    """Whether all of an answer is there; notifications may have come behind it."""
    at = 0
    while at + 5 <= len(data):
        if data[at : at + 5] == _READY and at + 6 <= len(data):
            return True
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return False


def _await_greeting(fileno: int) -> None:
    """Wait for all that a server says to who connects: it comes in one piece or in several, and
    whoever reads waits for each."""
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + _PATIENCE
    while not poller.poll(0) and time.monotonic() < until:
        data = _peek(fileno)
        lets_in = data[:1] == b"R" and data[5:9] == b"\0\0\0\0"
        if not (lets_in or data[:1] == b"E") or data[-6:-1] == _READY:
            return  # it asks for something, or has said all
        time.sleep(0.00005)


def _unread(fileno: int) -> int:
    """How many bytes are in a socket."""
    found: int = struct.unpack("i", fcntl.ioctl(fileno, termios.FIONREAD, b"\0" * 4))[0]
    return found


def _shut(fileno: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


Wait = Callable[..., Awaitable[Any]]


def waiting(database: Callable[[], Database], original: Wait) -> Wait:
    """Return `Connection.wait` as it is, after the database has been told who is about to ask."""

    async def wait(conn: Any, *arguments: Any, **options: Any) -> Any:
        try:
            database().begin(conn)
        except Dead as error:
            raise psycopg.OperationalError(str(error)) from error
        return await original(conn, *arguments, **options)

    return wait


def cancelling(database: Callable[[], Database], original: Wait) -> Wait:
    """Return `Connection.cancel_safe` as it is, after which the database is told."""

    async def cancel_safe(conn: Any, **options: Any) -> None:
        await original(conn, **options)
        database().cancelled(conn)

    return cancel_safe


def abandoning(database: Callable[[], Database], original: Callable[[Any], None]) -> Any:
    """Return `Connection.abandon` as it is, after which the database is told."""

    def abandon(conn: Any) -> None:
        pid = conn.pgconn.backend_pid if conn.pgconn.status == pq.ConnStatus.OK else 0
        original(conn)
        if pid:
            database().abandoned(conn, pid)

    return abandon
