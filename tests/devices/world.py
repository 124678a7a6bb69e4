"""A node's device sessions inside a test: a real store, real sockets, the tests' own peers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from relay.devices.channel import Memory
from relay.devices.intake import Intake, RecipientRates, SourceRates
from relay.devices.limits import DeviceLimits
from relay.devices.noise import KeyPair
from relay.devices.server import DeviceServer, Kind
from relay.devices.sqlite import SqliteStore
from tests.devices.peer import Peer
from tests.eventually import eventually

TTL = 3600.0


def listening() -> socket.socket:
    """Return a listening socket on a free port of this machine."""
    found = socket.create_server(("127.0.0.1", 0), backlog=1024)
    found.setblocking(False)
    return found


@dataclass
class World:
    """What a test sees: the parts, and who may connect."""

    store: SqliteStore
    server: DeviceServer
    key: KeyPair
    push_address: str
    receive_address: str
    storing: trio.CancelScope
    stopped: trio.Event
    paused: bool = False

    async def stop_store(self) -> None:
        """Stop the store under the sessions."""
        self.storing.cancel()
        await self.stopped.wait()

    async def pusher(self, source: str | None = None) -> Peer:
        """Open a push session, from an address of this machine."""
        return await Peer.pusher(self.push_address, self.key.public, source)

    async def device(self, private: bytes) -> Peer:
        """Open a receive session."""
        return await Peer.device(self.receive_address, private)

    async def until_sessions(self, push: int, receive: int) -> None:
        """Wait until so many sessions are open."""
        await eventually(
            lambda: (self.server.statistics().push, self.server.statistics().receive),
            f"{push} push and {receive} receive sessions are open",
            until=lambda seen: seen == (push, receive),
        )


@asynccontextmanager
async def world(
    path: Path,
    *,
    limits: DeviceLimits | None = None,
    rates: RecipientRates | None = None,
    sources: SourceRates | None = None,
    memory: Memory | None = None,
    **settings: object,
) -> AsyncIterator[World]:
    """Run a store in `path` (with these settings) and sessions on it."""
    store = SqliteStore(path / "devices.db", **{"ttl": TTL, **settings})  # type: ignore[arg-type]
    key = KeyPair.generate()
    server = DeviceServer(key, store, Intake(store, rates, sources=sources), limits, memory)
    with listening() as push, listening() as receive:
        async with trio.open_nursery() as outer:
            storing, stopped = trio.CancelScope(), trio.Event()

            async def run_store(task_status: trio.TaskStatus[None]) -> None:
                with storing:
                    await store.run(task_status)
                stopped.set()

            await outer.start(run_store)
            async with trio.open_nursery() as sessions:
                found = World(
                    store,
                    server,
                    key,
                    f"127.0.0.1:{push.getsockname()[1]}",
                    f"127.0.0.1:{receive.getsockname()[1]}",
                    storing,
                    stopped,
                )

                async def accept(kind: Kind, listener: socket.socket) -> None:
                    await server.accept(kind, listener, sessions, paused=lambda: found.paused)

                sessions.start_soon(accept, Kind.PUSH, push)
                sessions.start_soon(accept, Kind.RECEIVE, receive)
                yield found
                sessions.cancel_scope.cancel()
            outer.cancel_scope.cancel()
