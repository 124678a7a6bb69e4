"""A queue on a database of the test's own, on each supported PostgreSQL."""

import pytest

from relay.db.pool import Pool
from tests.outbound.node import Node


@pytest.fixture
def node(any_pool: Pool) -> Node:
    """One relay's view of the queue."""
    return Node(any_pool)
