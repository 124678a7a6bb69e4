"""PostgreSQL in a simulated world: a real server, whose answers are waited for and then delayed.

The product talks to a server of its own binaries over its own connections.  When it waits for an
answer, the whole loop stands still until the answer is there; then the answer is late by the
virtual clock.  So a statement takes no virtual time in the server, its answer takes some, and
between the two the node may be killed, as between COMMIT and 250.

What runs in the server beside the statement that is waited for has to be known:
- A statement that waits for a lock (`pg_blocking_pids`) lets the loop go on, and is looked at again
  after every other answer.
- Notifications are signals between processes.  An observer listens to the same channels; once it
  has answered after a commit that notifies, its backend has been given what the others have been
  given, and the loop stands still until these bytes are in the sockets of those who listen.  Which
  commits notify is in their answers (`pg_notify` in shadows.sql), at which the simulation looks
  before the product reads them: the others cost no more round trips than in life.
- Background work is off (autovacuum), or changes nothing that is seen (checkpoints).

PostgreSQL's own clock and chance are shadowed (`shadows.sql`).  What only the server can time
(deadlock_timeout, statement_timeout, lock_timeout) is off.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import structlog
import trio
from psycopg import pq
from psycopg.conninfo import make_conninfo

from simulation.network import Network
from simulation.world import EPOCH, NODE, Dead, World, host_of

HOST = "db"
"""The database's name in the network."""

_ACTIVE = pq.TransactionStatus.ACTIVE
_GOOD = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
_PATIENCE = 30.0  # real seconds after which a server that says nothing is a fault of the simulation
_LOOK = 2  # real ms; a statement that takes longer may be waiting for a lock
_PEEK = 65_536  # bytes of an answer that are looked at
_READY = b"Z\0\0\0\5"  # ReadyForQuery, but for the transaction's status, its last byte
_NOTIFIES = b"application_name\0notified "
_DIGITS = 16  # of microseconds since 1970
_OVERHEAD = 11  # bytes of a NotificationResponse besides its two strings: type, length, pid, 2 NULs


class Stuck(RuntimeError):
    """The server does not do what the simulation waits for: a fault of the simulation."""


