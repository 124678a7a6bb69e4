"""Direct delivery, whole: a DNS server, sinks on addresses of loopback, and a sender between."""

from __future__ import annotations

import gc
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import structlog
import trio
from cryptography.fernet import Fernet

from relay import net
from relay.crypto import Vault
from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.admin import QueueAdmin
from relay.outbound.composing.message import Address, Message
from relay.outbound.mx.connections import MOST_TRIED
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import PolicyUnavailable, Security, TlsPolicy
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.smtp import racing
from relay.smtp.client import OnceMail
from relay.smtp.tls_faults import TlsFault, Wrong
from tests import certificates
from tests.black_hole import black_hole
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import HangUp, Script, Session, Sink, running_sink, well_behaved


@dataclass
class World:
    """What the tests deliver through."""

    outbound: Outbound
    dns: DnsServer
    sinks: Mapping[str, Sink]
    """By the last number of their addresses."""

    async def send(self, *addresses: str, status: str = "sent") -> list[tuple[Any, ...]]:
        """Queue a message to each, and wait for what becomes of it."""
        queued = await put(self.outbound.pool, *addresses)
        self.outbound.wake()
        attempts = 1 if status == "queued" else None
        return [await self.outbound.becomes(one.id, status, attempts) for one in queued]

    async def peers(self, address: str) -> set[str]:
        """Which servers the attempts of a message to an address spoke to."""
        found = await self.outbound.pool.fetch_value(
            "SELECT id FROM relay.outbound_messages WHERE recipient = %s", (address,)
        )
        events = await QueueAdmin(self.outbound.pool).events(found)
        assert events is not None
        return {event["peer"] for event in events}


@asynccontextmanager
async def world(
    pool: Pool,
    zone: Mapping[tuple[str, str], Sequence[str]],
    scripts: Mapping[str, Script] | None = None,
    *,
    tls: Mapping[str, ssl.SSLContext] | None = None,
    dns_within: float = 2.0,
    **settings: Any,
) -> AsyncIterator[World]:
    """Sinks at 127.0.0.N for each N of `scripts`, all on one port, and a DNS that knows `zone`.

    `dns_within`: seconds that it has for an answer.
    """
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        server = await nursery.start(DnsServer(zone).run)
        sinks: dict[str, Sink] = {}
        port = 0
        for number, script in (scripts or {"2": well_behaved}).items():
            sink = await stack.enter_async_context(
                running_sink(
                    script, host=f"127.0.0.{number}", port=port, tls=(tls or {}).get(number)
                )
            )
            sinks[number], port = sink, sink.port
        resolver = Resolver([server.address], server_timeout=dns_within, ask_timeout=5 * dns_within)
        outbound = await stack.enter_async_context(
            running_outbound(
                pool,
                "mx:",
                **{"private_mx": True, "mx_port": port, "resolver": lambda: resolver, **settings},
            )
        )
        yield World(outbound, server, sinks)


def mx(domain: str, *numbers: str, preference: int = 10) -> dict[tuple[str, str], list[str]]:
    """A domain whose exchangers, each of more preference than the one before, are those sinks."""
    return {
        (domain, "MX"): [f"{preference * n} mx{of}.example." for n, of in enumerate(numbers, 1)],
        **{(f"mx{of}.example", "A"): [f"127.0.0.{of}"] for of in numbers},
    }


def answers(verb: str, answer: bytes) -> Script:
    """A script that gives one answer to one verb."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        return answer if said == verb else None

    return script


async def hangs_up(session: Session, said: str, line: str) -> bytes | None:
    """Close every connection at once."""
    raise HangUp


async def stalls(session: Session, said: str, line: str) -> bytes | None:
    """Never say a word."""
    await trio.sleep_forever()
    raise AssertionError


@pytest.fixture
def any_tls(tmp_path) -> ssl.SSLContext:
    """A server's TLS whose certificate nobody has signed, and for another name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificates.write(tmp_path))
    return context


