"""Collectors of both kinds on one queue, while all of them, their readers and the database die.

What must hold after any number of rounds: every account is mailed or written, letters exactly
once, lines again only when a collector was killed or a reader died, and then those in hand alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
import trio

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from tests.actors.running import becomes
from tests.db.cluster import Cluster, binaries
from tests.lifecycle.collecting import Collector, batches, collecting, mailed
from tests.lifecycle.people import insert

IN_HAND = 250  # rows that a transaction of `relay collect` holds at most, at limits below


async def chaos(seconds: float, seed: int) -> None:
    """Insert, read, kill, restart; then see what everybody got."""
    rng = random.Random(seed)
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    written: list[str] = []
    deaths = inserted = 0
    stop = trio.Event()
    try:
        cluster.start()
        dsn = cluster.dsn()
        await migrate(dsn)
        pool = Pool(dsn)

        async def line_reader(limit: int) -> None:
            """One collector after the other, each ended in another way."""
            nonlocal deaths
            while not stop.is_set():
                process = Collector(dsn, "--follow", "--adaptive", batch_limit=str(limit))
                read = b""
                until = trio.current_time() + rng.uniform(0.8, 3.0)
                with trio.move_on_at(until):
                    while True:
                        await trio.lowlevel.wait_readable(process.descriptor)
                        chunk = os.read(process.descriptor, 1 << 14)
                        if not chunk:
                            break
                        read += chunk
                        await trio.sleep(rng.choice([0, 0, 0, 0.01]))
                how = "end" if stop.is_set() else rng.choice(["kill", "close", "end"])
                if how == "kill":
                    process.kill()
                elif how == "end":
                    process.send_signal(signal.SIGTERM)
                if how != "close":
                    read += await trio.to_thread.run_sync(process.rest)
                assert process.stdout is not None
                process.stdout.close()
                await trio.to_thread.run_sync(process.wait, 15)
                process.folder.cleanup()
                deaths += how != "end"
                written.extend(email for line in batches(read) for email in line)

        async def relay_node() -> None:
            while not stop.is_set():
                async with collecting(pool, sweep_every=0.5):
                    with trio.move_on_after(rng.uniform(0.5, 3.0)):
                        await stop.wait()

        async def trouble() -> None:
            while not stop.is_set():
                with trio.move_on_after(rng.uniform(2.0, 5.0)):
                    await stop.wait()
                    return
                if rng.random() < 0.3:
                    await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
                    await trio.to_thread.run_sync(cluster.start)
                else:
                    try:
                        await pool.execute(
                            """
                            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE pid <> pg_backend_pid() AND application_name LIKE 'relay%'
                            """
                        )
                    except DatabaseUnavailable:
                        continue

        async with trio.open_nursery() as nursery:
            for work in (relay_node, trouble):
                nursery.start_soon(work)
            for limit in (3, 40):
                nursery.start_soon(line_reader, limit)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                count = rng.choice([1, 1, 1, 50, 700])
                try:
                    await insert(pool, count, prefix=f"r{inserted}n")
                except DatabaseUnavailable:
                    await trio.sleep(0.1)  # whether it was stored is asked at the end
                inserted += count
                await trio.sleep(rng.uniform(0.0, 0.1))
            stop.set()
        async with collecting(pool):
            await becomes(pool, "SELECT count(*) FROM relay.token_queue", 0)
        wanted = {row[0] for row in await pool.fetch("SELECT email FROM relay.accounts")}
        letters = await mailed(pool)
        await pool.close()
    finally:
        cluster.remove()
    assert set(written) | set(letters) == wanted
    assert max(Counter(letters).values()) == 1
    again = len(written) + len(letters) - len(wanted)
    # A terminated backend or a restart, too, may lose a commit whose lines were read.
    assert again <= (deaths + 2 * seconds) * IN_HAND
    assert len(wanted) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_chaos():
    """Minutes of it (`RELAY_SOAK_SECONDS`, default 120)."""
    await chaos(float(os.environ.get("RELAY_SOAK_SECONDS", "120")), int(time.time()))
