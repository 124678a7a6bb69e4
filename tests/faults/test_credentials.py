"""No credential in clear, and none that is out of date: through the sender, byte by byte.

For the relay's own upstream and for a sender's, whatever is wrong with TLS defers the mail, and the
wire (each byte that went to the peer is kept) has no credential on it in any spelling.
"""

from __future__ import annotations

import base64
import re
import ssl
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
import trio
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import Vault
from relay.db.pool import Pool
from relay.outbound.routing.senders import Senders
from relay.smtp.auth import Credentials
from relay.smtp.client import Phase, Verdict
from relay.smtp.connection import Connection, Route, TlsMode, client_tls
from tests.faults.outbound import LEASE, wire
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import HangUp, Session, running_sink
from tests.smtp.test_connection import MAIL, Peer, Script, certificate, peer, says

USER, PASSWORD = "canary-user", "canary-pässword"
ADDRESS = "sender@example.org"  # what `put` sends from
HELLO = b"EHLO relay.localhost\r\n"


def upstream(scheme: str, port: int, user: str = USER, password: str = PASSWORD) -> str:
    """A URL with credentials."""
    return f"{scheme}://{quote(user)}:{quote(password)}@127.0.0.1:{port}"


def spellings(*secrets: str) -> list[bytes]:
    """How these could appear on a wire: plain, in base64, and as the parts of AUTH PLAIN."""
    plain = [secret.encode() for secret in secrets]
    coded = [base64.b64encode(each).rstrip(b"=")[:-1] for each in plain]
    # Behind the NUL of AUTH PLAIN the same bytes stand at another place of the four.
    shifted = [base64.b64encode(b"\0" * n + each)[4:-4] for each in plain for n in (1, 2)]
    return [*plain, *coded, *shifted]


def unverifiable(folder: Path, case: str) -> tuple[ssl.SSLContext, str]:
    """A server's TLS that must not be trusted, and the authority that the client knows."""
    server, authority = certificate(folder / "ca", "127.0.0.1")
    match case:
        case "stranger":
            _, authority = certificate(folder / "other", "127.0.0.1")
        case "name":
            server, authority = certificate(folder / "named", "mx.example")
        case "old protocol":
            with warnings.catch_warnings(action="ignore"):  # deprecated, which is the point
                server.minimum_version = ssl.TLSVersion.TLSv1
                server.maximum_version = ssl.TLSVersion.TLSv1_1
            server.set_ciphers("ALL:@SECLEVEL=0")
    return server, authority


def with_tls(context: ssl.SSLContext, *, implicit: bool) -> Script:
    """A peer that shakes hands, if it may, and would take credentials."""

    async def script(session: Peer) -> None:
        if not implicit:
            await session.greet(b"250-mx\r\n250-STARTTLS\r\n250 AUTH PLAIN LOGIN CRAM-MD5\r\n")
            await session.until(b"STARTTLS\r\n")
            await session.say(b"220 go\r\n")
        tls = trio.SSLStream(session.stream, context, server_side=True, https_compatible=True)
        await tls.do_handshake()
        session.stream = tls
        await session.greet(b"250 AUTH PLAIN\r\n")
        await session.rest()

    return script


GREETING = b"220 mx\r\n"
OFFER = b"250-mx\r\n250-AUTH PLAIN LOGIN CRAM-MD5\r\n250 STARTTLS\r\n"


async def babbling(session: Peer) -> None:
    """Agree to TLS, and go on in clear."""
    await session.say(GREETING)
    await session.until(b"\r\n")
    await session.say(OFFER)
    await session.until(b"STARTTLS\r\n")
    await session.say(b"220 go\r\n")
    await session.stream.receive_some(1)  # the hello has come
    await session.say(b"250 AUTH PLAIN\r\n")
    await session.rest()


CLEAR: dict[str, tuple[Script, str]] = {
    "missing": (says(GREETING, b"250-mx\r\n250 AUTH PLAIN LOGIN CRAM-MD5\r\n"), "tls"),
    "no ESMTP": (says(GREETING, b"502 5.5.1 what?\r\n"), "ehlo"),
    "refused": (says(GREETING, OFFER, b"454 4.7.0 TLS not available\r\n"), "tls"),
    "unknown": (says(GREETING, OFFER, b"502 5.5.1 what?\r\n"), "tls"),
    "AUTH asked for": (says(GREETING, OFFER, b"530 5.7.0 AUTH first\r\n"), "tls"),
    "plaintext behind": (says(GREETING, OFFER, b"220 go\r\n250 AUTH PLAIN\r\n"), "tls"),
    "plaintext for a handshake": (babbling, "tls"),
}


