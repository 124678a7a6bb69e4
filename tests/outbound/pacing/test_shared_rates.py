"""Shared rates: GCRA, the same in Python and in SQL, never overspent by several nodes."""

import math
from uuid import uuid4

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from relay.db.pool import Pool
from relay.outbound.pacing.rate import Rate
from relay.outbound.pacing.shared_rates import (
    SLICE,
    Grant,
    SharedRates,
    domain_key,
    grant,
    route_key,
)
from relay.outbound.queue.store import Queue


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


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 200))
def test_after_the_wait_it_is_worth_asking_again(rate: float, burst: int):
    """There is half a slice's worth then, the burst if that is less, and at least one."""
    worth = max(min(burst, math.floor(rate * SLICE / 2)), 1)
    (count, wait), tat = grant(-math.inf, 0.0, rate, burst, 1000)
    assert count == burst
    assert wait == pytest.approx(worth / rate)
    assert grant(tat, wait, rate, burst, 1000)[0].granted == worth
    assert grant(tat, wait * 0.9 / worth, rate, burst, 1000)[0].granted == 0


async def limit(pool: Pool, key: str, rate: float, burst: float | None = None) -> None:
    """What an operator would type."""
    await pool.execute(
        "INSERT INTO relay.outbound_rates (key, rate, burst) VALUES (%s, %s, %s)",
        (key, rate, burst),
    )


async def test_sql_and_python_grant_alike(any_pool: Pool):
    """The burst at once, then by the rate; a key without a row has no limit."""
    rates = SharedRates(any_pool)
    assert not await rates.limited()
    one, two = route_key("smtps://up.example:465"), domain_key("example.com")
    await limit(any_pool, one, 0.001, 10)
    await limit(any_pool, two, 2000.0, 4)
    assert await rates.limited()
    found = await rates.lease({one: 7, two: 4, "domain:free.example": 5})
    assert found == {one: Grant(7, 0.0), two: Grant(4, 0.0)}
    (count, wait) = (await rates.lease({one: 7}))[one]
    expected, _ = grant(7 / 0.001, 0.0, 0.001, 10, 7)
    assert (count, expected.granted) == (3, 3)
    assert wait == pytest.approx(expected.wait, rel=0.01)
    assert (await rates.lease({one: 1}))[one].granted == 0
    await any_pool.execute("UPDATE relay.outbound_rates SET tat = tat - interval '1 second'")
    assert (await rates.lease({two: 100}))[two].granted == 4
    assert await rates.lease({}) == {}


class Named:
    """Rates of keys that somebody else knows."""

    limits_rates = True

    def rate(self, key: str, now: float) -> Rate | None:
        """Five a day at once, of fifty."""
        return Rate(0.0005, 5.0) if key == "source:new" else None


async def test_what_was_not_spent_is_given_back(any_pool: Pool):
    """With the next lease or by itself; in SQL and in Python alike, and never more than there was.

    Else one message a minute of a slow rate would cost a whole burst each."""
    rates = SharedRates(any_pool, named=Named())
    assert await rates.limited()
    key = "source:new"
    assert (await rates.lease({key: 8}))[key].granted == 5
    assert (await rates.lease({key: 8}, {key: 4}))[key].granted == 4
    expected = grant(grant(-math.inf, 0.0, 0.0005, 5, 8)[1], 0.0, 0.0005, 5, 8, 4)[0]
    assert expected.granted == 4
    await rates.give_back({key: 3})
    found = await rates.lease({key: 8, "source:old": 9})
    assert found[key].granted == 3
    assert "source:old" not in found
    await rates.give_back({key: 1000})
    assert (await rates.lease({key: 8}))[key].granted == 5
    # Relays of before lease by the function that they know.
    await limit(any_pool, "domain:a.example", 1.0, 3)
    rows = await any_pool.fetch(
        """
        SELECT key, granted
        FROM relay.outbound_lease(ARRAY['domain:a.example', 'route:b'], ARRAY[9, 9],
                                  ARRAY[NULL, 2.0]::float8[], 0.5)
        ORDER BY key
        """
    )
    assert rows == [("domain:a.example", 3), ("route:b", 2)]


async def test_the_settings_limit_what_the_table_does_not(any_pool: Pool):
    """Each key by its kind; one second's worth at once; a row's own rate goes first."""
    rates = SharedRates(any_pool, route=0.0, domain=5.0)
    assert await rates.limited()
    await limit(any_pool, "domain:big.example", 50.0)
    found = await rates.lease({"domain:a.example": 100, "domain:big.example": 100, "route:x": 100})
    assert {key: granted for key, (granted, _) in found.items()} == {
        "domain:a.example": 5, "domain:big.example": 50,
    }  # fmt: skip
    assert (await rates.lease({"domain:a.example": 100}))["domain:a.example"].granted == 0
    node = Queue(any_pool, uuid4())
    await any_pool.execute("UPDATE relay.outbound_rates SET tat = now() - interval '2 hours'")
    await node.forget()
    left = await any_pool.fetch("SELECT key FROM relay.outbound_rates")
    assert left == [("domain:big.example",)]


async def test_several_nodes_share_one_rate(any_pool: Pool):
    """Eight that ask at once, for two keys in either order, get the burst between them."""
    rates = SharedRates(any_pool, route=0.001)
    keys = ["domain:a.example", "domain:b.example", "route:c"]
    for key in keys[:2]:
        await limit(any_pool, key, 0.001, 20)
    got = dict.fromkeys(keys, 0)

    async def ask(order: list[str]) -> None:
        for _ in range(5):
            for key, found in (await rates.lease(dict.fromkeys(order, 1))).items():
                got[key] += found.granted

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(ask, keys[:: 1 if number % 2 else -1])
    assert got == {keys[0]: 20, keys[1]: 20, keys[2]: 1}
