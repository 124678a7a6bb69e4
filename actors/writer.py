"""The writer: makes accepted mail durable, many messages to one commit.

Every way in (SMTP, SNS, the relay's own loop) sends it `Accept` messages and awaits their
`reply`.  While a commit is under way messages gather in the mailbox; whoever commits next takes
them all, so the price of a flush is shared by as many as are waiting.  Where many come it waits a
moment for more (`relay.gathering`).

Promises:
- An `Accept` is settled as stored only after its COMMIT.  Message ids come with it: one
  that is handed over again after a crash is stored once and still settled.
- A message that the database refuses fails alone: its batch is done again one by one.
- A commit that has begun is not broken off by the end of the session that waits for it; when the
  writer itself is cancelled it gets `GRACE` seconds.
- A commit in doubt (its answer was lost, its wait for a standby cut short) is looked up by id on
  a fresh connection, together with a commit of the look's own: what is only visible is no 250.
- A mailbox that holds what its plan allows takes no more.  For small mail by SMTP RCPT alone checks
  that, so a quota is passed by the small messages that sessions had in hand; for large mail, and
  what came another way, it is checked here too, just before the commit, so of those only what is
  stored at the same moment passes it.  A message with a mailbox that it does not fit is refused
  whole: nobody who was accepted goes without.
- A few small messages are shown to the summariser while their commit is under way: what it parses
  meanwhile is readable a moment after the 250, where each step for itself would take its turn
  behind everybody else's.  Where it cannot be told, it is woken after the commit.
- While people wait for mail of mailboxes (`awaited`), such messages are stored together with their
  summaries: readable with the 250, by one commit instead of two.  The commit waits for the parser,
  a moment at most; where that takes longer, or the database takes no summary, the message is stored
  without.  So is a stream of them: who sends it waits for each 250.
- What is appended to a mailbox's counts is folded before it grows long (a hint: counts are right
  without, and the reaper does it, too).

Fails: while the database is away every message is settled with an error at once, and the sender
answers 4xx; nothing is kept for later, since whoever sent it still has it.  What came while a
commit waited in vain for all of its time fails with it.

| the relay dies …                     | the message                  | the client heard |
|--------------------------------------|------------------------------|------------------|
| before COMMIT                        | is not there                 | nothing          |
| after COMMIT, before the reply       | is there, and may come again | nothing          |
| after the reply                      | is there                     | 250              |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter, Histogram

from actors.messages import Accept, Durable, OnTheWay
from relay.accepted import Accepted, Origin
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, RolledBack
from relay.gathering import PATIENCE, Gathering
from relay.log import get_logger
from relay.mailboxes import capture as capturing
from relay.mailboxes.accept import (
    LARGE,
    Room,
    Row,
    fold,
    insert_many,
    insert_one,
    insert_parsed,
    room_in,
    stored_among,
)
from relay.mailboxes.capture import Capture, Captured
from relay.mailboxes.parser import Parsed
from relay.metrics import registry
from supervisor import Context, Drained, Held, Mailbox

log = get_logger()

LIVENESS = 90.0
"""Seconds in which it must be seen to go on (`ChildSpec.liveness`): a commit may take thirty."""

GRACE = 4.0
"""Seconds that a commit under way is given when the writer is cancelled."""

_LONG = 32  # statements that added to a mailbox, after which its counts are folded
_FOLD_EVERY = 0.25  # s, at most
_WATCHED = 10_000  # mailboxes
_FEW, _FEW_BYTES = 8, 64 * 1024  # messages that are parsed ahead, and their bytes
_PARSED_WITHIN = 0.05  # s; so long a commit waits for the summaries of what it stores, at most;
_STREAM, _STREAM_WITHIN = 16, 0.1  # commits and s; where so many come none waits for summaries
_PARSED_REST = 0.5  # s; after one that waited in vain none does for so long
_NAMED = 8  # messages of a commit whose ids are logged
_EVICT_EVERY = 0.25  # s, at most
_EVICT_REST = 4.0  # times as long as it took, where very many may stay
_EVICT_AGAIN = 5.0  # s; after the database was away
_ATTEMPTS = 5  # to find mailboxes live that were made a moment ago

_COMMIT_TIMEOUT = 30.0  # s; the pool's own deadlines come first
_CHECK_TIMEOUT = 5.0  # s
_SILENT = "the database does not answer"

_ROWS = Histogram(
    "relay_writer_batch_rows",
    "Messages a commit.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, math.inf),
    registry=registry,
)
_FAILED = Counter(
    "relay_writer_failed_messages", "Messages that could not be stored.", registry=registry
)


async def run(
    ctx: Context,
    *,
    pool: Pool,
    wake_summariser: Callable[[], None] = lambda: None,
    parse_ahead: Callable[[OnTheWay], bool] = lambda _: False,
    awaited: Callable[[], bool] = lambda: False,
    capture: Capture | None = None,
    batch_rows: int = 256,
    batch_bytes: int = 1024 * 1024,
    aside: int = 2,
) -> None:
    """Store messages until drained, in commits of at most `batch_rows` messages and about
    `batch_bytes` bytes.  Large messages and those for several mailboxes are stored aside, so many
    at once, and hold nobody up.  `wake_summariser` is called after each commit, but for what
    `parse_ahead` was told of before it, and said that it was; `awaited`: whether somebody waits, or
    did a moment ago, for mail of a mailbox; `capture`: what mail to others' domains is kept by."""
    writer = _Writer(
        *(ctx, pool, wake_summariser, parse_ahead, awaited),
        *(capture, batch_rows, batch_bytes, aside),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.hurry)
        nursery.start_soon(writer.fold)
        nursery.start_soon(writer.evict)
        async with trio.open_nursery() as storing:
            ctx.ready()
            await writer.commit_all(storing)
        nursery.cancel_scope.cancel()