async def is_deferred(pool: Pool, whose: str, url: str, authority: str | None) -> None:
    """Send a message through an upstream that is the relay's own or a sender's, and see that it
    is deferred once and no more."""
    vault = Vault([Fernet.generate_key().decode()])
    if whose == "sender":
        await Senders(pool, vault).put(ADMINISTRATOR_ID, ADDRESS, url)
    own = url if whose == "relay" else "loop:"
    async with running_outbound(
        pool, own, vault=vault, context=client_tls(authority), lease_timeout=LEASE
    ) as outbound:
        (one,) = await put(pool, "a@a.example")
        outbound.wake()
        _, _, wait, error = await outbound.becomes(one.id, "queued", 1)
    assert 40 < wait <= 72
    assert not any(each in error.encode() for each in spellings(USER, PASSWORD))


async def phase(pool: Pool) -> Any:
    """Where the attempt ended."""
    return await pool.fetch_value("SELECT phase FROM relay.outbound_tries")


@pytest.mark.parametrize("whose", ["relay", "sender"])
@pytest.mark.parametrize("case", CLEAR)
async def test_without_tls_not_one_byte_of_a_credential(pool, case: str, whose: str):
    """STARTTLS missing, refused, or a lie: nothing is said beyond EHLO, STARTTLS and a hello."""
    script, where = CLEAR[case]
    async with peer(script) as (port, _), wire(port) as line:
        await is_deferred(pool, whose, upstream("smtp+starttls", line.port), None)
    assert await phase(pool) == where
    assert re.fullmatch(rb"EHLO relay\.localhost\r\n(STARTTLS\r\n(\x16\x03.*)?)?", line.heard, re.S)
    if case != "plaintext for a handshake":
        assert b"\x16\x03" not in line.heard
    assert not any(each in line.heard for each in spellings(USER, PASSWORD))


@pytest.mark.parametrize("whose", ["relay", "sender"])
@pytest.mark.parametrize("scheme", ["smtp+starttls", "smtps"])
@pytest.mark.parametrize("case", ["stranger", "name", "old protocol"])
async def test_without_a_trusted_peer_nothing_is_said_inside(
    pool, tmp_path, case: str, scheme: str, whose: str
):
    """A certificate of a stranger or for another name, or TLS of old: deferred at the handshake."""
    server, authority = unverifiable(tmp_path, case)
    script = with_tls(server, implicit=scheme == "smtps")
    async with peer(script) as (port, sessions), wire(port) as line:
        await is_deferred(pool, whose, upstream(scheme, line.port), authority)
    assert await phase(pool) == "tls"
    said = b"".join(session.all for session in sessions)
    assert said in {b"", HELLO + b"STARTTLS\r\n"}
    assert not any(each in line.heard for each in spellings(USER, PASSWORD))


async def test_a_server_that_speaks_in_clear_where_tls_is_implicit(pool):
    """smtps:// to a plain server: a hello that it cannot read, and no more."""
    async with peer(says(GREETING, OFFER, b"235 welcome\r\n")) as (port, _), wire(port) as line:
        await is_deferred(pool, "relay", upstream("smtps", line.port), None)
    assert await phase(pool) == "tls"
    assert b"EHLO" not in line.heard
    assert not any(each in line.heard for each in spellings(USER, PASSWORD))


# Credentials that change -------------------------------------------------------------------------


class Accounts:
    """A sink that lets in whom it knows, in clear (this is loopback), and remembers who sent."""

    def __init__(self, **passwords: str) -> None:
        self.passwords = passwords
        self.who: dict[int, str] = {}
        self.sent: list[tuple[str, str, int]] = []

    async def script(self, session: Session, verb: str, line: str) -> bytes | None:
        match verb:
            case "EHLO":
                return b"250-sink\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n"
            case "AUTH":
                given = base64.b64decode(line.split()[-1]).decode()
                _, user, password = given.split("\0")
                if self.passwords.get(user) != password:
                    return f"535 5.7.8 {user} has not the password {password}: {line}\r\n".encode()
                self.who[session.number] = f"{user}:{password}"
                return b"235 2.7.0 welcome\r\n"
            case "MAIL" if session.number not in self.who:
                raise HangUp(b"530 5.7.0 who are you?\r\n")
            case "RCPT":
                recipient = line.partition("<")[2].partition(">")[0]
                self.sent.append((recipient, self.who[session.number], session.number))
        return None


async def sends(outbound: Outbound, pool: Pool, recipient: str) -> UUID:
    """Queue a message and wait until it is sent."""
    (one,) = await put(pool, recipient)
    outbound.wake()
    await outbound.becomes(one.id, "sent")
    return one.id


