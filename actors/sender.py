"""The sender: delivers what was claimed, over connections that are kept, and has it recorded.

`Deliver` letters bring claimed messages.  Each goes into the line of its route; up to
`concurrency` workers take from the lines, each with a connection of its own.  Who is next, and how
wide a line is, `relay.outbound.dispatch` says.  While mail waits in a line, a worker announces the
next with the final dot of the one before: one round trip a mail.
Outcomes go to the finaliser, and only what it has recorded makes room for more.

Promises
- No connection to the database is held while a peer is spoken to.
- A delivery ends before its lease: its deadlines are cut to what the lease leaves, DATA is not
  begun with less left than the dot's answer may take and a commit.  Leases of what is held are
  renewed; where one cannot be, its delivery is broken off unless the message itself is on the wire.
- What this node claims anew while it still delivers it, or has an outcome that an outage keeps it
  from recording, is not begun a second time: the new lease goes to the delivery that there is.
- One message's failure is no other's.  A route that cannot be used defers what it was tried with,
  and is left alone for a while; a destination that answers 421 or 4xx is slowed by itself.
- A delivery that hangs holds up nobody: what was announced behind it is given to another, its
  line widens, a destination that fills the lines with such is narrowed to half of the places, and
  an owner who does, to whatever destinations, to what leaves room to claim the mail of others.
- High mail does not wait behind what was claimed before it.
- What is stored or logged of a peer's words is redacted.

Fails: an outage of the database is waited out with the outcomes in hand.  When cancelled, it has
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
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter, Gauge

from actors.messages import Accept, Claiming, Deliver, Due, NothingHigh, Room
from relay.addresses import canonical
from relay.crypto import Unreadable, Vault
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, PermanentFailure
from relay.log import get_logger
from relay.mailboxes.accept import stored_among
from relay.metrics import Tally, registry
from relay.outbound.backoff import retry_delay
from relay.outbound.demand import Demand
from relay.outbound.dispatch import Dispatch, Line, Place, RightOfWay
from relay.outbound.finaliser import Finaliser
from relay.outbound.gates import Gate, GateKey, Gates
from relay.outbound.queue import Claimed, Queue
from relay.outbound.render import mail_of
from relay.outbound.routes import MOST_MAILS, Connections, route_of
from relay.outbound.senders import Upstream
from relay.outbound.settled import Settled
from relay.outbound.states import Cause, cause_of
from relay.outbound.steps import pack
from relay.redact import redact
from relay.smtp.client import Mail, Outcome, Phase, Step, Verdict
from relay.smtp.connection import Connection, Deadlines, OpenFailed, Route
from relay.storage import AMPLE, REFUSED, Space
from supervisor import Context, Drained, Mailbox

log = get_logger()

GRACE = 4.0
"""Seconds to record outcomes in when the sender is cancelled, or drained during an outage."""

_TICK = 0.1  # s; how often demand is reckoned anew
_RESTING_TICK = 0.5  # s; the same while nothing is under way
_FRESH = 1.0  # s; for so long a letter that was claimed is taken for wanted
_LARGE_AT_ONCE = 4  # messages of over a megabyte that are in memory
_WHEN_SHORT = 0.25  # retry units, after which the loop tries again while the disk is nearly full
_IDLE_TICKS = 10  # between two looks at idle connections and gates

_DELIVERY = Tally(
    "relay_outbound_delivery_seconds",
    "Duration of a delivery, from its first command (or the connecting) to its outcome.",
    (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0),
)
_OPENED = Counter(
    "relay_outbound_connections_opened", "Connections to upstreams.", registry=registry
)
_UNKNOWN = Counter(
    "relay_outbound_unknown", "Deliveries that ended between dot and answer.", registry=registry
)
_STRIKES = Counter(
    "relay_outbound_pauses", "Pauses of a route or a destination.", ["what"], registry=registry
)
_NO_SPACE = REFUSED.labels("delivery")
_HELD = Gauge("relay_outbound_held", "Claimed messages in this process.", registry=registry)

_OPENING = frozenset({Phase.CONNECT, Phase.EHLO, Phase.TLS, Phase.AUTH})


class _Job:
    """A claimed message that is held here."""

    __slots__ = (
        "asked_at",
        "began_at",
        "connection",
        "domain",
        "ended",
        "following",
        "gates",
        "leased_until",
        "lost",
        "mail",
        "message",
        "owner",
        "priority",
        "withdrawn",
    )

    def __init__(self, message: Claimed, leased_until: float) -> None:
        self.message = message
        self.priority = message.priority
        self.domain = message.domain
        self.owner: Hashable = message.owner
        self.leased_until = leased_until
        self.mail: Mail | None = None
        self.ended: trio.Event | None = None  # of a large one: somebody waits for its end
        self.gates: tuple[Gate, ...] = ()  # that have let it through
        self.connection: Connection | None = None  # while it is being delivered
        self.lost = False
        self.asked_at = trio.current_time()  # when it was known to be wanted still
        self.began_at = 0.0
        self.following: _Job | None = None  # what was announced behind it
        self.withdrawn = False  # that was taken back: the connection must not go on


_Line = Line[_Job, Connections | None]  # its way: None is the loop
_Place = Place[_Job, Connections | None]


async def run(
    ctx: Context,
    *,
    pool: Pool,
    queue: Queue,
    claimer: Mailbox[Any],
    writer: Mailbox[Accept],
    gates: Gates,
    vault: Vault,
    upstream: Upstream,
    domains: Sequence[str],
    redact_key: bytes,
    context: ssl.SSLContext | None = None,
    private_upstreams: bool = False,
    concurrency: int = 32,
    route_connections: int = 0,
    retry_unit: float = 60.0,
    right_of_way: RightOfWay | None = None,
    rng: random.Random | None = None,
    space: Space = AMPLE,
) -> None:
    """Deliver until drained.

    `claimer`, `writer`: the mailboxes that `Room` and `Due`, and the loop's `Accept`, go to;
    `upstream`: for mail without a sender of its own; `domains`: this relay's own, the first of
    which it greets with; `context`: from `client_tls`; `private_upstreams`: whether
    every sender's upstream may lie inside this network; `concurrency`: deliveries at once;
    `route_connections`: of them through one route, 0 for any; `retry_unit`: seconds of back-off;
    `right_of_way`: that of high mail, which whoever queues it asks for; without `space` on the disk
    the loop, which stores mail here, waits.
    """
    sender = _Sender(
        ctx,
        pool,
        queue,
        claimer,
        writer,
        gates,
        vault,
        upstream,
        domains,
        redact_key,
        context,
        private_upstreams,
        concurrency,
        min(concurrency, route_connections or concurrency),
        retry_unit,
        right_of_way or RightOfWay(),
        rng or random.Random(),  # noqa: S311 - jitter, not a secret
        space,
    )
    async with trio.open_nursery() as recording:
        recording.start_soon(sender.record)
        try:
            async with trio.open_nursery() as helping:
                helping.start_soon(sender.tell)
                helping.start_soon(sender.keep)
                async with trio.open_nursery() as delivering:
                    sender.delivering = delivering
                    ctx.ready()
                    await sender.receive()
                helping.cancel_scope.cancel()
            await sender.hang_up()
        finally:
            sender.leave()


class _Sender:
    def __init__(
        self,
        ctx: Context,
        pool: Pool,
        queue: Queue,
        claimer: Mailbox[Any],
        writer: Mailbox[Accept],
        gates: Gates,
        vault: Vault,
        upstream: Upstream,
        domains: Sequence[str],
        redact_key: bytes,
        context: ssl.SSLContext | None,
        private_upstreams: bool,
        concurrency: int,
        full_width: int,
        retry_unit: float,
        right_of_way: RightOfWay,
        rng: random.Random,
        space: Space,
    ) -> None:
        self._ctx = ctx
        self._pool = pool
        self._queue = queue
        self._claimer = claimer
        self._writer = writer
        self._gates = gates
        self._vault = vault
        self._upstream = upstream
        self._domains = frozenset(domains)
        self._local_name = domains[0]
        self._redact_key = redact_key
        self._context = context
        self._private_upstreams = private_upstreams
        self._concurrency = concurrency
        self._unit = retry_unit
        self._rng = rng
        self._space = space
        lease = queue.lease_timeout
        self._margin = min(lease / 10, 5.0)  # of a lease, for the commit
        self._deadlines = Deadlines().within(lease - self._margin)
        self._lease = lease
        self._finaliser = Finaliser(queue, self._recorded)
        self._recording = trio.CancelScope(shield=True)
        self._jobs: dict[UUID, _Job] = {}
        self._dispatch: Dispatch[_Job, Connections | None] = Dispatch(
            concurrency, full_width, right_of_way, self._bound
        )
        self._right_of_way = right_of_way
        self._way_is_free = trio.lowlevel.ParkingLot()
        self._begun: dict[_Place, _Job] = {}  # what is on a connection
        self._demand = Demand(concurrency)
        self._said: list[Room | Due] = []
        self._to_say = trio.lowlevel.ParkingLot()
        self._ended = 0  # deliveries, since the last tick
        self._epoch = 0.0
        self._large = trio.CapacityLimiter(_LARGE_AT_ONCE)
        self._leaving = False
        self.delivering: trio.Nursery | None = None

    # Demand ---------------------------------------------------------------------------------------

    async def receive(self) -> None:
        """Take letters until drained, then give back what was not begun."""
        self._grant(fresh=True)
        try:
            while True:
                for held in await self._ctx.inbox.take(64):
                    letter = held.message
                    again = held.attempts > 1
                    # Done at once: after a crash of ours its messages are lost leases, and may
                    # have been delivered; the letter must not be acted on twice.
                    held.done()
                    if isinstance(letter, Claiming):
                        self._grant(fresh=True)
                    elif isinstance(letter, NothingHigh):
                        if self._right_of_way.nothing(trio.current_time()):
                            self._go_on()
                    elif isinstance(letter, Deliver) and not again:
                        self._accept(letter)
        except Drained:
            self._leaving = True
            for line in self._dispatch.lines.values():
                for job in self._dispatch.remove(line):
                    self._release(job)

    def _grant(self, *, fresh: bool = False) -> None:
        """Tell the claimer of room, if there is enough of it to be worth a letter."""
        if self._leaving:
            return
        held = len(self._jobs) + len(self._finaliser)
        said = self._demand.grant(held, fresh=fresh)
        if said is not None:
            self._say(Room(said.room, fresh, said.kept))

    def _say(self, letter: Room | Due) -> None:
        self._said.append(letter)
        self._to_say.unpark()

    async def tell(self) -> None:
        """Send the claimer what there is to say."""
        while True:
            while not self._said:
                await self._to_say.park()
            said, self._said = self._said, []
            try:
                for letter in said:
                    await self._claimer.send(letter)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return  # the claimer has ended: it is stopped first

    async def keep(self) -> None:
        """Reckon demand, renew leases, close what is idle; again and again."""
        ticks = 0
        renewed_at = trio.current_time()
        while True:
            await trio.sleep(_TICK if self._jobs or self._ended else _RESTING_TICK)
            ticks += 1
            self._demand.reckon(self._ended, _TICK)
            self._ended = 0
            self._grant()
            now = trio.current_time()
            self._look_for_stalls(now)
            if self._dispatch.widen(now) or self._begun:
                self._spread()
            if self._jobs and now >= renewed_at + self._lease / 20:
                renewed_at = now
                await self._renew(now)
            if ticks % _IDLE_TICKS == 0:
                _HELD.set(len(self._jobs))
                self._gates.forget(now)
                self._forget_lines()
                for line in list(self._dispatch.lines.values()):
                    if line.way is not None and len(line.way):
                        await line.way.tidy()

    def _forget_lines(self) -> None:
        for key, line in list(self._dispatch.lines.items()):
            if line.way is None or not len(line.way):
                self._dispatch.forget(key)

    def _look_for_stalls(self, now: float) -> None:
        """Take back what was announced behind deliveries that hang, and keep those few."""
        for place, job in list(self._begun.items()):
            line = place.line
            if now < job.began_at + line.stalled_after:
                continue
            following, job.following = job.following, None
            if following is not None:
                job.withdrawn = True
                self._dispatch.put_back(place, following, job)
            if line.busy(job.domain) + line.waiting(job.domain) > self._concurrency // 2:
                width = max(self._concurrency // 2, 1)
                self._narrow(line, GateKey(line.key, job.domain), width, now)
            most = self._dispatch.most_of(line, job.owner, now)
            if most is not None and line.held(job.owner) > most:
                self._narrow(line, GateKey(line.key, owner=job.owner), most, now)

    def _narrow(self, line: _Line, key: GateKey, width: int, now: float) -> None:
        """Hold no more than so many of a destination's or an owner's; give back the rest."""
        gate = self._gates.make(key)
        gate.narrow(width, now)
        for place, job in self._begun.items():
            if place.line is line and (job.domain == key.domain or job.owner == key.owner):
                self._let_through(job, gate)
        for job in self._dispatch.remove(line, key.domain, key.owner):
            self._gates.before(job.message.lane, gate)
            if gate not in job.gates and gate.room(now) < 1:
                self._release(job, gate.wait(now))
            else:
                self._let_through(job, gate)
                self._dispatch.put(line, job)

    def _let_through(self, job: _Job, gate: Gate) -> None:
        if gate not in job.gates:
            job.gates = (*job.gates, gate)
            gate.busy += 1

    async def _renew(self, now: float) -> None:
        """Renew leases of which less than two thirds are left; break off what has none."""
        old = [
            (job, job.message.token)
            for job in self._jobs.values()
            if job.leased_until - now < self._lease * 2 / 3
        ]
        if not old:
            return
        try:
            renewed = await self._queue.renew((job.message.id, token) for job, token in old)
        except DatabaseUnavailable as error:
            log.warning("sender.leases_not_renewed", leases=len(old), reason=str(error))
            return
        for job, token in old:
            if job.message.token != token or self._jobs.get(job.message.id) is not job:
                continue  # claimed anew by this node, or finished meanwhile
            if job.message.id in renewed:
                job.leased_until = now + self._lease
            else:
                job.lost = True
                log.warning("sender.lease_lost", id=str(job.message.id))
                if job.connection is not None and not job.connection.in_data:
                    job.connection.abort()

    # Lines ----------------------------------------------------------------------------------------

    def _accept(self, letter: Deliver) -> None:
        batch = letter.batch
        self._epoch = letter.epoch
        self._demand.claimed(len(batch.messages))
        for message in batch.messages:
            self._gates.arrived(message.lane)
            if self._in_hand(message, batch.leased_until):
                continue
            job = _Job(message, batch.leased_until)
            self._jobs[message.id] = job
            if not job.priority:
                self._right_of_way.arrived(message.id, trio.current_time())
            try:
                line = self._line(message)
            except (Unreadable, ValueError) as error:
                self._not_tried(job, error)
                continue
            if self._gates and self._held_back(line, job):
                continue
            if not message.has_body and self.delivering is not None:
                line.coming += 1
                self.delivering.start_soon(self._prepare, line, job)
            else:
                self._dispatch.put(line, job)
        self._spread()

    async def _prepare(self, line: _Line, job: _Job) -> None:
        """Fetch and compose a large message, and have it delivered.

        In a thread, as it takes as long as a thousand ordinary deliveries; few at once, as each is
        in memory several times; and before a worker takes it, who would wait for his turn here.
        """
        try:
            async with self._large:
                await self._fetch_and_compose(line, job)
        finally:
            line.coming -= 1

    async def _fetch_and_compose(self, line: _Line, job: _Job) -> None:
        if self._leaving:
            self._release(job)
            return
        try:
            message = await self._queue.with_body(job.message)
            if message is None:
                now = trio.current_time()
                text = "the content of the message is not there any more"
                self._settle(job, _ours(Verdict.FAILED, Phase.DATA, text), now, ())
                return
            job.mail = await trio.to_thread.run_sync(mail_of, message)
        except (DatabaseUnavailable, psycopg.Error):
            self._release(job, self._unit / 16)
            return
        except PermanentFailure as error:
            self._unfit(job, error)
            return
        except Exception as error:
            self._crashed(job, error)
            return
        del message
        if self._leaving:
            self._release(job)
            return
        job.ended = trio.Event()
        self._dispatch.put(line, job)
        self._spread()
        await job.ended.wait()

    def _in_hand(self, message: Claimed, leased_until: float) -> bool:
        """Whether a message that was claimed is in this node's own hands still.

        An outage of the database that outlasts a lease lets the claimer (and the reaper, after
        whom the message does not look lost) find what is being delivered here, or was and could
        not be recorded.  To begin it again would be a second copy: the new lease goes to the
        delivery that there is.
        """
        job = self._jobs.get(message.id)
        if job is None:
            return self._finaliser.fence_anew(message.id, message.token, lost=message.lost)
        if job.lost and not (job.connection is not None and job.connection.in_data):
            return False  # it was broken off, or will be dropped
        job.message, job.leased_until, job.lost = message, leased_until, False
        return True

    def _line(self, message: Claimed) -> _Line:
        """The line of a message's route.  `Unreadable` if its password is."""
        # The account too: who copies another's sealed password must not get his connection.
        key = None
        if message.upstream is not None:
            key = (message.sender_id, message.upstream, message.username, message.password)
        line = self._dispatch.lines.get(key)
        if line is None:
            upstream = self._upstream
            if message.upstream is not None:
                password = None
                if message.password is not None and message.sender_id is not None:
                    password = self._vault.open(message.sender_id, message.password)
                upstream = Upstream(message.upstream, message.username, password)
            public_only = message.private is False and not self._private_upstreams
            route = route_of(upstream, self._local_name, public_only=public_only)
            if route is None:
                line = self._dispatch.add(key, None, width=self._concurrency)
            else:
                line = self._dispatch.add(key, self._open_to(route))
        return line

    def _open_to(self, route: Route) -> Connections:
        return Connections(route, self._deadlines, self._context)

    def _not_tried(self, job: _Job, error: Exception) -> None:
        """The way itself cannot be read (a password, mostly): that is no fault of the message."""
        log.error("sender.upstream_unusable", sender=str(job.message.sender_id))
        now = trio.current_time()
        text = str(error) if isinstance(error, Unreadable) else "the upstream is not usable"
        outcome = _ours(Verdict.DEFERRED, Phase.AUTH, text)
        self._settle(job, outcome, now, ())

    def _held_back(self, line: _Line, job: _Job) -> bool:
        """Whether a gate has no room for it; then it is given back until there may be."""
        now = trio.current_time()
        passed = []
        for key in self._gates_of(line, job):
            gate = self._gates.find(key)
            if gate is None:
                continue
            self._gates.before(job.message.lane, gate)
            if gate.room(now) < 1:
                self._release(job, gate.wait(now))
                return True
            if key.domain is not None or key.owner is not None:
                passed.append(gate)  # the one of a route counts nothing: `_bound` asks it
        for gate in passed:
            self._let_through(job, gate)
        return False

    def _gates_of(self, line: _Line, job: _Job) -> tuple[GateKey, ...]:
        """What the gates on a job's way would stand before."""
        route = line.key
        return GateKey(route), GateKey(route, job.domain), GateKey(route, owner=job.owner)

    def _spread(self) -> None:
        """Give waiting mail to workers, as far as there are places."""
        if self.delivering is None or self._leaving:
            return
        for place, job in self._dispatch.start(trio.current_time()):
            self.delivering.start_soon(self._work, place, job)

    def _bound(self, line: _Line) -> int | None:
        """Connections that the route's gate lets through; None: there is none."""
        if not self._gates or line.way is None:
            return None
        gate = self._gates.find(GateKey(line.key))
        if gate is None:
            return None
        return 0 if trio.current_time() < gate.opens_at else int(gate.window)

    def _go_on(self) -> None:
        """High mail is delivered: what it held up is begun."""
        self._way_is_free.unpark_all()
        self._spread()

    # Working --------------------------------------------------------------------------------------

    async def _work(self, place: _Place, job: _Job | None) -> None:
        """Deliver the job and what follows it in its line, until there is nothing more."""
        connection: Connection | None = None
        way = place.line.way
        try:
            while job is not None:
                if way is None:
                    await self._give_way(job, trio.current_time())
                    await self._loop(job)
                    job = self._next(place)
                else:
                    connection, job = await self._send(place, way, job, connection)
        except trio.Cancelled:
            raise
        except Exception as error:
            if connection is not None:
                connection.abort()
            self._crashed(job, error)
        finally:
            self._dispatch.leave(place)
            if connection is not None and way is not None:
                way.give_back(connection)
        self._spread()

    async def _give_way(self, job: _Job, now: float) -> float:
        """Wait while high mail has the right of way; return what time it is then."""
        if not job.priority or now >= self._right_of_way.until:
            return now
        with trio.move_on_at(self._right_of_way.until):
            await self._way_is_free.park()
        return trio.current_time()

    def _crashed(self, job: _Job | None, error: Exception) -> None:
        """A delivery met what nobody foresaw: it must not take the others with it.

        The error's text could hold anything, so only its kind and place are logged.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace else ""
        log.error("sender.delivery_crashed", error=type(error).__name__, where=where)
        if job is not None and job.message.id in self._jobs:
            outcome = _ours(Verdict.DEFERRED, Phase.DATA, "an internal error of the relay")
            self._settle(job, outcome, trio.current_time(), ())

    def _next(self, place: _Place) -> _Job | None:
        """The job that a worker goes on with."""
        return self._dispatch.next(place, trio.current_time())

    async def _send(
        self, place: _Place, connections: Connections, job: _Job, connection: Connection | None
    ) -> tuple[Connection | None, _Job | None]:
        """Deliver one message; returns the connection to go on with, and the next job."""
        line = place.line
        mail = self._composed(job)
        if mail is None:
            return connection, self._next(place)
        began_at = await self._give_way(job, trio.current_time())
        late = began_at > job.leased_until - self._lease / 2
        if job.lost or late or job.message.hold_unknown or self._is_stale(job, began_at):
            if not await self._may_begin(job):
                return connection, self._next(place)
            began_at = trio.current_time()
        if connection is None or connection.closed:
            connection = connections.take()
            if connection is None:
                connection = await self._open(line, connections, job, began_at)
                if connection is None:
                    return None, self._next(place)
                if self._is_stale(job, trio.current_time()) and not await self._may_begin(job):
                    return connection, self._next(place)
        last = connection.delivered + 1 >= MOST_MAILS
        job.connection = connection
        job.began_at = began_at
        self._begun[place] = job
        first = connection.trace if connection.delivered == 0 else ()
        try:
            outcomes: Sequence[Outcome] | None = await connection.deliver(
                mail,
                None if last else partial(self._announce, place, job),
                deadline=job.leased_until - self._margin,
            )
        except trio.ClosedResourceError:
            outcomes = connection.outcomes  # broken off by `_renew`
        except trio.Cancelled:
            if connection.outcomes is not None:
                self._cut_short(job, connection.outcomes[0], began_at, first)
            raise
        except Exception:
            connection.abort()
            if job.following is not None:
                self._dispatch.put_back(place, job.following, None)
            raise
        finally:
            job.connection = None
            del self._begun[place]
        following, job.following = job.following, None
        if job.withdrawn:
            connection.abort()  # it is told of a mail that comes another way
        outcome = outcomes[0] if outcomes else _ours(Verdict.DEFERRED, Phase.MAIL, "broken off")
        if outcome.stale:
            # The peer had hung up while the connection was idle: nothing was tried.
            if following is not None:
                self._dispatch.put_back(place, following, job)
            return None, job
        if job.lost and outcome.verdict is Verdict.DEFERRED:
            self._drop(job)  # whoever has its lease now delivers it; no peer is to blame
        else:
            self._settle(job, outcome, began_at, first, line)
        if following is not None:
            return connection, following
        if last:
            await connection.quit()
        return connection, self._next(place)

    def _announce(self, place: _Place, job: _Job, now: float) -> Mail | None:
        """Take the job that comes next on a job's connection, if that can be promised by now."""
        following = self._dispatch.next(place, now)
        if following is None:
            return None
        try:
            following.mail = self._composed(following)
        except Exception as error:  # its own fault, and not that of the one before it
            self._crashed(following, error)
        if following.mail is None:
            self._dispatch.counts_for(place, job)
            return None
        in_time = now < following.leased_until - self._lease / 2
        asks = following.message.hold_unknown or self._is_stale(following, now)
        if following.lost or not in_time or asks:
            self._dispatch.put_back(place, following, job)
            return None
        job.following = following
        return following.mail

    async def _open(
        self, line: _Line, connections: Connections, job: _Job, began_at: float
    ) -> Connection | None:
        """Open a connection for a job, or settle the job."""
        try:
            with trio.move_on_at(job.leased_until - self._margin):
                connection = await connections.open()
                _OPENED.inc()
                return connection
        except OpenFailed as error:
            self._settle(job, error.outcome, began_at, (), line)
            return None
        text = "opening a connection took too long"
        self._settle(job, _ours(Verdict.DEFERRED, Phase.CONNECT, text), began_at, (), line)
        return None

    def _composed(self, job: _Job) -> Mail | None:
        """The mail of a job; None if there can be none, which is settled then."""
        if job.mail is not None:
            return job.mail
        try:
            return mail_of(job.message)  # with its body, else `_prepare` has made the mail
        except PermanentFailure as error:
            self._unfit(job, error)
            return None

    def _unfit(self, job: _Job, error: PermanentFailure) -> None:
        """The message can never be sent; whoever queued by SQL may have stored such a thing."""
        text = f"the message cannot be sent: {error}"
        self._settle(job, _ours(Verdict.FAILED, Phase.MAIL, text), trio.current_time(), ())

    async def _may_begin(self, job: _Job) -> bool:
        """Whether the lease lasts for a delivery; if not, the job is given back."""
        if job.lost:
            self._drop(job)
            return False
        now = trio.current_time()
        if now > job.leased_until - self._lease / 2:
            self._release(job)  # could not be renewed for long: the database was away
            return False
        if self._is_stale(job, now) and not await self._is_wanted(job, now):
            return False
        if not job.message.hold_unknown:
            return True
        try:
            held = [(job.message.id, job.message.token)]
            if job.message.id in await self._queue.begin_data(held):
                return True
        except DatabaseUnavailable:
            self._release(job, self._unit / 16)
            return False
        self._drop(job)  # somebody else has it
        return False

    def _is_stale(self, job: _Job, now: float) -> bool:
        """Whether a message with a deadline may have passed it since it was claimed.

        A letter's token can be used or deleted at any time: what has waited here is asked about.
        """
        not_after = job.message.not_after
        if not_after is None:
            return False
        if now + self._epoch >= not_after.timestamp():
            return True
        return job.message.letter_of is not None and now > job.asked_at + _FRESH

    async def _is_wanted(self, job: _Job, now: float) -> bool:
        """Whether a stale job is to be delivered all the same; if not, it is given back.

        The claim that finds it again cancels it, or lets it wait.
        """
        letter_of = job.message.letter_of
        try:
            wanted = letter_of is not None and await self._queue.is_wanted(letter_of)
        except DatabaseUnavailable:
            self._release(job, self._unit / 16)
            return False
        if wanted:
            job.asked_at = now
        else:
            self._release(job)
        return wanted

    def _drop(self, job: _Job) -> bool:
        """Hold a job no more.  False if it was not held."""
        if job.gates:
            for gate in job.gates:
                gate.busy -= 1
            job.gates = ()
            if not self._leaving and Room(0) not in self._said:
                self._say(Room(0))  # its lane may be claimed from again
        if not job.priority and self._right_of_way.ended(job.message.id, trio.current_time()):
            self._go_on()
        if job.ended is not None:
            job.ended.set()
        if self._jobs.get(job.message.id) is not job:
            return False
        del self._jobs[job.message.id]
        return True

    async def _loop(self, job: _Job) -> None:
        """Deliver into a mailbox of this relay."""
        message = job.message
        if self._space.short():
            # Not begun, so it counts as no attempt: it waits for as long as that takes.
            _NO_SPACE.inc()
            self._release(job, _WHEN_SHORT * self._unit * self._rng.uniform(0.75, 1.25))
            return
        mail = self._composed(job)
        if mail is None or not await self._may_begin(job):
            return
        began_at = trio.current_time()
        try:
            address = canonical(message.recipient)
        except ValueError:
            address = ""
        if address.rpartition("@")[2] not in self._domains:
            text = "this relay delivers to its own domains only (its upstream is loop:)"
            self._settle(job, _said(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.2", text), began_at, ())
            return
        # The message's own id: delivered again, it is stored once.
        letter = Accept(mail.sender, ((message.id, address),), mail.data)
        outcome = _said(Verdict.DEFERRED, Phase.DOT, 451, "4.3.0", "the mailbox was not reached")
        with trio.move_on_at(job.leased_until - self._margin):
            await self._writer.send(letter)
            accepted = await letter.reply.wait()
            if accepted.error is not None:
                text = accepted.error
                outcome = _said(Verdict.DEFERRED, Phase.DOT, 451, "4.3.0", text)
            elif (stored := address in accepted.stored or await self._stored(message.id)) is None:
                text = "whether it is stored is not known"
                outcome = _said(Verdict.DEFERRED, Phase.DOT, 451, "4.3.0", text)
            elif stored:
                outcome = _said(Verdict.DELIVERED, Phase.DOT, 250, "2.0.0", "stored")
            elif address in accepted.full:
                text = "the mailbox is full"
                outcome = _said(Verdict.DEFERRED, Phase.RCPT, 452, "4.2.2", text)
            else:
                text = "there is no such mailbox here"
                outcome = _said(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.1", text)
        self._settle(job, outcome, began_at, ())

    async def _stored(self, message_id: UUID) -> bool | None:
        """Whether an attempt before this one stored it; None: that cannot be told now."""
        try:
            return message_id in await stored_among(self._pool, [message_id])
        except (DatabaseUnavailable, psycopg.Error):
            return None

    # Outcomes -------------------------------------------------------------------------------------

    def _settle(
        self,
        job: _Job,
        outcome: Outcome,
        began_at: float,
        opening: Sequence[Step],
        line: _Line | None = None,
    ) -> None:
        """Hand what became of a job to the finaliser, and learn from it about its way."""
        message = job.message
        now = trio.current_time()
        delivered = outcome.verdict is Verdict.DELIVERED
        if line is not None:
            if delivered:
                line.took(now - began_at)
            if not (delivered and not self._gates and line.width >= self._dispatch.full):
                self._learn(line, job, outcome, now)
        self._drop(job)
        error: str | None = None
        delay = 0.0
        if delivered:
            cause = Cause.DELIVERED
        else:
            cause = cause_of(
                outcome.verdict,
                turn=message.turn,
                max_attempts=self._queue.max_attempts,
                hold_unknown=message.hold_unknown,
            )
            if cause is Cause.DEFERRED:
                delay = retry_delay(message.turn, self._unit, self._rng)
            if outcome.verdict is Verdict.UNKNOWN:
                _UNKNOWN.inc()
            error = self._redacted(message, outcome, line)
            log.info(
                "outbound." + cause.value,
                id=str(message.id),
                attempt=message.attempt,
                phase=outcome.phase.value,
                code=outcome.code,
                error=error,
            )
        steps: Sequence[Step] = (*opening, *outcome.trace) if opening else outcome.trace
        if not steps:
            steps = ((outcome.phase, outcome.code or 0, now, 0.0),)
        self._ended += 1
        _DELIVERY.observe(now - began_at)
        self._finaliser.put(
            Settled(
                message.id,
                message.token,
                cause,
                delay,
                began_at,
                now,
                outcome.phase,
                outcome.code,
                outcome.enhanced,
                error,
                pack(steps, began_at),
            )
        )
        if cause is Cause.DEFERRED:
            due_at = datetime.fromtimestamp(now + self._epoch, UTC) + timedelta(seconds=delay)
            self._say(Due((message.due_lane(due_at),)))

    def _cut_short(
        self, job: _Job, outcome: Outcome, began_at: float, opening: Sequence[Step]
    ) -> None:
        """The sender itself was cancelled in the middle of a delivery."""
        if outcome.verdict is Verdict.DEFERRED:
            self._release(job)  # nothing was delivered, and nobody is to blame
        else:
            self._settle(job, outcome, began_at, opening)

    def _release(self, job: _Job, delay: float = 0.0) -> None:
        """Give a job back that was not begun."""
        message = job.message
        if not self._drop(job):
            return
        now = trio.current_time()
        self._finaliser.put(Settled(message.id, message.token, Cause.RELEASED, delay))
        if not self._leaving:
            due_at = datetime.fromtimestamp(now + self._epoch, UTC) + timedelta(seconds=delay)
            self._say(Due((message.due_lane(due_at),)))

    def _learn(self, line: _Line, job: _Job, outcome: Outcome, now: float) -> None:
        """What an outcome says of the route and of the destination."""
        domain = job.message.domain
        if outcome.verdict is not Verdict.DEFERRED and outcome.verdict is not Verdict.UNKNOWN:
            # It answered, whatever it said.
            if self._dispatch.answered(line, now):
                self._spread()
            for key in self._gates_of(line, job):
                gate = self._gates.find(key)
                if gate is not None:
                    gate.good()
            return
        opening = outcome.phase in _OPENING
        gate = self._gates.make(GateKey(line.key, None if opening else domain))
        self._gates.before(job.message.lane, gate)
        plain = opening or outcome.route_trouble or outcome.code == 421
        if not gate.bad(now, plain=plain):
            return
        what = "route" if opening else "destination"
        _STRIKES.labels(what).inc()
        log.warning(
            "outbound.paused",
            what=what,
            seconds=round(gate.opens_at - now, 3),
            phase=outcome.phase.value,
            code=outcome.code,
        )
        if opening:
            self._dispatch.troubled(line)
        for waiting in self._dispatch.remove(line, None if opening else domain):
            self._gates.before(waiting.message.lane, gate)
            self._release(waiting, gate.wait(now))

    def _redacted(self, message: Claimed, outcome: Outcome, line: _Line | None) -> str:
        """An outcome as it may be stored."""
        words = [str(outcome.code) if outcome.code else "", outcome.enhanced or "", outcome.text]
        known = [message.recipient, message.sender, message.subject]
        known += [message.recipient_name or "", message.sender_name or ""]
        secrets = () if line is None or line.way is None else line.way.route.spellings
        text = " ".join(word for word in words if word)
        return redact(text, self._redact_key, known, secrets=secrets)

    def _recorded(self, batch: Sequence[Settled], fenced: set[UUID]) -> None:
        """A commit of the finaliser: there is room again."""
        for message_id in fenced:
            log.warning("outbound.fenced", id=str(message_id))
        self._grant()

    # The end --------------------------------------------------------------------------------------

    async def record(self) -> None:
        """Run the finaliser; the end of the sender leaves it `GRACE` seconds."""
        with self._recording:
            await self._finaliser.run()
        if self._recording.cancelled_caught:
            log.error("sender.outcomes_not_recorded", outcomes=len(self._finaliser))

    def leave(self) -> None:
        """Nothing more will be delivered: what is held is given back, and recording may end."""
        self._leaving = True
        for job in list(self._jobs.values()):
            self._release(job)
        for line in self._dispatch.lines.values():
            if line.way is not None:
                line.way.abort()  # unless goodbye was said
        self._finaliser.close()
        self._recording.deadline = trio.current_time() + GRACE

    async def hang_up(self) -> None:
        """Say goodbye on every connection."""
        async with trio.open_nursery() as nursery:
            for line in self._dispatch.lines.values():
                if line.way is not None:
                    nursery.start_soon(line.way.close)


def _ours(verdict: Verdict, phase: Phase, text: str) -> Outcome:
    """An outcome that no peer spoke of."""
    return Outcome(verdict, phase, None, None, text, route_trouble=False, connection_usable=True)


def _said(verdict: Verdict, phase: Phase, code: int, enhanced: str, text: str) -> Outcome:
    """An outcome of the loop, in the words of SMTP."""
    return Outcome(
        verdict, phase, code, enhanced, text, route_trouble=False, connection_usable=True
    )
