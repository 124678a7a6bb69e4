"""Sources: whose mail leaves from where, and how much a day."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import ConfigError
from relay.outbound.pacing.shared_rates import grant
from relay.outbound.routing.sources import DAY, Source, Sources, WarmUp, parse
from relay.outbound.shaping.traffic import Receiver, Traffic

START = date(2026, 11, 1)


def test_a_list_is_read_whole():
    """Each key, in each of its forms."""
    found = parse(
        [
            {
                "name": "bulk",
                "ehlo": "MTA1.example.com",
                "addresses": ["192.0.2.1", "2001:DB8::1"],
                "senders": ["News@Example.com", "bücher.example", "@lists.example"],
                "warm_up": {"start": "2026-11-01", "first": 50, "until": 100_000},
            },
            {"name": "rest", "addresses": "192.0.2.2", "warm_up": [["2026-11-01", 50]]},
        ]
    )
    bulk, rest = found.sources
    assert bulk == Source(
        "bulk",
        "mta1.example.com",
        ("192.0.2.1", "2001:db8::1"),
        WarmUp((), START, 50, 1, 100_000),
    )
    assert rest == Source("rest", None, ("192.0.2.2",), WarmUp(((START, 50),)))
    for sender, source in [
        ("news@example.com", bulk),
        ("NEWS@EXAMPLE.COM", bulk),
        ("other@example.com", rest),
        ("a@bücher.example", bulk),
        ("a@xn--bcher-kva.example", bulk),
        ("a@lists.example", bulk),
        ("a@sub.lists.example", rest),
        ("", rest),
    ]:
        assert found.of(sender) is source
    assert found.of_domain("example.com") == (bulk, rest)
    assert found.of_domain("lists.example") == (bulk,)
    assert found.of_domain("sub.lists.example") == (rest,)
    assert found.warms_up
    assert (found.named("rest"), found.named("none")) == (rest, None)
    assert parse([]).of("a@b.example") is None
    some = parse([{"name": "one", "senders": ["a.example", "b@c.example"]}])
    assert some.of("a@b.example") is None
    assert some.of_domain("b.example") == (None,)
    assert some.of_domain("c.example") == (some.sources[0], None)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "source 1: name: it must be a name"),
        ({"name": "A b"}, "source 'A b': name: it must be a name"),
        (
            {"name": "a", "adresses": []},
            "source 'a': adresses: there is no such key; did you mean addresses?",
        ),
        ({"name": "a", "ehlo": "mta"}, "source 'a': ehlo: 'mta' is no full name of a host"),
        ({"name": "a", "ehlo": 1}, "source 'a': ehlo: 1 is no"),
        ({"name": "a", "ehlo": "[192.0.2.1]"}, "source 'a': ehlo: '[192.0.2.1]' is no"),
        ({"name": "a", "addresses": ["mta.example"]}, "addresses: 'mta.example' is no IP address"),
        ({"name": "a", "addresses": ["0.0.0.0"]}, "addresses: from 0.0.0.0 nothing can be sent"),
        ({"name": "a", "addresses": ["192.0.2.1", "192.0.2.2"]}, "one of IPv4 at most"),
        ({"name": "a", "addresses": 1}, "addresses: it must be a list"),
        ({"name": "a", "senders": "a.example"}, "senders: it must be a list"),
        ({"name": "a", "senders": ["a b"]}, "senders: 'a b' is no address and no domain"),
        ({"name": "a", "warm_up": 5}, "warm_up: it must be a table, or a list"),
        ({"name": "a", "warm_up": []}, "warm_up: it must be a table, or a list"),
        ({"name": "a", "warm_up": [5]}, "warm_up: each is a day and its mails"),
        ({"name": "a", "warm_up": [["soon", 5]]}, "warm_up: it must be a day"),
        ({"name": "a", "warm_up": [["2026-11-01", -1]]}, "warm_up: it must be a whole number"),
        (
            {"name": "a", "warm_up": [["2026-11-02", 1], ["2026-11-01", 2]]},
            "warm_up: the days must follow on each other",
        ),
        ({"name": "a", "warm_up": {"first": 5, "until": 9}}, "warm_up.start: it must be a day"),
        (
            {"name": "a", "warm_up": {"start": "2026-11-01", "until": 9}},
            "warm_up.first: it must be a whole number",
        ),
        (
            {"name": "a", "warm_up": {"start": "2026-11-01", "first": 9, "until": 9}},
            "warm_up.until: it must be more than first",
        ),
        (
            {
                "name": "a",
                "warm_up": {"start": "2026-11-01", "first": 1, "until": 9, "double_every": "1h"},
            },
            "warm_up.double_every: it must be days",
        ),
        ({"name": "a", "warm_up": {"begin": 1}}, "warm_up.begin: there is no such key"),
    ],
)
def test_what_is_wrong_is_said(said: dict[str, Any], says: str):
    """In one sentence, with the source and the key."""
    with pytest.raises(ConfigError) as caught:
        parse([said])
    assert str(caught.value).startswith("RELAY_OUTBOUND__SOURCES, source ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"name": "a", "senders": ["b.example"]}, "source 'a': name: there is another"),
        ({"name": "b", "senders": ["A.example"]}, "source 'b': senders: a.example is a's already"),
    ],
)
def test_two_sources_do_not_share_what_tells_them_apart(other: dict[str, Any], says: str):
    """Neither a name, nor a sender, nor everybody."""
    with pytest.raises(ConfigError) as caught:
        parse([{"name": "a", "senders": ["a.example"]}, other])
    assert says in str(caught.value)
    with pytest.raises(ConfigError, match=r"source 'b': senders: without them it is for all"):
        parse([{"name": "a"}, {"name": "b"}])


def test_a_warm_up_doubles_until_it_is_over():
    """Before its start it is what it is at first; at its end there is no limit."""
    up = WarmUp((), START, 50, 2, 350)
    counts = [up.on(START + timedelta(days)) for days in (-9, 0, 1, 2, 4, 5, 6, 4000)]
    assert counts == [50, 50, 50, 100, 200, 200, None, None]


def test_a_warm_up_by_days_holds_from_day_to_day():
    """The last holds for ever, and 0 there ends it."""
    up = WarmUp(((START, 50), (START + timedelta(3), 500)))
    assert [up.on(START + timedelta(days)) for days in (-1, 0, 2, 3, 99)] == [50, 50, 50, 500, 500]
    over = WarmUp(((START, 50), (START + timedelta(3), 0)))
    assert [over.on(START + timedelta(days)) for days in (2, 3)] == [50, None]


@given(
    count=st.integers(1, 100_000),
    pauses=st.lists(st.floats(0, 2 * 3600), min_size=1, max_size=60),
    want=st.integers(1, 500),
)
def test_no_more_leave_within_a_day_than_it_says(count: int, pauses: list[float], want: int):
    """However they come; and over the day nearly so many may."""
    rate = WarmUp(((START, count),)).rate(START)
    assert rate is not None
    now, tat = 0.0, float("-inf")
    granted: list[tuple[float, int]] = []
    for pause in pauses:
        now += pause
        found, tat = grant(tat, now, *rate, want)
        granted.append((now, found.granted))
    for first, _ in granted:
        assert sum(n for at, n in granted if first <= at < first + DAY) <= count
    assert rate.rate * DAY + rate.burst >= count - 1e-6


def test_a_sources_rate_is_a_key_of_its_mail():
    """That of today; beside that of the receiver, which knows the source."""
    today = [START]
    traffic = Traffic(
        sources=parse(
            [
                {"name": "new", "senders": ["a.example"], "warm_up": [["2026-11-01", 1000]]},
                {"name": "old", "senders": ["b.example"]},
            ]
        ),
        today=lambda: today[0],
    )
    assert traffic.limits_rates
    assert traffic.keys("shop.example", "x@a.example", direct=True) == ("source:new",)
    assert traffic.keys("shop.example", "x@a.example", direct=False) == ("source:new",)
    assert traffic.keys("shop.example", "x@b.example", direct=True) == ()
    traffic.meets("shop.example", Receiver("mx:mx.shop.example", "new"), 0.0)
    assert traffic.keys("shop.example", "x@a.example", direct=True) == (
        "source:new",
        "site:mx:mx.shop.example via new",
    )
    assert traffic.keys("shop.example", "x@c.example", direct=True) == ()
    rate = traffic.rate("source:new", 0.0)
    assert rate is not None
    assert (rate.burst, round(rate.rate * DAY)) == (100.0, 900)
    assert traffic.rate("source:old", 0.0) is None
    assert traffic.rate("source:none", 0.0) is None
    assert not Traffic(sources=Sources()).limits_rates
