"""The gatekeeper: what an end says of the route, of the destination, and of nobody else."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from relay.access.owners import ADMINISTRATOR_ID
from relay.outbound.active_queue.dispatch import Dispatch, Group, Line, Place
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.delivery.gatekeeper import Gatekeeper
from relay.outbound.mx.sites import SiteKey
from relay.outbound.pacing.gates import GateKey, Gates
from relay.outbound.pacing.held_back import Why
from relay.outbound.queue.lanes import lane_of
from relay.outbound.queue.settler import ours
from relay.outbound.routing.sources import Source, Sources
from relay.outbound.shaping.rules import parse
from relay.outbound.shaping.traffic import SLOWED, SUSPENDED, Learned, Receiver, Traffic
from relay.smtp.client import Outcome, Phase, Verdict
from tests.outbound.claims import another

UNIT = 60.0
ALICE, MALLORY = UUID(int=1), UUID(int=2)
NO_DNS = ours(Verdict.DEFERRED, Phase.CONNECT, "the domain's MX cannot be asked for")


class House:
    """One line of a dispatch, its gates, and what was given back."""

    def __init__(self, places: int = 8, width: int = 8) -> None:
        self.gates = Gates(places, UNIT, random.Random(1))
        self.dispatch: Dispatch[Job, None] = Dispatch(
            places, places, RightOfWay(), self.gates.bound
        )
        self.line: Line[Job, Any] = self.dispatch.add("route", None, width=width)
        self.back: list[tuple[Job, float]] = []
        self.gatekeeper = Gatekeeper(self.gates, self.dispatch, self._give_back)

    def _give_back(self, job: Job, now: float, delay: float) -> None:
        job.leave_gates()
        self.back.append((job, delay))

    def job(self, domain: str = "y.example", **values: Any) -> Job:
        return Job(another(domain=domain, **values), 300.0, 0.0)

    def waiting(self, count: int, domain: str = "y.example", **values: Any) -> list[Job]:
        jobs = [self.job(domain, **values) for _ in range(count)]
        for job in jobs:
            self.dispatch.put(self.line, job)
        return jobs

    def ends(self, job: Job, verdict: Verdict, phase: Phase, now: float = 1.0, **how: Any) -> bool:
        outcome = Outcome(
            verdict,
            phase,
            how.get("code"),
            how.get("enhanced"),
            how.get("text", ""),
            how.get("route_trouble", False),
            True,
        )
        return self.gatekeeper.learn(self.line, job, outcome, 0.0, now)

    def look_after(self, begun: dict[Place[Job, Any], Job], now: float) -> None:
        self.gatekeeper.begun = begun
        self.gatekeeper.look_after_stalls(now)

    def busy(self, domain: str | None) -> int:
        gate = self.gates.find(GateKey("route", domain))
        return -1 if gate is None else int(gate.window)


def announced(job: Job) -> tuple[Job | None, bool]:
    """What was announced behind a job, and whether that was taken back."""
    return job.following, job.withdrawn


def test_an_answer_widens_the_line_whatever_it_says():
    """Delivered, bounced and failed are answers; and no gate is made for them."""
    house = House(width=2)
    for verdict in (Verdict.DELIVERED, Verdict.BOUNCED, Verdict.FAILED):
        assert house.ends(house.job(), verdict, Phase.RCPT)
    assert house.line.width == 5
    assert len(house.gates) == 0
    assert house.line.seconds == 1.0  # of deliveries alone


def test_trouble_before_mail_is_the_routes_and_takes_back_all_that_waits():
    """Other destinations would meet the same."""
    house = House()
    waiting = [*house.waiting(3, "a.example"), *house.waiting(2, "b.example")]
    assert not house.ends(house.job(), Verdict.DEFERRED, Phase.CONNECT)
    assert [job for job, _ in house.back] == waiting
    assert all(wait > 0 for _, wait in house.back)
    assert house.line.width == 4  # as a new one
    assert house.gates.find(GateKey("route")) is not None
    assert not house.gatekeeper.lets(house.line, house.job("c.example"), 1.0)


def test_trouble_after_mail_is_the_destinations():
    """421 or a broken connection shuts its gate at once; other destinations go on."""
    house = House()
    mine, other = house.waiting(3, "a.example"), house.waiting(2, "b.example")
    house.ends(house.job("a.example"), Verdict.DEFERRED, Phase.RCPT, code=421)
    assert [job for job, _ in house.back] == mine
    assert list(house.line.jobs()) == other
    assert not house.gatekeeper.lets(house.line, house.job("a.example"), 1.0)
    assert house.gatekeeper.lets(house.line, house.job("b.example"), 1.0)
    lane = mine[0].message.lane
    assert house.gates.allowance(lane, 1.0) == 0


def test_what_waits_in_a_lane_that_is_not_its_routes_holds_back_only_its_own():
    """Its sender was made since, and has a dead upstream: the lane that it came from goes on."""
    house = House()
    sender = UUID(int=3)
    stale = house.job(sender_id=sender, lane=lane_of(ADMINISTRATOR_ID, "y.example"))
    assert not house.ends(stale, Verdict.DEFERRED, Phase.CONNECT)
    assert not house.gatekeeper.lets(house.line, stale, 1.0)
    assert house.gates.allowance(stale.message.lane, 1.0) is None
    assert house.gates.allowance(lane_of(ADMINISTRATOR_ID, "y.example", sender), 1.0) == 0


def test_a_lane_whose_mail_meets_no_gate_any_more_waits_for_none():
    """Its sender was given another upstream, and the one that was dead stays so."""
    house = House()
    job = house.job()
    house.ends(job, Verdict.DEFERRED, Phase.CONNECT)
    assert house.gates.allowance(job.message.lane, 1.0) == 0
    mended: Line[Job, Any] = house.dispatch.add("mended", None)
    assert house.gatekeeper.lets(mended, job, 1.0)
    assert house.gates.allowance(job.message.lane, 1.0) is None
    assert house.gates.find(GateKey("route")) is not None


def test_a_busy_mailbox_halves_its_destinations_window_and_takes_nothing_back():
    """A 4xx that says nothing of the connection; and it opens again by what goes well."""
    house = House()
    house.waiting(3)
    house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, code=450)
    assert house.back == []
    assert house.busy("y.example") == 4
    house.ends(house.job(), Verdict.DELIVERED, Phase.DOT)
    assert house.busy("y.example") == 5


@pytest.mark.parametrize("enhanced", ["4.2.2", "4.2.1", "4.1.1"])
def test_a_full_mailbox_is_an_answer_and_strikes_nobody(enhanced: str):
    """However many there are; and as the probe after a pause it opens the gate."""
    house = House(width=2)
    waiting = house.waiting(3)
    full: dict[str, Any] = {"code": 452, "enhanced": enhanced}
    assert house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, **full)
    for _ in range(40):
        house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, **full)
    assert (len(house.gates), house.back) == (0, [])
    assert list(house.line.jobs()) == waiting
    house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, code=421)
    assert house.busy("y.example") == 1
    house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, **full)
    assert house.busy("y.example") == 2


@pytest.mark.parametrize(
    ("phase", "how"),
    [
        (Phase.RCPT, {"code": 450}),
        (Phase.RCPT, {"code": 450, "enhanced": "4.7.1"}),
        (Phase.RCPT, {"code": 452, "enhanced": "4.3.1"}),
        (Phase.RCPT, {"code": 451, "enhanced": "4.4.3"}),
        (Phase.RCPT, {"code": 421, "enhanced": "4.2.1", "route_trouble": True}),
        (Phase.MAIL, {"code": 452, "enhanced": "4.2.2"}),
        (Phase.DATA, {"code": 452, "enhanced": "4.2.2"}),
        (Phase.DOT, {"code": 452, "enhanced": "4.2.2"}),
    ],
)
def test_what_is_not_about_a_recipient_is_the_destinations_trouble(phase: Phase, how: Any):
    """Its own systems, network and policy, and whatever comes at another step."""
    house = House()
    house.ends(house.job(), Verdict.DEFERRED, phase, **how)
    assert 0 < house.busy("y.example") < 8


GREYLISTED = "Greylisting in action, please come back in 00:05:00"


@pytest.mark.parametrize(
    "how",
    [
        {"code": 451, "enhanced": "4.7.1", "text": GREYLISTED},
        {"code": 450, "text": "you are graylisted"},
    ],
)
def test_greylisting_shuts_no_destination(how: Any):
    """Each message has to be refused once: behind a strike the others would wait to be, for hours.

    Who is refused a second time strikes as ever.
    """
    house = House()
    waiting = house.waiting(3)
    for _ in range(100):
        house.ends(house.job(turn=1), Verdict.DEFERRED, Phase.RCPT, **how)
    assert house.back == []
    assert house.busy("y.example") == 1
    assert house.gatekeeper.lets(house.line, house.job(), 1.0)
    house.ends(house.job(turn=2), Verdict.DEFERRED, Phase.RCPT, **how)
    assert [job for job, _ in house.back] == waiting
    assert not house.gatekeeper.lets(house.line, house.job(), 1.0)


@pytest.mark.parametrize(
    ("subject", "text"), [("s", "too many, come back later"), ("Greylisting", "Greylisting later")]
)
def test_who_does_not_speak_of_greylisting_does_not_greylist(subject: str, text: str):
    """Not each message has to learn that a destination throttles, whatever words it repeats."""
    house = House()
    for _ in range(4):
        job = house.job(turn=1, subject=subject)
        house.ends(job, Verdict.DEFERRED, Phase.RCPT, code=451, enhanced="4.7.1", text=text)
    assert not house.gatekeeper.lets(house.line, house.job(), 1.0)


def test_what_is_let_through_counts_until_it_leaves():
    """A gate's window is deliveries at once, from the claim on."""
    house = House(places=4)
    house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, code=450)  # a window of two
    first, second, third = house.job(), house.job(), house.job()
    assert house.gatekeeper.lets(house.line, first, 1.0)
    assert house.gatekeeper.lets(house.line, second, 1.0)
    assert not house.gatekeeper.lets(house.line, third, 1.0)
    assert [job for job, _ in house.back] == [third]
    assert first.leave_gates()
    assert not first.leave_gates()
    assert house.gatekeeper.lets(house.line, third, 1.0)


