"""The client's side of SMTP (RFC 5321), without any networking: what to say, what was meant.

The law is the table `LAW`: for each phase and each thing that can come back (a class of reply,
nonsense, the end of the connection, a deadline), what it means for the mail, for the route and
for the connection.  `SmtpClient` is the interpreter: bytes in, bytes out, `result` when every
recipient of a mail has its outcome.  `relay/smtp/connection.py` runs it on Trio.

Promises:
- Every recipient gets exactly one `Outcome`; one recipient's failure never touches another's.
- Nothing that a mail holds can become a command: controls, spaces and angle brackets in an
  address are refused when the `Mail` is made; a line end that is not CRLF is made one; every
  line that starts with a dot is stuffed.
- Credentials are written only after `tls_established`, or when the driver vouches for loopback.
  STARTTLS that is not offered, refused, or has plaintext behind its reply ends the session
  before that.  Where TLS is opportunistic there are no credentials, and only an offer that is
  broken ends it.
- PIPELINING where offered: MAIL, RCPT and DATA in one write, and with a mail to follow, that
  mail's group in the same write as the final dot: one round trip a mail.
- A reply that nobody asked for, or that arrived before its question, is nonsense: it could be
  taken for the answer to something else.
- Memory: one mail and `ReplyLimits`.

Fails: by outcomes.  Only a mail that can never be sent raises, `UnfitMail`, when it is made.

Why a dot without an answer is `UNKNOWN` and not `DEFERRED`: the peer may have taken the mail.
Who retries it may send a second copy, and should know.  An answer that has begun is one: each of
its lines has the code (RFC 5321, 4.2.1), so a 250 that goes on for ever, or breaks off behind a
whole line, is believed.

Pure: no I/O, no clock; instants are handed in, on any clock that only rises.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

from relay.addresses import ATEXT, DOMAIN, MAX_BYTES
from relay.errors import Bug, PermanentFailure
from relay.smtp.auth import Credentials, Exchange, choose, exchange
from relay.smtp.dsn import Dsn
from relay.smtp.replies import NotAReply, Reply, ReplyLimits, ReplyReader

# --- the law -------------------------------------------------------------------------------


class Phase(StrEnum):
    """The phase of the conversation in which something happened."""

    CONNECT = "connect"
    """Resolving, connecting, and the greeting."""
    EHLO = "ehlo"
    TLS = "tls"
    """STARTTLS and the handshake, or the handshake of implicit TLS."""
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"
    """From the first byte of the message to the reply to its final dot."""
    RSET = "rset"
    """Inside the client only: an outcome or a trace counts it as part of MAIL."""

    # The enum's own hash is a Python function, and phases are looked up at every reply.
    __hash__ = str.__hash__


ABOUT_RECIPIENT = frozenset({Phase.RCPT, Phase.DATA, Phase.DOT})
"""The commands whose refusal may be about a recipient, where there is one."""


class Verdict(StrEnum):
    """What became of a mail for one recipient."""

    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    DEFERRED = "deferred"
    UNKNOWN = "unknown"


class Seen(IntEnum):
    """What came back; the columns of `LAW`."""

    GOOD = 0  # 2yz
    MORE = 1  # 3yz
    TRANSIENT = 2  # 4yz
    PERMANENT = 3  # 5yz
    CLOSING = 4  # 421
    NONSENSE = 5  # no reply, one without an end, or one that nobody asked for
    ENDED = 6  # end of the connection, reset, a TLS failure
    LATE = 7  # a deadline passed


class Ruling(NamedTuple):
    """What follows: `verdict` None means that the conversation goes on."""

    verdict: Verdict | None
    route_trouble: bool
    connection_usable: bool


_on = Ruling(None, False, True)
_sent = Ruling(Verdict.DELIVERED, False, True)
_bounce = Ruling(Verdict.BOUNCED, False, True)
_fail = Ruling(Verdict.FAILED, False, True)
_later = Ruling(Verdict.DEFERRED, False, True)
_route = Ruling(Verdict.DEFERRED, True, False)
_doubt = Ruling(Verdict.UNKNOWN, True, False)

# fmt: off
LAW: dict[Phase, tuple[Ruling, ...]] = {
    #               GOOD    MORE    TRANSIENT PERMANENT CLOSING NONSENSE ENDED   LATE
    Phase.CONNECT: (_on,    _route, _route,   _route,   _route, _route,  _route, _route),
    Phase.EHLO:    (_on,    _route, _route,   _route,   _route, _route,  _route, _route),
    Phase.TLS:     (_on,    _route, _route,   _route,   _route, _route,  _route, _route),
    Phase.AUTH:    (_on,    _on,    _route,   _route,   _route, _route,  _route, _route),
    Phase.MAIL:    (_on,    _route, _later,   _fail,    _route, _route,  _route, _route),
    Phase.RCPT:    (_on,    _route, _later,   _bounce,  _route, _route,  _route, _route),
    Phase.DATA:    (_route, _on,    _later,   _fail,    _route, _route,  _route, _route),
    Phase.DOT:     (_sent,  _doubt, _later,   _fail,    _route, _doubt,  _doubt, _doubt),
    Phase.RSET:    (_on,    _route, _route,   _route,   _route, _route,  _route, _route),
}
"""`LAW[phase][seen]`.  A 5yz to EHLO is answered with HELO first, where that may do."""
# fmt: on

Step = tuple[Phase, int, float, float]
"""One reply of a conversation: phase, code, instant of the reply, seconds since its command."""


class Peer(NamedTuple):
    """The server at the other end."""

    name: str
    """`host[address]:port`, as mail servers log it; `host:port` where no address was reached."""
    tls: str | None = None
    """The version of TLS that was agreed on (`TLSv1.3`); None: none."""
    source: str = ""
    """The address of ours that it was reached from; empty: it was not reached."""


class Outcome(NamedTuple):
    """What became of a mail for one recipient, or of an attempt to open a connection."""

    verdict: Verdict
    phase: Phase
    code: int | None
    """The reply's code; None when no reply decided it."""
    enhanced: str | None
    text: str
    """What the peer said (at most `replies.MAX_TEXT` characters; `redact` it before storing), or,
    with `code` None, one sentence of ours."""
    route_trouble: bool
    """The trouble is with the way, not with this mail: others would have met it too."""
    connection_usable: bool
    stale: bool = False
    """A reused connection ended before this mail's first reply: nothing was tried, so another
    connection may be tried at once, without counting an attempt."""
    trace: tuple[Step, ...] = ()
    """The replies of this delivery, in order; those of the connection are `SmtpClient.trace`."""


