"""Calls that wait for somebody else to do the work: a store's writer, in a thread or a task.

A `Call` is a `relay.futures.Future`: what is asked for, and where the answer is waited for.
`Calls` keeps those that are open and gives up on them when they have waited too long.  That costs a
counter and not a deadline for each, where 64 Puts share a commit of a few tenths of a millisecond.

Answering a call whose task was cancelled, or that was given up, does nothing.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import trio
from prometheus_client import Counter, Histogram

from relay.devices.store import Stored, StoreUnavailable
from relay.futures import Future
from relay.metrics import registry

T = TypeVar("T")

_TICKS = 8  # a call is given up after its time-out, or an eighth of it later
LOOK_AGAIN = 60.0
"""Seconds after which a full inbox is looked at again for blobs that have expired.

Expired blobs count until they are reaped, which happens once an hour.  Looking at every refused Put
would let anybody have 10,000 rows walked with one frame.
"""

COMMITTED = Histogram(
    "relay_devices_commit_blobs",
    "Blobs that were put in one commit.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, math.inf),
    registry=registry,
)
REFUSED = Counter(
    "relay_devices_refused_blobs", "Blobs that were not stored.", ["reason"], registry=registry
)
FULL, UNAVAILABLE = REFUSED.labels("full"), REFUSED.labels("unavailable")
STORE_FULL = REFUSED.labels("store_full")


class Call(Future[T]):
    """One call, and its answer."""

    __slots__ = ("tick",)

    def __init__(self) -> None:
        super().__init__()
        self.tick = 0


class Put(Call[Stored | None]):
    """A blob to be stored; answered with None where the inbox is full."""

    __slots__ = ("envelope", "recipient", "ttl")

    def __init__(self, recipient: bytes, envelope: bytes, ttl: float) -> None:
        """`ttl` in seconds."""
        super().__init__()
        self.recipient = recipient
        self.envelope = envelope
        self.ttl = ttl


class Delete(Call[None]):
    """Blobs of one inbox to be deleted."""

    __slots__ = ("ids", "recipient")

    def __init__(self, recipient: bytes, ids: list[int]) -> None:
        super().__init__()
        self.recipient = recipient
        self.ids = ids


class Calls:
    """The calls of one store that are open: at most `most`, each for `timeout` seconds."""

    def __init__(self, *, timeout: float, most: int) -> None:
        self._timeout = timeout
        self._most = most
        self._open: set[Call[Any]] = set()
        self._tick = 0
        self._some: trio.Event | None = None  # what `watch` waits for while none is open
        self._given_up = False
        self._refusal: str | None = "it is not running"

    def __len__(self) -> int:
        """How many wait."""
        return len(self._open)

    def accept(self) -> None:
        """Take calls from now on."""
        self._refusal = None
        self._given_up = False

    def refuse(self, why: str) -> None:
        """Take no calls until `accept`, and say why; those that are open stay so."""
        self._refusal = why
        self._given_up = False

    def alive(self) -> None:
        """Take calls again, if that ended only because no answer came: now one did."""
        if self._given_up:
            self.accept()

    def fail_all(self, why: str) -> None:
        """Fail what is open."""
        for call in self._open:
            call.fail(StoreUnavailable(why))

    def admit(self) -> None:
        """Return if a call may be made now; else `StoreUnavailable`."""
        if self._refusal is not None:
            raise StoreUnavailable(f"the store takes nothing: {self._refusal}")
        if len(self._open) >= self._most:
            raise StoreUnavailable(f"{self._most} calls wait for the store already")

    async def answered(self, call: Call[T]) -> T:
        """Wait until somebody answers or fails `call`, which has been handed over."""
        call.tick = self._tick
        self._open.add(call)
        if self._some is not None:
            self._some.set()
        try:
            return await call.wait()
        finally:
            self._open.discard(call)

    async def watch(self) -> None:
        """Give up calls that have waited for longer than `timeout`; for ever.

        A store that does not answer takes no further calls until it does.
        """
        while True:
            if not self._open:
                self._some = trio.Event()
                await self._some.wait()
                self._some = None
            await trio.sleep(self._timeout / _TICKS)
            self._tick += 1
            late = [call for call in self._open if self._tick - call.tick > _TICKS]
            if late:
                why = f"it has not answered for {self._timeout:g} s"
                self._refusal, self._given_up = why, True
                for call in late:
                    call.fail(StoreUnavailable(f"the store is given up: {why}"))
