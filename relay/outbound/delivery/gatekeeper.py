"""What the end of each delivery teaches about its way.

The only place where gates are struck, narrowed or widened.

Promises
- A job goes through the gates of its route, its destination and its owner, or it is to be given
  back with the seconds to wait.
- Who answers, whatever the answer, widens the line and opens the gates on the way.  Trouble before
  MAIL concerns the route, later trouble the destination; a strike takes back what waits behind it.
- A 4xx at RCPT that is about an address or a mailbox (RFC 3463: x.1.x, x.2.x) is an answer like a
  bounce: the message is tried again later, and nobody else is held up.  So whoever writes to full
  mailboxes slows no other's mail to the same destination.
- A first attempt that is refused for now at RCPT by one who says that it greylists (RFC 6647)
  narrows its destination to one delivery at a time and never shuts it, for those behind it have to
  be refused once, too.  A second attempt that is refused strikes.
- What a reply asks for by the traffic rules (`relay.outbound.shaping.traffic`) holds for its
  receiver: one that is suspended has a gate of its own, and what waits for it is taken back.
- Whom a final refusal names is suppressed, or counted as full, as if it were a report
  (`relay.returns.law`), by whichever route it comes; where a traffic rule fits, that decides.  A
  mailbox that is full when the relay gives its mail up is counted as one, too.
- Of a site that has not answered yet, or not lately, no more is claimed than it has connections;
  where all of those hang, what waits for it is given back, until it answers.
- Of a site that is slow, no more is claimed than its connections take soon; and for all of these
  together no more than half as much waits as there are places; with high mail, three quarters.
- Where a site, or the DNS about a domain, has not answered for a day (of 60 s units) and fails once
  more, that is said of the lane of the message that failed: what is too old of it is given up
  (`Queue.give_up`), for nobody could be asked about each.  Not where mail leaves by sources: to
  another than that which failed the site may answer.
- Where deliveries hang and would take the places of others, their destination or owner is narrowed,
  and what was announced behind them is taken back.

Fails: never.

Why apart from `gates`: a gate knows what a strike does to it; what counts as one, for whom, and
what becomes of the mail behind it, is decided here.  Pure: instants are handed in.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from prometheus_client import Counter

from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.active_queue.dispatch import Dispatch, Line, Place
from relay.outbound.active_queue.jobs import Job
from relay.outbound.pacing.gates import ANY_ROUTE, Gate, GateKey, Gates
from relay.outbound.pacing.held_back import OPENING, Why, awaited, takes, why_of
from relay.outbound.shaping.echoes import without
from relay.outbound.shaping.rules import Asks
from relay.outbound.shaping.traffic import SUSPENDED, Learned, Receiver, Traffic, receiver_of
from relay.returns.law import refusal
from relay.smtp.client import ABOUT_RECIPIENT, Outcome, Phase, Verdict

log = get_logger()

_STRIKES = Counter(
    "relay_outbound_pauses", "Pauses of a route or a destination.", ["what"], registry=registry
)
_OF_THE_RECIPIENT = ("4.1.", "4.2.")
_GREYLISTED = re.compile(r"gr[ea]y-?list", re.IGNORECASE)
_SUSPENDED_WAIT = 5.0  # s
_WAIT_FOR_LATE = 1  # messages to one domain
_NO_ANSWER = "no answer"
_NOTED_EVERY = 0.5  # s; what waits for a limit of a receiver's
_NOTED = 64  # jobs of a line

LOOKING_UP = ("mx", "dns")
"""Instead of a route, in the gates before domains whose servers are looked up."""


GiveBack = Callable[[Job, float, float], None]
"""Let go of a job that was not begun: the job, the instant, and the seconds to wait."""


OutOfReach = Callable[[Collection[int], str], None]
"""Told of lanes whose mail nobody has taken for long, and what the last trouble was."""


Words = Callable[[Job, Outcome, Collection[str]], str]
"""What was replied, as it may be kept; the collection has the spellings of a password."""


class Notes(Protocol):
    """Who writes down for all nodes what was learned."""

    def learned(self, what: Learned) -> None:
        """A receiver has asked for this."""

    def refused(self, job: Job, words: str) -> None:
        """The recipient of a job is not to be written to."""

    def full(self, job: Job, enhanced: str, words: str) -> None:
        """The mailbox of a job's recipient is full."""


