"""DANE, whole: a DNS that says what is signed, authorities, and servers of mail."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from relay.access.owners import REPORTS_ID
from relay.db.pool import Pool
from relay.dns.questions import Proof
from relay.dns.resolver import Resolver
from relay.outbound.composing.message import Address, Message
from relay.outbound.mx.dane import PROVED, TLSA, UNPROVED, DaneFirst, DanePolicies, Matching
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import PolicyUnavailable, Security, TlsPolicy
from relay.outbound.mx.tls_results import TlsResults
from relay.outbound.queue.enqueue import enqueue
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.outbound.mx.pki import Issued, issue, serving
from tests.outbound.mx.test_direct import Says, World, answers, world
from tests.outbound.mx.test_sts import count
from tests.outbound.node import put
from tests.outbound.running import running_outbound
from tests.outbound.sink import Script, well_behaved

Zone = dict[tuple[str, str], list[str]]

ROOT: Zone = {("", "NS"): ["a.root."]}
SIGNED = ("", "example")
E31 = "3 1 1 " + "ab" * 32
T21 = "2 1 1 " + "cd" * 32


@asynccontextmanager
async def names(zone: Zone, signed: Sequence[str] = SIGNED) -> AsyncIterator[DnsServer]:
    """A DNS that knows these, and has validated what is under `signed`."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(DnsServer({**ROOT, **zone}, signed=signed).run)
        nursery.cancel_scope.cancel()


def asking(server: DnsServer) -> DanePolicies:
    """Who asks it."""
    resolver = Resolver([server.address], server_timeout=0.2)
    return DanePolicies(lambda: resolver)


async def found(
    zone: Zone, *hosts: str, domain: str = "shop.example", signed: Sequence[str] = SIGNED
) -> Mapping[str, TlsPolicy]:
    """What DANE says of exchangers of a domain."""
    async with names(zone, signed) as server:
        return await asking(server).policy_for(domain, [Exchanger(host, 0) for host in hosts])


def shop(*hosts: str, **more: list[str]) -> Zone:
    """A domain whose exchangers have addresses; `more`: the TLSA records of their first labels."""
    return {
        ("shop.example", "MX"): [f"10 {host}." for host in hosts],
        **{(host, "A"): ["127.0.0.2"] for host in hosts},
        **{(f"_25._tcp.{label}.example", "TLSA"): records for label, records in more.items()},
    }


async def test_records_are_asked_for_by_the_exchangers_name():
    """KumoMTA's issue 517: never by the domain's; SNI has the same name, and usage 2 both."""
    zone = shop("mx.example", "two.example", "no.example", mx=[E31], two=[T21, E31])
    zone["_25._tcp.shop.example", "TLSA"] = ["3 1 1 " + "ef" * 32]
    policies = await found(zone, "mx.example", "two.example", "no.example")
    assert set(policies) == {"mx.example", "two.example"}
    one, two = policies["mx.example"], policies["two.example"]
    assert (one.security, one.server_name, one.why) == (Security.VERIFIED, "mx.example", "DANE")
    assert isinstance(one.verifier, Matching)
    assert [record.data.hex()[:2] for record in one.verifier.records] == ["ab"]
    assert one.verifier.names == ()  # so that all domains with this exchanger share connections
    assert isinstance(two.verifier, Matching)
    assert two.verifier.names == ("two.example", "shop.example")


async def test_an_implicit_exchanger_is_the_domain():
    """A domain without MX, which is signed, is its own exchanger."""
    zone = {("shop.example", "A"): ["127.0.0.2"], ("_25._tcp.shop.example", "TLSA"): [E31]}
    policies = await found(zone, "shop.example")
    assert policies["shop.example"].server_name == "shop.example"


