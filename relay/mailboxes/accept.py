"""How mail enters the database: who may receive, and the INSERT that many messages share.

`Lookups` answers RCPT for all sessions, with one query for all that ask meanwhile.  `insert_many`,
`insert_parsed` and `insert_one` make messages durable; `stored_among` says which of them already
are durable, `full_among` which mailboxes hold as much as their plan allows.

Promises:
- Whether a mailbox is live (`is_active AND expires_at > clock_timestamp()`) is decided by the
  database's clock, at RCPT and again inside the accepting INSERT.  Nothing is cached.
- Every statement is a transaction of its own (autocommit): when it has returned, its rows are
  durable.
- Message ids come from the caller, so a statement repeated stores nothing twice.
- What is found rather than stored now is durable, too, when a call has returned: visible is not
  enough (`relay.db.doubt`).
- What is stored is counted in the same statement: a row a mailbox is appended to
  `relay.usage_changes`, which waits for nobody.  `fold` keeps that short where much arrives.
- Nothing is announced (`relay.quiet`): the caller wakes the summariser of its own node.  What is
  stored with its summary is announced as what is parsed is: it can be read.
- What triggers do for other people's SQL, the statement does itself: it is held to them by
  `tests/mailboxes/test_usage.py`, and `python -m tests.bench ingest` is where it pays.

Crash safety: what a kill leaves of a statement's messages, all of them alike

    killed                             rows in the tables   their senders
    ---------------------------------  -------------------  -------------------------------------
    before the commit                  none                 heard nothing, and send them again
    after it, before their answers     all, counted, and    heard nothing; sent again they are
                                       to be parsed         second copies, with ids of their own
    after their answers                the same             heard 250
    before the summariser was woken    the same             its sweep finds what is to be parsed
    within `fold`                      either side of one   -
                                       commit

Fails with `DatabaseUnavailable` when nothing is known about the outcome, with psycopg's own
errors when the statement was refused and nothing was stored.

Why `INSERT … SELECT FROM unnest(…)`: one statement, one plan, one round trip and one flush
for any number of messages; COPY could not check the mailbox, executemany would be a round of
the executor each.

Why `enable_seqscan` is off: that its mailbox is there, PostgreSQL checks of each message by a
statement of its own, planned once a connection.  Planned where there were few mailboxes it would
read them all, of each message, once there are many, until the next vacuum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

import psycopg
import trio
from psycopg.pq.abc import PGresult

from relay.accepted import Origin, Why
from relay.db.arrays import BYTEA, BYTEAS, TEXT, TEXTS, UUIDS, byteas, texts, uuids
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, OverQuota, PermanentFailure, RelayError
from relay.futures import Future
from relay.gathering import PATIENCE, Gathering
from relay.log import get_logger
from relay.mailboxes import summaries
from relay.mailboxes.parser import Parsed
from relay.mailboxes.usage import LIMITED, USED
from relay.outage import Outage

log = get_logger()

LARGE = 256 * 1024
"""Bytes from which a message has a statement to itself."""

_NEVER = sys.maxsize
SHED = 1024 * 1024
"""Bytes of a statement above which its connection is closed: libpq never shrinks its buffer."""


class Row(NamedTuple):
    """One message for one mailbox, to be stored under an id of the caller's."""

    id: UUID
    address: str
    reverse_path: str
    raw: bytes


_INSERT = """
    WITH stored AS (
        INSERT INTO relay.messages
            (id, mailbox_id, received_at, reverse_path, recipient, raw_email{columns})
        SELECT o.id, m.id, clock_timestamp(), o.reverse_path, o.address, o.raw{values}
        FROM {source}
        CROSS JOIN LATERAL (
            SELECT b.id
            FROM relay.mailboxes b
            WHERE b.address = o.address  -- mailboxes_address_key
              AND b.is_active
              AND b.expires_at > clock_timestamp()
            LIMIT 1  -- or all mailboxes are read and hashed, for a batch of ten
        ) m
        CROSS JOIN (
            SELECT set_config('relay.quiet', 'on', true),  -- until the commit
                   set_config('relay.counted', 'on', true),
                   set_config('enable_seqscan', 'off', true)  -- see the header
        ) said
        {conflict}
        RETURNING id, mailbox_id, size, recipient
    ), {parsing}, counted AS (
        INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
        SELECT mailbox_id, count(*), sum(size)
        FROM stored
        GROUP BY mailbox_id
    )
    SELECT id, mailbox_id{told} FROM stored
"""
_QUEUED = """queued AS (
        INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
        SELECT id, mailbox_id, size FROM stored
        {requeue}
    )"""
