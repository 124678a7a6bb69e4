"""What fault tests share: a primary with its standby, and a clock for what takes minutes.

The clock is Trio's and PostgreSQL's, put forward together.  Both go on at their usual pace in
between, so real sockets and real databases work as ever, and a machine that stalls for a second
costs a second of many.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from trio.testing import MockClock

from relay.db.migrate import migrate
from relay.db.pool import Pool
from tests.db.cluster import Pair, binaries

# Functions of a schema that is searched before the system's own.
CLOCK = """
    CREATE SCHEMA virtual;
    CREATE TABLE virtual.clock (ahead interval NOT NULL);
    INSERT INTO virtual.clock VALUES ('0 s');
    CREATE FUNCTION virtual.now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.now() + ahead FROM virtual.clock';
    CREATE FUNCTION virtual.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM virtual.clock';
    """


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary that does not wait yet, migrated, and its standby, not started yet."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    with Pair(bin_dir) as pair:
        trio.run(functools.partial(migrate, pair.primary.dsn()))
        yield pair


@pytest.fixture
async def clocked(database_url: str) -> AsyncIterator[Pool]:
    """A database whose clock can be put forward."""
    plain = Pool(database_url)
    async with plain.connection() as conn:
        await conn.execute(CLOCK)
    await plain.close()
    pool = Pool(f"{database_url} options='-c search_path=virtual,pg_catalog'")
    yield pool
    await pool.close()


async def forward(pool: Pool, clock: MockClock, seconds: float) -> None:
    """Let so much time pass everywhere."""
    await pool.execute(
        "UPDATE virtual.clock SET ahead = ahead + make_interval(secs => %s)", (seconds,)
    )
    clock.jump(seconds)
