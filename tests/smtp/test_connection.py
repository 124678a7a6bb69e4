"""The client's driver on real sockets, against peers that misbehave and peers of others."""

import contextlib
import math
import os
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from relay.errors import ConfigError
from relay.outbound.mx.dane import Matching
from relay.smtp.auth import Credentials
from relay.smtp.client import Following, Mail, Outcome, Phase, Verdict
from relay.smtp.connection import (
    Connection,
    Deadlines,
    GoOn,
    OpenFailed,
    Route,
    TlsMode,
    client_tls,
    opportunistic_tls,
)
from tests.eventually import eventually

MAIL = Mail("a@x.org", ("b@y.org",), b"Subject: x\r\n\r\n.dot\r\n")
SECRET = Credentials("user", "pa55word")
QUICK = Deadlines(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.2, 5.0)
PATIENT = Deadlines()
"""For a peer that hangs, and for one that is as quick as the machine lets it be."""
EHLO = b"250-mx\r\n250-PIPELINING\r\n250 8BITMIME\r\n"


# --- certificates --------------------------------------------------------------------------


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, str]:
    """A self-signed authority for `names`; returns the server's context and the CA file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test of Relay")])
    now = datetime.now(UTC)
    alternatives: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(each)) if each[0].isdigit() else x509.DNSName(each)
        for each in names
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    chain, private = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    return context, str(chain)


# --- a peer that follows a script ----------------------------------------------------------


class Peer:
    """One session of a scripted server: says what it is told to, keeps what it heard."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.heard = b""
        self.all = b""

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def until(self, mark: bytes) -> bytes:
        """Return what was heard up to and with `mark`."""
        while mark not in self.heard:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EOFError
            self.heard += more
            self.all += more
        before, _, self.heard = self.heard.partition(mark)
        return before + mark

    async def greet(self, ehlo: bytes = EHLO) -> None:
        await self.say(b"220 mx\r\n")
        await self.until(b"\r\n")
        await self.say(ehlo)

    async def accept(self) -> bytes:
        """Take MAIL, RCPT, DATA and the message; the dot's reply is the script's."""
        await self.until(b"DATA\r\n")
        await self.say(b"250 ok\r\n250 ok\r\n354 go\r\n")
        return await self.until(b"\r\n.\r\n")

    async def rest(self) -> None:
        """Read until the client is gone."""
        try:
            while more := await self.stream.receive_some(65536):
                self.all += more
        except trio.BrokenResourceError:
            return


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[tuple[int, list[Peer]]]:
    """Serve `script` on loopback; yields the port and the sessions so far."""
    sessions: list[Peer] = []

    async def serve(stream: trio.SocketStream) -> None:
        session = Peer(stream)
        sessions.append(session)
        async with stream:
            try:
                await script(session)
            except (EOFError, trio.BrokenResourceError, ssl.SSLError):
                return

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners: list[trio.SocketListener] = await nursery.start(
                partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
            )
            yield listeners[0].socket.getsockname()[1], sessions
            nursery.cancel_scope.cancel()


async def send_to(
    script: Script, deadlines: Deadlines = PATIENT, mail: Mail = MAIL
) -> tuple[Outcome, ...]:
    async with peer(script) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE), deadlines)
        outcomes = await connection.deliver(mail)
        assert connection.closed is not outcomes[0].connection_usable
        await connection.quit()
        assert connection.closed
        return outcomes


async def test_many_mails_over_one_connection():
    """Mails follow each other on one connection, announced or not, and arrive byte for byte."""
    arrived: list[bytes] = []

    async def script(session: Peer) -> None:
        await session.greet()
        while True:
            arrived.append(await session.accept())
            await session.say(b"250 2.0.0 ok\r\n")

    mails = [Mail("a@x.org", ("b@y.org",), b"n%d\r\n" % number) for number in range(10)]
    async with peer(script) as (port, sessions):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        for number, mail in enumerate(mails):
            following = mails[number + 1] if number + 1 < len(mails) and number % 3 else None
            (outcome,) = await connection.deliver(mail, following)
            assert outcome.verdict is Verdict.DELIVERED
            assert connection.reusable() is (following is None)
        await connection.quit()
        assert len(sessions) == 1
    assert arrived == [b"n%d\r\n.\r\n" % number for number in range(10)]


