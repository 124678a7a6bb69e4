"""Device inboxes in one SQLite file: for one machine, with nothing else installed.

`relay.devices.store` says what is promised, with the table of crash safety; what the file itself
promises is in `relay.devices.sqlite_file`.

How: one thread owns the file and does everything in it, reads too.  What was called while it was
busy it takes all at once: Puts and Deletes share one transaction and one fsync, and one message
back to Trio wakes all who waited for them.  Where a flush is quick it takes half of them, so that
Trio and the disk work side by side.  The WAL is moved into the database after the answers have
gone out, about every 48 MB.

Fails: a commit that fails (EIO) fails every call that shared it; then the file is closed and
opened anew, again and again with a growing pause, and until that has worked every call is
`StoreUnavailable` at once; after `patience` seconds of it (a second or two, at the start) `run`
fails, and supervision goes on from there.  A file that was moved away or replaced is such a
failure: what is put into it would be found by nobody.  A full disk fails the calls and nothing
else: reading goes on.  A disk that hangs has the calls given up after `call_timeout` seconds; the
thread stays where it is, for nothing can take it out of the kernel, and serves again when the disk
does.  Stopping waits
`_STOP_TIMEOUT` seconds for it and then leaves it behind: a transaction cut off leaves no trace.
"""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import trio

