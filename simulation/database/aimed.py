"""Faults that are aimed at what an actor asks the database next.

Its answer is lost: a transaction has ended, and whoever ended it does not hear how; or it has not,
and never will.  Or the log fails at its commit: the backend may not write where the log is at, so
it panics at its COMMIT, as it does when a write of the log fails, and the server is gone.  What it
said of that is taken away (it names places in files that are no matter of the seed): its client
sees a broken connection.  Or the log is written and cannot be brought to the disk (fsync): nobody
hears of the commit, the server is gone, and the commit is there when it is started again.
"""

from __future__ import annotations

import resource
from typing import Any

import structlog
import trio

from simulation.database.connections import Connections
from simulation.database.patience import looks
from simulation.database.rest import Rest
from simulation.database.servers import Servers
from simulation.database.wire import PEEK, PEEK_ALL, READY, await_hangup, peek, shut, take
from simulation.world import World

_PANIC = b"VPANIC\0"  # of an ErrorResponse, its severity
_LOG_AT, _LOG_UNTIL = 4 << 20, 12 << 20  # bytes of a segment of the log; no other file is as large


def _actor() -> str | None:
    """Whose turn it is."""
    actor: str | None = structlog.contextvars.get_contextvars().get("actor")
    return actor


class _Appointments:
    """Who waits for the next time that something can be done to an actor."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}

    def __bool__(self) -> bool:
        return bool(self._events)

    def has(self, actor: str | None) -> bool:
        """Whether somebody waits for this actor."""
        return actor in self._events

    def keep(self, actor: str) -> None:
        """It was done."""
        self._events.pop(actor).set()

    async def wait(self, actor: str) -> None:
        """Wait until it was done to this actor."""
        event = self._events.setdefault(actor, trio.Event())
        try:
            await event.wait()
        finally:
            if self._events.get(actor) is event:
                del self._events[actor]


class Aimed:
    """What is to befall an actor, and does."""

    def __init__(
        self, world: World, connections: Connections, rest: Rest, servers: Servers
    ) -> None:
        self._world = world
        self._connections = connections
        self._rest = rest
        self._servers = servers
        self._losing = _Appointments()
        self._breaking = _Appointments()
        self._syncing = _Appointments()
        self._failing = _Appointments()
        self._doomed: Any = None  # the connection whose backend cannot write the log

    async def lose_answer(self, actor: str, *, within: bool = False) -> None:
        """Lose the next answer to such an actor that says how a transaction ended, or that comes
        `within` one."""
        await (self._breaking if within else self._losing).wait(actor)

    async def fail_log(self, actor: str) -> None:
        """Have the log fail at the next commit of such an actor, and wait until it has."""
        await self._failing.wait(actor)

    async def fail_sync(self, actor: str) -> None:
        """Have the next commit of such an actor be written and be the server's last, and wait."""
        await self._syncing.wait(actor)

    def before(self, conn: Any) -> None:
        """Before a connection sends anything: its backend may be unable to write the log."""
        if self._failing and self._connections.site(conn) is not None:
            self._may_doom(conn)

    def amid(self, fileno: int, conn: Any, *, answered: bool) -> None:
        """While an answer is waited for: the backend may have met its end."""
        if conn is not None and conn is self._doomed:
            self._meet_doom(fileno, conn, answered=answered)

    def after(self, fileno: int, conn: Any) -> None:
        """Once the answer is there: it may be lost."""
        if conn is not None and (self._losing or self._breaking or self._syncing):
            self._may_lose(fileno, conn)

    def _may_lose(self, fileno: int, conn: Any) -> None:
        """Have the connection break in place of an answer, if its actor is to meet that now."""
        actor, site = _actor(), self._connections.site(conn)
        data = peek(fileno)
        if actor is None or site is None or len(data) == PEEK or data[-6:-1] != READY:
            return
        ended = data[-1:] == b"I"
        if ended and self._syncing.has(actor) and site is self._servers.primary and not site.down:
            _hang_up(fileno)
            self._servers.crash(site)
            self._world.tell("db.log_failed", actor=actor)
            self._syncing.keep(actor)
            return
        losing = self._losing if ended else self._breaking
        if losing.has(actor):
            losing.keep(actor)
            self._world.tell("db.answer_lost", actor=actor)
            _hang_up(fileno)
            self._rest.await_end(site, [conn.pgconn.backend_pid])

    def _may_doom(self, conn: Any) -> None:
        """Have the backend be unable to write the log, if its actor is to meet that now."""
        site = self._servers.primary
        if not self._failing.has(_actor()) or self._connections.site(conn) is not site or site.down:
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
        _limit(conn, _LOG_AT)

    def _meet_doom(self, fileno: int, conn: Any, *, answered: bool) -> None:
        """See whether the backend has met its end; the next statement may, if it has not."""
        self._doomed = None
        site = self._connections.site(conn)
        assert site is not None
        pid = conn.pgconn.backend_pid
        for _ in looks(f"backend {pid} does not end its answer", 0.0):
            if not answered:
                break
            data = peek(fileno, PEEK_ALL)
            if _PANIC in data or not data:
                break
            answered = not (data[-6:-1] == READY or (len(data) >= PEEK and site.sends(pid)))
        if not answered:
            _limit(conn, resource.RLIM_INFINITY)
            site.server.hold_postmaster(held=False)
            return
        await_hangup(fileno)
        _hang_up(fileno)
        self._servers.crash(site)
        actor = _actor()
        assert actor is not None
        self._world.tell("db.log_failed", actor=actor)
        self._failing.keep(actor)


def _hang_up(fileno: int) -> None:
    """Break a connection, and take away what it was sent."""
    shut(fileno)
    while take(fileno):
        pass


def _limit(conn: Any, size: int) -> None:
    """Have a connection's backend write no further than so far into any file."""
    pid = conn.pgconn.backend_pid
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
