"""The dispatch of what waits: which message is delivered next, over how many connections.

A line is what waits for one route.  A place is the right to be delivering; there are so many in
all (`RELAY_OUTBOUND__CONCURRENCY`), and a line has the width that it has earned.  A delivery that
waits for a peer of whom it is not known that he answers, or who is known to take his time, stands
aside: it has its connection, and no place, so it is in nobody's way.

| a delivery                                                   | is counted              |
|--------------------------------------------------------------|-------------------------|
| begun in a line that leads to a site and is silent           | aside, from the first   |
| begun in a line that leads to a site and is slow             | likewise, where there   |
|                                                              | is room for the slow    |
| begun in any other line                                      | among the places        |
| stalled                                                      | aside, where there is   |
|                                                              | room; else as it was    |

| the line of a site is  | from                            | until                                 |
|------------------------|---------------------------------|---------------------------------------|
| silent                 | its start; nobody answered for  | an answer, whatever it says           |
|                        | `HEARD` s, or a delivery ended  |                                       |
|                        | without any answer              |                                       |
| opened (silent, too):  | a connection was opened         | trouble with the route, or none is    |
| it may be widened      |                                 | left while it is silent               |
| stuck: no more of it   | all connections that it may     | one of them ends, or it may have more |
| is claimed             | have are stalled                |                                       |
| known, else a stranger | it has answered well            | a delivery ends without any answer    |
| slow                   | deliveries usually take longer  | they do not                           |
|                        | than `SLOW` s                   |                                       |

Promises, each with the name of what keeps it
- Order (`Line._order`): high goes before normal, normal before bulk; a lower priority that waits
  gets at least one delivery in twenty.
- Turns (`_wanted_elsewhere`): lines take turns, and so do the destinations of a line.
- Half of a line (`has_its_half`): while others wait in its line, no destination gets more than
  half of the line's connections, high mail included.
- Half until one ends (`_has_half_unproven`): a destination gets no more than half of a line before
  one of its deliveries has ended, whatever others have widened it to; anew whenever nothing of it
  was under way.
- Kept from an owner (`_kept_from_owner`, `_kept_from_owner_in_all`): no owner's deliveries that
  hang take a line or all places, whatever their priority, to however many destinations and over
  however many routes.  Who has half of them does not get the last ones, of 32:

      owner's mail is                  of a line    of a line, nobody else there    of all
      -----------------------------    ---------    ----------------------------    ------
      high, which has half of all      3            3                               2
      high, beside lower               2            1                               1
      lower                            4            3                               2

  So one place at least is for high mail of others, whatever one owner does, and another for their
  lower mail unless the owner mixes priorities.
- Hanging (`_hangs`, `_hangs_in_all`): an owner whose stalled deliveries have half of a line, or of
  all places, begins nothing more there while mail of others waits that could go, and has no more
  jobs held than it may have places (`most_of`).
- Kept from a destination (`kept_from_destination`): of a line of 32, one that has half of it
  already does not get the last four.
- Kept from a line (`_kept_from_line`): of 32 places, a line that has half of all does not get the
  last two, and the last one is for high priority alone.  So what hangs cannot take all, as long as
  it is one destination or one route.
- Widening (`_may_widen`): a line widens by one with each answer, and, where mail waits behind
  deliveries that do not end, with time: it doubles after each `STILL` seconds in which nothing
  ended.  What hangs is neither success nor failure.  Where a gate holds the route back nothing
  widens.
- Aside (`_room_aside`, `step_aside`): however many sites hang, whatever they do not answer to, they
  take no place, as long as more may stand aside.  Of the 256 that may beside 32 places
  (`most_aside`), one owner gets no more than 192 and lower mail no more than 224, which leaves 32
  for high mail; what has stalled after its line had answered takes no more than 192, and of one
  line 32.
- Slow ones (`_room_for_slow`, `_kept_from_slow`): half of those that may stand aside may be
  deliveries to slow lines.  Where there are so many, or owners have to leave room to each other,
  slow lines have half of the places, high mail three quarters, and an owner who has half of the
  former does not get the last ones, of 16 two.  So however many sites take their time, half of the
  places are for those that do not, a quarter whatever priority it has; and a slow line has no fewer
  connections for that.
- One at first (`most_silent`): a silent line has its first width only while fewer stand aside than
  there are places, and a single connection else; nothing widens it before one was opened.
- Known (`_risks_a_place`): with so many aside, a silent line that had answered when it was met last
  gets a place for a single connection: it is those whom nobody knows that wait.
- Group (`Group`): lines that lead to one receiver have no more connections together than it is
  given; what has had none gets its turn (`_wanted_in_group`).
- Right of way (`RightOfWay.held`): from when high mail is known to be due until it is delivered,
  or has waited for a site for `SLOW` seconds, nothing lower is begun, for at most `RightOfWay.MOST`
  seconds and half of the time.

Fails: never.  Not promised: where no more may stand aside, an owner whose lower mail and high mail
that hang fill the places stops the lower mail of others until their deadlines; two owners who do it
together stop their high mail, too.  Of fewer than 32 places what is kept is less: of 8 it is one,
for high or lower mail, and not for another route of the same owner.

Owners are counted over all lines, in step with places: what hangs is the owner's, and how many
routes it takes is the owner's choice.

Pure: instants are handed in; what a job is, and where a line leads, is the caller's business.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from relay.outbound.active_queue.demand import AHEAD
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.queue.lanes import GUARANTEE, PRIORITIES

FIRST_WIDTH = 4
"""Connections that a line begins with."""

_ASIDE, _MOST_ASIDE = 8, 512  # deliveries that may stand aside: for each place, and in all

HEARD = 1.0
"""Seconds for which a line that has answered counts as one that does, at least."""

SLOW = 0.25
"""Seconds beyond which a delivery to a site takes long: it waits for the peer, and for nothing that
places are counted for."""

STILL = 0.15
"""Seconds without an end of any delivery after which a line in which mail waits is widened."""

_MOST_KNOWN = 4096  # lines of which it is remembered that they have answered

_HIGH = 0
_LEAST_STALLED, _MOST_STALLED = SLOW, 10.0  # s; when one counts as stalled, whatever is usual
_USUAL = 4  # times as long as usual is stalled


class Dispatchable(Protocol):
    """What is dispatched, a job: `priority` is a position in `lanes.PRIORITIES`."""

    priority: int
    domain: str
    owner: Hashable


J = TypeVar("J", bound=Dispatchable)
W = TypeVar("W")


def kept(places: int) -> int:
    """How many of so many places one destination may not have: an eighth.

    Half of them one line may not have, and a quarter of them is for high priority alone.
    """
    return max(places // 8, 1) if places > 2 else 0


def most_aside(places: int) -> int:
    """How many deliveries may stand aside beside so many places: each has a connection."""
    return max(min(_ASIDE * places, _MOST_ASIDE), places)


def _half_of(count: int) -> int:
    return (count + 1) // 2


class Owners:
    """What each owner has in all lines together."""

    __slots__ = ("aside", "high", "places", "waiting")

    def __init__(self) -> None:
        self.aside: dict[Hashable, int] = {}
        """Deliveries that stand aside."""
        self.places: dict[Hashable, int] = {}
        self.high: dict[Hashable, int] = {}
        """Of its places, those of high mail."""
        self.waiting: dict[Hashable, int] = {}
        """Jobs that wait."""

    def others_wait(self, owner: Hashable) -> bool:
        """Whether anything of another owner waits."""
        return len(self.waiting) > (owner in self.waiting)


class Group:
    """Lines that lead to one receiver, and what they have together."""

    __slots__ = ("__weakref__", "_most", "workers")

    def __init__(self, most: Callable[[float], int | None]) -> None:
        """`most(now)`: connections that the receiver is given; None: as many as each line has."""
        self._most = most
        self.workers = 0
        """Connections that its lines have."""

    def room(self, now: float) -> float:
        """How many connections more it may have."""
        most = self._most(now)
        return math.inf if most is None else most - self.workers


class Line(Generic[J, W]):
    """What waits for one route (`way`), and how much of it is under way."""

    __slots__ = (
        "_all",
        "_busy",
        "_half",
        "_owners",
        "_passed",
        "_proven",
        "_wait_for",
        "_waiting",
        "aside",
        "coming",
        "first",
        "group",
        "heard_at",
        "is_site",
        "key",
        "longest",
        "moved_at",
        "opened",
        "ready",
        "seconds",
        "waits",
        "way",
        "width",
        "workers",
    )

    def __init__(
        self,
        key: Hashable,
        way: W,
        width: int,
        full: int,
        all_lines: Owners,
        group: Group | None = None,
        *,
        is_site: bool = False,
    ) -> None:
        self.key = key
        self.way = way
        self.group = group
        self.is_site = is_site
        """Whether it leads to an MX site, who may be dead: no place is risked for it then."""
        self.first = width
        """Connections that it begins with."""
        self.width = width
        """Connections that it may have by what it has earned."""
        self.workers = 0
        """Connections that it has, or is opening."""
        self.aside = 0
        """Of them, those of deliveries that stand aside."""
        self.heard_at = -math.inf
        """When it has answered last."""
        self.opened = False
        """Whether a connection was opened since it was silent and had none."""
        self.waits = 0
        """Jobs that wait."""
        self.coming = 0
        """Jobs that will be put in, and are being prepared."""
        self.seconds = 0.0
        """How long a delivery takes, as it was lately; 0: not known."""
        self.longest: tuple[str, float] | None = None
        """What a delivery that took long waited for most, last, and how long."""
        self.moved_at = -math.inf
        """When a delivery ended last, or the first began."""
        self.ready = False  # stands in the round
        self._waiting: tuple[OrderedDict[str, deque[J]], ...] = tuple(
            OrderedDict() for _ in PRIORITIES
        )
        self._passed = [0] * len(PRIORITIES)  # how often others went before what waits
        self._busy: dict[str, int] = {}
        self._half = _half_of(full)  # connections of a destination before it is proven, at most
        self._proven: set[str] = set()  # destinations under way of which something has ended
        self._owners: dict[Hashable, int] = {}  # connections that each has
        self._wait_for: dict[Hashable, int] = {}  # jobs of each that wait
        self._all = all_lines

    def busy(self, domain: str) -> int:
        """Connections that a destination has."""
        return self._busy.get(domain, 0)

    def held(self, owner: Hashable) -> int:
        """Jobs of an owner that have a connection or wait for one."""
        return self._owners.get(owner, 0) + self._wait_for.get(owner, 0)

    def waiting(self, domain: str) -> int:
        """Jobs that wait for a destination."""
        return sum(len(queues[domain]) for queues in self._waiting if domain in queues)

    def jobs(self, domain: str | None = None) -> Iterator[J]:
        """What waits: all of it, or what is for one destination."""
        for queues in self._waiting:
            if domain is None:
                for queue in queues.values():
                    yield from queue
            else:
                yield from queues.get(domain, ())

    @property
    def urgent(self) -> bool:
        """Whether high mail waits."""
        return bool(self._waiting[_HIGH])

    @property
    def is_slow(self) -> bool:
        """Whether it leads to a site where deliveries take long."""
        return self.is_site and self.seconds > SLOW

    @property
    def stalled_after(self) -> float:
        """Seconds after which a delivery has lasted longer than they do here."""
        return min(max(_USUAL * self.seconds, _LEAST_STALLED), _MOST_STALLED)

    def has_stalled(self, began_at: float, now: float) -> bool:
        """Whether a delivery that has not ended lasts for longer than they do here."""
        return began_at <= now - self.stalled_after

    def is_silent(self, now: float) -> bool:
        """Whether it is not known that it answers."""
        return self.is_site and now > self.heard_at + max(HEARD, self.stalled_after)

    def took(self, seconds: float) -> None:
        """A delivery was answered after so long."""
        self.seconds += (seconds - self.seconds) / 8 if self.seconds else seconds

    def _put(self, job: J, *, first: bool) -> None:
        queues = self._waiting[job.priority]
        queue = queues.get(job.domain)
        if queue is None:
            queue = queues[job.domain] = deque()
        if first:
            queue.appendleft(job)
            queues.move_to_end(job.domain, last=False)
        else:
            queue.append(job)
        owner = job.owner
        self.waits += 1
        self._wait_for[owner] = self._wait_for.get(owner, 0) + 1
        of_all = self._all.waiting
        of_all[owner] = of_all.get(owner, 0) + 1

    def _remove(self, domain: str | None, owner: Hashable) -> list[J]:
        """Take out what waits: all, what is for one destination, what is one owner's."""
        found = [job for job in self.jobs(domain) if owner is None or job.owner == owner]
        for queues in self._waiting:
            for name in list(queues) if domain is None else [domain] if domain in queues else []:
                left = () if owner is None else [job for job in queues[name] if job.owner != owner]
                if left:
                    queues[name] = deque(left)
                else:
                    del queues[name]
        for job in found:
            self._waits_no_more(job.owner)
        return found

    def _others_wait(self, domain: str) -> bool:
        """Whether anything waits for another destination."""
        for queues in self._waiting:  # noqa: SIM110 - any() costs thrice this, at each delivery
            if len(queues) > (domain in queues):
                return True
        return False

    def _others_of_owner_wait(self, owner: Hashable) -> bool:
        """Whether anything of another owner waits."""
        return len(self._wait_for) > (owner in self._wait_for)

    def _order(self) -> tuple[int, ...]:
        """The priorities in the order of their claims to the next place."""
        passed = self._passed
        if passed[2] >= GUARANTEE - 1 and self._waiting[2]:
            return (2, 0, 1)
        if passed[1] >= GUARANTEE - 1 and self._waiting[1]:
            return (1, 0, 2)
        return (0, 1, 2)

    def _has_half_unproven(self, domain: str, busy: int) -> bool:
        """Whether a destination with `busy` places gets no more before one of its has ended."""
        return busy >= self._half and domain not in self._proven

    def _pop(self, priority: int, half: int, most: float, barred: Collection[Hashable]) -> J | None:
        """Take the next job of a priority whose destination and owner may have a place.

        A destination may have `half` while others wait, and `most` in any case.
        """
        queues = self._waiting[priority]
        for domain, queue in queues.items():
            busy = self._busy.get(domain, 0)
            kept_from_destination = busy >= most
            has_its_half = busy >= half and self._others_wait(domain)
            if kept_from_destination or has_its_half or self._has_half_unproven(domain, busy):
                continue
            if not barred:
                job = queue.popleft()
            else:
                number = next((n for n, j in enumerate(queue) if j.owner not in barred), None)
                if number is None:
                    continue
                job = queue[number]
                del queue[number]
            if queue:
                queues.move_to_end(domain)
            else:
                del queues[domain]
            self._waits_no_more(job.owner)
            passed = self._passed
            passed[priority] = 0
            for lower in range(priority + 1, len(passed)):
                if self._waiting[lower]:
                    passed[lower] += 1
            return job
        return None

    # `_add` of one and of minus one, written out: each delivery comes here twice.  Held by
    # tests/outbound/active_queue/test_dispatch.py; pays in `python -m tests.bench outbound`.

    def _waits_no_more(self, owner: Hashable) -> None:
        """One job less of an owner waits."""
        self.waits -= 1
        waiting, of_all = self._wait_for, self._all.waiting
        if (left := waiting[owner] - 1) > 0:
            waiting[owner] = left
        else:
            del waiting[owner]
        if (left := of_all[owner] - 1) > 0:
            of_all[owner] = left
        else:
            del of_all[owner]

    def _enter(self, domain: str, owner: Hashable, *, high: bool, aside: bool) -> None:
        """One more delivery is for this."""
        busy, owners = self._busy, self._owners
        busy[domain] = busy.get(domain, 0) + 1
        owners[owner] = owners.get(owner, 0) + 1
        places = self._all.aside if aside else self._all.places
        places[owner] = places.get(owner, 0) + 1
        if high and not aside:
            _add(self._all.high, owner, 1)

    def _leave(self, domain: str, owner: Hashable, *, high: bool, aside: bool) -> None:
        """One delivery less is for this."""
        busy, owners = self._busy, self._owners
        places = self._all.aside if aside else self._all.places
        if (left := busy[domain] - 1) > 0:
            busy[domain] = left
        else:
            del busy[domain]
            self._proven.discard(domain)
        if (left := owners[owner] - 1) > 0:
            owners[owner] = left
        else:
            del owners[owner]
        if (left := places[owner] - 1) > 0:
            places[owner] = left
        else:
            del places[owner]
        if high and not aside:
            _add(self._all.high, owner, -1)


