"""Other people's programs deliver by LMTP: swaks, the standard library, and Postfix in front."""

from __future__ import annotations

import os
import smtplib
import socket
import stat
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bench import postfix
from tests.clients.senders import program, run
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

MAIL = b"From: a@shop.example\r\nSubject: s\r\n\r\n..dots\r\nend\r\n"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a socket for LMTP."""
    data = tmp_path_factory.mktemp("lmtp") / "data"
    with tempfile.TemporaryDirectory(prefix="relay-lmtp-") as folder:
        os.chmod(folder, 0o755)  # for Postfix's account
        with RelayProcess(data, env={"RELAY_SMTP__LMTP": f"{folder}/lmtp"}) as process:
            yield process


def found(relay: RelayProcess, address: str) -> list[bytes]:
    """The messages in a mailbox."""
    with relay.http() as http:
        path = f"/api/v1/mailboxes/{address}/messages"
        entries: list[dict[str, Any]] = http.get(path).raise_for_status().json()
        return [http.get(f"{path}/{entry['id']}/raw").content for entry in entries]


def test_swaks(relay: RelayProcess, tmp_path: Path) -> None:
    """One of two recipients is unknown: the other has the mail."""
    address = relay.create_mailbox()
    (tmp_path / "mail").write_bytes(MAIL.removesuffix(b"\r\n"))
    done = run(
        program("swaks"), "--protocol", "LMTP", "--socket", relay.run["lmtp"],
        "--from", "a@shop.example", "--to", f"nobody@relay.localhost,{address}",
        "--data", f"@{tmp_path / 'mail'}",
    )  # fmt: skip
    assert b"550 5.1.1" in done.stdout
    assert b"250 2.6.0 Stored as" in done.stdout, done.stdout + done.stderr
    assert found(relay, address) == [MAIL]


@pytest.mark.skipif(not postfix.available(), reason="needs Postfix and root")
def test_postfix_in_front(relay: RelayProcess) -> None:
    """What it accepts from the world comes here, each copy once."""
    addresses = [relay.create_mailbox() for _ in range(3)]
    os.chmod(relay.run["lmtp"], 0o666)  # its account is in no group of ours
    front = postfix.Postfix(deliver_to=relay.run["lmtp"])
    try:
        front.release()
        with smtplib.SMTP("127.0.0.1", front.port) as session:
            for _ in range(5):
                session.sendmail("a@shop.example", addresses, MAIL)
        for address in addresses:
            raws = eventually_sync(
                partial(found, relay, address),
                "all of it is here",
                until=lambda raws: len(raws) == 5,
                within=30.0,
            )
            assert all(raw.endswith(b"\r\n\r\n..dots\r\nend\r\n") for raw in raws)
        eventually_sync(front.empty, "its queue is empty", within=30.0)
    finally:
        front.close()


def test_the_socket_is_its_owners_and_their_groups(tmp_path: Path) -> None:
    """0660; one that was left by a kill is replaced, one in use and a file are errors."""
    path = tmp_path / "lmtp"
    relay = RelayProcess(tmp_path / "data", env={"RELAY_SMTP__LMTP": str(path)})
    relay.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        other = RelayProcess(tmp_path / "other", env={"RELAY_SMTP__LMTP": str(path)})
        assert other.spawn().wait(30) == 78
        assert "RELAY_SMTP__LMTP" in other.log_tail()
        relay.kill()
        assert path.is_socket()
        relay.start()
        with smtplib.LMTP(str(path)) as session:
            assert session.noop()[0] == 250
        assert relay.stop() == 0
        assert not path.exists()
        path.write_text("mine")
        assert relay.spawn().wait(30) == 78
        assert path.read_text() == "mine"
        assert [each.name for each in tmp_path.glob("lmtp*")] == ["lmtp"]
    finally:
        relay.stop()


def test_a_relay_that_is_paused_turns_the_server_away(relay: RelayProcess) -> None:
    """421, so that it keeps what it has."""
    with relay.http() as http:
        http.post("/api/v1/supervision/lmtp/pause").raise_for_status()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(relay.run["lmtp"])
            assert sock.recv(100).startswith(b"421 4.3.2")
        http.post("/api/v1/supervision/lmtp/resume").raise_for_status()
        with smtplib.LMTP(relay.run["lmtp"]) as session:
            assert session.noop()[0] == 250
