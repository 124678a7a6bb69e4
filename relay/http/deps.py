"""The dependencies of the control plane: all that its calls use, handed in when it is made.

The application imports no actor and no supervisor: it sees them as the Protocols below.
`actors/control_deps.py` makes the `Deps`, for each start of the actor that serves.
"""

from __future__ import annotations

import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import trio

from relay.access.keys import Keys
from relay.checks.evidence import Evidence
from relay.db.listen import Hub
from relay.devices.inbox import DeviceInbox
from relay.history import History
from relay.http.credentials.page_sessions import PageSessions
from relay.http.limits.rate_limits import KnownKeys
from relay.http.probes.domain_checks import DomainChecks
from relay.http.probes.links import Links
from relay.keyring import Keyring
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.consumption import Consumption
from relay.lifecycle.report import Report
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.examination import Examined
from relay.mailboxes.mails import Mails
from relay.mailboxes.messages import Messages
from relay.mailboxes.misaddressed import Misaddressed
from relay.mailboxes.records import Arrived
from relay.mailboxes.s3 import Buckets
from relay.mailboxes.store import Store
from relay.outbound.admin import QueueAdmin
from relay.outbound.bounces.notified import Notified
from relay.outbound.pacing.held_back import Standing
from relay.outbound.routing.senders import LOOP, Senders
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.outbound.submission.sending import Enqueue, WakeOutbound
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.ports.proxy import Network
from relay.settings import Explained
from relay.smtp.chaos import Chaos
from relay.smtp.refused import RefusedRecipients
from relay.storage import AMPLE, Space
from relay.webhooks.store import Webhooks

if TYPE_CHECKING:
    from relay.checks.verdict import Verdict  # which takes a while to load
    from relay.outbound.shaping.rules import Limits as Given


class Process(Protocol):
    """One process that an actor runs."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def cpu_seconds(self) -> float | None: ...


class Named(Protocol):
    """A member of an enumeration."""

    @property
    def value(self) -> str: ...


class Node(Protocol):
    """One child in the snapshot of the supervision tree."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def started_at(self) -> float | None: ...
    @property
    def mailbox_depth(self) -> int: ...
    @property
    def last_event(self) -> str | None: ...
    @property
    def children(self) -> Sequence[Node]: ...
    @property
    def last_error(self) -> BaseException | None: ...
    @property
    def processes(self) -> Sequence[Process]: ...
    @property
    def last_event_at(self) -> float | None: ...
    @property
    def pausable(self) -> bool: ...
    @property
    def hears(self) -> Sequence[type]: ...
    @property
    def restart(self) -> Named: ...
    @property
    def strategy(self) -> Named | None: ...
    @property
    def max_restarts(self) -> float | None: ...
    @property
    def within(self) -> float | None: ...


