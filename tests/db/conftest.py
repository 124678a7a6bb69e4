"""Servers of their own, for tests that stop, kill or misconfigure one."""

from collections.abc import Iterator

import pytest

from tests.db.cluster import Cluster, binaries


@pytest.fixture(scope="module", params=(18, 15), ids=lambda version: f"pg{version}")
def module_server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One server for the tests of a module, of each version; tests use `server`."""
    bin_dir = binaries(request.param)
    if bin_dir is None:
        pytest.skip(f"PostgreSQL {request.param} is not installed")
    cluster = Cluster(bin_dir)
    cluster.start()
    yield cluster
    cluster.remove()


@pytest.fixture
def server(module_server: Cluster) -> Cluster:
    """A running server that the test may stop and start."""
    if module_server.process is None:
        module_server.start()
    return module_server
