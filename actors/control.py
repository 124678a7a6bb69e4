"""control: the HTTP control plane, on sockets bound before the tree.

Promises
  * Port and address survive a restart of this actor: it serves on copies of the sockets, and
    who connects meanwhile waits in their backlog.
  * Draining: no new connection; calls in hand have `GRACEFUL_TIMEOUT` to end, those that wait
    for mail are answered at once.
  * Paused, it serves on: resuming goes through it.
  * `Report` logs what the connections to the database do.

Fails: one call's error is a 500 and a log line.  Only the loss of a listening socket ends it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import trio

from actors.periodic import report_when_told
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.http.app import create_app
from relay.http.deps import MakeDeps, Serving
from relay.http.queue_gauges import QueueGauges
from relay.http.serve import MAX_CONNECTIONS, gate_of, serve
from relay.mailboxes.parser import Parser
from relay.outbound.queue.announcer import Announcer
from relay.outbound.queue.enqueue import announce
from relay.outbound.queue.lanes import any_high
from supervisor import Context

GRACEFUL_TIMEOUT = 5.0
"""Seconds that calls in hand may go on while draining; below the child's `drain_timeout`."""
_ANNOUNCE_EVERY = 0.05  # s


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    pool: Pool,
    make_deps: MakeDeps,
    connections: int = MAX_CONNECTIONS,
) -> None:
    """Serve the control plane on `sockets` until drained.

    `make_deps` makes what the calls use; `connections` is how many may be open.
    """
    # For the claimers of other processes, where none runs here.
    announcer = Announcer(partial(announce, pool), rest=_ANNOUNCE_EVERY)
    parser = Parser()  # its child starts with the first attachment, or check, that is asked for
    deps = make_deps(
        Serving(
            draining=ctx.draining,
            extract_attachment=parser.attachment,
            examine=parser.examine,
            announce=lambda due_lanes: announcer.soon(high=any_high(due_lanes)),
        )
    )
    async with parser, trio.open_nursery() as nursery:
        nursery.start_soon(report_when_told, ctx, lambda: asdict(pool.statistics()))
        nursery.start_soon(announcer.run)
        nursery.start_soon(QueueGauges(pool).run)
        nursery.start_soon(deps.sessions.run, deps.hub)
        nursery.start_soon(_tell, ctx.draining, deps.hub)
        await serve(
            create_app(deps),
            sockets,
            wait_draining=ctx.draining.wait,
            ready=ctx.ready,
            graceful_timeout=GRACEFUL_TIMEOUT,
            gate=gate_of(connections, deps.trusted_proxies),
        )
        nursery.cancel_scope.cancel()


async def _tell(draining: trio.Event, hub: Hub) -> None:
    """Wake whoever waits for mail when draining begins: they end then."""
    await draining.wait()
    hub.publish_all()