@pytest.mark.parametrize(
    ("signed", "zone"),
    [
        (("", "mx.example"), shop("mx.example", mx=[E31])),
        (("", "shop.example"), shop("mx.example", mx=[E31])),
        (("example",), shop("mx.example", mx=[E31])),
        ((), shop("mx.example", mx=[E31])),
        (("", "example"), shop("mx.example")),
        (("", "shop.example", "mx.example"), shop("www.example", www=[E31])),
    ],
    ids=["MX", "host", "root", "nothing", "no TLSA", "another host"],
)
async def test_what_is_not_signed_counts_for_nothing(signed, zone):
    """MX, addresses and TLSA must be signed, each of them, and the root shown to be."""
    assert await found(zone, "mx.example", signed=signed) == {}


async def test_an_alias_is_followed_as_far_as_it_is_signed():
    """RFC 7672, 2.1.3: its target's records, else its own; its own alone, if the target is not."""
    zone: Zone = {
        ("shop.example", "MX"): ["10 mx.example."],
        ("mx.example", "CNAME"): ["host.other."],
        ("host.other", "A"): ["127.0.0.2"],
        ("_25._tcp.mx.example", "TLSA"): [E31],
    }
    both = {**zone, ("_25._tcp.host.other", "TLSA"): [T21]}

    async def base(zone: Zone, *signed: str) -> str | None:
        policies = await found(zone, "mx.example", signed=("", *signed))
        return policies["mx.example"].server_name if policies else None

    assert await base(both, "example", "other") == "host.other"
    assert await base(zone, "example", "other") == "mx.example"
    assert await base(both, "example") == "mx.example"
    assert await base(both, "shop.example", "other") is None


async def test_a_domain_that_is_an_alias_has_two_names():
    """A certificate under usage 2 may have the name that the domain leads to."""
    zone = shop("mx.example", mx=[T21])
    zone["www.example", "CNAME"] = ["shop.example."]
    policies = await found(zone, "mx.example", domain="www.example")
    verifier = policies["mx.example"].verifier
    assert isinstance(verifier, Matching)
    assert verifier.names == ("mx.example", "www.example", "shop.example")


async def test_records_that_cannot_be_used_demand_tls_all_the_same():
    """RFC 7672, 2.2: encrypted, whoever it is."""
    policies = await found(shop("mx.example", mx=["1 1 1 " + "ab" * 32, "3 1 7 ab"]), "mx.example")
    assert policies["mx.example"].security is Security.ENCRYPTED


async def test_what_fails_is_avoided_or_waited_for():
    """SERVFAIL and silence hide records: others are used, and with none left the mail waits."""
    zone = shop("mx.example", "two.example", mx=[E31], two=[E31])
    exchangers = [Exchanger("mx.example", 0), Exchanger("two.example", 1)]
    first = ("_25._tcp.mx.example", "TLSA")
    async with names(zone) as server:
        server.failing.add(first)
        policies = await asking(server).policy_for("shop.example", exchangers)
        assert policies["mx.example"].security is Security.REFUSED
        assert "SERVFAIL" in policies["mx.example"].unknown
        assert policies["two.example"].security is Security.VERIFIED
        with pytest.raises(PolicyUnavailable, match=r"TLSA records of mx\.example .* SERVFAIL"):
            await asking(server).policy_for("shop.example", exchangers[:1])
        server.failing.clear()
        server.silent.add(first)
        with pytest.raises(PolicyUnavailable, match="no answer within"):
            await asking(server).policy_for("shop.example", exchangers[:1])
        # The domain of one who does not answer is one without DANE for nobody else.
        policies = await asking(server).policy_for("shop.example", exchangers[1:])
        assert policies["two.example"].security is Security.VERIFIED


async def test_a_look_up_ends_in_time(virtual: MockClock):
    """Stalwart's issue 1578: whatever does not answer, within `TLSA` seconds there is a verdict."""

    class Silent(Resolver):
        async def proof(self) -> Proof:
            return Proof(True)

        async def ask(self, question):
            await trio.sleep_forever()

    virtual.autojump_threshold = 0
    resolver = Silent()
    began = trio.current_time()
    with pytest.raises(PolicyUnavailable):
        await DanePolicies(lambda: resolver).policy_for(
            "shop.example", [Exchanger("mx.example", 0)]
        )
    assert TLSA <= trio.current_time() - began < TLSA + 5


