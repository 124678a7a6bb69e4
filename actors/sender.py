"""The sender: delivers what was claimed, and has it recorded.

`Deliver` messages bring what the claimer has leased.  Each comes into custody and waits in the line
of its route, workers take it from there, and what became of it goes to the finaliser; only what
that has recorded makes room for more.  The parts are `relay.outbound`'s: `custody`, `dispatch`,
`gatekeeper`, `workers`, `finaliser`, `demand`, and `signer`, whose processes run here.  Here they
are put together, given their turns, and brought to an end.

Promises
- Every tick grants room, looks for stalls, renews leases and closes idle connections.
- While it is paused it grants nothing and takes its room back, so that other nodes get the mail and
  no lease lies unread; what it has begun or holds goes on.
- A batch is acted on once, by whoever answered its `Deliver` first: never by the sender once the
  claimer has taken it back.
- What is held is renewed before its lease is over; where that cannot be, its delivery is broken off
  unless the message itself is on the wire.
- What this node claims anew while it still delivers it, or has a report of it that an outage keeps
  from being recorded, is not begun a second time: the new lease goes to the delivery that there is.
- One message's failure is no other's.  A route that cannot be used defers what it was tried with,
  and is left alone for a while; a destination that answers 421 or 4xx is slowed by itself, unless
  what it refused is one mailbox.
- A delivery that hangs holds up nobody:
  * what was announced behind it is given to another;
  * it stands aside, in the way of nothing that is begun or claimed, as far as there is room;
  * its line widens;
  * a destination that fills the lines with such is narrowed to half of the places;
  * an owner who does, to whatever destinations and over whatever routes, is narrowed to what leaves
    room to claim the mail of others.
- High mail does not wait behind what was claimed before it.
- What is stored or logged of a peer's words is redacted.

Fails: an outage of the database is waited out with the reports in hand.  When cancelled, it has
`GRACE` seconds to record what is known; what is unknown then is a lost lease:

| the relay dies …                | the message                                           |
|---------------------------------|-------------------------------------------------------|
| before the final dot            | is due again when the lease ends; no copy went out    |
| after the dot, before a commit  | the same, and a copy may have gone out: counted, `lost` |
| after the commit                | is finished                                           |
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio
from prometheus_client import Gauge

from actors.accepting import hand_over
from actors.messages import Accept, Claiming, Credit, Deliver, Due, NothingHigh
from relay.accepted import Accepted
from relay.chance import new_rng
from relay.crypto import Vault
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.mailboxes.capture import Capture
from relay.metrics import registry
from relay.outbound.active_queue.custody import Custody
from relay.outbound.active_queue.demand import Demand
from relay.outbound.active_queue.dispatch import Dispatch
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.delivery.gatekeeper import Gatekeeper
from relay.outbound.delivery.loopback import Loopback
from relay.outbound.delivery.workers import ReportField, Way, Workers
from relay.outbound.mx.dane import DanePolicies
from relay.outbound.mx.direct import Direct
from relay.outbound.mx.policy import Policy
from relay.outbound.mx.tls_results import TlsResults
from relay.outbound.pacing.backoff import Schedule
from relay.outbound.pacing.gates import Gates
from relay.outbound.queue.claimed import Batch
from relay.outbound.queue.finaliser import Finaliser
from relay.outbound.queue.lanes import DueLane
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.settler import Settler
from relay.outbound.queue.store import Queue
from relay.outbound.routing.routes import Routes
from relay.outbound.routing.senders import DIRECT, Upstream, any_direct
from relay.outbound.shaping.keeper import ShapingKeeper
from relay.outbound.shaping.store import ShapingStore
from relay.outbound.shaping.traffic import Traffic
from relay.outbound.signing.signer import Signer
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.returns.paths import ReturnPaths
from relay.smtp.connection import Deadlines
from relay.storage import AMPLE, Space
from supervisor import Context, Drained, Mailbox

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver

log = get_logger()

GRACE = 4.0
"""Seconds to record reports in when the sender is cancelled, or drained during an outage."""

LONG_REST = 5.0
"""Seconds between two looks around while nothing comes."""
_TICK = 0.1  # s; how often room is granted anew
_FIRST_TICK = 0.02  # s; the same from when there was nothing: how fast mail goes is soon known
_FIRST_TICKS = 5
_RESTING_TICK = 0.5  # s; the same once nothing is under way
_IDLE_TICKS = 10  # between two looks at gates
_TIDY_EVERY = 2.0  # s; between two looks at idle connections

_WORDS = 300  # characters of a reply that are kept as the reason of a suspension
_SITES_SHARE = 4  # of all places, one of so many is a site's, where nothing else is set

_HELD = Gauge("relay_outbound_held", "Claimed messages in this process.", registry=registry)


def _no_resolver() -> Resolver:
    from relay.dns.resolver import Resolver

    return Resolver()


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How the sender is set.

    `upstream`: for mail without a sender of its own; `domains`: this relay's own, the first of
    which it greets with; `context`: from `client_tls`; `private_upstreams`: whether every sender's
    upstream may lie inside this network; `concurrency`: deliveries at once; `route_connections`: of
    them through one route, 0 for any; `retry_unit`: seconds of back-off; `mx_lifetime`: seconds for
    which direct delivery is tried; `private_mx`: whether it may connect to private addresses;
    `mx_port`: the port of exchangers; `resolver`: makes who asks the DNS for them, when it is first
    called; `policy`: of TLS to them; `dane`: of that, what is proved from the start where mail goes
    directly; `results`: what is counted of that for reports.
    """

    upstream: Upstream
    domains: Sequence[str]
    redact_key: bytes
    context: ssl.SSLContext | None = None
    private_upstreams: bool = False
    concurrency: int = 32
    route_connections: int = 0
    retry_unit: float = 60.0
    mx_lifetime: float = 5 * 86_400.0
    private_mx: bool = False
    mx_port: int = 25
    resolver: Callable[[], Resolver] = _no_resolver
    policy: Policy | None = None
    dane: DanePolicies | None = None
    results: TlsResults | None = None
    report_field: ReportField | None = None


