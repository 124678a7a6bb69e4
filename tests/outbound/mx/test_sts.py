"""MTA-STS, whole: a DNS, a server of policies over TLS, an authority, and servers of mail."""

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

from relay.checks.sts import MAX_POLICY, Mode, StsPolicy
from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.metrics import registry
from relay.outbound.mx import policy as seam
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import PolicyUnavailable, TlsPolicy
from relay.outbound.mx.sts import RETRY, UNASKED, StsPolicies, web_pki
from relay.outbound.mx.sts_store import StsStore
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from tests.certificates import Authority
from tests.dns.server import DnsServer
from tests.outbound.mx.policies import Here, PolicyServer, policy
from tests.outbound.mx.test_direct import answers, world
from tests.outbound.sink import Script, well_behaved

D = "shop.example"
MX = (Exchanger("mx2.example", 0, ("127.0.0.2",)),)
GOOD = policy("enforce", "mx2.example")
ENFORCED = StsPolicy(Mode.ENFORCE, ("mx2.example",), 86_400)


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whom everybody here trusts."""
    return Authority()


@dataclass
class Published:
    """What a domain publishes, and who looks at it."""

    pool: Pool
    zone: dict[tuple[str, str], list[str]]
    names: DnsServer
    server: PolicyServer
    authority: Authority

    def announce(self, policy_id: str | None, domain: str = D) -> None:
        """Publish the id of a policy, or none."""
        self.zone.pop(("_mta-sts." + domain, "TXT"), None)
        if policy_id is not None:
            self.zone["_mta-sts." + domain, "TXT"] = [f'"v=STSv1; id={policy_id};"']

    def node(
        self, *, private: bool = True, trusts: bool = True, results: TlsResults | None = None
    ) -> StsPolicies:
        """What one relay has in memory of policies."""
        resolver = Resolver([self.names.address], server_timeout=0.5)
        context = web_pki()
        if trusts:
            self.authority.trusting(context)
        poster = Here(
            allow_private=private,
            timeout=5.0,
            context=lambda: context,
            resolve=resolver.getaddrinfo,
        )
        poster.port = self.server.port
        store = StsStore(self.pool)
        return StsPolicies(store, lambda: resolver, poster.get, lambda: context, b"key", results)


@asynccontextmanager
async def published(
    pool: Pool,
    authority: Authority,
    folder: Path,
    policies: Mapping[str, bytes],
    zone: Mapping[tuple[str, str], Sequence[str]] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> AsyncIterator[Published]:
    """Domains with these policies, at servers whose certificate has their names, or `names`."""
    hosts = [f"mta-sts.{domain}" for domain in policies]
    records: dict[tuple[str, str], list[str]] = {
        **{(host, "A"): ["127.0.0.1"] for host in hosts},
        **{(f"_mta-sts.{domain}", "TXT"): ['"v=STSv1; id=1"'] for domain in policies},
        **{key: list(records) for key, records in (zone or {}).items()},
    }
    async with trio.open_nursery() as nursery:
        tls = authority.server(folder, hosts if names is None else names, subject=hosts[0])
        server = PolicyServer(tls, policies)
        await nursery.start(server.run)
        dns = await nursery.start(DnsServer(records, ttl=0, negative=0).run)
        yield Published(pool, records, dns, server, authority)
        nursery.cancel_scope.cancel()


def count(name: str, **labels: str) -> float:
    """What a counter has counted."""
    return registry.get_sample_value(f"{name}_total", labels) or 0.0


# What is kept -------------------------------------------------------------------------------------


async def test_a_policy_is_fetched_once_and_kept(pool, authority, tmp_path, virtual: MockClock):
    """For as long as its id is published; by all nodes, and over a restart."""
    async with published(pool, authority, tmp_path, {D: GOOD}) as there:
        node = there.node()
        assert await node.find(D) == ENFORCED
        assert await node.find(D) == ENFORCED
        assert await there.node().find(D) == ENFORCED
        assert there.server.asked == {D: 1}
        # Half of its age is gone, by both clocks: it shall not expire while there is one.
        virtual.jump(43_300)
        await pool.execute(
            "UPDATE relay.mta_sts_policies SET fetched_at = fetched_at - interval '43300 s'"
        )
        assert await node.find(D) == ENFORCED
        assert there.server.asked == {D: 2}


async def test_another_id_is_another_policy(pool, authority, tmp_path):
    """It is fetched at once, and replaces the one that holds; other nodes need not fetch it."""
    async with published(pool, authority, tmp_path, {D: GOOD}) as there:
        one, other = there.node(), there.node()
        assert await one.find(D) == await other.find(D) == ENFORCED
        there.server.answers[D] = policy("none", max_age=60)
        assert await one.find(D) == ENFORCED
        there.announce("2")
        assert await one.find(D) == await other.find(D) == StsPolicy(Mode.NONE, (), 60)
        assert there.server.asked == {D: 2}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: https://mta-sts.other.example/\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 999\r\n\r\nversion: S",
        policy("none") + b"more: " + b"x" * MAX_POLICY,
        b"version: STSv1\nmode: none\n",
        b"HTTP/1.1 nonsense\r\n\r\n",
    ],
    ids=["redirect", "500", "HTML", "cut short", "too large", "no policy", "no HTTP"],
)
async def test_a_fetch_that_fails_changes_nothing(
    pool, authority, tmp_path, virtual: MockClock, answer: bytes
):
    """What holds goes on to hold; where nothing does there is no policy; both are tried later."""
    failed = count("relay_outbound_sts_fetches", outcome="failed")
    both = {D: GOOD, "new.example": answer}
    async with published(pool, authority, tmp_path, both) as there:
        node = there.node()
        assert await node.find(D) == ENFORCED
        there.announce("2")
        there.server.answers[D] = answer
        for _ in range(3):
            assert await node.find(D) == ENFORCED
            assert await node.find("new.example") is None
        assert there.server.asked == {D: 2, "new.example": 1}
        assert count("relay_outbound_sts_fetches", outcome="failed") == failed + 2
        virtual.jump(RETRY)
        there.server.answers["new.example"] = GOOD
        assert await node.find(D) == await node.find("new.example") == ENFORCED
        assert there.server.asked == {D: 3, "new.example": 2}


@pytest.mark.parametrize(
    ("names", "trusts"),
    [(["www.shop.example"], True), ([], True), (None, False)],
    ids=["another name", "the subject alone", "an unknown authority"],
)
async def test_a_policy_whose_server_is_not_the_one_is_none(
    pool, authority, tmp_path, names, trusts
):
    """Its certificate is verified, and must have the name as a dNSName (3.3)."""
    async with published(pool, authority, tmp_path, {D: GOOD}, names=names) as there:
        assert await there.node(trusts=trusts).find(D) is None
        assert there.server.connections == 1
        assert there.server.asked == {}


@pytest.mark.parametrize(
    ("answer", "trusts", "fault"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", True, "sts-policy-fetch-error"),
        (b"version: STSv1\nmode: none\n", True, "sts-policy-invalid"),
        (GOOD, False, "sts-webpki-invalid"),
    ],
    ids=["404", "no policy", "an unknown authority"],
)
async def test_a_fetch_that_fails_is_counted_for_reports(
    pool, authority, tmp_path, answer: bytes, trusts: bool, fault: str
):
    """By what was wrong (RFC 8460, 4.3.2.2)."""
    results = TlsResults()
    async with published(pool, authority, tmp_path, {D: answer}) as there:
        node = there.node(trusts=trusts, results=results)
        for _ in range(2):  # the second time nothing is fetched
            policies = await node.policy_for(D, [Exchanger("mx2.example", 0)])
            assert policies["mx2.example"].unknown == "its policy of MTA-STS cannot be fetched"
            assert policies["mx2.example"] == TlsPolicy()
    assert results.take() == {TlsResult(D, seam.Published("sts"), fault): 1}


@pytest.mark.parametrize(
    "answer",
    [
        policy("enforce", "ada.lovelace@customer.example"),
        policy("ada.lovelace@customer.example", "mx2.example"),
        b"HTTP/1.1 200 OK\r\nContent-Type: ada.lovelace@customer.example\r\n\r\n",
    ],
    ids=["mx", "mode", "type"],
)
async def test_what_a_stranger_writes_is_redacted_in_the_log(
    pool, authority, tmp_path, answer: bytes
):
    """Why a policy was not taken quotes it."""
    async with published(pool, authority, tmp_path, {D: answer}) as there:
        with structlog.testing.capture_logs() as lines:
            assert await there.node().find(D) is None
    (reason,) = (one["reason"] for one in lines if one["event"] == "outbound.sts_not_fetched")
    assert "<redacted:" in reason
    assert "customer.example" not in str(lines)


async def test_a_policy_is_not_fetched_from_this_network_unless_told(pool, authority, tmp_path):
    """Not one connection is made to a server whose address is not public."""
    async with published(pool, authority, tmp_path, {D: GOOD}) as there:
        assert await there.node(private=False).find(D) is None
        assert there.server.connections == 0
        assert await there.node().find(D) == ENFORCED


@pytest.mark.parametrize(
    ("domain", "record"),
    [
        (D, []),
        (D, ['"v=STSv1; id=1"', '"v=STSv1; id=2"']),
        (D, ['"v=STSv1; id=?"']),
        ("servfail.example", ['"v=STSv1; id=1"']),
        ("silent.example", ['"v=STSv1; id=1"']),
    ],
    ids=["gone", "two", "no id", "SERVFAIL", "silence"],
)
async def test_a_record_that_vanishes_ends_no_policy(
    pool, authority, tmp_path, virtual: MockClock, domain: str, record: list[str]
):
    """5.1: what was fetched holds until it expires, on a node that never saw the record, too."""
    await StsStore(pool).keep(domain, "1", StsPolicy(Mode.ENFORCE, ("mx2.example",), 600))
    async with published(pool, authority, tmp_path, {domain: GOOD}) as there:
        there.zone[f"_mta-sts.{domain}", "TXT"] = record
        if domain.startswith("silent."):
            there.names.gate = trio.Event()
        node = there.node()
        assert await node.find(domain) is not None
        assert there.names.asked[f"_mta-sts.{domain}", "TXT"] > 0
        await pool.execute("UPDATE relay.mta_sts_policies SET expires_at = now()")
        virtual.jump(700)
        # Whether there is one by now is known where the DNS says so, and only there.
        fails = domain.startswith(("servfail.", "silent."))
        if fails:
            virtual.jump(UNASKED)
        assert await node.find(domain) is None
        assert there.server.asked == {}
        policies = await node.policy_for(domain, [Exchanger("mx2.example", 0)])
        assert bool(policies and policies["mx2.example"].unknown) is fails


async def test_mail_waits_an_hour_for_a_record_that_cannot_be_asked_for(
    pool, authority, tmp_path, virtual: MockClock
):
    """What comes then may be `enforce`; a server that knows no such names stops nothing for ever.
    The hour begins anew once the record could be asked for."""
    async with published(pool, authority, tmp_path, {D: GOOD, "servfail.example": GOOD}) as there:
        node = there.node()
        for wait in (0.0, 1800.0, 1700.0):
            virtual.jump(wait)
            with pytest.raises(PolicyUnavailable, match="cannot be asked for"):
                await node.find("servfail.example")
        virtual.jump(200)
        assert await node.find("servfail.example") is None

        there.names.gate = trio.Event()
        for _ in range(2):
            with pytest.raises(PolicyUnavailable, match="no answer"):
                await node.find(D)
            virtual.jump(UNASKED - 100)
        there.names.gate.set()
        assert await node.find(D) == ENFORCED


async def test_who_asks_at_once_has_one_fetch(pool, authority, tmp_path):
    """Single flight; one who gives up takes nothing from the others."""
    async with published(pool, authority, tmp_path, {D: GOOD}) as there:
        there.server.gate = trio.Event()
        node = there.node()
        found: list[StsPolicy | None] = []

        async def find() -> None:
            found.append(await node.find(D))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(find)
            while not there.server.asked:
                await trio.sleep(0.01)
            there.server.gate.set()
        assert found == [ENFORCED] * 10
        assert there.server.asked == {D: 1}


async def test_a_fetch_that_nobody_awaited_is_not_awaited_again(pool, authority, tmp_path):
    """A server that says nothing holds its domain up once, not each time; and no other's."""
    async with published(pool, authority, tmp_path, {D: GOOD, "new.example": GOOD}) as there:
        node = there.node()
        there.server.gate = trio.Event()
        with trio.move_on_after(0.5) as waited:
            await node.find(D)
        assert waited.cancelled_caught
        there.server.gate.set()
        assert await node.find("new.example") == ENFORCED
        assert await node.find(D) is None
        assert there.server.asked == {D: 1, "new.example": 1}


