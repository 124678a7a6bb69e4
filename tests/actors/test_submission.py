"""The submission port: who may send what, and what of it is in the queue once it is answered."""

from __future__ import annotations

import base64
import contextlib
import functools
import re
import smtplib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
import structlog
import trio
from trio.testing import MockClock

from actors import submission
from relay.access.keys import ApiKey, Keys
from relay.access.owners import ADMINISTRATOR_ID
from relay.access.password_checks import PasswordChecks, PasswordLimits
from relay.crypto import hash_token
from relay.db.listen import Notification, notifications
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.mailboxes.names import Names
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.admin import QueueAdmin
from relay.outbound.submission.port import LOOK_EVERY
from relay.outbound.suppression.suppressions import Suppressions
from relay.ports.certificate import Certificate
from relay.smtp.limits import SmtpLimits
from supervisor import Supervisor
from tests.actors.running import running
from tests.certificates import write
from tests.eventually import eventually
from tests.smtp.service import Client

T = TypeVar("T")

TOKEN = "ra_administrator"
WRONG = "AUTH PLAIN AHgAeA=="
WRONG_PASSWORD = (
    b"5.7.8 Wrong password: it must be an API key with the scope send, as `relay key create"
    b" --owner NAME --scope send` makes one; the user name may be any"
)
MAIL = b"From: a@shop.example\r\nDate: now\r\nMessage-ID: <1@shop.example>\r\n\r\n.dots\r\n\xff\r\n"


TLS = ssl.create_default_context()
TLS.check_hostname = False
TLS.verify_mode = ssl.CERT_NONE


def elsewhere() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(probe.getsockname()[0])


def made_way(connect: Callable[[], T]) -> T:
    """Connect as often as it takes: those who must give way may have just come themselves."""
    until = time.monotonic() + 20
    while True:
        try:
            return connect()
        except OSError:
            if time.monotonic() > until:
                raise


class Port:
    """A submission port on a database, and what is in its queue."""

    def __init__(
        self,
        pool: Pool,
        keys: Keys,
        address: tuple[str, int],
        told: list[Any],
        supervisor: Supervisor,
    ) -> None:
        self.pool = pool
        self.keys = keys
        self.address = address
        self.told = told
        self.supervisor = supervisor
        self.admin = QueueAdmin(pool)

    async def key(self, *scopes: str, senders: list[str] | None = None) -> tuple[ApiKey, str]:
        """Make a key."""
        return await self.keys.create("shop", scopes or ["send"], senders=senders)

    async def talk(self, password: str | None, talk: Callable[[smtplib.SMTP], T]) -> T:
        """Sign in (None: do not) and say things, in a thread."""

        def session() -> T:
            client = smtplib.SMTP(*self.address, "app.example", timeout=20)
            try:
                client.ehlo()
                if password is not None:
                    client.user, client.password = "any user", password
                    client.auth("PLAIN", client.auth_plain)
                return talk(client)
            finally:
                with contextlib.suppress(OSError):
                    client.close()

        return await trio.to_thread.run_sync(session)

    async def submit(
        self, password: str, raw: bytes, *to: str, sender: str = "a@shop.example"
    ) -> str:
        """Submit a message, and return the reply to its dot."""

        def session(client: smtplib.SMTP) -> str:
            for code, reply in (client.mail(sender), *map(client.rcpt, to)):
                assert code == 250, reply
            code, reply = client.data(raw)
            return f"{code} {reply.decode()}"

        return await self.talk(password, session)

    async def queued(self, reply: str) -> list[dict[str, Any]]:
        """What is in the queue of what a reply names."""
        found = re.fullmatch(r"250 2\.0\.0 queued as ([0-9a-f,-]+)", reply)
        assert found is not None, reply
        rows = [await self.admin.show(UUID(each)) for each in found[1].split(",")]
        assert None not in rows
        return rows  # type: ignore[return-value]  # just looked at

    async def raw(self, message: dict[str, Any]) -> bytes:
        """What goes out of a message."""
        mail = await self.admin.mail(message["id"])
        assert mail is not None
        return mail.data


