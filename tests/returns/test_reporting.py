"""What an upstream reports over HTTP of a relay's mail, known by a field of the mail."""

from __future__ import annotations

import email
from pathlib import Path
from typing import Any

import dkim
import httpx
import trio

from tests.eventually import eventually_sync
from tests.outbound.sink import Sink, running_sink
from tests.relay_process import RelayProcess
from tests.returns import test_postmark as postmark

SECRET = "postmark knows this"
FIELD = "X-PM-Metadata-relay"


async def test_postmark_reports_of_mail_by_the_field_that_it_repeats(tmp_path: Path) -> None:
    """The token leaves with the mail, outside its signatures, and comes back as metadata."""
    async with running_sink() as sink:
        env = {
            "RELAY_OUTBOUND__UPSTREAM": sink.url,
            "RELAY_OUTBOUND__REPORT_FIELD": FIELD,
            "RELAY_INGEST__NOTIFICATION_SECRETS": f"another secret of theirs,{SECRET}",
        }
        relay = RelayProcess(tmp_path / "var", env=env)
        await trio.to_thread.run_sync(relay.start)
        try:
            await trio.to_thread.run_sync(_reported, relay, sink)
        finally:
            await trio.to_thread.run_sync(relay.stop)


def _reported(relay: RelayProcess, sink: Sink) -> None:
    with relay.http() as client:
        made = client.post("/api/v1/dkim", json={"domain": "shop.example"})
        published = {one["name"]: one["value"] for one in made.raise_for_status().json()["records"]}
        sent = [_send(client, sink, f"{name}@customer.example") for name in ("ada", "eve")]
        shown = client.get("/api/v1/settings").text
        assert SECRET not in shown
    tokens = []
    for message_id, raw in sent:
        mail = email.message_from_bytes(raw)
        (token,) = mail.get_all(FIELD, [])
        tokens.append(token)
        assert message_id not in token
        # Postmark takes the field out, and what was signed is as it was.
        field = f"{FIELD}: {token}\r\n".encode()
        assert raw.count(field) == 1
        for left in (raw, raw.replace(field, b"")):
            assert dkim.verify(left, dnsfunc=lambda name, **_: _txt(published, name))
    (message_id, _), (other_id, _) = sent
    with httpx.Client(base_url=relay.run["http"], auth=("postmark", SECRET)) as upstream:
        said = postmark.bounce(to="ada@customer.example", Metadata={"relay": tokens[0]})
        for outcome in ("reported", "ignored"):
            answer = upstream.post("/api/v1/ingest/notifications", json=said)
            assert (answer.status_code, answer.json()) == (200, {"status": outcome})
        forged = upstream.post(
            "/api/v1/ingest/notifications", json=said, auth=("postmark", "wrong")
        )
        assert forged.status_code == 401
    with relay.http() as client:
        assert client.get(f"/api/v1/outbound/{message_id}").json()["status"] == "bounced"
        assert client.get(f"/api/v1/outbound/{other_id}").json()["status"] == "sent"
        suppressed = client.get("/api/v1/suppressions").json()
    assert [one["address"] for one in suppressed] == ["ada@customer.example"]


def _send(client: Any, sink: Sink, to: str) -> tuple[str, bytes]:
    """Send a mail; its id, and its bytes as they came."""
    message = {"from": "shop@shop.example", "to": [to], "subject": "x", "text": "y"}
    answer = client.post("/api/v1/messages/send", json=message)
    message_id = str(answer.raise_for_status().json()["messages"][0]["id"])

    def is_sent() -> bool:
        return bool(client.get(f"/api/v1/outbound/{message_id}").json()["status"] == "sent")

    eventually_sync(is_sent, "it is sent")
    came = sink.received[-1]
    assert came.recipient == to
    assert came.sender == "shop@shop.example"
    return message_id, came.data


def _txt(published: dict[str, str], name: bytes) -> bytes | None:
    value = published.get(name.decode().rstrip("."))
    return value.encode() if value else None
