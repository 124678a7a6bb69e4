"""A claimed message in this node's hands, from its claim to its report.

Promises: a gate counts a job once, from `pass_gate` to `leave_gates`; what is on the wire is said
to be (`on_the_wire`), for then nothing can call it back.

Pure: instants are handed in, on the one clock that leases are counted on (Trio's).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from relay.access.owners import REPORTS_ID
from relay.outbound.pacing.gates import Gate
from relay.outbound.queue.claimed import Claimed
from relay.smtp.client import Mail, Phase

_REPORTS = REPORTS_ID.int

FRESH = 1.0
"""Seconds for which a letter that was claimed is taken for wanted."""


class Wire(Protocol):
    """The connection that a job is on, as far as its lease concerns it."""

    @property
    def in_data(self) -> bool:
        """Whether the message itself is being sent: too late to break off."""

    @property
    def awaits(self) -> Phase:
        """The phase whose reply is awaited."""

    def abort(self) -> None:
        """Break off."""


class Turn(Protocol):
    """The right to be in memory: `relay.outbound.delivery.large_turns.LargeTurn`."""

    made_at: float
    """Since when the message is there."""

    def end(self) -> None:
        """The message is there no more."""


class Job:
    """A claimed message, and how far its delivery is."""

    __slots__ = (
        "asked_at",
        "began_at",
        "connection",
        "domain",
        "following",
        "gates",
        "key",
        "leased_until",
        "lost",
        "mail",
        "message",
        "outgoing",
        "owner",
        "priority",
        "turn",
        "withdrawn",
    )

    def __init__(self, message: Claimed, leased_until: float, now: float) -> None:
        self.message = message
        # Numbers, as a UUID's hash is a Python function, and these are looked up at every step.
        self.key = message.id.int
        self.owner: Hashable = message.owner.int
        self.priority = message.priority
        self.domain = message.domain
        self.leased_until = leased_until
        self.lost = False
        """Whether the lease is somebody else's now."""
        self.mail: Mail | None = None
        """The message, once it is composed and signed."""
        self.outgoing: Mail | None = None
        """The mail that goes out, with what it is known by when it comes back, once it was first
        tried or announced."""
        self.turn: Turn | None = None
        """The turn that a large message had last: it has ended once its bytes are not in memory."""
        self.gates: tuple[Gate, ...] = ()
        """The gates that have let the job through and count it."""
        self.connection: Wire | None = None
        """The connection that the job is being delivered on."""
        self.asked_at = now
        """The instant at which the message was known to be wanted still."""
        self.began_at = 0.0
        self.following: Job | None = None
        """The job that was announced behind this one on its connection."""
        self.withdrawn = False
        """Whether `following` was taken back: the connection must not go on."""

    @property
    def is_report(self) -> bool:
        """Whether it is a report of TLS."""
        return self.owner == _REPORTS

    @property
    def tls_optional(self) -> bool:
        """Whether it goes whatever TLS its domain asks for: it says so, or reports of TLS."""
        return self.message.require_tls is False or self.is_report

    @property
    def on_the_wire(self) -> bool:
        """Whether the message itself is being sent: nothing can call it back."""
        return self.connection is not None and self.connection.in_data

    def pass_gate(self, gate: Gate) -> None:
        """Note that a gate has let the job through, and counts it until `leave_gates`."""
        if gate not in self.gates:
            self.gates = (*self.gates, gate)
            gate.busy += 1

    def leave_gates(self) -> bool:
        """Leave the gates that count the job; True if one of them has more room by that."""
        if not self.gates:
            return False
        for gate in self.gates:
            gate.busy -= 1
        self.gates = ()
        return True

    def stale(self, now: float, epoch: float) -> bool:
        """Whether a message with a deadline may have passed it since it was claimed.

        A letter's token can be used or deleted at any time: what has waited here is asked about.
        `epoch`: what to add to `now` for seconds of the database's epoch.
        """
        not_after = self.message.not_after
        if not_after is None:
            return False
        if now + epoch >= not_after.timestamp():
            return True
        return self.message.letter_of is not None and now > self.asked_at + FRESH