@asynccontextmanager
async def serving(pool: Pool, /, **wiring: Any) -> AsyncIterator[Port]:
    """Run the actor on a port of its own."""
    told: list[Any] = []
    keys = Keys(wiring.get("pool", pool))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        wired = {
            "sockets": [listener],
            "pool": pool,
            "keys": keys,
            "names": Names(["relay.example"], []),
            "admin_token_hash": hash_token(TOKEN),
            "right_of_way": RightOfWay(),
            "wake_outbound": told.append,
            "hostname": "relay.example",
        }
        async with running(submission.run, **wired | wiring) as (supervisor, _):
            yield Port(pool, keys, listener.getsockname(), told, supervisor)


@pytest.fixture
async def port(pool: Pool) -> AsyncIterator[Port]:
    """A port with the usual limits."""
    async with serving(pool) as one:
        yield one


async def test_what_is_submitted_is_queued_as_it_came_behind_a_received_field(port: Port):
    """One row a recipient, its owner's; the ids in the reply; the claimer is told."""
    key, token = await port.key()
    reply = await port.submit(token, MAIL, "Bob@y.example", "eve@z.example")
    messages = await port.queued(reply)
    assert [(m["recipient"], m["sender"], m["status"]) for m in messages] == [
        ("Bob@y.example", "a@shop.example", "queued"),
        ("eve@z.example", "a@shop.example", "queued"),
    ]
    assert {m["owner"] for m in messages} == {key.id}
    for message in messages:
        received, rest = (await port.raw(message)).split(b"\r\nFrom:", 1)
        assert b"From:" + rest == MAIL
        assert re.fullmatch(
            rb"Received: from app\.example \(\[127\.0\.0\.1\]\)\r\n"
            rb"\tby relay\.example with ESMTPA id [0-9a-f-]{36};\r\n\t[^\r\n]+",
            received,
        )
    assert {lane.domain for (lanes,) in [port.told] for lane in lanes} == {
        "y.example", "z.example",
    }  # fmt: skip
    contents = await port.pool.fetch_value("SELECT count(*) FROM relay.outbound_contents")
    assert contents == 1, "recipients share the bytes"


async def test_the_administrator_signs_in_with_the_token_by_either_mechanism(port: Port):
    """PLAIN and LOGIN, with any user name; what is sent is the administrator's."""

    def by_login(client: smtplib.SMTP) -> None:
        client.user, client.password = "", TOKEN
        assert client.auth("LOGIN", client.auth_login)[0] == 235
        assert client.sendmail("postmaster@relay.example", ["b@y.example"], MAIL) == {}

    await port.talk(None, by_login)
    assert await port.pool.fetch_value("SELECT owner FROM relay.outbound_messages") == (
        ADMINISTRATOR_ID
    )


async def test_who_wrote_it_may_be_said_and_is_not_believed(port: Port):
    """AUTH= of MAIL, which servers say to each other, changes nothing; other parameters hold."""

    def session(client: smtplib.SMTP) -> list[int]:
        codes = []
        for said in ("AUTH=<>", "SIZE=10 auth=b+40c.example BODY=8BITMIME", "AUTH=", "COLOUR=red"):
            codes.append(client.docmd(f"MAIL FROM:<a@shop.example> {said}")[0])
            client.rset()
        codes.append(client.docmd("MAIL FROM:<> AUTH=<>")[0])
        return codes

    assert await port.talk(TOKEN, session) == [250, 250, 501, 555, 250]


async def test_a_message_may_come_in_chunks(port: Port):
    """By BDAT it is queued as it came, too."""

    def session(client: smtplib.SMTP) -> str:
        client.mail("a@shop.example")
        client.rcpt("b@y.example")
        for chunk, last in ((MAIL[:50], ""), (MAIL[50:], " LAST")):
            client.send(f"BDAT {len(chunk)}{last}\r\n".encode() + chunk)
            code, reply = client.getreply()
        return f"{code} {reply.decode()}"

    (message,) = await port.queued(await port.talk(TOKEN, session))
    assert (await port.raw(message)).endswith(b"+0000\r\n" + MAIL)


