"""The SQLite store beyond the contract: its file, its pragmas, its one writer, its bad days."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.devices.calls import Call, Calls
from relay.devices.sqlite import SqliteStore
from relay.devices.sqlite_file import (
    APPLICATION_ID,
    COUNT,
    TALLY,
    VERSION,
    BlobRow,
    InboxFile,
)
from relay.devices.store import MAX_BLOBS, MAX_BYTES, InboxStore, Missed, StoreUnavailable
from relay.errors import ConfigError
from relay.metrics import registry
from relay.storage import Disk, Space
from tests.devices.stores import running
from tests.eventually import eventually

A = bytes(range(32))
B = bytes([1]) * 32


def opened(path: Path) -> InboxFile:
    """The file, with the ordinary limits."""
    return InboxFile(path, max_blobs=MAX_BLOBS, max_bytes=MAX_BYTES)


def commits() -> float:
    """Commits with Puts in them, of this process so far."""
    return registry.get_sample_value("relay_devices_commit_blobs_count") or 0.0


class TestFile:
    def test_it_is_private_and_durable(self, tmp_path):
        """Mode 0600, the WAL too; WAL, synchronous FULL, exclusive; our mark and version."""
        path = tmp_path / "devices.db"
        with closing(opened(path)) as file:
            file.write([BlobRow(A, b"x", 2e9)])
            for each in tmp_path.iterdir():
                assert each.stat().st_mode & 0o777 == 0o600
            found = {
                name: file.row(f"PRAGMA {name}")[0]
                for name in (
                    "journal_mode",
                    "synchronous",
                    "locking_mode",
                    "application_id",
                    "user_version",
                )
            }
            assert found == {
                "journal_mode": "wal",
                "synchronous": 2,
                "locking_mode": "exclusive",
                "application_id": APPLICATION_ID,
                "user_version": VERSION,
            }
        with closing(sqlite3.connect(path)) as plain:
            columns = [row[1] for row in plain.execute("PRAGMA table_info (inbox)")]
            assert columns == ["id", "recipient", "expires_at", "bytes", "envelope"]

    def test_nobody_else_gets_in(self, tmp_path):
        """While it is open another connection can neither read nor write."""
        path = tmp_path / "devices.db"
        with closing(opened(path)):
            with (
                closing(sqlite3.connect(path, timeout=0.01)) as other,
                pytest.raises(sqlite3.OperationalError, match="locked"),
            ):
                other.execute("SELECT * FROM inbox")
            with pytest.raises(StoreUnavailable):
                opened(path)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (f"PRAGMA user_version = {VERSION + 1}", "run the newer relay"),
            ("PRAGMA application_id = 7", "is not a device store"),
        ],
    )
    def test_another_file_is_refused_and_left_alone(self, tmp_path, change, sentence):
        """A newer version, somebody else's database: one sentence, not a byte changed."""
        path = tmp_path / "devices.db"
        opened(path).close()
        with closing(sqlite3.connect(path)) as other:
            other.execute(change)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=sentence):
            opened(path)
        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["devices.db"]

    def test_what_is_no_database_is_refused(self, tmp_path):
        """Text where the file should be is nobody's to overwrite."""
        path = tmp_path / "devices.db"
        path.write_text("not a database, but somebody's notes, which are dear to them\n" * 100)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="not a database"):
            opened(path)
        assert path.read_bytes() == before

    async def test_a_file_that_is_refused_ends_the_store(self, tmp_path):
        """`run` raises the ConfigError as it is, for the process to end with 78."""
        path = tmp_path / "devices.db"
        path.write_text("not a database" * 100)
        with pytest.raises(ConfigError, match="not a database"):
            await SqliteStore(path, ttl=10.0).run()

    def test_counts_are_true_whoever_changed_the_rows(self, tmp_path):
        """What an operator's own SQL took out makes room."""
        path = tmp_path / "devices.db"
        two = [BlobRow(A, b"xyz", 2e9), BlobRow(A, b"", 2e9)]
        with closing(InboxFile(path, max_blobs=2, max_bytes=100)) as file:
            assert file.write(two) == [1, 2]
            assert file.write(two) == [None, None]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DELETE FROM inbox WHERE envelope = x''")
        with closing(InboxFile(path, max_blobs=2, max_bytes=100)) as file:
            assert file.write(two) == [3, None]

    def test_counts_are_true_after_what_failed(self, tmp_path):
        """What a full disk undid is not counted; what was deleted no longer is."""
        with closing(InboxFile(tmp_path / "devices.db", max_blobs=2, max_bytes=10**6)) as file:
            limit(file, 20)
            for _ in range(5):
                for deletes in ([(A, 1)], []):
                    with pytest.raises(sqlite3.OperationalError, match="full"):
                        file.write([BlobRow(A, bytes(100_000), 2e9)], deletes)
            for _ in range(3):
                first, second, none = file.write([BlobRow(A, b"", 2e9)] * 3)
                assert first
                assert second
                assert none is None
                assert file.write([BlobRow(A, b"", 2e9)]) == [None]
                file.write([], [(A, first), (A, second), (B, first)])

    def test_counts_are_true_for_more_inboxes_than_are_remembered(self, tmp_path):
        """Those that were forgotten are counted again, but never while they are being stored."""
        keys = [bytes([number]) * 32 for number in range(25)]
        path = tmp_path / "devices.db"
        with closing(InboxFile(path, max_blobs=3, max_bytes=100, counted=10)) as file:
            for expected in (50, 25, 0):
                ids = file.write([BlobRow(key, b"x", 2e9) for key in keys * 2])
                assert len(ids) - ids.count(None) == expected

    def test_counts_are_true_after_a_reap_that_failed(self, tmp_path):
        """What it had deleted is there again, and counts."""
        two = [BlobRow(A, b"x", 1.0)] * 2
        with closing(InboxFile(tmp_path / "devices.db", max_blobs=2, max_bytes=100)) as file:
            file.write(two)
            file.connection.execute("ALTER TABLE missed RENAME TO elsewhere")
            with pytest.raises(sqlite3.OperationalError, match="missed"):
                file.reap(2.0, 10)
            assert file.write(two) == [None, None]

    def test_any_number_of_deletes_is_one_transaction(self, tmp_path):
        """However many statements it takes."""
        with closing(opened(tmp_path / "devices.db")) as file:
            ids = [number for _ in range(3) for number in file.write([BlobRow(A, b"x", 2e9)] * 200)]
            said: list[str] = []
            file.connection.set_trace_callback(said.append)
            file.write([], [(A, number or 0) for number in ids])
            assert [one.split()[0] for one in said] == ["BEGIN", *["DELETE"] * 3, "COMMIT"]
            assert file.flush(A, 0, 1.0, 9, 9) == []

    def test_counting_reads_the_index_alone(self, tmp_path):
        """A full inbox of large blobs costs as little to count as one of small ones."""
        with closing(opened(tmp_path / "devices.db")) as file:
            for sql, values in (
                (COUNT, (A,)),
                (TALLY, (A,)),
            ):
                plan = file.connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
                steps = [step[3] for step in plan if "inbox" in step[3]]
                assert len(steps) == 1
                assert "USING COVERING INDEX inbox_recipient" in steps[0]

    def test_a_file_of_version_1_becomes_one_of_this(self, tmp_path):
        """Blobs, ids, order, limits and what a device must hear of are as they were."""
        path = tmp_path / "devices.db"
        with closing(sqlite3.connect(path)) as old:
            old.executescript((Path(__file__).parent / "sqlite_v1.sql").read_text())
        with closing(InboxFile(path, max_blobs=3, max_bytes=100)) as file:
            assert [blob[:2] for blob in file.flush(A, 0, 1.0, 9, 99)] == [(4, b"four"), (5, b"")]
            assert file.missed(A) == Missed(2, 3)
            assert file.missed(B) == Missed(0, 0)
            assert file.write([BlobRow(A, b"x", 9.0), BlobRow(A, b"y", 9.0)]) == [6, None]
            assert file.reap(10.0, 99) == 1
            assert file.missed(A) == Missed(3, 4)
        opened(tmp_path / "fresh.db").close()
        with (
            closing(sqlite3.connect(path)) as upgraded,
            closing(sqlite3.connect(tmp_path / "fresh.db")) as fresh,
        ):
            assert described(upgraded) == described(fresh)
            assert upgraded.execute("PRAGMA integrity_check").fetchone() == ("ok",)


