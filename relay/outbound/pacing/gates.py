"""A circuit breaker and a concurrency window for each route and destination in trouble.

A `Gate` is both: a window (deliveries at once), and after a strike a time before which nothing goes
through.  Good answers widen the window by one each, so it doubles with every round (slow start); at
its full width the gate is gone.  What answers well has none, and is not slowed down.

Promises
- A temporary refusal halves the window, to no less than one delivery where it is greylisting;
  when nothing is left of it, or at once where the trouble is plain (421, a broken connection, a
  route that cannot be opened), the gate is struck: shut for `backoff.pause`, which grows with each
  strike in a row and never exceeds ten units.
- After a pause a single delivery probes; its success opens the gate, its failure strikes again.
- What is in one gate's way is in no other's: gates are kept by route, by route and domain, for what
  hangs by route and owner, and by owner over all routes, and for a route of which nobody knows
  whether it answers by what is held of it (`GateKey.for_claims`).  A lane
  (`relay.outbound.queue.lanes`: an owner, a domain and a route) is claimed from as the gate allows
  that its mail met last; what waits in the lane of a route that it takes no more concerns only the
  lane of the one that it does take.
- Owners take turns at a gate: who was turned away, and has had none or had his longer ago, goes
  before another, as long as he may be expected to ask again (`_GRACE`).  So who has much does not
  get all that goes through.
- A destination or an owner whose deliveries hang and would take all places is narrowed, which is
  no strike; so is a route of which nobody knows yet whether it answers.
- What was not met for long after its pause is forgotten: domains that nobody writes to any more
  cost nothing.
- Where deliveries to a domain are capped, its gate stands while there are any, and is never wider.
- What has said for how long it is not to be spoken to is suspended: shut until then, and `reopen`
  does not open it; `lift` does.
- Each knows why it holds back, since when, and what was replied (`statistics`); that reply is for
  the administrator and for the owner of the mail that met it.

Fails: never.

Why in memory and for one node: a destination's state is learnt within one delivery, and a node that
has not met it yet pays one delivery to know.  Pure; the clock and the random source are given.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from relay.outbound.pacing.backoff import LONGEST_PAUSE, MOMENT, pause
from relay.outbound.pacing.held_back import Standing, Why, domain_connections

ANY_ROUTE = "any"
"""Instead of a route: a gate before one owner's mail, whatever routes that takes."""

_ALL_CLAIMS = "any"  # instead of an owner


class GateKey(NamedTuple):
    """What a gate stands before: a route, and of it one destination or one owner's mail.

    `route`: None for the relay's own upstream, else what `Routes.key_of` gives, or `ANY_ROUTE`.
    """

    route: Hashable
    domain: str | None = None
    owner: Hashable = None

    @classmethod
    def for_claims(cls, route: Hashable) -> GateKey:
        """Of the gate that bounds what is claimed of all that waits for a route; that of the route
        itself bounds its connections."""
        return cls(route, owner=_ALL_CLAIMS)

    @property
    def is_for_claims(self) -> bool:
        """Whether it is one of those."""
        return self.owner == _ALL_CLAIMS


_GRACE = 1.0
"""Seconds beyond those for which he was turned away, or the gate was shut, that an owner's turn is
kept."""

PATIENCE = 8.0
"""Seconds after which a site that has a mail, and does not answer, is said to hang."""

_MOST_SERVED = 64  # owners of whom is known when they had their turn

_OTHERS = "others"  # instead of an owner: it is not known whose mail it was

LONG = 24 * 60
"""Units, a day of 60 s: a trouble of so long is more than a bad hour, which a backlog may meet with
the first of it that is tried."""


