"""Durable Puts of 1 kB into the device stores, against one INSERT a transaction.

The peer is plain SQLite: the same schema, the same pragmas, the same keys
in the same order, one INSERT a transaction in a loop that does nothing else.  Each variant runs in
a process and on a file of its own, warmed up so that the WAL has its size; rounds are interleaved.
"thread 1" shows what of the loss with one Put at a time is the hand-over to any thread.

"+5 ms" has strace add five milliseconds to each fsync and fdatasync, for both alike: an ordinary
disk.  PostgreSQL's figures, with fsync on, are shown and promise nothing.

CPU is of the process that puts; for PostgreSQL the server's comes on top.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psycopg
import trio

from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.postgres import PostgresStore
from relay.devices.sqlite import SqliteStore
from relay.devices.sqlite_file import InboxFile
from relay.devices.store import InboxStore

WARM_UP = 1.0
SECONDS = 2.5
TASKS = 64
BLOB = bytes(range(256)) * 4
TTL = 30 * 86400.0
LIMITS: dict[str, Any] = {
    "max_blobs": 10**9,
    "max_bytes": 10**15,
}  # of the file, whichever key comes up
PRAGMAS = ("locking_mode", "journal_mode", "synchronous", "wal_autocheckpoint", "cache_size")

_rng = random.Random(5)
KEYS = [_rng.randbytes(32) for _ in range(20_000)]


def figures(done: int, began: float, cpu: float, latencies: list[float]) -> dict[str, float]:
    """What a variant reports."""
    latencies.sort()
    return {
        "blobs/s": done / (time.perf_counter() - began),
        "CPU µs": (time.process_time() - cpu) / done * 1e6,
        "p99 ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


def opened(path: Path) -> sqlite3.Connection:
    """Open a file of the store's schema and pragmas with nothing of the store around it."""
    with closing(InboxFile(path, **LIMITS)) as file:  # makes the schema, and names the pragmas
        values = {name: file.row(f"PRAGMA {name}")[0] for name in PRAGMAS}
    # The relay makes its checkpoints itself, as often as this.
    values["wal_autocheckpoint"] = 12_000
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for name, value in values.items():
        database.execute(f"PRAGMA {name} = {value}").fetchall()
    return database


def insert(database: sqlite3.Connection, number: int) -> None:
    """Put one blob, in a transaction of its own."""
    database.execute(
        "INSERT INTO inbox (recipient, expires_at, bytes, envelope) VALUES (?, ?, ?, ?)",
        (KEYS[number % len(KEYS)], 2_000_000_000, len(BLOB), BLOB),
    )


def plain(directory: Path, seconds: float) -> dict[str, float]:
    """One INSERT a transaction, in autocommit."""
    with closing(opened(directory / "plain.db")) as database:
        latencies: list[float] = []
        done = 0
        began = now = time.perf_counter()
        warm_until, ends = began + WARM_UP, began + WARM_UP + seconds
        cpu = time.process_time()
        for number in count():
            insert(database, number)
            before, now = now, time.perf_counter()
            done += 1
            latencies.append(now - before)
            if now > warm_until:
                warm_until, done, latencies = float("inf"), 0, []
                began, cpu = time.perf_counter(), time.process_time()
            if now > ends:
                break
        return figures(done, began, cpu, latencies)


class Thread:
    """The same INSERTs, each handed to a thread by a task that waits for it, and nothing else.

    What is lost to `plain` is the price of two threads that wake each other; no store that has its
    writer in a thread is faster with one Put at a time.
    """

    def __init__(self, path: Path) -> None:
        self._database = opened(path)
        self._queue: SimpleQueue[tuple[trio.lowlevel.Task, int] | None] = SimpleQueue()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        thread = threading.Thread(target=self._serve, args=(trio.lowlevel.current_trio_token(),))
        thread.start()
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self._queue.put(None)
            thread.join()
            self._database.close()

    async def put(self, number: int) -> None:
        """Hand one over, and wait."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._queue.put((trio.lowlevel.current_task(), number))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        while (job := self._queue.get()) is not None:
            task, number = job
            insert(self._database, number)
            token.run_sync_soon(trio.lowlevel.reschedule, task)


async def through(
    run: Callable[..., Awaitable[None]],
    put: Callable[[int], Awaitable[object]],
    tasks: int,
    seconds: float,
) -> dict[str, float]:
    """So many tasks that put, one blob at a time each, while `run` serves them."""
    numbers = count()
    latencies: list[float] = []

    async def keep_putting() -> None:
        nonlocal latencies
        while True:
            before = time.perf_counter()
            await put(next(numbers))
            latencies.append(time.perf_counter() - before)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        async with trio.open_nursery() as puts:
            for _ in range(tasks):
                puts.start_soon(keep_putting)
            await trio.sleep(WARM_UP)
            latencies = []
            began, cpu = time.perf_counter(), time.process_time()
            await trio.sleep(seconds)
            found = figures(len(latencies), began, cpu, latencies)
            puts.cancel_scope.cancel()  # first: the store fails what is under way when it stops
        nursery.cancel_scope.cancel()
    return found


async def through_store(store: InboxStore, tasks: int, seconds: float) -> dict[str, float]:
    """The same of a store."""
    return await through(
        store.run, lambda number: store.put(KEYS[number % len(KEYS)], BLOB), tasks, seconds
    )


async def thread(directory: Path, tasks: int, seconds: float) -> dict[str, float]:
    """A thread and nothing else."""
    bare = Thread(directory / "thread.db")
    return await through(bare.run, bare.put, tasks, seconds)


async def sqlite_store(directory: Path, tasks: int, seconds: float) -> dict[str, float]:
    """The SQLite store."""
    store = SqliteStore(directory / "store.db", ttl=TTL, **LIMITS)
    return await through_store(store, tasks, seconds)


async def postgres_store(dsn: str, tasks: int, seconds: float) -> dict[str, float]:
    """The PostgreSQL store."""
    pool = Pool(dsn)
    try:
        return await through_store(PostgresStore(pool, Hub(), ttl=TTL, **LIMITS), tasks, seconds)
    finally:
        await pool.close()


def postgres_plain(dsn: str, seconds: float) -> dict[str, float]:
    """One INSERT a transaction, psycopg's own connection, prepared."""
    latencies: list[float] = []
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as conn:
        began, cpu = time.perf_counter(), time.process_time()
        for number in count():
            before = time.perf_counter()
            if before > began + seconds:
                break
            conn.execute(
                "INSERT INTO relay.device_inbox (recipient, envelope, expires_at)"
                " VALUES (%s, %s, now() + interval '30 days')",
                (KEYS[number % len(KEYS)], BLOB),
            )
            latencies.append(time.perf_counter() - before)
    return figures(len(latencies), began, cpu, latencies)


