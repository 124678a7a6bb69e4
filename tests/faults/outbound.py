"""What the tests of outbound faults share: relays that are killed, and eyes on the wire.

`DatabaseProxy` stands between a relay and PostgreSQL and says when a statement is asked for, under
way, answered and heard; `wire` stands between a relay and its upstream and keeps every byte.  So
a relay dies at an exact place and nothing in it knows of tests.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.outbound.sink import Script, Sink, running_sink, well_behaved
from tests.relay_process import RelayProcess

LEASE = 2.0  # s; the shortest there is
PATIENT = {"RELAY_OUTBOUND__LEASE_TIMEOUT": "30"}
"""Of a relay for which no peer that takes mail is too slow, whatever else the machine does."""

_READY = b"Z\x00\x00\x00\x05I"  # ReadyForQuery outside a transaction: what was asked is committed


def relay_process(folder: Path, dsn: str, upstream: str, **env: str) -> RelayProcess:
    """A relay that claims and sends, on a database of others."""
    return RelayProcess(
        folder,
        env={
            "RELAY_DATABASE__URL": dsn,
            "RELAY_OUTBOUND__UPSTREAM": upstream,
            "RELAY_OUTBOUND__LEASE_TIMEOUT": str(LEASE),
            "RELAY_OUTBOUND__RETRY_UNIT": "0.1",
        }
        | env,
        arguments=("--only", "claimer,sender"),
    )


@dataclass(frozen=True)
class Way:
    """How mail leaves: by an upstream, or to the exchangers of each domain (`mx:`)."""

    sink: Sink
    upstream: str
    env: Mapping[str, str] = field(default_factory=dict)
    """Settings of a relay's process."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The same for `running_outbound`."""


@asynccontextmanager
async def ways_out(
    way: str, script: Script = well_behaved, domains: Sequence[str] = (), *, ttl: int = 60
) -> AsyncIterator[Way]:
    """A sink behind a way: `upstream`; or `mx`, where each of `domains` has a site of its own."""
    if way == "upstream":
        async with running_sink(script) as sink:
            yield Way(sink, sink.url)
        return
    zone = {
        key: [record]
        for number, domain in enumerate(domains, 2)
        for key, record in {
            (domain, "MX"): f"10 mx.{domain}.",
            (f"mx.{domain}", "A"): f"127.0.0.{number}",
        }.items()
    }
    async with trio.open_nursery() as nursery, running_sink(script, host="0.0.0.0") as sink:
        server: DnsServer = await nursery.start(DnsServer(zone, ttl=ttl).run)
        env = {
            "RELAY_OUTBOUND__PRIVATE_MX": "true",
            "RELAY_OUTBOUND__MX_PORT": str(sink.port),
            "RELAY_DNS__SERVERS": "{}:{}".format(*server.address),
        }
        resolver = Resolver([server.address])
        settings = {"private_mx": True, "mx_port": sink.port, "resolver": lambda: resolver}
        yield Way(sink, "mx:", env, settings)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def started(process: RelayProcess) -> AsyncIterator[RelayProcess]:
    """Start a relay without blocking the sink, and end it."""
    await trio.to_thread.run_sync(process.start)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.stop)


async def dead(process: RelayProcess) -> int:
    """Wait for the end of a relay that something else ends; its exit code."""
    await eventually(
        lambda: process.process is not None and process.process.poll() is not None,
        "the relay ends",
        within=60.0,
    )
    assert process.process is not None
    return int(process.process.returncode)


async def dies(process: RelayProcess) -> None:
    """Start a relay that something kills while it works, and wait for that."""
    process.spawn()
    try:
        assert await dead(process) == -signal.SIGKILL
    finally:
        process.kill()


async def finished(pool: Pool, count: int, within: float = 60) -> None:
    """Wait until so many were sent."""
    await eventually(
        lambda: sent(pool), f"{count} are sent", until=lambda n: n >= count, within=within
    )


async def sent(pool: Pool) -> int:
    """How many are recorded as sent."""
    count: int = await pool.fetch_value(
        "SELECT count(*) FROM relay.outbound_log WHERE status = 'sent'"
    )
    return count


async def lost(pool: Pool) -> int:
    """How many leases were recorded as lost."""
    count: int = await pool.fetch_value(
        "SELECT count(*) FROM relay.outbound_tries WHERE outcome = 'lost'"
    )
    return count


async def leases_run_out(pool: Pool) -> None:
    """Let every lease be over, as if its time had passed."""
    await pool.execute("UPDATE relay.outbound_due SET run_at = now() WHERE node IS NOT NULL")


