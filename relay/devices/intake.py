"""The one way in for blobs: push sessions and the HTTP call put through this.

Promises
  * `put` returns only when the blob is durable; everything that stands against that is `Refused`
    with the reason and the seconds that the wire format has for it.
  * A recipient takes 20 blobs a second, 500 at once, on this node.  Sources share them:
    whoever pushes much to a recipient leaves a second's worth to those who push little.
  * A source (a peer's address, of IPv6 its network of 64 bits) pushes so many bytes a second to all
    recipients together, so that inventing keys gains nothing.
  * While the disk is nearly full nothing is taken.
  * What is refused here costs the store nothing.
  * Memory: a recipient is remembered for as long as its rate is used up, a source likewise, half a
    minute at most, so the tables are bounded by the pushes of that time, whatever strangers invent.

Fails: never otherwise; a fault of the store's code is let through, for supervision.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import trio
from prometheus_client import Counter

from relay.devices.store import (
    OVERHEAD,
    InboxFull,
    InboxStore,
    Stored,
    StoreFull,
    StoreUnavailable,
)
from relay.devices.wire import MAX_ENVELOPE, Reason, Refused
from relay.gcra import Gcra
from relay.metrics import registry
from relay.storage import AMPLE, REFUSED, RETRY_AFTER, Space

RATE: Final = 20.0
"""Blobs a second that one recipient takes on one node."""
BURST: Final = 500
"""Blobs that one recipient takes at once after a while of silence."""
SOURCE_BURST: Final = 30.0
"""Seconds' worth of bytes that one source may push at once after a while of silence."""

_RESERVED = 25  # one in so many of the burst is for sources that have had less than their share

PUTS = Counter(
    "relay_devices_puts", "Blobs that were handed in, by what became of them.", ["outcome"],
    registry=registry,
)  # fmt: skip
_OUTCOMES = {reason: PUTS.labels(reason.name.lower()) for reason in Reason}
_STORED = PUTS.labels("stored")
_NO_SPACE = REFUSED.labels("blob")


class Shortage(enum.Enum):
    """What is used up that is not the recipient's own; with the reason that is said on the wire."""

    LOW_DISK = Reason.UNAVAILABLE, "low_disk"
    STORE_FULL = Reason.INBOX_FULL, "store_full"
    SOURCE_RATE = Reason.RATE_LIMITED, "source_rate"


class Short(Refused):
    """A refusal whose cause the reason alone does not tell."""

    def __init__(self, what: Shortage, retry_after: float) -> None:
        super().__init__(what.value[0], retry_after)
        self.what = what


