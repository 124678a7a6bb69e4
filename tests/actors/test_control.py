"""The control actor under a real supervisor: start, restart by crash, hand-over to the writer."""

from collections.abc import Mapping
from uuid import UUID

import httpx
import pytest
import trio

from actors.control import Acceptor
from actors.messages import Accept, Accepted
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, OverQuota
from relay.ids import new_id
from supervisor import Mailbox
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


class _Writer(Mailbox[Accept]):
    """A mailbox whose reader answers at once."""

    def __init__(self, outcome: Accepted) -> None:
        super().__init__("writer")
        self._outcome = outcome

    async def send(self, message: Accept) -> None:
        message.reply.settle(self._outcome)


async def test_mail_for_the_writer_is_stored_or_a_temporary_failure(pool: Pool):
    """What the writer says becomes the answer: the ids by address, or try again."""
    wanted = new_id()

    async def accept(outcome: Accepted) -> Mapping[str, UUID]:
        return await Acceptor(_Writer(outcome), pool).accept("", [(wanted, "a@b")], b"x")

    stored = await accept(Accepted({"a@b": wanted}))
    assert stored == {"a@b": wanted}
    with pytest.raises(DatabaseUnavailable):
        await accept(Accepted({}, "no database"))
    with pytest.raises(OverQuota):
        await accept(Accepted({}, full=frozenset({"a@b"})))
