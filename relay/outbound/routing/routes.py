"""The connections on which mail leaves: routes made of upstreams, and what is kept open to them.

Promises
- A connection is lent to one delivery at a time, newest first; one that is idle for longer than
  `IDLE` seconds is closed.
- Connections are kept by everything that makes a route: two identities never share one, and
  neither do two sources.

What a reply means is not decided here (`relay.smtp.client`), nor who may send when (`gates`).
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from urllib.parse import urlsplit

import trio

from relay.crypto import Vault
from relay.outbound.queue.claimed import Claimed
from relay.outbound.routing.senders import DIRECT, LOOP, Upstream
from relay.outbound.routing.sources import Source, Sources
from relay.smtp.auth import Credentials
from relay.smtp.client import Mail
from relay.smtp.connection import Connection, Deadlines, Route, TlsMode

IDLE = 15.0
"""Seconds that an idle connection is kept; many servers hang up after 30."""

MOST_MAILS = 1000
"""Mails after which a connection is replaced: load balancers need to be asked again some time."""

_MODES = {
    "smtp": TlsMode.NONE,
    "smtp+starttls": TlsMode.STARTTLS,
    "smtps": TlsMode.IMPLICIT,
}


def route_of(upstream: Upstream, local_name: str, *, public_only: bool = False) -> Route | None:
    """Return the way to an upstream, None for the loop.  `local_name` is what it is greeted with.

    `public_only`: it must not lead into this network.  `upstream` is what
    `relay.outbound.routing.senders.parse_upstream` returned (or stored).
    """
    if upstream.url == LOOP:
        return None
    parts = urlsplit(upstream.url)
    if parts.hostname is None or parts.port is None or parts.scheme not in _MODES:
        raise ValueError("a stored upstream is not usable")
    credentials = None
    if upstream.username is not None:
        credentials = Credentials(upstream.username, upstream.password or "")
    return Route(
        parts.hostname,
        parts.port,
        _MODES[parts.scheme],
        credentials,
        local_name,
        public_only=public_only,
    )


class Routes:
    """The way of each message: through the upstream of its sender, or the relay's own."""

    def __init__(
        self,
        upstream: Upstream,
        vault: Vault,
        local_name: str,
        deadlines: Deadlines,
        context: ssl.SSLContext | None = None,
        *,
        private_upstreams: bool = False,
        sources: Sources | None = None,
    ) -> None:
        """`upstream`: the relay's own; `local_name`: what servers are greeted with;

        `deadlines` of each delivery; `context`: from `client_tls`; `private_upstreams`: whether
        every sender's upstream may lie inside this network; `sources`: from where mail leaves, and
        by what name.
        """
        self._sources = sources or Sources()
        self._upstream = upstream
        self._vault = vault
        self._local_name = local_name
        self._deadlines = deadlines
        self._context = context
        self._private_upstreams = private_upstreams

    def is_direct(self, message: Claimed) -> bool:
        """Whether a message goes to the exchangers of its domain, and not by a route of these."""
        return (message.upstream or self._upstream.url) == DIRECT

    def key_of(self, message: Claimed) -> Hashable:
        """What tells a message's route from others; None: the relay's own."""
        source = self._source_of(message)
        if source is not None:
            shown = f"{message.upstream or 'default'} via {source.name}"
            return (message.sender_id, shown, message.username, message.password)
        if message.upstream is None:
            return None
        # The account too: who copies another's sealed password must not get their connection.
        return (message.sender_id, message.upstream, message.username, message.password)

    def connections(self, message: Claimed) -> Connections | None:
        """The connections of a message's route, none of them open yet; None: it is the loop.

        `Unreadable` if its password is, `ValueError` if its upstream is none.
        """
        upstream = self._upstream
        if message.upstream is not None:
            password = None
            if message.password is not None and message.sender_id is not None:
                password = self._vault.open(message.sender_id, message.password)
            upstream = Upstream(message.upstream, message.username, password)
        public_only = message.private is False and not self._private_upstreams
        route = route_of(upstream, self._local_name, public_only=public_only)
        if route is None:
            return None
        source = self._source_of(message)
        if source is not None:
            route = leaving_by(route, source)
        return Connections(route, self._deadlines, self._context)

    def _source_of(self, message: Claimed) -> Source | None:
        """The source that a message leaves by; None: as all mail does, or not at all."""
        if (message.upstream or self._upstream.url) == LOOP:
            return None
        return self._sources.of(message.sender)


def leaving_by(route: Route, source: Source) -> Route:
    """The same route, from a source."""
    return replace(
        route,
        local_name=source.ehlo or route.local_name,
        source=source.name,
        source_addresses=source.addresses,
    )


class Connections:
    """The open connections to one route."""

    def __init__(
        self, route: Route, deadlines: Deadlines, context: ssl.SSLContext | None = None
    ) -> None:
        """`deadlines` of each delivery; `context`: from `client_tls`, where the route needs one."""
        self.route = route
        self.secrets = route.spellings
        """What must be taken out of anything that is said here."""
        self.deadlines = deadlines
        self._context = context
        self._idle: deque[tuple[float, Connection]] = deque()  # oldest first

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    @property
    def most_mails(self) -> int:
        """Mails after which a connection is replaced."""
        return MOST_MAILS

    def suits(self, connection: Connection, mail: Mail) -> bool:
        """Whether a mail is tried on a connection: always, where there is one server only."""
        return True

    def take(self, mail: Mail) -> Connection | None:
        """Lend the connection that was used last, if one is fit for this mail."""
        passed = []
        found = None
        while self._idle and found is None:
            idle = self._idle.pop()
            if not idle[1].reusable(IDLE):
                idle[1].abort()
            elif self.suits(idle[1], mail):
                found = idle[1]
            else:
                passed.append(idle)
        self._idle.extend(reversed(passed))
        return found

    async def open(self, domain: str, mail: Mail) -> Connection:
        """Open a new one, for a mail to a domain.  Raises `OpenFailed`."""
        return await Connection.open(self.route, self.deadlines, context=self._context)

    def give_back(self, connection: Connection) -> None:
        """End a loan: keep the connection, or close it."""
        if connection.reusable(IDLE):
            self._idle.append((trio.current_time(), connection))
        else:
            connection.abort()

    async def tidy(self) -> None:
        """Close what has been idle for too long."""
        await self._quit(self._idle_for_long())

    async def close_one(self) -> None:
        """Close the one that has been idle for longest."""
        await self._quit([self._idle[0]] if self._idle else [])

    async def close(self) -> None:
        """Close all that are idle."""
        await self._quit(list(self._idle))

    def abort(self) -> None:
        """Close all that are idle, at once and saying nothing."""
        while self._idle:
            self._idle.pop()[1].abort()

    def _idle_for_long(self) -> list[tuple[float, Connection]]:
        latest = trio.current_time() - IDLE
        return [item for item in self._idle if item[0] <= latest]

    async def _quit(self, leaving: list[tuple[float, Connection]]) -> None:
        for item in leaving:
            self._idle.remove(item)
        async with trio.open_nursery() as nursery:
            for _, connection in leaving:
                nursery.start_soon(connection.quit)
