"""Which exchanger takes a mail as it is: one law for all that a mail can need of a server."""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import trio

from relay.outbound.composing.message import Address, AskedFor, Message
from relay.outbound.mx.connections import OFFERED, SiteConnections, Unsuited
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import Security, TlsPolicy
from relay.outbound.mx.sites import Site, site_of
from relay.outbound.queue.enqueue import enqueue
from relay.smtp.client import Mail, Verdict
from relay.smtp.connection import Deadlines
from relay.smtp.dsn import MailParameters
from relay.smtp.tls_faults import Wrong
from tests import certificates
from tests.outbound.mx.test_direct import World, answers, mx, world
from tests.outbound.sink import Script, Session, running_sink, well_behaved

HEAD = b"From: a@b.example\r\nSubject: Hi\r\n\r\n"


class Kind(NamedTuple):
    """A mail that needs something, and with what code it fails for want of it."""

    code: str
    local_part: str = "ada"
    raw: bytes = HEAD + b"Hi.\r\n"
    require_tls: bool = False


KINDS = {
    "REQUIRETLS": Kind("7.30", require_tls=True),  # RFC 8689, 4.2.1
    "SMTPUTF8": Kind("6.7", "bjørn"),  # RFC 6531, 3.5
    "8BITMIME": Kind("6.3", raw=HEAD + "Grüße\r\n".encode()),  # RFC 6152, 3
    "SIZE": Kind("3.4", raw=HEAD + b"x" * 60 * 40 + b"\r\n"),  # RFC 1870, 6.1
}


def offering(*features: str) -> Script:
    """A server whose EHLO offers this, and STARTTLS."""

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb != "EHLO":
            return None
        offers = ["sink", *([] if session.secured else ["STARTTLS"]), *features]
        return b"".join(b"250-%b\r\n" % one.encode() for one in offers) + b"250 PIPELINING\r\n"

    return script


LITTLE = ("SIZE 1000",)
ALL = ("SIZE 100000", "8BITMIME", "SMTPUTF8", "REQUIRETLS")
SERVERS = {"2": offering(*LITTLE), "3": offering(*ALL), "4": offering(*LITTLE)}


@dataclass(frozen=True)
class Anybody:
    """A verifier whom every certificate satisfies."""

    def context(self) -> ssl.SSLContext:
        """Verify nothing in the handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def accepts(self, session: ssl.SSLObject) -> Wrong | None:
        """It will do."""
        return None


VERIFIED = TlsPolicy(Security.VERIFIED, Anybody())


class OfHosts:
    """A policy that is said of domains or of single exchangers; else all are verified."""

    def __init__(self, said: Mapping[str, TlsPolicy]) -> None:
        self.said = said

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """What the test has said."""
        of_all = self.said.get(domain, VERIFIED)
        return {one.name: self.said.get(one.name, of_all) for one in exchangers}


@pytest.fixture
def tls(tmp_path) -> dict[str, ssl.SSLContext]:
    """TLS of each server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificates.write(tmp_path))
    return dict.fromkeys(SERVERS, context)


async def sent(w: World, kind: Kind, domain: str, status: str) -> tuple[object, ...]:
    """Send a mail of a kind to a domain; its row once it has the status."""
    parameters = AskedFor(MailParameters(require_tls=kind.require_tls))
    message = Message(
        Address("a@b.example"),
        [Address(f"{kind.local_part}@{domain}")],
        "Hi",
        raw=kind.raw,
        submitted=parameters,
    )
    (queued,) = (await enqueue(w.outbound.pool, [message])).messages
    w.outbound.wake()
    row = await w.outbound.becomes(queued.id, status, 1)
    assert isinstance(row, tuple)
    return row


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_mail_goes_to_who_takes_it_as_it_is(pool, tls, kind):
    """The table of `relay.outbound.mx.connections`, row by row, for everything a mail can need."""
    unknown = "the TLSA records of it are not known"
    policy = OfHosts({"mx5.example": TlsPolicy(Security.REFUSED, unknown=unknown)})
    zone = {
        **mx("next.example", "2", "3"),
        **mx("equal.example", "2", "4", "3", preference=0),
        **mx("all.example", "2", "4"),
        **mx("dead.example", "9", "2"),
        **mx("hidden.example", "2", "5"),
        ("servfail.mx.example", "A"): ["127.0.0.3"],
        ("unsaid.example", "MX"): ["10 mx2.example.", "20 servfail.mx.example."],
    }
    async with world(pool, zone, SERVERS, tls=tls, policy=policy) as w:
        for place, domain in enumerate(("next.example", "equal.example"), 1):
            await sent(w, kind, domain, "sent")
            assert len(w.sinks["3"].received) == place
        row = await sent(w, kind, "all.example", "failed")
        assert str(row[3]).startswith(f"5.{kind.code} the m")
        for domain, why in (
            ("dead.example", "; mx9.example cannot be asked: connecting failed"),
            ("hidden.example", f"; {unknown}"),
            ("unsaid.example", "; servfail.mx.example has no AAAA for now"),
        ):
            row = await sent(w, kind, domain, "queued")
            assert str(row[3]).startswith(f"4.{kind.code} the m")
            assert why in str(row[3])
        assert all("MAIL" not in one.said for n in "24" for one in w.sinks[n].sessions)
        # It is this mail's trouble, and nobody else's: the way is not even paused.
        await w.send("b@dead.example", "b@all.example", "b@unsaid.example")
        assert w.sinks["2"].recipients + w.sinks["4"].recipients
        assert not w.outbound.gates.statistics(trio.current_time())


