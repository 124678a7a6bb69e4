"""A copy of the SQLite store while it serves."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from relay.devices.sqlite import SqliteStore
from relay.devices.sqlite_file import InboxFile
from relay.devices.store import StoreUnavailable
from tests.devices.stores import running
from tests.eventually import eventually

KEY = bytes(range(32))


def count(path: Path) -> int:
    """Return the blobs in a copy, after a look at its integrity."""
    with closing(sqlite3.connect(path)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (found,) = copy.execute("SELECT count(*) FROM inbox").fetchone()
        return int(found)


async def test_a_snapshot_holds_what_was_stored_before_it(tmp_path: Path) -> None:
    """Blobs come on while the file is copied; the copy has all that were durable before."""
    store = SqliteStore(tmp_path / "devices.db", ttl=1000.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        stored = 0

        async def put() -> None:
            nonlocal stored
            while True:
                await store.put(KEY, os.urandom(500))
                stored += 1

        nursery.start_soon(put)
        for _ in range(3):
            await eventually(lambda: stored % 50, "blobs come on")
            before = stored
            path = await store.snapshot()
            assert path.stat().st_mode & 0o777 == 0o600
            assert before <= await trio.to_thread.run_sync(count, path) <= stored
        nursery.cancel_scope.cancel()
    assert count(tmp_path / "devices.db") >= stored


async def test_the_file_stays_locked_through_a_snapshot(tmp_path: Path) -> None:
    """No other process can open the store after it was copied: the copying lost no lock."""
    store = SqliteStore(tmp_path / "devices.db", ttl=1000.0)
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0.05);"
        "print(c.execute('SELECT count(*) FROM inbox').fetchone())"
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.snapshot()
        done = await trio.run_process(
            [sys.executable, "-c", program, str(tmp_path / "devices.db")],
            check=False, capture_stdout=True, capture_stderr=True,
        )  # fmt: skip
        nursery.cancel_scope.cancel()
    assert isinstance(done, subprocess.CompletedProcess)
    assert done.returncode == 1
    assert b"locked" in done.stderr


async def works(store: SqliteStore) -> bool:
    """Whether the store answers."""
    with suppress(StoreUnavailable):
        await store.check()
        return True
    return False


async def let_go(store: SqliteStore) -> bool:
    """Whether the WAL is moved into the database again, after all that was queued."""

    def look(file: InboxFile) -> bool:
        return not file.held and file.row("PRAGMA wal_autocheckpoint")[0] > 0

    return await store.work(look)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until this is set the disk hangs, and with it whoever begins to hold."""
    event, hold = threading.Event(), InboxFile.hold

    def slow(file: InboxFile) -> InboxFile:
        event.wait(10)
        return hold(file)

    monkeypatch.setattr(InboxFile, "hold", slow)
    return event


async def test_a_snapshot_that_is_cancelled_at_once_holds_nothing(
    tmp_path: Path, disk: threading.Event
) -> None:
    """The client hangs up while the thread begins to hold: it lets go after that."""
    store = SqliteStore(tmp_path / "devices.db", ttl=1000.0)
    async with running(store):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.snapshot)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        disk.set()
        assert await let_go(store)
        await store.snapshot()
        assert await let_go(store)


async def test_a_snapshot_that_is_given_up_holds_nothing(
    tmp_path: Path, disk: threading.Event
) -> None:
    """The disk takes longer than `call_timeout`: when it answers, the hold ends too."""
    store = SqliteStore(tmp_path / "devices.db", ttl=1000.0, call_timeout=0.2)
    async with running(store):
        with pytest.raises(StoreUnavailable, match="given up"):
            await store.snapshot()
        disk.set()
        await eventually(lambda: works(store), "the disk answers again")
        assert await let_go(store)


async def test_a_snapshot_lets_go_though_no_calls_are_taken(tmp_path: Path) -> None:
    """The store is given up when the copy is made; when the disk answers, the hold ends."""
    disk = threading.Event()

    async def hang(_: Path, __: Path) -> None:
        with pytest.raises(StoreUnavailable, match="given up"):
            await store.work(lambda _: disk.wait(10))

    store = SqliteStore(tmp_path / "devices.db", ttl=1000.0, call_timeout=0.2, copy=hang)
    async with running(store):
        with pytest.raises(StoreUnavailable, match="takes nothing"):
            await store.snapshot()
        disk.set()
        await eventually(lambda: works(store), "the disk answers again")
        assert await let_go(store)
