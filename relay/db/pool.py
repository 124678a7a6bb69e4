"""A bounded pool of connections.

Promises:
- At most `size` connections, and one that looks out for other hosts; whoever waits for one is
  served in order of arrival and waits at most `acquire_timeout` seconds.
- The connection used last is handed out first, so a quiet pool lets the others grow old and
  closes them.
- Everything has a client-side deadline (a backend stopped by SIGSTOP defeats the server's
  `statement_timeout`), `fetch*`, `execute` and `run` each as a whole, in the blocks of `connection`
  and `transaction` each statement, BEGIN and COMMIT among them; past it the connection is thrown
  away.
- A call that ends well has committed as durably as the server's settings say.  A commit that did
  not wait for its standby has not ended well (`relay.db.doubt`).
- `fetch_durable` and `execute_durable`: what they show may be promised, whoever wrote it.
- What comes back in a transaction is rolled back; what comes back busy, broken or in pipeline
  mode is closed.  So nobody inherits a transaction, a lock or an answer.
- An idle connection on which anything has arrived (the end of the stream after a restart of the
  server, as a rule) is not handed out: the failure is seen before anything was sent, and a fresh
  connection takes its place.
- After a call that a server did not answer in time, an idle connection to that server has to
  answer within a second before it is handed out; if it does not, all that are idle go with it.
- A server of an older timeline than one that was met is not talked to: see `relay.db.hosts`.

Fails with `DatabaseUnavailable` when no connection can be had, none answers in time, the
connection breaks, or the server says that it cannot serve (see `_UNAVAILABLE`); a broken
statement stays psycopg's own error.  Whether the statement of a call that ended in
`DatabaseUnavailable` took effect is unknown, unless it is `RolledBack`: another transaction was in
the way, and nothing has changed.

Session state (SET, LISTEN, advisory locks, temporary tables) does not belong on pooled
connections: nothing resets it, and PgBouncer would not keep it.
"""

# ruff: noqa: ASYNC109 - a time-out here also decides what becomes of the connection

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict
from trio.lowlevel import checkpoint_if_cancelled

from relay.db.connection import (
    CLEANUP_TIMEOUT,
    Connection,
    NoAnswer,
    Statement,
    connect,
)
from relay.db.doubt import BARRIER, NotReplicated
from relay.db.hosts import Host, Hosts
from relay.errors import ConfigError, DatabaseUnavailable, RolledBack
from relay.log import get_logger

log = get_logger()

T = TypeVar("T")

_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE

# SQLSTATEs after which the same call may work a moment later, perhaps on another server: the
# connection failed (08), the server has no memory, disk or connections left (53), an operator
# or a crash intervened (57), its disk failed (58), it became a read-only standby (25006).
_UNAVAILABLE = ("08", "53", "57", "58", "25006")

# Those after which nothing has changed: another transaction was in the way (a serialization
# failure, a deadlock, the lock_timeout of an operator).  They are waited out like an outage.
_ROLLED_BACK = ("40001", "40P01", "55P03")

_READ_ONLY = "25006"

_NOT_AVAILABLE = "PostgreSQL is not available: "

_PROBE_TIMEOUT = 1.0  # s; what an idle connection to a server that was silent is given to answer

