"""One SMTP session, from its greeting to its end: what it reads when, and for how long.

Ordinary mail is obeyed by `relay.smtp.dialogue`, without resuming the session; what that leaves is
a command for `relay.smtp.commands`, or a message for `relay.smtp.reception`.  Reading and writing
is `relay.smtp.lines`.  What all sessions of a relay share is `relay.smtp.shared`.

Promises:
- 250 to the final dot is sent only after `Mailboxes.store` was answered, which is after COMMIT.
- A session costs a bounded amount of memory and time, whatever its peer sends or withholds:
  every wait has a deadline, every buffer a cap, all messages together a budget.
- Others have a turn between commands of one read, however long they are to parse (`_TURN`).
- Replies to a pipelined group leave in one segment, and carry enhanced status codes.

Fails: a peer that breaks the connection ends its session, nobody else's.  A message that was
handed to `store` is stored even if its peer is gone by then.

Why this way: aiosmtpd on asyncio spends most of its time on reading lines, on logging each of them
and on a general address parser; as it stands it also stores bare CR and LF, answers
500 to its own exceptions, and buffers a line without end.
"""

from __future__ import annotations

import math
import socket
from typing import Any

from relay.smtp.commands import Commands
from relay.smtp.lines import COMMANDS, SessionOver
from relay.smtp.reception import begins_chunk, chunk_without_end
from relay.smtp.shared import Shared
from relay.smtp.waits import Answer, Waits

_BETWEEN_COMMANDS = 2.0  # s; for which a session that has begun a transaction is not idle
_TURN = 0.002  # s; what parsing addresses may take before others have a turn, and how many
_COMMANDS_A_TURN = 64  # commands that are not ordinary may be obeyed

_SHUTTING_DOWN = "421 4.3.2 Shutting down"


