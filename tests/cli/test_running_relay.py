"""The commands against a running relay: what they print, and the codes they end with."""

from __future__ import annotations

import json
import os
import re
import shlex
import smtplib
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from email.header import Header
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from relay.datadir import DataDir
from relay.settings import processes_on
from tests.cli.command import RELAY, cli, environment, on_terminal
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

LETTER = (
    b"From: Shop <orders@shop.example>\r\nTo: you\r\nSubject: Your \x1b[31mcode\r\n\r\n"
    b"Your confirmation code is 493817.\r\n.dot\r\n\x1b]0;owned\x07\r\n"
)


def run(relay: RelayProcess, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return cli(*arguments, "--data-dir", relay.data_dir, **options)


def text(relay: RelayProcess, *arguments: str, **options: Any) -> str:
    done = run(relay, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def document(relay: RelayProcess, *arguments: str) -> Any:
    return json.loads(text(relay, *arguments, "--json"))


def deliver(relay: RelayProcess, address: str, letter: bytes = LETTER) -> None:
    with smtplib.SMTP(*relay.smtp, timeout=30) as session:
        session.sendmail("orders@shop.example", address, letter)


def test_a_mailbox_from_creation_to_deletion(relay: RelayProcess) -> None:
    """create prints the address alone; show, list and delete take it; deleted, it is not found."""
    address = text(relay, "mailbox", "create", "--ttl", "5").strip()
    assert re.fullmatch(r"[a-z0-9-]+@relay\.localhost", address)
    shown = document(relay, "mailbox", "show", address)
    assert shown["address"] == address
    assert shown["is_active"] is True
    assert address in text(relay, "mailbox", "show", address)
    assert address in [item["address"] for item in document(relay, "mailbox", "list", "--all")]
    assert address in text(relay, "mailbox", "list", "--all")
    assert text(relay, "mailbox", "delete", address) == ""
    gone = run(relay, "mailbox", "show", address)
    assert gone.returncode == 1
    assert gone.stderr.startswith(b"relay: There is no such mailbox")
    assert gone.stderr.count(b"\n") == 1


def test_the_options_of_create_reach_the_relay(relay: RelayProcess) -> None:
    """Local part and domain are taken; a taken local part ends with 1 and says so."""
    made = document(
        relay, "mailbox", "create", "--local-part", "chosen.name", "--domain", "relay.localhost"
    )
    assert made["address"] == "chosen.name@relay.localhost"
    assert made["session_token"] is None
    again = run(relay, "mailbox", "create", "--local-part", "chosen.name")
    assert again.returncode == 1
    assert b"taken" in again.stderr


def test_a_life_beyond_the_plan_is_cut_and_said(relay: RelayProcess) -> None:
    """What was asked and what was given are told apart, also without a terminal."""
    done = run(relay, "mailbox", "create", "--ttl", "100000000")
    assert done.returncode == 0
    assert done.stderr == b"expires in 7 d, the most that plan enterprise allows\n"
    assert run(relay, "mailbox", "create", "--ttl", "5").stderr == b""


def test_an_anonymous_mailbox_is_read_with_its_session_token(relay: RelayProcess) -> None:
    """--anonymous prints the token in a second line, and --token opens that mailbox only."""
    address, token = text(relay, "mailbox", "create", "--anonymous").split()
    deliver(relay, address)
    found = document(relay, "messages", "list", address, "--token", token)
    assert [item["size"] for item in found] == [len(LETTER)]
    piped = run(relay, "messages", "list", address, "--token", "-", input=token.encode() + b"\n")
    assert piped.returncode == 0
    other = text(relay, "mailbox", "create").strip()
    assert run(relay, "messages", "list", other, "--token", token).returncode == 1


def test_a_message_is_waited_for_listed_shown_and_fetched(relay: RelayProcess) -> None:
    """wait answers when the message comes; list and show name it; raw is byte for byte."""
    address = text(relay, "mailbox", "create").strip()
    sender = threading.Timer(0.5, deliver, (relay, address))
    sender.start()
    waited = document(relay, "messages", "wait", address, "--timeout", "20", "--subject", "CODE")
    sender.join()
    assert waited["otp"] == "493817"
    assert waited["is_read"] is False
    identity = waited["id"]

    listed = text(relay, "messages", "list", address)
    assert identity in listed
    assert listed.splitlines()[0].split()[-1].lower() == "state"
    assert listed.splitlines()[1].split()[-1] == "new"
    assert document(relay, "messages", "list", address, "--query", "493817")[0]["id"] == identity
    assert document(relay, "messages", "list", address, "--query", "nothing like it") == []

    shown = text(relay, "messages", "show", address, identity)
    assert "493817" in shown
    assert "\x1b" not in listed + shown, "a message must not drive the terminal"
    assert "\x07" not in shown
    assert document(relay, "messages", "show", address, identity)["is_read"] is True

    raw = run(relay, "messages", "raw", address, identity)
    assert raw.returncode == 0
    assert raw.stdout == LETTER
    assert run(relay, "messages", "raw", address, "nonsense").returncode == 1


def test_attachments_are_fetched_and_messages_and_mailboxes_deleted(
    relay: RelayProcess, tmp_path: Path
) -> None:
    """An attachment goes to a new file or to stdout; what is deleted is gone, an address purged is
    free again."""
    address = text(relay, "mailbox", "create", "--local-part", "purged").strip()
    content = bytes(range(256))
    letter = EmailMessage()
    letter["From"], letter["Subject"] = "ada@example.org", "A file"
    letter.set_content("See the file.")
    letter.add_attachment(content, maintype="application", subtype="x-y", filename="a.bin")
    deliver(relay, address, letter.as_bytes(policy=letter.policy.clone(linesep="\r\n")))
    identity = document(relay, "messages", "wait", address)["id"]
    target = tmp_path / "a.bin"
    fetch = ("messages", "attachment", address, identity)
    assert text(relay, *fetch, "0", "--out", str(target)) == ""
    assert target.read_bytes() == run(relay, *fetch, "0").stdout == content
    for refused in (run(relay, *fetch, "0", "--out", str(target)), run(relay, *fetch, "7")):
        assert refused.returncode == 1
        assert refused.stderr.count(b"\n") == 1
    assert text(relay, "messages", "delete", address, identity) == ""
    assert run(relay, "messages", "show", address, identity).returncode == 1
    assert text(relay, "mailbox", "delete", address, "--purge") == ""
    assert text(relay, "mailbox", "create", "--local-part", "purged").strip() == address
    quota = document(relay, "mailbox", "quota")
    assert quota["mailboxes"] >= 0
    assert quota["max_mailboxes"] is None
    shown = text(relay, "mailbox", "quota")
    assert "no limit" in shown
    assert re.search(r"^life of each: +7 d$", shown, re.MULTILINE)
    assert "size:" in text(relay, "mailbox", "show", address)


def test_a_message_is_checked(relay: RelayProcess) -> None:
    """What the world would say: a table for people, and the answer of the API for programs."""
    address = text(relay, "mailbox", "create").strip()
    # Nothing of it asks the DNS, which is not the test's.
    deliver(relay, address, b"Subject: a\r\nContent-Type: text/html\r\n\r\n<img src='cid:a'>\r\n")
    got = document(relay, "messages", "wait", address)
    said = document(relay, "messages", "check", address, got["id"])
    assert said["dmarc"] == {"result": "permerror", "detail": "there is no From"}
    shown = text(relay, "messages", "check", address, got["id"])
    assert re.search(r"^spf +none +the mail came from this machine", shown, re.MULTILINE)
    assert re.search(r"^dmarc +permerror +there is no From$", shown, re.MULTILINE)
    assert re.search(
        r"^images-without-alt +warning +Images without an alt text: 1 of 1", shown, re.MULTILINE
    )
    assert f"score: {said['score']:g} of 10" in shown
    assert run(relay, "messages", "check", address, "nonsense").returncode == 1


def test_waiting_in_vain_is_1_and_says_why(relay: RelayProcess) -> None:
    """At the time-out stderr says that no message came, and stdout is empty."""
    address = text(relay, "mailbox", "create").strip()
    done = run(relay, "messages", "wait", address, "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"relay: No message came to {address} within 0.2 s.\n"
    deliver(relay, address, b"Subject: Welcome\r\n\r\nHello\r\n")
    wanted = ("--subject", "Reset", "--timeout", "0.2")
    done = run(relay, "messages", "wait", address, *wanted)
    first, line = done.stderr.decode().splitlines()
    assert first == f"relay: No message came to {address} within 0.2 s; 1 other is there:"
    assert re.fullmatch(r"  20\d\d-\S+ [\d:]+ from \S+: Welcome", line), line
    for number in range(6):
        deliver(relay, address, b"Subject: %d\r\n\r\nHello\r\n" % number)
    done = run(relay, "messages", "wait", address, *wanted)
    first, *lines = done.stderr.decode().splitlines()
    assert first.endswith("; others are there, the newest 5:")
    assert [line[-1] for line in lines] == ["5", "4", "3", "2", "1"]


def test_waiting_ends_when_the_mailbox_does(relay: RelayProcess) -> None:
    """A mailbox that expires meanwhile ends the wait at once, with 1 and the relay's sentence."""
    address = text(relay, "mailbox", "create").strip()
    end = threading.Timer(1.0, run, (relay, "mailbox", "delete", address))
    end.start()
    done = run(relay, "messages", "wait", address, "--timeout", "50", timeout=40)
    end.join()
    assert done.returncode == 1
    assert done.stderr.startswith(b"relay: There is no such mailbox")


def test_lists_follow_the_cursor(relay: RelayProcess) -> None:
    """--limit beyond a page and --all fetch as many pages as it takes, each item once."""
    wanted = 230
    with relay.http() as api:
        for _ in range(wanted):
            api.post("/api/v1/mailboxes").raise_for_status()
    limited = document(relay, "mailbox", "list", "--limit", "215")
    assert len({item["address"] for item in limited}) == len(limited) == 215
    everything = document(relay, "mailbox", "list", "--all")
    assert len({item["address"] for item in everything}) == len(everything) >= wanted
    assert everything[:215] == limited
    assert len(document(relay, "mailbox", "list")) == 50


def test_keys_are_made_listed_and_revoked(relay: RelayProcess) -> None:
    """The token is shown once, opens what its scope says, and nothing after its revocation."""
    made = document(
        relay, "key", "create", "--owner", "CI", "--scope", "read,send", "--plan", "pro"
    )
    assert made["token"].startswith("rk_")
    token = text(relay, "key", "create", "--owner", "CI 2").strip()
    assert token.startswith("rk_")
    address = text(relay, "mailbox", "create", "--token", made["token"]).strip()
    assert run(relay, "mailbox", "show", address, "--token", token).returncode == 1

    listed = {item["id"]: item for item in document(relay, "key", "list", "--all")}
    assert listed[made["id"]]["owner"] == "CI"
    assert "token" not in listed[made["id"]]
    assert made["token"] not in text(relay, "key", "list", "--all")

    assert text(relay, "key", "revoke", made["id"]) == ""
    refused = run(relay, "mailbox", "list", "--token", made["token"])
    assert refused.returncode == 1
    assert run(relay, "key", "revoke", made["id"]).returncode == 1
    assert run(relay, "key", "create", "--owner", "x", "--scope", "fly").returncode == 1


def test_status_is_the_tree(relay: RelayProcess) -> None:
    """Every actor has a line under its group's, and each of its processes one under the actor's;
    --json is what the API answers."""
    with smtplib.SMTP(*relay.smtp) as client:
        client.sendmail("a@b.example", [relay.create_mailbox()], b"Subject: x\r\n\r\nx\r\n")
    with relay.http() as api:
        tree = eventually_sync(
            lambda: api.get("/api/v1/supervision").raise_for_status().json(),
            "something was parsed",
            until=lambda tree: "parser-1" in _names(tree),
        )
    printed = document(relay, "status")
    assert _shape(printed) == _shape(tree)
    lines = text(relay, "status").splitlines()
    assert lines[1].split()[:2] == ["relay", "running"]
    drawn = [re.sub("[│├└─]", " ", line).split()[0] for line in lines[1:]]
    assert drawn == list(_names(tree))
    assert lines[2].startswith("├─ core ")
    assert lines[3].startswith("│  ├─ postgres ")
    assert lines[-1].startswith("   └─ control ")
    (parser,) = (line for line in lines if line.startswith("│  │  └─ parser-1 "))
    assert re.search(r" running +0 +pid \d+, \d+\.\d s of CPU$", parser)
    code, shown = on_terminal("status", "--data-dir", relay.data_dir)
    assert code == 0
    assert "\x1b[32mrunning" in shown


def test_status_says_what_needs_attention(relay: RelayProcess) -> None:
    """Below the tree, on stderr, in the words of the page; --json is the tree alone."""
    assert run(relay, "actor", "pause", "reaper").returncode == 0
    try:
        with relay.http() as api:
            seen = api.get("/api/v1/overview").raise_for_status().json()["attention"]
        said = run(relay, "status").stderr.decode().splitlines()
        assert "warning: Reaper is paused. (relay actor resume reaper)" in said
        for one in seen:
            assert any(line.startswith(f"{one['grade']}: {one['text']}") for line in said)
        assert "attention" not in document(relay, "status")
    finally:
        assert run(relay, "actor", "resume", "reaper").returncode == 0
    assert b"Reaper" not in run(relay, "status").stderr


def test_an_actor_and_a_group_are_commanded_by_name(relay: RelayProcess) -> None:
    """What was commanded is shown; a name that nobody has, or a command for nobody, exits 1."""
    assert document(relay, "actor", "pause", "lifecycle")["state"] == "paused"
    resumed = document(relay, "actor", "resume", "lifecycle")
    assert [child["state"] for child in resumed["children"]] == ["running"]
    assert text(relay, "actor", "sweep", "courier").splitlines()[1].split()[0] == "webhooks"
    assert document(relay, "actor", "report", "keeper")["name"] == "device_store"
    for arguments in (("sweep", "writer"), ("report", "mail"), ("restart", "nobody")):
        assert run(relay, "actor", *arguments).returncode == 1
    wanted = run(relay, "actor", "sweep", "sender").stderr
    assert b"sender does not understand 'sweep'" in wanted


def test_how_many_processes_auto_is_is_said(relay: RelayProcess, tmp_path: Path) -> None:
    """By the relay's log, `relay status`, and `relay config show` for the relay that runs."""
    (ready,) = (
        line
        for line in map(json.loads, text(relay, "tail", "--json").splitlines())
        if line["event"] == "relay.ready"
    )
    assert ready["smtp_processes"] == relay.run["smtp_processes"] == 1
    assert b"auto" not in run(relay, "status").stderr  # nobody said so
    data = DataDir(tmp_path)
    data.prepare()
    data.write_run(
        relay.run | {"settings": {"smtp.processes": "auto", "log.level": "info"}}
        | {"smtp_processes": 3}
    )  # fmt: skip
    said = cli("status", "--data-dir", tmp_path).stderr
    assert said.endswith(b"RELAY_SMTP__PROCESSES is auto: 3 processes on these cores.\n")
    shown = cli("config", "show", "--data-dir", tmp_path).stdout.decode().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in shown}
    assert rows["smtp.processes"] == [
        '"auto"',
        "(3",
        "here)",
        "its",
        "start",
        "RELAY_SMTP__PROCESSES",
    ]
    assert rows["log.level"][1:3] == ["its", "start"]
    assert rows["smtp.max_recipients"][1] == "default"
    values = cli("config", "show", "--json", "--data-dir", tmp_path).stdout
    assert json.loads(values)["smtp.processes"] == "auto"
    assert cli("config", "show", "--data-dir", tmp_path / "no").returncode == 69
    here = cli("config", "show", env={"RELAY_SMTP__PROCESSES": "auto"}).stdout.decode()
    assert f'"auto" ({processes_on(len(os.sched_getaffinity(0)))} here)' in here


def _names(node: dict[str, Any]) -> Iterator[str]:
    yield node["name"]
    yield from (one["name"] for one in node["processes"])
    for child in node["children"]:
        yield from _names(child)


def _shape(node: dict[str, Any]) -> tuple[Any, ...]:
    return node["name"], node["started_at"], node["restarts"], *map(_shape, node["children"])


def test_the_log_can_be_filtered(relay: RelayProcess) -> None:
    """Without -f tail ends with what was logged; each filter narrows it."""
    lines = [json.loads(line) for line in text(relay, "tail", "--json").splitlines()]
    assert all({"timestamp", "level", "event", "actor"} <= line.keys() for line in lines)
    ready = [line for line in lines if line["event"] == "relay.ready"]
    assert len(ready) == 1
    for arguments in (
        ("--grep", "event=relay.ready"),
        ("--grep", f"smtp={relay.run['smtp']}", "--grep", "event=~^relay[.]"),
        ("--actor", "relay", "--level", "info", "--grep", f"pid={relay.pid}"),
    ):
        found = text(relay, "tail", "--json", *arguments).splitlines()
        assert [json.loads(line) for line in found if "relay.ready" in line] == ready, arguments
    assert "relay.ready" in text(relay, "tail")
    assert text(relay, "tail", "--grep", "event=relay.never") == ""
    assert text(relay, "tail", "--actor", "nobody") == ""


def test_a_groups_log_is_that_of_all_in_it(relay: RelayProcess) -> None:
    """An actor is found by its former name, too."""
    for name in ("control", "keeper"):
        text(relay, "actor", "report", name)

    def reports(actor: str) -> set[str]:
        lines = text(relay, "tail", "--actor", actor, "--json").splitlines()
        found = [json.loads(line) for line in lines]
        return {line["actor"] for line in found if line["event"] == "actor.report"}

    for actor, wanted in (("edge", "control"), ("keeper", "device_store")):
        eventually_sync(partial(reports, actor), f"{wanted} reports", until={wanted}.issubset)


def test_the_log_is_followed_until_an_interrupt(relay: RelayProcess) -> None:
    """-f shows what is logged from now on, as it comes, and ends with 130 on Ctrl-C."""
    process = subprocess.Popen(
        [*RELAY, "tail", "-f", "--json", "--grep", "event=supervision.pause", "--grep",
         "target=reaper", "--data-dir", str(relay.data_dir)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with relay.http() as api:
            for verb in ("pause", "resume"):
                api.post(f"/api/v1/supervision/reaper/{verb}").raise_for_status()
        # Other tests may have paused others of this relay's actors before.
        targets = (json.loads(line)["target"] for line in process.stdout)
        assert "reaper" in targets
        process.send_signal(2)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in said


def test_the_database_url_is_one_that_connects(relay: RelayProcess) -> None:
    """db url prints what psql takes; db check and db migrate use the running server."""
    url = text(relay, "db", "url").strip()
    with psycopg.connect(url, connect_timeout=10) as connection:
        assert connection.execute("SELECT count(*) FROM relay.mailboxes").fetchone() is not None
    assert document(relay, "db", "check")["pending"] == []
    assert document(relay, "db", "migrate") == {"applied": []}
    assert document(relay, "db", "url") == {"database_url": url}


def test_the_doctor_finds_a_healthy_relay(relay: RelayProcess) -> None:
    """Nothing FAILs, the ports are the relay's own, and the database has been looked at."""
    done = run(relay, "doctor", "--json", env=relay.env)
    findings = {item["check"]: item for item in json.loads(done.stdout)}
    assert done.returncode == 0, findings
    assert {"python", "settings", "data directory", "disk space", "open files"} <= findings.keys()
    assert relay.run["smtp"] in findings["smtp port"]["found"]
    assert findings["schema"]["state"] == "ok"
    assert findings["clocks"]["state"] == "ok"
    assert findings["relay"]["state"] == "ok"
    assert findings["version"]["state"] == "ok"
    table = run(relay, "doctor", env=relay.env)
    assert table.returncode == 0
    assert len(table.stdout.decode().splitlines()) == len(findings) + 1


def test_a_second_relay_on_the_directory_is_refused(relay: RelayProcess) -> None:
    """The second `up` ends with 78 and one sentence, and the first is unhurt."""
    done = run(
        relay, "up", env={"RELAY_HTTP__BIND": "127.0.0.1:0", "RELAY_SMTP__BIND": "127.0.0.1:0"}
    )
    assert done.returncode == 78
    assert b"Another relay holds the data directory" in done.stderr
    with relay.http() as api:
        assert api.get("/readyz").status_code == 200


def test_a_port_in_use_is_named(relay: RelayProcess, tmp_path: Path) -> None:
    """`up` on a taken port ends with 78 and names the setting; `doctor` would have told."""
    taken = {"RELAY_SMTP__BIND": relay.run["smtp"], "RELAY_HTTP__BIND": "127.0.0.1:0"}
    done = cli("up", "--data-dir", tmp_path / "other", env=taken)
    assert done.returncode == 78
    assert b"RELAY_SMTP__BIND" in done.stderr
    told = cli("doctor", "--json", "--data-dir", tmp_path / "other", env=taken)
    assert told.returncode == 1
    findings = {item["check"]: item for item in json.loads(told.stdout)}
    assert findings["smtp port"]["state"] == "FAIL"
    assert findings["relay"]["state"] == "warn"


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """Hold a data directory as a relay does."""
    data = DataDir(directory)
    data.prepare()
    try:
        yield
    finally:
        data.release()


@pytest.mark.parametrize("held", ["port", "directory"])
def test_a_relay_starts_beside_another_by_the_line_that_is_said(
    relay: RelayProcess, tmp_path: Path, held: str
) -> None:
    """Copied into a shell as it stands: every port that the settings have has moved, as has the
    directory if that was another's; and the file of settings is the one that was said."""
    config = tmp_path / "the settings.toml"
    config.write_text(f'[pop3]\nbind = "{relay.run["smtp"]}"\n')
    taken = {
        "RELAY_SMTP__BIND": relay.run["smtp"],
        "RELAY_HTTP__BIND": relay.run["http"].removeprefix("http://"),
        "RELAY_DEVICES__PUSH_BIND": relay.run["devices_push"],
        "RELAY_DEVICES__RECEIVE_BIND": relay.run["devices_receive"],
    }
    own = tmp_path / "data"
    with holding(own) if held == "directory" else nullcontext():
        done = cli("up", "--config", config, "--data-dir", own, env=taken)
    assert done.returncode == 78
    sentence, intro, line = done.stderr.decode().splitlines()
    assert "Another relay holds" in sentence if held == "directory" else "_BIND is" in sentence
    assert intro == "Beside it, on free ports:"
    moved = {word.partition("=")[0] for word in shlex.split(line) if word.startswith("RELAY_")}
    assert moved == {*taken, "RELAY_SUBMISSION__BIND", "RELAY_POP3__BIND"}
    if held == "directory":
        own = own.with_name("data-2")
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec env {line}"],
        env=environment(**taken), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        eventually_sync(
            lambda: process.poll() is not None or DataDir(own).read_run(), "it is ready", within=60
        )
        assert process.poll() is None, process.stderr and process.stderr.read()
        run_file = DataDir(own).read_run()
        assert run_file is not None
        assert {"smtp", "http", "pop3"} <= run_file.keys()
        assert run_file["smtp"] != relay.run["smtp"]
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_stopped_relay_ends_a_follower(tmp_path: Path) -> None:
    """When the relay stops, `tail -f` says so and ends with 0; commands then say 69."""
    with RelayProcess(tmp_path / "data") as own:
        process = subprocess.Popen(
            [*RELAY, "tail", "-f", "--data-dir", str(own.data_dir)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert own.stop() == 0
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0
        assert said.startswith(b"relay: ")
        assert run(own, "status").returncode == 69
        began = time.monotonic()
        assert own.start() < time.monotonic() - began + 1
        assert document(own, "status")["name"] == "relay"


def test_mail_does_not_drive_the_terminal(relay: RelayProcess) -> None:
    """Whatever command shows it, what a stranger wrote is escaped; piped, it is what it was."""
    address = text(relay, "mailbox", "create").strip()
    wicked = ["\x1b]0;title\x07", "\x9b31m", "\u202egnp.exe", "\u2066", "\u200b"]
    subject = f"{''.join(wicked)} ü"
    letter = (
        f"From: a@shop.example\r\nSubject: {Header(subject, 'utf-8').encode()}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
        f"{subject}\r\nend\r\n"
    ).encode()
    deliver(relay, address, letter)
    entry = document(relay, "messages", "wait", address)
    piped = run(relay, "messages", "raw", address, entry["id"]).stdout
    assert piped.endswith(letter)
    for arguments in (
        ("messages", "raw", address, entry["id"]),
        ("messages", "show", address, entry["id"]),
        ("messages", "show", address, entry["id"], "--json"),
        ("messages", "wait", address),
        ("messages", "wait", address, "--json"),
        ("messages", "list", address),
        ("messages", "list", address, "--json"),
    ):
        code, shown = on_terminal(*arguments, "--data-dir", relay.data_dir, NO_COLOR="1")
        assert code == 0
        assert [part for part in wicked if part in shown] == [], arguments
        assert "ü" in shown
        if "--json" in arguments:
            found = json.loads(shown.rpartition("\x1b[2K")[2])  # after the sign that it waits
            assert (found[0] if isinstance(found, list) else found)["subject"] == entry["subject"]


def test_the_relay_is_not_asked_through_a_proxy(relay: RelayProcess) -> None:
    """Proxy variables of the environment do not lead the administrator's token astray."""
    proxies = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    assert text(relay, "status", env=proxies)


def test_a_relay_on_all_addresses_is_reached_on_loopback(tmp_path: Path) -> None:
    """Bound to 0.0.0.0, relay.json names an address that the Host check lets in."""
    bound = {"RELAY_SMTP__BIND": "0.0.0.0:0", "RELAY_HTTP__BIND": "0.0.0.0:0"}
    with RelayProcess(tmp_path / "data", env=bound) as own:
        assert own.run["http"].startswith("http://127.0.0.1:")
        assert document(own, "status")["name"] == "relay"
        deliver(own, text(own, "mailbox", "create").strip())


def test_a_relay_without_control_is_not_asked(tmp_path: Path) -> None:
    """With --only ingest no HTTP port is bound or published; commands say so, the doctor lives."""
    with RelayProcess(tmp_path / "data", arguments=("--only", "ingest")) as own:
        assert "http" not in own.run
        assert own.smtp[1] > 0
        done = run(own, "status")
        assert done.returncode == 69
        assert b"without control" in done.stderr
        assert json.loads(run(own, "db", "check", "--json").stdout)["pending"] == []
        assert run(own, "doctor", env=own.env).returncode == 0
        assert own.stop() == 0


@pytest.fixture(autouse=True)
def _relay_is_well(relay: RelayProcess) -> None:
    """The shared relay is ready before each test, whatever the one before did to it."""
    answer = httpx.get(f"{relay.run['http']}/readyz", timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
