"""The summariser: parses accepted messages and stores what lists and readers show of them.

Promises
- A message has its summary within milliseconds of its commit when idle, and newly arrived ones
  within a second under a backlog: batches are taken from the oldest end and from the newest in
  turn.
- Parsing happens in a child process that can be killed (`relay.mailboxes.parser`), niced, and
  rests while mail keeps arriving: accepting comes first, and what waited is parsed after a burst.
- A message that cannot be parsed gets a summary from its headers, with the reason; nothing is
  retried for ever.
- Every relay on one database may run one: rows are claimed with SKIP LOCKED, and a claim ends
  with its connection.

Crash safety
    before the storing commit   the row is still in `relay.unsummarised`: parsed again
    after it                    the summary is there and the row gone, in one statement

Fails: never on an outage of the database (back-off, one warning).

The claim is a row lock held while a batch is parsed: some milliseconds, at most a deadline a
message; large messages are therefore claimed one at a time.  No mail is ever sent or fetched
over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import trio
from prometheus_client import Counter

from actors.turns import next_turn
from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, TemporaryFailure
from relay.log import get_logger
from relay.mailboxes.parser import Parser
from relay.metrics import registry
from supervisor import Context, Drained

log = get_logger()

_SUMMARISED = Counter(
    "relay_messages_summarised", "Messages parsed by this node.", registry=registry
)

_BATCH = 64
_SMALL = 64 * 1024  # bytes; what is larger is handled alone
_LARGE_A_ROUND = 2
_REST = 3.0  # pause after a round in which more mail arrived, as a multiple of what it took
_LONGEST_REST = 0.25  # s
_ORPHANS_EVERY = 60.0  # s
_STATEMENT = 30.0  # s; client-side deadline of a round, parsing aside
_BACKOFF = (0.1, 5.0)  # s; first and longest pause in an outage

_Row = tuple[UUID, UUID, bytes | None, datetime]
"""Message, mailbox, raw bytes (None: too large for a batch), when it was received."""

# KEY SHARE: a message that is being deleted is left alone, and one that is claimed is not
# deleted before its summary refers to it.
_CLAIM = """
    SELECT m.id, m.mailbox_id, CASE WHEN m.size <= %s THEN m.raw_email END, m.received_at
    FROM relay.unsummarised u
    JOIN relay.messages m ON m.id = u.message_id
    ORDER BY u.message_id {direction}
    LIMIT %s
    FOR UPDATE OF u SKIP LOCKED
    FOR KEY SHARE OF m SKIP LOCKED
    """
_CLAIM_OLDEST, _CLAIM_NEWEST = _CLAIM.format(direction="ASC"), _CLAIM.format(direction="DESC")
_CLAIM_ONE = """
    SELECT m.id, m.mailbox_id, m.raw_email, m.received_at
    FROM relay.unsummarised u
    JOIN relay.messages m ON m.id = u.message_id
    WHERE u.message_id = %s
    FOR UPDATE OF u SKIP LOCKED
    FOR KEY SHARE OF m SKIP LOCKED
    """

# Numbers (`seq`) are drawn after a lock per mailbox is held, and the lock ends with the commit, so
# they become visible in order within a mailbox.  Locks are taken in one order: no deadlock.
_STORE = """
    WITH done AS MATERIALIZED (
        SELECT *, hashtext(mailbox_id::text) AS key
        FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
            n integer, message_id uuid, mailbox_id uuid, from_address text, subject text,
            has_attachments boolean, body_text text, body_html text, headers jsonb,
            attachments jsonb, otp text, links jsonb, error text)
    ), locked AS MATERIALIZED (
        SELECT key, pg_advisory_xact_lock(1380274273, key)
        FROM (SELECT DISTINCT key FROM done ORDER BY key) keys
    ), stored AS (
        INSERT INTO relay.summaries (
            message_id, mailbox_id, from_address, subject, has_attachments, body_text,
            body_html, headers, attachments, otp, links, error)
        SELECT message_id, mailbox_id, from_address, subject, has_attachments, body_text,
               body_html, headers, attachments, otp, links, error
        FROM done
        JOIN locked USING (key)
        ORDER BY n
        ON CONFLICT (message_id) DO NOTHING
        RETURNING mailbox_id
    ), finished AS (
        DELETE FROM relay.unsummarised
        WHERE message_id = ANY (%(ids)s)
    )
    SELECT pg_notify(
        'relay_summaries', relay.payload_of(ARRAY(SELECT DISTINCT mailbox_id FROM stored)))
    """

# Rows whose message was deleted before its turn came.
_ORPHANS = """
    DELETE FROM relay.unsummarised u
    WHERE NOT EXISTS (SELECT FROM relay.messages m WHERE m.id = u.message_id)
    """


async def run(
    ctx: Context, *, pool: Pool, sweep_every: float = 5.0, parse_timeout: float = 5.0
) -> None:
    """Summarise until drained.

    `sweep_every`: seconds after which it looks although nobody called; `parse_timeout`: seconds
    that one message may take.
    """
    async with Parser(deadline=parse_timeout) as parser:
        summariser = Summariser(pool, parser)
        ctx.ready()
        seconds = 0.0
        try:
            while True:
                await next_turn(ctx, seconds)
                seconds = await summariser.turn(ctx) or sweep_every
        except Drained:
            return


@dataclass
class Summariser:
    """One node's summariser between its turns."""

    pool: Pool
    parser: Parser
    _outage: float = 0.0
    _orphans_at: float = field(default=-math.inf)

    async def turn(self, ctx: Context) -> float:
        """Summarise everything there is.  Returns the pause after an outage, 0 without one."""
        try:
            newest = False
            while not (ctx.draining.is_set() or ctx.paused):
                began = trio.current_time()
                found = await self.round(newest=newest)
                ctx.beat()
                if ctx.inbox.statistics().depth:
                    # Mail is coming in right now: accepting it goes first.
                    took = trio.current_time() - began
                    await trio.sleep(min(_LONGEST_REST, took * _REST))
                if found < _BATCH and not newest:
                    break
                newest = not newest
            if trio.current_time() >= self._orphans_at:
                self._orphans_at = trio.current_time() + _ORPHANS_EVERY
                await self.pool.execute(_ORPHANS)
        except TemporaryFailure as error:
            first, longest = _BACKOFF
            if not self._outage:
                log.warning("summariser.waits", reason=str(error))
            self._outage = min(longest, self._outage * 2 or first)
            return self._outage
        if self._outage:
            self._outage = 0.0
            log.info("summariser.recovered")
        return 0.0

    async def round(self, *, newest: bool = False) -> int:
        """Summarise one batch from either end; return how many messages were found."""
        large: list[UUID] = []
        async with self.pool.transaction() as conn:
            claim = _CLAIM_NEWEST if newest else _CLAIM_OLDEST
            rows = await self._select(conn, claim, (_SMALL, _BATCH))
            small = [row for row in rows if row[2] is not None]
            # In the order of arrival, from whichever end they were taken.
            small.sort(key=lambda row: (row[3], row[0]))
            await self._summarise(conn, small)
            large = [row[0] for row in rows if row[2] is None]
        for message_id in large[:_LARGE_A_ROUND]:
            async with self.pool.transaction() as conn:
                await self._summarise(conn, await self._select(conn, _CLAIM_ONE, (message_id,)))
        return len(rows)

    async def _select(self, conn: Connection, sql: str, parameters: tuple[Any, ...]) -> list[_Row]:
        with _deadline():
            # Binary: as text every byte of mail travels as two hexadecimal digits.
            cursor = await conn.execute(sql, parameters, binary=True)
            return await cursor.fetchall()
        raise DatabaseUnavailable("PostgreSQL did not answer in time")

    async def _summarise(self, conn: Connection, rows: list[_Row]) -> None:
        if not rows:
            return
        found = await self.parser.summarise([raw or b"" for _, _, raw, _ in rows])
        # Each summary is a JSON object; what identifies it is written into its front.
        objects = [
            b'{"n":%d,"message_id":"%s","mailbox_id":"%s",'
            % (number, str(message_id).encode(), str(mailbox_id).encode())
            + summary[1:]
            for number, ((message_id, mailbox_id, _, _), summary) in enumerate(
                zip(rows, found, strict=True)
            )
        ]
        parameters = {
            "rows": (b"[" + b",".join(objects) + b"]").decode(),
            "ids": [message_id for message_id, _, _, _ in rows],
        }
        with _deadline():
            await conn.execute(_STORE, parameters)
            return
        raise DatabaseUnavailable("PostgreSQL did not answer in time")


def _deadline() -> trio.CancelScope:
    return trio.move_on_after(_STATEMENT)
