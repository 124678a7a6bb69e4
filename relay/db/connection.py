"""One connection to PostgreSQL, waiting on Trio.

psycopg drives libpq with generators that yield "wait for readable, writable, or either";
`psycopg.AsyncConnection` satisfies them on asyncio.  `Connection` is the same class with its
waits, its lock, its connecting and its cancelling on Trio, so cursors, COPY, transactions,
savepoints, pipeline mode and `notifies()` are psycopg's own code.

Promises:
- A call that is cancelled in mid-query cancels the query on the server, reads what is left of
  the answer and raises `Cancelled`; when that takes longer than `cleanup_timeout` seconds the
  connection is closed.  Either way nobody meets another's answer on it.  Whether a statement
  that was cancelled took effect is unknown, as it is when a connection breaks.
- The rollback at the end of `transaction()` runs although the scope around it is cancelled.
- A call made inside a scope that is already cancelled sends nothing.
- With `patience` set, no answer is waited for longer, of BEGIN and COMMIT too: past it the
  connection is closed and the call fails with `NoAnswer`.
- A commit that did not wait for its synchronous standby fails with `NotReplicated`
  (`relay.db.doubt`).
- The text of an error names no value of a row (PostgreSQL's DETAIL and CONTEXT do): it ends up in
  logs, and rows hold people's mail.  `error.diag` has all of it.

Fails with psycopg's own errors; `relay.db.pool` turns those of the connection into
`DatabaseUnavailable`.

Why a subclass: measured on one machine, threads reach a half and trio-asyncio a quarter of its
round trips.  It relies on names psycopg keeps to itself (`waiting._ready`, `_conninfo_utils`),
so psycopg's version is pinned and tests/db/test_connection.py is the contract.  Linux only (it
waits for "either" with epoll).
"""

from __future__ import annotations

import math
import re
import select
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from types import TracebackType
from typing import Any, LiteralString, Self, cast
from weakref import ref

import psycopg
import trio
from psycopg import errors as e
from psycopg import generators, pq, waiting
from psycopg._conninfo_utils import get_param, is_ip_address, split_attempts
from psycopg.abc import (
    RV,
    AdaptContext,
    Buffer,
    ConnDict,
    ConnParam,
    Params,
    PQGen,
    PQGenConn,
    Query,
)
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import AsyncRowFactory, Row
from trio.lowlevel import (
    cancel_shielded_checkpoint,
    checkpoint,
    checkpoint_if_cancelled,
    notify_closing,
)

from relay.chance import monotonic
from relay.db.doubt import HELD_UP, NAMED, NotReplicated, is_doubt
from relay.db.hosts import SILENT_SHARE, Host, Hosts, host_of, shown
from relay.db.waits import more_now, ready_now, wait_readable, wait_writable
from relay.locks import Lock
from relay.log import get_logger
from relay.net import getaddrinfo

log = get_logger()

CLEANUP_TIMEOUT = 2.0
"""Seconds that an interrupted query is given to end before its connection is closed."""

_BUSY_FOR = 0.005  # s; a COPY whose socket is always ready gives others a turn this often

NO_HOST = "no host would have us: "
"""How the error of a connection begins that none of several hosts let in; each and why follows."""

_ABANDONED = "the connection was closed while it was waited for"

_ACTIVE = pq.TransactionStatus.ACTIVE
_IDLE = pq.TransactionStatus.IDLE
_OK = pq.ConnStatus.OK
_GOOD = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK})
_R, _W, _RW = waiting.Wait.R, waiting.Wait.W, waiting.Wait.RW
_READY_R, _READY_W = waiting.Ready.R, waiting.Ready.W

# Sent unless the DSN says otherwise.  A peer that vanished without a FIN (a host that lost its
# power) is noticed within six seconds by whoever has sent it something, and by whoever only listens
# within seven: at the second keep-alive, by which time `tcp_user_timeout` is over.
_DEFAULTS: dict[str, str | int] = {
    "client_encoding": "UTF8",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}

_TIMESTAMPTZ = 1184  # its oid

# Of which database system, on which timeline?  Any role may ask; NULL on a standby.
_WHERE_ARE_WE = """
SELECT system_identifier,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END
FROM pg_control_system()
"""


