"""What goes along with a call: what the relay needs, and what a proxy has asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import anyio
import pytest
from serving import fields_of, reply, serving

from relay_client import AsyncRelay, Relay

Balancer = tuple[str, list[bytes]]


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    """Answer as a relay does that has no mail, behind a balancer that sets a cookie once."""
    calls = count()

    def answers() -> bytes:
        return reply("[]") if next(calls) else reply("[]", headers={"Set-Cookie": "node=2; Path=/"})

    with serving(lambda peer, _: peer.sendall(answers())) as served:
        yield served


def look(heard: list[bytes]) -> None:
    first, second, third = map(fields_of, heard)
    assert set(first) == {"host", "accept", "accept-encoding", "user-agent", "authorization"}
    assert first["accept-encoding"] == "identity"
    assert second.pop("cookie") == third.pop("cookie") == "node=2"
    assert second == third == first


def test_a_cookie_goes_back_and_nothing_needless_goes_along(balancer: Balancer) -> None:
    """A balancer keeps a client at its node; what httpx would say besides costs each call."""
    url, heard = balancer
    with Relay(url, "rk_x") as relay:
        for _ in range(3):
            assert relay.mailbox("a@shop.example").messages() == []
    look(heard)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_asynchronous_client_sends_the_same(balancer: Balancer, backend: str) -> None:
    """On asyncio and on Trio."""
    url, heard = balancer

    async def read() -> None:
        async with AsyncRelay(url, "rk_x") as relay:
            for _ in range(3):
                assert await relay.mailbox("a@shop.example").messages() == []

    anyio.run(read, backend=backend)
    look(heard)
