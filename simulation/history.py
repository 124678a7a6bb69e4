"""What was promised, and what was seen: all that the judge goes by, besides the database itself.

Whoever stands outside the relay writes here: a client that was told 250, a program that was told
202, a sender of blobs that was told Ack; a server that got a message, a device that got a blob.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from simulation.faults import BESIDE
from simulation.places import DATABASE, HOOKS, SERVERS


class Answer(StrEnum):
    """What somebody was told."""

    KEPT = "kept"
    """It was promised: 250, 201, 202, Ack."""
    REFUSED = "refused"
    """It was told that nothing came of it."""
    DOUBT = "doubt"
    """No answer came: it may have happened, or not."""


@dataclass
class Mailbox:
    """A mailbox that somebody made."""

    address: str
    expires_at: float
    """Virtual seconds."""
    tells: bool = False
    """Whether somebody is told of what arrives."""
    quota: tuple[int, int] | None = None
    """The messages, and the bytes, that it may hold."""
    deletion_asked: float = inf
    deleted_at: float = inf
    """When that was answered 204."""


@dataclass
class Mail:
    """One try to hand a message in, to one of its recipients."""

    marker: str
    address: str
    raw: bytes
    asked_at: float = 0.0
    answer: Answer = Answer.DOUBT
    answered_at: float = 0.0
    for_good: bool = False
    """Whether it was refused for good (5xx): whoever sent it does not come back with it."""
    full: bool = False
    """Whether it was refused because the mailbox is full."""
    welcome: bool = False
    """Whether RCPT was answered 250."""
    together: bool = False
    """Whether others had it in the same transaction: of a recipient whose mailbox ends before the
    dot its answer says nothing."""
    id: str = ""
    """What the relay calls it there."""
    parsed_at: float = inf
    """When it was first seen that it has been parsed."""
    deletion_asked: float = inf
    deleted_at: float = inf
    """When that was answered 204."""


@dataclass
class Look:
    """What somebody was shown of a mailbox, or told of it."""

    of: str
    """What was asked for: a `list`, a `wait`, what is `over`, or the deletion of a `message` or a
    `mailbox`."""
    address: str
    began: float
    ended: float = 0.0
    status: int = 0
    """Of the answer; 0: none came."""
    shown: list[str] = field(default_factory=list)
    """The markers of messages; empty: of one that is not parsed."""
    whole: bool = False
    """Of a list: whether it was read to its end."""
    sought: str = ""
    """The marker of the message that was meant; of what is over, what of it."""
    judged: bool = True
    """Whether what is not there is known to be: nobody may have deleted it before."""


@dataclass
class Post:
    """A post of a webhook, as its receiver saw it."""

    event: str
    """Its webhook-id."""
    marker: str
    """Of the message that it tells of."""
    mailbox: str
    at: float
    node: str = ""
    """Who posted it."""
    told_at: float | None = None
    """When it was answered 2xx."""
    ended_at: float = inf
    """When its receiver had done with it."""
    named: bool = True
    """Whether its body names the same event."""
    content: bytes = b""
    """What is signed."""
    signatures: str = ""
    signed: bool = True
    """Whether it is signed with the secret of the mailbox's owner."""


TEXT = "It is on its way."
"""The text of every message to be sent."""


@dataclass
class Copy:
    """A message that the server in front got whole; `told`: whether its answer went out."""

    marker: str
    recipient: str
    at: float
    told: bool = True
    node: str = ""
    """Who brought it."""
    plain: bool = True
    """Whether the server did nothing odd on that connection, and was quick."""
    letter: str = ""
    """Its Message-ID: of a message the same each time."""
    server: str = ""
    """Who took it."""
    key: str = ""
    """The key of the certificate that the server showed; empty: it came in clear."""
    began: float = 0.0
    """When the server heard of it first: its MAIL, or the connection that was opened for it."""
    failed: tuple[str, ...] = ()
    """Of a report to who submitted mail: those of whom it says that they did not get it."""
    whole: bool = True
    """Whether it has the text that was written."""
    selectors: tuple[str, ...] | None = None
    """Of its signatures; None: it needs none.  In place of one that is wrong, what is wrong."""