# Sub-selects: of arrays whose lengths nobody knows it is planned once.  By their lengths PostgreSQL
# plans it anew each time where the first few were short: longer than it takes to store a message.
_MANY = """unnest(
            (SELECT $1)::uuid[], (SELECT $2)::text[], (SELECT $3)::text[], (SELECT $4)::bytea[]
            {more}
        ) AS o (id, address, reverse_path, raw{columns})"""
_NEW = {"conflict": "", "parsing": _QUEUED.format(requeue=""), "told": ""}
_IGNORE = {
    "conflict": "ON CONFLICT (id) DO NOTHING",
    # Of a message of this id that was deleted.
    "parsing": _QUEUED.format(requeue="ON CONFLICT (message_id) DO NOTHING"),
    "told": "",
}


def _many(*, origins: bool, again: bool = False, parsed: bool = False) -> Statement:
    """`again`: some may be stored already; `origins`: some come from elsewhere; `parsed`: their
    summaries are stored with them."""
    columns = ", client, helo" if origins else ""
    more = ", (SELECT $5)::text[], (SELECT $6)::text[]" if origins else ""
    types = (UUIDS, TEXTS, TEXTS, BYTEAS, *((TEXTS, TEXTS) if origins else ()))
    way = _IGNORE if again else _NEW
    if parsed:
        way = way | {
            "parsing": summaries.with_mail(len(types) + 1),
            "told": f", {summaries.TOLD}",
        }
        types += summaries.TYPES
    return Statement(
        _INSERT.format(
            source=_MANY.format(more=more, columns=columns),
            columns=columns,
            values=", o.client::inet, o.helo" if origins else "",
            **way,
        ),
        types,
    )


# Looking for conflicts first costs each row a second walk of the index and a record in the log, so
# that is for what was handed over before: tests/mailboxes/test_accept.py, and the bench `ingest`.
_FRESH, _AGAIN = _many(origins=False), _many(origins=False, again=True)
# Mail from this machine has no origin, and pays nothing for that of others.
_FRESH_FROM, _AGAIN_FROM = _many(origins=True), _many(origins=True, again=True)
_PARSED, _PARSED_FROM = _many(origins=False, parsed=True), _many(origins=True, parsed=True)
_ONE = Statement(
    _INSERT.format(
        source="(SELECT r.id, r.address, $1 AS reverse_path, $2 AS raw"
        " FROM unnest((SELECT $3)::uuid[], (SELECT $4)::text[]) AS r (id, address)) AS o",
        columns=", client, helo",
        values=", $5::inet, $6",
        **_IGNORE,
    ),
    (TEXT, BYTEA, UUIDS, TEXTS, TEXT, TEXT),
)


def mailboxes_of(result: PGresult, ids: Iterable[UUID]) -> dict[UUID, bytes]:
    """The mailboxes (16 bytes) of those messages that an answer has: its rows begin with both."""
    value = result.get_value
    found = {value(row, 0): cast(bytes, value(row, 1)) for row in range(result.ntuples)}
    return {one: mailbox for one in ids if (mailbox := found.get(one.bytes)) is not None}


async def insert_many(
    pool: Pool, rows: Sequence[Row], origins: Sequence[Origin | None] = ()
) -> dict[UUID, bytes]:
    """Store rows whose mailboxes are live; return the mailbox of each that was stored now
    (16 bytes), by its id.  What was stored before is durable as well.

    `origins`: where each came from; none: all from this machine, or nobody knows.

    Keep them small together (`LARGE` each, a mebibyte in all): PostgreSQL spreads the arrays out
    in memory.
    """
    columns = _columns(rows, origins)
    again = False
    try:
        result = await pool.run(_FRESH_FROM if origins else _FRESH, columns)
    except psycopg.errors.UniqueViolation:
        again = True
        result = await pool.run(_AGAIN_FROM if origins else _AGAIN, columns)
    stored = mailboxes_of(result, [row.id for row in rows])
    if again:
        await stored_among(pool, [row.id for row in rows if row.id not in stored])
    return stored


