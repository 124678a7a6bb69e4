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
from typing import Any

import trio
from aiosmtpd.smtp import Envelope, Session

from actors.accepting import hand_over_nowait
from actors.messages import Accept, Consult
from actors.periodic import report_when_told
from actors.serving import Arrivals, copied, serve
from relay.accepted import Accepted, Origin
from relay.addresses import canonical
from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.futures import Future
from relay.ids import new_id
from relay.load import Senders
from relay.log import get_logger
from relay.mailboxes.accept import Lookups
from relay.mailboxes.capture import Capture
from relay.smtp.chaos import Chaos
from relay.smtp.front import Front
from relay.smtp.limits import MemoryBudget, SmtpLimits
from relay.smtp.proxy import Network
from relay.smtp.server import Scheduling, Server
from relay.smtp.shared import Anybody
from relay.storage import AMPLE, Space
from relay.tls import Certificate
from supervisor import Context, Mailbox

log = get_logger()


class _Mailboxes:
    """What sessions see of the database: a shared look-up, and the writer's mailbox."""

    def __init__(self, lookups: Lookups, writer: Mailbox[Accept], capture: Capture | None) -> None:
        self.find = lookups.find
        self._writer = writer
        self._capture = capture

    def store(
        self,
        reverse_path: str,
        recipients: Sequence[str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        named = tuple((new_id(), address) for address in recipients)
        if self._capture is None:
            message = Accept(reverse_path, named, raw, admitted=True, origin=origin)
        else:
            message = Accept(
                reverse_path,
                named,
                raw,
                admitted=True,
                captured=self._capture.among(recipients),
                login=str(login) if login else None,
                origin=origin,
            )
        return hand_over_nowait(self._writer, message)


class _Filter:
    """What sessions see of the operator's filter: the mailbox of the actor that runs it."""

    def __init__(self, mailbox: Mailbox[Consult], hooks: frozenset[str]) -> None:
        self.hooks = hooks
        self._mailbox = mailbox

    async def ask(
        self, hook: str, session: Session, envelope: Envelope, arguments: tuple[Any, ...]
    ) -> object:
        message = Consult(hook, session, envelope, arguments)
        try:
            self._mailbox.send_nowait(message)
        except trio.WouldBlock:
            raise TemporaryFailure("the filter is behind") from None
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise TemporaryFailure("the filter has ended") from error
        return await message.reply.wait()


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
    arrivals: Arrivals | None = None,
    senders: Senders | None = None,
) -> None:
    """Serve SMTP on `sockets`, which listen already and stay open, until drained.

    `filter_` is the mailbox of the operator's filter, `filter_hooks` what that filter has;
    without `space` on the disk no mail is taken; `scheduling`: how sessions wait, where it is not
    on a trampoline; `budget`: of the bytes of messages, where others share it; `capture`: whether
    mail for others' domains is taken, and anybody may sign in; `certificate`: for STARTTLS;
    `proxies`: whose connections begin with the PROXY protocol; `chaos`: faults on demand;
    `arrivals` serves connections that come another way than by sockets, until cancelled; `senders`
    is told how many connections there are.
    """
    lookups = Lookups(pool, captures=None if capture is None else capture.takes)
    server = Server(
        _Mailboxes(lookups, writer, capture),
        canonical,
        limits=limits,
        domains=domains,
        filter_=None if filter_ is None else _Filter(filter_, filter_hooks),
        space=space,
        scheduling=scheduling,
        budget=budget,
        sign_in=None if capture is None else Anybody(),
        certificate=certificate,
        proxies=proxies,
        chaos=chaos,
    )
    if senders is not None:
        senders.count_by(lambda: server.gate.open)
    await serve(ctx, server, sockets, arrivals=arrivals, beside=[lookups.run])


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
