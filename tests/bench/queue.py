"""The outbound queue alone: claim, do nothing, finalise; all durable.

`relay`: one process with the relay's own lane book, claim and finalise.  Peers, each in a process
of its own on the same server (fsync on):
- `pgqueuer`: one process, uvloop, asyncpg, drain mode, as its own benchmark runs it, with the
  number of workers and the batch size that were fastest here;
- `pgbench`: two clients that claim 100 rows of a bare table and then finalise them, no client
  language, no letters, no lanes: what the server itself can do.

Further variants of `relay`: with 100,000 throttled rows of another lane before it; with a snapshot
held open through 100,000 deliveries; with finished messages behind it (`RELAY_BENCH_FINISHED`,
5,000,000 for the promise; fewer by default, so that an ordinary run ends soon).  And inserts a
second with and without wake-ups.

Rounds are interleaved, figures are medians, ratios are what is promised.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.enqueue import announce, enqueue
from relay.outbound.queue.lanes import LaneBook
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue
from tests.db.cluster import Cluster, binaries

JOBS = 100_000
SNAPSHOT_JOBS = 100_000
THROTTLED = 100_000
FINISHED = int(os.environ.get("RELAY_BENCH_FINISHED", "300000"))
CLAIM = 500  # messages a claim asks for
CLAIMS = 2  # claims under way at once
ANNOUNCE_EVERY = 0.025  # s
INSERT_SECONDS = 3.0
INSERTERS = 16
PGQUEUER_WORKERS, PGQUEUER_BATCH = 2, 100

SERVER = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "synchronous_commit": "on",
    "jit": "off",
}

# Straight into the tables: filling is not what is measured.  Bodies of about 2 kB.
FILL = """
    WITH ids AS MATERIALIZED (
        SELECT relay.uuidv7() AS id, n, clock_timestamp() - make_interval(secs => 60) AS at
        FROM generate_series(1, %(count)s) AS n
    ), contents AS (
        INSERT INTO relay.outbound_contents (id, sender, subject, text_body, size)
        SELECT id, 'sender@example.org', 'Subject ' || n,
               repeat(repeat('0123456789abcde ', 4) || chr(10), 32), 2080
        FROM ids
    ), letters AS (
        INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, address, domain,
                                            priority, created_at)
        SELECT id, id, %(owner)s, 'u' || n || '@' || %(domain)s, 'u' || n || '@' || %(domain)s,
               %(domain)s, 1, at
        FROM ids
    )
"""
FILL_DUE = (
    FILL
    + """
    INSERT INTO relay.outbound_due (id, lane, run_at, priority)
    SELECT id, relay.outbound_lane(%(owner)s, %(domain)s), at, 1
    FROM ids
"""
)
FILL_LOG = (
    FILL
    + """
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, code, status, phase)
    SELECT id, at, 2, 1, 250, 'sent', 'dot'
    FROM ids
"""
)

RAW = """
    CREATE TABLE raw_due (
        id uuid PRIMARY KEY, lane bigint NOT NULL, token bigint NOT NULL DEFAULT 0,
        run_at timestamptz NOT NULL, node uuid, priority smallint NOT NULL,
        attempt smallint NOT NULL DEFAULT 0
    );
    CREATE INDEX ON raw_due (lane, priority, run_at);
    CREATE TABLE raw_log (id uuid PRIMARY KEY, finished_at timestamptz, status text);
    INSERT INTO raw_due (id, lane, run_at, priority)
    SELECT relay.uuidv7(), 1, clock_timestamp() - make_interval(secs => 60), 1
    FROM generate_series(1, {count});
