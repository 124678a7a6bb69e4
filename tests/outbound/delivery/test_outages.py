"""Dead domains among many, one or fifty, in virtual time: what they take from the others, and what
becomes of their mail by the product's own settings."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count as counting
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from relay.access.owners import ADMINISTRATOR_ID
from relay.outbound.active_queue.demand import Demand
from relay.outbound.active_queue.dispatch import Dispatch, Line, Place
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.delivery.gatekeeper import Gatekeeper
from relay.outbound.mx.direct import SITE_WIDTH
from relay.outbound.mx.sites import SiteKey
from relay.outbound.pacing.backoff import JITTER, LONGEST_DELAY, LONGEST_PAUSE, Schedule
from relay.outbound.pacing.gates import Gates
from relay.outbound.queue.lanes import DueLane, Held, LaneBook, lane_of
from relay.outbound.queue.settler import Settler
from relay.outbound.queue.states import Cause
from relay.outbound.shaping.traffic import Traffic
from relay.settings import Outbound
from relay.smtp.client import Outcome, Phase, Verdict
from tests.outbound.claims import another

DEFAULTS = Outbound()
UNIT = DEFAULTS.retry_unit
LIFETIME = DEFAULTS.mx_lifetime
PLACES = DEFAULTS.concurrency
DAY = 86_400.0
DEAD = "dead.example"
TAKES = 0.05  # s
TICK = 0.1  # s
T0 = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = ADMINISTRATOR_ID


@dataclass
class Mail:
    """One that is queued: when, when it was tried, and when that came to an end."""

    domain: str
    queued_at: float
    turn: int = 0
    tried_at: list[float] = field(default_factory=list)
    sent_at: float | None = None
    failed_at: float | None = None


class World:
    """The law of a sender without its connections: gates, lines and back-off on a made-up clock."""

    def __init__(self, death: tuple[float, Outcome] | None, until: float = 1e9) -> None:
        """`death`: after how long a delivery to the dead domain ends, and how; `until` then."""
        self.death, self.until = death, until
        self.now = 0.0
        self.bound = PLACES // 4  # connections to a site
        rng = random.Random(1)
        self.settler = Settler(
            lambda _: Schedule.for_lifetime(UNIT, LIFETIME),
            redact_key=b"k" * 32,
            rng=random.Random(2),
        )
        self.gates = Gates(PLACES, UNIT, rng)
        self.dispatch: Dispatch[Job, Any] = Dispatch(PLACES, PLACES, RightOfWay(), self._bound)
        self.gatekeeper = Gatekeeper(
            self.gates,
            self.dispatch,
            self._give_back,
            Traffic(),
            out_of_reach=lambda lanes, _: self._give_up(lanes),
        )
        self.mails: list[Mail] = []
        self._events: list[tuple[float, int, Any]] = []
        self._numbers = counting()
        self._of: dict[int, Mail] = {}
        self.begun: dict[Place[Job, Any], Job] = {}
        self.gatekeeper.begun = self.begun
        self._waiting: dict[int, list[tuple[float, int, Mail]]] = {}  # by lane, first due first
        self._looks_at = float("inf")
        self.most = Counter[str]()

    def _bound(self, key: Any, now: float) -> int:
        gate = self.gates.bound(key, now)
        return self.bound if gate is None else min(self.bound, gate)

    def _give_back(self, job: Job, now: float, delay: float) -> None:
        job.leave_gates()
        self._at(now + delay, self._of.pop(job.key))

    def _give_up(self, lanes: Collection[int]) -> None:
        in_hand = {id(mail) for mail in self._of.values()}
        for mail in self.mails:
            old = mail.queued_at <= self.now - LIFETIME and mail.sent_at is mail.failed_at is None
            if old and id(mail) not in in_hand and lane_of(OWNER, mail.domain) in lanes:
                mail.failed_at = self.now

    def _at(self, at: float, what: Any) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), what))

    def queue(self, domain: str, at: float) -> None:
        """A mail is queued."""
        mail = Mail(domain, at)
        self.mails.append(mail)
        self._at(at, mail)

    def run(self, until: float = 1e9) -> None:
        """Until nothing is left to happen."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, Mail):
                if what.failed_at is None:
                    self._due(what)
            elif what is TICK:
                self._tick()
            elif what is not None:
                self._end(*what)
            self._claim()
            self.dispatch.widen(self.now)
            for place, job in self.dispatch.start(self.now):
                self._begin(place, job)
            self._have_begun()
            self.gates.forget(self.now)
            for line in [key for key, one in self.dispatch.lines.items() if not one.workers]:
                self.dispatch.forget(line)
            self._look("gates", len(self.gates))
            self._look("lines", len(self.dispatch.lines))
            self._look("workers", self.dispatch.workers)
            self._look("aside", self.dispatch.aside)
            self._look("slow", self.dispatch.slow)
            self._look("slow aside", self.dispatch.slow_aside)

    def _have_begun(self) -> None:
        """All that may be begun now is."""

    def _tick(self) -> None:
        """A moment has gone by."""

    def _look(self, what: str, size: int) -> None:
        self.most[what] = max(self.most[what], size)

    def _due(self, mail: Mail) -> None:
        waiting = self._waiting.setdefault(lane_of(OWNER, mail.domain), [])
        heapq.heappush(waiting, (self.now, next(self._numbers), mail))
        self._claim()

    def _claim(self) -> None:
        """Take of each lane what the gates let through, and look again when the next one opens."""
        for lane in [lane for lane, waiting in self._waiting.items() if waiting]:
            while self._waiting[lane] and self.gates.allowance(lane, self.now) != 0:
                mail = heapq.heappop(self._waiting[lane])[2]
                if mail.failed_at is None:
                    self._take(mail)
        self._waiting = {lane: waiting for lane, waiting in self._waiting.items() if waiting}
        opening = self.gates.next_opening(self.now) if self._waiting else None
        if opening is not None and not self.now < self._looks_at <= opening:
            self._looks_at = opening
            self._at(opening, None)

    def _take(self, mail: Mail) -> None:
        message = another(
            domain=mail.domain,
            turn=mail.turn + 1,
            first_due_at=T0 + timedelta(seconds=mail.queued_at),
        )
        job = Job(message, self.now + 300.0, self.now)
        key = SiteKey("mx", f"mx:{mail.domain}", ((0, mail.domain),), ())
        line = self.dispatch.lines.get(key)
        if line is None:
            line = self.dispatch.add(key, None, width=SITE_WIDTH, is_site=True)
        self._of[job.key] = mail
        if self.gatekeeper.lets(line, job, self.now):
            self.dispatch.put(line, job)

    def _begin(self, place: Place[Job, Any], job: Job) -> None:
        takes, outcome = TAKES, Outcome(Verdict.DELIVERED, Phase.DOT, 250, None, "", False, True)
        if job.domain.endswith(DEAD) and self.death is not None and self.now < self.until:
            takes, outcome = self.death
        if outcome.phase is not Phase.CONNECT:
            self.dispatch.opened(place.line)
        job.began_at, self.begun[place] = self.now, job
        self._of[job.key].tried_at.append(self.now)
        self._at(self.now + takes, (place, place.line, job, outcome, self.now))

    def _end(
        self,
        place: Place[Job, Any],
        line: Line[Job, Any],
        job: Job,
        outcome: Outcome,
        began_at: float,
    ) -> None:
        del self.begun[place]
        self.gatekeeper.learn(line, job, outcome, began_at, self.now)
        mail = self._of.pop(job.key)
        job.leave_gates()
        self.dispatch.leave(place)
        assert mail.sent_at is mail.failed_at is None
        settled = self.settler.settle(
            job.message, outcome, began_at, self.now, epoch=T0.timestamp()
        )
        if settled.cause is Cause.DELIVERED:
            mail.sent_at = self.now
        elif settled.cause is Cause.DEFERRED:
            mail.turn += 1
            self._at(self.now + settled.delay, mail)
        else:
            assert settled.cause is Cause.EXHAUSTED
            mail.failed_at = self.now


