"""Other people's clients fetch mail by POP3: in clear on this machine, and in TLS."""

from __future__ import annotations

import contextlib
import mailbox as folders
import poplib
import smtplib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import write
from tests.clients.senders import program, run
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

MAIL = b"From: a@shop.example\r\nSubject: s\r\n\r\n.dots\r\n..two\r\nend\r\n"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a certificate that serves POP3."""
    folder = tmp_path_factory.mktemp("pop3")
    cert, key = write(folder)
    env = {
        "RELAY_SMTP__TLS_CERT": cert,
        "RELAY_SMTP__TLS_KEY": key,
        "RELAY_POP3__BIND": "127.0.0.1:0",
        "RELAY_POP3__TLS_BIND": "127.0.0.1:0",
    }
    with RelayProcess(folder / "data", env=env) as process:
        yield process


@pytest.fixture
def box(relay: RelayProcess) -> tuple[str, str]:
    """The address of a mailbox with two messages, and its session token."""
    with relay.http(Accept="application/json") as http:
        made = http.post("/api/v1/mailboxes").raise_for_status().json()
    address, token = made["address"], made["session_token"]
    with smtplib.SMTP(*relay.smtp) as session:
        for number in range(2):
            session.sendmail("b@shop.example", [address], b"Number: %d\r\n" % number + MAIL)
    return address, token


def where(relay: RelayProcess, entry: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = relay.run[entry].rpartition(":")
    return host, int(port)


def left(relay: RelayProcess, address: str) -> int:
    """How many messages are in a mailbox."""
    with relay.http() as http:
        answer: list[Any] = http.get(f"/api/v1/mailboxes/{address}/messages").json()
    return len(answer)


@pytest.mark.parametrize("scheme", ["pop3", "pop3s"])
def test_curl(relay: RelayProcess, box: tuple[str, str], scheme: str) -> None:
    """Lists and fetches over STLS, which it insists on, and with TLS at once."""
    url = f"{scheme}://{relay.run['pop3' if scheme == 'pop3' else 'pop3_tls']}/"
    curl = (
        program("curl"), "--silent", "--show-error", "--max-time", "30", "--insecure", "--ssl-reqd",
        "--user", ":".join(box),
    )  # fmt: skip
    done = run(*curl, url)
    assert done.returncode == 0, done.stderr
    size = len(MAIL) + len(b"Number: 0\r\n")
    assert done.stdout == b"1 %d\r\n2 %d\r\n" % (size, size)
    done = run(*curl, url + "2")
    assert done.stdout == b"Number: 1\r\n" + MAIL, done.stderr
    done = run(*curl, url + "1", "--request", "DELE", "--list-only")
    assert done.returncode == 0, done.stderr
    assert left(relay, box[0]) == 1


def test_curl_with_a_wrong_password(relay: RelayProcess, box: tuple[str, str]) -> None:
    """67: it was not signed in."""
    url = f"pop3://{relay.run['pop3']}/"
    done = run(program("curl"), "--silent", "--max-time", "30", "--user", f"{box[0]}:no", url)
    assert done.returncode == 67


@pytest.mark.parametrize("entry", ["pop3", "pop3_tls"])
def test_mpop(relay: RelayProcess, box: tuple[str, str], tmp_path: Path, entry: str) -> None:
    """Fetches all into a Maildir, deletes it here, and checks the certificate."""
    host, port = where(relay, entry)
    for part in ("cur", "new", "tmp"):
        (tmp_path / "mail" / part).mkdir(parents=True)
    rc = tmp_path / "mpoprc"
    rc.write_text(
        f"""
account default
host {host}
port {port}
user {box[0]}
password {box[1]}
auth user
tls on
tls_starttls {"on" if entry == "pop3" else "off"}
tls_trust_file {relay.env["RELAY_SMTP__TLS_CERT"]}
uidls_file {tmp_path / "uidls"}
keep off
received_header off
delivery maildir {tmp_path / "mail"}
"""
    )
    rc.chmod(0o600)
    done = run(program("mpop"), f"--file={rc}")
    assert done.returncode == 0, done.stdout + done.stderr
    fetched = sorted(
        message.as_bytes() for message in folders.Maildir(tmp_path / "mail", create=False)
    )
    bare = MAIL.replace(b"\r\n", b"\n")
    assert fetched == [b"Number: 0\n" + bare, b"Number: 1\n" + bare]
    assert left(relay, box[0]) == 0


def test_poplib_with_the_certificate_checked(relay: RelayProcess, box: tuple[str, str]) -> None:
    """By the administrator's token, over both kinds of TLS."""
    context = ssl.create_default_context(cafile=relay.env["RELAY_SMTP__TLS_CERT"])
    clear = poplib.POP3(*where(relay, "pop3"), timeout=20)
    clear.stls(context)
    for client in (clear, poplib.POP3_SSL(*where(relay, "pop3_tls"), timeout=20, context=context)):
        client.user(box[0])
        client.pass_(relay.run["admin_token"])
        assert client.stat()[0] == 2
        client.quit()


def test_killed_it_has_deleted_what_was_confirmed_and_nothing_else(tmp_path: Path) -> None:
    """kill -9 before QUIT deletes nothing; behind its +OK what was marked is gone for good."""
    env = {"RELAY_POP3__BIND": "127.0.0.1:0"}
    relay = RelayProcess(tmp_path / "data", env=env)
    with relay:
        address = relay.create_mailbox()
        with smtplib.SMTP(*relay.smtp) as session:
            for _ in range(3):
                session.sendmail("a@x.example", [address], MAIL)

        def signed_in(stack: contextlib.ExitStack) -> poplib.POP3:
            client = poplib.POP3(*where(relay, "pop3"), timeout=20)
            stack.callback(client.close)
            client.user(address)
            client.pass_(relay.run["admin_token"])
            return client

        with contextlib.ExitStack() as stack:
            marked, quits = signed_in(stack), signed_in(stack)
            marked.dele(1)
            quits.dele(3)
            assert quits.quit().startswith(b"+OK")
            relay.kill()
            relay.start()
            assert signed_in(stack).stat()[0] == 2
