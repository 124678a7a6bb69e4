"""Custody: each message comes once and leaves once, and its fence is never mistaken."""

from __future__ import annotations

import random
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest

from relay.access.owners import ADMINISTRATOR_ID
from relay.outbound.active_queue.custody import Custody
from relay.outbound.active_queue.jobs import FRESH, Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.pacing.backoff import Schedule
from relay.outbound.pacing.gates import Gate
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.lanes import DueLane, Held, lane_of
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.settler import Settler, ours
from relay.outbound.queue.states import Cause
from relay.smtp.client import Phase, Verdict
from tests.outbound.claims import AT, ID, another, claimed

LEASE = 300.0
DELIVERED = ours(Verdict.DELIVERED, Phase.DOT, "taken")
DEFERRED = ours(Verdict.DEFERRED, Phase.RCPT, "later")


class Recorder:
    """A finaliser that records nothing: `waiting` is what it has in hand."""

    def __init__(self) -> None:
        self.waiting: list[Settled] = []

    def put(self, settled: Settled) -> None:
        self.waiting.append(settled)

    def fence_anew(self, message_id: UUID, fence: int, *, lost: bool) -> bool:
        return any(each.id == message_id for each in self.waiting)


class Listener:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[DueLane | str] = []

    def due(self, lane: DueLane) -> None:
        self.heard.append(lane)

    def freed(self) -> None:
        self.heard.append("freed")

    def way_is_free(self) -> None:
        self.heard.append("way is free")


class House:
    """A custody with all that it talks to."""

    def __init__(self) -> None:
        self.recorder, self.listener, self.right_of_way = Recorder(), Listener(), RightOfWay()
        settler = Settler(lambda _: Schedule(60.0, 10), redact_key=b"k" * 32, rng=random.Random(1))
        self.custody = Custody(
            self.recorder, settler, self.right_of_way, self.listener, lease=LEASE
        )
        self.custody.epoch = AT.timestamp()

    def take(self, message: Claimed | None = None, now: float = 0.0) -> Job:
        job = self.custody.take(message or another(), now + LEASE, now)
        assert job is not None
        return job

    @property
    def causes(self) -> list[Cause]:
        return [each.cause for each in self.recorder.waiting]


@pytest.fixture
def house() -> House:
    """An empty one."""
    return House()


def test_what_is_settled_is_reported_once_with_its_fence(house: House):
    """It leaves custody, and giving it back afterwards changes nothing."""
    job = house.take(claimed(fence=5))
    house.custody.settle(job, DELIVERED, 1.0, 2.0)
    house.custody.give_back(job, 3.0)
    assert not house.custody.drop(job, 3.0)
    (settled,) = house.recorder.waiting
    assert (settled.id, settled.fence, settled.cause) == (ID, 5, Cause.DELIVERED)
    assert (settled.began_at, settled.ended_at) == (1.0, 2.0)
    assert len(house.custody) == 0
    assert house.custody.ended == 1


def test_each_message_that_came_leaves_its_lane_once(house: House):
    """However it leaves, and also where it came twice: who claims counts each that was claimed."""
    custody = house.custody
    came = [another(domain="a.example") for _ in range(5)] + [another(domain="b.example")]
    jobs = [house.take(message) for message in came]
    a, b = came[0].lane, came[-1].lane
    assert Held(custody.held()).lanes == {a: 5, b: 1}
    assert custody.take_left() == ()
    custody.settle(jobs[0], DELIVERED, 1.0, 2.0)
    custody.give_back(jobs[1], 2.0)
    custody.give_back(jobs[1], 2.0)
    custody.drop(jobs[2], 2.0)
    custody.settle(jobs[5], DEFERRED, 1.0, 2.0)
    assert Held(custody.held()).lanes == {a: 2}  # which takes nothing from those that have left
    assert dict(custody.take_left()) == {a: 3, b: 1}
    assert custody.take_left() == ()
    assert custody.take(came[0], 2 * LEASE, LEASE) is None  # its report has the new lease
    assert custody.take(came[3], 2 * LEASE, LEASE) is None  # its delivery has
    jobs[4].lost = True
    house.take(came[4], LEASE)  # begun anew; the one before was broken off
    custody.drop(jobs[4], LEASE)
    assert dict(custody.take_left()) == {a: 3}
    assert Held(custody.held()).lanes == {a: 2}


