"""`Settled`: what became of a claimed message, as it is recorded.

One record from the end of a delivery to the statement that makes it durable: the sender makes it,
the finaliser gathers it, `Queue.finalise` writes it.  Pure.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from relay.outbound.queue.states import Cause


class Settled(NamedTuple):
    """What became of a claimed message; `id` and `fence` say whose lease this ends.

    `cause` is one of `states.REPORTS`; `delay` the seconds until the next attempt (DEFERRED,
    RELEASED).  `began_at` and `ended_at` are instants of Trio's clock, None where no delivery was
    begun.  `phase`, `code` and `enhanced` are of what decided it; `error` is redacted, and so is
    `reply`, the words of a reply that took the message.  `steps` are those of
    `relay.outbound.queue.steps.pack`; None where the deciding phase says it all.  `peer` and `tls`
    are those of a `relay.smtp.client.Peer`, None where no server was spoken to.  `notice` is what
    its submitter is to be told of its success, `relayed` or `delivered`.
    """

    id: UUID
    fence: int
    cause: Cause
    delay: float = 0.0
    began_at: float | None = None
    ended_at: float | None = None
    phase: str | None = None
    code: int | None = None
    enhanced: str | None = None
    error: str | None = None
    steps: bytes | None = None
    peer: str | None = None
    tls: str | None = None
    reply: str | None = None
    notice: str | None = None