class Gatekeeper:
    """The gates, for one sender's dispatch."""

    def __init__(
        self,
        gates: Gates,
        dispatch: Dispatch[Job, Any],
        give_back: GiveBack,
        traffic: Traffic | None = None,
        words: Words = lambda _job, outcome, _secrets: str(outcome.code),
        notes: Notes | None = None,
        out_of_reach: OutOfReach = lambda _lanes, _why: None,
    ) -> None:
        """`traffic`: what receivers have asked for, None: nobody is asked."""
        self._out_of_reach = out_of_reach
        self._has_sources = traffic is not None and bool(traffic.sources.sources)
        self._gates = gates
        self._dispatch = dispatch
        self._give_back = give_back
        self._traffic = traffic
        self._words = words
        self._notes = notes
        self.begun: Mapping[Place[Job, Any], Job] = {}
        """What is on a connection, or opens one: its `Workers` have put it here."""
        self._turned_away: deque[Gate] = deque()  # shut while no more deliveries may stand aside
        self._noted_at = -math.inf
        self._slow_away: dict[Gate, None] = {}  # while no more may wait for slow sites; first first

    # Letting through ------------------------------------------------------------------------------

    def lets(self, line: Line[Job, Any], job: Job, now: float) -> bool:
        """Let a job through; or give it back until a gate on its way may have room, False then."""
        if line.is_silent(now):
            if not self._lets_wait(line, job, now):
                return False
        elif line.is_slow and not self._lets_wait_for_slow(line, job, now):
            return False
        if not self._gates:
            return True
        passed = []
        met = False
        for key in _on_the_way(line, job):
            gate = self._gates.find(key)
            if gate is None or (key.is_for_claims and gate.gone):
                continue
            met = True
            self._before(gate, job)
            if key.is_for_claims:
                passed.append(gate)  # it holds back what is not claimed yet
            elif gate.room_for(job.owner, now) < 1:
                self._turn_away(gate, job, now)
                return False
            elif (
                key.domain is not None
                or key.owner is not None
                or key.route != line.key
                or gate.strikes
            ):
                passed.append(gate)  # that of a route counts its probe alone: see `Gates.bound`
        if not met:
            self._gates.nothing_before(job.message.lane)
        for gate in passed:
            job.pass_gate(gate)
            gate.had_turn(job.owner)
        return True

    def _before(self, gate: Gate, job: Job) -> None:
        self._gates.before(job.message.own_lane, gate, job.owner, job.domain)

    def _turn_away(self, gate: Gate, job: Job, now: float) -> None:
        """Give back what a gate does not let through, and keep its owner's turn there."""
        wait = self._wait(gate, now)
        gate.turn_away(job.owner, now + wait)
        self._give_back(job, now, wait)

    def _lets_wait(self, line: Line[Job, Any], job: Job, now: float) -> bool:
        """Let a job wait for a site of which it is not known that it answers; False if given back.

        What a first claim has brought may wait for it; no more is claimed until it has answered.
        """
        gate = self._gates.make(GateKey.for_claims(line.key))
        if self._dispatch.has_no_room(line, job):
            self._no_room_for(gate, job, now)
            return False
        if self._dispatch.is_stuck(line, now):
            self._before(gate, job)
            self._give_back(job, now, gate.wait(now))
            return False
        gate.bound(max(self._dispatch.most_silent(line, now), 1), now, Why.SILENT)
        return True

    def _lets_wait_for_slow(self, line: Line[Job, Any], job: Job, now: float) -> bool:
        """Let a job wait for a slow site; False if given back.

        What waits for all of them together fills the room for what others have due, whatever its
        priority; where lower mail has none, high mail has some.
        """
        gate = self._gates.make(GateKey.for_claims(line.key))
        room = self._dispatch.room_to_wait(job.priority, self._announced())
        if not room or (job.priority and gate in self._slow_away):
            self._slow_away[gate] = None
            self._before(gate, job)
            gate.narrow(0, now, Why.SLOW)
            self._give_back(job, now, gate.wait(now))
            return False
        if gate not in self._slow_away:
            self._bound_claims(line, gate, now)
        return True

    def _try_slow(self, now: float) -> bool:
        """Let as many slow sites be claimed for as there is room for, in turn; True if any."""
        if not self._slow_away:
            return False
        room = self._dispatch.room_to_wait(announced=self._announced())
        count = min(room, len(self._slow_away))
        for gate in list(self._slow_away)[:count]:
            del self._slow_away[gate]
            gate.bound(gate.busy + 1, now, Why.SLOW)
        return count > 0

    def _announced(self) -> int:
        """How many jobs were announced behind others at slow sites: they wait there, too."""
        return sum(
            place.line.is_slow for place, job in self.begun.items() if job.following is not None
        )

    def _bound_claims(self, line: Line[Job, Any], gate: Gate, now: float) -> None:
        """Hold no more of what goes to a slow site than it has use for: it fills the room for what
        others have due."""
        gate.bound(self._dispatch.worth_holding(line, now), now, Why.SLOW)
        gate.at_once = self._dispatch.may_have(line, now)
        if line.longest is not None:
            phase, seconds = line.longest
            gate.takes_long(takes(Phase(phase), seconds))

    def _no_room_for(self, gate: Gate, job: Job, now: float) -> None:
        """Give back what cannot begin, and claim no more of it before something could."""
        self._before(gate, job)
        if gate.window:
            gate.narrow(0, now, Why.NO_ROOM)
            self._turned_away.append(gate)
        self._give_back(job, now, gate.wait(now))

    def _try_turned_away(self, now: float) -> bool:
        """Let as many sites that were turned away be tried as there is room for; True if any."""
        count = min(self._dispatch.room_aside, len(self._turned_away))
        for _ in range(count):
            gate = self._turned_away.popleft()
            gate.bound(1, now, Why.SILENT)
        return count > 0

    # Learning -------------------------------------------------------------------------------------

    def learn(
        self, line: Line[Job, Any], job: Job, outcome: Outcome, began_at: float, now: float
    ) -> bool:
        """Learn of the route and of the destination from an outcome; True if more may begin now."""
        if outcome.verdict is Verdict.DELIVERED:
            line.took(now - began_at)
            if line.is_slow:
                line.longest = _longest(outcome, began_at, now)
        else:
            if outcome.code is not None:
                if self._traffic is not None:
                    self._heed(self._traffic, line, job, outcome, now)
                self._judge(line, job, outcome)
            if _is_trouble(outcome):
                self._trouble(line, job, outcome, began_at, now)
                return False
        # It answered, whatever it said.
        more = self._dispatch.answered_well(line, job.domain, now)
        if self._gates:
            for key in _on_the_way(line, job):
                gate = self._gates.find(key)
                if gate is None:
                    continue
                if not key.is_for_claims:
                    gate.good()
                elif not line.is_slow:
                    gate.open()
                elif gate not in self._slow_away:
                    self._bound_claims(line, gate, now)
        return more

    def _trouble(
        self, line: Line[Job, Any], job: Job, outcome: Outcome, began_at: float, now: float
    ) -> None:
        opening = outcome.phase in OPENING
        if outcome.code is not None and not (opening or outcome.route_trouble):
            self._dispatch.refused(line, now)
            if (held := self._gates.find(GateKey.for_claims(line.key))) is not None:
                held.open()
        elif outcome.code is None:
            self._dispatch.said_nothing(line)
        domain = None if opening else job.domain
        gate = self._gates.make(GateKey(line.key, domain))
        self._before(gate, job)
        plain = opening or outcome.route_trouble or outcome.code == 421
        phase, code = outcome.phase.value, outcome.code
        met = f"{phase}: {_NO_ANSWER}" if code is None else f"{phase}: {code}"
        struck = gate.bad(
            now,
            plain=plain,
            why=why_of(outcome),
            met=met,
            replied=self._replied(line, job, outcome, gate, now),
            met_by=job.owner,
            strikes=not _is_greylisting(job, outcome),
            since=began_at if code is None else None,
        )
        if not struck:
            return
        what = "route" if opening else "destination"
        _STRIKES.labels(what).inc()
        log.warning(
            "outbound.paused",
            what=what,
            seconds=round(gate.opens_at - now, 3),
            phase=phase,
            code=code,
        )
        if opening:
            self._dispatch.troubled(line)
        self._take_back(gate, line, now, domain)
        if plain and line.is_site and gate.long_shut(now) and not self._has_sources:
            # Of no other lane that waits for it: its domain may have moved meanwhile.
            self._out_of_reach({job.message.own_lane}, met)

    def _replied(
        self, line: Line[Job, Any], job: Job, outcome: Outcome, gate: Gate, now: float
    ) -> str | None:
        """What was met, with its words; None: the gate is shut, and takes no note of it."""
        if now < gate.opens_at:
            return None
        secrets = () if line.way is None else line.way.secrets
        return f"{outcome.phase.value}: {self._words(job, outcome, secrets)}"

    # What receivers ask for -----------------------------------------------------------------------

    def _heed(
        self, traffic: Traffic, line: Line[Job, Any], job: Job, outcome: Outcome, now: float
    ) -> None:
        """Do what a reply asks for, if it does."""
        receiver = receiver_of(line.key)
        if receiver is None:
            return
        asked = traffic.learn(
            receiver,
            job.domain,
            outcome,
            now,
            lambda: self._words(job, outcome, ()),
            _own_words(job),
        )
        if asked is None:
            return
        if isinstance(asked, Asks):
            self._refused(job, outcome)
            return
        if self._notes is not None:
            self._notes.learned(asked)
        told = {
            "receiver": receiver.shown,
            "seconds": round(asked.until - now, 3),
            "reason": asked.reason,
        }
        if asked.kind == SUSPENDED:
            log.warning("outbound.suspended", **told)
            _STRIKES.labels("receiver").inc()
            self.suspend(asked, now)
        else:
            log.warning("outbound.slowed", factor=asked.factor, **told)
            for other in (job, *self._waiting_for(receiver)):
                traffic.awaits(receiver, other.owner, other.domain)

    def _waiting_for(self, receiver: Receiver) -> Iterator[Job]:
        """What waits in the lines of a receiver."""
        for line in self._dispatch.lines.values():
            if line.waits and receiver_of(line.key) == receiver:
                yield from line.jobs()

    def _refused(self, job: Job, outcome: Outcome) -> None:
        log.info("outbound.recipient_suppressed", id=str(job.message.id), code=outcome.code)
        if self._notes is not None:
            self._notes.refused(job, self._words(job, outcome, ()))

    def _judge(self, line: Line[Job, Any], job: Job, outcome: Outcome) -> None:
        """Do what follows from a final refusal as from a report, where no rule has a meaning for
        it.
        """
        if (
            outcome.verdict not in {Verdict.BOUNCED, Verdict.FAILED}
            or outcome.phase not in ABOUT_RECIPIENT
            or not outcome.enhanced
        ):
            return
        own = _own_words(job)
        found = refusal(outcome.enhanced, without(outcome.text, own))
        if found is None or not (found.suppress or found.is_full):
            return
        receiver, traffic = receiver_of(line.key), self._traffic
        if receiver is not None and traffic is not None and traffic.judges(receiver, outcome, own):
            return
        if found.suppress:
            self._refused(job, outcome)
        elif self._notes is not None:
            self._notes.full(job, outcome.enhanced, self._words(job, outcome, ()))

    def gave_up(self, job: Job, outcome: Outcome) -> None:
        """Count the mailbox of a job whose mail the relay has given up as full, if that is what was
        said last: who takes mail and gives it up later reports the same.
        """
        if outcome.phase not in ABOUT_RECIPIENT or not outcome.enhanced or self._notes is None:
            return
        found = refusal(outcome.enhanced, without(outcome.text, _own_words(job)))
        if found is not None and found.is_full:
            self._notes.full(job, outcome.enhanced, self._words(job, outcome, ()))

    def suspend(self, learned: Learned, now: float) -> None:
        """Begin nothing more that goes to a receiver, and take back what waits for it."""
        receiver = learned.receiver
        gate = self._gates.make(receiver.gate_key)
        gate.suspend(
            *(learned.until, learned.reason, learned.held_since, learned.rule or None),
            learned.domain,
        )
        for line in list(self._dispatch.lines.values()):
            if line.waits and receiver_of(line.key) == receiver:
                self._take_back(gate, line, now)

    def _take_back(
        self,
        gate: Gate,
        line: Line[Job, Any],
        now: float,
        domain: str | None = None,
        owner: Hashable = None,
        *,
        all_of_it: bool = True,
    ) -> None:
        """Give back what waits in a line behind a gate; unless `all_of_it`, what that has no room
        for."""
        for job in self._dispatch.remove(line, domain, owner):
            self._before(gate, job)
            if all_of_it or (gate not in job.gates and gate.room(now) < 1):
                self._turn_away(gate, job, now)
            else:
                job.pass_gate(gate)
                self._dispatch.put(line, job)

    @staticmethod
    def _wait(gate: Gate, now: float) -> float:
        """Seconds for which a job is given back that a gate does not let through.

        Few where it is suspended for hours: its lane is not claimed from before it opens anyway,
        and it may open earlier.
        """
        wait = gate.wait(now)
        return min(wait, _SUSPENDED_WAIT) if now < gate.suspended_until else wait

    def lift(self, receiver: Receiver) -> None:
        """A receiver may be written to again before its time."""
        gate = self._gates.find(receiver.gate_key)
        if gate is not None:
            gate.lift()

    # Domains whose servers are looked up ----------------------------------------------------------

    def lets_look_up(self, job: Job, now: float, *, late: bool) -> bool:
        """Let a job wait for the DNS about its domain; or give it back, False then.

        `late`: the answer takes longer than one does, so one job of the domain may wait for it.
        """
        key = GateKey(LOOKING_UP, job.domain)
        gate = self._gates.make(key) if late else self._gates.find(key)
        if gate is None:
            return True
        self._before(gate, job)
        if late:
            gate.narrow(_WAIT_FOR_LATE, now, Why.NO_DNS)
        if gate not in job.gates and gate.room(now) < 1:
            self._give_back(job, now, gate.wait(now))
            return False
        job.pass_gate(gate)
        return True

    def found(self, domain: str) -> None:
        """The DNS has answered about a domain."""
        gate = self._gates.find(GateKey(LOOKING_UP, domain)) if self._gates else None
        if gate is not None:
            gate.open()

    def not_found(self, domain: str, jobs: Collection[Job], now: float, outcome: Outcome) -> None:
        """It cannot be found out where a domain's mail goes, or how: its lanes wait."""
        gate = self._gates.make(GateKey(LOOKING_UP, domain))
        for job in jobs:
            self._before(gate, job)
        met = f"dns: {_NO_ANSWER}"
        why = Why.POLICY if why_of(outcome) is Why.POLICY else Why.NO_DNS
        if gate.bad(now, plain=True, why=why, met=met, replied=outcome.text):
            if gate.long_shut(now):
                lanes = {job.message.own_lane for job in jobs}
                self._out_of_reach({*lanes, *self._gates.behind((gate,))}, met)
            _STRIKES.labels("destination").inc()
            seconds = round(gate.opens_at - now, 3)
            log.warning("outbound.paused", what="destination", seconds=seconds, phase="dns")

    # What hangs -----------------------------------------------------------------------------------

    def look_after_stalls(self, now: float) -> bool:
        """Take back what was announced behind deliveries that hang, and keep those few.

        Returns whether more may be claimed of some lane.
        """
        freed = self._try_turned_away(now) | self._try_slow(now)
        self._note_limits(now)
        if not self._dispatch.room_aside:
            for line in self._dispatch.lines.values():
                if line.waits and not line.workers and line.is_silent(now):
                    self._no_room_for_any(line, now)
        freed |= self._hold_back_behind_sites(self.begun, now)
        self._withdraw_and_narrow(self.begun, now)
        return freed

    def _note_limits(self, now: float) -> None:
        """Note what waits since its receiver has all connections that it is given."""
        if self._traffic is None or now < self._noted_at + _NOTED_EVERY:
            return
        self._noted_at = now
        for line in self._dispatch.waiting():
            if line.group is not None and line.group.room(now) < 1:
                receiver = receiver_of(line.key)
                if receiver is not None:
                    for job in islice(line.jobs(), _NOTED):
                        self._traffic.reached(receiver, job.owner, job.domain, now)

    def _hold_back_behind_sites(self, begun: Mapping[Place[Job, Any], Job], now: float) -> bool:
        """Hold back what waits for sites all of whose connections hang; True if more may begin."""
        freed = False
        of_sites: dict[Line[Job, Any], list[Job]] = {}
        for place, job in begun.items():
            if place.line.is_site:
                of_sites.setdefault(place.line, []).append(job)
        for line, jobs in of_sites.items():
            # Not `is_stuck`, which counts what is not on a connection yet, too.
            stalled = all(line.has_stalled(job.began_at, now) for job in jobs)
            if stalled and self._dispatch.has_all(line, now):
                freed |= self._hold_back(line, jobs, now)
            if stalled or line.is_silent(now):
                self._tell_why(line, jobs, now)
        return freed

    def _tell_why(self, line: Line[Job, Any], jobs: Collection[Job], now: float) -> None:
        """Have the gate of a site that does not answer say what is awaited of it."""
        gate = self._gates.find(GateKey.for_claims(line.key))
        oldest = min(jobs, key=lambda job: job.began_at)
        if gate is not None and not gate.gone and line.has_stalled(oldest.began_at, now):
            phase = Phase.CONNECT if oldest.connection is None else oldest.connection.awaits
            why = Why.SILENT if phase in OPENING else Why.HANGING
            since = oldest.began_at
            gate.awaits(why, awaited(phase, now - since), since)

    def _withdraw_and_narrow(self, begun: Mapping[Place[Job, Any], Job], now: float) -> None:
        """Take back what was announced behind what has stalled; narrow whose deliveries hang."""
        half = max(self._dispatch.places // 2, 1)
        owners: set[Hashable] = set()
        for place, job in list(begun.items()):
            line = place.line
            if not line.has_stalled(job.began_at, now):
                continue
            following, job.following = job.following, None
            if following is not None:
                job.withdrawn = True
                self._dispatch.put_back(place, following, job)
            if line.busy(job.domain) + line.waiting(job.domain) > self._dispatch.places // 2:
                self._narrow([line], GateKey(line.key, job.domain), half, begun, now)
            most = self._dispatch.most_of(line, job.owner, now)
            if most is not None and line.held(job.owner) > most:
                self._narrow([line], GateKey(line.key, owner=job.owner), most, begun, now)
            owners.add(job.owner)
        for owner in owners:
            most = self._dispatch.most_of(None, owner, now)
            if most is not None and self._dispatch.in_the_way(owner) > most:
                lines = list(self._dispatch.lines.values())
                self._narrow(lines, GateKey(ANY_ROUTE, owner=owner), most, begun, now)

    def _no_room_for_any(self, line: Line[Job, Any], now: float) -> None:
        gate = self._gates.make(GateKey.for_claims(line.key))
        for job in self._dispatch.remove(line):
            if self._dispatch.has_no_room(line, job):
                self._no_room_for(gate, job, now)
            else:
                self._dispatch.put(line, job)

    def _hold_back(self, line: Line[Job, Any], begun: Iterable[Job], now: float) -> bool:
        """Give back what waits for a site all of whose connections hang, and claim no more of it
        than it may have connections; True if these may be more now."""
        gate = self._gates.make(GateKey.for_claims(line.key))
        for job in begun:
            job.pass_gate(gate)
        wider = self._dispatch.widen_stuck(line, now)
        gate.bound(line.width if wider else line.workers, now, Why.SILENT)
        for job in line.jobs():
            job.leave_gates()
        self._take_back(gate, line, now, all_of_it=False)
        return wider

    def _narrow(
        self,
        lines: Collection[Line[Job, Any]],
        key: GateKey,
        width: int,
        begun: Mapping[Place[Job, Any], Job],
        now: float,
    ) -> None:
        """Hold no more than so many of a destination's or an owner's; give back the rest."""
        gate = self._gates.make(key)
        gate.narrow(width, now, Why.HANGING if key.owner is None else Why.NO_ROOM)
        for place, job in begun.items():
            if key.route == ANY_ROUTE and place.aside:
                continue  # it is in nobody's way
            if place.line in lines and (job.domain == key.domain or job.owner == key.owner):
                job.pass_gate(gate)
        for line in lines:
            self._take_back(gate, line, now, key.domain, key.owner, all_of_it=False)


def _longest(outcome: Outcome, began_at: float, now: float) -> tuple[Phase, float]:
    """What a delivery has waited for most, and how long.

    Several commands may be sent at once, and behind the dot of another mail: what is waited for is
    the first that is not answered.
    """
    waited: list[tuple[Phase, float]] = []
    opened_at = answered_at = began_at
    for phase, _, at, seconds in outcome.trace:
        if not waited:
            opened_at = answered_at = max(at - seconds, began_at)
        waited.append((phase, min(seconds, at - answered_at)))
        answered_at = at
    opening = (now if not waited else opened_at) - began_at
    return max([*waited, (Phase.CONNECT, opening)], key=lambda one: one[1])


def _own_words(job: Job) -> tuple[str, ...]:
    """What a mail says that a reply to it may repeat."""
    message = job.message
    mail_from = "" if job.outgoing is None else job.outgoing.sender
    names = (message.recipient_name or "", message.sender_name or "")
    return (message.recipient, message.sender, mail_from, message.subject, *names)


def _is_trouble(outcome: Outcome) -> bool:
    """Whether an outcome says something of the route or of the destination, and nothing good."""
    if outcome.verdict is Verdict.UNKNOWN:
        return True
    if outcome.verdict is not Verdict.DEFERRED:
        return False
    # A 421, whatever code it bears, is the route's trouble: the connection is over.
    refused = outcome.phase is Phase.RCPT and not outcome.route_trouble
    return not (refused and (outcome.enhanced or "").startswith(_OF_THE_RECIPIENT))


def _is_greylisting(job: Job, outcome: Outcome) -> bool:
    """Whether a recipient was refused because nobody knows the sender yet (RFC 6647).

    Then each message has to be refused once before it is taken, and none may wait for another.
    """
    return (
        job.message.turn == 1
        and outcome.phase is Phase.RCPT
        and not outcome.route_trouble
        and _GREYLISTED.search(without(outcome.text, _own_words(job))) is not None
    )


def _on_the_way(line: Line[Job, Any], job: Job) -> tuple[GateKey, ...]:
    """What the gates on a job's way would stand before."""
    route = line.key
    receiver = receiver_of(route)
    keys = (
        GateKey(route),
        # Behind that one, which does not count what it lets through: the last says what is claimed.
        *((GateKey.for_claims(route),) if line.is_site else ()),
        GateKey(route, job.domain),
        GateKey(route, owner=job.owner),
        GateKey(ANY_ROUTE, owner=job.owner),
    )
    return keys if receiver is None else (receiver.gate_key, *keys)
