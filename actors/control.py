"""control: the HTTP control plane, on sockets bound before the tree.

Promises
  * Port and address survive a restart of this actor: it serves on copies of the sockets, and
    who connects meanwhile waits in their backlog.
  * Draining: no new connection; calls in hand have `GRACEFUL_TIMEOUT` to end, those that wait
    for mail are answered at once.
  * Paused, it serves on: resuming goes through it.  Its inbox is never used, since calls
    arrive by HTTP.

Fails: one call's error is a 500 and a log line.  Only the loss of a listening socket ends it.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

import trio

from actors.letters import Accept, Accepted, Reply
from relay import __version__
from relay.datadir import Keyring
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.desk import DeviceDesk
from relay.errors import DatabaseUnavailable
from relay.http.app import create_app
from relay.http.deps import (
    Deps,
    Fetch,
    Limits,
    Logs,
    ReadyCheck,
    Supervision,
    WakeOutbound,
)
from relay.http.fetch import fetch as fetch_https
from relay.http.serve import serve
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.budget import Budget
from relay.lifecycle.consumption import Consumption
from relay.lifecycle.report import report
from relay.mailboxes.keys import Keys
from relay.mailboxes.parser import Parser
from relay.mailboxes.store import Store
from relay.outbound.desk import Desk
from relay.outbound.enqueue import announce, enqueue
from relay.outbound.gates import Gates
from relay.outbound.lanes import Strip
from relay.outbound.senders import Senders
from relay.outbound.suppressions import Suppressions
from relay.outbound.webhooks import Webhooks
from supervisor import Context, Mailbox

GRACEFUL_TIMEOUT = 5.0
"""Seconds that calls in hand may go on while draining; below the child's `drain_timeout`."""
_BEAT_EVERY = 5.0  # s
_ANNOUNCE_EVERY = 0.05  # s; a notification takes a lock that all writers share


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    pool: Pool,
    store: Store,
    keys: Keys,
    hub: Hub,
    writer: Mailbox[Accept],
    supervision: Supervision,
    logs: Logs,
    admin_token_hash: bytes,
    keyring: Keyring,
    wake_outbound: WakeOutbound | None = None,
    gates: Gates | None = None,
    private_webhooks: bool = False,
    private_upstreams: bool = False,
    public_url: str = "",
    anonymous_rate: float = 0.0,
    trusted_proxies: Collection[str] = (),
    budget: Budget | None = None,
    sns_topics: Sequence[str] = (),
    fetch: Fetch = fetch_https,
    limits: Limits | None = None,
    devices: DeviceDesk | None = None,
    ready_checks: Sequence[ReadyCheck] = (),
) -> None:
    """Serve the control plane on `sockets` until drained.

    `public_url` is the address that people see, `sns_topics` the topics whose mail is taken;
    `wake_outbound` tells this process's claimer of what was queued (None: none runs here);
    `private_webhooks` lets webhooks name private addresses, `private_upstreams` every sender a
    server inside this network; `anonymous_rate` is how many calls a second an address without a
    key may make, `trusted_proxies` whose word on that address counts; `budget` is the collectors',
    to be shown; `devices` is this node's device inbox, if any.
    """
    announcer = _Announcer(pool)
    parser = Parser()  # its child starts with the first attachment that somebody downloads
    app = create_app(
        Deps(
            store=store,
            keys=keys,
            hub=hub,
            accept=_Acceptor(writer).accept,
            attachment=parser.attachment,
            supervision=supervision,
            logs=logs,
            admin_token_hash=admin_token_hash,
            draining=ctx.draining,
            enqueue=partial(enqueue, pool),
            desk=Desk(pool),
            senders=Senders(pool, keyring.vault, private_upstreams=private_upstreams),
            suppressions=Suppressions(pool),
            keyring=keyring,
            webhooks=Webhooks(pool),
            accounts=Accounts(pool),
            consumption=Consumption(pool, lambda: keyring.signing),
            collector=partial(report, pool, budget),
            private_webhooks=private_webhooks,
            wake_outbound=wake_outbound or announcer.wake,
            destinations=lambda: [] if gates is None else gates.statistics(trio.current_time()),
            devices=devices,
            ready_checks=(
                _Database(pool).check,
                *(() if devices is None else (devices.check,)),
                *ready_checks,
            ),
            public_url=public_url,
            anonymous_rate=anonymous_rate,
            trusted_proxies=trusted_proxies,
            sns_topics=sns_topics,
            fetch=fetch,
            version=__version__,
            limits=limits or Limits(),
        )
    )

    async def beat() -> None:
        async for _ in ctx.every(_BEAT_EVERY):
            ctx.beat()

    async with parser, trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        nursery.start_soon(announcer.run)
        await serve(
            app,
            sockets,
            wait_draining=ctx.draining.wait,
            ready=ctx.ready,
            graceful_timeout=GRACEFUL_TIMEOUT,
        )
        nursery.cancel_scope.cancel()


class _Acceptor:
    """Hands mail to the writer and waits until it is durable."""

    def __init__(self, writer: Mailbox[Accept]) -> None:
        self._writer = writer

    async def accept(
        self, reverse_path: str, recipients: Sequence[tuple[UUID, str]], raw: bytes
    ) -> Mapping[str, UUID]:
        reply: Reply[Accepted] = Reply()
        try:
            await self._writer.send(Accept(reverse_path, tuple(recipients), raw, reply))
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise DatabaseUnavailable("the writer has ended") from error
        accepted = await reply.wait()
        if accepted.error is not None:
            raise DatabaseUnavailable(accepted.error)
        return accepted.stored


class _Announcer:
    """Tells the claimers of other processes what was queued here, where none runs here."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._queued = trio.Event()

    def wake(self, strips: Collection[Strip]) -> None:
        self._queued.set()

    async def run(self) -> None:
        while True:
            await self._queued.wait()
            self._queued = trio.Event()
            with suppress(DatabaseUnavailable):  # their sweeps find it
                await announce(self._pool)
            await trio.sleep(_ANNOUNCE_EVERY)


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
