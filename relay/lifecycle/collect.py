"""`relay collect`: tokens, in batches, as lines on a pipe.

Promises
- A row is out of the queue only after its whole line was written and, while the reader reads, taken
  from the pipe.  A reader that dies, SIGTERM, a kill or a lost database at any point: rows of
  unfinished lines come again.
- No transaction stays open on a reader that stalls: before taking, there is room in the pipe; a
  line that does not fit is given `hold` seconds, then its rows are given back, the line is finished
  whenever the reader goes on, and its rows are taken out then.  (If another collector took them
  meanwhile they went out twice, and nobody's were lost.)  The lines before it, which the pipe
  accepted whole, are done with at once.
- When the reader goes away in the middle, the lines that it took whole are done with.
- It shares the queue with any number of collectors, of running relays too.
- Outages of the database are waited out, and what was queued meanwhile goes out at once.  With
  `follow` it looks at the servers as a relay does (`relay.db.lookout`), and goes over to one that
  was promoted.

Crash safety: what a kill leaves

    killed                         the row          the line
    -----------------------------  ---------------  ----------------------------------
    while taking                   queued           none
    while writing                  queued           unfinished (no line feed): discard
    after writing, before commit   queued           whole: the row comes twice
    after commit                   gone             whole

Fails with `DatabaseUnavailable` when there is no database to begin with (or, without `follow`, none
for a minute), and with `OSError` for a full disk.  A reader that has gone just ends it.

While a backlog drains, two connections take turns (the server takes for one while the other's rows
are signed and written), and for a reader that keeps up a transaction holds several batches: a
commit and two switches of processes for ten rows cost more than the rows.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

import psycopg
import trio

from relay.chance import new_rng
from relay.db import channels
from relay.db.connection import Connection, connect
from relay.db.doubt import BARRIER
from relay.db.hosts import Hosts
from relay.db.listen import Reconnected, notifications
from relay.db.lookout import LOOK_AROUND_EVERY, LOOK_CLOSELY_EVERY, Lookout
from relay.errors import DatabaseUnavailable
from relay.lifecycle import budget_store, token_queue
from relay.lifecycle.batching import Batching, Reason
from relay.lifecycle.budget import Budget, spend
from relay.lifecycle.lines import Printer, RawToken, faults
from relay.lifecycle.pacing import Pacing
from relay.lifecycle.pipe import Closed, Pipe
from relay.lifecycle.taking import taking
from relay.lifecycle.token_reader import TIMEOUT, TokenReader, open_token_reader
from relay.log import get_logger

log = get_logger()

SWEEP_EVERY = 3.0
"""Seconds after which it looks whatever happens, a quarter more or less; a health check too."""

_MOST = 250  # rows a transaction, where a batch is not larger itself
_QUICK = 0.02  # s
_HOLD = 10.0  # s
_GIVE_UP = 60.0  # s of outage, without `follow`

_OUTAGES = (DatabaseUnavailable, psycopg.OperationalError, trio.TooSlowError)

Key = tuple[int, int]
"""Token and account of a row."""


class _Line(NamedTuple):
    """A line that is written, or on its way."""

    end: int  # as the pipe counts
    keys: list[Key]
    printed: int  # of them; the others were refused


class _Printed(NamedTuple):
    """What became of rows: whether the reader took their lines, and how many have none."""

    taken: bool
    refused: int


class _Stalled(Exception):
    """The reader made no room for all of these lines."""

    def __init__(self, lines: list[_Line]) -> None:
        super().__init__()
        self.lines = lines


class Collect:
    """One run of `relay collect`.

    `signing_key` returns the key of now; `timeout` is the batch timeout, `hold` how long a
    transaction stays open on a reader that makes no room, and `quick` in what time a reader that
    keeps up takes what it is given (seconds); `sweep_every`: seconds, a quarter more or less;
    `hosts`: what is known of the servers; `look_every`: seconds between looks at the other ones.
    """

    def __init__(
        self,
        dsn: str,
        pipe: Pipe,
        batching: Batching,
        signing_key: Callable[[], bytes],
        *,
        timeout: float,
        budget: Budget | None = None,
        hold: float = _HOLD,
        quick: float = _QUICK,
        sweep_every: float = SWEEP_EVERY,
        rng: random.Random | None = None,
        hosts: Hosts | None = None,
        look_every: float = LOOK_AROUND_EVERY,
    ) -> None:
        self._dsn = dsn
        self._hosts = hosts or Hosts()
        self._look_every = look_every
        self._pipe = pipe
        self._batching = batching
        self._pacing = Pacing(batching, sweep_every, rng or new_rng())
        self._signing_key = signing_key
        self._timeout = timeout
        self._budget = budget
        self._hold = hold
        self._quick = quick
        self._printer = Printer(signing_key())
        self._token_readers: list[TokenReader] = []
        self._plain: Connection | None = None
        self._stopping = False
        self._idle: trio.CancelScope | None = None
        self._bell = trio.Event()
        self._heard_at: float | None = None  # the first announcement that was not heeded yet
        self._missed = False  # what was announced before we listened, and it is not looked for yet
        self._pause = 0.0  # s; until the next attempt, in an outage
        self._lost_at = math.inf
        self._sweeps = True
        self._failure: OSError | None = None

    def stop(self) -> None:
        """Take nothing more; what is in hand is finished."""
        self._stopping = True
        self._bell.set()
        if self._idle is not None:
            self._idle.cancel()

    async def drain(self) -> None:
        """Write out what is queued, and return."""
        self._sweeps = False
        try:
            await self._connection()
            while not await self._worked() and not self._stopping:
                if trio.current_time() > self._lost_at + _GIVE_UP:
                    raise DatabaseUnavailable(f"PostgreSQL was away for over {_GIVE_UP:g} s")
                await self._sleep(self._pause)
        finally:
            self._hang_up()
        self._fail()

    async def follow(self) -> None:
        """Write out what is queued, and what comes, until stopped or the reader has gone."""
        log.info("collector.configured", **self._pacing.described())
        try:
            await self._connection()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                nursery.start_soon(self._watch_reader)
                nursery.start_soon(self._watch_servers)
                while not self._stopping:
                    if await self._worked():
                        await self._sleep(self._pacing.next_at() - trio.current_time())
                    else:
                        await self._sleep(self._pause)
                nursery.cancel_scope.cancel()
        finally:
            self._hang_up()
        self._fail()

    # What happens meanwhile -----------------------------------------------------------------------

    async def _listen(self) -> None:
        async with aclosing(
            notifications(self._dsn, [channels.TOKENS], hosts=self._hosts)
        ) as heard:
            async for event in heard:
                if isinstance(event, Reconnected):
                    log.info("collector.listening")
                    self._missed = True
                elif self._heard_at is None:
                    self._heard_at = trio.current_time()
                self._bell.set()

    def _heed(self) -> None:
        """Take in what was heard: before a look, or a batch in hand would pass for its answer."""
        if self._missed:
            self._missed = False
            self._batching.connected()
        if self._heard_at is not None:
            self._batching.woken(self._heard_at)
            self._heard_at = None

    async def _watch_reader(self) -> None:
        await self._pipe.closed()
        self._reader_gone()

    async def _watch_servers(self) -> None:
        lookout = Lookout(self._dsn, self._hosts, around_every=self._look_every)
        try:
            while lookout.several_hosts:
                await trio.sleep(min(self._look_every, LOOK_CLOSELY_EVERY))
                with suppress(DatabaseUnavailable):  # whoever works finds that out
                    await lookout.turn()
        finally:
            lookout.close()

    def _reader_gone(self) -> None:
        if not self._stopping:
            log.info("collector.reader_gone")
        self.stop()

    def _fail(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _sleep(self, seconds: float) -> None:
        """Wait until the bell rings, at most so long; not once we are to stop."""
        if seconds <= 0 or self._stopping:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await self._bell.wait()
            self._bell = trio.Event()

    # Work -----------------------------------------------------------------------------------------

    async def _worked(self) -> bool:
        """Write out what is due.  False: the database is away, and a pause is due."""
        try:
            await self._write_out()
            sweeps = self._sweeps and not self._stopping
            if sweeps and self._pacing.wants_sweep(trio.current_time()):
                await self._sweep()
                await self._write_out()
        except Closed:
            self._reader_gone()
        except _OUTAGES as error:
            self._lost(error)
            return False
        except OSError as error:
            self._failure = error  # of the pipe: a full disk
            self.stop()
        self._recovered()
        return True

    async def _write_out(self) -> None:
        """Batch by batch, while there is a reason to."""
        while not self._stopping:
            try:
                await self._write_due()
            except _Stalled as stall:
                self._hang_up()
                await self._finish_lines(stall.lines)
            else:
                return

    async def _write_due(self) -> None:
        while not self._stopping:
            with trio.CancelScope() as self._idle:
                await self._pipe.room()
            self._idle = None
            self._heed()
            now = trio.current_time()
            if self._pacing.wants_count(now):
                self._pacing.counted(await self._count(), now, trio.current_time())
            reason = self._pacing.decide(trio.current_time())
            if reason is None or self._stopping:
                return
            if self._budget is not None:
                await self._write_paid(reason, self._budget)
            else:
                # Fixed batches are counted one by one; all others go on until one is short.
                await self._write_batches(reason, once=reason != "drain" and self._batching.counts)

    async def _write_batches(self, reason: Reason, *, once: bool) -> None:
        """Take and write batches until there are no more, or just one.

        One transaction is one batch at first; while the reader keeps up, it grows to several.
        """
        limit = self._batching.limit
        most = max(limit, _MOST - _MOST % limit)
        count, more, second = limit, not once, 1
        flying = deque([await self._token_reader(0)])
        flying[0].start(count)
        while flying:
            token_reader = flying.popleft()
            rows = await token_reader.rows()
            more = more and len(rows) >= token_reader.asked and not self._stopping
            if more and not flying:
                other = await self._token_reader(second)  # from here on two take turns
                other.start(count)
                flying.append(other)
                second = 1 - second
            began = trio.current_time()
            printed = await self._print(rows, token_reader.keys, reason)
            quick = printed.taken and trio.current_time() - began < self._quick
            count = min(2 * count, most) if quick else limit
            if more:
                token_reader.start(count)
                flying.append(token_reader)
            else:
                await token_reader.commit()

    async def _write_paid(self, reason: Reason, budget: Budget) -> None:
        """One batch of as many rows as the budget pays for."""
        connection = await self._connection()
        with trio.fail_after(self._hold + TIMEOUT):
            async with (
                connection.transaction(),
                taking(
                    connection,
                    limit=self._batching.limit,
                    batch_timeout=self._timeout,
                    budget=budget,
                ) as batch,
            ):
                printed = await self._print(
                    [_raw(row) for row in batch.rows],
                    lambda: [(row.id, row.account) for row in batch.rows],
                    reason,
                )
                batch.refused = printed.refused
        if batch.rest is not None:
            self._pacing.rest(trio.current_time(), batch.rest)

    async def _print(
        self, rows: Sequence[RawToken], keys: Callable[[], list[Key]], reason: Reason
    ) -> _Printed:
        """Write the lines of what was taken, a batch each."""
        limit = self._batching.limit
        bad = faults(rows)
        if bad:
            names = keys()
            for place, why in bad.items():
                log.warning("collector.refused", token=names[place][0], reason=why)
        lines = []
        for at in range(0, len(rows), limit):
            batch = rows[at : at + limit]
            if bad:
                batch = [row for place, row in enumerate(batch, at) if place not in bad]
            lines.append(self._printer.line(batch))
        before = self._pipe.written
        try:
            if not await self._pipe.write(b"".join(lines), self._hold):
                raise _Stalled(self._in_hand(lines, keys(), bad, before))
            taken = await self._pipe.taken()
        except Closed:
            await self._forget_accepted(self._in_hand(lines, keys(), bad, before))
            raise
        for at in range(0, max(1, len(rows)), limit):
            self._note(min(limit, len(rows) - at), reason)
        return _Printed(taken, len(bad))

    def _in_hand(
        self, lines: Sequence[bytes], keys: list[Key], refused: Collection[int], before: int
    ) -> list[_Line]:
        limit, found, end = self._batching.limit, [], before
        for number, line in enumerate(lines):
            end += len(line)
            places = range(number * limit, min((number + 1) * limit, len(keys)))
            printed = sum(place not in refused for place in places)
            found.append(_Line(end, keys[places.start : places.stop], printed))
        return found

    async def _finish_lines(self, lines: list[_Line]) -> None:
        """Let the reader have the rest of the lines, and take their rows out of the queue.

        Those that are whole are done with first: nobody knows how long the reader takes, or
        whether it comes to the rest at all.
        """
        log.warning("collector.reader_stalls", rows=sum(len(line.keys) for line in lines))
        with suppress(*_OUTAGES):  # then they are done with among the rest
            await self._forget_accepted(lines)
        try:
            with trio.CancelScope() as self._idle:
                if self._stopping:  # while the line was held; nobody cancels this then
                    self._idle.cancel()
                await self._pipe.finish()
        except Closed:
            self._reader_gone()
        self._idle = None
        while True:
            try:
                await self._forget_accepted(lines)
            except _OUTAGES as error:
                self._lost(error)
                if self._stopping:
                    return
                await self._sleep(self._pause)
            else:
                return

    async def _forget_accepted(self, lines: list[_Line]) -> None:
        """Take the rows of those lines that the pipe accepted whole out of the queue and the list.

        Their transaction ends for it, or this would wait for that.
        """
        whole = bisect_right(lines, self._pipe.accepted, key=lambda line: line.end)
        if whole:
            self._hang_up()
            keys = [key for line in lines[:whole] for key in line.keys]
            await self._forget(keys, sum(line.printed for line in lines[:whole]))
            del lines[:whole]

    async def _forget(self, keys: list[Key], printed: int) -> None:
        """Take rows out of the queue whose lines are out but whose transaction is gone.

        So many of them were printed, and are paid for.
        """
        connection = await self._connection()
        with trio.fail_after(TIMEOUT):
            if self._budget is not None:
                # First, and by itself: what is paid for twice is no worse than not at all.
                async with connection.transaction():
                    saved = await budget_store.lock(connection, self._budget)
                    await budget_store.save(connection, spend(saved, printed))
            async with connection.transaction():
                await connection.execute(
                    """
                    DELETE FROM relay.token_queue q
                    USING unnest(%s::bigint[], %s::bigint[]) AS r (token, account)
                    WHERE q.account = r.account AND q.token = r.token
                    """,
                    ([token for token, _ in keys], [account for _, account in keys]),
                )
                await connection.execute(BARRIER)  # a commit in doubt may have deleted them

    def _note(self, rows: int, reason: Reason) -> None:
        self._recovered()
        shown = self._batching.sent(rows, trio.current_time(), reason)
        if rows:
            log.info("collector.batch", rows=rows, reason=shown)

    # The database ---------------------------------------------------------------------------------

    async def _count(self) -> int:
        connection = await self._connection()
        with trio.fail_after(TIMEOUT):
            return await token_queue.waiting(connection, self._batching.limit)

    async def _sweep(self) -> None:
        """Look for what nobody announced; take up a new signing key."""
        key = self._signing_key()
        if key != self._printer.key:
            self._printer = Printer(key)
        connection = await self._connection()
        with trio.fail_after(TIMEOUT):
            await connection.execute("SELECT relay.sweep_tokens()")
        self._pacing.swept(trio.current_time(), await self._count())

    async def _connection(self) -> Connection:
        """The connection for all but taking."""
        if self._plain is None:
            try:
                self._plain = await connect(
                    self._dsn,
                    application_name="relay-collect",
                    connect_timeout=TIMEOUT,
                    hosts=self._hosts,
                )
            except psycopg.OperationalError as error:
                raise DatabaseUnavailable(f"no connection to PostgreSQL: {error}") from error
        return self._plain

    async def _token_reader(self, place: int) -> TokenReader:
        while len(self._token_readers) <= place:
            self._token_readers.append(await open_token_reader(self._dsn, self._hosts))
        return self._token_readers[place]

    def _hang_up(self) -> None:
        """Close all connections: what was not committed is queued again."""
        for token_reader in self._token_readers:
            token_reader.close()
        self._token_readers.clear()
        if self._plain is not None:
            self._plain.abandon()
            self._plain = None

    def _recovered(self) -> None:
        if self._pacing.is_lost:
            self._pacing.recovered()
            log.info("collector.recovered")

    def _lost(self, error: Exception) -> None:
        self._hang_up()
        if not self._pacing.is_lost:
            self._lost_at = trio.current_time()
            reason = " ".join(str(error).split()) or "PostgreSQL did not answer in time"
            log.warning("collector.waits_for_database", reason=reason)
        self._pause = self._pacing.lost()


def _raw(row: token_queue.QueuedToken) -> RawToken:
    return RawToken(
        row.action, row.email.encode(), row.login.encode(), row.secret, row.code.encode()
    )
