"""A queue on a database of the test's own, on each supported PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from relay.db.pool import Pool
from tests.outbound.node import Node


@pytest.fixture
async def any_pool(any_database_url: str) -> AsyncIterator[Pool]:
    """A pool on a fresh database, on each PostgreSQL."""
    pool = Pool(any_database_url)
    yield pool
    await pool.close()


@pytest.fixture
def node(any_pool: Pool) -> Node:
    """One relay's view of the queue."""
    return Node(any_pool)