def variant(name: str, where: str, seconds: float) -> dict[str, float]:
    """Run one variant in this process."""
    kind, _, tasks = name.partition(" ")
    if kind == "plain":
        return plain(Path(where), seconds)
    if kind == "postgres-plain":
        return postgres_plain(where, seconds)
    if kind == "postgres":
        return trio.run(postgres_store, where, int(tasks), seconds)
    if kind == "thread":
        return trio.run(thread, Path(where), int(tasks), seconds)
    return trio.run(sqlite_store, Path(where), int(tasks), seconds)


def measured(name: str, where: str, *prefix: str) -> dict[str, float]:
    """Run one variant in a process of its own."""
    out = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.bench.devices", name, where, str(SECONDS)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=120,
    ).stdout
    found: dict[str, float] = json.loads(out)
    return found


SLOW = (
    *("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"),
    *("-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_exit=5000"),
)


def run(rounds: int) -> list[dict[str, Any]]:
    """Interleave everything; medians."""
    from tests.db.cluster import Cluster, binaries

    names = ["plain", "thread 1", "sqlite 1", f"sqlite {TASKS}"]
    prefixes: dict[str, tuple[str, ...]] = {"": ()}
    if shutil.which("strace"):
        prefixes[" +5 ms"] = SLOW
    seen: dict[str, list[dict[str, float]]] = {}
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True)
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as scratch:
        try:
            cluster.start()
            for _ in range(rounds):
                for suffix, prefix in prefixes.items():
                    for name in names:
                        with tempfile.TemporaryDirectory(dir=scratch) as directory:
                            found = measured(name, directory, *prefix)
                        seen.setdefault(name + suffix, []).append(found)
                for name in ("postgres-plain", "postgres 1", f"postgres {TASKS}"):
                    database = cluster.new_database()
                    _migrate(cluster.dsn(database))
                    seen.setdefault(name, []).append(measured(name, cluster.dsn(database)))
                    cluster.drop_database(database)
        finally:
            cluster.remove()
    results = {
        name: {column: statistics.median(each[column] for each in found) for column in found[0]}
        for name, found in seen.items()
    }
    ratios = {
        f"{TASKS} Puts at once to one INSERT a transaction": _ratio(
            seen, f"sqlite {TASKS}", "", 5.0
        ),
        "one Put alone to one INSERT a transaction": _ratio(seen, "sqlite 1", "", 0.7),
    }
    if " +5 ms" in prefixes:
        ratios[f"{TASKS} at once, 5 ms added to each flush"] = _ratio(
            seen, f"sqlite {TASKS}", " +5 ms", 20.0
        )
    return [{"name": "device store", "unit": "blobs/s", "results": results, "ratios": ratios}]


def _ratio(
    seen: dict[str, list[dict[str, float]]], name: str, suffix: str, required: float
) -> dict[str, float]:
    """The median of the rounds' own ratios: what disturbs a round disturbs both sides of it."""
    pairs = zip(seen[name + suffix], seen["plain" + suffix], strict=True)
    value = statistics.median(ours["blobs/s"] / theirs["blobs/s"] for ours, theirs in pairs)
    return {"value": value, "required": required}


def _migrate(dsn: str) -> None:
    from relay import log
    from relay.db.migrate import migrate

    log.configure("warning")
    trio.run(migrate, dsn)


if __name__ == "__main__":
    print(json.dumps(variant(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