_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)


def _bounded(oid: int, form: pq.Format) -> type[Loader]:
    """psycopg's loader of an instant, with a bound for what Python's datetime cannot hold.

    Rows may be written by anybody's SQL: one with `infinity` or the year 20000 must not fail a
    statement that reads it together with others.
    """
    strict = cast(type[Loader], psycopg.adapters.get_loader(oid, form))

    class Bounded(Loader):
        format = form

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._load = strict(oid, context).load

        def load(self, data: Buffer) -> datetime:
            try:
                loaded: datetime = self._load(data)
            except psycopg.DataError:
                raw = bytes(data)
                negative = raw[0] >> 7 if form == pq.Format.BINARY else raw.endswith(b" BC")
                return _EARLIEST if negative or raw == b"-infinity" else _LATEST
            return loaded

    return Bounded


for _bound in [_bounded(_TIMESTAMPTZ, form) for form in (pq.Format.TEXT, pq.Format.BINARY)]:
    psycopg.adapters.register_loader(_TIMESTAMPTZ, _bound)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer within the connection's `patience`; the connection is closed."""


class Statement:
    """A statement that is run very often: its parameters come, its columns leave, in PostgreSQL's
    binary form (`relay.db.arrays` packs arrays), and nothing is looked up or converted on the way.
    It costs a fifth of a `Pool.fetch` here: `tests/db/test_pool.py` (`TestStatements`) holds it to
    that, and `python -m tests.bench ingest` is where it pays.

    `sql` has `$1`, `$2` …; `types` are the OIDs of the parameters.  Make one for each text, once.
    `name` is a digest of both, so that what a server has under it is this statement.
    """

    __slots__ = ("formats", "name", "sql", "types")

    def __init__(self, sql: str, types: Sequence[int]) -> None:
        self.sql = sql.encode()
        self.types = tuple(types)
        digest = blake2b(self.sql + repr(self.types).encode(), digest_size=16)
        self.name = b"relay_" + digest.hexdigest().encode()
        self.formats = (pq.Format.BINARY,) * len(self.types)


class Cursor(psycopg.AsyncCursor[Row]):
    """psycopg's cursor; a statement is not sent from inside a cancelled scope."""

    _conn: Connection

    async def execute(
        self,
        query: Query,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Run one statement.  `psycopg.Error` when it fails."""
        await checkpoint_if_cancelled()
        conn = self._conn
        lock = conn.lock
        if not lock.acquire_nowait():
            await lock.acquire()
        try:
            await conn.wait(self._execute_gen(query, params, prepare=prepare, binary=binary))
        except e.Error as error:
            # The frames inside psycopg say nothing and keep results alive.
            raise error.with_traceback(None) from error.__cause__
        finally:
            lock.release()
        return self

    async def executemany(
        self, query: Query, params_seq: Iterable[Params], *, returning: bool = False
    ) -> None:
        """Run one statement with each of many parameters, in pipeline mode."""
        await checkpoint_if_cancelled()
        await super().executemany(query, params_seq, returning=returning)

    @asynccontextmanager
    async def copy(
        self,
        statement: Query,
        params: Params | None = None,
        *,
        writer: psycopg.copy.AsyncWriter | None = None,
    ) -> AsyncIterator[psycopg.AsyncCopy]:
        """COPY in the direction that the statement says, for as long as the block lasts."""
        await checkpoint_if_cancelled()
        begun = False
        try:
            async with super().copy(statement, params, writer=writer) as copy:
                begun = True
                yield copy
        except trio.Cancelled:
            # Interrupted between the server's "go ahead" and psycopg's object that would end it.
            if not begun and self._pgconn.transaction_status == _ACTIVE:
                self._conn.abandon()
            raise


class _Transaction(psycopg.AsyncTransaction):
    """psycopg's transaction, whose ROLLBACK a cancelled scope does not stop."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool:
        if exc_type is None:
            return await super().__aexit__(None, None, None)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEANUP_TIMEOUT):
            return await super().__aexit__(exc_type, exc_val, exc_tb)
        return False  # the ROLLBACK was not answered in time, and wait() closed the connection


