"""`Relay`: the client whose calls block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from relay_client import _listing, _mail_report, _mailboxes, _sending, _waiting
from relay_client._answers import is_key
from relay_client._bounds import bounded
from relay_client._connect import FROM_ENVIRONMENT, Token, connection
from relay_client._current_test import CURRENT_TEST
from relay_client._exchange import Flow
from relay_client._http import Client, client, run
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


class Relay:
    """A relay at a URL.

    `url` and `token` (an API key or the administrator's token) default to `RELAY_URL` and
    `RELAY_TOKEN`; without a token, or with None, inboxes are anonymous, each opened by a token of
    its own, and nothing can be sent.  May be shared by threads.
    """

    def __init__(self, url: str | None = None, token: Token = FROM_ENVIRONMENT) -> None:
        where = connection(url, token)
        self.url, self.token = where.url, where.token
        self._http = bounded(client(Client, where))

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return visible(f"<{type(self).__name__} {self.url}>")

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _do(self, flow: Flow[T]) -> T:
        return run(self._http, flow)

    def inbox(
        self,
        ttl: float | None = None,
        local_part: str | None = None,
        *,
        domain: str | None = None,
    ) -> Inbox:
        """Make an inbox, which ends with its `with` block, or after `ttl` minutes.

        Without `ttl` it lives as long as the plan allows; `local_part` and `domain` are chosen by
        the relay unless given.
        """
        made = self._do(_mailboxes.make_inbox(ttl, local_part, domain))
        CURRENT_TEST.made(made, self)
        return Inbox(self, made, owned=True)

    def mailbox(self, address: str, session_token: str | None = None) -> Inbox:
        """Return an inbox that there is already: one made elsewhere, or captured mail's.

        Captured mail opens to the administrator's token alone.  It stays when its block ends.
        """
        return Inbox(self, InboxHandle(address, session_token), owned=False)

    def send(
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
    ) -> list[Outbound]:
        """Queue a message; one is returned for each recipient.

        An attachment is a file's path, `(name, bytes)` or `(name, bytes, type)`.  Where this client
        has to ask again it is queued once; two calls queue it twice, unless they have one
        `idempotency_key`.
        """
        queued = self._do(
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
        return [Outbound(self, one["id"], one["recipient"]) for one in queued]

    def outbound(self, message_id: str) -> Outbound:
        """Return a message that was sent."""
        return Outbound(self, message_id, None)

    def info(self) -> Info:
        """Ask where the relay takes mail; needs a token."""
        return parsed_info(self._do(_mailboxes.info()))


class Inbox:
    """An inbox: what comes to `address`."""

    def __init__(self, relay: Relay, handle: InboxHandle, *, owned: bool) -> None:
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

    def __enter__(self) -> Inbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owned:
            if _mail_report.wants(self._handle, error):
                self._handle.report = self._do(_mail_report.report(self._handle))
            self.close()

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return visible(f"<Inbox {self.address}>")

    def close(self, *, strict: bool = False) -> None:
        """End the inbox, and all that is in it.

        Where that fails its time does, and with `strict` that is an error.
        """
        self._do(_mailboxes.remove_inbox(self._handle, strict=strict))

    def wait(
        self,
        subject: Match = None,
        sender: Match = None,
        after: Message | str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Message:
        """Return the oldest message that matches, as soon as there is one; `WaitTimeout` if not.

        `subject` and `sender` are parts of the subject and the From address, in any case, or
        patterns that are searched for in them; `after` a message: only what came later.  `timeout`
        in seconds, the inbox's own (10) unless said.
        """
        found = self._do(
            _waiting.wait(
                self._handle,
                Wanted(subject, sender, id_of(after)),
                self._within(timeout),
                blocks=True,
            )
        )
        return Message(self, found)

    def wait_none(
        self,
        seconds: float = 1.0,
        *,
        subject: Match = None,
        sender: Match = None,
        after: Message | str | None = None,
    ) -> None:
        """See for so long that nothing matches; `UnexpectedMail` if something does."""
        self._do(_waiting.wait_none(self._handle, Wanted(subject, sender, id_of(after)), seconds))

    def wait_many(
        self,
        count: int,
        *,
        subject: Match = None,
        sender: Match = None,
        after: Message | str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[Message]:
        """Return the first so many that match, the oldest first; `WaitTimeout` if too few come."""
        found = self._do(
            _waiting.wait_many(
                self._handle,
                Wanted(subject, sender, id_of(after)),
                count,
                self._within(timeout),
                blocks=True,
            )
        )
        return [Message(self, one) for one in found]

    def messages(
        self, limit: int = 100, *, timeout: float = _listing.LIST_TIMEOUT
    ) -> list[Message]:
        """Read what is there, the newest first; `Unreachable` where that takes over `timeout` s."""
        return self._listed(None, limit, timeout)

    def search(
        self, q: str, limit: int = 100, *, timeout: float = _listing.LIST_TIMEOUT
    ) -> list[Message]:
        """Read what matches (`from:shop has:attachment -word "a phrase"`), in the same way."""
        return self._listed(q, limit, timeout)

    def _listed(self, q: str | None, limit: int, timeout: float) -> list[Message]:
        found = self._do(_listing.messages(self._handle, q, limit, timeout))
        return [Message(self, one) for one in found]

    def _within(self, timeout: Timeout) -> float:
        return self.timeout if isinstance(timeout, OwnTimeout) else timeout

    def _do(self, flow: Flow[T]) -> T:
        return self._relay._do(flow)


class Message(MessageData):
    """A message of an inbox."""

    def __init__(self, inbox: Inbox, found: JSON) -> None:
        super().__init__(found)
        self._inbox = inbox
        self.attachments = [Attachment(self, one) for one in found["attachments"]]
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The message byte for byte as it was accepted."""
        if self._raw is None:
            self._raw = self._inbox._do(_mailboxes.raw(self._inbox._handle, self.id))
        return self._raw

    def checks(self) -> Checks:
        """Ask whether the world would take it: SPF, DKIM, DMARC, and what readers miss."""
        return parsed_checks(self._inbox._do(_mailboxes.checks(self._inbox._handle, self.id)))

    def delete(self) -> None:
        """Delete it for good; one that is gone already is."""
        self._inbox._do(_mailboxes.delete_message(self._inbox._handle, self.id))


class Attachment(AttachmentData):
    """A file that a message brought."""

    def __init__(self, message: Message, found: JSON) -> None:
        super().__init__(found)
        self._message = message
        self._content: bytes | None = None

    @property
    def content(self) -> bytes:
        """Its bytes, decoded."""
        if self._content is None:
            inbox = self._message._inbox
            self._content = inbox._do(
                _mailboxes.attachment(inbox._handle, self._message.id, self.index)
            )
        return self._content


class Outbound:
    """A message that was sent, to one recipient."""

    def __init__(self, relay: Relay, message_id: str, recipient: str | None) -> None:
        self._relay = relay
        self.id = message_id
        self.recipient = recipient

    def __repr__(self) -> str:
        return visible(f"<Outbound {self.id}>")

    @property
    def status(self) -> State:
        """Where it is now: queued, processing, sent, failed, bounced, cancelled or held."""
        return self.entry().status

    def entry(self) -> OutboundEntry:
        """Look at it: status, attempts, error, times."""
        return self._relay._do(_sending.outbound(self.id))

    def wait(self, status: str = "sent", timeout: float = 10.0) -> None:
        """Wait until it has that status; `NotDelivered` once it never will."""
        self._relay._do(_sending.wait_outbound(self.id, status, timeout))