def test_what_hangs_keeps_half_of_the_places_and_the_rest_goes_back():
    """A destination that fills the lines with what does not end is narrowed, not struck."""
    house = House(places=8)
    house.waiting(20)
    begun: dict[Place[Job, Any], Job] = {}
    for place, job in house.dispatch.start(0.0):
        begun[place] = job
    held = len(begun)
    house.look_after(begun, 0.1)
    assert house.back == []
    house.look_after(begun, 1.0)
    gate = house.gates.find(GateKey("route", "y.example"))
    assert gate is not None
    assert (int(gate.window), gate.strikes) == (4, 0)
    assert gate.busy == max(held, 4)
    assert len(house.back) == 20 - max(held, 4)


class Sites(House):
    """Lines to sites of which nobody knows whether they answer."""

    def __init__(self, count: int = 1, places: int = 8) -> None:
        super().__init__(places)
        self.lines = [
            self.dispatch.add(("mx", str(number)), None, width=2, is_site=True)
            for number in range(count)
        ]
        self.line = self.lines[0]
        self.begun: dict[Place[Job, Any], Job] = {}

    def come(self, count: int, now: float, domain: str = "y.example", line: int = 0) -> list[bool]:
        """So many are claimed; whether each may wait."""
        let = []
        for _ in range(count):
            job = self.job(domain)
            let.append(self.gatekeeper.lets(self.lines[line], job, now))
            if let[-1]:
                self.dispatch.put(self.lines[line], job)
        return let

    def begin(self, now: float) -> None:
        for place, job in self.dispatch.start(now):
            job.began_at, self.begun[place] = now, job

    def allowed(self, now: float, domain: str = "y.example") -> int | None:
        return self.gates.allowance(lane_of(ADMINISTRATOR_ID, domain), now)


