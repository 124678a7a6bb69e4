"""Lifecycle mail: draining tokens to a pipe, and how soon a new account's mail is under way.

20,000 accounts are inserted beforehand; fsync is on.

- `relay`: `relay collect` with its output read through a pipe; signing and writing included, from
  the first line read to the last.
- `bare`: a synchronous psycopg loop on the tokens of docs/sql.md (their columns and indexes, and a
  `processed_at`), which marks rows with SKIP LOCKED and returns id, action, secret and code; no
  accounts, no check of status or expiry, no signature, no output.

Each in a process of its own, at a batch limit of 10 and of 1,000.

Latencies: from COMMIT of one account to its line (`relay collect --follow`, limit 1), and to MAIL
FROM at a local sink (`relay up`, as shipped but for the upstream).

And how much of a budget is used in a simulated month (virtual clock) that is quiet at first and has
bursts over what it can pay.

Rounds are interleaved, figures are medians, ratios are what is promised.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
import trio

from relay.db.migrate import migrate
from tests.bench.queue import SERVER
from tests.bench.smtp_client import ROOT
from tests.db.cluster import Cluster, binaries
from tests.lifecycle.spending import month_with_bursts
from tests.relay_process import RelayProcess

TOKENS = 20_000
LIMITS = (10, 1_000)
LATENCIES = 200

FILL = """
    INSERT INTO relay.accounts (email, login)
    SELECT 'user' || n || '@example.net', 'user' || n
    FROM generate_series(1, %s) AS n
"""
DOCUMENTED = """
    CREATE TYPE token_action AS ENUM ('activation', 'password_recovery');
    CREATE TABLE accounts (
        id bigserial PRIMARY KEY, email varchar(254) UNIQUE NOT NULL,
        login varchar(254) UNIQUE NOT NULL
    );
    CREATE TABLE tokens (
        id bigserial PRIMARY KEY, action token_action NOT NULL, secret bytea UNIQUE NOT NULL,
        code varchar(5), account bigint NOT NULL, expires_at integer NOT NULL,
        consumed_at integer, created_at integer NOT NULL, processed_at integer,
        FOREIGN KEY (account) REFERENCES accounts (id) ON DELETE CASCADE
            DEFERRABLE INITIALLY DEFERRED
    );
    CREATE INDEX ON tokens (id, expires_at, consumed_at, action);
    CREATE INDEX ON tokens (id) WHERE processed_at IS NULL;
    INSERT INTO accounts (email, login)
    SELECT 'user' || n || '@example.net', 'user' || n FROM generate_series(1, {count}) AS n;
    INSERT INTO tokens (action, secret, code, account, expires_at, created_at)
    SELECT 'activation', sha256(id::text::bytea), '01234', id, 2000000000, 1700000000
    FROM accounts;
"""
BARE = """
    UPDATE tokens
    SET processed_at = extract(epoch FROM now())
    WHERE id IN (
        SELECT id FROM tokens WHERE processed_at IS NULL ORDER BY id LIMIT %s
        FOR UPDATE SKIP LOCKED
    )
    RETURNING id, action, secret, code
"""


def bare(dsn: str, limit: int) -> float:
    """Mark all rows; tokens a second."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        done, began = 0, time.perf_counter()
        while rows := connection.execute(BARE, (limit,)).fetchall():
            done += len(rows)
        seconds = time.perf_counter() - began
    if done != TOKENS:
        raise RuntimeError(f"{done} of {TOKENS} were marked")
    return done / seconds


# The parent ----------------------------------------------------------------------------------


