"""No open relay: whoever has not signed in sends nothing to a foreign domain, however it is spelt.

Each address stands as it is behind `RCPT TO:`, on every port that speaks SMTP.  What is captured is
kept, and never leaves.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
import trio

from tests.certificates import write
from tests.eventually import eventually_sync
from tests.faults.outbound import started
from tests.outbound.sink import running_sink
from tests.relay_process import RelayProcess

FOREIGN = [
    b"<victim@foreign.example>",
    b"<ViCtIm@FoReIgN.ExAmPlE>",
    b"<victim@foreign.example.>",
    b"victim@foreign.example",
    b" <victim@foreign.example>",
    b"  victim@foreign.example ",
    b"<victim@foreign.example> NOTIFY=NEVER",
    b"<victim@foreign.example> ORCPT=rfc822;bob@relay.localhost",
    # The percent hack, bang paths, source routes.
    b"<victim%foreign.example>",
    b"<victim%foreign.example@relay.localhost>",
    b"<victim%foreign.example@[127.0.0.1]>",
    b"<victim%foreign.example%relay.localhost@relay.localhost>",
    b"<foreign.example!victim>",
    b"<foreign.example!victim@relay.localhost>",
    b"<relay.localhost!victim@foreign.example>",
    b"<@relay.localhost:victim@foreign.example>",
    b"<@relay.localhost,@other.example:victim@foreign.example>",
    b"<@foreign.example:victim@relay.localhost>",
    b"<@foreign.example:victim>",
    # Quotes and comments.
    b'<"victim@foreign.example">',
    b'<"victim@foreign.example"@relay.localhost>',
    b'<"victim%foreign.example"@relay.localhost>',
    b'<"victim\\@foreign.example"@relay.localhost>',
    b'<"victim"@foreign.example>',
    b'<""@foreign.example>',
    b'"victim"@foreign.example',
    b'<"@relay.localhost:victim@foreign.example">',
    b"<victim(bob@relay.localhost)@foreign.example>",
    b"<victim@foreign.example(@relay.localhost)>",
    b"<victim@(relay.localhost)foreign.example>",
    b"Bob <victim@foreign.example>",
    b"bob@relay.localhost <victim@foreign.example>",
    # Two of something.
    b"<victim@foreign.example@relay.localhost>",
    b"<victim@relay.localhost@foreign.example>",
    b"<victim@@foreign.example>",
    b"<bob@relay.localhost,victim@foreign.example>",
    b"<bob@relay.localhost>,<victim@foreign.example>",
    b"<bob@relay.localhost victim@foreign.example>",
    b"<bob@relay.localhost><victim@foreign.example>",
    b"<<victim@foreign.example>>",
    b"<bob@relay.localhost>victim@foreign.example",
    # Literals and neighbours of our own name.
    b"<victim@[192.0.2.1]>",
    b"<victim@[IPv6:2001:db8::1]>",
    b"<victim@[::1]>",
    b"<victim@192.0.2.1>",
    b"<victim@#3221225985>",
    b"<victim@relay.localhost.foreign.example>",
    b"<victim@foreignrelay.localhost.example>",
    b"<victim@sub.relay.localhost>",
    b"<victim@localhost>",
    b"<victim@localhost.>",
    b"<victim@relay.localhost.>",
    b"<victim@>",
    b"<victim>",
    b"victim",
    b"<@foreign.example>",
    b"<>",
    b"",
    b"<",
    b"<postmaster@foreign.example>",
    b"<postmaster%foreign.example@relay.localhost>",
    # What is not ASCII, and what is not even text.
    "<vïctim@foreign.example>".encode(),
    "<victim@föreign.example>".encode(),
    b"<victim@xn--freign-wxa.example>",
    "<victim\uff20foreign.example>".encode(),
    "<victim@foreign\u3002example>".encode(),
    "<victim\u0040foreign\uff0eexample>".encode(),
    "<victim@relay.localhost\u2028@foreign.example>".encode(),
    b"<=?utf-8?q?victim=40foreign.example?=>",
    b"<=?utf-8?q?victim=40foreign.example=00?=@relay.localhost>",
    b"<victim\xff@foreign.example>",
    b"<victim@foreign.example\x00>",
    b"<victim@foreign.example\x00@relay.localhost>",
    b"<victim\x00@foreign.example>",
    b"<victim@foreign.example\t>",
    b"<victim@foreign.example\x7f@relay.localhost>",
    b"<victim@foreign.example\x08>",
    b"<victim+@foreign.example>",
    b"<+tag@foreign.example>",
    b"<.victim@foreign.example>",
    b"<victim.@foreign.example>",
    b"<-@foreign.example>",
    b"<|/bin/sh@foreign.example>",
    b"<victim@foreign.example" + b"x" * 900 + b">",
]

SENDERS = [b"<a@b.example>", b"<>", b"<bob@relay.localhost>", b"<postmaster@relay.localhost>"]


PORTS = ("smtp", "submission", "submission_tls", "lmtp")
HELLOS = ((b"EHLO foreign.example", b" SMTPUTF8"), (b"HELO x", b""))
BY_LMTP = ((b"LHLO foreign.example", b" SMTPUTF8"), (b"LHLO x", b""))
"""How to begin, and what may stand behind MAIL then."""


def ports(relay: RelayProcess) -> list[tuple[str, str]]:
    """What a relay says of its ports that speak SMTP: name, and where."""
    return [(name, relay.run[name]) for name in PORTS]


class Stranger:
    """Who has not signed in, each from another address: those who guess are slowed down."""

    _last = itertools.count(2)

    def __init__(self, name: str, where: str) -> None:
        if name == "lmtp":
            plain = socket.socket(socket.AF_UNIX)
            plain.settimeout(20)
            plain.connect(where)
        else:
            host, _, port = where.rpartition(":")
            number = next(self._last)
            source = f"127.1.{number // 250}.{number % 250 + 1}"
            plain = socket.create_connection((host, int(port)), 20, (source, 0))
        self.hellos = BY_LMTP if name == "lmtp" else HELLOS
        if name == "submission_tls":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            plain = context.wrap_socket(plain)
        self._sock = plain
        self._file = plain.makefile("rb")
        assert self._reply()[:3] == b"220"

    def close(self) -> None:
        """Break the connection."""
        self._file.close()
        self._sock.close()

    def ask(self, command: bytes) -> bytes:
        """Say something, and return the reply; nothing at the end of the connection."""
        self._sock.sendall(command + b"\r\n")
        return self._reply()

    def _reply(self) -> bytes:
        while (line := self._file.readline())[3:4] == b"-":
            pass
        return line


def refused(stranger: Stranger, sender: bytes, recipient: bytes) -> None:
    """No reply takes the recipient, with extensions or without."""
    for hello, parameters in stranger.hellos:
        assert stranger.ask(hello)[:3] == b"250"
        begun = stranger.ask(b"MAIL FROM:" + sender + parameters)
        assert begun[:3] in (b"250", b"530"), (sender, begun)
        named = stranger.ask(b"RCPT TO:" + recipient)
        assert named[:1] in (b"4", b"5"), (recipient, named)
        data = stranger.ask(b"DATA")
        assert data[:3] == b"503", (recipient, data)


def kept(relay: RelayProcess) -> dict[str, int]:
    """How many messages it has taken in, and how many are to leave, or have left."""
    with psycopg.connect(relay.run["database_url"]) as database:
        counts = {}
        for table in ("messages", "outbound_contents", "outbound_letters", "outbound_log"):
            row = database.execute(f"SELECT count(*) FROM relay.{table}").fetchone()
            assert row is not None
            counts[table] = row[0]
    return counts


def env(folder: Path, capture: str) -> dict[str, str]:
    """A relay on all its ports."""
    cert, key = write(folder)
    return {
        "RELAY_SMTP__CAPTURE": capture,
        "RELAY_SMTP__LMTP": str(folder / "lmtp"),
        "RELAY_SMTP__TLS_CERT": cert,
        "RELAY_SMTP__TLS_KEY": key,
        "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
    }


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay that captures nothing, with one mailbox."""
    folder = tmp_path_factory.mktemp("open-relay")
    with RelayProcess(folder / "data", env=env(folder, "off")) as process:
        with psycopg.connect(process.run["database_url"], autocommit=True) as database:
            database.execute(
                "INSERT INTO relay.mailboxes (address, expires_at) "
                "VALUES ('bob@relay.localhost', now() + interval '1 day')"
            )
        yield process