def fails(phase: Phase, verdict: Verdict = Verdict.DEFERRED) -> Outcome:
    """An end without an answer."""
    return Outcome(verdict, phase, None, None, "", True, False)


def latencies(world: World) -> list[float]:
    """How long the mails to the living took, sorted."""
    found = []
    for mail in world.mails:
        if not mail.domain.endswith(DEAD):
            assert mail.sent_at is not None
            found.append(mail.sent_at - mail.queued_at)
    return sorted(found)


def five_hundred(death: tuple[float, Outcome] | None) -> World:
    """A minute of mail to 499 domains, a hundred a second, and to one that is dead or not there."""
    world = World(death)
    for number in range(6000):
        world.queue(f"d{number % 499}.example", number / 100)
    if death is not None:
        for number in range(200):
            world.queue(DEAD, number / 100)
    world.run(90.0)
    return world


@cache
def without_it() -> list[float]:
    """How long that mail to the living takes where nobody is dead."""
    return latencies(five_hundred(None))


@pytest.mark.parametrize(
    "death",
    [
        (60.0, fails(Phase.CONNECT)),
        (120.0, fails(Phase.DOT, Verdict.UNKNOWN)),
        (30.0, fails(Phase.RCPT)),
        (0.0001, fails(Phase.CONNECT)),
    ],
    ids=["says nothing", "hangs at the dot", "hangs at RCPT", "refuses"],
)
def test_a_dead_domain_takes_nothing_from_499_others(death: tuple[float, Outcome]):
    """To the last one each is delivered as fast as without it."""
    alone, beside = without_it(), five_hundred(death)
    assert latencies(beside) == pytest.approx(alone, abs=1e-9)
    assert len(alone) == 6000
    tries = sum(len(mail.tried_at) for mail in beside.mails if mail.domain == DEAD)
    assert 0 < tries <= 2 * PLACES // 4


