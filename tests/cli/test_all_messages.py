"""The commands on the mail of all mailboxes: list, wait, read, unread, tag, untag, delete."""

from __future__ import annotations

import json
import smtplib
import threading
import uuid
from typing import Any

import pytest

from tests.cli.command import cli, on_terminal
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


def run(relay: RelayProcess, *arguments: str, **options: Any) -> Any:
    return cli("messages", *arguments, "--data-dir", relay.data_dir, **options)


def text(relay: RelayProcess, *arguments: str) -> str:
    done = run(relay, *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.decode())


def document(relay: RelayProcess, *arguments: str) -> Any:
    return json.loads(text(relay, *arguments, "--json"))


def capture(relay: RelayProcess, word: str, *recipients: str) -> None:
    """Have an application send mail to addresses that nobody made."""
    with smtplib.SMTP(*relay.smtp, timeout=30) as session:
        for recipient in recipients:
            letter = f"From: shop@shop.example\r\nSubject: Order {word}\r\n\r\nFor {recipient}.\r\n"
            session.sendmail("shop@shop.example", recipient, letter)


def parsed(relay: RelayProcess, word: str, count: int) -> list[Any]:
    """The entries of what was captured, as soon as all of them can be found by what is in them."""
    found: list[Any] = []

    def complete() -> bool:
        found[:] = document(relay, "list", "--all", "-q", word)
        return len(found) == count and all(item["has_attachments"] is not None for item in found)

    eventually_sync(complete, "what was captured is found")
    return found


@pytest.fixture
def word() -> str:
    """A word that is in no other test's mail."""
    return f"w{uuid.uuid4().hex}"


def test_all_mailboxes_are_listed_at_once(relay: RelayProcess, word: str) -> None:
    """Without ADDRESS all mailboxes are meant: the table names them, --limit and --all hold."""
    people = [f"{name}-{word[:9]}@customer.example" for name in ("ada", "bob", "eve")]
    capture(relay, word, *people)
    found = parsed(relay, word, 3)
    assert sorted(item["mailbox"] for item in found) == people
    assert len(document(relay, "list", "-q", word, "--limit", "2")) == 2
    table = text(relay, "list", "-q", f"{word} to:bob")
    assert table.splitlines()[0].split() == [
        "ID",
        "RECEIVED",
        "MAILBOX",
        "TAGS",
        "FROM",
        "SUBJECT",
        "SIZE",
    ]
    assert people[1] in table
    assert people[0] not in table
    refused = run(relay, "list", "-q", "colour:red")
    assert refused.returncode == 1
    assert b"there is no operator" in refused.stderr


def test_mail_is_awaited_in_any_mailbox(relay: RelayProcess, word: str) -> None:
    """wait --all answers when what -q names has come, wherever; in vain it ends with 1."""
    person = f"ada-{word[:9]}@customer.example"
    sender = threading.Timer(0.3, capture, (relay, word, person))
    sender.start()
    found = document(relay, "wait", "--all", "-q", f"to:{person} subject:{word}", "--timeout", "30")
    sender.join()
    assert found["mailbox"] == person
    assert found["body_text"].strip() == f"For {person}."
    assert f"mailbox:  {person}" in text(relay, "wait", "--all", "--subject", word)
    vain = run(relay, "wait", "--all", "-q", f"{word} -order", "--timeout", "0.1")
    assert vain.returncode == 1
    assert b"No message came to any mailbox within 0.1 s." in vain.stderr


