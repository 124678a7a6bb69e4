"""What the SMTP sessions of one relay share: its name and limits, and who answers their questions.

`Mailboxes` and `Filter` are what a session asks; the actors behind them are the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from relay.accepted import Accepted, Origin, Why
from relay.access.password_checks import PasswordChecks
from relay.errors import PermanentFailure
from relay.ip import ip_address
from relay.ports.certificate import Certificate
from relay.ports.handshakes import Handshakes
from relay.ports.memory_budget import MemoryBudget
from relay.smtp.chaos import Chaos
from relay.smtp.dsn import NO_PARAMETERS, MailParameters, RcptParameters
from relay.smtp.limits import SmtpLimits
from relay.smtp.refused import Note
from relay.smtp.waits import Answer
from relay.storage import AMPLE, Space
from relay.throttle import Throttle


class Mailboxes(Protocol):
    """The mailboxes that a session's mail goes to."""

    def find(self, address: str) -> Answer[Why | None]:
        """Why no mail is taken for this canonical address now (unknown, expired); None: it is.

        Raises `OverQuota` where the mailbox holds as much as it may, other `TemporaryFailure` for
        trouble of ours.
        """

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Answer[Accepted]:
        """Make a message durable; raises nothing.

        `recipients`: as they were given, by canonical address.
        `login`: what `Authenticator` made of whoever sends it; None: nobody has signed in.
        `origin`: where it came from; None: this machine.
        """


Canonical = Callable[[str], str]
"""An address to its one spelling; ValueError when it is none of a mailbox."""


class Filter(Protocol):
    """The operator's filter, wherever it runs."""

    hooks: frozenset[str]
    """The hooks it has, of EHLO, HELO, MAIL, RCPT, DATA; no other is asked for."""

    async def ask(
        self, hook: str, session: Any, envelope: Any, arguments: tuple[Any, ...]
    ) -> object:
        """Return what the hook returned; None or `TemporaryFailure` when it failed.

        `session` and `envelope` are aiosmtpd's.
        """


class WrongLogin(PermanentFailure):
    """Nobody signs in so (535).

    `reason` and `facts` are for the log alone: the reply tells strangers nothing.
    """

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts


class Authenticator(Protocol):
    """Who may sign in (AUTH), and what is known of them then."""

    password_checks: PasswordChecks | None
    """When a password is checked; AUTH is not offered in clear beyond this machine then.  None:
    passwords open nothing, and any is good."""
    wanted: str
    """What the reply to every wrong password says: one sentence on which one is right."""

    async def check(self, user: str, password: str) -> object:
        """Return what stands for whoever this is, from now on in this session.

        Raises `WrongLogin` for nobody, and `TemporaryFailure` when that cannot be told now.
        """


class SubmittedMessage(NamedTuple):
    """A message whose final dot has come, and how it came.

    `sender`: empty for the null one; `helo`: what the peer calls itself, `host`: its address;
    `utf8`: with SMTPUTF8; `mail_parameters`: what MAIL asked for of reports and TLS,
    `rcpt_parameters`: what RCPT did, of those recipients that it said anything for.
    """

    sender: str
    recipients: Sequence[str]
    raw: bytes
    helo: str
    host: str
    encrypted: bool
    utf8: bool
    mail_parameters: MailParameters = NO_PARAMETERS
    rcpt_parameters: Mapping[str, RcptParameters] = {}


class Submissions(Protocol):
    """What a submission port asks, in place of mailboxes: may who signed in send this?

    `login` is what `Authenticator` made of them; None: nobody has signed in.  A reply that is
    returned refuses (421: and ends the session); None: go on.  Each raises `TemporaryFailure` for
    trouble of ours.
    """

    reports: bool
    """Whether submitters are told what becomes of their mail (DSN is offered)."""

    async def look_again(self, login: object) -> str | None:
        """Ask before each command whether who has signed in still may, as far as is known."""

    async def begin(self, login: object, sender: str) -> str | None:
        """Ask at MAIL; `sender`: empty for the null one."""

    async def name(self, login: object, recipient: str) -> str | None:
        """Ask at RCPT."""

    async def submit(self, login: object, taken: SubmittedMessage) -> str:
        """Queue a message, and return the reply to its final dot: 2xx only if that is durable."""


