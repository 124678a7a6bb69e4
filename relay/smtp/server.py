"""The SMTP server: lets connections in, and ends those that are out of time.

A `Server` accepts, each connection a `Session` in a task of its own, and watches their deadlines.

Promises: no more sessions than the limits say, of one peer and in all (`relay.peers`); one
session's fault ends nobody else's; whoever is not let in is told why, in one line.

Fails: with the error of a listening socket, for supervision.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import trio
from prometheus_client import Counter, Gauge

from relay.connections import accept
from relay.log import get_logger
from relay.metrics import registry
from relay.peers import Place, PortGate, TurnedAway
from relay.smtp.limits import SmtpLimits
from relay.smtp.session import Session
from relay.smtp.shared import Canonical, Filter, Mailboxes, Shared
from relay.smtp.trampoline import Trampoline
from relay.smtp.waits import Waits
from relay.storage import AMPLE, Space
from relay.throttle import Throttle

log = get_logger()

_NOT_LET_IN = {
    TurnedAway.PEER: "421 4.7.0 Too many connections from your address",
    TurnedAway.FULL: "421 4.3.2 Too many connections, try again later",
    TurnedAway.PAUSED: "421 4.3.2 Paused, try again later",
}

_SESSIONS = Counter(
    "relay_smtp_sessions",
    "SMTP connections, by what became of them.",
    ["outcome"],
    registry=registry,
)
_served, _refused = _SESSIONS.labels("served"), _SESSIONS.labels("refused")
_OPEN = Gauge("relay_smtp_sessions_open", "SMTP sessions open now.", registry=registry)
_BUFFERED = Gauge(
    "relay_smtp_buffered_bytes", "Bytes of messages in flight now.", registry=registry
)


class Scheduling(Protocol):
    """Makes what sessions wait through, and does the waiting."""

    def waits(self, sock: socket.socket) -> Waits:
        """For one session; `sock` is connected and does not block."""

    async def run(self) -> object:
        """Wait for all of them, until cancelled."""


class Server:
    """The sessions of one relay.  Build it inside Trio or out; it starts nothing."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        canonical: Canonical,
        *,
        limits: SmtpLimits | None = None,
        domains: Sequence[str] = ("relay.localhost",),
        filter_: Filter | None = None,
        space: Space = AMPLE,
        scheduling: Scheduling | None = None,
    ) -> None:
        """`domains`: the first names us in replies, and is postmaster's; `space`: of the disk.

        `scheduling`: how sessions wait, where not on a `Trampoline`.
        """
        self.shared = Shared(
            mailboxes, canonical, limits=limits, domains=domains, filter_=filter_, space=space
        )
        self.limits = self.shared.limits
        self.gate = PortGate(
            "smtp",
            self.limits.max_connections,
            self.limits.max_connections_per_peer,
            local_per_peer=self.limits.max_connections_per_peer,
            patience=self.limits.idle_patience,
        )
        self.scheduling = Trampoline() if scheduling is None else scheduling
        """How sessions wait.  Someone must `run` it."""
        self.sessions: set[Session] = set()
        self._refusals = Throttle(1.0)
        _OPEN.set_function(lambda: self.gate.open)
        _BUFFERED.set_function(lambda: self.shared.budget.used)

    async def accept(
        self, listener: socket.socket, nursery: trio.Nursery, *, paused: Callable[[], bool]
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled.

        `listener` listens and does not block.
        """

        def welcome(sock: socket.socket, peer: Any, place: Place) -> None:
            session = place.guest = Session(self.shared, sock, self.scheduling.waits(sock), peer)
            self.sessions.add(session)
            nursery.start_soon(self._attend, session, place)

        await accept(
            listener,
            self.gate,
            welcome=welcome,
            turn_away=self._turn_away,
            starved="smtp.accept_failed",
            paused=lambda: paused() or self.shared.draining,
        )

    def drain(self) -> None:
        """Say 421 now, and to those whose message is arriving when it is done."""
        self.shared.draining = True
        for session in tuple(self.sessions):
            session.drain()

    def figures(self) -> dict[str, int]:
        """Return what is under way: sessions, and bytes of messages that arrive."""
        return {"sessions": self.gate.open, "buffered_bytes": self.shared.budget.used}

    async def watch(self) -> NoReturn:
        """End the sessions whose peers are out of time, until cancelled.

        One look at all of them now and then is much cheaper than a deadline that is moved with
        every command; it may be late by `tick` seconds.
        """
        limits = self.limits
        shortest = min(limits.command_timeout, limits.data_timeout, limits.transaction_timeout)
        tick = min(1.0, shortest / 4)
        while True:
            await trio.sleep(tick)
            now = trio.current_time()
            for session in [session for session in self.sessions if session.due <= now]:
                session.expire()

    def _turn_away(self, sock: socket.socket, peer: Any, why: TurnedAway) -> None:
        """Refuse a connection: no task, no object, no line in the log for each of a flood."""
        _refused.inc()
        reply = _NOT_LET_IN[why]
        if self._refusals.ready():
            log.warning("smtp.refused", peer=str(peer[0]), reply=reply)
        with contextlib.suppress(OSError):  # it is gone already
            sock.send(reply.encode() + b"\r\n")

    async def _attend(self, session: Session, place: Place) -> None:
        try:
            await session.run()
        except Exception:
            # A fault of ours, but one session's: the others go on.
            log.exception("smtp.session_failed")
        finally:
            self.sessions.discard(session)
            place.leave()
            _served.inc()
