"""Receivers: who is one, what it is given, and what it has asked for until when."""

from __future__ import annotations

from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import Security, TlsPolicy
from relay.outbound.mx.sites import Site, site_of
from relay.outbound.pacing.rate import Rate
from relay.outbound.shaping.rules import LEAST_FACTOR, STEP, Asks, Limits, Rules, parse
from relay.outbound.shaping.traffic import (
    MOST_CONCERNED,
    MOST_SEEN,
    SLOWED,
    SUSPENDED,
    Learned,
    Receiver,
    Traffic,
    receiver_of,
)
from relay.smtp.client import Outcome, Phase, Verdict

RULES = """
[provider.big]
mx = ["big.example"]
domains = ["big.example"]
connections = 8
rate = "10/s"
[[provider.big.replies]]
code = 421
slow = "1h"
to = 0.25
[[provider.big.replies]]
code = 451
suspend = "30m"
[[provider.big.replies]]
code = 550
suppress = true
[[default.replies]]
code = 450
after = 2
suspend = "10m"
"""
BIG = Receiver("big")


def traffic() -> Traffic:
    """One by the rules above."""
    rules = parse(RULES, "rules.toml")
    return Traffic(lambda: rules)


def site(*hosts: str, policies: dict[str, TlsPolicy] | None = None) -> Site:
    """The site of these exchangers, each of a preference of its own."""
    found = site_of(
        tuple(Exchanger(host, rank, ("192.0.2.1",)) for rank, host in enumerate(hosts)),
        policies or {},
    )
    assert isinstance(found, Site)
    return found


def reply(code: int) -> Outcome:
    """What came back at RCPT."""
    verdict = Verdict.DEFERRED if code < 500 else Verdict.BOUNCED
    return Outcome(verdict, Phase.RCPT, code, None, "no", False, True)


def learn(one: Traffic, receiver: Receiver, code: int, now: float) -> Learned | Asks | None:
    """What a reply of this code teaches."""
    return one.learn(receiver, "y.example", reply(code), now, lambda: f"{code} no")


def test_a_provider_is_one_whatever_its_sites_and_others_are_their_exchangers():
    """And each by source; a stranger who lists somebody's server is another."""
    one = traffic()
    first, second = site("mx1.big.example"), site("mx2.big.example", "mx3.big.example")
    assert receiver_of(one.line_key("a.example", first)) == BIG
    assert receiver_of(one.line_key("b.example", second)) == BIG
    assert receiver_of(one.line_key("b.example", second, "bulk")) == Receiver("big", "bulk")
    assert one.line_key("a.example", first) != one.line_key("a.example", second)
    alone = site("mx.shop.example")
    assert one.line_key("a.example", alone) is alone.key
    assert receiver_of(alone.key) == Receiver("mx:mx.shop.example")
    # The same servers, spoken to by another policy.
    secured = site("mx.shop.example", policies={"mx.shop.example": TlsPolicy(Security.ENCRYPTED)})
    assert secured.key != alone.key
    assert receiver_of(secured.key) == receiver_of(alone.key)
    shop, evil = (
        site("mx.shop.example", "b.shop.example"),
        site("mx.shop.example", "mx.evil.example"),
    )
    assert shop.key.name == evil.key.name
    assert receiver_of(shop.key) != receiver_of(evil.key)
    assert receiver_of(shop.key) != receiver_of(alone.key)
    found = receiver_of(shop.key._replace(source="bulk"))
    assert found is not None
    assert found.shown == "mx:mx.shop.example and 1 more via bulk"
    assert receiver_of(None) is None
    assert receiver_of(("id", "smtps://up.example:465", None, None)) is None


