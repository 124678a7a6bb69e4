"""What is personal or secret, marked and followed through the whole relay at debug level.

A canary address, subject, name, user, password and tokens go in by SMTP, HTTP and SQL; mail goes
out to upstreams that repeat all of it in every refusal there is and as they take it, into the loop,
and to webhooks.  None of it may come out in a log line, a metric, an error, an event or an answer,
but for what an owner reads of their own messages: sender, recipient and subject.  The canary's
local part is no plain word, as one is a word wherever it does not stand as an address would
(tests/test_redact.py).
"""

from __future__ import annotations

import base64
import json
import re
import smtplib
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import trio

from tests.eventually import eventually_sync
from tests.http.test_outbound_privacy import receiving
from tests.outbound.sink import HangUp, Session, running_sink
from tests.relay_process import RelayProcess

PERSON = "canary.person"
NAME = "Canary von Person"
SUBJECT = "Your canary is ready"
USER, PASSWORD = "canary-user", "canary-password"
TOKEN = "canaryTokenOfAllThings0123456789"
CODED = [base64.b64encode(each.encode()).decode() for each in (USER, PASSWORD)]
CODED.append(base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode())

# Where each recipient's domain is answered with all that is known, and how.
ANSWERS = {
    ("dot", "good.example"): "250 2.0.0",
    ("RCPT", "rcpt5.example"): "550 5.2.1",
    ("RCPT", "rcpt4.example"): "450 4.2.1",
    ("DATA", "data5.example"): "554 5.6.0",
    ("dot", "dot4.example"): "451 4.3.0",
    ("dot", "dot5.example"): "554 5.7.1",
    ("RCPT", "closing.example"): "421 4.7.0",
    ("DATA", "garbage.example"): "what is",
}
DOMAINS = [domain for _, domain in ANSWERS] + ["unknown.example"]


def quote(recipient: str) -> str:
    """All that a peer knows, as talkative servers put it."""
    local = recipient.partition("@")[0]
    return (
        f"<{recipient}> aka {local} ({NAME}), {SUBJECT!r} by {recipient.upper()}; "
        f"{USER} / {PASSWORD} {' '.join(CODED)} see https://x.example/u/{local}?t={TOKEN} {TOKEN}"
    )


async def talkative(session: Session, verb: str, line: str) -> bytes | None:
    """Take the password that is right, then answer as the recipient's domain says."""
    if verb == "EHLO":
        return b"250-sink\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n"
    if verb == "AUTH":
        _, user, given = base64.b64decode(line.split()[-1]).decode().split("\0")
        code = "235 2.7.0" if given == PASSWORD else "535 5.7.8"
        return f"{code} {line} {user} / {given} {line.split()[-1]}\r\n".encode()
    recipient = line.partition("<")[2].partition(">")[0] if verb == "RCPT" else ""
    recipient = recipient or (session.recipients[-1] if session.recipients else "")
    said = ANSWERS.get((verb, recipient.rpartition("@")[2]))
    if verb == "dot" and recipient.endswith("unknown.example"):
        raise HangUp
    if said is None:
        return None
    answer = f"{said} {quote(recipient)}\r\n".encode()
    if said.startswith("421"):
        raise HangUp(answer)
    return answer


def by_http(relay: RelayProcess, client: httpx.Client, port: int, hook: str) -> list[str]:
    """Everything that mail is sent with; returns the secrets that were handed out."""
    key = client.post("/keys", json={"owner": "shop", "scopes": ["send", "read"]}).json()
    own = {"Authorization": f"Bearer {key['token']}"}

    def call(method: str, path: str, **options: Any) -> Any:
        response = client.request(method, path, headers=own, **options)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    secret = call("POST", "/webhooks", json={"url": hook})["secret"]
    for local, user, password in (("wrong", USER, "canary-wrong"), ("right", USER, PASSWORD)):
        upstream = f"smtp://{user}:{password}@127.0.0.1:{port}"
        call(
            "POST",
            "/senders",
            json={"address": f"{PERSON}.{local}@x.example", "upstream": upstream},
        )
    call("POST", "/senders", json={"address": f"{PERSON}.loop@x.example", "upstream": "loop:"})
    message = {
        "subject": SUBJECT,
        "text": f"Dear {NAME}, follow https://shop.example/activate?token={TOKEN}",
        "headers": {"Reply-To": f"{PERSON}@reply.example"},
    }
    to = [f"{NAME} <{PERSON}@{domain}>" for domain in DOMAINS]
    for sender in ("nobody", "right", "wrong"):
        name = f"{NAME} <{PERSON}.{sender}@x.example>"
        recipients = to if sender != "wrong" else to[:1]
        call("POST", "/messages/send", json=message | {"from": name, "to": recipients})
    inbox = client.post("/mailboxes", json={"local_part": f"{PERSON}.inbox"}).json()
    here = [inbox["address"], f"{PERSON}.none@relay.localhost", f"{PERSON}@good.example"]
    call("POST", "/messages/send", json=message | {"from": f"{PERSON}.loop@x.example", "to": here})
    anonymous = httpx.post(f"{relay.run['http']}/api/v1/mailboxes").json()
    return [key["token"], secret, anonymous["session_token"], *reading(relay, anonymous, inbox)]