class Gate:
    """The breaker and window of one route, destination or owner.

    Times are seconds of any clock that only rises.
    """

    __slots__ = (
        "_caps",
        "_full",
        "_rng",
        "_served",
        "_turns",
        "_unit",
        "at_once",
        "busy",
        "met",
        "met_by",
        "met_for",
        "opens_at",
        "replied",
        "rule",
        "since",
        "strikes",
        "struck_at",
        "suspended_until",
        "trouble_until",
        "why",
        "window",
    )

    def __init__(self, full: int, unit: float, rng: random.Random, *, caps: bool = False) -> None:
        """`full`: the width at which the gate is gone, or if it `caps`, which it never exceeds;
        `unit`: seconds, of the pauses."""
        self._full = full
        self._caps = caps
        self._unit = unit
        self._rng = rng
        self._turns: dict[Hashable, float] = {}  # owners, first first: when they come again
        self._served: dict[Hashable, int] = {}  # owners, the last last: their number
        self.window = float(full)
        self.at_once: int | None = None
        """Deliveries at once, where `window` says what is claimed; None: the same."""
        self.busy = 0
        """Deliveries that were let through and have not ended."""
        self.strikes = 0
        """Strikes in a row."""
        self.struck_at = -float("inf")
        """The instant of the first of them."""
        self.opens_at = -float("inf")
        self.suspended_until = -float("inf")
        self.trouble_until = -float("inf")
        """The instant of the last trouble, the pause that it led to included."""
        self.why = Why.NO_ROOM
        self.since = float("inf")
        """The instant from which `why` holds; infinite: it holds nothing back."""
        self.met: str | None = None
        """What the last trouble was: a phase, and the code of a reply."""
        self.replied: str | None = None
        """The same with the words of the reply, as they may be kept,"""
        self.met_by: Hashable = None
        """and the owner whose mail was replied to so; None: they are for everybody."""
        self.met_for: str | None = None
        """The domain whose mail had one suspended,"""
        self.rule: str | None = None
        """and the traffic rule by which."""

    @property
    def gone(self) -> bool:
        """Whether the gate holds nothing back and may be forgotten."""
        return (
            self.window >= self._full
            and not (self._caps and self.busy)
            and self.suspended_until == -float("inf")
        )

    @property
    def is_at_cap(self) -> bool:
        """Whether nothing but the cap holds it back."""
        return self._caps and self.since == float("inf")

    def room(self, now: float) -> int:
        """How many more may go through now."""
        if now < self.opens_at:
            return 0
        return max(int(self.window) - self.busy, 0)

    def room_for(self, owner: Hashable, now: float) -> int:
        """How many more of an owner's may go through now: what those leave whose turn it is."""
        room = self.room(now)
        if not (room and self._turns):
            return room
        gone = [one for one in self._turns if now > self._turn_lasts_until(one)]
        for one in gone:
            del self._turns[one]
        served, mine = self._served, self._served.get(owner, 0)
        ahead, came = 0, False
        for one in self._turns:
            came = came or one == owner
            if one != owner:
                other = served.get(one, 0)
                ahead += other < mine or (other == mine and not came)
        return max(room - ahead, 0)

    def allows(self, owner: Hashable, now: float) -> int | None:
        """The same; None: it is gone, so any.

        In one step, for claims ask it of each lane that has something due, one after the other.
        """
        if self.window >= self._full and self.gone:
            return None
        if now < self.opens_at or self.busy >= self.window:
            return 0
        return self.room_for(owner, now)

    def _turn_lasts_until(self, owner: Hashable) -> float:
        return max(self._turns[owner], self.opens_at + self._unit * MOMENT) + _GRACE

    @property
    def turns_change_at(self) -> float:
        """The instant at which an owner's turn is over who has not come."""
        return min(map(self._turn_lasts_until, self._turns), default=float("inf"))

    def turn_away(self, owner: Hashable, until: float) -> None:
        """An owner finds no room, and will ask again then."""
        self._turns[owner] = until

    def had_turn(self, owner: Hashable) -> None:
        """One of an owner's goes through."""
        self._turns.pop(owner, None)
        served = self._served
        last = next(reversed(served.values()), 0)
        served.pop(owner, None)
        served[owner] = last + 1
        if len(served) > _MOST_SERVED:
            del served[next(iter(served))]

    def long_shut(self, now: float) -> bool:
        """Whether nothing has gone well for `LONG`."""
        return self.strikes > 0 and now >= self.struck_at + LONG * self._unit

    def wait(self, now: float) -> float:
        """Seconds after which it is worth asking again, for one that found no room."""
        # Not all in the same instant: only a few will find room then.
        if now < self.opens_at:
            return self.opens_at - now + self._unit * MOMENT * self._rng.random()
        return min(self._unit * MOMENT, 0.25) * self._rng.random()

    def good(self) -> None:
        """A delivery went well."""
        self.strikes = 0
        self.window = min(self.window + 1.0, float(self._full))
        if self.window >= self._full:
            self.since = float("inf")

    def open(self) -> None:
        """What it stood before is well again, all at once."""
        self.strikes = 0
        self.at_once = None
        self.window = float(self._full)
        self.opens_at = -float("inf")
        self.since = float("inf")

    def suspend(
        self,
        until: float,
        replied: str,
        since: float = float("inf"),
        rule: str | None = None,
        domain: str | None = None,
    ) -> None:
        """It has asked to be left alone until then, by a reply to mail for `domain`; the `rule` by
        which that is heeded."""
        self.why, self.since, self.rule, self.met_for = Why.SUSPENDED, since, rule, domain
        self._note(replied.partition(" ")[0], replied, _OTHERS)
        self.window = 1.0
        self.suspended_until = self.opens_at = until
        self.trouble_until = max(self.trouble_until, until)

    def reopen(self) -> None:
        """End a pause that was not asked for: the next delivery probes at once."""
        self.opens_at = self.suspended_until

    def lift(self) -> None:
        """End a suspension."""
        self.suspended_until = self.opens_at = -float("inf")
        self.since = float("inf")

    def holds(self, now: float, *, claims: bool) -> bool:
        """Whether anything waits for it; `claims`: it is before what is claimed, where a first look
        at a site is no wait."""
        if claims:
            waits = self.busy > 0 or self.window < 1
            return not self.gone and waits and now >= self.since + _GRACE
        if self.why is Why.SUSPENDED and now >= self.opens_at:
            return False  # that is over
        return not (self.gone or (self.since == float("inf") and self.room(now)))

    def narrow(self, width: int, now: float, why: Why = Why.HANGING) -> None:
        """Nothing failed, but what is under way does not end: no more than `width` at once."""
        self.holds_back(why, now)
        self.window = min(self.window, float(width))
        self.trouble_until = max(self.trouble_until, now)

    def bound(self, width: int, now: float, why: Why) -> None:
        """No more than `width` at once, whatever it was before."""
        since = self.since
        self.open()
        self.since = since
        self.narrow(width, now, why)

    def holds_back(self, why: Why, since: float) -> None:
        """Note why it does, unless that is known already."""
        if self.since == float("inf") or why.is_trouble != self.why.is_trouble:
            self.since = since
            self._note(None, None)
        self.why = why

    def awaits(self, why: Why, met: str, since: float) -> None:
        """Deliveries have waited for an answer since then, at what `met` says."""
        self.holds_back(why, since)
        if met != self.met:
            self._note(met, met)

    def takes_long(self, met: str) -> None:
        """Deliveries take long, as `met` says."""
        self._note(met, met)

    def _note(self, met: str | None, replied: str | None, met_by: Hashable = None) -> None:
        self.met, self.replied, self.met_by = met, replied, met_by

    def bad(
        self,
        now: float,
        *,
        plain: bool,
        why: Why = Why.DEFERRING,
        met: str | None = None,
        replied: str | None = None,
        met_by: Hashable = None,
        strikes: bool = True,
        since: float | None = None,
    ) -> bool:
        """A delivery met trouble; `plain` trouble strikes at once.  True if this was a strike.

        `met`, `replied` and `met_by` as they are kept; `strikes`: False for what may only narrow;
        `since`: when the delivery began, None: now.
        """
        if now < self.opens_at:
            return False  # others had set out before the strike and met the same
        self.holds_back(why, now if since is None else since)
        self._note(met, replied or met, met_by)
        self.trouble_until = now
        self.window /= 2
        if not plain and (self.window >= 1 or not strikes):
            self.window = max(self.window, 1.0)
            return False
        self.window = 1.0
        if not self.strikes:
            self.struck_at = now
        self.strikes += 1
        self.opens_at = now + pause(self.strikes, self._unit, self._rng)
        self.trouble_until = self.opens_at
        return True


