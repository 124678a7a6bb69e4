"""What was promised while a synchronous standby was away is there after the failover.

A real primary and a real standby, a relay on both.  Mail, sends with a key and blobs of devices
before the standby dies, while it is away, and after the primary was killed and the standby
promoted.  While it is away there are only 4xx and 503, in time: what is visible on the primary
alone is lost with it.
"""

from __future__ import annotations

import smtplib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.db.cluster import Pair
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

DEVICE = "ab" * 32
NOBODY_CONFIRMS = "PostgreSQL's commits wait for a standby, and none is connected."
SEND = {"from": "shop@relay.localhost", "subject": "s", "text": "t"}


@dataclass
class Sent:
    """What was tried in one phase, and what was promised."""

    accepted: list[str] = field(default_factory=list)  # subjects that were answered 250
    refused: list[str] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)
    slowest: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


def post(relay: RelayProcess, address: str, subjects: list[str], connections: int = 8) -> Sent:
    """Send one message for each subject, over so many connections at once."""
    sent = Sent()

    def send(mine: list[str]) -> None:
        with smtplib.SMTP(*relay.smtp, timeout=60) as client:
            client.ehlo()
            for subject in mine:
                began = time.monotonic()
                try:
                    client.sendmail("a@example.org", [address], f"Subject: {subject}\r\n\r\nhi\r\n")
                    code = 250
                except smtplib.SMTPRecipientsRefused as error:
                    ((code, _),) = error.recipients.values()
                except smtplib.SMTPResponseException as error:
                    code = error.smtp_code
                with sent.lock:
                    (sent.accepted if code == 250 else sent.refused).append(subject)
                    sent.codes.add(code)
                    sent.slowest = max(sent.slowest, time.monotonic() - began)

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(send, [subjects[n::connections] for n in range(connections)]))
    return sent


def named(phase: str, count: int) -> list[str]:
    return [f"{phase}-{number}" for number in range(count)]


def begin(relay: RelayProcess, pair: Pair) -> str:
    """Make a mailbox, and have commits wait for the standby from then on."""
    address = relay.create_mailbox()
    pair.begin()
    return address


def on(pair: Pair, tmp_path: Path, **env: str) -> RelayProcess:
    return RelayProcess(
        tmp_path / "var",
        env={
            "RELAY_LOG__LEVEL": "warning",
            "RELAY_DATABASE__URL": pair.dsn(),
            "RELAY_DEVICES__STORE": "postgres",
            **env,
        },
    )


def until_taken(relay: RelayProcess, address: str, subjects: list[str]) -> Sent:
    """Post again what was refused, as clients do, until all of it was answered 250."""
    total = Sent()
    deadline = time.monotonic() + 60
    while subjects:
        assert time.monotonic() < deadline, "no 250 after the failover"
        sent = post(relay, address, subjects)
        total.accepted += sent.accepted
        total.codes |= sent.codes
        subjects = sent.refused
    return total


def stored(pair: Pair, address: str) -> set[str]:
    """The subjects of the messages that the promoted server has."""
    with psycopg.connect(pair.standby.dsn()) as conn:
        rows = conn.execute(
            """
            SELECT split_part(split_part(convert_from(raw_email, 'UTF8'), E'\\r', 1), ': ', 2)
            FROM relay.messages
            WHERE recipient = %s
            """,
            [address],
        ).fetchall()
    return {subject for (subject,) in rows}


