"""All mail of whoever calls, mail by mail, for the calls of other programs.

Promises
  * A caller sees what `GET /api/v1/messages` shows them, mail by mail (`relay.mailboxes.mails`).
  * A list, a search and a bulk change find all mail whose 250 was said before, as with the programs
    that are stood in for (`relay.http.feeds.parsed`).
  * What is loaded of mail is within a budget that owners share; attachments are taken out where
    hostile mail hurts nobody, a few at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import trio
from quart import Response, request

from relay.http.credentials.callers import owner_of
from relay.http.feeds.parsed import until_parsed
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.operations import Call
from relay.http.problems.details import Problem, from_status, unavailable
from relay.http.responses.downloads import disposition, once
from relay.http.responses.raw_mail import RawMail
from relay.http.routing import Api
from relay.mailboxes.all_messages import CutShort
from relay.mailboxes.changes import NotParsed
from relay.mailboxes.mails import Criteria, Found, Mail

T = TypeVar("T")


class CallersMail:
    """All mail of whoever calls, mail by mail."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.deps = deps = api.deps
        self.mails = deps.mails
        limits = deps.limits
        self.downloads = api.compat_downloads
        self._parsing = FairLimiter(
            limits.attachments, max(1, limits.attachments // 4), kept=1, waiting=64
        )
        self._making = FairLimiter(3, 1, kept=1, waiting=16)
        self._raw_mail = RawMail(deps.messages, self.downloads)

    def owner(self, call: Call) -> Hashable:
        """Who answers for a call."""
        return owner_of(call.caller, request, self.deps.trusted_proxies)

    async def until_parsed(self, call: Call) -> None:
        """Return once all is shown that was accepted before; sooner if that takes too long."""
        await until_parsed(self.api, call, call.reach)

    async def search(
        self,
        call: Call,
        criteria: Criteria,
        start: int,
        limit: int,
        *,
        again: bool = False,
        room: Callable[[int], None] = lambda _: None,
    ) -> Found:
        """A part of what a caller finds; `again`: another part, for the same call; `room`: see
        `Mails.search`."""
        if not again:
            await self.until_parsed(call)
        async with self.api.heavy_calls.turn(call):
            return await self.mails.search(
                call.reach, criteria, start=start, limit=limit, room=room
            )

    async def tags(self, call: Call) -> dict[str, int]:
        """The tags of what a caller sees, each with the messages that have it."""
        async with self.api.heavy_calls.turn(call):
            return await self.mails.tags(call.reach)

    async def find(self, call: Call, mail_id: str) -> Mail:
        """The mail of an id; 404."""
        mail = await self.mails.find(call.reach, mail_id)
        if mail is None:
            raise no_such_message()
        return mail

    async def change(self, call: Call, change: Callable[[], Awaitable[T]]) -> T:
        """Change mail, to the end even if the client hangs up; 503 where it takes too long."""
        try:
            async with self.api.heavy_calls.turn(call):
                return await self.api.committed(change)
        except NotParsed as error:
            raise unavailable(f"{error}; try again.".capitalize(), retry_after=1) from None
        except CutShort as error:
            said = f"Not done: {error.count:,} messages are; call again for the rest."
            raise unavailable(said, retry_after=1) from None

    async def change_found(self, call: Call, change: Callable[[], Awaitable[T]]) -> T:
        """The same, of mail that nobody has named by its ids."""
        await self.until_parsed(call)
        return await self.change(call, change)

    async def apart(self, call: Call, work: Callable[[], T]) -> T:
        """Do what may take a while beside the loop, one for each who calls."""
        try:
            async with self._making.turn(self.owner(call)):
                return await trio.to_thread.run_sync(work)
        except Crowded:
            raise unavailable("Too many messages are being shown; try again.") from None

    async def beginning(self, mail: Mail, most: int) -> bytes:
        """The first bytes of a mail as it came; nothing where it is gone."""
        raw = await self.deps.messages.raw_piece(mail.mailbox_id, mail.id, 0, most)
        return raw or b""

    async def raw(
        self, call: Call, mail: Mail, content_type: str, headers: dict[str, str]
    ) -> Response:
        """A mail as it came, byte for byte; 404 where it has gone."""
        answer = await self._raw_mail.response(
            self.owner(call), mail.mailbox_id, mail.id, mail.entry.size, content_type, headers
        )
        if answer is None:
            raise no_such_message()
        return answer

    async def parts(
        self, call: Call, mail: Mail, indexes: Sequence[int], kept: Callable[[bytes], T]
    ) -> Mapping[int, tuple[str, str, T]]:
        """Name, type and what is `kept` of the attachments of these indexes, by index."""
        owner = self.owner(call)
        found: dict[int, tuple[str, str, T]] = {}
        held = self.downloads.hold(owner, 2 * mail.entry.size)
        try:
            async with self._parsing.turn(owner):
                raw = await self.deps.messages.raw(mail.mailbox_id, mail.id)
                for index in indexes:
                    part = None
                    if raw is not None:
                        part = await self.deps.extract_attachment(raw, index)
                    if part is not None:
                        found[index] = (part[0], part[1], kept(part[2]))
        except Crowded:
            raise unavailable("Too many attachments are being taken apart; try again.") from None
        finally:
            held.release()
        return found

    async def download(self, call: Call, mail: Mail, index: int, kind: str) -> Response:
        """An attachment, never shown where a browser would run it; 404."""
        found = (await self.parts(call, mail, [index], bytes)).get(index)
        if found is None:
            raise from_status(404)
        name, content = found[0], found[2]
        return self.downloads.response(
            once(content),
            len(content),
            self.downloads.hold(self.owner(call), len(content)),
            kind,
            {
                "Content-Disposition": disposition(name or f"attachment-{index + 1}"),
                "Content-Security-Policy": "sandbox; default-src 'none'",
            },
        )


def no_such_message() -> Problem:
    """Return the 404 of a message that is not within reach."""
    return Problem(404, "message-not-found", "message not found")