class Claiming(World):
    """The same with the room of a sender: what is due waits until it is claimed."""

    def __init__(self, death: tuple[float, Outcome] | None) -> None:
        super().__init__(death)
        self.demand = Demand(PLACES)
        self.book = LaneBook()
        self.lanes: dict[int, deque[Mail]] = {}
        self.held = Held()
        self.room = self.kept = 0
        self._aside = 0
        self.hear(fresh=True)

    def hear(self, *, fresh: bool = False, still: bool = False) -> None:
        """Listen to what the sender says, and claim."""
        in_the_way = sum(self.held.owners.values()) - self.dispatch.aside
        said = self.demand.grant(in_the_way, fresh=fresh, still=still)
        if said is not None:
            self.room += said.room
            self.kept = said.kept
        at = T0 + timedelta(seconds=self.now)
        book, held = self.book, self.held
        while plan := book.plan(
            self.room, at, self._allowance, kept=self.kept, spare=self.kept, held=held
        ):
            found: dict[tuple[int, int], tuple[int, datetime]] = {}
            for ask in plan:
                waiting = self.lanes[ask.lane]
                count = min(ask.limit, len(waiting))
                found[ask.lane, ask.priority] = count, at
                held.came(ask.lane, ask.owner, count)
                self.room -= count
                self.demand.claimed(count)
                for _ in range(count):
                    self._take(waiting.popleft())
            book.took(plan, found)

    def _give_back(self, job: Job, now: float, delay: float) -> None:
        self.held.left(job.message.lane, 1)
        super()._give_back(job, now, delay)

    def _allowance(self, lane: int, _domain: str, _owner: UUID) -> int | None:
        return self.gates.allowance(lane, self.now)

    def _have_begun(self) -> None:
        before, self._aside = self._aside, self.dispatch.aside
        if self._aside > before:
            self.hear()

    def _due(self, mail: Mail) -> None:
        lane = lane_of(OWNER, mail.domain)
        self.lanes.setdefault(lane, deque()).append(mail)
        self.book.wake(DueLane(lane, 1, T0 + timedelta(seconds=self.now), mail.domain, OWNER))
        self.hear()

    def _end(
        self,
        place: Place[Job, Any],
        line: Line[Job, Any],
        job: Job,
        outcome: Outcome,
        began_at: float,
    ) -> None:
        super()._end(place, line, job, outcome, began_at)
        self.held.left(lane_of(OWNER, job.domain), 1)
        self.hear()


