"""Direct delivery as the sender has it: the sites, the connections to them, and how many.

Promises
- A site has at most `most` connections, and begins with `SITE_WIDTH`: a site that stalls cannot
  take the places of others, however much mail waits for it; nor can many, for until a site has
  answered its deliveries take none (`relay.outbound.active_queue.dispatch`, aside).
- A receiver (`relay.outbound.shaping.traffic`) has no more than it is given, with all its sites
  together.
- Reports of TLS go whatever TLS is like: they tell of it (RFC 8460, 3).  A message is one by
  its owner, whatever it has in MAIL FROM.  So goes mail that says TLS-Required: No (RFC 8689, 3).
- Mail for the relay's own domains takes the loop: nobody is asked where this relay is.

Fails: never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import trio

from relay.outbound.active_queue.dispatch import Group
from relay.outbound.mx.connections import Reporting, Shared, SiteConnections
from relay.outbound.mx.policy import Policy
from relay.outbound.mx.sites import Site, SiteKey, Sites
from relay.outbound.mx.tls_results import TlsResults
from relay.outbound.routing.routes import MOST_MAILS
from relay.outbound.routing.sources import Source
from relay.smtp.connection import Deadlines, opportunistic_tls

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver  # loaded when it is first needed

SITE_WIDTH = 2
"""Connections that a site begins with; each answer makes it one more."""

OWN = ("mx", "loop:")
"""Instead of a site: this relay's own domains."""


Given = Callable[[Hashable, float], tuple[int | None, int | None]]
"""What a receiver is given at an instant: connections, and mails on one; None: as all are."""


class Direct:
    """The way of mail that goes to the exchangers of its domain."""

    def __init__(
        self,
        resolver: Callable[[], Resolver],
        *,
        own: Collection[str],
        deadlines: Deadlines,
        rng: random.Random,
        port: int = 25,
        private: bool = False,
        most: int = 8,
        policy: Policy | None = None,
        results: TlsResults | None = None,
        given: Given = lambda _receiver, _now: (None, None),
    ) -> None:
        """`resolver`: called when it is first needed; `own`: the relay's domains, the first of
        which exchangers are greeted with; `port` of exchangers; `private`: whether they may have
        private addresses; `most`: connections to one site; `policy`: of TLS, None for none;
        `results`: what is counted for reports of TLS, None: nothing is; `given`: what receivers are
        given.
        """
        self._own = frozenset(name.lower() for name in own)
        self._local_name = next(iter(own))
        self._deadlines = deadlines
        self._rng = rng
        self._port = port
        self._most = most
        self._any_certificate = opportunistic_tls()
        self._given = given
        self._shared: WeakValueDictionary[Hashable, Shared] = WeakValueDictionary()
        self.sites = Sites(resolver, own=own, private=private, policy=policy)
        self.sites_without_policy = Sites(resolver, own=own, private=private)
        self._reporting = None if results is None else Reporting(results, self.sites.published)

    def is_own(self, domain: str) -> bool:
        """Whether a domain is this relay's."""
        return domain.lower() in self._own

    def connections(
        self, site: Site, receiver: Hashable, source: Source | None = None
    ) -> SiteConnections:
        """The connections to a site, which is a receiver's, from a source; none is open yet."""
        return SiteConnections(
            site,
            self._port,
            self._local_name,
            self._deadlines,
            self._rng,
            self._any_certificate,
            self._reporting,
            self.shared(receiver),
            source,
            self._last_site,
        )

    def shared(self, receiver: Hashable) -> Shared:
        """What all sites of a receiver have in common, as long as there are any."""
        shared = self._shared.get(receiver)
        if shared is None:
            group = Group(lambda now: self._given(receiver, now)[0])
            shared = self._shared[receiver] = Shared(group, lambda: self._mails_for(receiver))
        return shared

    def bound(self, key: Hashable, gate: int | None) -> int | None:
        """Connections that a line may have: `gate` says what a gate lets through, None any."""
        if not isinstance(key, SiteKey):
            return gate
        return self._most if gate is None else min(self._most, gate)

    def _last_site(self, domain: str) -> Site | None:
        return self.sites.last(domain) or self.sites_without_policy.last(domain)

    def _mails_for(self, receiver: Hashable) -> int:
        mails = self._given(receiver, trio.current_time())[1]
        return MOST_MAILS if mails is None else min(mails, MOST_MAILS)
