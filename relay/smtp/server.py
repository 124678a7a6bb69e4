"""The SMTP server: runs the sessions of connections, and ends those that are out of time.

Each connection is a `Session` in a task of its own: those that `accept` lets in by the door of
the port (`relay.smtp.door`), and those that somebody else has let in and hands over (`serve`).
`watch` looks at their deadlines.

Promises: `accept` lets in no more sessions than the limits say, of one peer and in all; one
session's fault ends nobody else's.

Fails: with the error of a listening socket, for supervision.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import trio

from relay.log import get_logger
from relay.ports.certificate import Certificate
from relay.ports.memory_budget import MemoryBudget
from relay.ports.peers import Guest, PortGate
from relay.ports.proxy import Network
from relay.smtp.chaos import Chaos
from relay.smtp.door import Door, served
from relay.smtp.limits import SmtpLimits
from relay.smtp.refused import Note
from relay.smtp.session import Session
from relay.smtp.shared import Authenticator, Canonical, Filter, Mailboxes, Shared, Submissions
from relay.smtp.trampoline import Trampoline
from relay.smtp.waits import Waits
from relay.storage import AMPLE, Space

log = get_logger()


class Scheduling(Protocol):
    """Makes what sessions wait through, and does the waiting."""

    def waits(self, sock: socket.socket) -> Waits:
        """For one session; `sock` is connected and does not block."""

    async def run(self) -> object:
        """Wait for all of them, until cancelled."""


class Seat(Protocol):
    """What an open connection holds until it ends (`relay.ports.peers.Place` is one)."""

    guest: Guest | None

    def leave(self) -> None:
        """Give it back."""


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
        budget: MemoryBudget | None = None,
        authenticator: Authenticator | None = None,
        certificate: Certificate | None = None,
        proxies: Sequence[Network] = (),
        chaos: Chaos | None = None,
        submissions: Submissions | None = None,
        lmtp: bool = False,
        note_refused: Note | None = None,
    ) -> None:
        """`domains`: the first names us in replies, and is postmaster's; `space`: of the disk.

        `scheduling`: how sessions wait, where not on a `Trampoline`; `budget`: of the bytes of all
        messages, where others than these sessions share it; `authenticator`, `certificate`,
        `chaos`, `submissions`, `lmtp` and `note_refused`: as `Shared` has them; `proxies`: as
        `Door` does.
        """
        self.shared = Shared(
            mailboxes,
            canonical,
            limits=limits,
            domains=domains,
            filter_=filter_,
            space=space,
            budget=budget,
            authenticator=authenticator,
            certificate=certificate,
            chaos=chaos,
            submissions=submissions,
            lmtp=lmtp,
            note_refused=note_refused,
        )
        self.limits = self.shared.limits
        port = "lmtp" if lmtp else "smtp" if submissions is None else "submission"
        self._door = Door(self.limits, lambda: self.shared.budget.used, proxies, port)
        self.scheduling = Trampoline() if scheduling is None else scheduling
        """How sessions wait.  Someone must `run` it."""
        self.sessions: set[Session] = set()
        self._some: trio.Event | None = None  # what `watch` waits for while there are no sessions

    @property
    def gate(self) -> PortGate:
        """Who counts the connections that `accept` lets in."""
        return self._door.gate

    async def accept(
        self,
        listener: socket.socket,
        nursery: trio.Nursery,
        *,
        paused: Callable[[], bool],
        tls_first: bool = False,
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled.

        `listener` listens and does not block; `tls_first`: TLS from the first byte.
        """

        def welcome(sock: socket.socket, peer: Any, seat: Seat) -> None:
            self.serve(sock, peer, seat, nursery, tls_first=tls_first)

        await self._door.accept(
            listener,
            welcome,
            paused=lambda: paused() or self.shared.draining,
            silent=tls_first,
        )

    def serve(
        self,
        sock: socket.socket,
        peer: Any,
        seat: Seat,
        nursery: trio.Nursery,
        *,
        tls_first: bool = False,
    ) -> None:
        """Start the session of a connection that was let in; `peer`: its socket address.

        `sock` is the session's from now on, and `seat` is left when it ends.
        """
        waits = self.scheduling.waits(sock)
        session = seat.guest = Session(self.shared, sock, waits, peer, tls_first=tls_first)
        self.sessions.add(session)
        if self._some is not None:
            self._some.set()
        nursery.start_soon(self._attend, session, seat)

    async def run(self) -> None:
        """Do the waiting for all sessions, until cancelled: for bytes, for time, for turns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scheduling.run)
            nursery.start_soon(self.watch)
            nursery.start_soon(self.shared.handshakes.run)

    def drain(self) -> None:
        """Say 421 now, and to those whose message is arriving when it is done."""
        self.shared.draining = True
        for session in tuple(self.sessions):
            session.drain()

    def resume(self) -> None:
        """Take sessions again after a `drain` that was not the last."""
        self.shared.draining = False

    def cut(self) -> None:
        """Say 421 to all, whatever they have in hand, and end."""
        for session in tuple(self.sessions):
            session.cut()

    def figures(self) -> dict[str, int]:
        """Return what is under way: sessions, and bytes of messages that arrive."""
        return {**self._door.figures(), "sessions": len(self.sessions)}

    async def watch(self) -> NoReturn:
        """End sessions whose peers are out of time, until cancelled.

        One look at all sessions now and then is much cheaper than a deadline
        that is moved with every command; it may be late by `tick` seconds.
        """
        limits = self.limits
        shortest = min(limits.command_timeout, limits.data_timeout, limits.transaction_timeout)
        shortest = min(shortest, limits.handshake_timeout)
        tick = min(1.0, shortest / 4)
        while True:
            if not self.sessions:
                self._some = trio.Event()
                await self._some.wait()
                self._some = None
            await trio.sleep(tick)
            now = trio.current_time()
            for session in [session for session in self.sessions if session.due <= now]:
                session.expire()
            self.shared.budget.relieve(now)

    async def _attend(self, session: Session, seat: Seat) -> None:
        try:
            await session.run()
        except Exception:
            # A fault of ours, but one session's: the others go on.
            log.exception("smtp.session_failed")
        finally:
            self.sessions.discard(session)
            seat.leave()
            served.inc()