class Connection(psycopg.AsyncConnection[Any]):
    """`psycopg.AsyncConnection` on Trio.  Made by `connect()`; one task at a time uses it."""

    lock: Lock  # type: ignore[assignment]  # asyncio's is replaced
    cleanup_timeout = CLEANUP_TIMEOUT
    used_at = 0.0
    """The instant at which the pool last took the connection back, in seconds of Trio's clock."""
    system = 0
    timeline = 0
    """Of the primary it leads to, since the connection was made; 0: not known."""
    patience: float | None = None
    """Seconds that one answer of the server may take; None: its callers have deadlines."""
    unreplicated = False
    """Whether what was read since the last statement began says that a commit is in doubt."""
    abandoned = False
    """Whether `abandon` has freed what libpq had of it."""

    def __init__(self, pgconn: pq.abc.PGconn, row_factory: Any = psycopg.rows.tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self.lock = Lock()
        self.cursor_factory = Cursor
        self._statements: set[Statement] = set()  # prepared here
        self.host: Host = ("", "")
        self._turn_began = monotonic()
        me = ref(self)  # a bound method would keep a connection alive that nobody has

        def noticed(notice: e.Diagnostic) -> None:
            if is_doubt(notice) and (connection := me()) is not None:
                connection.unreplicated = True

        self.add_notice_handler(noticed)

    @classmethod
    async def connect(  # type: ignore[override]  # psycopg's takes any word, ours two more
        cls,
        conninfo: str = "",
        *,
        autocommit: bool = False,
        prepare_threshold: int | None = 5,
        context: AdaptContext | None = None,
        row_factory: AsyncRowFactory[Any] | None = None,
        cursor_factory: type[psycopg.AsyncCursor[Any]] | None = None,
        hosts: Hosts | None = None,
        but: Host | None = None,
        **kwargs: ConnParam,
    ) -> Self:
        """Connect to the first host of the DSN that will have us.

        Hosts, and the addresses of each, are tried in turn, as libpq does, `target_session_attrs`
        included.  `connect_timeout` (seconds) is for the whole call: each attempt gets an equal
        share of what is left, so that a host that drops packets cannot use up the time of the
        others.  With `hosts` the order is theirs, and a primary that was left behind is refused.
        `psycopg.OperationalError` names every attempt that failed.
        """
        params = await cls._get_connection_params(conninfo, **kwargs)
        seconds = float(get_param(params, "connect_timeout") or 0) or math.inf
        deadline = trio.current_time() + seconds
        conn: Self | None = None
        failures: list[tuple[e.Error, str]] = []
        with trio.move_on_at(deadline):
            attempts = await _attempts(params)
        if not attempts:
            raise e.ConnectionTimeout("no host name could be resolved in time")
        if hosts is not None:
            attempts = hosts.ordered(attempts, but)
            if not attempts:
                raise e.OperationalError("there is no other host")
        for number, attempt in enumerate(attempts):
            host = host_of(attempt)
            share = (deadline - trio.current_time()) / (len(attempts) - number)
            label = shown((str(attempt.get("host") or host[0]), host[1]))
            if hosts is not None and host in hosts.silent and len(attempts) > 1:
                share = min(share, SILENT_SHARE)
            ends = trio.current_time() + max(share, 0.0)
            attempt.pop("connect_timeout", None)
            gen = cls._connect_gen(make_conninfo("", **attempt))
            try:
                with trio.move_on_at(ends) as scope:
                    conn = await _drive(gen)
                    conn.host = host
                    if hosts is not None:
                        await conn.meet(hosts)
                if scope.cancelled_caught:
                    raise e.ConnectionTimeout("connection timeout expired")
                break
            except (e.Error, trio.Cancelled) as error:
                # The caller's own deadline may be the same one, and catch instead of ours.
                if hosts is not None and trio.current_time() >= ends:
                    hosts.fell_silent(host)
                if conn is not None:
                    conn.abandon()
                    conn = None
                if isinstance(error, trio.Cancelled):
                    raise
                failures.append((error, label))
            finally:
                gen.close()  # frees a half-open connection now rather than when collected
        if conn is None:
            last = failures[-1][0]
            if len(failures) == 1:
                raise last.with_traceback(None)
            lines = "; ".join(f"{label}: {_in_short(error)}" for error, label in failures)
            raise type(last)(f"{NO_HOST}{lines}") from None

        conn._autocommit = autocommit
        if row_factory:
            conn.row_factory = row_factory
        if cursor_factory:
            conn.cursor_factory = cursor_factory
        if context:
            conn._adapters = psycopg.adapt.AdaptersMap(context.adapters)
        conn.prepare_threshold = prepare_threshold
        return conn

    async def meet(self, hosts: Hosts) -> None:
        """Ask which timeline this is, or raise `OperationalError` for one that is over.

        Of a connection at rest in autocommit mode.  Behind a pooler it may be another each time.
        """
        self._autocommit = True
        self.cleanup_timeout = 0.0  # nothing is lost with it, so nothing is worth waiting for
        try:
            row = await (await self.execute(_WHERE_ARE_WE, prepare=False)).fetchone()
        except e.OperationalError:
            raise
        except e.Error as error:  # speaks the protocol, and is not PostgreSQL
            log.debug("db.timeline_unknown", error=str(error))
            row = None
        finally:
            self.cleanup_timeout = CLEANUP_TIMEOUT
        system, walfile = row or (None, None)
        if system is not None and walfile is not None:
            refused = hosts.met(self, int(system), int(walfile[:8], 16))
            if refused is not None:
                raise e.OperationalError(refused)
        hosts.answered(self.host)

    async def look_at_commits(self, hosts: Hosts) -> None:
        """Ask whether commits end here, where they may wait for a standby; `hosts` is told."""
        held_up = None
        try:
            if await self._first(NAMED):
                held_up = cast("str | None", await self._first(HELD_UP))
        except e.OperationalError:
            raise
        except e.Error as error:  # speaks the protocol, and is not PostgreSQL
            log.debug("db.commits_unknown", error=str(error))
        hosts.commits(self.host, held_up)

    async def _first(self, sql: LiteralString) -> Any:
        row = await (await self.execute(sql, prepare=False)).fetchone()
        return row and row[0]

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = 0.0,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's signature
    ) -> RV:
        """Drive one of psycopg's generators to its end.

        `timeout` in seconds raises psycopg's `_WaitTimeout`.  `interval` is asyncio's need to
        look up now and then; Trio has none and it is not used.
        """
        if timeout is not None:
            with trio.move_on_after(timeout):
                return await self.wait(gen)
            raise e._WaitTimeout("wait timeout expired")
        if self.patience is not None:
            return await self._wait_patiently(gen, self.patience)
        self.unreplicated = False
        # The hot path: for an ordinary query, one next(), one wait_readable(), one send().
        # Held by tests/db/test_connection.py; pays in `python -m tests.bench db`.
        try:
            wanted = next(gen)
        except StopIteration as done:
            if monotonic() - self._turn_began > _BUSY_FOR:
                # Shielded: a cancellation here would lose the value.
                await cancel_shielded_checkpoint()
                self._turn_began = monotonic()
            if self.unreplicated:
                self.refuse_doubt()
            return cast(RV, done.value)
        except e.Error as error:
            _forget_values(error)
            raise
        fileno = self.pgconn.socket
        read = False
        try:
            while True:
                if wanted == _R:
                    # The rest of a long answer mostly is there, or comes as fast as it is read: a
                    # round through a busy loop for each piece takes longer than the statement.
                    if not (
                        read
                        and monotonic() - self._turn_began <= _BUSY_FOR
                        and more_now(fileno, _R)
                    ):
                        await wait_readable(fileno)
                        self._turn_began = monotonic()
                        read = True
                    ready: int = _READY_R
                else:
                    # A socket is nearly always writable, and a poll is much cheaper than a
                    # round through the loop, which pipeline mode would pay at each statement.
                    if monotonic() - self._turn_began > _BUSY_FOR:
                        await checkpoint()
                        self._turn_began = monotonic()
                    ready = ready_now(fileno, wanted) or await _wait_for(fileno, wanted)
                if self.abandoned:  # after the wait had ended, before this task had its turn
                    raise e.OperationalError(_ABANDONED)
                wanted = gen.send(ready)
        except StopIteration as done:
            if self.unreplicated:
                self.refuse_doubt()
            return cast(RV, done.value)
        except e.Error as error:
            _forget_values(error)
            raise
        except (trio.Cancelled, KeyboardInterrupt):
            await self._recover(gen, wanted)
            raise
        except (OSError, trio.ClosedResourceError) as error:
            raise e.OperationalError("connection socket closed") from error

    async def _wait_patiently(self, gen: PQGen[RV], seconds: float) -> RV:
        self.patience = None
        try:
            with trio.move_on_after(seconds):
                return await self.wait(gen)
        finally:
            self.patience = seconds
        self.abandon()
        raise NoAnswer(f"PostgreSQL did not answer within {seconds:g} s")

    def refuse_doubt(self) -> None:
        """Raise `NotReplicated` if what was read says so.  For those who read without `wait`."""
        if self.unreplicated:
            self.unreplicated = False
            log.warning("db.commit_in_doubt", backend=self.pgconn.backend_pid)
            raise NotReplicated(
                "a commit's wait for the synchronous standby was cancelled"
            ) from None

    async def _recover(self, gen: PQGen[Any], wanted: waiting.Wait) -> None:
        """After an interruption: end the query on the server and read the rest of its answer.

        The connection is closed when that does not succeed in time.  COPY and pipeline mode
        stay ACTIVE until psycopg has ended them, which it does next, by way of `wait`.
        """
        if self.pgconn.status != _OK or self.pgconn.transaction_status != _ACTIVE:
            return
        backend = self.pgconn.backend_pid
        deadline = trio.current_time() + self.cleanup_timeout
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            try:
                await self.cancel_safe()
                fileno = self.pgconn.socket
                while True:
                    ready = await _wait_for(fileno, wanted)
                    if self.abandoned:
                        break
                    wanted = gen.send(ready)
            except StopIteration:
                return
            except (e.Error, OSError):
                # QueryCanceled, or whatever else the statement came to, has been read; a
                # connection that is gone says so by its status.
                pass
        if scope.cancelled_caught or self.pgconn.status != _OK:
            log.warning("db.query_not_cancelled", backend=backend)
            self.abandon()

    async def execute(
        self,
        query: Any,  # psycopg's overloads, in one signature
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool = False,
    ) -> psycopg.AsyncCursor[Any]:
        """Run one statement in a cursor of its own, and return the cursor."""
        # psycopg's does the same with one more layer, which pipeline mode pays per statement.
        return await self.cursor(binary=binary).execute(
            query, params, prepare=prepare, binary=binary or None
        )

    async def run(self, statement: Statement, params: Sequence[bytes | None]) -> pq.abc.PGresult:
        """Run a `Statement` and return libpq's result of it.  Not in pipeline mode.

        Outside a transaction it is prepared once a connection.
        No cursor, no adaptation: a fifth of what `execute` costs.  `psycopg.Error` as there.
        """
        await checkpoint_if_cancelled()
        lock = self.lock
        if not lock.acquire_nowait():
            await lock.acquire()
        try:
            return await self.wait(self._run_gen(statement, params))
        except e.Error as error:
            raise error.with_traceback(None) from error.__cause__
        finally:
            lock.release()

    def _run_gen(
        self, statement: Statement, params: Sequence[bytes | None]
    ) -> PQGen[pq.abc.PGresult]:
        pgconn = self.pgconn
        # Inside a transaction too: should the name be gone (below), it could not be tried again.
        if self.prepare_threshold is None or pgconn.transaction_status != _IDLE:
            pgconn.send_query_params(
                statement.sql, params, statement.types, statement.formats, pq.Format.BINARY
            )
            return _checked((yield from generators.execute(pgconn)))
        if statement in self._statements:
            try:
                return (yield from self._prepared_gen(statement, params))
            except e.InvalidSqlStatementName:
                # psycopg forgets all names with DEALLOCATE ALL when it has seen a ROLLBACK or a
                # DROP.  Nothing was run.
                self._statements.clear()
        pgconn.send_prepare(statement.name, statement.sql, statement.types)
        results = yield from generators.execute(pgconn)
        # There already, since a PREPARE that ends in an error may have been kept: the same text.
        with suppress(e.DuplicatePreparedStatement):
            _checked(results)
        self._statements.add(statement)
        return (yield from self._prepared_gen(statement, params))

    async def run_prepared(
        self, statement: Statement, params: Sequence[bytes | None]
    ) -> pq.abc.PGresult:
        """Run a `Statement` that `run` has prepared here; `InvalidSqlStatementName` if the
        server does not know it."""
        async with self.lock:
            return await self.wait(self._prepared_gen(statement, params))

    def _prepared_gen(
        self, statement: Statement, params: Sequence[bytes | None]
    ) -> PQGen[pq.abc.PGresult]:
        self.pgconn.send_query_prepared(statement.name, params, statement.formats, pq.Format.BINARY)
        return _checked((yield from generators.execute(self.pgconn)))

    async def cancel_safe(
        self,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - psycopg's signature
    ) -> None:
        """Ask the server to cancel what this connection is running (a hint, as in libpq).

        `psycopg.errors.CancellationTimeout` when the request takes over `timeout` seconds.
        """
        if not self._should_cancel():
            return
        with trio.move_on_after(timeout or math.inf) as scope:
            await _drive(self._cancel_gen())
        if scope.cancelled_caught:
            raise e.CancellationTimeout("cancellation timeout expired")

    async def _try_cancel(
        self,
        *,
        timeout: float = CLEANUP_TIMEOUT,  # noqa: ASYNC109 - psycopg's signature
    ) -> None:
        # psycopg calls it while it unwinds, so often in a cancelled scope.
        deadline = trio.current_time() + min(timeout, self.cleanup_timeout)
        with trio.CancelScope(shield=True, deadline=deadline):
            await super()._try_cancel(timeout=timeout)

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        """A transaction, or inside one a savepoint: committed at the end, rolled back on error."""
        await checkpoint_if_cancelled()
        block = _Transaction(self, savepoint_name, force_rollback)
        if self._pipeline:
            async with self.pipeline(), block, self.pipeline():
                yield block
        else:
            async with block:
                yield block

    def abandon(self) -> None:
        """Close at once, without a word to the server; a task waiting on it gets an error.

        psycopg's generators keep a pointer to what is freed here: none may go on (`wait`).
        """
        self.abandoned = True
        if self.pgconn.status == _OK:
            notify_closing(self.pgconn.socket)
        self.pgconn.finish()

    async def close(self) -> None:
        """Close the connection.  Never waits."""
        if not self.closed:
            self._closed = True
            self.abandon()
        await cancel_shielded_checkpoint()

    def at_rest(self) -> bool:
        """Whether the connection is open, idle, outside any transaction and pipeline."""
        pgconn = self.pgconn
        return (
            pgconn.status == _OK
            and pgconn.transaction_status == pq.TransactionStatus.IDLE
            and pgconn.pipeline_status == pq.PipelineStatus.OFF
        )

    def has_input(self) -> bool:
        """Whether unread bytes, or the end of the stream, have arrived.  One system call."""
        return bool(ready_now(self.pgconn.socket, _R))


