"""The workers: each takes from a line, job after job, over a connection that is kept.

`Dispatch` says who is begun next and by how many workers; `Custody` has the messages; `Gatekeeper`
learns from how each delivery ends.  While mail waits in its line, a worker announces the next with
the final dot of the one before: one round trip a mail.

Promises
- No connection to the database is held while a peer is spoken to.
- A delivery ends before its lease: its deadlines are cut to what the lease leaves, DATA is not
  begun with less left than the dot's answer may take and a commit.
- One message's failure is no other's, whatever it is: what nobody foresaw defers that message.
- A large message is fetched and composed in a thread, few at once, before a worker takes it; those
  to strangers, who may never answer, are half of them at most
  (`relay.outbound.delivery.large_turns`). What is to be signed is signed before that
  (`relay.outbound.signing.ahead`). None goes unsigned because its key cannot be read.
- A message of over `_HEAVY` bytes is let go while its peer takes long to open a connection or to
  ask for it, and fetched and composed again once he asks; and when it was handed to the connection.
  So what hangs keeps none, but what a peer stops reading in the middle.
- Lower mail is not begun while high mail has the right of way.

Fails: never; when cancelled, what was not begun is given back, and of what was, its outcome is
reported as far as it is known.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter

from relay.crypto import Unreadable
from relay.errors import DatabaseUnavailable, PermanentFailure
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.active_queue.custody import Custody
from relay.outbound.active_queue.dispatch import SLOW, Dispatch, Line, Place
from relay.outbound.active_queue.jobs import Job
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.delivery.gatekeeper import Gatekeeper
from relay.outbound.delivery.large_turns import LargeTurns
from relay.outbound.delivery.loopback import Loopback
from relay.outbound.delivery.render import written
from relay.outbound.mx.connections import SiteConnections, Unsuited
from relay.outbound.mx.direct import OWN, SITE_WIDTH, Direct
from relay.outbound.mx.exchangers import Unreachable
from relay.outbound.mx.lookups import Lookups
from relay.outbound.mx.sites import Site
from relay.outbound.pacing.backoff import MOMENT
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.settler import ours
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue
from relay.outbound.routing.routes import Connections, Routes
from relay.outbound.shaping.traffic import Receiver, Traffic, receiver_of
from relay.outbound.signing.ahead import Signing
from relay.outbound.signing.dkim import Unloadable
from relay.outbound.signing.signer import Signer
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.returns.paths import ReturnPaths
from relay.smtp.client import Following, Mail, OnceMail, Outcome, Peer, Phase, Step, Verdict
from relay.smtp.connection import Connection, OpenFailed

log = get_logger()

_UNMETERED = 1.0  # s; a claim of before a domain's receiver was known has come by then
_LARGE_AT_ONCE = 4  # messages of over a megabyte that are in memory
_LARGE_TO_STRANGERS = 2  # of them
_LARGE_WAIT = 8  # more that wait until they may be; of one owner half as many
_LARGE_PATIENCE = 1.0  # s; that long do others wait, and are given back
_LARGE_PAUSE = 2.0  # s; until these are claimed again
_HEAVY = 65_536  # bytes of a message; what is smaller costs less than what its connection does
_MADE_AGAIN_AT_ONCE = 4  # messages
_UNASKED = 2.0  # s; for which a message is kept that its peer has not asked for

_OPENED = Counter(
    "relay_outbound_connections_opened", "Connections to upstreams.", registry=registry
)

Way = Connections | None
"""The way that a line leads; None is the loop."""
ReportField = Callable[[UUID], bytes]
"""Makes the header field by which an upstream may report of a message."""


class _Hand:
    """What a worker has in hand."""

    __slots__ = ("connection", "first", "job")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.connection: Connection | None = None
        self.first: Sequence[Step] = ()
        """The steps of its opening, while the first mail is on it."""


class Workers:
    """The workers of one sender, which live in `nursery`."""

    def __init__(
        self,
        queue: Queue,
        custody: Custody,
        dispatch: Dispatch[Job, Way],
        gatekeeper: Gatekeeper,
        routes: Routes,
        loopback: Loopback,
        right_of_way: RightOfWay,
        *,
        retry_unit: float,
        signer: Signer | None = None,
        direct: Direct,
        traffic: Traffic,
        return_paths: ReturnPaths | None = None,
        report_field: ReportField | None = None,
        unsubscribing: Unsubscribing | None = None,
        made_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`retry_unit` in seconds; `signer`: None signs nothing; `direct`: the way of mail that
        has no upstream, and `traffic`: to whom it leads; `return_paths`: what leaves comes back
        to, None: to its sender; `report_field`: what leaves has in front of its other fields;
        `unsubscribing`: the links of bulk mail, None: it has none; `made_room`: told when less of
        what is held is in the way of others."""
        self._unsubscribing = unsubscribing
        self._traffic = traffic
        self._return_paths = return_paths
        self._report_field = report_field
        self._queue = queue
        self._custody = custody
        self._dispatch = dispatch
        self._gatekeeper = gatekeeper
        self._routes = routes
        self._loopback = loopback
        self._right_of_way = right_of_way
        self._signer = signer
        self._direct = direct
        self._lookups = Lookups(direct.sites, self._looked_up)
        self._lookups_without_policy = Lookups(direct.sites_without_policy, self._looked_up)
        self._signing: Signing[Line[Job, Way]] | None = None
        if signer is not None:
            self._signing = Signing(signer, self._written, self._were_made)
        self._made_room = made_room
        self._late = 0  # domains whose look-up is, as of the last look
        self._aside = 0  # that stood aside when somebody was told last
        self._outage = MOMENT * retry_unit  # s; given back for so long when the database is away
        self._way_is_free = trio.lowlevel.ParkingLot()
        self._large = LargeTurns(_LARGE_AT_ONCE, _LARGE_TO_STRANGERS)
        self._made_again = LargeTurns(_MADE_AGAIN_AT_ONCE)
        self._large_waiting: Counts[UUID] = Counts()  # by owner
        self._begun: dict[Place[Job, Way], Job] = {}  # what is on a connection, or opens one
        gatekeeper.begun = self._begun
        self.nursery: trio.Nursery | None = None

    # What comes -----------------------------------------------------------------------------------

    def put(self, job: Job, now: float) -> None:
        """Let a job that was claimed wait in the line of its route; `spread` begins it."""
        if job.message.is_dsn and self._direct.is_own(job.domain):
            # A submitter has a mailbox here: nobody else is asked to bring the report to it.
            self._wait(self._own_line(), job, now)
            return
        if self._routes.is_direct(job.message):
            self._put_direct(job, now)
            return
        try:
            line = self._line(job)
        except (Unreadable, ValueError) as error:
            self._not_tried(job, error, now)
            return
        self._wait(line, job, now)

    def _wait(self, line: Line[Job, Way], job: Job, now: float) -> None:
        """Let a job wait in a line, if the gates on its way let it through."""
        if not self._gatekeeper.lets(line, job, now):
            return
        # What goes to a slow site waits for its peer, whatever else is begun.
        in_nobodys_way = line.is_slow and not job.priority
        if in_nobodys_way and self._right_of_way.ended(job.message.id, now):
            self.go_on()
        if self.nursery is None:
            self._dispatch.put(line, job)
        elif not job.message.has_body:
            line.coming += 1
            self.nursery.start_soon(self._prepare, line, job)
        elif (
            self._signing is not None
            and self._signer is not None
            and self._signer.wants(job.message)
        ):
            line.coming += 1
            self._signing.put(line, job, self.nursery)
        else:
            self._dispatch.put(line, job)

    def spread(self) -> None:
        """Give waiting mail to workers, as far as there are places."""
        if self.nursery is None or self._custody.leaving:
            return
        for place, job in self._dispatch.start(trio.current_time()):
            self.nursery.start_soon(self._work, place, job)
        before, self._aside = self._aside, self.aside
        if self._aside > before:
            self._made_room()

    @property
    def aside(self) -> int:
        """How much of what is held is in nobody's way, as it waits for a stranger to answer.

        Deliveries that stand aside (`relay.outbound.active_queue.dispatch`), and for each domain
        whose look-up is late one message, so many at most as may stand aside.  Not from its start
        on: more would be claimed for domains of which nobody knows yet that their sites are silent.
        """
        return self._dispatch.aside + min(self._late, self._dispatch.most_aside)

    def go_on(self) -> None:
        """High mail is delivered: what it held up is begun."""
        self._way_is_free.unpark_all()
        self.spread()

    def look_after(self, now: float) -> None:
        """Every moment: let what has stalled stand aside, take back what waits behind it or for a
        DNS that is late, widen what nothing moves in, and begin what can be."""
        self._dispatch.step_aside(now)
        self._let_go_of_what_waits(now)
        if self._gatekeeper.look_after_stalls(now):
            self._custody.freed()
        self._late = 0
        for lookups in (self._lookups, self._lookups_without_policy):
            for domain in lookups.late(now):
                self._late += 1
                for job in lookups.take(domain):
                    self._look_up(job, now)
        self._dispatch.widen(now)
        # Whether or not anything is under way: the right of way may be over without high mail, and
        # nobody says that.
        self.spread()

    def _let_go_of_what_waits(self, now: float) -> None:
        """Let go of the messages that have waited for their peers for long, or are in the way."""
        free = False
        for place, job in self._begun.items():
            most = SLOW if job.connection is None else _UNASKED
            if now > job.began_at + most and not job.on_the_wire:
                _let_go(job)
            if not job.priority and place.line.is_site and now > job.began_at + SLOW:
                # It waits for its peer, whatever else is begun: `spread` comes soon.
                free |= self._right_of_way.ended(job.message.id, now)
        if free:
            self._way_is_free.unpark_all()
        for turns in (self._large, self._made_again):
            for turn in turns.overdue(now):
                if turn.job.on_the_wire:
                    turn.pass_on(turn.job.message.size)
                else:
                    _let_go(turn.job)

    def give_back_waiting(self, now: float) -> None:
        """Give back what waits in a line, for the DNS, or to be signed."""
        for job in (*self._lookups.stop(), *self._lookups_without_policy.stop()):
            self._custody.give_back(job, now)
        for line, job in () if self._signing is None else self._signing.take_all():
            line.coming -= 1
            self._custody.give_back(job, now)
        for line in self._dispatch.lines.values():
            for job in self._dispatch.remove(line):
                self._custody.give_back(job, now)

    def _line(self, job: Job) -> Line[Job, Way]:
        """The line of a job's route.  `Unreadable` if its password is."""
        key: Hashable = self._routes.key_of(job.message)
        line = self._dispatch.lines.get(key)
        if line is not None:
            return line
        way = self._routes.connections(job.message)
        if way is None:
            return self._dispatch.add(key, None, width=self._dispatch.places)
        return self._dispatch.add(key, way)

    # Mail without an upstream ---------------------------------------------------------------------

    def _put_direct(self, job: Job, now: float) -> None:
        """Let a job wait in the line of its domain's site, or until that is known."""
        if self._direct.is_own(job.domain):
            self._wait(self._own_line(), job, now)
            return
        direct = self._direct
        sites = direct.sites_without_policy if job.tls_optional else direct.sites
        found = sites.known(job.domain, now)
        if isinstance(found, Site):
            self._wait_for_site(found, job, now)
        elif found is not None:
            self._unreachable(job, found, now)
        else:
            self._look_up(job, now)

    def _look_up(self, job: Job, now: float) -> None:
        """Let a job wait for the DNS about its domain."""
        lookups = self._lookups_without_policy if job.tls_optional else self._lookups
        late = lookups.is_late(job.domain, now)
        if self.nursery is None:
            self._give_back(job)
        elif self._gatekeeper.lets_look_up(job, now, late=late):
            lookups.put(job, now, self.nursery)

    def _looked_up(
        self, domain: str, jobs: Sequence[Job], found: Site | Unreachable | Exception
    ) -> None:
        """The site of a domain is known, or why there is none."""
        now = trio.current_time()
        if isinstance(found, Unreachable) and not found.permanent:
            self._gatekeeper.not_found(domain, jobs, now, _unreachable(found))
        else:
            self._gatekeeper.found(domain)
        for job in jobs:
            if job not in self._custody:
                continue
            if isinstance(found, Exception):
                self._crashed(job, found)
            elif isinstance(found, Unreachable):
                self._unreachable(job, found, now)
            elif self._custody.leaving:
                self._give_back(job)
            else:
                self._wait_for_site(found, job, now)
        self.spread()

    def _wait_for_site(self, site: Site, job: Job, now: float) -> None:
        """Let a job wait in the line of its domain's site, which has been found."""
        line, receiver = self._site_line(site, job)
        known_since = self._traffic.meets(job.domain, receiver, now)
        self._traffic.awaits(receiver, job.owner, job.domain)
        if now < known_since + _UNMETERED and self._traffic.limits(receiver, now).rate is not None:
            # When it was claimed nobody knew what rate it falls under.
            self._give_back(job, _UNMETERED)
        else:
            self._wait(line, job, now)

    def _site_line(self, site: Site, job: Job) -> tuple[Line[Job, Way], Receiver]:
        """The line of a site, which leads to its exchangers as they are known now, and to whom."""
        source = self._traffic.sources.of(job.message.sender)
        key = self._traffic.line_key(job.domain, site, source.name if source else "")
        receiver = receiver_of(key)
        assert receiver is not None  # of a site
        line = self._dispatch.lines.get(key)
        if line is None:
            way = self._direct.connections(site, receiver, source)
            group = self._direct.shared(receiver).group
            line = self._dispatch.add(key, way, width=SITE_WIDTH, group=group, is_site=True)
        elif isinstance(line.way, SiteConnections):
            line.way.site = site
        return line, receiver

    def _own_line(self) -> Line[Job, Way]:
        """The line of this relay's own domains, for whose mail nobody else is asked."""
        line = self._dispatch.lines.get(OWN)
        return line or self._dispatch.add(OWN, None, width=self._dispatch.places)

    def _unreachable(self, job: Job, why: Unreachable, now: float) -> None:
        """Nobody can be connected to for a job."""
        self._settle(job, _unreachable(why), now, now=now)

    def _not_tried(self, job: Job, error: Exception, now: float) -> None:
        """The way itself cannot be read (a password, mostly): that is no fault of the message."""
        log.error("sender.upstream_unusable", sender=str(job.message.sender_id))
        text = str(error) if isinstance(error, Unreadable) else "the upstream is not usable"
        self._settle(job, ours(Verdict.DEFERRED, Phase.AUTH, text), now)

    # Connections ----------------------------------------------------------------------------------

    @property
    def has_lines(self) -> bool:
        """Whether there may be connections to tidy."""
        return bool(self._dispatch.lines)

    async def tidy(self) -> None:
        """Close idle connections, and forget the lines that lead nowhere now."""
        for key, line in list(self._dispatch.lines.items()):
            if line.way is None or not len(line.way):
                self._dispatch.forget(key)
        async with trio.open_nursery() as nursery:
            for line in self._dispatch.lines.values():
                if line.way is not None and len(line.way):
                    nursery.start_soon(line.way.tidy)

    async def hang_up(self) -> None:
        """Say goodbye on every connection."""
        async with trio.open_nursery() as nursery:
            for line in self._dispatch.lines.values():
                if line.way is not None:
                    nursery.start_soon(line.way.close)

    def abort(self) -> None:
        """Close every connection, unless goodbye was said."""
        for line in self._dispatch.lines.values():
            if line.way is not None:
                line.way.abort()

    # Large messages -------------------------------------------------------------------------------

    async def _prepare(self, line: Line[Job, Way], job: Job) -> None:
        """Fetch and compose a large message, and have it delivered.

        In a thread, as it takes as long as a thousand ordinary deliveries; few at once, as each is
        in memory several times; and before a worker takes it, which would wait for its turn here.
        Few wait for their turn for long: what does takes of the room that others' mail is claimed
        in.
        """
        owner, waiting = job.message.owner, self._large_waiting
        few = waiting.total() < _LARGE_WAIT and waiting[owner] < _LARGE_WAIT // 2
        waiting[owner] += 1
        try:
            try:
                with trio.move_on_after(math.inf if few else _LARGE_PATIENCE) as patience:
                    await self._large.take(job, to_stranger=self._dispatch.is_stranger(line))
            finally:
                waiting[owner] -= 1
                if not waiting[owner]:
                    del waiting[owner]
            if patience.cancelled_caught:
                self._give_back(job, _LARGE_PAUSE)
                return
            job.leave_gates()  # one may have been shut meanwhile
            if self._gatekeeper.lets(line, job, trio.current_time()):
                await self._fetch_and_compose(line, job)
        finally:
            line.coming -= 1

    async def _fetch_and_compose(self, line: Line[Job, Way], job: Job) -> None:
        if self._custody.leaving:
            self._give_back(job)
            return
        job.mail = await self._make_large(job)
        if job.mail is None:
            return
        if self._custody.leaving:
            self._give_back(job)
            return
        if line.way is not None:
            try:
                self._outgoing(job)
            except Exception as error:
                self._not_made(job, error)
                return
            _is_made(job)
        self._dispatch.put(line, job)
        self.spread()

    async def _make_large(self, job: Job) -> Mail | None:
        """Fetch the body of a job's message, and compose and sign it; None: the job has left."""
        try:
            message = await self._queue.with_body(job.message)
            if message is None:
                text = "the content of the message is not there any more"
                self._settle(job, ours(Verdict.FAILED, Phase.DATA, text), trio.current_time())
                return None
            return await trio.to_thread.run_sync(self._make, message)
        except (DatabaseUnavailable, psycopg.Error):
            self._give_back(job, self._outage)
        except Exception as error:
            self._not_made(job, error)
        return None

    # Signed messages ------------------------------------------------------------------------------

    def _make(self, message: Claimed) -> Mail:
        """Compose and sign a message; in a thread."""
        mail = self._written(message)
        return mail if self._signer is None else self._signer.signed(mail)

    def _written(self, message: Claimed) -> Mail:
        return written(message, self._unsubscribing)

    def _were_made(self, batch: Sequence[tuple[Line[Job, Way], Job, Mail | Exception]]) -> None:
        """Have what was signed delivered."""
        for line, job, made in batch:
            line.coming -= 1
            if isinstance(made, Exception):
                self._not_made(job, made)
            elif self._custody.leaving:
                self._give_back(job)
            else:
                job.mail = made
                self._dispatch.put(line, job)
        self.spread()

    def _not_made(self, job: Job, error: Exception) -> None:
        """There is no mail of a job, and why."""
        if isinstance(error, Unreadable | Unloadable):
            # Unsigned, it could be refused for good: the key may come back, and it waits for that.
            text = f"the key that signs for its domain cannot be used: {error}"
            self._settle(job, ours(Verdict.DEFERRED, Phase.DATA, text), trio.current_time())
        elif isinstance(error, PermanentFailure):
            self._unfit(job, error)
        else:
            self._crashed(job, error)

    # Working --------------------------------------------------------------------------------------

    async def _work(self, place: Place[Job, Way], job: Job) -> None:
        """Deliver the job and what follows it in its line, until there is nothing more."""
        way = place.line.way
        hand = _Hand(job)
        try:
            while hand.job is not None:
                if way is None:
                    await self._give_way(hand.job, trio.current_time())
                    await self._loop(place, hand.job)
                    hand.job = self._next(place)
                else:
                    hand.job = await self._send(place, way, hand.job, hand)
        except trio.Cancelled:
            raise
        except Exception as error:
            if hand.connection is not None:
                hand.connection.abort()
            self._crashed(hand.job, error)
        finally:
            self._dispatch.leave(place)
            if hand.connection is not None and way is not None:
                way.give_back(hand.connection)
        self.spread()

    def _next(self, place: Place[Job, Way]) -> Job | None:
        """The job that a worker goes on with."""
        return self._dispatch.next(place, trio.current_time())

    async def _give_way(self, job: Job, now: float) -> float:
        """Wait while high mail has the right of way; return what time it is then."""
        if not job.priority or now >= self._right_of_way.until:
            return now
        with trio.move_on_at(self._right_of_way.until):
            await self._way_is_free.park()
        return trio.current_time()

    async def _loop(self, place: Place[Job, Way], job: Job) -> None:
        """Deliver into a mailbox of this relay."""
        if wait := self._loopback.wait():
            # Not begun, so it counts as no attempt: it waits for as long as that takes.
            self._give_back(job, wait)
            return
        mail = self._composed(job)
        if mail is None or not await self._may_begin(job):
            return
        began_at = trio.current_time()
        message = job.message
        deadline = self._custody.deliver_by(job)
        outcome = await self._loopback.deliver(mail, message.id, message.recipient, deadline)
        if self._dispatch.answered_well(place.line, job.domain, trio.current_time()):
            self.spread()
        self._settle(job, outcome, began_at)

    async def _send(
        self, place: Place[Job, Way], connections: Connections, job: Job, hand: _Hand
    ) -> Job | None:
        """Deliver a message, and those that are announced behind it; returns the next job."""
        line = place.line
        mail = self._outgoing(job)
        if mail is None:
            return self._next(place)
        began_at = await self._give_way(job, trio.current_time())
        custody = self._custody
        if not custody.ready(job, began_at):
            if not await self._may_begin(job):
                return self._next(place)
            began_at = trio.current_time()
        connection = hand.connection
        if connection is not None and not connections.suits(connection, mail):
            connections.give_back(connection)
            connection = None
        if connection is None or connection.closed:
            connection = hand.connection = connections.take(mail)
            if connection is None:
                job.began_at = began_at
                self._begun[place] = job
                try:
                    connection = await self._open(line, connections, job, mail, began_at)
                finally:
                    del self._begun[place]
                hand.connection = connection
                if connection is None:
                    return self._next(place)
                self._dispatch.opened(line)
                if custody.stale(job, trio.current_time()) and not await self._may_begin(job):
                    return self._next(place)
        hand.first = connection.trace if connection.delivered == 0 else ()
        announce = partial(self._announce, place, hand)
        go_on = None
        if line.waits and not isinstance(mail, OnceMail):
            go_on = partial(self._go_on, place, hand, connection, announce)
        _, follows, deadline = self._begin(place, job, mail, connection, announce, began_at)
        try:
            outcomes: Sequence[Outcome] | None = await connection.deliver(
                mail,
                follows,
                deadline=deadline,
                go_on=go_on,
                have_body=partial(self._make_again, job),
                sent=partial(_left_memory, job),
            )
        except trio.ClosedResourceError:
            outcomes = connection.outcomes  # broken off: its lease is lost
        except trio.Cancelled:
            if connection.outcomes is not None:
                self._cut_short(hand, connection.outcomes[0], connections.secrets)
            raise
        except Exception:
            connection.abort()
            assert hand.job is not None
            if hand.job.following is not None:
                self._dispatch.put_back(place, hand.job.following, None)
            raise
        finally:
            assert hand.job is not None
            job = hand.job  # the last of those that went in one call
            job.connection = None
            del self._begun[place]
        following, job.following = job.following, None
        if job.withdrawn:
            connection.abort()  # it is told of a mail that comes another way
        outcome = outcomes[0] if outcomes else ours(Verdict.DEFERRED, Phase.MAIL, "broken off")
        if outcome.stale:
            # The peer had hung up while the connection was idle: nothing was tried.
            if following is not None:
                self._dispatch.put_back(place, following, job)
            hand.connection = None
            return job
        if job not in custody:
            pass  # it could not be made again
        elif job.lost and outcome.verdict is Verdict.DEFERRED:
            # Whoever has its lease now delivers it; no peer is to blame.
            custody.drop(job, trio.current_time())
        else:
            self._settle(
                job, outcome, job.began_at, hand.first, line, peer=connection.peer,
                tells=self._tells(connection),
            )  # fmt: skip
        if following is not None:
            return following
        if connection.delivered >= connections.most_mails:
            await connection.quit()
        return self._next(place)

    def _begin(
        self,
        place: Place[Job, Way],
        job: Job,
        mail: Mail,
        connection: Connection,
        announce: Following,
        now: float,
    ) -> tuple[Mail, Following, float]:
        """A job goes on its connection now: what `Connection.deliver` is told of it."""
        if isinstance(place.line.way, SiteConnections) and not job.tls_optional:
            place.line.way.used(job.domain, connection)
        job.connection = connection
        job.began_at = now
        self._begun[place] = job
        way = place.line.way
        last = way is None or connection.delivered + 1 >= way.most_mails
        return mail, None if last else announce, self._custody.deliver_by(job)

    def _go_on(
        self,
        place: Place[Job, Way],
        hand: _Hand,
        connection: Connection,
        announce: Following,
        outcomes: Sequence[Outcome],
        now: float,
    ) -> tuple[Mail, Following, float] | None:
        """A mail was delivered: begin the one that was announced, without leaving the connection.

        None wherever there is anything to wait for or to decide: `_send` does that.
        """
        job, outcome = hand.job, outcomes[0]
        assert job is not None
        following = job.following
        if (
            following is None
            or following.outgoing is None
            or isinstance(following.outgoing, OnceMail)
            or place.line.way is None
            or not place.line.way.suits(connection, following.outgoing)
            or outcome.verdict is not Verdict.DELIVERED
            or job.withdrawn
            or (following.priority and now < self._right_of_way.until)
            or not self._custody.ready(following, now)
        ):
            return None
        self._settle(
            job, outcome, job.began_at, hand.first, place.line, now, connection.peer,
            tells=self._tells(connection),
        )  # fmt: skip
        job.following = job.connection = None
        hand.job, hand.first = following, ()
        return self._begin(place, following, following.outgoing, connection, announce, now)

    def _announce(self, place: Place[Job, Way], hand: _Hand, now: float) -> Mail | None:
        """Take the job that comes next on a connection, if that can be promised by now."""
        job = hand.job
        assert job is not None
        following = self._dispatch.next(place, now)
        if following is None:
            return None
        try:
            outgoing = self._outgoing(following)
        except Exception as error:  # its own fault, and not that of the one before it
            self._crashed(following, error)
            outgoing = None
        if outgoing is None:
            self._dispatch.counts_for(place, job)
            return None
        if not self._custody.ready(following, now):
            self._dispatch.put_back(place, following, job)
            return None
        job.following = following
        return outgoing

    async def _open(
        self, line: Line[Job, Way], connections: Connections, job: Job, mail: Mail, began_at: float
    ) -> Connection | None:
        """Open a connection for a job, or settle the job."""
        try:
            with trio.move_on_at(self._custody.deliver_by(job)):
                connection = await connections.open(job.domain, mail)
                _OPENED.inc()
                return connection
        except Unsuited as error:
            # The mail's trouble: others' mail takes this way, and nothing is learnt about it.
            self._settle(job, error.outcome, began_at, peer=error.peer)
            return None
        except OpenFailed as error:
            self._settle(job, error.outcome, began_at, (), line, peer=error.peer)
            return None
        text = "opening a connection took too long"
        late = ours(Verdict.DEFERRED, Phase.CONNECT, text)
        self._settle(job, late, began_at, (), line, peer=connections.route.peer)
        return None

    def _outgoing(self, job: Job) -> Mail | None:
        """The mail of a job with what it is known by when it comes back; None as `_composed`."""
        if job.outgoing is not None:
            return job.outgoing
        mail = self._composed(job)
        if mail is not None and mail.sender:
            if self._report_field is not None:
                mail = mail.behind(self._report_field(job.message.id))
            if self._return_paths is not None:
                mail = mail.returning(self._return_paths.path_of(job.message.id))
        if mail is not None and mail.size > _HEAVY:
            mail = OnceMail(mail)
            job.mail, job.message = None, job.message.without_body()
        job.outgoing = mail
        return mail

    async def _make_again(self, job: Job) -> bool:
        """Have the mail of a job once more that was let go; False if it is not to be sent now.

        A large one has a turn until it is sent; what is smaller, until it is made.
        """
        once, is_large = job.outgoing, job.turn is not None
        assert isinstance(once, OnceMail)
        try:
            await self._made_again.take(job)
            job.mail = await self._make_large(job)
            if job.mail is None or not await self._may_begin(job):
                return False
            job.outgoing = None
            made = self._outgoing(job)
            if made is None:
                return False
            once.have(made)
            _is_made(job)
        except trio.Cancelled:
            self._give_back(job)
            raise
        finally:
            job.outgoing = once
            if not is_large or once.gone:
                _left_memory(job)
        return True

    def _composed(self, job: Job) -> Mail | None:
        """The mail of a job; None if there can be none, which is settled then."""
        if job.mail is not None:
            return job.mail
        assert job.message.has_body  # else `_prepare` has made the mail
        try:
            return self._written(job.message)
        except PermanentFailure as error:
            self._unfit(job, error)
            return None

    # Whether to begin -----------------------------------------------------------------------------

    async def _may_begin(self, job: Job) -> bool:
        """Whether the lease lasts for a delivery; if not, the job is given back."""
        now = trio.current_time()
        if job.lost:
            self._custody.drop(job, now)
            return False
        if self._custody.late(job, now):
            self._give_back(job)  # could not be renewed for long: the database was away
            return False
        if self._custody.stale(job, now) and not await self._is_wanted(job, now):
            return False
        if not job.message.hold_unknown:
            return True
        try:
            held = [(job.message.id, job.message.fence)]
            if job.message.id in await self._queue.begin_data(held):
                return True
        except DatabaseUnavailable:
            self._give_back(job, self._outage)
            return False
        self._custody.drop(job, trio.current_time())  # somebody else has it
        return False

    async def _is_wanted(self, job: Job, now: float) -> bool:
        """Whether a stale job is to be delivered all the same; if not, it is given back.

        The claim that finds it again cancels it, or lets it wait.
        """
        letter_of = job.message.letter_of
        try:
            wanted = letter_of is not None and await self._queue.is_wanted(letter_of)
        except DatabaseUnavailable:
            self._give_back(job, self._outage)
            return False
        if wanted:
            job.asked_at = now
        else:
            self._give_back(job)
        return wanted

    # Ends -----------------------------------------------------------------------------------------

    def _settle(
        self,
        job: Job,
        outcome: Outcome,
        began_at: float,
        opening: Sequence[Step] = (),
        line: Line[Job, Way] | None = None,
        now: float | None = None,
        peer: Peer | None = None,
        secrets: Sequence[str] = (),
        *,
        tells: bool = False,
    ) -> None:
        """Report what became of a job; where it was sent by a line, learn from it about the way.

        `tells`: who takes it tells its submitter of that.
        """
        if now is None:
            now = trio.current_time()
        if line is not None:
            if self._gatekeeper.learn(line, job, outcome, began_at, now):
                self.spread()
            if line.way is not None:
                secrets = line.way.secrets
        cause = self._custody.settle(
            job, outcome, began_at, now, opening, secrets, peer, tells=tells
        )
        if line is not None and cause is Cause.EXHAUSTED:
            self._gatekeeper.gave_up(job, outcome)

    def _tells(self, connection: Connection) -> bool:
        """Whether a peer was asked to tell submitters of success: not for a path of the relay's."""
        return self._return_paths is None and "DSN" in connection.features

    def _cut_short(self, hand: _Hand, outcome: Outcome, secrets: Sequence[str]) -> None:
        """The sender itself was cancelled in the middle of a delivery."""
        job, connection = hand.job, hand.connection
        assert job is not None
        assert connection is not None
        if outcome.verdict is Verdict.DEFERRED:
            self._give_back(job)  # nothing was delivered, and nobody is to blame
        else:
            peer = connection.peer
            self._settle(
                job, outcome, job.began_at, hand.first, peer=peer, secrets=secrets,
                tells=self._tells(connection),
            )  # fmt: skip

    def _give_back(self, job: Job, delay: float = 0.0) -> None:
        self._custody.give_back(job, trio.current_time(), delay)

    def _unfit(self, job: Job, error: PermanentFailure) -> None:
        """The message can never be sent; whoever queued by SQL may have stored such a thing."""
        text = f"the message cannot be sent: {error}"
        self._settle(job, ours(Verdict.FAILED, Phase.MAIL, text), trio.current_time())

    def _crashed(self, job: Job | None, error: Exception) -> None:
        """A delivery met what nobody foresaw: it must not take the others with it.

        The error's text could hold anything, so only its kind and place are logged.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace else ""
        log.error("sender.delivery_crashed", error=type(error).__name__, where=where)
        if job is not None and job in self._custody:
            outcome = ours(Verdict.DEFERRED, Phase.DATA, "an internal error of the relay")
            self._settle(job, outcome, trio.current_time())


def _unreachable(why: Unreachable) -> Outcome:
    verdict = Verdict.BOUNCED if why.permanent else Verdict.DEFERRED
    return ours(verdict, Phase.CONNECT, why.text)._replace(enhanced=why.enhanced)


def _let_go(job: Job) -> None:
    """Keep the bytes of a job's mail no longer, if they are many."""
    if isinstance(job.outgoing, OnceMail):
        job.outgoing.let_go()
        _left_memory(job)


def _is_made(job: Job) -> None:
    """The bytes of a job's mail are there."""
    if job.turn is not None:
        job.turn.made_at = trio.current_time()


def _left_memory(job: Job) -> None:
    """The bytes of a job's mail are there no more."""
    if job.turn is not None:
        job.turn.end()
