"""How mail enters the database: who may receive, and the INSERT that many messages share.

`Lookups` answers RCPT for all sessions, with one query for all that ask meanwhile.  `insert_many`
and `insert_one` make messages durable; `stored_among` says which of them already are.

Promises:
- Whether a mailbox is live (`is_active AND expires_at > clock_timestamp()`) is decided by the
  database's clock, at RCPT and again inside the accepting INSERT.  Nothing is cached.
- Every statement is a transaction of its own (autocommit): when it has returned, its rows are
  durable.
- Message ids come from the caller, so a statement repeated stores nothing twice.
- Nothing is announced (`relay.quiet`): the caller wakes the summariser of its own node.

Fails with `DatabaseUnavailable` when nothing is known about the outcome, with psycopg's own
errors when the statement was refused and nothing was stored.

Why `INSERT … SELECT FROM unnest(…)`: one statement, one plan, one round trip and one flush
for any number of messages; COPY could not check the mailbox, executemany would be a round of
the executor each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID, SafeUUID

import psycopg
import trio

from relay.db.arrays import BYTEA, BYTEAS, TEXT, TEXTS, UUIDS, byteas, texts, uuids
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, RelayError
from relay.log import get_logger

log = get_logger()

LARGE = 256 * 1024
"""Bytes from which a message has a statement to itself."""

_SHED = 1024 * 1024  # bytes; libpq never shrinks a connection's buffer, so it is not used again


_new, _set = object.__new__, object.__setattr__

_entropy = b""
_entropy_at = 0


def message_id() -> UUID:
    """Make a UUIDv7 (RFC 9562, 5.7): rows made together lie together in every index.

    The 12 bits behind the milliseconds are their fraction (6.2, method 3), so ids made one after
    the other by this process are in that order.
    """
    global _entropy, _entropy_at  # one system call for 500 ids
    if _entropy_at == len(_entropy):
        _entropy, _entropy_at = os.urandom(4000), 0
    random = int.from_bytes(_entropy[_entropy_at : _entropy_at + 8], "big")
    _entropy_at += 8
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    made = _new(UUID)  # its constructor takes longer than all the rest
    _set(
        made,
        "int",
        milliseconds << 80
        | 0x7 << 76
        | (nanoseconds * 4096 // 1_000_000) << 64
        | 0x2 << 62
        | random & 0x3FFF_FFFF_FFFF_FFFF,
    )
    _set(made, "is_safe", SafeUUID.unknown)
    return made


class Row(NamedTuple):
    """One message for one mailbox, to be stored under an id of the caller's."""

    id: UUID
    address: str
    reverse_path: str
    raw: bytes


_INSERT = """
    INSERT INTO relay.messages (id, mailbox_id, received_at, reverse_path, recipient, raw_email)
    SELECT o.id, m.id, clock_timestamp(), o.reverse_path, o.address, o.raw
    FROM {source}
    JOIN relay.mailboxes m ON m.address = o.address
    CROSS JOIN (SELECT set_config('relay.quiet', 'on', true)) quiet  -- until the commit
    WHERE m.is_active
      AND m.expires_at > clock_timestamp()
    {conflict}
    RETURNING id
"""
_MANY = "unnest($1, $2, $3, $4) AS o (id, address, reverse_path, raw)"
_TYPES = (UUIDS, TEXTS, TEXTS, BYTEAS)
_IGNORE = "ON CONFLICT (id) DO NOTHING"
# Looking for conflicts first costs each row a second walk of the index and a record in the log.
_FRESH = Statement(_INSERT.format(source=_MANY, conflict=""), _TYPES)
_AGAIN = Statement(_INSERT.format(source=_MANY, conflict=_IGNORE), _TYPES)
_ONE = Statement(
    _INSERT.format(
        source="(SELECT r.id, r.address, $1 AS reverse_path, $2 AS raw"
        " FROM unnest($3, $4) AS r (id, address)) AS o",
        conflict=_IGNORE,
    ),
    (TEXT, BYTEA, UUIDS, TEXTS),
)