@dataclass
class Wish:
    """What a program asked for besides the message that it sent."""

    asked_at: float
    send_at: float = 0.0
    """Virtual seconds before which nobody is to have it."""
    holds: bool = False
    """Whether it is to be held when nobody knows whether a server took it."""
    said: list[Answer] = field(default_factory=list)
    """What was said to it: with its `Idempotency-Key` it may be asked again."""
    ids: dict[tuple[str, ...], None] = field(default_factory=dict)
    """What the relay called it, each time that it said 202."""
    other: list[int] = field(default_factory=list)
    """The status that was said to another text with its key."""


@dataclass
class Refusal:
    """A server's refusal for good, of mail for somebody."""

    recipient: str
    at: float
    node: str
    """To whom it was said."""


class Reported(StrEnum):
    """What a server says afterwards of what it took."""

    GONE = "gone"
    """There is no such address."""
    POLICY = "policy"
    """It was refused for policy."""
    DELAYED = "delayed"
    COMPLAINT = "complaint"
    FORGED = "forged"
    """That it is gone, to a return path that is nobody's."""


BOUNCES = {Reported.GONE, Reported.POLICY}
"""By which a message that was sent has bounced."""
SUPPRESS = {Reported.GONE, Reported.COMPLAINT}
"""After which its recipient is not to be written to."""


@dataclass
class Report:
    """One report, of a message to one recipient."""

    marker: str
    recipient: str
    what: Reported
    answer: Answer = Answer.DOUBT


@dataclass
class Blob:
    """One try to put a blob into a device's inbox."""

    marker: str
    device: int
    answer: Answer = Answer.DOUBT
    at: float = 0.0
    answered_at: float = 0.0
    envelope: bytes = b""
    session: str = ""
    """Of several that were pushed in one session: the first; "": it came over HTTP."""
    lives: float = inf
    """Seconds for which it was to be kept; as long as the relay keeps any."""
    expires_at: float = inf
    """As it was said, or far off."""
    number: int = 0
    """What the relay calls it, where it said that."""


@dataclass
class Visit:
    """A session in which a device fetches its blobs."""

    device: int
    node: str
    began: float
    ended: float = inf
    whole: bool = False
    """Whether it ended when the device wanted."""
    missed: int = 0
    """Blobs of which it was told that they expired undelivered."""
    got: list[Delivery] = field(default_factory=list)
    """In the order in which it came."""


@dataclass
class Delivery:
    """A blob that came to a device."""

    marker: str
    at: float
    number: int
    """What the relay calls it."""
    visit: Visit
    envelope: bytes = b""


ACTIVATION, RECOVERY = "activation", "password_recovery"


@dataclass
class Suspension:
    """A time for which an account was suspended."""

    email: str
    began: float
    """It may have been, from then on."""
    since: float = inf
    """It was for certain."""
    until: float = inf
    """It may have ended."""
    ended: float = inf
    """It was over for certain: never, if it began or ended by a call that was not answered, which
    may be done at any later time."""

    def may_be(self, began: float, ended: float) -> bool:
        """Whether it may have been, at any time between two instants."""
        return self.began <= ended and began <= self.ended


@dataclass
class Letter:
    """A letter as its recipient's server got it."""

    recipient: str
    action: str
    token: str
    code: str
    at: float
    id: str
    """Its Message-ID."""


@dataclass
class Click:
    """One try to use a link."""

    token: str
    asked_at: float
    answered_at: float = 0.0
    status: int = 0
    """0: nobody answered."""
    said: tuple[str, str] | None = None
    """Of which action and login it was, it was said."""
    looks: bool = False
    """Whether only its page was asked for, which uses nothing."""


@dataclass
class Trouble:
    """A time in which a fault was at work."""

    kind: str
    began: float
    ended: float
    node: str = ""
    """Whom it was at; "": everybody."""
    party: str = ""
    """Of a partition: the other side."""
    how: str = ""
    """As the fault says it."""

    def at_work(self, began: float, ended: float) -> bool:
        """Whether it was, at any time between two instants."""
        return self.began <= ended and began <= self.ended