K = TypeVar("K", bound=Hashable)


def _add(counts: dict[K, int], key: K, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        del counts[key]


class Place(Generic[J, W]):
    """The right to be delivering: who has one may go on in its line, job after job."""

    __slots__ = ("aside", "domain", "high", "line", "owner", "slow")

    def __init__(self, line: Line[J, W], *, aside: bool = False, slow: bool = False) -> None:
        self.line = line
        self.aside = aside
        """Whether its delivery stands aside: then it is none of the places."""
        self.slow = slow
        """Whether it is one of those of slow lines."""
        self.domain: str | None = None
        """The destination that it counts for: that of the job which comes next, once known."""
        self.owner: Hashable = None
        """The owner of that job."""
        self.high = False
        """Whether that job is of high priority."""


class Dispatch(Generic[J, W]):
    """The lines of one sender and its places."""

    def __init__(
        self,
        places: int,
        full: int,
        right_of_way: RightOfWay,
        bound: Callable[[Hashable, float], int | None] = lambda _route, _now: None,
    ) -> None:
        """`places` in all, `full` of them through one line at most.

        `bound(key, now)`: connections that a gate before the route lets through; None: no gate.
        """
        self.places = places
        self.full = full
        self.workers = 0
        """Places that are taken."""
        self.aside = 0
        """Deliveries that stand aside."""
        self.most_aside = most_aside(places)
        self.slow = 0
        """Places of slow lines."""
        self.slow_aside = 0
        """Of what stands aside, that of slow lines."""
        self.lines: dict[Hashable, Line[J, W]] = {}
        self.right_of_way = right_of_way
        self._of_destination = kept(full)
        self._of_owner = kept(full)
        self._of_line = kept(places) // 2
        self._for_high = kept(places) // 4
        self._spare_in_all = min(_half_of(kept(places)), self._for_high + 1)
        # One more than of all places, so that another route of the same owner finds one.
        self._few = max(_half_of(self._of_owner), min(self._for_high + 2, self._of_owner))
        # With no more workers than these, no rule keeps anything back from who is alone.
        self._plenty = full - max(self._of_destination, self._of_owner)
        self._plenty_in_all = places - max(self._of_line, self._for_high, self._spare_in_all)
        self._aside_of_owner = self.most_aside - self.most_aside // 4
        self._aside_of_lower = self.most_aside - kept(self.most_aside)
        self._slow_aside = self.most_aside // 2
        self._slow = _half_of(places)
        self._sites = 0  # lines that lead to one
        self._known: OrderedDict[int, None] = OrderedDict()  # hashes of the keys; oldest first
        self._bound = bound
        self._round: deque[Line[J, W]] = deque()  # lines in which something waits, in turn
        self._owners = Owners()
        self._begun: dict[Place[J, W], float] = {}  # since when its job is begun; oldest first

    # Lines ----------------------------------------------------------------------------------------

    def add(
        self,
        key: Hashable,
        way: W,
        *,
        width: int = FIRST_WIDTH,
        group: Group | None = None,
        is_site: bool = False,
    ) -> Line[J, W]:
        """Make the line of a route; see `Line` for what is `is_site`."""
        width = min(width, self.full)
        line = self.lines[key] = Line(
            key, way, width, self.full, self._owners, group, is_site=is_site
        )
        self._sites += is_site
        return line

    def forget(self, key: Hashable) -> bool:
        """Drop a line, unless something of it is under way or waits."""
        line = self.lines[key]
        if line.workers or line.waits or line.coming:
            return False
        del self.lines[key]
        self._sites -= line.is_site
        return True

    def put(self, line: Line[J, W], job: J) -> None:
        """A job waits in its line."""
        line._put(job, first=False)
        self._join(line)

    def remove(
        self, line: Line[J, W], domain: str | None = None, owner: Hashable = None
    ) -> list[J]:
        """Take out what waits in a line, or of it what is for one destination or one owner's."""
        return line._remove(domain, owner)

    def in_the_way(self, owner: Hashable) -> int:
        """Jobs of an owner that have a place or wait for one, in whatever lines.

        What stands aside is not among them: it is in nobody's way.
        """
        return self._owners.places.get(owner, 0) + self._owners.waiting.get(owner, 0)

    def most_of(self, line: Line[J, W] | None, owner: Hashable, now: float) -> int | None:
        """How many jobs of an owner may be held whose stalled deliveries have half of a line.

        As many as it may have places: the rest would fill the room for what others have due.
        `line` None: in all lines, if they have half of all places, together with what waits where
        nothing else is begun.  None: as many as there are, not so many have stalled.
        """
        full = self.places if line is None else self.full
        stuck = self._stalled(owner, now, line)
        if line is None:
            stuck += self._waits_behind_stalls(owner, now)
        if 2 * stuck < full:
            return None
        return max(full - _half_of(kept(full)), 1)

    def _waits_behind_stalls(self, owner: Hashable, now: float) -> int:
        """How many of an owner's jobs wait in lines where all that is begun has stalled."""
        moving = {
            place.line
            for place, began_at in self._begun.items()
            if not place.line.has_stalled(began_at, now)
        }
        return sum(
            line._wait_for.get(owner, 0) for line in {place.line for place in self._begun} - moving
        )

    def answered_well(self, line: Line[J, W], domain: str, now: float) -> bool:
        """A peer has answered, whatever it said of a domain.  True if more may begin now."""
        if line.is_site and line.is_silent(now):
            self._get_to_know(line)
        line.moved_at = line.heard_at = now
        more = False
        if busy := line._busy.get(domain):
            more = line._has_half_unproven(domain, busy)
            line._proven.add(domain)
        if line.width >= self.full:
            return more
        line.width += 1
        return True

    def troubled(self, line: Line[J, W]) -> None:
        """The route itself has failed: it begins as a new one does."""
        line.width = min(FIRST_WIDTH, self.full)
        self.said_nothing(line)
        self._begin_anew(line)

    def said_nothing(self, line: Line[J, W]) -> None:
        """A delivery has ended without an answer: it is not known that the line answers."""
        self._known.pop(hash(line.key), None)
        line.heard_at = -math.inf

    def _get_to_know(self, line: Line[J, W]) -> None:
        """Remember that a line has answered, also when it is forgotten itself."""
        key = hash(line.key)
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def is_stranger(self, line: Line[J, W]) -> bool:
        """Whether nobody knows of a site's line that it has answered when it was met last."""
        return line.is_site and hash(line.key) not in self._known

    @staticmethod
    def opened(line: Line[J, W]) -> None:
        """A connection was opened: somebody is there, though it may be that he takes no mail."""
        line.opened = True

    @staticmethod
    def refused(line: Line[J, W], now: float) -> None:
        """A peer has answered what was not good: he is there all the same."""
        line.heard_at = now

    @staticmethod
    def _begin_anew(line: Line[J, W]) -> None:
        """It is not known that a line answers, and what was known counts no more."""
        line.heard_at = -math.inf
        line.opened = False
        if line.is_site:
            line.width = min(line.width, line.first)

    def most_silent(self, line: Line[J, W], now: float) -> int:
        """How many connections a line may have while it is silent."""
        most = self._may_have(line, line.width, now)
        return min(most, 1) if self.aside - self.slow_aside >= self.places else most

    def worth_holding(self, line: Line[J, W], now: float) -> int:
        """How many jobs of a slow line are worth holding: as many as it may have connections, and
        what these deliver within `AHEAD` seconds.

        One at least, else nobody would ask again; and fewer than there are places.
        """
        most = self._may_have(line, self.full, now)
        ahead = math.ceil(most * AHEAD / line.seconds)
        return max(min(most + ahead, self.places - 1), 1)

    def may_have(self, line: Line[J, W], now: float) -> int:
        """How many connections a line may have at most."""
        return self._may_have(line, self.full, now)

    def waiting(self) -> Iterator[Line[J, W]]:
        """The lines in which something waits."""
        return (line for line in self._round if line.waits)

    def _may_have(self, line: Line[J, W], width: int, now: float) -> int:
        """How many connections a line may have at a width: no more than the gate of its route lets
        through."""
        bound = self._bound(line.key, now)
        return min(width, self.full if bound is None else bound)

    def room_to_wait(self, priority: int = len(PRIORITIES), announced: int = 0) -> int:
        """How many more jobs may wait in slow lines: in all, half as many as there are places, and
        half as many more where they are high.

        `announced`: those that `next` has given out while the delivery before them goes on.
        """
        waits = sum(line.waits for line in self._round if line.is_slow)
        return max(self._most_slow(priority) - waits - announced, 0)

    def _most_slow(self, priority: int) -> int:
        return self._slow if priority != _HIGH else self._slow + _half_of(self._slow)

    def has_no_room(self, line: Line[J, W], job: J) -> bool:
        """Whether a job of a silent line that has no connection cannot begin: no more of them may
        stand aside."""
        if line.workers or not self._is_crowded or self._risks_a_place(line):
            return False
        if self.aside >= self._aside_of_lower:
            return not self._room_aside(job.priority)
        return self._kept_from_owner_aside(job.owner)

    @property
    def room_aside(self) -> int:
        """How many more may stand aside before owners have to leave room to each other."""
        return max(self._aside_of_owner - self.aside, 0)

    @property
    def _is_crowded(self) -> bool:
        """Whether so many stand aside that it matters whose they are."""
        return self.aside >= self._aside_of_owner

    def widen_stuck(self, line: Line[J, W], now: float) -> bool:
        """Widen a line that `is_stuck`, in which nothing waits, if that may help; True if so.

        Connections are opened, so what hangs may be single mails: others are to go past them.
        """
        if not self._may_widen_silent(line, now):
            return False
        width = self._may_have(line, 2 * line.width, now)
        wider = width > line.width
        line.width = max(width, line.width)
        return wider

    def widen(self, now: float) -> bool:
        """Widen the lines in which mail waits and nothing has ended lately; True if there were."""
        found = False
        for line in self._round:
            if self._may_widen(line, now):
                line.width = min(2 * line.width, self.full)
                line.moved_at = now
                found = True
        return found

    def step_aside(self, now: float) -> None:
        """Let what has stalled give its place to others, as far as more may stand aside."""
        latest = now - _LEAST_STALLED
        for place, began_at in self._begun.items():
            if began_at > latest:
                break  # the oldest come first
            line = place.line
            if place.aside and place.slow and line.has_stalled(began_at, now):
                # It is slow no more, it hangs: that is no reason to keep others from being slow.
                self._count(place, -1)
                place.slow = False
                self._count(place, 1)
            if (
                place.aside
                or place.domain is None
                or not line.has_stalled(began_at, now)
                or self._is_crowded
                or line.aside >= self.places
                or self._kept_from_owner_aside(place.owner)
            ):
                continue
            domain, owner, high = place.domain, place.owner, place.high
            proven = domain in line._proven
            line._leave(domain, owner, high=high, aside=False)
            line._enter(domain, owner, high=high, aside=True)
            if proven:
                line._proven.add(domain)
            self._count(place, -1)
            place.aside, place.slow = True, False
            self._count(place, 1)

    def is_stuck(self, line: Line[J, W], now: float) -> bool:
        """Whether a site's line has all the connections that it may have, and each has stalled."""
        return self.has_all(line, now) and not any(
            place.line is line and not line.has_stalled(began_at, now)
            for place, began_at in self._begun.items()
        )

    def has_all(self, line: Line[J, W], now: float) -> bool:
        """Whether a site's line has all the connections that it may have now."""
        if not line.is_site or not line.workers:
            return False
        if line.is_silent(now):
            return line.workers >= self.most_silent(line, now)
        return line.workers >= self._may_have(line, line.width, now)

    def _count(self, place: Place[J, W], by: int) -> None:
        """So many more stand aside, or have a place."""
        if place.aside:
            self.aside += by
            place.line.aside += by
            self.slow_aside += by if place.slow else 0
        else:
            self.workers += by
            self.slow += by if place.slow else 0

    def _join(self, line: Line[J, W]) -> None:
        if not line.ready:
            line.ready = True
            self._round.append(line)

    # Places ---------------------------------------------------------------------------------------

    def start(self, now: float) -> list[tuple[Place[J, W], J]]:
        """Give places to what waits, line by line in turn, high mail first, as far as they go."""
        started: list[tuple[Place[J, W], J]] = []
        if not self._round:
            return started
        if any(line.urgent for line in self._round):
            self._start(started, now, urgent=True)
        has_room = self.workers < self.places - self._for_high or self._sites
        if has_room and not self.right_of_way.held(now):
            self._start(started, now, urgent=False)
        return started

    def _start(self, started: list[tuple[Place[J, W], J]], now: float, *, urgent: bool) -> None:
        stuck = 0
        while stuck < len(self._round) and (self.workers < self.places or self._sites):
            line = self._round.popleft()
            if not line.waits:
                line.ready = False
                continue
            self._round.append(line)
            silent = line.is_silent(now) and not self._risks_a_place(line)
            if silent and not line.workers:
                self._begin_anew(line)
            slow = not silent and line.is_slow
            aside = silent or (slow and self._room_for_slow)
            job = self._pick(line, now, urgent=urgent, aside=aside)
            if job is None:
                stuck += 1
                continue
            stuck = 0
            if not line.workers:
                line.moved_at = now
            line.workers += 1
            if line.group is not None:
                line.group.workers += 1
            place = Place(line, aside=aside, slow=slow)
            self._count(place, 1)
            self.counts_for(place, job)
            self._begun[place] = now
            started.append((place, job))

    def next(self, place: Place[J, W], now: float) -> J | None:
        """The job with which a place goes on after the one in hand; None: with none.

        May be asked before the one in hand has ended: what is returned then comes next here.
        """
        line = place.line
        if not line.waits:
            return None
        job = self.more_of_the_same(place, now)
        if job is not None:
            return job
        # As if it were free already.
        line.workers -= 1
        aside, was_slow = place.aside, place.slow
        if aside or was_slow:
            self._count(place, -1)
        else:
            self.workers -= 1
        group = line.group
        if group is not None:
            group.workers -= 1
        domain, owner, high = place.domain, place.owner, place.high
        if domain is not None:
            line._leave(domain, owner, high=high, aside=aside)
        silent = aside and line.is_silent(now)
        slow = not silent and line.is_slow
        goes_aside = silent or (slow and self._room_for_slow)
        if not (
            len(self._round) > 1
            and (self._wanted_elsewhere(line, goes_aside, slow) or self._wanted_in_group(line, now))
        ):
            job = self._pick(line, now, urgent=False, aside=goes_aside)
        line.workers += 1
        if job is not None:
            place.aside, place.slow = goes_aside, slow
        if place.aside or place.slow:
            self._count(place, 1)
        else:
            self.workers += 1
        if group is not None:
            group.workers += 1
        if job is None:
            if domain is not None:
                line._enter(domain, owner, high=high, aside=aside)
        else:
            place.domain, place.owner = job.domain, job.owner
            place.high = high = job.priority == _HIGH
            line._enter(job.domain, job.owner, high=high, aside=goes_aside)
            del self._begun[place]
            self._begun[place] = now  # the last of them
        return job

    def more_of_the_same(self, place: Place[J, W], now: float) -> J | None:
        """What `next` returns, where all that waits is one owner's, of one priority, for one route.

        Then no rule has anybody to protect as long as there are `_plenty` of places.  None:
        nothing is taken, and the rules decide.  Held to them by
        tests/outbound/active_queue/test_dispatch.py; pays in `python -m tests.bench outbound`.
        """
        line, before = place.line, place.domain
        if (
            before is None
            or place.high
            or place.aside
            or line.group is not None
            or line.is_slow
            or len(self._round) != 1
            or len(line._wait_for) != 1
            or place.owner not in line._wait_for
            or line.workers > self._plenty
            or line.workers > line.width
            or self.workers > self._plenty_in_all
            or now < self.right_of_way.until
            or self._bound(line.key, now) is not None
        ):
            return None
        high, normal, bulk = line._waiting
        if high or (normal and bulk):
            return None
        queues = normal or bulk
        domain = next(iter(queues))
        busy = line._busy
        if len(queues) > 1:
            half = max(min(line.width, self.full) // 2, 1)
            if busy.get(domain, 0) - (domain == before) >= half:
                return None
        if line._has_half_unproven(domain, busy.get(domain, 0) - (domain == before)):
            return None
        queue = queues[domain]
        job = queue.popleft()
        if queue:
            queues.move_to_end(domain)
        else:
            del queues[domain]
        line._waits_no_more(job.owner)
        line._passed[job.priority] = 0
        if domain != before:
            place.domain = domain
            _add(busy, before, -1)
            _add(busy, domain, 1)
            if before not in busy:
                line._proven.discard(before)
        del self._begun[place]
        self._begun[place] = now  # the last of them
        return job

    def put_back(self, place: Place[J, W], job: J, in_hand: J | None) -> None:
        """A job that `next` gave to a place waits again, as the first.

        `in_hand`: what the place counts for now, None once its job in hand has ended.
        """
        line = place.line
        line._put(job, first=True)
        self._join(line)
        self.counts_for(place, in_hand)

    def leave(self, place: Place[J, W]) -> None:
        """A place is free."""
        self.counts_for(place, None)
        del self._begun[place]
        place.line.workers -= 1
        self._count(place, -1)
        if place.line.group is not None:
            place.line.group.workers -= 1

    def counts_for(self, place: Place[J, W], job: J | None) -> None:
        """What was taken by `next` does not come: say what the place is for instead."""
        if job is None:
            self._set(place, None, None, False)
        else:
            self._set(place, job.domain, job.owner, high=job.priority == _HIGH)

    def _set(self, place: Place[J, W], domain: str | None, owner: Hashable, high: bool) -> None:
        if place.domain is not None:
            place.line._leave(place.domain, place.owner, high=place.high, aside=place.aside)
        if domain is not None:
            place.line._enter(domain, owner, high=high, aside=place.aside)
        place.domain, place.owner, place.high = domain, owner, high

    def _stalled(self, owner: Hashable, now: float, line: Line[J, W] | None = None) -> int:
        """How many of an owner's deliveries have stalled: in one line, or of those with a place."""
        count, latest = 0, now - _LEAST_STALLED
        for place, began_at in self._begun.items():
            if began_at > latest:
                break  # the oldest come first: it costs nothing while nothing has stalled
            if place.owner == owner and (not place.aside if line is None else place.line is line):
                count += place.line.has_stalled(began_at, now)
        return count

    def _wanted_elsewhere(self, line: Line[J, W], aside: bool, slow: bool) -> bool:
        """Whether the place that is about to be free is another line's by turn.

        `aside`: it stands aside, where others have room of their own until the last; `slow`: it is
        one of the slow, who have some.
        """
        if slow and (
            self.slow_aside + 1 >= self._slow_aside if aside else self.slow + 1 >= self._slow
        ):
            return True
        if aside:
            return self.aside + 1 >= self._aside_of_lower
        if self.workers + 1 < self.places - self._for_high:
            return False
        if line.urgent:
            return any(other.urgent for other in self._round if other is not line)
        return True

    def _wanted_in_group(self, line: Line[J, W], now: float) -> bool:
        """Whether the place that is about to be free is the last that another of a group's lines
        could have, which has none."""
        group = line.group
        if group is None or group.room(now) > 1:
            return False
        return any(
            other.group is group and other.waits and not other.workers
            for other in self._round
            if other is not line
        )

    def _pick(self, line: Line[J, W], now: float, *, urgent: bool, aside: bool) -> J | None:
        """Take a job out of a line, if one may have one more place, or stand `aside`."""
        if not aside and self.workers >= self.places:
            return None
        bound = self._bound(line.key, now)
        full = self.full if bound is None else min(self.full, bound)
        silent = line.is_silent(now)
        if line.workers >= full or (
            aside and silent and line.workers >= self.most_silent(line, now)
        ):
            return None
        slow = line.is_slow and not aside and not silent  # or else a place is risked for it
        if line.group is not None and line.group.room(now) < 1:
            return None
        urgent = urgent or now < self.right_of_way.until  # as `RightOfWay.held`
        for priority in (_HIGH,) if urgent else line._order():
            if not line._waiting[priority]:
                continue
            barred = self._barred(line, full, now, priority, aside)
            if slow:
                if self.slow >= self._most_slow(priority):
                    continue
                if priority != _HIGH:
                    barred |= self._kept_from_slow()
            if barred and line._wait_for.keys() <= barred:
                continue
            if aside:
                width = line.width
                taken = not self._room_aside(priority)
            elif priority == _HIGH:
                width = line.width + kept(self.full)  # beyond the width, too: kept for it
                taken = line.workers >= width
            else:
                width = line.width
                taken = line.workers >= width or self._kept_from_line(line)
            if not taken:
                half = max(min(width, full) // 2, 1)
                last_ones = line.workers >= self.full - self._of_destination
                most = _half_of(self.full) if last_ones else math.inf
                job = line._pop(priority, half, most, barred)
                if job is not None:
                    return job
        return None

    def _barred(
        self, line: Line[J, W], full: int, now: float, priority: int, aside: bool
    ) -> set[Hashable]:
        """The owners who get no more of a line's connections for mail of a priority now."""
        barred: set[Hashable] = set()
        if 2 * line.workers >= full:
            for owner, busy in line._owners.items():
                if 2 * busy >= full and (
                    self._kept_from_owner(line, owner, full, priority)
                    or self._hangs(line, owner, full, now)
                ):
                    barred.add(owner)
        if aside:
            if self._is_crowded:
                barred.update(filter(self._kept_from_owner_aside, self._owners.aside))
        elif self._owner_matters_in_all():
            barred.update(
                owner
                for owner, busy in self._owners.places.items()
                if 2 * busy >= self.places
                and (
                    self._kept_from_owner_in_all(owner, priority) or self._hangs_in_all(owner, now)
                )
            )
        return barred

    def _owner_matters_in_all(self) -> bool:
        """Whether one owner has half of all places, and others could be in need of one.

        Asked for every delivery, so what costs least comes first.
        """
        if 2 * self.workers < self.places:
            return False
        owners = self._owners
        if self.workers < self.places - self._spare_in_all and len(owners.waiting) <= 1:
            return False
        return 2 * max(owners.places.values(), default=0) >= self.places

    # The rules, by the names that they have above -------------------------------------------------

    def _kept_from_owner(self, line: Line[J, W], owner: Hashable, full: int, priority: int) -> bool:
        if full < self.full:
            return False  # a gate is narrower than that already
        alone = len(line._owners) == 1 and not line._others_of_owner_wait(owner)
        if priority != _HIGH:
            spare = self._few if alone else self._of_owner
        elif self._high_has_half(owner):
            spare = self._few
        else:
            spare = _half_of(_half_of(self._of_owner) if alone else self._of_owner)
        return line.workers >= full - spare

    def _kept_from_owner_in_all(self, owner: Hashable, priority: int) -> bool:
        spare = self._spare_in_all
        if priority == _HIGH and not self._high_has_half(owner):
            spare = _half_of(spare)
        return self.workers >= self.places - spare

    def _high_has_half(self, owner: Hashable) -> bool:
        return 2 * self._owners.high.get(owner, 0) >= self.places

    def _hangs(self, line: Line[J, W], owner: Hashable, full: int, now: float) -> bool:
        return line._others_of_owner_wait(owner) and 2 * self._stalled(owner, now, line) >= full

    def _hangs_in_all(self, owner: Hashable, now: float) -> bool:
        if not self._owners.others_wait(owner) or 2 * self._stalled(owner, now) < self.places:
            return False
        return any(self._could_begin_of_others(line, owner, now) for line in self._round)

    def _could_begin_of_others(self, line: Line[J, W], owner: Hashable, now: float) -> bool:
        bound = self._bound(line.key, now)
        width = line.width if bound is None else min(line.width, bound)
        return line.waits > line._wait_for.get(owner, 0) and line.workers < width

    def _room_aside(self, priority: int) -> bool:
        return self.aside < (self.most_aside if priority == _HIGH else self._aside_of_lower)

    @property
    def _room_for_slow(self) -> bool:
        return self.slow_aside < self._slow_aside and not self._is_crowded

    def _kept_from_slow(self) -> set[Hashable]:
        spare = kept(self._slow)
        if self.slow < self._slow - spare:
            return set()
        owners = Counter(place.owner for place in self._begun if place.slow and not place.aside)
        return {owner for owner, count in owners.items() if 2 * count >= self._slow}

    def _risks_a_place(self, line: Line[J, W]) -> bool:
        return self._is_crowded and not line.workers and hash(line.key) in self._known

    def _kept_from_owner_aside(self, owner: Hashable) -> bool:
        return 2 * self._owners.aside.get(owner, 0) >= self.most_aside

    def _kept_from_line(self, line: Line[J, W]) -> bool:
        spare = self._of_line if 2 * line.workers >= self.places else self._for_high
        return self.workers >= self.places - spare

    def _may_widen_silent(self, line: Line[J, W], now: float) -> bool:
        if not line.is_silent(now):
            return True
        return line.opened and self.aside - self.slow_aside < self.places

    def _may_widen(self, line: Line[J, W], now: float) -> bool:
        return (
            line.waits > 0
            and line.workers > 0
            and line.width < self.full
            and now >= line.moved_at + STILL
            and self._may_widen_silent(line, now)
            and self._bound(line.key, now) is None
        )