class Session(Commands):
    """One connection, from its greeting to its end."""

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        waits: Waits,
        peer: Any,
        *,
        tls_first: bool = False,
    ) -> None:
        """`sock` is connected and does not block; `run` closes it.

        `waits` waits for it; `peer`: its socket address, or whom a proxy named
        (`relay.ports.proxy.NamedPeer`); `tls_first`: before anything is said.
        """
        super().__init__(shared, sock, waits, peer)
        self.size = COMMANDS
        """How many bytes are read at once (`relay.smtp.waits.Talk`)."""
        self._tls_first = tls_first
        self._farewell = _SHUTTING_DOWN
        self._in_turn = 0  # commands since others had a turn

    # ------------------------------------------------------------------------ its life

    @property
    def due(self) -> float:
        """When its peer is out of time, on Trio's clock; whoever watches the sessions looks."""
        return self.lines.due

    async def run(self) -> None:
        """Serve until the peer, a limit or the relay ends the session, and close the socket."""
        began = self.waits.now()
        reason: str | None = None
        try:
            reason = await self.waits.host(self._live())
        finally:
            if reason is None:  # by its deadline, by draining, by the end of ingest
                reason = self.ending or "cancelled"
                self.lines.part(self._farewell.encode() + b"\r\n")
            self.lines.close()
            self.dialogue.release()
            self.responder.log_end(reason, self.waits.now() - began)

    async def _live(self) -> str:
        """Serve to the end, good-bye included; return why it ended."""
        try:
            try:
                if self._tls_first:
                    await self.begin_in_tls()
                self.lines.say(self.shared.greeting)
                return await self._serve()
            except SessionOver as over:
                if over.reply is not None:
                    self.lines.say(over.reply.encode() + b"\r\n")
                    await self.lines.flush()
                if over.linger:
                    await self.lines.linger()
                return over.reason
        except OSError:
            return "broken"  # by the peer, in whatever we were doing

    def drain(self) -> None:
        """The relay stops: end now, unless a message is arriving, or a command being obeyed."""
        if self.lines.waiting or self.responder.delayed:
            self._end("draining", _SHUTTING_DOWN)

    def cut(self) -> None:
        """The relay stops, and waits no longer."""
        self._end("draining", _SHUTTING_DOWN)

    def idle_since(self) -> float | None:
        """Since when it waits for its peer's next command; None while one is being obeyed.

        One that waits for a guesser's answer gives way at once: the delay is no claim to a place.
        """
        if self.responder.delayed:
            return -math.inf
        if not self.lines.waiting:
            return None
        between = 0.0 if self.envelope.mail_from is None else _BETWEEN_COMMANDS
        return self.lines.waiting_since + between

    def give_way(self) -> None:
        """Somebody else has its place."""
        self._end("gave_way", "421 4.3.2 Too many connections, and this one was idle")

    def expire(self) -> None:
        """The peer is out of time."""
        self._end("timeout", "421 4.4.2 Timed out")

    def _end(self, reason: str, farewell: str) -> None:
        self.ending, self._farewell = reason, farewell
        self.waits.cut_off()

    # ------------------------------------------------------------------------ commands

    async def _serve(self) -> str:
        """Obey one command after another; return why the session ends."""
        limits, responder = self.limits, self.responder
        while True:
            if self.shared.draining and not self.dialogue.receiving:
                raise SessionOver("draining", _SHUTTING_DOWN)
            try:
                await self._go_on()
            except (SessionOver, OSError):
                raise
            except Exception as error:
                await self.push(await self.handle_exception(error))
                if self.dialogue.receiving or self.recipients:
                    # Where the message ends is unknown: what follows must not be read as commands.
                    # Or, in LMTP, how many replies it still gets.
                    raise SessionOver("failed", "421 4.3.0 Internal error; good-bye") from error
                self.forget_transaction()
            if self.ending:
                await self.lines.flush()
                return self.ending
            if responder.errors > limits.max_errors or responder.unknown > limits.max_unknown:
                raise SessionOver("errors", "421 4.7.0 Too many errors; good-bye", linger=True)
            if responder.idle_commands > limits.max_idle_commands:
                raise SessionOver("idle_commands", "421 4.7.0 Too many commands without a message")
            self._in_turn += 1
            if self._in_turn >= _COMMANDS_A_TURN or self.parsing >= _TURN:
                self._in_turn, self.parsing = 0, 0.0
                async with self.waits.pinned() as pinned:
                    await pinned.sleep(0)

    async def _go_on(self) -> None:
        """Obey the next command, and all ordinary ones before it."""
        reception = self.reception
        ordinary = self.takes_ordinary and not reception.suspect and reception.chunks is None
        if ordinary:
            await self._converse()
        if self.dialogue.receiving or self.dialogue.complete:
            await reception.go_on()
            self.forget_transaction()
        elif self.lines.unread or not ordinary:
            line = await self.lines.line(self.dialogue.transaction.until, begun=self.lines.waiting)
            if line is None:
                if begins_chunk(self.lines.cut):
                    raise chunk_without_end()
                self.responder.say(b"500 5.5.2 Line too long\r\n")
            else:
                await self.obey(line)

    # ------------------------------------------------------------------------ ordinary mail

    async def _converse(self) -> None:
        """Leave it to the dialogue, until there is something that it does not do."""
        lines = self.lines
        try:
            if lines.unread:
                step = self.take(lines.all_unread(), self.waits.now())
            else:
                step = self._await(True, self.waits.now())
                if not step:
                    await lines.flush()
                    step = True
            await self.waits.converse(self, step)
        finally:
            lines.give_back(self.dialogue.unread())

    def take(self, chunk: bytes, now: float) -> Answer[Any] | bool:
        """Have the dialogue take what has come (`relay.smtp.waits.Talk`)."""
        if not chunk:
            raise SessionOver("closed")
        return self._await(self.dialogue.receive(chunk, now), now)

    def answered(self, now: float) -> Answer[Any] | bool:
        """Have the dialogue go on with its answer."""
        return self._await(self.dialogue.answered(now), now)

    def _await(self, step: Answer[Any] | bool, now: float) -> Answer[Any] | bool:
        """Note who must do what until when, and say what there is to say."""
        dialogue, lines = self.dialogue, self.lines
        if step is True:
            if dialogue.receiving:
                self.size = dialogue.appetite
                lines.await_text(now, dialogue.transaction.until)
            else:
                self.size = COMMANDS
                lines.await_command(now, dialogue.transaction.until)
            return lines.flush_nowait()
        if step is not False:
            lines.waiting = False
            if dialogue.complete:
                # Past it the session ends with 421: a peer that has given up waiting could take a
                # late 250 for the answer to its next message.
                lines.due = now + self.limits.store_timeout
            elif dialogue.receiving:  # until there is room for more; the budget has a time-out
                lines.due = dialogue.transaction.until
        elif not dialogue.untouched:
            lines.waiting = False
        return step
