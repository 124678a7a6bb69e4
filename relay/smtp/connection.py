"""The SMTP client on Trio: one connection to a route, opened once, used for many mails.

`Connection.open` resolves, connects, greets, secures and authenticates; `deliver` sends one mail
and returns the outcome of each recipient; `quit` says goodbye.  What the replies mean is
`relay/smtp/client.py`'s business, sockets and TLS are `relay/smtp/streams.py`'s; here are the order
of things and their deadlines.

Promises:
- `deliver` never raises for what a peer or a network does: that is an outcome.
- Every wait has a deadline.  A deadline belongs to one reply, so a peer that drips bytes gains
  nothing; a whole delivery has one more, the caller's.
- A delivery that is cancelled or runs late closes its connection, at once and without waiting.
  `outcomes` then says whether the dot may have left.
- A route that somebody else chose reaches public addresses only (`Route.public_only`).
- TLS is verified (chain, name, TLS 1.2 or newer) or the connection fails; `TlsMode.NONE` speaks
  to loopback only, judged by the address that was reached and not by its name.  What carries no
  credentials may be `OPPORTUNISTIC` or `CLEAR` (RFC 7435): mail to whoever the DNS names.
- Memory: one read of `streams.CHUNK` bytes, the caps of the core, and one mail.

Fails: `open` raises `OpenFailed`, which carries its outcome (always deferred).

Why one task watches the deadlines of all connections (`_Watch`): a cancel scope for each delivery
cost more than reading the replies.  Why mail after mail is begun without leaving `deliver`
(`go_on`): so the task of the delivery sleeps through all of them, and the trampoline's runs them.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import trio

from relay.errors import ConfigError, TemporaryFailure
from relay.ip import is_loopback
from relay.log import get_logger
from relay.net import NoSuchSource, open_tcp_stream, peer_address
from relay.smtp.auth import Credentials
from relay.smtp.client import (
    Following,
    Mail,
    Offer,
    Outcome,
    Peer,
    Phase,
    SmtpClient,
    Step,
    Verdict,
)
from relay.smtp.racing import race
from relay.smtp.replies import ReplyLimits
from relay.smtp.streams import PlainStream, TlsStream
from relay.smtp.tls_faults import TlsFault, Wrong, fault_of
from relay.ssrf_guard import NotPublic, addresses_of
from relay.system_tasks import OfThisRun

log = get_logger()

BLOCK = 65_536
"""Bytes of a message that must get through within `Deadlines.block`."""


class TlsMode(StrEnum):
    """How a route is secured."""

    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"
    """In clear, to loopback only."""
    OPPORTUNISTIC = "opportunistic"
    """STARTTLS where it is offered; one that is offered and breaks is a failure."""
    CLEAR = "clear"
    """In clear to anywhere, whatever is offered."""


Accepts = Callable[[ssl.SSLObject], Wrong | None]
"""Looks at a session that was shaken hands for: None, or what is wrong."""


@dataclass(frozen=True)
class Route:
    """The server that mail goes to, and as whom."""

    host: str
    port: int
    tls: TlsMode = TlsMode.STARTTLS
    credentials: Credentials | None = None
    local_name: str = "localhost"
    """The name to greet with."""
    server_name: str | None = None
    """The name in SNI and in the certificate; None: `host`."""
    public_only: bool = False
    """Whether the host must be one of the public internet: somebody else chose it."""
    addresses: tuple[str, ...] = ()
    """What the host's name was resolved to, and may be connected to; none: it is resolved."""
    source: str = ""
    """What the addresses that are connected from are called; empty: the system chooses them."""
    source_addresses: tuple[str, ...] = ()
    """Those of ours that are connected from, one of a family."""
    accepts: Accepts | None = None
    """Who looks at the peer's certificate besides the context."""

    def __post_init__(self) -> None:
        """Refuse a port that is none, and credentials for whoever is there."""
        if not 0 < self.port < 65_536:
            raise ValueError("a port is a number from 1 to 65535")
        if self.credentials is not None and self.tls in {TlsMode.OPPORTUNISTIC, TlsMode.CLEAR}:
            raise ValueError("credentials need a server that is known")

    @property
    def peer(self) -> Peer:
        """The server, as long as none of its addresses was reached."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Peer(f"{host}:{self.port}")

    @property
    def spellings(self) -> tuple[str, ...]:
        """What must be taken out of anything that this peer says."""
        return () if self.credentials is None else self.credentials.spellings()


@dataclass(frozen=True)
class Deadlines:
    """Seconds a peer has, each counted from the command to its whole reply."""

    connect: float = 30.0
    greeting: float = 60.0
    tls: float = 30.0
    command: float = 60.0
    """EHLO, STARTTLS, AUTH, RSET, MAIL, RCPT and DATA, each."""
    block: float = 60.0
    """For each `BLOCK` bytes of a message to get out."""
    dot: float = 120.0
    quit: float = 2.0
    total: float = 300.0
    """For one delivery in all; and for one opening."""

    def within(self, seconds: float) -> Deadlines:
        """Return these, cut so that a delivery ends within `seconds` (what a lease leaves).

        The dot's reply gets at most half of it: a message is not begun when less than
        `dot` is left.
        """
        half = seconds / 2
        return replace(
            self,
            connect=min(self.connect, half),
            greeting=min(self.greeting, half),
            tls=min(self.tls, half),
            command=min(self.command, half),
            block=min(self.block, half),
            dot=min(self.dot, half),
            total=min(self.total, seconds),
        )


class OpenFailed(TemporaryFailure):
    """A route could not be opened; `outcome` says at which phase and why, `peer` by whom.

    `fault`: what was wrong with TLS, where that is why.
    """

    def __init__(self, outcome: Outcome, peer: Peer, fault: TlsFault | None = None) -> None:
        super().__init__(f"{outcome.phase}: {outcome.text}")
        self.outcome = outcome
        self.peer = peer
        self.fault = fault


def client_tls(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a verifying context: the system's authorities, or those of SSL_CERT_FILE.

    `ca_file` adds further ones (PEM).  Raises ConfigError when it cannot be read.
    """
    context = without_dhe(ssl.create_default_context())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"The CA file {ca_file} cannot be read: {error}.") from error
    return context