def test_no_more_is_claimed_for_a_site_that_has_not_answered_than_it_has_connections():
    """What a first claim brought waits for it all the same; its answer ends that."""
    house = Sites()
    assert house.allowed(0.0) is None
    assert house.come(1, 0.0) == [True]
    assert house.allowed(0.0) == 1
    assert house.come(5, 0.0) == [True] * 5
    assert house.allowed(0.0) == 0
    house.begin(0.0)
    assert len(house.begun) == 2
    _, job = house.begun.popitem()
    assert house.ends(job, Verdict.DELIVERED, Phase.DOT, 0.1)
    assert house.allowed(0.1) is None
    assert house.back == []


@pytest.mark.parametrize("code", [250, 451])
def test_what_waits_for_a_site_whose_connections_all_hang_goes_back(code: int):
    """Nothing of it is claimed or waits, of other domains neither, until it has answered."""
    house = Sites()
    house.come(6, 0.0)
    house.begin(0.0)
    house.look_after(house.begun, 0.2)
    assert house.back == []
    house.look_after(house.begun, 0.3)
    assert len(house.back) == 4
    assert all(delay > 0 for _, delay in house.back)
    assert (house.line.waits, house.allowed(0.3)) == (0, 0)
    assert house.come(1, 0.3, "z.example") == [False]
    assert house.allowed(0.3, "z.example") == 0
    place, job = house.begun.popitem()
    verdict = Verdict.DELIVERED if code == 250 else Verdict.DEFERRED
    house.ends(job, verdict, Phase.RCPT, 0.4, code=code)
    job.leave_gates()
    house.dispatch.leave(place)
    slow = 6  # as it took 0.4 s to be delivered
    assert house.allowed(0.4, "z.example") == (slow if code == 250 else None)
    assert house.come(1, 0.4, "z.example") == [True]


