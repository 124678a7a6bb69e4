"""The control actor under a real supervisor: start, restart, end."""

import httpx
import pytest
import trio

from relay.db.pool import Pool
from tests.http.conftest import open_house


async def test_it_serves_after_ready_and_stops_cleanly(database_url: str, pool: Pool):
    """Ready means that a call is answered; after the drain nobody listens to it."""
    async with open_house(database_url, pool) as house:
        assert (await house.client.get("/readyz")).status_code == 200
        port = house.port
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as client:
            await client.get(f"http://127.0.0.1:{port}/healthz")


async def test_readiness_names_an_actor_that_is_not_running(database_url: str, pool: Pool):
    """While an actor drains for its restart, /readyz is a 503 that says which."""
    async with open_house(database_url, pool) as house:
        await house.supervisor.restart("control")
        with trio.fail_after(20):
            while (answer := await house.client.get("/readyz")).status_code == 503:
                assert "Not ready" in answer.json()["detail"]
        assert answer.json() == {"status": "ready"}
