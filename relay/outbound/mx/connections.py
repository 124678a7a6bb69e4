"""The connections to a site: which exchanger is tried, and how each is secured.

Promises
- Exchangers are tried in their order within one attempt, as long as nothing of a mail was sent:
  whoever refuses, breaks off or is silent while a connection is opened (5xx at the greeting, too)
  is followed by the next, until `MOST_TRIED` have failed or one delivery's deadline is over.
- An exchanger that failed is tried after the others for `SHUN` seconds.
- A mail goes to the first exchanger that takes it as it is.  One that lacks what a mail needs is
  passed over for this mail, whatever its preference (RFC 8689, 4.2.1; a server behind it may have
  what it lacks), and takes others'; what it offers is remembered for `OFFERED` seconds, so that
  nobody is connected to only to hear it again.  So many may be asked in one attempt as a domain has
  (`MOST_EXCHANGERS`): a mail fails only if all lack it.
- Only the addresses that were looked up and checked are connected to, IPv6 and IPv4 raced.
- TLS is what the site's policy says (`relay.outbound.mx.policy` has the table): opportunistic, it
  is used wherever it is offered, whatever the certificate, and only where STARTTLS is refused or
  breaks is the mail sent in clear, over a new connection.  Where a policy asks for more, what fails
  of that names the policy.
- Where a receiver is given so many connections, idle ones of its other sites count: before a new
  one is opened that would be too many, the one that has been idle for longest is closed.  One that
  is told goodbye after `IDLE` seconds counts until it is closed.

What a mail needs is one law for REQUIRETLS (in verified TLS), SMTPUTF8, 8BITMIME and SIZE
(`relay.smtp.client.Offer`), and so is what follows for a mail that no exchanger has taken:

| the domain's exchangers                              | then                                      |
|------------------------------------------------------|-------------------------------------------|
| all have answered, and each lacks something of it    | fails, with the code of the first         |
| some lack something, others could not be connected   | is deferred, with the same code of class  |
| to or secured                                        | 4, and says who could not be asked        |
| some lack something; the addresses or TLSA records   | likewise                                  |
| of others are not known for now (SERVFAIL)           |                                           |
| it must go by verified TLS; whether the domain has a | likewise                                  |
| policy to verify by is not known for now             |                                           |
| none could be connected to or secured                | is deferred, as all mail                  |

Fails with `OpenFailed`, which has the outcome of the last exchanger that was tried: deferred; and
with `Unsuited`, whose outcome is the mail's alone.
"""

from __future__ import annotations

import math
import random
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import trio

from relay.log import get_logger
from relay.outbound.active_queue.dispatch import Group
from relay.outbound.mx.exchangers import Exchanger, in_order
from relay.outbound.mx.policy import UNMET, Published, Security, TlsPolicy
from relay.outbound.mx.sites import Site
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from relay.outbound.routing.routes import MOST_MAILS, Connections, leaving_by
from relay.outbound.routing.sources import Source
from relay.smtp.client import Mail, Offer, Outcome, Peer, Phase, Verdict
from relay.smtp.connection import (
    Connection,
    Deadlines,
    OpenFailed,
    Route,
    TlsMode,
    opportunistic_tls,
)
from relay.smtp.tls_faults import TlsFault

log = get_logger()

MOST_TRIED = 5
"""Exchangers that fail in one attempt: no more are tried then."""

SHUN = 60.0
"""Seconds for which an exchanger that failed is tried last."""

UNSECURED = "4.7.5"
"""The enhanced status code where TLS is not as a policy asks (RFC 3463, 3.8)."""

OFFERED = 60.0
"""Seconds for which it is believed that an exchanger still lacks what it did not offer."""

CONNECT = 15.0
"""Seconds to connect to one exchanger, all its addresses together: there may be another."""

_MANY = 64  # sites of which it is looked who has idle connections still


class Unsuited(OpenFailed):
    """No exchanger takes a mail as it is; the way is not in trouble.

    The outcome is `FAILED`, or `DEFERRED` where one that may take it could not be asked.
    """


class Shared:
    """What the connections to all sites of one receiver have in common."""

    __slots__ = ("__weakref__", "_closed", "_closing", "_idle", "group", "most_mails")

    def __init__(self, group: Group, most_mails: Callable[[], int]) -> None:
        """`most_mails()`: after so many mails a connection is replaced."""
        self.group = group
        self.most_mails = most_mails
        self._idle: dict[SiteConnections, None] = {}  # who may have idle ones, longest first
        self._closing = 0  # that were idle, and no place of the group's waits for their end
        self._closed = trio.lowlevel.ParkingLot()

    def is_idle(self, connections: SiteConnections) -> None:
        """One of theirs may be idle from now on."""
        if self.group.room(trio.current_time()) == math.inf:
            return
        self._idle.pop(connections, None)
        self._idle[connections] = None
        if len(self._idle) > _MANY:
            self._idle = {one: None for one in self._idle if len(one)}

    async def make_room(self) -> None:
        """Close idle ones until those that work may all be open."""
        while self._idle or self._closing:
            room = self.group.room(trio.current_time())
            if sum(map(len, self._idle)) + self._closing <= room:
                break
            if not self._idle:
                await self._closed.park()
                continue
            first = next(iter(self._idle))
            if len(first) <= 1:
                del self._idle[first]
            await first.close_one()

    @contextmanager
    def closing(self, count: int) -> Iterator[None]:
        """So many are closed in the block, and count until its end."""
        self._closing += count
        try:
            yield
        finally:
            self._closing -= count
            self._closed.unpark_all()


