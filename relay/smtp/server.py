"""The SMTP server: aiosmtpd's `SMTP` class (verbs, session, envelope, parser) on Trio sockets.

A `Server` holds what all sessions share (limits, mailboxes, budget); a `Session` is one
connection.  aiosmtpd answers HELO, NOOP, RSET, VRFY, EXPN, HELP, QUIT and every MAIL and RCPT
that is out of the ordinary; reading, writing, time, DATA and the ordinary MAIL and RCPT are ours.

Promises:
- 250 to the final dot is sent only after `Mailboxes.store` has returned, which is after COMMIT.
- One message, one reply: a DATA with a bare CR or LF is read to its real end and refused with
  554 5.6.0; a command with one is refused with 500 5.5.2; neither ever becomes two.
- A session costs a bounded amount of memory and time, whatever its peer sends or withholds:
  every wait has a deadline, every buffer a cap, all messages together a budget.
- Trouble of ours is 4xx and says nothing about its cause, but for a disk that is nearly full
  (452 4.3.1): at MAIL, by the announced size too, and at the dot.
- Replies to a pipelined group leave in one segment, and carry enhanced status codes.

Fails: a peer that breaks the connection ends its session, nobody else's.  A message that was
handed to `store` is stored even if its peer is gone by then.

Why this way: aiosmtpd on asyncio spends most of its time on reading lines, on logging each of them
and on a general address parser; as it stands it also stores bare CR and LF, answers
500 to its own exceptions, and buffers a line without end.  Its class relies on names it keeps to
itself, so its version is pinned and tests/smtp/test_aiosmtpd_contract.py is the contract.
"""

# ruff: noqa: N802 - aiosmtpd finds the method of a command by its verb in capitals

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, cast

import trio
from aiosmtpd.smtp import MISSING, SMTP, Envelope, syntax
from aiosmtpd.smtp import Session as Conversation
from prometheus_client import Counter, Gauge
from trio.lowlevel import wait_readable, wait_writable

from relay.errors import OverQuota, TemporaryFailure
from relay.log import get_logger
from relay.metrics import registry
from relay.peers import Gate, Place, TurnedAway, peer_key
from relay.smtp.data import DataDecoder
from relay.smtp.limits import Budget, Misses, SmtpLimits
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
from relay.smtp.turns import Answer, Seat, Turns
from relay.storage import AMPLE, REFUSED, Space

log = get_logger()

CHUNK = 65536
"""The most bytes of a message read from a socket at once."""

_COMMANDS = 8192  # bytes likewise, outside DATA: a smaller buffer is made faster
_ACCEPT_BURST = 64  # connections taken from the queue before other tasks get a turn
_ACCEPT_PAUSE = 0.1  # s; out of file descriptors: let sessions end first
_ENDLESS_LINE = 1024 * 1024  # bytes of one command line that are discarded before we hang up

_NOT_LET_IN = {
    TurnedAway.PEER: "421 4.7.0 Too many connections from your address",
    TurnedAway.FULL: "421 4.3.2 Too many connections, try again later",
}
_BETWEEN_COMMANDS = 2.0  # s; for which a session that has begun a transaction is not idle

_UNKNOWN = "550 5.1.1 No such mailbox here"

_NO_SPACE = "452 4.3.1 Too little disk space is left here, try again later"
_no_space = REFUSED.labels("mail")

_SENDER_OK, _RECIPIENT_OK = "250 2.1.0 OK", "250 2.1.5 OK"
_READY = {reply: reply.encode() + b"\r\n" for reply in (_SENDER_OK, _RECIPIENT_OK)}
"""Replies that need no thought."""

_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

# One object for each child of a labelled counter: labels() takes a lock and a look-up.
_SESSIONS = Counter(
    "relay_smtp_sessions",
    "SMTP connections, by what became of them.",
    ["outcome"],
    registry=registry,
)
_served, _refused = _SESSIONS.labels("served"), _SESSIONS.labels("refused")
_MESSAGES = Counter(
    "relay_smtp_messages", "Messages whose final dot was answered.", ["outcome"], registry=registry
)
_accepted, _rejected, _deferred = (
    _MESSAGES.labels(name) for name in ("accepted", "rejected", "deferred")
)
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
_BYTES = Counter("relay_smtp_received_bytes", "Bytes of messages accepted.", registry=registry)
_OPEN = Gauge("relay_smtp_sessions_open", "SMTP sessions open now.", registry=registry)
_BUFFERED = Gauge(
    "relay_smtp_buffered_bytes", "Bytes of messages in flight now.", registry=registry
)


