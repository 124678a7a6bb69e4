"""Expiry: how late a flag is, and what a million mailboxes that end at once cost the living.

On the real program.  Lateness is seen from outside: a client that looks every few milliseconds
notes, by the database's clock, when it first sees a mailbox inactive.
"""

from __future__ import annotations

import os
import smtplib
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

SPREAD = 1000  # mailboxes that expire one after the other
SPREAD_SECONDS = 10.0
CROWD = int(os.environ.get("RELAY_BENCH_CROWD", "1000000"))  # mailboxes that expire at once
SENDERS = 4
IDLE_SECONDS = 10.0
PATIENCE = 1800.0  # s, for the crowd to be gone


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def lateness(database: psycopg.Connection[Any]) -> list[float]:
    """Seconds by which each of many flags was late, as seen by a client."""
    database.execute(
        """
        INSERT INTO relay.mailboxes (address, expires_at)
        SELECT 'spread-' || n || '@relay.localhost',
               now() + interval '2 s' + n * make_interval(secs => %s)
        FROM generate_series(1, %s) AS n
        """,
        (SPREAD_SECONDS / SPREAD, SPREAD),
    )
    late: dict[str, float] = {}
    until = time.monotonic() + SPREAD_SECONDS + 10
    while len(late) < SPREAD:
        assert time.monotonic() < until, f"only {len(late)} of {SPREAD} were flipped"
        for address, seconds in database.execute(
            """
            SELECT address, extract(epoch FROM clock_timestamp() - expires_at)::float8
            FROM relay.mailboxes
            WHERE NOT is_active AND closed_at > now() - interval '1 s'
              AND address LIKE 'spread-%'
            """
        ).fetchall():
            late.setdefault(address, seconds)
        time.sleep(0.003)
    return list(late.values())


class Deliveries:
    """Sessions that deliver all the time and note the seconds from RCPT to 250."""

    def __init__(self, relay: RelayProcess) -> None:
        self.seconds: list[float] = []
        self._stop = threading.Event()
        address = relay.create_mailbox()
        self._threads = [
            threading.Thread(target=self._deliver, args=(relay, address)) for _ in range(SENDERS)
        ]

    def _deliver(self, relay: RelayProcess, address: str) -> None:
        body = b"Subject: x\r\n\r\n" + b"x" * 70 + b"\r\n"
        with smtplib.SMTP(*relay.smtp) as client:
            client.ehlo("bench.example")
            while not self._stop.is_set():
                client.mail("a@example.org")
                began = time.perf_counter()
                assert client.rcpt(address)[0] == 250
                assert client.data(body)[0] == 250
                self.seconds.append(time.perf_counter() - began)
                time.sleep(0.01)

    def __enter__(self) -> Deliveries:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def run(_: int) -> dict[str, Any]:
    """Measure lateness, then deliveries without and with a crowd that expires."""
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
        RelayProcess(Path(folder) / "var", env={"RELAY_LOG__LEVEL": "warning"}) as relay,
        psycopg.connect(relay.run["database_url"], autocommit=True) as database,
    ):
        late = lateness(database)
        # All of them at the same instant, late enough to be there first.
        database.execute(
            """
            INSERT INTO relay.mailboxes (address, expires_at)
            SELECT 'crowd-' || n || '@relay.localhost', now() + %s
            FROM generate_series(1, %s) AS n
            """,
            (timedelta(seconds=30 + CROWD / 12_000), CROWD),
        )
        database.execute("VACUUM ANALYZE relay.mailboxes")
        database.execute("CHECKPOINT")
        with Deliveries(relay) as idle:
            time.sleep(IDLE_SECONDS)
        due = database.execute(
            "SELECT extract(epoch FROM max(expires_at) - clock_timestamp())::float8"
            " FROM relay.mailboxes WHERE address LIKE 'crowd-%'"
        ).fetchone()
        assert due is not None
        assert due[0] > 0, "the crowd expired before the measurement began"
        time.sleep(due[0])
        began = time.monotonic()
        with Deliveries(relay) as crowded:

            def left() -> int:
                time.sleep(5.0)  # counting a million rows disturbs what is measured
                row = database.execute(
                    "SELECT count(*) FROM relay.mailboxes"
                    " WHERE is_active AND address LIKE 'crowd-%'"
                ).fetchone()
                assert row is not None
                return int(row[0])

            eventually_sync(
                left, "the crowd is gone", until=lambda count: not count, within=PATIENCE
            )
        took = time.monotonic() - began
    calm, busy = percentile(idle.seconds, 0.99), percentile(crowded.seconds, 0.99)
    return {
        "name": "expiry",
        "unit": "value",
        "results": {
            "flag late, p50 (ms)": percentile(late, 0.5) * 1e3,
            "flag late, p99 (ms)": percentile(late, 0.99) * 1e3,
            f"{CROWD} flipped in (s)": took,
            "RCPT to 250, idle, p99 (ms)": calm * 1e3,
            "RCPT to 250, during the flips, p99 (ms)": busy * 1e3,
            "deliveries during the flips": len(crowded.seconds),
        },
        "ratios": {
            "flag late p99, ms": {"value": percentile(late, 0.99) * 1e3, "at_most": 100.0},
            "delivery p99 during flips / idle": {"value": busy / calm, "at_most": 5.0},
        },
    }