async def disconnected(pool: Pool, name: str) -> None:
    """Wait until no server process works for the application `name`."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    await eventually(
        lambda: pool.fetch_value(sql, (name,)),
        f"nobody works for {name}",
        until=lambda working: working == 0,
    )


def second_copies(sink: Sink) -> int:
    """How many messages the sink took beyond one a recipient."""
    return sum(count - 1 for count in Counter(sink.recipients).values())


# Between a relay and its database ----------------------------------------------------------------

Moment = Callable[[str, str], Awaitable[bool]]
"""`(statement, when)`: `asked`, `running`, `answered` or `heard`; False: pass nothing on."""


class DatabaseProxy:
    """PostgreSQL's wire passed on byte for byte, with a word at each moment of a statement.

    A statement is known by its text, so whoever connects must not prepare
    (`RELAY_DATABASE__PREPARE=false`).
    """

    def __init__(self, dsn: str, statements: dict[str, bytes], moment: Moment) -> None:
        self._parts = conninfo_to_dict(dsn)
        self._statements = statements
        self._moment = moment
        self.port = 0

    def dsn(self, name: str) -> str:
        """How to connect through here, as the application `name`."""
        parts = {key: str(value) for key, value in self._parts.items()}
        parts |= {"host": "127.0.0.1", "port": str(self.port), "application_name": name}
        return make_conninfo("", **parts, sslmode="disable", gssencmode="disable")

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection."""
        path = f"{self._parts['host']}/.s.PGSQL.{self._parts.get('port', 5432)}"
        try:
            async with (
                client,
                await trio.open_unix_socket(path) as server,
                trio.open_nursery() as nursery,
            ):
                state = _Statement()
                nursery.start_soon(self._up, client, server, state, nursery.cancel_scope)
                nursery.start_soon(self._down, server, client, state, nursery.cancel_scope)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one of the two has gone

    async def _up(
        self,
        client: trio.SocketStream,
        server: trio.SocketStream,
        state: _Statement,
        end: trio.CancelScope,
    ) -> None:
        while data := await client.receive_some(65536):
            name = next((name for name, text in self._statements.items() if text in data), None)
            if name is not None:
                state.name, state.tail = name, b""
                if not await self._moment(name, "asked"):
                    break
            await server.send_all(data)
            if name is not None and not await self._moment(name, "running"):
                break
        end.cancel()

    async def _down(
        self,
        server: trio.SocketStream,
        client: trio.SocketStream,
        state: _Statement,
        end: trio.CancelScope,
    ) -> None:
        while data := await server.receive_some(65536):
            name = state.name
            if name is not None:
                state.tail = (state.tail + data)[-len(_READY) :]
                if state.tail != _READY:
                    name = None
            if name is not None:
                state.name = None
                if not await self._moment(name, "answered"):
                    break
            await client.send_all(data)
            if name is not None and not await self._moment(name, "heard"):
                break
        end.cancel()


@dataclass
class _Statement:
    """The statement under way on a connection, and the end of what the server has answered."""

    name: str | None = None
    tail: bytes = b""


@asynccontextmanager
async def database_proxy(
    dsn: str, statements: dict[str, bytes], moment: Moment
) -> AsyncIterator[DatabaseProxy]:
    """A `DatabaseProxy` on a free port, until the block ends."""
    proxy = DatabaseProxy(dsn, statements, moment)
    async with _listening(proxy.serve) as proxy.port:
        yield proxy


# Between a relay and its upstream ----------------------------------------------------------------


@dataclass
class Wire:
    """Every byte that went to the upstream, by connection and in all."""

    port: int = 0
    connections: list[bytearray] = field(default_factory=list)

    @property
    def heard(self) -> bytes:
        """All that the upstream was told."""
        return b"".join(map(bytes, self.connections))


@asynccontextmanager
async def wire(to: int) -> AsyncIterator[Wire]:
    """Pass connections on to the port `to`, and keep what goes there."""
    kept = Wire()

    async def serve(client: trio.SocketStream) -> None:
        heard = bytearray()
        kept.connections.append(heard)
        try:
            async with (
                client,
                await trio.open_tcp_stream("127.0.0.1", to) as server,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_pass_on, client, server, heard)
                nursery.start_soon(_pass_on, server, client, None)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with _listening(serve) as kept.port:
        yield kept


async def _pass_on(
    source: trio.SocketStream, sink: trio.SocketStream, heard: bytearray | None
) -> None:
    while data := await source.receive_some(65536):
        if heard is not None:
            heard += data
        await sink.send_all(data)
    await sink.send_eof()


@asynccontextmanager
async def _listening(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        )
        yield int(listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()
