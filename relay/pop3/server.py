"""The POP3 server: lets connections in, and runs their sessions.

A session is a task with a `Dialogue` (`relay.pop3.dialogue`, what is said), a `Stream` (the bytes)
and the questions to the database that neither asks.

Promises
- No more sessions than the limits say, of one peer and in all; a port that is full is no wall:
  whoever keeps us waiting gives its place to a newcomer (`relay.ports.peers`).
- A maildrop is what the mailbox held at sign-in.  There is no lock (docs/pop3.md says why): what
  others delete meanwhile is answered -ERR; nothing else of it changes.
- Whoever has signed in is refused as often as need be: what ends a session is what no mail reader
  says.  A stranger has `max_idle_commands` to sign in by.
- What is marked by DELE is deleted by QUIT alone, durable before its +OK, by the law of the HTTP
  call; a session that breaks or is out of time deletes nothing (RFC 1939, 3 and 6).
- A message is read and sent piece by piece, the next one once the peer has taken the last; what all
  sessions hold is within a budget.
- From the instant at which a mailbox is over no message of it is sent, but the rest of one that has
  begun; a revoked key opens nothing a second later.
- A password is checked when it is its turn (`relay.access.password_checks`), a wrong one answered
  late, and the last that a session may say ends it.  Whoever hangs up meanwhile gives its place
  back at once.
- A drain lets the command in hand finish, and ends the session then.

Fails: one session's fault ends nobody else's.  Without the database commands are answered
-ERR [SYS/TEMP].  With the error of a listening socket, for supervision.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import trio
from prometheus_client import Counter, Gauge

from relay.access.password_checks import PasswordChecks, TooManyWrong
from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.mailboxes.messages import Messages
from relay.metrics import Counts, registry
from relay.pop3.dialogue import (
    Authenticate,
    Dialogue,
    Listing,
    NoCommand,
    Quit,
    Retrieve,
    StartTls,
    Step,
    Update,
)
from relay.pop3.limits import Pop3Limits
from relay.pop3.maildrop import Maildrop
from relay.pop3.sign_in import MailboxAuthenticator, Reader
from relay.pop3.streams import Ended, Stream
from relay.pop3.text import Stuffing, Top
from relay.ports.certificate import Certificate
from relay.ports.connections import accept
from relay.ports.handshakes import Handshakes
from relay.ports.hang_ups import unless_hung_up
from relay.ports.memory_budget import MemoryBudget
from relay.ports.peers import Place, PortGate, peer_key
from relay.ports.proxy import Network, is_local
from relay.ports.refusals import SENTENCES, Refusals
from relay.ports.trusted_proxies import TrustedProxies

log = get_logger()

PIECE = 64 * 1024
"""Bytes of a message that are read and sent at once."""

_LOADS = 2  # questions for mail that are asked at once: a part of a small pool

_GREETING = b"+OK Relay POP3 ready\r\n"
_TEMPORARY = b"-ERR [SYS/TEMP] Try again later\r\n"
_CROWDED = b"-ERR [SYS/TEMP] Too much mail is being read, try again later\r\n"
_TOO_MANY_WRONG = b"-ERR [SYS/TEMP] Too many wrong passwords, try again later\r\n"
_WRONG = b"-ERR [AUTH] Wrong user name or password\r\n"
_GUESSED = b"-ERR [AUTH] Too many wrong passwords; good-bye\r\n"
_REVOKED = b"-ERR [AUTH] This key opens nothing any more; good-bye\r\n"
_GONE = b"-ERR No such message any more\r\n"
_NOT_DELETED = b"-ERR [SYS/TEMP] Not all messages were deleted\r\n"
_SHUTTING_DOWN = b"-ERR [SYS/TEMP] Shutting down\r\n"
_GAVE_WAY = b"-ERR [SYS/TEMP] Too many connections, and this one was idle\r\n"
_NO_TLS = b"-ERR [SYS/TEMP] TLS is not available now\r\n"

_NOT_LET_IN = {why: f"-ERR [SYS/TEMP] {text}\r\n".encode() for why, text in SENTENCES.items()}

_SESSIONS = Counter(
    "relay_pop3_sessions",
    "POP3 connections, by what became of them.",
    ["outcome"],
    registry=registry,
)
_served, _refused = _SESSIONS.labels("served"), _SESSIONS.labels("refused")
_SIGN_INS = Counter(
    "relay_pop3_sign_ins",
    "Passwords that were said to the POP3 port: right or wrong.",
    ["outcome"],
    registry=registry,
)
_right, _wrong = _SIGN_INS.labels("right"), _SIGN_INS.labels("wrong")
_retrieved, _topped = Counts(
    "relay_pop3_messages_sent", "Messages sent by POP3, by command.", "command", ("retr", "top")
).of.values()
(_bytes,) = Counts("relay_pop3_sent_bytes", "Bytes of messages sent by POP3.").of.values()
_deleted = Counter(
    "relay_pop3_messages_deleted", "Messages deleted by POP3 sessions.", registry=registry
)
_open = Gauge("relay_pop3_sessions_open", "POP3 sessions open now.", registry=registry)
_buffered = Gauge(
    "relay_pop3_buffered_bytes",
    "Bytes that POP3 sessions hold of messages and lists of them.",
    registry=registry,
)


class Server:
    """The sessions of one relay.  Build it inside Trio or out; it starts nothing."""

    def __init__(
        self,
        authenticator: MailboxAuthenticator,
        password_checks: PasswordChecks,
        messages: Messages,
        limits: Pop3Limits | None = None,
        certificate: Certificate | None = None,
        proxies: Sequence[Network] = (),
    ) -> None:
        """`certificate`: for STLS and TLS from the first byte; None: there is none.

        `proxies`: whose connections begin with the PROXY protocol.
        """
        self.limits = limits = Pop3Limits() if limits is None else limits
        self.authenticator = authenticator
        self.password_checks = password_checks
        self.messages = messages
        self.certificate = certificate
        self.budget = MemoryBudget(limits.max_buffered_bytes)
        self.loads = trio.CapacityLimiter(_LOADS)
        self.handshakes = Handshakes()
        self.draining = False
        """Whether the relay stops: no further command is read."""
        self._gate = PortGate(
            "pop3",
            limits.max_connections,
            limits.max_connections_per_peer,
            local_per_peer=limits.max_connections_per_peer,
            patience=limits.idle_patience,
        )
        self._proxies = TrustedProxies(
            proxies,
            timeout=limits.proxy_timeout,
            closed=_refused.inc,
            complain=lambda host, why: log.warning("pop3.proxy_refused", peer=host, reason=why),
        )
        self._sessions: set[Session] = set()
        self._refusals = Refusals("pop3.refused", _NOT_LET_IN, counted=_refused.inc)
        _open.set_function(lambda: len(self._sessions))
        _buffered.set_function(lambda: self.budget.used)

    async def run(self) -> None:
        """Give turns for handshakes, until cancelled."""
        await self.handshakes.run()

    async def accept(
        self,
        listener: socket.socket,
        nursery: trio.Nursery,
        *,
        paused: Callable[[], bool],
        tls_first: bool = False,
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled.

        `listener` listens and does not block; `tls_first`: TLS from the first byte.
        """

        def welcome(sock: socket.socket, peer: Any, place: Place) -> None:
            session = place.guest = Session(self, sock, peer, tls_first=tls_first)
            self._sessions.add(session)
            nursery.start_soon(self._attend, session, place)

        await accept(
            listener,
            self._gate,
            welcome=welcome,
            turn_away=partial(self._refusals.turn_away, silent=tls_first),
            starved="pop3.accept_failed",
            paused=lambda: paused() or self.draining,
            proxies=self._proxies,
        )

    def drain(self) -> None:
        """End those who have no command in hand now, and the others when it is done."""
        self.draining = True
        for session in tuple(self._sessions):
            session.drain()

    def figures(self) -> dict[str, int]:
        """Return what is under way: sessions, and the bytes that they hold."""
        return {"sessions": len(self._sessions), "buffered_bytes": self.budget.used}

    async def _attend(self, session: Session, place: Place) -> None:
        try:
            await session.run()
        except Exception:
            # A fault of ours, but one session's: the others go on.
            log.exception("pop3.session_failed")
        finally:
            self._sessions.discard(session)
            place.leave()
            _served.inc()


