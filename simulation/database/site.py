"""A server of a world, and the simulation's own connections to it.

One asks, the other hears what all who listen hear.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq

from simulation.database.patience import Stuck
from simulation.database.server import Server, send_signal

_GOOD = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
_OVERHEAD = 11  # bytes of a NotificationResponse besides its two strings: type, length, pid, 2 NULs


class Site:
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
        send_signal(pid, signal.SIGSTOP)

    def resume(self, pid: int) -> None:
        """Let a backend go on, if it is stopped while it waits for a lock."""
        if pid in self._paused:
            del self._paused[pid]
            send_signal(pid, signal.SIGCONT)

    def is_paused(self, pid: int) -> bool:
        """Whether a backend is stopped while it waits for a lock."""
        return pid in self._paused

    def has_answered(self, pid: int) -> None:
        """Forget what was known of a backend's statement."""
        self.orphans.discard(pid)
        self.cancelled.discard(pid)

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