async def test_without_the_database_nobody_knows(authority, tmp_path):
    """What may hold cannot be read: the mail is deferred, rather than go without it."""
    away = Pool("postgresql://nobody@127.0.0.1:1/none", acquire_timeout=0.2)
    try:
        async with published(away, authority, tmp_path, {D: GOOD}) as there:
            with pytest.raises(PolicyUnavailable):
                await there.node().policy_for(D, MX)
    finally:
        await away.close()


# What follows -------------------------------------------------------------------------------------


@asynccontextmanager
async def delivering(
    pool: Pool,
    authority: Authority,
    folder: Path,
    domains: Mapping[str, tuple[bytes | None, str]],
) -> AsyncIterator[Any]:
    """A world in which domains have a policy, and numbers of sinks as exchangers.

    Sink 2 is as it should be, 3 has another's name, 4 no TLS, 5 an old certificate, 6 refuses
    STARTTLS, 7 is signed by nobody that is known.
    """
    scripts: dict[str, Script] = dict.fromkeys("23457", well_behaved)
    tls: dict[str, ssl.SSLContext] = {
        "2": authority.server(folder, ["mx2.example"]),
        "3": authority.server(folder, ["www.example"], subject="mx3.example"),
        "5": authority.server(folder, ["mx5.example"], days=-1.0),
        "6": authority.server(folder, ["mx6.example"]),
        "7": Authority().server(folder, ["mx7.example"]),
    }
    scripts["6"] = answers("STARTTLS", b"454 4.7.0 not now\r\n")
    zone = {
        **{(f"mx{n}.example", "A"): [f"127.0.0.{n}"] for n in "234567"},
        **{
            (domain, "MX"): [f"{10 * at} mx{n}.example." for at, n in enumerate(numbers, 1)]
            for domain, (_, numbers) in domains.items()
        },
    }
    policies = {domain: body for domain, (body, _) in domains.items() if body is not None}
    async with published(pool, authority, folder, policies) as there:
        there.names.zone = {}
        whole = {**there.zone, **zone}
        there.names.zone = whole
        async with world(pool, whole, scripts, tls=tls, policy=there.node()) as w:
            yield w


