"""Submitters are told what became of their mail: the whole program, by SMTP at both ends."""

from __future__ import annotations

import email
import re
import smtplib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from functools import partial
from pathlib import Path

import psycopg
import trio

from relay.returns.report import DSN, Report, read
from tests.certificates import write
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.outbound.sink import Received, Session, Sink, running_sink
from tests.relay_process import RelayProcess
from tests.returns.samples import report, status

SHOP = "shop@shop.example"
MAIL = (
    b"From: shop@shop.example\r\nSubject: An invoice\r\n"
    b"Message-ID: <7@shop.example>\r\n\r\n7 EUR.\r\n"
)


async def receiving(session: Session, verb: str, line: str) -> bytes | None:
    """Refuses `no@`, puts off `later@`."""
    if verb == "RCPT" and "<no@" in line:
        return b"550 5.1.1 <no@y.example>: no such user here\r\n"
    if verb == "RCPT" and "<later@" in line:
        return b"450 4.2.1 not now\r\n"
    return None


class Reporting:
    """A relay that sends by a sink, and those who submit."""

    def __init__(self, relay: RelayProcess, sink: Sink) -> None:
        self.relay = relay
        self.sink = sink

    async def submit(
        self,
        to: str,
        *,
        mail: Sequence[str] = (),
        rcpt: Sequence[str] = (),
        raw: bytes = MAIL,
        sender: str = SHOP,
    ) -> None:
        def talk() -> None:
            host, _, port = self.relay.run["submission"].rpartition(":")
            with smtplib.SMTP(host, int(port), timeout=20) as client:
                client.login("any", self.relay.run["admin_token"])
                assert client.has_extn("dsn")
                client.sendmail(sender, [to], raw, mail_options=mail, rcpt_options=rcpt)

        await trio.to_thread.run_sync(talk)

    async def got(self, to: str = SHOP, *, count: int = 1) -> list[Received]:
        """What the sink got for an address, once it is so much."""
        found: list[Received] = await eventually(
            lambda: [one for one in self.sink.received if one.recipient == to],
            f"{count} for {to} have come",
            until=lambda found: len(found) >= count,
            within=30,
        )
        return found

    async def settled(self) -> None:
        """Wait until nothing is to be told, and nothing is due."""

        def count() -> int:
            with psycopg.connect(self.relay.run["database_url"]) as sql:
                row = sql.execute(
                    """
                    SELECT (SELECT count(*) FROM relay.outbound_notices)
                         + (SELECT count(*) FROM relay.outbound_due)
                    """
                ).fetchone()
                assert row is not None
                return int(row[0])

        await eventually(
            partial(trio.to_thread.run_sync, count),
            "nothing is to be told, and nothing is due",
            until=lambda left: left == 0,
            within=30,
        )

    def line(self, to: str, verb: str = "RCPT") -> str:
        """The command that named a recipient, or the MAIL before it."""
        for session in self.sink.sessions:
            lines = session.lines
            for place, line in enumerate(lines):
                if line.startswith("RCPT") and f"<{to}>" in line:
                    return line if verb == "RCPT" else lines[place - 1]
        raise AssertionError(f"{to} was not named")


def parsed(received: Received) -> tuple[Message, Report]:
    """A report as Python's email and the relay itself read it."""
    assert received.sender == ""
    message = email.message_from_bytes(received.data)
    assert message.get_content_type() == "multipart/report"
    assert message.get_param("report-type") == "delivery-status"
    assert message["Auto-Submitted"] == "auto-replied"
    assert not message.defects
    found = read(received.data)
    assert found.kind == DSN
    return message, found


def fields(message: Message) -> list[Message]:
    """The blocks of the delivery status."""
    status_part = message.get_payload(1)
    assert isinstance(status_part, Message)
    assert status_part.get_content_type() == "message/delivery-status"
    blocks = status_part.get_payload()
    assert isinstance(blocks, list)
    return [block for block in blocks if isinstance(block, Message)]


@asynccontextmanager
async def running(folder: Path, **env: str) -> AsyncIterator[Reporting]:
    async with running_sink(receiving) as sink:
        relay = RelayProcess(
            folder / "var",
            env={
                "RELAY_OUTBOUND__UPSTREAM": sink.url,
                "RELAY_OUTBOUND__RETRY_UNIT": "0.2",
                "RELAY_OUTBOUND__MAX_ATTEMPTS": "2",
                **env,
            },
        )
        await trio.to_thread.run_sync(relay.start)
        try:
            yield Reporting(relay, sink)
        finally:
            await trio.to_thread.run_sync(relay.stop)


