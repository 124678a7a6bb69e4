"""kill -9 while programs submit: every 250 is in the queue once, byte for byte."""

from __future__ import annotations

import contextlib
import re
import smtplib
import threading
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from tests.relay_process import RelayProcess

WORKERS = 6
KILLS = 3
LATER = b"X-Relay-Send-At: 2099-01-01T00:00:00Z\r\n"


class Program:
    """Submits one message after another until its relay is gone; keeps what was answered."""

    def __init__(self, relay: RelayProcess, name: str) -> None:
        self._relay = relay
        self._name = name
        self.answered: dict[bytes, list[str]] = {}
        """By message: the ids in its 250."""
        self.tried = 0

    def run(self) -> None:
        """Go on until the connection breaks."""
        host, _, port = self._relay.run["submission"].rpartition(":")
        with contextlib.suppress(OSError, smtplib.SMTPException):
            client = smtplib.SMTP(host, int(port), timeout=20)
            client.login("program", self._relay.run["admin_token"])
            while True:
                self._submit(client)

    def _submit(self, client: smtplib.SMTP) -> None:
        self.tried += 1
        raw = (
            f"Date: now\r\nMessage-ID: <{self._name}.{self.tried}@x.example>\r\n\r\n..\r\n".encode()
            + bytes(range(128, 256)) * (1 + self.tried % 50)
            + b"\r\n"
        )
        client.mail("a@x.example")
        client.rcpt("b@y.example")
        client.rcpt("c@z.example")
        code, reply = client.data(LATER + raw)
        assert code == 250, reply
        found = re.fullmatch(r"2\.0\.0 queued as (.+)", reply.decode())
        assert found is not None
        self.answered[raw] = found[1].split(",")


@pytest.mark.timeout(110)
def test_every_250_is_in_the_queue_once_byte_for_byte(tmp_path: Path):
    """Killed again and again under load; what was not answered is there whole or not at all."""
    relay = RelayProcess(tmp_path / "data")
    answered: dict[bytes, list[str]] = {}
    tried = 0
    for number in range(KILLS):
        relay.start()
        programs = [Program(relay, f"{number}.{worker}") for worker in range(WORKERS)]
        threads = [threading.Thread(target=program.run) for program in programs]
        for thread in threads:
            thread.start()
        enough = threading.Event()
        while sum(len(program.answered) for program in programs) < 40 * (number + 1):
            assert any(thread.is_alive() for thread in threads), relay.log_tail()
            enough.wait(0.01)
        relay.kill()
        for thread in threads:
            thread.join(30)
        for program in programs:
            answered |= program.answered
            tried += program.tried
    with relay, psycopg.connect(relay.run["database_url"]) as database:
        rows = database.execute(
            """
            SELECT c.blob, array_agg(l.id ORDER BY l.id), array_agg(d.id ORDER BY d.id)
            FROM relay.outbound_contents c
            JOIN relay.outbound_letters l ON l.content_id = c.id
            LEFT JOIN relay.outbound_due d ON d.id = l.id
            GROUP BY c.id, c.blob
            """
        ).fetchall()
    found: dict[bytes, list[UUID]] = {}
    for blob, ids, due in rows:
        assert ids == due
        assert len(ids) == 2
        received, _, rest = blob.partition(b"+0000\r\n")
        assert received.startswith(b"Received: from ")
        assert rest not in found, "twice in the queue"
        found[rest] = ids
    assert len(answered) >= 40 * (1 + 2 + 3)
    for raw, names in answered.items():
        assert [str(each) for each in found[raw]] == names
    # What was in hand when the relay died may be there without an answer, and nothing else is.
    assert len(answered) <= len(found) <= tried