_IDLE_FOR = 300.0  # s; an unused connection beyond the first is closed after this


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment.  `opened` and `discarded` count since the start."""

    size: int
    in_use: int
    idle: int
    waiting: int
    opened: int
    discarded: int


class Pool:
    """Connections to `dsn`, all in autocommit mode.  May be built before Trio runs.

    `size` connections at most; `acquire_timeout` and `call_timeout` in seconds; `prepare` False
    for a PgBouncer that does not know prepared statements; `hosts` is shared with the process's
    other connections to the same database.  `ConfigError` for a DSN that cannot be read.
    """

    def __init__(
        self,
        dsn: str,
        *,
        size: int = 8,
        acquire_timeout: float = 5.0,
        call_timeout: float = 15.0,
        application_name: str = "relay",
        prepare: bool = True,
        hosts: Hosts | None = None,
    ) -> None:
        try:
            conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"the database URL cannot be read: {error}".rstrip()) from error
        self.dsn = dsn
        self.hosts = hosts or Hosts()
        """What is known of the servers; for other connections of the process to be told."""
        self.size = size
        self.acquire_timeout = acquire_timeout
        self.call_timeout = call_timeout
        self._application_name = application_name
        self._prepare_threshold = 5 if prepare else None
        # One slot for each connection in use.  Connections are opened by slot holders when no
        # idle one is left, so in use + idle never exceeds the size.
        self._slots = trio.Semaphore(size, max_value=size)
        self._idle: list[Connection] = []
        self._opened = 0
        self._discarded = 0
        self._closed = False

    @asynccontextmanager
    async def connection(
        self, *, timeout: float | None = None, patience: float | None = None
    ) -> AsyncIterator[Connection]:
        """Check a connection out for a block; `timeout` seconds to get it, `patience` seconds
        (`call_timeout` unless given) for each answer on it.

        How long the block itself takes, with whatever else it does, is its own business.
        """
        conn = await self._acquire(timeout)
        conn.patience = self.call_timeout if patience is None else patience
        try:
            yield conn
        except psycopg.Error as error:
            self._raise_what_it_means(error, conn)
            raise
        finally:
            conn.patience = None
            await self._release(conn)

    @asynccontextmanager
    async def transaction(
        self, *, timeout: float | None = None, patience: float | None = None
    ) -> AsyncIterator[Connection]:
        """Check a connection out with a transaction open: committed at the end of the block,
        rolled back when the block raises or is cancelled.  `timeout` and `patience` as in
        `connection`; COMMIT is waited for no longer than `call_timeout`."""
        async with (
            self.connection(timeout=timeout, patience=patience) as conn,
            conn.transaction(),
        ):
            yield conn
            # While it waits for a standby it may hold the lock that every NOTIFY takes.
            conn.patience = self.call_timeout

    async def fetch(
        self,
        sql: str,
        params: Sequence[Any] | dict[str, Any] = (),
        *,
        timeout: float | None = None,
        binary: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.  `timeout` in seconds for the call, once it has
        a connection; `binary` has large answers sent in the form that is cheaper to read.  As in
        psycopg, `%` is only special when there are parameters."""
        return await self._call(sql, params, timeout, _rows, binary=binary)

    async def fetch_row(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, timeout: float | None = None
    ) -> tuple[Any, ...] | None:
        """Run one statement and return its first row, or None."""
        rows = await self._call(sql, params, timeout, _rows)
        return rows[0] if rows else None

    async def fetch_value(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, timeout: float | None = None
    ) -> Any:
        """Run one statement and return the first column of its first row, or None."""
        rows = await self._call(sql, params, timeout, _rows)
        return rows[0][0] if rows else None

    async def execute(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, timeout: float | None = None
    ) -> int:
        """Run one statement and return how many rows it changed (or found)."""
        return await self._call(sql, params, timeout, _rowcount)

    async def fetch_durable(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, timeout: float | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement whose rows, or the lack of them, may be promised once it returns.

        A look and a write in one transaction (see `relay.db.doubt`): for the rare answer that
        rests on what others wrote.  `timeout` in seconds for all of it.
        """
        return await self._durable(sql, params, timeout, _rows)

    async def execute_durable(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, timeout: float | None = None
    ) -> int:
        """Run one statement as `execute` does; that it changed nothing may be promised, too.

        One that found nothing to change is run again as `fetch_durable` does.
        """
        changed = await self._call(sql, params, timeout, _rowcount)
        return changed or await self._durable(sql, params, timeout, _rowcount)

    def statistics(self) -> PoolStatistics:
        """What the pool is doing now."""
        slots = self._slots.statistics()
        return PoolStatistics(
            size=self.size,
            in_use=self.size - self._slots.value,
            idle=len(self._idle),
            waiting=slots.tasks_waiting,
            opened=self._opened,
            discarded=self._discarded,
        )

    async def close(self) -> None:
        """Close idle connections now and the others as they come back.  Nothing new is given."""
        self._closed = True
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close what is idle now; the pool goes on with fresh connections when asked."""
        while self._idle:
            await self._idle.pop().close()

    async def ping(self, timeout: float) -> None:
        """See that the server answers within `timeout` seconds, which one it is, and whether its
        commits end.

        A pooler keeps our connections and may have given them another server: one of a later
        timeline closes what leads to an earlier one, and an older one is refused.
        `DatabaseUnavailable` for that, and when nobody answers.
        """

        async def meet(conn: Connection) -> None:
            try:
                await conn.meet(self.hosts)
                await conn.look_at_commits(self.hosts)
            except psycopg.OperationalError:
                self.hosts.held_up = None  # whoever answers next is looked at anew
                conn.abandon()
                raise

        await self._borrow(meet, timeout)

    async def _call(
        self,
        sql: str,
        params: Sequence[Any] | dict[str, Any],
        timeout: float | None,
        take: Callable[[psycopg.AsyncCursor[Any]], T],
        *,
        binary: bool = False,
    ) -> T:
        async def call(conn: Connection) -> T:
            return take(await conn.execute(sql, params or None, binary=binary))

        return await self._borrow(call, timeout)

    async def _durable(
        self,
        sql: str,
        params: Sequence[Any] | dict[str, Any],
        timeout: float | None,
        take: Callable[[psycopg.AsyncCursor[Any]], T],
    ) -> T:
        async def call(conn: Connection) -> T:
            async with conn.transaction():
                found = take(await conn.execute(sql, params or None))
                try:
                    await conn.execute(BARRIER)
                except psycopg.Error as error:  # a standby, which writes nothing
                    conn.abandon()  # another may lead to the primary
                    raise DatabaseUnavailable(f"PostgreSQL confirms nothing: {error}") from error
            return found

        return await self._borrow(call, timeout)

    async def run(
        self,
        statement: Statement,
        params: Sequence[bytes | None],
        *,
        timeout: float | None = None,
    ) -> psycopg.pq.abc.PGresult:
        """Run a `Statement`, which costs a fifth of a `fetch` here, and return libpq's result:
        `ntuples`, `get_value(row, column)` as bytes."""
        return await self._borrow(lambda conn: conn.run(statement, params), timeout)

    async def rows(
        self,
        statement: Statement,
        params: Sequence[bytes | None],
        *,
        timeout: float | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a `Statement` and return its rows as `fetch` gives them; times are in UTC."""
        result = await self.run(statement, params, timeout=timeout)
        reader = psycopg.adapt.Transformer()
        reader.set_pgresult(result)
        return reader.load_rows(0, result.ntuples, tuple)

    async def _borrow(self, call: Callable[[Connection], Awaitable[T]], timeout: float | None) -> T:
        seconds = self.call_timeout if timeout is None else timeout
        conn = await self._acquire(None)
        try:
            with trio.move_on_after(seconds):
                return await call(conn)
            self.hosts.fell_silent(conn.host)
            conn.abandon()
            raise DatabaseUnavailable(f"PostgreSQL did not answer within {seconds:.3g} s")
        except psycopg.Error as error:
            self._raise_what_it_means(error, conn)
            raise
        finally:
            if conn.at_rest() and not self._closed:
                self._keep(conn)
            else:
                await self._release(conn)

    def _raise_what_it_means(self, error: psycopg.Error, conn: Connection) -> None:
        """Raise what an error on a connection is to who called; return if it is the statement's."""
        if isinstance(error, NoAnswer):
            self.hosts.fell_silent(conn.host)
        if conn.closed or (error.sqlstate or "").startswith(_UNAVAILABLE):
            if error.sqlstate == _READ_ONLY:
                conn.abandon()  # another may lead to the primary
            # Nobody knows how the call ended.
            said = "" if isinstance(error, (NoAnswer, NotReplicated)) else _NOT_AVAILABLE
            raise DatabaseUnavailable(f"{said}{error}") from error
        if error.sqlstate in _ROLLED_BACK:
            said = error.diag.message_primary or str(error)
            raise RolledBack(f"PostgreSQL rolled it back: {said}") from error

    async def _acquire(self, timeout: float | None) -> Connection:
        if self._closed:
            raise DatabaseUnavailable("the connection pool is closed")
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            seconds = self.acquire_timeout if timeout is None else timeout
            deadline = trio.current_time() + seconds
            with trio.move_on_at(deadline) as scope:
                await self._slots.acquire()
            if scope.cancelled_caught:
                raise DatabaseUnavailable(
                    f"all {self.size} database connections were busy for {seconds:g} s"
                ) from None
        else:
            deadline = math.nan  # worked out only when a connection has to be opened
        try:
            await checkpoint_if_cancelled()
            silent = self.hosts.silent
            while self._idle:
                conn = self._idle.pop()
                if conn.closed or conn.has_input():
                    self._discard(conn)
                elif not silent or conn.host not in silent or await self._answers(conn):
                    return conn
            if math.isnan(deadline):
                deadline = trio.current_time() + (
                    self.acquire_timeout if timeout is None else timeout
                )
            return await self._open(deadline)
        except BaseException:
            self._slots.release()
            raise

    async def _open(self, deadline: float) -> Connection:
        seconds = deadline - trio.current_time()
        try:
            with trio.move_on_at(deadline):
                conn = await connect(
                    self.dsn,
                    connect_timeout=max(seconds, 0.001),
                    application_name=self._application_name,
                    prepare_threshold=self._prepare_threshold,
                    hosts=self.hosts,
                )
                self._opened += 1
                return conn
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"no connection to PostgreSQL: {error}".rstrip()) from error
        raise DatabaseUnavailable(f"no connection to PostgreSQL within {seconds:g} s")

    async def _answers(self, conn: Connection) -> bool:
        """Whether a server that was silent answers on this idle connection; if it does not, it
        and the others to that server are closed."""
        alive = False
        try:
            with trio.move_on_after(_PROBE_TIMEOUT):
                conn.cleanup_timeout = 0.0
                await conn.execute("SELECT", prepare=False)
                conn.cleanup_timeout = CLEANUP_TIMEOUT
                alive = True
                self.hosts.answered(conn.host)
        except psycopg.Error as error:
            log.debug("db.idle_connection_lost", error=str(error))
        finally:
            if not alive:
                self._discard(conn)
        if not alive:
            self._drop_idle(conn.host)
        return alive

    def _drop_idle(self, host: Host) -> None:
        kept = []
        for conn in self._idle:
            if conn.host == host:
                self._discard(conn)
            else:
                kept.append(conn)
        self._idle[:] = kept

    async def _release(self, conn: Connection) -> None:
        """Take a connection back: at rest again within a deadline, or closed."""
        try:
            if not conn.closed and not conn.at_rest():
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEANUP_TIMEOUT):
                    await self._settle(conn)
        finally:
            if conn.at_rest() and conn.autocommit and not self._closed:
                self._keep(conn)
            else:
                self._discard(conn)
                self._slots.release()

    async def _settle(self, conn: Connection) -> None:
        status = conn.pgconn.transaction_status
        try:
            if status == _ACTIVE:
                # Closing the socket would leave the server working on the query.
                await conn.cancel_safe(timeout=CLEANUP_TIMEOUT)
            elif conn.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF:
                await conn.rollback()
        except psycopg.Error as error:
            log.debug("db.not_settled", error=str(error))

    def _keep(self, conn: Connection) -> None:
        now = trio.current_time()
        conn.used_at = now
        self._idle.append(conn)
        # LIFO: the one at the bottom has been idle the longest.
        if len(self._idle) > 1 and now - self._idle[0].used_at > _IDLE_FOR:
            self._idle.pop(0).abandon()
        self._slots.release()

    def _discard(self, conn: Connection) -> None:
        self._discarded += 1
        conn.abandon()


def _rows(cursor: psycopg.AsyncCursor[Any]) -> list[tuple[Any, ...]]:
    # All rows are here already; fetchall() would only look for a pipeline to wait for.
    result = cursor.pgresult
    if result is None or result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.ProgrammingError("the last operation didn't produce records")
    rows: list[tuple[Any, ...]] = cursor._tx.load_rows(0, result.ntuples, cursor._make_row)
    return rows


def _rowcount(cursor: psycopg.AsyncCursor[Any]) -> int:
    return cursor.rowcount