class TestWriter:
    async def test_puts_at_once_share_commits(self, tmp_path):
        """64 tasks with 20 Puts each make far fewer than 1,280 commits."""
        async with running(SqliteStore(tmp_path / "devices.db", ttl=10.0)) as store:
            before = commits()

            async def put() -> None:
                for _ in range(20):
                    await store.put(A, b"x")

            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(put)
        assert commits() - before < 320

    async def test_half_will_do_where_a_flush_is_quick(self, tmp_path):
        """The other half comes meanwhile; where it is slow, all share it."""
        made = {}
        for quick in (0.0, 60.0):
            path = tmp_path / f"{quick}.db"
            async with running(SqliteStore(path, ttl=10.0, quick_flush=quick)) as store:
                before = commits()

                async def put(store: InboxStore) -> None:
                    for _ in range(20):
                        await store.put(A, b"x")

                async with trio.open_nursery() as nursery:
                    for _ in range(64):
                        nursery.start_soon(put, store)
            made[quick] = commits() - before
        assert made[0.0] * 1.3 < made[60.0] < 160

    async def test_the_wal_begins_anew_in_time(self, tmp_path):
        """It is moved into the database about as often as it should be, whatever is written."""
        path = tmp_path / "devices.db"
        async with running(SqliteStore(path, ttl=10.0, wal_pages=500)) as store:

            async def put(key: bytes) -> None:
                for size in range(0, 3000, 30):
                    await store.put(key, bytes(size))

            async with trio.open_nursery() as nursery:
                for number in range(32):
                    nursery.start_soon(put, bytes([number]) * 32)
            pages = path.with_name("devices.db-wal").stat().st_size // 4096
        assert 250 < pages < 1000

    async def test_a_disk_that_hangs_is_given_up_and_taken_back(self, tmp_path):
        """Calls end after the time-out, later ones at once; when it answers, all is well again."""
        store = SqliteStore(tmp_path / "devices.db", ttl=10.0, call_timeout=0.5)
        hangs, disk = threading.Event(), threading.Event()

        def write(_: InboxFile) -> None:
            hangs.set()
            disk.wait(10)

        async with running(store), trio.open_nursery() as nursery:
            await store.check()  # behind the figures that it begins with

            async def hang() -> None:
                with pytest.raises(StoreUnavailable):
                    await store.work(write)

            nursery.start_soon(hang)
            await wait_all_tasks_blocked()
            assert await trio.to_thread.run_sync(hangs.wait, 5)  # the Put must come behind it
            with pytest.raises(StoreUnavailable, match="given up"):
                await store.put(A, b"outcome unknown")
            for call in (store.put(A, b"y"), store.flush(A), store.check()):
                with pytest.raises(StoreUnavailable, match="takes nothing"):
                    await call
            disk.set()
            await eventually(lambda: works(store), "the disk answers again")
            envelopes = [blob.envelope for blob in await store.flush(A)]
            assert envelopes == [b"outcome unknown", b"z"]

    async def test_stopping_does_not_wait_for_a_disk_that_hangs(self, tmp_path):
        """The thread is left behind after some seconds; nothing it had begun was acknowledged."""
        disk = threading.Event()
        store = SqliteStore(tmp_path / "devices.db", ttl=10.0, stop_timeout=0.1)
        with trio.fail_after(20):
            async with trio.open_nursery() as callers, running(store):

                async def hang() -> None:
                    with pytest.raises(StoreUnavailable, match="stopped"):
                        await store.work(lambda _: disk.wait(10))

                callers.start_soon(hang)
                await wait_all_tasks_blocked()
        disk.set()

    async def test_a_full_disk_fails_puts_and_nothing_else(self, tmp_path):
        """Reading goes on, `check` says so, and with room again Puts go on."""
        async with running(SqliteStore(tmp_path / "devices.db", ttl=10.0)) as store:
            assert isinstance(store, SqliteStore)
            kept = await store.put(A, b"kept")
            await store.work(lambda file: limit(file, 30))
            with pytest.raises(StoreUnavailable, match="full"):
                for _ in range(100):
                    await store.put(A, b"x" * 10_000)
            fits = len(await store.flush(A))
            assert (await store.flush(A))[0].id == kept.id
            await store.work(lambda file: limit(file, 1_000_000))
            await store.check()
            await store.put(A, b"x" * 10_000)
            assert len(await store.flush(A)) == fits + 1

    async def test_an_error_without_a_code_is_a_failure_like_any_other(self, tmp_path):
        """One that the program or Python's sqlite3 makes: the file is opened anew and serves."""

        def fail(_: InboxFile) -> None:
            raise sqlite3.OperationalError("made by hand")

        store = SqliteStore(tmp_path / "devices.db", ttl=10.0)
        async with running(store):
            with pytest.raises(StoreUnavailable, match="made by hand"):
                await store.work(fail)
            await eventually(lambda: works(store), "the file is open again")

    async def test_a_file_that_is_held_is_waited_for(self, tmp_path):
        """Somebody looks into the file with a tool of their own: the store starts after them."""
        path = tmp_path / "devices.db"
        opened(path).close()
        store = SqliteStore(path, ttl=10.0)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            async with trio.open_nursery() as nursery:
                started = trio.Event()

                async def run() -> None:
                    await nursery.start(store.run)
                    started.set()

                nursery.start_soon(run)
                with trio.move_on_after(0.7):
                    await started.wait()
                assert not started.is_set()
                other.execute("ROLLBACK")
                other.close()
                with trio.fail_after(10):
                    await started.wait()
                await store.put(A, b"x")
                nursery.cancel_scope.cancel()


