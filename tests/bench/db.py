"""Round trips per second to PostgreSQL, by the way of waiting for it.

Each variant runs in a process of its own (trio-asyncio changes asyncio's policy for the whole
process), rounds are interleaved, and the figure is the median.  `python -m tests.bench.db
--json FILE` prints a table and stores the figures.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if "trio_asyncio" in sys.argv:
    # psycopg binds asyncio.get_running_loop when imported; trio-asyncio must replace it before.
    import trio_asyncio as bridge

import psycopg
import trio

SECONDS = 2.0
SELECT = "SELECT 1"
BATCH = 200  # statements in one pipeline

Query = Callable[[], Awaitable[int]]


async def _pipeline(conn: psycopg.AsyncConnection[Any]) -> int:
    async with conn.pipeline():
        for _ in range(BATCH):
            await conn.execute(SELECT)
    return BATCH


async def _select(conn: psycopg.AsyncConnection[Any]) -> int:
    cursor = await conn.execute(SELECT)
    await cursor.fetchone()
    return 1


async def _repeat(query: Query) -> int:
    ends, done = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < ends:
        done += await query()
    return done


async def _on_trio(
    connect: Callable[[], Awaitable[Any]],
    run: Callable[[Any], Awaitable[int]],
    connections: int,
) -> float:
    done: list[int] = []

    async def worker(conn: Any) -> None:
        done.append(await _repeat(lambda: run(conn)))

    conns = [await connect() for _ in range(connections)]
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for conn in conns:
            nursery.start_soon(worker, conn)
    rate = sum(done) / (time.perf_counter() - began)
    for conn in conns:
        closing = conn.close()
        if closing is not None:
            await closing
    return rate


def native(dsn: str, connections: int) -> float:
    """`relay.db.connection` on Trio."""
    from relay.db.connection import connect

    return trio.run(_on_trio, lambda: connect(dsn), _select, connections)


def native_pipeline(dsn: str, connections: int) -> float:
    """`relay.db.connection` on Trio, in pipeline mode."""
    from relay.db.connection import connect

    return trio.run(_on_trio, lambda: connect(dsn), _pipeline, connections)


def pool(dsn: str, connections: int) -> float:
    """`relay.db.pool` on Trio: what the relay itself calls."""
    from relay.db.pool import Pool

    async def main() -> float:
        pool = Pool(dsn, size=connections)

        async def ask(_: object) -> int:
            await pool.fetch(SELECT)
            return 1

        class Nothing:
            def close(self) -> None:
                """The pool closes them all."""

        async def nothing() -> Nothing:
            return Nothing()

        rate = await _on_trio(nothing, ask, connections)
        await pool.close()
        return rate

    return trio.run(main)


def threads(dsn: str, connections: int) -> float:
    """psycopg's synchronous connections, each call in a worker thread."""

    def ask(conn: psycopg.Connection[Any]) -> int:
        conn.execute(SELECT).fetchone()
        return 1

    async def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(dsn, autocommit=True)

    async def run(conn: psycopg.Connection[Any]) -> int:
        return await trio.to_thread.run_sync(ask, conn)

    return trio.run(_on_trio, connect, run, connections)


def trio_asyncio(dsn: str, connections: int) -> float:
    """psycopg's AsyncConnection through trio-asyncio."""

    async def main() -> float:
        async with bridge.open_loop():
            call = bridge.aio_as_trio

            class Bridged:
                def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
                    self.conn = conn
                    self.close = call(conn.close)

            async def connect() -> Bridged:
                opener = call(psycopg.AsyncConnection.connect)
                return Bridged(await opener(dsn, autocommit=True))

            select = call(_select)
            return await _on_trio(connect, lambda bridged: select(bridged.conn), connections)

    return trio.run(main)


def _on_asyncio(run: Callable[[Any], Awaitable[int]], dsn: str, connections: int) -> float:
    async def main() -> float:
        connect = psycopg.AsyncConnection.connect
        conns = [await connect(dsn, autocommit=True) for _ in range(connections)]
        began = time.perf_counter()
        done = await asyncio.gather(*(_repeat(lambda c=c: run(c)) for c in conns))  # type: ignore[misc]
        rate = sum(done) / (time.perf_counter() - began)
        for conn in conns:
            await conn.close()
        return rate

    return asyncio.run(main())


def on_asyncio(dsn: str, connections: int) -> float:
    """psycopg's AsyncConnection where it is at home."""
    return _on_asyncio(_select, dsn, connections)


def asyncio_pipeline(dsn: str, connections: int) -> float:
    """psycopg's AsyncConnection where it is at home, in pipeline mode."""
    return _on_asyncio(_pipeline, dsn, connections)


VARIANTS: dict[str, Callable[[str, int], float]] = {
    "native": native,
    "pool": pool,
    "threads": threads,
    "trio_asyncio": trio_asyncio,
    "asyncio": on_asyncio,
    "native_pipeline": native_pipeline,
    "asyncio_pipeline": asyncio_pipeline,
}


def run(rounds: int = 3) -> dict[str, Any]:
    """Measure every variant `rounds` times, interleaved, and return the medians and ratios."""
    from tests.db.cluster import Cluster, binaries

    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(cluster.remove)
        cluster.start()
        seen: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name in VARIANTS:
                for connections in (1, 8):
                    command = [sys.executable, "-m", "tests.bench.db", "--variant", name]
                    command += ["--connections", str(connections), "--dsn", cluster.dsn()]
                    out = subprocess.run(
                        command, check=True, capture_output=True, timeout=60, text=True
                    )
                    seen.setdefault(f"{name} x{connections}", []).append(float(out.stdout))
    results = {name: round(statistics.median(rates)) for name, rates in seen.items()}
    better = max(results["threads x8"], results["trio_asyncio x8"])
    return {
        "name": "database round trips",
        "unit": "statements/s",
        "results": results,
        "ratios": {
            "native / better of threads and trio-asyncio, 8 connections": {
                "value": round(results["native x8"] / better, 2),
                "required": 2.0,
            },
            **{
                f"pipeline: native / asyncio, {n} connection{'s' * (n > 1)}": {
                    "value": round(
                        results[f"native_pipeline x{n}"] / results[f"asyncio_pipeline x{n}"], 2
                    ),
                    "required": 1.0,
                }
                for n in (1, 8)
            },
        },
    }


def main() -> None:
    """Measure and print; with `--variant` run one variant once and print its rate alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=sorted(VARIANTS))
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--dsn", default="")
    options = parser.parse_args()
    if options.variant:
        print(VARIANTS[options.variant](options.dsn, options.connections))
        return
    figures = run(options.rounds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"{figures['name']} ({figures['unit']})")
    for name, value in figures["results"].items():
        print(f"  {name:24} {value:>10,}")
    for name, ratio in figures["ratios"].items():
        print(f"  {name}: {ratio['value']} (required {ratio['required']})")


if __name__ == "__main__":
    main()
