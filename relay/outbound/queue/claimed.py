"""What a claim brings: messages leased to this node, with all that delivering them needs.

A `Claimed` is one row of `relay.outbound_claim`, as it came: nothing is copied on the way to its
delivery.  `Claimed.message` is the message again as its author meant it.

Promises: the fields stand in the order of the function's columns; a row with more or fewer of them
is a TypeError at once.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.queue.lanes import PRIORITIES, DueLane, lane_of
from relay.smtp.dsn import Dsn, MailParameters, Notify, RcptParameters


class Claimed(NamedTuple):
    """A leased message with all that delivering it needs; the columns of relay.outbound_claim.

    `lane` is the one that it was claimed from.  `attempt` counts deliveries begun, this one
    included; `turn` the same since it was last queued by hand (for back-off).  `due_at`: since when
    it was due this time; `first_due_at`: since it was queued, or queued again by hand.  `has_body`
    False: it is large, and `Queue.with_body` fetches it.
    `password` is encrypted; `upstream` None means the default route; `private`: whether the
    upstream may lie inside this network.  `fence` is the lease's number, the column `token`.
    `letter_of` is the token whose letter this is: `expired` if it may not be used any more,
    `parked` while its account's status does not fit.  `notify` to `require_tls` are what was asked
    for where it was submitted (`relay.smtp.dsn`), `notify` None where it was not; `is_dsn`: it
    reports to a submitter.  `require_tls` False: it goes whatever TLS its domain asks for.
    """

    id: UUID
    fence: int
    lane: int
    priority: int
    due_at: datetime
    first_due_at: datetime
    attempt: int
    turn: int
    lost: bool
    quarantined: bool
    suppressed: bool
    expired: bool
    parked: bool
    letter_of: int | None
    owner: UUID
    recipient: str
    recipient_name: str | None
    domain: str
    hold_unknown: bool
    created_at: datetime
    not_after: datetime | None
    content_id: UUID
    sender: str
    sender_name: str | None
    subject: str
    size: int
    has_body: bool
    text_body: str | None
    html_body: str | None
    headers: dict[str, str] | None
    attachments: list[dict[str, Any]] | None
    blob: bytes | None
    sender_id: UUID | None
    upstream: str | None
    username: str | None
    password: bytes | None
    private: bool | None
    notify: int | None
    orcpt: str | None
    ret: str | None
    envid: str | None
    require_tls: bool | None
    is_dsn: bool

    @property
    def dsn(self) -> Dsn | None:
        """What the next server is asked about reports; None where nobody asked."""
        if self.notify is None:
            return None
        return Dsn(
            MailParameters(self.ret, self.envid), (RcptParameters(Notify(self.notify), self.orcpt),)
        )

    @property
    def own_lane(self) -> int:
        """The lane of its route, as that was when it was claimed: of its sender, if it has one."""
        return lane_of(self.owner, self.domain, self.sender_id)

    def due_lane(self, due_at: datetime) -> DueLane:
        """The due lane in which the message will wait once put back, due at `due_at`."""
        return DueLane(self.own_lane, self.priority, due_at, self.domain, self.owner)

    def without_body(self) -> Claimed:
        """The same, as if it were large."""
        nothing = (False, *[None] * (BODY.stop - BODY.start - 1))
        return Claimed._make((*self[: BODY.start], *nothing, *self[BODY.stop :]))

    @property
    def raw(self) -> bytes | None:
        """The message itself, where its author wrote it whole: a blob that is not attachments'."""
        return None if self.attachments is not None else self.blob

    @property
    def message(self) -> Message:
        """The message as its author meant it, to this one recipient (only where `has_body`)."""
        raw = self.raw
        files, start = [], 0
        for part in self.attachments or ():
            end = start + int(part["size"])
            content = (self.blob or b"")[start:end]
            files.append(Attachment(part["filename"], part["content_type"], content))
            start = end
        return Message(
            Address(self.sender, self.sender_name or ""),
            (Address(self.recipient, self.recipient_name or ""),),
            self.subject,
            self.text_body,
            self.html_body,
            self.headers or {},
            tuple(files),
            PRIORITIES[self.priority],
            not_after=self.not_after,
            letter_of=self.letter_of,
            hold_unknown=self.hold_unknown,
            owner=self.owner,
            raw=raw,
        )


BODY = slice(Claimed._fields.index("has_body"), Claimed._fields.index("blob") + 1)
"""The columns that those of a claim share who are told the same: only one of them brings them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a claim found.

    `messages` are to be delivered before `leased_until` (seconds of Trio's clock, counted from
    before the claim was sent, so it is over here before it is over in the database).  `claim` is
    its name in the database; `claimed` is for `LaneBook.took`.  `lost` are the messages whose
    former lease had run out, `quarantined` those of them that were set aside, `suppressed` those
    cancelled because of the suppression list, `expired` those cancelled for their deadline.
    """

    messages: list[Claimed]
    claimed: dict[tuple[int, int], tuple[int, datetime]]
    leased_until: float
    claim: UUID | None = None
    lost: list[UUID] = field(default_factory=list)
    quarantined: list[UUID] = field(default_factory=list)
    suppressed: list[UUID] = field(default_factory=list)
    expired: list[UUID] = field(default_factory=list)