def one_call(mails: list[Mail]) -> tuple[list[tuple[Outcome, ...]], GoOn]:
    """What `deliver` goes on with after `mails[0]`, and the outcomes that it told of on the way."""
    told: list[tuple[Outcome, ...]] = []

    def go_on(outcomes: tuple[Outcome, ...], now: float) -> tuple[Mail, Following, float] | None:
        told.append(outcomes)
        number = len(told)
        if number == len(mails):
            return None
        return mails[number], mails[number + 1] if number + 1 < len(mails) else None, math.inf

    return told, go_on


@pytest.mark.parametrize("secured", [False, True])
async def test_announced_mails_follow_each_other_in_one_call(tmp_path: Path, secured: bool):
    """Plain and in TLS, small and large: each is told of, and the last one's outcome returned."""
    heard: list[bytes] = []
    server, authority = certificate(tmp_path / "ca", "127.0.0.1")

    async def plain(session: Peer) -> None:
        await session.greet()
        while True:
            heard.append(await session.accept())
            await session.say(b"250 2.0.0 ok\r\n")

    mails = [Mail("a@x.org", ("b@y.org",), b"n%d\r\n" % number) for number in range(6)]
    mails[3:3] = [Mail("a@x.org", ("b@y.org",), (b"y" * 998 + b"\r\n") * 500)]
    told, go_on = one_call(mails)
    script = tls_script(server, heard, implicit=True) if secured else plain
    async with peer(script) as (port, sessions):
        mode = TlsMode.IMPLICIT if secured else TlsMode.NONE
        route = Route("127.0.0.1", port, mode, SECRET if secured else None)
        context = client_tls(authority) if secured else None
        connection = await Connection.open(route, context=context)
        outcomes = await connection.deliver(mails[0], mails[1], go_on=go_on)
        assert connection.delivered == len(mails)
        assert connection.reusable()
        await connection.quit()
        assert len(sessions) == 1
    assert told[-1] == outcomes
    assert [outcome.verdict for (outcome,) in told] == [Verdict.DELIVERED] * len(mails)
    assert heard[-len(mails) :] == [mail.data + b".\r\n" for mail in mails]


async def test_a_peer_that_hangs_up_between_announced_mails_fails_the_one_in_hand():
    """The one before it is told of as delivered, and nobody is asked what follows."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.accept()
        await session.say(b"250 2.0.0 ok\r\n")

    told, go_on = one_call([MAIL, MAIL, MAIL])
    async with peer(script) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        (outcome,) = await connection.deliver(MAIL, MAIL, go_on=go_on)
        assert connection.closed
    assert [outcome.verdict for (outcome,) in told] == [Verdict.DELIVERED]
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.MAIL)


async def test_the_deadlines_of_announced_mails_are_their_own():
    """What the first has used up is not taken from the second, which has its own."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.accept()
        await trio.sleep(0.3)
        await session.say(b"250 2.0.0 ok\r\n")
        await session.rest()

    began = trio.current_time()
    told, go_on = one_call([MAIL, MAIL])
    async with peer(script) as (port, _):
        connection = await Connection.open(
            Route("127.0.0.1", port, TlsMode.NONE), Deadlines(command=0.5, dot=0.5, total=0.6)
        )
        (outcome,) = await connection.deliver(MAIL, MAIL, go_on=go_on)
    assert [outcome.verdict for (outcome,) in told] == [Verdict.DELIVERED]
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.MAIL)
    assert trio.current_time() - began > 0.7


