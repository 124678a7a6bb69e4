"""What is held back: each destination once, with the reason that its mail waits for."""

from __future__ import annotations

import random
from typing import Any

from relay.outbound.mx.sites import SiteKey
from relay.outbound.pacing.gates import ANY_ROUTE, GateKey, Gates
from relay.outbound.pacing.held_back import Why
from relay.outbound.shaping.destinations import by_domain, destinations
from relay.outbound.shaping.rules import Rules, parse
from relay.outbound.shaping.traffic import SLOWED, Learned, Receiver, Traffic

RULES = "[provider.big]\ndomains = ['x.test', 'y.test']\nconnections = 2\nrate = '60/m'\n"
BIG = Receiver("big")


def site(name: str = "mx.x.test", provider: str = "big") -> SiteKey:
    """The line of a site."""
    return SiteKey("mx", f"mx:{name}", ((10, name),), (), provider)


class Node:
    """Gates and receivers of one node."""

    def __init__(self, text: str = RULES) -> None:
        rules = parse(text, "rules") if text else Rules()
        self.traffic = Traffic(lambda: rules)
        self.gates = Gates(32, 60.0, random.Random(1))

    def claims(self, name: str = "mx.x.test", domain: str = "x.test", owner: int = 1) -> Any:
        """The gate of what is claimed of a site, which somebody's mail has met."""
        gate = self.gates.make(GateKey.for_claims(site(name)))
        gate.busy = 1
        self.gates.before(hash((domain, owner)), gate, owner, domain)
        return gate

    def waits(self, what: Receiver | str, domain: str = "x.test", owner: int = 1) -> None:
        """Mail has waited for a limit until the third second."""
        for now in (1.0, 2.0, 3.0):
            self.traffic.reached(what, owner, domain, now)

    def told(self, now: float = 3.5, owner: int | None = None, domain: str | None = None) -> Any:
        found = destinations(self.gates, self.traffic, now, owner, domain)
        return [(one.route, sorted(one.names), one.window, one.why, one.reason) for one in found]


def test_a_limit_that_is_reached_is_the_reason_and_how_slow_is_said_with_it():
    """The operator's own connections, which a slow peer keeps, and no rate that has more to give;
    to an owner whose mail waits likewise."""
    node = Node()
    gate = node.claims()
    gate.bound(9, 0.0, Why.SLOW)
    gate.at_once = 8
    gate.takes_long("6 s at the dot")
    assert node.told() == [("mx:mx.x.test", ["x.test"], 2, Why.SLOW, "6 s at the dot")]
    node.traffic.rate_key("x.test")
    node.waits("site:big")
    limited = ("mx:mx.x.test", ["x.test"], 2, Why.LIMITED)
    assert node.told() == [(*limited, "at most 60/min; 6 s at the dot")]
    node.waits(BIG)
    node.gates.before(7, gate, 2, "x.test")
    node.waits(BIG, owner=2)
    both = [(*limited, "2 connections at most; 6 s at the dot")]
    assert node.told() == node.told(owner=2) == node.told(domain="x.test") == both
    assert node.told(now=30.0) == [("mx:mx.x.test", ["x.test"], 2, Why.SLOW, "6 s at the dot")]


def test_who_does_not_answer_is_told_of_before_any_limit():
    """However few connections it is given, all of which hang."""
    node = Node()
    gate = node.claims()
    gate.bound(4, 0.0, Why.SILENT)
    gate.awaits(Why.HANGING, "dot: no answer for 9 s", 0.0)
    node.waits(BIG)
    (one,) = node.told(now=4.0)
    assert one[2:] == (2, Why.LIMITED, "2 connections at most; dot: no answer for 9 s")
    for now in (5.0, 7.0, 9.0, 11.0):
        node.traffic.reached(BIG, 1, "x.test", now)
    (one,) = node.told(now=11.5)
    assert one[2:] == (2, Why.HANGING, "dot: no answer for 9 s")


def test_a_receiver_that_is_shut_slowed_and_narrow_is_one_line():
    """For what holds it back most: until then nothing, later what its rule leaves; each of its
    domains once, wherever their mail goes."""
    node = Node()
    slowed = Learned(BIG, SLOWED, 7200.0, 0.5, "x.test", "451 slower", held_since=0.0)
    node.traffic.take_over([slowed], 1.0)
    gate = node.gates.make(GateKey(site(), "x.test"))
    gate.bad(1.0, plain=True, met="mail: 451")
    node.gates.before(1, gate, 1, "x.test")
    node.gates.before(2, node.claims("mx.y.test"), 1, "y.test")
    node.traffic.awaits(BIG, 1, "y.test")
    shut, rest = node.told(now=2.0)
    assert shut[1:4] == (["x.test"], 1, Why.DEFERRING)
    assert rest == ("big", ["y.test"], 1, Why.SLOWED, "slowed to 50%: 451 slower")
    (one,) = destinations(node.gates, node.traffic, 2.0, domain="y.test")
    assert (one.ends_in, one.opens_in) == (7198.0, 0.0)
    node.gates.make(BIG.gate_key).suspend(7201.0, "421 later", 1.0, "big:3", "x.test")
    found = destinations(node.gates, node.traffic, 2.0)
    assert [(one.why, one.opens_in > 7000) for one in found] == [
        (Why.SUSPENDED, True), (Why.SLOWED, False),
    ]  # fmt: skip
    assert {name: one.why for name, one in by_domain(found).items()} == {
        "x.test": Why.SUSPENDED, "y.test": Why.SLOWED,
    }  # fmt: skip


def test_what_is_one_owners_and_what_is_a_routes_have_lines_of_their_own():
    """Beside that of a destination; of one owner alone, each of his destinations is one."""
    node = Node("")
    domain, route = node.gates.make(GateKey(None, "x.test")), node.gates.make(GateKey(None))
    whose = node.gates.make(GateKey(ANY_ROUTE, owner=1))
    for number, gate in enumerate((domain, route)):
        gate.bad(0.0, plain=True)
        node.gates.before(number, gate, 1, "x.test")
    route.reopen()
    whose.narrow(1, 0.0, Why.NO_ROOM)
    node.gates.before(5, whose, 1, "x.test")
    assert len(node.told(now=1.0)) == 3
    mine = destinations(node.gates, node.traffic, 1.0, 1)
    assert [one.domain for one in mine if one.names] == ["x.test"]


def test_a_limit_is_told_of_while_mail_waits_for_it_and_to_whom():
    """Not where it was gone through within a second; of a rate that stands in the settings it is
    said where."""
    node = Node()
    node.traffic.reached(BIG, 1, "x.test", 1.0)
    assert node.told(now=1.5) == []
    node.waits(BIG)
    node.waits("domain:z.test", "z.test", 2)
    where = "RELAY_OUTBOUND__DOMAIN_RATE/relay.outbound_rates"
    big = ("big", ["x.test"], 2, Why.LIMITED, "2 connections at most")
    rate = (ANY_ROUTE, ["z.test"], None, Why.LIMITED, where)
    assert node.told() == [big, rate]
    assert node.told(owner=2) == [rate]
    assert node.told(owner=3) == node.told(domain="w.test") == node.told(now=20.0) == []
