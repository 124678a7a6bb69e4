"""Outbound end to end: claim, SMTP, finalise, all durable, to one local sink.

The queue is filled beforehand with messages of 2 kB, fsync is on, the sink is a process of its own.

- `relay`: the whole program (`relay up`), one process, as shipped but for the upstream.
- `two_relays`, `three_relays`: as many of them on the one database.
- `pgqueuer`: one PgQueuer process (uvloop, asyncpg, the workers and batch size that were fastest)
  with pooled aiosmtplib connections.
- `procrastinate`: two procrastinate processes, psycopg, with pooled aiosmtplib connections.
- `bare`: a Trio loop that writes MAIL, RCPT and DATA in one go, with no database behind it.

The peers' messages are composed beforehand; the relay composes its own.  Also the time from the
commit of `relay.send` to MAIL FROM on the wire, with an idle relay.

Rounds are interleaved, figures are medians, ratios are what is promised.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.migrate import migrate
from tests.bench.queue import FILL_DUE, PGQUEUER_BATCH, PGQUEUER_WORKERS, SERVER
from tests.bench.smtp_client import BODY, ROOT, bare, running_sink
from tests.db.cluster import Cluster, binaries
from tests.relay_process import RelayProcess

JOBS = 24_000
PEER_JOBS = {"pgqueuer": 8_000, "procrastinate": 1_500}  # a few seconds each, too
CONNECTIONS = 20
LATENCIES = 200
BARE_JOBS = 40_000


# Peers, in processes of their own ------------------------------------------------------------


class Pooled:
    """aiosmtplib connections that are opened once and lent out."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        """Open them all."""
        import aiosmtplib

        for _ in range(CONNECTIONS):
            client = aiosmtplib.SMTP(hostname="127.0.0.1", port=self._port, start_tls=False)
            await client.connect()
            self._free.put_nowait(client)

    async def send(self, message: bytes) -> None:
        """Send one message over a free connection."""
        client = await self._free.get()
        try:
            await client.sendmail("a@example.org", ["b@example.net"], message)
        finally:
            self._free.put_nowait(client)


async def pgqueuer(dsn: str, port: int, jobs: int) -> float:
    """Fill PgQueuer's queue, drain it, and return messages a second."""
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
    for start in range(0, jobs, 5_000):
        count = min(5_000, jobs - start)
        await queries.enqueue(["send"] * count, [BODY] * count, [0] * count)
    pool = Pooled(port)
    await pool.open()
    done = 0

    async def work() -> None:
        worker = PgQueuer(await connect())

        @worker.entrypoint("send")
        async def send(job: Job) -> None:
            nonlocal done
            await pool.send(job.payload or b"")
            done += 1

        await worker.run(batch_size=PGQUEUER_BATCH, mode=types.QueueExecutionMode.drain)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(PGQUEUER_WORKERS)))
    seconds = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} were delivered")
    return jobs / seconds


def _procrastinate(dsn: str, port: int) -> tuple[Any, Any, Pooled]:
    import procrastinate

    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=10)
    )
    pool = Pooled(port)

    @app.task(name="send", pass_context=False)
    async def send(message: str) -> None:
        await pool.send(message.encode())

    return app, send, pool


async def procrastinate_fill(dsn: str, jobs: int) -> None:
    """Make procrastinate's schema and defer the jobs."""
    app, send, _ = _procrastinate(dsn, 0)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        message = BODY.decode()
        for start in range(0, jobs, 1_000):
            await send.batch_defer_async(*[{"message": message}] * min(1_000, jobs - start))


async def procrastinate_work(dsn: str, port: int) -> list[float]:
    """Work until nothing is left; returns when that began and ended, by the common clock."""
    app, _, pool = _procrastinate(dsn, port)
    await pool.open()
    async with app.open_async():
        began = time.time()
        await app.run_worker_async(
            concurrency=CONNECTIONS,
            wait=False,
            listen_notify=False,
            delete_jobs="successful",
            install_signal_handlers=False,
        )
        return [began, time.time()]