async def run(
    ctx: Context,
    *,
    pool: Pool,
    queue: Queue,
    claimer: Mailbox[Any],
    writer: Mailbox[Accept],
    gates: Gates,
    vault: Vault,
    settings: DeliverySettings,
    right_of_way: RightOfWay | None = None,
    rng: random.Random | None = None,
    space: Space = AMPLE,
    capture: Capture | None = None,
    signer: Signer | None = None,
    hub: Hub | None = None,
    return_paths: ReturnPaths | None = None,
    traffic: Traffic | None = None,
    unsubscribing: Unsubscribing | None = None,
) -> None:
    """Deliver until drained.

    `claimer`, `writer`: the mailboxes that `Credit` and `Due`, and the loop's `Accept`, go to;
    `right_of_way`: that of high mail, which whoever queues it asks for; without `space` on the disk
    the loop, which stores mail here, waits; `capture`: what the loop keeps besides; `signer`: signs
    what goes, None nothing; `hub`: where it hears of other keys; `return_paths`: of what leaves;
    `traffic`: what receivers are given; `unsubscribing`: the links of bulk mail.
    """

    async def store(reverse_path: str, message_id: UUID, address: str, raw: bytes) -> Accepted:
        captured = () if capture is None else capture.among([address])
        named = ((message_id, address),)
        return await hand_over(writer, Accept(reverse_path, named, raw, captured=captured))

    rng = rng or new_rng()
    traffic = traffic or Traffic()
    unit = settings.retry_unit
    captures = None if capture is None else capture.takes
    loopback = Loopback(
        pool, settings.domains, store, retry_unit=unit, rng=rng, space=space, captures=captures
    )
    sender = _Sender(
        ctx,
        queue,
        claimer,
        gates,
        vault,
        settings,
        loopback,
        right_of_way or RightOfWay(),
        rng,
        signer,
        return_paths,
        traffic,
        ShapingKeeper(ShapingStore(pool), Suppressions(pool), traffic),
        unsubscribing,
    )
    hub = hub or Hub()
    async with trio.open_nursery() as recording:
        recording.start_soon(sender.record)
        try:
            async with trio.open_nursery() as helping:
                helping.start_soon(sender.tell)
                helping.start_soon(sender.keep)
                helping.start_soon(sender.tidy)
                helping.start_soon(sender.heed_pauses)
                helping.start_soon(sender.give_up)
                helping.start_soon(sender.keep_shaping, hub)
                if signer is not None:
                    helping.start_soon(signer.follow, hub)
                    helping.start_soon(signer.processes.run)
                helping.start_soon(sender.await_knowledge)
                if settings.dane is not None:
                    helping.start_soon(_prove, settings.dane, settings.upstream, pool)
                async with trio.open_nursery() as delivering:
                    sender.workers.nursery = delivering
                    ctx.ready()
                    await sender.receive()
                helping.cancel_scope.cancel()
            await sender.workers.hang_up()
        finally:
            sender.leave()


