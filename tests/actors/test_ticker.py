"""The ticker: flips on time, alone, in batches, and survives what can be lost."""

from uuid import uuid4

import pytest
import structlog
import trio

from actors import ticker
from actors.messages import SweepNow, Wake
from relay.db import leases
from relay.db.migrate import migrate
from relay.db.pool import Pool
from tests.actors.running import at_rest, becomes, logged, make_mailbox, running, undisturbed
from tests.db.cluster import Cluster, binaries

ACTIVE = "SELECT count(*) FROM relay.mailboxes WHERE is_active"


async def test_flips_what_was_due_at_the_start(pool):
    """Whatever came due while nobody ran is flipped at once, the rest left alone."""
    await make_mailbox(pool, -5, count=3)
    alive = await make_mailbox(pool, 600)
    async with running(ticker.run, pool=pool):
        await becomes(pool, ACTIVE, 1)
    assert await pool.fetch_value("SELECT id FROM relay.mailboxes WHERE is_active") == alive
    assert await pool.fetch_value(
        "SELECT bool_and(closed_at >= expires_at) FROM relay.mailboxes WHERE NOT is_active"
    )


async def test_sleeps_until_the_earliest_expiry(pool):
    """A mailbox is flipped when it is due, with no message and long before the sweep."""
    await make_mailbox(pool, 0.3)
    async with running(ticker.run, pool=pool):
        await becomes(pool, ACTIVE, 0)
    assert await pool.fetch_value("SELECT closed_at >= expires_at FROM relay.mailboxes")


async def test_a_message_announces_an_earlier_expiry(pool):
    """A mailbox made while the ticker sleeps is flipped in time once a message has said so."""
    async with running(ticker.run, pool=pool, sweep_every=3600.0) as (_, mailbox):
        await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
        await make_mailbox(pool, 0.2)
        due = await pool.fetch_value(
            "SELECT extract(epoch FROM expires_at)::float8 FROM relay.mailboxes"
        )
        await mailbox.send(Wake(due_at=due))
        await becomes(pool, ACTIVE, 0)


async def test_a_lost_message_costs_a_sweep(pool):
    """Without any message the next sweep finds what has come due."""
    async with running(ticker.run, pool=pool, sweep_every=0.1):
        await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
        await make_mailbox(pool, -1)
        await becomes(pool, ACTIVE, 0)


async def test_sweeps_on_command(pool):
    """An operator's command sweeps at once."""
    async with running(ticker.run, pool=pool, sweep_every=3600.0) as (_, mailbox):
        await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
        await make_mailbox(pool, -1)
        await mailbox.send(SweepNow())
        await becomes(pool, ACTIVE, 0)


async def test_paused_it_flips_nothing(pool, virtual):
    """While paused it leaves mailboxes alone; resumed, it catches up."""
    async with running(ticker.run, pool=pool, sweep_every=1.0) as (supervisor, _):
        await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
        supervisor.pause("actor")
        await at_rest(pool)  # whatever was under way has ended
        await make_mailbox(pool, -1)
        virtual.jump(5.0)
        await at_rest(pool)
        assert await pool.fetch_value(ACTIVE) == 1
        supervisor.resume("actor")
        await becomes(pool, ACTIVE, 0)


async def test_of_two_one_leads(pool):
    """Two tickers on one database: one acquires the lease, the other changes nothing."""
    first, second = ticker.Ticker(pool, lease_ttl=30), ticker.Ticker(pool, lease_ttl=30)
    await first.turn(undisturbed())
    await make_mailbox(pool, -1)
    assert await second.turn(undisturbed()) == pytest.approx(10)
    assert second.lease is None
    assert await pool.fetch_value(ACTIVE) == 1
    first.heed([SweepNow()])
    await first.turn(undisturbed())
    assert await pool.fetch_value(ACTIVE) == 0


async def test_takes_over_from_a_dead_leader(pool):
    """When the leader has fallen silent for its lease, another leads under a higher term."""
    dead = await leases.acquire(pool, "ticker", uuid4(), 0.3)
    assert dead is not None
    await make_mailbox(pool, -1)
    async with running(ticker.run, pool=pool, lease_ttl=0.6):
        await becomes(pool, ACTIVE, 0)
        assert await pool.fetch_value("SELECT term FROM relay.leases") > dead.term


