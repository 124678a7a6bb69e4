"""The commands on the mail of all mailboxes: list, wait, read, unread, tag, untag, delete."""

from __future__ import annotations

import json
import os
import smtplib
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest
import trio

from relay.cli.agent.client import AgentClient
from relay.cli.client import Api
from relay.cli.exits import Failure
from relay.datadir import DataDir
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


def changing(relay: RelayProcess) -> int:
    """How many calls there were that change messages."""
    with relay.http() as api:
        lines = api.get("/metrics").text.splitlines()
    return sum(int(float(x.split()[1])) for x in lines if x.startswith(_PATCHED))


_PATCHED = 'relay_http_answers_total{method="PATCH",status="200"}'


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
        "STATE",
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


def test_what_the_relay_itself_sends_is_seen_too(relay: RelayProcess, word: str) -> None:
    """Account mail and `relay send`, to whom no upstream leads: captured, instead of bounced."""
    ada, bob = (f"{name}-{word[:9]}@customer.example" for name in ("ada", "bob"))
    with psycopg.connect(relay.run["database_url"], autocommit=True) as database:
        database.execute(
            "INSERT INTO relay.accounts (email, login) VALUES (%s, %s)", (ada, word[:20])
        )
    sent = cli(
        *("send", "--from", "shop@shop.example", "--to", bob, "--subject", word, "--text", "t"),
        *("--data-dir", relay.data_dir),
    )
    assert sent.returncode == 0, sent.stderr
    letter = document(relay, "wait", "--all", "-q", f"to:{ada}", "--timeout", "30")
    assert (letter["mailbox"], bool(letter["links"])) == (ada, True)
    found = document(relay, "wait", "--all", "-q", f"to:{bob}", "--timeout", "30")
    assert (found["mailbox"], found["subject"]) == (bob, word)
    shown = cli("queue", "show", sent.stdout.decode().strip(), "--data-dir", relay.data_dir)
    assert b"status:    sent" in shown.stdout


def test_many_messages_are_marked_and_tagged(relay: RelayProcess, word: str) -> None:
    """read, unread, tag and untag change what -q finds and nothing else, and count it."""
    capture(relay, word, *(f"{name}-{word[:9]}@customer.example" for name in ("ada", "bob", "eve")))
    parsed(relay, word, 3)
    two = f"{word} -to:eve"
    asked = changing(relay)
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
    assert changing(relay) - asked == 7  # one call a command, however many messages


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