async def test_verified_tls_that_nobody_can_be_sure_of_is_waited_for(pool, tls):
    """RFC 8689, 2: a domain without a policy has nothing to verify its servers' names by; if it is
    not known whether it has one, its mail waits for that, and only its mail by verified TLS."""
    policy = OfHosts(
        {
            "free.example": TlsPolicy(),
            "unknown.example": TlsPolicy(unknown="its policy cannot be fetched"),
        }
    )
    zone = {**mx("free.example", "3"), **mx("unknown.example", "3")}
    async with world(pool, zone, {"3": SERVERS["3"]}, tls={"3": tls["3"]}, policy=policy) as w:
        row = await sent(w, KINDS["REQUIRETLS"], "free.example", "failed")
        assert str(row[3]).startswith("5.7.10 the message may go by verified TLS")
        row = await sent(w, KINDS["REQUIRETLS"], "unknown.example", "queued")
        assert str(row[3]).startswith("4.7.10 ")
        assert str(row[3]).endswith("; its policy cannot be fetched")
        huge = Kind("3.4", raw=HEAD + b"x" * 60 * 2000 + b"\r\n")
        row = await sent(w, huge, "unknown.example", "failed")
        assert str(row[3]).startswith("5.3.4 ")
        await sent(w, KINDS["8BITMIME"], "unknown.example", "sent")


async def test_what_was_refused_to_one_is_not_asked_for_each(pool, tls):
    """However many mails nobody takes, each server is connected to once; and of mails that follow
    each other on a connection each goes where it is taken."""
    zone = {**mx("all.example", "2", "4"), **mx("next.example", "2", "3")}
    async with world(pool, zone, SERVERS, tls=tls, policy=OfHosts({})) as w:
        for _ in range(5):
            await sent(w, KINDS["SIZE"], "all.example", "failed")
        assert [len(w.sinks[n].sessions) for n in "24"] == [1, 1]
        mixed = [f"{name}{n}@next.example" for n in range(20) for name in ("ada", "bjørn")]
        await w.send(*mixed)
        assert sorted(w.sinks["2"].recipients + w.sinks["3"].recipients) == sorted(mixed)
        assert not [one for one in w.sinks["2"].recipients if not one.isascii()]


async def test_what_a_server_lacked_is_forgotten_soon(mock_clock):
    """A server that was changed is asked again after `OFFERED` seconds."""
    async with running_sink(answers("EHLO", b"250 sink\r\n")) as sink:
        one = Exchanger("mx.example", 0, ("127.0.0.1",))
        site = site_of((one,), {})
        assert isinstance(site, Site)
        connections = SiteConnections(
            site,
            sink.port,
            "relay.example",
            Deadlines(),
            random.Random(1),
            last_site=lambda _domain: site,
        )
        mail = Mail("a@b.example", ("b@c.example",), b"Gr\xc3\xbc\xc3\x9fe\r\n")
        for _ in range(2):
            with pytest.raises(Unsuited) as failed:
                await connections.open("c.example", mail)
            assert failed.value.outcome.verdict is Verdict.FAILED
        assert len(sink.sessions) == 1
        sink.script = well_behaved  # offers 8BITMIME
        mock_clock.jump(OFFERED + 1)
        connection = await connections.open("c.example", mail)
        (outcome,) = await connection.deliver(mail)
        assert outcome.verdict is Verdict.DELIVERED
        await connections.close()
        connection.abort()
        connections.abort()