def mailbox() -> Mailbox[Accept]:
    """Return a mailbox for a writer: what it gives up is answered."""
    return Mailbox("writer", capacity=4096, on_dead=dead)


def dead(message: Accept, attempts: int) -> None:
    """Settle a message that its mailbox gives up (`on_dead`): the sender answers 451."""
    log.error("writer.dead_letter", attempts=attempts, bytes=len(message.raw))
    _FAILED.inc()
    message.reply.settle(Accepted({}, "the message could not be stored"))


class _Writer:
    def __init__(
        self,
        ctx: Context,
        pool: Pool,
        wake_summariser: Callable[[], None],
        parse_ahead: Callable[[OnTheWay], bool],
        awaited: Callable[[], bool],
        capture: Capture | None,
        batch_rows: int,
        batch_bytes: int,
        aside: int,
    ) -> None:
        self._ctx = ctx
        self._pool = pool
        self._wake_summariser = wake_summariser
        self._parse_ahead = parse_ahead
        self._awaited = awaited
        self._unparsed_until = -math.inf  # no commit waits for summaries
        self._latest_few: deque[float] = deque(maxlen=_STREAM)  # when the latest commits began
        self._capture = capture
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._aside = trio.CapacityLimiter(aside)
        self._shields: set[trio.CancelScope] = set()
        self._latest = math.inf  # for every commit, those that begin later too
        self._appended: dict[str, int] = {}  # to a mailbox's counts, by its address
        self._long: set[str] = set()
        self._to_fold = trio.Event()
        self._to_evict = trio.Event()
        self._silent_at = -math.inf  # when the database last kept silent for all of a call's time
        self._to_evict.set()  # what was too many when the relay ended, or is by a new setting

    async def hurry(self) -> None:
        """When the writer is cancelled, give the commits under way their last seconds."""
        try:
            await trio.sleep_forever()
        finally:
            self._latest = trio.current_time() + GRACE
            for shield in self._shields:
                shield.deadline = min(shield.deadline, self._latest)

    async def fold(self) -> None:
        """Fold the counts of mailboxes that are busy, until cancelled."""
        while True:
            await self._to_fold.wait()
            self._to_fold = trio.Event()
            addresses, self._long = self._long, set()
            try:
                await fold(self._pool, addresses)
            except (DatabaseUnavailable, psycopg.Error) as error:
                log.info("writer.counts_not_folded", mailboxes=len(addresses), error=str(error))
            await trio.sleep(_FOLD_EVERY)

    async def evict(self) -> None:
        """Close the mailboxes of capture that are too many, until cancelled."""
        if self._capture is None:
            return
        failing = False
        while True:
            await self._to_evict.wait()
            self._to_evict = trio.Event()
            seconds, began = _EVICT_EVERY, trio.current_time()
            try:
                closed = await capturing.evict(self._pool, self._capture.most)
            except (DatabaseUnavailable, psycopg.Error) as error:
                if not failing:
                    log.info("writer.captured_not_evicted", error=str(error))
                failing, seconds = True, _EVICT_AGAIN
                self._to_evict.set()
            else:
                failing = False
                seconds = max(seconds, _EVICT_REST * (trio.current_time() - began))
                if closed:
                    log.info("writer.captured_evicted", mailboxes=closed)
                if closed is not None:  # until there are not too many
                    self._to_evict.set()
            await trio.sleep(seconds)

    def _note(self, batch: Sequence[Held[Accept]]) -> None:
        """Remember to whose counts a statement appended."""
        appended = self._appended
        for address in {address for one in batch for _, address in one.message.recipients}:
            if (times := appended.pop(address, 0) + 1) < _LONG:
                appended[address] = times
            else:
                self._long.add(address)
                self._to_fold.set()
        if len(appended) > _WATCHED:
            appended.clear()

    async def commit_all(self, storing: trio.Nursery) -> None:
        """Take what has gathered and store it, again and again, until drained.

        One commit at a time: commits side by side would only queue for the log's flush and for
        the lock of NOTIFY, and share fewer messages each (measured: one made the most of it).
        """
        inbox, gathering, most = self._ctx.inbox, Gathering(), self._batch_rows
        while True:
            if gathering.least(trio.current_time()) > 1:
                await inbox.gather(1)  # which may take long
                least = gathering.least(trio.current_time())
                with trio.move_on_after(PATIENCE):
                    await inbox.gather(min(least, most))
            try:
                held = await inbox.take(most)
            except Drained:
                return
            taken_at = trio.current_time()
            gathering.taken(len(held), taken_at)
            await self._dispatch(held, storing)
            del held  # or they would be in memory until the next message comes
            if self._silent_at > taken_at and (waiting := inbox.statistics().depth):
                try:
                    _settle_failed(await inbox.take(waiting), _SILENT)
                except Drained:
                    return
            self._ctx.beat()

    async def _dispatch(self, held: list[Held[Accept]], storing: trio.Nursery) -> None:
        small, taken_at = [], trio.current_time()
        for one in held:
            if _alone(one.message):
                storing.start_soon(self._store_aside, one, taken_at)
            else:
                small.append(one)
        if self._capture is None:
            for batch in self._batches(small):
                await self._store(batch, taken_at)
            return
        for kind in (
            [one for one in small if not _captured(one.message)],
            [one for one in small if _captured(one.message)],
        ):
            for batch in self._batches(kind):
                await self._store(batch, taken_at)

    async def _store_aside(self, one: Held[Accept], taken_at: float) -> None:
        async with self._aside:
            await self._store([one], taken_at)

    async def _store(self, batch: list[Held[Accept]], taken_at: float) -> None:
        """Make a batch durable and settle it, within a deadline, whoever is cancelled.

        One that waited while the database kept silent fails with what went before: it is not let
        wait as long once more.
        """
        if self._silent_at > taken_at:
            _settle_failed(batch, _SILENT)
            return
        deadline = min(trio.current_time() + _COMMIT_TIMEOUT, self._latest)
        with trio.CancelScope(shield=True, deadline=deadline) as shield:
            self._shields.add(shield)
            try:
                await self._commit(batch)
            finally:
                self._shields.discard(shield)
        if shield.cancelled_caught:
            log.error("writer.commit_timed_out", messages=len(batch))
            self._silent_at = trio.current_time()
            _settle_failed(batch, "the commit took too long")

    async def _commit(self, batch: list[Held[Accept]]) -> None:
        again = any(one.attempts > 1 for one in batch)
        stored: Collection[UUID] | None
        began = trio.current_time()
        try:
            batch = await self._admit(batch)
            if not batch:
                return
            stored = await self._insert(batch, again=again)
        except (RolledBack, psycopg.Error, UnicodeError) as error:
            # The last: no text that can be stored.
            if len(batch) > 1:
                log.warning("writer.batch_refused", messages=len(batch), error=str(error))
                for one in batch:
                    await self._commit([one])
                return
            log.exception("writer.message_refused", bytes=len(batch[0].message.raw))
            stored = None
        except DatabaseUnavailable as error:
            silent = trio.current_time() - began >= self._pool.call_timeout
            stored = await self._look(batch, str(error))
            if silent and stored is None:
                self._silent_at = trio.current_time()
            if stored is not None:
                self._wake_summariser()
                # What is there may be from before: a repeat.  Of the others nobody knows.
                known: list[Held[Accept]] = []
                unknown: list[Held[Accept]] = []
                for one in batch:
                    (known if _is_there(one.message, stored) else unknown).append(one)
                _settle_failed(unknown, "the connection to the database was lost")
                batch = known
        if stored is None:
            _settle_failed(batch, "the database did not take the message")
        else:
            _settle_stored(batch, stored)
            self._note(batch)

    async def _admit(self, batch: list[Held[Accept]]) -> list[Held[Accept]]:
        """Settle messages that no longer fit a mailbox of theirs, and return the others.

        All of a message is refused, or a recipient who was accepted would go without: its sender
        tries again, and hears at RCPT who has no room.  One that was handed over again may be
        stored, and is not asked for.
        """
        asked = [one for one in batch if one.attempts == 1 and _may_be_full(one.message)]
        if not asked:
            return batch
        room = await room_in(
            self._pool, {address for one in asked for _, address in one.message.recipients}
        )
        if not room:
            return batch
        rest = []
        for one in batch:
            addresses = [address for _, address in one.message.recipients if address in room]
            size = len(one.message.raw)
            full = frozenset(each for each in addresses if not _fits(room[each], size))
            if full and one.attempts == 1:
                one.message.reply.settle(Accepted({}, full=full))
                one.done()
                continue
            rest.append(one)
            for each in addresses:  # what is stored before it counts
                messages, left = room[each]
                room[each] = Room(
                    None if messages is None else messages - 1,
                    None if left is None else left - size,
                )
        return rest

    def _batches(self, held: Sequence[Held[Accept]]) -> Iterator[list[Held[Accept]]]:
        """Cut what was taken so that no statement grows beyond measure."""
        batch: list[Held[Accept]] = []
        size = 0
        for one in held:
            if size + len(one.message.raw) > self._batch_bytes and batch:
                yield batch
                batch, size = [], 0
            batch.append(one)
            size += len(one.message.raw)
        if batch:
            yield batch

    async def _insert(self, batch: list[Held[Accept]], *, again: bool) -> Collection[UUID]:
        """Store a batch; return the ids of what is stored, which is parsed ahead or announced."""
        if again:
            # Its first attempt may have been committed: ON CONFLICT would store nothing and
            # return nothing.
            before = await stored_among(self._pool, _ids(batch), timeout=_CHECK_TIMEOUT)
            stored = before | (await self._insert_rows(batch)).keys()
            self._wake_summariser()
            return stored
        coming = OnTheWay(_named(batch)) if _are_few(batch) else None
        if coming is None or not self._parse_ahead(coming):
            found = await self._insert_rows(batch)
            self._wake_summariser()
            return found
        try:
            together = await self._insert_parsed(batch, coming)
            found = await self._insert_rows(batch) if together is None else together
            coming.reply.settle(Durable(found, summarised=together is not None))
        finally:
            coming.reply.settle(Durable())  # they are not stored, as far as is known
        return found

    async def _insert_parsed(
        self, batch: list[Held[Accept]], coming: OnTheWay
    ) -> dict[UUID, bytes] | None:
        """Store a batch with its summaries, if somebody waits for mail and they come in time.

        None: nothing was stored, and it is to be done without.
        """
        message, now = batch[0].message, trio.current_time()
        if _alone(message) or _captured(message) or now < self._unparsed_until:
            return None
        self._latest_few.append(now)
        streaming = len(self._latest_few) == _STREAM and now - self._latest_few[0] < _STREAM_WITHIN
        if streaming or not self._awaited():
            return None
        parsed: Sequence[Parsed] = ()
        with trio.move_on_after(_PARSED_WITHIN) as waiting:
            parsed = await coming.parsed.wait()
        if waiting.cancelled_caught:
            self._unparsed_until = trio.current_time() + _PARSED_REST
        if not parsed:
            return None
        try:
            return await insert_parsed(self._pool, *_rows(batch), parsed)
        except (RolledBack, psycopg.Error) as error:
            log.info("writer.stored_without_summaries", messages=len(batch), error=str(error))
            return None

    async def _insert_rows(self, batch: list[Held[Accept]]) -> dict[UUID, bytes]:
        message = batch[0].message
        if self._capture is not None and _captured(message):
            stored = await self._insert_captured(batch, self._capture)
            await self._keep_said(batch)
            return stored
        if _alone(message):
            return await insert_one(
                self._pool, message.reverse_path, message.recipients, message.raw, message.origin
            )
        return await insert_many(self._pool, *_rows(batch))

    async def _insert_captured(
        self, batch: list[Held[Accept]], capture: Capture
    ) -> dict[UUID, bytes]:
        """Of what was stored before, nobody says in which mailbox: b"" stands there."""
        messages = [
            Captured(one.recipients, one.reverse_path, one.raw, one.login, one.captured, one.origin)
            for one in (held.message for held in batch)
        ]
        stored: dict[UUID, bytes] = {}
        for _ in range(_ATTEMPTS):
            now, made = await capturing.store(self._pool, messages, capture.ttl)
            stored |= now
            if made:
                self._to_evict.set()
            named = {id_: address for one in messages for id_, address in one.recipients}
            missing = named.keys() - stored.keys()
            if not missing:
                return stored
            # Before, by who handed it over first.
            stored |= dict.fromkeys(await stored_among(self._pool, missing), b"")
            over = {named[id_] for id_ in named.keys() - stored.keys()}
            over &= {address for one in messages for address in one.captured}
            if not over:
                return stored
            # Mailboxes that are over; another writer may have been first.
            await capturing.set_aside(self._pool, sorted(over))
        raise DatabaseUnavailable("mailboxes of captured mail end as fast as they are made")

    async def _keep_said(self, batch: list[Held[Accept]]) -> None:
        """Show new mailboxes of international domains as they were said; or in A-labels, if that
        fails: their mail is stored, and they are found either way."""
        said = dict(each for one in reversed(batch) for each in one.message.said)
        if not said:
            return
        try:
            await capturing.keep_said(self._pool, said)
        except (DatabaseUnavailable, psycopg.Error) as error:
            log.warning("writer.spelling_lost", mailboxes=len(said), error=str(error))

    async def _look(self, batch: list[Held[Accept]], why: str) -> set[UUID] | None:
        """The commit is in doubt: what of the batch is durable?  None: unknown.

        None found is unknown as well: the server may still be at work on the statement.
        """
        log.warning("writer.database_unavailable", messages=len(batch), error=why)
        try:
            return await stored_among(self._pool, _ids(batch), timeout=_CHECK_TIMEOUT) or None
        except (DatabaseUnavailable, psycopg.Error):
            return None