class Gates:
    """All gates of one node, and which lanes they stand before."""

    def __init__(self, full: int, unit: float, rng: random.Random, *, cap: int = 0) -> None:
        """`full` and `unit` as for `Gate`; `cap`: deliveries at once to a domain, 0 for any."""
        self._full = full
        self._cap = cap if 0 < cap < full else 0
        self._unit = unit
        self._rng = rng
        self._gates: dict[GateKey, Gate] = {}
        self._lanes: dict[int, tuple[Gate, Hashable, str | None]] = {}  # with owner and domain
        self._under_way: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._gates)

    def __bool__(self) -> bool:
        """Whether there is any reason to ask."""
        return bool(self._gates or self._cap)

    def find(self, key: GateKey) -> Gate | None:
        """The gate that holds this back, or None."""
        if self._cap and key.domain is not None:
            return self.make(key)
        return self._gates.get(key)

    def bound(self, route: Hashable, now: float) -> int | None:
        """Connections that the gate of a route lets through; None: there is none."""
        gate = self._gates.get(GateKey(route)) if self._gates else None
        if gate is None:
            return None
        return 0 if now < gate.opens_at else int(gate.window)

    def make(self, key: GateKey) -> Gate:
        """The gate of this, made where there is none."""
        gate = self._gates.get(key)
        if gate is None:
            caps = self._cap > 0 and key.domain is not None
            full = self._cap if caps else self._full
            gate = self._gates[key] = Gate(full, self._unit, self._rng, caps=caps)
        return gate

    def statistics(
        self, now: float, owner: Hashable = None, domain: str | None = None
    ) -> list[Standing]:
        """What holds mail back, the worst trouble first; a route and what is claimed of it as one.

        `owner`: only what holds back mail of his, None: all; `domain`: only of mail to it.
        """
        behind: dict[int, set[str]] = {}
        for gate, whose, to in self._lanes.values():
            if owner in (None, whose):
                behind.setdefault(id(gate), set()).update(() if to is None else (to,))
        found: dict[tuple[Hashable, ...], Standing] = {}
        for key, gate in self._gates.items():
            names = set(behind.get(id(gate), ()))
            if owner is None and gate.met_for is not None:
                names.add(gate.met_for)
            claims = key.is_for_claims
            whose = None if claims else key.owner
            if not gate.holds(now, claims=claims) or (
                owner is not None and id(gate) not in behind and whose != owner
            ):
                continue
            if domain is not None and domain != key.domain and domain not in names:
                continue
            standing = _standing(key, gate, now, owner, names)
            other = found.get((key.route, key.domain, whose))
            if other is not None:
                # Of a route and what is claimed of it, what has failed says more.
                names |= set(other.domains)
                worse = max(standing, other, key=lambda one: (one.strikes, -(one.window or 0)))
                held_for = worse.held_for
                if standing.why.is_trouble and other.why.is_trouble:
                    held_for = max(standing.held_for or 0.0, other.held_for or 0.0)
                standing = replace(worse, domains=tuple(sorted(names)), held_for=held_for)
            found[key.route, key.domain, whose] = standing
        return sorted(found.values(), key=_worst_first)

    def forget(self, now: float) -> None:
        """Drop the gates that are gone, or so long open that nobody seems to come any more."""
        long_ago = now - 2 * LONGEST_PAUSE * self._unit
        stale = []
        for key, gate in self._gates.items():
            if gate.suspended_until <= now:
                gate.suspended_until = -float("inf")
            if not gate.busy and (gate.trouble_until < long_ago or gate.gone):
                stale.append(key)
        dropped = {id(gate): gate for gate in map(self._gates.pop, stale)}
        gone = [
            lane for lane, (gate, _, _) in self._lanes.items() if id(gate) in dropped or gate.gone
        ]
        for lane in gone:
            del self._lanes[lane]

    def reopen(self) -> None:
        """End every pause, but what was asked for: the next delivery probes at once."""
        for gate in self._gates.values():
            gate.reopen()

    def before(
        self, lane: int, gate: Gate, owner: Hashable = None, domain: str | None = None
    ) -> None:
        """Note that mail of this lane, of an owner to a domain, met this gate last."""
        self._lanes[lane] = gate, owner, domain

    def behind(self, gates: Collection[Gate | None]) -> list[int]:
        """The lanes whose mail met one of these gates last."""
        return [lane for lane, (gate, _, _) in self._lanes.items() if gate in gates]

    def nothing_before(self, lane: int) -> None:
        """Note that mail of this lane met no gate: what it had met is not on its way any more."""
        self._lanes.pop(lane, None)

    def claimed(self, lane: int) -> None:
        """One of a lane's messages was claimed, and has not come to any gate yet."""
        self._under_way[lane] = self._under_way.get(lane, 0) + 1

    def arrived(self, lanes: Iterable[int]) -> None:
        """Messages that were claimed have come to their gates, one of each of these lanes."""
        under_way = self._under_way
        if not under_way:
            return
        for lane in lanes:
            count = under_way.pop(lane, 1) - 1
            if count:
                under_way[lane] = count

    def start_afresh(self) -> None:
        """Note that nothing is under way: the sender has started anew."""
        self._under_way.clear()

    def allowance(self, lane: int, now: float) -> int | None:
        """How many more of a lane's messages may be claimed; None: as many as you like."""
        met = self._lanes.get(lane)
        room = None if met is None else met[0].allows(met[1], now)
        if room is None:
            if not self._cap:
                return None
            room = self._cap
        return max(room - self._under_way.get(lane, 0), 0) if room else 0

    def next_opening(self, now: float) -> float | None:
        """The earliest instant after `now` at which a gate that has mail waiting opens, or lets
        others through."""
        gates = {id(gate): gate for gate, _, _ in self._lanes.values()}.values()
        instants = (at for gate in gates for at in (gate.opens_at, gate.turns_change_at))
        return _earliest(at for at in instants if now < at < float("inf"))


