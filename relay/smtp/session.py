"""One SMTP session: aiosmtpd's `SMTP` class (verbs, envelope, address parser) on a Trio socket.

Ordinary mail is obeyed without it, by `relay.smtp.dialogue`.  aiosmtpd answers NOOP, RSET, EXPN,
HELP and every MAIL and RCPT that is out of the ordinary; time and DATA are ours, and reading and
writing is `relay.smtp.lines`.  What all sessions of a relay share is `relay.smtp.shared`.

Promises:
- 250 to the final dot is sent only after `Mailboxes.store` was answered, which is after COMMIT.
- One message, one reply: a DATA with a bare CR or LF is read to its real end and refused with
  554 5.6.0; a command with one is refused with 500 5.5.2; neither ever becomes two.
- A session costs a bounded amount of memory and time, whatever its peer sends or withholds:
  every wait has a deadline, every buffer a cap, all messages together a budget.
- Trouble of ours is 4xx and says nothing about its cause, but for a disk that is nearly full
  (452 4.3.1): at MAIL, by the announced size too, and at the dot.
- Others have a turn between commands of one read, however long they are to parse (`_TURN`).
- Replies to a pipelined group leave in one segment, and carry enhanced status codes.

Fails: a peer that breaks the connection ends its session, nobody else's.  A message that was
handed to `store` is stored even if its peer is gone by then.

Why this way: aiosmtpd on asyncio spends most of its time on reading lines, on logging each of them
and on a general address parser; as it stands it also stores bare CR and LF, answers
500 to its own exceptions, and buffers a line without end.
"""

# ruff: noqa: N802 - aiosmtpd finds the method of a command by its verb in capitals

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, cast

from aiosmtpd.smtp import MISSING, SMTP, Envelope, syntax
from aiosmtpd.smtp import Session as Conversation
from prometheus_client import Counter

from relay.accepted import Accepted
from relay.errors import OverQuota, TemporaryFailure
from relay.log import get_logger
from relay.metrics import Counts, registry
from relay.peers import peer_key
from relay.smtp.aiosmtpd_shim import NO_LOOP, session_attributes
from relay.smtp.chaos import PHASES, fault_of
from relay.smtp.chunks import SIZE, ChunkedMessage
from relay.smtp.data import DataDecoder
from relay.smtp.dialogue import RECIPIENT_OK, SENDER_OK, Dialogue
from relay.smtp.lines import CHUNK, COMMANDS, Lines, SessionOver
from relay.smtp.proxy import is_loopback
from relay.smtp.shared import Arrival, Shared, SignIn, Submissions
from relay.smtp.sign_in import MECHANISMS, Exchange, challenge, decoded
from relay.smtp.syntax import (
    FOREIGN_SIZE,
    HTTP_VERBS,
    MAIL,
    POSTMASTER,
    QUOTED,
    RCPT,
    enhanced,
    foreign_reply,
)
from relay.smtp.tls import begin as begin_tls
from relay.smtp.waits import Answer, Waits
from relay.storage import REFUSED

log = get_logger()

_BETWEEN_COMMANDS = 2.0  # s; for which a session that has begun a transaction is not idle
_TURN = 0.002  # s; what parsing addresses may take before others have a turn, and how many
_COMMANDS_A_TURN = 64  # commands that are not ordinary may be obeyed
_LONGEST_PATH = 330  # bytes with brackets; 64 and 254 are the most of an address (RFC 5321, 4.5.3)

_GUESSES = 3  # wrong passwords in one session, each answered …
_WRONG = 1.0  # s … so late at least

_SHUTTING_DOWN = "421 4.3.2 Shutting down"
_UNKNOWN = "550 5.1.1 No such mailbox here"
_TOO_MANY_RECIPIENTS = "452 4.5.3 Too many recipients"

_NO_SPACE = "452 4.3.1 Too little disk space is left here, try again later"
_no_space = REFUSED.labels("mail")

_SENDER_OK, _RECIPIENT_OK = SENDER_OK[:-2].decode(), RECIPIENT_OK[:-2].decode()

_NOT_BETWEEN_CHUNKS = frozenset({b"MAIL", b"RCPT", b"DATA"})
_AUTH = re.compile(r"AUTH=(?:<>|[!-~]+)", re.IGNORECASE)

_ORDINARY_HOOKS = frozenset({"MAIL", "RCPT", "DATA"})
"""The filter's, with which no mail is ordinary."""

# One object for each child of a labelled counter: labels() takes a lock and a look-up.
_OUTCOMES = ("accepted", "rejected", "deferred")
_ANSWERED = Counts(
    "relay_smtp_messages", "Messages whose final dot was answered.", "outcome", _OUTCOMES
).of
_accepted = _ANSWERED["accepted"]
_SUBMITTED = Counts(
    "relay_submission_messages",
    "Submitted messages whose final dot was answered.",
    "outcome",
    _OUTCOMES,
).of
_RECIPIENTS = Counter(
    "relay_smtp_recipients_refused",
    "Recipients refused, by why: unknown (no such address), expired (its mailbox is over),"
    " over_quota (it is full), filter (the operator's).",
    ["why"],
    registry=registry,
)
_recipients_refused = {
    why: _RECIPIENTS.labels(why) for why in ("unknown", "expired", "over_quota", "filter")
}
(_bytes,) = Counts("relay_smtp_received_bytes", "Bytes of messages accepted.").of.values()