def test_many_messages_are_marked_and_tagged(relay: RelayProcess, word: str) -> None:
    """read, unread, tag and untag change what -q finds and nothing else, and count it."""
    capture(relay, word, *(f"{name}-{word[:9]}@customer.example" for name in ("ada", "bob", "eve")))
    parsed(relay, word, 3)
    two = f"{word} -to:eve"
    assert text(relay, "read", "--all", "-q", two) == "2 messages marked read\n"
    assert document(relay, "read", "--all", "-q", two) == {"count": 0}
    assert len(document(relay, "list", "-q", f"{word} is:unread")) == 1
    assert text(relay, "unread", "--all", "-q", f"{word} to:ada") == "1 message marked unread\n"
    assert len(document(relay, "list", "-q", f"{word} is:unread")) == 2

    assert text(relay, "tag", "nightly", "--all", "-q", two) == "2 messages tagged\n"
    assert text(relay, "tag", "second", "--all", "-q", word) == "3 messages tagged\n"
    assert text(relay, "tag", "nightly", "--all", "-q", two) == "0 messages tagged\n"
    tags = {i["mailbox"][:3]: i["tags"] for i in document(relay, "list", "-q", word)}
    assert set(tags["ada"]) == {"nightly", "second"}
    assert tags["eve"] == ["second"]
    assert text(relay, "untag", "nightly", "--all", "-q", word) == "2 messages untagged\n"
    assert document(relay, "list", "-q", f"{word} tag:nightly") == []
    assert len(document(relay, "list", "-q", f"{word} tag:second")) == 3


def test_one_message_is_marked_and_tagged(relay: RelayProcess, word: str) -> None:
    """With ADDRESS and ID the same commands change that message alone, and print nothing."""
    capture(relay, word, f"ada-{word[:9]}@customer.example", f"bob-{word[:9]}@customer.example")
    one, other = parsed(relay, word, 2)
    this = (one["mailbox"], one["id"])
    for command, is_read in (("read", True), ("unread", False)):
        assert text(relay, command, *this) == ""
        entry = {i["id"]: i for i in document(relay, "list", "-q", word)}
        assert entry[one["id"]]["is_read"] is is_read
        assert entry[other["id"]]["is_read"] is False
    for command, tags in (("tag", ["by hand"]), ("untag", [])):
        assert text(relay, command, "by hand", *this) == ""
        entry = {i["id"]: i for i in document(relay, "list", "-q", word)}
        assert entry[one["id"]]["tags"] == tags
        assert entry[other["id"]]["tags"] == []
    gone = run(relay, "tag", "x", one["mailbox"], str(uuid.uuid4()))
    assert gone.returncode == 1


def test_many_messages_are_deleted_after_a_yes(relay: RelayProcess, word: str) -> None:
    """Where nobody can be asked --yes is needed; on a terminal, a no deletes nothing."""
    capture(relay, word, *(f"{name}-{word[:9]}@customer.example" for name in ("ada", "bob", "eve")))
    parsed(relay, word, 3)
    silent = run(relay, "delete", "--all", "-q", word)
    assert silent.returncode == 2
    assert b"--yes" in silent.stderr
    where = ("--data-dir", str(relay.data_dir))
    code, said = on_terminal("messages", "delete", "--all", "-q", word, *where, typed=b"n\n")
    assert code == 1
    assert f"Delete 3 messages of all mailboxes for good, all that {word} finds?" in said
    assert len(document(relay, "list", "-q", word)) == 3
    code, said = on_terminal(
        "messages", "delete", "--all", "-q", f"{word} to:ada", *where, typed=b"y\n"
    )
    assert code == 0
    assert "1 message deleted" in said
    assert text(relay, "delete", "--all", "-q", word, "--yes") == "2 messages deleted\n"
    assert document(relay, "list", "-q", word) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete",),
        ("delete", "a@b.example"),
        ("delete", "--all", "--yes"),
        ("delete", "--all", "-q", " ", "--yes"),
        ("read", "a@b.example", "id", "--all", "-q", "x"),
        ("unread", "-q", "x"),
        ("tag", "t", "a@b.example", "id", "-q", "x"),
        ("wait",),
        ("wait", "a@b.example", "--all"),
        ("wait", "a@b.example", "-q", "x"),
    ],
)
def test_what_is_meant_must_be_said(relay: RelayProcess, arguments: tuple[str, ...]) -> None:
    """Neither one message nor all that a query finds, or both: wrong usage, nothing is changed."""
    done = run(relay, *arguments)
    assert done.returncode == 2
    assert b"Usage:" in done.stderr
