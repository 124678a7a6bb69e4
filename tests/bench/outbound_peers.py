"""Programs that drain a queue in PostgreSQL to an SMTP server, to compare the relay with.

PgQueuer (uvloop, asyncpg) and procrastinate (psycopg), both with aiosmtplib over connections that
are opened once and lent out.  Their messages are composed beforehand, which is in their favour.

    python -m tests.bench.outbound_peers fill PEER DSN JOBS     makes the schema and the jobs
    python -m tests.bench.outbound_peers drain PEER DSN PORT    opens its connections, says `ready`,
                                                                waits for a line, drains, reports

A report is one line of JSON: `began` and `ended` (epoch seconds), `done` (jobs), `cpu` (seconds).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import psycopg

from tests.bench.smtp_client import BODY

CONNECTIONS = 20
"""To the SMTP server, of each process.  The relay opens up to 32; more make the peers no faster."""
PGQUEUER_WORKERS, PGQUEUER_BATCH = 1, 200
"""The fastest here: two workers cost more CPU, batches of 50 or 100, too, those of 500 no less."""


class Pooled:
    """aiosmtplib connections that are opened once and lent out."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        self.sent = 0

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
        self.sent += 1


async def _go() -> tuple[float, float]:
    """Wait until told to begin; returns the instant and the CPU seconds until then."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return time.time(), time.process_time()


def _report(began: float, cpu: float, done: int) -> dict[str, float]:
    return {
        "began": began,
        "ended": time.time(),
        "done": done,
        "cpu": time.process_time() - cpu,
    }


# PgQueuer --------------------------------------------------------------------------------------


async def _driver(dsn: str) -> Any:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver

    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return AsyncpgDriver(
        await asyncpg.connect(host=parts["host"], user=parts["user"], database=parts["dbname"])
    )


async def pgqueuer_fill(dsn: str, jobs: int) -> None:
    """Make PgQueuer's schema and enqueue the jobs."""
    from pgqueuer.queries import Queries

    queries = Queries(await _driver(dsn))
    await queries.install()
    for start in range(0, jobs, 5_000):
        count = min(5_000, jobs - start)
        await queries.enqueue(["send"] * count, [BODY] * count, [0] * count)


async def pgqueuer_drain(dsn: str, port: int) -> dict[str, float]:
    """Drain PgQueuer's queue, as far as this process gets of it."""
    from pgqueuer import PgQueuer, types
    from pgqueuer.models import Job

    pool = Pooled(port)
    await pool.open()
    workers = []
    for _ in range(PGQUEUER_WORKERS):
        worker = PgQueuer(await _driver(dsn))

        @worker.entrypoint("send")
        async def send(job: Job) -> None:
            await pool.send(job.payload or b"")

        workers.append(worker)
    began, cpu = await _go()
    mode = types.QueueExecutionMode.drain
    await asyncio.gather(*(each.run(batch_size=PGQUEUER_BATCH, mode=mode) for each in workers))
    return _report(began, cpu, pool.sent)


# procrastinate ---------------------------------------------------------------------------------


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


async def procrastinate_drain(dsn: str, port: int) -> dict[str, float]:
    """Work until nothing is left."""
    app, _, pool = _procrastinate(dsn, port)
    await pool.open()
    async with app.open_async():
        began, cpu = await _go()
        await app.run_worker_async(
            concurrency=CONNECTIONS,
            wait=False,
            listen_notify=False,
            delete_jobs="successful",
            install_signal_handlers=False,
        )
        return _report(began, cpu, pool.sent)


_FILL = {"pgqueuer": pgqueuer_fill, "procrastinate": procrastinate_fill}
_DRAIN = {"pgqueuer": pgqueuer_drain, "procrastinate": procrastinate_drain}
WAITING = {
    "pgqueuer": "SELECT count(*) FROM pgqueuer",
    "procrastinate": "SELECT count(*) FROM procrastinate_jobs",
}
"""How many jobs are left, by peer."""


def main() -> None:
    """Fill or drain."""
    what, peer, dsn, number = sys.argv[1:]
    if what == "fill":
        asyncio.run(_FILL[peer](dsn, int(number)))
    elif peer == "pgqueuer":
        import uvloop

        print(json.dumps(uvloop.run(_DRAIN[peer](dsn, int(number)))))
    else:
        print(json.dumps(asyncio.run(_DRAIN[peer](dsn, int(number)))))


if __name__ == "__main__":
    main()