class _Pages(BaseHTTPRequestHandler):
    """A list of which one page is empty and has a next one."""

    def do_GET(self) -> None:
        cursor = parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0]
        items, following = {"0": ([1], "1"), "1": ([], "2"), "2": ([2, 3], "")}[cursor]
        body = json.dumps([{"n": one} for one in items]).encode()
        self.send_response(200)
        if following:
            self.send_header("Link", f'</list?q=a%2Bb&cursor={following}>; rel="next"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (1, 1), (2, 2), (9, 3)])
async def test_an_empty_page_is_not_the_end(tmp_path: Path, limit: int | None, count: int) -> None:
    """A search of much mail finds nothing for a while: commands and tools look on."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            found = await trio.to_thread.run_sync(
                lambda: list(Api(base, {}).pages("/list", limit=limit, q="a+b"))
            )
            assert [one["n"] for one in found] == [1, 2, 3][:count]
            if limit is None:
                return
            data = DataDir(tmp_path)
            data.prepare()
            data.write_run({"http": base, "admin_token": "ra_x", "pid": os.getpid()})
            async with httpx.AsyncClient(trust_env=False) as client:
                agent = AgentClient(client, tmp_path, admin=True)
                entries, more = await agent.found("/list", limit=limit, params={"q": "a+b"})
            data.release()
            assert ([one["n"] for one in entries], more) == ([1, 2, 3][:count], limit < 3)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("turn", "asked"), [(1000000, 1000), (3, 4)])
def test_a_list_without_an_end_is_no_relays(turn: int, asked: int) -> None:
    """Ever new pages with nothing on them, and pages that lead in a circle."""
    cursors: list[int] = []

    class Endless(_Pages):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            cursors.append(int(query.get("cursor", ["0"])[0]))
            self.send_response(200)
            self.send_header("Link", f'</list?cursor={cursors[-1] % turn + 1}>; rel="next"')
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with pytest.raises(Failure, match=rf"^The list at {base}/list has no end") as one:
                list(Api(base, {}).pages("/list", limit=None))
            assert one.value.code == 70
            assert len(cursors) == asked
        finally:
            server.shutdown()
            thread.join()


def test_without_an_id_the_newest_is_meant(relay: RelayProcess, word: str) -> None:
    """show and raw take it; where nothing came yet they say so."""
    person = f"ada-{word[:9]}@customer.example"
    for subject in ("first", "second"):
        capture(relay, f"{subject} {word}", person)
    parsed(relay, word, 2)
    assert f"Order second {word}" in text(relay, "show", person)
    assert f"Order second {word}" in text(relay, "raw", person)
    empty = relay.create_mailbox()
    done = run(relay, "show", empty)
    assert (done.returncode, done.stderr) == (
        1,
        f"relay: There is no message in {empty} yet.\n".encode(),
    )


def test_a_captured_address_is_waited_for_before_its_first_mail(
    relay: RelayProcess, word: str
) -> None:
    """Capture makes its mailbox: with the message; and again when that one is over."""
    person = f"o'hara-{word[:9]}@customer.example"
    capture(relay, f"other {word}", f"x{person}")
    for subject in ("first", "second"):
        mail = threading.Timer(1.0, capture, (relay, f"{subject} {word}", person))
        mail.start()
        began = time.monotonic()
        found = document(relay, "wait", person, "--subject", f"{subject} {word}", "--timeout", "50")
        mail.join()
        assert found["subject"] == f"Order {subject} {word}"
        assert 1.0 < time.monotonic() - began < 20.0
        assert cli("mailbox", "delete", person, "--data-dir", relay.data_dir).returncode == 0


def test_what_will_never_come_is_said_at_once(relay: RelayProcess, word: str) -> None:
    """No address, one of the relay's own domains, another's eyes; in vain: why."""
    for address, token, said in (
        ("ada", None, "ada is no address: "),
        (f"{word[:9]}@relay.localhost", None, "`relay mailbox create` makes mailboxes at relay."),
        (f"{word[:9]}@customer.example", "rs_nobody", ""),
    ):
        by = () if token is None else ("--token", token)
        began = time.monotonic()
        done = run(relay, "wait", address, "--timeout", "50", *by)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr.decode()
        assert time.monotonic() - began < 20.0
    vain = run(relay, "wait", f"{word[:9]}@typo.example", "--timeout", "0.3")
    assert (vain.returncode, vain.stdout) == (1, b"")
    assert vain.stderr.decode() == (
        f"relay: Nothing has come to {word[:9]}@typo.example within 0.3 s, and it has no mailbox. "
        "The relay's own mailboxes are at relay.localhost.\n"
    )


def test_a_list_that_is_cut_says_so(relay: RelayProcess, word: str) -> None:
    """On stderr, with what shows the rest; nothing where that was all, or for programs."""
    person = f"ada-{word[:9]}@customer.example"
    for subject in ("first", "second"):
        capture(relay, f"{subject} {word}", person)
    parsed(relay, word, 2)
    more = b"relay: There are more than these 1; --all shows all.\n"
    for arguments, noted in (
        (("--limit", "1"), more),
        (("--limit", "1", "--json"), b""),
        (("--limit", "2"), b""),
        (("--all",), b""),
    ):
        assert run(relay, "list", "-q", word, *arguments).stderr == noted, arguments
    assert run(relay, "list", person, "--limit", "1").stderr == more


def test_no_address_is_out_of_reach(relay: RelayProcess, word: str) -> None:
    """A slash, a question mark, an escape: what was captured for it is read by its address."""
    address = f"order/{word[:9]}%2f?#@customer.example"
    capture(relay, word, address)
    (one,) = parsed(relay, word, 1)
    assert one["mailbox"] == address
    assert document(relay, "list", address)[0]["id"] == one["id"]
    assert text(relay, "raw", address, one["id"]).endswith(f"For {address}.\r\n")
    assert document(relay, "wait", address, "--subject", word)["id"] == one["id"]
    assert text(relay, "delete", address, one["id"]) == ""
    done = cli("mailbox", "delete", address, "--data-dir", relay.data_dir)
    assert done.returncode == 0
    assert document(relay, "list", "-q", word) == []


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
