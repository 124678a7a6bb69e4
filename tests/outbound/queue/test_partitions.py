"""Partitions: made ahead, dropped when past; nothing unfinished goes with them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from psycopg.conninfo import make_conninfo

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.states import Cause
from tests.conftest import VERSIONS, Clusters
from tests.outbound.node import Node, lose, put, status

OLD = datetime.now(UTC) - timedelta(days=60)


async def partitions(pool: Pool, parent: str) -> list[str]:
    """The dated partitions of a table."""
    rows = await pool.fetch(
        "SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid"
        " WHERE inhparent = to_regclass('relay.' || %s) AND c.relname ~ '_p[0-9]+$' ORDER BY 1",
        (parent,),
    )
    return [name for (name,) in rows]


async def old_message(pool: Pool, number: int) -> UUID:
    """A message of sixty days ago, in a partition of that time."""
    message_id = UUID(int=int(OLD.timestamp() * 1000) << 80 | 0x7 << 76 | 0x2 << 62 | number)
    await enqueue(
        pool, [Message(Address("a@x.org"), [Address("b@x.org")], "s", text="t")], ids=[message_id]
    )
    return message_id


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def plain_dsn(clusters: Clusters, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database whose owner is nothing else."""
    cluster = clusters.get(request.param)
    cluster.admin("DROP ROLE IF EXISTS plain")
    cluster.admin("CREATE ROLE plain LOGIN NOSUPERUSER")
    name = cluster.new_database()
    cluster.admin(f"ALTER DATABASE {name} OWNER TO plain")
    yield make_conninfo(cluster.dsn(name), user="plain")
    cluster.drop_database(name)
    cluster.admin("DROP ROLE plain")


async def test_a_role_that_only_owns_the_database_is_enough(plain_dsn: str):
    """No superuser, no extension: it migrates, queues, delivers, makes and drops partitions."""
    await migrate(plain_dsn)
    node = Node(Pool(plain_dsn))
    await put(node.pool, "a@x.example")
    await node.pool.execute("SELECT relay.outbound_partition(%s)", (OLD,))
    assert len(await node.finish(await node.claim())) == 1
    assert await node.queue.forget() == 4
    await node.pool.close()


async def test_this_week_and_the_next_two_are_there(any_pool: Pool):
    """Migration makes them; a second call makes nothing."""
    for parent in ("outbound_contents", "outbound_letters", "outbound_log", "outbound_tries"):
        assert len(await partitions(any_pool, parent)) == 3
    await any_pool.execute("SELECT relay.outbound_roll()")
    assert len(await partitions(any_pool, "outbound_log")) == 3


async def test_what_no_partition_covers_is_stored_all_the_same(node: Node):
    """A clock far off, or a reaper that did not run, refuses no mail."""
    message_id = await old_message(node.pool, 1)
    assert await status(node.pool, message_id) == "queued"
    assert len(await node.finish(await node.claim())) == 1
    assert await status(node.pool, message_id) == "sent"


async def test_old_partitions_go_when_nothing_is_left_of_them(node: Node):
    """A message that is unfinished, or finished of late, keeps its letter however old it is."""
    await node.pool.execute("SELECT relay.outbound_partition(%s)", (OLD,))
    waiting = await old_message(node.pool, 1)
    assert len(await partitions(node.pool, "outbound_letters")) == 4
    dropped = await node.queue.forget(keep=30 * 86400)
    assert dropped == 2  # log and attempts of that week
    assert len(await partitions(node.pool, "outbound_letters")) == 4
    await node.finish(await node.claim())
    assert await node.queue.forget(keep=30 * 86400) == 0
    assert await status(node.pool, waiting) == "sent"
    await node.pool.execute("UPDATE relay.outbound_log SET finished_at = %s", (OLD,))
    assert await node.queue.forget(keep=30 * 86400) == 2
    assert len(await partitions(node.pool, "outbound_letters")) == 3
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_messages") == 0


async def test_a_reader_that_stays_does_not_stop_the_queue(node: Node):
    """Dropping waits half a second for a long report, then leaves it for another time."""
    await node.pool.execute("SELECT relay.outbound_partition(%s)", (OLD,))
    (queued,) = await put(node.pool, "a@x.example")
    async with node.pool.transaction() as report:
        await report.execute("SELECT count(*) FROM relay.outbound_messages")
        assert await node.queue.forget() == 0
        claimed = await node.claim()
        assert [m.id for m in claimed] == [queued.id]
        await node.finish(claimed, Cause.DEFERRED)
    await lose(node.pool, queued.id)
    assert await node.queue.forget() == 4
