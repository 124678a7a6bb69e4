"""The one way in for blobs: push sessions and the HTTP call put through this.

Promises
  * `put` returns only when the blob is durable; everything that stands against that is `Refused`
    with the reason and the seconds that the wire format has for it.
  * A recipient takes 20 blobs a second, 500 at once (GCRA), on this node.  What is refused for
    its rate costs the store nothing.
  * Memory: a recipient is remembered for as long as its rate is used up, 25 s at most, so the
    table is bounded by the pushes of the last 25 s whatever keys strangers invent.

Fails: never otherwise; a fault of the store's code is let through, for supervision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
from prometheus_client import Counter

from relay.devices.store import InboxFull, InboxStore, Stored, StoreUnavailable
from relay.devices.wire import MAX_ENVELOPE, Reason, Refused
from relay.metrics import registry

RATE: Final = 20.0
"""Blobs a second that one recipient takes on one node."""
BURST: Final = 500
"""Blobs that one recipient takes at once after a while of silence."""

PUTS = Counter(
    "relay_devices_puts", "Blobs that were handed in, by what became of them.", ["outcome"],
    registry=registry,
)  # fmt: skip
_OUTCOMES = {reason: PUTS.labels(reason.name.lower()) for reason in Reason}
_STORED = PUTS.labels("stored")


class Rates:
    """How often each key may do something: the generic cell rate algorithm, in memory."""

    def __init__(
        self,
        rate: float = RATE,
        burst: int = BURST,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Allow `rate` a second and `burst` at once; `clock` is in seconds."""
        self._interval = 1.0 / rate
        self._tolerance = (burst - 1) / rate
        self._clock = clock
        self._due: dict[bytes, float] = {}  # key -> when its allowance is whole again
        self._sweep_at = 1024  # entries

    def __len__(self) -> int:
        return len(self._due)

    def take(self, key: bytes) -> float:
        """Count one for `key` and return 0; or count nothing and return the seconds to wait."""
        now = self._clock()
        due = max(self._due.get(key, now), now)
        if (ahead := due - now - self._tolerance) > 1e-9:
            return ahead
        self._due[key] = due + self._interval
        if len(self._due) >= self._sweep_at:
            self._due = {each: due for each, due in self._due.items() if due > now}
            self._sweep_at = 2 * len(self._due) + 1024  # so a sweep costs nothing per push
        return 0.0


class Intake:
    """Takes blobs for the store, from anyone."""

    def __init__(self, store: InboxStore, rates: Rates | None = None) -> None:
        self._store = store
        self._rates = Rates() if rates is None else rates

    def admit(self, recipient: bytes, envelope: bytes) -> None:
        """Return if the blob may be put now, counting it for the recipient's rate; else `Refused`.

        At once, so that the blobs of one session are judged in their order.
        """
        if len(envelope) > MAX_ENVELOPE:
            raise self.refused(Reason.TOO_LARGE)
        wait = self._rates.take(recipient)
        if wait > 0:
            raise self.refused(Reason.RATE_LIMITED, max(wait, 1.0))

    async def store(self, recipient: bytes, envelope: bytes) -> Stored:
        """Make a blob durable that was admitted.  `Refused`."""
        try:
            stored = await self._store.put(recipient, envelope)
        except InboxFull as full:
            raise self.refused(Reason.INBOX_FULL, full.retry_after) from full
        except StoreUnavailable as error:
            raise self.refused(Reason.UNAVAILABLE, error.retry_after) from error
        _STORED.inc()
        return stored

    async def put(self, recipient: bytes, envelope: bytes) -> Stored:
        """Admit a blob and make it durable.  `Refused`."""
        self.admit(recipient, envelope)
        return await self.store(recipient, envelope)

    @staticmethod
    def refused(reason: Reason, retry_after: float = 0.0) -> Refused:
        """Count a refusal, and return what says it."""
        _OUTCOMES[reason].inc()
        return Refused(reason, retry_after)
