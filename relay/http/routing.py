"""The route table: what a resource module registers its calls with.

What: `register(api)` of each module in `resources/`, and of each catcher in `compat/`, declares its
calls with `api.add(method, rule, operation)`; `app.py` mounts what was collected.

Promises
  * A call without an `Operation` does not exist: there is no other way to add one.
  * A change that has begun is not lost to a client that hangs up (`committed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio

from relay.errors import DatabaseUnavailable
from relay.http.checking import Checking
from relay.http.deps import Deps
from relay.http.limits.heavy_calls import HeavyCalls
from relay.http.operations import Handler, Operation
from relay.http.responses.downloads import Downloads
from relay.http.waiting.crowds import Crowds
from relay.http.waiting.waiters import Slots

T = TypeVar("T")


@dataclass(frozen=True)
class Route:
    """One declared call."""

    method: str
    rule: str
    operation: Operation
    handler: Handler


class Api:
    """Collects the declared calls; what the resource modules register with."""

    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self.routes: list[Route] = []
        self.waits = Slots(deps.limits, deps.trusted_proxies)
        """How many wait for mail at once, by all calls that do."""
        self.heavy_calls = HeavyCalls(deps.trusted_proxies)
        """How many search at once, by all calls that do."""
        self.crowds = Crowds(deps.arrivals, self.heavy_calls)
        """Who look together, of those that wait on one mailbox."""
        self.checking = Checking(deps)
        """How many messages are checked at once, by all calls that do."""
        self.downloads = Downloads(deps.limits.download_bytes)
        """What messages are on their way to clients, by all calls that give one whole."""
        self.compat_downloads = Downloads(deps.limits.download_bytes // 4)
        """The same, by all calls that stand in for another program's."""
        self.released = Downloads(deps.limits.download_bytes // 4)
        """What messages are being sent on, by all calls that release one."""

    @property
    def described(self) -> tuple[Route, ...]:
        """The calls of this relay's own API: all but those that stand in for another program's."""
        return tuple(route for route in self.routes if not route.operation.compat)

    def add(self, method: str, rule: str, operation: Operation) -> Callable[[Handler], Handler]:
        """Declare `method rule` as `operation`, answered by the decorated handler."""

        def register(handler: Handler) -> Handler:
            self.routes.append(Route(method, rule, operation, handler))
            return handler

        return register

    async def committed(self, change: Callable[[], Awaitable[T]]) -> T:
        """Run `change` to its end even if the client hangs up, for a bounded time.

        Raises `DatabaseUnavailable` when `Limits.commit_timeout` has passed without an end.
        """
        with trio.move_on_after(self.deps.limits.commit_timeout, shield=True):
            return await change()
        raise DatabaseUnavailable("the change was not confirmed in time")
