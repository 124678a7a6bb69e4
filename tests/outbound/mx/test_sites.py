"""Look-ups of sites, against a DNS of the tests: what each takes of the turns of all."""

from __future__ import annotations

from collections import Counter

import trio

from relay.dns.resolver import Resolver
from relay.dns.turns import AT_ONCE as DNS_AT_ONCE
from relay.dns.turns import MOST_LATE
from relay.outbound.mx.exchangers import MOST_EXCHANGERS
from relay.outbound.mx.sites import ADDRESSES, AT_ONCE, LOOK_UP, Site, Sites
from tests.dns.server import DnsServer
from tests.eventually import eventually

GOOD = {("good.example", "MX"): ["10 mx.good.example."], ("mx.good.example", "A"): ["127.0.0.2"]}


def silent(domain: str) -> dict[tuple[str, str], list[str]]:
    """A domain of as many exchangers as are looked at, whose addresses the DNS does not say."""
    named = [f"{10 * n} silent.m{n}.{domain}." for n in range(1, MOST_EXCHANGERS + 1)]
    return {(domain, "MX"): named}


def sites(resolver: Resolver) -> Sites:
    return Sites(lambda: resolver, own=("relay.example",), private=True)


async def test_domains_of_silent_exchangers_take_few_turns_each(autojump_clock, nursery):
    """Forty of sixteen exchangers: another's domain is found before the first of their questions
    is given up, for each has asked about its best two and no more."""
    zone = dict(GOOD)
    hostile = [f"s{number}.example" for number in range(40)]
    for domain in hostile:
        zone |= silent(domain)
    server = await nursery.start(DnsServer(zone).run)
    resolver = Resolver([server.address])
    all_of = sites(resolver)
    for domain in hostile:
        nursery.start_soon(all_of.look_up, domain)
    asking = len(hostile) * AT_ONCE
    await eventually(lambda: resolver.statistics().in_flight == asking, "all ask for addresses")
    assert isinstance(await all_of.look_up("good.example"), Site)
    assert resolver.statistics().in_flight == asking, "none was given up, and none added"
    asked = Counter(name for name, kind in server.asked if kind != "MX" and "silent" in name)
    assert asked == {f"silent.m{n}.{domain}": 2 for domain in hostile for n in (1, 2)}
    nursery.cancel_scope.cancel()


async def test_more_questions_than_may_be_asked_keep_nobody_from_asking(autojump_clock, nursery):
    """A hundred and twenty such domains have more questions than turns; another's domain is found
    before the first of these is given up."""
    zone = dict(GOOD)
    hostile = [f"s{number}.example" for number in range(120)]
    assert len(hostile) * AT_ONCE > DNS_AT_ONCE + MOST_LATE > len(hostile)
    for domain in hostile:
        zone |= silent(domain)
    server = await nursery.start(DnsServer(zone).run)
    resolver = Resolver([server.address], server_timeout=60.0, ask_timeout=60.0)
    all_of = sites(resolver)
    for domain in hostile:
        nursery.start_soon(all_of.look_up, domain)
    asking = len(hostile) * AT_ONCE
    await eventually(lambda: resolver.statistics().in_flight == asking, "all ask for addresses")
    assert isinstance(await all_of.look_up("good.example"), Site)
    assert resolver.statistics().in_flight == asking, "none was given up, and none added"
    nursery.cancel_scope.cancel()


async def test_what_is_known_in_time_is_used(autojump_clock, nursery):
    """Exchangers that the DNS is silent about, more than there is time for, keep nobody from the
    one whose address it says; that they are missing is known."""
    zone = silent("mixed.example")
    zone["mixed.example", "MX"].append("1 mx.good.example.")
    server = await nursery.start(DnsServer({**GOOD, **zone}).run)
    resolver = Resolver([server.address], server_timeout=8.0)
    began = trio.current_time()
    found = await sites(resolver).look_up("mixed.example")
    assert isinstance(found, Site)
    assert [one.name for one in found.exchangers] == ["mx.good.example"]
    assert found.missing.startswith("silent.m1.mixed.example has no AAAA for now")
    assert trio.current_time() - began == ADDRESSES < LOOK_UP
    nursery.cancel_scope.cancel()