class Server:
    """A private server of the product's own binaries."""

    def __init__(self, directory: Path) -> None:
        from relay.db.cluster import Cluster

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
        with path.open("r+b") as file:
            self._clock = mmap.mmap(file.fileno(), _DIGITS)

    def set_clock(self, microseconds: int) -> None:
        """Set the clock that SQL sees (`shadows.sql`)."""
        assert self._clock is not None
        self._clock[:] = b"%0*d" % (_DIGITS, microseconds)

    def dsn(self, database: str) -> str:
        """Return how to connect."""
        return make_conninfo(
            "", host=self._cluster.socket, port=5432, user="relay", dbname=database
        )

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

    def stop(self, sign: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server and wait until all of its processes are gone; SIGKILL: all of them."""
        from relay.db.cluster import servers_of

        if self._process is None:
            return
        data = self._cluster.data
        if sign == signal.SIGKILL:
            # Held first: who sees others of them die would still say something.
            for each in (signal.SIGSTOP, sign):
                for pid in servers_of(data):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, each)
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


class Database:
    """A database of one world, and the waiting for it."""

    def __init__(self, world: World, network: Network, server: Server, name: str) -> None:
        self._world = world
        self._network = network
        self._rng = world.rng("database")
        self._server = server
        self.dsn = server.dsn(name)
        self._name = name
        self._observer: psycopg.Connection[Any] | None = None
        # Not the same: psycopg takes notifications out of a connection that it asks something on.
        self._asker: psycopg.Connection[Any] | None = None
        self._by_fileno: dict[int, Any] = {}
        self._owners: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._listeners: dict[int, _Listener] = {}
        self._blocked: dict[Any, trio.Event] = {}
        self._orphans: set[int] = set()
        self._notifying: set[int] = set()  # descriptors whose transactions notify at their end
        self._down = False
        self._awaited: dict[str, tuple[trio.Event, list[str]]] = {}
        self._losing: dict[str, trio.Event] = {}  # actors, of whom an answer is to be lost
        self.latency = (0.0002, 0.002)
        self.statements = 0

    # Before the run

    def make(self) -> None:
        """Make the database, with the shadows in it."""
        with psycopg.connect(self._server.dsn("postgres"), autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {self._name}")
            conn.execute(f"ALTER DATABASE {self._name} SET search_path = sim, pg_catalog, public")
            conn.execute(f"ALTER DATABASE {self._name} SET sim.seed = '{self._world.seed}'")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(Path(__file__).with_name("shadows.sql").read_text())
        self.observe()
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

    # The observer

    def observe(self) -> None:
        """Connect the observer."""
        from relay.db import channels

        options = "-c search_path=pg_catalog -c synchronous_commit=off"
        self._observer = psycopg.connect(self.dsn, autocommit=True, options=options)
        self._asker = psycopg.connect(self.dsn, autocommit=True, options=options)
        for channel in channels.ALL:
            self._exec(b"LISTEN " + channel.encode())

    def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask the server something on the simulation's own account; the loop stands still."""
        assert self._asker is not None
        cursor = self._asker.execute(sql, params, prepare=False)
        return [] if cursor.description is None else cursor.fetchall()

    def tick(self) -> None:
        """Set the server's clock."""
        self._server.set_clock(int((EPOCH + self._world.now()) * 1_000_000))

    def _exec(self, sql: bytes) -> None:
        assert self._observer is not None
        self._checked(self._observer.pgconn.exec_(sql))

    @staticmethod
    def _checked(result: Any) -> None:
        if result.status not in _GOOD:
            raise Stuck(result.error_message.decode())

    # What the product's connections wait by

    def begin(self, conn: Any) -> None:
        """Called before a connection sends anything: `relay.db.connection.Connection.wait`."""
        self._world.check_alive()
        self._world.whisper("db.begins")
        pgconn = conn.pgconn
        if pgconn.status == pq.ConnStatus.OK:
            self._by_fileno[pgconn.socket] = conn
            self._owners.setdefault(conn, NODE.get())
        self.tick()
        self._before_sending()

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
        pid = conn.pgconn.backend_pid if conn is not None else 0
        if not self._answered(fileno, pid):
            await self._wait_unlocked(fileno, conn, pid)
            self._world.whisper("db.unlocked", fd=fileno)
        self._world.whisper("db.answered", fd=fileno)
        self._settle_after(fileno)
        if self._losing and conn is not None:
            self._may_lose(fileno, pid)
        await self._be_late()

    def _may_lose(self, fileno: int, pid: int) -> None:
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
        self._await_end([pid])

    async def lose_answer(self, actor: str) -> None:
        """Lose the next answer to such an actor that says how a transaction ended."""
        event = self._losing.setdefault(actor, trio.Event())
        try:
            await event.wait()
        finally:
            if self._losing.get(actor) is event:
                del self._losing[actor]

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
        if not self._answered(fileno, conn.pgconn.backend_pid):
            return 0
        self._settle_after(fileno)
        self._before_sending()
        return wanted

    def _answered(self, fileno: int, pid: int) -> bool:
        """Whether the server has answered; if not, it waits for a lock."""
        until = time.monotonic() + _PATIENCE
        seen = 0
        while not _poll(fileno, _LOOK):
            if pid and not self._down:
                seen = (
                    seen + 1 if self.query("SELECT FROM unnest(pg_blocking_pids(%s))", [pid]) else 0
                )
                if seen > 1:  # twice: not a lock that is had for a moment
                    return False
            if time.monotonic() > until:
                raise Stuck(f"backend {pid} neither answers nor waits for a lock")
        return True

    async def _wait_unlocked(self, fileno: int, conn: Any, pid: int) -> None:
        event = self._blocked[conn] = trio.Event()
        try:
            await event.wait()
        except trio.Cancelled:
            self._orphans.add(pid)  # its statement may go on in the server
            raise
        finally:
            self._blocked.pop(conn, None)
        if conn.pgconn.status != pq.ConnStatus.OK:
            raise trio.ClosedResourceError("another task closed this connection")

    def _settle_after(self, fileno: int) -> None:
        """After an answer: the same, if it can have set off anything."""
        data = _peek(fileno)
        if _NOTIFIES in data:
            self._notifying.add(fileno)
        if len(data) < _PEEK and data[-6:-1] == _READY:
            if data[-1:] != b"I":
                if not self._orphans:
                    return  # a transaction is under way
            elif not (fileno in self._notifying or self._blocked or self._orphans):
                return
            else:
                self._notifying.discard(fileno)
        self._settle()

    def _settle(self) -> None:
        """Let everything in the server come to rest that is under way."""
        if self._down:
            return
        for conn, event in list(self._blocked.items()):
            pgconn = conn.pgconn
            if pgconn.status != pq.ConnStatus.OK or self._answered(
                pgconn.socket, pgconn.backend_pid
            ):
                del self._blocked[conn]
                event.set()
        self._wait_for_orphans()
        self._exec(b"")
        assert self._observer is not None
        size = 0
        while note := self._observer.pgconn.notifies():
            size += _OVERHEAD + len(note.relname) + len(note.extra)
        if size:
            self._world.whisper("db.notified", size=size)
            for fileno, listener in self._listeners.items():
                self._await_bytes(fileno, listener.had + size)
                self._world.whisper("db.sent", fd=fileno, had=listener.had, has=_unread(fileno))

    def _await_bytes(self, fileno: int, wanted: int) -> None:
        until = time.monotonic() + 1.0
        while True:
            try:
                if _unread(fileno) >= wanted:
                    return
            except OSError:
                return  # it was closed
            if time.monotonic() > until:
                return  # it does not listen to all of it
            time.sleep(0.00005)

    def _wait_for_orphans(self) -> None:
        until = time.monotonic() + _PATIENCE
        while self._orphans:
            rows = self.query(
                "SELECT pid, cardinality(pg_blocking_pids(pid)) > 0 OR state <> 'active'"
                " FROM pg_stat_activity WHERE pid = ANY(%s)",
                [sorted(self._orphans)],
            )
            self._orphans &= {pid for pid, _ in rows}
            if all(rests for _, rests in rows):
                return
            if time.monotonic() > until:
                raise Stuck(f"backends {self._orphans} do not come to rest")

    # Faults

    def sever(self, node: str) -> None:
        """End every connection of a node that was killed, as the kernel does."""
        pids = []
        for conn, owner in list(self._owners.items()):
            if owner == node and conn.pgconn.status == pq.ConnStatus.OK:
                pids.append(conn.pgconn.backend_pid)
                self._listeners.pop(conn.pgconn.socket, None)
                self._by_fileno.pop(conn.pgconn.socket, None)
                if conn in self._blocked:
                    self._orphans.add(conn.pgconn.backend_pid)
                _shut(conn.pgconn.socket)
        self._await_end(pids)
        self._settle()

    def _await_end(self, pids: list[int]) -> None:
        """Let backends end whose connections have ended, but for those that wait for a lock."""
        until = time.monotonic() + _PATIENCE
        while not self._down and self.query(
            "SELECT FROM pg_stat_activity WHERE pid = ANY(%s) AND NOT pid = ANY(%s)",
            [pids, sorted(self._orphans)],
        ):
            if time.monotonic() > until:
                raise Stuck(f"backends {pids} do not end")
            time.sleep(0.001)

    def crash(self) -> None:
        """Kill the server with all of its processes."""
        self._down = True
        self.close()
        self._server.stop(signal.SIGKILL)
        for conn in list(self._owners):
            if conn.pgconn.status == pq.ConnStatus.OK:
                _await_hangup(conn.pgconn.socket)
        for event in self._blocked.values():
            event.set()
        self._blocked.clear()
        self._orphans.clear()
        self._listeners.clear()

    def recover(self) -> None:
        """Start the server again; it has recovered when this returns."""
        self._server.start()
        self._down = False
        self.observe()
        self.tick()

    @property
    def is_down(self) -> bool:
        """Whether it was killed and is not back."""
        return self._down

    def close(self) -> None:
        """Disconnect the observer."""
        for conn in (self._observer, self._asker):
            if conn is not None:
                conn.close()
        self._observer = self._asker = None


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
_peeked = ctypes.create_string_buffer(_PEEK)


def _peek(fileno: int) -> bytes:
    """What is in a socket, without taking it; nothing where it has failed."""
    size = _libc.recv(fileno, _peeked, _PEEK, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return ctypes.string_at(_peeked, size) if size > 0 else b""


def _take(fileno: int) -> int:
    """Throw away what is in a socket; how much that was."""
    size: int = _libc.recv(fileno, _peeked, _PEEK, socket.MSG_DONTWAIT)
    return max(0, size)


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
