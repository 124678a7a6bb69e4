"""kill -9 while programs submit: every 250 is in the queue once, or was sent, byte for byte.

They submit in clear and in TLS, by DATA and by chunks, for later and for now; what is for now goes
to a sink meanwhile.  The key of one of them ends.
"""

from __future__ import annotations

import contextlib
import random
import re
import smtplib
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
import trio

from tests.certificates import write
from tests.eventually import eventually
from tests.faults.outbound import started
from tests.outbound.sink import running_sink
from tests.relay_process import RelayProcess

KILLS = 3
LATER = b"X-Relay-Send-At: 2099-01-01T00:00:00Z\r\n"
ANYONE = ssl.create_default_context()
ANYONE.check_hostname, ANYONE.verify_mode = False, ssl.CERT_NONE
RECIPIENTS = ("b.%s@y.example", "c.%s@z.example")
WAYS = ["clear", "clear", "starttls", "starttls, chunks", "tls", "tls, chunks"]


class Program:
    """Submits one message after another until its relay is gone; keeps what was answered."""

    def __init__(self, relay: RelayProcess, name: str, way: str, password: str) -> None:
        self._run = relay.run
        self._name = name
        self._way = way
        self._password = password
        self.answered: dict[bytes, list[str]] = {}
        """By message: the ids in its 250."""
        self.tried = 0
        self.sent_away: tuple[int, bytes] | None = None

    def run(self) -> None:
        """Go on until the connection breaks, or the key may send no more."""
        with contextlib.suppress(OSError, smtplib.SMTPException):
            client = self._connected()
            try:
                client.login("program", self._password)
                while self.sent_away is None:
                    self._submit(client)
            finally:
                client.close()

    def _connected(self) -> smtplib.SMTP:
        entry = "submission_tls" if self._way.startswith("tls") else "submission"
        host, _, port = self._run[entry].rpartition(":")
        if entry == "submission_tls":
            return smtplib.SMTP_SSL(host, int(port), timeout=20, context=ANYONE)
        client = smtplib.SMTP(host, int(port), timeout=20)
        if self._way.startswith("starttls"):
            client.starttls(context=ANYONE)
        return client

    def _submit(self, client: smtplib.SMTP) -> None:
        self.tried += 1
        name = f"{self._name}.{self.tried}"
        raw = (
            f"Date: now\r\nMessage-ID: <{name}@x.example>\r\n\r\n..\r\n".encode()
            + bytes(range(128, 256)) * (1 + self.tried % 50)
            + b"\r\n"
        )
        recipients = (f"RCPT TO:<{to % name}>" for to in RECIPIENTS)
        for line in ("MAIL FROM:<a@x.example>", *recipients):
            if not self._agreed(client.docmd(line)):
                return
        text = LATER + raw if self.tried % 2 else raw
        if self._way.endswith("chunks"):
            first = 1 + self.tried * 7 % (len(text) - 1)
            client.send(b"BDAT %d\r\n%b" % (first, text[:first]))
            client.send(b"BDAT %d LAST\r\n%b" % (len(text) - first, text[first:]))
            if not self._agreed(client.getreply()):
                return
            last = client.getreply()
        else:
            try:
                last = client.data(text)
            except smtplib.SMTPDataError as error:
                last = error.smtp_code, bytes(error.smtp_error)  # type: ignore[arg-type]  # is bytes
        if self._agreed(last):
            found = re.fullmatch(r"2\.0\.0 queued as (.+)", last[1].decode())
            assert found is not None
            self.answered[raw] = found[1].split(",")

    def _agreed(self, reply: tuple[int, bytes]) -> bool:
        if reply[0] == 421:
            self.sent_away = reply
        else:
            assert reply[0] == 250, reply
        return reply[0] == 250


@asynccontextmanager
async def killed(process: RelayProcess) -> AsyncIterator[RelayProcess]:
    """Start a relay without blocking the sink, and kill it at the end."""
    await trio.to_thread.run_sync(process.start)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.kill)


async def under_load(process: RelayProcess, number: int, enough: int) -> list[Program]:
    """Have programs submit to a relay until so much was answered, and kill it."""
    async with killed(process) as relay:
        with relay.http() as http:
            wanted = {"owner": "shop", "scopes": ["send"], "expires_in": 1.0}
            made = await trio.to_thread.run_sync(lambda: http.post("/api/v1/keys", json=wanted))
        ending = made.raise_for_status().json()["token"]
        programs = [
            Program(relay, f"{number}.{place}", way, relay.run["admin_token"])
            for place, way in enumerate(WAYS)
        ]
        programs.append(Program(relay, f"{number}.ending", "tls, chunks", ending))
        threads = [threading.Thread(target=program.run) for program in programs]
        for thread in threads:
            thread.start()
        await eventually(
            lambda: (
                sum(len(program.answered) for program in programs)
                # Once its key is seen to end; for the others a kill may come before.
                * (number > 0 or programs[-1].sent_away is not None)
            ),
            "they are answered",
            until=lambda count: count >= enough,
            within=60.0,
        )
    for thread in threads:
        await trio.to_thread.run_sync(thread.join)
    return programs