def slow_sites(count: int = 1, places: int = 8) -> Sites:
    """Sites that have answered just now, each after five seconds."""
    house = Sites(count, places)
    for line in house.lines:
        line.took(5.0)
        house.dispatch.answered_well(line, "y.example", 0.0)
    return house


def test_no_more_is_claimed_for_a_slow_site_than_its_connections_take_soon():
    """An answer that makes it quick ends that."""
    house = slow_sites()
    assert house.come(1, 0.0) == [True]
    assert house.allowed(0.0) == 6, "seven are fewer than there are places"
    house.begin(0.0)
    _, job = house.begun.popitem()
    house.line.seconds = 0.01
    job.leave_gates()
    assert house.ends(job, Verdict.DELIVERED, Phase.DOT, 0.1)
    assert house.allowed(0.1) is None


def test_for_slow_sites_together_no_more_waits_than_half_as_much_as_there_are_places():
    """The rest goes back, and they are claimed for again in turn; high mail may wait."""
    house = slow_sites(9)
    let = [house.come(1, 0.0, f"d{number}.example", number)[0] for number in range(9)]
    assert let == [True] * 4 + [False] * 5
    assert house.gatekeeper.lets(house.lines[8], house.job("h.example", priority=0), 0.0)
    assert [house.allowed(0.0, f"d{number}.example") for number in (4, 8)] == [0, 0]
    house.begin(0.0)
    house.look_after(house.begun, 0.1)
    allowed = [house.allowed(0.1, f"d{number}.example") for number in range(4, 9)]
    assert allowed == [1, 1, 1, 1, 0]


def test_what_is_announced_at_slow_sites_waits_there_too():
    """Behind deliveries that take long: else it would fill the room for what others have due."""
    house = slow_sites(9)
    for number in range(4):
        assert house.come(1, 0.0, f"d{number}.example", number) == [True]
    house.begin(0.0)
    house.gatekeeper.begun = house.begun
    assert house.come(1, 0.0, "d4.example", 4) == [True]
    house.dispatch.remove(house.lines[4])
    for job in house.begun.values():
        job.following = house.job()
    assert house.come(1, 0.0, "d5.example", 5) == [False]


def test_mail_to_a_slow_site_is_asked_for_again_where_its_route_was_shut_meanwhile():
    """However few connections its route allows now: else it would not be met before the gate is
    forgotten."""
    house = slow_sites()
    house.come(1, 0.0)
    house.gates.make(GateKey(house.line.key)).bad(0.0, plain=True)
    assert house.ends(house.job(), Verdict.DELIVERED, Phase.DOT, 0.1)
    (job,) = house.dispatch.remove(house.line)
    job.leave_gates()
    assert house.allowed(0.1) != 0


def test_a_site_that_was_reached_is_tried_by_more_where_its_connections_hang():
    """It may be single mails that do; where nobody was reached it would help nobody."""
    house = Sites(places=32)
    house.come(6, 0.0)
    house.begin(0.0)
    house.dispatch.opened(house.line)
    house.look_after(house.begun, 0.3)
    assert (house.line.waits, house.allowed(0.3)) == (2, 0)
    house.begin(0.3)
    assert house.line.workers == 4


def test_what_cannot_begin_is_turned_away_until_it_could():
    """So many sites hang that no more may be tried: what is due for others is not held."""
    house = Sites(80, places=4)
    for number in range(80):
        house.come(1, 0.0, f"d{number}.example", number)
    house.begin(0.0)
    assert (house.dispatch.aside, house.dispatch.room_aside) == (24, 0)
    house.look_after(house.begun, 0.1)
    assert len(house.back) == 80 - 24
    assert house.come(1, 0.2, "d79.example", 79) == [False]
    assert house.allowed(0.2, "d79.example") == house.allowed(0.2, "d30.example") == 0
    place, job = house.begun.popitem()
    job.leave_gates()
    house.dispatch.leave(place)
    house.look_after(house.begun, 0.3)
    allowed = Counter(house.allowed(0.3, f"d{number}.example") for number in range(24, 80))
    assert allowed == {0: 55, 1: 1}


