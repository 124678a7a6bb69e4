"""`AsyncRelay`: the client for asyncio and Trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import httpx

from relay_client import _listing, _mail_report, _mailboxes, _sending, _waiting
from relay_client._answers import is_key
from relay_client._bounds import bounded
from relay_client._connect import FROM_ENVIRONMENT, Token, connection
from relay_client._current_test import CURRENT_TEST
from relay_client._exchange import Flow
from relay_client._http import AsyncClient, client, run_async, shielded
from relay_client._mailboxes import InboxHandle
from relay_client._records import (
    JSON,
    AttachmentData,
    Checks,
    Info,
    MessageData,
    OutboundEntry,
    State,
    id_of,
    parsed_checks,
    parsed_info,
)
from relay_client._sending import NewAttachment
from relay_client._text import visible
from relay_client._waiting import OWN_TIMEOUT, OwnTimeout, Timeout
from relay_client._wanted import Match, Wanted

T = TypeVar("T")

__tracebackhide__ = True  # a test that fails shows the test


class AsyncRelay:
    """A relay at a URL.

    `url` and `token` (an API key or the administrator's token) default to `RELAY_URL` and
    `RELAY_TOKEN`; without a token, or with None, inboxes are anonymous, each opened by a token of
    its own, and nothing can be sent.  `Relay` has the same surface, without `await`.
    """

    _limits = httpx.Limits(max_connections=100, max_keepalive_connections=20)  # httpx's own

    def __init__(self, url: str | None = None, token: Token = FROM_ENVIRONMENT) -> None:
        where = connection(url, token)
        self.url, self.token = where.url, where.token
        self._http = bounded(client(AsyncClient, where, limits=self._limits))

    async def __aenter__(self) -> AsyncRelay:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return visible(f"<{type(self).__name__} {self.url}>")

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _do(self, flow: Flow[T]) -> T:
        return await run_async(self._http, flow)

    def inbox(
        self,
        ttl: float | None = None,
        local_part: str | None = None,
        *,
        domain: str | None = None,
    ) -> AsyncInboxContext:
        """Make an inbox: `async with relay.inbox() as inbox`, or `await relay.inbox()`.

        It ends with its block, or after `ttl` minutes.

        Without `ttl` it lives as long as the plan allows; `local_part` and `domain` are chosen by
        the relay unless given.
        """
        return AsyncInboxContext(self, partial(_mailboxes.make_inbox, ttl, local_part, domain))

    def mailbox(self, address: str, session_token: str | None = None) -> AsyncInbox:
        """Return an inbox that there is already: one made elsewhere, or captured mail's.

        Captured mail opens to the administrator's token alone.  It stays when its block ends.
        """
        return AsyncInbox(self, InboxHandle(address, session_token), owned=False)

    async def send(
        self,
        *,
        from_: str,
        to: str | Sequence[str],
        subject: str = "",
        text: str | None = None,
        html: str | None = None,
        headers: Mapping[str, str] | None = None,
        attachments: Iterable[NewAttachment] = (),
        idempotency_key: str | None = None,
    ) -> list[AsyncOutbound]:
        """Queue a message; one is returned for each recipient.

        An attachment is a file's path, `(name, bytes)` or `(name, bytes, type)`.  Where this client
        has to ask again it is queued once; two calls queue it twice, unless they have one
        `idempotency_key`.
        """
        queued = await self._do(
            _sending.send(
                from_=from_,
                to=to,
                subject=subject,
                text=text,
                html=html,
                headers=headers,
                attachments=attachments,
                idempotency_key=idempotency_key,
            )
        )
        return [AsyncOutbound(self, one["id"], one["recipient"]) for one in queued]

    def outbound(self, message_id: str) -> AsyncOutbound:
        """Return a message that was sent."""
        return AsyncOutbound(self, message_id, None)

    async def info(self) -> Info:
        """Ask where the relay takes mail; needs a token."""
        return parsed_info(await self._do(_mailboxes.info()))


class AsyncRelayOfATest(AsyncRelay):
    """One that keeps no connection for the next call, so that nobody has to close it.

    What the fixtures give: they are no asynchronous ones, which each plug-in runs in its own way or
    not at all, and the event loop of their test is not theirs, to close anything in it.
    """

    _limits = httpx.Limits(max_keepalive_connections=0)


class AsyncInboxContext:
    """An inbox that is about to be made, once: to be awaited, or entered with `async with`."""

    def __init__(self, relay: AsyncRelay, make: Callable[[], Flow[InboxHandle]]) -> None:
        self._relay, self._making = relay, make
        self._inbox: AsyncInbox | None = None

    def __await__(self) -> Generator[Any, Any, AsyncInbox]:
        return self._make().__await__()

    async def _make(self) -> AsyncInbox:
        if self._inbox is None:
            handle = await self._relay._do(self._making())
            CURRENT_TEST.made(handle, self._relay)
            self._inbox = AsyncInbox(self._relay, handle, owned=True)
        return self._inbox

    async def __aenter__(self) -> AsyncInbox:
        return await self._make()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._inbox is not None:
            await self._inbox._end(error)


class AsyncInbox:
    """An inbox: what comes to `address`."""

    def __init__(self, relay: AsyncRelay, handle: InboxHandle, *, owned: bool) -> None:
        self._relay, self._handle, self._owned = relay, handle, owned
        handle.by_key = is_key(relay.token)
        handle.anonymous = relay.token is None
        self.address: str = handle.address
        self.session_token = handle.session_token
        """What opens an anonymous inbox; None where the relay's token does."""
        self.expires_at = handle.expires_at
        """When it ends, of one made here: the plan may allow less than was asked for."""
        self.timeout: float = _waiting.TIMEOUT
        """Seconds for which `wait` and `wait_many` wait at most unless that is said."""

    async def __aenter__(self) -> AsyncInbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owned:
            await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        # Also where the block was cancelled, by a test's time limit or Ctrl-C.
        wants = _mail_report.wants(self._handle, error)
        with shielded(_mailboxes.CLOSES_WITHIN + wants * _mail_report.READS_WITHIN):
            if wants:
                self._handle.report = await self._do(_mail_report.report(self._handle))
            await self.close()

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return visible(f"<AsyncInbox {self.address}>")

    async def close(self, *, strict: bool = False) -> None:
        """End the inbox, and all that is in it.

        Where that fails its time does, and with `strict` that is an error.
        """
        await self._do(_mailboxes.remove_inbox(self._handle, strict=strict))

    async def wait(
        self,
        subject: Match = None,
        sender: Match = None,
        after: AsyncMessage | str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> AsyncMessage:
        """Return the oldest message that matches, as soon as there is one; `WaitTimeout` if not.

        `subject` and `sender` are parts of the subject and the From address, in any case, or
        patterns that are searched for in them; `after` a message: only what came later.  `timeout`
        in seconds, the inbox's own (10) unless said.
        """
        found = await self._do(
            _waiting.wait(
                self._handle, Wanted(subject, sender, id_of(after)), self._within(timeout)
            )
        )
        return AsyncMessage(self, found)

    async def wait_none(
        self,
        seconds: float = 1.0,
        *,
        subject: Match = None,
        sender: Match = None,
        after: AsyncMessage | str | None = None,
    ) -> None:
        """See for so long that nothing matches; `UnexpectedMail` if something does."""
        await self._do(
            _waiting.wait_none(self._handle, Wanted(subject, sender, id_of(after)), seconds)
        )

    async def wait_many(
        self,
        count: int,
        *,
        subject: Match = None,
        sender: Match = None,
        after: AsyncMessage | str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[AsyncMessage]:
        """Return the first so many that match, the oldest first; `WaitTimeout` if too few come."""
        found = await self._do(
            _waiting.wait_many(
                self._handle, Wanted(subject, sender, id_of(after)), count, self._within(timeout)
            )
        )
        return [AsyncMessage(self, one) for one in found]

    async def messages(
        self, limit: int = 100, *, timeout: float = _listing.LIST_TIMEOUT
    ) -> list[AsyncMessage]:
        """Read what is there, the newest first; `Unreachable` where that takes over `timeout` s."""
        return await self._listed(None, limit, timeout)

    async def search(
        self, q: str, limit: int = 100, *, timeout: float = _listing.LIST_TIMEOUT
    ) -> list[AsyncMessage]:
        """Read what matches (`from:shop has:attachment -word "a phrase"`), in the same way."""
        return await self._listed(q, limit, timeout)

    async def _listed(self, q: str | None, limit: int, timeout: float) -> list[AsyncMessage]:
        found = await self._do(_listing.messages(self._handle, q, limit, timeout))
        return [AsyncMessage(self, one) for one in found]

    def _within(self, timeout: Timeout) -> float:
        return self.timeout if isinstance(timeout, OwnTimeout) else timeout

    async def _do(self, flow: Flow[T]) -> T:
        return await self._relay._do(flow)


class AsyncMessage(MessageData):
    """A message of an inbox."""

    def __init__(self, inbox: AsyncInbox, found: JSON) -> None:
        super().__init__(found)
        self._inbox = inbox
        self.attachments = [AsyncAttachment(self, one) for one in found["attachments"]]
        self._raw: bytes | None = None

    @property
    def raw(self) -> Awaitable[bytes]:
        """The message byte for byte as it was accepted: `await message.raw`."""
        return self._fetch()

    async def _fetch(self) -> bytes:
        if self._raw is None:
            self._raw = await self._inbox._do(_mailboxes.raw(self._inbox._handle, self.id))
        return self._raw

    async def checks(self) -> Checks:
        """Ask whether the world would take it: SPF, DKIM, DMARC, and what readers miss."""
        return parsed_checks(await self._inbox._do(_mailboxes.checks(self._inbox._handle, self.id)))

    async def delete(self) -> None:
        """Delete it for good; one that is gone already is."""
        await self._inbox._do(_mailboxes.delete_message(self._inbox._handle, self.id))


class AsyncAttachment(AttachmentData):
    """A file that a message brought."""

    def __init__(self, message: AsyncMessage, found: JSON) -> None:
        super().__init__(found)
        self._message = message
        self._content: bytes | None = None

    @property
    def content(self) -> Awaitable[bytes]:
        """Its bytes, decoded: `await attachment.content`."""
        return self._fetch()

    async def _fetch(self) -> bytes:
        if self._content is None:
            inbox = self._message._inbox
            self._content = await inbox._do(
                _mailboxes.attachment(inbox._handle, self._message.id, self.index)
            )
        return self._content


class AsyncOutbound:
    """A message that was sent, to one recipient."""

    def __init__(self, relay: AsyncRelay, message_id: str, recipient: str | None) -> None:
        self._relay = relay
        self.id = message_id
        self.recipient = recipient

    def __repr__(self) -> str:
        return visible(f"<AsyncOutbound {self.id}>")

    @property
    def status(self) -> Awaitable[State]:
        """Where it is now: queued, processing, sent, failed, bounced, cancelled or held."""
        return self._status()

    async def _status(self) -> State:
        return (await self.entry()).status

    async def entry(self) -> OutboundEntry:
        """Look at it: status, attempts, error, times."""
        return await self._relay._do(_sending.outbound(self.id))

    async def wait(self, status: str = "sent", timeout: float = 10.0) -> None:
        """Wait until it has that status; `NotDelivered` once it never will."""
        await self._relay._do(_sending.wait_outbound(self.id, status, timeout))