def _alone(message: Accept) -> bool:
    """Whether a message has a statement to itself."""
    return len(message.recipients) != 1 or len(message.raw) > LARGE


def _are_few(batch: Sequence[Held[Accept]]) -> bool:
    """Whether a batch is parsed in a moment."""
    named = _named(batch)
    return len(named) <= _FEW and sum(len(raw) for _, raw in named) <= _FEW_BYTES


def _named(batch: Sequence[Held[Accept]]) -> tuple[tuple[UUID, bytes], ...]:
    return tuple((id_, one.message.raw) for one in batch for id_, _ in one.message.recipients)


def _rows(batch: Sequence[Held[Accept]]) -> tuple[list[Row], list[Origin | None]]:
    """The rows of messages to one mailbox each, and where they came from: nothing, if nowhere."""
    rows, origins = [], []
    for one in batch:
        message = one.message
        identity, address = message.recipients[0]
        rows.append(Row(identity, address, message.reverse_path, message.raw))
        origins.append(message.origin)
    return rows, origins if any(origins) else []


def _is_there(message: Accept, stored: Collection[UUID]) -> bool:
    """Whether a message was stored, of which that is there.

    One statement stores of it what it ever will; but mailboxes of capture that are over are made
    anew by another, and who was accepted for one must not go without.
    """
    captured = [id_ for id_, address in message.recipients if address in message.captured]
    if captured:
        return all(id_ in stored for id_ in captured)
    return any(id_ in stored for id_, _ in message.recipients)


