"""A session's questions to what takes the place of mailboxes on a submission port.

`relay.smtp.shared.Submissions` is asked before each command, at MAIL, at RCPT, and to queue a
message whose final dot has come.

Promises: trouble of ours is 451; a refusal with 421 ends the session.

Fails with `SessionOver` then.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from relay.errors import TemporaryFailure
from relay.smtp.dialogue import Dialogue, Greeted
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.responder import Responder
from relay.smtp.shared import Submissions, SubmittedMessage
from relay.smtp.waits import Waits


class Submitting:
    """What one session asks of `Submissions`, in place of mailboxes."""

    __slots__ = (
        "_dialogue",
        "_greeted",
        "_lines",
        "_responder",
        "_store_timeout",
        "_submissions",
        "_waits",
    )

    def __init__(
        self,
        submissions: Submissions,
        greeted: Greeted,
        dialogue: Dialogue,
        lines: Lines,
        waits: Waits,
        responder: Responder,
        *,
        store_timeout: float,
    ) -> None:
        """`store_timeout`: seconds that queueing may take; then the session ends with 421."""
        self._submissions = submissions
        self._greeted = greeted
        self._dialogue = dialogue
        self._lines = lines
        self._waits = waits
        self._responder = responder
        self._store_timeout = store_timeout

    async def look_again(self) -> None:
        """End the session of whoever may not send any more; in an outage nobody is known to."""
        if self._dialogue.login is not None:
            await self._judge(lambda port: port.look_again(self._dialogue.login))

    async def begin(self, address: str) -> str | None:
        """Return the reply that refuses a sender (`<>`: the null one), or None."""
        sender = "" if address == "<>" else address
        return await self._judge(lambda port: port.begin(self._dialogue.login, sender))

    async def name(self, address: str) -> str | None:
        """Return the reply that refuses a recipient, or None."""
        return await self._judge(lambda port: port.name(self._dialogue.login, address))

    async def submit(self, raw: bytes) -> None:
        """Have a message queued, and answer its final dot."""
        transaction = self._dialogue.transaction
        sender = transaction.mail_from or ""
        message = SubmittedMessage(
            "" if sender == "<>" else sender,
            transaction.rcpt_tos,
            raw,
            self._greeted.host_name or "",
            self._responder.host,
            encrypted=self._lines.encrypted,
            utf8=transaction.smtp_utf8,
            mail_parameters=transaction.mail_parameters,
            rcpt_parameters=transaction.rcpt_parameters,
        )
        # No late 250, which a peer that has given up could take for the next message's.
        self._lines.due = self._waits.now() + self._store_timeout
        reply = await self._judge(lambda port: port.submit(self._dialogue.login, message)) or ""
        answer = self._responder.queued if reply[:1] == "2" else self._responder.refuse
        answer(reply.encode() + b"\r\n")

    async def _judge(
        self, ask: Callable[[Submissions], Coroutine[Any, Any, str | None]]
    ) -> str | None:
        try:
            async with self._waits.pinned() as pinned:
                refusal = await pinned.run(lambda: ask(self._submissions))
        except TemporaryFailure:
            return "451 4.3.0 Try again later"
        if refusal is not None and refusal.startswith("421"):
            raise SessionOver("revoked", refusal)
        return refusal
