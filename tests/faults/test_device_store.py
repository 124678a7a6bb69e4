"""Acknowledged blobs are there, byte for byte: after kill -9, failed flushes, a full disk."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import trio

from relay.db.migrate import migrate
from relay.devices.sqlite_file import InboxFile
from relay.devices.store import MAX_BLOBS, MAX_BYTES, StoreUnavailable
from tests.db.cluster import Cluster, binaries
from tests.devices.stores import PostgresHouse, running
from tests.eventually import eventually, eventually_sync
from tests.faults.device_load import KEYS, TASKS, envelope, recipient


@dataclass
class Ledger:
    """What the process said, in order."""

    acknowledged: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    started: threading.Event = field(default_factory=threading.Event)
    order: list[str] = field(default_factory=list)

    def read(self, process: subprocess.Popen[bytes]) -> None:
        """Note each whole line."""
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith(b"\n"):
                return
            word, _, number = line.decode().strip().partition(" ")
            self.order.append(word)
            if word == "started":
                self.started.set()
            else:
                (self.acknowledged if word == "ack" else self.failed).add(int(number))


class Load:
    """The process of tests.faults.device_load, under `strace` if that is to inject faults."""

    def __init__(self, path: Path, start: int, *inject: str) -> None:
        strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]
        faults = [word for one in inject for word in ("-e", f"inject={one}")]
        self.ledger = Ledger()
        self.process = subprocess.Popen(
            [
                *((*strace, *faults) if inject else ()),
                *(sys.executable, "-m", "tests.faults.device_load", str(path), str(start)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._reader = threading.Thread(target=self.ledger.read, args=(self.process,))
        self._reader.start()

    def wait(self, *, acknowledged: int, failed: int = 0) -> None:
        """Wait until so many were acknowledged, and so many failed."""

        def progress() -> tuple[int, int]:
            assert self.process.poll() is None, "it ended by itself"
            return len(self.ledger.acknowledged), len(self.ledger.failed)

        eventually_sync(
            progress,
            f"{acknowledged} are acknowledged and {failed} fail",
            until=lambda seen: seen[0] >= acknowledged and seen[1] >= failed,
            within=60.0,
        )

    def kill(self) -> None:
        """kill -9 (of strace: it takes its process along)."""
        for child in _children(self.process.pid):
            subprocess.run(["kill", "-9", str(child)], check=False, stderr=subprocess.DEVNULL)
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """End its input, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self._end()
        return self.process.returncode

    def _end(self) -> None:
        self.process.wait(30)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@contextmanager
def load(path: Path, start: int, *inject: str) -> Iterator[Load]:
    """Put blobs for the block; killed at its end if it still runs."""
    running_load = Load(path, start, *inject)
    try:
        assert running_load.ledger.started.wait(30)
        yield running_load
    finally:
        if running_load.process.poll() is None:
            running_load.kill()


def stored(path: Path) -> Counter[int]:
    """How often each blob is in the file; each must be whole, and where it belongs."""
    found: Counter[int] = Counter()
    with closing(InboxFile(path, max_blobs=MAX_BLOBS, max_bytes=MAX_BYTES)) as file:
        (verdict,) = file.row("PRAGMA integrity_check")
        assert verdict == "ok"
        for key in KEYS:
            last = 0
            while page := file.flush(key, last, 0.0, 1000, 10**9):
                last = page[-1].id
                for blob in page:
                    number = int.from_bytes(blob.envelope[:8], "big")
                    assert recipient(number) == key
                    assert blob.envelope == envelope(number), f"blob {number} is not what was sent"
                    found[number] += 1
        counts = file.row("SELECT count(*), sum(bytes) FROM inbox INDEXED BY inbox_recipient")
        assert counts == file.row("SELECT count(*), sum(length(envelope)) FROM inbox NOT INDEXED")
    return found


def kill_again_and_again(path: Path, rounds: int, seed: int) -> int:
    """Kill under load; return how many acknowledged blobs were found again."""
    rng = random.Random(seed)
    acknowledged: set[int] = set()
    for number in range(rounds):
        with load(path, number * 10**9) as process:
            process.wait(acknowledged=1)
            time.sleep(rng.uniform(0.0, 0.4))
            process.kill()
        assert not process.ledger.failed
        acknowledged |= process.ledger.acknowledged
        lost = acknowledged - stored(path).keys()
        assert not lost, f"{len(lost)} acknowledged blobs are gone"
    return len(acknowledged)


def test_kill_at_a_random_moment_loses_nothing_acknowledged(tmp_path):
    """Under 64 Puts at once, again and again on the same file: all there, none half-written."""
    assert kill_again_and_again(tmp_path / "devices.db", rounds=5, seed=3) > 500


@pytest.mark.soak
@pytest.mark.parametrize("file", range(10))
def test_kill_at_many_random_moments_loses_nothing(tmp_path, file):
    """The same, many times over."""
    seed = time.time_ns() + file
    assert kill_again_and_again(tmp_path / "devices.db", rounds=10, seed=seed) > 1000


