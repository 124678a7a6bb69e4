"""Faults on demand and crowds of captures, as an application meets them: by a real `relay up`."""

from __future__ import annotations

import smtplib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import trio

from tests.relay_process import RelayProcess

CROWD = 1000
MAIL = "From: shop@shop.example\r\nSubject: s\r\n\r\nHello.\r\n"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay that lets things go wrong, with room for a crowd from one address."""
    env = {
        "RELAY_SMTP__CHAOS": "true",
        "RELAY_SMTP__MAX_CONNECTIONS": str(CROWD + 100),
        "RELAY_SMTP__MAX_CONNECTIONS_PER_PEER": str(CROWD + 100),
    }
    with RelayProcess(tmp_path_factory.mktemp("chaos") / "data", env=env) as process:
        yield process


def stored(relay: RelayProcess) -> list[str]:
    """The mailbox of each message, sorted."""
    with psycopg.connect(relay.run["database_url"]) as database:
        rows = database.execute(
            """
            SELECT b.address
            FROM relay.messages m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            """
        )
        return sorted(address for (address,) in rows)


def test_an_address_says_what_goes_wrong(relay: RelayProcess) -> None:
    """A reply for good, one for now, one that is late; the rest of the transaction goes on."""
    with smtplib.SMTP(*relay.smtp, timeout=30) as session:
        session.ehlo("app.example")
        session.mail("shop@shop.example")
        assert session.rcpt("550-5.1.1@chaos.relay.localhost")[0] == 550
        assert session.rcpt("451@chaos.relay.localhost")[0] == 451
        began = time.monotonic()
        assert session.rcpt("slow-1s@chaos.relay.localhost")[0] == 250
        assert time.monotonic() - began >= 1
        assert session.data(MAIL.encode())[0] == 250
        refused = [f"{name}@chaos.relay.localhost" for name in ("550-5.1.1", "451")]
        with pytest.raises(smtplib.SMTPRecipientsRefused) as caught:
            session.sendmail("shop@shop.example", refused, MAIL)
    assert {code for code, _ in caught.value.recipients.values()} == {550, 451}
    assert stored(relay) == ["slow-1s@chaos.relay.localhost"]


def test_a_connection_breaks_at_the_dot(relay: RelayProcess) -> None:
    """And nothing of that message is kept."""
    before = stored(relay)
    with pytest.raises(smtplib.SMTPServerDisconnected), smtplib.SMTP(*relay.smtp) as session:
        session.sendmail("a@shop.example", "drop-at-dot@chaos.relay.localhost", MAIL)
    assert stored(relay) == before


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "dot"])
def test_a_rate_holds_from_the_next_command_on(relay: RelayProcess, phase: str) -> None:
    """Of each kind of command, in sessions that are open already, until it is taken back."""
    before = stored(relay)
    with relay.http() as api, smtplib.SMTP(*relay.smtp, timeout=30) as session:
        session.ehlo("app.example")
        api.put("/api/v1/chaos", json={phase: {"code": 452, "rate": 1}}).raise_for_status()
        with pytest.raises(smtplib.SMTPException) as caught:
            session.sendmail("a@shop.example", f"{phase}@customer.example", MAIL)
        assert "452" in str(caught.value)
        assert stored(relay) == before
        api.put("/api/v1/chaos", json={}).raise_for_status()
        session.rset()
        session.sendmail("a@shop.example", f"{phase}@customer.example", MAIL)
    assert stored(relay) == sorted([*before, f"{phase}@customer.example"])


def test_faults_are_for_this_machine_alone(tmp_path: Path) -> None:
    """On an address that others reach they are a mistake of the configuration."""
    env = {"RELAY_SMTP__CHAOS": "true", "RELAY_SMTP__BIND": "0.0.0.0:0"}
    relay = RelayProcess(tmp_path / "data", env=env)
    assert relay.spawn().wait(30) == 78
    assert "RELAY_SMTP__BIND must be a loopback address" in relay.log_tail()


async def test_a_thousand_captures_at_once(relay: RelayProcess) -> None:
    """A thousand sessions stand at DATA, then all dots come: a mailbox each, each with its mail."""
    told: Counter[str] = Counter()
    at_data, all_at_data = 0, trio.Event()

    async def capture(number: int, stack: ExitStack) -> None:
        nonlocal at_data
        stream = await trio.open_tcp_stream(*relay.smtp)
        stack.callback(stream.socket.close)
        address = f"crowd-{number}@customer.example"
        await stream.send_all(
            b"EHLO app.example\r\nMAIL FROM:<shop@shop.example>\r\n"
            b"RCPT TO:<%b>\r\nDATA\r\n" % address.encode()
        )
        said = b""
        while b"\r\n354 " not in said:
            said += await stream.receive_some()
        at_data += 1
        if at_data == CROWD:
            all_at_data.set()
        await all_at_data.wait()
        await stream.send_all(f"Subject: {number}\r\n\r\nx\r\n.\r\n".encode())
        reply = b""
        while not reply.endswith(b"\r\n"):
            reply += await stream.receive_some()
        assert reply.startswith(b"250 2.0.0 captured as "), reply
        told[reply.split()[-1].decode()] += 1

    with trio.fail_after(60), ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for number in range(CROWD):
                nursery.start_soon(capture, number, stack)
    assert len(told) == CROWD
    with psycopg.connect(relay.run["database_url"]) as database:
        rows = database.execute(
            """
            SELECT b.address, m.id::text, m.raw_email
            FROM relay.messages m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            WHERE b.address LIKE 'crowd-%'
              AND b.is_active
            """
        ).fetchall()
    assert len({address for address, _, _ in rows}) == len(rows) == CROWD
    assert {id for _, id, _ in rows} == set(told)
    for address, _, raw in rows:
        assert raw == f"Subject: {address[6:].partition('@')[0]}\r\n\r\nx\r\n".encode()