async def _prove(dane: DanePolicies, upstream: Upstream, pool: Pool) -> None:
    """Have it known whether there is DANE from the start, if any mail goes directly."""
    try:
        if upstream.url == DIRECT or await any_direct(pool):
            await dane.follow()
    except DatabaseUnavailable:
        return  # the first look at a domain has it known, too


class _Sender:
    def __init__(
        self,
        ctx: Context,
        queue: Queue,
        claimer: Mailbox[Any],
        gates: Gates,
        vault: Vault,
        settings: DeliverySettings,
        loopback: Loopback,
        right_of_way: RightOfWay,
        rng: random.Random,
        signer: Signer | None,
        return_paths: ReturnPaths | None,
        traffic: Traffic,
        shaping: ShapingKeeper,
        unsubscribing: Unsubscribing | None,
    ) -> None:
        self._ctx = ctx
        self._shaping = shaping
        self._signer = signer
        self._queue = queue
        self._claimer = claimer
        self._gates = gates
        self._right_of_way = right_of_way
        self._lease = queue.lease_timeout
        self._recording = trio.CancelScope(shield=True)
        self._said: list[Credit | Due] = []
        self._to_say = trio.lowlevel.ParkingLot()
        self._lanes_out_of_reach: dict[str, set[int]] = {}  # by what was met
        self._to_give_up = trio.lowlevel.ParkingLot()
        self._lifetime = settings.mx_lifetime
        self._rests = False  # nothing has come for a tick
        self._come = trio.lowlevel.ParkingLot()  # of `keep`, while there is nothing to deliver
        self._first_ticks = 0
        places, unit = settings.concurrency, settings.retry_unit
        self._demand = Demand(places)
        self._finaliser = Finaliser(queue, self._recorded)
        counted = Schedule(unit, queue.max_attempts)
        lasting = Schedule.for_lifetime(unit, settings.mx_lifetime)
        settler = Settler(
            lambda message: lasting if routes.is_direct(message) else counted,
            redact_key=settings.redact_key,
            rng=rng,
        )
        self._custody = Custody(self._finaliser, settler, right_of_way, self, lease=self._lease)
        deadlines = Deadlines().within(self._lease - self._custody.margin)
        direct = Direct(
            settings.resolver,
            own=settings.domains,
            deadlines=deadlines,
            rng=rng,
            port=settings.mx_port,
            private=settings.private_mx,
            most=settings.route_connections or max(places // _SITES_SHARE, 1),
            policy=settings.policy,
            results=settings.results,
            given=traffic.given,
        )
        dispatch: Dispatch[Job, Way] = Dispatch(
            places,
            min(places, settings.route_connections or places),
            right_of_way,
            lambda key, now: direct.bound(key, gates.bound(key, now)),
        )
        routes = Routes(
            settings.upstream,
            vault,
            settings.domains[0],
            deadlines,
            settings.context,
            private_upstreams=settings.private_upstreams,
            sources=traffic.sources,
        )
        self._gatekeeper = gatekeeper = Gatekeeper(
            gates,
            dispatch,
            self._custody.give_back,
            traffic,
            lambda job, outcome, secrets: settler.words(job.message, outcome, secrets, _WORDS),
            self._shaping,
            self._out_of_reach,
        )
        self.workers = Workers(
            queue,
            self._custody,
            dispatch,
            gatekeeper,
            routes,
            loopback,
            right_of_way,
            retry_unit=unit,
            signer=signer,
            direct=direct,
            traffic=traffic,
            return_paths=return_paths,
            report_field=settings.report_field,
            unsubscribing=unsubscribing,
            made_room=self._grant,
        )

    # From the claimer -----------------------------------------------------------------------------

    async def receive(self) -> None:
        """Take messages until drained, then give back what was not begun."""
        self._grant(fresh=True)
        try:
            while True:
                for held in await self._ctx.inbox.take(64):
                    message = held.message
                    held.done()
                    if isinstance(message, Claiming):
                        self._grant(fresh=True)
                    elif isinstance(message, NothingHigh):
                        if self._right_of_way.nothing(trio.current_time()):
                            self.workers.go_on()
                    elif isinstance(message, Deliver):
                        self._read(message)
        except Drained:
            self._custody.leaving = True
            self.workers.give_back_waiting(trio.current_time())

    def _read(self, deliver: Deliver) -> None:
        if not deliver.reply.settled:
            # Before anything else: after a crash of ours what it brought are lost leases, and may
            # have been delivered; it must not be acted on twice.
            deliver.reply.settle(True)
            self._accept(deliver.batch, deliver.epoch)
        elif not deliver.reply.result():
            self._grant(fresh=True)

    def _accept(self, batch: Batch, epoch: float) -> None:
        now = trio.current_time()
        self._custody.epoch = epoch
        self._demand.claimed(len(batch.messages))
        if batch.messages:
            self._come.unpark_all()
        self._gates.arrived(message.lane for message in batch.messages)
        for message in batch.messages:
            job = self._custody.take(message, batch.leased_until, now)
            if job is not None:
                self.workers.put(job, now)
        self.workers.spread()

    # To the claimer -------------------------------------------------------------------------------

    def due(self, lane: DueLane) -> None:
        """A message waits there again."""
        self._say(Due((lane,)))

    def freed(self) -> None:
        """A lane may be claimed from again."""
        if Credit(0) not in self._said:
            self._say(Credit(0))

    def way_is_free(self) -> None:
        """High mail is gone, and what it held up may go on."""
        self.workers.go_on()

    def _grant(self, *, fresh: bool = False, still: bool = False) -> None:
        """Tell the claimer of room, if there is enough of it to be worth a message."""
        if self._custody.leaving:
            return
        if not self._knows:
            return  # it would go unsigned, or to who wants none now; `await_knowledge` grants
        if self._ctx.paused:
            if fresh:
                self._say(self._credit(0, fresh=True))
            return
        held = len(self._custody) + len(self._finaliser) - self.workers.aside
        said = self._demand.grant(held, fresh=fresh, still=still)
        if said is not None:
            self._say(self._credit(said.room, said.kept, fresh=fresh))

    def _tell_what_left(self) -> None:
        """Have the claimer know what is held, though there is no room to tell of: what it takes for
        held keeps its lane and owner from the room that they have."""
        if self._custody.has_untold and self._knows and not self._ctx.paused:
            self._say(self._credit(0, fresh=False))

    def _credit(self, count: int, kept: int | None = None, *, fresh: bool) -> Credit:
        left = self._custody.take_left()
        if fresh:  # the claimer forgets what it knew, of what has left, too
            return Credit(count, True, kept, held=self._custody.held())
        return Credit(count, False, kept, left)

    @property
    def _knows(self) -> bool:
        """Whether it is known whose mail is signed, and who has asked to be left alone."""
        return self._shaping.is_ready and (self._signer is None or self._signer.is_ready)

    async def await_knowledge(self) -> None:
        """Grant the first room once that is known."""
        if not self._knows:
            if self._signer is not None:
                await self._signer.known()
            await self._shaping.known()
            self._grant(fresh=True)

    async def keep_shaping(self, hub: Hub) -> None:
        """Keep what receivers have asked for as all nodes know it."""
        await self._shaping.run(hub, self._gatekeeper)

    def _out_of_reach(self, lanes: Collection[int], why: str) -> None:
        self._lanes_out_of_reach.setdefault(why, set()).update(lanes)
        self._to_give_up.unpark()

    async def give_up(self) -> None:
        """Give up what is too old in lanes that nobody takes mail of.

        An outage of the database loses that: the next attempt says it again.
        """
        while True:
            while not self._lanes_out_of_reach:
                await self._to_give_up.park()
            why, lanes = self._lanes_out_of_reach.popitem()
            try:
                given_up = await self._queue.give_up(lanes, self._lifetime, why)
            except DatabaseUnavailable as error:
                log.debug("sender.gave_nothing_up", reason=str(error))
                continue
            if given_up:
                log.warning("outbound.given_up", messages=given_up, reason=why)

    async def heed_pauses(self) -> None:
        """Take all room back when paused, and grant it anew when resumed."""
        while True:
            await self._ctx.wait_pause_changed()
            self._grant(fresh=True)

    def _recorded(self, batch: Sequence[Settled], fenced: set[UUID]) -> None:
        """A commit of the finaliser: there is room again."""
        for message_id in fenced:
            log.warning("outbound.fenced", id=str(message_id))
        self._grant()

    def _say(self, message: Credit | Due) -> None:
        self._said.append(message)
        self._to_say.unpark()

    async def tell(self) -> None:
        """Send the claimer what there is to say."""
        while True:
            while not self._said:
                await self._to_say.park()
            said, self._said = self._said, []
            try:
                for message in said:
                    await self._claimer.send(message)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return  # the claimer has ended: it is stopped first

    # Every tick -----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Every tick: grant room, look for stalls, renew leases."""
        ticks = 0
        renewed_at = trio.current_time()
        custody = self._custody
        while True:
            seconds = await self._tick()
            ticks += 1
            still = not custody.ended
            self._demand.note(custody.ended, seconds)
            custody.ended = 0
            self._grant(still=still)
            self._tell_what_left()
            now = trio.current_time()
            self.workers.look_after(now)
            if len(custody) and now >= renewed_at + self._lease / 20:
                renewed_at = now
                await self._renew(now)
            if self._rests or ticks % _IDLE_TICKS == 0:
                _HELD.set(len(custody))
                self._gates.forget(now)

    async def _tick(self) -> float:
        """Wait for the next tick; over how many seconds what ended in it is to be counted."""
        if len(self._custody) or self._custody.ended:
            tick = _TICK
            if self._first_ticks:  # it goes faster once connections are open
                self._first_ticks -= 1
                tick = _FIRST_TICK
            await trio.sleep(tick)
            return tick
        with trio.move_on_after(LONG_REST if self._rests else _RESTING_TICK) as resting:
            await self._come.park()
        self._rests = resting.cancelled_caught
        if self._rests:
            return _TICK
        self._first_ticks = _FIRST_TICKS - 1
        await trio.sleep(_FIRST_TICK)
        return _FIRST_TICK

    async def tidy(self) -> None:
        """Close idle connections now and then: a peer may take its time to say goodbye."""
        while True:
            await trio.sleep(_TIDY_EVERY if self.workers.has_lines else LONG_REST)
            await self.workers.tidy()

    async def _renew(self, now: float) -> None:
        """Renew leases that grow old; break off what has none."""
        aging = self._custody.aging(now)
        if not aging:
            return
        try:
            renewed = await self._queue.renew((job.message.id, fence) for job, fence in aging)
        except DatabaseUnavailable as error:
            log.warning("sender.leases_not_renewed", leases=len(aging), reason=str(error))
            return
        for job in self._custody.renewed(aging, renewed, now):
            log.warning("sender.lease_lost", id=str(job.message.id))
            if job.connection is not None and not job.on_the_wire:
                job.connection.abort()

    # The end --------------------------------------------------------------------------------------

    async def record(self) -> None:
        """Run the finaliser; the end of the sender leaves it `GRACE` seconds."""
        with self._recording:
            await self._finaliser.run()
        if self._recording.cancelled_caught:
            log.error("sender.outcomes_not_recorded", outcomes=len(self._finaliser))

    def leave(self) -> None:
        """Nothing more will be delivered: what is held is given back, and recording may end."""
        now = trio.current_time()
        self._custody.leaving = True
        for job in self._custody:
            self._custody.give_back(job, now)
        self.workers.abort()
        self._finaliser.close()
        self._recording.deadline = now + GRACE