class Reporting(NamedTuple):
    """What is counted for reports of TLS."""

    results: TlsResults
    published: Callable[[str, str], Published]
    """What a domain has published about an exchanger."""


class _Session(NamedTuple):
    """How a connection was secured, and whose mail it was counted for."""

    host: str
    peer: Peer
    fault: str
    domains: set[str]


class _Heard(NamedTuple):
    """What an exchanger has offered."""

    offer: Offer
    peer: Peer
    at: float


class SiteConnections(Connections):
    """The open connections to one site."""

    def __init__(
        self,
        site: Site,
        port: int,
        local_name: str,
        deadlines: Deadlines,
        rng: random.Random,
        context: ssl.SSLContext | None = None,
        reporting: Reporting | None = None,
        shared: Shared | None = None,
        source: Source | None = None,
        last_site: Callable[[str], Site | None] = lambda _domain: None,
    ) -> None:
        """`port` of every exchanger; `local_name`: what they are greeted with; `deadlines` of each
        delivery; `context`: from `opportunistic_tls`, None makes one; `reporting`: None for none;
        `shared` with other sites of the receiver; `source`: from where, and by what name;
        `last_site`: what was found for a domain last, None: it is not known any more.
        """
        self._last_site = last_site
        self._heard: dict[str, _Heard] = {}  # of exchangers that lacked something, by name
        self._reporting = reporting
        self._sessions: WeakKeyDictionary[Connection, _Session] = WeakKeyDictionary()
        route = Route(site.exchangers[0].name, port, local_name=local_name)
        if source is not None:
            route = leaving_by(route, source)
        super().__init__(route, replace(deadlines, connect=min(deadlines.connect, CONNECT)))
        self.site = site
        """Where the next connection leads: its exchangers' addresses may change."""
        self._rng = rng
        self._any_certificate = context or opportunistic_tls()
        self._failed: dict[str, float] = {}  # since when
        self._shared = shared

    @property
    def most_mails(self) -> int:
        """Mails after which a connection is replaced."""
        return MOST_MAILS if self._shared is None else self._shared.most_mails()

    def give_back(self, connection: Connection) -> None:
        """End a loan: keep the connection, or close it."""
        super().give_back(connection)
        if self._shared is not None:
            self._shared.is_idle(self)

    async def tidy(self) -> None:
        """Close what has been idle for too long."""
        leaving = self._idle_for_long()
        with nullcontext() if self._shared is None else self._shared.closing(len(leaving)):
            await self._quit(leaving)

    def used(self, domain: str, connection: Connection) -> None:
        """A connection takes mail of a domain: it is a session of it, once.

        Not told of reports of TLS, each would make another (RFC 8460, 3), nor of what goes as they
        do: no policy was followed.
        """
        session = self._sessions.get(connection)
        if self._reporting is not None and session is not None and domain not in session.domains:
            session.domains.add(domain)
            self._count(domain, session.host, session.peer, session.fault)

    def _count(self, domain: str, host: str, peer: Peer, fault: str) -> None:
        if self._reporting is not None:
            published = self._reporting.published(domain, host)
            source = peer.source if fault else ""
            result = TlsResult(domain, published, fault, host, _address(peer), source)
            self._reporting.results.count(result)

    def suits(self, connection: Connection, mail: Mail) -> bool:
        """Whether the exchanger at the other end takes a mail as it is."""
        return connection.offer.lacking(mail) is None

    async def open(self, domain: str, mail: Mail) -> Connection:
        """Open a connection to the first exchanger that can be spoken to and takes this mail.

        Raises `OpenFailed`, and `Unsuited` where what was asked takes no such mail.
        """
        began = trio.current_time()
        self._failed = {name: at for name, at in self._failed.items() if began < at + SHUN}
        self._heard = {
            name: heard for name, heard in self._heard.items() if began < heard.at + OFFERED
        }
        ends = began + self.deadlines.total
        failed: list[tuple[Exchanger, OpenFailed]] = []
        lacking: list[tuple[Exchanger, Outcome, _Heard]] = []
        for exchanger in in_order(self.site.exchangers, self._failed, self._rng):
            heard = self._heard.get(exchanger.name)
            if heard is not None and (lack := heard.offer.lacking(mail)) is not None:
                lacking.append((exchanger, lack, heard))
                continue
            if failed and (len(failed) == MOST_TRIED or trio.current_time() >= ends):
                break
            if self._shared is not None:
                await self._shared.make_room()
            try:
                connection = await self._open(exchanger, ends, domain)
            except OpenFailed as error:
                failed.append((exchanger, error))
                self._failed[exchanger.name] = trio.current_time()
                continue
            self._failed.pop(exchanger.name, None)
            heard = _Heard(connection.offer, connection.peer, trio.current_time())
            if (lack := heard.offer.lacking(mail)) is None:
                return connection
            self._heard[exchanger.name] = heard
            lacking.append((exchanger, lack, heard))
            self.give_back(connection)
        if not lacking:
            raise failed[-1][1]  # a site has an exchanger
        if failed:
            why = f"{failed[0][0].name} cannot be asked: {failed[0][1].outcome.text}"
        else:
            unproved = [one for one, _, heard in lacking if not heard.offer.verified]
            why = self._why_retry(domain, unproved if mail.require_tls else [])
        _, lack, heard = lacking[0]
        raise Unsuited(_of_the_mail(lack, why), heard.peer)

    def _why_retry(self, domain: str, unproved: Sequence[Exchanger]) -> str:
        """Why a mail may be taken at another time that no exchanger takes; empty: it will not.

        `unproved`: those that have lacked verified TLS.
        """
        site = self._last_site(domain)
        if site is None:
            return "the domain's exchangers are not known any more"
        unknown = (site.policy(one).unknown for one in unproved)
        return site.missing or next(filter(None, unknown), "")

    async def _open(self, exchanger: Exchanger, ends: float, domain: str) -> Connection:
        """Open a connection to one exchanger, as its policy says."""
        connection, fault = await self._open_as_asked(exchanger, ends, domain)
        if self._reporting is not None:
            peer = connection.peer
            self._sessions[connection] = _Session(exchanger.name, peer, fault, set())
        return connection

    async def _open_as_asked(
        self, exchanger: Exchanger, ends: float, domain: str
    ) -> tuple[Connection, str]:
        """The connection, and what was wrong with TLS on the way to it."""
        fault = ""
        policy = self.site.policy(exchanger)
        route = replace(self.route, host=exchanger.name, addresses=exchanger.addresses)
        if policy.security is Security.TESTED:
            try:
                return await self._open_secured(route, policy, ends), ""
            except OpenFailed as error:
                if error.outcome.phase is not Phase.TLS:
                    raise
                fault = error.fault or TlsFault.VALIDATION
                UNMET.labels("testing", "tls").inc()
                log.info(
                    "outbound.tls_untrusted", peer=error.peer.name, reason=_reason(error.outcome)
                )
        elif policy.security is not Security.OPPORTUNISTIC:
            try:
                return await self._open_secured(route, policy, ends), ""
            except OpenFailed as error:
                outcome = error.outcome
                if outcome.phase is not Phase.TLS:
                    raise
                why = error.fault or TlsFault.VALIDATION
                self._count(domain, exchanger.name, error.peer, why)
                UNMET.labels("enforce", "tls").inc()
                if policy.why:
                    text = f"{outcome.text}; {policy.why} allows no mail to it"
                    enhanced = outcome.enhanced or (None if outcome.code else UNSECURED)
                    outcome = outcome._replace(text=text, enhanced=enhanced)
                raise OpenFailed(outcome, error.peer, error.fault) from error
        try:
            connection = await Connection.open(
                replace(route, tls=TlsMode.OPPORTUNISTIC),
                self.deadlines,
                context=self._any_certificate,
                deadline=ends,
            )
        except OpenFailed as error:
            if error.outcome.phase is not Phase.TLS:
                raise
            fault = fault or error.fault or TlsFault.VALIDATION
            log.info("outbound.tls_given_up", peer=error.peer.name, reason=_reason(error.outcome))
        else:
            return connection, fault or ("" if connection.peer.tls else TlsFault.STARTTLS)
        clear = replace(route, tls=TlsMode.CLEAR)
        return await Connection.open(clear, self.deadlines, deadline=ends), fault

    async def _open_secured(self, route: Route, policy: TlsPolicy, ends: float) -> Connection:
        """Open a connection by TLS, as a policy asks, or not at all."""
        verifier = policy.verifier
        context = self._any_certificate if verifier is None else verifier.context()
        accepts = None if verifier is None else verifier.accepts
        route = replace(
            route, tls=TlsMode.STARTTLS, accepts=accepts, server_name=policy.server_name
        )
        return await Connection.open(route, self.deadlines, context=context, deadline=ends)


def _reason(outcome: Outcome) -> str:
    """Why TLS failed, for the log: without the words of a reply, which may be about anybody."""
    if outcome.code is None:
        return outcome.text
    return " ".join(filter(None, (str(outcome.code), outcome.enhanced)))


def _of_the_mail(lack: Outcome, why: str) -> Outcome:
    """What becomes of a mail that no exchanger takes; `why` it may be taken at another time."""
    if not why:
        return lack
    enhanced = lack.enhanced and "4" + lack.enhanced[1:]
    return lack._replace(verdict=Verdict.DEFERRED, enhanced=enhanced, text=f"{lack.text}; {why}")


def _address(peer: Peer) -> str:
    """The address of a server that was reached; empty: none was."""
    return peer.name.partition("[")[2].partition("]")[0]