async def test_submitters_are_told(tmp_path: Path) -> None:
    """Refused, given up, expired, relayed; and nobody who did not want to hear it."""
    async with running(tmp_path) as r:
        await refused(r)
        await given_up(r)
        await relayed(r)
        await silence(r)
        await passed_on(r)
        await a_mailbox_here(r)


async def refused(r: Reporting) -> None:
    """By 5xx at RCPT: what was asked for is in the report, and the header of the mail."""
    await r.submit(
        "no@y.example",
        mail=["ENVID=order+2B7", "RET=HDRS"],
        rcpt=["NOTIFY=FAILURE,DELAY", "ORCPT=rfc822;No+2Bbox@y.example"],
    )
    (received,) = await r.got()
    message, found = parsed(received)
    assert message["To"] == f"<{SHOP}>"
    assert message["From"].endswith("<MAILER-DAEMON@relay.localhost>")
    assert message["In-Reply-To"] == "<7@shop.example>"
    about, one = fields(message)
    assert about["Reporting-MTA"] == "dns; relay.localhost"
    assert about["Original-Envelope-Id"] == "order+7"
    assert one["Original-Recipient"] == "rfc822; No+box@y.example"
    assert one["Final-Recipient"] == "rfc822; no@y.example"
    assert one["Action"] == "failed"
    assert one["Status"] == "5.1.1"
    assert one["Remote-MTA"] == "dns; 127.0.0.1"
    assert one["Diagnostic-Code"].startswith("smtp; 550 5.1.1 ")
    assert "no such user here" in one["Diagnostic-Code"]
    assert one["Last-Attempt-Date"]
    returned = message.get_payload(2)
    assert isinstance(returned, Message)
    assert returned.get_content_type() == "text/rfc822-headers"
    assert "Subject: An invoice" in str(returned.get_payload())
    assert "7 EUR" not in received.data.decode()
    assert [(one.action, one.final, one.original) for one in found.recipients] == [
        ("failed", "no@y.example", "No+box@y.example")
    ]
    # To a server without DSN nothing is said of all this.
    assert r.line("no@y.example") == "RCPT TO:<no@y.example>"
    assert "ENVID" not in r.line("no@y.example", "MAIL")
    r.sink.received.clear()


async def given_up(r: Reporting) -> None:
    """After the last attempt; the mail is returned whole, as it was asked."""
    await r.submit("later@y.example", mail=["RET=FULL"])
    (received,) = await r.got()
    message, _ = parsed(received)
    _, one = fields(message)
    assert (one["Action"], one["Status"]) == ("failed", "4.2.1")
    assert one["Original-Recipient"] is None
    returned = message.get_payload(2)
    assert isinstance(returned, Message)
    assert returned.get_content_type() == "message/rfc822"
    assert received.data.count(b"7 EUR.") == 1
    r.sink.received.clear()


async def relayed(r: Reporting) -> None:
    """Success, asked for, at a server that does not report it."""
    await r.submit("ada@y.example", mail=["RET=FULL"], rcpt=["NOTIFY=SUCCESS"])
    (received,) = await r.got()
    message, _ = parsed(received)
    _, one = fields(message)
    assert (one["Action"], one["Status"]) == ("relayed", "2.0.0")
    assert one["Remote-MTA"] == "dns; 127.0.0.1"
    assert b"7 EUR." not in received.data
    r.sink.received.clear()


async def silence(r: Reporting) -> None:
    """Of what nobody wants to hear, and of mail from nobody, there is no report."""
    await r.submit("no@never.y.example", rcpt=["NOTIFY=NEVER"])
    await r.submit("no@success.y.example", rcpt=["NOTIFY=SUCCESS"])
    await r.submit("ada@y.example")
    await r.submit("no@nobody.y.example", sender="")
    await r.settled()
    assert [one.recipient for one in r.sink.received] == ["ada@y.example"]
    r.sink.received.clear()


async def passed_on(r: Reporting) -> None:
    """To a server with DSN, which then tells of success itself."""
    r.sink.extensions = ("DSN",)
    for session in r.sink.sessions:
        await session.stream.aclose()
    r.sink.sessions.clear()
    await r.submit(
        "bob@y.example",
        mail=["RET=HDRS", "ENVID=a1"],
        rcpt=["NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;bob+3Dx@y.example"],
    )
    await r.submit("eve@y.example", rcpt=["NOTIFY=NEVER"])
    await r.submit("kim@y.example")
    await r.settled()
    assert re.search(r" RET=HDRS ENVID=a1$", r.line("bob@y.example", "MAIL"))
    assert r.line("bob@y.example").endswith(
        "> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;bob+3Dx@y.example"
    )
    assert r.line("eve@y.example").endswith("> NOTIFY=NEVER")
    assert r.line("kim@y.example") == "RCPT TO:<kim@y.example>"
    assert sorted(one.recipient for one in r.sink.received) == [
        "bob@y.example", "eve@y.example", "kim@y.example",
    ]  # fmt: skip
    r.sink.received.clear()


