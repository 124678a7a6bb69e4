"""What one node knows of receivers: who they are, what they are given, who is slowed and why; and
of sources, from where mail leaves.

A receiver is what the traffic rules limit and judge as one, seen from one source: a provider of the
rules with all its sites, or a site that is no provider's.  The sender, the claimer and the control
plane of a node share one `Traffic`; `relay.outbound.shaping.store` keeps what is learned for all
nodes.

Promises
- Sites that are told apart count as one receiver only if they are one provider's, or have the same
  exchangers; never because they are called alike.
- Replies that ask to slow down within `STEP` seconds are one; later ones slow down again, to
  `LEAST_FACTOR` at least, and until the latest time that any of them asked for.
- A reply is judged without what it repeats of the mail (`echoes.py`), and no site that is no
  provider's is suspended by one alone (`LEAST_REPLIES`).
- What is over by time is over without anybody's doing.
- An owner is told of a slowed receiver if mail of his has waited for it since, to which domains,
  and of what was replied the code alone: it may have been to others.
- Memory: `MOST_SEEN` domains are remembered, the least recently met go first; of each slowed
  receiver `MOST_CONCERNED` owners with their domains.

Fails: never.  Pure; instants are handed in, and rules are read anew each time they are asked for.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from relay.outbound.mx.sites import Site, SiteKey
from relay.outbound.pacing.gates import ANY_ROUTE, GateKey
from relay.outbound.pacing.held_back import BY_KIND, Standing, Why, a_minute, connections
from relay.outbound.pacing.rate import Rate
from relay.outbound.routing.sources import Sources
from relay.outbound.shaping.echoes import unquoted, without
from relay.outbound.shaping.rules import (
    LEAST_FACTOR,
    STEP,
    Asks,
    Counts,
    Limits,
    Provider,
    ReplyRule,
    Rules,
)
from relay.smtp.client import Outcome, Verdict

MOST_SEEN = 20_000
"""Domains whose receivers are remembered."""

LEAST_REPLIES = 2
"""Replies that it takes to suspend who is no provider's, whatever a rule says: one may be odd."""

MOST_CONCERNED = 1_000
"""Domains of owners whose mail has waited for a slowed receiver that are remembered."""

MOST_REACHED = 1_000
"""Limits that mail has waited for which are remembered, and domains of owners of each."""

_WAITS, _WAITS_FOR_A_RATE = 2.0, 6.0
"""Seconds for which mail is said to wait for a limit that was in its way: the sender says so again
sooner than the claimer, who may sleep until a rate gives something."""

_AT_LEAST = 1.0  # s; what goes sooner has not waited

SUSPENDED = "suspended"
SLOWED = "slowed"


class Receiver(NamedTuple):
    """Who is limited and judged as one."""

    name: str
    """A provider's name, or a site's (`mx:…`)."""
    source: str = ""
    """By what name of ours, and address, it knows us."""

    @property
    def shown(self) -> str:
        """What people read."""
        name = self.name.partition(" #")[0]
        return f"{name} via {self.source}" if self.source else name

    @property
    def rate_key(self) -> str:
        """The key of its rate."""
        name = f"site:{self.name}"
        return f"{name} via {self.source}" if self.source else name

    @property
    def gate_key(self) -> GateKey:
        """The key of the gate that stands before it while it is suspended."""
        return GateKey(("receiver", self.shown, self))


class Learned(NamedTuple):
    """What a receiver has asked for."""

    receiver: Receiver
    kind: str
    """`SUSPENDED` or `SLOWED`."""
    until: float
    factor: float
    domain: str
    """Whose mail was answered so, last."""
    reason: str
    """The reply, redacted."""
    since: float = 0.0
    """When it was slowed last."""
    held_since: float = math.inf
    """Since when it is suspended or slowed."""
    rule: str = ""
    """The rule that says so: whose it is, and its line; empty: a node of before learned it."""


@dataclass(slots=True)
class _Reached:
    """A limit that mail has waited for."""

    since: float
    last: float
    concerned: OrderedDict[tuple[Hashable, str], float] = field(default_factory=OrderedDict)
    """Owners with their domains, and when each has waited last."""


def receiver_of(key: Hashable) -> Receiver | None:
    """The receiver that a line leads to; None: it leads to none, but to an upstream or home."""
    if not isinstance(key, SiteKey):
        return None
    if key.provider:
        return Receiver(key.provider, key.source)
    name = key.name
    if len(key.exchangers) > 1:
        # By all of them: who lists somebody's server beside their own is another.
        name = f"{name} #{_digest(key.exchangers)}"
    return Receiver(name, key.source)