def test_who_has_not_answered_for_a_day_is_said_to_be_out_of_reach():
    """With the lane of the message that showed it, at each strike from then on, and no other that
    waits for the site, whose domain may be elsewhere by now; and not once it has answered
    meanwhile, nor for a route that leads to an upstream."""
    house = House()
    told: list[tuple[set[int], str]] = []
    house.gatekeeper = Gatekeeper(
        *(house.gates, house.dispatch, house._give_back),
        out_of_reach=lambda lanes, why: told.append((set(lanes), why)),
    )
    key = SiteKey("mx", "mx:y.example", ((0, "y.example"),), ())
    upstream, house.line = house.line, house.dispatch.add(key, None, width=2, is_site=True)
    trouble = (Verdict.DEFERRED, Phase.CONNECT)
    waiting = house.job("z.example", owner=ALICE)
    house.ends(house.job(), *trouble, now=0.0)
    assert not house.gatekeeper.lets(house.line, waiting, 0.1)
    house.ends(house.job(), *trouble, now=86_399.0)
    assert told == []
    house.ends(house.job(), *trouble, now=90_000.0)
    assert told == [({house.job().message.lane}, "connect: no answer")]
    house.ends(house.job(), Verdict.DEFERRED, Phase.RCPT, now=91_000.0, code=451)
    house.ends(house.job(), Verdict.DELIVERED, Phase.DOT, now=91_001.0, code=250)
    house.ends(house.job(), *trouble, now=92_000.0)
    house.line = upstream
    for now in (0.0, 90_000.0, 180_000.0):
        house.ends(house.job(), *trouble, now=now)
    assert len(told) == 1


def test_where_mail_leaves_by_sources_nobody_is_out_of_reach():
    """A site that refuses one source may take a lane's mail by another."""
    told: list[tuple[set[int], str]] = []
    house = House()
    traffic = Traffic(sources=Sources((Source("away"),)))
    house.gatekeeper = Gatekeeper(
        *(house.gates, house.dispatch, house._give_back, traffic),
        out_of_reach=lambda lanes, why: told.append((set(lanes), why)),
    )
    key = SiteKey("mx", "mx:y.example", ((0, "y.example"),), (), "", "away")
    house.line = house.dispatch.add(key, None, width=2, is_site=True)
    for now in (0.0, 86_399.0, 90_000.0):
        house.ends(house.job(), Verdict.DEFERRED, Phase.CONNECT, now=now)
    assert told == []


def test_a_domain_the_dns_says_nothing_of_for_a_day_is_out_of_reach():
    """So is its mail."""
    told: list[tuple[set[int], str]] = []
    house = House()
    house.gatekeeper = Gatekeeper(
        *(house.gates, house.dispatch, house._give_back),
        out_of_reach=lambda lanes, why: told.append((set(lanes), why)),
    )
    for now in (0.0, 80_000.0, 90_000.0):
        house.gatekeeper.not_found("y.example", [house.job()], now, NO_DNS)
    assert told == [({house.job().message.lane}, "dns: no answer")]


def test_one_message_waits_for_a_domain_whose_look_up_is_late():
    """The others go back, and are not claimed before the DNS has answered."""
    house = House()
    jobs = [house.job() for _ in range(5)]
    lane = jobs[0].message.lane
    assert all(house.gatekeeper.lets_look_up(job, 0.0, late=False) for job in jobs)
    assert house.gates.allowance(lane, 0.0) is None
    let = [house.gatekeeper.lets_look_up(job, 0.3, late=True) for job in jobs]
    assert let == [True, False, False, False, False]
    assert [job for job, _ in house.back] == jobs[1:]
    assert house.gates.allowance(lane, 0.3) == 0
    house.gatekeeper.found("y.example")
    assert house.gates.allowance(lane, 0.4) is None


def test_what_was_announced_behind_a_stall_waits_again():
    """Another connection takes it; the one that hangs is told of no more."""
    house = House(places=8, width=1)
    house.waiting(2)
    ((place, job),) = house.dispatch.start(0.0)
    following = house.dispatch.next(place, 0.0)
    assert following is not None
    job.following = following
    house.look_after({place: job}, 10.0)
    assert announced(job) == (None, True)
    assert list(house.line.jobs()) == [following]