class Event(Protocol):
    """Something that happened in the tree; `kind` names it, its text says what."""

    @property
    def kind(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def name(self) -> str: ...


class Feed(Protocol):
    """A bounded stream of items; `dropped` counts what a slow reader lost."""

    dropped: int

    def __aiter__(self) -> AsyncIterator[Any]: ...


class NotUnderstood(Exception):
    """No actor of that name understands the command."""


class NotNow(Exception):
    """A command cannot be obeyed at the moment; the error's text says why, as a clause."""


class Supervision(Protocol):
    """What an operator may see and do, by the names of actors and groups, former ones included.

    A wrong name raises KeyError; `restart`, `sweep` and `report` `NotNow`, the last two
    `NotUnderstood`.
    """

    def tree(self) -> Node: ...
    def node(self, name: str) -> Node: ...
    async def restart(self, name: str) -> None: ...
    def pause(self, name: str) -> None: ...
    def resume(self, name: str) -> None: ...
    def sweep(self, name: str) -> None: ...
    def report(self, name: str) -> None: ...
    def commands(self, node: Node) -> list[str]: ...
    def subscribe(self, capacity: int = 256) -> AbstractContextManager[Feed]: ...


class Logs(Protocol):
    """The log of this start: what is kept, and what comes."""

    def lines(self) -> list[dict[str, Any]]: ...
    def last(self, actor: str) -> dict[str, Any] | None: ...
    def follow(self, capacity: int = 10_000) -> AbstractContextManager[Feed]: ...


Accept = Callable[[str, Sequence[tuple[UUID, str]], bytes], Awaitable[Mapping[str, UUID]]]
"""Make a message durable: (reverse-path, [(message id, address)], raw) to what was stored, by
address; an address that is missing is unknown or expired.  `DatabaseUnavailable` when nothing
is known to be stored."""

Keep = Callable[[str, Mapping[str, str], bytes], Awaitable[Mapping[str, UUID]]]
"""Store a mail for all recipients as if it had come by SMTP: (reverse-path, as they were given by
canonical address, raw) to ids by address.  Raises `NobodyThere`, `OverQuota`,
`DatabaseUnavailable`, and nobody has it."""

ExtractAttachment = Callable[[bytes, int], Awaitable[tuple[str, str, bytes] | None]]
"""File name, content type and bytes of the attachment of that index in a raw message, or None;
parsed where hostile mail hurts nobody.  Raises `TemporaryFailure`."""

Examine = Callable[[bytes], Awaitable[Examined]]
"""What a check of a raw message takes; likewise."""

Judge = Callable[[Evidence, Arrived], Awaitable["Verdict"]]
"""What the world would say to a message; asks the DNS, and raises nothing."""

Fetch = Callable[[str], Awaitable[bytes]]
"""The body at an https address, within a deadline and a size, following no redirect.  Raises
`TemporaryFailure`."""

FetchObject = Callable[[str, int], Awaitable[bytes]]
"""GET a message at a pre-signed address, of so many bytes at most.  `Unreadable` where it can never
be used, `TemporaryFailure` otherwise."""

ReadyCheck = Callable[[], Awaitable[str | None]]
"""A look at a store: None when it answers, else one sentence about what does not.  Cancelled, it
ends at once."""


@dataclass(frozen=True)
class Limits:
    """How much of the relay one caller, or all of them, may hold at once."""

    streams_per_mailbox: int = 64  # waits, event streams and sockets on one mailbox
    streams: int = 3072  # the same, over all: three quarters of the connections there may be
    attachments: int = 4  # messages being taken apart for a download at once
    # Of messages on their way to readers; one always may go.  Previews have as much again; outgoing
    # files, checks, what is released and what compatible lists show, a quarter each.
    download_bytes: int = 128 << 20
    body_timeout: float = 15.0  # s; from the head of a request to the end of its body
    keep_alive_every: float = 15.0  # s between a silent stream's comments, and looks at its key
    commit_timeout: float = 25.0  # s; a change begun goes on this long without its caller
    uploads: int = 4  # bodies over MAX_BODY that are in memory at once
    upload_timeout: float = 60.0  # s to wait for a place, and then for the end of such a body
    upload_every: float = 10.0  # s in which such a body must bring `bodies.STEP`
    unparsed_timeout: float = 5.0  # s for which lists wait until what was accepted is shown


@dataclass(frozen=True)
class MailPorts:
    """Where mail comes in and is fetched: host:port each, `lmtp` a path; None: not served here."""

    smtp: str | None = None
    lmtp: str | None = None
    submission: str | None = None
    submission_tls: str | None = None
    pop3: str | None = None
    pop3_tls: str | None = None
    starttls: bool = False
    """Whether `smtp`, `submission` and `pop3` can begin TLS."""


@dataclass(frozen=True)
class Deps:
    """Everything that the application needs."""

    store: Store
    messages: Messages
    arrivals: Arrivals
    all_messages: AllMessages
    mails: Mails
    refused: RefusedRecipients  # whom this node's SMTP sessions turned down
    misaddressed: Misaddressed
    keys: Keys
    sessions: PageSessions
    hub: Hub
    accept: Accept
    keep: Keep
    extract_attachment: ExtractAttachment
    examine: Examine
    judge: Judge
    supervision: Supervision
    logs: Logs
    admin_token_hash: bytes
    draining: trio.Event
    enqueue: Enqueue
    queue_admin: QueueAdmin
    senders: Senders
    suppressions: Suppressions
    unsubscribing: Unsubscribing
    dkim_keys: DkimKeys
    signer: Signer
    domain_checks: DomainChecks
    keyring: Keyring
    webhooks: Webhooks
    accounts: Accounts
    consumption: Consumption
    history: History
    unparsed: Callable[[], Awaitable[int]]  # how many messages wait for the parser
    collector_report: Callable[[], Awaitable[Report]]
    wake_outbound: WakeOutbound
    # What this node holds back, of an owner's mail or of all, and to a domain or to any.
    destinations: Callable[[UUID | None, str | None], Sequence[Standing]] = lambda *_: ()
    limits_of: Callable[[Collection[str]], Mapping[str, Given]] = lambda _: {}  # of destinations
    private_webhooks: bool = False  # whether a URL may name a private address
    devices: DeviceInbox | None = None  # the device inbox, where this process has one
    ready_checks: Mapping[str, ReadyCheck] = field(default_factory=dict)  # by the store's name
    held_up: Callable[[], str | None] = lambda: None  # why no commit of the database ends
    space: Space = AMPLE  # of the data directory's disk
    public_url: str = ""
    other_urls: Sequence[str] = ()  # whose hosts and origins are this relay's own, too
    return_url: str = ""  # where the pages of mailed links lead afterwards; empty: nowhere
    metrics_token_hash: bytes | None = None  # what opens /metrics; None: nothing is needed
    anonymous_rate: float = 0.0  # calls a second of an address without a key; 0: no limit
    known_keys: KnownKeys = field(default_factory=KnownKeys)  # the keys that are charged as keys
    trusted_proxies: Collection[Network] = ()  # whose X-Forwarded-For is believed
    sns_topics: Iterable[str] = ()
    notification_secrets: Iterable[str] = ()  # of upstreams that report; none: nobody may
    report_field: str = ""  # by whose value an upstream knows messages; empty: there is none
    buckets: Buckets | None = None  # where SES may have put mail; None: nowhere
    fetch_object: FetchObject | None = None  # None: nothing that was put there is fetched
    notified: Notified | None = None  # takes reports of mail that was sent; None: none are ours
    upstream: str = LOOP  # the relay's own, without credentials
    mail_ports: MailPorts = field(default_factory=MailPorts)
    captures: bool = False  # whether mail for others' domains is kept
    release_to: Collection[str] = ()  # patterns of whom received mail may be released to
    max_message_bytes: int = 26_214_400  # of mail that is fetched
    links: Links | None = None  # asks whether the links of a message answer; None: nobody does
    fetch: Fetch | None = None  # None: no SNS message can be verified, so all are refused
    chaos: Chaos | None = None  # the faults of this process's SMTP sessions, where they are on
    settings: Callable[[], Sequence[Explained]] = tuple  # what is in force, and why
    version: str = ""
    limits: Limits = field(default_factory=Limits)
    ui: Path = Path(os.path.dirname(__file__)) / "ui"

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses that people see; empty ones are none."""
        return (self.public_url, *self.other_urls)


@dataclass(frozen=True)
class Serving:
    """What lives as long as one start of the actor that serves."""

    draining: trio.Event
    extract_attachment: ExtractAttachment
    examine: Examine
    announce: WakeOutbound
    """Tells the claimers of all nodes, for where none runs in this process."""


MakeDeps = Callable[[Serving], Deps]
