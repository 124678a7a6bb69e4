"""The summariser: parses accepted messages and stores what lists and readers show of them.

Promises
- A message has its summary within milliseconds of its commit when idle.  Under a backlog too, for
  a mailbox that has had little of the parser's time lately: such mailboxes come first
  (`relay.mailboxes.fair_order`), what is small before what is large, and groups are taken from the
  oldest end and from the newest in turn.
- Nobody's summary waits for a slow message of somebody else's: a group is cut when it has taken
  `slice_for`, what is done of it is stored at once, and while one group keeps the parser busy for
  over `help_after`, or something has waited for so long, a second parser goes on with the mail of
  other mailboxes.
- Parsing happens in child processes that can be killed (`relay.mailboxes.parser`), niced, and
  rests while mail keeps arriving, for accepting comes first.  While this process itself is busy
  (`BUSY`: a flood; parsing cannot keep up with it) three quarters of the time are rest; else it
  never rests while anything waits that has waited for `_PATIENCE`.
- When nothing waits to be parsed, large mailboxes get the chunks that make searches fast
  (`relay.mailboxes.search`).
- A message that cannot be parsed gets a summary from its headers, with the reason; nothing is
  retried for ever.
- Every relay on one database may run one: rows are claimed with SKIP LOCKED, and a claim ends
  with its connection.

Crash safety
    before the storing commit   the row is still in `relay.unsummarised`: parsed again
    after it                    the summary is there and the row gone, in one statement

Fails: never on an outage of the database (back-off, one warning).

What waits is looked at first, by mailbox and size, without its bytes; then a group is chosen, and
claimed in the transaction that stores it.  The claim is a row lock held while the group is parsed:
some milliseconds, at most the slice and a message's deadline.  No mail is ever sent or fetched
over it.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import trio
from prometheus_client import Counter
from psycopg.pq.abc import PGresult

from actors.messages import SweepNow
from actors.periodic import wait_for_messages
from relay.db.arrays import uuids
from relay.db.channels import SUMMARIES
from relay.db.connection import Connection, Statement
from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.mailboxes import search
from relay.mailboxes.fair_order import GROUP, FairOrder, Waiting
from relay.mailboxes.parser import Parsed, Parser
from relay.metrics import registry
from relay.outage import Outage
from supervisor import Context, Drained

log = get_logger()

_SUMMARISED = Counter(
    "relay_messages_summarised", "Messages parsed by this node.", registry=registry
)

BUSY = 0.4
"""Share of a core that this process uses, from which on it is taken for busy accepting mail."""

_BUSY_FOR = 0.1  # s, at least, over which that is measured
_LOOKED_AT = 256  # messages of either end
_SMALL = 64 * 1024  # bytes; the second parser is for messages up to this,
_MEDIUM = 4 * 2**20  # and up to this for those smaller than what the first has in hand
_LOOK_EVERY = 0.1  # s; how long what was seen of either end is good, under a backlog
_DEEP_EVERY = 0.2  # s; how often it looks for mail that is at neither end of a long backlog,
_DEEP_SHARE = 0.05  # and how much of the time that may take: of a long one it takes long
_ELSEWHERE = 1.0  # s; how long a message that somebody else has claimed is left out
_LOOK_AGAIN = 0.03  # s; the second parser's pause when there is nothing that it may take
_LET_GO = 60.0  # s; an idle second parser ends after this
_REST = 3.0  # pause after a round in which more mail arrived, as a multiple of what it took
_LONGEST_REST = 0.25  # s
_PATIENCE = 0.1  # s; nothing that is known to wait does so longer because of a rest
_KNOWN = 4096  # messages of which it is remembered since when they wait
_HINTS = 4096  # taken at once; more are only more of the same
_ORPHANS_EVERY = 60.0  # s
_CHUNKS_EVERY = 5.0  # s; how often it looks for large mailboxes to make chunks of
_CHUNKS_FOR = 0.5  # s, at most, before it looks for mail again

_STATEMENT = 30.0  # s; client-side deadline of each statement, BEGIN and COMMIT too

_INTEGER = 23  # the type's OID
_NUMBER = struct.Struct(">i")
_COUNT, _NONE = _NUMBER.pack(_LOOKED_AT), _NUMBER.pack(0)

_Row = tuple[UUID, UUID, bytes, datetime]
"""Message, mailbox, raw bytes, when it was received."""

# Ids go by age, so the primary key gives the order of arrival from both ends.
_END = """
    SELECT message_id, mailbox_id, size
    FROM relay.unsummarised
    ORDER BY message_id {direction}
    LIMIT $1
    """
_NEWEST = Statement(_END.format(direction="DESC"), (_INTEGER,))
_OLDEST = Statement(_END.format(direction="ASC"), (_INTEGER,))
# The mailboxes for which the fewest wait: whoever fills the queue is not among them.  Of those, the
# ones with small mail.
_FEWEST = """
    WITH few AS MATERIALIZED (
        SELECT mailbox_id, count(*) AS messages
        FROM relay.unsummarised
        GROUP BY mailbox_id
        ORDER BY count(*), min(size)
        LIMIT %s
    )
    SELECT u.message_id, u.mailbox_id, u.size
    FROM few
    JOIN relay.unsummarised u USING (mailbox_id)
    ORDER BY few.messages, u.size, u.message_id
    LIMIT %s
    """

# KEY SHARE: a message that is being deleted is left alone, and one that is claimed is not
# deleted before its summary refers to it.
_CLAIM = """
    SELECT m.id, m.mailbox_id, m.raw_email, m.received_at
    FROM relay.unsummarised u
    JOIN relay.messages m ON m.id = u.message_id
    WHERE u.message_id = ANY (%b)
    FOR UPDATE OF u SKIP LOCKED
    FOR KEY SHARE OF m SKIP LOCKED
    """

# Numbers (`seq`) are drawn after a lock per mailbox is held, and the lock ends with the commit, so
# they become visible in order within a mailbox.  Locks are taken in one order: no deadlock.
_STORE = f"""
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
        WHERE message_id = ANY (%(ids)b)
    )
    SELECT pg_notify(
        '{SUMMARIES}', relay.payload_of(ARRAY(SELECT DISTINCT mailbox_id FROM stored)))
    """  # noqa: S608 - a constant of ours

# Rows whose message was deleted before its turn came.
_ORPHANS = """
    DELETE FROM relay.unsummarised u
    WHERE NOT EXISTS (SELECT FROM relay.messages m WHERE m.id = u.message_id)
    """
_ORPHANS_AMONG = _ORPHANS + " AND u.message_id = ANY (%b)"


async def run(
    ctx: Context,
    *,
    pool: Pool,
    sweep_every: float = 5.0,
    parse_timeout: float = 5.0,
    slice_for: float = 0.05,
    help_after: float = 0.2,
) -> None:
    """Summarise until drained.

    `sweep_every`: seconds after which it looks although nobody called; `parse_timeout`: seconds
    that one message may take; `slice_for`: seconds after which a group is cut; `help_after`:
    seconds of one group, or of waiting, after which a second parser goes on with the others.
    """
    async with (
        Parser(deadline=parse_timeout) as parser,
        Parser(deadline=parse_timeout) as second,
        trio.open_nursery() as nursery,
    ):
        summariser = Summariser(pool, parser, second, slice_for, help_after)
        nursery.start_soon(summariser.assist)
        ctx.ready()
        seconds = 0.0
        try:
            while True:
                summariser.heed(await wait_for_messages(ctx, seconds))
                seconds = await summariser.turn(ctx) or sweep_every
        except Drained:
            nursery.cancel_scope.cancel()


def rest(began: float, ended: float, oldest: float = math.inf, *, busy: bool = False) -> float:
    """Seconds to rest after a round, for mail is arriving.

    `oldest`: since when what has waited longest is known to wait.  What came during the round may
    be as old as that.  `busy`: whether accepting needs this process and this machine.
    """
    if busy:
        return min((ended - began) * _REST, _LONGEST_REST)
    patience = min(oldest, began) + _PATIENCE - ended
    return max(0.0, min(patience, (ended - began) * _REST))


def helps_since(began: float, oldest: float, *, busy: bool = False) -> float:
    """Since when a second parser is wanted.

    Since one group `began`; or since what has waited longest does, behind many short groups.  The
    latter not while accepting needs the machine (`busy`): it is what a flood does.
    """
    return began if busy else min(began, oldest)


class Load:
    """Whether this process is busy, by the CPU time that it used lately.

    `cpu`: seconds of CPU of this process; the parsers are others.
    """

    def __init__(self, cpu: Callable[[], float] = time.process_time) -> None:
        self._cpu = cpu
        self._since, self._used = -math.inf, 0.0
        self._busy = False

    def busy(self, now: float) -> bool:
        """Asked again and again; each answer is about at least the last `_BUSY_FOR` seconds."""
        if now < self._since + _BUSY_FOR:
            return self._busy
        used = self._cpu()
        self._busy = used - self._used >= BUSY * (now - self._since)
        self._since, self._used = now, used
        return self._busy


@dataclass
class Summariser:
    """What one node's summariser knows from turn to turn; `second` parses to help out."""

    pool: Pool
    parser: Parser
    second: Parser | None = None
    slice_for: float = math.inf
    help_after: float = 0.2
    load: Load = field(default_factory=Load)
    _order: FairOrder = field(default_factory=FairOrder)
    _outage: Outage = field(default_factory=Outage)
    _orphans_at: float = field(default=-math.inf)
    _deep_at: float = field(default=-math.inf)
    _chunks_at: float = field(default=-math.inf)
    _elsewhere: dict[bytes, float] = field(default_factory=dict)  # message -> until when
    _since: dict[bytes, float] = field(default_factory=dict)  # message -> first seen waiting
    _looked: dict[bool, tuple[list[Waiting], float]] = field(default_factory=dict)  # by end
    _in_hand: dict[Parser, list[Waiting]] = field(default_factory=dict)
    _began: float = math.inf  # the group in hand
    _working: trio.Event = field(default_factory=trio.Event)  # a turn is under way

    async def turn(self, ctx: Context) -> float:
        """Summarise everything there is.  Returns the pause after an outage, 0 without one."""
        self._working.set()
        try:
            newest, more, empty = False, True, 0
            while more and empty < 2 and not (ctx.draining.is_set() or ctx.paused):
                began = trio.current_time()
                found, more = await self.round(newest=newest)
                empty = 0 if found else empty + 1  # in vain from both ends: others are at it
                ctx.beat()
                if await self._arrived(ctx):
                    more, empty = True, 0
                    # Mail is coming in right now: accepting it goes first.
                    now = trio.current_time()
                    busy = self.load.busy(now)
                    await trio.sleep(rest(began, now, self._waits_since(), busy=busy))
                newest = not newest
            if trio.current_time() >= self._orphans_at:
                self._orphans_at = trio.current_time() + _ORPHANS_EVERY
                await self.pool.execute(_ORPHANS)
            return await self._make_chunks(ctx)
        except TemporaryFailure as error:
            if not self._outage.is_on:
                log.warning("summariser.waits", reason=str(error))
            return self._outage.lost()
        finally:
            self._working = trio.Event()

    async def _make_chunks(self, ctx: Context) -> float:
        """With nothing to parse, spare searches in large mailboxes their work (`search`).

        Returns when to go on, in seconds; 0: all is done for now.
        """
        if self._outage.over():
            log.info("summariser.recovered")
        if trio.current_time() < self._chunks_at:
            return 0.0
        until = trio.current_time() + _CHUNKS_FOR
        for mailbox_id in await search.lagging(self.pool):
            more = True
            while more:
                if ctx.draining.is_set() or ctx.paused or ctx.inbox.statistics().depth:
                    return 0.0
                if trio.current_time() > until:
                    return _LOOK_AGAIN
                more = await search.grow(self.pool, mailbox_id, self.parser.filter)
                ctx.beat()
        self._chunks_at = trio.current_time() + _CHUNKS_EVERY
        return 0.0

    async def _arrived(self, ctx: Context) -> bool:
        """Whether more mail was announced since this was last asked."""
        if not ctx.inbox.statistics().depth or ctx.paused or ctx.draining.is_set():
            return False
        # Taken out, for they are done: left in the box, one message would slow down every round.
        for held in await ctx.inbox.take(_HINTS):
            held.done()
            self.heed([held.message])
        return True

    def heed(self, messages: Iterable[Any]) -> None:
        """Take hints in: any is a reason to look, `SweepNow` one for all that has its time."""
        if any(isinstance(message, SweepNow) for message in messages):
            self._orphans_at = self._chunks_at = self._deep_at = -math.inf

    async def assist(self) -> None:
        """Parse the small mail of others whenever one group keeps the first parser for long."""
        second, used, newest = self.second, 0.0, False
        while second is not None:
            with trio.move_on_after(_LET_GO):
                await self._working.wait()
                await trio.sleep(self.help_after)  # so a burst of short groups costs few looks
            try:
                while self._is_late(trio.current_time()):
                    chosen, _ = await self.round(newest=newest, helping=True)
                    used, newest = trio.current_time(), not newest
                    if not chosen:
                        await trio.sleep(_LOOK_AGAIN)
            except TemporaryFailure:
                pass  # the first will say so, and wait
            if trio.current_time() - used >= _LET_GO:
                second.close()

    def _is_late(self, now: float) -> bool:
        busy = self.load.busy(now)
        since = helps_since(self._began, self._waits_since(), busy=busy)
        return now - since >= self.help_after

    def _waits_since(self) -> float:
        """Since when what has waited longest is known to wait; what is in hand does not wait."""
        taken = self._taken().union(self._elsewhere)
        return min((at for one, at in self._since.items() if one not in taken), default=math.inf)

    def _taken(self) -> set[bytes]:
        return {one.message_id for group in self._in_hand.values() for one in group}

    async def round(self, *, newest: bool = False, helping: bool = False) -> tuple[int, bool]:
        """Summarise one group; return how many messages it has, and whether more may wait.

        `newest`: from the newest end; `helping`: with the second parser, small messages of
        mailboxes that the first has none of in hand.
        """
        parser = self.second if helping and self.second is not None else self.parser
        waiting, full = await self._look(newest=newest)
        free = self._free(waiting, helping=helping)
        group = self._order.choose(free, trio.current_time(), newest=newest)
        if not group:
            self._looked.clear()
            return 0, full
        if self._looked:
            chosen = {one.message_id for one in group}
            self._looked = {
                end: ([one for one in left if one.message_id not in chosen], until)
                for end, (left, until) in self._looked.items()
            }
        self._in_hand[parser] = group
        if not helping:
            self._began = trio.current_time()
        try:
            done = await self._summarise(parser, group)
        finally:
            del self._in_hand[parser]
            if not helping:
                self._began = math.inf
        return len(group), full or done < len(group) or len(group) < len(free)

    async def _look(self, *, newest: bool) -> tuple[list[Waiting], bool]:
        """Some of what waits, in the order of arrival, and whether there is more than that.

        Under a backlog what was seen a moment ago is good for several groups.
        """
        left, until = self._looked.get(newest, ([], 0.0))
        if trio.current_time() < until and len(left) >= GROUP:
            return left, True
        found, more = await self._see(newest=newest)
        now, known = trio.current_time(), self._since
        if more:
            self._looked[newest] = found, now + _LOOK_EVERY
        else:
            self._looked.clear()
        seen = {one.message_id: known.get(one.message_id, now) for one in found}
        # Of a long backlog both ends are remembered; what is neither done nor seen has gone.
        self._since = known | seen if more and len(known) < _KNOWN else seen
        return found, more

    async def _see(self, *, newest: bool) -> tuple[list[Waiting], bool]:
        found = _waiting(await self.pool.run(_NEWEST if newest else _OLDEST, (_COUNT,)))
        if newest:
            found.reverse()
        if len(found) < _LOOKED_AT:
            return found, False
        now = trio.current_time()
        if now >= self._deep_at:
            rows = await self.pool.fetch(_FEWEST, (_LOOKED_AT, _LOOKED_AT))
            took = trio.current_time() - now
            self._deep_at = now + max(_DEEP_EVERY, took / _DEEP_SHARE)
            found = sorted({*found, *(Waiting(row[0].bytes, row[1].bytes, row[2]) for row in rows)})
        return found, True

    def _free(self, waiting: list[Waiting], *, helping: bool) -> list[Waiting]:
        """Those that nobody has in hand."""
        if self._elsewhere:
            now = trio.current_time()
            self._elsewhere = {m: until for m, until in self._elsewhere.items() if until > now}
        taken = self._taken().union(self._elsewhere)
        free = [one for one in waiting if one.message_id not in taken] if taken else waiting
        if helping:
            in_hand = [one for group in self._in_hand.values() for one in group]
            busy = {one.mailbox_id for one in in_hand}
            largest = max((one.size for one in in_hand), default=0)
            most = max(_SMALL, min(_MEDIUM, largest - 1))
            free = [one for one in free if one.size <= most and one.mailbox_id not in busy]
        return free

    async def _summarise(self, parser: Parser, group: list[Waiting]) -> int:
        """Claim a group, parse it and store what was parsed; return how many were or are gone."""
        order = {one.message_id: number for number, one in enumerate(group)}
        async with self.pool.transaction(patience=_STATEMENT) as conn:
            rows = await self._claim(conn, [UUID(bytes=one) for one in order])
            rows.sort(key=lambda row: order[row[0].bytes])
            found = await parser.summarise([row[2] for row in rows], budget=self.slice_for)
            for row, parsed in zip(rows, found, strict=False):
                self._order.charge(row[1].bytes, parsed.seconds)
            await self._store(conn, rows[: len(found)], found)
        _SUMMARISED.inc(len(found))
        missing = order.keys() - {row[0].bytes for row in rows}
        for message_id in (*(row[0].bytes for row in rows[: len(found)]), *missing):
            self._since.pop(message_id, None)
        if missing:
            # Claimed by another, or deleted.
            until = trio.current_time() + _ELSEWHERE
            self._elsewhere.update(dict.fromkeys(missing, until))
            await self.pool.execute(_ORPHANS_AMONG, (uuids([UUID(bytes=one) for one in missing]),))
        return len(found) + len(missing)

    async def _claim(self, conn: Connection, message_ids: list[UUID]) -> list[_Row]:
        # Binary: as text every byte of mail travels as two hexadecimal digits.
        cursor = await conn.execute(_CLAIM, (uuids(message_ids),), binary=True)
        return await cursor.fetchall()

    async def _store(self, conn: Connection, rows: Sequence[_Row], found: Sequence[Parsed]) -> None:
        if not rows:
            return
        # Each summary is a JSON object; what identifies it is written into its front.  Numbered
        # in the order of arrival, whichever was parsed first.
        pairs = sorted(zip(rows, found, strict=True), key=lambda pair: (pair[0][3], pair[0][0]))
        objects = [
            b'{"n":%d,"message_id":"%s","mailbox_id":"%s",'
            % (number, str(message_id).encode(), str(mailbox_id).encode())
            + parsed.summary[1:]
            for number, ((message_id, mailbox_id, _, _), parsed) in enumerate(pairs)
        ]
        parameters = {
            "rows": (b"[" + b",".join(objects) + b"]").decode(),
            "ids": uuids([row[0] for row in rows]),
        }
        await conn.execute(_STORE, parameters)


def _waiting(result: PGresult) -> list[Waiting]:
    value, number = result.get_value, _NUMBER.unpack
    return [
        Waiting(value(row, 0) or b"", value(row, 1) or b"", number(value(row, 2) or _NONE)[0])
        for row in range(result.ntuples)
    ]
