"""Running stores for the tests: either back end, with a clock that can be put forward."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from relay.db.channels import DEVICES
from relay.db.listen import Hub, Notification, notifications
from relay.db.pool import Pool
from relay.devices.postgres import PostgresStore
from relay.devices.sqlite import SqliteStore
from relay.devices.store import InboxStore

TTL = 1000.0


class SqliteHouse:
    """Stores in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 2_000_000_000.0

    def store(self, **limits: Any) -> SqliteStore:
        """A store that is not running yet."""
        return SqliteStore(self.path, ttl=TTL, clock=lambda: self.now, **limits)

    async def age(self, seconds: float) -> None:
        """Let everything grow older."""
        self.now += seconds

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Whatever the stores need besides."""
        yield


class PostgresHouse:
    """Stores in one database."""

    def __init__(self, dsn: str) -> None:
        self.pool = Pool(dsn)
        self.hub = Hub()

    def store(self, **limits: Any) -> PostgresStore:
        """A store that is not running yet."""
        return PostgresStore(self.pool, self.hub, ttl=TTL, **limits)

    async def age(self, seconds: float) -> None:
        """Let everything grow older."""
        await self.pool.execute(
            "UPDATE relay.device_inbox SET expires_at = expires_at - make_interval(secs => %s)",
            (seconds,),
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen, as the listener does."""
        listening = trio.Event()

        async def listen() -> None:
            async with aclosing(notifications(self.pool.dsn, [DEVICES])) as heard:
                async for event in heard:
                    if isinstance(event, Notification):
                        self.hub.publish(event.channel, event.payload.split(","))
                    else:
                        listening.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await listening.wait()
            yield
            nursery.cancel_scope.cancel()
        await self.pool.close()


House = SqliteHouse | PostgresHouse


@asynccontextmanager
async def running(store: InboxStore) -> AsyncIterator[InboxStore]:
    """Run a store for the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()