async def test_forty_domains_whose_dns_is_silent_hold_up_no_other(autojump_clock):
    """Their mail waits, and no mail of a domain that is answered for, or is not signed."""
    zone = shop("mx.example", mx=[E31])
    zone["plain.test", "MX"] = ["10 mx.plain.test."]
    zone["mx.plain.test", "A"] = ["127.0.0.3"]
    silent = [f"mx{number}.example" for number in range(40)]
    for host in silent:
        zone[host, "A"] = ["127.0.0.4"]
    async with names(zone) as server, trio.open_nursery() as nursery:
        server.silent = {(f"_25._tcp.{host}", "TLSA") for host in silent}
        resolver = Resolver([server.address])
        dane = DanePolicies(lambda: resolver)
        unavailable = []

        async def ask_in_vain(host: str) -> None:
            with pytest.raises(PolicyUnavailable):
                await dane.policy_for(host, [Exchanger(host, 0)])
            unavailable.append(host)

        for host in silent:
            nursery.start_soon(ask_in_vain, host)
        await eventually(lambda: len(server.silent - server.asked.keys()) <= 8, "most are asked")
        began = trio.current_time()
        policies = await dane.policy_for("shop.example", [Exchanger("mx.example", 0)])
        assert policies["mx.example"].security is Security.VERIFIED
        assert await dane.policy_for("plain.test", [Exchanger("mx.plain.test", 0)]) == {}
        assert (trio.current_time(), unavailable) == (began, [])
    assert sorted(unavailable) == sorted(silent)


async def test_many_who_ask_at_once_have_one_answer():
    """Single flight, and what was answered is kept."""
    async with names(shop("mx.example", mx=[E31])) as server:
        policies = asking(server)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(
                    policies.policy_for, "shop.example", [Exchanger("mx.example", 0)]
                )
        assert server.asked["_25._tcp.mx.example", "TLSA"] == 1
        assert server.asked["", "NS"] == 1


# Whether the DNS can be believed ------------------------------------------------------------------


async def test_only_a_resolver_on_this_host_that_validates_is_believed():
    """What comes over a network could be anybody's; one that does not validate says nothing."""
    async with names({}) as server:
        assert await Resolver([server.address]).proof() == Proof(True)
        away = await Resolver([server.address, ("192.0.2.53", 53)]).proof()
        assert away == Proof(False, "remote", "192.0.2.53")
        server.signed = ("example",)
        unvalidated = Proof(False, "unvalidated", "127.0.0.1")
        assert await Resolver([server.address]).proof() == unvalidated
        server.failing.add(("", "NS"))
        assert await Resolver([server.address]).proof() == Proof(None, "silent", "127.0.0.1")


async def test_what_was_proved_is_proved_again(virtual: MockClock):
    """Every hour; silence changes nothing, and an answer that was not validated ends it."""
    async with names(shop("mx.example", mx=[E31])) as server:
        resolver = Resolver([server.address], server_timeout=0.2)
        policies = DanePolicies(lambda: resolver)
        assert await policies.is_on()
        server.failing.add(("", "NS"))
        virtual.jump(PROVED)
        assert await policies.is_on()
        server.failing.clear()
        server.signed = ()
        virtual.jump(UNPROVED)
        assert not await policies.is_on()
        server.signed = SIGNED
        assert not await policies.is_on()
        virtual.jump(UNPROVED)
        assert await policies.is_on()


async def test_a_resolver_that_is_silent_at_first_lets_no_mail_by(virtual: MockClock):
    """A relay that starts while nothing is said of the root obeys what is signed, and one that is
    known not to validate is not believed for being silent later."""
    async with names(shop("mx.example", mx=[E31])) as server:
        server.failing.add(("", "NS"))
        policies = asking(server)
        found = await policies.policy_for("shop.example", [Exchanger("mx.example", 0)])
        assert found["mx.example"].security is Security.VERIFIED
        server.failing.clear()
        server.signed = ("example",)
        virtual.jump(UNPROVED)
        assert not await policies.is_on()
        server.failing.add(("", "NS"))
        virtual.jump(UNPROVED)
        assert not await policies.is_on()