async def a_mailbox_here(r: Reporting) -> None:
    """Whoever submits from a mailbox of the relay finds the report there."""

    def mailbox() -> str:
        with r.relay.http() as http:
            return str(http.post("/api/v1/mailboxes").json()["address"])

    address = await trio.to_thread.run_sync(mailbox)
    await r.submit("no@passed.y.example", sender=address)

    def wait() -> bytes:
        with r.relay.http() as http:
            path = f"/api/v1/mailboxes/{address}/messages"
            found = http.get(f"{path}/wait?timeout=20").raise_for_status().json()
            return bytes(http.get(f"{path}/{found['id']}/raw").raise_for_status().content)

    raw = await trio.to_thread.run_sync(wait)
    assert read(raw).recipients[0].action == "failed"
    assert not r.sink.received


async def test_what_waits_and_what_bounces_late(tmp_path: Path) -> None:
    """With a bounce domain, deadlines and a short patience."""
    env = {
        "RELAY_OUTBOUND__BOUNCE_DOMAIN": "returns.example",
        "RELAY_OUTBOUND__RETRY_UNIT": "30",
        "RELAY_SUBMISSION__DELAYED_AFTER": "1",
        "RELAY_SUBMISSION__LIFETIME": "4",
    }
    async with running(tmp_path, **env) as r:
        r.sink.extensions = ("DSN",)
        await r.submit("ada@y.example", rcpt=["NOTIFY=SUCCESS,FAILURE"], mail=["ENVID=a1"])
        (success,) = await r.got()
        _, one = fields(parsed(success)[0])
        assert one["Action"] == "relayed"
        # Bounces come to the relay, which wants them; of success it tells itself.
        assert r.line("ada@y.example").endswith("> NOTIFY=FAILURE")
        (delivered,) = await r.got("ada@y.example")
        path = delivered.sender
        assert path.endswith("@returns.example")
        r.sink.received.clear()

        bounce = report(
            status("failed", "5.1.1", "smtp; 550 5.1.1 nobody", final="rfc822; ada@y.example")
        )

        def come_back() -> None:
            with smtplib.SMTP(*r.relay.smtp) as smtp:
                for _ in range(2):
                    smtp.sendmail("", [path], bounce)

        await trio.to_thread.run_sync(come_back)
        (late,) = await r.got()
        about, one = fields(parsed(late)[0])
        assert (one["Action"], one["Status"]) == ("failed", "5.1.1")
        assert about["Original-Envelope-Id"] == "a1"
        await r.settled()
        assert len(r.sink.received) == 1
        r.sink.received.clear()

        await r.submit("later@y.example")

        def look() -> None:
            with r.relay.http() as http:
                path = "/api/v1/supervision/notifier/sweep"
                http.post(path).raise_for_status()

        async def look_and_count() -> int:
            await trio.to_thread.run_sync(look)
            return len(r.sink.received)

        # Until it has waited for so long, no look finds it.
        await eventually(look_and_count, "it is told that it waits", every=0.2)
        (waits,) = await r.got()
        message, found = parsed(waits)
        _, one = fields(message)
        assert (one["Action"], one["Status"]) == ("delayed", "4.2.1")
        assert one["Will-Retry-Until"]
        assert found.recipients[0].action == "delayed"
        await trio.to_thread.run_sync(look)
        gone = (await r.got(count=2))[1]
        _, one = fields(parsed(gone)[0])
        assert (one["Action"], one["Status"]) == ("failed", "4.4.7")
        assert "450" in one["Diagnostic-Code"]


