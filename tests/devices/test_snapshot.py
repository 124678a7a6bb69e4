"""A copy of the SQLite store while it serves."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import trio
import trio.lowlevel

from relay.devices.sqlite import SqliteStore

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
            while stored % 50 == 0:
                await trio.lowlevel.checkpoint()
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
