"""The summariser: parses accepted messages and stores what lists and readers show of them.

Promises
- A message has its summary within milliseconds of its commit when idle.  Under a backlog too, for
  a mailbox that has had little of the parser's time lately: such mailboxes come first
  (`relay.mailboxes.fair_order`), what is small before what is large, and groups are taken from the
  oldest end and from the newest in turn.
- Nobody's summary waits for a slow message of somebody else's: a group is cut when it has taken
  `slice_for`, what is done of it is stored at once, and while one group keeps the parser busy for
  over `help_after`, or something has waited for so long, a second parser goes on with the mail of
  other mailboxes; after twice as long a third, and so on, up to one a core but one (`parsers_on`).
- While nothing else waits, mail is parsed while it is being committed (`OnTheWay`), and its summary
  stored once it is durable, never before; or by the writer, with the mail.  Where that takes long
  (`_AHEAD_PATIENCE`) it is parsed again when its turn comes; where the parsing does, what comes
  waits for its turn for a while.
- Parsing happens in child processes that can be killed (`relay.mailboxes.parser`), niced, and
  rests only for mail that is arriving: until something has waited for `_PATIENCE`, since larger
  groups cost less; a third of the time whatever waits, for accepting comes first; and eight ninths
  of it, without help, while mail comes in as fast as it is let: those who send wait for their
  answers (`relay.load.Senders`), or accepting lacks the CPU (`relay.load.Load`: its thread does
  nothing but run and wait for a core).  After a group of few it never rests long (`_REST_EACH`):
  then other programs have the CPU, and there is no flood to give way to.  After very few (`_FEW`)
  it does not rest at all while somebody waits for the mail of a mailbox.
- When nothing waits to be parsed, large mailboxes get the chunks that make searches fast
  (`relay.mailboxes.search`); when nothing came for `_QUIET`, all of them together, too
  (`relay.mailboxes.common_search`).
- A message that cannot be parsed gets a summary from its headers, with the reason; nothing is
  retried for ever.
- Every relay on one database may run one: what one has in hand others leave alone for `lease_for`,
  so a node that was killed keeps its group from the others no longer than that.

Crash safety: see `relay.mailboxes.summaries`, which claims, stores, and holds no lock meanwhile.

Fails: never on an outage of the database (back-off, one warning).

What waits is looked at first, by mailbox and size, without its bytes; then a group is chosen,
claimed and read in one statement, parsed, and stored in one.  Where all that wait are one group,
the look and the claim are one statement.  What is parsed ahead is neither looked at nor claimed: a
node that finds it in between parses it, too, and changes nothing.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any
from uuid import UUID

import trio
from prometheus_client import Counter
from psycopg.pq.abc import PGresult

from actors.messages import OnTheWay, SweepNow
from actors.periodic import wait_for_messages
from relay.chance import uuid4
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.load import Load, Senders, cpu_seconds
from relay.log import get_logger
from relay.mailboxes import common_search, search, summaries
from relay.mailboxes.fair_order import GROUP, GROUP_BYTES, FairOrder, Waiting
from relay.mailboxes.parser import Parser
from relay.metrics import registry
from relay.outage import Outage
from supervisor import Context, Drained, Process

log = get_logger()

_SUMMARISED = Counter(
    "relay_messages_summarised", "Messages parsed by this node.", registry=registry
)

_LOOKED_AT = 256  # messages of either end
_MOST_PARSERS = 8  # one thread reads and stores for all of them: more would wait for it
_HARMLESS = 8 * 1024  # bytes; what is so small cannot be slow
_SMALL = 64 * 1024  # bytes; a helping parser is for messages up to this,
_MEDIUM = 4 * 2**20  # and up to this for those smaller than what others have in hand
_LOOK_EVERY = 0.1  # s; how long what was seen of either end is good, under a backlog
_DEEP_EVERY = 0.2  # s; how often it looks for mail that is at neither end of a long backlog,
_DEEP_SHARE = 0.05  # and how much of the time that may take: of a long one it takes long
_ELSEWHERE = 1.0  # s; how long a message that somebody else has claimed is left out
_LOOK_AGAIN = 0.03  # s; a pause where there will be something to parse, or something else to do
_LET_GO = 60.0  # s; a helping parser that is idle ends after this
_REST = 3.0  # multiple of a round's time to rest after it where more mail arrived, as a rule,
_LEAST_REST = 0.5  # at least, whatever waits,
_GIVE_WAY = 8.0  # and while mail comes in as fast as it is let
_LONGEST_REST = 0.25  # s
_REST_EACH = 0.003  # s of rest, at most, for each message of the round: few come, and cost little
_AHEAD = 32  # messages that are parsed ahead at once, at most,
_AHEAD_HINTS = 8  # and hints of them: where there are more, the box may have been full
_AHEAD_PATIENCE = 0.25  # s; so long what was parsed ahead waits for its commit
_AHEAD_SLOW = 0.005  # s of CPU; after a message that took so long nothing is parsed ahead
_AHEAD_REST = 1.0  # for so many seconds: what is slow comes in its turn
_FEW = 8  # messages; after so many it does not rest while somebody waits for mail
_PATIENCE = 0.1  # s; nothing waits longer because of a rest, but for the least one
_KNOWN = 4096  # messages of which it is remembered since when they wait
_HINTS = 4096  # taken at once; more are only more of the same
_ORPHANS_EVERY = 60.0  # s
_CHUNKS_EVERY = 5.0  # s; how often it looks for large mailboxes to make chunks of
_QUIET = 2.0  # s without mail before it makes chunks of all mailboxes' mail
_CHUNKS_FOR = 0.5  # s, at most, before it looks for mail again

_INTEGER = 23  # the type's OID
_NUMBER = struct.Struct(">i")
_COUNT, _NONE = _NUMBER.pack(_LOOKED_AT), _NUMBER.pack(0)

# Ids go by age, so the primary key gives the order of arrival from both ends.
_END = """
    SELECT message_id, mailbox_id, size
    FROM relay.unsummarised
    ORDER BY message_id {direction}
    LIMIT $1
    """
_NEWEST = Statement(_END.format(direction="DESC"), (_INTEGER,))
_OLDEST = Statement(_END.format(direction="ASC"), (_INTEGER,))
# The mailboxes for which the fewest wait: whoever fills the queue is not among them.  Of those, the
# ones with small mail.
_FEWEST = """
    WITH few AS MATERIALIZED (
        SELECT mailbox_id, count(*) AS messages
        FROM relay.unsummarised
        GROUP BY mailbox_id
        ORDER BY count(*), min(size)
        LIMIT %s
    )
    SELECT u.message_id, u.mailbox_id, u.size
    FROM few
    JOIN relay.unsummarised u USING (mailbox_id)
    ORDER BY few.messages, u.size, u.message_id
    LIMIT %s
    """


async def run(
    ctx: Context,
    *,
    pool: Pool,
    sweep_every: float = 5.0,
    parse_timeout: float = 5.0,
    slice_for: float = 0.05,
    help_after: float = 0.2,
    lease_for: float = 2.0,
    parsers: int | None = None,
    others_lack: Callable[[], bool] = lambda: False,
    senders: Senders | None = None,
    awaited: Callable[[], bool] = lambda: False,
) -> None:
    """Summarise until drained.

    `sweep_every`: seconds after which it looks although nobody called; `parse_timeout`: seconds
    that one message may take; `slice_for`: seconds after which a group is cut; `help_after`:
    seconds of one group, or of waiting, after which a second parser goes on with the others;
    `lease_for`: seconds for which other nodes leave alone what is in hand here, more than a group
    takes as a rule (one that takes longer may be parsed there too); `parsers`: how many parse at
    most (None: by the cores of this machine); `others_lack`: whether a process of this relay that
    accepts mail lacks the CPU; `senders`: those who send mail to this process (None: nobody knows);
    `awaited`: whether somebody here waits for the mail of a mailbox.
    """
    count = parsers_on(len(os.sched_getaffinity(0))) if parsers is None else parsers
    made = [Parser(deadline=parse_timeout) for _ in range(count)]
    with ExitStack() as stack:
        for one in made:
            stack.callback(one.close)
        async with trio.open_nursery() as nursery:
            load = Load(others=others_lack)
            summariser = Summariser(pool, made[0], made[1:], slice_for, help_after, lease_for, load)
            summariser.senders = senders
            summariser.awaited = awaited
            ctx.processes = partial(_processes, made)
            for number in range(1, count):
                nursery.start_soon(summariser.assist, number)
            ctx.ready()
            seconds = 0.0
            try:
                while True:
                    heard = await wait_for_messages(ctx, seconds)
                    summariser.heed(heard)
                    seconds = await summariser.turn(ctx, heard) or sweep_every
            except Drained:
                nursery.cancel_scope.cancel()


def _processes(parsers: Sequence[Parser]) -> list[Process]:
    """Those that have parsed, as the tree shows them; one that was never needed is none."""
    return [
        Process(f"parser-{number}", one.pid, one.restarts, cpu_seconds(one.pid))
        for number, one in enumerate(parsers, 1)
        if one.pid is not None or one.restarts
    ]


def parsers_on(cores: int) -> int:
    """How many parse at once at most: as many as there are cores besides the one that accepts.

    Two at least, or what is slow to parse would hold up everybody.
    """
    return max(2, min(cores - 1, _MOST_PARSERS))


def rest(
    began: float,
    ended: float,
    oldest: float = math.inf,
    *,
    flooded: bool = False,
    done: float = math.inf,
    awaited: bool = False,
) -> float:
    """Seconds to rest after a round, for mail is arriving.

    `oldest`: since when what has waited longest is known to wait.  What came during the round may
    be as old as that.  `flooded`: whether it comes in as fast as it is let.  `done`: how many
    messages the round had.  `awaited`: whether somebody waits for mail: then, after few, not at
    all.
    """
    if awaited and done <= _FEW:
        return 0.0
    took = ended - began
    longest = min(max(done, 1) * _REST_EACH, _LONGEST_REST)
    if flooded:
        return min(took * _GIVE_WAY, longest)
    patience = min(oldest, began) + _PATIENCE - ended
    return min(max(took * _LEAST_REST, min(patience, took * _REST)), longest)


def helps_since(began: float, oldest: float, *, flooded: bool = False) -> float:
    """Since when a second parser is wanted.

    Since one group `began`; or since what has waited longest does, behind many short groups.  The
    latter not while mail comes in as fast as it is let (`flooded`): that is what a flood does.
    """
    return began if flooded else min(began, oldest)


@dataclass
class Summariser:
    """What one node's summariser knows from turn to turn; `helpers` parse to help out."""

    pool: Pool
    parser: Parser
    helpers: Sequence[Parser] = ()
    slice_for: float = math.inf
    help_after: float = 0.2
    lease_for: float = 2.0
    load: Load = field(default_factory=Load)
    senders: Senders | None = None
    awaited: Callable[[], bool] = lambda: False
    _held_up: bool = False  # those who send were, when the last round ended
    _order: FairOrder = field(default_factory=FairOrder)
    _outage: Outage = field(default_factory=Outage)
    _orphans_at: float = field(default=-math.inf)
    _deep_at: float = field(default=-math.inf)
    _chunks_at: float = field(default=-math.inf)
    _mailed_at: float = field(default=-math.inf)  # the last group was parsed
    _ahead_at: float = field(default=-math.inf)  # when mail may be parsed ahead again
    _behind: bool = True  # something may wait that nobody has looked for,
    _late: list[OnTheWay] = field(default_factory=list)  # and this will, once it is stored
    _elsewhere: dict[bytes, float] = field(default_factory=dict)  # message -> until when
    # Message -> first seen waiting; the earliest first, so that nobody looks through all of them.
    _since: dict[bytes, float] = field(default_factory=dict)
    _looked: dict[bool, tuple[list[Waiting], float]] = field(default_factory=dict)  # by end
    _node: UUID = field(default_factory=uuid4)  # as leases name it
    _in_hand: dict[Parser, list[Waiting]] = field(default_factory=dict)
    _began: float = math.inf  # the group in hand
    _working: trio.Event = field(default_factory=trio.Event)  # a turn is under way

    async def turn(self, ctx: Context, heard: Sequence[Any] = ()) -> float:
        """Summarise everything there is, or all that was `heard` of where nothing else waits.

        Returns when to look again in seconds; 0: if called.
        """
        self._working.set()
        try:
            ahead = self._ahead(heard, alone=not (self._behind or self._late))
            self._late = list(filter(_is_coming, self._late))
            newest, more, empty = False, not ahead, 0
            self._behind = True
            while (more or ahead) and empty < 2 and not (ctx.draining.is_set() or ctx.paused):
                began, looked = trio.current_time(), not ahead
                if ahead:
                    found, more = await self._round_ahead(ahead)
                else:
                    found, more = await self.round(newest=newest)
                    newest = not newest
                empty = 0 if found else empty + 1  # in vain from both ends: others are at it
                ctx.beat()
                self._behind, self._held_up, ahead = more, False, []
                if heard := await self._arrived(ctx):
                    # Mail is coming in right now: accepting it goes first.
                    now, oldest = trio.current_time(), self._waits_since()
                    self._held_up = self.senders is not None and self.senders.wait()
                    flooded = self._flooded(now)
                    awaited = self.awaited()
                    # What was stored before a look ended may have been found by it.
                    unseen = not looked or all(map(_is_coming, heard))
                    ahead = self._ahead(heard, alone=unseen and not more)
                    self._behind, more, empty = True, not ahead, 0
                    await trio.sleep(
                        rest(began, now, oldest, flooded=flooded, done=found, awaited=awaited)
                    )
            self._ahead(ahead, alone=False)
            if trio.current_time() >= self._orphans_at:
                self._orphans_at = trio.current_time() + _ORPHANS_EVERY
                await summaries.tidy(self.pool)
                await common_search.tidy(self.pool)
            if self._late:
                return _LOOK_AGAIN
            # What somebody else has in hand may be left to us yet.
            return await self._make_chunks(ctx) or (_ELSEWHERE if self._elsewhere else 0.0)
        except TemporaryFailure as error:
            if not self._outage.is_on:
                log.warning("summariser.waits", reason=str(error))
            return self._outage.lost()
        finally:
            self._working = trio.Event()

    async def _make_chunks(self, ctx: Context) -> float:
        """With nothing to parse, spare searches in large mailboxes their work (`search`).

        Returns when to go on, in seconds; 0: all is done for now.
        """
        if self._outage.over():
            log.info("summariser.recovered")
        if trio.current_time() < self._chunks_at:
            return 0.0
        until = trio.current_time() + _CHUNKS_FOR
        for mailbox_id in await search.lagging(self.pool):
            more = True
            while more:
                if ctx.draining.is_set() or ctx.paused or ctx.inbox.statistics().depth:
                    return 0.0
                if trio.current_time() > until:
                    return _LOOK_AGAIN
                more = await search.grow(self.pool, mailbox_id, self.parser.filter)
                ctx.beat()
        if trio.current_time() < self._mailed_at + _QUIET:
            return _QUIET
        settled, more = await common_search.settled(self.pool), True
        while more:
            if ctx.draining.is_set() or ctx.paused or ctx.inbox.statistics().depth:
                return 0.0
            if trio.current_time() > until:
                return _LOOK_AGAIN
            more = await common_search.grow(self.pool, self.parser.filter, settled=settled)
            ctx.beat()
        self._chunks_at = trio.current_time() + _CHUNKS_EVERY
        return 0.0

    async def _arrived(self, ctx: Context) -> list[Any]:
        """The hints of more mail since this was last asked."""
        if not ctx.inbox.statistics().depth or ctx.paused or ctx.draining.is_set():
            return []
        # Taken out, for they are done: left in the box, one message would slow down every round.
        heard = []
        for held in await ctx.inbox.take(_HINTS):
            held.done()
            heard.append(held.message)
        self.heed(heard)
        return heard

    def heed(self, messages: Iterable[Any]) -> None:
        """Take hints in: any is a reason to look, `SweepNow` one for all that has its time."""
        if any(isinstance(message, SweepNow) for message in messages):
            self._orphans_at = self._chunks_at = self._deep_at = -math.inf

    def _ahead(self, heard: Sequence[Any], *, alone: bool) -> list[OnTheWay]:
        """What was heard of, if all of it can be parsed ahead, and nothing else waits (`alone`).

        Else nothing; what is not stored yet is looked for once it is.
        """
        ahead = [one for one in heard if isinstance(one, OnTheWay)]
        if (
            alone
            and len(ahead) == len(heard) <= _AHEAD_HINTS
            and sum(len(one.messages) for one in ahead) <= _AHEAD
            and not (self._in_hand or self._elsewhere)
            and trio.current_time() >= self._ahead_at
        ):
            return ahead
        _keep_from_waiting(ahead)
        self._late += filter(_is_coming, ahead)
        return []

    async def _round_ahead(self, ahead: Sequence[OnTheWay]) -> tuple[int, bool]:
        """Parse what is being stored, and store its summaries once it is.

        Returns how many messages it is, and whether some of them are left, to be looked for.
        """
        named = [message for one in ahead for message in one.messages]
        now = trio.current_time()
        self._mailed_at = self._began = now
        # Nobody knows their mailboxes yet.
        self._in_hand[self.parser] = [Waiting(id_.bytes, b"", len(raw)) for id_, raw in named]
        try:
            found = await self.parser.summarise(
                [raw for _, raw in named],
                budget=self.slice_for,
                ids=[id_.bytes for id_, _ in named],
            )
            if max(one.seconds for one in found) > _AHEAD_SLOW:
                self._ahead_at = trio.current_time() + _AHEAD_REST
            start = 0
            for one in ahead:
                end = start + len(one.messages)
                one.parsed.settle(found[start:end] if end <= len(found) else ())
                start = end
            mailboxes: dict[UUID, bytes] = {}
            done: set[bytes] = set()
            with trio.move_on_after(_AHEAD_PATIENCE):
                for one in ahead:
                    durable = await one.reply.wait()
                    mailboxes |= durable.mailboxes
                    if durable.summarised:
                        done |= {id_.bytes for id_ in durable.mailboxes}
            claimed, parsed = [], []
            for number, ((id_, raw), summary) in enumerate(zip(named, found, strict=False)):
                if mailbox_id := mailboxes.get(id_):
                    self._order.charge(mailbox_id, summary.seconds)
                    if id_.bytes in done:
                        continue
                    order = number.to_bytes(4)
                    claimed.append(summaries.Claimed(id_.bytes, mailbox_id, raw, order))
                    parsed.append(summary)
            done |= await summaries.store(self.pool, claimed, parsed)
            _SUMMARISED.inc(len(done))
        finally:
            del self._in_hand[self.parser]
            self._began = math.inf
            _keep_from_waiting(ahead)
            self._late += filter(_is_coming, ahead)
        return len(named), len(done) < len(named)

    async def assist(self, number: int = 1) -> None:
        """Have the helper `number` (from 1) parse whenever others keep mail waiting for long.

        Each begins when there is something to help with for as much longer as the one before.
        """
        helper, used, newest = self.helpers[number - 1], 0.0, False
        while True:
            with trio.move_on_after(_LET_GO):
                await self._working.wait()
                await trio.sleep(self.help_after)  # so a burst of short groups costs few looks
            try:
                while self._is_late(trio.current_time(), number):
                    chosen, _ = await self.round(newest=newest, helper=helper)
                    used, newest = trio.current_time(), not newest
                    if not chosen:
                        await trio.sleep(_LOOK_AGAIN)
            except TemporaryFailure:
                pass  # the first will say so, and wait
            if trio.current_time() - used >= _LET_GO:
                helper.close()

    def _is_late(self, now: float, number: int) -> bool:
        since = helps_since(self._began, self._waits_since(), flooded=self._flooded(now))
        return now - since >= number * self.help_after

    def _flooded(self, now: float) -> bool:
        """Whether mail comes in as fast as it is let."""
        return self._held_up or self.load.lacking(now)

    def _waits_since(self) -> float:
        """Since when what has waited longest is known to wait; what is in hand does not wait."""
        taken = self._taken().union(self._elsewhere)
        return next((at for one, at in self._since.items() if one not in taken), math.inf)

    def _taken(self) -> set[bytes]:
        return {one.message_id for group in self._in_hand.values() for one in group}

    async def round(
        self, *, newest: bool = False, helper: Parser | None = None
    ) -> tuple[int, bool]:
        """Summarise one group; return how many messages it has, and whether more may wait.

        `newest`: from the newest end; `helper`: with this parser, only what cannot be as slow as
        what others have in hand.
        """
        parser = helper or self.parser
        claimed = None if helper else await self._see_and_claim()
        if claimed is None:
            waiting, full = await self._look(newest=newest)
        else:
            waiting, full = list(claimed), False
            self._remember(waiting)
        free = self._free(waiting)
        if helper:
            free = self._harmless(free, many=full)
        group = self._order.choose(free, trio.current_time(), newest=newest)
        if not group:
            self._looked.clear()
            return 0, full
        if self._looked:
            chosen = {one.message_id for one in group}
            self._looked = {
                end: ([one for one in left if one.message_id not in chosen], until)
                for end, (left, until) in self._looked.items()
            }
        self._mailed_at = trio.current_time()
        self._in_hand[parser] = group
        if not helper:
            self._began = trio.current_time()
        try:
            done = await self._summarise(parser, group, claimed)
        finally:
            del self._in_hand[parser]
            if not helper:
                self._began = math.inf
        return len(group), full or done < len(group) or len(group) < len(free)

    async def _see_and_claim(self) -> Mapping[Waiting, summaries.Claimed | None] | None:
        """See and claim all that waits, in the order of arrival; None for what was deleted.

        None, and nothing is claimed, where more waits than one group, or somebody has some of it in
        hand: `_look` then.  Mostly it is not, while mail comes slower than it is parsed.
        """
        if self._looked or self._in_hand or self._elsewhere:
            return None
        found = await summaries.claim_all(
            self.pool,
            node=self._node,
            parser=self._number(self.parser),
            seconds=self.lease_for,
            messages=GROUP,
            size=GROUP_BYTES,
        )
        return None if found is None else dict(found)

    def _number(self, parser: Parser) -> int:
        """The number of a parser of this node, as leases name it."""
        return (self.parser, *self.helpers).index(parser)

    async def _look(self, *, newest: bool) -> tuple[list[Waiting], bool]:
        """Some of what waits, in the order of arrival, and whether there is more than that.

        Under a backlog what was seen a moment ago is good for several groups.
        """
        left, until = self._looked.get(newest, ([], 0.0))
        if trio.current_time() < until and len(left) >= GROUP:
            return left, True
        found, more = await self._see(newest=newest)
        if more:
            self._looked[newest] = found, trio.current_time() + _LOOK_EVERY
        else:
            self._looked.clear()
        self._remember(found, more=more)
        return found, more

    def _remember(self, found: list[Waiting], *, more: bool = False) -> None:
        """Since when what was seen waits; `more`: it is not all that does."""
        now, known = trio.current_time(), self._since
        seen = {one.message_id: known.get(one.message_id, now) for one in found}
        if more and len(known) < _KNOWN:  # of a long backlog both ends are remembered,
            known |= seen
        else:  # else what is neither done nor seen has gone
            self._since = dict(sorted(seen.items(), key=itemgetter(1)))

    async def _see(self, *, newest: bool) -> tuple[list[Waiting], bool]:
        found = _waiting(await self.pool.run(_NEWEST if newest else _OLDEST, (_COUNT,)))
        if newest:
            found.reverse()
        if len(found) < _LOOKED_AT:
            return found, False
        now = trio.current_time()
        if now >= self._deep_at:
            rows = await self.pool.fetch(_FEWEST, (_LOOKED_AT, _LOOKED_AT))
            took = trio.current_time() - now
            self._deep_at = now + max(_DEEP_EVERY, took / _DEEP_SHARE)
            found = sorted({*found, *(Waiting(row[0].bytes, row[1].bytes, row[2]) for row in rows)})
        return found, True

    def _free(self, waiting: list[Waiting]) -> list[Waiting]:
        """Those that nobody has in hand."""
        if self._elsewhere:
            now = trio.current_time()
            self._elsewhere = {m: until for m, until in self._elsewhere.items() if until > now}
        taken = self._taken().union(self._elsewhere)
        return [one for one in waiting if one.message_id not in taken] if taken else waiting

    def _harmless(self, free: list[Waiting], *, many: bool) -> list[Waiting]:
        """Those for a helper: small ones, of mailboxes of which nobody has anything in hand.

        When `many` wait they may be of one mailbox: then what is too small to be slow, too.
        """
        in_hand = [one for group in self._in_hand.values() for one in group]
        mailboxes = {one.mailbox_id for one in in_hand}
        largest = max((one.size for one in in_hand), default=0)
        most = max(_SMALL, min(_MEDIUM, largest - 1))
        anyway = _HARMLESS if many else -1
        return [
            one for one in free if one.size <= (anyway if one.mailbox_id in mailboxes else most)
        ]

    async def _summarise(
        self,
        parser: Parser,
        group: list[Waiting],
        have: Mapping[Waiting, summaries.Claimed | None] | None = None,
    ) -> int:
        """Claim a group, parse it and store what was parsed; return how many were or are gone.

        `have`: what was claimed already, the group and perhaps more; None: nothing.
        """
        order = {one.message_id: number for number, one in enumerate(group)}
        if have is None:
            claimed = await summaries.claim(
                self.pool,
                list(order),
                node=self._node,
                parser=self._number(parser),
                seconds=self.lease_for,
            )
            claimed.sort(key=lambda message: order[message.message_id])
        else:
            claimed = [message for one in group if (message := have[one]) is not None]
        found = await parser.summarise(
            [message.raw for message in claimed],
            budget=self.slice_for,
            ids=[message.message_id for message in claimed],
        )
        for message, parsed in zip(claimed, found, strict=False):
            self._order.charge(message.mailbox_id, parsed.seconds)
        done = await summaries.store(self.pool, claimed[: len(found)], found)
        _SUMMARISED.inc(len(found))
        left = {message.message_id for message in claimed[len(found) :]}
        missing = order.keys() - left - done
        for message_id in order.keys() - left:
            self._since.pop(message_id, None)
        if missing:
            # Claimed by another, deleted, or about to be.
            until = trio.current_time() + _ELSEWHERE
            self._elsewhere.update(dict.fromkeys(missing, until))
            await summaries.drop_orphans(self.pool, missing)
        return len(order) - len(left)


def _keep_from_waiting(coming: Iterable[OnTheWay]) -> None:
    """Say of what is not parsed by now that it will not be before it is stored."""
    for one in coming:
        one.parsed.settle(())


def _is_coming(hint: object) -> bool:
    """Whether a hint is of mail that is being stored still."""
    return isinstance(hint, OnTheWay) and not hint.reply.settled


def _waiting(result: PGresult) -> list[Waiting]:
    value, number = result.get_value, _NUMBER.unpack
    return [
        Waiting(value(row, 0) or b"", value(row, 1) or b"", number(value(row, 2) or _NONE)[0])
        for row in range(result.ntuples)
    ]