def opportunistic_tls() -> ssl.SSLContext:
    """Return a context that takes any certificate and any version: what is better than none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    return without_dhe(context)


def without_dhe(context: ssl.SSLContext) -> ssl.SSLContext:
    """Have a client offer no DHE: its numbers are the server's to choose, and those of 10,000 bits,
    OpenSSL's bound, take seconds in which nothing else runs.  What has DHE has ECDHE or RSA, too.
    """
    names = [one["name"] for one in context.get_ciphers() if one["kea"] != "kx-dhe"]
    context.set_ciphers(":".join(names))
    return context


HaveBody = Callable[[], Awaitable[bool]]
"""Has the bytes of a `OnceMail` that was let go made again; False: there are none."""

GoOn = Callable[[tuple[Outcome, ...], float], tuple[Mail, Following, float] | None]
"""Called with the outcomes of a mail and the instant; returns what `deliver` takes: the mail, what
follows it and its deadline."""


class _Watch:
    """Breaks off the deliveries of one Trio run that last too long.

    It sleeps until the earliest deadline that it knew when it lay down.  Deadlines nearly always
    move away, so it is hardly ever woken, and what it then finds is looked at afresh.
    """

    def __init__(self) -> None:
        self.wakes_at = math.inf
        self._connections: set[Connection] = set()
        self._sleep = trio.CancelScope()

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def wake_by(self, deadline: float) -> None:
        """A deadline was set that is earlier than `wakes_at`."""
        self.wakes_at = self._sleep.deadline = deadline

    async def run(self) -> None:
        while True:
            self.wakes_at = min((each.due for each in self._connections), default=math.inf)
            self._sleep = trio.CancelScope(deadline=self.wakes_at)
            with self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            for connection in [each for each in self._connections if each.due <= now]:
                try:
                    connection.expire()
                except Exception:
                    # A fault of ours; out of a system task it would end the process.
                    log.exception("smtp.deadline_failed")


_watch = OfThisRun(_Watch, "relay.smtp.connection.watch")
"""The watch of this run's connections."""


