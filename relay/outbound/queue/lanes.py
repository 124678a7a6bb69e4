"""The book of what to claim next: priorities without starvation, owners and lanes with fair shares.

A lane is one tenant's mail to one destination domain by one route: through the relay's own
upstream, or through that of a sender; within it, each priority is a range of the index that the
claim reads.  `LaneBook` keeps the earliest due time of each, and turns "room
for 32" into "up to 11 of this lane, 20 of that".

Promises
- High goes before normal, normal before bulk; yet while a lower priority has something due, it
  gets at least one delivery in twenty.
- Owners of one priority take turns with equal shares, and so do the lanes of an owner (deficit
  round-robin, once in the other: what one was promised and did not get is kept for its next turn).
  To how many domains an owner writes makes no difference to the others.
- A lane that is not allowed anything (throttled) is not asked for, so its backlog costs nothing.
- No lane takes all the room: the last of it (`spare`) is for lanes of which little is in hand.  So
  a burst to a site that stalls leaves room for what comes for others, and several such bursts leave
  some, each less.  Where there is one lane it gets all the rest, which is no less for that.
- Nor does one owner, to however many domains: half as much again is for owners of whom little is in
  hand.  A lane's share is one of what its owner may have.
- What a survey found is forgotten only by a later survey, and a wake-up that arrives while a
  survey is under way is kept.

A message's lane is that of its route as it was when it was queued, or put back last.  Where its
sender was made, replaced or removed since, it waits in another one for its first turn: it is
delivered as it should be, what it meets holds back only its own lane (`Claimed.own_lane`), and if
it is put back it is put there.

Fails: never; asking for nothing is an empty plan.  What the book knows may be out of date (other
nodes claim and enqueue); then a claim finds less than was asked, or the next survey finds more.

Why a floor for each: rows are claimed in order of `run_at`, so below the last one claimed there
are only dead index entries, and while some old snapshot keeps those alive a scan from the very
beginning reads all of them again at each claim (measured: 21 ms against 2.4 ms).  What can turn
up below the floor (a transaction that committed late) announces itself, and each survey starts
from the beginning.

Why the row of relay.senders, and not the upstream that it names: whoever mends a sender makes a new
row of it, and its new mail waits for nothing that the old one met.  A lane costs one index probe a
survey and an entry of the book, and is there only while something is queued in it; an owner has as
many to a domain as senders with an upstream of their own, and one.  Two lanes with one number (64
bits of a hash: among a million lanes, once in 37 million cases) would take turns as one.

Why a share of what is free, and not of all: who comes next is not known, and a fixed part for each
lane would idle where there are few.  Switches share the memory of their ports so (dynamic
thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).  Pure.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import NamedTuple, TypeVar
from uuid import UUID

PRIORITIES = ("high", "normal", "bulk")
"""The priorities by name; a priority's number is its position."""
BULK = PRIORITIES.index("bulk")

GUARANTEE = 20
"""A lower priority that has something due gets at least one delivery in so many."""

_MOST_ASKS = 64  # index probes that one claim may cost
_T = TypeVar("_T")


