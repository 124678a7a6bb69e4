"""What every test may ask for: real PostgreSQL servers, a fresh database each, a pool.

- `database_url`: a migrated database of the test's own, on PostgreSQL 18.
- `any_database_url`: the same, once on 18 and once on 15 where that is installed.
- `pool`, `any_pool`: a `relay.db.pool.Pool` on `database_url`, on `any_database_url`.
- `virtual`: a clock for Trio that the test may put forward.
- `relay`: the program itself, running; one for the session, so make mailboxes of your own.

The servers start at first use and live as long as the session.  With `CI` set, a skip is a
failure: what the tests need is installed there.
"""

import functools
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from inspect import iscoroutinefunction
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import structlog
import trio
from httpx._transports import default
from trio.testing import MockClock

from relay.db.migrate import migrate
from relay.db.pool import Pool
from tests.db.cluster import Cluster, binaries
from tests.relay_process import RelayProcess

VERSIONS = (18, 15)
HANGS = 0.8  # of its time-out, after which an asynchronous test is cancelled
TEMPLATE = "relay_template"
BROWSERS = Path(__file__).with_name("browser")

# Each client of httpx reads whom all the world trusts, TLS or none: 26 ms, which is longer than
# what most tests ask takes.  Here they are read once.
default.create_ssl_context = functools.cache(  # type: ignore[attr-defined]
    default.create_ssl_context  # type: ignore[attr-defined]
)


def pytest_configure() -> None:
    """End at SIGTERM and SIGHUP as at Ctrl-C: relays and servers that were started are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    then = signal.getsignal(signal.SIGINT)  # Trio's own while it runs
    if not callable(then):
        raise KeyboardInterrupt
    then(signal.SIGINT, frame)


def _fail_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Turn skips into failures in CI."""
    report = yield
    _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item):
    """Cancel an asynchronous test that hangs, while that can be: the time-out of all tests leaves
    Trio's loop where it is, and no other asynchronous test of the process could run."""
    if (
        isinstance(item, pytest.Function)
        and iscoroutinefunction(item.obj)
        and not hasattr(item.obj, "hypothesis")
        # By a clock of its own, seconds mean nothing.
        and not any(isinstance(value, MockClock) for value in item.funcargs.values())
    ):
        item.obj = _limited(item.obj, HANGS * _timeout(item))
    return (yield)


def _timeout(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0])
    given = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if given is None else given) or inf


def _limited(
    test: Callable[..., Awaitable[None]], seconds: float
) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(**arguments: Any) -> None:
        with trio.fail_after(seconds):
            await test(**arguments)

    return limited


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Turn skipped modules into failures in CI."""
    report = yield
    _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage in what stays: ten thousand tests, and all that they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests of a browser from elsewhere: `make test` looks for them in one folder."""
    for item in items:
        if item.get_closest_marker("browser") and BROWSERS not in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid} drives a browser: move it to tests/browser")


class Clusters:
    """The session's servers, by major version, started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[int, Cluster] = {}

    def get(self, version: int) -> Cluster:
        """The server of that version, with the migrated template database in it."""
        if version not in self._running:
            bin_dir = binaries(version)
            if bin_dir is None:
                pytest.skip(f"PostgreSQL {version} is not installed")
            cluster = Cluster(bin_dir)
            self._running[version] = cluster
            cluster.start()
            cluster.admin(f"CREATE DATABASE {TEMPLATE}")
            trio.run(functools.partial(migrate, cluster.dsn(TEMPLATE)))
        return self._running[version]

    def close(self) -> None:
        """Stop and delete them all."""
        for cluster in self._running.values():
            cluster.remove()


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A test that configures the log, or runs a command that does, does it for itself alone."""
    before = structlog.get_config()
    before = {**before, "processors": list(before["processors"])}
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """The session's PostgreSQL servers."""
    found = Clusters()
    yield found
    found.close()


def _database(cluster: Cluster) -> Iterator[str]:
    name = cluster.new_database(TEMPLATE)
    yield cluster.dsn(name)
    cluster.drop_database(name)


@pytest.fixture
def database_url(clusters: Clusters) -> Iterator[str]:
    """The DSN of a fresh, migrated database on PostgreSQL 18."""
    yield from _database(clusters.get(18))


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def any_database_url(clusters: Clusters, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a fresh, migrated database on each supported PostgreSQL."""
    yield from _database(clusters.get(request.param))


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool on `database_url`."""
    pool = Pool(database_url)
    yield pool
    await pool.close()


@pytest.fixture
async def any_pool(any_database_url: str) -> AsyncIterator[Pool]:
    """A pool on `any_database_url`."""
    pool = Pool(any_database_url)
    yield pool
    await pool.close()


@pytest.fixture
def virtual() -> MockClock:
    """Trio's clock: it goes on at its usual pace, and jumps when it is told to."""
    return MockClock(rate=1.0)


@pytest.fixture(scope="session")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A running relay on a temporary directory and free ports, shared by the session's tests."""
    with RelayProcess(tmp_path_factory.mktemp("relay") / "data", forked=False) as process:
        yield process
        assert process.stop() == 0, f"after all that, no clean stop:\n{process.log_tail()}"