async def test_what_the_dns_says_decides(pool):
    """Every row of the table of `relay.outbound.mx.exchangers`, by its status and its code."""
    zone = {
        **mx("plain.example", "2"),
        ("implicit.example", "A"): ["127.0.0.2"],
        ("alias.example", "CNAME"): ["plain.example."],
        ("null.example", "MX"): ["0 ."],
        ("empty.example", "TXT"): ["nothing"],
        ("dangling.example", "MX"): ["10 nowhere.example."],
        ("loop.example", "MX"): ["10 relay.localhost."],
        ("backup.example", "MX"): ["10 mx2.example.", "20 relay.localhost.", "30 never.example."],
        ("aliased.example", "MX"): ["10 cname.example."],
        ("cname.example", "CNAME"): ["mx2.example."],
        ("xn--mnchen-3ya.example", "MX"): ["10 mx2.example."],
    }
    goes = ["plain", "implicit", "alias", "backup", "aliased", "xn--mnchen-3ya"]
    bounces = {
        "null": "5.1.10",
        "gone": "5.1.2",
        "empty": "5.1.2",
        "dangling": "5.4.4",
        "loop": "5.4.6",
    }
    async with world(pool, zone) as w:
        for row in await w.send(*(f"a@{name}.example" for name in goes)):
            assert row[:2] == ("sent", 1)
        rows = await w.send(*(f"a@{name}.example" for name in bounces), status="bounced")
        assert [row[3].split()[0] for row in rows] == list(bounces.values())
        for row in await w.send("a@servfail.example", "a@refused.example", status="queued"):
            assert row[3].startswith("4.4.3 ")
        assert len(w.sinks["2"].received) == len(goes)
        assert await w.peers("a@alias.example") == {f"mx2.example[127.0.0.2]:{w.sinks['2'].port}"}
        assert await w.peers("a@null.example") == {None}


async def test_connects_to_no_private_address_unless_told(pool, monkeypatch):
    """Not one connection is begun, whatever way the address is named; the mail bounces."""
    begun: list[str] = []
    connect = net.open_tcp_stream

    async def logged(host: str, port: int) -> trio.SocketStream:
        begun.append(host)
        return await connect(host, port)

    monkeypatch.setattr(racing, "open_tcp_stream", logged)
    zone = {
        **mx("loopback.example", "2"),
        ("implicit.example", "A"): ["127.0.0.2"],
        ("metadata.example", "A"): ["169.254.169.254"],
        ("mapped.example", "AAAA"): ["::ffff:127.0.0.2"],
        ("six.example", "AAAA"): ["::1"],
        ("alias.example", "CNAME"): ["mx2.example."],
    }
    names = ["loopback", "implicit", "metadata", "mapped", "six", "alias"]
    async with world(pool, zone, private_mx=False) as w:
        rows = await w.send(*(f"a@{name}.example" for name in names), status="bounced")
        assert {row[3].split()[0] for row in rows} == {"5.4.4"}
        assert (begun, w.sinks["2"].sessions) == ([], [])
    async with world(pool, zone) as w:
        await w.send("b@loopback.example")
        assert begun == ["127.0.0.2"]


@pytest.mark.parametrize(
    "first",
    [
        answers("connect", b"554 5.7.1 go away\r\n"),
        answers("connect", b"421 4.3.2 not now\r\n"),
        answers("EHLO", b"451 4.3.0 not now\r\n"),
        hangs_up,
    ],
    ids=["554 at greeting", "421 at greeting", "451 at EHLO", "hangs up"],
)
async def test_the_next_exchanger_is_tried_in_the_same_attempt(pool, first):
    """As long as nothing of a mail was sent, one that will not talk costs no attempt."""
    async with world(pool, mx("shop.example", "2", "3"), {"2": first, "3": well_behaved}) as w:
        (row,) = await w.send("a@shop.example")
        assert row[:2] == ("sent", 1)
        assert len(w.sinks["3"].received) == 1
        assert await w.peers("a@shop.example") == {f"mx3.example[127.0.0.3]:{w.sinks['3'].port}"}