class TestCalls:
    async def test_a_call_is_given_up_after_its_time_out(self, autojump_clock):
        """Not before, and soon after; new calls are refused until something is answered."""
        calls = Calls(timeout=8.0, most=2)
        calls.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.watch)
            await trio.sleep(0.5)
            with pytest.raises(StoreUnavailable, match="given up"):
                await calls.answered(Call[None]())
            assert 8.0 <= trio.current_time() - 0.5 <= 10.0
            with pytest.raises(StoreUnavailable):
                calls.admit()
            calls.alive()
            calls.admit()
            nursery.cancel_scope.cancel()

    async def test_so_many_calls_wait_and_no_more(self):
        """The next one is refused at once."""
        calls = Calls(timeout=8.0, most=2)
        calls.accept()
        async with trio.open_nursery() as nursery:
            open_calls: list[Call[int]] = []

            async def ask() -> None:
                calls.admit()
                open_calls.append(Call())
                assert await calls.answered(open_calls[-1]) == 7

            for _ in range(2):
                nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            with pytest.raises(StoreUnavailable, match="2 calls wait"):
                calls.admit()
            for call in open_calls:
                call.settle(7)
                call.settle(8)  # a second answer changes nothing


async def works(store: SqliteStore) -> bool:
    """Whether a Put gets through."""
    try:
        await store.put(A, b"z")
    except StoreUnavailable:
        return False
    return True


