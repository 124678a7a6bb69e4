"""Has the DNS asked what the world would say to a message that arrived.

Promises
- At most `timeout` seconds; what the DNS has not answered by then is a temporary failure, and the
  verdict says so.  Nothing is remembered but what the resolver keeps: answers for their TTL,
  failures for half a minute.
- The loop goes on meanwhile: the list of public suffixes, which takes a tenth of a second to read,
  is read in a thread, once, with the first verdict.

It never fails for what a message or the DNS holds.
"""

from __future__ import annotations

import trio

from relay.checks import dmarc
from relay.checks.evidence import Evidence
from relay.checks.verdict import Verdict, judge
from relay.dns.resolver import Resolver
from relay.mailboxes.records import Arrived


class Judge:
    """Asks the DNS; `receiver` is the name of this host, for the explanations of others."""

    def __init__(self, resolver: Resolver, *, receiver: str, timeout: float = 12.0) -> None:
        self._resolver = resolver
        self._receiver = receiver
        self._timeout = timeout
        self._reading = trio.Lock()
        self._has_suffixes = False

    async def judge(self, evidence: Evidence, arrived: Arrived) -> Verdict:
        """Return the verdict on a message, by what it tells itself and how it arrived."""
        await self._read_suffixes()
        return await self._resolver.drive(
            judge(
                evidence,
                client=arrived.client,
                helo=arrived.helo,
                mail_from=arrived.reverse_path,
                at=arrived.at,
                receiver=self._receiver,
            ),
            timeout=self._timeout,
        )

    async def _read_suffixes(self) -> None:
        async with self._reading:
            if not self._has_suffixes:
                await trio.to_thread.run_sync(dmarc.organisational_domain, "relay.example")
                self._has_suffixes = True