_LEASE_AND_COMMIT = 75.0  # seconds
_HELD = 160.0  # seconds for which what was sent may be under way: the longest fault
_SERVERS = {"database", "stall", "failover", "disk"}
_POST_WITHIN = 14.0  # seconds in which a post is answered, or its answer may be too late
_INSISTS = 5.0  # seconds for which it is tried to put down that somebody was told


def _keeps_mail(trouble: Trouble) -> bool:
    """Whether a trouble keeps its node from delivering mail, or from putting down what it did."""
    if trouble.kind == "partition":
        return trouble.party in {DATABASE, *SERVERS}
    return trouble.kind in {"kill", "freeze", "cut"}


def _keeps_posts(trouble: Trouble) -> bool:
    """Whether a trouble keeps its node from hearing what a post came to, or putting that down."""
    if trouble.kind == "partition":
        return trouble.party in {DATABASE, HOOKS}
    return trouble.kind in {"kill", "freeze", "cut"}


def _spans(
    trouble: Trouble, first: Copy, second: Copy, until: float
) -> Iterator[tuple[float, float]]:
    """Yield the times at which a trouble would excuse the second copy."""
    if _keeps_mail(trouble):
        if trouble.node == first.node:
            yield first.at - 1.0, until
        if trouble.kind == "freeze" and trouble.node == second.node and second.began:
            # Who was stopped goes on with what it had begun, and begins nothing that it has lost.
            yield second.began, second.at
        elif trouble.kind in {"freeze", "partition"} and trouble.node == second.node:
            yield second.at - _HELD, second.at
    # Who delivers it has it in hand while it waits for the database, as long as its lease lasts.
    if (
        trouble.kind in {"database", "stall", "failover", "disk"}
        and trouble.ended - trouble.began > _LEASE_AND_COMMIT
    ):
        yield first.at - 1.0, until


