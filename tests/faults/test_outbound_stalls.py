"""Deliveries that hang: the others arrive while they do, each once."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from relay.db.pool import Pool
from tests.eventually import eventually
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import Session, Sink, running_sink


class Hanging:
    """A script that never answers `verb` where the recipient's name begins with `hang`."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.count = 0

    async def __call__(self, session: Session, verb: str, line: str) -> bytes | None:
        about = line if verb == "RCPT" else "".join(session.recipients)
        if verb == self.verb and "hang" in about:
            self.count += 1
            await trio.sleep_forever()
        return None

    async def hang(self, count: int) -> None:
        """Wait until so many do."""
        await eventually(lambda: self.count, f"{count} hang", until=lambda n: n >= count)


async def _arrive(sink: Sink, wanted: list[str]) -> None:
    await sink.gets(len(wanted))  # those that hang do so for minutes
    assert sorted(sink.recipients) == sorted(wanted)


async def _still_hang(outbound: Outbound, pool: Pool, count: int) -> None:
    rows = await pool.fetch(
        "SELECT status FROM relay.outbound_messages WHERE recipient LIKE 'hang%%'"
    )
    assert Counter(status for (status,) in rows)["processing"] >= count


@pytest.mark.parametrize("verb", ["RCPT", "DATA", "dot"])
@pytest.mark.parametrize("domain", ["same.example", "own#.example"])
async def test_eight_that_hang_hold_up_nobody(pool: Pool, verb: str, domain: str):
    """Thirty to other destinations, sent after them, arrive while all eight hang."""
    script = Hanging(verb)
    hanging = [f"hang{n}@{domain.replace('#', str(n))}" for n in range(8)]
    wanted = [f"u{n}@other{n % 10}.example" for n in range(30)]
    async with (
        running_sink(script) as sink,
        running_outbound(
            pool, sink.url, concurrency=32, lease_timeout=300.0, drain=False
        ) as outbound,
    ):
        await put(pool, *hanging)
        outbound.wake()
        await script.hang(8)
        await put(pool, *wanted)
        outbound.wake()
        await _arrive(sink, wanted)
        await _still_hang(outbound, pool, 8)


async def test_a_destination_that_hangs_takes_no_more_than_its_share(pool: Pool):
    """With two hundred messages to it there before, others are claimed and delivered."""
    script = Hanging("RCPT")
    wanted = [f"u{n}@other{n % 10}.example" for n in range(60)]
    async with (
        running_sink(script) as sink,
        running_outbound(
            pool, sink.url, concurrency=16, lease_timeout=300.0, drain=False
        ) as outbound,
    ):
        await put(pool, *(f"hang{n}@same.example" for n in range(200)))
        outbound.wake()
        await script.hang(4)
        await put(pool, *wanted)
        outbound.wake()
        await _arrive(sink, wanted)
        await _still_hang(outbound, pool, 4)
        assert script.count < 16


@pytest.mark.parametrize("verb", ["RCPT", "dot"])
async def test_what_was_announced_behind_one_that_hangs_goes_another_way(pool: Pool, verb: str):
    """All are there at once, so each that hangs has another behind it on its connection."""
    script = Hanging(verb)
    names = [f"hang{n // 10}" if n % 10 == 0 else f"u{n}" for n in range(80)]
    wanted = [f"{name}@example.net" for name in names if not name.startswith("hang")]
    async with (
        running_sink(script) as sink,
        running_outbound(
            pool, sink.url, concurrency=32, lease_timeout=300.0, drain=False
        ) as outbound,
    ):
        await put(pool, *(f"{name}@example.net" for name in names))
        outbound.wake()
        await _arrive(sink, wanted)
        await _still_hang(outbound, pool, 8)