async def test_what_no_exchanger_takes_is_deferred(pool):
    """5xx of every greeting is no bounce: it is the servers' trouble, and not the mail's."""
    no = answers("connect", b"554 5.7.1 go away\r\n")
    async with world(pool, mx("shop.example", "2", "3"), {"2": no, "3": no}) as w:
        (row,) = await w.send("a@shop.example", status="queued")
        assert row[3].startswith("554 5.7.1")
        assert [len(sink.sessions) for sink in w.sinks.values()] == [1, 1]


async def test_an_outage_costs_no_mail_however_many_attempts_it_is(pool):
    """Where an upstream would have had the last of them, and behind the gates that it closes."""
    tries = Counter[str]()

    async def away(session: Session, said: str, line: str) -> bytes | None:
        tries["away"] += said == "connect"
        return b"421 4.3.2 not now\r\n" if tries["away"] <= 15 and said == "connect" else None

    async def greylists(session: Session, said: str, line: str) -> bytes | None:
        tries["greylists"] += said == "RCPT"
        return b"451 4.2.1 later\r\n" if tries["greylists"] <= 15 and said == "RCPT" else None

    zone = {**mx("away.example", "2"), **mx("grey.example", "3"), **mx("lost.example", "3")}
    async with world(pool, zone, {"2": away, "3": greylists}, retry_unit=0.002) as w:
        for row in await w.send("a@away.example", "a@grey.example"):
            assert row[:2] == ("sent", 16)
        # What the DNS failed to say is not asked for again at once, so this one goes on waiting.
        w.dns.failing.add(("lost.example", "MX"))
        (lost,) = await put(pool, "a@lost.example")
        w.outbound.wake()
        row = await eventually(
            lambda: w.outbound.row(lost.id), "it is tried often", until=lambda row: row[1] > 15
        )
        assert row[0] in {"queued", "processing"}


async def test_what_is_away_for_longer_than_the_lifetime_has_failed_then(pool):
    """Not before, and with what was said last; what is scheduled counts from its time."""
    no, lifetime = answers("RCPT", b"451 4.2.1 later\r\n"), timedelta(seconds=1)
    async with world(
        pool,
        mx("shop.example", "2"),
        {"2": no},
        retry_unit=0.002,
        mx_lifetime=lifetime.total_seconds(),
    ) as w:
        for send_at in (None, datetime.now(UTC) + 2 * lifetime):
            (one,) = await put(pool, "a@shop.example", send_at=send_at)
            due = await pool.fetch_value(
                "SELECT run_at FROM relay.outbound_due WHERE id = %s", (one.id,)
            )
            w.outbound.wake()
            row = await w.outbound.becomes(one.id, "failed")
            assert row[3] == "451 4.2.1 later"
            begun = await pool.fetch(
                "SELECT at FROM relay.outbound_attempts WHERE message_id = %s ORDER BY attempt",
                (one.id,),
            )
            ended = await pool.fetch_value(
                "SELECT finished_at FROM relay.outbound_log WHERE id = %s", (one.id,)
            )
            assert len(begun) == row[1] > 1
            assert begun[-2][0] < due + lifetime <= ended


async def test_what_waits_for_who_never_answers_ends_with_one_that_fails(pool):
    """Each message once it is too old, and few by an attempt of their own."""
    zone, scripts = mx("shop.example", "2"), {"2": hangs_up}
    async with world(pool, zone, scripts, retry_unit=0.002, mx_lifetime=1.0) as w:
        sent = await put(pool, *(f"a{number}@shop.example" for number in range(100)))
        w.outbound.wake()
        rows = [await w.outbound.becomes(one.id, "failed") for one in sent]
    given_up = [row for row in rows if row[3].startswith("too old, and nobody takes mail")]
    assert len(given_up) > 50


async def test_an_attempt_tries_so_many_exchangers_and_no_more(pool):
    """A list of servers that are all away costs a bounded number of connections."""
    numbers = [str(n) for n in range(2, 2 + MOST_TRIED + 2)]
    scripts = dict.fromkeys(numbers, hangs_up)
    async with world(pool, mx("shop.example", *numbers), scripts) as w:
        await w.send("a@shop.example", status="queued")
        tried = [len(sink.sessions) for sink in w.sinks.values()]
        assert tried == [1] * MOST_TRIED + [0, 0]


