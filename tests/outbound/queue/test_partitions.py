"""Partitions: made ahead, dropped when past; nothing unfinished goes with them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import trio
from psycopg.conninfo import make_conninfo

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.states import Cause
from tests.actors.running import blocked
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


PARENTS = ("outbound_contents", "outbound_letters", "outbound_log", "outbound_tries")


async def by_default(pool: Pool, count: int = 1) -> None:
    """So many rows of sixty days ago in each default partition."""
    await pool.execute(
        """
        INSERT INTO relay.outbound_contents_rest (id, sender, subject, size)
        SELECT (left(relay.uuidv7_floor(%(at)s)::text, 24) || to_char(n, 'FM000000000000'))::uuid,
               'a@x.org', 'subject', 10
        FROM generate_series(1, %(count)s) n
        """,
        {"at": OLD, "count": count},
    )
    await pool.execute(
        """
        INSERT INTO relay.outbound_letters_rest (id, content_id, owner, recipient, address, domain,
                                                 priority)
        SELECT id, id, owner, 'b@x.org', 'b@x.org', 'x.org', 1 FROM relay.outbound_contents_rest
        """
    )
    await pool.execute(
        """
        INSERT INTO relay.outbound_log_rest (id, finished_at, token, attempt, status)
        SELECT id, %s, 1, 1, 'sent' FROM relay.outbound_contents_rest
        """,
        (OLD,),
    )
    await pool.execute(
        """
        INSERT INTO relay.outbound_tries_rest (message_id, at, attempt, outcome)
        SELECT id, %s, 1, 'queued' FROM relay.outbound_contents_rest
        """,
        (OLD,),
    )


async def counted(pool: Pool, suffix: str) -> list[int]:
    """The rows of each table, or of its partition."""
    return [
        await pool.fetch_value(f"SELECT count(*) FROM relay.{parent}{suffix}") for parent in PARENTS
    ]


async def test_what_the_default_partitions_hold_of_a_week_moves_into_its_own(any_pool: Pool):
    """Each once, all columns as they were, laid out as any other week's."""
    await by_default(any_pool, 3)
    (other,) = await put(any_pool, "a@x.example")
    tables = [f"SELECT to_jsonb(r) FROM relay.{parent} r ORDER BY 1" for parent in PARENTS]
    before = [await any_pool.fetch(sql) for sql in tables]
    assert await any_pool.fetch_value("SELECT relay.outbound_partition(%s)", (OLD,)) == 4
    assert [await any_pool.fetch(sql) for sql in tables] == before
    assert await counted(any_pool, "_rest") == [0] * 4
    week = (await partitions(any_pool, "outbound_log"))[0].removeprefix("outbound_log")
    assert await counted(any_pool, week) == [3] * 4
    assert await status(any_pool, other.id) == "queued"
    options = "SELECT reloptions FROM pg_class WHERE relname = %s"
    made = await any_pool.fetch_value(options, (f"outbound_contents{week}",))
    assert made == ["toast_tuple_target=8160"]


async def test_a_week_with_too_much_by_default_stays_there(any_pool: Pool):
    """Nobody waits while it moves: what is past goes row by row, and the other weeks are made."""
    await by_default(any_pool)
    await any_pool.execute("UPDATE relay.outbound_contents_rest SET size = 64 * 1024 * 1024 + 1")
    assert await any_pool.fetch_value("SELECT relay.outbound_partition(%s)", (OLD,)) == 3
    assert await counted(any_pool, "_rest") == [1, 0, 0, 0]
    assert await any_pool.fetch_value("SELECT relay.outbound_roll()") == 3
    assert await counted(any_pool, "") == [0] * 4


async def test_a_writer_waits_while_rows_move_and_is_not_refused(any_pool: Pool):
    """What it writes of that week then goes into the new partition."""
    await by_default(any_pool)
    async with trio.open_nursery() as nursery, any_pool.transaction() as roll:
        await roll.execute("SELECT relay.outbound_partition(%s)", (OLD,))
        nursery.start_soon(old_message, any_pool, 7)
        await blocked(any_pool)
    assert await counted(any_pool, "_rest") == [0] * 4
    assert await counted(any_pool, "") == [2, 2, 1, 1]


async def test_a_week_that_cannot_be_made_does_not_stop_the_others(any_pool: Pool):
    """Nor any from being dropped."""
    await any_pool.execute("SELECT relay.outbound_partition(%s)", (OLD,))
    names = await partitions(any_pool, "outbound_log")
    for name in names[1:]:
        await any_pool.execute(f"DROP TABLE relay.{name}")
    # A type of its name, which a table would have, too.
    await any_pool.execute(f"CREATE TYPE relay.{names[1]} AS ENUM ()")
    assert await any_pool.fetch_value("SELECT relay.outbound_roll()") == 4
    assert await partitions(any_pool, "outbound_log") == names[2:]
