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
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial

import trio

from actors.accepting import Acceptor
from actors.commands import Commands
from actors.messages import Accept
from actors.periodic import report_when_told
from relay import __version__
from relay.access.keys import Keys
from relay.datadir import Keyring
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.inbox import DeviceInbox
from relay.errors import DatabaseUnavailable
from relay.http.app import create_app
from relay.http.deps import (
    Deps,
    Fetch,
    Limits,
    Logs,
    ReadyCheck,
    WakeOutbound,
)
from relay.http.fetch import fetch as fetch_https
from relay.http.fetch import fetch_object
from relay.http.page_sessions import PageSessions
from relay.http.queue_gauges import QueueGauges
from relay.http.serve import MAX_CONNECTIONS, gate_of, serve
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.budget import Budget
from relay.lifecycle.consumption import Consumption
from relay.lifecycle.report import report
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parser
from relay.mailboxes.s3 import Buckets
from relay.mailboxes.store import Store
from relay.outbound.admin import QueueAdmin
from relay.outbound.announcer import Announcer
from relay.outbound.enqueue import Enqueued, announce, enqueue
from relay.outbound.gates import Gates
from relay.outbound.lanes import any_high
from relay.outbound.message import Message
from relay.outbound.right_of_way import RightOfWay
from relay.outbound.senders import Senders
from relay.outbound.suppressions import Suppressions
from relay.storage import AMPLE, Space
from relay.webhooks.store import Webhooks
from supervisor import Context, Mailbox, Supervisor

GRACEFUL_TIMEOUT = 5.0
"""Seconds that calls in hand may go on while draining; below the child's `drain_timeout`."""
_ANNOUNCE_EVERY = 0.05  # s


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    pool: Pool,
    store: Store,
    keys: Keys,
    hub: Hub,
    writer: Mailbox[Accept],
    supervision: Supervisor,
    logs: Logs,
    admin_token_hash: bytes,
    keyring: Keyring,
    node: str = "",
    wake_outbound: WakeOutbound | None = None,
    right_of_way: RightOfWay | None = None,
    gates: Gates | None = None,
    private_webhooks: bool = False,
    private_upstreams: bool = False,
    public_url: str = "",
    other_urls: Sequence[str] = (),
    return_url: str = "",
    connections: int = MAX_CONNECTIONS,
    anonymous_rate: float = 0.0,
    trusted_proxies: Collection[str] = (),
    budget: Budget | None = None,
    sns_topics: Sequence[str] = (),
    buckets: Buckets | None = None,
    max_message_bytes: int = 26_214_400,
    fetch: Fetch = fetch_https,
    limits: Limits | None = None,
    devices: DeviceInbox | None = None,
    ready_checks: Sequence[ReadyCheck] = (),
    space: Space = AMPLE,
) -> None:
    """Serve the control plane on `sockets` until drained.

    `node` names this relay from one start to the next, for the sessions of the operator's page;
    `public_url` is the address that people see, `other_urls` are further ones that name this relay,
    `return_url` is where the pages of mailed links lead afterwards, `sns_topics` the topics whose
    mail is taken, `buckets` where such mail may lie, of `max_message_bytes` at most;
    `wake_outbound` tells this process's claimer of what was queued (None: none runs here),
    `right_of_way` is what high mail has over other in this process's sender; `private_webhooks`
    lets webhooks name private addresses, `private_upstreams` every sender a server inside this
    network; `connections` is how many may be open; `anonymous_rate` is how many calls a second an
    address without a key may make, `trusted_proxies` whose word on that address counts; `budget` is
    the collectors', to be shown; `devices` is this node's device inbox, if any; without `space` on
    the disk nothing is queued.
    """
    # For the claimers of other processes, where none runs here.
    announcer = Announcer(partial(announce, pool), rest=_ANNOUNCE_EVERY)
    sessions = PageSessions(pool, keys, admin_token_hash=admin_token_hash, node=node)
    parser = Parser()  # its child starts with the first attachment that somebody downloads
    app = create_app(
        Deps(
            store=store,
            messages=Messages(pool),
            arrivals=Arrivals(pool),
            keys=keys,
            sessions=sessions,
            hub=hub,
            accept=Acceptor(writer, pool).accept,
            attachment=parser.attachment,
            supervision=Commands(supervision),
            logs=logs,
            admin_token_hash=admin_token_hash,
            draining=ctx.draining,
            enqueue=_Enqueuer(pool, right_of_way).enqueue,
            queue_admin=QueueAdmin(pool),
            senders=Senders(pool, keyring.vault, private_upstreams=private_upstreams),
            suppressions=Suppressions(pool),
            keyring=keyring,
            webhooks=Webhooks(pool),
            accounts=Accounts(pool),
            consumption=Consumption(pool, lambda: keyring.signing),
            collector=partial(report, pool, budget),
            private_webhooks=private_webhooks,
            wake_outbound=wake_outbound or (lambda lanes: announcer.soon(high=any_high(lanes))),
            destinations=lambda: [] if gates is None else gates.statistics(trio.current_time()),
            devices=devices,
            ready_checks=(
                _Database(pool).check,
                *(() if devices is None else (devices.check,)),
                *ready_checks,
            ),
            space=space,
            public_url=public_url,
            other_urls=other_urls,
            return_url=return_url,
            anonymous_rate=anonymous_rate,
            trusted_proxies=trusted_proxies,
            sns_topics=sns_topics,
            buckets=buckets,
            fetch_object=fetch_object,
            max_message_bytes=max_message_bytes,
            fetch=fetch,
            version=__version__,
            # The last quarter of the connections is for calls that are answered and gone.
            limits=limits or Limits(streams=max(1, connections * 3 // 4)),
        )
    )

    async with parser, trio.open_nursery() as nursery:
        nursery.start_soon(report_when_told, ctx, lambda: asdict(pool.statistics()))
        nursery.start_soon(announcer.run)
        nursery.start_soon(QueueGauges(pool).run)
        nursery.start_soon(sessions.run, hub)
        await serve(
            app,
            sockets,
            wait_draining=ctx.draining.wait,
            ready=ctx.ready,
            graceful_timeout=GRACEFUL_TIMEOUT,
            gate=gate_of(connections, trusted_proxies),
        )
        nursery.cancel_scope.cancel()


class _Enqueuer:
    """Queues mail, and clears the way for high mail as soon as it is known to come."""

    def __init__(self, pool: Pool, right_of_way: RightOfWay | None) -> None:
        self._pool = pool
        self._right_of_way = right_of_way

    async def enqueue(
        self, messages: Sequence[Message], *, key: str | None = None, key_hash: bytes | None = None
    ) -> Enqueued:
        if self._right_of_way is not None and any(
            message.priority == "high" and message.send_at is None for message in messages
        ):
            # If nothing comes of it after all, it is over in a moment.
            self._right_of_way.expect(trio.current_time())
        return await enqueue(self._pool, messages, key=key, key_hash=key_hash)


class _Database:
    """The readiness of PostgreSQL, asked by a statement."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def check(self) -> str | None:
        try:
            await self._pool.fetch_value("SELECT 1", timeout=2.0)
        except DatabaseUnavailable:
            return "PostgreSQL does not answer"
        return None
