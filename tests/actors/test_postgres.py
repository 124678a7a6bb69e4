"""The postgres actor: ready when migrated, restarted with its server, patient with others'."""

import functools
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio

from actors import postgres
from relay.db.connection import connect
from relay.db.embedded import Embedded
from relay.db.listen import Notification, Reconnected, notifications
from relay.db.migrate import check
from relay.db.pool import Pool
from relay.errors import ConfigError
from supervisor import Backoff, ChildSpec, Supervisor, SupervisorSpec
from tests.actors.running import logged, state
from tests.db.bouncer import Bouncer
from tests.db.cluster import Cluster, TwoHosts, binaries
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


@pytest.fixture
def pair() -> Iterator[TwoHosts]:
    """A fresh pair: the test promotes the standby."""
    servers = TwoHosts(18)
    yield servers
    servers.remove()


async def test_behind_a_pooler_the_servers_of_the_direct_url_are_looked_at(pair: TwoHosts):
    """A standby is promoted while the old primary lives: the listener goes over, though the pooler
    keeps the pool's connections and was not turned round yet."""
    with Bouncer(pair.old.dsn("mail")) as bouncer:
        pool = Pool(bouncer.dsn, size=2, prepare=False)
        actor = functools.partial(
            postgres.run, server=None, dsn=pair.dsn, pool=pool, look_every=0.1
        )
        async with (
            tree(actor) as boss,
            aclosing(notifications(pair.dsn, ["news"], hosts=pool.hosts)) as heard,
        ):
            await becomes(boss, "running")
            assert await anext(heard) == Reconnected(first=True)
            await trio.to_thread.run_sync(pair.new.promote)
            with trio.fail_after(10):
                assert await anext(heard) == Reconnected(first=False)
            async with await connect(pair.new.dsn("mail")) as promoted:
                await promoted.execute("NOTIFY news, 'here'")
            with trio.fail_after(10):
                assert await anext(heard) == Notification("news", "here")
        await pool.close()


async def test_behind_a_pooler_its_server_is_asked_for_its_timeline(pair: TwoHosts):
    """The direct URL names one host, the pooler is turned round to the promoted one: the listener
    leaves the old primary, and finds it refused."""
    with Bouncer(pair.old.dsn("mail")) as bouncer:
        pool = Pool(bouncer.dsn, size=2, prepare=False)
        dsn = pair.old.dsn("mail")
        actor = functools.partial(postgres.run, server=None, dsn=dsn, pool=pool, look_every=0.1)
        with structlog.testing.capture_logs() as lines:
            async with tree(actor) as boss, trio.open_nursery() as nursery:

                async def listen() -> None:
                    async with aclosing(notifications(dsn, ["news"], hosts=pool.hosts)) as heard:
                        async for _ in heard:
                            listening.set()

                listening = trio.Event()
                await becomes(boss, "running")
                nursery.start_soon(listen)
                await listening.wait()
                await trio.to_thread.run_sync(pair.new.promote)
                bouncer.turn_to(pair.new.dsn())
                await logged(lines, "db.promoted")
                await logged(lines, "db.listen_lost")
                await logged(lines, "db.old_primary")
                nursery.cancel_scope.cancel()
        await pool.close()