@pytest.mark.parametrize("sending", [False, True])
async def test_a_connection_that_is_aborted_ends_its_delivery(sending: bool):
    """At once, whether it waits for a reply or for room; and says what was known."""

    async def script(session: Peer) -> None:
        await session.greet()
        if sending:
            await session.until(b"DATA\r\n")
            await session.say(b"250 ok\r\n250 ok\r\n354 go\r\n")
        await trio.sleep_forever()

    mail = Mail("a@x.org", ("b@y.org",), (b"y" * 998 + b"\r\n") * 20_000)
    async with peer(script) as (port, _), trio.open_nursery() as nursery:
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))

        async def abort() -> None:
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert connection.in_data is sending
            connection.abort()

        nursery.start_soon(abort)
        with pytest.raises(trio.ClosedResourceError):
            await connection.deliver(mail)
        assert connection.closed
        assert connection.outcomes is not None
        assert connection.outcomes[0].verdict is Verdict.DEFERRED


async def drop_after_the_dot(session: Peer) -> None:
    await session.greet()
    await session.accept()


async def garbage_after_the_dot(session: Peer) -> None:
    await session.greet()
    await session.accept()
    await session.say(b"\xff\xfe\xfd\r\n")
    await session.rest()


async def stall_after_the_dot(session: Peer) -> None:
    await session.greet()
    await session.accept()
    await session.rest()


async def closing_after_the_dot(session: Peer) -> None:
    await session.greet()
    await session.accept()
    await session.say(b"421 4.3.2 going down\r\n")


async def drip(session: Peer) -> None:
    await session.greet()
    await session.until(b"DATA\r\n")
    while True:
        await session.say(b"2")
        await trio.sleep(0.05)


async def stall_at_mail(session: Peer) -> None:
    await session.greet()
    await session.rest()


async def drop_at_rcpt(session: Peer) -> None:
    await session.greet()
    await session.until(b"DATA\r\n")
    await session.say(b"250 ok\r\n")


async def endless_line(session: Peer) -> None:
    await session.greet()
    await session.until(b"DATA\r\n")
    while True:
        await session.say(b"x" * 65536)


async def endless_lines(session: Peer) -> None:
    await session.greet()
    await session.until(b"DATA\r\n")
    while True:
        await session.say(b"250-and\r\n" * 5000)


async def closing_at_mail(session: Peer) -> None:
    await session.greet()
    await session.until(b"DATA\r\n")
    await session.say(b"421 4.7.0 slow down\r\n")