_VALUES = re.compile(
    r"\n(?:DETAIL|CONTEXT):.*?(?=\n(?:HINT|QUERY|LOCATION|LINE \d+):|\Z)", re.DOTALL
)


def _forget_values(error: e.Error) -> None:
    """Take out of an error's text what it quotes of the values of a row."""
    if error.args and isinstance(error.args[0], str):
        error.args = (_VALUES.sub("", error.args[0]), *error.args[1:])


def _checked(results: Sequence[pq.abc.PGresult]) -> pq.abc.PGresult:
    result = results[-1]
    if result.status not in _GOOD:
        raise e.error_from_result(result, encoding="utf-8")
    return result


async def connect(
    dsn: str,
    *,
    connect_timeout: float = 10.0,
    application_name: str = "relay",
    autocommit: bool = True,
    prepare_threshold: int | None = 5,
    hosts: Hosts | None = None,
    but: Host | None = None,
) -> Connection:
    """Connect to `dsn` (a URL or `key=value` pairs, several hosts allowed).

    `connect_timeout` (seconds, all hosts together), `application_name` and the keep-alive times
    give way to the DSN's own.  `prepare_threshold` None never prepares statements, which
    PgBouncer before 1.21 needs in transaction mode.  `hosts` is what the process knows of the
    servers (see `relay.db.hosts`); with it and several hosts in the DSN, one that takes writes is
    asked for unless the DSN says otherwise, and `but` is not tried.
    `psycopg.OperationalError` when it fails, `psycopg.ProgrammingError` when the DSN cannot be
    read.
    """
    asked = conninfo_to_dict(dsn)
    defaults: dict[str, str | int | None] = {
        **_DEFAULTS,
        "application_name": application_name,
        "connect_timeout": str(connect_timeout),  # a fraction of a second is fine: see connect()
    }
    if hosts is not None and names_several(asked):
        defaults["target_session_attrs"] = "read-write"
    full = make_conninfo(dsn, **{k: v for k, v in defaults.items() if k not in asked})
    return await Connection.connect(
        full, autocommit=autocommit, prepare_threshold=prepare_threshold, hosts=hosts, but=but
    )