def test_an_owner_whose_deliveries_hang_everywhere_is_narrowed():
    """To whatever destinations: room to claim the mail of others is left."""
    house = House(places=8)
    for number in range(20):
        house.waiting(1, f"d{number}.example", owner=MALLORY)
    begun = dict(house.dispatch.start(0.0))
    house.look_after(begun, 1.0)
    assert house.gates.find(GateKey("route", owner=MALLORY.int)) is not None
    assert house.back
    assert not house.gatekeeper.lets(house.line, house.job("new.example", owner=MALLORY), 1.0)
    assert house.gatekeeper.lets(house.line, house.job("new.example", owner=ALICE), 1.0)


def test_an_owner_who_hangs_over_two_routes_is_narrowed_over_all():
    """Counted together, and no route of his is a way around it."""
    house = House(places=8)
    second: Line[Job, Any] = house.dispatch.add("second", None, width=8)
    for number in range(20):
        line = (house.line, second)[number % 2]
        house.dispatch.put(line, house.job(f"d{number}.example", owner=MALLORY))
    begun = dict(house.dispatch.start(0.0))
    assert Counter(place.line.key for place in begun) == {"route": 4, "second": 3}
    house.look_after(begun, 1.0)
    assert house.dispatch.in_the_way(MALLORY.int) == 7
    assert len(house.back) == 13
    third: Line[Job, Any] = house.dispatch.add("third", None)
    for line in (house.line, second, third):
        assert not house.gatekeeper.lets(line, house.job("new.example", owner=MALLORY), 1.0)
        assert house.gatekeeper.lets(line, house.job("new.example", owner=ALICE), 1.0)


def test_what_one_owner_has_waiting_behind_a_single_stall_is_narrowed():
    """A probe of a route that hangs has one connection, and no room for all that waits there."""
    house = House(places=8, width=1)
    for number in range(20):
        house.waiting(1, f"d{number}.example", owner=MALLORY)
    begun = dict(house.dispatch.start(0.0))
    assert len(begun) == 1
    house.look_after(begun, 0.1)
    assert house.back == []
    house.look_after(begun, 1.0)
    assert house.dispatch.in_the_way(MALLORY.int) == 7


# What receivers ask for ---------------------------------------------------------------------------

RULES = """
[provider.big]
mx = ["big.example"]
[[provider.big.replies]]
code = 421
suspend = "2h"
[[provider.big.replies]]
code = 451
slow = "1h"
[[provider.big.replies]]
code = 550
suppress = true
"""


class Site:
    """A house with three lines: two of a provider's sites, and another's; and what was noted."""

    def __init__(self, text: str = "") -> None:
        self.house = House()
        rules = parse(text or RULES, "rules.toml")
        self.traffic = Traffic(lambda: rules)
        self.noted: list[Learned] = []
        self.suppressed: list[tuple[Job, str]] = []
        self.counted: list[tuple[Job, str, str]] = []
        self.gatekeeper = Gatekeeper(
            self.house.gates,
            self.house.dispatch,
            self.house._give_back,
            self.traffic,
            lambda _job, outcome, _secrets: f"{outcome.code} said",
            self,
        )
        self.lines = [
            self.house.dispatch.add(
                SiteKey("mx", f"mx:{name}", ((0, name),), (), provider), None, width=8
            )
            for name, provider in (("m1.big", "big"), ("m2.big", "big"), ("mx.shop", ""))
        ]

    def learned(self, what: Learned) -> None:
        self.noted.append(what)

    def refused(self, job: Job, words: str) -> None:
        self.suppressed.append((job, words))

    def full(self, job: Job, enhanced: str, words: str) -> None:
        self.counted.append((job, enhanced, words))

    def meets(self, code: int, phase: Phase = Phase.RCPT, now: float = 1.0) -> Job:
        """A job of the first site is answered so."""
        job = self.house.job("a.example")
        verdict = Verdict.DEFERRED if code < 500 else Verdict.BOUNCED
        outcome = Outcome(verdict, phase, code, None, "", code == 421, True)
        self.gatekeeper.learn(self.lines[0], job, outcome, 0.0, now)
        return job