class Connection:
    """An open connection to a route.  Used by one task at a time."""

    def __init__(
        self, route: Route, deadlines: Deadlines, wire: PlainStream, core: SmtpClient
    ) -> None:
        """For `open` only."""
        self.route = route
        self.peer = _peer(route, wire)
        """The server that is spoken to, and how that is secured."""
        self._deadlines = deadlines
        self._wire: PlainStream | TlsStream = wire
        self._core = core
        self._closed = False
        self._expired = False
        self._watch = _watch.get()
        self._watch.add(self)
        self._clock = trio.lowlevel.current_clock().current_time
        self._ends = math.inf
        self.due = math.inf
        """The instant at which the delivery under way is broken off."""
        self.idle_since = trio.current_time()
        """The instant at which the last delivery (or the opening) ended, on Trio's clock."""
        self.delivered = 0
        """Mails that were begun on this connection."""

    # --- opening ---

    @classmethod
    async def open(
        cls,
        route: Route,
        deadlines: Deadlines = Deadlines(),
        *,
        context: ssl.SSLContext | None = None,
        limits: ReplyLimits = ReplyLimits(),  # noqa: B008 - frozen
        deadline: float = math.inf,
    ) -> Connection:
        """Connect, greet, secure, authenticate.  Raises `OpenFailed`, nothing else of the world's.

        `context`: from `client_tls` or `opportunistic_tls`; None makes one that verifies, which
        reads the system's authorities anew.  `deadline`: an instant on Trio's clock by which it is
        open; `Deadlines.total` holds too.
        """
        began = trio.current_time()
        ends = min(began + deadlines.total, deadline)
        plain = await _connect(route, min(began + deadlines.connect, ends))
        core = SmtpClient(
            local_name=route.local_name,
            starttls=route.tls in {TlsMode.STARTTLS, TlsMode.OPPORTUNISTIC},
            opportunistic=route.tls is TlsMode.OPPORTUNISTIC,
            credentials=route.credentials,
            secure=route.tls is TlsMode.IMPLICIT,
            plaintext_allowed=route.tls is TlsMode.NONE,
            limits=limits,
        )
        core.started(began)
        self = cls(route, deadlines, plain, core)
        try:
            if route.tls not in {TlsMode.NONE, TlsMode.CLEAR} and context is None:
                context = client_tls()
            if route.tls is TlsMode.IMPLICIT and context is not None:
                took = await self._secure(plain, context, ends)
                now = trio.current_time()
                core.trace.append((Phase.TLS, 220, now, took))
            while not core.ready:
                await self._exchange(min(ends, trio.current_time() + self._allowed()))
                if core.wants_tls and context is not None:
                    took = await self._secure(plain, context, ends)
                    now = trio.current_time()
                    core.tls_established(now, now - took)
        except BaseException:
            self.abort()
            raise
        self.idle_since = trio.current_time()
        return self

    async def _secure(self, plain: PlainStream, context: ssl.SSLContext, ends: float) -> float:
        """Shake hands; returns how many seconds it took."""
        began = trio.current_time()
        fault = TlsFault.VALIDATION
        try:
            tls = TlsStream(plain, context, self.route.server_name or self.route.host)
            with trio.fail_at(min(began + self._deadlines.tls, ends)):
                await tls.handshake()
            if self.route.accepts is not None and (wrong := self.route.accepts(tls.session)):
                text = f"the peer's certificate is not accepted: {wrong.text}"
                outcome = _trouble(Phase.TLS, text, tuple(self._core.trace))
                raise OpenFailed(outcome, self.peer, wrong.fault)
        except ssl.SSLCertVerificationError as error:
            fault = fault_of(error)
            text = f"the peer's certificate is not accepted: {error.verify_message}"
        except trio.TooSlowError:
            text = "the TLS handshake took too long"
        except (OSError, ValueError) as error:  # ValueError: a name that SNI cannot carry
            text = f"the TLS handshake failed: {_reason(error)}"
        else:
            self._wire = tls
            self.peer = self.peer._replace(tls=tls.version)
            # Where any certificate will do, TLS says nothing of who is there.
            verified = context.verify_mode is not ssl.CERT_NONE or self.route.accepts is not None
            self._core.verified = verified
            return trio.current_time() - began
        raise OpenFailed(_trouble(Phase.TLS, text, tuple(self._core.trace)), self.peer, fault)

    async def _exchange(self, ends: float) -> None:
        """One step of the opening: send what is to be sent, take one reply."""
        core = self._core
        try:
            with trio.fail_at(ends):
                out = core.data_to_send()
                if out:
                    await self._wire.send(out)
                count = core.replies
                while core.replies == count and core.failure is None:
                    data = await self._wire.receive()
                    now = trio.current_time()
                    if data:
                        core.receive(data, now)
                    else:
                        core.ended(now, "the peer closed the connection")
        except trio.TooSlowError:
            core.late(trio.current_time(), "the peer took too long to answer")
        except OSError as error:
            core.ended(trio.current_time(), f"the connection broke: {_reason(error)}")
        if core.failure is not None:
            fault = TlsFault.STARTTLS if core.failure.phase is Phase.TLS else None
            raise OpenFailed(core.failure, self.peer, fault)

    def _allowed(self) -> float:
        """Seconds for the reply that is awaited."""
        phase = self._core.awaits
        if phase is Phase.DOT:
            return self._deadlines.dot
        return self._deadlines.greeting if phase is Phase.CONNECT else self._deadlines.command

    # --- state ---

    @property
    def trace(self) -> tuple[Step, ...]:
        """The replies of the opening (instants on Trio's clock)."""
        return tuple(self._core.trace)

    @property
    def features(self) -> dict[str, str]:
        """What the peer offers, by EHLO keyword in capitals."""
        return self._core.features

    @property
    def offer(self) -> Offer:
        """What the peer takes."""
        return self._core.offer

    @property
    def outcomes(self) -> tuple[Outcome, ...] | None:
        """The outcomes of the last mail; after a `deliver` that was cancelled from outside, what
        was known then: `UNKNOWN` when its dot may have left."""
        return self._core.result

    @property
    def in_data(self) -> bool:
        """Whether the message itself is on its way: broken off now, its outcome is unknown."""
        return self._core.in_data

    @property
    def awaits(self) -> Phase:
        """The phase whose reply is awaited."""
        return self._core.awaits

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self._closed

    def reusable(self, idle_limit: float = 20.0) -> bool:
        """Whether another mail can be begun: open, not idle too long, and the peer quiet.

        False also while a mail is announced (`following`) that was not begun; that one can be.
        Costs one system call.  A True can still turn out `stale`.
        """
        return (
            not self._closed
            and self._core.usable
            and self._core.ahead is None
            and trio.current_time() - self.idle_since <= idle_limit
            and self._wire.quiet()
        )

    # --- mails ---

    async def deliver(
        self,
        mail: Mail,
        following: Following = None,
        *,
        deadline: float = math.inf,
        go_on: GoOn | None = None,
        have_body: HaveBody | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Outcome, ...]:
        """Send one mail; returns the outcome of each recipient, in order.

        `following`: the mail that this connection gets next.  Its MAIL, RCPT and DATA go out
        with this mail's dot, so it must be the next one delivered here, or none: an announced
        mail that is not delivered leaves no way but to close.  Or who is asked for it when the
        dot is about to go out: what is decided then has not waited behind a peer that hangs.
        `deadline`: an instant on Trio's clock by which all is over; `Deadlines.total` holds too.
        `go_on`: who is told of a mail's end, and gives the mail that was announced behind it, to be
        delivered in the same call; None: this returns, and the outcomes are those of the last.
        `have_body`: called when the peer waits for a mail that was let go, but with no `go_on`;
        `sent`: when a message of over `BLOCK` bytes is not in memory here any more.
        """
        core = self._core
        self._begin(mail, following, deadline, trio.current_time())
        if core.result is None:
            # To be hosted costs more than it gains for a single mail.
            carried = self._carry(go_on, have_body, sent)
            done = await (carried if go_on is None else self._wire.host(carried))
            self.due = math.inf
            if done is None and not self._expired:
                raise trio.ClosedResourceError("the connection was closed by `abort`")
        if not core.usable:
            self.abort()
        self.idle_since = trio.current_time()
        assert core.result is not None  # _carry ends with it, or late() or ended() set it
        return core.result

    def _begin(self, mail: Mail, following: Following, deadline: float, now: float) -> None:
        deadlines = self._deadlines
        self._ends = deadline = min(deadline, now + deadlines.total)
        self.delivered += 1
        self._core.begin(mail, now, following=following, body_by=deadline - deadlines.dot)
        self._wire.unsent = 0

    async def _carry(
        self, go_on: GoOn | None, have_body: HaveBody | None, sent: Callable[[], None]
    ) -> bool:
        """Send and receive until the mail in hand has its outcomes, and `go_on` knows no other."""
        core, wire, clock = self._core, self._wire, self._clock
        try:
            now = clock()
            self._break_off_at(min(self._ends, now + self._allowed()))
            awaited = core.replies
            while True:
                if core.wants_body:
                    await self._have_body(have_body)
                    if core.result is not None:
                        return True
                out = core.data_to_send()
                if len(out) > BLOCK:
                    await self._send_long(out, self._ends)
                    del out  # a peer may take long to answer it
                    sent()
                    now = clock()
                    self._break_off_at(min(self._ends, now + self._allowed()))
                elif out:
                    await wire.send(out)
                data = await wire.receive()
                now = clock()
                if data:
                    core.receive(data, now)
                else:
                    core.ended(now, "the peer closed the connection")
                while core.result is not None:
                    then = go_on(core.result, now) if go_on is not None and core.usable else None
                    if then is None:
                        return True
                    self._begin(*then, now)
                if core.replies != awaited:  # else the peer drips, which gains it nothing
                    awaited = core.replies
                    self._break_off_at(min(self._ends, now + self._allowed()))
        except BaseException as error:
            now = clock()
            if self._expired:
                core.late(now, "the peer took too long", unsent=wire.unsent)
            elif isinstance(error, OSError):
                # A peer that hangs up in the middle of a message may have said why.
                core.ended(
                    now,
                    f"the connection broke: {_reason(error)}",
                    unsent=wire.unsent,
                    last=wire.arrived(),
                )
            else:  # cancelled, or closed by `abort`
                core.late(now, "the delivery was cancelled", unsent=wire.unsent)
            if not isinstance(error, OSError) and not (
                self._expired and isinstance(error, trio.ClosedResourceError)
            ):
                self.abort()
                raise
            return True

    async def _have_body(self, have_body: HaveBody | None) -> None:
        """Have the message made again that the peer waits for."""
        self.due = math.inf  # the peer is not late
        found = False
        if have_body is not None:
            with trio.move_on_at(self._ends):
                found = await have_body()
        if self._closed:
            raise trio.ClosedResourceError("the connection was closed by `abort`")
        now = self._clock()
        if found:
            self._core.go_on_with_body(now)
        else:
            self._core.has_no_body(now)
        self._break_off_at(min(self._ends, now + self._allowed()))

    def _break_off_at(self, instant: float) -> None:
        """Set the deadline of what is under way."""
        self.due = instant
        if instant < self._watch.wakes_at:
            self._watch.wake_by(instant)

    def expire(self) -> None:
        """Break the delivery under way off: its deadline has passed."""
        self._expired = True
        self.abort()

    async def _send_long(self, data: bytes, deadline: float) -> None:
        """Send block by block, each with its own deadline."""
        whole = memoryview(data)
        wire = self._wire
        for start in range(0, len(data), BLOCK):
            self._break_off_at(min(deadline, trio.current_time() + self._deadlines.block))
            behind = max(len(data) - start - BLOCK, 0)
            try:
                await wire.send(bytes(whole[start : start + BLOCK]))
            finally:
                wire.unsent += behind

    async def quit(self) -> None:
        """Say goodbye if that makes sense, and close.  Never raises for what the peer does."""
        if self._closed:
            return
        try:
            if self._core.usable and self._core.ahead is None:
                with trio.move_on_after(self._deadlines.quit), contextlib.suppress(OSError):
                    await self._wire.send(b"QUIT\r\n")
                    await self._wire.receive()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once, saying nothing.  May be called at any time, any number of times."""
        if not self._closed:
            self._closed = True
            self.due = math.inf
            self._watch.forget(self)
            self._core.usable = False
            self._wire.close()


async def _connect(route: Route, ends: float) -> PlainStream:
    """Resolve and connect by an instant, trying all addresses.  Raises OpenFailed."""
    try:
        with trio.fail_at(ends):
            stream = await _reach(route)
    except trio.TooSlowError:
        raise OpenFailed(_trouble(Phase.CONNECT, "connecting took too long"), route.peer) from None
    except NotPublic as error:
        raise OpenFailed(_trouble(Phase.CONNECT, str(error)), route.peer) from error
    except NoSuchSource as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        text = f"the source {route.source} cannot be connected from: {why}"
        raise OpenFailed(_trouble(Phase.CONNECT, text), route.peer) from error
    except (OSError, ValueError) as error:  # ValueError: what is no host name
        text = f"connecting failed: {_reason(error)}"
        raise OpenFailed(_trouble(Phase.CONNECT, text), route.peer) from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    if route.tls is TlsMode.NONE and not _is_local(sock):
        sock.close()
        text = "without TLS, only loopback is spoken to"
        raise OpenFailed(_trouble(Phase.TLS, text), route.peer)
    return PlainStream(sock)


def _peer(route: Route, wire: PlainStream) -> Peer:
    """The server that was reached."""
    try:
        name = f"{route.host}[{wire.address()}]:{route.port}"
        return Peer(name, source=wire.source())
    except OSError:  # it has hung up
        return route.peer


async def _reach(route: Route) -> trio.SocketStream:
    sources = route.source_addresses
    if route.addresses:
        return await race(route.addresses, route.port, sources)
    if not route.public_only and not sources:
        return await open_tcp_stream(route.host, route.port)
    # Only addresses that were checked; what the name stands for the next moment does not matter.
    found = await addresses_of(route.host, route.port, allow_private=not route.public_only)
    return await race(found, route.port, sources)


def _is_local(sock: socket.socket) -> bool:
    try:
        return is_loopback(str(peer_address(sock)[0]))
    except OSError:
        return False


def _reason(error: BaseException) -> str:
    """Return what an error says, without addresses and numbers that only mean something here."""
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    if isinstance(error, OSError) and error.strerror is None and error.__cause__ is not None:
        return _reason(error.__cause__)  # Trio's "all attempts to connect failed"
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS error"
    if isinstance(error, OSError) and error.errno is not None:
        # Not strerror: Trio puts the address into it.  A resolver's numbers are negative.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return type(error).__name__


def _trouble(phase: Phase, text: str, trace: tuple[Step, ...] = ()) -> Outcome:
    return Outcome(Verdict.DEFERRED, phase, None, None, text, True, False, trace=trace)
