"""What came back is read, and waits for a message that is being delivered."""

from __future__ import annotations

import trio

from actors import returns
from relay.db.pool import Pool
from relay.ids import new_id
from relay.outbound.bounces.returned import Returned, keep
from relay.returns.paths import ReturnPaths
from tests.actors.running import becomes, running
from tests.outbound.node import Node, put
from tests.returns.samples import PATH, arf

PATHS = ReturnPaths("returns.example", lambda: (b"k" * 32,))


async def test_a_complaint_about_a_message_that_is_being_delivered_is_not_lost(pool: Pool):
    """At its own path, and at the address for complaints: read again until the 250 is recorded."""
    node = Node(pool)
    queued = await put(pool, "ada@x.example", "bob@x.example")
    messages = await node.claim()
    raw = [arf("abuse").replace(PATH.encode(), PATHS.path_of(one.id).encode()) for one in queued]
    await keep(pool, [(new_id(), queued[0].id, raw[0]), (new_id(), None, raw[1])])
    returned = Returned(pool, b"key")
    async with running(returns.run, returned=returned, paths=PATHS, sweep_every=0.05, soon=0.05):
        await becomes(pool, "SELECT min(attempt) >= 2 FROM relay.returns", True)
        assert await pool.fetch_value("SELECT count(*) FROM relay.suppressions") == 0
        with trio.CancelScope(shield=True):
            await node.finish(messages)
        await becomes(pool, "SELECT count(*) FROM relay.returns", 0)
    causes = "SELECT array_agg(address || ' ' || cause ORDER BY address) FROM relay.suppressions"
    assert await pool.fetch_value(causes) == [
        "ada@x.example complained",
        "bob@x.example complained",
    ]