def all_of(*numbers: str, mode: str = "enforce") -> bytes:
    """A policy that names these sinks."""
    return policy(mode, *(f"mx{n}.example" for n in numbers))


async def test_enforce_is_enforced(pool, authority, tmp_path):
    """Mail goes by verified TLS to a host that is named, or waits, and it says why."""
    domains = {
        "good.example": (all_of("2"), "2"),
        "star.example": (policy("enforce", "*.example"), "2"),
        "next.example": (all_of("2", "3"), "32"),
        "some.example": (all_of("2"), "32"),
        "stranger.example": (policy("enforce", "mx.elsewhere.example"), "2"),
        "deep.example": (policy("enforce", "*.mx2.example"), "2"),
        "name.example": (all_of("3"), "3"),
        "clear.example": (all_of("4"), "4"),
        "old.example": (all_of("5"), "5"),
        "offers.example": (all_of("6"), "6"),
        "unknown.example": (all_of("7"), "7"),
    }
    counted = {what: ("relay_outbound_policy_unmet", what) for what in ("host", "tls")}
    before = {what: count(name, mode="enforce", what=w) for what, (name, w) in counted.items()}
    async with delivering(pool, authority, tmp_path, domains) as w:
        sent = ["good", "star", "next", "some"]
        for row in await w.send(*(f"a@{name}.example" for name in sent)):
            assert row[:2] == ("sent", 1)
        assert len(w.sinks["2"].received) == len(sent)
        assert all(session.secured for session in w.sinks["2"].sessions)
        no_cert = "4.7.5 the peer's certificate is not accepted: "
        told = {
            "stranger.example": "4.7.5 MTA-STS allows none of the domain's exchangers",
            "deep.example": "4.7.5 MTA-STS allows none of the domain's exchangers",
            "name.example": no_cert + "Hostname mismatch, certificate is not valid for "
            "'mx3.example'.; MTA-STS allows no mail to it",
            "clear.example": "4.7.5 the peer offers no STARTTLS; MTA-STS allows no mail to it",
            "old.example": no_cert + "certificate has expired; MTA-STS allows no mail to it",
            "offers.example": "454 4.7.0 not now; MTA-STS allows no mail to it",
            "unknown.example": no_cert
            + "unable to get local issuer certificate; MTA-STS allows no mail to it",
        }
        rows = await w.send(*(f"a@{domain}" for domain in told), status="queued")
        assert dict(zip(told, (row[3] for row in rows), strict=True)) == told
        assert not any(sink.received for number, sink in w.sinks.items() if number != "2")
        for session in w.sinks["4"].sessions:
            assert "MAIL" not in session.said
    for what, was in before.items():
        assert count("relay_outbound_policy_unmet", mode="enforce", what=what) > was