def lane_of(owner: UUID, domain: str, sender: UUID | None = None) -> int:
    """Return the lane of `owner`'s mail to `domain` (lower case): a signed 64-bit number.

    `sender`: the `relay.senders.id` whose upstream it takes, None for the relay's own.  The first
    eight bytes of the SHA-256 of all; `relay.outbound_lane` is the same in SQL.
    """
    route = b"" if sender is None else sender.bytes
    digest = hashlib.sha256(owner.bytes + route + domain.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


Allowance = Callable[[int, str, UUID], "int | None"]
"""How many more messages a lane, to a domain, of an owner may be given now; None: any."""


class Ask(NamedTuple):
    """Claim up to `limit` of one lane and priority, none due before `floor`."""

    lane: int
    priority: int
    floor: datetime
    limit: int
    domain: str
    owner: UUID


class DueLane(NamedTuple):
    """The earliest due time of a lane and priority."""

    lane: int
    priority: int
    due_at: datetime
    domain: str
    owner: UUID


def any_high(due_lanes: Iterable[DueLane]) -> bool:
    """Whether high mail is among what is due."""
    return any(due_lane.priority == 0 for due_lane in due_lanes)


def most_for(free: int, spare: int, held: int) -> int:
    """How many more of a lane may be claimed with room for `free`, while `held` of it are in hand.

    The most of three:
    - `free - spare`: the spare room stays free, whatever the lane holds;
    - `(2 * free - held) // 3`, which is the largest x with `held + x <= 2 * (free - x)`: it then
      has at most twice in hand what stays free;
    - one, where it has nothing in hand and anything is free.

    With room for 20, of which 16 are spare: 13 where it holds none (13 <= 2 * 7), 10 where it holds
    10 (20 <= 2 * 10), 4 where it holds 28 or more.
    """
    return max(free - spare, (2 * free - held) // 3, 0 if held else min(free, 1), 0)


def spare_of_owners(spare: int) -> int:
    """Beside room that is `spare` for lanes of which little is in hand, how much is for owners."""
    return (spare + 1) // 2


class Held:
    """What is in a sender's hands: so much of each lane, and of each owner."""

    __slots__ = ("_owners", "lanes", "owners")

    def __init__(self, held: Iterable[tuple[int, UUID, int]] = ()) -> None:
        """`held`: lanes, whose they are, and how many of each."""
        self.lanes: dict[int, int] = {}
        self.owners: dict[UUID, int] = {}
        self._owners: dict[int, UUID] = {}  # of the lanes
        for lane, owner, count in held:
            self.came(lane, owner, count)

    def came(self, lane: int, owner: UUID, count: int) -> None:
        """So many more of a lane are there."""
        self._owners.setdefault(lane, owner)
        self._add(lane, count)

    def left(self, lane: int, count: int) -> None:
        """So many of a lane are there no more."""
        self._add(lane, -min(count, self.lanes.get(lane, 0)))

    def _add(self, lane: int, count: int) -> None:
        if not count:
            return
        owner = self._owners[lane]
        self.lanes[lane] = self.lanes.get(lane, 0) + count
        self.owners[owner] = self.owners.get(owner, 0) + count
        if not self.lanes[lane]:
            del self.lanes[lane], self._owners[lane]
        if not self.owners[owner]:
            del self.owners[owner]


class _Room:
    """The room that a plan fills, and what each lane and owner has of it.

    Of what is free, `capacity` may be claimed at once; `kept` is for high priority, the first of it
    out of what is beyond `capacity`.
    """

    __slots__ = (
        *("_asked", "_asked_of", "_held", "_kept", "_kept_of_capacity", "_spare"),
        *("capacity", "free"),
    )

    def __init__(self, free: int, most: int | None, kept: int, spare: int, held: Held) -> None:
        self.free = free
        self.capacity = free if most is None else min(free, most)
        self._kept = kept
        self._kept_of_capacity = max(kept - (free - self.capacity), 0)
        self._spare = spare
        self._held = held
        self._asked: dict[int, int] = {}
        self._asked_of: dict[UUID, int] = {}

    def most_of(self, owner: UUID) -> int:
        """How many more of an owner there may be."""
        held = self._held.owners.get(owner, 0) + self._asked_of.get(owner, 0)
        return most_for(self.free, spare_of_owners(self._spare), held)

    def most(self, lane: int, of_owner: int) -> int:
        """How many more of a lane there may be, of whose owner there may be so many (`most_of`)."""
        held = self._held.lanes.get(lane, 0) + self._asked.get(lane, 0)
        return most_for(of_owner, self._spare, held)

    def is_for_any_lane(self, of_owner: int) -> bool:
        """Whether `most` is something whatever a lane has in hand."""
        return of_owner > self._spare

    def leave_to_lower(self, unused: int) -> int:
        """How many the lower priorities may have of so many that high priority has not used.

        Where there are any, what is kept is free no more.  Else it still is: they get what they are
        guaranteed, of any room.
        """
        left = max(unused - self._kept_of_capacity, 0)
        if left:
            self.free -= self._kept
        return left

    def take(self, owner: UUID, lane: int, count: int) -> None:
        """A lane of an owner gets so much."""
        self.free -= count
        self._asked[lane] = self._asked.get(lane, 0) + count
        self._asked_of[owner] = self._asked_of.get(owner, 0) + count


@dataclass(slots=True)
class _Entry:
    lane: int
    priority: int
    floor: datetime
    domain: str
    woken: int  # number of the last wake-up
    deficit: int = 0  # what is left of its quantum


@dataclass(slots=True)
class _Owner:
    lanes: OrderedDict[int, _Entry]  # in the order of their turns
    deficit: int = 0  # what is left of its quantum


_May = tuple[_Entry, int | None]
"""A lane that may be asked for, and for how many; None: any."""


class _Ring:
    """The lanes of one priority that have something due, or will have, by their owners."""

    __slots__ = ("owners",)

    def __init__(self) -> None:
        self.owners: OrderedDict[UUID, _Owner] = OrderedDict()  # in the order of their turns

    def __len__(self) -> int:
        return sum(len(owner.lanes) for owner in self.owners.values())

    def __iter__(self) -> Iterator[_Entry]:
        for owner in self.owners.values():
            yield from owner.lanes.values()

    def find(self, owner: UUID, lane: int) -> _Entry | None:
        """The entry of a lane."""
        found = self.owners.get(owner)
        return None if found is None else found.lanes.get(lane)

    def add(self, due: DueLane, woken: int) -> None:
        """A lane that is not there comes last."""
        owner = self.owners.get(due.owner)
        if owner is None:
            owner = self.owners[due.owner] = _Owner(OrderedDict())
        owner.lanes[due.lane] = _Entry(due.lane, due.priority, due.due_at, due.domain, woken)

    def remove(self, owner: UUID, lane: int) -> None:
        """A lane has nothing any more."""
        lanes = self.owners[owner].lanes
        del lanes[lane]
        if not lanes:
            del self.owners[owner]

    def keep(self, found: Collection[tuple[UUID, int]], since: int) -> None:
        """Forget the lanes that are not among `found`, and were not woken since."""
        gone = [
            (key, lane)
            for key, owner in self.owners.items()
            for lane, entry in owner.lanes.items()
            if entry.woken <= since and (key, lane) not in found
        ]
        for key, lane in gone:
            self.remove(key, lane)


def _by_turns(each: Iterable[Iterator[_T]]) -> Iterator[_T]:
    """One of each, then the next of each: what many have hides nobody."""
    going = each
    more = True
    while more:
        left = []
        for one in going:
            for item in one:
                yield item
                left.append(one)
                break
        going = left
        more = bool(left)


class LaneBook:
    """What one node knows of the lanes that have something due."""

    def __init__(self) -> None:
        self._rings = tuple(_Ring() for _ in PRIORITIES)
        self._owed = [0.0] * len(PRIORITIES)
        self._wakes = 0
        self._planned_at = 0  # wake-ups that the last plan knew of

    def __len__(self) -> int:
        return sum(len(ring) for ring in self._rings)

    def mark(self) -> int:
        """A mark to be taken before a survey and given to `learn`."""
        return self._wakes

    def learn(self, due_lanes: Iterable[DueLane], since: int) -> None:
        """Take over what a survey found that began at `mark() == since`."""
        found: tuple[dict[tuple[UUID, int], DueLane], ...] = tuple({} for _ in PRIORITIES)
        for due_lane in due_lanes:
            found[due_lane.priority][due_lane.owner, due_lane.lane] = due_lane
        for ring, by_lane in zip(self._rings, found, strict=True):
            ring.keep(by_lane.keys(), since)
            for (owner, lane), due_lane in by_lane.items():
                entry = ring.find(owner, lane)
                if entry is None:
                    ring.add(due_lane, since)
                elif entry.woken > since:
                    entry.floor = min(entry.floor, due_lane.due_at)
                else:
                    entry.floor = due_lane.due_at

    def wake(self, due: DueLane) -> None:
        """Something is due (this node enqueued or deferred it)."""
        self._wakes += 1
        ring = self._rings[due.priority]
        entry = ring.find(due.owner, due.lane)
        if entry is None:
            ring.add(due, self._wakes)
        else:
            entry.floor = min(entry.floor, due.due_at)
            entry.woken = self._wakes

    def plan(
        self,
        free: int,
        at: datetime,
        allowance: Allowance | None = None,
        *,
        most: int | None = None,
        kept: int = 0,
        spare: int = 0,
        held: Held | None = None,
    ) -> list[Ask]:
        """Say what to claim with room for `free` messages, at `at` of the database's clock.

        `allowance`: of each lane.
        `most`: no more than so many in all, None: as many as there is room for.
        `kept`: so much of the room is for high priority; of it the others get what they are
        guaranteed while there is any, and nothing else.
        `spare`: so much of the room is for lanes of which little is in hand, by `most_for`, and
        `spare_of_owners` more for such owners; `held`: what is.  A sender sets aside all three.
        """
        if free < 1:
            return []
        self._planned_at = self._wakes
        room = _Room(free, most, kept, spare, held or Held())
        turns = [self._turns(self._rings[0], at, allowance, room)]
        capacity = room.capacity if turns[0] else room.leave_to_lower(room.capacity)
        if capacity < 1:
            return []
        turns += [self._turns(ring, at, allowance, room) for ring in self._rings[1:]]
        present = [priority for priority, turn in enumerate(turns) if turn]
        if not present:
            return []
        quotas = self._quotas(present, capacity)
        plan: list[Ask] = []
        for priority in present:
            asked = 0
            if quotas[priority]:
                ring = self._rings[priority]
                for ask in self._share(ring, turns[priority], quotas[priority], room):
                    asked += ask.limit
                    plan.append(ask)
            left_over = quotas[priority] - asked
            if priority == 0:
                left_over = room.leave_to_lower(left_over)
            if left_over and (below := [p for p in present if p > priority]):
                quotas[below[0]] += left_over  # destinations with a limit leave room for others
        return plan

    def took(
        self, plan: Iterable[Ask], claimed: dict[tuple[int, int], tuple[int, datetime]]
    ) -> None:
        """Record what a claim by `plan` found: (lane, priority) → how many, and the last's due_at.

        A lane that gave less than it was asked for is exhausted and forgotten until a wake-up
        or a survey speaks of it.  Several plans may be under way at once.
        """
        for ask in plan:
            count, last = claimed.get((ask.lane, ask.priority), (0, ask.floor))
            self._owed[ask.priority] = max(self._owed[ask.priority] - count, 0.0)
            ring = self._rings[ask.priority]
            entry = ring.find(ask.owner, ask.lane)
            if entry is None:
                # Another claim, under way at the same time, found the end of what it could see.
                if count >= ask.limit:
                    self.wake(DueLane(ask.lane, ask.priority, last, ask.domain, ask.owner))
                continue
            # Below the floor that was asked from: a wake-up came in while the claim was under way.
            if entry.floor < ask.floor:
                continue
            if count >= ask.limit:
                entry.floor = max(last, entry.floor)
            elif entry.woken <= self._planned_at:
                ring.remove(ask.owner, ask.lane)

    def due(self, at: datetime) -> Iterator[tuple[int, str, UUID]]:
        """Each lane, domain and owner with something due at `at`, the next in turn first.

        One of each priority and owner at a time: who looks at the first few only sees some of each.
        """
        return _by_turns(
            _by_turns(self._due(key, owner, at) for key, owner in ring.owners.items())
            for ring in self._rings
        )

    @staticmethod
    def _due(key: UUID, owner: _Owner, at: datetime) -> Iterator[tuple[int, str, UUID]]:
        due = (entry for entry in owner.lanes.values() if entry.floor <= at)
        return ((entry.lane, entry.domain, key) for entry in due)

    def next_due(self, after: datetime, rings: slice = slice(None)) -> datetime | None:
        """The earliest instant later than `after` at which something known becomes due.

        `rings`: the priorities that count, by position; all of them.
        """
        known = self._rings[rings]
        instants = [entry.floor for ring in known for entry in ring if entry.floor > after]
        return min(instants, default=None)

    def _quotas(self, present: Sequence[int], capacity: int) -> dict[int, int]:
        """How many each priority of `present` gets: the lower ones what they are guaranteed and
        were owed, the highest the rest."""
        quotas = dict.fromkeys(present, 0)
        left = capacity
        for priority in reversed(present[1:]):
            owed = min(self._owed[priority] + capacity / GUARANTEE, float(capacity))
            self._owed[priority] = owed
            quotas[priority] = min(int(owed), left)
            left -= quotas[priority]
        quotas[present[0]] = left
        return quotas

    def _turns(
        self,
        ring: _Ring,
        at: datetime,
        allowance: Allowance | None,
        room: _Room,
    ) -> dict[UUID, list[_May]]:
        """Which lanes may be asked for, by owner in turn: of each owner one, then another."""

        def lanes_of(key: UUID, owner: _Owner) -> Iterator[tuple[UUID, _May]]:
            of_owner = room.most_of(key)
            if not of_owner:
                return
            any_lane = room.is_for_any_lane(of_owner)
            for lane, entry in owner.lanes.items():
                if entry.floor <= at and (any_lane or room.most(lane, of_owner)):
                    allowed = allowance(lane, entry.domain, key) if allowance else None
                    if allowed is None or allowed > 0:
                        yield key, (entry, allowed)

        turns: dict[UUID, list[_May]] = {}
        may = _by_turns(lanes_of(key, owner) for key, owner in ring.owners.items())
        for key, turn in islice(may, _MOST_ASKS):
            turns.setdefault(key, []).append(turn)
        return turns

    def _share(
        self, ring: _Ring, turns: dict[UUID, list[_May]], quota: int, room: _Room
    ) -> list[Ask]:
        # Deficit round-robin: the quantum is one owner's part of this claim, rounded up.  Whoever
        # the room ends at keeps the rest of its quantum, and its place at the front.
        quantum = -(-quota // len(turns))
        limits = dict.fromkeys((entry.lane for lanes in turns.values() for entry, _ in lanes), 0)
        left = quota
        progress = True
        while left and progress:  # more than once only where there are limits
            progress = False
            for key, lanes in turns.items():
                if not left:
                    break
                owner = ring.owners[key]
                owner.deficit = owner.deficit or quantum
                most = min(owner.deficit, left)
                given = self._share_of(key, owner, lanes, quantum, most, limits, room)
                left -= given
                owner.deficit -= given
                progress = progress or given > 0
                if left or not owner.deficit:
                    owner.deficit = 0
                    ring.owners.move_to_end(key)
        return [
            Ask(entry.lane, entry.priority, entry.floor, limits[entry.lane], entry.domain, key)
            for key, lanes in turns.items()
            for entry, _ in lanes
            if limits[entry.lane]
        ]

    @staticmethod
    def _share_of(
        key: UUID,
        owner: _Owner,
        lanes: list[_May],
        part: int,
        most: int,
        limits: dict[int, int],
        room: _Room,
    ) -> int:
        """Share `most` among the lanes of an owner, the same way; returns how much they took.

        `part` is the owner's quantum; `limits`: what each lane has of this claim.
        """
        quantum = -(-part // len(lanes))
        of_owner = room.most_of(key)
        left = min(most, of_owner)
        taken = 0
        progress = True
        while left and progress:
            progress = False
            for entry, allowed in lanes:
                if not left:
                    break
                if not entry.deficit:
                    entry.deficit = quantum
                given = min(entry.deficit, left, room.most(entry.lane, of_owner))
                if allowed is not None:
                    given = min(given, allowed - limits[entry.lane])
                if given:
                    room.take(key, entry.lane, given)
                    limits[entry.lane] += given
                    taken += given
                    of_owner = room.most_of(key)
                    left = min(left - given, of_owner)
                    progress = True
                entry.deficit -= given
                if left or not entry.deficit:
                    entry.deficit = 0
                    owner.lanes.move_to_end(entry.lane)
        return taken