def test_slowing_down_leaves_a_part_for_a_time():
    """Replies of one minute are one; later ones slow down again, to a bound."""
    one = traffic()
    assert one.limits(BIG, 0.0) == Limits(8, None, Rate(10.0, 10.0))
    learned = learn(one, BIG, 421, 0.0)
    assert isinstance(learned, Learned)
    assert (learned.kind, learned.until, learned.factor, learned.reason) == (
        SLOWED, 3600.0, 0.25, "421 no",
    )  # fmt: skip
    assert one.limits(BIG, 1.0) == Limits(2, None, Rate(2.5, 2.5))
    assert learn(one, BIG, 421, STEP - 1) is None
    assert one.limits(BIG, STEP).connections == 2
    learn(one, BIG, 421, STEP + 1)
    assert one.limits(BIG, 3600.0) == Limits(1, None, Rate(0.625, 1.0))
    for number in range(2, 9):
        learn(one, BIG, 421, number * (STEP + 1))
    rate = one.limits(BIG, 600.0).rate
    assert rate == Rate(10 * LEAST_FACTOR, 1.0)
    assert one.limits(Receiver("big", "bulk"), 600.0).connections == 8
    assert one.limits(BIG, 8 * (STEP + 1) + 3600.0) == Limits(8, None, Rate(10.0, 10.0))
    # Over, it begins anew.
    again = learn(one, BIG, 421, 10_000.0)
    assert isinstance(again, Learned)
    assert again.factor == 0.25


def test_a_suspension_is_told_once_and_made_longer_by_what_comes_later():
    """What had set out before it meets the same."""
    one = traffic()
    learned = learn(one, BIG, 451, 0.0)
    assert isinstance(learned, Learned)
    assert (learned.kind, learned.until) == (SUSPENDED, 1800.0)
    assert learn(one, BIG, 451, 30.0) is None
    later = learn(one, BIG, 451, 100.0)
    assert isinstance(later, Learned)
    assert later.until == 1900.0
    assert [each.receiver for each in one.in_force(1800.0, SUSPENDED)] == [BIG]
    assert one.in_force(1900.0, SUSPENDED) == []


def test_a_receiver_without_rules_of_its_own_has_those_for_all():
    """It takes as many replies as they say, of one receiver."""
    one = traffic()
    shop, other = Receiver("mx:mx.shop.example"), Receiver("mx:mx.other.example")
    assert learn(one, shop, 450, 0.0) is None
    assert learn(one, other, 450, 1.0) is None
    assert isinstance(learn(one, shop, 450, 2.0), Learned)
    assert learn(one, shop, 421, 3.0) is None
    assert learn(one, BIG, 550, 4.0) is Asks.SUPPRESS
    assert learn(one, shop, 550, 5.0) is None


def test_who_has_no_limit_is_slowed_to_few_connections():
    """A part of nothing would slow nobody."""
    rules = parse("[[default.replies]]\ncode = 421\nslow = '1h'\nto = 0.25", "rules.toml")
    one = Traffic(lambda: rules)
    learn(one, Receiver("mx:mx.shop.example"), 421, 0.0)
    assert one.limits(Receiver("mx:mx.shop.example"), 1.0) == Limits(2)


def test_who_has_a_rate_alone_is_slowed_in_that_too():
    """To few connections, and to a part of its rate."""
    rules = parse(RULES.replace("connections = 8", "").replace("10/s", "600/m"), "rules.toml")
    one = Traffic(lambda: rules)
    learn(one, BIG, 421, 0.0)
    assert one.limits(BIG, 1.0) == Limits(2, None, Rate(2.5, 2.5))


def test_what_all_nodes_know_takes_the_place_of_what_this_one_knew():
    """What is not there any more has ended; what another node learned holds here."""
    one = traffic()
    learn(one, BIG, 451, 0.0)
    learn(one, BIG, 421, 0.0)
    other = Learned(Receiver("big", "bulk"), SUSPENDED, 500.0, 1.0, "z.example", "451 no")
    mine = one.in_force(1.0, SLOWED)[0]
    ended = one.take_over([other, mine._replace(since=0.0)], 1.0)
    assert [(each.receiver, each.kind) for each in ended] == [(BIG, SUSPENDED)]
    assert one.in_force(1.0, SUSPENDED) == [other]
    ended = one.take_over([other], 500.0)
    assert [each.kind for each in ended] == [SLOWED]  # the other is over by time
    assert one.in_force(499.0, SUSPENDED) == []