@pytest.mark.parametrize("port", PORTS)
def test_no_spelling_of_a_foreign_address_is_taken(relay: RelayProcess, port: str) -> None:
    """A reply of 4xx or 5xx to each, none of them leads to DATA, and nothing is kept."""
    (at,) = (each for each in ports(relay) if each[0] == port)
    for recipient in FOREIGN:
        with closing(Stranger(*at)) as stranger:
            refused(stranger, SENDERS[0], recipient)
    for sender in SENDERS:
        with closing(Stranger(*at)) as stranger:
            for recipient in FOREIGN[:3]:
                refused(stranger, sender, recipient)
    assert set(kept(relay).values()) == {0}


def test_a_recipient_of_ours_opens_the_door_for_no_other(relay: RelayProcess) -> None:
    """What is taken in goes to our mailbox alone."""
    (smtp, *_) = ports(relay)
    with closing(Stranger(*smtp)) as stranger:
        for command in (b"EHLO x", b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@relay.localhost>"):
            assert stranger.ask(command)[:3] == b"250"
        for recipient in FOREIGN[:10]:
            assert stranger.ask(b"RCPT TO:" + recipient)[:1] in (b"4", b"5"), recipient
        assert stranger.ask(b"DATA")[:3] == b"354"
        mail = b"To: victim@foreign.example\r\nResent-To: victim@foreign.example\r\n\r\nx\r\n."
        assert stranger.ask(mail)[:3] == b"250"
    assert kept(relay) == {
        "messages": 1, "outbound_contents": 0, "outbound_letters": 0, "outbound_log": 0
    }  # fmt: skip


def test_without_capture_what_is_sent_to_others_bounces(relay: RelayProcess) -> None:
    """No upstream is set: mail of the relay's own, and account mail, goes to its own domains."""
    with (
        psycopg.connect(relay.run["database_url"], autocommit=True) as database,
        relay.http() as api,
    ):
        database.execute(
            "INSERT INTO relay.accounts (email, login) VALUES ('ada@foreign.example', 'ada')"
        )
        _send(relay)

        def outcomes() -> list[tuple[str, str]]:
            sent = api.get("/api/v1/outbound").raise_for_status().json()
            return sorted((each["recipient"], each["status"]) for each in sent)

        eventually_sync(
            outcomes,
            "both have bounced",
            until=lambda found: (
                found == [("ada@foreign.example", "bounced"), ("friend@foreign.example", "bounced")]
            ),
        )
        row = database.execute(
            "SELECT count(*) FROM relay.mailboxes WHERE address LIKE '%foreign.example'"
        ).fetchone()
        assert row == (0,)


async def test_what_is_captured_never_leaves(tmp_path: Path) -> None:
    """An upstream stands ready, and hears of what is sent, and of nothing that is captured."""
    async with running_sink() as sink:
        relay = RelayProcess(tmp_path / "data", env=env(tmp_path, "on"))
        relay.env["RELAY_OUTBOUND__UPSTREAM"] = sink.url
        async with started(relay):
            taken = await trio.to_thread.run_sync(_capture, relay)
            assert taken >= 10
            assert await trio.to_thread.run_sync(kept, relay) == {
                "messages": taken, "outbound_contents": 0, "outbound_letters": 0, "outbound_log": 0
            }  # fmt: skip
            assert sink.sessions == []
            # It would have got something, had there been anything.
            await trio.to_thread.run_sync(_send, relay)
            await sink.gets(1)
    assert sink.recipients == ["friend@foreign.example"]


def _capture(relay: RelayProcess) -> int:
    """Try every address on every port, also signed in as anybody; return how many were taken."""
    taken = 0
    smtp, submission, submission_tls, lmtp = ports(relay)
    with ExitStack() as stack:
        for recipient in FOREIGN:
            stranger = stack.enter_context(closing(Stranger(*smtp)))
            assert stranger.ask(b"EHLO foreign.example")[:3] == b"250"
            assert stranger.ask(b"AUTH PLAIN AGEAYg==")[:3] == b"235"
            assert stranger.ask(b"MAIL FROM:<a@b.example> SMTPUTF8")[:3] == b"250"
            if stranger.ask(b"RCPT TO:" + recipient)[:3] == b"250":
                assert stranger.ask(b"DATA")[:3] == b"354"
                assert b"captured as" in stranger.ask(b"Subject: x\r\n\r\nx\r\n.")
                taken += 1
        with closing(Stranger(*lmtp)) as stranger:
            for command in (b"LHLO x", b"MAIL FROM:<a@b.example>", b"RCPT TO:<c@foreign.example>"):
                assert stranger.ask(command)[:3] == b"250"
            assert stranger.ask(b"DATA")[:3] == b"354"
            assert b"captured as" in stranger.ask(b"Subject: x\r\n\r\nx\r\n.")
            taken += 1
        for other in (submission, submission_tls):
            stranger = stack.enter_context(closing(Stranger(*other)))
            assert stranger.ask(b"EHLO foreign.example")[:3] == b"250"
            assert stranger.ask(b"AUTH PLAIN AGEAYg==")[:3] == b"535"
            assert stranger.ask(b"MAIL FROM:<a@b.example>")[:3] == b"530"
    return taken


def _send(relay: RelayProcess) -> None:
    with relay.http() as http:
        http.post(
            "/api/v1/messages/send",
            json={
                "from": "shop@shop.example",
                "to": ["friend@foreign.example"],
                "subject": "s",
                "text": "t",
            },
        ).raise_for_status()