def _captured(message: Accept) -> bool:
    """Whether a message is stored in the way of capture."""
    return bool(message.captured) or message.login is not None


def _fits(room: Room, size: int) -> bool:
    return (room.messages is None or room.messages >= 1) and (
        room.bytes is None or room.bytes >= size
    )


def _may_be_full(message: Accept) -> bool:
    """Whether to ask for room at the last moment."""
    return not message.admitted or len(message.raw) > LARGE


def _ids(batch: Sequence[Held[Accept]]) -> list[UUID]:
    return [identity for one in batch for identity, _ in one.message.recipients]


def _settle_stored(batch: Sequence[Held[Accept]], stored: Collection[UUID]) -> None:
    size = 0
    for one in batch:
        message = one.message
        message.reply.settle(
            Accepted(
                {address: id_ for id_, address in message.recipients if id_ in stored},
                captured=bool(message.captured),
            )
        )
        one.done()
        size += len(message.raw)
    _ROWS.observe(len(stored))
    if len(stored) == 1:
        log.info("writer.stored", messages=1, bytes=size, id=str(next(iter(stored))))
    else:
        some = [str(one) for one in islice(stored, _NAMED)]
        log.info("writer.stored", messages=len(stored), bytes=size, ids=some)


def _settle_failed(batch: Sequence[Held[Accept]], error: str) -> None:
    for one in batch:
        if not one.message.reply.settled:
            _FAILED.inc()
            one.message.reply.settle(Accepted({}, error))
        one.done()
