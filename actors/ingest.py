"""Ingest: takes mail by SMTP and hands it to the writer.

`run` listens and serves.  With `RELAY_SMTP__PROCESSES` above 1, this process runs `hand_on`, which
accepts and passes on, and each SMTP process (`actors/ingest_main.py`) runs `run` without sockets,
on the connections that its channel brings.

Promises: what `actors/serving.py` does of the port, whoever listens.

Fails: without the writer or the database, sessions get 4xx.  A crash of `hand_on` costs no session.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

from actors.accepting import accepting_server
from actors.messages import Accept, Consult
from actors.periodic import report_when_told
from actors.serving import Connections, copied, serve
from relay.db.pool import Pool
from relay.load import Senders
from relay.log import get_logger
from relay.mailboxes.capture import Capture
from relay.ports.certificate import Certificate
from relay.ports.memory_budget import MemoryBudget
from relay.ports.proxy import Network
from relay.returns.paths import ReturnPaths
from relay.smtp.chaos import Chaos
from relay.smtp.front import Front
from relay.smtp.limits import SmtpLimits
from relay.smtp.refused import Note
from relay.smtp.server import Scheduling
from relay.smtp.shared import Anybody
from relay.storage import AMPLE, Space
from supervisor import Context, Mailbox

log = get_logger()


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    pool: Pool,
    writer: Mailbox[Accept],
    limits: SmtpLimits | None = None,
    domains: Sequence[str] = ("relay.localhost",),
    filter_: Mailbox[Consult] | None = None,
    filter_hooks: frozenset[str] = frozenset(),
    space: Space = AMPLE,
    scheduling: Scheduling | None = None,
    budget: MemoryBudget | None = None,
    capture: Capture | None = None,
    certificate: Certificate | None = None,
    proxies: Sequence[Network] = (),
    chaos: Chaos | None = None,
    connections: Connections | None = None,
    senders: Senders | None = None,
    return_paths: ReturnPaths | None = None,
    note_refused: Note | None = None,
) -> None:
    """Serve SMTP on `sockets`, which listen already and stay open, until drained.

    `filter_` is the mailbox of the operator's filter, `filter_hooks` what that filter has;
    without `space` on the disk no mail is taken; `scheduling`: how sessions wait, where it is not
    on a trampoline; `budget`: of the bytes of messages, where others share it; `capture`: whether
    mail for others' domains is taken, and anybody may sign in; `certificate`: for STARTTLS;
    `proxies`: whose connections begin with the PROXY protocol; `chaos`: faults on demand;
    `connections` serves those that come another way than by sockets, until cancelled; `senders` is
    told how many there are in all; `return_paths`: where what comes back is taken; `note_refused`
    remembers the recipients that are refused.
    """
    server, beside = accepting_server(
        pool,
        writer,
        capture=capture,
        filter_=filter_,
        filter_hooks=filter_hooks,
        limits=limits,
        domains=domains,
        space=space,
        return_paths=return_paths,
        scheduling=scheduling,
        budget=budget,
        authenticator=None if capture is None else Anybody(),
        certificate=certificate,
        proxies=proxies,
        chaos=chaos,
        note_refused=note_refused,
    )
    if senders is not None:
        senders.count_by(lambda: server.gate.open)
    await serve(ctx, server, sockets, connections=connections, beside=beside)


async def hand_on(ctx: Context, *, sockets: Sequence[socket.socket], front: Front) -> None:
    """Pass the connections on that come to `sockets`, as `front` says, until drained.

    `sockets` as in `run`.  Promises what that does, for the sessions in all processes.
    """
    with copied(sockets) as copies:
        async with trio.open_nursery() as service:
            service.start_soon(report_when_told, ctx, front.figures)
            async with trio.open_nursery() as listeners:
                for copy in copies:
                    listeners.start_soon(_pass_on, front, copy, ctx)
                ctx.ready()
                await ctx.draining.wait()
                listeners.cancel_scope.cancel()
            front.clear()
            try:
                await front.emptied()
            except trio.Cancelled:  # the time is over
                front.cut()
                raise
            service.cancel_scope.cancel()


async def _pass_on(front: Front, listener: socket.socket, ctx: Context) -> None:
    await front.accept(listener, paused=lambda: ctx.paused)