def test_a_burst_to_a_domain_that_stalls_leaves_room_for_all_others():
    """However much is queued for it at once, and though none of it ends: to the last one each of
    the others is claimed at once."""

    def beside(burst: int) -> list[float]:
        world = Claiming((1e6, fails(Phase.CONNECT)))
        for number in range(6000):
            world.queue(f"d{number % 499}.example", number / 100)
        for _ in range(burst):
            world.queue(DEAD, 10.0)
        world.run(90.0)
        assert world.held.lanes.get(lane_of(OWNER, DEAD), 0) == min(burst, SITE_WIDTH)
        return latencies(world)

    assert beside(1000) == pytest.approx(beside(0), abs=1e-9)


class AllClaimed(World):
    """The same where nothing bounds what is claimed."""

    def _due(self, mail: Mail) -> None:
        self._take(mail)


def test_one_domain_alone_is_delivered_as_fast_as_if_all_of_it_were_claimed():
    """What is spare takes nothing from who is the only one."""

    def ends(world: World) -> list[float]:
        world.bound = PLACES
        for _ in range(6400):
            world.queue("d1.example", 0.0)
        world.run()
        return sorted(mail.sent_at for mail in world.mails if mail.sent_at is not None)

    assert ends(Claiming(None)) == pytest.approx(ends(AllClaimed(None)), abs=1e-9)


class Ticking(Claiming):
    """The same with the turns that a sender takes every moment."""

    def __init__(self, death: tuple[float, Outcome] | None) -> None:
        super().__init__(death)
        self._at(TICK, TICK)

    def _tick(self) -> None:
        self.hear(still=True)
        self.dispatch.step_aside(self.now)
        if self.gatekeeper.look_after_stalls(self.now):
            self.hear()
        self._at(self.now + TICK, TICK)


def beside_many(dead: int, death: tuple[float, Outcome] | None, *, seconds: int = 130) -> Ticking:
    """Mail to 120 domains and, as often, to one that is always busy; from the tenth second on, ten
    to each of the dead at once, and more each second."""
    world = Ticking(death)
    for number in range(50 * seconds):
        domain = "busy.example" if number % 2 else f"d{number % 240}.example"
        world.queue(domain, number / 50)
    for number in range(dead):
        for at in [10.0] * 10 + [*range(10, min(60, seconds)), *range(60, seconds, 5)]:
            world.queue(f"n{number}.{DEAD}", at)
    world.run(seconds + 1.0)
    return world


@cache
def without_them(seconds: int = 130) -> list[float]:
    """How long that mail to the living takes where nobody is dead."""
    return latencies(beside_many(0, None, seconds=seconds))


@pytest.mark.parametrize("dead", [16, 20, 32, 50])
@pytest.mark.parametrize(
    "death",
    [
        (15.0, fails(Phase.CONNECT)),
        (60.0, fails(Phase.EHLO)),
        (120.0, fails(Phase.DOT, Verdict.UNKNOWN)),
    ],
    ids=["black hole", "says nothing", "hangs at the dot"],
)
def test_many_dead_domains_take_nothing_from_the_others(dead: int, death: tuple[float, Outcome]):
    """When they are met first and for minutes afterwards: to the last one each of the others is
    delivered as fast as without them."""
    world = beside_many(dead, death)
    assert latencies(world) == pytest.approx(without_them(), abs=1e-9)
    assert world.most["aside"] <= 2 * PLACES + dead
    tried = {mail.domain for mail in world.mails if mail.tried_at and mail.sent_at is None}
    assert len(tried) == dead


def test_sites_that_take_their_time_take_nothing_from_the_others():
    """However long: each of the others is delivered as fast as beside none, and of the slow ones
    as many at once as each may have connections."""
    taken = Outcome(Verdict.DELIVERED, Phase.DOT, 250, None, "", False, True)
    for seconds in (0.3, 5.0):
        world = beside_many(16, (seconds, taken), seconds=20)
        assert latencies(world) == pytest.approx(without_them(20), abs=1e-9)
        assert world.most["slow aside"] <= PLACES // 4 * 16
    assert world.most["slow aside"] == PLACES // 4 * 16


