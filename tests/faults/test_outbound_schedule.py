"""The retry schedule on a virtual clock: five hours of it, in the database and in the program."""

from __future__ import annotations

from itertools import pairwise

import pytest
from trio.testing import MockClock

from relay.db.pool import Pool
from tests.faults.conftest import forward
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import HangUp, Session, running_sink


async def idle(outbound: Outbound, clock: MockClock) -> None:
    """Let the relay look, and find nothing to do; takes a second of everybody's time."""
    outbound.wake()
    await outbound.at_rest()
    await forward(outbound.pool, clock, 1.0)  # between two surveys it rests, far shorter than that
    await outbound.at_rest()


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("RCPT", b"450 4.2.1 not now\r\n"),
        ("dot", b"451 4.3.0 not now\r\n"),
        ("connect", b"554 5.3.2 not now\r\n"),
        ("MAIL", b""),
    ],
    ids=["RCPT", "dot", "greeting", "hang up"],
)
async def test_ten_attempts_each_n_squared_minutes_after_the_one_before(
    virtual: MockClock, clocked: Pool, step: str, answer: bytes
):
    """1, 4, 9, … 81 minutes, each a fifth more or less and never sooner than announced; after the
    tenth attempt it has failed, with the last error."""

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb != step:
            return None
        if verb in {"connect", "MAIL"}:
            raise HangUp(answer)
        return answer

    async with (
        running_sink(script) as sink,
        running_outbound(clocked, sink.url, within=1e6) as outbound,
    ):
        (one,) = await put(clocked, "a@a.example")
        outbound.wake()
        for attempt in range(1, 10):
            _, _, wait, error = await outbound.becomes(one.id, "queued", attempt)
            assert error
            await forward(clocked, virtual, wait - 2.0)
            await idle(outbound, virtual)
            assert (await outbound.row(one.id))[:2] == ("queued", attempt)
            await forward(clocked, virtual, 1.0)
        _, _, _, error = await outbound.becomes(one.id, "failed", 10)
        await forward(clocked, virtual, 86_400.0)
        await idle(outbound, virtual)
        assert (await outbound.row(one.id))[:2] == ("failed", 10)
    assert answer.decode().strip() in error
    instants = await clocked.fetch(
        "SELECT at FROM relay.outbound_attempts WHERE message_id = %s ORDER BY attempt", (one.id,)
    )
    waits = [(later - sooner).total_seconds() for (sooner,), (later,) in pairwise(instants)]
    assert len(waits) == 9
    for attempt, wait in enumerate(waits, 1):
        # Real time passes too, a little.
        assert 0.8 * attempt**2 * 60 <= wait <= 1.2 * attempt**2 * 60 + 15
    assert len(set(waits)) == 9
    assert not sink.received