async def test_nothing_goes_without_signing_in(port: Port, virtual: MockClock):
    """530 at MAIL, 503 afterwards; a key without the scope, a revoked one, any other word: 535."""
    virtual.rate = 5.0
    reading = (await port.key("read", "accounts"))[1]
    revoked, token = await port.key()
    await port.keys.revoke(revoked.id)

    def unknown(client: smtplib.SMTP) -> list[int]:
        codes = [client.mail("a@shop.example")[0], client.rcpt("b@y.example")[0]]
        return [*codes, client.docmd("DATA")[0]]

    assert await port.talk(None, unknown) == [530, 503, 503]
    for wrong in (reading, token, "", "x" * 600):
        began = trio.current_time()
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            await port.talk(wrong, lambda client: None)
        assert (refused.value.smtp_code, refused.value.smtp_error[:5]) == (535, b"5.7.8")
        assert trio.current_time() - began > 0.9, "guesses are slow"
    assert await port.pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 0


async def test_the_log_says_why_somebody_is_not_let_in(port: Port, virtual: MockClock):
    """A key that may not send is named with what it may and needs, another word is not; never the
    key itself, and to the client all is one."""
    virtual.rate = 5.0
    key, reading = await port.key("read", "accounts")
    with structlog.testing.capture_logs() as lines:
        for wrong in (reading, "ra_unknown", "x" * 600):
            with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
                await port.talk(wrong, lambda client: None)
            assert refused.value.smtp_error == WRONG_PASSWORD
    said = [line for line in lines if line["event"] == "smtp.login_refused"]
    assert [(line["reason"], line["peer"]) for line in said] == [
        ("wrong_scope", "127.0.0.1"),
        ("unknown_key", "127.0.0.1"),
        ("no_key", "127.0.0.1"),
    ]
    assert (said[0]["key"], said[0]["needs"]) == (str(key.id), "send")
    assert said[0]["scopes"] == ["read", "accounts"]
    assert reading not in str(lines)
    assert "ra_unknown" not in str(lines)


async def test_the_third_wrong_password_ends_the_session_late(pool: Pool):
    """Each of them, and the one that ends it, is answered late."""
    checks = PasswordChecks(PasswordLimits(wrong_delay=0.1))
    async with serving(pool, password_checks=checks) as port:

        def guess(client: smtplib.SMTP) -> list[tuple[int, bool]]:
            found = []
            for _ in range(3):
                began = time.monotonic()
                code, _reply = client.docmd(WRONG)
                found.append((code, time.monotonic() - began >= 0.1))
            return found

        assert await port.talk(None, guess) == [(535, True), (535, True), (421, True)]


async def test_who_hangs_up_saves_no_guess_and_keeps_no_place(pool: Pool):
    """A password is charged before it is checked, and the session ends at once: what it would have
    been answered late is nobody's wait.  Whether it has sent more than is read, or not."""
    limits = PasswordLimits(wrong_delay=600.0, local_credit=5, local_every=600.0, patience=0.2)
    async with serving(pool, password_checks=PasswordChecks(limits)) as port:
        token = (await port.key())[1]
        await port.talk(token, lambda client: None)

        def guess(rest: bytes) -> None:
            with socket.create_connection(port.address, 20) as sock, sock.makefile("rb") as file:
                file.readline()
                sock.sendall(b"EHLO x\r\n")
                while file.readline()[3:4] == b"-":
                    pass
                sock.sendall(WRONG.encode() + b"\r\n" + rest)

        with structlog.testing.capture_logs() as lines:
            for rest in (b"", b"NOOP\r\n") * 5:
                await trio.to_thread.run_sync(guess, rest)
            await eventually(
                lambda: [line for line in lines if line.get("reason") == "broken"],
                "all have ended",
                until=lambda ended: len(ended) == 10,
            )
        wrong = [line for line in lines if line["event"] == "smtp.login_refused"]
        assert len(wrong) == 1, "the log is throttled"
        assert await port.talk(token, lambda client: client.noop()[0]) == 250, "as it was known"
        other = (await port.key())[1]
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            await port.talk(other, lambda client: None)
        assert refused.value.smtp_code == 454, "the credit of five is used up"