@pytest.mark.parametrize(
    ("script", "verdict", "phase", "code"),
    [
        (drop_after_the_dot, "unknown", "dot", None),
        (garbage_after_the_dot, "unknown", "dot", None),
        (stall_after_the_dot, "unknown", "dot", None),
        (closing_after_the_dot, "deferred", "dot", 421),
        (drip, "deferred", "mail", None),
        (stall_at_mail, "deferred", "mail", None),
        (drop_at_rcpt, "deferred", "rcpt", None),
        (endless_line, "deferred", "mail", None),
        (endless_lines, "deferred", "mail", None),
        (closing_at_mail, "deferred", "mail", 421),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_peers_that_misbehave(script: Script, verdict: str, phase: str, code: int | None):
    """Each way to misbehave has its outcome, and the connection is closed."""
    hangs = script in {stall_after_the_dot, stall_at_mail, drip}
    (outcome,) = await send_to(script, QUICK if hangs else PATIENT)
    assert (outcome.verdict, outcome.phase, outcome.code) == (verdict, phase, code)
    assert outcome.route_trouble
    assert not outcome.connection_usable


LONG_TAKEN = {
    "many-lines": b"250-2.0.0 and\r\n" * 500 + b"250 2.0.0 taken\r\n",
    "long-line": b"250-" + b"x" * 9000 + b"\r\n250 2.0.0 taken\r\n",
    "one-long-line": b"250 2.0.0 " + b"x" * 100_000 + b"\r\n",
}


@pytest.mark.parametrize("words", LONG_TAKEN.values(), ids=LONG_TAKEN)
async def test_a_long_answer_to_the_dot_is_read_and_the_connection_goes_on(words: bytes):
    """A 250 of many or long lines is a 250: the mail is delivered, and the next one after it."""

    async def script(session: Peer) -> None:
        await session.greet()
        for _ in range(2):
            await session.accept()
            await session.say(words)
        await session.rest()

    async with peer(script) as (port, sessions):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        for _ in range(2):
            (outcome,) = await connection.deliver(MAIL)
            assert (outcome.verdict, outcome.code) == (Verdict.DELIVERED, 250)
            assert outcome.connection_usable
        await connection.quit()
    assert len(sessions) == 1


async def test_an_endless_250_to_the_dot_is_believed_and_its_connection_closed():
    """What 1 MiB of lines have said with one voice is taken for said: no second copy."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.accept()
        while True:
            await session.say(b"250-and\r\n" * 5000)

    (outcome,) = await send_to(script)
    assert (outcome.verdict, outcome.phase, outcome.code) == (Verdict.DELIVERED, Phase.DOT, 250)
    assert not outcome.connection_usable


async def test_recipients_with_different_codes():
    """One transaction, three recipients, three outcomes; the connection goes on."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.until(b"DATA\r\n")
        await session.say(b"250 ok\r\n550 5.1.1 who\r\n250 ok\r\n451 4.2.1 busy\r\n354 go\r\n")
        await session.until(b"\r\n.\r\n")
        await session.say(b"250 2.0.0 ok\r\n")
        await session.rest()

    mail = Mail("a@x.org", ("1@y.org", "2@y.org", "3@y.org"), b"x\r\n")
    outcomes = await send_to(script, mail=mail)
    assert [one.verdict for one in outcomes] == ["bounced", "delivered", "deferred"]


async def test_a_large_message_to_a_slow_reader_arrives_whole():
    """A message larger than every buffer is sent block by block."""
    mail = Mail("a@x.org", ("b@y.org",), (b"y" * 998 + b"\r\n") * 3000)
    sizes: list[int] = []

    async def script(session: Peer) -> None:
        await session.greet()
        sizes.append(len(await session.accept()))
        await session.say(b"250 ok\r\n")
        await session.rest()

    (outcome,) = await send_to(script, mail=mail)
    assert outcome.verdict is Verdict.DELIVERED
    assert sizes == [mail.size + 3]


async def test_a_peer_that_stops_reading_gets_no_dot():
    """A block that does not get through in time defers; the dot never left."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.until(b"DATA\r\n")
        await session.say(b"250 ok\r\n250 ok\r\n354 go\r\n")
        await trio.sleep_forever()

    mail = Mail("a@x.org", ("b@y.org",), (b"y" * 998 + b"\r\n") * 20_000)
    (outcome,) = await send_to(script, QUICK, mail)
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.DOT)


@pytest.mark.parametrize(("at_dot", "verdict"), [(True, "unknown"), (False, "deferred")])
async def test_a_cancelled_delivery_closes_and_knows_what_it_left(at_dot: bool, verdict: str):
    """Cancelled from outside, the connection is closed at once and says whether the dot left."""
    script = stall_after_the_dot if at_dot else stall_at_mail
    async with peer(script) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        with trio.move_on_after(0.3) as scope:
            await connection.deliver(MAIL)
        assert scope.cancelled_caught
        assert connection.closed
        assert connection.outcomes is not None
        assert connection.outcomes[0].verdict == verdict


async def test_a_lease_cuts_the_deadlines():
    """A delivery ends by its deadline, and no message is begun that could not be answered by it."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.until(b"DATA\r\n")
        await trio.sleep(0.4)
        await session.say(b"250 ok\r\n250 ok\r\n354 go\r\n")
        await session.rest()

    (outcome,) = await send_to(script, Deadlines(command=5.0, dot=9.8, total=10.0))
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.DATA)
    (outcome,) = await send_to(script, Deadlines().within(0.5))
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.MAIL)


