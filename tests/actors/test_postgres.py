"""The postgres actor: ready when migrated, restarted with its server, patient with others'."""

import functools
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio

from actors import postgres
from relay.db.connection import connect
from relay.db.embedded import Embedded
from relay.db.migrate import check
from relay.db.pool import Pool
from relay.errors import ConfigError
from supervisor import Backoff, ChildSpec, Supervisor, SupervisorSpec
from tests.actors.running import logged, state
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually


@asynccontextmanager
async def tree(run) -> AsyncIterator[Supervisor]:
    """The actor under a real supervisor, shut down in good order at the end of the block."""
    boss = Supervisor(rng=random.Random(1))
    child = ChildSpec(
        "postgres", run, start_timeout=60.0, backoff=Backoff(base=0.01), fatal=(ConfigError,)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boss.run, SupervisorSpec("root", (child,), max_restarts=5, within=60.0))
        yield boss
        boss.shutdown()


async def becomes(boss: Supervisor, wanted: str) -> None:
    """Wait until the actor is in that state; it may start a server for that."""
    await eventually(
        lambda: state(boss, "postgres"),
        f"it is {wanted}",
        until=lambda found: found == wanted,
        within=60.0,
    )


def embedded_actor(server: Embedded):
    pool = Pool(server.dsn)
    return functools.partial(postgres.run, server=server, dsn=server.dsn, pool=pool)


@pytest.fixture
def external() -> Iterator[Cluster]:
    """A server that is not the relay's, with a database of the name in its DSN, not started."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    yield cluster
    cluster.remove()


async def test_embedded_is_ready_when_migrated_and_stops_with_the_drain(tmp_path: Path):
    """At ready the schema is complete; after the drain the server is gone, in good order."""
    server = Embedded(tmp_path / "postgres")
    with structlog.testing.capture_logs() as lines:
        async with tree(embedded_actor(server)) as boss:
            await becomes(boss, "running")
            assert (await check(server.dsn)).pending == ()
    assert server.pid is None
    stopped = [line for line in lines if line["event"] == "postgres.stopped"]
    assert [line["status"] for line in stopped] == [0]


async def test_embedded_is_restarted_when_its_server_dies(tmp_path: Path):
    """A killed server is a crash of the actor; supervision brings both back."""
    server = Embedded(tmp_path / "postgres")
    async with tree(embedded_actor(server)) as boss:
        await becomes(boss, "running")
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(
            lambda: server.pid, "another runs", until=lambda pid: pid not in (None, first)
        )
        await becomes(boss, "running")
        async with await connect(server.dsn) as conn:
            await conn.execute("SELECT 1")


async def test_a_schema_from_the_future_ends_the_tree(tmp_path: Path):
    """ConfigError comes out of the supervisor unchanged, and the server is stopped."""
    server = Embedded(tmp_path / "postgres")
    async with tree(embedded_actor(server)) as boss:
        await becomes(boss, "running")
        async with await connect(server.dsn) as conn:
            await conn.execute("INSERT INTO relay.schema_migrations VALUES (9999, 'x', 'x')")
    boss = Supervisor(rng=random.Random(1))
    child = ChildSpec("postgres", embedded_actor(server), start_timeout=60.0, fatal=(ConfigError,))
    with trio.fail_after(60), pytest.raises(ConfigError, match="has migration 9999"):
        await boss.run(SupervisorSpec("root", (child,)))
    assert server.pid is None


async def test_external_is_waited_for_migrated_and_watched(external: Cluster):
    """Not there yet: wait; there: migrate, ready; gone and back: two log lines, no restart."""
    dsn = external.dsn()
    pool = Pool(dsn)
    actor = functools.partial(postgres.run, server=None, dsn=dsn, pool=pool, look_every=0.05)
    with structlog.testing.capture_logs() as lines:
        async with tree(actor) as boss:
            await logged(lines, "postgres.waiting")
            assert state(boss, "postgres") == "starting"
            await trio.to_thread.run_sync(external.start)
            await becomes(boss, "running")
            assert (await check(dsn)).pending == ()
            await trio.to_thread.run_sync(external.stop)
            await logged(lines, "postgres.lost")
            await trio.to_thread.run_sync(external.start)
            await logged(lines, "postgres.back")
            assert boss.tree().children[0].restarts == 0
    await pool.close()
    assert [line["event"] for line in lines].count("postgres.lost") == 1


async def test_external_can_be_drained_while_it_waits():
    """A shutdown during an outage at start does not have to wait for the outage's end."""
    dsn = "host=/nowhere user=x dbname=x"
    actor = functools.partial(postgres.run, server=None, dsn=dsn, pool=Pool(dsn))
    with trio.fail_after(20), structlog.testing.capture_logs() as lines:
        async with tree(actor) as boss:
            await logged(lines, "postgres.waiting")
            assert state(boss, "postgres") == "starting"