async def test_where_too_many_guess_a_password_is_not_checked(pool: Pool):
    """454: it may be said again, and the session goes on; it keeps its place then."""
    limits = PasswordLimits(wrong_delay=0.0, local_credit=1, local_every=0.5, patience=0.1)
    checks, alone = PasswordChecks(limits), SmtpLimits(max_connections=1)
    async with serving(pool, password_checks=checks, limits=alone) as port:
        token = (await port.key())[1]

        def talk(client: smtplib.SMTP) -> int:
            assert client.docmd(WRONG)[0] == 535
            client.user, client.password = "any user", token
            while True:
                try:
                    return client.auth("PLAIN", client.auth_plain)[0]
                except smtplib.SMTPAuthenticationError as error:
                    assert (error.smtp_code, error.smtp_error[:14]) == (454, b"4.7.0 Too many")
                    with socket.create_connection(port.address, 20) as newcomer:
                        assert b"421" in newcomer.recv(100)

        assert await port.talk(None, talk) == 235


async def test_a_key_sends_from_nothing_else_than_it_may(port: Port):
    """Neither by its reverse-path nor in From; whatever hides another address there."""
    _, token = await port.key(senders=["@shop.example", "me@other.example"])
    for sender in ("a@evil.example", "me@x.other.example"):
        refused = await port.talk(token, functools.partial(smtplib.SMTP.mail, sender=sender))
        assert refused == (550, b"5.7.1 This key may not send from this address")
    for field in (
        b"From: Shop <a@evil.example>",
        b"From: a@shop.example, b@evil.example",
        b"From: a@shop.example\r\nFrom: b@evil.example",
        b'From: "a@shop.example" <b@evil.example>',
        b'From: "x y"@evil.example (a@shop.example)',
        b"from :\r\n\tb@evil.example",
        b"From: a@shop.example\r\nSender: b@evil.example",
        b"From: =?utf-8?q?ceo=40bank.example?=",
        b"From:",
        b"Subject: from nobody",
        b"From: a@shop.example .evil.example",
        b"From: a@shop.example\r\n\xef\xbb\xbfFrom: b@evil.example",
        b"From: a@shop.example\r\nFr\0om: b@evil.example",
        b"From: A group: b@evil.example;",
    ):
        reply = await port.submit(token, field + b"\r\n\r\n", "b@y.example")
        assert reply[:9] == "550 5.7.1", field
    for line in (b"a line", b"\xef\xbb\xbfFrom: b@evil.example", b" folded", b">From b"):
        reply = await port.submit(token, line + b"\r\nFrom: a@shop.example\r\n\r\n", "b@y.example")
        assert reply[:9] == "554 5.6.0", line
    for raw in (b"a line\r\n\r\n", b"From: a@shop.example\rFrom: b@evil.example\r\n\r\n"):
        reply = await port.submit(token, raw, "b@y.example")
        assert reply[:3] in {"550", "554"}, raw
    for sender in ("a@shop.example", "ME@other.example", ""):
        await port.queued(await port.submit(token, MAIL, "b@y.example", sender=sender))


async def test_role_names_are_the_administrators(port: Port):
    """Of the relay's own domains, by reverse-path and in From."""
    _, token = await port.key()
    refused = await port.talk(token, lambda client: client.mail("postmaster@relay.example"))
    assert refused[0] == 550
    for field in (
        b"From: security@relay.example",
        b'From: "postmaster"@relay.example',
        b"From: <@a.b:postmaster@relay.example>",
        b"From: postmaster@relay.example\0",
    ):
        reply = await port.submit(token, field + b"\r\n\r\n", "b@y.example")
        assert reply[:9] == "550 5.7.1", field
    await port.queued(await port.submit(token, b"From: x@relay.example\r\n\r\n", "b@y.example"))


async def test_a_suppressed_recipient_is_refused_by_name(port: Port):
    """550 5.7.1 at RCPT, whatever its case; one that is suppressed meanwhile, at the dot."""
    key, token = await port.key()
    suppressions = Suppressions(port.pool)
    await suppressions.add(ADMINISTRATOR_ID, "no@y.example")
    await suppressions.add(key.id, "own@y.example")

    def session(client: smtplib.SMTP) -> list[bytes]:
        client.mail("a@shop.example")
        return [b"%d " % code + text for code, text in map(client.rcpt, to)]

    to = ("NO@Y.example", "own@y.example", "ok@y.example", "bad@", "x@[300.1.1.1]x")
    replies = await port.talk(token, session)
    assert [reply[:9] for reply in replies] == [
        b"550 5.7.1", b"550 5.7.1", b"250 2.1.5", b"501 5.1.3", b"501 5.1.3",
    ]  # fmt: skip
    assert (
        await port.talk(TOKEN, lambda c: (c.mail("a@b.example"), c.rcpt("own@y.example"))[1][0])
        == 250
    )


