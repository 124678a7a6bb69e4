"""The servers of a world, of which one is the primary: what becomes of them, and of their disks.

A standby is made of the other server when a failover is to come (`attach`): a real copy, streamed
to, and every commit waits for it.  Once it is cut off (`hold`) it has all that was written until
then, to the byte, and nothing of what comes after; commits wait like those that wait for a lock,
and only a cancellation ends that.  So which commits a promotion loses is no matter of luck.

A server may be stopped with all of its processes (`freeze`): what it was sent then is done when it
goes on (`thaw`), though whoever asked has given up.  Backends go on one after the other, in the
order in which they began, and the process that takes connections and cancellations as the last.

A disk is full (`fill`) where the server's file system has no room for another block, and the kernel
says so to whoever needs one.  That the log cannot be written is in `aimed`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import psycopg
import trio

from simulation.database.connections import Connections, is_open
from simulation.database.patience import await_
from simulation.database.rest import Rest
from simulation.database.server import connect_behind, send_signal
from simulation.database.site import Site
from simulation.database.wire import await_hangup, shut
from simulation.world import EPOCH, World


class Servers:
    """One server, or two that take turns as the primary."""

    def __init__(
        self, world: World, sites: Sequence[Site], connections: Connections, rest: Rest
    ) -> None:
        self._world = world
        self._sites = sites
        self._connections = connections
        self._rest = rest
        self._attached = 0
        self.primary = sites[0]
        self.thawed = trio.Event()
        """Set, and another one, when the server that is stopped goes on."""

    @property
    def is_frozen(self) -> bool:
        """Whether one is stopped."""
        return any(site.frozen for site in self._sites)

    def tick(self) -> None:
        """Set the clock that SQL sees."""
        for site in self._sites:
            site.server.set_clock(int((EPOCH + self._world.now()) * 1_000_000))

    def sever(self, node: str) -> None:
        """End every connection of a node that was killed, as the kernel does."""
        ended: dict[Site, list[int]] = {site: [] for site in self._sites}
        for conn in self._connections.end(node):
            site = self._connections.site(conn)
            assert site is not None
            ended[site].append(conn.pgconn.backend_pid)
            if conn in self._connections.blocked:
                site.orphans.add(conn.pgconn.backend_pid)
            shut(conn.pgconn.socket)
        for site, pids in ended.items():
            self._rest.await_end(site, pids)
        self._rest.settle()

    def crash(self, site: Site | None = None) -> None:
        """Kill a server with all of its processes: the primary, if none is said."""
        site = site or self.primary
        site.close()
        site.server.stop(signal.SIGKILL)
        site.held = False
        site.orphans.clear()
        site.cancelled.clear()
        for conn in self._connections.of(site):
            if is_open(conn):
                await_hangup(conn.pgconn.socket)
        blocked, listeners = self._connections.blocked, self._connections.listeners
        for conn in [each for each in blocked if self._connections.site(each) is site]:
            blocked.pop(conn).set()
        for fileno, listener in list(listeners.items()):
            if self._connections.site(listener.conn) is site:
                del listeners[fileno]

    def recover(self) -> None:
        """Start the primary again; it has recovered when this returns."""
        self.primary.server.start()
        self.primary.observe()
        self.tick()

    def freeze(self) -> None:
        """Stop the primary with all of its processes."""
        site = self.primary
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
        site = self.primary
        pids, site.frozen = site.frozen, []
        site.server.send(signal.SIGCONT, but={site.server.postmaster, *pids})
        living = {
            conn.pgconn.backend_pid: conn for conn in self._connections.of(site) if is_open(conn)
        }
        for pid in pids:
            if not pid or site.is_paused(pid):
                continue
            send_signal(pid, signal.SIGCONT)
            conn = living.get(pid)
            if conn is None:  # nobody waits: it does what it was asked, and ends
                if self._rest.come_to_rest(site, pid, ends=True):
                    site.pause(pid)
                    site.orphans.add(pid)
            elif conn in self._connections.blocked and self._rest.come_to_rest(site, pid):
                site.pause(pid)
        site.server.hold_postmaster(held=False)
        # Connections that were asked for meanwhile are taken before this one.
        connect_behind(site.dsn)
        self.thawed.set()
        self.thawed = trio.Event()
        self._rest.settle()

    def attach(self) -> None:
        """Make the other server the standby of the primary; every commit waits for it from now."""
        primary, other = self.primary, self._other()
        other.server.copy(primary.server)
        other.server.start()
        self._attached += 1
        primary.query("ALTER SYSTEM SET synchronous_commit = 'on'")
        primary.query(f"ALTER SYSTEM SET sim.attached = '{self._attached}'")
        primary.query("SELECT pg_reload_conf()")
        await_(
            lambda: primary.query(
                "SELECT FROM pg_stat_replication"
                " WHERE sync_state = 'sync' AND current_setting('sim.attached', true) = %s",
                [str(self._attached)],
            ),
            "the standby does not follow",
        )

    def hold(self) -> None:
        """Cut the standby off: it has all that was written until now, and gets no more."""
        primary = self.primary
        primary.query("SET synchronous_commit = on")
        primary.query("SELECT pg_logical_emit_message(true, 'sim', '')")
        primary.query("SET synchronous_commit = off")
        with psycopg.connect(self._other().dsn, autocommit=True) as standby:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            await_(
                lambda: not standby.execute("SELECT FROM pg_stat_wal_receiver").fetchall(),
                "the standby still follows",
            )
        await_(
            lambda: not primary.query("SELECT FROM pg_stat_replication"),
            "the standby is still followed",
        )
        primary.held = True

    def promote(self) -> None:
        """Make the standby the primary, whatever becomes of the old one."""
        other = self._other()
        with psycopg.connect(other.server.dsn("postgres"), autocommit=True) as standby:
            standby.execute("SELECT pg_promote(true)")
        other.observe()
        self.primary = other
        self.tick()

    def retire(self) -> None:
        """Kill the primary that was left behind, if it lives."""
        if not self._other().down:
            self.crash(self._other())

    def fill(self) -> None:
        """Leave the primary's disk no room but for its log."""
        site = self.primary
        assert site.server.room is not None
        # A whole segment: how much of the last is left is no matter of the seed.
        site.query("SET synchronous_commit = local")
        site.query("SELECT pg_switch_wal()")
        site.query("SELECT pg_logical_emit_message(true, 'sim', '')")
        site.query("SET synchronous_commit = off")
        site.server.room.take()

    def empty(self) -> None:
        """Let there be room again."""
        assert self.primary.server.room is not None
        self.primary.server.room.give_back()

    def _other(self) -> Site:
        (other,) = (site for site in self._sites if site is not self.primary)
        return other