async def test_equal_exchangers_share_the_mail(pool):
    """Of two of the same preference neither gets every first connection."""
    zone = {**mx("shop.example", "2", "3", preference=0)}
    scripts = dict.fromkeys(["2", "3"], answers("QUIT", b"221 bye\r\n"))
    async with world(pool, zone, scripts) as w:
        for number in range(40):
            await w.send(f"a{number}@shop.example")
            if all(sink.received for sink in w.sinks.values()):
                break
            for line in w.sinks.values():
                for session in line.sessions:  # the next needs a connection anew
                    await trio.aclose_forcefully(session.stream)
        assert all(sink.received for sink in w.sinks.values())


async def test_domains_of_one_provider_share_its_connections(pool):
    """Pooled by site and not by domain, whatever their numbers for the same preferences are."""
    zone = {
        **mx("one.example", "2", "3"),
        **mx("two.example", "2", "3", preference=5),
        **mx("three.example", "3", "2"),
    }
    async with world(pool, zone, dict.fromkeys(["2", "3"], well_behaved)) as w:
        for domain in ("one", "two", "one", "two"):
            await w.send(f"a@{domain}.example")
        assert len(w.sinks["2"].sessions) == 1
        await w.send("a@three.example")
        assert len(w.sinks["3"].sessions) == 1


async def test_mail_for_this_relays_own_domains_does_not_leave(pool):
    """Nobody is asked where it is: what its mailboxes say is the answer."""
    async with world(pool, {("relay.localhost", "MX"): ["10 mx2.example."]}) as w:
        (row,) = await w.send("nobody@relay.localhost", status="bounced")
        assert "5.1.1" in row[3]
        assert w.sinks["2"].sessions == []


# TLS ----------------------------------------------------------------------------------------------


async def test_tls_is_used_wherever_it_is_offered(pool, any_tls):
    """Whatever the certificate is: a stranger's would stop nobody who reads along."""
    async with world(pool, mx("shop.example", "2"), tls={"2": any_tls}) as w:
        await w.send("a@shop.example")
        (session,) = w.sinks["2"].sessions
        assert session.secured
        shown = await w.outbound.pool.fetch_value("SELECT tls FROM relay.outbound_attempts")
        assert shown == "TLSv1.3"


@pytest.mark.parametrize(
    "script",
    [
        answers("STARTTLS", b"454 4.7.0 not now\r\n"),
        answers("STARTTLS", b"220 go on\r\nnonsense\r\n"),
    ],
    ids=["refused", "broken"],
)
async def test_only_a_starttls_that_fails_goes_on_in_clear(pool, any_tls, script):
    """Over a new connection, in the same attempt."""
    async with world(pool, mx("shop.example", "2"), {"2": script}, tls={"2": any_tls}) as w:
        (row,) = await w.send("a@shop.example")
        assert row[:2] == ("sent", 1)
        first, second = w.sinks["2"].sessions
        assert (first.said, first.secured) == (["EHLO", "STARTTLS"], False)
        assert "STARTTLS" not in second.said


async def test_what_a_peer_says_about_starttls_is_not_in_the_log(pool, any_tls):
    """It may be about anybody: its codes are."""
    script = answers("STARTTLS", b"454 4.7.0 none for ada@customer.example, +49 30 1234567\r\n")
    with structlog.testing.capture_logs() as lines:
        async with world(pool, mx("shop.example", "2"), {"2": script}, tls={"2": any_tls}) as w:
            assert (await w.send("a@shop.example"))[0][0] == "sent"
    reasons = [line["reason"] for line in lines if line["event"] == "outbound.tls_given_up"]
    assert reasons == ["454 4.7.0"]
    assert "customer.example" not in str(lines)


