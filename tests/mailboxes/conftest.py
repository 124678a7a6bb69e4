"""A store on each supported PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from relay.db.pool import Pool
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.messages import Messages
from relay.mailboxes.store import Store


@pytest.fixture
async def pool(any_database_url: str) -> AsyncIterator[Pool]:
    """A pool on a fresh database, once on each version."""
    pool = Pool(any_database_url)
    yield pool
    await pool.close()


@pytest.fixture
def store(pool: Pool) -> Store:
    """A store that receives for two domains."""
    return Store(pool, ["relay.localhost", "B.example"])


@pytest.fixture
def messages(pool: Pool) -> Messages:
    """The messages of its mailboxes."""
    return Messages(pool)


@pytest.fixture
def arrivals(pool: Pool) -> Arrivals:
    """What arrives in them."""
    return Arrivals(pool)
