"""The finaliser: records what became of messages, many of them in one commit.

Whoever ended a delivery `put`s its report and goes on; while one commit is under way the
next reports gather.  Under load a commit waits for `GATHER` reports, but no longer than `LINGER`:
this is the end of the window in which a crash means a second copy.

Promises
- A report is tried until it is recorded: through an outage of the database, and past the end of
  its lease too, as the fence alone decides whether it still counts.
- Repeating one whose commit is in doubt changes nothing; it is repeated until a commit has
  succeeded, though the report can be seen (`relay.db.doubt`).
- `fence_anew` gives a report that is not recorded yet the new lease, where the same node has
  claimed its message again meanwhile: it still counts, and nothing is delivered twice.
- A value that the database refuses costs that one report; its message's lease runs out.

Fails: never; `run` ends when `close` was called and everything is recorded, or when cancelled,
and what is not recorded then is a lost lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter, Histogram

from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.metrics import registry
from relay.outage import Outage
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue

log = get_logger()

GATHER = 128
"""Reports that are worth a commit of their own."""
LINGER = 0.01
"""Seconds that a commit may wait for so many, while reports keep coming."""

_MOST = 500  # reports a commit

_ROWS = Histogram(
    "relay_outbound_finalise_rows",
    "Outcomes a commit.",
    buckets=(1, 4, 16, 32, 64, 128, 256, 512, math.inf),
    registry=registry,
)
OUTCOMES = Counter(
    "relay_outbound_outcomes", "Outcomes recorded, by cause.", ["cause"], registry=registry
)
"""What deliveries have come to in this process, by `Cause`."""

_FENCED = Counter(
    "relay_outbound_fenced", "Outcomes that came after their lease was lost.", registry=registry
)
_REFUSED = Counter(
    "relay_outbound_unrecordable", "Outcomes that the database refused.", registry=registry
)
# Those that a worker reports.  What a claim, the reaper or a person writes is counted by them.
_COUNTED = {
    cause: OUTCOMES.labels(cause)
    for cause in (
        Cause.DELIVERED,
        Cause.DEFERRED,
        Cause.EXHAUSTED,
        Cause.REJECTED,
        Cause.REFUSED,
        Cause.UNCERTAIN,
        Cause.RELEASED,
    )
}


class Finaliser:
    """Gathers reports and commits them.  `recorded` hears of each commit, and who was fenced."""

    def __init__(
        self, queue: Queue, recorded: Callable[[Sequence[Settled], set[UUID]], None]
    ) -> None:
        self._queue = queue
        self._recorded = recorded
        self._waiting: list[Settled] = []
        self._in_hand: Sequence[Settled] = ()
        # Ids of both, as numbers: every claimed message is looked up here.
        self._delivered: set[int] = set()
        self._fenced_anew: dict[UUID, int] = {}  # later fences of what is in hand
        self._wanted = 1  # reports for which `run` is woken
        self._closed = False
        self._lot = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        """Reports that are not recorded yet."""
        return len(self._waiting) + len(self._in_hand)

    def put(self, done: Settled) -> None:
        """Hand over a report."""
        self._waiting.append(done)
        if done.cause is Cause.DELIVERED:
            self._delivered.add(done.id.int)
        if self._lot and len(self._waiting) >= self._wanted:
            self._lot.unpark()

    def fence_anew(self, message_id: UUID, fence: int, *, lost: bool) -> bool:
        """Fence a report that is not recorded yet with the new lease; False if there is none.

        `lost`: the lease before ran out.  If not, the report may have been recorded already, with
        the answer still on its way: a deferral that is recorded makes the message claimable again.
        A delivery does not, so a message that is claimed again has no delivery recorded.
        """
        if not lost and message_id.int not in self._delivered:
            return False
        for place, done in enumerate(self._waiting):
            if done.id == message_id:
                self._waiting[place] = done._replace(fence=fence)
                return True
        if any(done.id == message_id for done in self._in_hand):
            # The statement under way has the former fence; it is followed by one with this.
            self._fenced_anew[message_id] = fence
            return True
        return False

    def close(self) -> None:
        """No more will come: `run` may end."""
        self._closed = True
        self._lot.unpark()

    async def run(self) -> None:
        """Record what is put, until closed and empty."""
        busy = False
        while True:
            while not self._waiting:
                if self._closed:
                    return
                busy = False
                await self._lot.park()
            if busy and len(self._waiting) < GATHER and not self._closed:
                self._wanted = GATHER
                with trio.move_on_after(LINGER):
                    await self._lot.park()
                self._wanted = 1
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            self._in_hand = batch
            busy = len(batch) >= GATHER // 4
            fenced = await self._record(batch)
            self._in_hand = ()
            if self._fenced_anew:
                again = [done for done in batch if done.id in self._fenced_anew]
                batch = [done for done in batch if done.id not in self._fenced_anew]
                for done in again:
                    fence = self._fenced_anew.pop(done.id)
                    self._waiting.append(done._replace(fence=fence))
                fenced -= {done.id for done in again}
            self._delivered.difference_update([done.id.int for done in batch])
            self._count(batch, fenced)
            self._recorded(batch, fenced)

    async def _record(self, batch: list[Settled], *, repeated: bool = False) -> set[UUID]:
        """Commit a batch, however long it takes; returns those that no longer counted."""
        outage = Outage(first=0.05, longest=2.0)
        while True:
            try:
                recorded = await self._queue.finalise(batch, again=repeated)
            except DatabaseUnavailable as error:
                log.warning("sender.waits_for_database", outcomes=len(batch), reason=str(error))
                await trio.sleep(outage.lost())
                repeated = True
            except psycopg.Error as error:
                # Refused, and with it the barrier of a repeat: each by itself repeats it.
                if len(batch) == 1:
                    # Its text could hold the value that was refused.
                    log.error("sender.outcome_refused", error=type(error).__name__)  # noqa: TRY400
                    _REFUSED.inc()
                    return set()
                fenced: set[UUID] = set()
                for done in batch:
                    fenced |= await self._record([done], repeated=repeated)
                return fenced
            else:
                if repeated:
                    return set()  # missing may mean that the first time was recorded
                if len(recorded) == len(batch):
                    return set()
                return {done.id for done in batch} - recorded

    def _count(self, batch: list[Settled], fenced: set[UUID]) -> None:
        _ROWS.observe(len(batch))
        if fenced:
            _FENCED.inc(len(fenced))
        counts: dict[Cause, int] = {}
        for done in batch:
            counts[done.cause] = counts.get(done.cause, 0) + 1
        for cause, count in counts.items():
            _COUNTED[cause].inc(count)
