"""Rates, caps and throttled destinations, through a claimer, a sender and a real sink."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from uuid import uuid4

import pytest
import trio
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import Vault
from relay.db.pool import Pool
from relay.lifecycle.budget import Budget
from relay.lifecycle.budget_store import lease
from relay.outbound.pacing.shared_rates import SharedRates
from relay.outbound.routing.senders import Senders
from relay.outbound.shaping.traffic import Traffic
from tests.eventually import eventually
from tests.outbound.node import put
from tests.outbound.running import running_outbound
from tests.outbound.sink import Session, running_sink


def to(domain: str, count: int) -> list[str]:
    """So many addresses of a domain."""
    return [f"u{number}@{domain}" for number in range(count)]


@pytest.mark.parametrize("limited", ["domain", "route"])
async def test_two_nodes_share_a_rate_and_do_not_exceed_it(pool: Pool, limited: str):
    """Together they send the burst and then what the rate earns; what has no limit goes at once."""
    await put(pool, *to("slow.example", 80))
    if limited == "domain":
        await put(pool, *to("fast.example", 80))
    rate = 40.0
    async with running_sink() as sink, AsyncExitStack() as nodes:
        began = trio.current_time()
        for _ in range(2):
            rates = SharedRates(pool, route=rate if limited == "route" else 0.0)
            if limited == "domain":
                await pool.execute(
                    """
                    INSERT INTO relay.outbound_rates (key, rate)
                    VALUES ('domain:slow.example', %s)
                    ON CONFLICT DO NOTHING
                    """,
                    (rate,),
                )
            await nodes.enter_async_context(running_outbound(pool, sink.url, rates=rates))
        got: list[float] = []
        unlimited = 0.0

        def look() -> int:
            nonlocal unlimited
            counted = Counter(address.partition("@")[2] for address in sink.recipients)
            elapsed = trio.current_time() - began
            got.extend([elapsed] * (counted["slow.example"] - len(got)))
            assert counted["slow.example"] <= rate + rate * elapsed + 1
            if counted["fast.example"] == 80 and not unlimited:
                unlimited = elapsed
            return len(got)

        await eventually(look, "all arrive", until=lambda arrived: arrived >= 80)
    assert got[-1] >= 80 / rate - 1  # 40 at once, 40 in a second
    if limited == "domain":
        assert unlimited
        assert unlimited < got[-1]
    # A claim is what the rates allow: little was claimed only to be put back.  A busy machine puts
    # more back where the rate is the route's, which is not known before.  Without any regard to
    # rates 316 are claimed here, and 244 of the one domain.
    claims = await pool.fetch_value("SELECT sum(token) / 2 FROM relay.outbound_log")
    assert 80 <= claims < (160 if limited == "route" else 200)


async def test_a_route_of_a_sender_has_a_rate_of_its_own(pool: Pool):
    """One owner's mail to one domain by two routes: the slow one does not hold the other up."""
    vault = Vault([Fernet.generate_key().decode()])
    async with running_sink() as slow, running_sink() as fast:
        await Senders(pool, vault).put(ADMINISTRATOR_ID, "sender@example.org", slow.url)
        await pool.execute(
            "INSERT INTO relay.outbound_rates (key, rate, burst) VALUES (%s, 20, 2)",
            (f"route:{slow.url}",),
        )
        await put(pool, *to("x.example", 30))
        async with running_outbound(pool, fast.url, vault=vault, rates=SharedRates(pool)):
            await slow.gets(5)
            await pool.execute("DELETE FROM relay.senders")  # the rest takes the other route
            await fast.gets(30 - len(slow.recipients) - 2)
            await eventually(
                lambda: len(slow.recipients) + len(fast.recipients),
                "all arrive",
                until=lambda arrived: arrived >= 30,
            )
    assert len(set(slow.recipients + fast.recipients)) == 30