def _worst_first(one: Standing) -> tuple[float, int, int, str]:
    return (-one.opens_in, -one.strikes, one.window or 0, one.domain or "")


def _standing(
    key: GateKey, gate: Gate, now: float, owner: Hashable, domains: Collection[str]
) -> Standing:
    """What people are told of a gate: `owner` is told of replies to his mail alone."""
    told = owner is None or gate.met_by in (None, owner)
    reason, why = gate.replied if told else gate.met, gate.why
    if gate.is_at_cap:
        reason, why = domain_connections(int(gate.window)), Why.LIMITED
    elif why is Why.HANGING and key.is_for_claims and now < gate.since + PATIENCE:
        why = Why.NO_ROOM  # it may answer yet
    window = int(gate.window)
    return Standing(
        "default" if key.route is None else _named(key.route),
        key.domain,
        window if gate.at_once is None else min(window, gate.at_once),
        gate.busy,
        gate.strikes,
        max(gate.opens_at - now, 0.0),
        reason=reason,
        why=why,
        held_for=None if gate.since == float("inf") else max(now - gate.since, 0.0),
        rule=gate.rule,
        owner=None if key.is_for_claims else key.owner,
        domains=tuple(sorted(domains)),
        key=key.route,
    )


def _named(route: Any) -> str:
    return route if isinstance(route, str) else str(route[1])


def _earliest(instants: Iterable[float]) -> float | None:
    return min(instants, default=None)
