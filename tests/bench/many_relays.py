"""Many relays on one PostgreSQL: what each more of them costs the server that they share.

One, three and ten relays of all roles: idle for 20 seconds, then with as many messages in each
variant, 200 a second for 10 seconds, spread over all relays, each relay's to a mailbox of its own.

- `connections`: to PostgreSQL, at rest.
- `transactions/s`: ended at rest, of all relays together (`pg_stat_database`).
- `idle PG %`, `idle relay %`: CPU of PostgreSQL, and of one relay, in percent of a core.
- `PG ms`, `relays ms`: CPU a message of PostgreSQL and of all relays, while mail comes in and until
  the last is parsed, less what they take at rest.
"""

from __future__ import annotations

import smtplib
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests.bench.proc import cpu_seconds_of_all
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

COUNTS = (1, 3, 10)
IDLE = 20.0  # s
SENDING = 10.0  # s
RATE = 200  # messages a second, in all
_PARSED_WITHIN = 30.0  # s
_LETTER = "Subject: hello {number}\r\n\r\nYour code is {number:06d}.\r\n" + "x" * 70 + "\r\n"


def measure(count: int) -> dict[str, float]:
    """Run so many relays on a server of their own."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    server = Cluster(bin_dir, settings={"max_connections": "300"})
    try:
        server.start()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-")))
            env = {
                "RELAY_LOG__LEVEL": "warning",
                "RELAY_DATABASE__URL": server.dsn(),
                "RELAY_SECRET_KEY": "b" * 64,
            }
            relays = [
                stack.enter_context(RelayProcess(folder / str(number), env=env))
                for number in range(count)
            ]
            sql = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
            return _measured(server, relays, sql)
    finally:
        server.remove()


def _measured(
    server: Cluster, relays: list[RelayProcess], sql: psycopg.Connection[Any]
) -> dict[str, float]:
    addresses = [relay.create_mailbox(ttl_minutes=60) for relay in relays]
    clients = [smtplib.SMTP(*relay.smtp, timeout=30) for relay in relays]
    time.sleep(3.0)  # what a start brings with it
    assert server.process is not None
    postgres = server.process.pid

    def cpu() -> tuple[float, float]:
        return cpu_seconds_of_all(postgres), sum(cpu_seconds_of_all(relay.pid) for relay in relays)

    def one(query: str) -> float:
        row = sql.execute(query).fetchone()
        assert row is not None
        return float(row[0])

    ended = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    ended_before, before, began = one(ended), cpu(), time.monotonic()
    time.sleep(IDLE)
    seconds = time.monotonic() - began
    pg_idle, relays_idle = (
        (late - early) / seconds for early, late in zip(before, cpu(), strict=True)
    )
    found = {
        "connections": one(waiting) - 1,
        "transactions/s": (one(ended) - ended_before) / seconds,
        "idle PG %": 100 * pg_idle,
        "idle relay %": 100 * relays_idle / len(relays),
    }
    before, began = cpu(), time.monotonic()
    count = int(RATE * SENDING)
    for number in range(count):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        at = number % len(relays)
        letter = _LETTER.format(number=number)
        clients[at].sendmail("a@shop.example", [addresses[at]], letter)
    eventually_sync(
        lambda: one("SELECT count(*) FROM relay.summaries"),
        "all is parsed",
        until=lambda parsed: parsed >= count,
        within=_PARSED_WITHIN,
        every=0.1,
    )
    seconds = time.monotonic() - began
    pg_busy, relays_busy = (late - early for early, late in zip(before, cpu(), strict=True))
    for client in clients:
        client.quit()
    return found | {
        "PG ms": 1000 * (pg_busy - pg_idle * seconds) / count,
        "relays ms": 1000 * (relays_busy - relays_idle * seconds) / count,
    }


def run(rounds: int) -> dict[str, Any]:
    """Measure each number of relays `rounds` times, interleaved; medians."""
    taken: dict[int, list[dict[str, float]]] = {count: [] for count in COUNTS}
    for _ in range(rounds):
        for count in COUNTS:
            taken[count].append(measure(count))
    results = {
        f"{count} relay{'s' if count > 1 else ''}": {
            figure: statistics.median(one[figure] for one in found) for figure in found[0]
        }
        for count, found in taken.items()
    }
    few, many = (results[f"{count} relays"] for count in COUNTS[1:])
    return {
        "name": "many relays on one PostgreSQL",
        "unit": "medians",
        "results": results,
        "ratios": {
            "PostgreSQL's CPU a message, ten relays to three": {
                "value": many["PG ms"] / few["PG ms"],
                "at_most": 2.0,
            },
        },
    }