def test_a_replay_after_a_kill_is_a_second_copy(tmp_path):
    """Whoever heard nothing sends again, and nobody complains: two copies, or one."""
    path = tmp_path / "devices.db"
    for _ in range(2):
        with load(path, 0) as process:
            process.wait(acknowledged=200)
            process.kill()
    found = stored(path)
    assert {found[number] for number in range(100)} == {2}


@pytest.fixture(scope="module")
def strace() -> None:
    """What injects the faults."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("strace may not trace here")


SYNCS = "fsync,fdatasync"


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(
    "inject",
    [
        f"{SYNCS}:error=EIO:when=30",
        f"{SYNCS}:error=EIO:when=20+15",
        f"{SYNCS}:error=EIO:when=40..49",
        "pwrite64:error=EIO:when=500+2000",
        "pwrite64:error=ENOSPC:when=500..600",
    ],
    ids=["one flush", "every 15th flush", "ten flushes on end", "some writes", "a full disk"],
)
def test_what_fails_to_reach_the_disk_is_not_acknowledged(tmp_path, inject):
    """Flushes and writes that fail: the Puts fail, later ones work, what was acknowledged stays."""
    path = tmp_path / "devices.db"
    with load(path, 0, inject) as process:
        process.wait(acknowledged=100, failed=1)
        before = len(process.ledger.acknowledged)
        process.wait(acknowledged=before + 300)
        assert process.stop() == 0
    assert process.ledger.failed
    lost = process.ledger.acknowledged - stored(path).keys()
    assert not lost, f"{len(lost)} acknowledged blobs are gone"


@pytest.mark.usefixtures("strace")
def test_a_disk_that_stays_broken_acknowledges_nothing(tmp_path):
    """From some flush on every one fails: no Ack after that; what was acknowledged is there."""
    path = tmp_path / "devices.db"
    with load(path, 0, f"{SYNCS}:error=EIO:when=30+") as process:
        process.wait(acknowledged=1, failed=300)
        process.kill()
    order = process.ledger.order
    # Trio may let those of the last good commit speak after the first of the failed one, and each
    # of them is refused right after its Ack.
    assert "ack" not in order[order.index("err") + 2 * TASKS :]
    assert not process.ledger.acknowledged - stored(path).keys()


@pytest.mark.usefixtures("strace")
def test_a_kill_after_a_failed_flush_loses_nothing_acknowledged(tmp_path):
    """The two together."""
    path = tmp_path / "devices.db"
    acknowledged: set[int] = set()
    for number in range(3):
        with load(path, number * 10**9, f"{SYNCS}:error=EIO:when=20+9") as process:
            process.wait(acknowledged=100 * (number + 1), failed=1)
            process.kill()
        acknowledged |= process.ledger.acknowledged
        assert not acknowledged - stored(path).keys()


@pytest.mark.parametrize("version", [18, 15], ids=["pg18", "pg15"])
async def test_a_database_that_crashes_loses_nothing_acknowledged(version, tmp_path):
    """PostgreSQL dies under 32 Puts at once: refusals, then all acknowledged are there."""
    bin_dir = binaries(version)
    if bin_dir is None:
        pytest.skip(f"PostgreSQL {version} is not installed")
    cluster = Cluster(bin_dir, fsync=True)
    try:
        cluster.start()
        name = cluster.new_database()
        await migrate(cluster.dsn(name))
        house = PostgresHouse(cluster.dsn(name))
        acknowledged: set[int] = set()
        failed: set[int] = set()
        numbers = count()
        async with house.open(), running(house.store(max_blobs=10**9)) as store:

            async def put() -> None:
                while True:
                    number = next(numbers)
                    try:
                        await store.put(recipient(number), envelope(number))
                    except StoreUnavailable:
                        failed.add(number)
                        await trio.sleep(0.01)
                    else:
                        acknowledged.add(number)

            async with trio.open_nursery() as puts:
                for _ in range(32):
                    puts.start_soon(put)
                await eventually(
                    lambda: len(acknowledged),
                    "200 are acknowledged",
                    until=lambda n: n >= 200,
                    within=40.0,
                )
                await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
                await trio.to_thread.run_sync(cluster.start)
                before = len(acknowledged)
                await eventually(
                    lambda: len(acknowledged),
                    "50 more are acknowledged",
                    until=lambda n: n >= before + 50,
                    within=40.0,
                )
                puts.cancel_scope.cancel()
            found: Counter[int] = Counter()
            for key in KEYS:
                last = 0
                while page := await store.flush(key, last, limit=1000):
                    last = page[-1].id
                    found.update(int.from_bytes(blob.envelope[:8], "big") for blob in page)
                    for blob in page:
                        assert blob.envelope == envelope(int.from_bytes(blob.envelope[:8], "big"))
        assert failed, "the outage was never noticed"
        assert not acknowledged - found.keys()
    finally:
        cluster.remove()