@lru_cache(4096)
def _digest(exchangers: tuple[tuple[int, str], ...]) -> str:
    return hashlib.sha256(repr(exchangers).encode()).hexdigest()[:12]


class Traffic:
    """The receivers of one node."""

    def __init__(
        self,
        rules: Callable[[], Rules] = Rules,
        sources: Sources | None = None,
        today: Callable[[], date] = lambda: date(2000, 1, 1),
    ) -> None:
        """`rules`: gives those that are in force; `sources`: from where mail leaves; `today`: the
        day by which they are warmed up."""
        self._rules = rules
        self.sources = sources or Sources()
        self._today = today
        self._counts = Counts()
        self._learned: dict[tuple[Receiver, str], Learned] = {}
        self._seen: OrderedDict[tuple[str, str], tuple[Receiver, float]] = OrderedDict()
        self._rated: dict[str, Receiver] = {}
        self._concerned: dict[Receiver, OrderedDict[tuple[Hashable, str], None]] = {}
        self._reached: OrderedDict[Receiver | str, _Reached] = OrderedDict()

    @property
    def rules(self) -> Rules:
        """The rules that are in force."""
        return self._rules()

    # Who they are ---------------------------------------------------------------------------------

    def line_key(self, domain: str, site: Site, source: str = "") -> SiteKey:
        """The key of the line for a domain's mail to its site from a source."""
        provider = self.rules.provider(domain, [each.name for each in site.exchangers])
        if provider is None and not source:
            return site.key
        return site.key._replace(provider=provider.name if provider else "", source=source)

    def provider_of(self, receiver: Receiver) -> Provider:
        """Whose rules hold for it."""
        return self.rules.named(receiver.name)

    # What they are given --------------------------------------------------------------------------

    def limits(self, receiver: Receiver, now: float) -> Limits:
        """What it is given now."""
        limits = self.provider_of(receiver).limits
        slowed = self._learned.get((receiver, SLOWED)) if self._learned else None
        if slowed is None or slowed.until <= now:
            return limits
        limits = limits.slowed(slowed.factor)
        if limits.connections is None:
            limits = limits._replace(connections=_connections_of(slowed.factor))
        return limits

    def given(self, receiver: Hashable, now: float) -> tuple[int | None, int | None]:
        """Connections, and mails on one, that it is given now; None: as all are."""
        if not isinstance(receiver, Receiver):
            return None, None
        limits = self.limits(receiver, now)
        return limits.connections, limits.messages

    def limits_of(self, domains: Collection[str], now: float) -> dict[str, Limits]:
        """What each of these domains is given now, the least of its receivers' (it has one for each
        source); only those that this node delivers to directly have any.
        """
        found: dict[str, Limits] = {}
        for (domain, _), (receiver, _) in self._seen.items():
            if domain in domains:
                given = self.limits(receiver, now)
                found[domain] = given.least(found.get(domain, given))
        return found

    @property
    def limits_rates(self) -> bool:
        """Whether the rules have a rate for anybody."""
        return self.rules.limits_rates or self.sources.warms_up

    def rate(self, key: str, now: float) -> Rate | None:
        """What the rules, or a warm-up, say of a key of a rate."""
        if key.startswith("source:"):
            source = self.sources.named(key.removeprefix("source:"))
            warm_up = None if source is None else source.warm_up
            return None if warm_up is None else warm_up.rate(self._today())
        receiver = self._rated.get(key)
        return None if receiver is None else self.limits(receiver, now).rate

    def keys(self, domain: str, sender: str, *, direct: bool) -> tuple[str, ...]:
        """The keys of the rates that a mail falls under, as far as its receiver is known."""
        source = self.sources.of(sender)
        keys = () if source is None or source.warm_up is None else (source.rate_key,)
        if direct:
            site = self.rate_key(domain, "" if source is None else source.name)
            if site is not None:
                return (*keys, site)
        return keys

    def rate_key(self, domain: str, source: str = "") -> str | None:
        """The key of the rate that a domain's mail falls under; None: it is not known yet."""
        provider = self.rules.of_domain(domain)
        if provider is not None:
            receiver = Receiver(provider.name, source)
        else:
            seen = self._seen.get((domain, source))
            if seen is None:
                return None
            receiver = seen[0]
        key = receiver.rate_key
        if key not in self._rated:
            if len(self._rated) >= 2 * MOST_SEEN:
                self._rated.clear()
            self._rated[key] = receiver
        return key

    def meets(self, domain: str, receiver: Receiver, now: float) -> float:
        """Note whose a domain's mail is; return since when that is known here."""
        key = (domain, receiver.source)
        seen = self._seen.get(key)
        if seen is not None and seen[0] == receiver:
            self._seen.move_to_end(key)
            return seen[1]
        self._seen[key] = (receiver, now)
        self._seen.move_to_end(key)
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return now

    # What they ask for ----------------------------------------------------------------------------

    def learn(
        self,
        receiver: Receiver,
        domain: str,
        outcome: Outcome,
        now: float,
        words: Callable[[], str],
        own: Collection[str] = (),
    ) -> Learned | Asks | None:
        """What a reply asks for, which holds from now on; `Asks.SUPPRESS`: the recipient is not to
        be written to.  `words` gives the reply as it may be kept; `own` are words of the mail's,
        which are nobody's reason when they come back.
        """
        if outcome.code is None or outcome.verdict is Verdict.DELIVERED:
            return None
        rules = self.rules
        provider = rules.named(receiver.name)
        rule = self._meaning(receiver, outcome, own)
        if rule is None:
            return None
        if rule.asks is Asks.SUSPEND and provider is rules.default:
            rule = replace(rule, after=max(rule.after, LEAST_REPLIES))
        if not self._counts.met((receiver, rule.asks), rule, now):
            return None
        if rule.asks is Asks.SUPPRESS:
            return Asks.SUPPRESS
        kind = SUSPENDED if rule.asks is Asks.SUSPEND else SLOWED
        before = self._holds(receiver, kind, now)
        until, factor, since = now + rule.seconds, rule.factor, now
        if before is not None:
            until = max(until, before.until)
            if kind == SUSPENDED:
                if until < before.until + STEP:
                    return None  # what had set out before it meets the same
            elif now < before.since + STEP:
                return None
            else:
                factor = max(before.factor * factor, LEAST_FACTOR)
        began = now if before is None else min(before.held_since, now)
        own_rule = any(one.line == rule.line for one in provider.replies)
        named = f"{(own_rule and provider.name) or 'default'}:{rule.line}"
        learned = Learned(receiver, kind, until, factor, domain, words(), since, began, named)
        self._learned[receiver, kind] = learned
        return learned

    def judges(self, receiver: Receiver, outcome: Outcome, own: Collection[str] = ()) -> bool:
        """Whether the rules have a meaning for a reply, be it that nothing is to be done yet."""
        return self._meaning(receiver, outcome, own) is not None

    def _meaning(
        self, receiver: Receiver, outcome: Outcome, own: Collection[str]
    ) -> ReplyRule | None:
        whole = without(outcome.text, own)
        said = outcome._replace(text=unquoted(whole))
        return self.rules.meaning(self.provider_of(receiver), said, whole)

    def take_over(self, rows: Iterable[Learned], now: float) -> list[Learned]:
        """Have what all nodes know hold here; return what held here and is to end."""
        there = {(row.receiver, row.kind): row for row in rows if row.until > now}
        ended = [
            learned
            for key, learned in self._learned.items()
            if key not in there and learned.until > now
        ]
        for key, row in there.items():
            before = self._learned.get(key)
            if before is not None and before.kind == SLOWED and before.factor == row.factor:
                row = there[key] = row._replace(since=before.since)
        self._learned = there
        for receiver in [one for one in self._concerned if (one, SLOWED) not in there]:
            del self._concerned[receiver]
        return ended

    def in_force(self, now: float, kind: str) -> list[Learned]:
        """What receivers have asked for and is not over."""
        return [one for one in self._learned.values() if one.kind == kind and one.until > now]

    def receivers_of(self, domain: str) -> Collection[str]:
        """The names of those that a domain's mail is known to go to."""
        provider = self.rules.of_domain(domain)
        names = {receiver.name for (of, _), (receiver, _) in self._seen.items() if of == domain}
        return names | ({provider.name} if provider is not None else set())

    def awaits(self, receiver: Receiver, owner: Hashable, domain: str) -> None:
        """Note that mail of an owner to a domain waits for a receiver, if that is slowed."""
        if (receiver, SLOWED) not in self._learned:
            return
        concerned = self._concerned.setdefault(receiver, OrderedDict())
        concerned[owner, domain] = None
        concerned.move_to_end((owner, domain))
        if len(concerned) > MOST_CONCERNED:
            concerned.popitem(last=False)

    def reached(self, what: Receiver | str, owner: Hashable, domain: str, now: float) -> None:
        """Note that mail of an owner to a domain waits for a limit: a receiver's of connections, or
        that of the key of a rate."""
        found = self._reached.get(what)
        if found is None or now > found.last + _waits(what):
            found = self._reached[what] = _Reached(now, now)
        found.last = now
        self._reached.move_to_end(what)
        if len(self._reached) > MOST_REACHED:
            self._reached.popitem(last=False)
        found.concerned[owner, domain] = now
        found.concerned.move_to_end((owner, domain))
        if len(found.concerned) > MOST_CONCERNED:
            found.concerned.popitem(last=False)

    def limited(
        self, now: float, owner: Hashable = None, domain: str | None = None
    ) -> list[Standing]:
        """The limits that mail waits for, those of connections first: where these are all in use, a
        rate has more to give.  `owner` and `domain` as in `statistics`."""
        standings = []
        for what, found in sorted(self._reached.items(), key=lambda one: isinstance(one[0], str)):
            if found.last < found.since + _AT_LEAST:
                continue
            domains = {
                to
                for (whose, to), at in found.concerned.items()
                if owner in (None, whose) and now <= at + _waits(what)
            }
            if domains and (domain is None or domain in domains):
                standings.append(self._limit(what, now - found.since, domains, now))
        return standings

    def _limit(
        self, what: Receiver | str, held_for: float, domains: Collection[str], now: float
    ) -> Standing:
        receiver = what if isinstance(what, Receiver) else self._rated.get(what)
        if receiver is None:
            kind, _, name = str(what).partition(":")
            return Standing(
                *(name if kind == "route" else ANY_ROUTE, None, None, 0, 0, 0.0),
                reason=BY_KIND.get(kind, kind), why=Why.LIMITED, held_for=held_for,
                domains=tuple(sorted(domains)), key=what,
            )  # fmt: skip
        limits = self.limits(receiver, now)
        if receiver is what:
            reason = None if limits.connections is None else connections(limits.connections)
        else:
            reason = None if limits.rate is None else a_minute(limits.rate.rate)
        return Standing(
            *(receiver.shown, None, limits.connections, 0, 0, 0.0),
            reason=reason,
            why=Why.LIMITED,
            held_for=held_for,
            rule=self.provider_of(receiver).name or "default",
            domains=tuple(sorted(domains)),
            key=receiver.gate_key.route,
        )

    def statistics(
        self, now: float, owner: Hashable = None, domain: str | None = None
    ) -> list[Standing]:
        """Those that are slowed, the slowest first; those that are suspended have gates.

        `owner`: only those that mail of his has waited for, None: all; `domain`: only those that
        mail to it goes to.
        """
        found = []
        for one in sorted(self.in_force(now, SLOWED), key=lambda one: one.factor):
            concerned = self._concerned.get(one.receiver, ())
            domains = {to for whose, to in concerned if owner in (None, whose)}
            if owner is None:
                domains.add(one.domain)
                if domain is not None and one.receiver.name in self.receivers_of(domain):
                    domains.add(domain)
            if domains and (domain is None or domain in domains):
                found.append(self._standing(one, now, owner, domains))
        return found

    def _standing(
        self, one: Learned, now: float, owner: Hashable, domains: Collection[str]
    ) -> Standing:
        said = one.reason if owner is None else one.reason.partition(" ")[0]
        return Standing(
            one.receiver.shown,
            None,
            self.limits(one.receiver, now).connections or 0,
            0,
            0,
            0.0,
            reason=f"slowed to {one.factor:.0%}: {said}",
            why=Why.SLOWED,
            held_for=None if one.held_since == math.inf else max(now - one.held_since, 0.0),
            ends_in=one.until - now,
            rule=one.rule or None,
            domains=tuple(sorted(domains)),
            key=one.receiver.gate_key.route,
        )

    def _holds(self, receiver: Receiver, kind: str, now: float) -> Learned | None:
        found = self._learned.get((receiver, kind))
        return found if found is not None and found.until > now else None


def _waits(what: Receiver | str) -> float:
    return _WAITS if isinstance(what, Receiver) else _WAITS_FOR_A_RATE


_USUAL = 8  # connections of a receiver whose rules limit none, when it is slowed


def _connections_of(factor: float) -> int:
    return max(int(_USUAL * factor), 1)