async def insert_parsed(
    pool: Pool, rows: Sequence[Row], origins: Sequence[Origin | None], parsed: Sequence[Parsed]
) -> dict[UUID, bytes]:
    """Do as `insert_many`, and store the summaries of the rows with them, in their order.

    Psycopg's `UniqueViolation` where one of them was stored before.
    """
    columns = _columns(rows, origins) + summaries.arrays(parsed)
    result = await pool.run(_PARSED_FROM if origins else _PARSED, columns)
    return mailboxes_of(result, [row.id for row in rows])


def _columns(rows: Sequence[Row], origins: Sequence[Origin | None]) -> tuple[bytes, ...]:
    columns: tuple[bytes, ...] = (
        uuids([row.id for row in rows]).data,
        texts([row.address for row in rows]).data,
        texts([row.reverse_path for row in rows]).data,
        byteas([row.raw for row in rows]).data,
    )
    if origins:
        columns += (
            texts([origin and origin.client for origin in origins]).data,
            texts([origin and origin.helo for origin in origins]).data,
        )
    return columns


async def insert_one(
    pool: Pool,
    reverse_path: str,
    recipients: Sequence[tuple[UUID, str]],
    raw: bytes,
    origin: Origin | None = None,
) -> dict[UUID, bytes]:
    """Store one message for its live recipients; return the mailbox of each that was stored
    now (16 bytes), by its id.  What was stored before is durable as well.

    `origin`: where it came from, as for `insert_many`.

    The text travels once, whatever the number of recipients.
    """
    columns = (
        reverse_path.encode(),
        raw,  # as it is: between here and libpq's buffer it is copied once
        uuids([identity for identity, _ in recipients]).data,
        texts([address for _, address in recipients]).data,
        *((None, None) if origin is None else (origin.client.encode(), origin.helo.encode())),
    )
    async with pool.connection() as conn:
        result = await conn.run(_ONE, columns)
        if len(raw) > SHED:
            await conn.close()
    stored = mailboxes_of(result, [identity for identity, _ in recipients])
    missing = [identity for identity, _ in recipients if identity not in stored]
    if missing:  # no longer live, or stored before: nothing tells the two apart
        await stored_among(pool, missing)
    return stored


async def stored_among(
    pool: Pool,
    ids: Iterable[UUID],
    *,
    timeout: float = 5.0,  # noqa: ASYNC109 - past it the pool throws the connection away
) -> set[UUID]:
    """Return which of these messages are stored, durably.

    `timeout` in seconds (never above the pool's own); `DatabaseUnavailable` when they may be
    there and nobody knows whether they stay.
    """
    found = await pool.fetch_durable(
        """
        SELECT id
        FROM relay.messages
        WHERE id = ANY(%b::uuid[])
        """,
        (list(ids),),
        timeout=min(timeout, pool.call_timeout),
    )
    return {stored for (stored,) in found}


async def fold(pool: Pool, addresses: Iterable[str]) -> None:
    """Add to the counts of these mailboxes what was appended since they were folded last."""
    await pool.fetch_value("SELECT relay.fold_usage(%s)", (list(addresses),))


class Question(Future[Why | None]):
    """One session that waits to hear why a mailbox takes no mail (unknown, expired); None: it does.

    `DatabaseUnavailable` when nobody knows, `OverQuota` when it is full.
    """

    __slots__ = ("address",)

    def __init__(self, address: str) -> None:
        """`address`: canonical."""
        super().__init__()
        self.address = address


# The second column: whether it holds what its plan allows; null for an expired mailbox, of which
# nothing is counted: neither the answer nor its time may tell an expired mailbox from none.
_FOUND = Statement("SELECT address, is_full FROM relay.find_mailboxes($1)", (TEXTS,))


async def _found(pool: Pool, addresses: Iterable[str]) -> dict[bytes, bool | None]:
    """The mailboxes among these, each with whether it is full; None: it is over."""
    result = await pool.run(_FOUND, (texts(list(addresses)).data,))
    value = result.get_value
    return {
        cast(bytes, value(number, 0)): None if (full := value(number, 1)) is None
        else full == b"\x01"
        for number in range(result.ntuples)
    }  # fmt: skip


async def full_among(pool: Pool, addresses: Iterable[str]) -> set[str]:
    """Return which of these live mailboxes hold as much as their plan allows."""
    return {address for address, full in (await live_among(pool, addresses)).items() if full}


async def live_among(pool: Pool, addresses: Iterable[str]) -> dict[str, bool]:
    """Return the live mailboxes among these, each with whether it is full."""
    found = await _found(pool, addresses)
    return {address.decode(): full for address, full in found.items() if full is not None}