"""
PGBENCH = """
WITH p AS MATERIALIZED (
    SELECT id FROM raw_due
    WHERE lane = 1 AND priority = 1 AND run_at <= now()
    ORDER BY run_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
), c AS (
    UPDATE raw_due d SET run_at = now() + interval '300 s', token = token + 1,
        attempt = attempt + 1, node = gen_random_uuid()
    FROM p WHERE d.id = p.id RETURNING d.id
) SELECT '''' || string_agg(id::text, ''',''') || '''' AS ids FROM c \\gset
WITH g AS (DELETE FROM raw_due WHERE id IN (:ids) RETURNING id)
INSERT INTO raw_log SELECT id, now(), 'sent' FROM g;
"""


# In a process of their own ---------------------------------------------------------------------


async def drain(dsn: str, jobs: int, throttled: str | None) -> float:
    """Claim and finalise `jobs` messages, and return how many a second."""
    pool = Pool(dsn)
    queue = Queue(pool, uuid4())
    book = LaneBook()
    mark = book.mark()
    due_lanes, at = await queue.survey()
    book.learn(due_lanes, mark)
    done = 0
    send, receive = trio.open_memory_channel[list[Claimed]](2)

    def allowance(lane: int, domain: str, owner: UUID) -> int:
        return 0 if domain == throttled else CLAIM

    async def finalise() -> None:
        nonlocal done
        async for batch in receive:
            now = trio.current_time()
            recorded = await queue.finalise(
                [
                    Settled(
                        message.id,
                        message.fence,
                        Cause.DELIVERED,
                        began_at=now - 0.01,
                        ended_at=now,
                        phase="dot",
                        code=250,
                        enhanced="2.0.0",
                        peer="mx.example.org[192.0.2.25]:25",
                        tls="TLSv1.3",
                        reply=f"Ok: queued as {message.id.hex[-12:]}",
                    )
                    for message in batch
                ]
            )
            done += len(recorded)

    async def claim(channel: trio.MemorySendChannel[list[Claimed]]) -> None:
        async with channel:
            while plan := book.plan(CLAIM, at, allowance):
                batch = await queue.claim(plan)
                book.took(plan, batch.claimed)
                if batch.messages:
                    await channel.send(batch.messages)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finalise)
        async with send:
            for _ in range(CLAIMS):
                nursery.start_soon(claim, send.clone())
    seconds = time.perf_counter() - began
    await pool.close()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} were delivered")
    return jobs / seconds


async def insert(dsn: str, wake: bool) -> float:
    """Enqueue single messages from many tasks, and return how many a second."""
    pool = Pool(dsn, size=INSERTERS + 1)
    count = 0
    fresh = False

    async def work(number: int) -> None:
        nonlocal count, fresh
        while True:
            message = Message(
                Address("a@example.org"),
                [Address(f"u{count}@d{number}.example")],
                "s",
                text="x" * 2000,
            )
            await enqueue(pool, [message])
            count += 1
            fresh = True

    async def tell() -> None:
        nonlocal fresh
        while True:
            await trio.sleep(ANNOUNCE_EVERY)
            if fresh:
                fresh = False
                await announce(pool)

    with trio.move_on_after(INSERT_SECONDS):
        async with trio.open_nursery() as nursery:
            for number in range(INSERTERS):
                nursery.start_soon(work, number)
            if wake:
                nursery.start_soon(tell)
    await pool.close()
    return count / INSERT_SECONDS


async def pgqueuer(dsn: str, jobs: int, workers: int, batch: int) -> float:
    """Drain PgQueuer's queue of `jobs` messages of 2 kB, and return how many a second."""
    import asyncio

    import asyncpg
    from pgqueuer import PgQueuer, types
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job
    from pgqueuer.queries import Queries

    async def connect() -> AsyncpgDriver:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        return AsyncpgDriver(
            await asyncpg.connect(host=parts["host"], user=parts["user"], database=parts["dbname"])
        )

    queries = Queries(await connect())
    await queries.install()
    payload = b"0123456789abcde " * 128
    for start in range(0, jobs, 10_000):
        count = min(10_000, jobs - start)
        await queries.enqueue(["send"] * count, [payload] * count, [0] * count)
    done = 0

    async def work() -> None:
        worker = PgQueuer(await connect())

        @worker.entrypoint("send")
        async def send(job: Job) -> None:
            nonlocal done
            done += 1

        await worker.run(batch_size=batch, mode=types.QueueExecutionMode.drain)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    seconds = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} were delivered")
    return jobs / seconds


def child(variant: str, dsn: str, jobs: int) -> float:
    """Run one variant in this process."""
    if variant == "pgqueuer":
        import uvloop

        rate: float = uvloop.run(pgqueuer(dsn, jobs, PGQUEUER_WORKERS, PGQUEUER_BATCH))
        return rate
    if variant.startswith("insert"):
        return trio.run(insert, dsn, variant == "insert_wake")
    return trio.run(drain, dsn, jobs, "throttled.example" if variant == "throttled" else None)


# The parent ------------------------------------------------------------------------------------


