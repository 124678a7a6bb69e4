"""How a session takes a message in, by DATA or BDAT, and answers it.

Ordinary mail is taken in by `relay.smtp.dialogue` alone; `Reception` goes on where that leaves off:
where there is something to say but 250, and where a filter, faults or a submission port must be
asked.  Memory and the budget are the dialogue's here, too.

Promises:
- One message, one answer: 250 only after `Mailboxes.store` (or `Submissions.submit`) was answered.
- A DATA with a bare CR or LF is read to its real end and refused, and so is a message by BDAT.
- A chunk that is refused is read all the same (RFC 3030): where it ends is where the next command
  begins.

Fails with `SessionOver` where the end of what is sent is unknown, or too far.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from relay.accepted import Accepted
from relay.smtp.chaos import Faults
from relay.smtp.chunks import SIZE, ChunkedMessage
from relay.smtp.consultation import Consultation
from relay.smtp.data import DataDecoder
from relay.smtp.dialogue import FULL, OVER, Dialogue
from relay.smtp.limits import SmtpLimits
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.lmtp import Recipients
from relay.smtp.responder import Responder
from relay.smtp.submitting import Submitting
from relay.smtp.waits import Answer, Waits
from relay.storage import REFUSED

NO_SPACE = "452 4.3.1 Too little disk space is left here, try again later"
no_space = REFUSED.labels("mail")


def begins_chunk(line: bytes) -> bool:
    """Whether a command that is refused was meant as BDAT, so that a chunk may follow it."""
    return line[:64].decode(errors="replace").lstrip()[:4].upper() == "BDAT"


def chunk_without_end() -> SessionOver:
    """What becomes of a session whose peer sends a chunk, and does not say where it ends."""
    farewell = "501 5.5.4 Syntax: BDAT octets [LAST]; good-bye"
    return SessionOver("chunk_without_end", farewell, linger=True)


def _endless_message() -> SessionOver:
    farewell = "421 5.3.4 Message far too large; good-bye"
    return SessionOver("endless_message", farewell, linger=True)


class Reception:
    """Takes in and answers one session's messages, where that is not left to the dialogue."""

    __slots__ = (
        "_consultation",
        "_dialogue",
        "_faults",
        "_limits",
        "_lines",
        "_recipients",
        "_responder",
        "_submitting",
        "_waits",
        "chunks",
        "suspect",
    )

    def __init__(
        self,
        limits: SmtpLimits,
        dialogue: Dialogue,
        lines: Lines,
        waits: Waits,
        responder: Responder,
        *,
        faults: Faults | None,
        consultation: Consultation | None,
        submitting: Submitting | None,
        recipients: Recipients | None,
    ) -> None:
        """`faults`, `consultation`, `submitting`: what is asked of a message, where it is;
        `recipients`: those who are answered one by one, in LMTP."""
        self._limits = limits
        self._dialogue = dialogue
        self._lines = lines
        self._waits = waits
        self._responder = responder
        self._faults = faults
        self._consultation = consultation
        self._submitting = submitting
        self._recipients = recipients
        self.chunks: ChunkedMessage | None = None
        """The message, since its first BDAT."""
        self.suspect = False
        """Whether what follows may be the rest of a malformed message."""

    # ------------------------------------------------------------------------ DATA

    async def begin(self) -> None:
        """Have a message come."""
        if self._faults is not None:
            refusal = await self._faults.inject("data")
            if refusal is not None:
                self._responder.reply(refusal)
                return
        self._dialogue.begin(self._waits.now())

    async def go_on(self) -> None:
        """Take a message to its final dot, from where it stands, and answer it.

        The dialogue does it without us where there is nothing to say but 250.
        """
        dialogue = self._dialogue
        while dialogue.receiving:
            if dialogue.endless:
                raise _endless_message()
            chunk = await self._lines.chunk(dialogue.transaction.until, dialogue.appetite)
            waiting = dialogue.feed(chunk, self._waits.now())
            self._lines.give_back(dialogue.unread())
            if waiting is not None and dialogue.receiving:
                await self._wait_for_room(waiting)
        self._lines.due = math.inf
        if dialogue.storing is not None:
            self._conclude(dialogue.storing.result())
        else:
            assert dialogue.message is not None
            await self._finish(dialogue.message)

    async def _wait_for_room(self, waiting: Answer[None]) -> None:
        """Read nothing until there is room for more: the peer's TCP sends no more, either."""
        self._lines.due = self._dialogue.transaction.until
        await self._waits.wait(waiting)
        self._dialogue.go_on(self._waits.now())

    # ------------------------------------------------------------------------ BDAT

    async def chunk(self, argument: str) -> bool:
        """Take a chunk of the message; of one that is refused, read it all the same.

        Returns whether it was the last of a message.
        """
        found = SIZE.fullmatch(argument)
        if found is None:
            raise chunk_without_end()
        size, last = int(found[1]), found[2] is not None
        message, dialogue = self.chunks, self._dialogue
        faults = self._faults if message is None else None
        if message is None and dialogue.transaction.recipients:
            message = self.chunks = ChunkedMessage(self._limits.max_message_bytes)
            dialogue.share(message, self._waits.now())
        await self._read_chunk(size, message, last=last)
        if message is None:
            self._responder.say(b"503 5.5.1 Error: need MAIL and RCPT before BDAT\r\n")
        elif message.refused:
            reply = b"503 5.5.1 Error: a chunk was refused\r\n"
            self._responder.say(reply)
            if last and self._recipients is not None:
                self._lines.say(reply * (len(self._recipients) - 1))
        elif faults is not None and (injected := await faults.inject("data")) is not None:
            for _ in range(len(self._recipients) if last and self._recipients is not None else 1):
                self._responder.reply(injected)
            self._drop(message)
        elif last:
            self._lines.due = math.inf
            dialogue.whole()
            await self._finish(message)
        elif self._refuses(message, self._responder.refuse):
            self._drop(message)
        else:
            self._responder.say(b"250 2.0.0 %d octets\r\n" % size)
        return last and message is not None

    def _drop(self, message: ChunkedMessage) -> None:
        """Keep nothing of a message whose chunk was refused."""
        message.refused = True
        message.drop()
        self._dialogue.hold(0, self._waits.now())

    async def _read_chunk(self, size: int, message: ChunkedMessage | None, *, last: bool) -> None:
        """Read so many octets, into the message if there is one."""
        dialogue, limits, now = self._dialogue, self._limits, self._waits.now()
        received = message.received if message else 0
        if size + received > limits.discard_factor * limits.max_message_bytes:
            raise _endless_message()
        until = min(dialogue.transaction.until, now + limits.transaction_timeout)
        dialogue.receiving = True
        while size:
            octets = await self._lines.octets(min(size, dialogue.appetite), until)
            size -= len(octets)
            if message is not None:
                message.add(octets)
                waiting = dialogue.hold(message.held, self._waits.now())
                if waiting is not None and (size or not last):
                    await self._wait_for_room(waiting)
        dialogue.receiving = False

    # ------------------------------------------------------------------------ its answer

    async def _finish(self, message: DataDecoder | ChunkedMessage) -> None:
        """Answer the end of a message."""
        if message.bare:
            if isinstance(message, DataDecoder):
                await self._be_wary()
            self._refuse(b"554 5.6.0 Bare CR or LF in the message\r\n")
        elif not self._refuses(message, self._refuse):
            await self._store(message.take())

    async def _be_wary(self) -> None:
        """Look what follows a final dot behind bare CRs or LFs.

        A server in front of us that saw no end where we saw one (`CR CRLF . CRLF`) goes on with
        its message at once, and that would read as commands.  So if anything but QUIT comes
        behind the dot before we have answered, the session ends.
        """
        self.suspect = await self._lines.peek(self._limits.smuggling_silence)

    def _refuse(self, reply: bytes) -> None:
        """Answer the end of a message that nobody gets."""
        if self._recipients is None:
            self._responder.refuse(reply)
        else:
            self._recipients.refuse(reply)

    def _refuses(
        self, message: DataDecoder | ChunkedMessage, refuse: Callable[[bytes], object]
    ) -> bool:
        """Refuse a message if there is no room for it."""
        if message.too_large:
            refuse(b"552 5.3.4 Message too large\r\n")
        elif self._dialogue.crowded_out:
            refuse(b"452 4.3.1 Too much mail in flight, try again later\r\n")
        elif self._dialogue.too_much(message.held):
            refuse(b"452 4.5.3 Too many recipients for so large a message\r\n")
        elif self._dialogue.short(message.held):
            no_space.inc()
            refuse(NO_SPACE.encode() + b"\r\n")
        else:
            return False
        return True

    async def _store(self, raw: bytes) -> None:
        """Have a message stored or queued if nobody objects, and answer it."""
        if self._submitting is not None:
            await self._submitting.submit(raw)
            return
        refusal = None
        if self._faults is not None:
            refusal = await self._faults.inject("dot")
        if refusal is None and self._consultation is not None:
            refusal = await self._consultation.ask("DATA", content=raw)
        if refusal is not None:
            self._refuse(refusal.encode() + b"\r\n")
            return
        # Past it the session ends with 421, as the dialogue's does: no late 250.
        self._lines.due = self._waits.now() + self._limits.store_timeout
        accepted = await self._waits.wait(self._dialogue.store(raw))
        if self._recipients is None:
            self._conclude(accepted)
        else:
            self._recipients.conclude(accepted, len(raw))

    def _conclude(self, accepted: Accepted) -> None:
        """Say what became of the message."""
        recipients = self._dialogue.transaction.recipients
        if accepted.error is not None:
            self._responder.refuse(b"451 4.3.0 Try again later\r\n")
        elif accepted.stored:
            self._dialogue.welcome(accepted)
        elif accepted.full:
            self._responder.refuse_all("over_quota", FULL, recipients)
        else:
            self._responder.refuse_all("expired", OVER, recipients)