async def test_a_connection_the_peer_left_is_not_reused():
    """A peer that hung up while idle is noticed before a mail is begun; else it is stale."""

    async def script(session: Peer) -> None:
        await session.greet()
        await session.accept()
        await session.say(b"250 ok\r\n")

    async with peer(script) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        await connection.deliver(MAIL)
        await eventually(connection.reusable, "the peer is gone", until=lambda usable: not usable)
        (outcome,) = await connection.deliver(MAIL)
        assert outcome.stale
        await connection.quit()


async def test_an_idle_connection_is_not_reusable_for_ever():
    """Past the idle limit a connection is not taken again."""
    async with peer(stall_at_mail) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, TlsMode.NONE))
        assert connection.reusable()
        assert not connection.reusable(idle_limit=-1.0)
        await connection.quit()
        assert not connection.reusable()
        (outcome,) = await connection.deliver(MAIL)
        assert outcome.stale


# --- opening and TLS -----------------------------------------------------------------------


async def fails_to_open(script: Script, route: Route, **options) -> tuple[Outcome, bytes]:
    """Return the outcome and everything the peer heard."""
    async with peer(script) as (port, sessions):
        with pytest.raises(OpenFailed) as caught:
            await Connection.open(
                Route(
                    "127.0.0.1", port, route.tls, route.credentials, server_name=route.server_name
                ),
                **options,
            )
        assert caught.value.outcome.route_trouble
        assert caught.value.outcome.verdict is Verdict.DEFERRED
        return caught.value.outcome, b"".join(session.all for session in sessions)


def says(*lines: bytes) -> Script:
    """A peer that says one line for each it hears, then listens."""

    async def script(session: Peer) -> None:
        await session.say(lines[0])
        for line in lines[1:]:
            await session.until(b"\r\n")
            await session.say(line)
        await session.rest()

    return script


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        (says(b"554 5.3.2 no service\r\n"), "connect"),
        (says(b""), "connect"),
        (says(b"220 mx\r\n", b"421 4.3.2 busy\r\n"), "ehlo"),
        (says(b"220 mx\r\n", b"250-mx\r\n250 AUTH PLAIN\r\n"), "tls"),
        (says(b"220 mx\r\n", b"250-mx\r\n250 STARTTLS\r\n", b"454 no\r\n"), "tls"),
        (
            says(b"220 mx\r\n", b"250-mx\r\n250 STARTTLS\r\n", b"220 go\r\n250 AUTH PLAIN\r\n"),
            "tls",
        ),
        (says(b"220 mx\r\n", b"250-mx\r\n250 STARTTLS\r\n", b"220 go\r\n"), "tls"),
    ],
    ids=["greeting 554", "silent", "421", "missing", "refused", "plaintext behind", "no handshake"],
)
async def test_starttls_fails_closed(script: Script, phase: str):
    """Whatever is wrong before TLS stands, it defers, and no credential byte was on the wire."""
    outcome, heard = await fails_to_open(
        script,
        Route("127.0.0.1", 1, TlsMode.STARTTLS, SECRET),
        deadlines=QUICK,
        context=client_tls(),
    )
    assert outcome.phase == phase
    assert b"AUTH" not in heard
    assert b"pa55word" not in heard