class RecipientRates:
    """How many blobs each recipient takes, shared by the sources that push: in memory.

    A source that has lately had less than its share of a recipient's rate may go ahead of it by a
    little, which those who have had more pay for by waiting.
    """

    def __init__(
        self,
        rate: float = RATE,
        burst: int = BURST,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Allow `rate` a second and `burst` at once; `clock` is in seconds."""
        self._interval = 1.0 / rate
        self._tolerance = (burst - 1) / rate  # what may be used up when one more comes
        self._reserve = max(1, burst // _RESERVED) / rate
        self._clock = clock
        self._limit = Gcra[bytes]()
        # Of recipients of whose burst more than half is used up: source -> when its share is whole.
        # Below that nobody is in anybody's way, and most recipients never get there.
        self._shares: dict[bytes, dict[str, float]] = {}
        self._sweep_at = 1024  # recipients

    def __len__(self) -> int:
        """How many recipients are remembered."""
        return len(self._limit)

    @property
    def remembered(self) -> int:
        """Sources of which something is remembered, counted for each recipient apart."""
        return sum(map(len, self._shares.values()))

    def take(self, recipient: bytes, source: str = "") -> float:
        """Count one for `recipient` and return 0; or nothing, and return the seconds to wait."""
        now = self._clock()
        used = self._limit.used(recipient, now)
        if 2 * used > self._tolerance and (wait := self._share(recipient, source, now, used)) > 0:
            return wait
        self._limit.spend(recipient, now, self._interval)
        return 0.0

    def _share(self, recipient: bytes, source: str, now: float, used: float) -> float:
        """Count one for a source and return 0; or count nothing and return the seconds to wait."""
        shares = self._shares.get(recipient, {})
        mine = max(shares.get(source, now), now)
        allowed = self._tolerance
        if mine - now <= self._reserve:
            allowed += self._reserve
        wait = used - allowed
        if wait > 1e-9:
            return wait  # and nothing is remembered of who is refused
        shares = {each: until for each, until in shares.items() if until > now}
        sources = len(shares) + (source not in shares)
        shares[source] = min(mine + sources * self._interval, now + self._tolerance)
        self._shares[recipient] = shares
        if len(self._shares) >= self._sweep_at:
            self._shares = {each: of for each, of in self._shares.items() if each in self._limit}
            self._sweep_at = 2 * len(self._shares) + 1024  # so a sweep costs nothing per push
        return 0.0


class SourceRates:
    """How many bytes each source may push, to all recipients together."""

    def __init__(self, rate: float = 0.0, clock: Callable[[], float] = trio.current_time) -> None:
        """Allow `rate` bytes a second, `OVERHEAD` for each blob among them; 0: any number."""
        self._rate = rate
        self._clock = clock
        self._limit = Gcra[str]()

    def __len__(self) -> int:
        """How many sources are remembered."""
        return len(self._limit)

    def take(self, source: str, size: int) -> float:
        """Count a blob of `size` bytes and return 0; or nothing, and return the seconds to wait."""
        if self._rate <= 0:
            return 0.0
        cost = (size + OVERHEAD) / self._rate
        return self._limit.take(source, self._clock(), cost, SOURCE_BURST)


class Intake:
    """Takes blobs for the store, from anyone."""

    def __init__(
        self,
        store: InboxStore,
        rates: RecipientRates | None = None,
        *,
        sources: SourceRates | None = None,
        space: Space = AMPLE,
    ) -> None:
        """`space`: of the disk; without it nothing is taken."""
        self._store = store
        self._rates = RecipientRates() if rates is None else rates
        self._sources = SourceRates() if sources is None else sources
        self._space = space

    def admit(self, recipient: bytes, envelope: bytes, source: str = "") -> None:
        """Return if the blob may be put now, counting it for its recipient and its source (a
        `peer_key`); else `Refused`.

        At once, so that the blobs of one session are judged in their order.
        """
        if len(envelope) > MAX_ENVELOPE:
            raise self.refused(Reason.TOO_LARGE)
        if self._space.short():
            _NO_SPACE.inc()
            raise self._short(Shortage.LOW_DISK, RETRY_AFTER)
        wait = self._sources.take(source, len(envelope))
        if wait > 0:
            raise self._short(Shortage.SOURCE_RATE, max(wait, 1.0))
        wait = self._rates.take(recipient, source)
        if wait > 0:
            raise self.refused(Reason.RATE_LIMITED, max(wait, 1.0))

    async def store(self, recipient: bytes, envelope: bytes, ttl: float | None = None) -> Stored:
        """Make a blob durable that was admitted.  `Refused`."""
        try:
            stored = await self._store.put(recipient, envelope, ttl)
        except InboxFull as full:
            raise self.refused(Reason.INBOX_FULL, full.retry_after) from full
        except StoreFull as full:
            raise self._short(Shortage.STORE_FULL, full.retry_after) from full
        except StoreUnavailable as error:
            raise self.refused(Reason.UNAVAILABLE, error.retry_after) from error
        _STORED.inc()
        return stored

    async def put(
        self, recipient: bytes, envelope: bytes, source: str = "", ttl: float | None = None
    ) -> Stored:
        """Admit a blob and make it durable, for `ttl` seconds at most.  `Refused`."""
        self.admit(recipient, envelope, source)
        return await self.store(recipient, envelope, ttl)

    @staticmethod
    def refused(reason: Reason, retry_after: float = 0.0) -> Refused:
        """Count a refusal, and return what says it."""
        _OUTCOMES[reason].inc()
        return Refused(reason, retry_after)

    @staticmethod
    def _short(what: Shortage, retry_after: float) -> Short:
        PUTS.labels(what.value[1]).inc()
        return Short(what, retry_after)
