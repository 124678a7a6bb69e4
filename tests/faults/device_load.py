"""A process that puts blobs and says which were acknowledged; for tests that kill it.

`python -m tests.faults.device_load FILE START` runs the SQLite store on FILE with 64 tasks that
put without a pause.  Each line that it writes, at once, is `ack NUMBER` or `err NUMBER`; the blobs
are `envelope(NUMBER)`, numbered from START.  It ends when its input does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from itertools import count
from pathlib import Path

import structlog
import trio

from relay.devices.sqlite import SqliteStore
from relay.devices.store import StoreUnavailable

TASKS = 64
KEYS = [bytes([n]) * 32 for n in range(16)]


def recipient(number: int) -> bytes:
    """Whom a blob is for."""
    return KEYS[number % len(KEYS)]


def envelope(number: int) -> bytes:
    """What a blob holds: its number, and up to 10 kB that follow from it, mostly a few."""
    size = (number * 2654435761) % (10_000 if number % 8 == 0 else 300)
    pattern = hashlib.blake2b(number.to_bytes(8, "big")).digest()
    return number.to_bytes(8, "big") + (pattern * (size // 64 + 1))[:size]


async def main(path: Path, start: int) -> None:
    """Put until the input ends."""
    numbers = count(start)
    store = SqliteStore(path, ttl=1e6, max_blobs=10**9, max_bytes=10**12)

    async def put() -> None:
        while True:
            number = next(numbers)
            try:
                await store.put(recipient(number), envelope(number))
            except StoreUnavailable:
                os.write(1, b"err %d\n" % number)
                await trio.sleep(0.005)
            else:
                os.write(1, b"ack %d\n" % number)

    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        os.write(1, b"started\n")
        async with trio.open_nursery() as puts:
            for _ in range(TASKS):
                puts.start_soon(put)
            while True:
                await trio.lowlevel.wait_readable(0)
                if not os.read(0, 100):
                    break
            puts.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
