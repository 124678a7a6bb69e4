"""What those who take mail in ask of other actors: to store it, and to look at it first.

Promises
- There is an answer whatever becomes of the writer: one that has ended, or is too far behind for
  who does not wait, is an `Accepted` with an `error`.
- What was accepted is durable when the answer says so (`actors/writer.py`).

Fails: `hand_over` and `hand_over_nowait` never; `Acceptor` says in exceptions what they say in the
answer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
import trio
from aiosmtpd.smtp import Envelope, Session

from actors.messages import Accept, Consult
from relay.accepted import Accepted, Origin, Why
from relay.addresses import canonical
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, OverQuota, TemporaryFailure
from relay.futures import Future
from relay.ids import new_ids
from relay.mailboxes.accept import Lookups, NobodyThere, full_among, live_among
from relay.mailboxes.capture import Capture, said_of
from relay.outbound.bounces.returned import Waiting, keep, waiting, waiting_of
from relay.returns.paths import ReturnPaths
from relay.returns.report import READ, delivered
from relay.smtp.server import Server
from supervisor import Mailbox

_ENDED = "the writer has ended"
_RETURNS = 64  # returned mails that wait to be kept; each of half a megabyte at most
_TOGETHER = 8
_COUNT_EVERY = 1.0  # s


def hand_over_nowait(writer: Mailbox[Accept], message: Accept) -> Future[Accepted]:
    """Have a message stored; for who has not the time to wait until the writer has room."""
    try:
        writer.send_nowait(message)
    except trio.WouldBlock:
        message.reply.settle(Accepted({}, "the writer is behind"))
    except (trio.ClosedResourceError, trio.BrokenResourceError):
        message.reply.settle(Accepted({}, _ENDED))
    return message.reply


async def hand_over(writer: Mailbox[Accept], message: Accept) -> Accepted:
    """Have a message stored, as soon as the writer has room; return what became of it."""
    try:
        await writer.send(message)
    except (trio.ClosedResourceError, trio.BrokenResourceError):
        return Accepted({}, _ENDED)
    return await message.reply.wait()


def both(first: Future[Accepted], second: Future[Accepted]) -> Future[Accepted]:
    """The answer to a message of which two keep a part each: an error, if either has one."""
    answer = Future[Accepted]()

    def conclude() -> None:
        if first.settled and second.settled:
            one, other = first.result(), second.result()
            error = one.error or other.error
            stored = {} if error else {**one.stored, **other.stored}
            captured = one.captured or other.captured
            answer.settle(Accepted(stored, error, one.full | other.full, captured))

    first.then(conclude)
    second.then(conclude)
    return answer


class Returns:
    """Keeps what comes to return paths; someone must `run` it.

    What waits to be read is bounded: counted when something comes, once a second at most, with what
    was kept here since then.  Of one message little may wait, counted whenever something of it
    comes: whoever has its return path fills nothing but that.  A mail to several paths is kept for
    each, and all that is kept of it has no more bytes than one could have: each has its share of
    the front.  It begins with the field that says who it is from (`is_from_nobody`).
    """

    def __init__(self, pool: Pool, paths: ReturnPaths) -> None:
        self.paths = paths
        self._pool = pool
        self._waiting: list[tuple[Sequence[str], bytes, Future[Accepted]]] = []
        self._some = trio.lowlevel.ParkingLot()
        self._counted = Waiting()
        self._counted_at = -math.inf

    def find(self, address: str) -> Future[Why | None]:
        """Why an address at the domain takes no mail: `unknown`, or `OverQuota`; None: it does."""
        answer = Future[Why | None]()
        if not self.paths.takes(address):
            answer.settle("unknown")
        elif self._counted.has_room(signed=not self.paths.is_complaints(address)):
            answer.settle(None)
        else:
            answer.fail(OverQuota("too much waits to be read"))
            if self._is_old():
                self._some.unpark()  # there may be room by now; the next one is told
        return answer

    def keep(self, reverse_path: str, addresses: Sequence[str], raw: bytes) -> Future[Accepted]:
        """Keep a mail to these addresses, which `paths` covers."""
        answer = Future[Accepted]()
        if len(self._waiting) >= _RETURNS:
            answer.settle(Accepted({}, "too much comes back at once"))
        else:
            self._waiting.append((addresses, delivered(reverse_path, raw[:READ]), answer))
            self._some.unpark()
        return answer

    async def run(self) -> None:
        """Make durable what is to be kept, until cancelled; the rest is answered with an error."""
        taken: list[tuple[Sequence[str], bytes, Future[Accepted]]] = []
        try:
            while True:
                while not self._waiting:
                    await self._some.park()
                    await self._count()
                taken, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
                await self._keep(taken)
        finally:
            for _, _, answer in (*taken, *self._waiting):
                answer.settle(Accepted({}, _ENDED))

    def _is_old(self) -> bool:
        return trio.current_time() >= self._counted_at + _COUNT_EVERY

    async def _count(self) -> None:
        """Count what waits to be read, where that was long ago."""
        if not self._is_old():
            return
        try:
            self._counted = await waiting(self._pool)
        except (DatabaseUnavailable, psycopg.Error):
            return  # who keeps something is told
        self._counted_at = trio.current_time()

    async def _keep(self, taken: Sequence[tuple[Sequence[str], bytes, Future[Accepted]]]) -> None:
        await self._count()
        to = [[(one, self.paths.message_of(one)) for one in addresses] for addresses, _, _ in taken]
        messages = {message_id for paths in to for _, message_id in paths if message_id is not None}
        try:
            of_messages = await waiting_of(self._pool, messages) if messages else {}
        except (DatabaseUnavailable, psycopg.Error) as error:
            for _, _, answer in taken:
                answer.settle(Accepted({}, type(error).__name__))
            return
        rows: list[tuple[UUID, UUID | None, bytes]] = []
        answers: list[tuple[Future[Accepted], Accepted]] = []
        for (addresses, raw, answer), paths in zip(taken, to, strict=True):
            stored: dict[str, UUID] = {}
            full: set[str] = set()
            share = raw[: READ // max(1, len(addresses))]
            for one, (address, message_id) in zip(new_ids(len(paths)), paths, strict=True):
                if message_id is None and not self.paths.is_complaints(address):
                    continue
                has_room = self._counted.has_room(signed=message_id is not None)
                if has_room and message_id is not None:
                    of_it = of_messages.get(message_id, Waiting())
                    if has_room := of_it.of_a_message_has_room():
                        of_messages[message_id] = of_it.and_one(len(share))
                if not has_room:
                    full.add(address)
                    continue
                stored[address] = one
                rows.append((one, message_id, share))
                self._counted = self._counted.and_one(len(share))
            answers.append((answer, Accepted(stored, full=frozenset(full))))
        try:
            await keep(self._pool, rows)
        except (DatabaseUnavailable, psycopg.Error) as error:
            for answer, _ in answers:
                answer.settle(Accepted({}, type(error).__name__))
            return
        for answer, accepted in answers:
            answer.settle(accepted)


class AskedMailboxes:
    """What sessions see of the database: a shared look-up, and the writer's mailbox."""

    def __init__(
        self,
        lookups: Lookups,
        writer: Mailbox[Accept],
        capture: Capture | None,
        returns: Returns | None = None,
    ) -> None:
        self._lookups = lookups
        self.find = lookups.find if returns is None else self._find
        self._writer = writer
        self._capture = capture
        self._returns = returns

    def _find(self, address: str) -> Future[Why | None]:
        assert self._returns is not None
        if not self._returns.paths.covers(address):
            return self._lookups.find(address)
        return self._returns.find(address)

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        if self._returns is not None:
            back = [address for address in recipients if self._returns.paths.covers(address)]
            if back:
                kept = self._returns.keep(reverse_path, back, raw)
                rest = {a: said for a, said in recipients.items() if a not in back}
                if not rest:
                    return kept
                return both(kept, self._stored(reverse_path, rest, raw, login, origin))
        return self._stored(reverse_path, recipients, raw, login, origin)

    def _stored(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        named = tuple(zip(new_ids(len(recipients)), recipients, strict=True))
        if self._capture is None:
            message = Accept(reverse_path, named, raw, admitted=True, origin=origin)
        else:
            captured = self._capture.among(recipients)
            message = Accept(
                reverse_path,
                named,
                raw,
                admitted=True,
                captured=captured,
                said=said_of(captured, recipients),
                login=str(login) if login else None,
                origin=origin,
            )
        return hand_over_nowait(self._writer, message)


class AskedFilter:
    """What sessions see of the operator's filter: the mailbox of the actor that runs it."""

    def __init__(self, mailbox: Mailbox[Consult], hooks: frozenset[str]) -> None:
        self.hooks = hooks
        self._mailbox = mailbox

    async def ask(
        self, hook: str, session: Session, envelope: Envelope, arguments: tuple[Any, ...]
    ) -> object:
        message = Consult(hook, session, envelope, arguments)
        try:
            self._mailbox.send_nowait(message)
        except trio.WouldBlock:
            raise TemporaryFailure("the filter is behind") from None
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise TemporaryFailure("the filter has ended") from error
        return await message.reply.wait()


def accepting_server(
    pool: Pool,
    writer: Mailbox[Accept],
    *,
    capture: Capture | None,
    filter_: Mailbox[Consult] | None,
    filter_hooks: frozenset[str],
    return_paths: ReturnPaths | None = None,
    **options: Any,
) -> tuple[Server, Sequence[Callable[[], Awaitable[None]]]]:
    """Return a server for mail that comes in, and what must run beside it.

    `capture`: whether mail for others' domains is taken; `filter_` is the mailbox of the operator's
    filter, `filter_hooks` what that filter has; `return_paths`: where what comes back is
    taken; `options`: the others of `Server`.
    """
    lookups = Lookups(pool, captures=None if capture is None else capture.takes)
    returns = None if return_paths is None else Returns(pool, return_paths)
    server = Server(
        AskedMailboxes(lookups, writer, capture, returns),
        canonical,
        filter_=None if filter_ is None else AskedFilter(filter_, filter_hooks),
        **options,
    )
    return server, [lookups.run] if returns is None else [lookups.run, returns.run]


class Acceptor:
    """Stores mail that comes by HTTP: all of it, or what an exception says.

    `capture`: what mail to others' domains is kept by, as SMTP's; None: it is not.
    """

    def __init__(self, writer: Mailbox[Accept], pool: Pool, capture: Capture | None = None) -> None:
        self._writer = writer
        self._pool = pool
        self._capture = capture

    async def accept(
        self, reverse_path: str, recipients: Sequence[tuple[UUID, str]], raw: bytes
    ) -> Mapping[str, UUID]:
        """Store a message under these ids; return those of live mailboxes, by address.

        Raises `OverQuota` where one is full (then the others may have it), `DatabaseUnavailable`
        when nothing is known to be stored.
        """
        full = await full_among(self._pool, {address for _, address in recipients})
        admitted = tuple(each for each in recipients if each[1] not in full)
        if not admitted:
            raise OverQuota("the mailbox is full")
        message = Accept(reverse_path, admitted, raw, admitted=True)
        accepted = await hand_over(self._writer, message)
        if accepted.error is not None:
            raise DatabaseUnavailable(accepted.error)
        if full or accepted.full:
            # Sent again, it is not stored again where it is now.
            raise OverQuota("a mailbox is full")
        return accepted.stored

    async def keep(
        self, reverse_path: str, recipients: Mapping[str, str], raw: bytes
    ) -> Mapping[str, UUID]:
        """Store a mail as if it had come by SMTP: for all of these, or for nobody.

        `recipients`: as they were given, by canonical address.  Raises `NobodyThere` for those who
        have no mailbox here and are not captured for, `OverQuota` where one is full,
        `DatabaseUnavailable` when nothing is known to be stored.
        """
        captured = () if self._capture is None else self._capture.among(recipients)
        live = await live_among(self._pool, recipients)
        if unknown := [one for one in recipients if one not in live and one not in captured]:
            raise NobodyThere(unknown)
        if any(live.values()):
            raise OverQuota("a mailbox is full")
        named = tuple(zip(new_ids(len(recipients)), recipients, strict=True))
        said = said_of(captured, recipients)
        message = Accept(reverse_path, named, raw, admitted=True, captured=captured, said=said)
        accepted = await hand_over(self._writer, message)
        if accepted.error is not None:
            raise DatabaseUnavailable(accepted.error)
        if accepted.full:
            raise OverQuota("a mailbox is full")
        return accepted.stored
