"""Device inboxes in PostgreSQL: for many relays that share one database.

`relay.devices.store` says what is promised, with the table of crash safety; what the tables and
functions promise is in db/migrations/0005_devices.sql, and most of the promise is kept there.

How: calls of one kind that come while a transaction of that kind is under way share the next one,
Puts as well as Deletes; each transaction is one call of a function.  New blobs are announced on
the channel `relay_devices` within it, to every node, this one included: one way for all.

What all inboxes together hold is added up every ten seconds or so; between two sums a node reckons
with what it has put since, and other nodes' Puts come on top.

Fails: while the database is away each call is `StoreUnavailable`, after the pool's deadlines; the
next one tries again.  A transaction in doubt (`relay.db.doubt`) may have been committed.  Two that
deadlock all the same (by an operator's own SQL) are done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

import psycopg
import trio

from relay.db.arrays import bigints, byteas, doubles
from relay.db.channels import DEVICES
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.calls import (
    COMMITTED,
    FULL,
    LOOK_AGAIN,
    STORE_FULL,
    UNAVAILABLE,
    Call,
    Calls,
    Delete,
    Put,
)
from relay.devices.store import (
    MAX_BLOBS,
    MAX_BYTES,
    OVERHEAD,
    Blob,
    Fullness,
    InboxFull,
    Missed,
    Stored,
    StoreFull,
    StoreStatistics,
    StoreUnavailable,
    Wakeups,
    checked_key,
)
from relay.errors import DatabaseUnavailable, RolledBack
from relay.log import get_logger
from relay.outage import Outage
from relay.throttle import Throttle

log = get_logger()

T = TypeVar("T")

_MOST_WAITING = 4096  # calls; a quarter of a gigabyte if all are the largest Puts
_MOST_ROWS = 256  # in one transaction
_MOST_BYTES = 2**20  # about; the server spreads the arrays out in memory
_READERS = 3  # connections; after an outage every session looks at once, and others need the pool
_EXPIRE = 256  # blobs a transaction
_TRIES = 3  # of a transaction that deadlocked
_STOP_TIMEOUT = 5.0  # s
_LOOK_AT_MOST = 2.0  # s between two looks for the database
_STATISTICS_EVERY = 10.0  # s; or a hundred times what they take, if that is more

_C = TypeVar("_C", Put, Delete)


class PostgresStore:
    """An `InboxStore` in the relay's own database.

    `hub` is the one that the listener publishes to; `ttl`, `call_timeout` and `statistics_every` in
    seconds, `max_total` in bytes of all inboxes together (None: any number).
    """

    name = "postgres"

    def __init__(
        self,
        pool: Pool,
        hub: Hub,
        *,
        ttl: float,
        max_blobs: int = MAX_BLOBS,
        max_bytes: int = MAX_BYTES,
        max_total: int | None = None,
        call_timeout: float = 25.0,  # the pool's own deadlines come first
        statistics_every: float = _STATISTICS_EVERY,
    ) -> None:
        self._pool = pool
        self._hub = hub
        self._ttl = ttl
        self._max_blobs = max_blobs
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._taken = 0  # bytes, as they were last added up
        self._since = 0  # bytes put since that began
        self._statistics_every = statistics_every
        self._call_timeout = call_timeout
        self._calls = Calls(timeout=call_timeout, most=_MOST_WAITING)
        self._readers = trio.CapacityLimiter(_READERS)
        self._puts: _Gathered[Put] = _Gathered()
        self._deletes: _Gathered[Delete] = _Gathered()
        self._under_way: set[trio.CancelScope] = set()
        self._looks = Throttle(LOOK_AGAIN)
        self._statistics = StoreStatistics()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; see `InboxStore.run`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hurry)
                await self._wait_for_database()
                nursery.start_soon(self._calls.watch)
                nursery.start_soon(self._commit_groups, self._puts, self._put_group)
                nursery.start_soon(self._commit_groups, self._deletes, self._delete_group)
                nursery.start_soon(self._refresh)
                self._calls.accept()
                task_status.started()
        finally:
            self._calls.refuse("it is not running")
            self._calls.fail_all("the store was stopped")
            self._puts.clear()
            self._deletes.clear()

    async def _wait_for_database(self) -> None:
        outage = Outage(longest=_LOOK_AT_MOST)
        while True:
            try:
                await self._pool.fetch(_LOOK)
            except (DatabaseUnavailable, psycopg.Error) as error:
                if not outage.is_on:
                    log.warning("devices.waits_for_database", reason=str(error))
                await trio.sleep(outage.lost())
            else:
                return

    async def _hurry(self) -> None:
        """When the store is stopped, give the transactions under way their last seconds."""
        try:
            await trio.sleep_forever()
        finally:
            self._calls.refuse("it is stopping")
            for shield in self._under_way:
                shield.deadline = min(shield.deadline, trio.current_time() + _STOP_TIMEOUT)

    # The calls -----------------------------------------------------------------------------------

    async def put(self, recipient: bytes, envelope: bytes, ttl: float | None = None) -> Stored:
        """Make a blob durable.  `InboxFull`, `StoreFull`, `StoreUnavailable`."""
        checked_key(recipient)
        seconds = self._ttl if ttl is None else min(ttl, self._ttl)
        size = len(envelope) + OVERHEAD
        if self._max_total is not None and self._taken + self._since + size > self._max_total:
            STORE_FULL.inc()
            raise StoreFull("all inboxes together hold all they may")
        self._since += size
        try:
            stored = await self._put(Put(recipient, envelope, seconds))
            if stored is None and self._looks.ready(recipient):
                await self._read(_REAP, (recipient, _EXPIRE))
                stored = await self._put(Put(recipient, envelope, seconds))
        except StoreUnavailable:
            UNAVAILABLE.inc()
            raise
        if stored is None:
            FULL.inc()
            raise InboxFull("the inbox holds all it may")
        return stored

    async def flush(
        self, recipient: bytes, after: int = 0, *, limit: int = 64, max_bytes: int = 2**20
    ) -> list[Blob]:
        """Return a page of what waits with an id above `after`, oldest first."""
        checked_key(recipient)
        rows = await self._read(
            """
            SELECT id, envelope, extract(epoch FROM expires_at)::float8
            FROM (SELECT id, envelope, expires_at,
                         sum(octet_length(envelope)) OVER (ORDER BY id) AS up_to,
                         row_number() OVER (ORDER BY id) AS position
                  FROM (SELECT id, envelope, expires_at
                        FROM relay.device_inbox
                        WHERE recipient = %b  -- the primary key
                          AND id > %b
                          AND expires_at > clock_timestamp()
                        ORDER BY id
                        LIMIT %b) waiting) counted
            WHERE up_to <= %b
               OR position = 1
            ORDER BY id
            """,
            (recipient, after, limit, max_bytes),
        )
        return [Blob(*row) for row in rows]

    async def delete(self, recipient: bytes, ids: Sequence[int]) -> None:
        """Delete blobs of `recipient`; ids that are not there are ignored."""
        checked_key(recipient)
        if ids:
            self._calls.admit()
            delete = Delete(recipient, list(ids))
            self._deletes.add(delete)
            await self._calls.answered(delete)

    async def missed(self, recipient: bytes) -> Missed:
        """Count what expired undelivered."""
        checked_key(recipient)
        while (await self._read(_REAP, (recipient, _EXPIRE)))[0][0]:
            pass
        rows = await self._read(
            "SELECT missed - told, missed FROM relay.device_inboxes WHERE recipient = %b",
            (recipient,),
        )
        return Missed(*rows[0]) if rows else Missed(0, 0)

    async def told(self, recipient: bytes, mark: int) -> None:
        """Forget what `missed` counted when it gave this mark."""
        await self._read("SELECT relay.device_told(%b, %b)", (checked_key(recipient), mark))

    async def reap(self, limit: int = 500) -> int:
        """Delete at most `limit` blobs that have expired; return how many were found."""
        return int((await self._read(_REAP, (None, limit)))[0][0])

    def subscribe(self, recipient: bytes) -> AbstractContextManager[Wakeups]:
        """Hear of new blobs for `recipient`, stored by any node, while in the block."""
        return self._hub.subscribe(DEVICES, checked_key(recipient).hex())

    async def check(self) -> None:
        """Return if the store answers; else `StoreUnavailable`."""
        await self._read(_LOOK)

    def statistics(self) -> StoreStatistics:
        """Return the store's figures, a few seconds old; no I/O."""
        return replace(self._statistics, waiting=len(self._calls))

    async def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement that is not worth gathering."""
        self._calls.admit()
        try:
            async with self._readers:
                return await _again(lambda: self._pool.fetch(sql, values, binary=True))
        except (DatabaseUnavailable, psycopg.Error) as error:
            raise StoreUnavailable(str(error)) from error

    async def _refresh(self) -> None:
        while True:
            began, counted = trio.current_time(), self._since
            with suppress(StoreUnavailable):
                self._statistics = found = await self._add_up()
                self._taken = found.bytes + OVERHEAD * found.blobs
                self._since -= counted
            took = trio.current_time() - began
            await trio.sleep(max(self._statistics_every, 100 * took))

    async def _add_up(self) -> StoreStatistics:
        """A walk over all inboxes."""
        ((inboxes, blobs, size),) = await self._read(
            """
            SELECT count(*) FILTER (WHERE blobs > 0),
                   COALESCE(sum(blobs), 0)::int8, COALESCE(sum(bytes), 0)::int8
            FROM relay.device_inboxes
            """
        )
        ((left,),) = await self._read(
            """
            SELECT extract(epoch FROM min(expires_at) - clock_timestamp())::float8
            FROM relay.device_inbox
            """
        )
        fullest = await self._read(
            """
            SELECT recipient, blobs, bytes
            FROM relay.device_inboxes
            WHERE blobs > 0
            ORDER BY bytes DESC
            LIMIT 5
            """
        )
        return StoreStatistics(
            blobs=blobs,
            bytes=size,
            inboxes=inboxes,
            oldest_age=0.0 if left is None else max(0.0, self._ttl - left),
            fullest=tuple(Fullness(*row) for row in fullest),
        )

    # Transactions that are shared -----------------------------------------------------------------

    async def _put(self, put: Put) -> Stored | None:
        self._calls.admit()
        self._puts.add(put)
        return await self._calls.answered(put)

    async def _commit_groups(
        self, gathered: _Gathered[_C], commit: Callable[[list[_C]], Awaitable[None]]
    ) -> None:
        """Commit what has gathered, group after group.

        A transaction that has begun is not broken off by the end of those who wait for it.
        """
        while True:
            group = await gathered.take()
            deadline = trio.current_time() + self._call_timeout
            with trio.CancelScope(shield=True, deadline=deadline) as shield:
                self._under_way.add(shield)
                try:
                    await self._settle(group, commit)
                finally:
                    self._under_way.discard(shield)
            if shield.cancelled_caught:
                _fail(group, "the database did not answer in time")

    async def _settle(self, group: list[_C], commit: Callable[[list[_C]], Awaitable[None]]) -> None:
        try:
            await _again(lambda: commit(group))
        except (RolledBack, psycopg.Error) as error:
            if len(group) > 1:
                for one in group:
                    await self._settle([one], commit)
                return
            log.exception("devices.call_refused")
            _fail(group, f"the database refused it: {error}")
        except DatabaseUnavailable as error:
            log.warning("devices.store_failed", calls=len(group), reason=str(error))
            _fail(group, str(error))
        else:
            self._calls.alive()

    async def _put_group(self, group: list[Put]) -> None:
        rows = await self._pool.fetch(
            """
            SELECT ordinal, id, extract(epoch FROM expires_at)::float8
            FROM relay.device_put(%b, %b, %b, %b, %b)
            """,
            (
                byteas([put.recipient for put in group]),
                byteas([put.envelope for put in group]),
                doubles([put.ttl for put in group]),
                self._max_blobs,
                self._max_bytes,
            ),
            binary=True,
        )
        stored = {ordinal: Stored(number, expires_at) for ordinal, number, expires_at in rows}
        for ordinal, put in enumerate(group, 1):
            put.settle(stored.get(ordinal))
        COMMITTED.observe(len(group))

    async def _delete_group(self, group: list[Delete]) -> None:
        pairs = [(delete.recipient, number) for delete in group for number in delete.ids]
        # The message in the log: what an earlier call in doubt deleted is gone for good, too.
        await self._pool.execute(
            "SELECT relay.device_delete(%b, %b), pg_logical_emit_message(true, 'relay', '')",
            (byteas([recipient for recipient, _ in pairs]), bigints([id_ for _, id_ in pairs])),
        )
        for delete in group:
            delete.settle(None)


_LOOK = "SELECT FROM relay.device_inboxes LIMIT 1"
_REAP = "SELECT relay.device_reap(%b::bytea, %b)"


class _Gathered(Generic[_C]):
    """Calls of one kind that wait for the next transaction."""

    def __init__(self) -> None:
        self._waiting: deque[_C] = deque()
        self._lot = trio.lowlevel.ParkingLot()

    def add(self, call: _C) -> None:
        """Let the next transaction have it."""
        self._waiting.append(call)
        self._lot.unpark()

    def clear(self) -> None:
        """Forget them all; somebody else answers."""
        self._waiting.clear()

    async def take(self) -> list[_C]:
        """Return what one transaction should have, in order of arrival; wait for the first."""
        while not self._waiting:
            await self._lot.park()
        group: list[_C] = []
        rows = size = 0
        while self._waiting and rows < _MOST_ROWS and size < _MOST_BYTES:
            call = self._waiting.popleft()
            group.append(call)
            if isinstance(call, Put):
                rows += 1
                size += len(call.envelope)
            else:
                rows += len(call.ids)
        return group


async def _again(do: Callable[[], Awaitable[T]]) -> T:
    """Do it; do it again if it was rolled back, a deadlock mostly, which has left no trace."""
    for _ in range(_TRIES - 1):
        with suppress(RolledBack):
            return await do()
    return await do()


def _fail(group: Sequence[Call[Any]], why: str) -> None:
    for call in group:
        call.fail(StoreUnavailable(why))
