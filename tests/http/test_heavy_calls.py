"""Searches and long lists take turns, so that those of one owner leave the relay to others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from relay.http.heavy_calls import AT_ONCE, OF_ONE, SHORT
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.messages import Messages
from tests.http.conftest import House


class Slowly:
    """In place of a query: the query, a moment later, and how many of it ran at once."""

    def __init__(self, query: Callable[..., Awaitable[Any]]) -> None:
        self._query = query
        self._running = 0
        self.most = 0

    def __get__(self, reader: object, _: type) -> Callable[..., Awaitable[Any]]:
        return partial(self._run, reader)

    async def _run(self, *args: Any, **named: Any) -> Any:
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            await trio.sleep(0.05)
            return await self._query(*args, **named)
        finally:
            self._running -= 1


async def test_pages_of_whole_messages_take_turns_too(house: House, monkeypatch):
    """Two of one caller at once, until they are written; every call is answered."""
    slow = Slowly(Messages.whole_page)
    monkeypatch.setattr(Messages, "whole_page", slow)
    address, token = await house.mailbox()
    await house.deliver(address)
    url = f"/api/v1/mailboxes/{address}/messages?whole=true"
    codes: list[int] = []

    async def ask() -> None:
        codes.append((await house.client.get(url, headers=token)).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert slow.most == OF_ONE
    assert codes == [200] * 8


async def test_long_pages_take_turns_too(house: House, monkeypatch):
    """Of more entries than a list gives to who says nothing of how many; others do not."""
    slow = Slowly(Messages.page)
    monkeypatch.setattr(Messages, "page", slow)
    address, token = await house.mailbox()
    codes: list[int] = []

    async def ask(limit: int) -> None:
        url = f"/api/v1/mailboxes/{address}/messages?limit={limit}"
        codes.append((await house.client.get(url, headers=token)).status_code)

    for limit, at_once in ((SHORT + 1, OF_ONE), (SHORT, 6)):
        slow.most = 0
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask, limit)
        assert slow.most == at_once
    assert set(codes) == {200}


async def test_searches_run_a_few_at_a_time_and_lists_never_wait(house: House, monkeypatch):
    """Two of one owner, three of all but the administrator; every call is answered."""
    slow = Slowly(AllMessages.page)
    monkeypatch.setattr(AllMessages, "page", slow)
    keys = [await house.key("read") for _ in range(4)]
    codes: list[int] = []

    async def ask(key: dict[str, str], params: dict[str, str]) -> None:
        answer = await house.client.get("/api/v1/messages", params=params, headers=key)
        codes.append(answer.status_code)

    for asked, params, at_once in (
        (keys[:1] * 8, {"q": "nowhere"}, OF_ONE),
        (keys * 3, {"q": "nowhere"}, AT_ONCE - 1),
        (keys[:1] * 8, {"limit": f"{SHORT + 1}"}, OF_ONE),
    ):
        slow.most = 0
        async with trio.open_nursery() as nursery:
            for key in asked:
                nursery.start_soon(ask, key, params)
        assert slow.most == at_once
    slow.most = 0
    async with trio.open_nursery() as nursery:
        for key in keys[:1] * 8:
            nursery.start_soon(ask, key, {})
    assert slow.most > AT_ONCE
    assert set(codes) == {200}