from relay import child_environment
from relay.db.listen import Hub
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
from relay.devices.sqlite_file import MOST_ROWS, BlobRow, InboxFile
from relay.devices.sqlite_file import STORE_FULL as NO_ROOM
from relay.devices.store import (
    MAX_BLOBS,
    MAX_BYTES,
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
from relay.log import get_logger
from relay.outage import Outage
from relay.storage import AMPLE, Space
from relay.throttle import Throttle

log = get_logger()

T = TypeVar("T")

_MOST_WAITING = 4096  # calls; a quarter of a gigabyte if all are the largest Puts
_MOST_BYTES = 4 * 2**20  # of envelopes in one transaction, about
_MOST_WORKS = 8  # reads between two commits: a page is a millisecond, and Puts wait
_QUICK_FLUSH = 0.001  # s; what Trio takes for 64 calls
_FEW = 16  # Puts that are never cut in two
_WAL_PAGES = 12_000  # between two checkpoints, about: 48 MB
_EXPIRE = 256  # blobs a transaction
_STOP_TIMEOUT = 5.0  # s
_PATIENCE = 15.0  # s, with a file that served before
_PATIENCE_AT_START = 1.5  # s
_STATISTICS_EVERY = 10.0  # s
_STATISTICS_REST = 0.05  # s, between two parts of some milliseconds
_FULLEST = 5
_CHANNEL = "devices"


@dataclass(frozen=True, slots=True)
class _News:
    """What became of the file: it serves, or it failed for now or for good."""

    trouble: str | None = None
    fatal: Exception | None = None


class _Work(Call[T]):
    """Something else to be done with the file."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[InboxFile], T]) -> None:
        super().__init__()
        self.do = do


class SqliteStore:
    """An `InboxStore` in the file `path`.  May be built before Trio runs; nothing is opened.

    `ttl`, `call_timeout` and `patience` in seconds, `max_total` in bytes of all inboxes together
    (None: any number); while the disk has no `space` the file gives back what it does not use;
    `stop_timeout` seconds are waited at the end for a disk that hangs; a flush below `quick_flush`
    seconds is not worth collecting for; `wal_pages` come between two checkpoints, about; `tallied`
    inboxes are added up at once; `copy` copies a file; `clock` gives Unix seconds.
    """

    name = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        ttl: float,
        max_blobs: int = MAX_BLOBS,
        max_bytes: int = MAX_BYTES,
        max_total: int | None = None,
        call_timeout: float = 10.0,
        patience: float = _PATIENCE,
        space: Space = AMPLE,
        stop_timeout: float = _STOP_TIMEOUT,
        quick_flush: float = _QUICK_FLUSH,
        wal_pages: int = _WAL_PAGES,
        tallied: int | None = None,
        copy: Callable[[Path, Path], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._copying = trio.Lock()
        self._open = partial(
            InboxFile, path, max_blobs=max_blobs, max_bytes=max_bytes, max_total=max_total
        )
        if tallied is not None:
            self._open = partial(self._open, tallied=tallied)
        self._copy = copy or _copy
        self._stop_timeout = stop_timeout
        self.quick_flush, self.wal_pages = quick_flush, wal_pages
        self._ttl = ttl
        self._clock = clock
        self._patience = patience
        self._space = space
        self._calls = Calls(timeout=call_timeout, most=_MOST_WAITING)
        self._queue: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._looks = Throttle(LOOK_AGAIN)
        self._hub = Hub()
        self._disk_full = False
        self._statistics = StoreStatistics()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; see `InboxStore.run`."""
        self._queue = SimpleQueue()
        writer = _Writer(self)
        fatal: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._calls.watch)
            try:
                writer.start()
                fatal = await self._follow(writer, nursery, task_status)
            finally:
                self._calls.refuse("it is stopping")
                self._queue.put(None)
                patience = trio.current_time() + self._stop_timeout
                with trio.CancelScope(shield=True, deadline=patience):
                    await writer.ended.wait()
                writer.left = True
                self._calls.fail_all("the store was stopped")
            nursery.cancel_scope.cancel()
        if fatal is not None:
            raise fatal

    async def _follow(
        self, writer: _Writer, nursery: trio.Nursery, task_status: trio.TaskStatus[None]
    ) -> Exception | None:
        """Say what becomes of the file, until it fails for good."""
        ready = False
        failed_at: float | None = None
        async for news in writer.news:
            now = trio.current_time()
            if news.fatal is not None:
                return news.fatal
            if news.trouble is not None:
                if failed_at is None:
                    log.error("devices.store_failed", reason=news.trouble)
                    failed_at = now
                patience = self._patience if ready else min(self._patience, _PATIENCE_AT_START)
                if now >= failed_at + patience:
                    return StoreUnavailable(news.trouble)
            else:
                if failed_at is not None:
                    log.info("devices.store_recovered")
                failed_at = None
                if not ready:
                    ready = True
                    nursery.start_soon(self._refresh)
                    task_status.started()
        raise AssertionError("the writer's news have no end")

    # The calls -----------------------------------------------------------------------------------

    async def put(self, recipient: bytes, envelope: bytes, ttl: float | None = None) -> Stored:
        """Make a blob durable.  `InboxFull`, `StoreFull`, `StoreUnavailable`."""
        checked_key(recipient)
        seconds = self._ttl if ttl is None else min(ttl, self._ttl)
        try:
            try:
                stored = await self._ask(Put(recipient, envelope, seconds))
            except StoreFull:
                if not self._looks.ready(b""):
                    raise
                await self.work(lambda file: file.reap(self._clock(), _EXPIRE))
                stored = await self._ask(Put(recipient, envelope, seconds))
            if stored is None and self._looks.ready(recipient):
                await self.work(lambda file: file.expire(recipient, self._clock(), _EXPIRE))
                stored = await self._ask(Put(recipient, envelope, seconds))
        except StoreFull:
            STORE_FULL.inc()
            raise
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
        return await self.work(
            lambda file: file.flush(recipient, after, self._clock(), limit, max_bytes)
        )

    async def delete(self, recipient: bytes, ids: Sequence[int]) -> None:
        """Delete blobs of `recipient`; ids that are not there are ignored."""
        checked_key(recipient)
        if ids:
            await self._ask(Delete(recipient, list(ids)))

    async def missed(self, recipient: bytes) -> Missed:
        """Count what expired undelivered."""
        checked_key(recipient)
        while await self.work(lambda file: file.expire(recipient, self._clock(), _EXPIRE)):
            pass
        return await self.work(lambda file: file.missed(recipient))

    async def told(self, recipient: bytes, mark: int) -> None:
        """Forget what `missed` counted when it gave this mark."""
        checked_key(recipient)
        await self.work(lambda file: file.told(recipient, mark))

    async def reap(self, limit: int = 500) -> int:
        """Delete at most `limit` blobs that have expired; return how many."""
        return await self.work(lambda file: file.reap(self._clock(), limit))

    def subscribe(self, recipient: bytes) -> AbstractContextManager[Wakeups]:
        """Hear of new blobs for `recipient` while in the block."""
        return self._hub.subscribe(_CHANNEL, checked_key(recipient).hex())

    async def check(self) -> None:
        """Return if the store answers and can take a Put; else `StoreUnavailable`."""
        if self._disk_full:
            await self.work(InboxFile.probe)
            self._disk_full = False
        else:
            await self.work(InboxFile.look)

    async def snapshot(self) -> Path:
        """Copy the file, as it is now, beside it, and return where; the store goes on serving.

        While it is copied nothing is written but the WAL, which grows by what comes.
        """
        target = self._path.with_suffix(".snapshot")
        async with self._copying:
            try:
                held = await self.work(InboxFile.hold)
                await self._copy(self._path, target)
                same = await self.work(lambda file: file is held)
            finally:
                # The thread may hold although we were cancelled or given up: this comes after it.
                self._tell(InboxFile.let_go)
        if not same:
            raise StoreUnavailable("the file was opened anew while it was copied")
        return target

    def statistics(self) -> StoreStatistics:
        """Return the store's figures, some seconds old; no I/O."""
        return replace(self._statistics, waiting=len(self._calls))

    def _tell(self, do: Callable[[InboxFile], None]) -> None:
        """Have it done after all that is queued, even while no calls are taken; nobody waits."""
        self._queue.put(_Work(do))

    async def work(self, do: Callable[[InboxFile], T]) -> T:
        """Have something done with the file, by the thread that owns it."""
        return await self._ask(_Work(do))

    async def _ask(self, call: Call[T]) -> T:
        self._calls.admit()
        self._queue.put(call)
        return await self._calls.answered(call)

    async def _refresh(self) -> None:
        """Keep the figures: a walk over all inboxes, few at a time, with rests for the Puts."""
        rest = 0.0  # the first figures are wanted soon
        while True:
            self._statistics = await self._add_up(rest)
            rest = _STATISTICS_REST
            if self._space.short():
                await self._shrink()
            await trio.sleep(_STATISTICS_EVERY)

    async def _shrink(self) -> None:
        """Deleting makes room in the file, which the disk does not see without this."""
        spare = self._space.free
        with suppress(StoreUnavailable):
            given = await self.work(lambda file: file.shrink(spare))
            if given:
                log.info("devices.shrunk", bytes=given)

    async def _add_up(self, rest: float) -> StoreStatistics:
        inboxes = blobs = size = 0
        fullest: list[Fullness] = []
        after = b""
        while part := await self._patiently(partial(InboxFile.tally, after=after)):
            after = part[-1].recipient
            inboxes += len(part)
            blobs += sum([one.blobs for one in part])
            size += sum([one.bytes for one in part])
            fullest = nlargest(_FULLEST, fullest + part, key=lambda one: one.bytes)
            await trio.sleep(rest)
        first = await self._patiently(InboxFile.expires_first)
        return StoreStatistics(
            blobs=blobs,
            bytes=size,
            inboxes=inboxes,
            oldest_age=0.0 if first is None else max(0.0, self._ttl - (first - self._clock())),
            fullest=tuple(fullest),
        )

    async def _patiently(self, do: Callable[[InboxFile], T]) -> T:
        """Have it done when the store can: a walk goes on where an outage stopped it."""
        while True:
            with suppress(StoreUnavailable):
                return await self.work(do)
            await trio.sleep(_STATISTICS_EVERY)

    # Answers: called by the writer, run by Trio ---------------------------------------------------

    def _committed(
        self,
        puts: Sequence[Put],
        ids: Sequence[int | None],
        rows: Sequence[BlobRow],
        deletes: Sequence[Delete],
    ) -> None:
        self._calls.alive()
        self._disk_full = False
        stored = set()
        for put, number, row in zip(puts, ids, rows, strict=True):
            if number is None:
                put.settle(None)
            elif number == NO_ROOM:
                put.fail(StoreFull("all inboxes together hold all they may"))
            else:
                put.settle(Stored(number, row.expires_at))
                stored.add(put.recipient.hex())
        for delete in deletes:
            delete.settle(None)
        if stored:
            COMMITTED.observe(len(puts))
            self._hub.publish(_CHANNEL, stored)

    def _done(self, work: _Work[T], result: T) -> None:
        self._calls.alive()
        work.settle(result)

    def _failed(self, calls: Sequence[Call[Any]], why: str, disk_full: bool) -> None:
        self._disk_full = disk_full
        for call in calls:
            call.fail(StoreUnavailable(why))

    def _opened(self) -> None:
        self._calls.accept()

    def _broken(self, why: str) -> None:
        self._calls.refuse(why)
        self._calls.fail_all(why)