def test_the_rate_of_a_domain_is_its_receivers():
    """Known at once where a rule names the domain, else once its site was found."""
    one = traffic()
    assert one.rate_key("big.example") == "site:big"
    assert one.rate_key("shop.example") is None
    assert one.meets("shop.example", BIG, 5.0) == 5.0
    assert one.meets("shop.example", BIG, 9.0) == 5.0
    assert one.rate_key("shop.example") == "site:big"
    assert one.rate_key("shop.example", "bulk") is None
    assert one.meets("shop.example", Receiver("mx:mx.shop.example"), 9.0) == 9.0
    assert one.rate_key("shop.example") == "site:mx:mx.shop.example"
    assert one.rate("site:big", 9.0) == Rate(10.0, 10.0)
    assert one.rate("site:mx:mx.shop.example", 9.0) is None
    assert one.rate("domain:shop.example", 9.0) is None
    learn(one, BIG, 421, 10.0)
    assert one.rate("site:big", 11.0) == Rate(2.5, 2.5)
    assert one.receivers_of("big.example") == {"big"}
    assert one.receivers_of("shop.example") == {"mx:mx.shop.example"}


def test_so_many_domains_are_remembered_and_no_more():
    """The least recently met is forgotten."""
    one = Traffic(Rules)
    for number in range(MOST_SEEN + 1):
        one.meets(f"d{number}.example", Receiver(f"mx:mx{number}.example"), 0.0)
    assert one.rate_key("d0.example") is None
    assert one.rate_key("d1.example") is not None


def test_shows_who_is_slowed_and_why():
    """The slowest first; those that are suspended have gates."""
    one = traffic()
    learn(one, BIG, 421, 0.0)
    learn(one, Receiver("big", "bulk"), 421, 0.0)
    learn(one, Receiver("big", "bulk"), 421, 100.0)
    learn(one, BIG, 451, 0.0)
    shown = one.statistics(200.0)
    assert [(each.route, each.window, each.reason) for each in shown] == [
        ("big via bulk", 1, "slowed to 6%: 421 no"),
        ("big", 2, "slowed to 25%: 421 no"),
    ]
    assert one.statistics(4000.0) == []


def test_who_has_mail_for_a_slowed_receiver_is_told():
    """Which domains of his, and the code alone of what may have been replied to others; others are
    told nothing, and nobody is once it is over."""
    one = traffic()
    one.awaits(BIG, 7, "early.example")  # it is not slowed
    learn(one, BIG, 421, 0.0)
    one.awaits(BIG, 7, "x.example")
    one.awaits(BIG, 8, "y.example")
    one.awaits(Receiver("big", "bulk"), 9, "x.example")

    def told(owner: int | None, domain: str | None = None) -> list[tuple[str | None, object]]:
        return [(each.reason, each.domains) for each in one.statistics(1.0, owner, domain)]

    assert told(7) == told(7, "x.example") == [("slowed to 25%: 421", ("x.example",))]
    assert told(7, "y.example") == told(9) == told(7, "early.example") == []
    assert told(None) == [("slowed to 25%: 421 no", ("x.example", "y.example"))]
    one.meets("z.example", BIG, 0.0)
    assert told(None, "z.example")
    assert not told(None, "w.example")
    one.take_over([], 2.0)
    learn(one, BIG, 421, 100.0)
    assert told(7) == []


def test_so_many_owners_are_remembered_and_no_more():
    """Those whose mail has waited last."""
    one = traffic()
    learn(one, BIG, 421, 0.0)
    for owner in range(MOST_CONCERNED + 1):
        one.awaits(BIG, owner, "y.example")
    assert not one.statistics(1.0, 0)
    assert one.statistics(1.0, 1)