def test_more_slow_sites_than_may_stand_aside_leave_half_of_the_places():
    """The others go on at once among these, whatever the slow ones have waiting; of a hundred one
    may wait for a claim."""
    taken = Outcome(Verdict.DELIVERED, Phase.DOT, 250, None, "", False, True)
    world = beside_many(40, (5.0, taken), seconds=20)
    alone = without_them(20)
    p99 = len(alone) * 99 // 100
    assert latencies(world)[:p99] == pytest.approx(alone[:p99], abs=1e-9)
    assert latencies(world)[-1] < TAKES + TICK
    assert world.most["slow"] == PLACES // 2 - 2  # it is all one owner's


def test_so_many_dead_domains_that_none_is_tried_anew_leave_those_alone_that_are_known():
    """No more may stand aside: who has answered before goes on as if there were none."""
    death = (1e6, fails(Phase.CONNECT))
    world = beside_many(250, death, seconds=30)
    assert world.most["aside"] == world.dispatch.most_aside * 3 // 4
    assert latencies(world) == pytest.approx(without_them(30), abs=1e-9)


@dataclass
class Outage:
    """A domain that is away from the start on, mail to it, and some to all others meanwhile."""

    world: World
    takes: float
    """Seconds after which an attempt there ends."""
    waiting: list[Mail]

    def others_are_untouched(self) -> None:
        """Nobody else waits, and nothing piles up."""
        assert latencies(self.world) == pytest.approx([TAKES] * MINUTES, abs=1e-9)
        assert self.world.most["gates"] <= 3
        assert self.world.most["lines"] <= 3

    def schedule_is_kept(self) -> None:
        """No message is tried before its delay is over, and the domain is only asked whether it is
        back: one or two at once, pause after pause."""
        for mail in self.waiting:
            for turn, (before, after) in enumerate(pairwise(mail.tried_at), 1):
                assert after - before >= (1 - JITTER) * min(turn**2, LONGEST_DELAY) * UNIT
        tries = sorted(at for mail in self.waiting for at in mail.tried_at)
        pauses = (tries[-1] - tries[0]) / (LONGEST_PAUSE / (1 + JITTER) * (1 - JITTER) * UNIT)
        assert len(tries) <= PLACES // 4 + 2 * pauses + 10


MINUTES = 24 * 60


def outage(takes: float, count: int, lasts: float) -> Outage:
    """So many mails to it, in the first hours; then it is away until `lasts`."""
    world = World((takes, fails(Phase.CONNECT)), until=lasts)
    for number in range(count):
        world.queue(DEAD, number * 30.0)
    for number in range(MINUTES):
        world.queue(f"d{number % 499}.example", number * 60.0)
    return Outage(world, takes, [mail for mail in world.mails if mail.domain == DEAD])


@pytest.mark.parametrize("count", [1, 3, 20, 300])
@pytest.mark.parametrize(
    ("takes", "days"),
    [(0.0001, 1), (60.0, 1), (0.0001, 4)],
    ids=["refuses", "says nothing", "refuses for long"],
)
def test_an_outage_of_days_is_waited_out(takes: float, count: int, days: int):
    """Nothing of it is given up, and once it is over all of it is delivered, within what a last
    pause and the longest wait take."""
    found = outage(takes, count, days * DAY)
    found.world.run(days * DAY - 1)
    assert not any(mail.sent_at or mail.failed_at for mail in found.waiting)
    found.schedule_is_kept()
    found.world.run()
    found.others_are_untouched()
    longest = (LONGEST_DELAY * (1 + JITTER) + 2 * LONGEST_PAUSE) * UNIT
    assert max(mail.sent_at or float("inf") for mail in found.waiting) <= days * DAY + longest


@pytest.mark.parametrize("count", [1, 3, 20, 300])
@pytest.mark.parametrize("takes", [0.0001, 60.0], ids=["refuses", "says nothing"])
def test_what_never_comes_back_is_given_up(takes: float, count: int):
    """Each message once, not before its lifetime is over; and then, however many they are, within
    what one waits for its next attempt."""
    found = outage(takes, count, float("inf"))
    found.world.run()
    found.others_are_untouched()
    found.schedule_is_kept()
    ages = [(mail.failed_at or 0.0) - mail.queued_at for mail in found.waiting]
    assert min(ages) >= LIFETIME
    asked = LONGEST_PAUSE * (1 + JITTER) * UNIT + takes
    assert max(ages) <= LIFETIME + LONGEST_DELAY * (1 + JITTER) * UNIT + 2 * asked