def tls_script(context: ssl.SSLContext, heard: list[bytes], *, implicit: bool = False) -> Script:
    """A peer with STARTTLS (or TLS from the start) and AUTH PLAIN, which takes one mail."""

    async def script(session: Peer) -> None:
        if not implicit:
            await session.greet(b"250-mx\r\n250 STARTTLS\r\n")
            await session.until(b"STARTTLS\r\n")
            await session.say(b"220 go\r\n")
        tls = trio.SSLStream(session.stream, context, server_side=True, https_compatible=True)
        await tls.do_handshake()
        session.stream = tls
        if implicit:
            await session.say(b"220 mx\r\n")
        await session.until(b"\r\n")
        await session.say(b"250-mx\r\n250-PIPELINING\r\n250 AUTH PLAIN LOGIN\r\n")
        heard.append(await session.until(b"\r\n"))
        await session.say(b"235 2.7.0 welcome\r\n")
        while True:
            heard.append(await session.accept())
            await session.say(b"250 2.0.0 ok\r\n")

    return script


@pytest.mark.parametrize("implicit", [False, True])
async def test_tls_carries_credentials_and_mail(tmp_path: Path, implicit: bool):
    """With a certificate that is right, AUTH and mail go through TLS."""
    server, authority = certificate(tmp_path / "ca", "mx.example", "127.0.0.1")
    heard: list[bytes] = []
    mode = TlsMode.IMPLICIT if implicit else TlsMode.STARTTLS
    async with peer(tls_script(server, heard, implicit=implicit)) as (port, _):
        route = Route("127.0.0.1", port, mode, SECRET, server_name="mx.example")
        connection = await Connection.open(route, context=client_tls(authority))
        large = Mail("a@x.org", ("b@y.org",), (b"y" * 998 + b"\r\n") * 500)
        for mail, following in ((MAIL, large), (large, None), (MAIL, None)):
            (outcome,) = await connection.deliver(mail, following)
            assert outcome.verdict is Verdict.DELIVERED
        assert [step[0] for step in connection.trace].count(Phase.TLS) == (1 if implicit else 2)
        await connection.quit()
    assert heard[0].startswith(b"AUTH PLAIN ")
    assert [len(one) for one in heard[1:]] == [MAIL.size + 4, large.size + 3, MAIL.size + 4]


@pytest.mark.parametrize(("mode", "version"), [
    (TlsMode.NONE, None), (TlsMode.IMPLICIT, "TLSv1.3"), (TlsMode.STARTTLS, "TLSv1.2"),
])  # fmt: skip
async def test_it_says_who_was_reached_and_how_that_is_secured(
    tmp_path: Path, mode: TlsMode, version: str | None
):
    """Host, address and port, and the version of TLS that both agreed on."""
    server, authority = certificate(tmp_path / "ca", "localhost")
    if version == "TLSv1.2":
        server.maximum_version = ssl.TLSVersion.TLSv1_2
    script = tls_script(server, [], implicit=mode is TlsMode.IMPLICIT)
    async with peer(stall_at_mail if mode is TlsMode.NONE else script) as (port, _):
        credentials = None if mode is TlsMode.NONE else SECRET
        route = Route("localhost", port, mode, credentials)
        connection = await Connection.open(route, context=client_tls(authority))
        assert connection.peer[:2] == (f"localhost[127.0.0.1]:{port}", version)
        assert connection.peer.source == "127.0.0.1"
        connection.abort()


async def test_it_says_who_would_not_be_reached(tmp_path: Path):
    """With the address if there was one; a literal of IPv6 in brackets, so that its port shows."""
    server, _ = certificate(tmp_path / "ca", "localhost")
    async with peer(tls_script(server, [], implicit=True)) as (port, _):
        route = Route("localhost", port, TlsMode.IMPLICIT)
        with pytest.raises(OpenFailed) as caught:
            await Connection.open(route, context=client_tls())
        assert caught.value.peer[:2] == (f"localhost[127.0.0.1]:{port}", None)
    with pytest.raises(OpenFailed) as caught:
        await Connection.open(Route("::1", port, TlsMode.NONE))
    assert caught.value.peer[:2] == (f"[::1]:{port}", None)