def described(database: sqlite3.Connection) -> list[object]:
    """The version, and every table and index with its columns."""
    names = [
        name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL")
    ]
    return [
        database.execute("PRAGMA user_version").fetchone(),
        *(
            (name, database.execute(f"PRAGMA {look}_xinfo ({name})").fetchall())
            for name in sorted(names)
            for look in ("table", "index")
        ),
    ]


def limit(file: InboxFile, pages: int) -> None:
    """Let the database have so many pages: SQLite then fails as on a full disk."""
    file.connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_a_file_shrinks_only_where_that_is_cheap(tmp_path):
    """Not for a little, not where what is in use would not fit the disk twice, not while held."""
    path = tmp_path / "devices.db"
    with closing(opened(path)) as file:
        file.write([BlobRow(A, bytes(60_000), 2e9)])
        assert file.shrink(1 << 40) == 0
        last = 0
        for number in range(40):
            key = bytes([number]) * 32
            ids = file.write([BlobRow(key, bytes(60_000), 2e9) for _ in range(10)])
            last = max(each or 0 for each in ids)
            file.write([], [(key, each or 0) for each in ids])
            file.write([BlobRow(B, bytes(60_000), 2e9) for _ in range(10)])
        file.write([], [(B, each) for each in range(1, last + 1)])
        file.checkpoint()
        before = path.stat().st_size
        assert before > 16 << 20
        assert file.shrink(100_000) == 0
        file.hold()
        assert file.shrink(1 << 40) == 0
        file.let_go()
        assert file.shrink(1 << 40) > 16 << 20
        assert path.stat().st_size < 2 << 20
        assert [blob.id for blob in file.flush(A, 0, 0.0, 10, 10**9)] == [1]
        assert (file.write([BlobRow(A, b"x", 2e9)])[0] or 0) > last


async def test_below_the_floor_the_disk_is_given_back_what_the_file_does_not_use(tmp_path):
    """Blobs that were fetched leave room in the file; while the disk is short of it, it shrinks."""
    path = tmp_path / "devices.db"
    async with running(SqliteStore(path, ttl=1000.0)) as store:
        for number in range(400):
            key = bytes([number % 40]) * 32
            stored = await store.put(key, bytes(60_000))
            if number > 20:
                await store.delete(key, [stored.id])
            elif number == 0:
                kept = key
        for _ in range(400):
            await store.put(B, bytes(60_000))
        await store.delete(
            B, [blob.id for blob in await store.flush(B, limit=1000, max_bytes=1 << 30)]
        )
    before = path.stat().st_size
    assert before > 16 << 20
    space = Space(lambda: Disk(1 << 40, 64 << 20), lambda total: 1 << 30)
    space.look()
    async with running(SqliteStore(path, ttl=1000.0, space=space)) as store:
        await eventually(
            lambda: path.stat().st_size,
            "it shrinks",
            until=lambda size: size <= before // 4,
            within=40.0,
        )
        assert len(await store.flush(kept)) == 1