def child(variant: str, dsn: str, port: int, jobs: int) -> Any:
    """Run one variant in this process."""
    if variant == "bare":
        began = time.perf_counter()
        trio.run(bare, port, jobs)
        return jobs / (time.perf_counter() - began)
    if variant == "pgqueuer":
        import uvloop

        return uvloop.run(pgqueuer(dsn, port, jobs))
    if variant == "procrastinate_fill":
        return asyncio.run(procrastinate_fill(dsn, jobs))
    return asyncio.run(procrastinate_work(dsn, port))


# The parent ----------------------------------------------------------------------------------


class Bench:
    """One server, one sink, a fresh database for each run."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster = cluster
        self.port = port
        cluster.admin("CREATE DATABASE template_outbound")
        trio.run(migrate, cluster.dsn("template_outbound"))

    def run(self, variant: str) -> float:
        """Prepare, measure and clean up; messages a second."""
        if variant == "bare":
            return float(_spawn(variant, "", self.port, BARE_JOBS))
        name = self.cluster.new_database("template_outbound" if "relay" in variant else None)
        measure: Callable[[str], float] = getattr(self, f"_{variant}")
        try:
            return measure(self.cluster.dsn(name))
        finally:
            self.cluster.drop_database(name)

    def _two_relays(self, dsn: str) -> float:
        return self._relay(dsn, 2)

    def _three_relays(self, dsn: str) -> float:
        return self._relay(dsn, 3)

    def _relay(self, dsn: str, count: int = 1) -> float:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("UPDATE relay.outbound_control SET paused = true")
            values = {"count": JOBS, "domain": "example.com", "owner": ADMINISTRATOR_ID}
            # No checkpoint: it would have each page's first change write all of the page once
            # more, and the peers' queues are not followed by one either.
            admin.execute(FILL_DUE, values)
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-"))
                environment = _environment(dsn, self.port)
                for number in range(count):
                    relay = RelayProcess(Path(folder) / f"data{number}", env=environment)
                    stack.enter_context(relay)
                time.sleep(0.5)
                admin.execute("UPDATE relay.outbound_control SET paused = false, paused_at = now()")
                admin.execute("NOTIFY relay_outbound")
                began = time.monotonic()
                while _done(admin) < JOBS:
                    if time.monotonic() > began + 120:
                        raise RuntimeError(f"{_done(admin)} of {JOBS} were delivered")
                    time.sleep(0.25)
            row = admin.execute(
                """
                SELECT extract(epoch FROM max(finished_at) - min(paused_at))::float8
                FROM relay.outbound_log, relay.outbound_control
                """
            ).fetchone()
        assert row is not None
        return JOBS / float(row[0])

    def _pgqueuer(self, dsn: str) -> float:
        return float(_spawn("pgqueuer", dsn, self.port, PEER_JOBS["pgqueuer"]))

    def _procrastinate(self, dsn: str) -> float:
        jobs = PEER_JOBS["procrastinate"]
        _spawn("procrastinate_fill", dsn, self.port, jobs)
        workers = [
            subprocess.Popen(
                _arguments("procrastinate_work", dsn, self.port, jobs),
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(2)
        ]
        spans = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
        with psycopg.connect(dsn) as admin:
            row = admin.execute("SELECT count(*) FROM procrastinate_jobs").fetchone()
        if row != (0,):
            raise RuntimeError(f"{row} jobs were not done")
        began, ended = min(span[0] for span in spans), max(span[1] for span in spans)
        return float(jobs / (ended - began))


def _done(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT count(*) FROM relay.outbound_log").fetchone()
    assert row is not None
    return int(row[0])


def _environment(dsn: str, port: int) -> dict[str, str]:
    return {
        "RELAY_DATABASE__URL": dsn,
        "RELAY_OUTBOUND__UPSTREAM": f"smtp://127.0.0.1:{port}",
        "RELAY_LOG__LEVEL": "warning",
    }


def latencies(cluster: Cluster) -> list[float]:
    """Milliseconds from the commit of `relay.send` to MAIL FROM, one message at a time."""
    arrived: list[float] = []
    event = threading.Event()

    def serve(peer: socket.socket) -> None:
        peer.sendall(b"220 sink\r\n")
        with peer, peer.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"MAIL"):
                    arrived.append(time.perf_counter())
                    event.set()
                if line.startswith(b"DATA"):
                    peer.sendall(b"354 go on\r\n")
                    while lines.readline() != b".\r\n":
                        pass
                peer.sendall(b"250 Ok\r\n")

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    dsn = cluster.dsn(cluster.new_database("template_outbound"))
    found = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
    ):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        environment = _environment(dsn, listener.getsockname()[1])
        with (
            RelayProcess(Path(folder) / "data", env=environment),
            psycopg.connect(dsn, autocommit=True) as user,
        ):
            for _ in range(LATENCIES):
                event.clear()
                arrived.clear()
                user.execute(
                    "SELECT relay.send('a@example.org', 'b@example.net', 'Subject', 'text')"
                )
                committed = time.perf_counter()
                if not event.wait(10):
                    raise RuntimeError("a message did not arrive")
                found.append((arrived[0] - committed) * 1000)
                time.sleep(0.02)
        listener.shutdown(socket.SHUT_RDWR)
    return found


def _arguments(variant: str, dsn: str, port: int, jobs: int) -> list[str]:
    module = "tests.bench.outbound"
    return [sys.executable, "-m", module, "--child", variant, dsn, str(port), str(jobs)]


def _spawn(variant: str, dsn: str, port: int, jobs: int) -> Any:
    done = subprocess.run(
        _arguments(variant, dsn, port, jobs),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


VARIANTS = ("relay", "two_relays", "three_relays", "pgqueuer", "procrastinate", "bare")


def run(rounds: int = 3, variants: tuple[str, ...] = VARIANTS) -> dict[str, Any]:
    """Measure every variant `rounds` times, interleaved."""
    bin_dir = binaries(18)
    if bin_dir is None:
        raise RuntimeError("the embedded PostgreSQL 18 is missing")
    cluster = Cluster(bin_dir, fsync=True, settings=SERVER)
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    waits: list[float] = []
    try:
        cluster.start()
        with running_sink() as (name, port):
            bench = Bench(cluster, port)
            for _ in range(rounds):
                for variant in variants:
                    rates[variant].append(bench.run(variant))
        if "relay" in variants:
            waits = latencies(cluster)
    finally:
        cluster.remove()
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    results: dict[str, Any] = {name: {"messages/s": rate} for name, rate in medians.items()}
    ratios: dict[str, Any] = {}
    for name_, over, under, required, aim in (
        ("relay against PgQueuer", "relay", "pgqueuer", 2.0, 3.0),
        ("relay against two procrastinate", "relay", "procrastinate", 7.0, None),
        ("relay against a bare loop", "relay", "bare", 0.30, None),
        ("two relays against one", "two_relays", "relay", 1.0, None),
        ("three relays against one", "three_relays", "relay", 1.0, None),
    ):
        if over in medians and under in medians:
            ratios[name_] = {"value": medians[over] / medians[under], "required": required}
            if aim:
                ratios[name_]["aim"] = aim
    if waits:
        results["relay.send to MAIL FROM"] = {
            "p50 ms": statistics.median(waits),
            "p95 ms": statistics.quantiles(waits, n=20)[-1],
        }
        ratios["relay.send to MAIL FROM, p50 ms"] = {
            "value": statistics.median(waits),
            "at_most": 10.0,
        }
    return {
        "name": f"outbound end to end, sink: {name}",
        "unit": "messages/s",
        "results": results,
        "ratios": ratios,
    }


def main() -> None:
    """Print the figures as JSON, or run one variant for a parent."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outbound", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--child", nargs=4, metavar=("VARIANT", "DSN", "PORT", "JOBS"))
    arguments = parser.parse_args()
    if arguments.child:
        variant, dsn, port, jobs = arguments.child
        print(json.dumps(child(variant, dsn, int(port), int(jobs))))
    else:
        print(json.dumps(run(arguments.rounds, tuple(arguments.variants)), indent=2))


if __name__ == "__main__":
    main()
