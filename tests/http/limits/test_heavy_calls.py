"""Searches and long lists take turns, so that those of one owner leave the relay to others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from relay.http.limits.fair_limiter import FairLimiter
from relay.http.limits.heavy_calls import AT_ONCE, OF_ONE, SHORT
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.messages import Messages
from tests.eventually import eventually
from tests.http.conftest import House


class Held:
    """In place of a query: the query, once it is let go, and how many of it ran at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reader: type, name: str) -> None:
        """`name`: the query, of `reader`."""
        self._query: Callable[..., Awaitable[Any]] = getattr(reader, name)
        self._let_go = trio.Event()
        self._waiting = self._running = self._most = self._ended = 0
        turn = FairLimiter.turn

        @asynccontextmanager
        async def counted(limiter: FairLimiter, *args: Any) -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                self._waiting += 1
                try:
                    await stack.enter_async_context(turn(limiter, *args))
                finally:
                    self._waiting -= 1
                yield

        monkeypatch.setattr(FairLimiter, "turn", counted)
        monkeypatch.setattr(reader, name, self)

    def __get__(self, reader: object, _: type) -> Callable[..., Awaitable[Any]]:
        return partial(self._run, reader)

    async def _run(self, *args: Any, **named: Any) -> Any:
        self._running += 1
        self._most = max(self._most, self._running)
        try:
            await self._let_go.wait()
            return await self._query(*args, **named)
        finally:
            self._running -= 1
            self._ended += 1

    async def at_once(self, asks: Sequence[Callable[[], Awaitable[int]]], wanted: int) -> None:
        """Make these calls: so many of them run at once and no more, and each is answered."""
        self._let_go, self._most = trio.Event(), 0
        codes: list[int] = []

        async def answered(ask: Callable[[], Awaitable[int]]) -> None:
            codes.append(await ask())

        async with trio.open_nursery() as nursery:
            for ask in asks:
                nursery.start_soon(answered, ask)
            await self._all_have_come(len(asks), wanted)
            self._let_go.set()
        assert self._most == wanted
        assert codes == [200] * len(asks)

    async def in_turns(self, wanted: int, at_once: int) -> None:
        """So many run in the end, and so many of them at once and no more."""
        await self._all_have_come(wanted, at_once)
        self._let_go.set()
        await eventually(lambda: self._ended, "all have run", until=lambda n: n >= wanted)
        assert self._most == at_once

    async def _all_have_come(self, count: int, at_once: int) -> None:
        """Return once so many run, and the others, of all, wait for their turn."""
        await eventually(
            lambda: (self._running, self._waiting),
            f"{at_once} run, of {count}",
            until=lambda now: now[0] >= at_once and sum(now) == count,
        )


async def test_pages_of_whole_messages_take_turns_too(house: House, monkeypatch):
    """Two of one caller at once, until they are written; every call is answered."""
    held = Held(monkeypatch, Messages, "whole_page")
    address, token = await house.mailbox()
    await house.deliver(address)

    async def ask() -> int:
        url = f"/api/v1/mailboxes/{address}/messages?whole=true"
        return (await house.client.get(url, headers=token)).status_code

    await held.at_once([ask] * 8, OF_ONE)


async def test_long_pages_take_turns_too(house: House, monkeypatch):
    """Of more entries than a list gives to who says nothing of how many; others do not."""
    held = Held(monkeypatch, Messages, "page")
    address, token = await house.mailbox()

    async def ask(limit: int) -> int:
        url = f"/api/v1/mailboxes/{address}/messages?limit={limit}"
        return (await house.client.get(url, headers=token)).status_code

    await held.at_once([partial(ask, SHORT + 1)] * 6, OF_ONE)
    await held.at_once([partial(ask, SHORT)] * 6, 6)


async def test_searches_run_a_few_at_a_time_and_lists_never_wait(house: House, monkeypatch):
    """Two of one owner, three of all but the administrator, and one of his beside them; every call
    is answered."""
    held = Held(monkeypatch, AllMessages, "page")
    keys = [await house.key("read") for _ in range(4)]

    async def ask(key: dict[str, str], params: dict[str, str]) -> int:
        answer = await house.client.get("/api/v1/messages", params=params, headers=key)
        return answer.status_code

    for asked, params, wanted in (
        (keys[:1] * 8, {"q": "nowhere"}, OF_ONE),
        (keys * 3, {"q": "nowhere"}, AT_ONCE - 1),
        ([*keys, *keys, house.admin], {"q": "nowhere"}, AT_ONCE),
        (keys[:1] * 8, {"limit": f"{SHORT + 1}"}, OF_ONE),
        (keys[:1] * 8, {}, 8),
    ):
        await held.at_once([partial(ask, key, params) for key in asked], wanted)


_WAITS = {
    "a mailbox's waits": (Arrivals, "next_match", "mailboxes/{}/messages/wait?subject=no"),
    "a mailbox's events": (Arrivals, "news", "mailboxes/{}/events"),
    "waits of all": (AllMessages, "next_match", "messages/wait?after=2100-01-01"),
    "waits of all by text": (AllMessages, "next_match", "messages/wait?q=nowhere"),
    "events of all": (AllMessages, "news", "messages/events"),
}


@pytest.mark.parametrize("name", _WAITS)
async def test_looks_of_those_who_wait_take_turns(house: House, monkeypatch, name: str):
    """One mail wakes them all; two of one owner look at once, of however many mailboxes."""
    reader, look, url = _WAITS[name]
    inboxes = [await house.mailbox() for _ in range(3)]

    async def wait(address: str, token: dict[str, str]) -> None:
        path = f"/api/v1/{url.format(address)}"
        async with house.client.stream("GET", path, headers=token, timeout=60) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async with trio.open_nursery() as nursery:
        for address, token in inboxes * 2:
            nursery.start_soon(wait, address, token)
        await house.waiting(count=6)
        held = Held(monkeypatch, reader, look)
        for address, _ in inboxes:
            await house.deliver(address)
        await held.in_turns(6, OF_ONE)
        nursery.cancel_scope.cancel()
