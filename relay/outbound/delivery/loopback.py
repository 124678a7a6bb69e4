"""The loop: mail of the queue for a mailbox of this relay, with no network in between.

Promises
- What is stored is stored once, however often it is tried: a message is accepted by its own id.
- Only to the relay's own domains, and to all where mail is captured; no such mailbox is a bounce, a
  full one is tried again later, and so is what is not known to be stored.
- Nothing is begun while the disk is nearly full, which counts as no attempt.

Fails: by outcomes, in the words of SMTP.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter

from relay.accepted import Accepted
from relay.addresses import canonical
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.jitter import jittered
from relay.mailboxes.accept import stored_among
from relay.metrics import registry
from relay.smtp.client import Mail, Outcome, Phase, Verdict
from relay.storage import AMPLE, REFUSED, Space

_WHEN_SHORT = 0.25  # retry units, after which it is tried again while the disk is nearly full
LOOPED = Counter(
    "relay_loop_messages", "Messages delivered into the relay's own mailboxes.", registry=registry
)
_NO_SPACE = REFUSED.labels("delivery")


Store = Callable[[str, UUID, str, bytes], Awaitable[Accepted]]
"""Make a message durable: reverse-path, id, canonical address, bytes."""


class Loopback:
    """Delivery into the mailboxes of `domains`, and into those that `captures` says are made."""

    def __init__(
        self,
        pool: Pool,
        domains: Collection[str],
        store: Store,
        *,
        retry_unit: float,
        rng: random.Random,
        space: Space = AMPLE,
        captures: Callable[[str], bool] | None = None,
    ) -> None:
        self._pool = pool
        self._domains = frozenset(domains)
        self._captures = captures
        self._store = store
        self._unit = retry_unit
        self._rng = rng
        self._space = space

    def wait(self) -> float:
        """Seconds to wait before anything is begun, as the disk is nearly full; 0: none."""
        if not self._space.short():
            return 0.0
        _NO_SPACE.inc()
        return jittered(_WHEN_SHORT * self._unit, self._rng)

    async def deliver(
        self, mail: Mail, message_id: UUID, recipient: str, deadline: float
    ) -> Outcome:
        """Store a mail for one recipient, by `deadline` on Trio's clock."""
        try:
            address = canonical(recipient)
        except ValueError:
            address = ""
        captured = bool(address) and self._captures is not None and self._captures(address)
        if not captured and address.rpartition("@")[2] not in self._domains:
            text = "this relay delivers to its own domains only (its upstream is loop:)"
            return _said(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.2", text)
        with trio.move_on_at(deadline):
            accepted = await self._store(mail.sender, message_id, address, mail.data)
            if accepted.error is not None:
                return _not_now(accepted.error)
            stored = address in accepted.stored or await self._was_stored(message_id)
            if stored is None:
                return _not_now("whether it is stored is not known")
            if stored:
                LOOPED.inc()
                return _said(Verdict.DELIVERED, Phase.DOT, 250, "2.0.0", "stored")
            if address in accepted.full:
                return _said(Verdict.DEFERRED, Phase.RCPT, 452, "4.2.2", "the mailbox is full")
            text = "there is no such mailbox here"
            return _said(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.1", text)
        return _not_now("the mailbox was not reached")

    async def _was_stored(self, message_id: UUID) -> bool | None:
        """Whether an attempt before this one stored it; None: that cannot be told now."""
        try:
            return message_id in await stored_among(self._pool, [message_id])
        except (DatabaseUnavailable, psycopg.Error):
            return None


def _not_now(text: str) -> Outcome:
    return _said(Verdict.DEFERRED, Phase.DOT, 451, "4.3.0", text)


def _said(verdict: Verdict, phase: Phase, code: int, enhanced: str, text: str) -> Outcome:
    """An outcome in the words of SMTP."""
    return Outcome(
        verdict, phase, code, enhanced, text, route_trouble=False, connection_usable=True
    )
