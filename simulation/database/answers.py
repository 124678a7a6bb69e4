"""The waiting for answers: what the product's connections wait by (`relay/db/waits.py`)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import structlog
import trio
from psycopg import pq

from simulation.database.aimed import Aimed
from simulation.database.connections import Connections, Listener, is_open
from simulation.database.rest import Rest
from simulation.database.server import Server, dsn_of
from simulation.database.servers import Servers
from simulation.database.site import Site
from simulation.database.wire import await_end_of_answer, await_greeting, unread
from simulation.network import Network
from simulation.places import DATABASE
from simulation.world import NODE, World, host_of

_ACTIVE = pq.TransactionStatus.ACTIVE
_GARBAGE = (200, 10_000, 100_000)  # statements after which garbage of each generation is collected


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
        self._sites = {server.socket: Site(server, name) for server in servers}
        sites = [*self._sites.values()]
        self._connections = Connections()
        self._rest = Rest(world, sites, self._connections)
        self.servers = Servers(world, sites, self._connections, self._rest)
        """What becomes of its servers."""
        self.aimed = Aimed(world, self._connections, self._rest, self.servers)
        """What is to befall an actor that asks it something."""
        self.dsn = dsn_of(servers, name)
        self._name = name
        self._awaited: dict[str, tuple[trio.Event, list[str]]] = {}
        self.latency = (0.0002, 0.002)
        self.statements = 0
        self._begun = 0  # calls of `begin`

    # Before the run

    def make(self) -> None:
        """Make the database, with the shadows in it."""
        primary = self.servers.primary
        with psycopg.connect(primary.server.dsn("postgres"), autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {self._name}")
            conn.execute(f"ALTER DATABASE {self._name} SET search_path = sim, pg_catalog, public")
            conn.execute(f"ALTER DATABASE {self._name} SET sim.seed = '{self._world.seed}'")
        with psycopg.connect(primary.dsn, autocommit=True) as conn:
            conn.execute(Path(__file__).with_name("shadows.sql").read_text())
        primary.observe()
        self.tick()

    def shadow_functions(self) -> None:
        """Have the functions that set a search path or a time-out of their own do as the others,
        and have put down what is read of a mailbox that is over."""
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
        self.query(
            "CREATE TRIGGER read_late AFTER UPDATE OF is_read ON relay.messages FOR EACH ROW"
            " WHEN (NEW.is_read AND NOT OLD.is_read) EXECUTE FUNCTION sim.note_read()"
        )

    def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask the primary something on the simulation's own account; the loop stands still."""
        return self.servers.primary.query(sql, params)

    def tick(self) -> None:
        """Set the servers' clock."""
        self.servers.tick()

    # What the product's connections wait by

    def begin(self, conn: Any) -> None:
        """Called before a connection sends anything: `relay.db.connection.Connection.wait`."""
        self._world.check_alive()
        self._world.whisper("db.begins")
        self._collect_garbage()
        if is_open(conn):
            self._connections.add(conn, NODE.get(), self._sites)
        self.tick()
        self._connections.look()
        self.aimed.before(conn)

    def _collect_garbage(self) -> None:
        """Do what Python does of itself at instants of its own: what goes may be a socket."""
        self._begun += 1
        for generation in (2, 1, 0):
            if self._begun % _GARBAGE[generation] == 0:
                gc.collect(generation)
                return

    async def wait_readable(self, fileno: int) -> None:
        """Wait for an answer, or for a notification where nothing was asked."""
        self._world.check_alive()
        conn = self._connections.at(fileno)
        if conn is not None and conn.pgconn.transaction_status != _ACTIVE:
            await self._wait_notified(fileno, conn)
            return
        self.statements += 1
        answered = self._rest.answered(fileno, conn)
        self.aimed.amid(fileno, conn, answered=answered)
        if not answered and conn is None:
            await self.servers.thawed.wait()
            self._rest.answered(fileno, None)
        if conn is None:
            if not self.servers.is_frozen:
                await_greeting(fileno)
        elif not answered:
            await self._wait_unlocked(conn)
            self._world.whisper("db.unlocked", fd=fileno)
        listener = self._connections.listeners.get(fileno)
        if listener is not None and conn is listener.conn:
            await_end_of_answer(fileno)
        self._world.whisper("db.answered", fd=fileno)
        self._rest.settle_after(fileno)
        self.aimed.after(fileno, conn)
        await self._be_late()

    def more_now(self, fileno: int, wanted: int) -> int:
        """Return what is ready once the rest of an answer, or the next one of the same call, is
        there; 0 where it waits for a lock."""
        if not self._rest.answered(fileno, self._connections.at(fileno)):
            return 0
        self._rest.settle_after(fileno)
        self._connections.look()
        return wanted

    def cancelled(self, conn: Any) -> None:
        """Told when a server was asked to end a statement: that one is answered for certain."""
        site = self._connections.site(conn)
        if site is not None and is_open(conn):
            site.cancelled.add(conn.pgconn.backend_pid)
            site.resume(conn.pgconn.backend_pid)

    def abandoned(self, conn: Any, pid: int) -> None:
        """Told when a connection was closed without a word: its backend rolls back and ends now, or
        as soon as it waits for nothing any more."""
        site = self._connections.site(conn)
        if site is None or site.down:
            return
        if site.frozen or site.is_paused(pid):
            site.orphans.add(pid)
        elif self._rest.come_to_rest(site, pid, ends=True):
            site.pause(pid)
            site.orphans.add(pid)

    async def wait_answer(self, actor: str) -> str:
        """Wait until an answer is on its way to such an actor; returns its node."""
        answered, nodes = self._awaited.setdefault(actor, (trio.Event(), []))
        await answered.wait()
        return nodes[0]

    async def _be_late(self) -> None:
        """Take the time that an answer takes to whoever's turn it is, if it can come at all."""
        here = host_of(NODE.get())
        actor = structlog.contextvars.get_contextvars().get("actor")
        if actor in self._awaited:
            answered, nodes = self._awaited.pop(actor)
            nodes.append(here)
            answered.set()
        await trio.sleep(self._rng.uniform(*self.latency))
        while self._network.is_parted(here, DATABASE):
            await self._network.wait_healed()
        self._world.check_alive()
        self._connections.look()  # the next statement, without anybody's turn in between

    async def _wait_notified(self, fileno: int, conn: Any) -> None:
        listeners = self._connections.listeners
        if fileno not in listeners or listeners[fileno].conn is not conn:
            listeners[fileno] = Listener(conn)
        self._world.whisper("db.listens", fd=fileno)
        await trio.lowlevel.wait_readable(fileno)
        self._world.whisper("db.hears", fd=fileno, size=unread(fileno))
        await self._be_late()

    async def _wait_unlocked(self, conn: Any) -> None:
        """Wait until a statement that waits for a lock, or for a standby, was answered."""
        site, pid = self._connections.site(conn), conn.pgconn.backend_pid
        assert site is not None
        event = self._connections.blocked[conn] = trio.Event()
        if not site.frozen:
            site.pause(pid)
        try:
            await event.wait()
        except trio.Cancelled:
            site.orphans.add(pid)  # its statement may go on in the server
            raise
        finally:
            self._connections.blocked.pop(conn, None)
        if not is_open(conn):
            raise trio.ClosedResourceError("another task closed this connection")

    def close(self) -> None:
        """Disconnect the simulation's own connections."""
        for site in self._sites.values():
            site.close()
