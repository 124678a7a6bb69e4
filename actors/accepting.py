"""What those who take mail in ask of other actors: to store it, and to look at it first.

Promises
- There is an answer whatever becomes of the writer: one that has ended, or is too far behind for
  who does not wait, is an `Accepted` with an `error`.
- What was accepted is durable when the answer says so (`actors/writer.py`).

Fails: `hand_over` and `hand_over_nowait` never; `Acceptor` says in exceptions what they say in the
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import trio
from aiosmtpd.smtp import Envelope, Session

from actors.messages import Accept, Consult
from relay.accepted import Accepted, Origin
from relay.addresses import canonical
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, OverQuota, TemporaryFailure
from relay.futures import Future
from relay.ids import new_id
from relay.mailboxes.accept import Lookups, full_among
from relay.mailboxes.capture import Capture, said_of
from relay.smtp.server import Server
from supervisor import Mailbox

_ENDED = "the writer has ended"


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


class AskedMailboxes:
    """What sessions see of the database: a shared look-up, and the writer's mailbox."""

    def __init__(self, lookups: Lookups, writer: Mailbox[Accept], capture: Capture | None) -> None:
        self.find = lookups.find
        self._writer = writer
        self._capture = capture

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        named = tuple((new_id(), address) for address in recipients)
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
    **options: Any,
) -> tuple[Server, Lookups]:
    """Return a server for mail that comes in, and the look-ups that must run beside it.

    `capture`: whether mail for others' domains is taken; `filter_` is the mailbox of the operator's
    filter, `filter_hooks` what that filter has; `options`: the others of `Server`.
    """
    lookups = Lookups(pool, captures=None if capture is None else capture.takes)
    server = Server(
        AskedMailboxes(lookups, writer, capture),
        canonical,
        filter_=None if filter_ is None else AskedFilter(filter_, filter_hooks),
        **options,
    )
    return server, lookups


class Acceptor:
    """Stores mail that comes by HTTP: all of it, or what an exception says."""

    def __init__(self, writer: Mailbox[Accept], pool: Pool) -> None:
        self._writer = writer
        self._pool = pool

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
