"""Does a domain publish what its mail needs?  Asked of the DNS, and of its policy's server.

Promises
- The DNS is asked anew each time: what was published a moment ago is seen, as far as the servers
  that are asked see it.
- All of it within `timeout` seconds; what nobody has said by then is told as not known.
- The addresses that mail leaves from are asked for where it is delivered directly (`mx:`): those of
  its sources, else those that the system chooses.  What is not public is told as not known: by
  which address its mail arrives nobody here can see.
- Where mail of the domain is delivered directly, it says whether that goes with DANE.
- A policy of MTA-STS is fetched as senders fetch it: its certificate verified, no redirect
  followed, and from the public internet alone (`relay.webhooks.post`).

Fails with `DatabaseUnavailable`; what the DNS or others do is told in the entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from relay.chance import utc_now
from relay.checks import sts
from relay.errors import TemporaryFailure
from relay.ip import is_loopback
from relay.net import leaving_addresses
from relay.outbound.routing.senders import DIRECT, Senders
from relay.outbound.routing.sources import Sources
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.ssrf_guard import Resolve, is_public
from relay.webhooks.post import NotPosted, Poster

if TYPE_CHECKING:
    from relay.checks.published import Entry, Exchanges  # which takes a while to load
    from relay.dns.questions import Asking
    from relay.dns.resolver import Resolver

PosterBy = Callable[[Resolve], Poster]
"""Makes what fetches a policy, of what resolves its host."""


class DomainChecks:
    """Checks the domains that mail leaves from."""

    def __init__(
        self,
        resolver: Callable[[], Resolver],
        keys: DkimKeys,
        senders: Senders,
        poster: PosterBy,
        *,
        upstream: str,
        host: str,
        received: Sequence[str],
        sources: Sources | None = None,
        leaving: Callable[[], Awaitable[Sequence[str]]] = leaving_addresses,
        timeout: float = 15.0,
    ) -> None:
        """`upstream`: the relay's own, without credentials; `host`: the relay's name in the DNS, if
        it has one; `received`: the domains whose mail it receives; `sources`: from where whose mail
        leaves; `leaving`: gives the addresses that the system chooses for the rest.
        """
        self._resolver = resolver
        self._keys = keys
        self._senders = senders
        self._poster = poster
        self._upstream = upstream
        self._host = "" if is_loopback(host) or "." not in host else host.lower()
        self._received = received
        self._sources = sources or Sources()
        self._leaving = leaving
        self._timeout = timeout

    async def check(self, domain: str) -> list[Entry]:
        """Return the entries of a domain (`domain_name`), those that matter most first; one alone
        of a name that is not public.
        """
        await trio.to_thread.run_sync(_load)
        from relay.checks import published  # see `_load`

        if (nothing := published.not_public(domain)) is not None:
            return [nothing]
        known = await self._keys.show(domain)
        keys = [key for key in known.keys if key.state != "retired"] if known else []
        upstreams = [self._upstream, *await self._senders.upstreams_of(domain)]
        addresses = await self._addresses(domain) if DIRECT in upstreams else {}
        resolver = self._resolver().anew()
        found: dict[int, list[Entry]] = {}

        async def ask(place: int, asking: Asking[Entry]) -> None:
            found[place] = [await resolver.drive(asking, timeout=self._timeout)]

        async def exchanges() -> None:
            asking: Asking[Exchanges] = published.mx(domain, self._own_host(domain))
            entry, hosts = await resolver.drive(asking, timeout=self._timeout)
            found[0] = [entry]
            new_id = f"{utc_now():%Y%m%d%H%M%S}"
            stated = await resolver.drive(published.mta_sts(domain, new_id), timeout=self._timeout)
            found[5] = [stated]
            if stated.found is not None:
                found[5].append(await self._policy(resolver, domain, hosts))

        signs = any(key.state == "active" for key in keys)
        helo = self._host or domain

        async def believed() -> None:
            found[7] = [published.dane(domain, await resolver.proof())]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchanges)
            if DIRECT in upstreams:
                nursery.start_soon(believed)
            seen = [address for address in addresses if is_public(address)]
            by = published.sender_policy(domain, helo, _hosts(upstreams), seen)
            nursery.start_soon(ask, 1, by)
            nursery.start_soon(ask, 4, published.dmarc(domain, signs=signs))
            nursery.start_soon(ask, 6, published.tls_reports(domain))
            for place, key in enumerate(keys):
                named = published.Key(key.name, key.record, key.state)
                nursery.start_soon(ask, 10 + place, published.dkim(named))
            for place, address in enumerate(seen):
                by = published.reverse(address, addresses[address])
                nursery.start_soon(ask, 1000 + place, by)
        signatures = [found.pop(10 + place)[0] for place in range(len(keys))]
        found[3] = signatures or [published.no_keys(domain)]
        unseen = [address for address in addresses if address not in seen]
        if DIRECT in upstreams and (unseen or not seen):
            unknown: list[str | None] = [*unseen] or [None]
            found[2000] = [published.no_reverse(address) for address in unknown]
        return [entry for _, entries in sorted(found.items()) for entry in entries]

    async def _addresses(self, domain: str) -> dict[str, str]:
        """The addresses that direct mail of a domain leaves from, each with the name said there."""
        found: dict[str, str] = {}
        for source in self._sources.of_domain(domain):
            addresses = source.addresses if source is not None else ()
            name = (source.ehlo if source is not None else None) or self._host
            for address in addresses or await self._leaving():
                found.setdefault(address, name)
        return found

    def _own_host(self, domain: str) -> str | None:
        if domain not in self._received:
            return None
        return self._host or f"mail.{domain}"

    async def _policy(self, resolver: Resolver, domain: str, hosts: Sequence[str]) -> Entry:
        from relay.checks.published import sts_policy

        try:
            with trio.fail_after(self._timeout):
                status, kind, body = await self._poster(resolver.getaddrinfo).get(
                    sts.policy_url(domain), {"Accept": "text/plain"}, sts.MAX_POLICY
                )
        except NotPosted as error:
            return sts_policy(domain, None, hosts, f"it cannot be fetched: {error}")
        except (TemporaryFailure, trio.TooSlowError) as error:
            said = str(error) or "no answer in time"
            return sts_policy(domain, None, hosts, f"it was not fetched: {said}", known=False)
        wrong = sts.refusal(status, kind)
        return sts_policy(domain, body if wrong is None else None, hosts, wrong or "")


def _load() -> None:
    """Load what the checks take: a fifth of a second, of which the list of suffixes is half."""
    import_module("relay.checks.published")
    import_module("relay.dns.resolver")
    from relay.checks.dmarc import organisational_domain

    organisational_domain("relay.example")


def _hosts(upstreams: Sequence[str]) -> list[str]:
    """The hosts that mail is handed to, without those of this machine: from there it goes on."""
    named = (urlsplit(upstream).hostname or "" for upstream in upstreams)
    return list(dict.fromkeys(host for host in named if host and not is_loopback(host)))