def reading(relay: RelayProcess, box: dict[str, Any], inbox: dict[str, Any]) -> list[str]:
    """Read with right and wrong tokens, in headers and addresses."""
    path = f"/api/v1/mailboxes/{box['address']}/messages"
    with httpx.Client(base_url=relay.run["http"]) as client:
        for token in (box["session_token"], TOKEN):
            client.get(path, headers={"X-Session-Token": token})
            client.get(path, params={"token": token, "q": SUBJECT})
            client.get(path, headers={"Authorization": f"Bearer {token}"})
            client.get(f"{path}/wait", params={"timeout": 0, "subject": SUBJECT, "token": token})
            client.get(f"/api/v1/mailboxes/{inbox['address']}", params={"token": token})
        for path in (f"/{TOKEN}", f"/api/v1/{PERSON}@x.example", f"/api/v1/outbound/{TOKEN}"):
            client.get(path, headers={"User-Agent": TOKEN, "Referer": f"http://{PERSON}/"})
    host, _, port = relay.run["http"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as stream:
        stream.sendall(f"GET /{TOKEN} {PERSON}\r\n{TOKEN}\r\n\r\n".encode())
        stream.recv(1000)
    return []


def by_smtp(relay: RelayProcess) -> None:
    """Sessions that end well and badly, each with the canary in every place there is."""
    known = f"{PERSON}.inbox@relay.localhost"
    letter = (
        f'From: "{NAME}" <{PERSON}@from.example>\r\nTo: {known}\r\nSubject: {SUBJECT}\r\n'
        f"Message-ID: <{PERSON}@id.example>\r\n\r\n{PASSWORD} https://x.example/?t={TOKEN}\r\n"
    )
    with smtplib.SMTP(*relay.smtp, local_hostname=f"{PERSON}.example") as session:
        session.sendmail(f"{PERSON}@from.example", [known], letter)
    for commands in (
        [
            f"EHLO {PERSON}",
            f"MAIL FROM:<{PERSON}@a.example>",
            f"RCPT TO:<{PERSON}@foreign.example>",
        ],
        [
            f"EHLO {PERSON}",
            f"MAIL FROM:<{PERSON}\t@a.example>",
            f"VRFY {PERSON}",
            f"{PERSON} {TOKEN}",
        ],
        [f"EHLO {PERSON}", f"AUTH PLAIN {CODED[2]}", f"MAIL FROM:<{PERSON}@a> AUTH={PERSON}"],
        [
            f"EHLO {PERSON}",
            "MAIL FROM:<>",
            f"RCPT TO:<{known}>",
            "DATA",
            f"Subject: {SUBJECT}\n.\r\n.",
        ],
        [f"HELO {PERSON}" + "x" * 5000],
    ):
        with socket.create_connection(relay.smtp, timeout=5) as stream:
            stream.recv(1000)
            for command in commands:
                stream.sendall(command.encode() + b"\r\n")
                if not stream.recv(1000):
                    break


def by_sql(dsn: str) -> None:
    """`relay.send`, well and badly."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute(
            "SELECT relay.send(%s, %s, %s, 'text')",
            (f"{PERSON}.sql@x.example", f"{NAME} <{PERSON}@rcpt5.example>", SUBJECT),
        )
        for values in (
            (f"{PERSON}@x.example", f"{PERSON} x", SUBJECT, "normal"),
            (f"{PERSON}@x.example", f"{PERSON}@x.example", f"{SUBJECT}\n", "normal"),
            (f"{PERSON}@x.example", f"{PERSON}@x.example", SUBJECT, PERSON),
        ):
            try:
                sql.execute("SELECT relay.send(%s, %s, %s, 'text', priority => %s)", values)
            except psycopg.errors.InvalidParameterValue:
                continue
            raise AssertionError("what is malformed was taken")


def by_accident(relay: RelayProcess, client: httpx.Client) -> None:
    """The database refuses what nobody thought of, and says in its DETAIL what it was."""
    refused = f"{PERSON}.refused@x.example"
    with psycopg.connect(relay.run["database_url"], autocommit=True) as sql:
        for table, column in ("messages", "reverse_path"), ("outbound_letters", "address"):
            whim = f"CHECK ({column} <> '{refused}')"
            sql.execute(f"ALTER TABLE relay.{table} ADD CONSTRAINT whim {whim}".encode())
    with smtplib.SMTP(*relay.smtp) as session:
        session.ehlo()
        session.mail(refused)
        session.rcpt(f"{PERSON}.inbox@relay.localhost")
        code, answer = session.data(f"Subject: {SUBJECT}\r\n\r\n{TOKEN}\r\n")
        assert code == 451, (code, answer)
    message = {"from": "a@x.example", "to": [refused], "subject": SUBJECT, "text": "text"}
    response = client.post("/messages/send", json=message)
    assert response.status_code == 500, response.text
    assert PERSON not in response.text


def all_done(client: httpx.Client) -> None:
    """Wait until every message has come to an end."""
    eventually_sync(
        lambda: client.get("/queue").json(),
        "every message has ended",
        until=lambda stats: not stats["queued"] and not stats["processing"],
        within=60.0,
    )


def answers(relay: RelayProcess, client: httpx.Client, own: dict[str, str]) -> dict[str, str]:
    """What may be read: by everybody, by the administrator, and by the owner."""
    found = {name: client.get(f"/{name}").text for name in ("queue", "logs", "supervision")}
    found["metrics"] = httpx.get(f"{relay.run['http']}/metrics").text
    found["everyone's messages"] = ""
    shown = client.get("/outbound", params={"limit": 200}).json()
    assert len(shown) > 20
    mine = client.get("/outbound", params={"limit": 200}, headers=own).json()
    assert {message["subject"] for message in mine} == {SUBJECT}
    theirs = {message["id"] for message in mine}
    own_of_administrator = [message for message in shown if message["id"] not in theirs]
    for message in (*own_of_administrator, *mine):
        del message["sender"], message["recipient"], message["subject"]
    for message in (*shown, *mine):
        found["everyone's messages"] += json.dumps(message)
        found["everyone's messages"] += client.get(f"/outbound/{message['id']}/events").text
    return found


def by_cli(relay: RelayProcess) -> str:
    """What the commands show that an operator uses in trouble."""
    text = ""
    for words in (["status"], ["tail"], ["queue", "stats"]):
        command = [
            sys.executable,
            "-m",
            "relay",
            *words,
            "--json",
            "--data-dir",
            str(relay.data_dir),
        ]
        text += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return text


def drive(relay: RelayProcess, port: int) -> tuple[dict[str, str], list[str]]:
    """Do everything, and gather everything that can be seen afterwards."""
    with receiving(500) as (hook, got), relay:
        admin = {"Authorization": f"Bearer {relay.run['admin_token']}"}
        base = relay.run["http"] + "/api/v1"
        with httpx.Client(base_url=base, headers=admin, timeout=20) as client:
            secrets = by_http(relay, client, port, hook)
            by_smtp(relay)
            by_sql(relay.run["database_url"])
            by_accident(relay, client)
            all_done(client)
            own = {"Authorization": f"Bearer {secrets[0]}"}
            found = answers(relay, client, own)
            eventually_sync(lambda: got, "something is posted")
        found["commands"] = by_cli(relay)
        with psycopg.connect(relay.run["database_url"]) as sql:
            found["stored errors"] = str(
                sql.execute(
                    "SELECT l::text FROM relay.outbound_log l UNION ALL"
                    " SELECT t::text FROM relay.outbound_tries t UNION ALL"
                    " SELECT a::text FROM relay.outbound_attempts a UNION ALL"
                    " SELECT error FROM relay.webhook_events UNION ALL"
                    " SELECT convert_from(password, 'UTF8') FROM relay.senders"
                ).fetchall()
            )
            phases = sql.execute("SELECT DISTINCT phase FROM relay.outbound_attempts").fetchall()
            replies = "SELECT FROM relay.outbound_log WHERE reply LIKE '%<redacted:%'"
            assert sql.execute(replies).fetchall()
        secrets.append(relay.run["admin_token"])
    assert {"auth", "rcpt", "data", "dot"} <= {phase for (phase,) in phases}
    found["log"] = relay.log_file.read_text()
    return found, secrets


async def test_what_is_marked_is_seen_by_its_owner_alone(tmp_path: Path):
    """Through every way in and out, at debug level, with peers that repeat all they know."""
    relay = RelayProcess(
        tmp_path / "data",
        env={
            "RELAY_LOG__LEVEL": "debug",
            "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",
            "RELAY_OUTBOUND__RETRY_UNIT": "10ms",
            "RELAY_OUTBOUND__MAX_ATTEMPTS": "2",
            "RELAY_OUTBOUND__PRIVATE_UPSTREAMS": "true",
            "RELAY_DATABASE__POOL_SIZE": "4",
        },
    )
    async with running_sink(talkative) as sink:
        relay.env["RELAY_OUTBOUND__UPSTREAM"] = f"smtp://{USER}:{PASSWORD}@127.0.0.1:{sink.port}"
        found, secrets = await trio.to_thread.run_sync(partial(drive, relay, sink.port))
    assert '"level":"debug"' in found["log"]
    forbidden = ["canary", *(code.rstrip("=") for code in CODED), *secrets]
    for where, text in found.items():
        for word in forbidden:
            place = re.search(re.escape(word), text, re.IGNORECASE)
            assert place is None, (where, text[max(0, place.start() - 300) : place.end() + 100])