class Session:
    """One connection, from its greeting to its end."""

    def __init__(self, server: Server, sock: socket.socket, peer: Any, *, tls_first: bool) -> None:
        """`sock` is connected and does not block; `run` closes it."""
        self._server = server
        self._limits = server.limits
        self._host = str(peer[0])
        self._stream = Stream(sock, server.limits)
        self._tls_first = tls_first
        self._dialogue = Dialogue(
            safe=is_local(peer),
            offers_tls=server.certificate is not None and not tls_first,
        )
        self._scope = trio.CancelScope()
        self._cut: tuple[str, bytes] | None = None  # why it was cut off, and what is said then
        self._delayed = False  # it is we who keep the peer waiting, for what it guessed
        self._amid = False  # a reply has been sent in part
        self._reader: Reader | None = None
        self._trusted_until = -math.inf
        self._held = 0  # bytes of the budget
        self._wrong = self._sent = self._deleted = 0

    async def run(self) -> None:
        """Serve until the peer, a limit or the relay ends the session, and close the socket."""
        began = trio.current_time()
        reason, farewell = "cancelled", _SHUTTING_DOWN
        try:
            with self._scope:
                reason, farewell = await self._live()
            if self._scope.cancelled_caught and self._cut is not None:
                reason, farewell = self._cut
        finally:
            if farewell and not self._amid:
                self._stream.part(farewell)
            self._stream.close()
            self._server.budget.free(self._held)
            write = log.debug if self._reader is None and not self._wrong else log.info
            write(
                "pop3.session_ended",
                peer=self._host,
                reason=reason,
                wrong_passwords=self._wrong,
                sent=self._sent,
                deleted=self._deleted,
                seconds=round(trio.current_time() - began, 3),
            )

    async def _live(self) -> tuple[str, bytes]:
        """Serve to the end; return why it ended, and what is left to say."""
        try:
            if self._tls_first:
                await self._begin_tls()
            await self._stream.send(_GREETING)
            return await self._serve(), b""
        except Ended as over:
            if over.reply:
                await self._say_good_bye(over.reply)
            return over.reason, b""
        except OSError:
            return "broken", b""  # by the peer, in whatever we were doing

    async def _say_good_bye(self, reply: bytes) -> None:
        try:
            await self._stream.send(reply)
            await self._stream.linger()
        except (Ended, OSError):
            return  # it is gone, or reads nothing

    async def _serve(self) -> str:
        """Obey one command after another; return why the session ends."""
        limits, dialogue = self._limits, self._dialogue
        idle_commands = 0
        while True:
            if self._server.draining:
                raise Ended("draining", _SHUTTING_DOWN)
            signed_in = dialogue.maildrop is not None
            timeout = limits.idle_timeout if signed_in else limits.sign_in_timeout
            step = dialogue.obey(await self._stream.line(timeout))
            leads_on = signed_in and not isinstance(step, NoCommand)
            idle_commands = 0 if leads_on else idle_commands + 1
            if idle_commands > limits.max_idle_commands:
                raise Ended(
                    "idle_commands", b"-ERR Too many commands that lead nowhere; good-bye\r\n"
                )
            if isinstance(step, bytes):
                await self._stream.send(step)
            elif isinstance(step, Quit):
                await self._stream.send(step.reply)
                return "quit"
            elif await self._do(step):
                return "quit"

    async def _do(self, step: Step) -> bool:
        """Do what the dialogue cannot; return whether the session ends."""
        try:
            if isinstance(step, Authenticate):
                await self._sign_in(step)
            elif isinstance(step, StartTls):
                await self._start_tls()
            elif isinstance(step, Listing):
                await self._look_again()
                for part in step.parts:
                    self._amid = True
                    await self._stream.send(part)
                self._amid = False
            elif isinstance(step, Retrieve):
                await self._look_again()
                await self._retrieve(step)
            elif isinstance(step, Update):
                await self._look_again()
                await self._update(step)
                return True
        except TemporaryFailure as error:
            log.warning("pop3.unavailable", error=str(error))
            if self._amid:
                raise Ended("unavailable") from error  # which tells its reader that it is not whole
            await self._stream.send(_NOT_DELETED if isinstance(step, Update) else _TEMPORARY)
            return isinstance(step, Update)
        return False

    # ------------------------------------------------------------------------ TLS

    async def _start_tls(self) -> None:
        certificate = self._server.certificate
        if certificate is None or certificate.context is None:
            await self._stream.send(_NO_TLS)
            return
        await self._stream.send(b"+OK Begin\r\n")
        await self._begin_tls()

    async def _begin_tls(self) -> None:
        certificate = self._server.certificate
        if certificate is None or certificate.context is None:
            raise Ended("tls")
        await self._stream.begin_tls(
            certificate.context, self._server.handshakes, peer_key(self._host)
        )
        self._dialogue.begin_anew()

    # ------------------------------------------------------------------------ who it is

    async def _sign_in(self, said: Authenticate) -> None:
        server, reader, records = self._server, None, None
        try:
            with server.password_checks.turn(self._host, said.password) as turn:
                if not turn.come_nowait():
                    await self._keep_waiting_for(turn.come)
                reader = await server.authenticator.check(said.user, said.password)
                if reader is not None:
                    turn.right()
        except TooManyWrong:
            await self._stream.send(_TOO_MANY_WRONG)
            return
        if reader is not None:
            async with server.loads:
                records = await server.messages.snapshot(
                    reader.mailbox_id, self._limits.max_messages
                )
        if reader is None or records is None:
            await self._refuse()
            return
        if not server.budget.hold(len(records)):
            await self._stream.send(_CROWDED)
            return
        self._held += len(records)
        self._reader = reader
        self._trusted_until = trio.current_time() + self._limits.trust
        _right.inc()
        drop = Maildrop(records)
        await self._stream.send(self._dialogue.welcome(drop, may_delete=reader.may_delete))

    async def _refuse(self) -> None:
        """Answer a wrong password."""
        limits = self._server.password_checks.limits
        _wrong.inc()
        self._wrong += 1
        await self._keep_waiting_for(partial(trio.sleep, limits.wrong_delay))
        if self._wrong >= limits.wrong_in_session:
            raise Ended("guesses", _GUESSED)
        await self._stream.send(_WRONG)

    async def _keep_waiting_for(self, call: Callable[[], Awaitable[None]]) -> None:
        """Let the peer wait; the session may be ended meanwhile: by a drain, or for a newcomer."""
        self._delayed = True
        try:
            await unless_hung_up(self._stream.fileno(), call)
        finally:
            self._delayed = False

    async def _look_again(self) -> None:
        """End the session of whoever may not read any more."""
        now = trio.current_time()
        if self._reader is None or now < self._trusted_until:
            return
        if not await self._server.authenticator.still(self._reader):
            raise Ended("revoked", _REVOKED)
        self._trusted_until = now + self._limits.trust

    # ------------------------------------------------------------------------ messages

    async def _retrieve(self, wanted: Retrieve) -> None:
        server, reader, held = self._server, self._reader, 2 * PIECE
        assert reader is not None
        size = await server.messages.raw_size(reader.mailbox_id, wanted.id)
        if size is None:
            await self._stream.send(_GONE)
            return
        if not server.budget.hold(held):
            await self._stream.send(_CROWDED)
            return
        try:
            await self._send(reader, wanted, size)
        finally:
            server.budget.free(held)
        self._sent += 1
        (_retrieved if wanted.lines is None else _topped).value += 1

    async def _send(self, reader: Reader, wanted: Retrieve, size: int) -> None:
        """Send a message of so many bytes, or the top of it."""
        server = self._server
        stuffing, top = Stuffing(), None
        reply = b"+OK %d octets\r\n" % size
        if wanted.lines is not None:
            top, reply = Top(wanted.lines), b"+OK\r\n"
        for at in range(0, size, PIECE):
            async with server.loads:
                piece = await server.messages.raw_piece(reader.mailbox_id, wanted.id, at, PIECE)
            if not piece:
                if self._amid:
                    raise Ended("gone")  # which tells its reader that it is not whole
                await self._stream.send(_GONE)
                return
            if top is not None:
                piece = top.feed(piece)
            self._amid = True
            await self._stream.send(reply + stuffing.feed(piece))
            _bytes.value += len(piece)
            reply = b""
            if top is not None and top.done:
                break
        await self._stream.send(reply + stuffing.end())
        self._amid = False

    async def _update(self, wanted: Update) -> None:
        reader = self._reader
        assert reader is not None
        if not await self._server.messages.delete_all(reader.mailbox_id, wanted.ids):
            await self._stream.send(b"-ERR The mailbox is over\r\n")
            return
        self._deleted = len(wanted.ids)
        _deleted.inc(len(wanted.ids))
        await self._stream.send(b"+OK Deleted; bye\r\n")

    # ------------------------------------------------------------------------ as a guest

    def drain(self) -> None:
        """The relay stops: end now, unless a command is being obeyed."""
        if self._delayed or (self._stream.waiting_since is not None and not self._amid):
            self._end("draining", _SHUTTING_DOWN)

    def idle_since(self) -> float | None:
        """Since when it keeps us waiting; None while a command is being obeyed.

        One that waits for a guesser's answer gives way at once: the delay is no claim to a place.
        """
        if self._delayed:
            return -math.inf
        since = self._stream.waiting_since
        if since is None or self._reader is None:
            return since
        return since + self._limits.signed_in_patience

    def give_way(self) -> None:
        """Somebody else has its place."""
        self._end("gave_way", _GAVE_WAY)

    def _end(self, reason: str, farewell: bytes) -> None:
        self._cut = reason, farewell
        self._scope.cancel()