@dataclass
class History:
    """Everything that was said and seen."""

    apart: float = 0.0
    """Seconds by which the clocks of the database's servers differ: what is exact by one may be
    so much early or late by the other."""
    mailboxes: list[Mailbox] = field(default_factory=list)
    mail: dict[str, Mail] = field(default_factory=dict)
    """By marker and recipient, as what is sent."""
    posts: list[Post] = field(default_factory=list)
    """Of webhooks."""
    sends: dict[str, Answer] = field(default_factory=dict)
    """Messages to be sent, by marker and recipient: `M-out-7/a@one.example`."""
    wishes: dict[str, Wish] = field(default_factory=dict)
    """Of messages that programs send, by marker."""
    suppressed: dict[str, float] = field(default_factory=dict)
    """Addresses of which the relay has said that they are suppressed, and when it did so first."""
    accounts: dict[str, Answer] = field(default_factory=dict)
    """By address."""
    activated: list[str] = field(default_factory=list)
    """Addresses of accounts whose activation was answered 200."""
    asked: dict[str, list[tuple[str, Answer]]] = field(default_factory=dict)
    """By address: which letters somebody asked for, besides the first, and what was said."""
    suspensions: list[Suspension] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    """As they came."""
    clicks: list[Click] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    submitters: dict[str, str] = field(default_factory=dict)
    """Of messages that were submitted, by marker: who is told if they end badly."""
    reports: list[Report] = field(default_factory=list)
    keys: list[tuple[float, tuple[str, ...] | None]] = field(default_factory=list)
    """From when on which selectors sign; None: nobody was told."""
    blobs: dict[str, Blob] = field(default_factory=dict)
    received: dict[str, list[Delivery]] = field(default_factory=dict)
    """What devices got, by the marker of the blob."""
    visits: list[Visit] = field(default_factory=list)
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Blobs that their device acknowledged, by marker: when."""
    heard: dict[str, float] = field(default_factory=dict)
    """Those of which the device learned that they are gone, by marker: when."""
    told: list[str] = field(default_factory=list)
    """Messages, by marker and mailbox, that somebody was told of, and said so."""
    ids: dict[str, list[str]] = field(default_factory=dict)
    """By marker: what the relay called it."""
    looks: list[Look] = field(default_factory=list)
    """What was shown of mailboxes."""
    troubles: list[Trouble] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """What took long although nothing was wrong: a sentence each."""

    def excused(self, first: Copy, second: Copy) -> bool:
        """Whether a second copy of a message may be: its answer was lost, whoever brought the first
        was gone or held up before it could put that down, or the lease had run out under somebody.

        A database that is away for less than a lease is no excuse: an outcome waits for it.
        """
        until = min(second.at, first.at + _LEASE_AND_COMMIT)
        return not (first.told and first.plain) or any(
            each.at_work(*span)
            for each in self.troubles
            for span in _spans(each, first, second, until)
        )

    def over_from(self, mailbox: Mailbox) -> float:
        """Return the first instant at which a mailbox may be over."""
        return min(mailbox.expires_at - self.apart, mailbox.deletion_asked)

    def over_at(self, mailbox: Mailbox) -> float:
        """Return the instant from which on a mailbox is over."""
        return min(mailbox.expires_at + self.apart, mailbox.deleted_at)

    def two_primaries(self, began: float, ended: float) -> bool:
        """Whether an old primary may have answered who asked between two instants."""
        return any(
            each.kind == "failover" and each.how == BESIDE and each.at_work(began, ended)
            for each in self.troubles
        )

    def may_post_again(self, first: Post, second: Post) -> bool:
        """Whether an event may be posted again after it was told: whoever had told it did not hear
        that, or was gone or held up before that was put down, or the database was away for longer
        than they insist; or who posts it again was held up since they had it to post."""
        assert first.told_at is not None
        if first.told_at - first.at > _POST_WITHIN:
            return True
        until = min(second.at, first.told_at + _LEASE_AND_COMMIT)
        return self._held_up(second) or any(
            each.at_work(first.at - 1.0, until)
            for each in self.troubles
            if (each.node == first.node and _keeps_posts(each))
            or (each.kind in _SERVERS and each.ended - each.began > _INSISTS)
        )

    def may_post_both(self, first: Post, second: Post) -> bool:
        """Whether an event may be posted while another post of it is under way: who began sooner
        had lost it by then."""
        return self._held_up(first) or self._held_up(second)

    def _held_up(self, post: Post) -> bool:
        """Whether who posts may have had it to post for longer than the lease."""
        return any(
            each.at_work(post.at - _HELD, post.at)
            for each in self.troubles
            if (each.node == post.node and each.kind in {"freeze", "partition"})
            or (each.kind in _SERVERS and each.ended - each.began > _INSISTS)
        )

    def suspended(self, email: str, began: float, ended: float) -> bool:
        """Whether an account may have been suspended, at any time between two instants."""
        return any(each.email == email and each.may_be(began, ended) for each in self.suspensions)

    def refused(self, recipient: str) -> bool:
        """Whether a server has refused mail for somebody for good."""
        return any(each.recipient == recipient for each in self.refusals)

    def reported(self, marker: str, recipient: str) -> dict[Reported, Answer]:
        """Return what servers have reported of a message, and how that was answered."""
        return {
            each.what: each.answer
            for each in self.reports
            if (each.marker, each.recipient) == (marker, recipient)
        }

    def may_sign(self, began: float, ended: float) -> set[tuple[str, ...] | None]:
        """Return by which selectors a mail may be signed that was composed between two instants."""
        before = [signing for at, signing in self.keys if at <= began]
        return {*(before[-1:] or [()]), *(one for at, one in self.keys if began < at <= ended)}

    def overruled(self, copies: Iterable[Copy], recipient: str) -> Copy | None:
        """Return a copy that whoever delivered last brought, and was told is taken, before nothing
        kept them from putting that down; None: there is none.

        Whoever was refused before had lost the message to them: what they were told counts no more.
        """
        said = max((each.at for each in self.refusals if each.recipient == recipient), default=0.0)
        for copy in copies:
            again = Copy(copy.marker, recipient, copy.at + _LEASE_AND_COMMIT, node=copy.node)
            if copy.at > said and not self.excused(copy, again):
                return copy
        return None

    def troubled(self, began: float, ended: float, but: Container[str] = ()) -> bool:
        """Whether a fault was at work at any time between two instants, but for some kinds."""
        return any(each.at_work(began, ended) for each in self.troubles if each.kind not in but)
