"""MTA-STS (RFC 8461): what domains ask of those who bring them mail is found, kept and obeyed.

At each look at a domain's exchangers its record (TXT at `_mta-sts.`) is asked for.  What follows,
by what it says and by the policy that is kept:

| the record             | kept                       | then                                       |
|------------------------|----------------------------|--------------------------------------------|
| is one, with an id     | none, or by another id     | the policy is fetched                      |
| is one, with an id     | by this id, `REFRESH` old  | the policy is fetched, so that it never    |
|                        | or half of its max_age     | expires while the domain has one           |
| is one, with an id     | by this id, newer          | the kept one holds                         |
| is none, several, or   | one                        | the kept one holds                         |
| without an id          | none                       | the domain has no policy: opportunistic    |
| cannot be asked for:   | one                        | the kept one holds                         |
| the DNS fails, or says | none, for `UNASKED` or     | `PolicyUnavailable`: the mail is deferred, |
| nothing within         | less                       | for what comes may be `enforce`            |
| `RECORD`               | none, for longer           | as if there were none: a server that knows |
|                        |                            | no such names stops no mail for ever       |

| the fetch              | kept                       | then                                       |
|------------------------|----------------------------|--------------------------------------------|
| brings a policy        | any                        | it is kept instead, for its max_age        |
| fails, or brings none: | one                        | the kept one holds; next try in `RETRY`    |
| no address or none     |                            | seconds, or at once by another id          |
| that is public, TLS,   | none                       | the domain has no policy, as RFC 8461, 5.1,|
| status, type, size,    |                            | has it: opportunistic; next try likewise   |
| syntax, time           |                            |                                            |
| the database is away   | not known                  | `PolicyUnavailable`: the mail is deferred  |
| before it was asked    |                            |                                            |

| the policy's mode | a host that it names                     | a host that it does not name      |
|-------------------|------------------------------------------|-----------------------------------|
| enforce           | TLS with a certificate that is valid for | is never connected to             |
|                   | its name (4.2), or the next exchanger    |                                   |
| testing           | opportunistic; what enforce would have   | opportunistic, and reported       |
|                   | refused is reported                      |                                   |
| none              | opportunistic                            | opportunistic                     |

Where a domain has no policy only because nothing could be asked or fetched, that is said of its
exchangers (`TlsPolicy.unknown`): for mail that may go by verified TLS alone it is no final answer.

Promises
- A policy is its domain's alone.  Others at the same exchangers wait for nothing that is done here,
  and share no connection with it unless they ask for the same (`relay.outbound.mx.sites`).
- A policy that holds is given up for no failure, on this node or another, but only for another
  policy or at its end (`relay.outbound.mx.sts_store`).
- Once at a time for a domain, on each node, is a policy looked for; others wait for what comes.
- A fetch that was cancelled counts as one that failed: it is not what is waited for each time.
- At most `MOST_KNOWN` domains are in memory, those least recently asked about go first; what is
  there is read again after `REREAD` seconds, for other nodes fetch, too.  Of at most `MOST_UNASKED`
  it is remembered since when their record cannot be asked for.

Fails with `PolicyUnavailable`.
"""

from __future__ import annotations

import math
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from prometheus_client import Counter

from relay.checks import sts
from relay.checks.sts import Mode, StsPolicy
from relay.checks.tags import Unusable
from relay.dns.questions import Question, Status
from relay.errors import DatabaseUnavailable, TemporaryFailure
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.policy import (
    UNMET,
    PolicyUnavailable,
    Published,
    Security,
    TlsPolicy,
    bounded,
)
from relay.outbound.mx.sts_store import Kept, StsStore
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from relay.redact import redact
from relay.smtp.connection import client_tls
from relay.smtp.tls_faults import TlsFault, Wrong

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver  # loaded when it is first needed

log = get_logger()

NAME = "MTA-STS"
"""What people are told it is that asks for TLS."""

FETCH = 10.0
"""Seconds for a policy, the addresses of its server included."""
RECORD = 5.0
"""Seconds for the record: past it, it is as if the DNS had failed."""
RETRY = 300.0
REFRESH = 86_400.0
REREAD = 600.0
MOST_KNOWN = 2_000
UNASKED = 3600.0
"""Seconds for which mail waits for a record that cannot be asked for: as long as between two of its
attempts at most."""
MOST_UNASKED = 10_000

_FETCHES = Counter(
    "relay_outbound_sts_fetches",
    "Policies of MTA-STS that were asked for: fetched or failed.",
    ["outcome"],
    registry=registry,
)

