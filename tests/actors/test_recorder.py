"""The recorder: a row a minute of what moved, whatever happens to the database."""

from datetime import timedelta
from typing import Any

import structlog
import trio

from actors import recorder
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.history import History, Minute
from relay.metrics import registry
from relay.smtp import responder
from tests.actors.running import becomes, logged, running
from tests.outbound.node import Node, put

assert responder  # its counter is what is recorded as received
ROWS = "SELECT count(*) FROM relay.history"
RECEIVED = "SELECT sum(received)::integer FROM relay.history"


def receive(count: int) -> None:
    """Count messages as an SMTP process does."""
    sample = ("relay_smtp_messages_total", {"outcome": "accepted"}, float(count))
    registry.add([("relay_smtp_messages", [sample])])


async def test_what_moved_is_recorded_at_the_start_and_in_the_drain(pool: Pool):
    """A row at once, so that there is one; what was counted meanwhile is not lost by a restart."""
    history = History(pool)
    await history.record()  # what this process has counted so far
    for count in (3, 0):
        await pool.execute("DELETE FROM relay.history")
        async with running(recorder.run, history=history):
            await becomes(pool, ROWS, 1)
            receive(count)
        assert await pool.fetch_value(RECEIVED) == count


async def test_two_relays_add_to_one_row(pool: Pool):
    """Counts are sums over both; what waits is counted once."""
    one, other = History(pool), History(pool)
    await one.record()
    await other.record()
    before: int = await pool.fetch_value(RECEIVED)
    await put(pool, "a@x.example", "b@x.example")
    receive(2)  # in the registry that both of them read here
    for history in (one, other):
        assert 0 < await history.record() <= 60.5
    assert await pool.fetch_value(RECEIVED) == before + 4
    minutes = await one.last(1)
    assert minutes[-1].waiting == 2
    assert (minutes[-1].oldest_due_seconds or 0) >= 0


async def test_what_is_older_than_a_day_goes_and_unfinished_mail_is_counted(pool: Pool):
    """Of the last hours only what was asked for is shown."""
    await pool.execute(
        """
        INSERT INTO relay.history
        SELECT date_trunc('minute', now()) - make_interval(hours => hours), 1, 2, 3, 4, 5, NULL
        FROM unnest(ARRAY[2, 23, 26]) hours
        """
    )
    history = History(pool)
    assert len(await history.last(24)) == 2
    await put(pool, "a@x.example")
    await Node(pool).claim()
    await history.record()
    assert await pool.fetch_value(ROWS) == 3
    first, *_, last = await history.last(24)
    assert first == Minute(first.at, 1, 2, 3, 4, 5, None)
    assert last.at - first.at > timedelta(hours=22)
    assert (last.waiting, last.oldest_due_seconds) == (0, None), "it is being delivered"
    assert len(await history.last(1)) == 1


async def test_an_outage_is_waited_out(pool: Pool):
    """Said once, and said when it is over; what was counted meanwhile is in the next row."""
    attempts: list[float] = []
    healthy = pool.fetch_value

    async def fetch_value(*arguments: Any, **values: Any) -> Any:
        if len(attempts) < 3:
            attempts.append(trio.current_time())
            raise DatabaseUnavailable("away")
        return await healthy(*arguments, **values)

    pool.fetch_value = fetch_value  # type: ignore[method-assign]  # a database that is away
    with structlog.testing.capture_logs() as lines:
        async with running(recorder.run, history=History(pool)):
            await logged(lines, "recorder.recovered")
    assert [line["event"] for line in lines].count("recorder.waits_for_database") == 1
    assert await pool.fetch_value(ROWS) >= 1
