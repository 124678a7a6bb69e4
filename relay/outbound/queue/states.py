"""The law of an outbound message: its states, what may happen in each, and what follows.

Promises: `TRANSITIONS` is the whole law, and this is all of it (a test reads both, and another does
each of them to a message in PostgreSQL):

    from        what happens                            to
    ----------  --------------------------------------  ----------
    queued      CLAIMED                                 processing
                CANCELLED, EXPIRED                      cancelled
                EXHAUSTED                               failed
                HELD, QUARANTINED                       held
                RETRIED, FLUSHED                        queued
    processing  DELIVERED                               sent
                DEFERRED, RELEASED, LEASE_LOST          queued
                EXHAUSTED, REJECTED                     failed
                REFUSED                                 bounced
                SUPPRESSED, EXPIRED                     cancelled
                UNCERTAIN                               held
    held        RETRIED                                 queued
                CANCELLED, EXPIRED                      cancelled
    failed      RETRIED                                 queued
    bounced     RETRIED                                 queued
    sent        RETURNED                                bounced
    cancelled   (nothing)

`next_state` is the only way from one state to another by hand, `REPORTS` what a worker may report,
`cause_of` what the end of a delivery means; the statements of the queue do what these say.

Two things happen by themselves.  LEASE_LOST is no statement: the lease's time is over, and who
looks sees a queued message; its worker's report counts for as long as nobody has claimed it again.
QUARANTINED is what a claim, or the reaper, does with a message whose lease was lost too often.

RETURNED is what a receiver says hours later, of mail that was taken:
`relay/outbound/bounces/returned.py`.

Fails with `Forbidden` for what the law does not have (an operator's cancel of a message that is
being delivered: it may be gone already, so "cancelled" could be a lie).

Why one table: a queue whose statements each know a bit of the law ends with a retry that resets a
message somebody else is sending.  Pure.
"""

from __future__ import annotations

import enum
from typing import Final

from relay.errors import PermanentFailure
from relay.smtp.client import Verdict


class State(enum.StrEnum):
    """The state of a message; the value is what `relay.outbound_messages.status` shows."""

    QUEUED = "queued"
    PROCESSING = "processing"
    SENT = "sent"
    FAILED = "failed"
    BOUNCED = "bounced"
    CANCELLED = "cancelled"
    HELD = "held"


IS_QUEUED: Final = """(node IS NULL AND isfinite(run_at)
                    OR node IS NOT NULL AND run_at <= now())"""
"""Whether a row of `relay.outbound_due` is `queued`, in SQL: where its lease ran out, too."""


class Cause(enum.StrEnum):
    """What happened to a message."""

    CLAIMED = "claimed"  # a worker leased it
    DELIVERED = "delivered"  # 250 after the dot
    DEFERRED = "deferred"  # 4xx, network, TLS, or the route's own 5xx: tried again later
    EXHAUSTED = "exhausted"  # deferred once too often, or for too long
    REJECTED = "rejected"  # 5xx at MAIL, DATA or the dot
    REFUSED = "refused"  # 5xx at RCPT
    RETURNED = "returned"  # its receiver took it, and said later that it could not deliver it
    UNCERTAIN = "uncertain"  # no answer after the dot, and the message says: hold
    RELEASED = "released"  # its worker gave it back before it began (shutdown, throttle)
    LEASE_LOST = "lease_lost"  # its worker vanished; due again
    QUARANTINED = "quarantined"  # its workers vanished too often, or in its last attempt
    SUPPRESSED = "suppressed"  # its recipient was put on the suppression list meanwhile
    EXPIRED = "expired"  # its deadline has passed, or its token is of no use any more
    CANCELLED = "cancelled"  # by hand
    HELD = "held"  # by hand
    RETRIED = "retried"  # by hand: due now, with a fresh set of attempts
    FLUSHED = "flushed"  # by hand, with all that were deferred: due now


TRANSITIONS: dict[tuple[State, Cause], State] = {
    (State.QUEUED, Cause.CLAIMED): State.PROCESSING,
    (State.QUEUED, Cause.CANCELLED): State.CANCELLED,
    (State.QUEUED, Cause.EXPIRED): State.CANCELLED,
    (State.QUEUED, Cause.EXHAUSTED): State.FAILED,  # too old, and nobody takes its domain's mail
    (State.QUEUED, Cause.HELD): State.HELD,
    (State.QUEUED, Cause.QUARANTINED): State.HELD,
    (State.QUEUED, Cause.RETRIED): State.QUEUED,  # where it was deferred; not before its send_at
    (State.QUEUED, Cause.FLUSHED): State.QUEUED,  # where it was deferred
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
    (State.HELD, Cause.CANCELLED): State.CANCELLED,
    (State.HELD, Cause.EXPIRED): State.CANCELLED,
    (State.HELD, Cause.RETRIED): State.QUEUED,
    (State.FAILED, Cause.RETRIED): State.QUEUED,
    (State.BOUNCED, Cause.RETRIED): State.QUEUED,
    (State.SENT, Cause.RETURNED): State.BOUNCED,
}
"""The law.  What is not here does not happen."""

FINISHED = frozenset({State.SENT, State.FAILED, State.BOUNCED, State.CANCELLED})
"""States in which there is nothing left to do: the message is in the log."""

REPORTS = {
    cause: after
    for (state, cause), after in TRANSITIONS.items()
    if state is State.PROCESSING and cause is not Cause.LEASE_LOST
}
"""What a worker may report of a message that it holds, and what follows from it."""

NOT_BEGUN = frozenset({Cause.RELEASED, Cause.SUPPRESSED, Cause.EXPIRED})
"""Reports of a claim after which no delivery was begun, so that it does not count as one."""


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


def cause_of(verdict: Verdict, *, last: bool, hold_unknown: bool = False) -> Cause:
    """Say what a delivery's end means for its message.

    What a reply means in its phase `relay.smtp.client.LAW` has decided; whether this was the `last`
    attempt, the schedule of its route (`relay.outbound.pacing.backoff`).
    """
    if verdict is Verdict.DELIVERED:
        return Cause.DELIVERED
    if verdict is Verdict.BOUNCED:
        return Cause.REFUSED
    if verdict is Verdict.FAILED:
        return Cause.REJECTED
    if verdict is Verdict.UNKNOWN and hold_unknown:
        return Cause.UNCERTAIN
    return Cause.EXHAUSTED if last else Cause.DEFERRED
