"""Leadership: one holder, a term that only rises, nobody fooled by a late waker."""

from uuid import uuid4

import trio

from relay.db import leases

RUN_OUT = "UPDATE relay.leases SET expires_at = now() - interval '1 second'"


async def test_one_holds_it(pool):
    """While a lease runs, no other node gets it, and the holder may ask again."""
    one, two = uuid4(), uuid4()
    lease = await leases.acquire(pool, "role", one, 30)
    assert lease is not None
    assert lease.term == 1
    assert await leases.acquire(pool, "role", two, 30) is None
    assert await leases.acquire(pool, "role", one, 30) == lease
    assert await leases.acquire(pool, "other role", two, 30) is not None


async def test_the_term_rises_with_every_holder(pool):
    """A lease that ran out goes to another node under a higher term, and renewing it fails."""
    one, two = uuid4(), uuid4()
    first = await leases.acquire(pool, "role", one, 30)
    assert first is not None
    assert await leases.renew(pool, first, 30)
    await pool.execute(RUN_OUT)
    assert not await leases.renew(pool, first, 30)
    second = await leases.acquire(pool, "role", two, 30)
    assert second is not None
    assert second.term == first.term + 1
    assert not await leases.renew(pool, first, 30)
    assert not await leases.release(pool, first)
    assert await leases.renew(pool, second, 30)


async def test_a_lease_that_ran_out_is_a_new_term_for_its_holder(pool):
    """Nobody knows what happened in between, so the old term is over for its own node too."""
    node = uuid4()
    first = await leases.acquire(pool, "role", node, 30)
    assert first is not None
    await pool.execute(RUN_OUT)
    again = await leases.acquire(pool, "role", node, 30)
    assert again is not None
    assert again.term > first.term


async def test_a_release_raises_the_term(pool):
    """After a release another node gets it at once, and the old term is worthless."""
    first = await leases.acquire(pool, "role", uuid4(), 30)
    assert first is not None
    assert await leases.release(pool, first)
    assert not await leases.renew(pool, first, 30)
    second = await leases.acquire(pool, "role", uuid4(), 30)
    assert second is not None
    assert second.term > first.term + 1


async def test_the_fence_holds_off_a_stale_leader(pool):
    """A statement with the fence works for the holder and does nothing for the one before."""
    sql = f"SELECT 1 WHERE {leases.FENCE}"
    first = await leases.acquire(pool, "role", uuid4(), 30)
    assert first is not None
    assert await pool.fetch(sql, first.fence) == [(1,)]
    await pool.execute(RUN_OUT)
    assert await pool.fetch(sql, first.fence) == []
    second = await leases.acquire(pool, "role", uuid4(), 30)
    assert second is not None
    assert await pool.fetch(sql, first.fence) == []
    assert await pool.fetch(sql, second.fence) == [(1,)]


async def test_of_many_at_once_one_wins(pool):
    """Twenty nodes that ask at the same moment get one lease between them."""
    won = []

    async def ask() -> None:
        lease = await leases.acquire(pool, "role", uuid4(), 30)
        if lease is not None:
            won.append(lease)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert len(won) == 1
