"""Mail that waits for the DNS: claimed, its domain's site not known yet.

Promises
- A domain is looked up once at a time, however much mail waits for it, and holds up no other's.
- `late` names the domains whose look-up takes longer than one does, with what waits for them.
- Everything that was put in comes out once: told to `looked_up`, taken by `take` or by `stop`.

Fails: never; what nobody foresaw is told as the exception that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import trio

from relay.dns.turns import PATIENCE
from relay.outbound.active_queue.jobs import Job
from relay.outbound.mx.exchangers import Unreachable
from relay.outbound.mx.sites import Site, Sites

LATE = PATIENCE
"""Seconds after which a look-up takes longer than usual."""

LookedUp = Callable[[str, Sequence[Job], "Site | Unreachable | Exception"], None]
"""Told of a domain: what has waited for it, and what was found."""


class _Lookup:
    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.scope = trio.CancelScope()
        self.waiting: list[Job] = []


class Lookups:
    """The look-ups of one sender that are under way."""

    def __init__(self, sites: Sites, looked_up: LookedUp) -> None:
        self._sites = sites
        self._looked_up = looked_up
        self._under_way: dict[str, _Lookup] = {}

    def put(self, job: Job, now: float, nursery: trio.Nursery) -> None:
        """Have a job wait for its domain, which is looked up by a task in `nursery`."""
        lookup = self._under_way.get(job.domain)
        if lookup is None:
            lookup = self._under_way[job.domain] = _Lookup(now)
            nursery.start_soon(self._look_up, job.domain, lookup)
        lookup.waiting.append(job)

    def is_late(self, domain: str, now: float) -> bool:
        """Whether a domain is being looked up for longer than that takes."""
        lookup = self._under_way.get(domain)
        return lookup is not None and now > lookup.began_at + LATE

    def late(self, now: float) -> Iterator[str]:
        """The domains whose look-up takes longer than one does."""
        return (domain for domain in list(self._under_way) if self.is_late(domain, now))

    def take(self, domain: str) -> list[Job]:
        """Take out what waits for a domain that is being looked up."""
        lookup = self._under_way[domain]
        taken, lookup.waiting = lookup.waiting, []
        return taken

    def stop(self) -> list[Job]:
        """Look nothing up any more; returns what has waited."""
        taken = []
        for domain, lookup in self._under_way.items():
            lookup.scope.cancel()
            taken += self.take(domain)
        return taken

    async def _look_up(self, domain: str, lookup: _Lookup) -> None:
        found: Site | Unreachable | Exception | None = None
        try:
            with lookup.scope:
                found = await self._sites.look_up(domain)
        except Exception as error:
            found = error
        finally:
            del self._under_way[domain]
        if found is not None:
            self._looked_up(domain, lookup.waiting, found)
