"""Coming to rest: what is under way in the servers beside the statement that is waited for.

After each answer that can have set something off, backends that one lock let go have gone on, one
after the other, until each has answered or waits again; backends that nobody waits for have ended,
or wait; and whoever listens has been given what others have said.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from simulation.database.connections import Connections, is_open
from simulation.database.patience import LOOK, PATIENCE, Stuck, await_, looks
from simulation.database.site import Site
from simulation.database.wire import PEEK, READY, await_rest, poll, unread
from simulation.world import World

_NOTIFIES = b"application_name\0notified "


class Rest:
    """Has the servers of a world come to rest."""

    def __init__(self, world: World, sites: Sequence[Site], connections: Connections) -> None:
        self._world = world
        self._sites = sites
        self._connections = connections
        self._notifying: set[int] = set()  # descriptors whose transactions notify at their end

    def answered(self, fileno: int, conn: Any) -> bool:
        """Wait until the server has answered; False: it waits for a lock, or for its standby.

        `conn`: None for one that is not let in yet.
        """
        site = self._connections.site(conn)
        if any(each.frozen for each in ([site] if site else self._sites)):
            return poll(fileno, 0)
        pid = 0 if site is None else conn.pgconn.backend_pid
        until = time.monotonic() + PATIENCE
        seen = 0
        while not poll(fileno, LOOK):
            if site is not None and pid and not site.down:
                seen = seen + 1 if site.waiting([pid]) else 0
                if seen > 1:  # twice: not a lock that is had for a moment
                    return False
            if time.monotonic() > until:
                raise Stuck(f"backend {pid} neither answers nor waits for a lock")
        if site is not None:
            site.has_answered(pid)
        return True

    def settle_after(self, fileno: int) -> None:
        """Come to rest after an answer, if it can have set anything off."""
        data = await_rest(fileno)
        if _NOTIFIES in data:
            self._notifying.add(fileno)
        orphans = any(site.orphans for site in self._sites)
        if len(data) < PEEK and data[-6:-1] == READY:
            if data[-1:] == b"T":
                if not orphans:
                    return  # a transaction is under way
            elif not (fileno in self._notifying or self._connections.blocked or orphans):
                return  # nobody waits for what has ended, or failed
            else:
                self._notifying.discard(fileno)
        self.settle()

    def settle(self) -> None:
        """Let everything in the servers come to rest that is under way."""
        self._look_at_blocked()
        for site in self._sites:
            if site.down or site.frozen:
                continue
            self._wait_for_orphans(site)
            if size := site.heard():
                self._world.whisper("db.notified", size=size)
                for fileno, listener in self._connections.listeners.items():
                    # One that was given up while the server stood still hears nothing.
                    there = is_open(listener.conn)
                    if there and self._connections.site(listener.conn) is site:
                        _await_bytes(fileno, listener.had + size)
                        self._world.whisper(
                            "db.sent", fd=fileno, had=listener.had, has=unread(fileno)
                        )

    def come_to_rest(self, site: Site, pid: int, *, ends: bool = False) -> bool:
        """Wait until a backend has answered, or waits for a lock: whether it does.

        `ends`: its client has gone, so it will.
        """
        waited_for = (
            conn for conn in self._connections.blocked
            if self._connections.site(conn) is site and is_open(conn)
            and conn.pgconn.backend_pid == pid
        )  # fmt: skip
        conn, seen = next(waited_for, None), 0
        for _ in looks(f"backend {pid} does not come to rest", LOOK / 1000):
            if conn is not None and poll(conn.pgconn.socket, 0):
                return False
            if conn is None and not site.query(
                "SELECT FROM pg_stat_activity WHERE pid = %s AND (%s OR state = 'active')",
                [pid, ends],
            ):
                return False
            seen = seen + 1 if site.waiting([pid]) else 0
            if seen > 1:
                break
        return True

    def await_end(self, site: Site, pids: list[int]) -> None:
        """Let backends end whose connections have ended, but for those that wait for a lock."""
        if site.frozen:
            return
        await_(
            lambda: (
                site.down
                or not site.query(
                    "SELECT FROM pg_stat_activity WHERE pid = ANY(%s) AND NOT pid = ANY(%s)",
                    [pids, sorted(site.orphans)],
                )
            ),
            f"backends {pids} do not end",
            0.001,
        )

    def _look_at_blocked(self) -> None:
        """Wake those whose statements wait no more."""
        for site in self._sites:
            self._let_go_on(site)
        blocked = self._connections.blocked
        woken, looked = set(), dict.fromkeys(blocked, 0)
        for _ in looks("backends neither answer nor wait for a lock", LOOK / 1000):
            for conn in list(looked):
                site, pgconn = self._site(conn), conn.pgconn
                if not is_open(conn):
                    woken.add(conn)
                    del looked[conn]
                elif poll(pgconn.socket, 0):
                    await_rest(pgconn.socket)
                    woken.add(conn)
                    del looked[conn]
                elif site.frozen or site.is_paused(pgconn.backend_pid):
                    del looked[conn]
            for site in self._sites:
                pids = {c.pgconn.backend_pid: c for c in looked if self._site(c) is site}
                if not pids:
                    continue
                waiting = site.waiting(list(pids))
                for pid, conn in pids.items():
                    looked[conn] = looked[conn] + 1 if pid in waiting else 0
                    if looked[conn] > 1:
                        del looked[conn]  # it goes on waiting
            if not looked:
                break
        for conn in [each for each in blocked if each in woken]:
            if is_open(conn):
                self._site(conn).has_answered(conn.pgconn.backend_pid)
            blocked.pop(conn).set()

    def _site(self, conn: Any) -> Site:
        site = self._connections.site(conn)
        assert site is not None
        return site

    def _let_go_on(self, site: Site) -> None:
        """Let backends go on whose locks are free, each until it has answered or waits again."""
        while not (site.down or site.frozen) and (pid := site.next_free()) is not None:
            site.resume(pid)
            if self.come_to_rest(site, pid):
                site.pause(pid)

    def _wait_for_orphans(self, site: Site) -> None:
        until = time.monotonic() + PATIENCE
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


def _await_bytes(fileno: int, wanted: int) -> None:
    """Wait for so many bytes in a socket, or until it is closed."""

    def is_there() -> bool:
        try:
            return unread(fileno) >= wanted
        except OSError:
            return True

    await_(is_there, "who listens is not told of a notification", 0.00005)
