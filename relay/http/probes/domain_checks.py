"""Does a domain publish what its mail needs?  Asked of the DNS, and of its policy's server.

Promises
- The DNS is asked anew each time: what was published a moment ago is seen, as far as the servers
  that are asked see it.
- A domain is judged by what it is for.  Where mail leaves with return paths of its own, their
  domain is looked at, too, as receivers look at it: where it receives (MX), and who may send with
  it (SPF).  Of that domain by itself nothing else is asked: no mail is from it.
- That MX leads here is known by the relay's names (`RELAY_SMTP__DOMAINS`, those of its sources),
  and by its public addresses, where it takes mail from others.
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
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import trio

from relay.addresses import canonical_domain
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
    from relay.checks.published import Entry, Here, Policy, Use  # which takes a while to load
    from relay.dns.questions import Asking
    from relay.dns.resolver import Resolver

T = TypeVar("T")

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
        received: Sequence[str],
        bounce_domain: str = "",
        takes: Callable[[str], Awaitable[bool]],
        served: bool = False,
        captures: bool = False,
        sources: Sources | None = None,
        leaving: Callable[[], Awaitable[Sequence[str]]] = leaving_addresses,
        timeout: float = 15.0,
    ) -> None:
        """`upstream`: the relay's own, without credentials; `received`: the domains whose mail it
        receives, the first of which it greets with; `bounce_domain`: of return paths, if they have
        one; `takes`: whether there is a mailbox of this address; `served`: whether others reach
        SMTP here; `captures`: whether mail for all other domains is kept; `sources`: from where
        whose mail leaves; `leaving`: gives the addresses that the system chooses for the rest.
        """
        self._resolver = resolver
        self._keys = keys
        self._senders = senders
        self._poster = poster
        self._upstream = upstream
        host = received[0].lower() if received else ""
        self._host = "" if is_loopback(host) or "." not in host else host
        self._received = frozenset(map(canonical_domain, received))
        self._bounce_domain = bounce_domain
        self._takes = takes
        self._served = served
        self._captures = captures
        self._sources = sources or Sources()
        self._leaving = leaving
        self._timeout = timeout
        self._quickly = min(timeout, 5.0)

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
        takes = await self._takes(f"postmaster@{domain}")
        here = await self._here()
        resolver = self._resolver().anew()
        found: dict[int, list[Entry]] = {}
        is_author = domain != self._bounce_domain
        sender = self._bounce_domain or domain

        async def drive(asking: Asking[T]) -> T:
            return await resolver.drive(asking, timeout=self._timeout)

        async def ask(place: int, asking: Asking[Entry]) -> None:
            found[place] = [await drive(asking)]

        async def exchanges() -> None:
            asking = published.mx(domain, self._host, here, self._use(domain))
            entry, hosts, own = await drive(asking)
            found[0] = [entry]
            reports_to.append(self._reports_to(domain, own=own, takes=takes))
            if is_author:
                await secured(hosts)

        async def secured(hosts: Sequence[str]) -> None:
            entry = await drive(published.mta_sts(domain))
            found[6] = [entry]
            if entry.ok is None:
                return
            policy = await self._policy(resolver, domain, hosts)
            policy = policy._replace(optional=entry.optional and policy.ok is not True)
            found[6] = [published.stated(entry, policy, f"{utc_now():%Y%m%d%H%M%S}"), policy]

        async def bounces() -> None:
            use = published.Use.RETURN_PATHS
            found[1] = [(await drive(published.mx(sender, self._host, here, use))).entry]

        async def policy() -> None:
            policies.append(await drive(published.dmarc(domain)))

        async def believed() -> None:
            found[8] = [published.dane(domain, await resolver.proof())]

        policies: list[Policy] = []
        reports_to: list[str | None] = []
        helo = self._host or domain
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchanges)
            if DIRECT in upstreams:
                nursery.start_soon(believed)
            seen = [address for address in addresses if is_public(address)]

            def spf(name: str) -> Asking[Entry]:
                return published.sender_policy(name, helo, _hosts(upstreams), seen)

            nursery.start_soon(ask, 2, spf(sender))
            if is_author:
                if sender != domain:
                    nursery.start_soon(bounces)
                    nursery.start_soon(ask, 3, spf(domain))
                nursery.start_soon(policy)
                nursery.start_soon(ask, 7, published.tls_reports(domain))
            for place, key in enumerate(keys):
                named = published.Key(key.name, key.record, key.state)
                nursery.start_soon(ask, 10 + place, published.dkim(named))
            for place, address in enumerate(seen):
                by = published.reverse(address, addresses[address])
                nursery.start_soon(ask, 1000 + place, by)
        signatures = [found.pop(10 + place)[0] for place in range(len(keys))]
        found[4] = signatures
        if is_author:
            found[4] = signatures or [published.no_keys(domain)]
            signing = [
                entry for key, entry in zip(keys, signatures, strict=True) if key.state == "active"
            ]
            to = reports_to[0]
            found[5] = [published.aligned(policies[0], domain, signing, found[2][0], to)]
            found[7] = [published.reporting(found[7][0], domain, to)]
            if 3 in found:
                found[3] = [published.beside(found[3][0], sender)]
        unseen = [address for address in addresses if address not in seen]
        if DIRECT in upstreams and (unseen or not seen):
            unknown: list[str | None] = [*unseen] or [None]
            found[2000] = [published.no_reverse(address) for address in unknown]
        return [entry for _, entries in sorted(found.items()) for entry in entries]

    async def signatures(self, domain: str) -> list[Entry]:
        """Return the entries of a domain's keys alone, as `check` has them; none: it has no keys.

        Whoever is about to sign with them waits for it, so nothing else is asked.
        """
        await trio.to_thread.run_sync(_load)
        from relay.checks import published  # see `_load`

        if (nothing := published.not_public(domain)) is not None:
            return [nothing]
        known = await self._keys.show(domain)
        keys = [key for key in known.keys if key.state != "retired"] if known else []
        resolver = self._resolver().anew()
        found: dict[int, Entry] = {}

        async def ask(place: int, key: published.Key) -> None:
            found[place] = await resolver.drive(published.dkim(key), timeout=self._quickly)

        async with trio.open_nursery() as nursery:
            for place, key in enumerate(keys):
                nursery.start_soon(ask, place, published.Key(key.name, key.record, key.state))
        return [entry for _, entry in sorted(found.items())]

    def _use(self, domain: str) -> Use:
        """What mail to a domain is here."""
        from relay.checks.published import Use

        if domain == self._bounce_domain:
            return Use.RETURN_PATHS
        own = domain in self._received or self._captures
        return Use.MAILBOXES if own else Use.OTHERS

    async def _here(self) -> Here:
        """By what this relay is known."""
        from relay.checks.published import Here

        sources = self._sources.sources
        names = {*self._received, *(one.ehlo.lower() for one in sources if one.ehlo)}
        addresses: set[str] = set()
        if self._served:
            addresses.update(await self._leaving(), *(one.addresses for one in sources))
        return Here(frozenset(names), frozenset(filter(is_public, addresses)))

    def _reports_to(self, domain: str, *, own: str, takes: bool) -> str | None:
        """An address of a domain that reports can go to; None: this relay would refuse them.

        Whoever receives mail has a postmaster (RFC 5321, 4.5.1); here somebody is to make it.
        """
        address = f"postmaster@{domain}"
        mine = domain in self._received or bool(own)
        return address if takes or not mine else None

    async def _addresses(self, domain: str) -> dict[str, str]:
        """The addresses that direct mail of a domain leaves from, each with the name said there."""
        found: dict[str, str] = {}
        for source in self._sources.of_domain(domain):
            addresses = source.addresses if source is not None else ()
            name = (source.ehlo if source is not None else None) or self._host
            for address in addresses or await self._leaving():
                found.setdefault(address, name)
        return found

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