# --- what is sent --------------------------------------------------------------------------


class UnfitMail(PermanentFailure, ValueError):
    """An envelope that can never be sent; the message is one sentence that names the field."""


PLAIN = re.compile(rf"[{ATEXT}.]+@{DOMAIN}")
_TEXT = r"[^\x00-\x20\x7f-\x9f<>()\[\]\\,;:\"@\s\ud800-\udfff]"
# No angle brackets, which it might hold (RFC 5321, 4.1.2): a server that looks for the path's end
# without reading quotes would find another address, and parameters of somebody else's.
_QUOTED = r'"(?:[^\x00-\x1f\x7f-\x9f"\\<>\u2028\u2029\ud800-\udfff]|\\[\x20-\x3b=\x3f-\x7e])*"'
_PATH = re.compile(rf"(?:{_TEXT}+|{_QUOTED})@(?:{_TEXT}+|\[[A-Za-z0-9:.\-]+\])")


def _path(address: str, field: str) -> bytes:
    """Return `address` as it stands between the angle brackets, or raise UnfitMail."""
    if PLAIN.fullmatch(address) is None and _PATH.fullmatch(address) is None:
        raise UnfitMail(f"{field} is not an address that SMTP can carry")
    path = address.encode()
    if len(path) > MAX_BYTES:
        raise UnfitMail(f"{field} has over {MAX_BYTES} bytes")
    return path


