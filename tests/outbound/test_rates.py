"""Shared rates: GCRA, the same in Python and in SQL, never overspent by several nodes."""

import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from relay.db.pool import Pool
from relay.outbound.rates import (
    Grant,
    Meter,
    Rate,
    Rates,
    budget_rate,
    domain_key,
    grant,
    route_key,
)


@given(
    rate=st.floats(0.01, 1000),
    burst=st.integers(1, 50),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 100)), max_size=40),
)
def test_never_more_than_the_burst_and_the_rate_allow(
    rate: float, burst: int, steps: list[tuple[float, int]]
):
    """However it is asked for: in any stretch of time, burst + rate × seconds at the most."""
    now, tat = 1000.0, -math.inf
    grants: list[tuple[float, int]] = []
    for pause, want in steps:
        now += pause
        (count, wait), tat = grant(tat, now, rate, burst, want)
        assert 0 <= count <= want
        assert (wait == 0.0) or count < want
        grants.append((now, count))
    for first in range(len(grants)):
        total = 0
        for at, count in grants[first:]:
            total += count
            assert total <= burst + rate * (at - grants[first][0]) + 1e-3


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 10))
def test_after_the_wait_there_is_one_more(rate: float, burst: int):
    """The wait is neither too short nor much too long."""
    (count, wait), tat = grant(-math.inf, 0.0, rate, burst, 1000)
    assert count == burst
    assert wait == pytest.approx(1 / rate)
    assert grant(tat, wait, rate, burst, 1000)[0].granted == 1
    assert grant(tat, wait * 0.9, rate, burst, 1000)[0].granted == 0


def test_a_budget_is_a_rate():
    """$100 a month at $0.10 a thousand: a million in thirty days."""
    assert budget_rate(100, 0.10) * 30 * 86400 == pytest.approx(1_000_000)


async def test_sql_and_python_grant_alike(any_pool: Pool):
    """The burst at once, then by the rate; a key without a row has no limit."""
    rates = Rates(any_pool)
    one, two = route_key("smtps://up.example:465"), domain_key("example.com")
    await rates.put(Rate(one, rate=0.001, burst=10))
    await rates.put(Rate(two, rate=2000.0, burst=4))
    found = await rates.lease({one: 7, two: 4, "domain:free.example": 5})
    assert found == {one: Grant(7, 0.0), two: Grant(4, 0.0)}
    (count, wait) = (await rates.lease({one: 7}))[one]
    expected, _ = grant(7 / 0.001, 0.0, 0.001, 10, 7)
    assert (count, expected.granted) == (3, 3)
    assert wait == pytest.approx(expected.wait, rel=0.01)
    assert (await rates.lease({one: 1}))[one].granted == 0
    await trio.sleep(0.01)
    assert (await rates.lease({two: 100}))[two].granted == 4
    assert [rate.key for rate in await rates.list()] == [two, one]
    assert await rates.remove(one)
    assert not await rates.remove(one)
    assert await rates.lease({one: 1}) == {}
    assert await rates.lease({}) == {}


async def test_several_nodes_share_one_rate(any_pool: Pool):
    """Eight that ask at once, for two keys in either order, get the burst between them."""
    rates = Rates(any_pool)
    keys = ["domain:a.example", "domain:b.example"]
    for key in keys:
        await rates.put(Rate(key, rate=0.001, burst=20))
    got = dict.fromkeys(keys, 0)

    async def ask(order: list[str]) -> None:
        for _ in range(5):
            for key, found in (await rates.lease(dict.fromkeys(order, 1))).items():
                got[key] += found.granted

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(ask, keys[:: 1 if number % 2 else -1])
    assert got == dict.fromkeys(keys, 20)


def test_the_meter_spends_what_was_leased_and_asks_again():
    """Unknown keys allow nothing until asked; unlimited ones anything; spent ones wait."""
    meter = Meter()
    keys = ["route:x", "domain:y"]
    assert meter.room(keys) == 0
    wants = meter.wants(keys, 0.0, 50)
    assert wants == {"route:x": 50, "domain:y": 50}
    meter.leased(wants, {"domain:y": Grant(3, 0.5)}, 0.0)
    assert meter.room(["route:x"]) is None
    assert meter.room(keys) == 3
    assert meter.wants(keys, 0.5, 50) == {}
    meter.spend(keys, 3)
    assert meter.room(keys) == 0
    wants = meter.wants(keys, 0.6, 50)
    assert wants == {"domain:y": 50}
    meter.leased(wants, {"domain:y": Grant(0, 2.0)}, 0.6)
    assert meter.next_at() == 2.6
    assert meter.wants(["domain:y"], 2.0, 50) == {}
    assert meter.wants(["domain:y"], 2.6, 50) == {"domain:y": 50}


def test_what_is_left_of_a_slice_is_lost_and_an_overdraft_is_not():
    """A limit errs on the side of too little."""
    meter = Meter()
    wants = meter.wants(["k"], 0.0, 5)
    meter.leased(wants, {"k": Grant(5, 0.0)}, 0.0)
    meter.spend(["k"], 2)
    assert meter.wants(["k"], 1.0, 5) == {"k": 5}
    meter.leased(wants, {"k": Grant(5, 0.0)}, 1.0)
    assert meter.room(["k"]) == 5
    meter.spend(["k"], 7)
    meter.leased(wants, {"k": Grant(5, 0.0)}, 2.0)
    assert meter.room(["k"]) == 3
