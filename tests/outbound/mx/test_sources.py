"""Sources, whole: from which address and by what name sinks are spoken to, and how much a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import date
from functools import partial
from typing import Any

import trio

from relay.outbound.pacing.shared_rates import Grant, SharedRates
from relay.outbound.routing.sources import parse
from relay.outbound.shaping.rules import Rules
from relay.outbound.shaping.traffic import Traffic
from tests.eventually import eventually
from tests.outbound.mx.test_direct import mx, world
from tests.outbound.node import put, status
from tests.outbound.running import running_outbound
from tests.outbound.sink import Script, Session, running_sink

DAY = date(2026, 11, 1)

STATES = "SELECT id, status FROM relay.outbound_messages WHERE id = ANY(%s)"


def traffic(*sources: dict[str, Any]) -> Traffic:
    """With these sources, on one day."""
    return Traffic(Rules, parse(sources), lambda: DAY)


class Watched(SharedRates):
    """Writes down how often it gave less of a key than was asked for."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.denied: Counter[str] = Counter()

    async def lease(
        self, wants: Mapping[str, int], unspent: Mapping[str, int] | None = None
    ) -> dict[str, Grant]:
        """As always."""
        grants = await super().lease(wants, unspent)
        self.denied.update(key for key, grant in grants.items() if grant.granted < wants[key])
        return grants


class Callers:
    """Writes down who calls: session, address and name, and whose mail it brings."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str, str]] = []
        self._named: dict[int, tuple[str, str]] = {}

    async def script(self, session: Session, said: str, line: str) -> bytes | None:
        """Answer as usual."""
        if said == "EHLO":
            assert isinstance(session.stream, trio.SocketStream)
            address = session.stream.socket.getpeername()[0]
            self._named[session.number] = (address, line.split()[1])
        elif said == "MAIL":
            sender = line.partition("<")[2].partition(">")[0]
            self.seen.append((session.number, *self._named[session.number], sender))
        return None


async def send(w: Any, sender: str, *to: str) -> Sequence[Any]:
    """Queue a message of a sender's to each."""
    queued = await put(w.outbound.pool, *to, sender=sender)
    w.outbound.wake()
    return queued


async def test_mail_leaves_from_the_source_of_its_sender(pool):
    """By its name, over connections of its own; other mail as always."""
    callers = Callers()
    scripts: dict[str, Script] = {"2": callers.script}
    bulk = {
        "name": "bulk",
        "addresses": ["127.0.0.50", "::1"],
        "ehlo": "bulk.example.com",
        "senders": ["news@example.org", "shop.example"],
    }
    zone = {**mx("one.example", "2"), **mx("two.example", "2")}
    async with world(pool, zone, scripts, traffic=traffic(bulk)) as w:
        for sender, to in [
            ("news@example.org", "a@one.example"),
            ("other@example.org", "b@one.example"),
            ("x@shop.example", "c@two.example"),
            ("other@example.org", "d@two.example"),
        ]:
            (one,) = await send(w, sender, to)
            await w.outbound.becomes(one.id, "sent")
    ours, usual = ("127.0.0.50", "bulk.example.com"), ("127.0.0.1", "relay.localhost")
    assert [(address, name, sender) for _, address, name, sender in callers.seen] == [
        (*ours, "news@example.org"),
        (*usual, "other@example.org"),
        (*ours, "x@shop.example"),
        (*usual, "other@example.org"),
    ]
    sessions = [number for number, *_ in callers.seen]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]


async def test_a_source_that_is_not_here_defers_its_own_mail(pool):
    """With the reason; everybody else's goes, to the same servers."""
    away = {"name": "away", "addresses": ["192.0.2.77"], "senders": ["away.example"]}
    six = {"name": "six", "addresses": ["::1"], "senders": ["six.example"]}
    async with world(pool, mx("one.example", "2"), traffic=traffic(away, six)) as w:
        (one,) = await send(w, "x@away.example", "a@one.example")
        row = await w.outbound.becomes(one.id, "queued", 1)
        assert row[3] == (
            "the source away cannot be connected from: Cannot assign requested address"
        )
        (two,) = await send(w, "x@six.example", "a@one.example")
        row = await w.outbound.becomes(two.id, "queued", 1)
        assert row[3] == (
            "the source six cannot be connected from: no address of a family that the source has"
        )
        (three,) = await send(w, "x@usual.example", "a@one.example")
        await w.outbound.becomes(three.id, "sent")


async def test_an_upstream_is_spoken_to_from_the_source_too(pool):
    """Of the sender; the route is the same server's."""
    callers = Callers()
    bulk = {"name": "bulk", "addresses": "127.0.0.51", "ehlo": "bulk.example.com"}
    async with (
        running_sink(callers.script) as sink,
        running_outbound(pool, sink.url, traffic=traffic(bulk)) as outbound,
    ):
        await put(pool, "a@one.example", sender="news@example.org")
        outbound.wake()
        await sink.gets(1)
    (found,) = callers.seen
    assert found[1:] == ("127.0.0.51", "bulk.example.com", "news@example.org")


async def test_a_source_that_is_warmed_up_is_shared_by_nodes(pool):
    """Together they send what the day allows, and wait with the rest; other sources do not."""
    sources = (
        {"name": "new", "senders": ["new.example"], "warm_up": [["2026-11-01", 40]]},
        {"name": "old"},
    )
    async with running_sink() as sink, AsyncExitStack() as nodes:
        shared = []
        for _ in range(2):
            known = traffic(*sources)
            rates = Watched(pool, named=known)
            shared.append(rates)
            await nodes.enter_async_context(
                running_outbound(pool, sink.url, rates=rates, traffic=known)
            )
        old = await put(pool, *(f"o{n}@y.example" for n in range(20)), sender="a@old.example")
        new = await put(pool, *(f"n{n}@y.example" for n in range(20)), sender="a@new.example")
        for one in old:
            await eventually(
                partial(status, pool, one.id), "it goes", until=lambda now: now == "sent"
            )
        await eventually(
            lambda: [rates.denied["source:new"] for rates in shared],
            "a node asks for more than it gets",
            until=any,
        )
        # Some are asked for again and again, and at this instant may be.
        found = await eventually(
            lambda: pool.fetch(STATES, ([one.id for one in new],)),
            "what does not go waits",
            until=lambda rows: {state for _, state in rows} <= {"queued", "sent"},
        )
        sent = [state for _, state in found].count("sent")
        assert 1 <= sent <= 4
        # What a node had been given and not spent when the other asked in vain, it gives back.
        left = 0

        async def take() -> int:
            nonlocal left
            grants = await shared[0].lease({"source:new": 5 - sent - left})
            left += grants["source:new"].granted
            return sent + left

        await eventually(take, "what may go at once has gone or is free", until=lambda n: n >= 4)
        assert await take() == 4
        assert sum(received.sender == "a@new.example" for received in sink.received) == sent