LONGEST_LOGIN = 100
"""Characters of a user name that are kept."""


_LONGEST_HELO = 255


def origin_of(host: str, helo: str) -> Origin | None:
    """Return where mail of a peer comes from; None: from this machine, or from no IP address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if address.is_loopback:
        return None
    return Origin(str(address), "".join(filter(str.isprintable, helo))[:_LONGEST_HELO])


class Anybody:
    """Signs everybody in, as whom they say; the password is not looked at."""

    password_checks: PasswordChecks | None = None
    wanted = "Any password"  # never said: none is wrong

    async def check(self, user: str, password: str) -> object:
        """Return the name, as a tag may hold it."""
        return "".join(filter(str.isprintable, user)).strip()[:LONGEST_LOGIN]


class Shared:
    """What the sessions of one relay share."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        canonical: Canonical,
        *,
        limits: SmtpLimits | None = None,
        domains: Sequence[str] = ("relay.localhost",),
        filter_: Filter | None = None,
        space: Space = AMPLE,
        budget: MemoryBudget | None = None,
        authenticator: Authenticator | None = None,
        certificate: Certificate | None = None,
        chaos: Chaos | None = None,
        submissions: Submissions | None = None,
        lmtp: bool = False,
        note_refused: Note | None = None,
    ) -> None:
        """`domains`: the first names us in replies, and is postmaster's; `space`: of the disk.

        `budget`: of the bytes of all messages, where others than these sessions share it;
        `authenticator`: who may sign in; None: nobody, AUTH is not known; `certificate`: STARTTLS;
        None: it is not offered; `chaos`: faults on demand; `submissions`: what is asked in place of
        mailboxes, on a port for mail that leaves; `lmtp`: LMTP is spoken in place of SMTP;
        `note_refused` remembers the recipients that are refused.
        """
        self.mailboxes = mailboxes
        self.canonical = canonical
        self.limits = SmtpLimits() if limits is None else limits
        self.hostname = domains[0]
        self.filter = filter_
        self.authenticator = authenticator
        self.chaos = chaos
        self.submissions = submissions
        self.lmtp = lmtp
        self.note_refused = note_refused
        self.space = space
        self.budget = self.limits.memory_budget() if budget is None else budget
        self.misses = self.limits.misses()
        self.wrong_logins = Throttle(1.0)  # lines of the log, for each peer and reason
        self.certificate = certificate
        self.handshakes = Handshakes()
        self.draining = False
        """Whether the relay stops: no further command is read."""
        self.greeting = f"220 {self.hostname} {'LMTP' if lmtp else 'ESMTP'} Relay\r\n".encode()
        self._offers: tuple[str, ...] = (
            self.hostname,
            "PIPELINING",
            f"SIZE {self.limits.max_message_bytes}",
            "8BITMIME",
            "CHUNKING",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
        )
        self.dsn = submissions is not None and submissions.reports
        """Whether DSN is offered (RFC 3461)."""
        if self.dsn:
            self._offers += ("DSN",)

    def offers(self, *, starttls: bool, sign_in: bool, require_tls: bool = False) -> list[str]:
        """Return the lines of the reply to EHLO; `starttls`: to one who may begin TLS; `sign_in`:
        to one who may sign in; `require_tls`: to one whose mail may ask for TLS all the way."""
        offers = [*self._offers]
        if require_tls:
            offers.append("REQUIRETLS")
        if starttls:
            offers.append("STARTTLS")
        if sign_in:
            offers.append("AUTH PLAIN LOGIN")
        return [*(f"250-{offer}" for offer in offers), "250 HELP"]