async def insert_many(pool: Pool, rows: Sequence[Row]) -> set[UUID]:
    """Store rows whose mailboxes are live; return the ids stored now.

    Keep them small together (`LARGE` each, a mebibyte in all): PostgreSQL spreads the arrays out
    in memory.
    """
    columns = (
        uuids([row.id for row in rows]).data,
        texts([row.address for row in rows]).data,
        texts([row.reverse_path for row in rows]).data,
        byteas([row.raw for row in rows]).data,
    )
    try:
        result = await pool.run(_FRESH, columns)
    except psycopg.errors.UniqueViolation:
        result = await pool.run(_AGAIN, columns)
    if result.ntuples == len(rows):
        return {row.id for row in rows}
    stored = {result.get_value(number, 0) for number in range(result.ntuples)}
    return {row.id for row in rows if row.id.bytes in stored}


async def insert_one(
    pool: Pool, reverse_path: str, recipients: Sequence[tuple[UUID, str]], raw: bytes
) -> set[UUID]:
    """Store one message for its live recipients; return the ids stored now.

    The text travels once, whatever the number of recipients.
    """
    columns = (
        reverse_path.encode(),
        raw,  # as it is: between here and libpq's buffer it is copied once
        uuids([identity for identity, _ in recipients]).data,
        texts([address for _, address in recipients]).data,
    )
    async with pool.connection() as conn:
        with trio.move_on_after(pool.call_timeout) as scope:
            result = await conn.run(_ONE, columns)
            if len(raw) > _SHED:
                await conn.close()
            stored = {result.get_value(number, 0) for number in range(result.ntuples)}
            return {identity for identity, _ in recipients if identity.bytes in stored}
        if scope.cancelled_caught:
            conn.abandon()
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {pool.call_timeout:g} s")


async def stored_among(
    pool: Pool,
    ids: Iterable[UUID],
    *,
    timeout: float = 5.0,  # noqa: ASYNC109 - past it the pool throws the connection away
) -> set[UUID]:
    """Return which of these messages are stored.  `timeout` in seconds."""
    found = await pool.fetch(
        """
        SELECT id
        FROM relay.messages
        WHERE id = ANY(%b::uuid[])
        """,
        (list(ids),),
        timeout=timeout,
    )
    return {stored for (stored,) in found}


class Question:
    """One session that waits to hear whether a mailbox is live."""

    __slots__ = ("_error", "_live", "_wake", "address", "settled")

    def __init__(self, address: str) -> None:
        self.address = address
        self.settled = False
        self._live = False
        self._error: str | None = None
        self._wake: Callable[[], None] | None = None

    def then(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def settle(self, live: bool, error: str | None = None) -> None:
        self._live, self._error, self.settled = live, error, True
        if self._wake is not None:
            self._wake()

    def result(self) -> bool:
        if self._error is not None:
            raise DatabaseUnavailable(self._error)
        return self._live


_LIVE = Statement(
    """
    SELECT address
    FROM relay.mailboxes
    WHERE address = ANY((SELECT $1)::text[])  -- of a length nobody can plan for: planned once
      AND is_active
      AND expires_at > clock_timestamp()
    """,
    (TEXTS,),
)


class Lookups:
    """Asks the database which addresses are live, for everybody at once.

    Someone must `run` it.  While one query is under way, questions gather for the next.
    """

    def __init__(self, pool: Pool, *, batch: int = 256) -> None:
        """`batch`: the most addresses asked for in one query."""
        self._pool = pool
        self._batch = batch
        self._questions: list[Question] = []
        self._asked = trio.lowlevel.ParkingLot()

    def find(self, address: str) -> Question:
        """Ask whether a live mailbox has this canonical address."""
        question = Question(address)
        self._questions.append(question)
        self._asked.unpark()
        return question

    async def run(self) -> None:
        """Answer questions until cancelled; those that are open then are answered with an error."""
        asked: list[Question] = []
        try:
            while True:
                while not self._questions:
                    await self._asked.park()
                asked, self._questions = (
                    self._questions[: self._batch],
                    self._questions[self._batch :],
                )
                await self._answer(asked)
        finally:
            for question in asked + self._questions:
                if not question.settled:
                    question.settle(False, "the relay is stopping")
            self._questions = []

    async def _answer(self, asked: list[Question]) -> None:
        addresses = list({question.address for question in asked})
        try:
            result = await self._pool.run(_LIVE, (texts(addresses).data,))
        except (RelayError, psycopg.Error) as error:
            log.warning("mailboxes.lookup_failed", error=str(error), waiting=len(asked))
            for question in asked:
                question.settle(False, str(error))
            return
        live = {result.get_value(number, 0) for number in range(result.ntuples)}
        for question in asked:
            question.settle(question.address.encode() in live)
