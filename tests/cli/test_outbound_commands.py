"""The outbound commands against a running relay: what they print, and the codes they end with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.access.owners import REPORTS_ID
from tests.cli.command import cli
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

MISSING = "00000000-0000-7000-8000-000000000000"
TOMORROW = "2099-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay of this module's own: its queue is paused and its keys are rotated here."""
    with RelayProcess(tmp_path_factory.mktemp("outbound") / "data") as process:
        yield process
        assert process.stop() == 0, process.log_tail()


def run(relay: RelayProcess, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return cli(*arguments, "--data-dir", relay.data_dir, **options)


def text(relay: RelayProcess, *arguments: str, **options: Any) -> str:
    done = run(relay, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def document(relay: RelayProcess, *arguments: str) -> Any:
    return json.loads(text(relay, *arguments, "--json"))


def later(relay: RelayProcess, *more: str, to: str = "ada@example.org") -> str:
    """Queue a message for a day that this test does not see."""
    command = ("send", "--from", "Me <me@example.org>", "--to", to, "--subject", "Hi")
    return text(relay, *command, "--text", "Hello", "--at", TOMORROW, *more).strip()


def test_a_message_is_sent_shown_listed_and_cancelled(relay: RelayProcess) -> None:
    """send prints the id; show, list and cancel take it; cancelled twice is refused with 1."""
    sent = later(relay)
    shown = document(relay, "queue", "show", sent)
    assert (shown["status"], shown["recipient"], shown["events"]) == (
        "queued", "ada@example.org", [],
    )  # fmt: skip
    assert shown["next_retry_at"].startswith("2099-01-01T00:00:00")
    assert sent in text(relay, "queue", "show", sent)
    assert "scheduled" in text(relay, "queue", "show", sent)
    listed = document(relay, "queue", "list", "--recipient", "ADA@example.org")
    assert sent in [item["id"] for item in listed]
    assert sent in text(relay, "queue", "list", "--status", "queued")
    assert document(relay, "queue", "cancel", sent)["status"] == "cancelled"
    again = run(relay, "queue", "cancel", sent)
    assert again.returncode == 1
    assert again.stderr == b"relay: A message that is cancelled cannot be cancelled.\n"


def test_whose_a_message_is_is_said_where_it_is_not_shown(relay: RelayProcess) -> None:
    """The administrator sees that it is another owner's, and no blank; its owner sees it whole."""
    token = text(relay, "key", "create", "--owner", "shop", "--scope", "send,read").strip()
    letter = ["--from", "a@b.example", "--to", "c@d.example", "--subject", "Hi", "--text", "x"]
    at = ["--at", "2040-01-01T00:00:00Z"]
    message = text(relay, "send", *letter, *at, "--token", token).strip()
    for shown in (text(relay, "queue", "list"), text(relay, "queue", "show", message)):
        assert "another owner's" in shown
        assert "c@d.example" not in shown
    assert document(relay, "queue", "show", message)["recipient"] is None
    owners = text(relay, "queue", "show", message, "--token", token)
    assert "c@d.example" in owners
    assert "another owner's" not in owners
    assert run(relay, "queue", "cancel", message).returncode == 0


def test_show_raw_writes_what_goes_out(relay: RelayProcess) -> None:
    """What a mailbox got is what it shows, byte for byte, behind the fields of its arrival."""
    address = document(relay, "mailbox", "create")["address"]
    sent = text(
        relay, "send", "--from", "me@example.org", "--to", address, "--subject", "Grüße",
        "--text", "Zeile\n.\n", "--html", "<p>x</p>",
    ).strip()  # fmt: skip
    got = document(relay, "messages", "wait", address)
    arrived = run(relay, "messages", "raw", address, got["id"]).stdout
    shown = run(relay, "queue", "show", "--raw", sent)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(b"From: me@example.org\r\n")
    assert arrived.endswith(shown.stdout)
    assert run(relay, "queue", "show", "--raw", "--json", sent).returncode == 2
    assert run(relay, "queue", "show", "--raw", MISSING).returncode == 1
    # What goes round in the loop is not released.
    released = run(relay, "messages", "release", address, got["id"], "--to", "me@example.org")
    assert released.returncode == 1
    assert b"its upstream is loop:" in released.stderr


def test_each_recipient_and_each_file_goes_along(relay: RelayProcess, tmp_path: Path) -> None:
    """Two recipients are two ids; the body comes from standard input, a file from the disk."""
    file = tmp_path / "naïve.txt"
    file.write_bytes(b"content")
    done = run(
        relay, "send", "--from", "me@example.org", "--to", "a@example.org", "--to", "b@example.org",
        "--subject", "Two", "--text", "-", "--attach", str(file), "--header",
        "Reply-To: you@example.org", "--priority", "bulk", "--at", TOMORROW,
        input="Grüße\n".encode(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ids = done.stdout.decode().split()
    assert len(set(ids)) == 2
    assert {document(relay, "queue", "show", one)["priority"] for one in ids} == {"bulk"}


def test_an_idempotency_key_sends_once(relay: RelayProcess) -> None:
    """The same key gives the same id; with another body it is refused with 1."""
    first = later(relay, "--idempotency-key", "schlüssel-1")
    assert later(relay, "--idempotency-key", "schlüssel-1") == first
    other = run(
        relay, "send", "--from", "me@example.org", "--to", "x@example.org", "--subject", "s",
        "--text", "t", "--idempotency-key", "schlüssel-1",
    )  # fmt: skip
    assert other.returncode == 1
    assert b"used for another body" in other.stderr


def test_mistakes_end_with_the_codes_of_all_commands(relay: RelayProcess, tmp_path: Path) -> None:
    """1 for what the relay refuses, 2 for wrong usage, 69 where no relay runs."""
    command = ["send", "--from", "me@example.org", "--to", "nobody", "--subject", "s"]
    refused = run(relay, *command, "--text", "t")
    assert refused.returncode == 1
    assert refused.stderr == b"relay: to[0]: it is not an address (local-part@domain).\n"
    assert run(relay, *command).returncode == 2
    assert run(relay, *command, "--text", "t", "--at", "soon").returncode == 2
    assert run(relay, *command, "--text", "t", "--header", "x").returncode == 2
    assert run(relay, "queue", "show", MISSING).returncode == 1
    assert run(relay, "queue", "retry", "no-id").returncode == 1
    assert run(relay, "queue", "list", "--status", "lost").returncode == 1
    assert run(relay, "sender", "remove", "no@example.org").returncode == 1
    assert run(relay, "suppression", "remove", "no@example.org").returncode == 1
    assert cli("queue", "stats", "--data-dir", tmp_path / "none").returncode == 69


def test_the_queue_is_counted_paused_and_resumed(relay: RelayProcess) -> None:
    """pause shows in stats until resume."""
    assert document(relay, "queue", "pause")["paused"] is True
    assert document(relay, "queue", "stats")["paused"] is True
    assert "paused" in text(relay, "queue", "stats")
    assert document(relay, "queue", "resume")["paused"] is False
    assert "running" in text(relay, "queue", "stats")


def test_all_that_is_meant_is_held_and_cancelled(relay: RelayProcess) -> None:
    """By domain, with --yes where nobody can be asked; one and all at once is wrong usage."""
    for name in ("ada", "bob"):
        later(relay, to=f"{name}@many.example")
    which = ("--domain", "many.example", "--priority", "normal")
    assert len(document(relay, "queue", "list", *which)) == 2
    assert document(relay, "queue", "list", *which, "--tag", "none") == []
    meant = ("--all", *which)
    assert run(relay, "queue", "hold", *meant).returncode == 2
    assert run(relay, "queue", "hold", MISSING, *meant).returncode == 2
    assert run(relay, "queue", "hold", "--yes").returncode == 2
    assert text(relay, "queue", "hold", *meant, "--yes") == "2 messages changed\n"
    assert document(relay, "queue", "cancel", *meant, "--status", "held", "--yes") == {"count": 2}


def test_senders_are_kept_without_showing_passwords(relay: RelayProcess) -> None:
    """add takes the upstream from standard input too; no command prints the password."""
    secret = "hunter2-hunter2"
    upstream = f"smtps://me:{secret}@mail.example.org"
    added = text(relay, "sender", "add", "Me@Example.org", "-", input=f"{upstream}\n".encode())
    assert added == "me@example.org\n"
    listed = document(relay, "sender", "list")
    assert [(item["address"], item["upstream"], item["username"]) for item in listed] == [
        ("me@example.org", "smtps://mail.example.org:465", "me")
    ]
    assert secret not in text(relay, "sender", "list", "--json") + text(relay, "sender", "list")
    clear = run(relay, "sender", "add", "me@example.org", f"smtp://me:{secret}@mail.example.org")
    assert clear.returncode == 1
    assert secret.encode() not in clear.stderr
    assert text(relay, "sender", "remove", "ME@example.org") == ""
    assert document(relay, "sender", "list") == []


def test_a_suppressed_address_gets_no_mail(relay: RelayProcess) -> None:
    """add refuses the next send to it; remove lets it have mail again."""
    text(relay, "suppression", "add", "Gone@example.org", "--reason", "asked to")
    listed = text(relay, "suppression", "list")
    assert "asked to" in listed
    assert "manual" in listed
    (entry,) = document(relay, "suppression", "list")
    assert (entry["address"], entry["reason"]) == ("gone@example.org", "asked to")
    command = (
        "send",
        "--from",
        "me@example.org",
        "--subject",
        "s",
        "--text",
        "t",
        "--at",
        TOMORROW,
    )
    refused = run(relay, *command, "--to", "GONE@example.org")
    assert refused.returncode == 1
    assert b"on the suppression list, so nothing was queued: gone@example.org." in refused.stderr
    text(relay, "suppression", "remove", "gone@EXAMPLE.org")


def test_the_operator_lifts_what_a_key_suppressed(relay: RelayProcess) -> None:
    """Everybody's list says whose an entry is, and its id is what lifts it."""
    made = document(relay, "key", "create", "--owner", "shop", "--scope", "send")
    run(relay, "suppression", "add", "shut@example.org", "--token", made["token"])
    assert "shut@example.org" not in text(relay, "suppression", "list")
    (line,) = text(relay, "suppression", "list", "--everybody").splitlines()[1:]
    assert line.split()[0] == "shut@example.org"
    assert line.endswith(f"shop ({made['id']})")
    assert run(relay, "suppression", "remove", "shut@example.org").returncode == 1
    both = run(relay, "suppression", "list", "--everybody", "--owner", made["id"])
    assert both.returncode == 2
    text(relay, "suppression", "remove", "shut@example.org", "--owner", made["id"])
    assert document(relay, "suppression", "list", "--everybody") == []


def test_whom_reports_of_tls_bounced_at_is_listed_and_taken_off(relay: RelayProcess) -> None:
    """`--reports` means their list, which no other command shows."""
    with psycopg.connect(relay.run["database_url"]) as database:
        database.execute(
            "INSERT INTO relay.suppressions (address, owner, cause) VALUES (%s, %s, 'bounced')",
            ("tls@reports.example", REPORTS_ID),
        )
    assert "tls@reports.example" not in text(relay, "suppression", "list")
    assert "tls@reports.example" in text(relay, "suppression", "list", "--reports")
    assert run(relay, "suppression", "remove", "tls@reports.example").returncode == 1
    text(relay, "suppression", "remove", "--reports", "tls@reports.example")
    assert "tls@reports.example" not in text(relay, "suppression", "list", "--reports")
    assert later(relay, to="gone@example.org")


def test_keys_are_rotated_while_the_relay_runs(relay: RelayProcess) -> None:
    """Each rotation makes new keys, seals stored secrets anew and drops the old key."""
    files = [relay.data_dir / name for name in ("secret_key", "encryption_keys")]
    before = [file.read_text().strip() for file in files]
    text(relay, "sender", "add", "me@example.org", "smtps://me:secret@mail.example.org")
    text(relay, "dkim", "create", "example.org")
    done = document(relay, "keys", "rotate")
    assert done == {
        "new_signing_key": True,
        "new_encryption_key": True,
        "resealed": 3,
        "unreadable": 0,
        "old_keys_dropped": True,
    }
    signing, encryption = (file.read_text().strip() for file in files)
    assert signing.split(",")[1] == before[0]
    assert encryption not in (before[1], "")
    assert "," not in encryption
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert "secrets sealed anew" in text(relay, "keys", "rotate")
    text(relay, "dkim", "remove", "example.org")
    text(relay, "sender", "remove", "me@example.org")


def test_a_webhook_is_added_listed_and_removed(relay: RelayProcess) -> None:
    """add prints the secret that verifies the posts; a private address is refused."""
    url = "https://hooks.example.org/a"
    secret = text(relay, "webhook", "add", url, "--event", "message.failed").strip()
    (hook,) = document(relay, "webhook", "list")
    assert (hook["url"], hook["events"], hook["secret"]) == (url, ["message.failed"], secret)
    assert url in text(relay, "webhook", "list")
    refused = run(relay, "webhook", "add", "http://169.254.169.254/latest")
    assert refused.returncode == 1
    assert refused.stderr == b"relay: url: it must lead to a public address.\n"
    assert document(relay, "webhook", "events") == []
    assert "GIVEN UP" in text(relay, "webhook", "events")
    assert run(relay, "webhook", "retry", MISSING).returncode == 1
    assert text(relay, "webhook", "remove", hook["id"]) == ""
    assert run(relay, "webhook", "remove", hook["id"]).returncode == 1


def test_a_message_is_given_a_deadline_held_and_the_queue_flushed(relay: RelayProcess) -> None:
    """send --not-after, queue hold and queue flush, in words and as JSON."""
    sent = later(relay, "--not-after", "2099-02-01T00:00:00Z")
    assert document(relay, "queue", "show", sent)["not_after"].startswith("2099-02-01")
    assert "2099-02-01" in text(relay, "queue", "show", sent)
    assert document(relay, "queue", "hold", sent)["status"] == "held"
    again = document(relay, "queue", "retry", sent)
    assert again["next_retry_at"].startswith("2099-01-01"), "a hold took its time away"
    assert document(relay, "queue", "hold", sent)["status"] == "held"
    assert document(relay, "queue", "flush", "--domain", "example.org") == {"count": 0}
    assert text(relay, "queue", "flush").startswith("0 deferred messages")
    refused = run(
        relay, "send", "--from", "a@example.org", "--to", "b@example.org", "--subject", "s",
        "--text", "t", "--not-after", "soon",
    )  # fmt: skip
    assert refused.returncode == 2
    late = run(
        relay, "send", "--from", "a@example.org", "--to", "b@example.org", "--subject", "s",
        "--text", "t", "--not-after", "2020-01-01T00:00:00Z",
    )  # fmt: skip
    assert (late.returncode, late.stdout) == (2, b"")
    assert b"has passed already" in late.stderr


def test_show_says_whom_each_attempt_spoke_to(relay: RelayProcess, tmp_path: Path) -> None:
    """A relay that sends to another: the peer, how it is secured, and what was said."""
    host, port = relay.smtp
    address = document(relay, "mailbox", "create")["address"]
    env = {"RELAY_OUTBOUND__UPSTREAM": f"smtp://{host}:{port}"}
    with RelayProcess(tmp_path / "data", env=env) as other:
        letter = ["--from", "me@example.org", "--to", address, "--subject", "Hi", "--text", "x"]
        sent = text(other, "send", *letter).strip()
        document(relay, "messages", "wait", address)
        shown = eventually_sync(
            lambda: document(other, "queue", "show", sent),
            "it is recorded",
            until=lambda it: it["status"] == "sent",
        )
        peer = f"{host}[{host}]:{port}"
        assert (shown["sender"], shown["peer"], shown["tls"]) == ("me@example.org", peer, None)
        assert shown["reply"].startswith("250 2.")
        assert {event["peer"] for event in shown["events"]} == {peer}
        said = text(other, "queue", "show", sent)
        assert re.search(rf"(?m)^peer: +{re.escape(peer)}$", said)
        assert said.rstrip().endswith(shown["reply"])
        assert other.stop() == 0, other.log_tail()