def _announced(options: Sequence[str]) -> int:
    """Return the bytes that MAIL says the message has; 0 where it says nothing."""
    return next((int(one[5:]) for one in options if one.startswith("SIZE=")), 0)


def _chunk_without_end() -> SessionOver:
    """What becomes of a session whose peer sends a chunk, and does not say where it ends."""
    farewell = "501 5.5.4 Syntax: BDAT octets [LAST]; good-bye"
    return SessionOver("chunk without end", farewell, linger=True)


def _endless_message() -> SessionOver:
    farewell = "421 5.3.4 Message far too large; good-bye"
    return SessionOver("endless message", farewell, linger=True)


def _without_auth(arg: str) -> str:
    """Return the argument of MAIL without AUTH=, which says who wrote to whoever signed in.

    A server with AUTH takes it, and need not believe it (RFC 4954, 5).
    """
    path, end, parameters = arg.partition(">")
    kept = [each for each in parameters.split(" ") if not _AUTH.fullmatch(each)]
    return path + end + " ".join(kept)


class Session(SMTP):
    """One connection, from its greeting to its end."""

    session: Conversation  # aiosmtpd has it as Optional

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
        (`relay.smtp.proxy.NamedPeer`); `tls_first`: before anything is said.
        """
        vars(self).update(
            session_attributes(
                Session,
                hostname=shared.hostname,
                max_message_bytes=shared.limits.max_message_bytes,
                command_timeout=shared.limits.command_timeout,
            )
        )
        self.shared = shared
        self.limits = shared.limits
        self.session = Conversation(NO_LOOP)
        self.session.peer = peer
        self.ending = ""
        """Why the session ends once the command in hand is answered; empty: it goes on."""
        self._tls_first = tls_first
        self.tls = False
        """Whether it goes on in TLS."""
        self._host = str(peer[0])
        self.lines = Lines(sock, waits, shared.limits)
        self.dialogue = Dialogue(shared, self.session, self.lines.replies, self._kept)
        self._ordinary = (
            shared.chaos is None
            and shared.submissions is None
            and (shared.filter is None or _ORDINARY_HOOKS.isdisjoint(shared.filter.hooks))
        )
        self._answered = _ANSWERED if shared.submissions is None else _SUBMITTED
        self.size = COMMANDS
        """How many bytes are read at once (`relay.smtp.waits.Talk`)."""
        self._waits = waits
        self._delayed = False  # it is we who keep the peer waiting, for what it guessed
        self._suspect = False  # see _refuse_bare
        self._chunks: ChunkedMessage | None = None  # the message, since its first BDAT
        self._farewell = _SHUTTING_DOWN
        self._path_code = "5.1.3"  # of a malformed address: sender's or recipient's
        self._errors = self._unknown = self._idle_commands = 0
        self._in_turn, self._parsing = 0, 0.0  # commands and seconds since others had a turn
        self._guesses = 0  # wrong passwords
        self._dropping: set[str] = set()  # phases of this transaction: it breaks there
        self._stored = self._refused = 0
        self._turned_down: dict[str, int] = {}  # recipients, by why
        self._shown_session: Conversation | None = None  # the filter's own, made when it is asked
        self._shown: Envelope | None = None  # likewise, of each transaction

    @property
    def envelope(self) -> Envelope:  # type: ignore[override]  # an attribute there; nobody sets it
        """The transaction, with the attributes that aiosmtpd's code reads and writes."""
        return cast(Envelope, self.dialogue.transaction)

    @property
    def loopback(self) -> bool:
        """Whether its peer is on this machine, so that what it says in clear stays here."""
        return is_loopback(self.session.peer)

    # ------------------------------------------------------------------------ its life

    @property
    def due(self) -> float:
        """When its peer is out of time, on Trio's clock; whoever watches the sessions looks."""
        return self.lines.due

    async def run(self) -> None:
        """Serve until the peer, a limit or the relay ends the session, and close the socket."""
        began = self._waits.now()
        reason: str | None = None
        try:
            reason = await self._waits.host(self._live())
        finally:
            if reason is None:  # by its deadline, by draining, by the end of ingest
                reason = self.ending or "cancelled"
                self.lines.part(self._farewell.encode() + b"\r\n")
            self.lines.close()
            self.dialogue.release()
            self._log_end(reason, self._waits.now() - began)

    async def _live(self) -> str:
        """Serve to the end, good-bye included; return why it ended."""
        try:
            try:
                if self._tls_first:
                    await self._begin_in_tls()
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
        if self.lines.waiting or self._delayed:
            self._end("draining", _SHUTTING_DOWN)

    def cut(self) -> None:
        """The relay stops, and waits no longer."""
        self._end("draining", _SHUTTING_DOWN)

    def idle_since(self) -> float | None:
        """Since when it waits for its peer's next command; None while one is being obeyed.

        One that waits for a guesser's answer gives way at once: the delay is no claim to a place.
        """
        if self._delayed:
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
        self._waits.cut_off()

    def _log_end(self, reason: str, seconds: float) -> None:
        happened = self._stored or self._refused or self._errors or self._turned_down
        write = log.info if happened else log.debug
        write(
            "smtp.session_ended",
            peer=self._host,
            reason=reason,
            accepted=self._stored,
            refused=self._refused,
            errors=self._errors,
            **{f"recipients_{why}": count for why, count in self._turned_down.items()},
            seconds=round(seconds, 3),
        )

    # ------------------------------------------------------------------------ replies

    async def push(self, status: str) -> None:  # type: ignore[override]  # aiosmtpd: or bytes
        """Queue a reply; it leaves when the session next waits for its peer."""
        self._reply(status)

    def _reply(self, status: str) -> None:
        self._say(enhanced(status).replace("5.1.3", self._path_code, 1).encode() + b"\r\n")

    def _say(self, reply: bytes) -> None:
        """Queue a reply that is complete."""
        self.lines.say(reply)
        if reply[0] == 53:  # b"5"
            self._errors += 1

    # ------------------------------------------------------------------------ commands

    async def _serve(self) -> str:
        """Obey one command after another; return why the session ends."""
        limits = self.limits
        while True:
            if self.shared.draining and not self.dialogue.receiving:
                raise SessionOver("draining", _SHUTTING_DOWN)
            try:
                await self._go_on()
            except (SessionOver, OSError):
                raise
            except Exception as error:
                await self.push(await self.handle_exception(error))
                if self.dialogue.receiving:
                    # Where the message ends is unknown: what follows must not be read as commands.
                    raise SessionOver("failed", "421 4.3.0 Internal error; good-bye") from error
                self._set_post_data_state()
            if self.ending:
                await self.lines.flush()
                return self.ending
            if self._errors > limits.max_errors or self._unknown > limits.max_unknown:
                raise SessionOver("errors", "421 4.7.0 Too many errors; good-bye", linger=True)
            if self._idle_commands > limits.max_idle_commands:
                raise SessionOver("idle commands", "421 4.7.0 Too many commands without a message")
            self._in_turn += 1
            if self._in_turn >= _COMMANDS_A_TURN or self._parsing >= _TURN:
                self._in_turn, self._parsing = 0, 0.0
                async with self._waits.pinned() as pinned:
                    await pinned.sleep(0)

    async def _go_on(self) -> None:
        """Obey the next command, and all ordinary ones before it."""
        ordinary = self._ordinary and not self._suspect and self._chunks is None
        if ordinary:
            await self._converse()
        if self.dialogue.receiving or self.dialogue.complete:
            await self._message()
        elif self.lines.unread or not ordinary:
            line = await self.lines.line(self.dialogue.transaction.until, begun=self.lines.waiting)
            if line is None:
                self._say(b"500 5.5.2 Line too long\r\n")
            else:
                await self._obey(line)

    # ------------------------------------------------------------------------ ordinary mail

    async def _converse(self) -> None:
        """Leave it to the dialogue, until there is something that it does not do."""
        lines = self.lines
        try:
            if lines.unread:
                step = self.take(lines.all_unread(), self._waits.now())
            else:
                step = self._await(True, self._waits.now())
                if not step:
                    await lines.flush()
                    step = True
            await self._waits.converse(self, step)
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
                self.size = CHUNK
                lines.await_text(now, dialogue.transaction.until)
            else:
                self.size = COMMANDS
                lines.await_command(now, dialogue.transaction.until)
            return lines.flush_nowait()
        if step is not False:
            lines.waiting = False
            if dialogue.complete:
                # Past it the session ends without a reply: a peer that has given up waiting could
                # take a late 250 for the answer to its next message.
                lines.due = now + self.limits.store_timeout
        elif not dialogue.untouched:
            lines.waiting = False
        return step

    def _kept(self, size: int) -> None:
        """Count a message that was stored."""
        self._stored += 1
        self._errors = self._unknown = self._idle_commands = 0
        _accepted.value += 1
        _bytes.value += size

    # ------------------------------------------------------------------------ other commands

    async def _obey(self, line: bytes) -> None:
        if self._suspect and line.upper() != b"QUIT":
            farewell = "421 4.7.0 Commands followed a malformed message; good-bye"
            raise SessionOver("smuggling", farewell)
        if self.shared.submissions is not None and self.dialogue.login is not None:
            await self._look_again()
        if self._chunks is not None and line[:4].upper() in _NOT_BETWEEN_CHUNKS:
            self._say(b"503 5.5.1 Error: a message is coming by BDAT\r\n")
            return
        # Ordinary MAIL and RCPT where there is a filter to ask; what is out of the ordinary goes on
        # below, at eighteen and eight times the cost (relay/smtp/syntax.py).
        if self.envelope.mail_from is not None:
            if (rcpt := RCPT.fullmatch(line)) is not None:
                self._reply(await self._rcpt(rcpt[1].decode(), []))
                return
        elif (mail := MAIL.fullmatch(line)) is not None and self._may_begin(mail[2]):
            await self._begin(*mail.groups())
            return
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = "\x00"
        if not text.isprintable():
            self._refuse_bytes(line)
            return
        verb, _, argument = text.partition(" ")
        verb = verb.upper()
        method = self._smtp_methods.get(verb)
        if verb == "AUTH" and self._may_sign_in:
            await self._auth(argument)
        elif method is None:
            self._refuse_verb(verb)
        else:
            await method(self, argument.strip() or None)

    def _refuse_bytes(self, line: bytes) -> None:
        """Refuse a command with a bare CR or LF, a control byte, or what is not UTF-8."""
        verb = line[:5].upper()
        if verb[:4] == b"BDAT":
            raise _chunk_without_end()
        if b"\r" in line or b"\n" in line:
            self._say(b"500 5.5.2 Bare CR or LF in a command\r\n")
        elif verb == b"MAIL ":
            self._say(b"501 5.1.7 Bytes that no address may hold\r\n")
        elif verb == b"RCPT ":
            self._say(b"501 5.1.3 Bytes that no address may hold\r\n")
        else:
            self._say(b"500 5.5.2 Bytes that no command may hold\r\n")

    def _refuse_verb(self, verb: str) -> None:
        """Answer what is no command here.  Its text is not repeated: it may be a password."""
        if verb in HTTP_VERBS:
            raise SessionOver("http", "421 4.7.0 This is not a web server")
        self._unknown += 1
        self._say(b"500 5.5.1 Command not recognized\r\n")

    async def handle_exception(self, error: Exception) -> str:
        """Log what nobody expected and answer 451, which names no cause."""
        log.error("smtp.failed", peer=self._host, exc_info=error)
        return "451 4.3.0 Internal error, try again later"

    def _set_post_data_state(self) -> None:
        self.dialogue.reset()
        self._dropping.clear()
        self._shown = None
        self._chunks = None

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        """aiosmtpd's parser, which is the email package's: it forgives and it has faults.

        It takes a millisecond for some addresses, and more than in proportion for longer ones.
        """
        if len(arg) > _LONGEST_PATH and not -1 < arg.rfind(">") <= _LONGEST_PATH:
            return None, None
        began = perf_counter()
        try:
            address, rest = super()._getaddr(arg)
        except Exception:
            # RecursionError, IndexError: whatever it trips over, it is no address.
            return None, None
        finally:
            self._parsing += perf_counter() - began
        if address and rest is not None:
            # It decodes encoded words: to control characters, to surrogates that nothing can store.
            if not address.isprintable():
                return None, None
            # It closes the brackets and the quotes that nobody closed.
            if arg.startswith("<") and not arg[: len(arg) - len(rest)].rstrip().endswith(">"):
                return None, None
            if '"' in address and not QUOTED.fullmatch(address):
                return None, None
            # Allowed in quotes (RFC 5321, 4.1.2), and read as the end of the path by so many
            # programs behind us that it is an attack on them rather than an address.
            if address != "<>" and ("<" in address or ">" in address):
                return None, None
        return address, rest

    @syntax("EHLO hostname")
    async def smtp_EHLO(self, hostname: str | None) -> None:
        """Greet, list the extensions, and forget any transaction."""
        self._idle_commands += 1
        if not hostname:
            await self.push("501 Syntax: EHLO hostname")
            return
        self._set_post_data_state()
        self.session.extended_smtp = True
        offers = self.shared.offers(starttls=self._may_start_tls, sign_in=self._may_sign_in)
        refusal = await self._consult("EHLO", hostname, offers)
        if refusal is not None:
            await self.push(refusal)
            return
        self.session.host_name = hostname
        self.lines.say("".join(f"{line}\r\n" for line in offers).encode())

    @syntax("HELO hostname")
    async def smtp_HELO(self, hostname: str | None) -> None:
        """As EHLO, without extensions."""
        self._idle_commands += 1
        if not hostname:
            await self.push("501 Syntax: HELO hostname")
            return
        refusal = await self._consult("HELO", hostname)
        if refusal is not None:
            await self.push(refusal)
            return
        self._set_post_data_state()
        self.session.extended_smtp = False
        self.session.host_name = hostname
        self.lines.say(b"250 %b\r\n" % self.shared.hostname.encode())

    @property
    def _may_sign_in(self) -> bool:
        """Whether AUTH is offered: not in clear beyond this machine."""
        return self.shared.sign_in is not None and (self.tls or self.loopback)

    async def _auth(self, argument: str) -> None:
        """Sign the peer in (RFC 4954)."""
        self._idle_commands += 1
        sign_in = self.shared.sign_in
        assert sign_in is not None
        name, _, initial = argument.strip().partition(" ")
        mechanism = MECHANISMS.get(name.upper())
        if mechanism is None:
            await self.push("504 5.5.4 Mechanisms are PLAIN and LOGIN")
        elif not self.session.extended_smtp:
            await self.push("503 5.5.1 Error: send EHLO first")
        elif self.dialogue.login is not None or self.envelope.mail_from is not None:
            await self.push("503 5.5.1 Error: signed in already, or in a transaction")
        else:
            try:
                user, password = await self._exchange(mechanism(), initial.strip())
            except ValueError as error:
                self._reply(str(error))
                return
            await self._admit(sign_in, user, password)

    async def _exchange(self, exchange: Exchange, initial: str) -> tuple[str, str]:
        """Ask for what a mechanism asks for."""
        question = next(exchange)
        answer = initial.encode() if initial else None
        while True:
            if answer is None:
                self.lines.say(challenge(question))
                answer = await self.lines.line(self.dialogue.transaction.until)
                if answer is None:
                    raise ValueError("500 5.5.6 Line too long")
            try:
                question = exchange.send(decoded(answer))
            except StopIteration as done:
                return cast("tuple[str, str]", done.value)
            answer = None

    async def _admit(self, sign_in: SignIn, user: str, password: str) -> None:
        """Answer AUTH; a wrong password late, and not often."""
        self.lines.due = math.inf
        try:
            async with self._waits.pinned() as pinned:
                found = await pinned.run(lambda: sign_in.check(user, password))
        except TemporaryFailure:
            self._say(b"454 4.7.0 Try again later\r\n")
            return
        if found is not None:
            self.dialogue.login = found
            self.session.authenticated = True
            self._say(b"235 2.7.0 Signed in\r\n")
            return
        self._guesses += 1
        if self._guesses > _GUESSES:
            raise SessionOver("guesses", "421 4.7.0 Too many wrong passwords; good-bye")
        delay = self.shared.misses.note(peer_key(self._host), self._waits.now())
        self._delayed = True
        async with self._waits.pinned() as pinned:
            await pinned.sleep(max(_WRONG, delay))
        self._delayed = False
        self._say(b"535 5.7.8 Wrong user name or password\r\n")

    @property
    def _may_start_tls(self) -> bool:
        return self.shared.certificate is not None and not self.tls

    async def _begin_in_tls(self) -> None:
        certificate = self.shared.certificate
        if certificate is None or certificate.context is None:
            raise SessionOver("tls")
        await self._shake_hands(certificate.context)

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        now = self._waits.now()
        self.lines.await_command(now, now + self.limits.handshake_timeout)
        key = peer_key(self._host)
        turn = self.shared.handshakes.turn
        await begin_tls(self.lines, self._waits, context, lambda: turn(key))
        self.tls = True

    @syntax("STARTTLS")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Go on in TLS, as if nothing had been said before (RFC 3207)."""
        self._idle_commands += 1
        certificate = self.shared.certificate
        if certificate is None:
            self._say(b"502 5.5.1 STARTTLS is not offered\r\n")
        elif arg:
            await self.push("501 Syntax: STARTTLS")
        elif self.tls:
            self._say(b"503 5.5.1 Error: TLS has begun already\r\n")
        elif not self.session.extended_smtp:
            self._say(b"503 5.5.1 Error: send EHLO first\r\n")
        elif self.envelope.mail_from is not None:
            self._say(b"503 5.5.1 Error: within a transaction\r\n")
        elif (context := certificate.context) is None:
            self._say(b"454 4.7.0 TLS is not available now, try again later\r\n")
        else:
            self._say(b"220 2.0.0 Go ahead\r\n")
            await self._shake_hands(context)
            self.session.host_name = None
            self.session.extended_smtp = False
            self.session.authenticated = False
            self.dialogue.login = None
            self._shown_session = None
            self._set_post_data_state()

    @syntax("QUIT")
    async def smtp_QUIT(self, arg: str | None) -> None:
        """End, once this is answered."""
        if arg:
            await self.push("501 Syntax: QUIT")
            return
        await self.push("221 Bye")
        self.ending = "quit"

    @syntax("NOOP [ignored]")
    async def smtp_NOOP(self, arg: str | None) -> None:
        """Do nothing, a bounded number of times."""
        self._idle_commands += 1
        await super().smtp_NOOP(arg or "")

    @syntax("RSET")
    async def smtp_RSET(self, arg: str | None) -> None:
        """Forget the transaction."""
        self._idle_commands += 1
        await super().smtp_RSET(arg or "")

    @syntax("HELP [command]")
    async def smtp_HELP(self, arg: str | None) -> None:
        """List the commands."""
        self._idle_commands += 1
        await super().smtp_HELP(arg or "")

    @syntax("VRFY <address>")
    async def smtp_VRFY(self, arg: str | None) -> None:
        """Tell nobody who lives here."""
        self._idle_commands += 1
        await self.push("252 2.5.2 Send some mail and see" if arg else "501 Syntax: VRFY <address>")

    @syntax("EXPN <list>")
    async def smtp_EXPN(self, arg: str | None) -> None:
        """There are no lists."""
        self._idle_commands += 1
        await super().smtp_EXPN(arg or "")

    @syntax("MAIL FROM: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_MAIL(self, arg: str | None) -> None:
        """Begin a transaction."""
        if arg and self.shared.sign_in is not None:
            arg = _without_auth(arg)
        if arg and not arg.isascii() and "SMTPUTF8" not in arg.upper().split():
            self._say(b"553 5.6.7 An address outside ASCII needs SMTPUTF8\r\n")
            return
        if arg and FOREIGN_SIZE.search(arg):
            await self.push("501 Syntax: MAIL FROM: <address> [SP SIZE=bytes]")
            return
        self._path_code = "5.1.7"
        try:
            await super().smtp_MAIL(arg)
        finally:
            self._path_code = "5.1.3"

    def _may_begin(self, parameters: bytes) -> bool:
        """Whether a MAIL that is well-formed may come now: after HELO, or EHLO if it has any."""
        conversation = self.session
        return bool(conversation.host_name) and (not parameters or conversation.extended_smtp)

    async def _begin(self, address: bytes | None, parameters: bytes, size: bytes | None) -> None:
        """Obey an ordinary MAIL."""
        if size and int(size) > self.limits.max_message_bytes:
            self._say(b"552 5.3.4 Message too large\r\n")
            return
        options = parameters.decode().upper().split() if parameters else []
        self._reply(await self._mail(address.decode() if address else "<>", options))

    @syntax("RCPT TO: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_RCPT(self, arg: str | None) -> None:
        """Name one recipient."""
        if arg and self.envelope.mail_from is not None:
            if len(self.dialogue.transaction.recipients) >= self.dialogue.most:
                self._reply(_TOO_MANY_RECIPIENTS)  # before it is parsed, which may take long
                return
            if POSTMASTER.fullmatch(arg):
                await self.push(await self._rcpt(f"postmaster@{self.shared.hostname}", []))
                return
            if not arg.isascii() and not self.envelope.smtp_utf8:
                self._say(b"553 5.6.7 An address outside ASCII needs SMTPUTF8\r\n")
                return
        await super().smtp_RCPT(arg)

    async def _call_handler_hook(self, command: str, *args: Any) -> Any:
        """What aiosmtpd's MAIL and RCPT ask once they have parsed; they reply what this returns."""
        if command == "MAIL":
            return await self._mail(*args)
        if command == "RCPT":
            return await self._rcpt(*args)
        return MISSING

    async def _mail(self, address: str, options: list[str]) -> str:
        announced = _announced(options) if options else 0
        if self.shared.space.short(announced):
            self._idle_commands += 1
            _no_space.inc()
            return _NO_SPACE
        if self.shared.chaos is not None:
            refusal = await self._strike("mail", address)
            if refusal is not None:
                return refusal
        if self.shared.submissions is not None:
            sender = "" if address == "<>" else address
            refusal = await self._judge(lambda port: port.begin(self.dialogue.login, sender))
            if refusal is not None:
                return refusal
        if self.shared.filter is not None:
            refusal = await self._consult("MAIL", address, options)
            if refusal is not None:
                return refusal
        self.dialogue.expect(announced)
        self.envelope.mail_from = address
        self.envelope.mail_options.extend(options)
        self.dialogue.transaction.until = self._waits.now() + self.limits.transaction_timeout
        return _SENDER_OK

    async def _rcpt(self, address: str, options: list[str]) -> str:
        recipients = self.dialogue.transaction.recipients
        if len(recipients) >= self.dialogue.most:
            return _TOO_MANY_RECIPIENTS
        if self.shared.submissions is not None:
            refusal = await self._judge(lambda port: port.name(self.dialogue.login, address))
            if refusal is None:
                self.envelope.rcpt_options.extend(options)
                recipients[address] = address
            return refusal or _RECIPIENT_OK
        try:
            canonical = self.shared.canonical(address)
        except ValueError:
            return await self._miss("unknown")
        if self.shared.chaos is not None:
            refusal = await self._strike("rcpt", canonical)
            if refusal is not None:
                return refusal
        if canonical in recipients:
            self._idle_commands += 1  # or a transaction would grow as long as it is repeated
            return _RECIPIENT_OK
        try:
            why_not = await self._waits.wait(self.dialogue.find(canonical))
            if why_not is not None:
                return await self._miss(why_not)
        except OverQuota:
            self._turn_down("over_quota")
            return "452 4.2.2 Mailbox full, try again later"
        except TemporaryFailure:
            return "451 4.3.0 Try again later"
        if self.shared.filter is not None:
            refusal = await self._consult("RCPT", address, options)
            if refusal is not None:
                self._turn_down("filter")
                return refusal
        self.envelope.rcpt_options.extend(options)
        recipients[canonical] = address
        return _RECIPIENT_OK

    # ------------------------------------------------------------------------ submission

    async def _judge(
        self, ask: Callable[[Submissions], Coroutine[Any, Any, str | None]]
    ) -> str | None:
        """Ask what takes the place of mailboxes; return the reply that refuses, or None."""
        submissions = self.shared.submissions
        assert submissions is not None
        try:
            async with self._waits.pinned() as pinned:
                refusal = await pinned.run(lambda: ask(submissions))
        except TemporaryFailure:
            return "451 4.3.0 Try again later"
        if refusal is not None and refusal.startswith("421"):
            raise SessionOver("revoked", refusal)
        return refusal

    async def _look_again(self) -> None:
        """End the session of whoever may not send any more; in an outage nobody is known to."""
        await self._judge(lambda port: port.look_again(self.dialogue.login))

    async def _submit(self, raw: bytes) -> None:
        """Have a message queued, and answer its final dot."""
        transaction = self.dialogue.transaction
        sender = transaction.mail_from or ""
        arrival = Arrival(
            "" if sender == "<>" else sender,
            transaction.rcpt_tos,
            raw,
            self.session.host_name or "",
            self._host,
            encrypted=self.tls,
            utf8=transaction.smtp_utf8,
        )
        # For the same reason as in `_await`: no late 250.
        self.lines.due = self._waits.now() + self.limits.store_timeout
        reply = await self._judge(lambda port: port.submit(self.dialogue.login, arrival)) or ""
        if reply[:1] == "2":
            self._say(reply.encode() + b"\r\n")
            self._stored += 1
            self._errors = self._unknown = self._idle_commands = 0
            self._answered["accepted"].value += 1
        elif reply[:1] == "5":
            self._refuse(reply.encode() + b"\r\n")
        else:
            self._defer(reply.encode() + b"\r\n")

    def _turn_down(self, why: str, recipients: int = 1) -> None:
        """Count recipients who get no mail, for the log and the metrics."""
        self._turned_down[why] = self._turned_down.get(why, 0) + recipients
        _recipients_refused[why].inc(recipients)

    async def _miss(self, why: str) -> str:
        """Say that a recipient is unknown, whatever it is: late, to whoever names many such."""
        self._turn_down(why)
        delay = self.shared.misses.note(peer_key(self._host), self._waits.now())
        if delay:
            self._delayed = True  # it may be ended: by a drain, or for a newcomer
            async with self._waits.pinned() as pinned:
                await pinned.sleep(delay)
            self._delayed = False
        return _UNKNOWN

    # ------------------------------------------------------------------------ the message

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Have the message come."""
        if not self.dialogue.transaction.recipients:
            missing = "RCPT" if self.envelope.mail_from is not None else "MAIL"
            await self.push(f"503 5.5.1 Error: need {missing} command")
            return
        if arg:
            await self.push("501 Syntax: DATA")
            return
        if self.shared.chaos is not None:
            refusal = await self._strike("data")
            if refusal is not None:
                await self.push(refusal)
                return
        self.dialogue.begin(self._waits.now())

    async def _message(self) -> None:
        """Take a message to its final dot, from where it stands, and answer it: durable or refused.

        The dialogue does it without us where there is nothing to say but 250.
        """
        dialogue = self.dialogue
        while dialogue.receiving:
            if dialogue.endless:
                raise _endless_message()
            dialogue.feed(await self.lines.chunk(dialogue.transaction.until), self._waits.now())
            self.lines.give_back(dialogue.unread())
        self.lines.due = math.inf
        if dialogue.storing is not None:
            self._conclude(dialogue.storing.result())
        else:
            assert dialogue.message is not None
            await self._finish(dialogue.message)
        self._set_post_data_state()

    @syntax("BDAT octets [LAST]")
    async def smtp_BDAT(self, arg: str | None) -> None:
        """Take a chunk of the message (RFC 3030); of one that is refused, read it all the same."""
        found = SIZE.fullmatch(arg or "")
        if found is None:
            raise _chunk_without_end()
        message, dialogue = self._chunks, self.dialogue
        chaos = self.shared.chaos is not None and message is None
        if message is None and dialogue.transaction.recipients:
            message = self._chunks = ChunkedMessage(self.limits.max_message_bytes)
            dialogue.share(message, self._waits.now())
        await self._read_chunk(int(found[1]), message)
        if message is None:
            self._say(b"503 5.5.1 Error: need MAIL and RCPT before BDAT\r\n")
        elif message.refused:
            self._say(b"503 5.5.1 Error: a chunk was refused\r\n")
        elif chaos and (struck := await self._strike("data")) is not None:
            await self.push(struck)
            self._drop(message)
        elif found[2]:
            self.lines.due = math.inf
            dialogue.whole()
            await self._finish(message)
        elif self._refuses(message):
            self._drop(message)
        else:
            self._say(b"250 2.0.0 %d octets\r\n" % int(found[1]))
        if found[2] and message is not None:
            self._set_post_data_state()

    def _drop(self, message: ChunkedMessage) -> None:
        """Keep nothing of a message whose chunk was refused."""
        message.refused = True
        message.drop()
        self.dialogue.hold(0, self._waits.now())

    async def _read_chunk(self, size: int, message: ChunkedMessage | None) -> None:
        """Read so many octets, into the message if there is one."""
        dialogue, now = self.dialogue, self._waits.now()
        if (
            size + (message.received if message else 0)
            > self.limits.discard_factor * self.limits.max_message_bytes
        ):
            raise _endless_message()
        until = min(dialogue.transaction.until, now + self.limits.transaction_timeout)
        dialogue.receiving = True
        while size:
            octets = await self.lines.octets(size, until)
            size -= len(octets)
            if message is not None:
                message.add(octets)
                dialogue.hold(message.held, self._waits.now())
        dialogue.receiving = False

    async def _finish(self, message: DataDecoder | ChunkedMessage) -> None:
        """Answer the end of a message."""
        if message.bare:
            if isinstance(message, DataDecoder):
                await self._be_wary()
            self._refuse(b"554 5.6.0 Bare CR or LF in the message\r\n")
        elif not self._refuses(message):
            await self._store(message.take())

    def _refuses(self, message: DataDecoder | ChunkedMessage) -> bool:
        """Refuse a message if there is no room for it."""
        if message.too_large:
            self._refuse(b"552 5.3.4 Message too large\r\n")
        elif self.dialogue.crowded_out:
            self._defer(b"452 4.3.1 Too much mail in flight, try again later\r\n")
        elif self.dialogue.too_much(message.held):
            self._defer(b"452 4.5.3 Too many recipients for so large a message\r\n")
        elif self.dialogue.short(message.held):
            _no_space.inc()
            self._defer(_NO_SPACE.encode() + b"\r\n")
        else:
            return False
        return True

    async def _be_wary(self) -> None:
        """Look what follows a final dot behind bare CRs or LFs.

        A server in front of us that saw no end where we saw one (`CR CRLF . CRLF`) goes on with
        its message at once, and that would read as commands.  So if anything but QUIT comes
        behind the dot before we have answered, the session ends.
        """
        self._suspect = await self.lines.peek(self.limits.smuggling_silence)

    async def _strike(self, phase: str, address: str = "") -> str | None:
        """Let go wrong what was asked for, by address or by chance; None: nothing does."""
        chaos = self.shared.chaos
        assert chaos is not None
        try:
            fault = fault_of(address)
        except ValueError:
            return "550 5.1.1 Chaos: no fault is named so"
        if fault.drop:
            if PHASES.index(fault.drop) < PHASES.index(phase):
                return "550 5.1.1 Chaos: it is too late for that fault"
            self._dropping.add(fault.drop)
        if phase in self._dropping:
            self.lines.replies.clear()
            raise SessionOver("chaos")
        if fault.delay:
            self.lines.due = math.inf
            await self.lines.flush()
            self._delayed = True  # as in `_miss`
            async with self._waits.pinned() as pinned:
                await pinned.sleep(fault.delay)
            self._delayed = False
        reply = fault.reply or chaos.strike(phase)
        if reply[:3] == "421":
            raise SessionOver("chaos", reply)
        return reply or None

    async def _store(self, raw: bytes) -> None:
        if self.shared.submissions is not None:
            await self._submit(raw)
            return
        if self.shared.chaos is not None:
            struck = await self._strike("dot")
            if struck is not None:
                (self._refuse if struck[0] == "5" else self._defer)(struck.encode() + b"\r\n")
                return
        refusal = await self._consult("DATA", content=raw)
        if refusal is not None:
            if refusal[0] == "5":
                self._refuse(refusal.encode() + b"\r\n")
            else:
                self._defer(refusal.encode() + b"\r\n")
            return
        # For the same reason as in `_await`: no late 250.
        self.lines.due = self._waits.now() + self.limits.store_timeout
        self._conclude(await self._waits.wait(self.dialogue.store(raw)))

    def _conclude(self, accepted: Accepted) -> None:
        """Say what became of the message."""
        if accepted.error is not None:
            self._defer(b"451 4.3.0 Try again later\r\n")
        elif accepted.stored:
            self.dialogue.welcome(accepted)
        elif accepted.full:
            self._turn_down("over_quota", len(self.dialogue.transaction.recipients))
            self._defer(b"452 4.2.2 Mailbox full, try again later\r\n")
        else:
            self._turn_down("expired", len(self.dialogue.transaction.recipients))
            self._refuse(b"550 5.1.1 No such mailbox here any more\r\n")

    def _refuse(self, reply: bytes) -> None:
        self._say(reply)
        self._refused += 1
        self._answered["rejected"].value += 1

    def _defer(self, reply: bytes) -> None:
        self._say(reply)
        self._refused += 1
        self._answered["deferred"].value += 1

    async def _consult(self, hook: str, *args: Any, content: bytes | None = None) -> str | None:
        """Ask the operator's filter; None when it agrees, else the reply to give.

        It gets a session and an envelope of its own, as hooks written for aiosmtpd change them.
        """
        filter_ = self.shared.filter
        if filter_ is None or hook not in filter_.hooks:
            return None
        session, envelope = self._show()
        if content is not None:
            envelope.content = envelope.original_content = content
        self.lines.due = math.inf
        answer: object = None
        try:
            async with self._waits.pinned() as pinned:
                with pinned.move_on_after(self.limits.filter_timeout) as deadline:
                    answer = await pinned.run(lambda: filter_.ask(hook, session, envelope, args))
            if deadline.cancelled_caught:
                log.warning("smtp.filter_timed_out", hook=hook)
        except TemporaryFailure as error:
            log.warning("smtp.filter_failed", hook=hook, error=str(error))
        reply = foreign_reply(answer)
        if reply is None:
            return "451 4.3.0 Try again later"
        return None if reply[0] == "2" else reply

    def _show(self) -> tuple[Conversation, Envelope]:
        """Bring what the filter sees up to date."""
        if self._shown_session is None:
            self._shown_session = Conversation(NO_LOOP)
            self._shown_session.peer = self.session.peer
        if self._shown is None:
            self._shown = Envelope()
        self._shown_session.host_name = self.session.host_name
        self._shown_session.extended_smtp = self.session.extended_smtp
        self._shown.mail_from = self.envelope.mail_from
        self._shown.mail_options = list(self.envelope.mail_options)
        self._shown.smtp_utf8 = self.envelope.smtp_utf8
        self._shown.rcpt_tos = list(self.envelope.rcpt_tos)
        self._shown.rcpt_options = list(self.envelope.rcpt_options)
        return self._shown_session, self._shown