def test_what_is_given_back_or_deferred_is_due_again_by_the_databases_clock(house: House):
    """The claimer hears of it at once; of what is delivered it hears nothing."""
    given, deferred, delivered = house.take(), house.take(), house.take()
    house.custody.give_back(given, 4.0, 3.0)
    house.custody.settle(deferred, DEFERRED, 1.0, 4.0)
    house.custody.settle(delivered, DELIVERED, 1.0, 4.0)
    assert house.causes == [Cause.RELEASED, Cause.DEFERRED, Cause.DELIVERED]
    delays = [each.delay for each in house.recorder.waiting]
    assert delays[0] == 3.0
    assert 48.0 <= delays[1] <= 72.0
    lane = lane_of(ADMINISTRATOR_ID, "y.example")
    instants = [AT + timedelta(seconds=4.0 + delay) for delay in delays[:2]]
    due = [DueLane(lane, 1, at, "y.example", ADMINISTRATOR_ID) for at in instants]
    assert house.listener.heard == due


def test_what_is_dropped_is_not_reported(house: House):
    """Somebody else has its lease."""
    job = house.take()
    assert house.custody.drop(job, 1.0)
    assert house.recorder.waiting == []
    assert list(house.custody) == []


def test_what_is_claimed_again_while_it_is_delivered_goes_to_that_delivery(house: House):
    """The report carries the new fence; nothing is begun a second time."""
    job = house.take(claimed(fence=1))
    assert house.custody.take(claimed(fence=3, lost=True), 900.0, 600.0) is None
    assert (job.message.fence, job.leased_until, job.lost) == (3, 900.0, False)
    house.custody.settle(job, DELIVERED, 1.0, 700.0)
    assert [each.fence for each in house.recorder.waiting] == [3]


@pytest.mark.parametrize("in_data", [False, True])
def test_a_delivery_that_was_broken_off_is_begun_again_unless_it_is_on_the_wire(
    house: House, in_data: bool
):
    """What lost its lease is another's to deliver, this node's too; a copy under way is not."""
    job = house.take(claimed(fence=1))
    job.connection = SimpleNamespace(in_data=in_data, abort=lambda: None)
    job.lost = True
    again = house.custody.take(claimed(fence=3, lost=True), 900.0, 600.0)
    assert (again is None) is in_data
    assert job.lost is not in_data
    if again is not None:
        assert not house.custody.drop(job, 601.0)
        assert again in house.custody


def test_what_is_reported_but_not_recorded_takes_the_new_lease(house: House):
    """The finaliser is asked before anything is begun."""
    house.custody.settle(house.take(claimed()), DELIVERED, 1.0, 2.0)
    assert house.custody.take(claimed(fence=3, lost=True), 900.0, 600.0) is None
    assert len(house.custody) == 0


def test_leases_are_renewed_with_two_thirds_left_and_begun_with_half(house: House):
    """What could not be renewed is lost, if it is still the same lease."""
    old, new = house.take(now=0.0), house.take(now=90.0)
    now = LEASE / 3 + 1
    asked = house.custody.aging(now)
    assert [job for job, _ in asked] == [old]
    assert house.custody.renewed(asked, {old.message.id}, now) == []
    assert old.leased_until == now + LEASE
    assert not house.custody.late(new, 90.0 + LEASE / 2)
    assert house.custody.late(new, 90.0 + LEASE / 2 + 0.1)
    assert house.custody.deliver_by(new) == 90.0 + LEASE - 5.0
    asked = house.custody.aging(300.0)
    assert {job for job, _ in asked} == {old, new}
    old.message = old.message._replace(fence=9)  # claimed anew while the statement ran
    assert house.custody.renewed(asked, set(), 300.0) == [new]
    assert (old.lost, new.lost) == (False, True)


def test_whoever_waits_hears_of_what_leaves(house: House):
    """Of a gate's room, and of high mail that is gone; not when all is leaving."""
    gate = Gate(4, 60.0, random.Random(1))
    job, high = house.take(), house.take(another(priority=0))
    job.pass_gate(gate)
    job.pass_gate(gate)
    assert gate.busy == 1
    assert house.right_of_way.held(0.5)
    house.custody.settle(high, DELIVERED, 0.1, 0.5)
    house.custody.settle(job, DELIVERED, 0.1, 0.5)
    assert house.listener.heard == ["way is free", "freed"]
    assert gate.busy == 0
    assert not house.right_of_way.held(0.5)
    house.custody.leaving = True
    last = house.take()
    last.pass_gate(gate)
    house.custody.give_back(last, 1.0)
    assert house.listener.heard == ["way is free", "freed"]
    assert gate.busy == 0


def test_a_deadline_and_a_letter_that_waited_are_stale(house: House):
    """Past its `not_after` nothing is begun; a letter's token may have been used meanwhile."""
    soon = AT + timedelta(seconds=10)
    plain, ends, letter = (
        house.take(another(**values))
        for values in ({}, {"not_after": soon}, {"not_after": soon, "letter_of": 3})
    )
    stale = [house.custody.stale(job, at) for at in (0.0, FRESH + 0.1, 10.0) for job in
             (plain, ends, letter)]  # fmt: skip
    assert stale == [False, False, False, False, False, True, False, True, True]
