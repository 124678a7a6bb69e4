"""The law of an outbound message: its states, what may happen in each, and what follows.

Promises: `TRANSITIONS` is the whole law.  `next_state` is the only way from one state to another;
the queue's statements, the HTTP calls and the sender ask it, and nothing else decides.

    queued ──CLAIMED──> processing ──DELIVERED──> sent
       ^ ^                  │ │ └─REJECTED, EXHAUSTED──> failed ───┐
       │ └DEFERRED,RELEASED─┘ ├─REFUSED──────────────> bounced ────┤
       │  LEASE_LOST          ├─SUPPRESSED───────────> cancelled   │
       │                      │  EXPIRED ────────────────^         │
       │                      └─UNCERTAIN, QUARANTINED> held ──────┤
       └────────────────────────RETRIED────────────────────────────┘

A queued message also becomes cancelled (CANCELLED, EXPIRED) or held (HELD), and a held one
cancelled; RETRIED of one that was deferred makes it due at once.

Fails with `Forbidden` for what the law does not have (an operator's cancel of a message that is
being delivered: it may be gone already, so "cancelled" could be a lie).

Why one table: a queue whose statements each know a bit of the law ends with a retry that resets a
message somebody else is sending.  Pure.
"""

from __future__ import annotations

import enum

from relay.errors import PermanentFailure


class State(enum.StrEnum):
    """Where a message is; the value is what `relay.outbound_messages.status` shows."""

    QUEUED = "queued"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    BOUNCED = "bounced"
    CANCELLED = "cancelled"
    HELD = "held"

    __hash__ = str.__hash__  # the enum's own is a Python function, called for each outcome


class Cause(enum.StrEnum):
    """What happened to a message."""

    CLAIMED = "claimed"  # a worker leased it
    DELIVERED = "delivered"  # 250 after the dot
    DEFERRED = "deferred"  # 4xx, network, TLS, or the route's own 5xx: tried again later
    EXHAUSTED = "exhausted"  # deferred once too often
    REJECTED = "rejected"  # 5xx at MAIL, DATA or the dot
    REFUSED = "refused"  # 5xx at RCPT
    UNCERTAIN = "uncertain"  # no answer after the dot, and the message says: hold
    RELEASED = "released"  # its worker gave it back before it began (shutdown, throttle)
    LEASE_LOST = "lease_lost"  # its worker vanished; due again
    QUARANTINED = "quarantined"  # its workers vanished too often, or in its last attempt
    SUPPRESSED = "suppressed"  # its recipient was put on the suppression list meanwhile
    EXPIRED = "expired"  # its deadline has passed, or its token is of no use any more
    CANCELLED = "cancelled"  # by hand
    HELD = "held"  # by hand
    RETRIED = "retried"  # by hand

    __hash__ = str.__hash__


class Verdict(enum.StrEnum):
    """What one delivery came to, before the law is asked."""

    DELIVERED = "delivered"
    TEMPORARY = "temporary"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"  # it ended between the dot and the answer


TRANSITIONS: dict[tuple[State, Cause], State] = {
    (State.QUEUED, Cause.CLAIMED): State.PROCESSING,
    (State.QUEUED, Cause.CANCELLED): State.CANCELLED,
    (State.QUEUED, Cause.EXPIRED): State.CANCELLED,
    (State.QUEUED, Cause.HELD): State.HELD,
    (State.QUEUED, Cause.RETRIED): State.QUEUED,  # where it was deferred; not before its send_at
    (State.PROCESSING, Cause.DELIVERED): State.SENT,
    (State.PROCESSING, Cause.DEFERRED): State.QUEUED,
    (State.PROCESSING, Cause.RELEASED): State.QUEUED,
    (State.PROCESSING, Cause.LEASE_LOST): State.QUEUED,
    (State.PROCESSING, Cause.EXHAUSTED): State.FAILED,
    (State.PROCESSING, Cause.REJECTED): State.FAILED,
    (State.PROCESSING, Cause.REFUSED): State.BOUNCED,
    (State.PROCESSING, Cause.SUPPRESSED): State.CANCELLED,
    (State.PROCESSING, Cause.EXPIRED): State.CANCELLED,
    (State.PROCESSING, Cause.UNCERTAIN): State.HELD,
    (State.PROCESSING, Cause.QUARANTINED): State.HELD,
    (State.HELD, Cause.CANCELLED): State.CANCELLED,
    (State.HELD, Cause.EXPIRED): State.CANCELLED,
    (State.HELD, Cause.RETRIED): State.QUEUED,
    (State.FAILED, Cause.RETRIED): State.QUEUED,
    (State.BOUNCED, Cause.RETRIED): State.QUEUED,
}
"""The law.  What is not here does not happen."""

FINISHED = frozenset({State.SENT, State.FAILED, State.BOUNCED, State.CANCELLED})
"""States in which there is nothing left to do: the message is in the log."""

OUTCOMES = {
    cause: after for (state, cause), after in TRANSITIONS.items() if state is State.PROCESSING
}
"""What a worker may report of a message that it holds, and what follows from it."""

NOT_BEGUN = frozenset({Cause.RELEASED, Cause.SUPPRESSED, Cause.EXPIRED})
"""Outcomes of a claim after which no delivery was begun, so that it does not count as one."""

_ROUTE = frozenset({"connect", "tls", "ehlo", "auth"})
PHASES = ("connect", "tls", "ehlo", "auth", "mail", "rcpt", "data", "dot")
"""The phases of a delivery, in order."""


class Forbidden(PermanentFailure):
    """The law has no such transition (409).  `state` and `cause` say which."""

    def __init__(self, state: State, cause: Cause) -> None:
        super().__init__(f"a message that is {state} cannot be {cause}")
        self.state = state
        self.cause = cause


def next_state(state: State, cause: Cause) -> State:
    """Return the state that follows, or raise `Forbidden`."""
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise Forbidden(state, cause) from None


def cause_of(
    verdict: Verdict, phase: str, *, turn: int, max_attempts: int, hold_unknown: bool = False
) -> Cause:
    """Say what a delivery's end means for its message.

    `phase` (one of `PHASES`) is where it ended and `turn` which attempt it was, from 1.  A 5xx
    before MAIL concerns the route, not this message, and defers it; the attempt number
    `max_attempts` is the last.
    """
    if phase not in PHASES:
        raise ValueError(f"{phase!r} is not a phase of a delivery")
    if verdict is Verdict.DELIVERED:
        return Cause.DELIVERED
    if verdict is Verdict.PERMANENT and phase not in _ROUTE:
        return Cause.REFUSED if phase == "rcpt" else Cause.REJECTED
    if verdict is Verdict.UNKNOWN and hold_unknown:
        return Cause.UNCERTAIN
    return Cause.EXHAUSTED if turn >= max_attempts else Cause.DEFERRED
