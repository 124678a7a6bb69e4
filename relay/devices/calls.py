"""Calls that wait for somebody else to do the work: a store's writer, in a thread or a task.

A `Call` parks the task that made it until it is answered; `Calls` keeps those that are open and
gives up on them when they have waited too long.  That costs a counter and not a deadline for each,
where 64 Puts share a commit of a few tenths of a millisecond.

Answering a call whose task was cancelled, or that was given up, does nothing.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import trio
from prometheus_client import Counter, Histogram

from relay.devices.store import Stored, StoreUnavailable
from relay.metrics import registry

T = TypeVar("T")

_TICKS = 8  # a call is given up after its time-out, or an eighth of it later
_LOOK_AGAIN = 60.0  # s
_REMEMBERED = 10_000  # full inboxes

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


class Call(Generic[T]):
    """One call, by the task that makes the object."""

    __slots__ = ("_error", "_result", "_task", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self._result: T | None = None
        self._error: Exception | None = None
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def answer(self, result: T) -> None:
        """Let the caller go on with `result`."""
        if self._task is not None:
            self._result = result
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def fail(self, error: Exception) -> None:
        """Let the caller go on with `error`, which must be its own: it gets a traceback."""
        if self._task is not None:
            self._error = error
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> T:
        """Wait to be answered."""
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Nobody waits (any more): answers do nothing."""
        self._task = None

    def _abort(self, _: Any) -> trio.lowlevel.Abort:
        self.abandon()
        return trio.lowlevel.Abort.SUCCEEDED


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
        try:
            return await call.wait()
        finally:
            self._open.discard(call)

    async def watch(self) -> None:
        """Give up calls that have waited for longer than `timeout`; for ever.

        A store that does not answer takes no further calls until it does.
        """
        while True:
            await trio.sleep(self._timeout / _TICKS)
            self._tick += 1
            late = [call for call in self._open if self._tick - call.tick > _TICKS]
            if late:
                why = f"it has not answered for {self._timeout:g} s"
                self._refusal, self._given_up = why, True
                for call in late:
                    call.fail(StoreUnavailable(f"the store is given up: {why}"))


class Relief:
    """Which full inboxes are worth a look for blobs that have expired: each once a minute.

    Expired blobs count until they are reaped, which happens once an hour.  Looking at every
    refused Put would let anybody have 10,000 rows walked with one frame.
    """

    def __init__(self) -> None:
        self._looked_at: dict[bytes, float] = {}

    def worth(self, recipient: bytes) -> bool:
        """Whether to look now; if so it is remembered."""
        now = trio.current_time()
        if self._looked_at.get(recipient, -_LOOK_AGAIN) + _LOOK_AGAIN > now:
            return False
        if len(self._looked_at) >= _REMEMBERED:
            self._looked_at.clear()
        self._looked_at[recipient] = now
        return True