def _in_short(error: e.Error) -> str:
    """Say why one of several hosts would not have us: libpq names the host again, and advises."""
    text = _OF_WHOM.sub("", str(error)).partition("\n")[0].rstrip()
    return "a standby, not promoted (read-only)" if text in _STANDBY else text


_OF_WHOM = re.compile(r"^(?:connection [a-z ]+: )?connection to server (?:at|on) .*? failed: ")
_STANDBY = frozenset({"session is read-only", "server is in hot standby mode"})


def names_several(params: ConnDict) -> bool:
    """Whether a DSN names more than one host, so that there is one to go to."""
    return any("," in str(params.get(name) or "") for name in ("host", "hostaddr"))


async def _wait_for(fileno: int, wanted: int) -> waiting.Ready:
    """Wait until the socket is ready for what is wanted, and say for what it is."""
    if wanted == _R:
        await wait_readable(fileno)
        return _READY_R
    if wanted == _W:
        await wait_writable(fileno)
        return _READY_W
    # Either: only reached when the kernel's send buffer is full.  An epoll object is itself
    # readable when one of its own is ready; a nursery of two waits costs ten times as much.
    with select.epoll() as either:
        either.register(fileno, select.EPOLLIN | select.EPOLLOUT)
        await wait_readable(either.fileno())
    return waiting.Ready(ready_now(fileno, _RW))