@pytest.mark.parametrize(
    ("upstream", "of_a_sender", "expected"),
    [("mx:", "loop:", True), ("loop:", "mx:", True), ("loop:", "loop:", False)],
)
async def test_it_is_known_from_the_start_whether_the_resolver_validates(
    pool: Pool, upstream: str, of_a_sender: str, expected: bool
):
    """Before any mail, where mail goes directly by the relay's upstream or a sender's; where none
    does, nobody asks."""
    await pool.execute(
        "INSERT INTO relay.senders (id, address, upstream)"
        " VALUES (gen_random_uuid(), 'a@shop.example', %s)",
        (of_a_sender,),
    )
    async with names({}, signed=()) as server:
        dane = asking(server)
        with structlog.testing.capture_logs() as lines:
            async with running_outbound(pool, upstream, policy=DaneFirst(dane), dane=dane) as out:
                await out.at_rest()
                if expected:
                    await eventually(lambda: lines, "it says so", until=lambda n: off(n) != [])
        assert [(one["server"], one["reason"]) for one in off(lines)] == (
            [("127.0.0.1", "unvalidated")] if expected else []
        )
        assert server.asked["", "NS"] == int(expected)


def off(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines that say that there is no DANE."""
    return [line for line in lines if line["event"] == "outbound.dane_off"]


async def test_who_follows_it_hears_of_a_change_without_any_mail(virtual: MockClock):
    """An hour later, or a minute where it was not proved."""
    async with names({}, signed=()) as server, trio.open_nursery() as nursery:
        dane = asking(server)
        with structlog.testing.capture_logs() as lines:
            nursery.start_soon(dane.follow)
            await eventually(lambda: lines, "it is off", until=lambda n: off(n) != [])
            server.signed = SIGNED
            virtual.jump(UNPROVED)
            await eventually(
                lambda: [line["event"] for line in lines],
                "it is on",
                until=lambda events: events[-1] == "outbound.dane_on",
            )
        nursery.cancel_scope.cancel()


# What follows -------------------------------------------------------------------------------------


@dataclass
class Shown:
    """Who serves mail, and what would match."""

    root: Issued
    chains: dict[str, tuple[Issued, ...]]

    def record(self, number: str, usage: int = 3) -> list[str]:
        """The record of a sink's own certificate, or of its authority."""
        return [(self.root if usage == 2 else self.chains[number][0]).record(usage, 1, 1)]


@asynccontextmanager
async def delivering(
    pool: Pool,
    folder: Path,
    domains: Mapping[str, str],
    other: Says | None = None,
    results: TlsResults | None = None,
) -> AsyncIterator[tuple[World, Shown, Zone]]:
    """A world in which domains have numbers of sinks as exchangers, all of it signed.

    Sink 2 is as it should be; 3 has an old certificate for another name; 4 has no TLS; 5 refuses
    STARTTLS.
    """
    root = issue("root", ca=True)
    shown = Shown(
        root,
        {
            "2": (issue("x", root, names=["mx2.example"]), root),
            "3": (issue("x", root, names=["www.example"], days=-1), root),
            "5": (issue("x", root, names=["mx5.example"]), root),
        },
    )
    tls: dict[str, ssl.SSLContext] = {n: serving(folder, c) for n, c in shown.chains.items()}
    scripts: dict[str, Script] = dict.fromkeys("234", well_behaved)
    scripts["5"] = answers("STARTTLS", b"454 4.7.0 not now\r\n")
    zone: Zone = {
        **ROOT,
        **{(f"mx{n}.example", "A"): [f"127.0.0.{n}"] for n in "2345"},
        **{
            (domain, "MX"): [f"{10 * at} mx{n}.example." for at, n in enumerate(numbers, 1)]
            for domain, numbers in domains.items()
        },
    }
    async with names({}) as server:
        server.zone = zone
        resolver = Resolver([server.address], failed_ttl=0.1)
        dane = DanePolicies(lambda: resolver, results=results)
        settings: dict[str, Any] = {
            "policy": DaneFirst(dane, other),
            "resolver": lambda: resolver,
            "results": results,
        }
        async with world(pool, {}, scripts, tls=tls, **settings) as w:
            dane._port = next(iter(w.sinks.values())).port
            yield w, shown, zone


def publish(w: World, zone: Zone, number: str, records: list[str]) -> None:
    """Have the exchanger of a number have these records."""
    zone[f"_{w.sinks[number].port}._tcp.mx{number}.example", "TLSA"] = records


async def test_mail_goes_where_the_certificate_matches(pool, tmp_path):
    """Usage 3, whatever the name and the dates are; without TLS it waits, and says why."""
    domains = {"ee.example": "2", "old.example": "3", "next.example": "32", "clear.example": "4",
               "offers.example": "5"}  # fmt: skip
    before = count("relay_outbound_policy_unmet", mode="enforce", what="tls")
    async with delivering(pool, tmp_path, domains) as (w, shown, zone):
        publish(w, zone, "2", shown.record("2"))
        publish(w, zone, "3", shown.record("3"))
        publish(w, zone, "4", shown.record("2"))
        publish(w, zone, "5", shown.record("5"))
        for row in await w.send("a@ee.example", "a@old.example"):
            assert row[:2] == ("sent", 1)
        rows = await w.send("a@clear.example", "a@offers.example", status="queued")
        assert [row[3] for row in rows] == [
            "4.7.5 the peer offers no STARTTLS; DANE allows no mail to it",
            "454 4.7.0 not now; DANE allows no mail to it",
        ]
        assert all(sink.received == [] for n, sink in w.sinks.items() if n in "45")
        assert len(w.sinks["3"].received) == 1
        assert all(one.secured for n in "23" for one in w.sinks[n].sessions)
    assert count("relay_outbound_policy_unmet", mode="enforce", what="tls") == before + 2


async def test_mail_that_says_so_goes_whatever_tls_is_like(pool, tmp_path):
    """RFC 8689, 3: TLS-Required: No, in a header of ours or of its author, tells somebody that
    their TLS is broken; it goes by TLS where that is, is in no report, and other mail waits."""
    domains = {"key.example": "2", "clear.example": "4", "lost.example": "5"}
    no = {"TLS-Required": "No"}
    results = TlsResults()
    async with delivering(pool, tmp_path, domains, results=results) as (w, shown, zone):
        publish(w, zone, "2", shown.record("3"))
        publish(w, zone, "4", shown.record("2"))
        name = f"_{w.sinks['5'].port}._tcp.mx5.example"
        zone[name, "CNAME"] = [f"{name}."]  # SERVFAIL
        to = [Address(f"a@{domain}") for domain in domains]
        ours = Message(Address("me@x.example"), to, "Hi", text="Hi", headers=no)
        raw = Message(
            Address("me@x.example"), to, "", raw=b"Subject: Hi\r\n\r\n", tls_optional=True
        )
        for message in (ours, raw):
            queued = await enqueue(pool, [message])
            w.outbound.wake(*queued.due_lanes)
            for one in queued.messages:
                await w.outbound.becomes(one.id, "sent", 1)
        assert [bool(one.secured) for n in "24" for one in w.sinks[n].sessions] == [True, False]
        assert results.take() == {}
        await w.send(*(f"b@{domain}" for domain in domains), status="queued")


async def test_a_certificate_that_does_not_match_gets_no_mail(pool, tmp_path):
    """By its key, by its dates or by its name, where these count; it is said which."""
    domains = {"key.example": "2", "ta.example": "2", "old.example": "3", "next.example": "32"}
    async with delivering(pool, tmp_path, domains) as (w, shown, zone):
        publish(w, zone, "2", shown.record("3"))
        publish(w, zone, "3", shown.record("3", 2))
        rows = await w.send("a@key.example", "a@old.example", status="queued")
        no = "4.7.5 the peer's certificate is not accepted: "
        assert [row[3] for row in rows] == [
            f"{no}it matches no TLSA record; DANE allows no mail to it",
            f"{no}it has expired; DANE allows no mail to it",
        ]
        assert w.sinks["2"].received == w.sinks["3"].received == []


async def test_the_next_exchanger_is_tried(pool, tmp_path):
    """One whose certificate does not match, or whose records fail, costs no attempt."""
    async with delivering(pool, tmp_path, {"next.example": "32"}) as (w, shown, zone):
        publish(w, zone, "2", shown.record("2", 2))
        publish(w, zone, "3", shown.record("2"))
        (row,) = await w.send("a@next.example")
        assert row[:2] == ("sent", 1)
        assert len(w.sinks["2"].received) == 1
        assert w.sinks["3"].received == []


async def test_bad_certificates_stop_nothing_without_records(pool, tmp_path):
    """Hyvor's issue 488: opportunistic mail goes on, in clear where there is no TLS."""
    domains = {f"d{n}.example": n for n in "2345"}
    async with delivering(pool, tmp_path, domains) as (w, _, _):
        for row in await w.send(*(f"a@{domain}" for domain in domains)):
            assert row[:2] == ("sent", 1)
        assert all(len(sink.received) == 1 for sink in w.sinks.values())


async def test_dane_goes_before_mta_sts(pool, tmp_path):
    """RFC 8461, 2: where both speak DANE decides, for it and against it; else MTA-STS does."""
    refuses = TlsPolicy(Security.REFUSED, why="MTA-STS")
    encrypted = TlsPolicy(Security.ENCRYPTED, why="MTA-STS")
    says = {"both.example": refuses, "against.example": encrypted, "one.example": refuses}
    domains = {"both.example": "2", "against.example": "3", "one.example": "4"}
    async with delivering(pool, tmp_path, domains, Says(says)) as (w, shown, zone):
        publish(w, zone, "2", shown.record("2"))
        publish(w, zone, "3", shown.record("2"))
        await w.send("a@both.example")
        rows = await w.send("a@against.example", "a@one.example", status="queued")
        assert "it matches no TLSA record; DANE" in rows[0][3]
        assert rows[1][3] == "4.7.5 MTA-STS allows none of the domain's exchangers"


async def test_a_report_of_tls_goes_whatever_tls_is_like(pool, tmp_path):
    """RFC 8460, 3: the mail that tells of it waits for no policy, and makes no other report.

    All other mail does, that from its address, too.
    """
    domains = {"bad.example": "3", "none.example": "4"}
    refuses = Says({"none.example": TlsPolicy(Security.REFUSED, why="MTA-STS")})
    reports_from = "tls-reports@relay.example"
    results = TlsResults()
    async with delivering(pool, tmp_path, domains, refuses, results=results) as world:
        w, shown, zone = world
        publish(w, zone, "3", shown.record("2"))
        addresses = [f"a@{domain}" for domain in domains]
        await w.send(*addresses, status="queued")
        others = await put(pool, *addresses, sender=reports_from)
        w.outbound.wake()
        for other in others:
            await w.outbound.becomes(other.id, "queued", 1)
        counted = results.take()
        reports = await put(pool, *addresses, sender=reports_from, owner=REPORTS_ID)
        w.outbound.wake()
        for report in reports:
            await w.outbound.becomes(report.id, "sent", 1)
        senders = [one.sender for n in "34" for one in w.sinks[n].received]
        assert senders == [reports_from] * 2
        assert counted
        assert results.take() == {}


async def test_records_that_fail_hold_up_nobody_else(pool, tmp_path):
    """Mail of a domain whose TLSA fails waits, and says why; that of others goes meanwhile."""
    domains = {"bad.example": "3", "good.example": "2"}
    async with delivering(pool, tmp_path, domains) as (w, shown, zone):
        publish(w, zone, "2", shown.record("2"))
        zone["servfail.example", "TLSA"] = []
        zone[f"_{w.sinks['3'].port}._tcp.mx3.example", "CNAME"] = ["loop.example."]
        zone["loop.example", "CNAME"] = ["loop.example."]
        (row,) = await w.send("a@bad.example", status="queued")
        assert row[3].startswith("4.7.5 the TLSA records of mx3.example are not known: ")
        await w.send("a@good.example")
