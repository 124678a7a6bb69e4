"""The PostgreSQL store beyond the contract: many nodes, other people's SQL, outages."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.db.connection import connect
from relay.db.migrate import migrate
from relay.devices.postgres import PostgresStore
from relay.devices.store import StoreUnavailable
from tests.db.cluster import Cluster, binaries
from tests.devices.stores import PostgresHouse, running
from tests.devices.test_sqlite import commits

A, B = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
async def house(any_database_url: str) -> AsyncIterator[PostgresHouse]:
    """A database with somebody listening."""
    house = PostgresHouse(any_database_url)
    async with house.open():
        yield house


async def counts(house: PostgresHouse) -> list[tuple[int, int]]:
    """Blobs and bytes of each inbox, as counted and as they are; they must agree."""
    counted = await house.pool.fetch(
        "SELECT blobs, bytes FROM relay.device_inboxes WHERE blobs > 0 ORDER BY recipient"
    )
    there = await house.pool.fetch(
        """
        SELECT count(*), sum(octet_length(envelope))::int8
        FROM relay.device_inbox
        GROUP BY recipient
        ORDER BY recipient
        """
    )
    assert counted == there
    return counted


async def test_puts_at_once_share_transactions(house):
    """64 tasks with 10 Puts each make far fewer than 640 transactions."""
    async with running(house.store()) as store:
        before = commits()

        async def put() -> None:
            for _ in range(10):
                await store.put(A, b"x")

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(put)
    assert commits() - before < 160


async def test_an_id_that_commits_later_is_above(house):
    """While one node's Put is not committed, another's to the same inbox waits: no id is passed."""
    async with running(house.store()) as store, await connect(house.pool.dsn) as other:
        await other.set_autocommit(False)
        await other.execute(
            "SELECT relay.device_put(ARRAY[%s], ARRAY['first'::bytea], 100, 10, 1000)", (A,)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.put, A, b"second")
            with trio.move_on_after(0.1):
                await trio.sleep_forever()
            assert await store.flush(A) == []
            await other.commit()
        assert [blob.envelope for blob in await store.flush(A)] == [b"first", b"second"]


async def test_nodes_do_not_deadlock_and_count_right(house):
    """Two nodes put to, delete from and reap the same inboxes at once: nothing fails."""
    keys = [bytes([number]) * 32 for number in range(10)]
    one, two = house.store(), house.store()
    brief = PostgresStore(house.pool, house.hub, ttl=0.0)
    async with running(one), running(two), running(brief):

        async def use(store, number: int) -> None:
            for turn in range(12):
                key = keys[(number * 7 + turn * 3) % len(keys)]
                stored = await store.put(key, b"x" * turn)
                if turn % 3 == 0:
                    await store.delete(key, [stored.id])
                elif turn % 5 == 0:
                    await brief.put(key, b"expired at once")
                    await store.reap(5)

        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(use, (one, two)[number % 2], number)
        assert len(await counts(house)) > 0


async def test_other_peoples_sql_keeps_counts_and_wakes(house):
    """Rows inserted and deleted by hand are counted, and their device is woken."""
    async with running(house.store(max_blobs=3)) as store:
        with store.subscribe(A) as wakeups:
            await house.pool.execute(
                """
                INSERT INTO relay.device_inbox (recipient, envelope, expires_at)
                SELECT %s, 'by hand', now() + interval '1 hour' FROM generate_series(1, 3)
                """,
                (A,),
            )
            with trio.fail_after(20):
                await wakeups.wait()
        assert await counts(house) == [(3, 21)]
        await house.pool.execute("DELETE FROM relay.device_inbox")
        assert await counts(house) == []
        await store.put(A, b"x")


async def test_every_recipient_of_a_large_group_is_woken(house):
    """More keys than one notification holds are announced in several."""
    keys = [number.to_bytes(32, "big") for number in range(250)]
    async with running(house.store()) as store:
        woken = 0

        async def wait(key: bytes, task_status=trio.TASK_STATUS_IGNORED) -> None:
            nonlocal woken
            with store.subscribe(key) as wakeups:
                task_status.started()
                await wakeups.wait()
                woken += 1

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for key in keys:
                    await nursery.start(wait, key)
                for key in keys:
                    nursery.start_soon(store.put, key, b"x")
        assert woken == 250


async def test_an_outage_is_temporary(tmp_path):
    """Without its database the store starts late, refuses meanwhile, and goes on by itself."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        name = cluster.new_database()
        await migrate(cluster.dsn(name))
        house = PostgresHouse(cluster.dsn(name))
        await trio.to_thread.run_sync(cluster.stop)
        async with trio.open_nursery() as nursery:
            store = house.store()
            started = trio.Event()

            async def run() -> None:
                await nursery.start(store.run)
                started.set()

            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            with pytest.raises(StoreUnavailable):
                await store.put(A, b"x")
            await trio.to_thread.run_sync(cluster.start)
            with trio.fail_after(10):
                await started.wait()
            await store.put(A, b"x")
            await trio.to_thread.run_sync(cluster.stop)
            for call in (store.put(A, b"y"), store.flush(A), store.delete(A, [1]), store.check()):
                with pytest.raises(StoreUnavailable):
                    await call
            await trio.to_thread.run_sync(cluster.start)
            await store.put(A, b"z")
            assert [blob.envelope for blob in await store.flush(A)] == [b"x", b"z"]
            nursery.cancel_scope.cancel()
        await house.pool.close()
    finally:
        cluster.remove()
