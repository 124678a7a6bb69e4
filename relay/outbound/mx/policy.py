"""Who decides how a domain's mail is secured on its way: the seam that TLS policies plug into.

A policy (DANE, MTA-STS) is asked once for each look at a domain's exchangers, before anything is
connected to, and answers for each exchanger by name: `TlsPolicy`.  What it does not name is
opportunistic.  Its answer is part of what makes a site (`relay.outbound.mx.sites`): mail of two
domains shares connections only where the policies for both are equal.  So one domain's policy never
stops the mail of another that has the same provider, and mail under a policy never takes a
connection that was made without it.

Promises (of whoever implements `Policy`)
- `policy_for` ends within a look-up's time (`relay.outbound.mx.sites.LOOK_UP`); past it the mail is
  deferred.
- What it cannot find out, but must know, is a `PolicyUnavailable`: the mail is deferred.
- Verifiers are equal, and hash alike, where they verify the same: connections are shared by them.

What each security means:

| security        | STARTTLS not offered | refused, or breaks      | the certificate               |
|-----------------|----------------------|-------------------------|-------------------------------|
| `OPPORTUNISTIC` | goes on in clear     | a new connection, clear | may be any                    |
| `TESTED`        | as `OPPORTUNISTIC`, after a first try as `VERIFIED`, whose failure is reported |
| `ENCRYPTED`     | next exchanger       | next exchanger          | may be any                    |
| `VERIFIED`      | next exchanger       | next exchanger          | must satisfy the `Verifier`   |
| `REFUSED`       | never connected to   | never connected to      | never seen                    |

When no exchanger is left the mail is deferred.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Protocol

from prometheus_client import Counter

from relay.errors import TemporaryFailure
from relay.metrics import registry
from relay.outbound.mx.exchangers import Exchanger
from relay.smtp.tls_faults import Wrong

MOST_STRINGS = 32
"""Strings and hosts of a policy that reports show,"""
LONGEST = 512
"""and their characters."""

UNMET = Counter(
    "relay_outbound_policy_unmet",
    "Mail exchangers that did not meet the TLS policy of a domain (`what`: the host is not named, "
    "or TLS is not as asked): passed over (`enforce`) or used all the same (`testing`).",
    ["mode", "what"],
    registry=registry,
)


class PolicyUnavailable(TemporaryFailure):
    """What a policy says could not be found out, and nothing may go without it."""


class Security(StrEnum):
    """How a connection must be secured."""

    OPPORTUNISTIC = "opportunistic"
    TESTED = "tested"
    ENCRYPTED = "encrypted"
    VERIFIED = "verified"
    REFUSED = "refused"


class Verifier(Protocol):
    """How an exchanger's certificate is verified.  Frozen, hashable, equal by what it verifies."""

    def context(self) -> ssl.SSLContext:
        """What the handshake is made with: it may verify by itself (PKIX, the name)."""

    def accepts(self, session: ssl.SSLObject) -> Wrong | None:
        """Look at what was shaken hands with; None accepts it."""


class Published(NamedTuple):
    """A policy as a domain has published it, for reports (RFC 8460, 4.4)."""

    type: str
    """`tlsa`, `sts` or `no-policy-found`."""
    strings: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """What a policy of MTA-STS names."""


def bounded(texts: Iterable[str]) -> tuple[str, ...]:
    """What reports show of texts that a stranger has published: the first of them, cut."""
    return tuple(text[:LONGEST] for text in islice(texts, MOST_STRINGS))


NO_POLICY = Published("no-policy-found")


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """How one exchanger must be spoken to on behalf of a domain."""

    security: Security = Security.OPPORTUNISTIC
    verifier: Verifier | None = None
    """Where it must be `VERIFIED`, or is `TESTED`."""
    why: str = field(default="", compare=False)
    """By which policy, for whoever reads why mail is deferred: `MTA-STS`, `DANE`."""
    server_name: str | None = None
    """The name in SNI, where it is not the exchanger's."""
    published: Published = field(default=NO_POLICY, compare=False)
    unknown: str = field(default="", compare=False)
    """Why it is not known for now whether more is asked for, where that is so."""

    def __post_init__(self) -> None:
        """Refuse what nothing could be verified by."""
        verifies = self.security in {Security.VERIFIED, Security.TESTED}
        if (self.verifier is not None) != verifies:
            raise ValueError("a verifier belongs to what must be verified, and to nothing else")


class Policy(Protocol):
    """A TLS policy, or several that were made one."""

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """How each exchanger is spoken to for a domain, by its name.  Raises `PolicyUnavailable`.

        `domain` in A-labels; `exchangers`: those that can be connected to, with their addresses.
        """


class NoPolicy:
    """Every exchanger is spoken to opportunistically."""

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """Nothing is asked of anybody."""
        return {}
