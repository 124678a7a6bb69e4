"""Why mail is held back: one law of reasons for the API, the command line and the page.

| `Why`        | the mail waits because                                                        |
|--------------|-------------------------------------------------------------------------------|
| `silent`     | no connection comes about, or no greeting                                     |
| `hanging`    | the peer took the connection, and stopped answering or broke off              |
| `slow`       | the peer answers, and takes so long that its mail stands aside                |
| `deferring`  | the peer replied that it takes no mail for now (421, 4yz), or no relay's login |
| `no_room`    | the relay has as much under way as it may: places, an owner's share           |
| `limited`    | a limit of the operator's is reached: connections or rate of a traffic rule,  |
|              | of a setting, of `relay.outbound_rates`, or a warm-up                         |
| `suspended`  | a traffic rule has it left alone, after a reply                               |
| `slowed`     | a traffic rule gives it less, after a reply                                   |
| `no_dns`     | the DNS does not say where the mail goes                                      |
| `policy`     | TLS is not as the domain asks (DANE, MTA-STS), or what it asks is not known   |

`SAYS` has the sentence of each, which the page has in its languages, too.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from relay.smtp.client import Outcome, Phase

OPENING = frozenset({Phase.CONNECT, Phase.EHLO, Phase.TLS, Phase.AUTH})
"""The phases that are before any mail."""

MOST_DOMAINS = 20
"""Domains that are named of those whose mail was held back."""

_POLICY_UNMET = "4.7.5"


class Why(StrEnum):
    """Why mail is held back."""

    SILENT = "silent"
    HANGING = "hanging"
    SLOW = "slow"
    DEFERRING = "deferring"
    NO_ROOM = "no_room"
    LIMITED = "limited"
    SUSPENDED = "suspended"
    SLOWED = "slowed"
    NO_DNS = "no_dns"
    POLICY = "policy"

    @property
    def is_trouble(self) -> bool:
        """Whether something is wrong: mail waits for more than its turn."""
        return self not in {Why.SLOW, Why.NO_ROOM, Why.LIMITED, Why.SLOWED}


SAYS = {
    Why.SILENT: "nobody answers: no connection comes about, or no greeting",
    Why.HANGING: "it takes the connection, and then does not answer",
    Why.SLOW: "it answers, but takes long",
    Why.DEFERRING: "it takes no mail for now",
    Why.NO_ROOM: "as much is under way as may be at once",
    Why.LIMITED: "a limit of the operator's is reached",
    Why.SUSPENDED: "by a traffic rule it is left alone, after what it replied",
    Why.SLOWED: "by a traffic rule it is given less, after what it replied",
    Why.NO_DNS: "the DNS does not say where its mail goes",
    Why.POLICY: "TLS is not as its policy asks (DANE, MTA-STS)",
}
"""Each in one sentence."""

_CODES = {
    Why.SILENT: "4.4.1",
    Why.HANGING: "4.4.2",
    Why.DEFERRING: "4.3.2",
    Why.SUSPENDED: "4.3.2",
    Why.NO_DNS: "4.4.3",
    Why.POLICY: "4.7.5",
}
_CONGESTED = "4.4.5"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a route, a destination or an owner's mail is held back by, as people are told."""

    route: str
    domain: str | None
    """None: all that takes the route."""
    window: int | None
    """Deliveries that go through at once; None: as many as ever."""
    busy: int
    strikes: int
    opens_in: float
    """Seconds until something goes again; 0: it does now."""
    reason: str | None = None
    """What was met or replied last, behind the phase of it."""
    why: Why = Why.NO_ROOM
    held_for: float | None = None
    """Seconds since which `why` holds; None: nobody has noted that."""
    ends_in: float | None = None
    """Seconds until it is over by itself, where it is less that goes and not nothing."""
    rule: str | None = None
    """The traffic rule by which: whose it is, and its line."""
    owner: Hashable = None
    """Whose mail is held back; None: everybody's."""
    domains: tuple[str, ...] = ()
    """To where mail goes that was held back by it last, in order."""
    key: Hashable = None
    """What tells its route apart; nobody is told of that."""

    @property
    def code(self) -> str:
        """The enhanced status code (RFC 3463) for that."""
        return _CODES.get(self.why, _CONGESTED)

    @property
    def names(self) -> frozenset[str]:
        """The domains that it holds mail to back."""
        return frozenset(self.domains if self.domain is None else (*self.domains, self.domain))

    @property
    def refuses(self) -> bool:
        """Whether its mail has met a refusal or no answer, so that it is left alone or probed."""
        return self.why.is_trouble and (self.opens_in > 0 or self.strikes > 0)


_COMMANDS = {Phase.CONNECT: "connect", Phase.TLS: "TLS"}


def takes(phase: Phase, seconds: float) -> str:
    """How long a peer takes to answer, and what."""
    took = f"{seconds:.0f}" if seconds >= 10 else f"{round(seconds, 1):g}"
    if phase is Phase.DOT:
        return f"{took} s at the dot"
    return f"{took} s at {_COMMANDS.get(phase, phase.value.upper())}"


def awaited(phase: Phase, seconds: float) -> str:
    """What a peer has not answered yet, and for how long."""
    return f"{phase.value}: no answer for {seconds:.0f} s"


def connections(most: int) -> str:
    """A limit of connections."""
    return "1 connection at most" if most == 1 else f"{most} connections at most"


def domain_connections(most: int) -> str:
    """A limit of connections to one domain, as the settings have it."""
    return f"{connections(most)}; RELAY_OUTBOUND__DOMAIN_CONNECTIONS"


def a_minute(rate: float) -> str:
    """A limit of so many messages a second."""
    return f"at most {round(60 * rate, 3):g}/min"


BY_KIND = {
    "domain": "RELAY_OUTBOUND__DOMAIN_RATE/relay.outbound_rates",
    "route": "RELAY_OUTBOUND__ROUTE_RATE/relay.outbound_rates",
    "source": "warm_up",
}
"""Where the limit of a rate stands that is no receiver's, by the kind of its key."""


def why_of(outcome: Outcome) -> Why:
    """What an outcome that is trouble says of who was spoken to."""
    if outcome.code is not None:
        return Why.DEFERRING
    if outcome.enhanced == _POLICY_UNMET:
        return Why.POLICY
    return Why.SILENT if outcome.phase in OPENING else Why.HANGING