def test_a_suspended_receiver_gets_nothing_by_any_of_its_sites():
    """What waits for it is given back until then; other receivers' goes on."""
    site = Site()
    mine, beside, other = (site.house.job(f"{name}.example") for name in "bcd")
    for line, job in zip(site.lines, (mine, beside, other), strict=True):
        site.house.dispatch.put(line, job)
    site.meets(421)
    assert [job for job, _ in site.house.back] == [mine, beside]
    # Not for two hours: it may be let go, and its lane is not claimed from before.
    assert all(wait == 5.0 for _, wait in site.house.back)
    assert site.house.gates.allowance(mine.message.lane, 7200.0) == 0
    assert [line.waits for line in site.lines] == [0, 0, 1]
    (noted,) = site.noted
    assert (noted.receiver, noted.kind, noted.until) == (Receiver("big"), SUSPENDED, 7201.0)
    assert noted.reason == "421 said"
    later = site.house.job("e.example")
    assert not site.gatekeeper.lets(site.lines[1], later, 7000.0)
    assert site.house.gates.allowance(later.message.lane, 7000.0) == 0
    assert site.gatekeeper.lets(site.lines[2], site.house.job("d.example"), 7000.0)
    # Then one probes, and the next waits for how that ends.
    assert site.gatekeeper.lets(site.lines[1], later, 7201.0)
    assert not site.gatekeeper.lets(site.lines[0], site.house.job("f.example"), 7201.0)


def test_what_ends_before_its_time_ends_here():
    """Somebody flushed the queue."""
    site = Site()
    site.meets(421)
    assert not site.gatekeeper.lets(site.lines[1], site.house.job("b.example"), 2.0)
    site.gatekeeper.lift(Receiver("big"))
    site.gatekeeper.lift(Receiver("never met"))
    assert site.gatekeeper.lets(site.lines[1], site.house.job("b.example"), 2.0)


def test_what_another_node_learned_holds_here():
    """Without a delivery of this one's."""
    site = Site()
    site.gatekeeper.suspend(
        Learned(Receiver("big"), SUSPENDED, 100.0, 1.0, "a.example", "421 there"), 1.0
    )
    assert not site.gatekeeper.lets(site.lines[0], site.house.job("b.example"), 2.0)
    assert site.noted == []


def test_slowing_and_suppressing_hold_nobody_back():
    """They are noted, for all nodes."""
    site = Site()
    site.meets(451)
    assert [noted.kind for noted in site.noted] == [SLOWED]
    job = site.meets(550)
    assert site.suppressed == [(job, "550 said")]
    site.meets(550, Phase.MAIL)  # is about the sender
    assert len(site.suppressed) == 1
    assert site.gatekeeper.lets(site.lines[1], site.house.job("b.example"), 2.0)