class _Writer(threading.Thread):
    """The thread that owns the file: what it posts, Trio runs in that order."""

    def __init__(self, store: SqliteStore) -> None:
        # A daemon: one that hangs in the kernel must not keep the process from ending.
        super().__init__(name="relay-devices", daemon=True)
        self.ended = trio.Event()
        self._tell, self.news = trio.open_memory_channel[_News](math.inf)
        self._store = store
        self._token = trio.lowlevel.current_trio_token()
        self._queue = store._queue
        self._works: deque[_Work[Any]] = deque()
        self._stopping = False
        self._flush = 0.0  # s, that the last small commit took
        self.left = False  # nobody listens any more; what a later run does is not its business

    def run(self) -> None:
        """Open and serve until stopped; open again after a failure."""
        try:
            self._run()
        except Exception as error:
            self._post(self._tell.send_nowait, _News(fatal=error))
        finally:
            self._post(self.ended.set)

    def _run(self) -> None:
        outage = Outage()
        while not self._stopping:
            try:
                file = self._store._open()
            except (sqlite3.Error, OSError, StoreUnavailable) as error:
                self._fail(error)
                self._drop_for(outage.lost())
                continue
            outage.over()  # opening has made a commit, so the disk is well
            self._post(self._store._opened)
            self._post(self._tell.send_nowait, _News())
            try:
                self._serve(file)
            except sqlite3.Error as error:
                self._fail(error)
            finally:
                with suppress(sqlite3.Error):
                    file.close()
            if not self._stopping:
                self._drop_for(outage.lost())

    def _serve(self, file: InboxFile) -> None:
        """Do what is asked, until stopped.  `sqlite3.Error`: the file cannot be trusted."""
        written = 0
        self._time_a_flush(file)
        while True:
            puts, deletes = self._take()
            if puts or deletes:
                self._commit(file, puts, deletes)
                written += _pages(puts, deletes)
            for _ in range(min(_MOST_WORKS, len(self._works))):
                self._do(file, self._works.popleft())
            if written > self._store.wal_pages:
                self._guarded(file.checkpoint, ())
                self._time_a_flush(file)
                written = 0
            if self._stopping and not self._works:
                return

    def _time_a_flush(self, file: InboxFile) -> None:
        began = time.perf_counter()
        self._guarded(file.probe, ())
        self._flush = time.perf_counter() - began

    def _take(self) -> tuple[list[Put], list[Delete]]:
        """Take what was asked; wait for the first if there is nothing else to do.

        Where a flush is quick, half of what is open will do: while that is written, Trio answers
        the other half and takes its next calls (measured: a fifth more of them).  Where it is
        slow, every call that shares it counts.  `tests/devices/test_sqlite.py` holds it to that;
        `python -m tests.bench devices` is where it pays.
        """
        most = MOST_ROWS
        if self._flush < self._store.quick_flush:
            most = min(most, max(_FEW, len(self._store._calls) // 2))
        puts: list[Put] = []
        deletes: list[Delete] = []
        size = 0
        wait = not (self._works or self._stopping)
        while len(puts) < most and len(deletes) < MOST_ROWS and size < _MOST_BYTES:
            try:
                call = self._queue.get(wait)
            except Empty:
                break
            wait = False
            if call is None:
                self._stopping = True
            elif isinstance(call, Put):
                puts.append(call)
                size += len(call.envelope)
            elif isinstance(call, Delete):
                deletes.append(call)
            else:
                assert isinstance(call, _Work)
                self._works.append(call)
        return puts, deletes

    def _commit(self, file: InboxFile, puts: list[Put], deletes: list[Delete]) -> None:
        now = self._store._clock()
        rows = [BlobRow(put.recipient, put.envelope, round(now + put.ttl, 3)) for put in puts]
        pairs = [(delete.recipient, number) for delete in deletes for number in delete.ids]
        ids = self._guarded(partial(file.write, rows, pairs), [*puts, *deletes])
        if ids is not None:
            self._post(self._store._committed, puts, ids, rows, deletes)

    def _do(self, file: InboxFile, work: _Work[Any]) -> None:
        self._guarded(lambda: self._post(self._store._done, work, work.do(file)), [work])

    def _guarded(self, do: Callable[[], T], calls: Sequence[Call[Any]]) -> T | None:
        """Do it; if that fails, fail the calls.  Only a full disk leaves the file as good as new.

        SQLite takes back what did not fit, so what is there already can still be read.
        """
        try:
            return do()
        except sqlite3.Error as error:
            # Errors that are not SQLite's own, as of `hold`, have no code.
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            self._post(self._store._failed, calls, f"the store failed: {error}", full)
            if not full:
                raise
            return None

    def _drop_for(self, seconds: float) -> None:
        """Wait, and drop what was asked before the failure was known: it has been answered."""
        self._works.clear()
        until = time.monotonic() + seconds
        while not self._stopping:
            try:
                call = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return
            self._stopping = call is None

    def _fail(self, error: Exception) -> None:
        self._post(self._store._broken, f"its file cannot be used: {error}")
        self._post(self._tell.send_nowait, _News(trouble=str(error)))

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        if not self.left:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, *arguments)


def _made(path: Path) -> int:
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


async def _copy(source: Path, target: Path) -> None:
    """Copy a file that SQLite holds here.  Another process does it, and must.

    Closing a file takes away every lock that the process has on it (POSIX), SQLite's too.
    """
    private = _made(target)
    try:
        await trio.run_process(
            ["cp", "--", str(source), str(target)],
            capture_stderr=True,
            env=child_environment.environment(),
        )
        await trio.to_thread.run_sync(os.fsync, private)
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip()
        raise StoreUnavailable(f"the file could not be copied: {why}") from error
    finally:
        os.close(private)


def _pages(puts: Sequence[Put], deletes: Sequence[Delete]) -> int:
    """Reckon how many pages a commit has written (within a fifth, as the WAL's length showed).

    A recipient has a page in the index, however many its blobs; blobs lie one behind the other.
    What is deleted lies anywhere.
    """
    recipients = len({put.recipient for put in puts})
    blobs = sum([len(put.envelope) for put in puts])
    gone = sum([len(delete.ids) for delete in deletes])
    return 4 + recipients + blobs // 2500 + 3 * gone