class Says:
    """A policy that says the same of every exchanger of a domain."""

    def __init__(self, policies: Mapping[str, TlsPolicy | Exception]) -> None:
        self.policies = policies

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """What the test has said."""
        said = self.policies.get(domain, TlsPolicy())
        if isinstance(said, Exception):
            raise said
        return {one.name: said for one in exchangers}


@dataclass(frozen=True)
class Refuses:
    """A verifier that no certificate satisfies."""

    def context(self) -> ssl.SSLContext:
        """Verify nothing in the handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def accepts(self, session: ssl.SSLObject) -> Wrong | None:
        """Say why not."""
        assert session.getpeercert(binary_form=True)
        return Wrong(TlsFault.VALIDATION, "it is not the one")


async def test_a_policy_decides_for_its_domain_and_for_no_other(pool, any_tls):
    """One domain's policy stops its own mail, and shares no connection with a weaker one's."""
    policy = Says(
        {
            "encrypted.example": TlsPolicy(Security.ENCRYPTED),
            "verified.example": TlsPolicy(Security.VERIFIED, Refuses()),
            "barred.example": TlsPolicy(Security.REFUSED, why="MTA-STS"),
            "away.example": PolicyUnavailable("the policy cannot be fetched"),
        }
    )
    zone = {
        **mx("free.example", "2"),
        **{(name, "MX"): ["10 mx2.example."] for name in policy.policies},
    }
    async with world(pool, zone, tls={"2": any_tls}, policy=policy) as w:
        await w.send("a@free.example", "a@encrypted.example")
        assert len(w.sinks["2"].sessions) == 2
        told = {
            "verified": "the peer's certificate is not accepted: it is not the one",
            "barred": "4.7.5 MTA-STS allows none of the domain's exchangers",
            "away": "4.7.5 the policy cannot be fetched",
        }
        rows = await w.send(*(f"a@{name}.example" for name in told), status="queued")
        assert [row[3] for row in rows] == list(told.values())
        await w.send("b@free.example")
        assert len(w.sinks["2"].received) == 3


async def test_what_must_be_encrypted_never_goes_in_clear(pool):
    """Neither where STARTTLS is not offered."""
    policy = Says({"shop.example": TlsPolicy(Security.ENCRYPTED)})
    async with world(pool, mx("shop.example", "2"), policy=policy) as w:
        (row,) = await w.send("a@shop.example", status="queued")
        assert "offers no STARTTLS" in row[3]
        assert w.sinks["2"].received == []


# What stalls --------------------------------------------------------------------------------------


async def test_a_site_that_stalls_holds_up_no_other(pool):
    """Of many domains one says nothing, and one's DNS neither: all others have their mail."""
    zone = mx("dead.example", "3")
    for number in range(60):
        zone |= {(f"d{number}.example", "A"): ["127.0.0.2"]}
    async with world(pool, zone, {"2": well_behaved, "3": stalls}) as w:
        dead = [f"a{n}@dead.example" for n in range(60)]
        silent = [f"a{n}@silent.example" for n in range(60)]
        await put(w.outbound.pool, *dead, *silent)
        with trio.fail_after(20):
            await w.send(*(f"a@d{number}.example" for number in range(60)))
        assert len(w.sinks["3"].sessions) <= 2
        # Its stalled sessions would wait for their deadlines: they need not be awaited here.
        for session in w.sinks["3"].sessions:
            await trio.aclose_forcefully(session.stream)


async def test_two_hundred_domains_whose_dns_is_silent_hold_up_no_other(pool):
    """More than questions are asked at once, and than is claimed ahead: all others have their mail
    before any of them is given up."""
    zone = {(f"d{number}.example", "A"): ["127.0.0.2"] for number in range(60)}
    async with world(pool, zone, concurrency=32, dns_within=60.0) as w:
        await put(pool, *(f"a{n}@silent.d{of}.example" for of in range(200) for n in range(3)))
        with trio.fail_after(20):
            await w.send(*(f"a@d{number}.example" for number in range(60)))
        looked_up = "SELECT count(*) FROM relay.outbound_messages WHERE status = 'processing'"
        assert await pool.fetch_value(looked_up) >= 200


