"""Mail clients of other people, each against a running relay, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.senders import SENDERS, Job, program, run
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

HEAD = b"From: <sender@client.example>\r\nTo: <you@relay.localhost>\r\nSubject: hello\r\n\r\n"
MESSAGES = {
    "plain": HEAD + b"Hello.\r\n",
    "dots": HEAD + b".\r\n..\r\n...three\r\n.leading\r\ntrailing.\r\n\r\n.\r\nend\r\n",
    "8bit": HEAD + "Grüße, 世界\r\n".encode() + bytes(range(0xA0, 0x100)) + b"\r\n",
    "long": HEAD + b"".join(b"line %06d of many\r\n" % n for n in range(20_000)),
}


def received(relay: RelayProcess, address: str) -> list[bytes]:
    """Return the raw messages of a mailbox, oldest first."""
    base = f"/api/v1/mailboxes/{address}/messages"
    with relay.http() as api:
        found = api.get(base, params={"limit": 200}).raise_for_status().json()
        return [
            api.get(f"{base}/{entry['id']}/raw").raise_for_status().content
            for entry in reversed(found)
        ]


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("client", SENDERS)
def test_a_message_arrives_byte_for_byte(
    relay: RelayProcess, client: str, kind: str, tmp_path: Path
) -> None:
    """What the client was given is what the relay gives back, once, and not a byte else."""
    address = relay.create_mailbox()
    message = MESSAGES[kind]
    sent = SENDERS[client](Job(relay.smtp[1], "sender@client.example", address, message, tmp_path))
    assert sent.ok, sent.said
    assert received(relay, address) == [message + sent.added]


@pytest.mark.parametrize("client", SENDERS)
def test_an_unknown_recipient_is_refused(relay: RelayProcess, client: str, tmp_path: Path) -> None:
    """The client learns that the recipient does not exist, with the enhanced status code."""
    job = Job(
        relay.smtp[1],
        "sender@client.example",
        "nobody@relay.localhost",
        MESSAGES["plain"],
        tmp_path,
    )
    sent = SENDERS[client](job)
    assert not sent.ok
    assert "550" in sent.said
    assert "5.1.1" in sent.said


def test_a_load_generator_finds_every_message_stored(relay: RelayProcess) -> None:
    """smtp-source over five sessions at once: as many messages as it counts are there."""
    address = relay.create_mailbox()
    done = run(
        program("smtp-source"), "-s", "5", "-m", "150", "-l", "2048", "-f", "a@client.example",
        "-t", address, f"inet:127.0.0.1:{relay.smtp[1]}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with relay.http() as api:
        entry = api.get(f"/api/v1/mailboxes/{address}").raise_for_status().json()
    assert entry["message_count"] == 150


def test_sessions_may_carry_many_messages(
    relay: RelayProcess,
) -> None:
    """smtp-source -d sends message after message in each session, and all are there."""
    address = relay.create_mailbox()
    done = run(
        program("smtp-source"), "-d", "-s", "3", "-m", "60", "-f", "a@client.example",
        "-t", address, f"inet:127.0.0.1:{relay.smtp[1]}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(received(relay, address)) == 60