async def test_testing_and_none_hold_up_nothing(pool, authority, tmp_path):
    """All is delivered as ever; under testing, what would not be is counted."""
    numbers = "234567"
    domains = {
        **{f"t{n}.example": (all_of(n, mode="testing"), n) for n in numbers},
        **{f"n{n}.example": (all_of("9", mode="none"), n) for n in numbers},
        "t9.example": (all_of("9", mode="testing"), "2"),
    }
    names = {what: count("relay_outbound_policy_unmet", mode="testing", what=what)
             for what in ("host", "tls")}  # fmt: skip
    async with delivering(pool, authority, tmp_path, domains) as w:
        for row in await w.send(*(f"a@{domain}" for domain in domains)):
            assert row[:2] == ("sent", 1)
        for number in numbers:
            # The first of each number at least is under TLS, wherever there is any.
            assert any(one.secured for one in w.sinks[number].sessions) == (number not in "46")
    unmet = {what: count("relay_outbound_policy_unmet", mode="testing", what=what) - was
             for what, was in names.items()}  # fmt: skip
    assert unmet == {"host": 1, "tls": 5}


async def test_one_domains_policy_stops_no_others_mail(pool, authority, tmp_path):
    """KumoMTA's issue 484: a stranger at the same exchanger enforces what that does not meet."""
    domains: dict[str, tuple[bytes | None, str]] = {
        "free.example": (None, "3"),
        "stranger.example": (all_of("3"), "3"),
        "other.example": (policy("enforce", "mx.elsewhere.example"), "3"),
        "plain.example": (None, "2"),
        "secure.example": (all_of("2"), "2"),
        "secured.example": (policy("enforce", "*.example"), "2"),
    }
    async with delivering(pool, authority, tmp_path, domains) as w:
        await w.send("a@free.example")
        await w.send("a@stranger.example", "a@other.example", status="queued")
        await w.send("b@free.example")
        # Over the connection that it had: nothing was paused, and nothing narrowed.
        assert w.sinks["3"].recipients == ["a@free.example", "b@free.example"]
        assert len([one for one in w.sinks["3"].sessions if "MAIL" in one.said]) == 1
        # A connection that nobody verified is none for who asks for it; equal demands share one.
        await w.send("a@plain.example")
        await w.send("a@secure.example")
        await w.send("a@secured.example")
        used = [session.said.count("MAIL") for session in w.sinks["2"].sessions]
        assert used == [1, 2]