def hangs_at(verb: str, streams: list[trio.abc.Stream]) -> Script:
    """A script that says nothing to a verb, and notes to whom."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said == verb:
            streams.append(session.stream)
            await trio.sleep_forever()
        return None

    return script


async def test_high_mail_that_waits_for_a_site_holds_up_no_lower_mail(pool):
    """The right of way is for what is delivered at once: who waits for a stranger's server gives it
    back, here long before it would end by itself."""

    class Lasting(RightOfWay):
        MOST = 600.0

    hanging: list[trio.abc.Stream] = []
    zone = {**mx("dead.example", "3"), **mx("good.example", "2")}
    scripts = {"2": well_behaved, "3": hangs_at("dot", hanging)}
    async with world(pool, zone, scripts, right_of_way=Lasting(), lease_timeout=300.0) as w:
        await put(pool, "a@dead.example", priority="high")
        w.outbound.wake()
        await eventually(lambda: hanging, "it hangs")
        await w.send("b@good.example")
        await trio.aclose_forcefully(hanging[0])


PLACES = 32


async def test_ninety_sites_that_stall_hold_up_no_other(pool):
    """Black holes, and servers that say nothing to whoever connects, to EHLO or to the final dot,
    more than there are places and more than is claimed ahead: all others have their mail while
    every one of them hangs, and so they do when more is sent to the dead."""
    verbs = ["connect", "EHLO", "dot"]
    hanging: dict[str, list[trio.abc.Stream]] = {}
    scripts: dict[str, Script] = {"2": well_behaved}
    zone: dict[tuple[str, str], list[str]] = {}
    numbers = [str(number) for number in range(10, 100)]
    holes = numbers[::4]
    for number in numbers:
        zone |= mx(f"dead{number}.example", number)
        if number not in holes:
            hanging[number] = []
            scripts[number] = hangs_at(verbs[int(number) % 3], hanging[number])
    for other in range(100):
        zone |= {(f"d{other}.example", "MX"): [f"10 mx{other}.d.example."]}
        zone |= {(f"mx{other}.d.example", "A"): ["127.0.0.2"]}
    with ExitStack() as deaf:
        async with world(
            pool, zone, scripts, dns_within=20.0, concurrency=PLACES, lease_timeout=300.0
        ) as w:
            for number in holes:
                deaf.enter_context(black_hole(f"127.0.0.{number}", w.sinks["2"].port))
            for _ in range(2):
                await put(pool, *(f"a{n}@dead{of}.example" for of in numbers for n in range(5)))
                w.outbound.wake()
                with trio.fail_after(30):
                    await eventually(lambda: all(hanging.values()), "each of them hangs")
                    await w.send(*(f"a@d{number}.example" for number in range(100)))
            hang = await pool.fetch(
                """
                SELECT DISTINCT split_part(recipient, '@', 2)
                FROM relay.outbound_messages
                WHERE status = 'processing'
                """
            )
            still = {domain for (domain,) in hang}
            assert {f"dead{number}.example" for number in hanging} <= still
            # A site gets another only while fewer hang than there are places: where the sites come
            # slowly, some of the first ones do.
            several = [len(streams) for streams in hanging.values() if len(streams) > 1]
            assert sum(several) <= PLACES
            # They would wait for their deadlines: they need not be awaited here.
            deaf.close()
            for streams in hanging.values():
                for stream in streams:
                    await trio.aclose_forcefully(stream)


@pytest.mark.parametrize(("verb", "known"), [("EHLO", False), ("DATA", True), ("dot", True)])
async def test_large_mail_to_sites_that_hang_holds_up_none_to_others(pool, verb: str, known: bool):
    """Few large messages are in memory at once, and none of those that wait for their peers: six
    hang, and others are sent beside them."""
    hanging: list[trio.abc.Stream] = []
    numbers = [str(number) for number in range(10, 16)]
    zone = {**mx("good.example", "2")}
    for number in numbers:
        zone |= mx(f"dead{number}.example", number)
    waits = False
    inner = hangs_at(verb, hanging)

    async def script(session: Session, said: str, line: str) -> bytes | None:
        return await inner(session, said, line) if waits else None

    scripts = {"2": well_behaved} | dict.fromkeys(numbers, script)
    raw = b"Subject: large\r\n\r\n" + (b"x" * 70 + b"\r\n") * 16_000
    async with world(pool, zone, scripts, concurrency=32, lease_timeout=300.0) as w:
        await w.send("a@good.example")  # he is known
        if known:
            await w.send(*(f"a@dead{number}.example" for number in numbers))
        waits = True

        async def queue(*recipients: str) -> list[UUID]:
            sender = Address("a@b.example")
            large = [Message(sender, [Address(to)], "Large", raw=raw) for to in recipients]
            queued = (await enqueue(pool, large)).messages
            w.outbound.wake()
            return [one.id for one in queued]

        hang = await queue(*(f"b@dead{number}.example" for number in numbers))
        with trio.fail_after(30):
            await eventually(lambda: hanging, "they hang", until=lambda held: len(held) == 6)
            for large in await queue("b@good.example", "c@good.example"):
                await w.outbound.becomes(large, "sent", 1)

        def jobs() -> list[Job]:
            found = [one for one in gc.get_objects() if isinstance(one, Job)]
            return [job for job in found if job.message.id in hang]

        def kept() -> list[Job]:
            return [job for job in jobs() if is_in_memory(job)]

        assert len(jobs()) == 6
        await eventually(kept, "none is kept", until=lambda jobs: not jobs)
        assert len(hanging) == 6
        for stream in hanging:
            await trio.aclose_forcefully(stream)


def in_hand(message_id: UUID) -> Job:
    """The one job of a message."""
    found = [one for one in gc.get_objects() if isinstance(one, Job)]
    (job,) = [job for job in found if job.message.id == message_id]
    return job


def is_in_memory(job: Job) -> bool:
    """Whether a node holds the bytes of the message."""
    outgoing = job.outgoing
    held = outgoing is not None and not (isinstance(outgoing, OnceMail) and outgoing.gone)
    return held or job.mail is not None or job.message.has_body


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("verb", "known"), [("connect", False), ("connect", True), ("DATA", True), ("dot", True)]
)
async def test_a_heavy_message_that_waits_for_its_peer_is_not_kept_in_memory(
    pool, verb: str, known: bool, signed: bool
):
    """While a stranger's connection is opened, or one's that takes long, before its peer asks for
    it, and behind the final dot; it arrives as it is."""
    goes_on, sessions = trio.Event(), list[Session]()
    waits = False

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said == verb and waits:
            sessions.append(session)
            await goes_on.wait()
        return None

    signer = None
    if signed:
        vault = Vault([Fernet.generate_key().decode()])
        keys = DkimKeys(pool, vault)
        await keys.create("b.example", "s1")
        signer = Signer(keys, vault)
    raw = b"From: a@b.example\r\nSubject: heavy\r\n\r\n" + (b".x" * 35 + b"\r\n") * 8000
    heavy = Message(Address("a@b.example"), [Address("heavy@s.example")], "Heavy", raw=raw)
    async with world(pool, mx("s.example", "2"), {"2": script}, signer=signer) as w:
        sink = w.sinks["2"]
        if known:
            await w.send("a@s.example")
            await trio.aclose_forcefully(sink.sessions[0].stream)
        waits = True
        (queued,) = (await enqueue(pool, [heavy])).messages
        w.outbound.wake()
        await eventually(lambda: sessions, "it waits for its peer")
        job = in_hand(queued.id)
        await eventually(lambda: is_in_memory(job), "it is let go", until=lambda held: not held)
        goes_on.set()
        await w.outbound.becomes(queued.id, "sent", 1)
        assert len(sink.sessions) == 1 + known
        assert sink.received[-1].data.endswith(raw)
        assert sink.received[-1].data.count(b"DKIM-Signature:") == 2 * signed
