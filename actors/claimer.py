"""The claimer: leases what is due, as much as the sender has room for and no more.

Demand flows backwards: the sender says `Credit`, the claimer claims at most that much and hands it
on as one `Deliver`.  A claim that was filled to the brim is followed by the next at once, but
messages are read in between.  Part of the room is kept for high priority, so that what a backlog of
other mail has taken is never in the way of a one-time code; and part of it for destinations of
which little is in hand, so that neither is what has gone to one that stalls.

It looks again when something says so: a notification (another node, or `relay.send` in somebody's
transaction), a `Due` message (this node queued or deferred something), the next due time known,
the opening of a gate, and a sweep every few seconds with jitter, whatever happens.

Promises
- A claim is committed before its messages are handed on, and no connection to the database is
  held while they are delivered.
- Nothing is claimed without room, so nothing is leased that would lie about.
- What the sender has not read after a third of its lease (it is paused, or down) is taken back:
  due again at once, neither counted as an attempt nor lost, also while the claimer is paused.
  Nothing more is claimed then until the sender reads again.
- Mail of a lane whose destination is in trouble is claimed only as its gate allows, and mail
  whose route or domain has a rate only as that allows, all nodes together.

Fails: never on an outage of the database; the next sweep finds the same rows.  A claim whose answer
was lost is given back as soon as the database answers, and so is what nobody has read when the
claimer ends; one that a sender had read that died is a lease that runs out: due again, counted.
Leases that ran out while the database was away are spared for a moment: who has them tells first.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import trio
from prometheus_client import Counter, Histogram

from actors.messages import Claiming, Credit, Deliver, Due, NothingHigh, SweepNow, Wake
from actors.periodic import wait_for_messages
from relay.chance import new_rng
from relay.errors import DatabaseUnavailable
from relay.jitter import jittered
from relay.log import get_logger
from relay.metrics import registry
from relay.outage import Outage
from relay.outbound.pacing.gates import Gates
from relay.outbound.pacing.meter import Meter
from relay.outbound.pacing.shared_rates import SharedRates, domain_key, route_key
from relay.outbound.queue.announcer import Announcer
from relay.outbound.queue.claimed import Batch, Claimed
from relay.outbound.queue.enqueue import FLUSH, HIGH
from relay.outbound.queue.lanes import Allowance, Held, LaneBook, any_high
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue
from relay.outbound.routing.senders import DIRECT, LOOP
from relay.outbound.shaping.traffic import Traffic
from supervisor import Context, Drained, Mailbox

log = get_logger()

_MOST = 500  # messages a claim; more only makes its transaction long
_ANNOUNCE_EVERY = 0.03  # s
_HIGH = slice(1)  # of the priorities
_NEAR = timedelta(seconds=0.2)
_SETTLES = 1.0  # s; until the pool hands out the same connection again and again
_REST = 3  # a survey is followed by so many times its duration without one
_SHORT_REST = 1  # the same where high mail was announced

_CLAIMED = Counter("relay_outbound_claimed", "Messages leased.", registry=registry)
_LOST = Counter(
    "relay_outbound_lost_leases", "Leases of vanished workers that were found.", registry=registry
)
_QUARANTINED = Counter(
    "relay_outbound_quarantined", "Messages set aside after lost leases.", registry=registry
)
_PUT_BACK = Counter(
    "relay_outbound_over_rate", "Messages claimed beyond a rate and put back.", registry=registry
)
_SUPPRESSED = Counter(
    "relay_outbound_suppressed", "Messages cancelled at their turn.", registry=registry
)
_EXPIRED = Counter(
    "relay_outbound_expired",
    "Messages cancelled for their deadline, or their token's.",
    registry=registry,
)
_BATCH = Histogram(
    "relay_outbound_claim_rows",
    "Messages a claim.",
    buckets=(0, 1, 4, 16, 32, 64, 128, 256, 512, math.inf),
    registry=registry,
)
_SECONDS = Histogram(
    "relay_outbound_claim_seconds",
    "Duration of a claim.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, math.inf),
    registry=registry,
)


async def run(
    ctx: Context,
    *,
    queue: Queue,
    sender: Mailbox[Any],
    gates: Gates,
    rates: SharedRates | None = None,
    traffic: Traffic | None = None,
    upstream: str = LOOP,
    announce: Callable[[str], Any] | None = None,
    sweep_every: float = 4.0,
    rng: random.Random | None = None,
) -> None:
    """Claim until drained.

    `sender`: the mailbox that `Deliver` and `Claiming` go to; `rates`: None for no limits at all;
    `traffic`: whose rates direct delivery falls under; `upstream`: the URL, without credentials, of
    the route of mail without a sender of its own; `announce`: tells other nodes that something is
    due, high mail where it is given `HIGH` (an async function); `sweep_every`: seconds, a quarter
    more or less.
    """
    rng = rng or new_rng()
    announcer = None if announce is None else Announcer(announce, linger=_ANNOUNCE_EVERY)
    claimer = _Claimer(
        *(ctx, queue, sender, gates, rates, traffic or Traffic()),
        *(upstream, announcer, sweep_every, rng),
    )
    await sender.send(Claiming())
    ctx.ready()
    async with trio.open_nursery() as nursery:
        if announcer is not None:
            nursery.start_soon(announcer.run)
        nursery.start_soon(claimer.take_back)
        try:
            await claimer.take_turns()
        except Drained:
            nursery.cancel_scope.cancel()
        finally:
            claimer.withdraw(math.inf)  # nobody else would
    with contextlib.suppress(DatabaseUnavailable):  # they are lost leases then
        await queue.recover()


class _Claimer:
    def __init__(
        self,
        ctx: Context,
        queue: Queue,
        sender: Mailbox[Any],
        gates: Gates,
        rates: SharedRates | None,
        traffic: Traffic,
        upstream: str,
        announcer: Announcer | None,
        sweep_every: float,
        rng: random.Random,
    ) -> None:
        self._ctx = ctx
        self._queue = queue
        self._sender = sender
        self._gates = gates
        self._rates = rates
        self._traffic = traffic
        self._upstream = upstream
        self._announcer = announcer
        self._limited = rates is not None  # until the first sweep says otherwise
        self._shared = () if rates is None else rates.shared
        self._meter = Meter()
        self._routes: dict[
            int, tuple[str, ...]
        ] = {}  # keys of the way that a lane's mail took last
        self._sweep_every = sweep_every
        self._rng = rng
        self._outage = Outage(longest=1.0, rng=rng)
        self._unread: deque[Deliver] = deque()  # oldest first; some have been read
        self._handed_over = trio.lowlevel.ParkingLot()
        self._book = LaneBook()
        self._room = 0
        self._kept = 0  # of the room, for high priority, and as much for lanes that hold little
        self._held = Held()  # what is in the sender's hands
        self._high_due = False  # somebody said so, and what was claimed since had none
        self._look = True  # a survey is wanted
        self._recover = True  # what an incarnation before this one claimed in vain, too
        self._warm_up_at = trio.current_time() + _SETTLES
        self._survey_ended_at = -math.inf
        self._survey_took = 0.0
        self._sweep_at = -math.inf
        self._clock_at = trio.current_time()
        self._clock: datetime | None = None
        self._due_at: datetime | None = None  # the earliest known of what is due later

    # Messages ------------------------------------------------------------------------------------

    async def take_turns(self) -> None:
        """Wait for a reason, look, claim; until drained."""
        seconds = 0.0
        while True:
            if self._ctx.inbox.statistics().depth:
                seconds = 1.0  # none of it: messages are there, and are read before more is claimed
            for message in await wait_for_messages(self._ctx, seconds):
                self._read(message)
            try:
                seconds = await self._turn()
            except DatabaseUnavailable as error:
                if not self._outage.is_on:
                    log.warning("claimer.waits_for_database", reason=str(error))
                self._look = True
                self._recover = True
                self._warm_up_at = trio.current_time() + _SETTLES
                seconds = self._outage.lost()
            else:
                if self._outage.over():
                    log.info("claimer.database_back")

    def _read(self, message: Any) -> None:
        match message:
            case Credit(count, fresh, kept, left, held):
                if kept is not None:
                    self._kept = kept
                if fresh:
                    self._room, self._held = count, Held(held)
                    self._gates.start_afresh()
                else:
                    self._room += count
                    for lane, gone in left:
                        self._held.left(lane, gone)
            case Due(due_lanes, announce):
                self._look = self._look or not due_lanes
                for due_lane in due_lanes:
                    self._book.wake(due_lane)
                high = any_high(due_lanes)
                self._high_due = self._high_due or high
                if announce and self._announcer is not None:
                    self._announcer.soon(high=high)
            case Wake(reason=reason):
                self._look = True
                self._high_due = self._high_due or reason == HIGH
                if reason == FLUSH:
                    self._gates.reopen()
            case SweepNow():
                self._sweep_at = -math.inf

    # Looking and claiming -------------------------------------------------------------------------

    async def _turn(self) -> float:
        """Sweep, recover, survey, claim, each if there is a reason; seconds until the next turn."""
        now = trio.current_time()
        if self._outage.is_on and (spared := await self._queue.spare()):
            log.info("outbound.leases_spared", messages=spared)
        if now >= self._sweep_at:
            await self._sweep(now)
        if self._recover:
            await self._recover_lost()
        self._notice_what_came_due()
        if self._look and self._room <= 0:
            await self._nothing_high()
            return self._sweep_at - now  # `Credit` will come first
        if self._look and now >= self._rests_until:
            await self._survey()
        looked_at = trio.current_time()
        if await self._claim_if_may():
            return 0.0  # there may be more; but messages first, which may be of higher priority
        if now >= self._warm_up_at:
            self._warm_up_at = math.inf
            await self._queue.warm_up()  # else the first message would wait for that
            return 0.0
        if not self._high_is_near(looked_at):
            await self._nothing_high()
        return self._until_next_turn(looked_at)

    async def _sweep(self, now: float) -> None:
        """Do what is done by the clock, and have a look whatever was announced."""
        self._look = True
        self._sweep_at = now + jittered(self._sweep_every, self._rng)
        self._recover = True
        if expired := await self._queue.expire():
            _EXPIRED.inc(expired)
            log.info("outbound.expired", messages=expired)
        if self._rates is not None:
            self._limited = await self._rates.limited()

    async def _recover_lost(self) -> None:
        """Give back what was claimed with an answer that never came."""
        recovered = await self._queue.recover()
        self._recover = False
        if recovered:
            log.warning("claimer.recovered", messages=len(recovered), ids=_some(recovered))

    def _notice_what_came_due(self) -> None:
        """What was due later is a reason to look when it is due.

        What said so had another clock, or was early by the length of a commit: asked for too soon,
        the lane would be taken for empty.
        """
        at = self._now()
        if at is not None and self._due_at is not None and at >= self._due_at:
            self._look = True
            self._due_at = None

    async def _claim_if_may(self) -> bool:
        """Claim once; False if there was no room, no leave or nothing to ask for."""
        if self._room <= 0 or self._ctx.paused or self._ctx.draining.is_set():
            return False
        at = self._now()
        return at is not None and await self._claim(at)

    async def _claim(self, at: datetime) -> bool:
        """Claim once and hand it on; False if there was nothing to ask for."""
        if self._limited:
            await self._lease(at)
        plan = self._book.plan(
            self._room,
            at,
            self._allowance(),
            most=_MOST,
            kept=self._kept,
            spare=self._kept,
            held=self._held,
        )
        if not plan:
            return False
        began = trio.current_time()
        batch = await self._queue.claim(plan)
        _SECONDS.observe(trio.current_time() - began)
        self._book.took(plan, batch.claimed)
        # Who vanished had more, whose leases run out one after the other.
        self._look = self._look or bool(batch.lost)
        self._count(batch)
        if self._limited:
            try:
                await self._put_back(batch)
            except DatabaseUnavailable:
                self._queue.disown(batch)
                raise
        if batch.messages:
            self._room -= len(batch.messages)
            owners = {message.lane: message.owner for message in batch.messages}
            for lane, count in Counts(message.lane for message in batch.messages).items():
                self._held.came(lane, owners[lane], count)
            if self._gates:
                for message in batch.messages:
                    self._gates.claimed(message.lane)
            if 0 in [message.priority for message in batch.messages]:
                self._high_due = False  # the sender sees that it has come
            await self._hand_over(batch)
        return True

    def _high_is_near(self, looked_at: float) -> bool:
        """Whether high mail is due within a moment, or became so since the last look.

        What has just been queued mostly is: the database's clock is known to within a round trip.
        """
        at = self._now()
        if at is None or not self._high_due:
            return False
        due_at = self._book.next_due(self._instant(looked_at), _HIGH)
        return due_at is not None and due_at <= at + _NEAR

    async def _nothing_high(self) -> None:
        """High mail that was announced is not here, or may not go: nobody has to wait for it."""
        if self._high_due:
            self._high_due = False
            await self._sender.send(NothingHigh())

    def _allowance(self) -> Allowance | None:
        """How much of a lane its gate and its rates let through; None: nothing is limited."""
        if not self._gates and not self._limited:
            return None
        now = trio.current_time()

        def allowance(lane: int, domain: str, owner: UUID) -> int | None:
            by_gate = self._gates.allowance(lane, now)
            if not self._limited or by_gate == 0:
                return by_gate
            keys = self._keys(lane, domain)
            by_rate = self._meter.share(keys, owner)
            if by_rate == 0:
                self._note_limit(keys, owner, domain, now)
            if by_gate is None or by_rate is None:
                return by_rate if by_gate is None else by_gate
            return min(by_gate, by_rate)

        return allowance

    def _note_limit(self, keys: tuple[str, ...], owner: UUID, domain: str, now: float) -> None:
        """Note what rate holds back a lane, if any has nothing left."""
        short = self._meter.short(keys)
        if short is not None:
            self._traffic.reached(short, owner.int, domain, now)

    # Handing over ---------------------------------------------------------------------------------

    async def _hand_over(self, batch: Batch) -> None:
        deliver = Deliver(batch, self._epoch)
        while self._unread and self._unread[0].reply.settled:
            self._unread.popleft()
        self._unread.append(deliver)
        self._handed_over.unpark()
        await self._sender.send(deliver)

    async def take_back(self) -> None:
        """Take back what the sender has not read after a third of its lease.

        A task of its own: who pauses both actors pauses the turns, but no lease.
        """
        outage = Outage(longest=1.0, rng=self._rng)
        while True:
            while not self._unread:
                await self._handed_over.park()
            await trio.sleep_until(self._to_be_read_by(self._unread[0]))
            wanted = self.withdraw(trio.current_time())
            while wanted:
                try:
                    await self._recover_lost()
                except DatabaseUnavailable:
                    await trio.sleep(outage.lost())
                else:
                    wanted = False
                    outage.over()

    def withdraw(self, now: float) -> bool:
        """Disown what should have been read by now and was not; True if there was any."""
        found = False
        while self._unread:
            deliver = self._unread[0]
            if not deliver.reply.settled and now < self._to_be_read_by(deliver):
                break
            self._unread.popleft()
            deliver.reply.settle(False)
            if deliver.reply.result():
                continue
            found = True
            self._queue.disown(deliver.batch)
            self._room = 0  # the sender grants it anew when it finds what was withdrawn
            self._look = True
            high = any(not message.priority for message in deliver.batch.messages)
            self._high_due = self._high_due or high
            log.warning("claimer.took_back", messages=len(deliver.batch.messages))
            if self._announcer is not None:
                self._announcer.soon(high=high)  # another node may send it
        return found

    def _to_be_read_by(self, deliver: Deliver) -> float:
        return deliver.batch.leased_until - self._queue.lease_timeout * 2 / 3

    # Rates ----------------------------------------------------------------------------------------

    def _keys(self, lane: int, domain: str) -> tuple[str, ...]:
        """The rates that a lane falls under, as far as is known before its mail was seen."""
        return (*self._shared, domain_key(domain), *self._routes.get(lane, ()))

    async def _lease(self, at: datetime) -> None:
        """Lease what the lanes that are due need, so that they may be shared out."""
        now = trio.current_time()
        wants = self._meter.survey(self._keys_due(at, now), now)
        if wants:
            await self._ask(wants, now)
            self._meter.survey(self._keys_due(at, now), now)

    def _keys_due(self, at: datetime, now: float) -> Iterator[tuple[tuple[str, ...], UUID]]:
        """The keys and the owner of each lane that is due and that no gate holds back.

        The meter looks at so many of them and no further, so those that cannot be claimed from
        must not take the places of those that can.
        """
        for lane, domain, owner in self._book.due(at):
            if self._gates.allowance(lane, now) != 0:
                yield self._keys(lane, domain), owner

    async def _ask(self, wants: Mapping[str, int], now: float) -> None:
        assert self._rates is not None  # else nothing is limited
        grants = await self._rates.lease(wants, self._meter.unspent(wants))
        self._meter.leased(wants, grants, now)

    async def _put_back(self, batch: Batch) -> None:
        """Keep of what was claimed what the rates allow; the rest waits until they do.

        A lane's share is reckoned with the route that its mail took last; what takes another one,
        or one that was not known, can be too much.
        """
        now = trio.current_time()
        keyed = [(message, self._keys_of(message)) for message in batch.messages]
        unknown = {key for _, keys in keyed for key in keys if self._meter.unknown((key,))}
        if unknown:
            await self._ask(dict.fromkeys(unknown, len(keyed)), now)
        kept: list[Claimed] = []
        over: list[Settled] = []
        for message, keys in keyed:
            # One whose lease was lost may be in the sender's hands still: it must hear of this.
            if message.lost or self._meter.room(keys):
                self._meter.spend(keys)
                kept.append(message)
                continue
            wait = max(self._meter.wait(keys, now), 0.05)
            over.append(Settled(message.id, message.fence, Cause.RELEASED, delay=wait))
            self._note_limit(keys, message.owner, message.domain, now)
            due_at = self._instant(now + wait)
            self._book.wake(message.due_lane(due_at))
        if over:
            batch.messages[:] = kept
            _PUT_BACK.inc(len(over))
            with contextlib.suppress(DatabaseUnavailable):  # they are lost leases then
                await self._queue.finalise(over)

    def _keys_of(self, message: Claimed) -> tuple[str, ...]:
        upstream = message.upstream or self._upstream
        way: tuple[str, ...] = (route_key(upstream),)
        if upstream != LOOP:
            direct = upstream == DIRECT
            way += self._traffic.keys(message.domain, message.sender, direct=direct)
        self._routes[message.lane] = way
        return (*self._shared, domain_key(message.domain), *way)

    async def _survey(self) -> None:
        self._look = False
        mark = self._book.mark()
        began = trio.current_time()
        due_lanes, at = await self._queue.survey()
        self._clock_at = trio.current_time()
        self._clock = at
        self._survey_ended_at, self._survey_took = self._clock_at, self._clock_at - began
        self._book.learn(due_lanes, mark)
        if self._limited:
            await self._give_back_idle()
            self._meter.forget(self._clock_at)
            known = {due_lane.lane for due_lane in due_lanes}
            self._routes = {lane: key for lane, key in self._routes.items() if lane in known}

    async def _give_back_idle(self) -> None:
        """Give back what was leased of rates and is needed no more: other nodes may need it."""
        idle = self._meter.idle(trio.current_time())
        if idle and self._rates is not None:
            with contextlib.suppress(DatabaseUnavailable):  # it is lost then
                await self._rates.give_back(idle)

    @property
    def _rests_until(self) -> float:
        """No survey before."""
        rest = _SHORT_REST if self._high_due else _REST
        return self._survey_ended_at + rest * self._survey_took

    def _until_next_turn(self, looked_at: float) -> float:
        """Seconds until something is to be done that was not when it last looked.

        Reckoned from that look, and not from now: what fell due in between was not claimed.
        """
        now = trio.current_time()
        instants = [self._sweep_at, self._warm_up_at]
        if self._room > 0:
            if self._look:
                instants.append(self._rests_until)
            at = self._now()
            if at is not None:
                self._due_at = self._next_due(self._instant(looked_at))
                if self._due_at is not None:
                    instants.append(now + (self._due_at - at).total_seconds())
            opening = self._gates.next_opening(looked_at)
            if opening is not None:
                instants.append(opening)
            if self._limited and self._meter.next_at is not None:
                instants.append(self._meter.next_at)
        return max(min(instants) - now, 0.0)

    def _next_due(self, after: datetime) -> datetime | None:
        """The earliest known of what is due later.

        What was known before stands: the lane may have been asked for too soon meanwhile, or for
        something else, and have been taken for empty.
        """
        known = self._due_at
        found = self._book.next_due(after)
        if known is None or known <= after:
            return found
        return known if found is None else min(known, found)

    def _now(self) -> datetime | None:
        """The database's clock, as far as it is known."""
        return None if self._clock is None else self._instant(trio.current_time())

    def _instant(self, at: float) -> datetime:
        """An instant of Trio's clock on the database's."""
        assert self._clock is not None  # nothing is claimed before the first survey
        return self._clock + timedelta(seconds=at - self._clock_at)

    @property
    def _epoch(self) -> float:
        return self._instant(0.0).timestamp()

    def _count(self, batch: Batch) -> None:
        _BATCH.observe(len(batch.messages))
        _CLAIMED.inc(len(batch.messages))
        if batch.lost:
            _LOST.inc(len(batch.lost))
            log.warning("outbound.lease_lost", messages=len(batch.lost), ids=_some(batch.lost))
        if batch.quarantined:
            _QUARANTINED.inc(len(batch.quarantined))
            log.error(
                "outbound.quarantined",
                messages=len(batch.quarantined),
                ids=_some(batch.quarantined),
            )
        if batch.suppressed:
            _SUPPRESSED.inc(len(batch.suppressed))
            log.info("outbound.suppressed", messages=len(batch.suppressed))
        if batch.expired:
            _EXPIRED.inc(len(batch.expired))
            log.info("outbound.expired", messages=len(batch.expired), ids=_some(batch.expired))


def _some(ids: list[Any]) -> list[str]:
    return [str(each) for each in ids[:20]]
