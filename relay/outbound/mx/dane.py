"""DANE (RFC 7672): the certificates of mail exchangers are held against what the DNS has signed.

DANE is used only where the DNS can be believed: all servers that are asked are on this host, and
have proved that they validate (`Resolver.proof`).  What follows for an exchanger, for a domain:

| the DNS says                                         | then                                      |
|------------------------------------------------------|-------------------------------------------|
| the domain's MX, or that it has none, is not signed  | no DANE: other policies decide            |
| the exchanger's addresses are not signed             | no DANE; but see CNAME                    |
| no TLSA, and that is signed; or TLSA is not signed   | no DANE                                   |
| TLSA that can be used                                | TLS with a certificate that matches, or   |
|                                                      | the next exchanger                        |
| TLSA, none of which can be used                      | TLS, whatever the certificate is, or the  |
|                                                      | next exchanger; other policies may ask    |
|                                                      | for more                                  |
| SERVFAIL (a broken signature, too), or nothing in    | is not connected to for now: it could be  |
| time                                                 | an attack that hides the records          |

The records are those of `_PORT._tcp.` and the TLSA base domain (2.2.3), which is the name in SNI,
too.  That is the exchanger's name, never the mail's domain.  Where the name is an alias it is the
name that it leads to, if all of that is signed and it has records; else the alias itself, if that
is signed.

An authority's certificate (usage 2) must besides be for the base domain or the mail's domain.

Promises
- DANE goes before other policies (`DaneFirst`): they are asked about those exchangers only whose
  certificates it does not verify.
- Each look has `TLSA` seconds.  A domain whose DNS says nothing has its own mail wait; how long
  others' questions may wait for its, the resolver's turns say (`relay.dns.turns`).
- Mail of domains shares a connection where the records are the same, but with usage 2, where the
  domain's name may count.
- Whether it can be believed is known, and said, from the start where mail goes directly
  (`follow`), and before any mail in any case.
- While no server says anything of the root, what was proved last holds; and as long as nothing was,
  what calls itself signed is believed to be, of servers on this host: that one was silent when the
  relay started lets no mail go where it may not.

Fails with `PolicyUnavailable`, where no exchanger is left because of a failure of the DNS.
"""

from __future__ import annotations

import _ssl
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import trio
from prometheus_client import Counter, Gauge

from relay.chance import utc_now
from relay.dns.questions import Answer, Question, RecordType, Status, is_name
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.mx.exchangers import FAMILIES, Exchanger
from relay.outbound.mx.policy import (
    NoPolicy,
    Policy,
    PolicyUnavailable,
    Published,
    Security,
    TlsPolicy,
    bounded,
)
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from relay.outbound.mx.tlsa import TRUST_ANCHOR, Tlsa, mismatch, usable
from relay.smtp.connection import without_dhe
from relay.smtp.tls_faults import Wrong

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver  # loaded when it is first needed

log = get_logger()

NAME = "DANE"
"""The name that people read for what asks for TLS."""

TLSA = 10.0
"""Seconds to find out about the exchangers of a domain."""
PROVED = 3600.0
UNPROVED = 60.0
"""Seconds for which it holds that the servers validate, or not."""

_LOOKUPS = Counter(
    "relay_outbound_dane_lookups",
    "Exchangers of signed domains that were looked at for TLSA records: found, unusable (none of "
    "them can be used), none, or failed (the DNS did not say).",
    ["outcome"],
    registry=registry,
)
_ON = Gauge(
    "relay_outbound_dane",
    "Whether the DNS servers have proved that they validate, without which there is no DANE.",
    registry=registry,
)


