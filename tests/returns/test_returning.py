"""What comes back of real mail, by real SMTP in both directions, to a relay with two processes."""

from __future__ import annotations

import smtplib
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import trio

from relay.returns.paths import ReturnPaths
from tests.eventually import eventually_sync
from tests.outbound.sink import Received, Sink, running_sink
from tests.relay_process import RelayProcess
from tests.returns.samples import PATH, SAMPLES, arf, report, status

DOMAIN = "returns.example"


class Bouncing:
    """A relay that sends by a sink, and what the sink has got."""

    def __init__(self, relay: RelayProcess, sink: Sink) -> None:
        self.relay = relay
        self.sink = sink
        self.count = 0

    async def send(self, to: str = "") -> tuple[str, str, str]:
        """Send a mail: its id, its recipient, and the return path it left with."""
        self.count += 1
        to = to or f"ada{self.count}@customer.example"

        def post() -> str:
            with self.relay.http() as client:
                message = {"from": "shop@shop.example", "to": [to], "subject": "x", "text": "y"}
                answer = client.post("/api/v1/messages/send", json=message)
            assert answer.status_code == 202, answer.text
            return str(answer.json()["messages"][0]["id"])

        seen = len(self.sink.received)
        message_id = await trio.to_thread.run_sync(post)
        with trio.fail_after(20):
            while len(self.sink.received) == seen:
                await trio.sleep(0.02)
        came: Received = self.sink.received[-1]
        assert came.recipient == to
        await self.becomes(message_id, "sent")
        return message_id, to, came.sender

    async def entry(self, message_id: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            with self.relay.http() as client:
                found: dict[str, Any] = client.get(f"/api/v1/outbound/{message_id}").json()
                return found

        return await trio.to_thread.run_sync(get)

    async def becomes(self, message_id: str, wanted: str) -> dict[str, Any]:
        with trio.fail_after(20):
            while (entry := await self.entry(message_id))["status"] != wanted:
                await trio.sleep(0.05)
        return entry

    async def comes_back(self, raw: bytes, *to: str, sender: str = "") -> dict[str, Any]:
        """Have a mail delivered to the relay; whom it refused."""

        def deliver() -> dict[str, Any]:
            with smtplib.SMTP(*self.relay.smtp) as smtp:
                try:
                    return smtp.sendmail(sender, to, raw)
                except smtplib.SMTPRecipientsRefused as refused:
                    return refused.recipients

        return await trio.to_thread.run_sync(deliver)

    async def suppressed(self) -> dict[str, str]:
        def get() -> dict[str, str]:
            with self.relay.http() as client:
                entries = client.get("/api/v1/suppressions?limit=100").json()
            return {one["address"]: one["cause"] for one in entries}

        return await trio.to_thread.run_sync(get)

    async def read(self) -> None:
        """Wait until all that came was looked at."""
        dsn = self.relay.run["database_url"]

        def count() -> int:
            with psycopg.connect(dsn) as sql:
                row = sql.execute("SELECT count(*) FROM relay.returns").fetchone()
                assert row is not None
                return int(row[0])

        await trio.to_thread.run_sync(
            lambda: eventually_sync(lambda: count() == 0, "something is unread")
        )


def failed(to: str, code: str = "5.1.1") -> bytes:
    return report(status("failed", code, f"smtp; 550 {code} <{to}>: no", final=f"rfc822; {to}"))


async def test_what_comes_back_becomes_the_truth(tmp_path: Path) -> None:
    """Bounced, delayed, complained, forged and unread, one after the other, on one relay."""
    async with running_sink() as sink:
        env = {
            "RELAY_OUTBOUND__UPSTREAM": sink.url,
            "RELAY_OUTBOUND__BOUNCE_DOMAIN": DOMAIN,
            "RELAY_SMTP__PROCESSES": "2",
        }
        relay = RelayProcess(tmp_path / "var", env=env)
        await trio.to_thread.run_sync(relay.start)
        try:
            bouncing = Bouncing(relay, sink)
            await late_bounce(bouncing)
            await complaints(bouncing)
            await forged(bouncing)
            await full_mailboxes(bouncing)
            await unread(bouncing)
        finally:
            await trio.to_thread.run_sync(relay.stop)


async def late_bounce(b: Bouncing) -> None:
    """A mail that was sent has bounced, once, and its recipient gets no more."""
    message_id, to, path = await b.send()
    assert path.startswith("b-")
    assert path.endswith(f"@{DOMAIN}")
    late = report(status("delayed", "4.4.1", final=f"rfc822; {to}"))
    assert await b.comes_back(late, path.upper()) == {}
    await b.read()
    assert (await b.entry(message_id))["status"] == "sent"
    for _ in range(2):
        assert await b.comes_back(failed(to), path) == {}
    entry = await b.becomes(message_id, "bounced")
    assert entry["error"].startswith("550 5.1.1")
    assert to not in entry["error"]
    await b.read()
    assert await b.suppressed() == {to: "bounced"}


async def complaints(b: Bouncing) -> None:
    """At the return path, or at fbl@ by the return path that they name; the status stays."""
    for at in (None, f"fbl@{DOMAIN}"):
        message_id, to, path = await b.send()
        raw = arf("abuse").replace(PATH.encode(), path.encode())
        assert await b.comes_back(raw, at or path, sender="abuse@isp.example") == {}
        await b.read()
        assert (await b.suppressed()).get(to) == "complained"
        assert (await b.entry(message_id))["status"] == "sent"


async def forged(b: Bouncing) -> None:
    """A return path that was not ours is refused; a complaint that names one is nothing; and who
    has a name reports no failure that suppresses.
    """
    before = await b.suppressed()
    message_id, to, path = await b.send()
    strange = ReturnPaths(DOMAIN, lambda: (b"x" * 32,)).path_of(UUID(message_id))
    for address in (strange, f"b-x@{DOMAIN}", f"postmaster@{DOMAIN}", f"b-{path}"):
        refused = await b.comes_back(failed(to), address)
        assert refused[address][0] == 550
    complaint = arf("abuse").replace(PATH.encode(), strange.encode())
    assert await b.comes_back(complaint, f"fbl@{DOMAIN}") == {}
    # Of somebody else by name: it bounced, and nobody is suppressed.
    await b.comes_back(failed("victim@customer.example"), path)
    await b.becomes(message_id, "bounced")
    message_id, to, path = await b.send()
    raw = b"Return-Path: <>\r\n" + failed(to)
    assert await b.comes_back(raw, path, sender="eve@stranger.example") == {}
    await b.becomes(message_id, "bounced")
    await b.read()
    assert await b.suppressed() == before


async def full_mailboxes(b: Bouncing) -> None:
    """The third within thirty days suppresses."""
    for time in (1, 2, 3):
        message_id, to, path = await b.send("full@customer.example")
        await b.comes_back(failed(to, "5.2.2"), path)
        await b.becomes(message_id, "bounced")
        await b.read()
        assert ("full@customer.example" in await b.suppressed()) == (time == 3)


async def unread(b: Bouncing) -> None:
    """What says nothing changes nothing, together with a mailbox of the relay's, too."""
    before = await b.suppressed()
    message_id, _, path = await b.send()
    mailbox = await trio.to_thread.run_sync(b.relay.create_mailbox)
    for sample in SAMPLES:
        if sample.name in {"vacation", "spam", "postfix delivered", "complaint: not-spam"}:
            assert await b.comes_back(sample.raw, path, mailbox) == {}
    await b.read()
    assert (await b.entry(message_id))["status"] == "sent"
    assert await b.suppressed() == before
    with b.relay.http() as client:
        listed = client.get(f"/api/v1/mailboxes/{mailbox}/messages")
    assert listed.status_code == 200
    assert len(listed.json()) >= 2
