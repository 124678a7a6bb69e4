"""Other people's clients over STARTTLS and implicit TLS, directly and by haproxy: they submit mail,
signed in by a key, and what they send to the port of mail that comes in is captured."""

from __future__ import annotations

import contextlib
import json
import poplib
import smtplib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trio

from tests.bench import postfix
from tests.certificates import write
from tests.clients.senders import BY_TLS, FRAMEWORKS, Job, by_smtplib, program, run
from tests.clients.test_clients import received
from tests.outbound.sink import running_sink
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

HAPROXY = "127.0.0.9"
"""Where its connections come from."""

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
        "RELAY_SMTP__CAPTURE": "on",  # a proxy in front is no loopback
        "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
        "RELAY_POP3__TLS_BIND": "127.0.0.1:0",
        "RELAY_SMTP__TRUSTED_PROXIES": f'["{HAPROXY}"]',
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
    """By both mechanisms, in clear on this machine."""
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


@pytest.mark.parametrize(
    ("asked", "notify"),
    [("never", 0), ("failure", 2), ("delay", 4), ("success,failure,delay", 7)],
)
def test_msmtp_asks_for_reports(
    relay: RelayProcess, key: str, tmp_path: Path, asked: str, notify: int
) -> None:
    """By NOTIFY and RET, which it says only to who offers DSN."""
    to = f"msmtp-{notify}@y.example"
    host, _, port = relay.run["submission"].rpartition(":")
    (tmp_path / "password").write_text(key)
    done = run(
        program("msmtp"), "--file=/dev/null", f"--host={host}", f"--port={port}", "--auth=plain",
        "--user=any", f"--passwordeval=cat {tmp_path / 'password'}", "--tls=off",
        "--from=a@shop.example", f"--dsn-notify={asked}", "--dsn-return=hdrs", to, stdin=MAIL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert asked_for(relay, to) == (notify, None, "HDRS", None)


def test_smtplib_asks_for_reports(relay: RelayProcess, key: str) -> None:
    """All four parameters."""
    host, _, port = relay.run["submission"].rpartition(":")
    with smtplib.SMTP(host, int(port)) as client:
        client.login("any", key)
        client.sendmail(
            "a@shop.example", ["smtplib@y.example"], MAIL, ["RET=FULL", "ENVID=a+2Bb"],
            ["NOTIFY=SUCCESS", "ORCPT=rfc822;x+3Dy@y.example"],
        )  # fmt: skip
    found = asked_for(relay, "smtplib@y.example")
    assert found == (1, "rfc822;x+3Dy@y.example", "FULL", "a+2Bb")


def asked_for(relay: RelayProcess, to: str) -> tuple[object, ...] | None:
    """What is stored of reports with a message."""
    with psycopg.connect(relay.run["database_url"]) as database:
        return database.execute(
            """
            SELECT l.notify, l.orcpt, c.ret, c.envid
            FROM relay.outbound_letters l
            JOIN relay.outbound_contents c ON c.id = l.content_id
            WHERE l.address = %s
            """,
            (to,),
        ).fetchone()


@pytest.mark.skipif(not postfix.available(), reason="needs Postfix and root")
async def test_postfix_is_told_what_was_asked(tmp_path: Path) -> None:
    """It announces DSN, takes the parameters as they are written, and passes them on."""
    async with running_sink() as sink:
        sink.extensions = ("DSN",)
        behind = postfix.Postfix(deliver_to=sink.port)
        try:
            behind.release()
            env = {"RELAY_OUTBOUND__UPSTREAM": f"smtp://127.0.0.1:{behind.port}"}
            relay = RelayProcess(tmp_path / "data", env=env)
            await trio.to_thread.run_sync(relay.start)
            try:
                await trio.to_thread.run_sync(submit_to_example, relay)
                await sink.gets(2)
            finally:
                await trio.to_thread.run_sync(relay.stop)
        finally:
            behind.close()
    lines = [line for session in sink.sessions for line in session.lines]
    (mail, ada), (other, eve) = sorted(
        (lines[place - 1], line) for place, line in enumerate(lines) if line.startswith("RCPT")
    )
    assert "RET=HDRS" in mail
    assert "ENVID=a+2Bb" in mail
    assert "NOTIFY=SUCCESS,FAILURE" in ada
    assert "ORCPT=rfc822;x+3Dy@example.com" in ada
    assert "ENVID" not in other
    assert "NOTIFY=NEVER" in eve


def submit_to_example(relay: RelayProcess) -> None:
    """Submit one mail with everything that can be asked for, and one that wants nothing."""
    host, _, port = relay.run["submission"].rpartition(":")
    with smtplib.SMTP(host, int(port)) as client:
        client.login("any", relay.run["admin_token"])
        client.sendmail(
            "a@shop.example", ["ada@example.com"], MAIL, ["RET=HDRS", "ENVID=a+2Bb"],
            ["NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;x+3Dy@example.com"],
        )  # fmt: skip
        client.sendmail("b@shop.example", ["eve@example.com"], MAIL, [], ["NOTIFY=NEVER"])


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.parametrize("client", BY_TLS)
def test_submission_in_tls(
    relay: RelayProcess, key: str, tmp_path: Path, client: str, tls: str
) -> None:
    """Byte for byte, with the certificate checked."""
    to = f"{client}-{tls}@y.example"
    port = int(relay.run["submission" if tls == "starttls" else "submission_tls"].split(":")[-1])
    trust = relay.env["RELAY_SMTP__TLS_CERT"]
    job = Job(port, "a@shop.example", to, MAIL, tmp_path, ("anybody", key), tls, trust)
    sent = BY_TLS[client](job)
    assert sent.ok, sent.said
    assert queued(relay, to) == MAIL + sent.added


@pytest.mark.parametrize("client", [*BY_TLS, *FRAMEWORKS])
def test_capture_in_tls(relay: RelayProcess, tmp_path: Path, client: str) -> None:
    """Over STARTTLS, signed in as anybody: it is seen at once, and its tag is the user's name."""
    to, login = f"ada@{client}.example", (f"app-{client}", "any password")
    trust = relay.env["RELAY_SMTP__TLS_CERT"]
    port = int(relay.run["smtp"].split(":")[-1])
    job = Job(port, "a@shop.example", to, MAIL, tmp_path, login, "starttls", trust)
    sent = (BY_TLS | FRAMEWORKS)[client](job)
    assert sent.ok, sent.said
    assert received(relay, to) == [MAIL + sent.added]
    with relay.http() as http:
        wait = http.get(f"/api/v1/mailboxes/{to}/messages/wait", params={"timeout": 20})
        wait.raise_for_status()
        entries = http.get("/api/v1/messages", params={"limit": 100}).raise_for_status().json()
    assert [each["tags"] for each in entries if each["mailbox"] == to] == [[f"app-{client}"]]


@pytest.mark.parametrize("tls", ["", "starttls"])
@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2"])
def test_haproxy(relay: RelayProcess, tmp_path: Path, version: str, tls: str) -> None:
    """The real one in front: mail comes, and its sender is who haproxy says."""
    to = f"ada@{version}{tls}.example"
    with haproxy(tmp_path, relay.run["smtp"], version) as port:
        trust = relay.env["RELAY_SMTP__TLS_CERT"]
        sent = by_smtplib(Job(port, "a@x.example", to, MAIL, tmp_path, None, tls, trust))
    assert sent.ok, sent.said
    assert received(relay, to) == [MAIL]
    # Who has delivered something is logged at the end: never the proxy.
    assert HAPROXY not in peers(relay)


@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2"])
def test_haproxy_before_tls(relay: RelayProcess, key: str, tmp_path: Path, version: str) -> None:
    """In front of submission and POP3 where TLS comes first: its header comes before."""
    to, trust = f"{version}@y.example", relay.env["RELAY_SMTP__TLS_CERT"]
    with haproxy(tmp_path, relay.run["submission_tls"], version) as port:
        login = ("anybody", key)
        job = Job(port, "a@shop.example", to, MAIL, tmp_path, login, "implicit", trust)
        sent = by_smtplib(job)
    assert sent.ok, sent.said
    assert queued(relay, to) == MAIL
    box, token = relay.create_mailbox(), relay.run["admin_token"]
    with haproxy(tmp_path, relay.run["pop3_tls"], version) as port:
        trusting = ssl.create_default_context(cafile=trust)
        reader = poplib.POP3_SSL("localhost", port, context=trusting, timeout=20)
        reader.user(box)
        reader.pass_(token)
        assert reader.stat() == (0, 0)
        reader.quit()
    assert HAPROXY not in peers(relay, "pop3.session_ended")


@contextlib.contextmanager
def haproxy(folder: Path, server: str, version: str) -> Iterator[int]:
    """The port of one in front of a port of the relay's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (folder / "haproxy.cfg").write_text(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n"
            f"listen relay\n bind fd@{listener.fileno()}\n source {HAPROXY}\n"
            f" server relay {server} {version}\n"
        )
        process = subprocess.Popen(
            [program("haproxy"), "-db", "-q", "-f", folder / "haproxy.cfg"],
            pass_fds=[listener.fileno()],
        )
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            process.wait(20)


def peers(relay: RelayProcess, event: str = "smtp.session_ended") -> set[str]:
    """Whose sessions have ended, once there are some."""
    deadline = time.monotonic() + 20
    while True:
        lines = map(json.loads, relay.log_file.read_text().splitlines())
        found = {line["peer"] for line in lines if line["event"] == event}
        if found:
            return found
        assert time.monotonic() < deadline, "no session has ended"
        time.sleep(0.01)


def test_haproxy_and_others_from_its_address(relay: RelayProcess) -> None:
    """Who does not say for whom it is, from there, hears nothing."""
    host, _, port = relay.run["smtp"].rpartition(":")
    with socket.create_connection((host, int(port)), 20, (HAPROXY, 0)) as stranger:
        stranger.sendall(b"EHLO x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