async def test_no_more_at_once_than_the_caps_allow(pool: Pool):
    """So many connections to a route, so many deliveries to a domain; other domains go on."""
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "RCPT":
            domain = line.rpartition("@")[2].rstrip(">")
            for key in ("all", domain):
                busy[key] += 1
                most[key] = max(most[key], busy[key])
            await trio.sleep(0.02)  # so that they meet
            for key in ("all", domain):
                busy[key] -= 1
        return None

    await put(pool, *to("one.example", 120))
    await put(pool, *to("two.example", 120), owner=uuid4())  # one alone leaves room for others
    async with (
        running_sink(script) as sink,
        running_outbound(
            pool,
            sink.url,
            concurrency=16,
            route_connections=5,
            domain_connections=3,
            sweep_every=30.0,  # whatever waits for room is woken by it
        ),
    ):
        await sink.gets(240)
    assert most["all"] == 5
    assert most["one.example"] <= 3
    assert most["two.example"] <= 3
    assert len(sink.sessions) <= 5


@pytest.mark.parametrize("answer", [b"421 4.7.0 too fast\r\n", b"451 4.7.1 later\r\n"])
async def test_a_destination_that_throttles_is_slowed_by_itself_and_recovers(
    pool: Pool, answer: bytes
):
    """The others are unhurt; when it takes mail again it gets all of it."""
    refused = 0
    open_for_all = False

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        nonlocal refused
        if verb == "RCPT" and "@slow." in line and not open_for_all:
            refused += 1
            return answer
        return None

    await put(pool, *to("slow.example", 60))
    await put(pool, *to("fast.example", 200))
    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, retry_unit=0.5, max_attempts=100) as outbound,
    ):
        await sink.gets(200)
        assert {address.partition("@")[2] for address in sink.recipients} == {"fast.example"}
        await outbound.at_rest()
        assert refused < 60  # not each message has to learn it
        open_for_all = True
        await sink.gets(260)
        for message in await outbound.pool.fetch("SELECT status FROM relay.outbound_log"):
            assert message == ("sent",)


async def test_a_budget_may_cover_all_mail(pool: Pool):
    """What is saved goes out and no more, on two nodes together; what they did not need is kept."""
    budget = Budget(monthly=3.0, per_thousand=1.0)  # 3,000 a month: one in quarter of an hour
    await pool.execute("UPDATE relay.token_budget SET at = now(), letters = 7, spent = 40")
    await put(pool, *to("x.example", 12), *to("y.example", 12))
    async with running_sink() as sink, AsyncExitStack() as nodes:
        for _ in range(2):
            rates = SharedRates(pool, budget=partial(lease, pool, budget))
            await nodes.enter_async_context(running_outbound(pool, sink.url, rates=rates))
        await sink.gets(7)
        left = await pool.fetch_row("SELECT floor(letters), spent FROM relay.token_budget")
        assert left == (0, 47)
        waiting = "SELECT count(*) FROM relay.outbound_due WHERE node IS NULL"
        assert await pool.fetch_value(waiting) == 17
    assert len(sink.received) == 7


async def test_what_a_lease_did_not_need_is_put_back(pool: Pool):
    """The next lease returns it; into a new month nothing is carried over."""
    budget = Budget(monthly=3.0, per_thousand=1.0)
    await pool.execute("UPDATE relay.token_budget SET at = now(), letters = 20, spent = 40")
    assert (await lease(pool, budget, 8, 0)).granted == 8
    assert (await lease(pool, budget, 8, 7)).granted == 8
    state = "SELECT floor(letters), spent FROM relay.token_budget"
    assert await pool.fetch_row(state) == (11, 49)
    await pool.execute("UPDATE relay.token_budget SET at = now() - interval '40 days'")
    granted = await lease(pool, budget, 100_000, 5)
    row = await pool.fetch_row(state)
    assert row == (0, granted.granted)
    assert granted.wait > 0


async def test_of_mail_that_waits_for_a_rate_it_is_known_for_which(pool: Pool):
    """The kind of its key says where the limit stands; for its owner alone."""
    traffic = Traffic()
    rates = SharedRates(pool, domain=0.5)
    await put(pool, *to("slow.example", 4))
    async with (
        running_sink() as sink,
        running_outbound(
            pool, sink.url, rates=rates, traffic=traffic, sweep_every=0.1, drain=False
        ),
    ):
        (one,) = await eventually(
            lambda: traffic.limited(trio.current_time(), ADMINISTRATOR_ID.int, "slow.example"),
            "what waits is told of",
            until=bool,
        )
        assert one.reason == "RELAY_OUTBOUND__DOMAIN_RATE/relay.outbound_rates"
        assert traffic.limited(trio.current_time(), 77) == []