class Bench:
    """One server, a fresh database for each run."""

    def __init__(self, cluster: Cluster, finished: int) -> None:
        self.cluster = cluster
        self.finished = finished
        cluster.admin("CREATE DATABASE template_queue")
        trio.run(migrate, cluster.dsn("template_queue"))
        self._behind: str | None = None

    def run(self, variant: str) -> float:
        """Prepare, run in a process of its own, clean up; messages a second."""
        jobs = SNAPSHOT_JOBS if variant == "snapshot" else JOBS
        if variant == "finished":
            name = self._behind = self._behind or self._with_finished()
        else:
            name = self.cluster.new_database("template_queue")
        dsn = self.cluster.dsn(name)
        with ExitStack() as stack:
            admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            if variant == "throttled":
                _fill(admin, THROTTLED, "throttled.example")
            if variant in {"relay", "throttled", "snapshot", "finished"}:
                _fill(admin, jobs, "example.com")
            if variant == "pgbench":
                admin.execute(RAW.format(count=jobs))
                admin.execute("VACUUM ANALYZE raw_due")  # its plans depend on it; ours do not
            admin.execute("CHECKPOINT")
            if variant == "snapshot":
                report = stack.enter_context(psycopg.connect(dsn))
                report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                report.execute("SELECT count(*) FROM relay.outbound_due")
            rate = self._pgbench(name, jobs) if variant == "pgbench" else _spawn(variant, dsn, jobs)
        if variant != "finished":
            self.cluster.drop_database(name)
        return rate

    def _with_finished(self) -> str:
        name = self.cluster.new_database("template_queue")
        with psycopg.connect(self.cluster.dsn(name), autocommit=True) as admin:
            for start in range(0, self.finished, 100_000):
                _fill(admin, min(100_000, self.finished - start), "past.example", FILL_LOG)
            admin.execute("VACUUM ANALYZE")
        return name

    def _pgbench(self, name: str, jobs: int) -> float:
        script = self.cluster.directory / "queue.sql"
        script.write_text(re.sub(r"\n(?!WITH g)\s*", " ", PGBENCH).strip() + "\n")
        began = time.perf_counter()
        subprocess.run(
            [
                str(self.cluster.bin_dir / "pgbench"),
                *("-h", str(self.cluster.directory), "-U", "relay", "-n", "-c", "2", "-j", "2"),
                *("-t", str(jobs // 200), "-f", str(script), name),
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
        seconds = time.perf_counter() - began
        with psycopg.connect(self.cluster.dsn(name)) as conn:
            row = conn.execute("SELECT count(*) FROM raw_log").fetchone()
        if row != (jobs,):
            raise RuntimeError(f"{row} of {jobs} were delivered")
        return jobs / seconds


def _fill(
    admin: psycopg.Connection[Any], count: int, domain: str, statement: str = FILL_DUE
) -> None:
    admin.execute(statement, {"count": count, "domain": domain, "owner": ADMINISTRATOR_ID})


def _spawn(variant: str, dsn: str, jobs: int) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.queue", "--child", variant, dsn, str(jobs)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return float(done.stdout.splitlines()[-1])


VARIANTS = (
    "relay",
    "pgqueuer",
    "pgbench",
    "throttled",
    "snapshot",
    "finished",
    "insert_off",
    "insert_wake",
)


def run(
    rounds: int = 3, variants: tuple[str, ...] = VARIANTS, finished: int = FINISHED
) -> dict[str, Any]:
    """Measure every variant `rounds` times, interleaved."""
    bin_dir = binaries(18)
    if bin_dir is None:
        raise RuntimeError("the embedded PostgreSQL 18 is missing")
    cluster = Cluster(bin_dir, fsync=True, settings=SERVER)
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    try:
        cluster.start()
        bench = Bench(cluster, finished)
        for _ in range(rounds):
            for variant in variants:
                rates[variant].append(bench.run(variant))
    finally:
        cluster.remove()
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    ratios = {
        name: {"value": medians[over] / medians[under], "required": required}
        for name, over, under, required in (
            ("relay against PgQueuer", "relay", "pgqueuer", 2.0),
            ("relay against pgbench", "relay", "pgbench", 0.45),
            (f"{THROTTLED:,} throttled rows at the head", "throttled", "relay", 0.85),
            (f"snapshot held through {SNAPSHOT_JOBS:,}", "snapshot", "relay", 0.8),
            (f"{finished:,} finished messages behind", "finished", "relay", 0.8),
            ("inserts with wake-ups", "insert_wake", "insert_off", 0.9),
        )
        if over in medians and under in medians
    }
    return {"name": "queue alone", "unit": "messages/s", "results": medians, "ratios": ratios}


def main() -> None:
    """Print the figures as JSON, or run one variant for a parent."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.queue", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--finished", type=int, default=FINISHED)
    parser.add_argument("--child", nargs=3, metavar=("VARIANT", "DSN", "JOBS"))
    arguments = parser.parse_args()
    if arguments.child:
        variant, dsn, jobs = arguments.child
        print(child(variant, dsn, int(jobs)))
    else:
        found = run(arguments.rounds, tuple(arguments.variants), arguments.finished)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