class NobodyThere(PermanentFailure):
    """These addresses have no live mailbox."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__("there is no such mailbox")
        self.addresses = tuple(addresses)


class Room(NamedTuple):
    """What a mailbox may still take by its plan; None: without limit."""

    messages: int | None
    bytes: int | None


async def room_in(pool: Pool, addresses: Iterable[str]) -> dict[str, Room]:
    """Return how much room is left in those of these live mailboxes that have a quota."""
    rows = await pool.fetch(
        f"""
        SELECT b.address, p.max_messages - used.messages, p.max_bytes - used.bytes
        FROM relay.mailboxes b
        JOIN relay.plans p ON p.name = b.plan
        CROSS JOIN LATERAL ({USED}) used
        WHERE b.address = ANY (%s)
          AND b.is_active
          AND b.expires_at > clock_timestamp()
          AND {LIMITED}
        """,  # noqa: S608 - constants of our own
        (list(addresses),),
    )
    return {
        address: Room(*(None if left is None else int(left) for left in rest))
        for address, *rest in rows
    }


class Lookups:
    """Asks the database which addresses are live, for everybody at once.

    Someone must `run` it.  While one query is under way, questions gather for the next, and where
    many are asked, a moment longer (`relay.gathering`).  Those that came while the database kept
    silent for all of a call's time fail with it, and do not wait as long once more.  Of an outage
    the beginning and the end are logged.
    """

    def __init__(
        self, pool: Pool, *, captures: Callable[[str], bool] | None = None, batch: int = 256
    ) -> None:
        """`captures`: whether mail to an address without a live mailbox is taken all the same;
        `batch`: the most addresses asked for in one query."""
        self._pool = pool
        self._captures = captures
        self._batch = batch
        self._questions: list[Question] = []
        self._asked = trio.lowlevel.ParkingLot()
        self._enough = _NEVER  # questions at which `run` goes on
        self._gathering = Gathering()
        self._outage = Outage()

    def find(self, address: str) -> Question:
        """Return why a canonical address takes no mail (unknown, expired), or None if it does.

        A deleted mailbox is expired, too; of a full one the answer raises `OverQuota`.
        """
        question = Question(address)
        questions = self._questions
        questions.append(question)
        if len(questions) >= self._enough:
            self._enough = _NEVER
            self._asked.unpark()
        return question

    async def run(self) -> None:
        """Answer questions until cancelled; those that are open then are answered with an error."""
        asked: list[Question] = []
        try:
            while True:
                while not self._questions:
                    await self._wait_for(1)
                least = min(self._gathering.least(trio.current_time()), self._batch)
                if len(self._questions) < least:
                    with trio.move_on_after(PATIENCE):
                        await self._wait_for(least)
                asked, self._questions = (
                    self._questions[: self._batch],
                    self._questions[self._batch :],
                )
                self._gathering.taken(len(asked), trio.current_time())
                await self._answer(asked)
        finally:
            for question in asked + self._questions:
                question.fail(DatabaseUnavailable("the relay is stopping"))
            self._questions = []

    async def _wait_for(self, count: int) -> None:
        self._enough = count
        try:
            await self._asked.park()
        finally:
            self._enough = _NEVER

    async def _answer(self, asked: list[Question]) -> None:
        addresses = list({question.address for question in asked})
        began = trio.current_time()
        try:
            found = await _found(self._pool, addresses)
        except (RelayError, psycopg.Error) as error:
            say = log.debug if self._outage.is_on else log.warning
            say("mailboxes.lookup_failed", error=str(error), waiting=len(asked))
            self._outage.lost()
            if trio.current_time() - began >= self._pool.call_timeout:
                asked, self._questions = asked + self._questions, []
            for question in asked:
                question.fail(DatabaseUnavailable(str(error)))
            return
        failed = self._outage.attempts
        if self._outage.over():
            log.info("mailboxes.lookups_answered", failed=failed)
        for question in asked:
            address = question.address.encode()
            if address not in found:
                question.settle(None if self._captured(question.address) else "unknown")
            elif (full := found[address]) is None:
                question.settle(None if self._captured(question.address) else "expired")
            elif full:
                question.fail(OverQuota("the mailbox is full"))
            else:
                question.settle(None)

    def _captured(self, address: str) -> bool:
        return self._captures is not None and self._captures(address)