class Mailboxes(Protocol):
    """Where a session's mail goes.

    Both answers raise `TemporaryFailure` for trouble of ours, of its kinds `OverQuota` where the
    mailbox (of `store`: every one) holds as much as it may.
    """

    def find(self, address: str) -> Answer[str | None]:
        """Why no mail is taken for this canonical address now (unknown, expired); None: it is."""

    def store(self, reverse_path: str, recipients: Sequence[str], raw: bytes) -> Answer[str | None]:
        """Make a message durable; an id to show, or None when no recipient is live any more."""


Canonical = Callable[[str], str]
"""An address to its one spelling; ValueError when it is none of a mailbox."""


class Filter(Protocol):
    """The operator's filter, wherever it runs."""

    hooks: frozenset[str]
    """Those it has, of EHLO, HELO, MAIL, RCPT, DATA; the others are not asked for."""

    async def ask(
        self, hook: str, session: Conversation, envelope: Envelope, arguments: tuple[Any, ...]
    ) -> object:
        """Return what the hook returned; None or `TemporaryFailure` when it failed."""


class _Over(Exception):
    """The session ends now, after `reply` if there is one."""

    def __init__(self, reason: str, reply: str | None = None, *, linger: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply
        self.linger = linger


class _NoLoop:
    """Stands in for the asyncio loop that aiosmtpd's constructor insists on; it runs nothing."""

    class Future:
        def done(self) -> bool:
            return False

    def create_future(self) -> _NoLoop.Future:
        return self.Future()

    def get_debug(self) -> bool:
        return False


class _Closer:
    """What aiosmtpd closes and cancels on QUIT: the session is marked, and ends after its reply."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def close(self) -> None:
        self._session.ending = "quit"

    cancel = close


class Server:
    """What the sessions of one relay share.  Build it inside Trio or out; it starts nothing."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        canonical: Canonical,
        *,
        limits: SmtpLimits | None = None,
        domains: Sequence[str] = ("relay.localhost",),
        filter_: Filter | None = None,
        space: Space = AMPLE,
    ) -> None:
        """`domains`: the first names us in replies, and is postmaster's; `space`: of the disk."""
        self.mailboxes = mailboxes
        self.canonical = canonical
        self.limits = SmtpLimits() if limits is None else limits
        self.hostname = domains[0]
        self.filter = filter_
        self.space = space
        self.gate = Gate(
            "smtp",
            self.limits.max_connections,
            self.limits.max_connections_per_peer,
            local_per_peer=self.limits.max_connections_per_peer,
            patience=self.limits.idle_patience,
        )
        self.budget = Budget(self.limits)
        self.misses = Misses(self.limits)
        self.sessions: set[Session] = set()
        self.draining = False
        self.greeting = f"220 {self.hostname} ESMTP Relay\r\n".encode()
        offers = [
            self.hostname,
            "PIPELINING",
            f"SIZE {self.limits.max_message_bytes}",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
            "HELP",
        ]
        self.offers = [f"250-{offer}" for offer in offers[:-1]] + [f"250 {offers[-1]}"]
        self.ehlo = "".join(f"{line}\r\n" for line in self.offers).encode()
        self.turns = Turns()
        self.prototype = _prototype(self)
        self._complained_at = -math.inf
        self.now = 0.0
        """The time, or up to a tick of `watch` later: a deadline counted from it is never early,
        and a look at the clock costs more than it is worth at every command."""
        _OPEN.set_function(lambda: self.gate.open)
        _BUFFERED.set_function(lambda: self.budget.used)

    async def accept(
        self, listener: socket.socket, nursery: trio.Nursery, *, paused: Callable[[], bool]
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled.

        `listener` listens and does not block.  Out of file descriptors or memory, it waits for
        sessions to end.
        """
        while True:
            await wait_readable(listener)
            for _ in range(_ACCEPT_BURST):
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _OUT_OF:
                        self._complain("smtp.accept_failed", error=str(error))
                        await trio.sleep(_ACCEPT_PAUSE)
                        break
                    continue  # that one connection failed before we had it (ECONNABORTED …)
                self._welcome(sock, address, nursery, paused=paused())

    def drain(self) -> None:
        """Say 421 now, and to those whose message is arriving when it is done."""
        self.draining = True
        for session in tuple(self.sessions):
            session.drain()

    async def watch(self) -> NoReturn:
        """End the sessions whose peers are out of time, until cancelled.

        One look at all of them now and then is much cheaper than a deadline that is moved with
        every command; it may be late by `tick` seconds.
        """
        limits = self.limits
        shortest = min(limits.command_timeout, limits.data_timeout, limits.transaction_timeout)
        tick = min(1.0, shortest / 4)
        while True:
            await trio.sleep(tick)
            now = trio.current_time()
            self.now = now + tick
            for session in [session for session in self.sessions if session.due <= now]:
                session.expire()

    def _welcome(
        self, sock: socket.socket, address: Any, nursery: trio.Nursery, *, paused: bool
    ) -> None:
        host = str(address[0])
        if paused or self.draining:
            self._turn_away(sock, host, "421 4.3.2 Paused, try again later")
            return
        self.now = max(self.now, trio.current_time())
        place = self.gate.enter(host, self.now)
        if isinstance(place, TurnedAway):
            self._turn_away(sock, host, _NOT_LET_IN[place])
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            place.leave()
            return
        session = place.guest = Session(self, sock, address)
        self.sessions.add(session)
        nursery.start_soon(self._attend, session, place)

    def _turn_away(self, sock: socket.socket, host: str, reply: str) -> None:
        """Refuse a connection: no task, no object, no line in the log for each of a flood."""
        _refused.inc()
        self._complain("smtp.refused", peer=host, reply=reply)
        with contextlib.suppress(OSError):  # it is gone already
            sock.setblocking(False)
            sock.send(reply.encode() + b"\r\n")
        sock.close()

    async def _attend(self, session: Session, place: Place) -> None:
        try:
            await session.run()
        except Exception:
            # A fault of ours, but one session's: the others go on.
            log.exception("smtp.session_failed")
        finally:
            self.sessions.discard(session)
            place.leave()
            _served.inc()

    def _complain(self, event: str, **values: Any) -> None:
        """Log a line of a kind that strangers can cause in any number: at most one a second."""
        now = trio.current_time()
        if now - self._complained_at >= 1.0:
            self._complained_at = now
            log.warning(event, **values)


def _announced(options: Sequence[str]) -> int:
    """Return the bytes that MAIL says the message has; 0 where it says nothing."""
    return next((int(one[5:]) for one in options if one.startswith("SIZE=")), 0)


def _prototype(server: Server) -> dict[str, Any]:
    """What aiosmtpd's constructor makes of a session; it takes longer than serving one message.

    It inspects its handler and itself for hooks, so it runs once a server and its attributes are
    copied into each session.
    """
    made = SMTP(
        object(),
        data_size_limit=server.limits.max_message_bytes,
        enable_SMTPUTF8=True,
        hostname=server.hostname,
        ident="ESMTP Relay",
        auth_require_tls=True,
        timeout=server.limits.command_timeout,
        loop=cast(asyncio.AbstractEventLoop, _NoLoop()),
    )
    attributes = dict(vars(made))
    for private in ("_reader", "_writer", "_stream_reader_wr", "_stream_writer"):
        attributes.pop(private, None)  # no session has one: we read and write
    # HELP lists these.
    attributes["_smtp_methods"] = {
        verb: getattr(Session, f"smtp_{verb}")
        for verb in (
            *("HELO", "EHLO", "MAIL", "RCPT", "DATA", "RSET", "NOOP", "QUIT", "VRFY", "EXPN"),
            "HELP",
        )
    }
    return attributes


class Session(SMTP):
    """One connection, from its greeting to its end."""

    # aiosmtpd has these as Optional, or of asyncio's types.
    session: Conversation
    envelope: Envelope
    transport: Any
    _handler_coroutine: Any

    def __init__(self, server: Server, sock: socket.socket, peer: Any) -> None:
        """`sock` is connected and does not block; `run` closes it."""
        vars(self).update(server.prototype)
        self.server = server
        self.limits = server.limits
        self.session = Conversation(cast(asyncio.AbstractEventLoop, None))
        self.session.peer = peer
        self._host = str(peer[0])
        self.transport = self._handler_coroutine = _Closer(self)
        self.ending = ""
        """Why the session ends once the command in hand is answered; empty: it goes on."""
        self.due = math.inf
        """When its peer is out of time; `Server.watch` looks."""
        self._sock = sock
        self._fd = sock.fileno()
        self._seat = Seat(server.turns, sock)
        self._storing: Answer[str | None] | None = None
        self._scope = trio.CancelScope()
        self._input = b""
        self._at = 0  # how much of it was read
        self._output: list[bytes] = []
        self._waiting = False  # for the peer's next command, or the rest of it
        self._waiting_since = server.now
        self._delayed = False  # and it is we who keep the peer waiting, for what it guessed
        self._receiving = False  # between 354 and the final dot
        self._suspect = False  # see _refuse_bare
        self._farewell = "421 4.3.2 Shutting down"
        self._path_code = "5.1.3"  # of a malformed address: sender's or recipient's
        self._errors = self._unknown = self._idle_commands = 0
        self._stored = self._refused = 0
        self._turned_down: dict[str, int] = {}  # recipients, by why
        self._shown_session: Conversation | None = None  # the filter's own, made when it is asked
        self._set_post_data_state()

    # ------------------------------------------------------------------------ its life

    async def run(self) -> None:
        """Serve until the peer, a limit or the relay ends the session, and close the socket."""
        began = trio.current_time()
        reason = "cancelled"
        cut_off = True  # by its deadline, by draining, by the end of ingest
        try:
            with self._scope:
                reason = await self._seat.host(self._live())
                cut_off = False
            if self._scope.cancelled_caught:
                reason = self.ending
        finally:
            if cut_off:
                self._part()
            self._sock.close()
            self._log_end(reason, trio.current_time() - began)

    async def _live(self) -> str:
        """Serve to the end, good-bye included; return why it ended."""
        try:
            self._output.append(self.server.greeting)
            try:
                return await self._serve()
            except _Over as over:
                if over.reply is not None:
                    self._output.append(over.reply.encode() + b"\r\n")
                    await self._flush()
                if over.linger:
                    await self._linger()
                return over.reason
        except OSError:
            return "broken"  # by the peer, in whatever we were doing

    def drain(self) -> None:
        """The relay stops: end now, unless a message is arriving, or a command being obeyed."""
        if self._waiting:
            self._end("draining", "421 4.3.2 Shutting down")

    def idle_since(self) -> float | None:
        """Since when it waits for its peer's next command; None while one is being obeyed.

        One that waits for a guesser's answer gives way at once: the delay is no claim to a place.
        """
        if not self._waiting:
            return None
        if self._delayed:
            return -math.inf
        return self._waiting_since + (0.0 if self.envelope.mail_from is None else _BETWEEN_COMMANDS)

    def give_way(self) -> None:
        """Somebody else has its place."""
        self._end("gave_way", "421 4.3.2 Too many connections, and this one was idle")

    def expire(self) -> None:
        """The peer is out of time."""
        self._end("timeout", "421 4.4.2 Timed out")

    def _end(self, reason: str, farewell: str) -> None:
        self.ending, self._farewell = reason, farewell
        self._scope.cancel()

    def _part(self) -> None:
        """Say good-bye if the socket takes it at once; nobody waits for a peer that is leaving."""
        self._output.append(self._farewell.encode() + b"\r\n")
        with contextlib.suppress(OSError):  # it is gone, or reads nothing
            self._sock.send(b"".join(self._output))

    async def _linger(self) -> None:
        """Read on for a moment: closing with unread input would take our last reply back (RST)."""
        self._sock.shutdown(socket.SHUT_WR)
        await self._seat.go_home()
        with trio.move_on_after(self.limits.linger_timeout):
            while await self._receive():
                pass

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

    # ------------------------------------------------------------------------ reading, writing

    async def _receive(self) -> bytes:
        """Wait for bytes; none means that the peer has said its last."""
        return await self._seat.read(CHUNK if self._receiving else _COMMANDS)

    async def _fill(self) -> None:
        """Send what there is to say, then add at least one byte to the input."""
        if self._output:
            left = self._send()
            if left:
                await self._send_on(left)
        chunk = await self._seat.read(CHUNK if self._receiving else _COMMANDS)
        if not chunk:
            raise _Over("closed")
        if self._at == len(self._input):
            self._input = chunk
        else:
            self._input = self._input[self._at :] + chunk
        self._at = 0

    async def _flush(self) -> None:
        if left := self._send():
            await self._send_on(left)

    def _send(self) -> bytes:
        """Send what there is to say; return what the socket does not take now."""
        output = self._output
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            return data
        return b"" if sent == len(data) else data[sent:]

    async def _send_on(self, data: bytes) -> None:
        """Send what a peer that does not read has kept waiting."""
        await self._seat.go_home()
        before, self.due = self.due, trio.current_time() + self.limits.reply_timeout
        while data:
            await wait_writable(self._fd)
            with contextlib.suppress(BlockingIOError):
                data = data[self._sock.send(data) :]
        self.due = before

    async def _line(self) -> bytes | None:
        """Return the next command without its CRLF, or None when it was too long to keep."""
        end = self._input.find(b"\r\n", self._at)
        if end < 0:
            self._waiting_since = now = self.server.now
            self.due = min(now + self.limits.command_timeout, self._transaction_until)
            while end < 0:
                self._waiting = True
                if self._at != len(self._input):
                    await self._rest_of_line()
                else:
                    await self._fill()
                self._waiting = False
                end = self._input.find(b"\r\n", self._at)
                if end < 0 and len(self._input) - self._at > self.limits.max_line_bytes:
                    await self._skip_line()
                    return None
        line = self._input[self._at : end]
        self._at = end + 2
        return line if len(line) <= self.limits.max_line_bytes else None

    async def _rest_of_line(self) -> None:
        """Read on in a command that has come in part."""
        part = self._input[self._at :]
        if b"\n" not in part and b"\r" not in part[:-1]:
            await self._fill()
            return
        # Whoever ends lines with LF alone waits for our reply and will not send a CRLF.  It is
        # told, and the session ends: what it says next must not become a command of its own.
        await self._seat.go_home()
        with trio.move_on_after(self.limits.bare_line_timeout):
            await self._fill()
            return
        raise _Over("bare line end", "500 5.5.2 Lines end with CR LF; good-bye")

    async def _skip_line(self) -> None:
        """Read to the end of a command that is too long, keeping nothing."""
        skipped = 0
        while (end := self._input.find(b"\r\n", self._at)) < 0:
            skipped += len(self._input) - self._at - 1
            if skipped > _ENDLESS_LINE:
                raise _Over("endless line", "421 4.7.0 Line too long; good-bye", linger=True)
            self._at = len(self._input) - 1  # its last byte may be the CR
            await self._fill()
        self._at = end + 2

    async def push(self, status: str) -> None:  # type: ignore[override]  # aiosmtpd: or bytes
        """Queue a reply; it leaves when the session next waits for its peer."""
        self._reply(status)

    def _reply(self, status: str) -> None:
        ready = _READY.get(status)
        if ready is not None:
            self._output.append(ready)
            return
        self._say(enhanced(status).replace("5.1.3", self._path_code, 1).encode() + b"\r\n")

    def _say(self, reply: bytes) -> None:
        """Queue a reply that is complete."""
        self._output.append(reply)
        if reply[0] == 53:  # b"5"
            self._errors += 1

    # ------------------------------------------------------------------------ commands

    async def _serve(self) -> str:
        """Obey one command after another; return why the session ends."""
        limits = self.limits
        while True:
            if self.server.draining:
                raise _Over("draining", "421 4.3.2 Shutting down")
            self._seat.go_out()
            line = await self._line()
            try:
                if line is None:
                    self._say(b"500 5.5.2 Line too long\r\n")
                else:
                    await self._obey(line)
            except (_Over, OSError):
                raise
            except Exception as error:
                await self.push(await self.handle_exception(error))
                if self._receiving:
                    # Where the message ends is unknown: what follows must not be read as commands.
                    raise _Over("failed", "421 4.3.0 Internal error; good-bye") from error
                self._set_post_data_state()
            if self.ending:
                await self._flush()
                return self.ending
            if self._errors > limits.max_errors or self._unknown > limits.max_unknown:
                raise _Over("errors", "421 4.7.0 Too many errors; good-bye", linger=True)
            if self._idle_commands > limits.max_idle_commands:
                raise _Over("idle commands", "421 4.7.0 Too many commands without a message")

    async def _obey(self, line: bytes) -> None:
        if self._suspect and line.upper() != b"QUIT":
            raise _Over("smuggling", "421 4.7.0 Commands followed a malformed message; good-bye")
        # The commands of ordinary mail, each read by one expression; what is out of the ordinary
        # in any way goes on below.
        if line == b"DATA":
            await self.smtp_DATA(None)
            return
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
        if method is None:
            self._refuse_verb(verb)
        else:
            await method(self, argument.strip() or None)

    def _refuse_bytes(self, line: bytes) -> None:
        """Refuse a command with a bare CR or LF, a control byte, or what is not UTF-8."""
        verb = line[:5].upper()
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
            raise _Over("http", "421 4.7.0 This is not a web server")
        self._unknown += 1
        self._say(b"500 5.5.1 Command not recognized\r\n")

    async def handle_exception(self, error: Exception) -> str:
        """Log what nobody expected and answer 451, which names no cause."""
        log.error("smtp.failed", peer=self._host, exc_info=error)
        return "451 4.3.0 Internal error, try again later"

    def _set_post_data_state(self) -> None:
        self.envelope = Envelope()
        self._recipients: dict[str, None] = {}  # canonical, in order, each once
        self._shown: Envelope | None = None  # the filter's own
        self._transaction_until = math.inf

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        """aiosmtpd's parser, which is the email package's: it forgives and it has faults."""
        try:
            address, rest = super()._getaddr(arg)
        except Exception:
            # RecursionError, IndexError: whatever it trips over, it is no address.
            return None, None
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
        refusal = await self._consult("EHLO", hostname, list(self.server.offers))
        if refusal is not None:
            await self.push(refusal)
            return
        self.session.host_name = hostname
        self._output.append(self.server.ehlo)

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
        self._output.append(b"250 %b\r\n" % self.server.hostname.encode())

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
            if POSTMASTER.fullmatch(arg):
                await self.push(await self._rcpt(f"postmaster@{self.server.hostname}", []))
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
        if self.server.space.short(_announced(options) if options else 0):
            self._idle_commands += 1
            _no_space.inc()
            return _NO_SPACE
        if self.server.filter is not None:
            refusal = await self._consult("MAIL", address, options)
            if refusal is not None:
                return refusal
        self.envelope.mail_from = address
        self.envelope.mail_options.extend(options)
        self._transaction_until = self.server.now + self.limits.transaction_timeout
        return _SENDER_OK

    async def _rcpt(self, address: str, options: list[str]) -> str:
        if len(self._recipients) >= self.limits.max_recipients:
            return "452 4.5.3 Too many recipients"
        try:
            canonical = self.server.canonical(address)
        except ValueError:
            return await self._miss("unknown")
        if canonical in self._recipients:
            self._idle_commands += 1  # or a transaction would grow as long as it is repeated
            return _RECIPIENT_OK
        try:
            why_not = await self._seat.wait(self.server.mailboxes.find(canonical))
            if why_not is not None:
                return await self._miss(why_not)
        except OverQuota:
            self._turn_down("over_quota")
            return "452 4.2.2 Mailbox full, try again later"
        except TemporaryFailure:
            return "451 4.3.0 Try again later"
        if self.server.filter is not None:
            refusal = await self._consult("RCPT", address, options)
            if refusal is not None:
                self._turn_down("filter")
                return refusal
        self.envelope.rcpt_tos.append(address)
        self.envelope.rcpt_options.extend(options)
        self._recipients[canonical] = None
        return _RECIPIENT_OK

    def _turn_down(self, why: str, recipients: int = 1) -> None:
        """Count recipients who get no mail, for the log and the metrics."""
        self._turned_down[why] = self._turned_down.get(why, 0) + recipients
        _recipients_refused[why].inc(recipients)

    async def _miss(self, why: str) -> str:
        """Say that a recipient is unknown, whatever it is: late, to whoever names many such."""
        self._turn_down(why)
        delay = self.server.misses.note(peer_key(self._host), self.server.now)
        if delay:
            await self._seat.go_home()
            self._waiting = self._delayed = True  # it may be ended: by a drain, or for a newcomer
            await trio.sleep(delay)
            self._waiting = self._delayed = False
        return _UNKNOWN

    # ------------------------------------------------------------------------ the message

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Take a message to its final dot, and answer when it is durable or refused."""
        if not self._recipients:
            missing = "RCPT" if self.envelope.mail_from is not None else "MAIL"
            await self.push(f"503 5.5.1 Error: need {missing} command")
            return
        if arg:
            await self.push("501 Syntax: DATA")
            return
        self._output.append(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        self._receiving = True
        message = DataDecoder(self.limits.max_message_bytes)
        share = self.server.budget.share(self.server.now, message.drop)
        try:
            while self._receiving:
                self._receiving = not await self._feed(message)
                share.grow(message.held, self.server.now)
            share.keep()
            self.due = math.inf
            await self._finish(message, room=not share.lost)
        finally:
            storing, self._storing = self._storing, None
            if storing is not None and not storing.settled:
                # We are cut off, and whoever stores it holds it in memory still.
                share.keep()
                storing.then(share.end)
            else:
                share.end()
        self._set_post_data_state()

    async def _feed(self, message: DataDecoder) -> bool:
        """Give a message what has come, or comes next; True when it is complete."""
        if self._at == len(self._input):
            self.due = min(self.server.now + self.limits.data_timeout, self._transaction_until)
            await self._fill()
        chunk = self._input if self._at == 0 else self._input[self._at :]
        self._input, self._at = b"", 0
        if message.feed(chunk):
            self._input = message.rest
            return True
        if message.received > self.limits.discard_factor * self.limits.max_message_bytes:
            raise _Over("endless message", "421 5.3.4 Message far too large; good-bye", linger=True)
        return False

    async def _finish(self, message: DataDecoder, *, room: bool) -> None:
        """Answer the final dot."""
        if message.bare:
            await self._refuse_bare()
        elif message.too_large:
            self._refuse(b"552 5.3.4 Message too large\r\n")
        elif not room:
            self._defer(b"452 4.3.1 Too much mail in flight, try again later\r\n")
        elif self.server.space.short():
            _no_space.inc()
            self._defer(_NO_SPACE.encode() + b"\r\n")
        else:
            await self._store(message.take())

    async def _refuse_bare(self) -> None:
        """Refuse a message with a bare CR or LF, wary of what follows it.

        A server in front of us that saw no end where we saw one (`CR CRLF . CRLF`) goes on with
        its message at once, and that would read as commands.  So if anything but QUIT comes
        behind the dot before we have answered, the session ends.
        """
        if self._at == len(self._input):
            await self._seat.go_home()
            with trio.move_on_after(self.limits.smuggling_silence):
                self._input = await self._receive()
        self._suspect = self._at < len(self._input)
        self._refuse(b"554 5.6.0 Bare CR or LF in the message\r\n")

    async def _store(self, raw: bytes) -> None:
        refusal = await self._consult("DATA", content=raw)
        if refusal is not None:
            if refusal[0] == "5":
                self._refuse(refusal.encode() + b"\r\n")
            else:
                self._defer(refusal.encode() + b"\r\n")
            return
        reverse_path = "" if self.envelope.mail_from == "<>" else self.envelope.mail_from
        # Past this deadline the session ends: a reply now could be taken for that of the next dot.
        self.due = self.server.now + self.limits.store_timeout
        try:
            self._storing = self.server.mailboxes.store(
                reverse_path or "", tuple(self._recipients), raw
            )
            stored = await self._seat.wait(self._storing)
        except OverQuota:
            self._turn_down("over_quota", len(self._recipients))
            self._defer(b"452 4.2.2 Mailbox full, try again later\r\n")
            return
        except TemporaryFailure:
            self._defer(b"451 4.3.0 Try again later\r\n")
            return
        if stored is None:
            self._turn_down("expired", len(self._recipients))
            self._refuse(b"550 5.1.1 No such mailbox here any more\r\n")
            return
        self._output.append(b"250 2.6.0 Stored as %b\r\n" % stored.encode())
        self._stored += 1
        self._errors = self._unknown = self._idle_commands = 0
        _accepted.inc()
        _BYTES.inc(len(raw))

    def _refuse(self, reply: bytes) -> None:
        self._say(reply)
        self._refused += 1
        _rejected.inc()

    def _defer(self, reply: bytes) -> None:
        self._say(reply)
        self._refused += 1
        _deferred.inc()

    async def _consult(self, hook: str, *args: Any, content: bytes | None = None) -> str | None:
        """Ask the operator's filter; None when it agrees, else the reply to give.

        It gets a session and an envelope of its own, as hooks written for aiosmtpd change them.
        """
        filter_ = self.server.filter
        if filter_ is None or hook not in filter_.hooks:
            return None
        await self._seat.go_home()
        session, envelope = self._show()
        if content is not None:
            envelope.content = envelope.original_content = content
        self.due = math.inf
        answer: object = None
        try:
            with trio.move_on_after(self.limits.filter_timeout) as scope:
                answer = await filter_.ask(hook, session, envelope, args)
            if scope.cancelled_caught:
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
            self._shown_session = Conversation(cast(asyncio.AbstractEventLoop, None))
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