@cache
def _any_certificate() -> ssl.SSLContext:
    """A context that shakes hands with anybody: certificates are looked at afterwards."""
    context = without_dhe(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@dataclass(frozen=True, slots=True)
class Matching:
    """Verifies an exchanger's certificate against TLSA records."""

    records: tuple[Tlsa, ...]
    names: tuple[str, ...]
    """Of which the certificate must have one, where an authority is what matches; else none."""

    def context(self) -> ssl.SSLContext:
        """Nothing is verified in the handshake."""
        return _any_certificate()

    def accepts(self, session: ssl.SSLObject) -> Wrong | None:
        """Look at the certificates that were shown."""
        return mismatch(self.records, chain_of(session), self.names, utc_now())


def chain_of(session: ssl.SSLObject) -> list[bytes]:
    """The certificates that a server has shown (DER), its own first."""
    if hasattr(session, "get_unverified_chain"):  # Python 3.13
        return list(session.get_unverified_chain())
    # The module that ssl is made of has it since Python 3.10, and ssl itself says nothing of it.
    inner: Any = vars(session)["_sslobj"]
    return [one.public_bytes(_ssl.ENCODING_DER) for one in inner.get_unverified_chain() or ()]


class DanePolicies:
    """DANE for all who deliver: TLSA records of exchangers, and what follows from them."""

    def __init__(
        self,
        resolver: Callable[[], Resolver],
        *,
        port: int = 25,
        results: TlsResults | None = None,
    ) -> None:
        """`port` of exchangers; `results`: what is counted for reports, None: nothing is."""
        self._results = results
        self._resolver = resolver
        self._port = port
        self._on: bool | None = None  # nothing was said yet
        self._asked_again_at = 0.0
        self._turn = trio.Lock()

    async def follow(self) -> None:
        """Prove it at once and whenever that is due again, until cancelled: the log says so before
        there is any mail."""
        while True:
            await self.is_on()
            await trio.sleep_until(self._asked_again_at)

    async def is_on(self) -> bool:
        """Whether the DNS is believed; asked for when it is not known, once for all."""
        if trio.current_time() >= self._asked_again_at:
            async with self._turn:
                if trio.current_time() >= self._asked_again_at:
                    await self._prove()
        return self._on is not False

    async def _prove(self) -> None:
        proof = await self._resolver().proof()
        first = not self._asked_again_at
        self._asked_again_at = trio.current_time() + (PROVED if proof.validates else UNPROVED)
        if proof.validates is None:  # nothing was said, and so nothing else
            if first:
                log.warning("outbound.dane_unproved", server=proof.server, reason=proof.why)
            return
        was, self._on = self._on, proof.validates
        _ON.set(self._on)
        if self._on and not was:
            log.info("outbound.dane_on")
        elif not self._on and was is not False:
            log.warning("outbound.dane_off", server=proof.server, reason=proof.why)

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """How each exchanger is spoken to for a domain (A-labels).  Raises `PolicyUnavailable`."""
        if not await self.is_on():
            return {}
        found: dict[str, TlsPolicy] = {}
        unknown = {one.name: "no answer in time" for one in exchangers}
        with trio.move_on_after(TLSA):
            # Asked a moment ago, the answer is in memory: new is whether it is secure.
            answer = await self._ask(domain, "MX")
            if not answer.secure and answer.status is not Status.FAILED:
                return {}
            wanted = (domain, answer.canonical or domain)
            async with trio.open_nursery() as nursery:
                for one in exchangers:
                    nursery.start_soon(self._look, one.name, wanted, found, unknown)
        for host, why in unknown.items():
            _LOOKUPS.labels("failed").inc()
            log.info("outbound.dane_unknown", host=host, reason=why)
            self._count(TlsResult(domain, Published("tlsa"), "dnssec-invalid", host))
            text = f"the TLSA records of {host} are not known: {why}"
            found[host] = TlsPolicy(Security.REFUSED, why=NAME, unknown=text)
        if len(unknown) == len(exchangers):
            raise PolicyUnavailable(found[next(iter(unknown))].unknown)
        return found

    async def _look(
        self,
        host: str,
        wanted: Sequence[str],
        found: dict[str, TlsPolicy],
        unknown: dict[str, str],
    ) -> None:
        """Find out about an exchanger, which is `unknown` until then."""
        for base in await self._bases(host):
            answer = await self._ask(f"_{self._port}._tcp.{base}", "TLSA")
            if answer.status is Status.FAILED:
                unknown[host] = answer.detail
                return
            if answer.secure and answer.records:
                found[host] = _policy(base, answer.records, wanted)
                used = found[host].security is Security.VERIFIED
                _LOOKUPS.labels("found" if used else "unusable").inc()
                if not used:
                    log.info("outbound.dane_unusable", host=host)
                    published = found[host].published
                    self._count(TlsResult(wanted[0], published, "tlsa-invalid", host))
                break
        else:
            _LOOKUPS.labels("none").inc()
        del unknown[host]

    async def _bases(self, host: str) -> list[str]:
        """The TLSA base domains of an exchanger, the best first; none: it is not signed."""
        answers = [await self._ask(host, family) for family in FAMILIES]
        canonical = next((one.canonical for one in answers if one.canonical), "")
        if all(one.secure or one.status is Status.FAILED for one in answers):
            return [*([canonical] if is_name(canonical) else []), host]
        if canonical and (await self._ask(host, "CNAME")).secure:
            return [host]
        return []

    def _count(self, result: TlsResult) -> None:
        if self._results is not None:
            self._results.count(result)

    async def _ask(self, name: str, kind: RecordType) -> Answer:
        return await self._resolver().ask(Question(name, kind))


def _policy(base: str, texts: Collection[str], wanted: Sequence[str]) -> TlsPolicy:
    """Return what follows from TLSA records; `wanted`: the names of the mail's domain."""
    records = usable(texts)
    published = Published("tlsa", bounded(sorted(texts)))
    if not records:
        return TlsPolicy(Security.ENCRYPTED, None, NAME, base, published)
    by_name = any(record.usage == TRUST_ANCHOR for record in records)
    names = tuple(dict.fromkeys((base, *wanted))) if by_name else ()
    return TlsPolicy(Security.VERIFIED, Matching(records, names), NAME, base, published)


class DaneFirst:
    """DANE, and another policy where that verifies nothing.

    RFC 8461, 2: it must not override a validation by DANE that fails.  Of records that cannot be
    used there is none (RFC 7672, 2.2), so they take away nothing that the other asks for.
    """

    def __init__(self, dane: DanePolicies, other: Policy | None = None) -> None:
        """`other`: None for none."""
        self._dane = dane
        self._other = other or NoPolicy()

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """How each exchanger is spoken to for a domain (A-labels).  Raises `PolicyUnavailable`."""
        found = await self._dane.policy_for(domain, exchangers)
        rest = [
            one
            for one in exchangers
            if one.name not in found or found[one.name].security is Security.ENCRYPTED
        ]
        policies = dict(await self._other.policy_for(domain, rest) if rest else {})
        for name, own in found.items():
            other = policies.get(name, TlsPolicy())
            if other.security not in {Security.VERIFIED, Security.REFUSED}:
                policies[name] = replace(own, unknown=own.unknown or other.unknown)
        return policies