async def test_orders_are_obeyed_and_no_bcc_goes_out(port: Port):
    """Priority, time, deadline, tag; a malformed one is 554 and queues nothing."""
    raw = (
        b"X-Relay-Priority: bulk\r\nX-Relay-Send-At: 2098-01-01T00:00:00Z\r\n"
        b"X-Relay-Not-After: 2099-01-01T00:00:00Z\r\nX-Relay-Tag: receipts\r\n"
        b"Bcc: eve@z.example\r\n"
    )
    (message,) = await port.queued(await port.submit(TOKEN, raw + MAIL, "b@y.example"))
    assert (message["priority"], message["tag"]) == ("bulk", "receipts")
    assert message["next_retry_at"] == datetime(2098, 1, 1, tzinfo=UTC)
    assert message["not_after"] == datetime(2099, 1, 1, tzinfo=UTC)
    assert (await port.raw(message)).endswith(b"+0000\r\n" + MAIL)
    for wrong in (b"X-Relay-Priority: soon", b"X-Relay-Send-At: 12", b"X-Relay-Colour: red"):
        reply = await port.submit(TOKEN, wrong + b"\r\n" + MAIL, "b@y.example")
        assert reply[:9] == "554 5.6.0", reply
    assert await port.pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 1


async def test_an_idempotency_key_queues_once(port: Port):
    """Said again, also with another Date, it has the same ids; another message is refused."""
    raw = b"X-Relay-Idempotency-Key: k-1\r\n" + MAIL
    first = await port.submit(TOKEN, raw, "b@y.example", "c@y.example")
    assert (
        await port.submit(TOKEN, raw.replace(b": now", b": then"), "b@y.example", "c@y.example")
        == first
    )
    assert len(await port.queued(first)) == 2
    other = await port.submit(TOKEN, raw + b"more\r\n", "b@y.example", "c@y.example")
    assert other[:9] == "554 5.7.0"
    assert await port.pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 2


async def test_a_key_that_sends_too_often_is_told_to_wait(port: Port):
    """450 at MAIL beyond the plan's rate and its burst; the administrator has none."""
    await port.pool.execute("UPDATE relay.plans SET calls_per_second = 0.3 WHERE name = 'free'")
    _, token = await port.key()

    def session(client: smtplib.SMTP) -> list[int]:
        codes = []
        for _ in range(5):
            codes.append(client.mail("a@shop.example")[0])
            client.rset()
        return codes

    assert await port.talk(token, session) == [250, 250, 250, 450, 450]
    assert await port.talk(TOKEN, session) == [250] * 5


async def test_a_revoked_key_ends_its_sessions(port: Port):
    """421 at the next command, be it the dot; soon, where another relay revoked the key."""
    key, token = await port.key()
    other, second = await port.key()
    last, third = await port.key()

    def at_noop(client: smtplib.SMTP) -> tuple[int, bytes]:
        assert client.noop()[0] == 250
        trio.from_thread.run(port.keys.revoke, last.id)
        return client.noop()

    def soon(client: smtplib.SMTP) -> tuple[int, bytes]:
        assert client.noop()[0] == 250
        trio.from_thread.run(Keys(port.pool).revoke, key.id)
        revoked_at = time.monotonic()
        while (reply := client.noop())[0] == 250:
            assert time.monotonic() < revoked_at + LOOK_EVERY + 5.0
            time.sleep(0.05)
        return reply

    def at_the_dot(client: smtplib.SMTP) -> tuple[int, bytes]:
        client.mail("a@shop.example")
        client.rcpt("b@y.example")
        assert client.docmd("DATA")[0] == 354
        trio.from_thread.run(Keys(port.pool).revoke, other.id)
        client.send(MAIL + b".\r\n")
        return client.getreply()

    for word, talk in ((token, soon), (second, at_the_dot), (third, at_noop)):
        assert await port.talk(word, talk) == (421, b"4.7.0 This key may send no more; good-bye")
    assert await port.pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 0


