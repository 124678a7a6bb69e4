"""From the end of a delivery to what is recorded of it.

`settle` asks the law (`states.cause_of`) what an outcome means for its message, when the next
attempt is, and writes down what was said: redacted, step by step.

Promises: nothing of the message, of its addresses or of a password is in what is recorded, be it
said by who refuses or by who takes.
Pure; the random source is given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from relay.outbound.pacing.backoff import Schedule
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause, cause_of
from relay.outbound.queue.steps import pack
from relay.redact import LIMIT, redact
from relay.smtp.client import Outcome, Peer, Phase, Step, Verdict
from relay.smtp.dsn import Notify

REPLY = 500
"""Characters of a reply that are kept where it took the message."""


class Settler:
    """What it needs to know: when to give up, when to come again, and how to redact."""

    def __init__(
        self,
        schedule_of: Callable[[Claimed], Schedule],
        *,
        redact_key: bytes,
        rng: random.Random,
    ) -> None:
        """`schedule_of`: by the route of the attempt that was made, whatever it was before."""
        self._schedule_of = schedule_of
        self._key = redact_key
        self._rng = rng

    def settle(
        self,
        message: Claimed,
        outcome: Outcome,
        began_at: float,
        now: float,
        opening: Sequence[Step] = (),
        secrets: Collection[str] = (),
        peer: Peer | None = None,
        *,
        epoch: float,
        tells: bool = False,
    ) -> Settled:
        """Return what is to be recorded of a delivery that ended now.

        `epoch`: what to add to `now` for seconds of the database's epoch.
        `opening`: the steps of its connection, where it was the first on it; `secrets`: the
        spellings of the password that it was opened with; `peer`: who was spoken to; `tells`:
        who took it tells the submitter of its success.
        """
        cause = Cause.DELIVERED
        delay, error, reply, notice = 0.0, None, None, None
        if outcome.verdict is Verdict.DELIVERED:
            reply = self._redacted(message, outcome.text, secrets, REPLY) or None
            if message.notify and message.notify & Notify.SUCCESS and not tells:
                notice = "delivered" if peer is None else "relayed"
        else:
            schedule = self._schedule_of(message)
            age = now + epoch - message.first_due_at.timestamp()
            cause = cause_of(
                outcome.verdict,
                last=schedule.is_last(message.turn, age),
                hold_unknown=message.hold_unknown,
            )
            if cause is Cause.DEFERRED:
                in_doubt = outcome.verdict is Verdict.UNKNOWN
                delay = schedule.delay(message.turn, self._rng, in_doubt=in_doubt)
            error = self.words(message, outcome, secrets)
        steps: Sequence[Step] = (*opening, *outcome.trace) if opening else outcome.trace
        if not steps:
            steps = ((outcome.phase, outcome.code or 0, now, 0.0),)
        return Settled(
            message.id,
            message.fence,
            cause,
            delay,
            began_at,
            now,
            outcome.phase,
            outcome.code,
            outcome.enhanced,
            error,
            pack(steps, began_at),
            None if peer is None else peer.name,
            None if peer is None else peer.tls,
            reply,
            notice,
        )

    def words(
        self, message: Claimed, outcome: Outcome, secrets: Collection[str] = (), limit: int = LIMIT
    ) -> str:
        """What was replied, as it may be stored: code, enhanced code and text."""
        words = (str(outcome.code) if outcome.code else "", outcome.enhanced or "")
        return self._redacted(
            message, " ".join(filter(None, (*words, outcome.text))), secrets, limit
        )

    def _redacted(
        self, message: Claimed, text: str, secrets: Collection[str], limit: int = LIMIT
    ) -> str:
        """What was said, as it may be stored."""
        known = [message.recipient, message.sender, message.subject]
        if message.recipient_name:
            known.append(message.recipient_name)
        if message.sender_name:
            known.append(message.sender_name)
        return redact(text, self._key, known, secrets=secrets, limit=limit)


def ours(verdict: Verdict, phase: Phase, text: str) -> Outcome:
    """An outcome that no peer spoke of; `text` is one sentence of our own."""
    return Outcome(verdict, phase, None, None, text, route_trouble=False, connection_usable=True)
