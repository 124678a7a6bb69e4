"""The claimed messages that this node has to answer for, each from its claim to its report.

A message comes into custody with its lease (`take`) and leaves it once: settled, when a delivery
has ended; given back, when none was begun; dropped, when somebody else has its lease.

Promises
- A message is in custody once.  What this node claims anew while it still delivers it, or has a
  report of it that an outage keeps from being recorded, is not begun a second time: the new lease
  goes to the delivery, or to the report, that there is.
- `aging` names the leases to renew, while two thirds of their time are left; `late` what must not
  be begun any more, with half of it left.
- Whoever waits for room in a lane, or for high mail to be gone, hears of it.

Fails: never.

Why every way out is here: the fence is what keeps a second copy from being counted, and this is the
one place that has it.  Pure: instants are handed in, on Trio's clock.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

from prometheus_client import Counter

from relay.log import get_logger
from relay.metrics import Tally, registry
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.lanes import DueLane
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.settler import Settler
from relay.outbound.queue.states import Cause
from relay.smtp.client import Outcome, Peer, Step, Verdict

log = get_logger()

_DELIVERY = Tally(
    "relay_outbound_delivery_seconds",
    "Duration of a delivery, from its first command (or the connecting) to its outcome.",
    (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0),
)
_UNKNOWN = Counter(
    "relay_outbound_unknown", "Deliveries that ended between dot and answer.", registry=registry
)


class Recorder(Protocol):
    """The recorder, which makes reports durable: `relay.outbound.queue.finaliser.Finaliser`."""

    def put(self, settled: Settled) -> None:
        """Take a report."""

    def fence_anew(self, message_id: UUID, fence: int, *, lost: bool) -> bool:
        """Give a report that is not recorded yet the new lease; False if there is none."""


class Listener(Protocol):
    """The listener, which hears what leaving custody makes possible."""

    def due(self, lane: DueLane) -> None:
        """A message waits there again."""

    def freed(self) -> None:
        """A lane may be claimed from again."""

    def way_is_free(self) -> None:
        """High mail is gone, and what it held up may go on."""


class Custody:
    """The messages of one sender.  Leases are of `lease` seconds."""

    def __init__(
        self,
        recorder: Recorder,
        settler: Settler,
        right_of_way: RightOfWay,
        listener: Listener,
        *,
        lease: float,
    ) -> None:
        self._recorder = recorder
        self._settler = settler
        self._right_of_way = right_of_way
        self._listener = listener
        self._lease = lease
        self.margin = min(lease / 10, 5.0)
        """Seconds of a lease that are left for the commit."""
        self._jobs: dict[int, Job] = {}  # by their keys
        self.epoch = 0.0
        """What to add to an instant for seconds of the database's epoch."""
        self.ended = 0
        """Deliveries that have ended, until somebody sets it to 0."""
        self._left: list[int] = []  # the lanes of what has left
        self.leaving = False
        """Nothing more is begun, so nobody has to hear what could be."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """What is in custody now, and may leave it meanwhile."""
        return iter(list(self._jobs.values()))

    def __contains__(self, job: Job) -> bool:
        return self._jobs.get(job.key) is job

    # Coming ---------------------------------------------------------------------------------------

    def take(self, message: Claimed, leased_until: float, now: float) -> Job | None:
        """Take what was claimed; None if it is in this node's own hands still.

        An outage of the database that outlasts a lease lets the claimer (and the reaper, after
        whom the message does not look lost) find what is being delivered here, or was and could
        not be recorded.
        """
        key = message.id.int
        job = self._jobs.get(key)
        if job is None:
            if self._recorder.fence_anew(message.id, message.fence, lost=message.lost):
                self._left.append(message.lane)
                return None
        elif not job.lost or job.on_the_wire:
            self._left.append(job.message.lane)
            job.message, job.leased_until, job.lost = message, leased_until, False
            return None
        else:  # it was broken off, or will be dropped
            self._left.append(job.message.lane)
        job = self._jobs[key] = Job(message, leased_until, now)
        if not job.priority:
            self._right_of_way.arrived(message.id, now)
        return job

    # Leases ---------------------------------------------------------------------------------------

    def deliver_by(self, job: Job) -> float:
        """The instant at which a job's delivery has to be over."""
        return job.leased_until - self.margin

    def late(self, job: Job, now: float) -> bool:
        """Whether what is left of a job's lease is too little to begin with."""
        return now > job.leased_until - self._lease / 2

    def stale(self, job: Job, now: float) -> bool:
        """Whether a job may have passed its deadline since it was claimed."""
        return job.stale(now, self.epoch)

    def ready(self, job: Job, now: float) -> bool:
        """Whether a job may be begun without another look at its lease or its message.

        Neither lost, `late` nor `stale`, and nothing is to be recorded before its dot.
        """
        message = job.message
        return not (
            job.lost
            or message.hold_unknown
            or now > job.leased_until - self._lease / 2
            or (message.not_after is not None and job.stale(now, self.epoch))
        )

    def aging(self, now: float) -> list[tuple[Job, int]]:
        """Leases of which less than two thirds are left, each with the fence to renew it by."""
        return [
            (job, job.message.fence)
            for job in self._jobs.values()
            if job.leased_until - now < self._lease * 2 / 3
        ]

    def renewed(
        self, asked: Sequence[tuple[Job, int]], ids: Collection[UUID], now: float
    ) -> list[Job]:
        """Take over which of the leases that were asked for at `now` were renewed.

        Returns those that are lost, to be broken off.
        """
        lost = []
        for job, fence in asked:
            if job.message.fence != fence or job not in self:
                continue  # claimed anew by this node, or finished meanwhile
            if job.message.id in ids:
                job.leased_until = now + self._lease
            else:
                job.lost = True
                lost.append(job)
        return lost

    # Leaving --------------------------------------------------------------------------------------

    def settle(
        self,
        job: Job,
        outcome: Outcome,
        began_at: float,
        now: float,
        opening: Sequence[Step] = (),
        secrets: Collection[str] = (),
        peer: Peer | None = None,
        *,
        tells: bool = False,
    ) -> Cause:
        """Report what became of a job whose delivery has ended, and return it; see
        `Settler.settle`.
        """
        self.drop(job, now)
        settled = self._settler.settle(
            job.message, outcome, began_at, now, opening, secrets, peer,
            epoch=self.epoch, tells=tells,
        )  # fmt: skip
        self.ended += 1
        _DELIVERY.observe(now - began_at)
        self._recorder.put(settled)
        if outcome.verdict is Verdict.DELIVERED:
            return settled.cause
        if outcome.verdict is Verdict.UNKNOWN:
            _UNKNOWN.inc()
        log.info(
            "outbound." + settled.cause.value,
            id=str(settled.id),
            attempt=job.message.attempt,
            phase=outcome.phase.value,
            code=outcome.code,
            error=settled.error,
        )
        if settled.cause is Cause.DEFERRED:
            self._waits_again(job, now, settled.delay)
        return settled.cause

    def give_back(self, job: Job, now: float, delay: float = 0.0) -> None:
        """Give back a job that was not begun; it is due again after `delay` seconds."""
        if not self.drop(job, now):
            return
        message = job.message
        self._recorder.put(Settled(message.id, message.fence, Cause.RELEASED, delay))
        if not self.leaving:
            self._waits_again(job, now, delay)

    def drop(self, job: Job, now: float) -> bool:
        """Answer for a job no more, and report nothing.  False if it was not in custody."""
        if job.gates and job.leave_gates() and not self.leaving:
            self._listener.freed()
        if not job.priority and self._right_of_way.ended(job.message.id, now):
            self._listener.way_is_free()
        if job.turn is not None:
            job.turn.end()
        if self._jobs.get(job.key) is not job:
            return False
        del self._jobs[job.key]
        self._left.append(job.message.lane)
        return True

    def freed(self) -> None:
        """Tell whoever waits for room in a lane that there may be some."""
        if not self.leaving:
            self._listener.freed()

    # What is here ---------------------------------------------------------------------------------

    @property
    def has_untold(self) -> bool:
        """Whether something has left since that was taken last."""
        return bool(self._left)

    def take_left(self) -> Sequence[tuple[int, int]]:
        """Take how many of each lane have left since this was taken last."""
        left, self._left = self._left, []
        return tuple(Counts(left).items())

    def held(self) -> Sequence[tuple[int, UUID, int]]:
        """Of which lanes something is here, whose they are, and how much."""
        owners = {job.message.lane: job.message.owner for job in self._jobs.values()}
        counts = Counts(job.message.lane for job in self._jobs.values())
        return tuple((lane, owners[lane], count) for lane, count in counts.items())

    def _waits_again(self, job: Job, now: float, delay: float) -> None:
        due_at = datetime.fromtimestamp(now + self.epoch, UTC) + timedelta(seconds=delay)
        self._listener.due(job.message.due_lane(due_at))