@pytest.mark.parametrize("case", ["stranger", "name"])
@pytest.mark.parametrize("implicit", [False, True])
async def test_a_wrong_certificate_defers(tmp_path: Path, case: str, implicit: bool):
    """An unknown authority or another's name: deferred at TLS, nothing said inside."""
    server, authority = certificate(tmp_path / "ca", "mx.example")
    if case == "stranger":
        _, authority = certificate(tmp_path / "other", "mx.example")
    heard: list[bytes] = []
    mode = TlsMode.IMPLICIT if implicit else TlsMode.STARTTLS
    name = "mx.example" if case == "stranger" else "other.example"
    outcome, _ = await fails_to_open(
        tls_script(server, heard, implicit=implicit),
        Route("127.0.0.1", 1, mode, SECRET, server_name=name),
        context=client_tls(authority),
    )
    assert outcome.phase is Phase.TLS
    assert "certificate" in outcome.text
    assert heard == []


async def test_an_authority_from_ssl_cert_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SSL_CERT_FILE is honoured; a CA file that cannot be read is a configuration error."""
    server, authority = certificate(tmp_path / "ca", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    async with peer(tls_script(server, [])) as (port, _):
        connection = await Connection.open(Route("127.0.0.1", port, credentials=SECRET))
        await connection.quit()
    with pytest.raises(ConfigError, match=r"cannot be read"):
        client_tls(str(tmp_path / "missing.pem"))


async def test_nothing_is_said_in_clear_beyond_loopback(monkeypatch: pytest.MonkeyPatch):
    """Mode none is judged by the address reached; another host's gets no byte."""
    own = socket.gethostbyname_ex(socket.gethostname())[2]
    outside = next((each for each in own if not ip_address(each).is_loopback), None)
    if outside is None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing; names our own address
            outside = probe.getsockname()[0]
    listener = await trio.open_tcp_listeners(0, host=outside)
    port = listener[0].socket.getsockname()[1]
    with pytest.raises(OpenFailed) as caught:
        await Connection.open(Route(outside, port, TlsMode.NONE))
    assert caught.value.outcome.phase is Phase.TLS
    stream = await listener[0].accept()
    async with stream, listener[0]:
        assert await stream.receive_some() == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 300])
async def test_where_nobody_listens_it_defers(host: str):
    """A refused connection, an unknown host and an impossible one are the route's trouble."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(OpenFailed) as caught:
        await Connection.open(Route(host, port, TlsMode.NONE))
    outcome = caught.value.outcome
    assert (outcome.verdict, outcome.phase) == (Verdict.DEFERRED, Phase.CONNECT)
    assert str(port) not in outcome.text
    assert outcome.route_trouble


# --- somebody else's server ----------------------------------------------------------------

AIOSMTPD = """
    import asyncio, ssl, sys, warnings
    from aiosmtpd.smtp import SMTP, AuthResult

    class Handler:
        async def handle_RCPT(self, server, session, envelope, address, options):
            if address.startswith("nobody"):
                return "550 5.1.1 no such user"
            envelope.rcpt_tos.append(address)
            return "250 2.1.5 ok"

        async def handle_DATA(self, server, session, envelope):
            size = len(envelope.content)
            return f"250 2.0.0 took {size} from {session.auth_data.login.decode()}"

    def authenticate(server, session, envelope, mechanism, data):
        return AuthResult(success=data.password == b"pa55word", handled=False, auth_data=data)

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SMTP(Handler(), tls_context=context, require_starttls=True,
                         authenticator=authenticate, auth_required=True),
            "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    warnings.simplefilter("ignore")
    asyncio.run(main())