class Mail:
    """An envelope and the bytes of its message, checked and ready to be sent any number of times.

    The empty sender is the null reverse-path.  A message may hold bare CR or LF; they are made
    CRLF.  Raises `UnfitMail`.
    """

    __slots__ = (
        *("_data", "dsn", "eight_bit", "mail_from", "rcpt_to", "recipients", "require_tls"),
        *("sender", "smtputf8", "utf8_fields"),
    )
    gone = False
    """Whether its bytes are not here: see `OnceMail`."""

    def __init__(
        self,
        sender: str,
        recipients: tuple[str, ...],
        data: bytes,
        *,
        smtputf8: bool = False,
        utf8_fields: bool = False,
        crlf: bool = False,
        dsn: Dsn | None = None,
        require_tls: bool = False,
    ) -> None:
        """`smtputf8`: the headers need it; an address outside ASCII needs it by itself.

        `utf8_fields`: the headers would have it, and go as 8-bit text to a peer without.
        `crlf`: every line end of `data` is known to be CRLF, the last line's included.
        `dsn`: what a peer with DSN is asked about reports; `require_tls`: only a peer with
        REQUIRETLS, in verified TLS, gets it; and where the sender is the null one, it is asked for
        there and others get the mail, too (RFC 8689, 5: no bounce is lost for it).
        """
        if not recipients:
            raise UnfitMail("a mail needs at least one recipient")
        self.sender = sender
        self.recipients = recipients
        self.mail_from = b"MAIL FROM:<%b>" % (_path(sender, "the sender") if sender else b"")
        self.rcpt_to = tuple(
            b"RCPT TO:<%b>\r\n" % _path(recipient, "a recipient") for recipient in recipients
        )
        self.smtputf8 = smtputf8 or not (sender + "".join(recipients)).isascii()
        self.eight_bit = not data.isascii()
        self.utf8_fields = utf8_fields and not self.smtputf8
        self.dsn = dsn
        self.require_tls = require_tls
        self._data = data if crlf else with_crlf(data)

    @classmethod
    def plain(cls, sender: str, recipient: str, data: bytes) -> Mail:
        """A mail to one recipient, of which all is known that `__init__` looks for.

        Both addresses match `PLAIN` and have at most `MAX_BYTES`; `data` is ASCII, and all
        its line ends, the last line's included, are CRLF.  `tests/outbound/delivery/test_render.py`
        holds it to `Mail`; `python -m tests.bench outbound` is where it pays.
        """
        self = cls.__new__(cls)
        self.sender = sender
        self.recipients = (recipient,)
        self.mail_from = b"MAIL FROM:<%b>" % sender.encode()
        self.rcpt_to = (b"RCPT TO:<%b>\r\n" % recipient.encode(),)
        self.smtputf8 = self.utf8_fields = self.eight_bit = self.require_tls = False
        self.dsn = None
        self._data = data
        return self

    def behind(self, fields: bytes) -> Mail:
        """The same mail with header fields in front of its others; these are ASCII, lines CRLF."""
        other = Mail.__new__(Mail)
        for name in Mail.__slots__:
            setattr(other, name, getattr(self, name))
        other._data = fields + self._data
        return other

    def returning(self, path: str) -> Mail:
        """The same mail with another return path: an address in ASCII that needs no quotes."""
        other = Mail.__new__(Mail)
        for name in Mail.__slots__:
            setattr(other, name, getattr(self, name))
        other.sender = path
        other.mail_from = b"MAIL FROM:<%b>" % path.encode("ascii")
        if self.dsn is not None:
            other.dsn = self.dsn.returning_here()
        return other

    @property
    def data(self) -> bytes:
        """The message itself: CRLF line ends, dots unstuffed."""
        return self._data

    @property
    def size(self) -> int:
        """Bytes of the message as SIZE counts them: CRLF line ends, dots unstuffed."""
        return len(self._data)

    def wire(self) -> tuple[bytes, ...]:
        """Return what follows 354, in pieces: the message, dots stuffed, and the final dot."""
        data = self._data
        # In half the time of `in`: tests/smtp/test_client.py, and `python -m tests.bench outbound`.
        if _DOT_LINE.search(data) is not None:
            data = data.replace(b"\r\n.", b"\r\n..")
        if data.startswith(b"."):
            return b".", data, b".\r\n"
        return data, b".\r\n"

    def __repr__(self) -> str:
        return f"<Mail of {self.size} bytes to {len(self.recipients)} recipients>"


class OnceMail(Mail):
    """A mail that is sent once at most: its bytes are let go as they are given out, or earlier.

    What a peer is told and asked by stays: the envelope and the size.  One that was let go earlier
    has its bytes again by `have`.
    """

    __slots__ = ("_size", "gone")

    def __init__(self, mail: Mail) -> None:
        for name in Mail.__slots__:
            setattr(self, name, getattr(mail, name))
        self._size = mail.size
        self.gone = False
        """Whether it cannot be sent now."""

    @property
    def size(self) -> int:
        """As of a `Mail`, also when it is gone."""
        return self._size

    def let_go(self) -> None:
        """Keep the bytes of the message no longer."""
        self._data = b""
        self.gone = True

    def have(self, mail: Mail) -> None:
        """Take the bytes of the same mail, made again."""
        self._data = mail.data
        self.gone = False

    def wire(self) -> tuple[bytes, ...]:
        """As of a `Mail`; then it is gone."""
        if self.gone:
            raise Bug("a mail is sent that was let go")
        pieces = super().wire()
        self.let_go()
        return pieces


_DOT_LINE = re.compile(rb"\r\n\.")
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")


def with_crlf(data: bytes) -> bytes:
    """Return `data` with every line end made CRLF, the last line's included."""
    pairs = data.count(b"\r\n")
    if not pairs == data.count(b"\r") == data.count(b"\n"):
        data = _BARE.sub(b"\r\n", data)
    return data if not data or data.endswith(b"\r\n") else data + b"\r\n"


# --- what is taken -------------------------------------------------------------------------


