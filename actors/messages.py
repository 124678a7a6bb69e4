"""The messages that actors send each other.

Messages are frozen: what is in a mailbox may be handed to an actor twice (its first reader
crashed), so nobody may change one.  The one exception is the `reply` that a message may carry, a
`relay.futures.Future`: it is settled at most once; settling it again changes nothing.

Messages are hints (`Wake`, `OnTheWay`, `SweepNow`, `Due`), work (`Accept`, `Deliver`) or agreements
on how much work may come (`Credit`, `Claiming`).  A lost hint costs time until the next sweep;
accepted mail is lost only together with the session that waits for its reply, and that session then
answers 4xx; a lost `Deliver` is a lease that runs out, after which its mail is due again; one that
nobody reads is taken back long before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from aiosmtpd.smtp import Envelope, Session

from relay.accepted import Accepted, Origin
from relay.futures import Future
from relay.mailboxes.parser import Parsed
from relay.outbound.queue.claimed import Batch
from relay.outbound.queue.lanes import DueLane


@dataclass(frozen=True)
class Wake:
    """Something may be due: look.

    `due_at` is the earliest instant announced (epoch seconds of the database's clock), or
    None when the sender does not know.  `reason` is what was announced, as it came.
    """

    due_at: float | None = None
    reason: str = ""


class Durable(NamedTuple):
    """What became of messages that were on the way.

    `mailboxes` (16 bytes) by message id, without those that were not stored or of which nobody
    knows; `summarised`: their summaries were stored with them.
    """

    mailboxes: Mapping[UUID, bytes] = {}
    summarised: bool = False


@dataclass(frozen=True)
class OnTheWay:
    """These messages, few and small, are being stored: they may be parsed meanwhile.

    `messages` are (message id, bytes) pairs.  `parsed` comes first: their summaries, in that order,
    to be stored with them, or nothing; whoever stores them need not wait for it.  The reply comes
    once they are durable.
    """

    messages: tuple[tuple[UUID, bytes], ...]
    parsed: Future[Sequence[Parsed]] = field(default_factory=Future, compare=False)
    reply: Future[Durable] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class SweepNow:
    """An operator's command: do now what is done every so often, whatever the clock says."""


@dataclass(frozen=True)
class Report:
    """An operator's command: write the figures to the log."""


@dataclass(frozen=True)
class Accept:
    """One message for one or more mailboxes of this relay, to be made durable.

    `recipients` are (message id, canonical address) pairs; the ids are made by the sender,
    so handing the same `Accept` over twice stores it once.  `admitted`: their mailboxes had room
    when they were named (RCPT), so that one is refused for its quota only together with all the
    others.  `captured`: addresses among them whose mailboxes are made if they are missing; `said`:
    how those of international domains were said (`relay.addresses.as_said`), by their address;
    `login`: as whom its sender signed in; `origin`: from where it came by SMTP; None: from this
    machine, or another way.
    """

    reverse_path: str
    recipients: tuple[tuple[UUID, str], ...]
    raw: bytes
    reply: Future[Accepted] = field(default_factory=Future, compare=False)
    admitted: bool = False
    captured: tuple[str, ...] = ()
    said: tuple[tuple[str, str], ...] = ()
    login: str | None = None
    origin: Origin | None = None


@dataclass(frozen=True)
class Consult:
    """A question to the operator's ingest filter: one hook of one SMTP session.

    `session` and `envelope` are aiosmtpd's objects, kept for the filter alone.  The reply is what
    the hook returned, or None when it failed.
    """

    hook: str
    session: Session
    envelope: Envelope
    arguments: tuple[Any, ...] = ()
    reply: Future[object] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class Due:
    """To the claimer: these lanes have something due at these times; none named means: look.

    `announce`: other nodes do not know it yet; the claimer tells them, for many of these at once.
    """

    due_lanes: tuple[DueLane, ...]
    announce: bool = False


@dataclass(frozen=True)
class Credit:
    """From the sender to the claimer: credit to claim `count` more messages, as in flow control.

    A count of 0 is worth a look, too: what was closed may be open again.
    `fresh`: this is all the credit there is, whatever was said before (the sender or the claimer
    has just started); then `held` says how many of each lane, and whose, are in the sender's hands,
    else `left` how many of a lane have left them since it said so last.  `kept`: so much of all the
    credit is for high priority, and as much again for lanes of which little is in hand, and half as
    much for such owners; None: as was said last.
    """

    count: int
    fresh: bool = False
    kept: int | None = None
    left: Sequence[tuple[int, int]] = ()
    held: Sequence[tuple[int, UUID, int]] = ()


@dataclass(frozen=True)
class NothingHigh:
    """From the claimer to the sender: high mail that was announced is not for this node."""


@dataclass(frozen=True)
class Claiming:
    """From the claimer to the sender: it has just started and has no credit."""


@dataclass(frozen=True)
class Deliver:
    """From the claimer to the sender: claimed messages, to be delivered within their lease.

    `epoch`: what to add to an instant of Trio's clock for seconds of the database's epoch.  The
    reply is True from the sender, which answers for the batch from then on, or False from the
    claimer, which has taken it back unread, and with it all the credit that it had: whoever is
    first.
    """

    batch: Batch
    epoch: float
    reply: Future[bool] = field(default_factory=Future, compare=False)