def test_nothing_that_was_promised_is_lost_with_the_primary(pair, tmp_path):
    """Mail, sends and blobs: those promised are all there, those refused were refused in time."""
    with on(pair, tmp_path, RELAY_DATABASE__CALL_TIMEOUT="0.5") as relay:
        other = relay.create_mailbox()
        address = begin(relay, pair)
        with relay.http() as client:

            def send(key: str) -> httpx.Response:
                body = {**SEND, "to": [f"{key}@relay.localhost"], "send_at": "2999-01-01T00:00:00Z"}
                return client.post(
                    "/api/v1/messages/send", json=body, headers={"Idempotency-Key": key}
                )

            def put(blob: bytes) -> httpx.Response:
                return client.post(
                    f"/api/v1/devices/{DEVICE}/blobs",
                    content=blob,
                    headers={"Content-Type": "application/octet-stream"},
                )

            before = post(relay, address, named("before", 16))
            assert len(before.accepted) == 16
            assert send("early").status_code == 202
            assert put(b"early").status_code == 201

            pair.standby.stop()
            during = post(relay, address, named("during", 8))
            assert (during.accepted, during.codes) == ([], {451})
            assert during.slowest < 10
            eventually_sync(
                lambda: client.get("/readyz").json().get("detail"),
                "it is not ready, and says why",
                until=("Not ready: " + NOBODY_CONFIRMS).__eq__,
            )
            attention = client.get("/api/v1/overview").json()["attention"]
            assert attention[0]["text"] == "PostgreSQL waits for a standby."
            assert send("late").status_code == 503
            again = send("late")  # it is there to be seen, and promised by nobody
            assert again.status_code == 503
            assert put(b"late").status_code == 503
            # As a DELETE in doubt leaves it.  Without triggers: a NOTIFY would wait for the commits
            # that wait for the standby.
            pair.primary.admin(
                "SET synchronous_commit = local; SET session_replication_role = replica;"
                f" UPDATE relay.mailboxes SET is_active = false WHERE address = '{other}'"
            )
            assert client.get(f"/api/v1/mailboxes/{other}").status_code == 404  # so it looks
            assert client.delete(f"/api/v1/mailboxes/{other}").status_code == 503

            pair.fail_over()
            after = until_taken(relay, address, named("after", 16) + during.refused)
            eventually_sync(
                lambda: client.get("/readyz").status_code, "ready again", until=(200).__eq__
            )
            assert send("early").json()["messages"][0]["status"] == "queued"
            assert (answer := send("late")).status_code == 202
            assert put(b"late").status_code == 201
            assert client.delete(f"/api/v1/mailboxes/{other}").status_code == 204  # it was back

        promised = {*before.accepted, *during.accepted, *after.accepted}
        assert len(promised) == 40
        assert promised <= stored(pair, address)
        with psycopg.connect(pair.standby.dsn()) as conn:
            recipients = conn.execute("SELECT recipient FROM relay.outbound_letters").fetchall()
            assert sorted(recipients) == [("early@relay.localhost",), ("late@relay.localhost",)]
            letters = conn.execute(
                "SELECT id::text FROM relay.outbound_letters WHERE recipient LIKE 'late@%'"
            ).fetchall()
            assert letters == [(answer.json()["messages"][0]["id"],)]
            blobs = conn.execute("SELECT envelope FROM relay.device_inbox ORDER BY id").fetchall()
            assert blobs == [(b"early",), (b"late",)]


@pytest.mark.soak
def test_a_thousand_mails_over_a_failover(pair, tmp_path):
    """Before, while the standby is away, and after: every 250 is kept, with the usual deadlines."""
    with on(pair, tmp_path) as relay:
        address = begin(relay, pair)
        before = post(relay, address, named("before", 400))
        pair.standby.stop()
        during = post(relay, address, named("during", 100), connections=25)
        pair.fail_over()
        began = time.monotonic()
        after = until_taken(relay, address, named("after", 500) + during.refused)
        took = time.monotonic() - began
        promised = {*before.accepted, *during.accepted, *after.accepted}
        lost = promised - stored(pair, address)
        print(
            f"before {len(before.accepted)} answered 250; during {len(during.accepted)} and "
            f"{len(during.refused)} of {sorted(during.codes)} within {during.slowest:.1f} s; "
            f"after {len(after.accepted)} in {took:.1f} s; lost {len(lost)}"
        )
        assert not lost
        assert len(before.accepted) == 400
        assert all(400 <= code < 500 for code in during.codes)
        assert len(promised) == 1000
