"""The listener: what is notified reaches the hub and the routes; an outage wakes everybody."""

import functools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from actors import listener
from relay.db.connection import connect
from relay.db.listen import Hub
from supervisor import ChildSpec, Supervisor, SupervisorSpec
from tests.actors.running import state
from tests.eventually import eventually


class Routed:
    """Collects what a route was given; full ones refuse as a full inbox does."""

    def __init__(self, *, full: bool = False) -> None:
        self.seen: list[str] = []
        self.full = full

    def __call__(self, payload: str) -> None:
        self.seen.append(payload)
        if self.full:
            raise trio.WouldBlock


@asynccontextmanager
async def listening(dsn: str, hub: Hub, routes) -> AsyncIterator[Supervisor]:
    """The actor under a real supervisor, ready, and drained at the end of the block."""
    boss = Supervisor(rng=random.Random(1))
    run = functools.partial(listener.run, dsn=dsn, hub=hub, routes=routes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boss.run, SupervisorSpec("root", (ChildSpec("listener", run),)))
        await eventually(
            lambda: state(boss, "listener"), "it listens", until=lambda found: found == "running"
        )
        yield boss
        boss.shutdown()


async def notify(dsn: str, channel: str, payload: str) -> None:
    async with await connect(dsn) as conn:
        await conn.execute("SELECT pg_notify(%s, %s)", [channel, payload])


async def woken(subscription, seconds: float = 5.0) -> bool:
    with trio.move_on_after(seconds) as scope:
        await subscription.wait()
    return not scope.cancelled_caught


async def test_keys_reach_their_waiters_and_payloads_their_routes(any_database_url):
    """A comma-joined payload wakes each key's waiter; the route gets the payload as it is."""
    hub, route = Hub(), Routed()
    with hub.subscribe("relay_summaries", "b") as b, hub.subscribe("relay_summaries", "c") as c:
        async with listening(any_database_url, hub, {"relay_summaries": route}):
            assert await woken(b)  # the first connect wakes everybody
            assert await woken(c)
            await notify(any_database_url, "relay_summaries", "a,b")
            assert await woken(b)
            assert not await woken(c, 0.05)
    assert route.seen == ["", "a,b"]


@pytest.mark.parametrize("payload", ["", "*"])
async def test_an_empty_payload_or_a_star_concerns_everyone(database_url, payload):
    """Waiters of every key of the channel wake."""
    hub = Hub()
    with hub.subscribe("relay_mailboxes", "a") as a:
        async with listening(database_url, hub, {}):
            assert await woken(a)
            await notify(database_url, "relay_mailboxes", payload)
            assert await woken(a)


async def test_a_full_route_does_not_stop_the_others(database_url):
    """A route whose inbox is full is passed over; the actor goes on."""
    full, other = Routed(full=True), Routed()
    routes = {"relay_expiry": full, "relay_messages": other}
    async with listening(database_url, Hub(), routes) as boss:
        await notify(database_url, "relay_expiry", "1.5")
        await notify(database_url, "relay_messages", "")
        await eventually(lambda: other.seen, "both are heard", until=lambda seen: len(seen) == 2)
        assert boss.tree().children[0].restarts == 0
    assert full.seen == ["", "1.5"]


async def test_a_reconnect_wakes_everybody(database_url):
    """After the connection was lost, waiters and routes are told to look again."""
    hub, route = Hub(), Routed()
    with hub.subscribe("relay_summaries", "a") as a:
        async with listening(database_url, hub, {"relay_expiry": route}) as boss:
            assert await woken(a)
            async with await connect(database_url) as conn:
                await conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'relay-listen'"
                )
            assert await woken(a)
            assert boss.tree().children[0].restarts == 0
    assert route.seen == ["", ""]
