"""A connection that takes tokens for `relay collect`, with one round trip a time.

The commit of what was taken and the next taking go to the server together (libpq's pipeline mode,
prepared statements, binary results), and texts stay the bytes that they arrived as.

Promises: rows are out of the queue once `commit` has returned, or `start` was called again and its
rows have arrived; before that, `close` or the loss of the connection gives them back.

Fails with `DatabaseUnavailable` when the connection broke, did not answer in time or did not wait
for a synchronous standby (`relay.db.doubt`), with other
`psycopg.Error` for what the server refused.  Either way the reader is of no use any more: `close`.

Why below psycopg's cursors: at ten rows a batch, preparing a call and converting its rows cost as
much as the server's share.  The general way is `taking`, which `relay collect` uses within a
budget; `tests/cli/test_collect.py` holds both to the same lines, and `python -m tests.bench
collector` is where this one pays.
"""

from __future__ import annotations

from typing import Any

import psycopg
import trio
from psycopg import pq

from relay.db.connection import Connection, connect
from relay.db.hosts import Hosts
from relay.errors import DatabaseUnavailable
from relay.lifecycle.lines import RawToken

TIMEOUT = 15.0
"""Seconds for an answer of the server; then the connection is given up."""

_TAKE = b"SELECT action, email, login, secret, code, id, account FROM relay.take_tokens($1)"
_INT4 = 23
_BINARY = 1
_NUMBERS = {b"\0\1": 1, b"\0\2": 2}
_TUPLES, _DONE, _SYNC = (
    pq.ExecStatus.TUPLES_OK,
    pq.ExecStatus.COMMAND_OK,
    pq.ExecStatus.PIPELINE_SYNC,
)


class TokenReader:
    """A connection that reads tokens; made by `open_token_reader`."""

    def __init__(self, connection: Connection) -> None:
        self.asked = 0
        """How many rows the last `start` asked for."""
        self._holds = False  # a transaction is open
        self._connection = connection
        self._pg = connection.pgconn
        self._result: Any = None

    def start(self, count: int) -> None:
        """Commit the rows in hand, if there are any, and begin to take up to `count` more."""
        self._send(b"chain" if self._holds else b"begin", count)
        self._holds = True
        self.asked = count

    async def rows(self) -> list[RawToken]:
        """Return the rows that `start` began to take."""
        self._result = result = await self._answer()
        value = result.get_value
        return [
            RawToken(_NUMBERS[value(n, 0)], value(n, 1), value(n, 2), value(n, 3), value(n, 4))
            for n in range(result.ntuples)
        ]

    def keys(self) -> list[tuple[int, int]]:
        """Token and account of each row in hand."""
        value = self._result.get_value
        return [
            (int.from_bytes(value(n, 5), "big"), int.from_bytes(value(n, 6), "big"))
            for n in range(self._result.ntuples)
        ]

    async def commit(self) -> None:
        """Have the rows in hand out of the queue for good."""
        self._send(b"commit")
        await self._answer()
        self._holds = False

    def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        self._connection.abandon()

    def _send(self, statement: bytes, count: int = 0) -> None:
        try:
            self._pg.send_query_prepared(statement, None)
            if count:
                argument = [count.to_bytes(4, "big")]
                self._pg.send_query_prepared(b"take", argument, [_BINARY], _BINARY)
            self._pg.pipeline_sync()
            self._pg.flush()  # a hundred bytes: what does not fit goes out with the first wait
        except psycopg.Error as error:
            raise _unavailable(error) from error

    async def _prepare(self) -> None:
        self._pg.enter_pipeline_mode()
        self._pg.send_prepare(b"begin", b"BEGIN")
        self._pg.send_prepare(b"chain", b"COMMIT AND CHAIN")
        self._pg.send_prepare(b"commit", b"COMMIT")
        self._pg.send_prepare(b"take", _TAKE, [_INT4])
        self._pg.pipeline_sync()
        await self._answer()

    async def _answer(self) -> Any:
        """Read up to the next end of a pipeline; returns the rows, if there were any."""
        with trio.move_on_after(TIMEOUT):
            try:
                return await self._read()
            except (psycopg.OperationalError, OSError, trio.ClosedResourceError) as error:
                raise _unavailable(error) from error
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {TIMEOUT:g} s")

    async def _read(self) -> Any:
        pg, rows, refused = self._pg, None, None
        while pg.flush():
            await trio.lowlevel.wait_writable(pg.socket)
        while True:
            while pg.is_busy():
                await trio.lowlevel.wait_readable(pg.socket)
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                continue  # between the answers of two statements
            status = result.status
            if status == _TUPLES:
                rows = result
            elif status == _SYNC:
                if refused is not None:
                    raise refused
                self._connection.refuse_doubt()
                return rows
            elif status != _DONE and refused is None:
                refused = psycopg.errors.error_from_result(result)
                if pg.status != pq.ConnStatus.OK:
                    raise refused


async def open_token_reader(dsn: str, hosts: Hosts | None = None) -> TokenReader:
    """Connect a token reader, or raise `DatabaseUnavailable`; `hosts`: as in `connect`."""
    try:
        connection = await connect(
            dsn,
            application_name="relay-collect",
            connect_timeout=TIMEOUT,
            autocommit=True,
            hosts=hosts,
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"no connection to PostgreSQL: {error}".rstrip()) from error
    reader = TokenReader(connection)
    try:
        await reader._prepare()
    except BaseException:
        reader.close()
        raise
    return reader


def _unavailable(error: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"PostgreSQL is not available: {error}".rstrip())