Get = Callable[[str, Mapping[str, str], int], Awaitable[tuple[int, str, bytes]]]
"""Asks for a URL, with these headers, for so many bytes at most: status, type and body.

Raises `TemporaryFailure`.  `relay.webhooks.post.Poster.get`, which reaches the public internet
alone, verifies, and follows no redirect.
"""


def web_pki(ca_file: str | None = None) -> ssl.SSLContext:
    """What verifies servers of policies, and exchangers: a name counts as a dNSName alone."""
    context = client_tls(ca_file)
    context.hostname_checks_common_name = False
    return context


@dataclass(frozen=True, slots=True)
class WebPki:
    """Verifies an exchanger's certificate against authorities, and its name (4.2)."""

    authorities: Callable[[], ssl.SSLContext]
    """Gives what `web_pki` made, once for all."""

    def context(self) -> ssl.SSLContext:
        """All of it happens in the handshake."""
        return self.authorities()

    def accepts(self, session: ssl.SSLObject) -> Wrong | None:
        """Nothing is left to look at."""
        return None


class _Known:
    """What this node knows of a domain."""

    __slots__ = ("kept", "read_at", "tried", "tried_at")

    def __init__(self, kept: Kept | None, now: float) -> None:
        self.kept = kept
        self.read_at = now
        self.tried = ""
        """The id by which fetching failed last."""
        self.tried_at = -math.inf

    def policy(self, now: float) -> StsPolicy | None:
        """The policy that holds."""
        return self.kept.policy if self.kept is not None and self.kept.holds(now) else None

    def is_due(self, policy_id: str, now: float) -> bool:
        """Whether the policy is to be fetched, where the record has this id."""
        if policy_id == self.tried and now < self.tried_at + RETRY:
            return False
        if self.kept is None or not self.kept.holds(now) or self.kept.policy_id != policy_id:
            return True
        return now >= self.kept.fetched_at + min(REFRESH, self.kept.policy.max_age / 2)


