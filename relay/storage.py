"""How much of the data directory's disk is free, and whether new data may still come.

A disk that is full takes everything down together: the embedded database stops, the devices' file
takes nothing, and what would free space (expiry, reaping, deliveries) cannot be written either.
So below a floor of free space the relay refuses what is new, with answers that say "try again
later", while it has room enough to go on with the rest.

Promises
- `short` costs a comparison: the disk is looked at by `watch`, in a thread, about once a second;
  every five seconds while ten times the floor is free, which no disk fills in that time.
- Below the floor it is `short`; not again `ample` before a tenth of the floor more is free, so
  that the answers do not flicker.
- Each crossing is one line of the log (`storage.low`, `storage.recovered`), and so is coming below
  twice the floor (`storage.getting_low`).
- A disk that hangs holds up one thread and nobody else.  The last figures stand meanwhile.

Fails: never.  Where nothing can be measured, nothing is refused.

What comes between two looks is not seen: leave a floor of some seconds' worth of writing.  A
database elsewhere has a disk of its own, which nobody can see from here; its own refusals
(SQLSTATE 53100) are temporary failures like its absence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio
from prometheus_client import Counter, Gauge

from relay.log import get_logger
from relay.metrics import registry

log = get_logger()

LOOK_EVERY = 1.0
"""Seconds between two looks at the disk."""
_FAR, _SELDOM = 10, 5  # above so many times the floor, so many times as long passes between looks
PATIENCE = 10.0
"""Seconds after which a disk that does not say how full it is counts as one that hangs."""
RETRY_AFTER = 30
"""Seconds after which whoever was refused may try again."""
LEAST_FREE = 1 << 30
"""Bytes of the floor where none is set: this, or a twentieth of the disk if that is less."""

REASON = "Too little disk space is left here; try again later."
"""What whoever was refused is told."""

_FREE = Gauge(
    "relay_storage_free_bytes", "Free bytes of the data directory's disk.", registry=registry
)
_FLOOR = Gauge(
    "relay_storage_floor_bytes",
    "Free bytes below which new data is refused.",
    registry=registry,
)
REFUSED = Counter(
    "relay_storage_refused",
    "What was refused for want of disk space (mail, blob, call), or waits for it (letter, report, "
    "delivery).",
    ["what"],
    registry=registry,
)


_GIB = 1 << 30


class Disk(NamedTuple):
    """A file system: bytes in all, and those that we may still use."""

    total: int
    free: int


def measure(path: Path) -> Disk:
    """Ask the file system of `path`.  Blocks for as long as the disk likes; `OSError`."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def usual_floor(total: int) -> int:
    """Return the floor of a disk of so many bytes where none is set."""
    return min(LEAST_FREE, total // 20)


class Space:
    """The free space of one disk.  Someone must `watch`; without, nothing is ever short.

    `floor` makes the floor of the size of the disk, both in bytes; `look` measures, and may block.
    """

    def __init__(
        self, look: Callable[[], Disk] | None = None, floor: Callable[[int], int] = usual_floor
    ) -> None:
        self._look = look
        self._floor_of = floor
        self._low = self._scarce = self._hangs = False
        self.free = 0
        self.floor = 0
        """0: there is none."""

    def short(self, size: int = 0) -> bool:
        """Whether new data of `size` bytes is to be refused now."""
        return self._low or (size > 0 and self.floor > 0 and self.free - size < self.floor)

    @property
    def state(self) -> tuple[int, int, bool]:
        """Free bytes, floor, and whether it is short: what `tell` takes in another process."""
        return self.free, self.floor, self._low

    def tell(self, state: Sequence[Any]) -> None:
        """Take the `state` that another process of this relay has found, instead of looking."""
        self.free, self.floor, self._low = state

    @property
    def notice(self) -> str | None:
        """What an operator should know, in a sentence; None while there is nothing."""
        if not self._low:
            return None
        return (
            f"new mail, blobs and messages are refused: {self.free / _GIB:.2f} GiB are free on the "
            f"data directory's disk, and the floor is {self.floor / _GIB:.2f} GiB"
        )

    def look(self) -> None:
        """Look at the disk now, in this thread."""
        self._judge(self._measured())

    async def watch(self, every: float = LOOK_EVERY, patience: float = PATIENCE) -> None:
        """Look again and again, until cancelled; durations in seconds."""
        if self._look is None:
            return
        one = trio.CapacityLimiter(1)  # a thread that hangs keeps it: no second one joins it
        while True:
            with trio.move_on_after(patience) as scope:
                found = await trio.to_thread.run_sync(
                    self._measured, abandon_on_cancel=True, limiter=one
                )
                self._hangs = False
                self._judge(found)
            if scope.cancelled_caught and not self._hangs:
                self._hangs = True
                log.error("storage.unanswered", seconds=patience)
            far = self.free > _FAR * self.floor > 0
            await trio.sleep(_SELDOM * every if far else every)

    def _measured(self) -> Disk | None:
        if self._look is None:
            return None
        try:
            return self._look()
        except OSError:
            return None

    def _judge(self, disk: Disk | None) -> None:
        if disk is None:
            return
        floor = self._floor_of(disk.total)
        self.free, self.floor = disk.free, floor
        _FREE.set(disk.free)
        _FLOOR.set(floor)
        was_low, was_scarce = self._low, self._scarce
        self._low = disk.free < _bar(floor, crossed=was_low)
        self._scarce = disk.free < _bar(2 * floor, crossed=was_scarce)
        if self._low and not was_low:
            log.error("storage.low", free=disk.free, floor=floor)
        elif was_low and not self._low:
            log.info("storage.recovered", free=disk.free, floor=floor)
        elif self._scarce and not was_scarce:
            log.warning("storage.getting_low", free=disk.free, floor=floor)


def _bar(mark: int, *, crossed: bool) -> int:
    """Return where a mark stands: higher for who has come below it than for who has not."""
    return mark + mark // 10 if crossed else mark


AMPLE = Space()
"""A disk that nobody looks at: never short."""
