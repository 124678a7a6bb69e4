"""Serving a port: what ingest, lmtp, submission and pop3 share, from listening to draining.

Promises
- It serves on copies of the sockets it was given, so that ports and the queues of connections
  survive its restart.
- Paused: new sessions are turned away, open ones finish; ports and addresses stay.
- Draining: no new session; those with nothing in hand are told so and end at once, whatever they
  have said so far; what is in hand (a message that is arriving, behind DATA or BDAT; of POP3 a
  command that is obeyed) may finish, for as long as the supervisor's `drain_timeout` allows.
- Those who must go hear 421 4.3.2, from POP3 -ERR [SYS/TEMP].
- `Report` logs how many sessions are open, and the bytes that they hold.

Fails: with the error of a listening socket.  One session's error ends nothing but that session.
Without file descriptors it waits for sessions to end.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

import trio

from actors.periodic import report_when_told
from relay.smtp.server import Server
from supervisor import Context

SMTP_DRAIN = 30.0
"""Seconds that a message which is arriving may take to finish after SIGTERM."""

Connections = Callable[[Server, trio.Nursery], Awaitable[object]]
"""Has a server serve connections that come another way than by sockets, each in a nursery."""


class PortServer(Protocol):
    """The sessions of a port (`relay.smtp.server.Server`, `relay.pop3.server.Server`)."""

    async def run(self) -> None:
        """Do what sessions need besides, until cancelled."""

    async def accept(
        self,
        listener: socket.socket,
        nursery: trio.Nursery,
        *,
        paused: Callable[[], bool],
        tls_first: bool = False,
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled."""

    def drain(self) -> None:
        """End the sessions that have nothing in hand, and the others when they have not."""

    def figures(self) -> Mapping[str, object]:
        """Return what is under way."""


S = TypeVar("S", bound=PortServer)


async def serve(
    ctx: Context,
    server: S,
    sockets: Sequence[socket.socket],
    *,
    tls_sockets: Sequence[socket.socket] = (),
    connections: Callable[[S, trio.Nursery], Awaitable[object]] | None = None,
    beside: Sequence[Callable[[], Awaitable[object]]] = (),
) -> None:
    """Serve on `sockets`, which listen already and stay open, until drained.

    On `tls_sockets` TLS comes before anything is said; `connections` serves connections that come
    another way, until cancelled; `beside` runs as long as there are sessions.
    """

    async def accept(listener: socket.socket, tls_first: bool) -> None:
        await server.accept(listener, sessions, paused=lambda: ctx.paused, tls_first=tls_first)

    with copied(sockets) as plain, copied(tls_sockets) as encrypted:
        async with trio.open_nursery() as service:
            for each in beside:
                service.start_soon(each)
            service.start_soon(server.run)
            service.start_soon(report_when_told, ctx, server.figures)
            async with trio.open_nursery() as sessions, trio.open_nursery() as listeners:
                for listener in plain:
                    listeners.start_soon(accept, listener, False)
                for listener in encrypted:
                    listeners.start_soon(accept, listener, True)
                if connections is not None:
                    listeners.start_soon(connections, server, sessions)
                ctx.ready()
                await ctx.draining.wait()
                listeners.cancel_scope.cancel()
                server.drain()
            service.cancel_scope.cancel()


@contextmanager
def copied(sockets: Sequence[socket.socket]) -> Iterator[list[socket.socket]]:
    """Copies of sockets, which do not block and are closed at the end."""
    copies: list[socket.socket] = []
    try:
        for each in sockets:
            copies.append(each.dup())
            copies[-1].setblocking(False)
        yield copies
    finally:
        for copy in copies:
            copy.close()