async def test_a_kept_connection_ends_with_its_credentials(pool):
    """After a password, a user or the key has changed, mail goes over a connection that was opened
    with what holds now; with nothing changed, the connection is used again."""
    old_key, new_key = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    vault = Vault([old_key])
    senders = Senders(pool, vault)
    accounts = Accounts(ann="old", bob="secret")
    async with (
        running_sink(accounts.script) as sink,
        running_outbound(pool, "loop:", vault=vault) as outbound,
    ):
        await senders.put(ADMINISTRATOR_ID, ADDRESS, upstream("smtp", sink.port, "ann", "old"))
        await sends(outbound, pool, "1@a.example")
        await sends(outbound, pool, "2@a.example")
        accounts.passwords["ann"] = "new"
        await senders.put(ADMINISTRATOR_ID, ADDRESS, upstream("smtp", sink.port, "ann", "new"))
        await sends(outbound, pool, "3@a.example")
        await senders.put(ADMINISTRATOR_ID, ADDRESS, upstream("smtp", sink.port, "bob", "secret"))
        await sends(outbound, pool, "4@a.example")
        vault.replace([new_key, old_key])
        await senders.sealed.reseal()
        await sends(outbound, pool, "5@a.example")
        await senders.remove(ADMINISTRATOR_ID, ADDRESS)
        (stray,) = await put(pool, "6@a.example")
        outbound.wake()
        await outbound.becomes(stray.id, "bounced")  # by the loop: the account is not used
    assert [(recipient, who) for recipient, who, _ in accounts.sent] == [
        ("1@a.example", "ann:old"),
        ("2@a.example", "ann:old"),
        ("3@a.example", "ann:new"),
        ("4@a.example", "bob:secret"),
        ("5@a.example", "bob:secret"),
    ]
    numbers = [number for _, _, number in accounts.sent]
    assert numbers[0] == numbers[1]
    assert len({numbers[1], numbers[2], numbers[3]}) == 3


@pytest.mark.parametrize("whose", ["relay", "sender"])
async def test_a_refused_password_defers_and_is_quoted_nowhere(pool, whose: str):
    """The peer repeats user, password and the AUTH line in its refusal: none of it is stored, the
    mail waits, and mail of others goes on."""
    accounts = Accounts()
    vault = Vault([Fernet.generate_key().decode()])
    async with running_sink(accounts.script) as sink, running_sink() as common:
        url = upstream("smtp", sink.port)
        if whose == "sender":
            await Senders(pool, vault).put(ADMINISTRATOR_ID, ADDRESS, url)
        else:
            await Senders(pool, vault).put(ADMINISTRATOR_ID, "other@example.org", common.url)
        own = url if whose == "relay" else common.url
        async with running_outbound(pool, own, vault=vault) as outbound:
            (one,) = await put(pool, "a@a.example")
            outbound.wake()
            _, _, _, error = await outbound.becomes(one.id, "queued", 1)
    assert error.startswith("535 5.7.8 ")
    assert not any(each in error.encode() for each in spellings(USER, PASSWORD)), error
    assert await phase(pool) == "auth"


RECORDS = {
    "an answer in clear": b"250 2.0.0 taken\r\n",
    "an alert in clear": b"\x15\x03\x03\x00\x02\x02\x28",
    "a handshake in clear": b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
    "half a record": b"\x17\x03\x03\x00\x40abc",
    "the end without goodbye": b"",
}


@pytest.mark.parametrize("at_dot", [False, True])
@pytest.mark.parametrize("record", RECORDS)
async def test_what_is_put_into_a_tls_connection_from_outside_is_no_answer(
    tmp_path, record: str, at_dot: bool
):
    """Whoever sits on the wire can break a connection, and say nothing in the peer's name: before
    the dot the mail is deferred, after it nobody knows."""
    server, authority = certificate(tmp_path / "ca", "127.0.0.1")

    async def script(session: Peer) -> None:
        wire_ = session.stream
        session.stream = trio.SSLStream(wire_, server, server_side=True, https_compatible=True)
        await session.greet(b"250-mx\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n")
        await session.until(b"\r\n")
        await session.say(b"235 2.7.0 welcome\r\n")
        await session.until(b"DATA\r\n")
        if at_dot:
            await session.say(b"250 ok\r\n250 ok\r\n354 go\r\n")
            await session.until(b"\r\n.\r\n")
        await wire_.send_all(RECORDS[record])
        if record in {"half a record", "the end without goodbye"}:
            await trio.aclose_forcefully(wire_)
        await trio.sleep_forever()

    async with peer(script) as (port, _):
        route = Route("127.0.0.1", port, TlsMode.IMPLICIT, Credentials(USER, PASSWORD))
        connection = await Connection.open(route, context=client_tls(authority))
        (outcome,) = await connection.deliver(MAIL)
        assert connection.closed
    assert outcome.verdict is (Verdict.UNKNOWN if at_dot else Verdict.DEFERRED)
    assert outcome.phase is (Phase.DOT if at_dot else Phase.MAIL)
    assert outcome.code is None