async def rounds(folder: Path, thresholds: list[int]) -> int:
    """Kill it as often, each time under load; return how many answers were checked."""
    cert, key = write(folder)
    async with running_sink() as sink:
        relay = RelayProcess(
            folder / "data",
            env={
                "RELAY_SMTP__TLS_CERT": cert,
                "RELAY_SMTP__TLS_KEY": key,
                "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
                "RELAY_OUTBOUND__UPSTREAM": sink.url,
                "RELAY_OUTBOUND__LEASE_TIMEOUT": "2",
                "RELAY_OUTBOUND__RETRY_UNIT": "0.1",
                "RELAY_OUTBOUND__MAX_ATTEMPTS": "100",
                "RELAY_LOG__LEVEL": "warning",
            },
        )
        programs = []
        for number, enough in enumerate(thresholds):
            programs += await under_load(relay, number, enough)
        answered = {raw: ids for program in programs for raw, ids in program.answered.items()}
        tried = sum(program.tried for program in programs)
        for place in range(len(WAYS) + 1):
            # In some round: a kill may come before a program has signed in.
            assert any(program.tried for program in programs[place :: len(WAYS) + 1])
        assert {program.sent_away for program in programs[: len(WAYS)]} == {None}
        assert programs[len(WAYS)].sent_away == (421, b"4.7.0 This key may send no more; good-bye")
        async with started(relay):
            found, admitted = await trio.to_thread.run_sync(once_all_is_sent, relay)
    for raw, ids in answered.items():
        assert found[raw][0] == ids
    # What was in hand when the relay died may be there without an answer, and nothing else is.
    assert len(answered) <= len(found) <= tried
    copies: Counter[tuple[str, bytes]] = Counter()
    for received in sink.received:
        _, _, raw = received.data.partition(b"+0000\r\n")
        assert found[raw][1] == "sent", "it was for later, or is not in the queue"
        copies[received.recipient, raw] += 1
    for raw, (ids, status) in found.items():
        name = re.search(rb"<(.+)@x\.example>", raw)
        assert name is not None
        for message_id, to in zip(ids, RECIPIENTS, strict=True):
            count = copies[to % name[1].decode(), raw]
            # A second copy is one that the records admit: of a relay that died before it knew.
            assert (status == "sent") <= count <= (status == "sent") + admitted[message_id]
    return len(answered)


def once_all_is_sent(
    relay: RelayProcess,
) -> tuple[dict[bytes, tuple[list[str], str]], Counter[str]]:
    """By message: its ids and its status; and by id how often nobody knows what became of it."""
    with (
        psycopg.connect(relay.run["database_url"], autocommit=True) as database,
        relay.http() as http,
    ):
        until = time.monotonic() + 60
        # Those for later have a time of their own, and what is held has none.
        left = "SELECT count(*) FROM relay.outbound_due WHERE run_at <> '2099-01-01Z'"
        held = "SELECT id FROM relay.outbound_messages WHERE status = 'held'"
        while database.execute(left).fetchone() != (0,):
            for (message_id,) in database.execute(held).fetchall():
                http.post(f"/api/v1/outbound/{message_id}/retry")
            assert time.monotonic() < until, relay.log_tail()
            time.sleep(0.05)
        rows = database.execute(
            """
            SELECT c.blob, array_agg(m.id::text ORDER BY m.id), array_agg(DISTINCT m.status)
            FROM relay.outbound_contents c
            JOIN relay.outbound_letters l ON l.content_id = c.id
            JOIN relay.outbound_messages m ON m.id = l.id
            GROUP BY c.id, c.blob
            """
        ).fetchall()
        tries = database.execute(
            """
            SELECT message_id::text, count(*)
            FROM relay.outbound_tries
            WHERE outcome = 'lost' OR (phase = 'dot' AND code IS NULL)
            GROUP BY message_id
            """
        ).fetchall()
    found: dict[bytes, tuple[list[str], str]] = {}
    for blob, ids, (status,) in rows:
        received, _, raw = bytes(blob).partition(b"+0000\r\n")
        assert received.startswith(b"Received: from ")
        assert raw not in found, "twice in the queue"
        assert len(ids) == 2
        found[raw] = ids, status
    return found, Counter(dict(tries))


@pytest.mark.timeout(110)
async def test_every_250_is_in_the_queue_once_byte_for_byte(tmp_path: Path):
    """Killed again and again under load; what was not answered is there whole or not at all."""
    assert await rounds(tmp_path, [40 * (number + 1) for number in range(KILLS)]) >= 240


@pytest.mark.soak
async def test_many_kills_lose_no_submission(tmp_path: Path):
    """The same at many moments, the first answers among them."""
    rng = random.Random(time.time_ns())
    count = await rounds(tmp_path, [40, *(rng.choice([1, 5, 50, 200, 600]) for _ in range(40))])
    print(f"{count} answers were kept")
    assert count > 1000