def test_an_upstreams_replies_are_no_receivers():
    """Its rules are its own; whom it says there is not, there is not."""
    site = Site()
    job = site.house.job()
    outcome = Outcome(Verdict.DEFERRED, Phase.RCPT, 421, None, "", True, True)
    site.gatekeeper.learn(site.house.line, job, outcome, 0.0, 1.0)
    assert site.noted == []
    gone = Outcome(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.1", "no such user", False, True)
    for verdict, phase in ((Verdict.DEFERRED, Phase.RCPT), (Verdict.BOUNCED, Phase.MAIL)):
        other = gone._replace(verdict=verdict, phase=phase)
        site.gatekeeper.learn(site.house.line, job, other, 0.0, 1.0)
    assert site.suppressed == []
    site.gatekeeper.learn(site.house.line, job, gone, 0.0, 1.0)
    assert site.suppressed == [(job, "550 said")]
    full = gone._replace(code=552, enhanced="5.2.2", text="mailbox full, try again later")
    site.gatekeeper.learn(site.house.line, job, full, 0.0, 1.0)
    assert site.counted == [(job, "5.2.2", "552 said")]
    assert len(site.suppressed) == 1


def test_where_a_rule_fits_it_decides_who_is_gone():
    """Who reads a reply as asking to slow down does not lose its recipients; the others say."""
    site = Site("[[default.replies]]\ncode = 550\nslow = '1h'\n")
    gone = Outcome(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.1", "no such user", False, True)
    job = site.house.job()
    for _ in range(2):  # of the second the rule has nothing to say
        site.gatekeeper.learn(site.lines[0], job, gone, 0.0, 1.0)
    assert [noted.kind for noted in site.noted] == [SLOWED]
    assert site.suppressed == []
    for code in (551, 553):
        site.gatekeeper.learn(site.lines[0], job, gone._replace(code=code), 0.0, 1.0)
    assert len(site.suppressed) == 2


@pytest.mark.parametrize("phase", [Phase.CONNECT, Phase.RCPT])
def test_a_gates_probes_are_owners_by_turns(phase: Phase):
    """However much one owner has, and though his comes first each time, where the route is in
    trouble and where the destination is."""
    house = House()
    house.ends(house.job(), Verdict.DEFERRED, phase, now=0.0, code=421)
    gate = house.gates.find(GateKey("route", None if phase is Phase.CONNECT else "y.example"))
    assert gate is not None
    probed: Counter[UUID] = Counter()
    for _ in range(20):
        now = gate.opens_at + 0.01
        jobs = [house.job(owner=owner) for owner in (MALLORY, MALLORY, MALLORY, ALICE)]
        (probe,) = [job for job in jobs if house.gatekeeper.lets(house.line, job, now)]
        assert house.gates.allowance(probe.message.own_lane, now) == 0
        probed[probe.message.owner] += 1
        probe.leave_gates()
        house.ends(probe, Verdict.DEFERRED, phase, now=now, code=421)
    assert probed == {MALLORY: 10, ALICE: 10}


@pytest.mark.parametrize(
    ("phase", "how", "why", "reason"),
    [
        (Phase.CONNECT, {"text": "connecting took too long"}, Why.SILENT, "connect: None"),
        (Phase.TLS, {"enhanced": "4.7.5"}, Why.POLICY, "tls: None"),
        (Phase.DOT, {}, Why.HANGING, "dot: None"),
        (Phase.RCPT, {"code": 451}, Why.DEFERRING, "rcpt: 451"),
    ],
)
def test_what_was_met_says_why_mail_is_held_back(phase: Phase, how: Any, why: Why, reason: str):
    """And since when: until it goes well, whatever is met in between."""
    house = House()
    house.ends(house.job(), Verdict.DEFERRED, phase, 1.0, **how)
    (one,) = house.gates.statistics(11.0)
    since = 1.0 if how.get("code") else 0.0  # who never answered has not since it was asked
    assert (one.why, one.held_for, one.reason) == (why, 11.0 - since, reason)
    assert one.domains == ("y.example",)
    house.ends(house.job(), Verdict.DEFERRED, Phase.CONNECT, 500.0)
    assert max(one.held_for or 0 for one in house.gates.statistics(501.0)) == 501.0
    for _ in range(8):
        house.ends(house.job(), Verdict.DELIVERED, Phase.DOT, 900.0)
    assert house.gates.statistics(901.0) == []


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(Phase.MAIL, 0.1, 0.1), (Phase.DOT, 6.2, 6.04)], "6 s at the dot"),
        # Sent together, and the first behind the dot of another mail.
        ([(Phase.MAIL, 0.1, 6.1), (Phase.RCPT, 12.5, 12.5), (Phase.DATA, 12.6, 12.6)],
         "12 s at RCPT"),
        ([(Phase.MAIL, 18.9, 0.1), (Phase.DOT, 19.0, 0.1)], "19 s at connect"),
    ],
)  # fmt: skip
def test_how_slow_a_site_is_and_at_what_is_told(steps: list[tuple[Phase, float, float]], said: str):
    """With the connections that it may have, which are fewer than what is claimed for them."""
    house = Sites(places=32)
    house.dispatch.full = 4
    house.come(3, 0.0)
    house.begin(0.0)
    trace = tuple((phase, 250, at, seconds) for phase, at, seconds in steps)
    took = steps[-1][1]
    done = Outcome(Verdict.DELIVERED, Phase.DOT, 250, "2.0.0", "ok", False, True, trace=trace)
    house.gatekeeper.learn(house.line, house.job(), done, 0.0, took)
    house.come(1, took)
    gate = house.gates.make(GateKey.for_claims(house.line.key))
    gate.busy = 1
    assert gate.window == 5
    (one,) = house.gates.statistics(took + 2.0)
    assert (one.why, one.reason, one.window) == (Why.SLOW, said, 4)


def test_what_waits_for_connections_that_a_receiver_is_not_given_is_noted():
    """By the traffic rules, whose limit it is: for its owner, and while there is something."""
    house = Site("[provider.big]\ndomains = ['a.example']\nconnections = 1\n")
    dispatch = house.house.dispatch
    group = Group(lambda now: house.traffic.given(Receiver("big"), now)[0])
    key = SiteKey("mx", "mx:only", ((0, "only"),), (), "big")
    line = dispatch.add(key, None, width=8, group=group, is_site=True)
    for _ in range(3):
        dispatch.put(line, house.house.job("a.example", owner=ALICE))
    begun = dict(dispatch.start(0.0))
    assert len(begun) == 1
    house.gatekeeper.begun = begun
    for now in (0.1, 0.2, 1.3):
        house.gatekeeper.look_after_stalls(now)
    (one,) = house.traffic.limited(1.4, ALICE.int, "a.example")
    assert (one.why, one.reason, one.window) == (Why.LIMITED, "1 connection at most", 1)
    assert house.traffic.limited(1.4, MALLORY.int) == []
    assert house.traffic.limited(9.0) == []
