"""Sites: the exchangers that a domain's mail goes to, shared by all domains that have the same.

Mail waits, is limited and is paused by site, and connections are kept by site: a provider's ten
thousand domains are one site, not ten thousand.  What makes a site is the names of its exchangers,
the order of their preferences and the TLS policy for each (`SiteKey`).

Promises
- What was found is used for `FRESH` seconds; then the resolver is asked anew, which knows the TTLs.
- A look-up ends within `LOOK_UP` seconds; what is not known then is unreachable for now.
- It asks for its exchangers' addresses in the order of their preference, `AT_ONCE` questions at a
  time, whatever a stranger publishes, and until `ADDRESSES` seconds have passed: an exchanger
  whose addresses are known then is used, and of the others there was no answer.
- All that is asked for one domain is one asker's (`relay.dns.turns`).
- At most `MOST_KNOWN` domains are remembered, the least recently looked up go first.

Fails with an `Unreachable` that says for how long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from relay.dns.questions import Answer, Question, Status
from relay.dns.turns import ASKER
from relay.outbound.mx.exchangers import (
    Exchanger,
    Unreachable,
    candidates,
    name_of,
    questions,
    unanswered,
    usable,
)
from relay.outbound.mx.policy import (
    NoPolicy,
    Policy,
    PolicyUnavailable,
    Published,
    Security,
    TlsPolicy,
)

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver  # loaded when it is first needed

FRESH = 30.0
LOOK_UP = 25.0
ADDRESSES = 20.0
"""Seconds of a look-up after which no address is asked for: the rest is the policy's."""
AT_ONCE = 4
"""Questions about addresses of one look-up that are under way: what each domain of a stranger, none
of whose names is ever answered, takes of the turns of all (`relay.dns.turns`)."""
MOST_KNOWN = 20_000

_OPPORTUNISTIC = TlsPolicy()


class SiteKey(NamedTuple):
    """What tells sites apart."""

    kind: str
    name: str
    """What people call it: its best exchanger, and how many there are."""
    exchangers: tuple[tuple[int, str], ...]
    policies: tuple[TlsPolicy, ...]
    """Of each exchanger; none: all are opportunistic."""
    provider: str = ""
    """Of a line: whose traffic rules hold (`relay.outbound.shaping`); empty: nobody's."""
    source: str = ""
    """Of a line: by what name and address of ours the site is spoken to; empty: by the usual."""


class Site(NamedTuple):
    """Where mail goes."""

    key: SiteKey
    exchangers: tuple[Exchanger, ...]
    policies: Mapping[str, TlsPolicy]
    missing: str = ""
    """Why an exchanger of the domain is not among these that may be at another time."""

    def policy(self, exchanger: Exchanger) -> TlsPolicy:
        """How an exchanger is spoken to."""
        return self.policies.get(exchanger.name, _OPPORTUNISTIC)


def site_of(
    exchangers: tuple[Exchanger, ...], policies: Mapping[str, TlsPolicy], missing: str = ""
) -> Site | Unreachable:
    """The site of these exchangers, without those that a policy refuses; `missing` as in `Site`."""
    allowed = []
    for one in exchangers:
        policy = policies.get(one.name, _OPPORTUNISTIC)
        if policy.security is not Security.REFUSED:
            allowed.append(one)
        else:
            missing = missing or policy.unknown
    if not allowed:
        why = next((policy.why for policy in policies.values() if policy.why), "its policy")
        return Unreachable(False, "4.7.5", f"{why} allows none of the domain's exchangers")
    identity = tuple(sorted((one.rank, one.name) for one in allowed))
    more = f" and {len(allowed) - 1} more" if len(allowed) > 1 else ""
    each = tuple(policies.get(name, _OPPORTUNISTIC) for _, name in identity)
    key = SiteKey(
        "mx",
        f"mx:{identity[0][1]}{more}",
        identity,
        () if all(policy == _OPPORTUNISTIC for policy in each) else each,
    )
    return Site(key, tuple(allowed), policies, missing)


class _Known(NamedTuple):
    found: Site | Unreachable
    until: float


class Sites:
    """Finds the site of a domain."""

    def __init__(
        self,
        resolver: Callable[[], Resolver],
        *,
        own: Collection[str],
        private: bool = False,
        policy: Policy | None = None,
    ) -> None:
        """`own`: names of this relay; `private`: whether private addresses may be connected to."""
        self._resolver = resolver
        self._own = frozenset(name.lower() for name in own)
        self._private = private
        self._policy = policy or NoPolicy()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def known(self, domain: str, now: float) -> Site | Unreachable | None:
        """What was found lately, without asking; None: it has to be looked up."""
        known = self._known.get(domain)
        return None if known is None or known.until <= now else known.found

    def last(self, domain: str) -> Site | None:
        """The site that was found for a domain last, however long ago; None: none is known."""
        known = self._known.get(domain)
        return known.found if known and isinstance(known.found, Site) else None

    def published(self, domain: str, host: str) -> Published:
        """What a domain had published about an exchanger when it was looked up last."""
        site = self.last(domain)
        policies: Mapping[str, TlsPolicy] = {} if site is None else site.policies
        return policies.get(host, _OPPORTUNISTIC).published

    async def look_up(self, domain: str) -> Site | Unreachable:
        """Ask the DNS, and the policy."""
        found: Site | Unreachable = Unreachable(
            False, "4.4.3", f"the domain's servers were not found within {LOOK_UP:g} s"
        )
        token = ASKER.set(domain)
        try:
            with trio.move_on_after(LOOK_UP):
                found = await self._find(domain)
        finally:
            ASKER.reset(token)
        if isinstance(found, Site) or found.permanent:
            self._known[domain] = _Known(found, trio.current_time() + FRESH)
            self._known.move_to_end(domain)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.pop(domain, None)
        return found

    async def _find(self, domain: str) -> Site | Unreachable:
        name = name_of(domain)
        if isinstance(name, Unreachable):
            return name
        until = trio.current_time() + ADDRESSES
        resolver = self._resolver()
        answer = await resolver.ask(Question(name, "MX"))
        named = candidates(name, answer, self._own)
        if isinstance(named, Unreachable):
            return named
        answers = await _ask_each(resolver, questions(named), until)
        implicit = answer.status is Status.NO_DATA
        exchangers = usable(named, answers, implicit=implicit, private=self._private)
        if isinstance(exchangers, Unreachable):
            return exchangers
        try:
            policies = await self._policy.policy_for(name, exchangers)
        except PolicyUnavailable as error:
            return Unreachable(False, "4.7.5", str(error))
        return site_of(exchangers, policies, unanswered(named, exchangers, answers))


async def _ask_each(
    resolver: Resolver, asked: Sequence[Question], until: float
) -> dict[Question, Answer]:
    """The answer to each question, the first asked first; none `until` then is a failure."""
    late = Answer(Status.FAILED, detail=f"no answer within {ADDRESSES:g} s")
    answers = dict.fromkeys(asked, late)
    left = iter(asked)

    async def ask() -> None:
        for question in left:
            answers[question] = await resolver.ask(question)

    with trio.move_on_at(until):
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(ask)
    return answers