async def test_a_key_is_looked_up_once_for_many_commands(port: Port, monkeypatch):
    """With AUTH, and at each final dot; at commands only when the last look is old."""
    looks: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(Keys, name)

        async def look(*args: Any) -> Any:
            looks.append(name)
            return await real(*args)

        return look

    for name in ("authenticate", "live"):
        monkeypatch.setattr(Keys, name, watched(name))
    _, token = await port.key()
    began = time.monotonic()
    await port.queued(await port.submit(token, MAIL, *(f"b{n}@y.example" for n in range(20))))
    assert looks[:1] == ["authenticate"]
    assert 1 <= looks.count("live") <= 1 + (time.monotonic() - began) / LOOK_EVERY
    assert len(looks) == 1 + looks.count("live")


async def test_what_cannot_be_a_message_is_refused_and_the_session_goes_on(port: Port):
    """A bare LF, one that is too large, one that may be a header or not."""

    def session(client: smtplib.SMTP) -> list[int]:
        codes = []
        for raw in (b"a: b\nBcc: c\r\n", b"From me\r\nBcc: c@d\r\n", b"x" * 70_000, MAIL):
            client.mail("a@shop.example")
            client.rcpt("b@y.example")
            assert client.docmd("DATA")[0] == 354
            client.send(raw + b"\r\n.\r\n")
            codes.append(client.getreply()[0])
        return codes

    async with serving(port.pool, limits=SmtpLimits(max_message_bytes=65_536)) as small:
        assert await small.talk(TOKEN, session) == [554, 554, 552, 250]


async def test_a_large_message_is_prepared_where_nobody_waits_for_it(port: Port):
    """Megabytes go as they came."""
    raw = MAIL + b"y" * 3_000_000 + b"\r\n"
    (message,) = await port.queued(await port.submit(TOKEN, raw, "b@y.example"))
    assert (await port.raw(message)).endswith(b"+0000\r\n" + raw)