async def test_a_stale_leader_changes_nothing(pool):
    """A leader that slept through its lease finds its statements fenced."""
    stale = ticker.Ticker(pool, lease_ttl=30)
    await stale.turn(undisturbed())
    await pool.execute("UPDATE relay.leases SET expires_at = now() - interval '1 second'")
    await leases.acquire(pool, "ticker", uuid4(), 30)
    await make_mailbox(pool, -1)
    stale.heed([SweepNow()])
    await stale.turn(undisturbed())
    assert await pool.fetch_value(ACTIVE) == 1


async def test_a_drained_leader_releases(pool):
    """After a clean stop another node leads without waiting for the lease to run out."""
    async with running(ticker.run, pool=pool, lease_ttl=30.0):
        await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
    assert await leases.acquire(pool, "ticker", uuid4(), 30) is not None


async def test_flips_many_in_batches(pool):
    """Twenty thousand mailboxes that expire together go in many short statements."""
    await make_mailbox(pool, -1, count=20_000)
    one = ticker.Ticker(pool, lease_ttl=30)
    await one.turn(undisturbed())
    assert await pool.fetch_value(ACTIVE) == 0
    batches = await pool.fetch("SELECT count(*) FROM relay.mailboxes GROUP BY closed_at")
    assert len(batches) > 4
    assert max(count for (count,) in batches) <= 4000


async def test_comes_back_to_locked_rows(pool, mock_clock):
    """A row that somebody's transaction held is flipped soon after it is free."""
    held = await make_mailbox(pool, -1)
    await make_mailbox(pool, -1)
    async with pool.transaction() as conn:
        await conn.execute("SELECT FROM relay.mailboxes WHERE id = %s FOR UPDATE", (held,))
        one = ticker.Ticker(pool, lease_ttl=30, sweep_every=3600)
        assert await one.turn(undisturbed()) < 0.1
        assert await pool.fetch_value(ACTIVE) == 1
    await one.turn(undisturbed())
    assert await pool.fetch_value(ACTIVE) == 1  # not yet its time again
    mock_clock.jump(0.1)
    await one.turn(undisturbed())
    assert await pool.fetch_value(ACTIVE) == 0


async def test_a_later_expiry_costs_no_query(pool, mock_clock):
    """A message that announces something later than what is planned changes nothing.

    The database's clock goes on where Trio's stands: whoever asked it again would plan anew.
    """
    await make_mailbox(pool, 600)
    one = ticker.Ticker(pool, lease_ttl=3000, sweep_every=3000)
    before = await one.turn(undisturbed())
    due = await pool.fetch_value(
        "SELECT extract(epoch FROM expires_at)::float8 FROM relay.mailboxes"
    )
    one.heed([Wake(due_at=due + 100)])
    assert await one.turn(undisturbed()) == before
    one.heed([Wake(due_at=due - 100)])
    assert await one.turn(undisturbed()) == pytest.approx(before - 100)


async def test_survives_an_outage():
    """With the database gone it waits, says so once, and goes on when it is back."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    await trio.to_thread.run_sync(cluster.start)
    try:
        await migrate(cluster.dsn())
        pool = Pool(cluster.dsn(), acquire_timeout=1.0)
        async with running(ticker.run, pool=pool, lease_ttl=0.6) as (supervisor, _):
            await becomes(pool, "SELECT count(*) FROM relay.leases WHERE expires_at > now()", 1)
            await make_mailbox(pool, 0.5)
            with structlog.testing.capture_logs() as lines:
                await trio.to_thread.run_sync(cluster.stop)
                await logged(lines, "ticker.waits_for_database")
            await trio.to_thread.run_sync(cluster.start)
            await becomes(pool, ACTIVE, 0)
            (child,) = supervisor.tree().children
            assert child.restarts == 0
        await pool.close()
    finally:
        cluster.remove()