"""


@pytest.fixture
def aiosmtpd(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """aiosmtpd with STARTTLS and AUTH in a process of its own; its port and authority."""
    _, authority = certificate(tmp_path / "ca", "localhost", "127.0.0.1")
    key = str(tmp_path / "ca" / "key.pem")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(AIOSMTPD), authority, key],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    with process.stdout:
        port = int(process.stdout.readline())
        yield port, authority
        process.kill()
        process.wait()


async def test_aiosmtpd_with_starttls_and_auth(aiosmtpd: tuple[int, str]):
    """A third-party server (without PIPELINING) takes mail, refuses one, and takes the next."""
    port, authority = aiosmtpd
    context = client_tls(authority)
    with trio.fail_after(20):
        route = Route("127.0.0.1", port, TlsMode.STARTTLS, SECRET)
        connection = await Connection.open(route, context=context)
        (taken,) = await connection.deliver(MAIL, MAIL)
        assert (taken.verdict, taken.enhanced) == (Verdict.DELIVERED, "2.0.0")
        assert taken.text == f"took {MAIL.size} from user"
        (refused,) = await connection.deliver(Mail("a@x.org", ("nobody@y.org",), b"x\r\n"))
        assert (refused.verdict, refused.code) == (Verdict.BOUNCED, 550)
        (again,) = await connection.deliver(MAIL)
        assert again.verdict is Verdict.DELIVERED
        await connection.quit()
        wrong = Route("127.0.0.1", port, TlsMode.STARTTLS, Credentials("user", "wrong"))
        with pytest.raises(OpenFailed) as caught:
            await Connection.open(wrong, context=context)
        assert (caught.value.outcome.phase, caught.value.outcome.code) == (Phase.AUTH, 535)


def smtp_sink(port: int, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start Postfix's sink, or skip."""
    program = shutil.which("smtp-sink")
    if program is None:
        pytest.skip("Postfix's smtp-sink is not installed")
    options = ["-u", "nobody"] if os.geteuid() == 0 else []
    return subprocess.Popen([program, *options, *flags, f"127.0.0.1:{port}", "20"])


@pytest.mark.clients
@pytest.mark.parametrize(
    ("flags", "verdict", "phase"),
    [
        ((), "delivered", "dot"),
        (("-p",), "delivered", "dot"),
        (("-e",), "delivered", "dot"),
        (("-f", "EHLO"), "delivered", "dot"),
        (("-r", "MAIL"), "deferred", "mail"),
        (("-f", "MAIL"), "failed", "mail"),
        (("-r", "RCPT"), "deferred", "rcpt"),
        (("-f", "RCPT"), "bounced", "rcpt"),
        (("-q", "RCPT"), "deferred", "rcpt"),
        (("-f", "DATA"), "failed", "data"),
        (("-q", "DATA"), "deferred", "data"),
        (("-r", "."), "deferred", "dot"),
        (("-f", "."), "failed", "dot"),
        (("-q", "."), "unknown", "dot"),
        (("-Q", "."), "deferred", "dot"),
    ],
)
async def test_smtp_sink_in_its_failure_modes(flags: tuple[str, ...], verdict: str, phase: str):
    """Postfix's sink refuses, hangs up and closes where told to; two mails in a row, each right."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    route = Route("127.0.0.1", port, TlsMode.NONE)
    with trio.fail_after(20), smtp_sink(port, flags) as process:
        try:

            async def opened() -> Connection | None:
                with contextlib.suppress(OpenFailed):  # it is starting
                    return await Connection.open(route)
                return None

            connection = await eventually(opened, "it listens", every=0.05)
            (first,) = await connection.deliver(MAIL, MAIL)
            (second,) = await connection.deliver(MAIL)
            await connection.quit()
        finally:
            process.kill()
    assert (first.verdict, first.phase) == (verdict, phase)
    if first.connection_usable:
        assert (second.verdict, second.phase) == (verdict, phase)
    else:
        assert second.stale


@pytest.mark.parametrize(
    "context", [client_tls, opportunistic_tls, Matching((), ()).context], ids=["web", "any", "DANE"]
)
def test_no_server_chooses_the_numbers_that_are_reckoned_with(context):
    """Those of DHE may have 10,000 bits, and take seconds; of elliptic curves both know which."""
    exchanges = {one["kea"] for one in context().get_ciphers()}
    assert "kx-dhe" not in exchanges
    assert "kx-ecdhe" in exchanges
