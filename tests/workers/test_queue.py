"""Claiming skips what somebody else has locked, and waits for nobody."""

import psycopg
import trio

from relay.db.pool import Pool
from tests.outbound.node import Node, put, status


async def test_select_for_update_skip_locked(any_pool: Pool, any_database_url: str):
    """Two workers that claim beside a foreign row lock share the other messages between them.

    Neither waits for the lock, none of the messages goes to both, and the locked one stays queued
    until the lock is gone.
    """
    queued = await put(any_pool, *[f"user{number}@shop.example" for number in range(20)])
    locked = queued[7].id
    taken: dict[str, list[object]] = {"one": [], "two": []}
    with psycopg.connect(any_database_url) as other:
        other.execute("SELECT FROM relay.outbound_due WHERE id = %s FOR UPDATE", (locked,))

        async def work(name: str) -> None:
            node = Node(any_pool)
            taken[name] = [message.id for message in await node.drain(capacity=3)]

        with trio.fail_after(20):  # a claim that waited for the lock would wait for ever
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, "one")
                nursery.start_soon(work, "two")
        assert await status(any_pool, locked) == "queued"
        other.rollback()

    claimed = taken["one"] + taken["two"]
    assert len(claimed) == len(set(claimed)) == 19
    assert set(claimed) == {message.id for message in queued} - {locked}
    (late,) = await Node(any_pool).drain()
    assert late.id == locked
    assert await status(any_pool, locked) == "processing"
