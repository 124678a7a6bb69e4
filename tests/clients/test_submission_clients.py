"""Other people's clients submit mail: signed in by a key, over STARTTLS and implicit TLS."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.certificates import write
from tests.clients.senders import program, run
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

MAIL = (
    b"From: a@shop.example\r\nDate: now\r\nMessage-ID: <1@x>\r\nSubject: s\r\n\r\n..dots\r\nend\r\n"
)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a certificate, whose queue is paused."""
    folder = tmp_path_factory.mktemp("submission")
    cert, key = write(folder)
    env = {
        "RELAY_SMTP__TLS_CERT": cert,
        "RELAY_SMTP__TLS_KEY": key,
        "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
    }
    with RelayProcess(folder / "data", env=env) as process:
        with process.http() as http:
            http.post("/api/v1/queue/pause").raise_for_status()
        yield process


@pytest.fixture(scope="module")
def key(relay: RelayProcess) -> str:
    """A key that may send."""
    with relay.http() as http:
        made = http.post("/api/v1/keys", json={"owner": "shop", "scopes": ["send"]})
        return str(made.raise_for_status().json()["token"])


def queued(relay: RelayProcess, to: str) -> bytes:
    """The one message in the queue to an address, behind its Received field."""
    with psycopg.connect(relay.run["database_url"]) as database:
        ((raw,),) = database.execute(
            """
            SELECT c.blob
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.address = %s
            """,
            (to,),
        ).fetchall()
    received, _, rest = bytes(raw).partition(b"+0000\r\n")
    assert received.startswith(b"Received: from ")
    return rest


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_swaks(relay: RelayProcess, key: str, tmp_path: Path, mechanism: str) -> None:
    """By both mechanisms, in clear on this machine: for TLS it lacks a module mostly."""
    to = f"{mechanism.lower()}@y.example"
    (tmp_path / "mail").write_bytes(MAIL.removesuffix(b"\r\n"))
    done = run(
        program("swaks"), "--server", relay.run["submission"], "--auth", mechanism,
        "--auth-user", "anybody", "--auth-password", key, "--from", "a@shop.example",
        "--to", to, "--data", f"@{tmp_path / 'mail'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"250 2.0.0 queued as " in done.stdout
    assert queued(relay, to) == MAIL


def test_swaks_with_a_wrong_key(relay: RelayProcess) -> None:
    """535, and nothing is queued."""
    done = run(
        program("swaks"), "--server", relay.run["submission"], "--auth", "PLAIN",
        "--auth-user", "x", "--auth-password", "rk_wrong", "--from", "a@b.example",
        "--to", "wrong@y.example",
    )  # fmt: skip
    assert done.returncode != 0
    assert b"535 5.7.8" in done.stdout


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_curl(relay: RelayProcess, key: str, tmp_path: Path, scheme: str) -> None:
    """Over STARTTLS, which it insists on, and with TLS at once."""
    (tmp_path / "mail").write_bytes(MAIL)
    entry = "submission" if scheme == "smtp" else "submission_tls"
    done = run(
        program("curl"), "--silent", "--show-error", "--max-time", "30", "--insecure", "--ssl-reqd",
        "--url", f"{scheme}://{relay.run[entry]}/client.example", "--user", f"anybody:{key}",
        "--mail-from", "a@shop.example", "--mail-rcpt", f"{scheme}@curl.example",
        "--upload-file", tmp_path / "mail",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert queued(relay, f"{scheme}@curl.example") == MAIL


def test_smtplib_over_starttls(relay: RelayProcess, key: str) -> None:
    """With the certificate checked."""
    host, _, port = relay.run["submission"].rpartition(":")
    context = ssl.create_default_context(cafile=relay.env["RELAY_SMTP__TLS_CERT"])
    with smtplib.SMTP(host, int(port), timeout=20) as client:
        client.starttls(context=context)
        client.login("anybody", key)
        assert client.sendmail("a@shop.example", ["lib@y.example"], MAIL) == {}
    assert queued(relay, "lib@y.example") == MAIL