class Offer(NamedTuple):
    """What a peer has said that it takes, and whether it has shown who it is."""

    features: Mapping[str, str]
    """What EHLO offered last, by keyword in capitals."""
    most: int | None
    """Bytes of a message, where it says that."""
    verified: bool
    """Whether it has shown who it is in TLS, as its driver found."""

    @property
    def requires_tls(self) -> bool:
        """Whether it can be asked for verified TLS all the way."""
        return self.verified and "REQUIRETLS" in self.features

    def lacking(self, mail: Mail) -> Outcome | None:
        """Return the outcome of a mail that this peer cannot take; None: it can be asked to."""
        if mail.require_tls and mail.sender and not self.requires_tls:
            text = "the message may go by verified TLS and to servers with REQUIRETLS alone"
            enhanced = "5.7.30" if self.verified else "5.7.10"  # RFC 8689, 4.2.1
        elif mail.smtputf8 and "SMTPUTF8" not in self.features:
            text = "the mail needs SMTPUTF8, which the peer does not offer"
            enhanced = "5.6.7"  # RFC 6531, 3.5
        elif mail.eight_bit and "8BITMIME" not in self.features:
            text = "the message has 8-bit bytes, and the peer does not offer 8BITMIME"
            enhanced = "5.6.3"  # RFC 6152, 3
        elif (most := self.most) is not None and most < mail.size:
            # In groups of digits: seven in a row would be redacted, as a telephone number.
            text = f"the message has {mail.size:,} bytes, the peer takes at most {most:,}"
            enhanced = "5.3.4"  # RFC 1870, 6.1
        else:
            return None
        refused = LAW[Phase.MAIL][Seen.PERMANENT]
        return _outcome(refused, Phase.MAIL, text)._replace(enhanced=enhanced)


# --- the interpreter -----------------------------------------------------------------------


class _Transaction:
    """One mail on its way."""

    __slots__ = ("accepted", "delivering", "mail", "outcomes", "refused", "trace")

    def __init__(self, mail: Mail) -> None:
        self.mail = mail
        self.outcomes: list[Outcome | None] = [None] * len(mail.recipients)
        self.accepted = 0
        self.refused = False  # at MAIL
        self.delivering = False  # the message itself was handed out for sending
        self.trace: list[Step] = []


Following = Mail | Callable[[float], Mail | None] | None
"""The mail that comes next on a connection; or who knows it when it is time to announce it, and
is told what time that is."""