class StsPolicies:
    """The policies of domains; one for all who deliver."""

    def __init__(
        self,
        store: StsStore,
        resolver: Callable[[], Resolver],
        get: Get,
        authorities: Callable[[], ssl.SSLContext],
        redact_key: bytes,
        results: TlsResults | None = None,
    ) -> None:
        """`authorities`: gives what verifies exchangers (`web_pki`), the same each time;
        `redact_key`: of what is taken out of strangers' words in the log; `results`: what is
        counted for reports, None: nothing is."""
        self._redact_key = redact_key
        self._results = results
        self._store = store
        self._resolver = resolver
        self._get = get
        self._verifier = WebPki(authorities)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._turns: dict[str, trio.Lock] = {}
        self._unasked: OrderedDict[str, float] = OrderedDict()  # since when; oldest first

    async def policy_for(
        self, domain: str, exchangers: Sequence[Exchanger]
    ) -> Mapping[str, TlsPolicy]:
        """How each exchanger is spoken to for a domain (A-labels).  Raises `PolicyUnavailable`."""
        policy, unknown = await self._look(domain)
        if policy is None and unknown:
            return dict.fromkeys((one.name for one in exchangers), TlsPolicy(unknown=unknown))
        if policy is None or policy.mode is Mode.NONE:
            return {}
        enforced = policy.mode is Mode.ENFORCE
        published = _published(policy)
        named = TlsPolicy(
            Security.VERIFIED if enforced else Security.TESTED,
            self._verifier,
            NAME,
            published=published,
        )
        found = {}
        for name in (one.name for one in exchangers):
            if policy.allows(name):
                found[name] = named
                continue
            UNMET.labels(policy.mode.value, "host").inc()
            self._count(TlsResult(domain, published, TlsFault.VALIDATION, name))
            if enforced:
                found[name] = TlsPolicy(Security.REFUSED, why=NAME, published=published)
            else:
                found[name] = TlsPolicy(why=NAME, published=published)
                log.info("outbound.sts_not_named", domain=domain, host=name)
        return found

    async def find(self, domain: str) -> StsPolicy | None:
        """The policy of a domain (A-labels) that holds; None: there is none, as far as can be said.

        Raises `PolicyUnavailable`.
        """
        return (await self._look(domain))[0]

    async def _look(self, domain: str) -> tuple[StsPolicy | None, str]:
        """The policy of a domain that holds; else why it is not known whether it has one."""
        async with self._turn(domain):
            known = await self._read(domain, since=trio.current_time() - REREAD)
            policy_id, unknown = await self._published(domain)
            now = trio.current_time()
            self._heed_silence(domain, unknown, known, now)
            if policy_id is not None and known.is_due(policy_id, now):
                # Another node may have been here.
                known = await self._read(domain, since=now)
                if known.is_due(policy_id, trio.current_time()):
                    fetched = await self._fetch(domain, policy_id, known)
                    if fetched is not None:
                        return fetched, ""  # for this once, even if it expires at once
            if policy_id is not None:
                unknown = "its policy of MTA-STS cannot be fetched"
            return known.policy(trio.current_time()), unknown

    def _heed_silence(self, domain: str, unknown: str, known: _Known, now: float) -> None:
        """Note whether a domain's record could be asked for; `PolicyUnavailable` for a while, where
        it could not and no policy holds."""
        if not unknown:
            self._unasked.pop(domain, None)
            return
        since = self._unasked.setdefault(domain, now)
        if len(self._unasked) > MOST_UNASKED:
            self._unasked.popitem(last=False)
        if known.policy(now) is None:
            waits = now < since + UNASKED
            log.info("outbound.sts_not_asked", domain=domain, reason=unknown, waits=waits)
            if waits:
                raise PolicyUnavailable(unknown)

    def _count(self, result: TlsResult) -> None:
        if self._results is not None:
            self._results.count(result)

    @asynccontextmanager
    async def _turn(self, domain: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(domain, trio.Lock())
        try:
            async with turn:
                yield
        finally:
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._turns.pop(domain, None)

    async def _read(self, domain: str, *, since: float) -> _Known:
        """What is known of a domain, as it was read after that instant."""
        known = self._known.get(domain)
        if known is not None and known.read_at > since:
            self._known.move_to_end(domain)
            return known
        try:
            kept = await self._store.read(domain)
        except DatabaseUnavailable as error:
            raise PolicyUnavailable("the database does not say what the domain asks for") from error
        now = trio.current_time()
        if known is None:
            known = self._known[domain] = _Known(kept, now)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        else:
            # What could not be stored here holds all the same.
            if kept is not None or known.policy(now) is None:
                known.kept = kept
            known.read_at = now
        self._known.move_to_end(domain)
        return known

    async def _published(self, domain: str) -> tuple[str | None, str]:
        """The id in the domain's record; None: it has none that can be used, or why nobody says."""
        why = "no answer in time"
        with trio.move_on_after(RECORD):
            answer = await self._resolver().ask(Question(f"_mta-sts.{domain}", "TXT"))
            if answer.status is not Status.FAILED:
                found = sts.records(answer.records)
                return (sts.id_of(found[0]) if len(found) == 1 else None), ""
            why = answer.detail
        return None, f"its record of MTA-STS cannot be asked for: {why}"

    async def _fetch(self, domain: str, policy_id: str, known: _Known) -> StsPolicy | None:
        """The policy that the domain's server has now, which is kept; None: none can be had."""
        # Now, for who waits for it may give up.
        known.tried, known.tried_at = policy_id, trio.current_time()
        fault = "sts-policy-fetch-error"
        try:
            status, media_type, body = await self._get(
                sts.policy_url(domain), {"Accept": "text/plain"}, sts.MAX_POLICY
            )
            wrong = sts.refusal(status, media_type)
            policy = None if wrong else sts.parse(body)
        except TemporaryFailure as error:
            wrong, policy = str(error), None
            if wrong.startswith("TLS "):  # `Poster` says no more of it
                fault = "sts-webpki-invalid"
        except Unusable as error:
            wrong, policy, fault = str(error), None, "sts-policy-invalid"
        if policy is None:
            self._count(TlsResult(domain, Published("sts"), fault))
            _FETCHES.labels("failed").inc()
            holds = known.policy(trio.current_time()) is not None
            # It may quote what the server wrote.
            reason = redact(wrong or "", self._redact_key)
            log.info("outbound.sts_not_fetched", domain=domain, reason=reason, kept=holds)
            return None
        _FETCHES.labels("fetched").inc()
        known.tried = ""
        known.kept = Kept(policy_id, policy, trio.current_time())
        try:
            await self._store.keep(domain, policy_id, policy)
        except DatabaseUnavailable:
            log.warning("outbound.sts_not_stored", domain=domain)  # it holds here
        return policy


def _published(policy: StsPolicy) -> Published:
    """A policy as reports show it."""
    strings = ("version: STSv1", f"mode: {policy.mode}", f"max_age: {policy.max_age}")
    hosts = bounded(policy.hosts)
    return Published("sts", bounded((*strings, *(f"mx: {host}" for host in hosts))), hosts)
