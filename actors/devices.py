"""The device sessions: clients push blobs, devices receive theirs.

Promises:
- It serves on copies of the sockets it was given, so ports and backlogs survive its restart.
- Paused: new connections are closed at once, sessions that are open go on; ports and addresses
  stay.
- Draining: no new session; receive sessions end (what is not acknowledged comes again); pushes
  in hand are answered, for `drain` seconds at most.
- `Report` logs how many sessions are open.

Fails: one session's error ends that session.  The store is another actor's (device_store):
without it pushes get a temporary Error and devices are told to come again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict

import trio

from actors.periodic import report_when_told
from relay import metrics
from relay.devices.server import DeviceServer, Kind
from supervisor import Context


async def run(
    ctx: Context,
    *,
    server: DeviceServer,
    push_sockets: Sequence[socket.socket],
    receive_sockets: Sequence[socket.socket],
) -> None:
    """Serve sessions on sockets that listen already and stay open, until drained."""
    copies = [
        (kind, one.dup())
        for kind, sockets in ((Kind.PUSH, push_sockets), (Kind.RECEIVE, receive_sockets))
        for one in sockets
    ]
    gathered = _gather(server)
    server.open()
    try:
        async with trio.open_nursery() as sessions, trio.open_nursery() as listeners:
            for kind, copy in copies:
                copy.setblocking(False)
                listeners.start_soon(_accept, ctx, server, kind, copy, sessions)
            listeners.start_soon(report_when_told, ctx, lambda: asdict(server.statistics()))
            ctx.ready()
            await ctx.draining.wait()
            listeners.cancel_scope.cancel()
            server.drain()
            sessions.cancel_scope.deadline = trio.current_time() + server.limits.drain
    finally:
        metrics.registry.unregister(gathered)
        for _, copy in copies:
            copy.close()


async def _accept(
    ctx: Context,
    server: DeviceServer,
    kind: Kind,
    listener: socket.socket,
    sessions: trio.Nursery,
) -> None:
    await server.accept(kind, listener, sessions, paused=lambda: ctx.paused)


def _gather(server: DeviceServer) -> metrics.Collector:
    """Let each scrape read how many sessions are open."""

    def rows() -> metrics.Rows:
        now = server.statistics()
        yield "push", {"relay_devices_sessions": float(now.push)}
        yield "receive", {"relay_devices_sessions": float(now.receive)}

    return metrics.gather(
        {"relay_devices_sessions": "Device sessions that are open, by kind."}, "kind", rows
    )
