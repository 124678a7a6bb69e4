"""A primary that freezes or is left behind, and the standby that was promoted in its place."""

import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.db.hosts import Hosts
from relay.db.lookout import Lookout
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from tests.db.bouncer import Bouncer
from tests.db.cluster import Cluster, TwoHosts
from tests.eventually import eventually


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    """A fresh pair, of the version that the test is marked with: it promotes the standby."""
    servers = TwoHosts(request.param)
    yield servers
    servers.remove()


@pytest.fixture
def frozen(server: Cluster) -> Iterator[Cluster]:
    """A server that the test may freeze."""
    yield server
    server.signal_all(signal.SIGCONT)


async def server_of(pool: Pool) -> str:
    found = await pool.fetch_value("SELECT current_setting('cluster_name')")
    assert isinstance(found, str)
    return found


async def fill(pool: Pool, count: int) -> None:
    """Have the pool keep `count` idle connections."""
    async with AsyncExitStack() as held:
        for _ in range(count):
            await held.enter_async_context(pool.connection())


@pytest.mark.parametrize("pair", [18], indirect=True)
async def test_a_frozen_primary_gives_way_to_the_one_promoted(pair: TwoHosts, tmp_path: Path):
    """Its connections are closed, busy ones too; thawed, it is not gone back to; nor by a
    relay that is started anew."""
    kept = tmp_path / "timeline"
    pool = Pool(pair.dsn, size=6, hosts=Hosts(kept))
    lookout = Lookout(pair.dsn, pool.hosts)
    assert await server_of(pool) == "old"
    await pool.execute("CREATE TABLE t (n int)")
    await fill(pool, 5)
    await lookout.look(5.0)
    ended = []

    async def commit() -> None:
        with pytest.raises(DatabaseUnavailable):
            async with pool.transaction() as conn:
                await conn.execute("INSERT INTO t SELECT 1 FROM pg_sleep(0.3)")
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await wait_all_tasks_blocked(0.05)
        pair.old.signal_all(signal.SIGSTOP)
        with pytest.raises(DatabaseUnavailable):
            await lookout.look(0.3)  # the standby takes no writes, and the other is silent
        assert not ended
        await trio.to_thread.run_sync(pair.new.promote)
        await lookout.look(5.0)
        with trio.fail_after(10):
            assert await server_of(pool) == "new"
    assert ended
    pair.old.signal_all(signal.SIGCONT)
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(_expect, pool, "new")
    lookout.close()
    await pool.close()

    await trio.to_thread.run_sync(pair.new.stop)
    for hosts in (pool.hosts, Hosts(kept)):
        again = Pool(pair.dsn, hosts=hosts)
        with pytest.raises(DatabaseUnavailable, match="an old primary that was left behind"):
            await again.fetch("SELECT 1")
    kept.unlink()
    pool = Pool(pair.dsn, hosts=Hosts(kept))
    assert await server_of(pool) == "old"
    await pool.close()


async def _expect(pool: Pool, server: str) -> None:
    async with pool.connection() as conn:
        await conn.execute("SELECT pg_sleep(0.05)")
        cursor = await conn.execute("SELECT current_setting('cluster_name')")
        assert await cursor.fetchone() == (server,)


@pytest.mark.parametrize("pair", [15], indirect=True)
async def test_a_promotion_that_nobody_announced_is_found(pair: TwoHosts):
    """The old primary serves well; a look at the other host finds the later timeline."""
    pool = Pool(pair.dsn, size=2)
    lookout = Lookout(pair.dsn, pool.hosts)
    assert await server_of(pool) == "old"
    await lookout.look(5.0)
    await lookout.look_around(5.0)
    assert await server_of(pool) == "old"
    await trio.to_thread.run_sync(pair.new.promote)
    with pytest.raises(DatabaseUnavailable):
        async with pool.connection() as conn:
            await lookout.look_around(5.0)
            await conn.execute("SELECT 1")
    assert await server_of(pool) == "new"
    await lookout.look(5.0)
    lookout.close()
    await pool.close()


@pytest.mark.parametrize("pair", [18], indirect=True)
async def test_a_pooler_that_was_turned_round_is_noticed(pair: TwoHosts):
    """It keeps our connections: a ping tells that they lead to the server that was promoted, and,
    when it is turned back, that they lead to an old primary, where nothing is written any more."""
    with Bouncer(pair.old.dsn("mail")) as bouncer:
        pool = Pool(bouncer.dsn, size=4, prepare=False)
        await fill(pool, 3)
        assert await server_of(pool) == "old"
        await trio.to_thread.run_sync(pair.new.promote)
        bouncer.turn_to(pair.new.dsn())

        async def timeline() -> int:
            await pool.ping(5.0)
            assert pool.hosts.known is not None
            return pool.hosts.known[1]

        await eventually(timeline, "the later timeline is met", until=lambda found: found == 2)
        assert await server_of(pool) == "new"
        await fill(pool, 3)
        bouncer.turn_to(pair.old.dsn())

        async def refused() -> bool:
            try:
                await pool.ping(5.0)
            except DatabaseUnavailable as error:
                assert "an old primary that was left behind" in str(error)
                return True
            return False

        await eventually(refused, "the old primary is refused")
        with pytest.raises(DatabaseUnavailable, match="left behind"):
            await server_of(pool)
        await pool.close()


async def test_a_silent_server_costs_one_time_out(frozen: Cluster):
    """After it the idle connections are asked, with a second for all, before one is used."""
    pool = Pool(frozen.dsn(), size=8)
    await fill(pool, 6)
    pool.acquire_timeout = 0.3
    frozen.signal_all(signal.SIGSTOP)
    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        await pool.fetch("SELECT 1", timeout=0.2)
    assert pool.statistics().idle == 5
    with pytest.raises(DatabaseUnavailable, match="no connection"):
        await pool.fetch("SELECT 1", timeout=60)
    assert pool.statistics().idle == 0
    frozen.signal_all(signal.SIGCONT)
    with trio.fail_after(10):
        pool.acquire_timeout = 5.0
        assert await pool.fetch_value("SELECT 1") == 1
    assert not pool.hosts.silent
    await pool.close()


async def test_a_slow_statement_does_not_cost_the_other_connections(server: Cluster):
    """A server that answers is not silent, however long one statement took."""
    pool = Pool(server.dsn(), size=4)
    await fill(pool, 3)
    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        await pool.fetch("SELECT pg_sleep(30)", timeout=0.1)
    await fill(pool, 2)
    assert (pool.statistics().opened, pool.statistics().idle) == (3, 2)
    await pool.close()


async def test_another_database_system_counts_its_own_timeline(server: Cluster, tmp_path: Path):
    """An operator who moves to another system is followed, whatever its timeline."""
    kept = tmp_path / "timeline"
    kept.write_text('{"system": 1, "timeline": 7}')
    pool = Pool(server.dsn(), hosts=Hosts(kept))
    assert await pool.fetch_value("SELECT 1") == 1
    await pool.close()
    assert '"timeline": 1' in kept.read_text()