class Bench:
    """One server, and a filled database to copy for each run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for name in ("template_empty", "template_relay", "template_bare"):
            cluster.admin(f"CREATE DATABASE {name}")
        for name in ("template_empty", "template_relay"):
            trio.run(migrate, cluster.dsn(name))
        with psycopg.connect(cluster.dsn("template_bare"), autocommit=True) as admin:
            admin.execute(DOCUMENTED.format(count=TOKENS).encode())
            admin.execute("VACUUM ANALYZE")

    def fill(self) -> None:
        """Queue the tokens: at each round, since they expire."""
        with psycopg.connect(self.cluster.dsn("template_relay"), autocommit=True) as admin:
            admin.execute("TRUNCATE relay.accounts, relay.tokens, relay.token_queue")
            admin.execute(FILL, (TOKENS,))
            admin.execute("VACUUM ANALYZE")
            admin.execute("CHECKPOINT")

    def run(self, variant: str, limit: int) -> float:
        """Measure one variant on a copy; tokens a second."""
        name = self.cluster.new_database(f"template_{variant}")
        try:
            dsn = self.cluster.dsn(name)
            if variant == "bare":
                printed = subprocess.run(
                    [sys.executable, "-m", "tests.bench.collector", "--bare", dsn, str(limit)],
                    stdout=subprocess.PIPE,
                    cwd=ROOT,
                    check=True,
                    timeout=120,
                ).stdout
                return float(json.loads(printed))
            return drained(dsn, limit)
        finally:
            self.cluster.drop_database(name)


@contextmanager
def collecting(dsn: str, limit: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`relay collect` with its output on a pipe; must end with 0."""
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "relay", "collect", "--data-dir", folder, *arguments],
                env={
                    **os.environ,
                    "RELAY_DATABASE__URL": dsn,
                    "RELAY_COLLECTOR__BATCH_LIMIT": str(limit),
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        try:
            yield process
            if process.wait(30) != 0:
                raise RuntimeError(log.read_text()[-2000:])
        finally:
            process.kill()
            process.wait()


def drained(dsn: str, limit: int) -> float:
    """Read what `relay collect` writes; tokens a second from the first line to the last."""
    with collecting(dsn, limit) as process:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        chunks: list[bytes] = []
        began = ended = 0.0
        while chunk := os.read(descriptor, 1 << 16):
            ended = time.perf_counter()
            if not chunks:
                began = ended
            chunks.append(chunk)
    lines = b"".join(chunks).splitlines()
    rows = [(line.count(b",") + 1) // 5 for line in lines]
    if sum(rows) != TOKENS:
        raise RuntimeError(f"{sum(rows)} of {TOKENS} were written")
    return (TOKENS - rows[0]) / (ended - began)


def _insert(user: psycopg.Connection[Any], number: int) -> float:
    user.execute(
        "INSERT INTO relay.accounts (email, login) VALUES (%s, %s)",
        (f"one{number}@example.net", f"one{number}"),
    )
    return time.perf_counter()


def line_latencies(dsn: str) -> list[float]:
    """Milliseconds from the commit of an account to its line, one at a time."""
    found = []
    with (
        collecting(dsn, 1, "--follow") as process,
        psycopg.connect(dsn, autocommit=True) as user,
    ):
        assert process.stdout is not None
        lines: IO[bytes] = process.stdout
        for number in range(LATENCIES + 10):
            committed = _insert(user, number)
            lines.readline()
            found.append((time.perf_counter() - committed) * 1000)
        process.send_signal(signal.SIGTERM)
    return found[10:]


def mail_latencies(dsn: str) -> list[float]:
    """Milliseconds from the commit of an account to MAIL FROM, one at a time."""
    arrived = threading.Semaphore(0)
    at = [0.0]

    def serve(peer: socket.socket) -> None:
        peer.sendall(b"220 sink\r\n")
        with peer, peer.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"MAIL"):
                    at[0] = time.perf_counter()
                    arrived.release()
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

    found = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
    ):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        environment = {
            "RELAY_DATABASE__URL": dsn,
            "RELAY_OUTBOUND__UPSTREAM": f"smtp://127.0.0.1:{listener.getsockname()[1]}",
            "RELAY_LOG__LEVEL": "warning",
        }
        with (
            RelayProcess(Path(folder) / "data", env=environment),
            psycopg.connect(dsn, autocommit=True) as user,
        ):
            for number in range(LATENCIES + 10):
                committed = _insert(user, number)
                if not arrived.acquire(timeout=10):
                    raise RuntimeError("no mail came")
                found.append((at[0] - committed) * 1000)
                time.sleep(0.02)  # let the delivery end: the relay is to be idle
    return found[10:]


def run(rounds: int) -> list[dict[str, Any]]:
    """Measure everything and return it."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True, settings=SERVER)
    rates: dict[tuple[str, int], list[float]] = {}
    waits = {}
    try:
        cluster.start()
        bench = Bench(cluster)
        for _ in range(rounds):
            bench.fill()
            for limit in LIMITS:
                for variant in ("bare", "relay"):
                    rates.setdefault((variant, limit), []).append(bench.run(variant, limit))
        for name, measure in (("line", line_latencies), ("MAIL FROM", mail_latencies)):
            waits[name] = measure(cluster.dsn(cluster.new_database("template_empty")))
    finally:
        cluster.remove()
    return [_drain_report(rates), _latency_report(waits), _budget_report()]


def _drain_report(rates: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    medians = {key: statistics.median(found) for key, found in rates.items()}
    return {
        "name": "tokens drained to a pipe",
        "unit": "tokens/s",
        "results": {
            f"{variant}, batches of {limit}": {"tokens/s": rate}
            for (variant, limit), rate in medians.items()
        },
        "ratios": {
            f"relay collect against a bare loop, batches of {limit}": {
                # Of each round, since machines are not the same from one minute to the next.
                "value": statistics.median(
                    ours / theirs
                    for ours, theirs in zip(
                        rates["relay", limit], rates["bare", limit], strict=True
                    )
                ),
                "required": 0.8,
                "aim": 1.0,
            }
            for limit in LIMITS
        },
    }


def _latency_report(waits: dict[str, list[float]]) -> dict[str, Any]:
    most = {"line": 10.0, "MAIL FROM": 20.0}
    return {
        "name": "from COMMIT of an account",
        "unit": "ms",
        "results": {
            f"to its {name}" if name == "line" else f"to {name}": {
                "p50 ms": statistics.median(found),
                "p95 ms": statistics.quantiles(found, n=20)[-1],
            }
            for name, found in waits.items()
        },
        "ratios": {
            f"COMMIT to {name}, p50 ms": {
                "value": statistics.median(found),
                "at_most": most[name],
            }
            for name, found in waits.items()
        },
    }


def _budget_report() -> dict[str, Any]:
    used = [month_with_bursts(seed)[0] for seed in range(11)]
    return {
        "name": "a budget over simulated months with bursts",
        "unit": "share of the budget",
        "results": {"least used": min(used), "most used": max(used)},
        "ratios": {
            "least of the budget used": {"value": min(used), "required": 0.98},
            "most of the budget used": {"value": max(used), "at_most": 1.0},
        },
    }


def main() -> None:
    """Print the figures as JSON, or run the bare loop for a parent."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.collector", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", nargs=2, metavar=("DSN", "LIMIT"))
    arguments = parser.parse_args()
    if arguments.bare:
        dsn, limit = arguments.bare
        print(json.dumps(bare(dsn, int(limit))))
    else:
        print(json.dumps(run(arguments.rounds), indent=2))


if __name__ == "__main__":
    main()