async def test_what_goes_directly_is_told_of_once_when_it_is_old(tmp_path: Path) -> None:
    """Of each message, not before its lifetime is over, and however often it was tried."""
    lifetime = 2
    async with running_sink(receiving) as sink, trio.open_nursery() as nursery:
        zone = {
            **{(domain, "MX"): ["10 mx.example."] for domain in ("y.example", "shop.example")},
            ("mx.example", "A"): ["127.0.0.1"],
        }
        server = await nursery.start(DnsServer(zone).run)
        relay = RelayProcess(
            tmp_path / "var",
            env={
                "RELAY_OUTBOUND__UPSTREAM": "mx:",
                "RELAY_OUTBOUND__PRIVATE_MX": "true",
                "RELAY_OUTBOUND__MX_PORT": str(sink.port),
                "RELAY_DNS__SERVERS": f'["{server.address[0]}:{server.address[1]}"]',
                "RELAY_OUTBOUND__RETRY_UNIT": "0.01",
                "RELAY_OUTBOUND__MX_LIFETIME": str(lifetime),
            },
        )
        await trio.to_thread.run_sync(relay.start)
        try:
            r = Reporting(relay, sink)
            for _ in range(3):
                await r.submit("later@y.example")
            reports = await r.got(count=3)
            await r.settled()
            assert await r.got(count=3) == reports
            for received in reports:
                _, one = fields(parsed(received)[0])
                assert (one["Action"], one["Status"]) == ("failed", "4.2.1")

            def ages() -> list[tuple[float, int]]:
                with psycopg.connect(relay.run["database_url"]) as sql:
                    return sql.execute(
                        """
                        SELECT extract(epoch FROM g.finished_at - l.created_at)::float8, g.attempt
                        FROM relay.outbound_log g
                        JOIN relay.outbound_letters l ON l.id = g.id
                        WHERE g.status = 'failed'
                        """
                    ).fetchall()

            ended = await trio.to_thread.run_sync(ages)
            assert len(ended) == 3
            assert min(age for age, _ in ended) >= lifetime
            assert min(attempts for _, attempts in ended) > 1
        finally:
            await trio.to_thread.run_sync(relay.stop)
            nursery.cancel_scope.cancel()


async def test_tls_all_the_way(tmp_path: Path) -> None:
    """Mail that requires it goes by verified TLS to who offers REQUIRETLS, its report, too; else it
    fails, and the report says so (to a mailbox here, which needs no server)."""
    cert, key = write(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with running_sink(receiving, tls=context) as sink:
        sink.extensions = ("REQUIRETLS",)
        relay = RelayProcess(
            tmp_path / "var",
            env={
                "RELAY_OUTBOUND__UPSTREAM": f"smtp+starttls://localhost:{sink.port}",
                "RELAY_OUTBOUND__CA_FILE": cert,
                "RELAY_OUTBOUND__RETRY_UNIT": "0.2",
                "RELAY_SMTP__TLS_CERT": cert,
                "RELAY_SMTP__TLS_KEY": key,
            },
        )
        await trio.to_thread.run_sync(relay.start)
        try:
            await require_tls(Reporting(relay, sink), ssl.create_default_context(cafile=cert))
        finally:
            await trio.to_thread.run_sync(relay.stop)


async def require_tls(r: Reporting, context: ssl.SSLContext) -> None:
    host, _, port = r.relay.run["submission"].rpartition(":")

    def submit(to: str, sender: str = SHOP) -> None:
        with smtplib.SMTP(host, int(port), timeout=20) as client:
            client.starttls(context=context)
            client.login("any", r.relay.run["admin_token"])
            client.sendmail(sender, [to], MAIL, mail_options=["REQUIRETLS", "RET=FULL"])

    await trio.to_thread.run_sync(submit, "ada@y.example")
    await r.got("ada@y.example")
    assert r.line("ada@y.example", "MAIL").endswith(" REQUIRETLS")
    await trio.to_thread.run_sync(submit, "no@y.example")
    (received,) = await r.got()
    returned = parsed(received)[0].get_payload(2)
    assert isinstance(returned, Message)
    assert returned.get_content_type() == "text/rfc822-headers"
    assert r.line(SHOP, "MAIL").endswith(f"MAIL FROM:<> SIZE={len(received.data)} REQUIRETLS")
    r.sink.extensions = ()
    for session in r.sink.sessions:
        await session.stream.aclose()
    address = await trio.to_thread.run_sync(r.relay.create_mailbox)
    await trio.to_thread.run_sync(submit, "bob@y.example", address)

    def wait() -> bytes:
        with r.relay.http() as http:
            path = f"/api/v1/mailboxes/{address}/messages"
            found = http.get(f"{path}/wait?timeout=20").raise_for_status().json()
            return bytes(http.get(f"{path}/{found['id']}/raw").raise_for_status().content)

    raw = await trio.to_thread.run_sync(wait)
    (one,) = read(raw).recipients
    assert (one.action, one.status, one.final) == ("failed", "5.7.30", "bob@y.example")
    assert "bob@y.example" not in r.sink.recipients