async def _drive(gen: PQGenConn[RV]) -> RV:
    """Drive a generator that connects or cancels: these name their socket at each step."""
    try:
        fileno, wanted = next(gen)
        while True:
            fileno, wanted = gen.send(await _wait_for(fileno, wanted))
    except StopIteration as done:
        return cast(RV, done.value)
    except OSError as error:
        raise e.OperationalError(f"connection socket closed: {error}") from error


async def _attempts(params: ConnDict) -> list[ConnDict]:
    """One set of parameters for each address of each host, in the order to try them."""
    standby_first = get_param(params, "target_session_attrs") == "prefer-standby"
    if standby_first:
        params = {k: v for k, v in params.items() if k != "target_session_attrs"}
    attempts: list[ConnDict] = []
    failure: e.OperationalError | None = None
    for attempt in split_attempts(params):
        host = get_param(attempt, "host")
        if not host or host.startswith(("/", "@")) or get_param(attempt, "hostaddr"):
            attempts.append(attempt)
        elif is_ip_address(host):
            attempts.append({**attempt, "hostaddr": host})
        else:
            # libpq would block the loop in its own look-up.
            try:
                found = await getaddrinfo(
                    host,
                    get_param(attempt, "port") or "5432",
                    type=socket.SOCK_STREAM,
                    proto=socket.IPPROTO_TCP,
                )
            except OSError as error:
                failure = e.OperationalError(f"failed to resolve host {host!r}: {error}")
                continue
            attempts += [{**attempt, "hostaddr": str(item[4][0])} for item in found]
    if not attempts and failure is not None:
        raise failure
    if standby_first:
        return [{**a, "target_session_attrs": "standby"} for a in attempts] + attempts
    return attempts
