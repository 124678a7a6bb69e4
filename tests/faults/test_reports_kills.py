"""kill -9 while mail is submitted, refused and reported: each submitter is told once of each."""

from __future__ import annotations

import contextlib
import smtplib
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path

import psycopg
import pytest
import trio

from relay.returns.report import read
from tests.eventually import eventually
from tests.faults.outbound import started
from tests.outbound.sink import Session, Sink, running_sink
from tests.relay_process import RelayProcess

KILLS = 3
MAIL = b"From: shop@shop.example\r\nSubject: s\r\n\r\ntext\r\n"


async def refusing(session: Session, verb: str, line: str) -> bytes | None:
    """Refuses who is not there, at RCPT; takes reports."""
    if verb == "RCPT" and "<no." in line:
        return b"550 5.1.1 nobody\r\n"
    return None


def submit(relay: RelayProcess, name: str, answered: set[str], tried: set[str]) -> None:
    """Submit one after another until the relay is gone."""
    with contextlib.suppress(OSError, smtplib.SMTPException):
        host, _, port = relay.run["submission"].rpartition(":")
        with smtplib.SMTP(host, int(port), timeout=20) as client:
            client.login("any", relay.run["admin_token"])
            for number in range(1, 100_000):
                to = f"no.{name}.{number}@y{number % 7}.example"
                tried.add(to)
                client.sendmail("shop@shop.example", [to], MAIL, rcpt_options=["NOTIFY=FAILURE"])
                answered.add(to)


async def under_load(
    relay: RelayProcess, sink: Sink, number: int, answered: set[str], tried: set[str]
) -> None:
    """Kill a relay in the middle of submissions, refusals and reports."""
    await trio.to_thread.run_sync(relay.start)
    seen = len(sink.received)
    threads = [
        threading.Thread(target=submit, args=(relay, f"{number}-{place}", answered, tried))
        for place in range(3)
    ]
    for thread in threads:
        thread.start()
    try:
        await eventually(
            lambda: len(sink.received) - seen,
            "reports come",
            until=lambda count: count >= 20 * (number + 1),
            within=60.0,
        )
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(relay.kill)
    for thread in threads:
        await trio.to_thread.run_sync(thread.join)


@pytest.mark.timeout(110)
async def test_each_is_told_once(tmp_path: Path):
    """Of all that was answered 250, and of nothing twice: two reports of one message are one mail,
    delivered again where its own outcome was lost."""
    answered: set[str] = set()
    tried: set[str] = set()
    async with running_sink(refusing) as sink:
        relay = RelayProcess(
            tmp_path / "data",
            env={
                "RELAY_OUTBOUND__UPSTREAM": sink.url,
                "RELAY_OUTBOUND__LEASE_TIMEOUT": "2",
                "RELAY_OUTBOUND__RETRY_UNIT": "0.1",
                "RELAY_OUTBOUND__MAX_ATTEMPTS": "100",
                "RELAY_LOG__LEVEL": "warning",
            },
        )
        for number in range(KILLS):
            await under_load(relay, sink, number, answered, tried)
        async with started(relay):

            def left() -> tuple[int, int]:
                with psycopg.connect(relay.run["database_url"]) as database:
                    row = database.execute(
                        """
                        SELECT (SELECT count(*) FROM relay.outbound_due),
                               (SELECT count(*) FROM relay.outbound_notices)
                        """
                    ).fetchone()
                    assert row is not None
                    return int(row[0]), int(row[1])

            await eventually(
                partial(trio.to_thread.run_sync, left),
                # In this order: what is due makes a notice, a notice what is due.
                "nothing is due, and nothing is to be told",
                until=lambda left: left == (0, 0),
                within=60,
            )
    told: dict[str, set[str]] = defaultdict(set)
    for received in sink.received:
        assert received.sender == ""
        for one in read(received.data).recipients:
            told[one.final].add(received.message_id)
    assert answered <= told.keys() <= tried
    assert {name for name, ids in told.items() if len(ids) > 1} == set()
    assert len(answered) > 100
