"""Has the DNS asked what the world would say to a message that arrived.

Promises
- At most `timeout` seconds; what the DNS has not answered by then is a temporary failure, and the
  verdict says so.  Nothing is remembered but what the resolver keeps: answers for their TTL,
  failures for half a minute.
- The loop goes on meanwhile.  What a verdict takes is loaded with the first, in a thread: the list
  of public suffixes, and the code, which no start of a relay waits for.

It never fails for what a message or the DNS holds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from relay.checks.evidence import Evidence
from relay.mailboxes.records import Arrived

if TYPE_CHECKING:
    from relay.checks.verdict import Verdict
    from relay.dns.resolver import Resolver


class Judge:
    """Asks the DNS by the resolver that `resolver` returns, which is called when it is needed.

    `receiver` is the name of this host, for the explanations of others.
    """

    def __init__(
        self, resolver: Callable[[], Resolver], *, receiver: str, timeout: float = 12.0
    ) -> None:
        self._resolver = resolver
        self._receiver = receiver
        self._timeout = timeout
        self._loading = trio.Lock()
        self._is_loaded = False

    async def judge(self, evidence: Evidence, arrived: Arrived) -> Verdict:
        """Return the verdict on a message, by what it tells itself and how it arrived."""
        async with self._loading:
            if not self._is_loaded:
                await trio.to_thread.run_sync(_load)
                self._is_loaded = True
        from relay.checks.verdict import judge  # see `_load`

        return await self._resolver().drive(
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


def _load() -> None:
    """Load what verdicts take: a fifth of a second, of which the list is half."""
    import_module("relay.checks.verdict")
    import_module("relay.dns.resolver")
    from relay.checks.dmarc import organisational_domain

    organisational_domain("relay.example")