_RSET = b"RSET\r\n"
_ORDINARY = {code: Seen(code // 100 - 2) for code in range(200, 600)} | {421: Seen.CLOSING}


class SmtpClient:
    """One connection: its opening, then one mail after the other.

    Opening: feed what arrives to `receive`; send what `data_to_send` returns; when `wants_tls`,
    shake hands and call `tls_established`; it is over when `ready`, or `failure` is set.
    A mail: `begin`, then receive and send until `result` is set; when `wants_body`, have the bytes
    of a `OnceMail` that was let go made again, and say `go_on_with_body` or `has_no_body`.
    What is not bytes goes to `ended` (closed, reset, TLS failure) or `late` (a deadline).
    """

    def __init__(
        self,
        *,
        local_name: str = "localhost",
        starttls: bool = False,
        opportunistic: bool = False,
        credentials: Credentials | None = None,
        secure: bool = False,
        plaintext_allowed: bool = False,
        limits: ReplyLimits = ReplyLimits(),  # noqa: B008 - frozen
    ) -> None:
        """`opportunistic`: STARTTLS is said where it is offered, and not missed where it is not.

        `secure`: verified TLS is established already.

        `plaintext_allowed`: the peer is on loopback, so credentials may go in clear.
        """
        self._greeting = local_name.encode("ascii")
        if not re.fullmatch(rb"[!-~]{1,255}", self._greeting):
            raise ValueError("the name to greet with holds what no host name can hold")
        self._starttls = starttls
        self._opportunistic = opportunistic
        self._credentials = credentials
        self._secure = secure
        self._plaintext_allowed = plaintext_allowed
        self._reader = ReplyReader(limits)
        self._out: list[bytes] = []
        self._flight: deque[tuple[Phase, _Transaction | None, int, float]] = deque()
        """Commands that were written and not yet answered, in order."""
        self._queue: deque[tuple[Phase, int, bytes]] = deque()
        """Without PIPELINING: the rest of the group, one to be written after each answer."""
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._greeted_with = b"EHLO"
        self._current: _Transaction | None = None
        self._ahead: _Transaction | None = None
        self._following: Following = None
        self._tail = 0
        self._needs_reset = False
        self._voiding = False
        self._body_by = float("inf")
        self._carried = 0
        self.features: dict[str, str] = {}
        """What EHLO offered last, by keyword in capitals."""
        self._pipelining = False
        self._says_size = False
        self._most: int | None = None
        """How much the peer takes, where it says that."""
        self.ready = False
        """Whether mails may be begun."""
        self.wants_tls = False
        """Whether the handshake is to start now."""
        self.wants_body = False
        """Whether the peer waits for the bytes of a mail that was let go."""
        self.verified = False
        """Whether the peer has shown who it is in TLS, as its driver found."""
        self.usable = True
        """Whether the connection can carry more."""
        self.failure: Outcome | None = None
        """Why opening failed."""
        self.result: tuple[Outcome, ...] | None = None
        """The outcome of the mail in hand, by recipient, once all are known."""
        self.replies = 0
        """Replies taken so far; a deadline belongs to one reply, not to the bytes it drips in."""
        self.trace: list[Step] = []
        """The replies of the opening."""
        self._flight.append((Phase.CONNECT, None, 0, 0.0))

    # --- bytes and instants in, bytes out ---

    @property
    def awaits(self) -> Phase:
        """The phase whose reply is awaited."""
        if self.wants_body:
            return Phase.DATA
        return self._flight[0][0] if self._flight else Phase.MAIL

    @property
    def in_data(self) -> bool:
        """Whether the message in hand was given out for sending and is not answered yet."""
        return self._current is not None and self.result is None and self._current.delivering

    @property
    def ahead(self) -> Mail | None:
        """The mail whose group is on the wire already; only that one can be begun next."""
        return self._ahead.mail if self._ahead is not None else None

    def started(self, now: float) -> None:
        """Say when connecting began; the greeting's duration counts from there."""
        self._flight[0] = (Phase.CONNECT, None, 0, now)

    def data_to_send(self) -> bytes:
        """Return what is to be sent now, and forget it."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def receive(self, data: bytes, now: float) -> None:
        """Take what has arrived."""
        self._reader.feed(data)
        self._advance(now)

    def ended(self, now: float, text: str, *, unsent: int = 0, last: bytes = b"") -> None:
        """The connection is gone.

        `unsent`: how many bytes of what was handed out last were not sent; `last`: what the peer
        had said by then and nobody has read.
        """
        self._judge_unsent(unsent)
        if last:
            self.receive(last, now)
        if self.result is None or self._current is None:
            self._break(Seen.ENDED, text, now)
        elif self.usable:
            self.usable = False
            self.result = tuple(item._replace(connection_usable=False) for item in self.result)

    def late(self, now: float, text: str, *, unsent: int = 0) -> None:
        """A deadline passed.  `unsent` as for `ended`."""
        self._judge_unsent(unsent)
        self._break(Seen.LATE, text, now)

    def _judge_unsent(self, unsent: int) -> None:
        """A message whose dot never left cannot have been delivered."""
        current = self._current
        if current is not None and current.delivering and unsent > self._tail:
            current.delivering = False

    # --- opening ---

    def tls_established(self, now: float, began: float) -> None:
        """The handshake is done and the certificate verified: greet again, inside."""
        if not self.wants_tls:
            raise Bug("TLS was established when nobody had asked for it")
        self.wants_tls = False
        self._secure = True
        self._offers({})
        self.trace.append((Phase.TLS, 220, now, now - began))
        self._command(Phase.EHLO, b"EHLO " + self._greeting, now)

    def _command(self, phase: Phase, line: bytes, now: float) -> None:
        if self._reader.pending:
            self._break(Seen.NONSENSE, "the peer spoke before it was asked", now, phase)
            return
        self._out.append(line + b"\r\n")
        self._flight.append((phase, None, 0, now))

    def _open(self, phase: Phase, reply: Reply, now: float) -> None:
        """One reply of the opening that the law lets pass."""
        if phase is Phase.CONNECT:
            self._command(Phase.EHLO, b"EHLO " + self._greeting, now)
        elif phase is Phase.EHLO:
            if self._greeted_with == b"EHLO":
                self._offers(_features(reply))
            self._after_greeting(now)
        elif phase is Phase.TLS:
            if self._reader.pending:
                self._break(Seen.NONSENSE, "plaintext came behind the STARTTLS reply", now, phase)
            else:
                self.wants_tls = True
        else:
            self._authenticate(reply, now)

    def _offers(self, features: dict[str, str]) -> None:
        """Take what EHLO offered; what every mail asks for is looked up now."""
        self.features = features
        self._pipelining = "PIPELINING" in features
        limit = features.get("SIZE")
        self._says_size = limit is not None
        self._most = (limit is not None and limit.isdecimal() and int(limit)) or None

    def _after_greeting(self, now: float) -> None:
        if self._starttls and not self._secure:
            if "STARTTLS" in self.features:
                self._command(Phase.TLS, b"STARTTLS", now)
                return
            if not self._opportunistic:
                self._give_up(Phase.TLS, "the peer offers no STARTTLS", now)
                return
        if self._credentials is None:
            self.ready = True
        elif not (self._secure or self._plaintext_allowed):
            self._give_up(Phase.AUTH, "credentials are not sent in clear", now)
        else:
            offered = frozenset(self.features.get("AUTH", "").upper().split())
            mechanism = choose(offered, encrypted=self._secure)
            if mechanism is None:
                self._give_up(Phase.AUTH, "the peer offers no AUTH of ours", now)
                return
            self._exchange = exchange(mechanism, self._credentials)
            first = next(self._exchange)
            line = b"AUTH " + mechanism.encode()
            self._command(Phase.AUTH, line + b" " + base64.b64encode(first) if first else line, now)

    def _authenticate(self, reply: Reply, now: float) -> None:
        if reply.code // 100 == 2:
            self._exchange = None
            self.ready = True
            return
        try:
            challenge = base64.b64decode(reply.challenge, validate=True)
            answer = self._exchange.send(challenge) if self._exchange else b""
        except (binascii.Error, StopIteration):
            self._break(Seen.NONSENSE, "the peer's AUTH challenge makes no sense", now, Phase.AUTH)
            return
        self._command(Phase.AUTH, base64.b64encode(answer), now)

    def _give_up(self, phase: Phase, text: str, now: float) -> None:
        self._break(Seen.PERMANENT, text, now, phase)

    # --- mails ---

    def begin(
        self,
        mail: Mail,
        now: float,
        *,
        following: Following = None,
        body_by: float = float("inf"),
    ) -> None:
        """Take a mail in hand.

        `following`: the mail that will be begun next, for certain; its group may go out with
        this mail's dot.  Or who is asked for it when this mail's body goes out.
        `body_by`: after this instant the message is not begun any more, as no time would be left
        to wait for the answer to its dot.
        """
        if not self.ready or (self._current is not None and self.result is None):
            raise Bug("a mail was begun on a connection that is not ready for one")
        self.result = None
        self._following = following
        self._body_by = body_by
        self._voiding = False
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.mail is mail and self.usable:
            self._current = ahead
            self._advance(now)
            return
        self._current = current = _Transaction(mail)
        if not self.usable or ahead is not None:
            self.usable = False
            text = "the connection is not usable"
            self._settle(_outcome(_route, Phase.MAIL, text, stale=True))
            self._finish()
            return
        refusal = self.offer.lacking(mail)
        if refusal is not None:
            self._settle(refusal)
            self._finish()
            return
        if self._reader.pending:
            self._advance(now)  # only a 421 makes sense here
            if self.result is None:
                self._break(Seen.NONSENSE, "the peer spoke before it was asked", now)
            return
        if self._needs_reset:
            self._needs_reset = False
            if self._pipelining:
                self._out.append(_RSET)
                self._flight.append((Phase.RSET, current, 0, now))
            else:
                self._queue.append((Phase.RSET, 0, _RSET))
        self._write_group(current, now)

    @property
    def offer(self) -> Offer:
        """What the peer takes."""
        return Offer(self.features, self._most, self.verified)

    def _write_group(self, transaction: _Transaction, now: float) -> int:
        """Write MAIL, RCPT and DATA (or queue what must wait); return how many bytes."""
        mail = transaction.mail
        line = mail.mail_from
        if self._says_size:
            line += b" SIZE=%d" % mail.size
        if mail.eight_bit:
            line += b" BODY=8BITMIME"
            if mail.utf8_fields and "SMTPUTF8" in self.features:
                line += b" SMTPUTF8"
        if mail.smtputf8:
            line += b" SMTPUTF8"
        if mail.require_tls and self.offer.requires_tls:
            line += b" REQUIRETLS"
        rcpt_to = mail.rcpt_to
        if mail.dsn is not None and "DSN" in self.features:
            line += mail.dsn.of_mail()
            rcpt_to = tuple(
                rcpt[:-2] + mail.dsn.of_rcpt(place) + b"\r\n" for place, rcpt in enumerate(rcpt_to)
            )
        flight = self._flight
        if self._pipelining:
            group = b"".join((line, b"\r\n", *rcpt_to, b"DATA\r\n"))
            self._out.append(group)
            flight.append((Phase.MAIL, transaction, 0, now))
            for index in range(len(mail.rcpt_to)):
                flight.append((Phase.RCPT, transaction, index, now))
            flight.append((Phase.DATA, transaction, 0, now))
            return len(group)
        queue = self._queue
        queue.append((Phase.MAIL, 0, line + b"\r\n"))
        queue.extend((Phase.RCPT, index, rcpt) for index, rcpt in enumerate(rcpt_to))
        queue.append((Phase.DATA, 0, b"DATA\r\n"))
        self._write_next(now)
        return 0

    def _write_next(self, now: float) -> None:
        """Without PIPELINING: the next command of the group, when the last was answered."""
        if self._reader.pending:
            self._break(Seen.NONSENSE, "the peer spoke before it was asked", now)
            return
        phase, index, line = self._queue.popleft()
        self._out.append(line)
        self._flight.append((phase, self._current, index, now))

    def _advance(self, now: float) -> None:
        """Take replies until the mail in hand is done or there are no more of them."""
        take = self._reader.next
        flight = self._flight
        if len(flight) >= 3 and flight[0][0] is Phase.MAIL and flight[2][0] is Phase.DATA:
            # One recipient, pipelined, nothing answered yet: nearly always all is well.  Held to
            # one by one by tests/smtp/test_client.py; pays in `python -m tests.bench outbound`.
            codes = self._reader.next_group()
            if codes is not None:
                self._take_group(codes, now)  # breaks the connection if bytes follow
                return
        elif flight and flight[0][0] is Phase.DOT and not self._voiding:
            # The final dot for one recipient: a fast path as above, held to `_take` likewise.
            transaction = flight[0][1]
            if (
                transaction is not None
                and transaction.delivering
                and len(transaction.outcomes) == 1
            ):
                taken = self._reader.next_taken()
                if taken is not None:
                    self._take_dot(transaction, *taken, now)
                    return
        while self.result is None and self.usable:
            try:
                reply = take()
            except NotAReply as error:
                self._break(Seen.NONSENSE, str(error), now)
                return
            if reply is None:
                return
            self.replies += 1
            if not self._flight:
                if reply.code == 421:
                    self._break(Seen.CLOSING, reply, now)
                else:
                    self._break(Seen.NONSENSE, "the peer spoke before it was asked", now)
                return
            self._take(reply, now)

    def _take_group(self, codes: tuple[int, int, int], now: float) -> None:
        """What `_take` does for three good answers to MAIL, RCPT and DATA."""
        flight = self._flight
        _, transaction, _, written = flight.popleft()
        flight.popleft()
        flight.popleft()
        if transaction is None:
            raise Bug("a group without a mail")
        self.replies += 3
        took = now - written
        mail, rcpt, data = codes
        transaction.trace += (
            (Phase.MAIL, mail, now, took),
            (Phase.RCPT, rcpt, now, took),
            (Phase.DATA, data, now, took),
        )
        transaction.accepted = 1
        self._send_body(transaction, now)

    def _take_dot(self, transaction: _Transaction, enhanced: str, text: str, now: float) -> None:
        """What `_take` does for a 250 to the final dot of a mail to one recipient."""
        written = self._flight.popleft()[3]
        self.replies += 1
        transaction.delivering = False
        trace = (*transaction.trace, (Phase.DOT, 250, now, now - written))
        self.result = (
            Outcome(Verdict.DELIVERED, Phase.DOT, 250, enhanced, text, False, True, False, trace),
        )
        self._following = None
        self._carried += 1

    def _take(self, reply: Reply, now: float) -> None:
        """The answer to the oldest command in flight."""
        phase, transaction, index, written = self._flight[0]
        code = reply.code
        ruling = LAW[phase][_ORDINARY[code]]
        step = (phase, code, now, now - written)
        if transaction is None:
            self.trace.append(step)
            if phase is Phase.EHLO and code >= 500 and self._may_greet_again():
                self._flight.popleft()
                self._command(Phase.EHLO, self._greeted_with + b" " + self._greeting, now)
            elif ruling.verdict is not None:
                self._break(_ORDINARY[code], reply, now)
            else:
                self._flight.popleft()
                self._open(phase, reply, now)
            return
        if phase is not Phase.RSET:
            transaction.trace.append(step)
        if not ruling.connection_usable:
            # 421, or a reply that makes no sense here: what follows cannot be trusted
            self._break(_ORDINARY[code], reply, now)
            return
        self._flight.popleft()
        if phase is Phase.RCPT:
            if ruling.verdict is None:
                transaction.accepted += 1
            elif transaction.outcomes[index] is None:
                transaction.outcomes[index] = _outcome(ruling, phase, reply)
        elif phase is Phase.DATA:
            if ruling.verdict is None:
                self._send_body(transaction, now)
            else:
                self._settle(_outcome(ruling, phase, reply))
                self._needs_reset = True
                self._finish()
            return
        elif phase is Phase.DOT:
            if not self._voiding:
                if ruling.verdict is Verdict.DELIVERED and not transaction.delivering:
                    self._break(Seen.NONSENSE, "the peer answered the dot before it was sent", now)
                    return
                transaction.delivering = False
                self._settle(_outcome(ruling, phase, reply))
            self._finish()
            return
        elif phase is Phase.MAIL and ruling.verdict is not None:
            transaction.refused = True
            self._settle(_outcome(ruling, phase, reply))
        if self._queue:
            self._go_on(transaction, now)

    def _go_on(self, transaction: _Transaction, now: float) -> None:
        """Without PIPELINING: the next command, if the group still makes sense."""
        if transaction.refused or (self._queue[0][0] is Phase.DATA and not transaction.accepted):
            self._queue.clear()
            self._needs_reset = True
            self._finish()
        else:
            self._write_next(now)

    def _may_greet_again(self) -> bool:
        """Whether HELO may do: it offers neither STARTTLS nor AUTH."""
        needs_more = (self._starttls and not self._opportunistic) or self._credentials is not None
        if self._greeted_with == b"HELO" or needs_more:
            return False
        self._greeted_with = b"HELO"
        return True

    def _send_body(self, transaction: _Transaction, now: float) -> None:
        """354: send the message, and the next mail's group if it is known already."""
        if self._reader.pending:
            self._break(
                Seen.NONSENSE, "the peer answered the dot before it was sent", now, Phase.DATA
            )
        elif transaction.refused:
            # It wants a message from a sender it refused.  Even an empty one could be delivered.
            self._break(Seen.NONSENSE, "the peer refused MAIL and accepted DATA", now, Phase.DATA)
        elif not transaction.accepted:
            # RFC 2920, 3.1: nobody is to get it, so an empty one ends the transaction.
            self._voiding = True
            self._out.append(b".\r\n")
            self._flight.append((Phase.DOT, transaction, 0, now))
        elif now > self._body_by:
            self._break(
                Seen.LATE, "too little time was left to await the dot's reply", now, Phase.DATA
            )
        elif transaction.mail.gone:
            self.wants_body = True
        else:
            self._flight.append((Phase.DOT, transaction, 0, now))
            self._out += transaction.mail.wire()
            transaction.delivering = True
            self._tail = 0
            following = self._following
            if following is None or not self._pipelining:
                return
            if not isinstance(following, Mail):
                following = following(now)
            if following is not None and self.offer.lacking(following) is None:
                self._ahead = _Transaction(following)
                self._tail = self._write_group(self._ahead, now)

    def go_on_with_body(self, now: float) -> None:
        """The bytes that the peer waits for are here again."""
        self.wants_body = False
        assert self._current is not None  # that mail is in hand
        self._send_body(self._current, now)

    def has_no_body(self, now: float) -> None:
        """There are none: the connection ends, and nothing was delivered."""
        self._break(Seen.LATE, "the delivery was cancelled", now)

    # --- ends ---

    def _settle(self, outcome: Outcome) -> None:
        """Give `outcome` to every recipient of the mail in hand that has none yet."""
        transaction = self._current
        if transaction is None:
            raise Bug("an outcome without a mail")
        outcomes = transaction.outcomes
        for index, settled in enumerate(outcomes):
            if settled is None:
                outcomes[index] = outcome

    def _finish(self) -> None:
        """Every recipient has its outcome: say so."""
        transaction = self._current
        if transaction is None:
            raise Bug("a result without a mail")
        trace = tuple(transaction.trace)
        usable = self.usable
        self.result = tuple(
            Outcome._make((*outcome[:6], usable, outcome.stale, trace))
            for outcome in transaction.outcomes
            if outcome is not None
        )
        self._following = None
        self._carried += 1

    def _break(self, seen: Seen, why: str | Reply, now: float, phase: Phase | None = None) -> None:
        """Nothing more can be said on this connection."""
        self.usable = False
        if phase is None:
            phase = self.awaits
        self.wants_body = False
        written = self._flight[0][3] if self._flight else now
        self._out.clear()
        self._queue.clear()
        self._flight.clear()
        self._exchange = None
        transaction = self._current
        begun = self._reader.begun
        if transaction is None or self.result is not None:
            if self.failure is None:
                outcome = _outcome(LAW[phase][seen], phase, why)
                self.failure = outcome._replace(connection_usable=False, trace=tuple(self.trace))
            return
        if transaction.delivering and begun is not None:
            transaction.trace.append((Phase.DOT, begun.code, now, now - written))
            outcome = _outcome(LAW[Phase.DOT][_ORDINARY[begun.code]], Phase.DOT, begun)
        elif transaction.delivering:
            outcome = _outcome(LAW[Phase.DOT][seen], Phase.DOT, why)
        else:
            # Nothing was delivered yet, and what breaks a connection is the route's trouble.
            outcome = _outcome(_route, Phase.MAIL if phase is Phase.RSET else phase, why)
            replies = len(transaction.trace) - isinstance(why, Reply)
            if self._carried and replies <= 0 and seen in (Seen.ENDED, Seen.CLOSING):
                outcome = outcome._replace(stale=True)
        self._settle(outcome)
        self._finish()


def _outcome(ruling: Ruling, phase: Phase, why: str | Reply, *, stale: bool = False) -> Outcome:
    """Return the outcome that `ruling` makes of a reply, or of a sentence of ours."""
    verdict = ruling.verdict
    if verdict is None:
        raise Bug(f"no outcome follows from {why!r} at {phase}")
    if isinstance(why, Reply):
        enhanced, text = why.parsed()
        return Outcome(
            verdict, phase, why.code, enhanced, text, ruling.route_trouble, ruling.connection_usable
        )
    return Outcome(
        verdict, phase, None, None, why, ruling.route_trouble, ruling.connection_usable, stale
    )


def _features(reply: Reply) -> dict[str, str]:
    """Return what an EHLO reply offers: parameters by keyword."""
    features: dict[str, str] = {}
    for line in reply.lines[1:]:
        keyword, _, parameters = line.partition(" ")
        keyword = keyword.upper()
        if keyword.startswith("AUTH="):  # as some old servers write it
            parameters = f"{keyword[5:]} {parameters}"
            keyword = "AUTH"
        if keyword == "AUTH" and keyword in features:
            parameters = f"{features[keyword]} {parameters}"
        features[keyword] = parameters.strip()
    return features