class Outage:
    """A pool whose database goes away."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise DatabaseUnavailable("it is away")
        return getattr(self._pool, name)


async def test_without_a_database_nothing_is_said_to_be_queued(pool: Pool):
    """451 to the dot and to a recipient, 454 to AUTH; sessions go on."""
    outage = Outage(pool)

    def session(client: smtplib.SMTP) -> tuple[int, int, int]:
        client.mail("a@shop.example")
        client.rcpt("b@y.example")
        outage.away = True
        code = client.data(MAIL)[0]
        client.mail("a@shop.example")
        return code, client.rcpt("b@y.example")[0], client.noop()[0]

    async with serving(pool, pool=outage) as port:
        _, token = await port.key()
        assert await port.talk(token, session) == (451, 451, 250)
        assert (await port.talk(None, lambda c: c.docmd("AUTH PLAIN AHgAeA==")))[0] == 454
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 0


async def test_paused_it_refuses_new_sessions(port: Port):
    """421 4.3.2 for newcomers; resumed, as before."""
    assert await port.talk(None, lambda client: client.noop()[0]) == 250
    port.supervisor.pause("actor")
    with pytest.raises(smtplib.SMTPConnectError) as refused:
        await port.talk(None, lambda client: None)
    assert (refused.value.smtp_code, refused.value.smtp_error[:5]) == (421, b"4.3.2")
    port.supervisor.resume("actor")
    assert await port.talk(None, lambda client: client.noop()[0]) == 250


async def test_beyond_this_machine_passwords_are_taken_in_tls_alone(pool: Pool, tmp_path: Path):
    """Over STARTTLS and with TLS from the first byte, which the Received field says; not before."""
    certificate = Certificate.load(*write(tmp_path))
    host = elsewhere()
    with socket.socket() as clear, socket.socket() as encrypted:
        for listener in (clear, encrypted):
            listener.bind((host, 0))
            listener.listen()
        async with serving(
            pool, sockets=[clear], tls_sockets=[encrypted], certificate=certificate
        ) as port:

            def by_starttls() -> tuple[int, int, int]:
                with smtplib.SMTP(host, clear.getsockname()[1], timeout=20) as client:
                    client.ehlo()
                    assert not client.has_extn("auth")
                    refused = client.docmd("AUTH PLAIN AHgAeA==")[0]
                    before = client.mail("a@shop.example")[0]
                    client.starttls(context=TLS)
                    client.login("anybody", TOKEN)
                    assert client.sendmail("a@shop.example", ["b@y.example"], MAIL) == {}
                    return refused, before, client.noop()[0]

            def by_tls() -> None:
                with smtplib.SMTP_SSL(host, encrypted.getsockname()[1], context=TLS) as client:
                    client.login("anybody", TOKEN)
                    assert client.sendmail("a@shop.example", ["c@y.example"], MAIL) == {}

            assert await trio.to_thread.run_sync(by_starttls) == (500, 530, 250)
            await trio.to_thread.run_sync(by_tls)
            rows = await pool.fetch("SELECT id FROM relay.outbound_messages")
            for (message_id,) in rows:
                assert b" with ESMTPSA id " in await port.raw({"id": message_id})
            assert len(rows) == 2


async def test_what_stands_behind_starttls_is_never_obeyed(pool: Pool, tmp_path: Path):
    """A sign-in and a message in the segment of STARTTLS, in clear: neither is heard of again."""
    certificate = Certificate.load(*write(tmp_path))
    plain = base64.b64encode(f"\0x\0{TOKEN}".encode()).decode()
    behind = (
        f"EHLO evil.example\r\nAUTH PLAIN {plain}\r\nMAIL FROM:<evil@shop.example>\r\n"
        "RCPT TO:<b@y.example>\r\nDATA\r\nevil\r\n.\r\n"
    )
    async with serving(pool, certificate=certificate) as port:
        client = Client(await trio.open_tcp_stream(*port.address))
        async with client.stream:
            assert (await client.reply())[:3] == "220"
            assert (await client.ask("EHLO app.example"))[:3] == "250"
            await client.start_tls(TLS, behind=behind.encode())
            assert await client.silent()
            assert (await client.ask("EHLO app.example"))[:3] == "250"
            assert (await client.ask("MAIL FROM:<evil@shop.example>"))[:3] == "530"
            assert (await client.ask(f"AUTH PLAIN {plain}"))[:3] == "235"
            assert (await client.ask("DATA"))[:3] == "503"
            await client.begin("b@y.example", sender="a@shop.example")
            good = await client.ask(MAIL.removesuffix(b"\r\n") + b"\r\n.")
        assert len(await port.queued(good)) == 1
        assert len(await pool.fetch("SELECT id FROM relay.outbound_messages")) == 1


async def test_who_stalls_in_the_handshake_is_sent_away_and_keeps_nobody_out(
    pool: Pool, tmp_path: Path
):
    """Without a word in clear, in time, or at once where somebody else lacks the place."""
    certificate = Certificate.load(*write(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as encrypted:
        host, number = encrypted.getsockname()

        def hurried() -> bytes:
            with socket.create_connection((host, number), 20) as sock:
                sock.sendall(b"\x16\x03\x01")
                return sock.recv(100)

        def crowded() -> None:
            with contextlib.ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(socket.create_connection((host, number), 20)).sendall(
                        b"\x16"
                    )
                with made_way(lambda: smtplib.SMTP_SSL(host, number, context=TLS)) as client:
                    client.login("anybody", TOKEN)

        wired: dict[str, Any] = {"tls_sockets": [encrypted], "certificate": certificate}
        limits = SmtpLimits(handshake_timeout=0.2)
        async with serving(pool, limits=limits, **wired):
            assert await trio.to_thread.run_sync(hurried) == b""
        limits = SmtpLimits(max_connections=4, max_connections_per_peer=4, idle_patience=0.0)
        async with serving(pool, limits=limits, **wired):
            await trio.to_thread.run_sync(crowded)


async def test_without_a_claimer_here_all_nodes_are_told(pool: Pool, database_url: str):
    """By a notification after the commit, which says whether it was high mail."""
    async with (
        serving(pool, wake_outbound=None) as port,
        contextlib.aclosing(notifications(database_url, ["relay_outbound"])) as heard,
    ):
        await anext(heard)  # LISTEN is in effect
        for front, payload in ((b"", ""), (b"X-Relay-Priority: high\r\n", "high")):
            await port.queued(await port.submit(TOKEN, front + MAIL, "b@y.example"))
            assert await anext(heard) == Notification("relay_outbound", payload)
