"""The ordinary part of an SMTP session, without I/O: MAIL, RCPT, DATA and the message.

A `Dialogue` is given the bytes as they come and queues the replies: to one command or to a
pipelined group, in one list that leaves with one system call.  What it does not know, or will not
decide, it leaves where it stands to the session (`relay.smtp.session`), whose commands
(`relay.smtp.commands`) have aiosmtpd's class for all that is rare.  Both work on one `Transaction`.

Promises:
- What is answered here is answered as the session would: tests/smtp/test_dialogue.py holds the one
  to the other.
- Nothing is refused here: a command that is not obeyed is left unread, for the session.
- No reply to the final dot but after `Mailboxes.store` was answered.
- The memory of a message counts against the budget from its first byte until it is stored, also
  when the session ends meanwhile.

Fails: with what `canonical` or `Mailboxes` raise that nobody expects; that command then counts as
read.

Pure: no I/O, no clock; times are seconds of any clock that only rises.

Why: the session is a coroutine that is resumed at each wait, six times a message, and each time
through as many frames as lie between its loop and its socket.  What is here is called by whoever
has the bytes, or the answer (`python -m tests.bench ingest`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from relay.accepted import Accepted, Origin, Why
from relay.errors import TemporaryFailure
from relay.ports.memory_budget import SMALL, Share
from relay.ports.peers import peer_key
from relay.smtp.chunks import ChunkedMessage
from relay.smtp.data import DataDecoder, whole_message
from relay.smtp.dsn import NO_PARAMETERS, RcptParameters
from relay.smtp.shared import Shared
from relay.smtp.syntax import MAIL_LINE, RCPT_LINE
from relay.smtp.waits import Answer

SENDER_OK = b"250 2.1.0 OK\r\n"
RECIPIENT_OK = b"250 2.1.5 OK\r\n"
STORED = b"250 2.6.0 Stored as %b\r\n"
FULL = "452 4.2.2 Mailbox full, try again later"
OVER = "550 5.1.1 No such mailbox here any more"
CAPTURED = b"250 2.0.0 captured as %b\r\n"
GO_AHEAD = b"354 End data with <CR><LF>.<CR><LF>\r\n"

_DATA = b"DATA\r\n"

Step: TypeAlias = Answer[Any] | bool
"""What is next: True: more of the peer's bytes; False: the session; else that answer."""


class Greeted(Protocol):
    """What is known of the peer since its HELO or EHLO (aiosmtpd's `Session` is one)."""

    host_name: str | None
    extended_smtp: bool


class Transaction:
    """One mail transaction, from MAIL on.  To aiosmtpd's code it is an `Envelope`."""

    __slots__ = (
        "content",
        "mail_from",
        "mail_options",
        "mail_parameters",
        "original_content",
        "rcpt_options",
        "rcpt_parameters",
        "recipients",
        "smtp_utf8",
        "until",
    )

    def __init__(self) -> None:
        self.mail_from: str | None = None
        """The reverse-path as it was given, `<>` for the null one; None before MAIL."""
        self.mail_options: list[str] = []
        self.smtp_utf8 = False
        self.recipients: dict[str, str] = {}
        """Recipients that were accepted, as they were given, by canonical address."""
        self.rcpt_options: list[str] = []
        self.content = self.original_content = None
        self.mail_parameters = NO_PARAMETERS
        """What MAIL asked for of reports and of TLS, where that is offered."""
        self.rcpt_parameters: dict[str, RcptParameters] = {}
        """What RCPT asked for of reports, by recipient as it was given; who is missing: nothing."""
        self.until = math.inf
        """The instant at which it must be over."""

    @property
    def rcpt_tos(self) -> list[str]:
        """The recipients as they were given."""
        return list(self.recipients.values())


class Dialogue:
    """The ordinary commands of one session."""

    __slots__ = (
        "_announced",
        "_answer",
        "_asked",
        "_at",
        "_began",
        "_data",
        "_greeted",
        "_held",
        "_line_at",
        "_longest",
        "_share",
        "_shared",
        "_size",
        "_stored",
        "appetite",
        "complete",
        "host",
        "login",
        "message",
        "most",
        "origin",
        "receiving",
        "replies",
        "storing",
        "transaction",
    )

    def __init__(
        self,
        shared: Shared,
        greeted: Greeted,
        replies: list[bytes],
        stored: Callable[[int, Iterable[UUID]], object],
    ) -> None:
        """`replies` is where replies are queued; `stored` is told the size and the ids of each
        message that was answered 250, before the reply to it has left."""
        self._shared = shared
        self._greeted = greeted
        self._stored = stored
        self._longest = shared.limits.max_line_bytes + 2
        self._announced = 0  # bytes that the message will have; 0: not said
        self.most = shared.limits.max_recipients
        """Recipients that the message may have: fewer of one that is announced as large."""
        self.replies = replies
        self.transaction = Transaction()
        self._data = b""
        self._at = 0  # how much of it was read
        self._line_at = 0  # where the RCPT began that is being asked for
        self._asked: tuple[str, str] = "", ""  # its address, and that in canonical form
        self._answer: Answer[Any] | None = None  # awaited, or no welcome, and the session's
        self.login: object = None
        """As whom the peer has signed in (`relay.smtp.shared.Authenticator`); None: it has not."""
        self.host = ""
        """The peer's address; empty: there is none."""
        self.origin: Origin | None = None
        """Where its mail comes from, since its HELO or EHLO; None: this machine."""
        self.receiving = False
        """Whether a message is arriving: between 354 and the final dot."""
        self.appetite = SMALL
        """How many bytes of it are read at once: of one that might have to wait, no more than it
        may have then."""
        self.complete = False
        """Whether there was a final dot that is not answered yet."""
        self.message: DataDecoder | None = None
        """The message that arrives or has arrived, where it is not an ordinary one."""
        self.storing: Answer[Accepted] | None = None
        """What the mailboxes say to the message."""
        self._began = 0.0
        self._share: Share | None = None
        self._held = 0  # bytes of the budget, without a share
        self._size = 0

    # ------------------------------------------------------------------------ commands

    def receive(self, data: bytes, now: float) -> Step:
        """Take what has come, at least one byte, and say what is next."""
        self._data = data
        self._at = 0
        return self._text(now) if self.receiving else self._obey(now)

    def answered(self, now: float) -> Step:
        """Go on with the answer that was waited for."""
        if self.complete:
            return self._conclude(now)
        if self.receiving:
            self.go_on(now)
            return True
        return self._recipient(now)

    def unread(self) -> bytes:
        """Return what was not read of what has come, and forget it."""
        rest = self._data[self._at :]
        self._data = b""
        self._at = 0
        return rest

    @property
    def untouched(self) -> bool:
        """Whether nothing was obeyed of what has come."""
        return self._at == 0 and not self.receiving and not self.complete

    def _obey(self, now: float) -> Step:
        """Obey the commands that have come, as far as they are ordinary."""
        data = self._data
        shared = self._shared
        transaction = self.transaction
        size = len(data)
        while not shared.draining:
            at = self._at
            if at == size:
                return True
            if transaction.mail_from is not None:
                recipients = transaction.recipients
                if recipients and data[at : at + 6].upper() == _DATA:
                    self._at = at + 6
                    self.begin(now)
                    return self._text(now) if at + 6 < size else True
                found = RCPT_LINE.match(data, at)
                if (
                    found is None
                    or (end := found.end()) - at > self._longest
                    or len(recipients) >= self.most
                ):
                    return False
                address = found[1].decode()
                self._line_at = at
                self._at = end  # whatever is raised now, that was read
                try:
                    canonical = shared.canonical(address)
                except ValueError:
                    canonical = ""
                if not canonical or canonical in recipients:
                    self._at = at
                    return False
                self._asked = address, canonical
                answer = self._answer = shared.mailboxes.find(canonical)
                return answer
            found = MAIL_LINE.match(data, at)
            if (
                found is None
                or (end := found.end()) - at > self._longest
                or not self._greeted.host_name
                or not self._mail(found, now)
            ):
                return False
            self._at = end
        return False

    def _mail(self, found: re.Match[bytes], now: float) -> bool:
        """Begin a transaction if all is well with it."""
        address, parameters, size = found.groups()
        shared = self._shared
        transaction = self.transaction
        announced = 0
        if parameters:
            announced = int(size or 0)
            if not self._greeted.extended_smtp or announced > shared.limits.max_message_bytes:
                return False
        if shared.space.short(announced):
            return False
        self.expect(announced)
        if parameters:
            transaction.mail_options.extend(parameters.decode().upper().split())
        transaction.mail_from = address.decode() if address else "<>"
        transaction.until = now + shared.limits.transaction_timeout
        self.replies.append(SENDER_OK)
        return True

    def expect(self, announced: int) -> None:
        """Take so many recipients as a message of the bytes that MAIL announces may have; 0: it
        announces none."""
        limits = self._shared.limits
        self._announced = announced
        self.most = limits.max_recipients
        if announced and self._shared.submissions is None:
            self.most = min(self.most, max(1, limits.max_stored_bytes // announced))

    def too_much(self, size: int) -> bool:
        """Whether a message of so many bytes is too much for so many recipients."""
        return (
            self._shared.submissions is None
            and size * len(self.transaction.recipients) > self._shared.limits.max_stored_bytes
        )

    def short(self, size: int) -> bool:
        """Whether the disk has no room for a message of so many bytes, for all its recipients."""
        return self._shared.space.short(size * len(self.transaction.recipients))

    def _recipient(self, now: float) -> Step:
        """Go on with what is known of a recipient."""
        assert self._answer is not None
        try:
            welcome = self._answer.result() is None
        except TemporaryFailure:
            welcome = False
        if not welcome:
            self._at = self._line_at
            return False
        self._answer = None
        address, canonical = self._asked
        self.transaction.recipients[canonical] = address
        self.replies.append(RECIPIENT_OK)
        return self._obey(now)

    def find(self, canonical: str) -> Answer[Why | None]:
        """Ask for a recipient, once: an answer that was left to the session is given to it."""
        answer, self._answer = self._answer, None
        if answer is not None and self._asked[1] == canonical:
            return answer
        return self._shared.mailboxes.find(canonical)

    # ------------------------------------------------------------------------ the message

    def begin(self, now: float) -> None:
        """Welcome a message."""
        self.replies.append(GO_AHEAD)
        self.receiving = True
        self.appetite = SMALL
        self._began = now

    def _text(self, now: float) -> Step:
        """Go on with a message."""
        data, at = self._data, self._at
        shared = self._shared
        if self.message is None and not shared.space.short():
            found = whole_message(data, at)
            if found is not None:
                raw, end = found
                size = len(raw)
                if size <= shared.limits.max_message_bytes and shared.budget.hold(size):
                    self._at = end
                    self._held = size
                    self.receiving = False
                    self.complete = True
                    return self.store(raw)
        waiting = self.feed(data[at:] if at else data, now)
        if self.receiving:
            if self.endless:
                return False
            return True if waiting is None else waiting
        message = self.message
        assert message is not None
        if message.bare or message.too_large or self.crowded_out:
            return False
        if self.too_much(message.held) or self.short(message.held):
            return False
        return self.store(message.take())

    def feed(self, chunk: bytes, now: float) -> Answer[None] | None:
        """Give the message what has come of it; what came behind it is `unread`.

        Where it has no room among the others, it returns what is to be waited for before more is
        read; then `go_on`.
        """
        message, share = self.message, self._share
        if message is None or share is None:
            message = self.message = DataDecoder(self._shared.limits.max_message_bytes)
            budget = self._shared.budget
            peer = peer_key(self.host)
            share = self._share = budget.share(self._began, message.drop, self._announced, peer)
        self._data = b""
        self._at = 0
        if message.feed(chunk):
            self._data = message.rest
            self.receiving = False
            self.complete = True
        waiting = self.hold(message.held, now)
        if self.complete:
            share.keep()
        return waiting

    def go_on(self, now: float) -> None:
        """Have more of the message come, now that there is room for it."""
        if self._share is not None:
            self._share.go_on(now)

    def share(self, message: ChunkedMessage, now: float) -> None:
        """Have a message that comes in chunks count against the budget until it is answered."""
        budget = self._shared.budget
        self._share = budget.share(now, message.drop, self._announced, peer_key(self.host))
        self.appetite = SMALL

    def hold(self, size: int, now: float) -> Answer[None] | None:
        """So many bytes of it are in memory; returns what `feed` does."""
        assert self._share is not None
        self.appetite = SMALL if size >= SMALL else SMALL - size
        return self._share.grow(size, now)

    def whole(self) -> None:
        """It has come whole: nobody takes its room any more."""
        assert self._share is not None
        self._share.keep()

    @property
    def endless(self) -> bool:
        """Whether more has come of the message than anybody will read."""
        limits = self._shared.limits
        message = self.message
        return (
            message is not None
            and message.received > limits.discard_factor * limits.max_message_bytes
        )

    @property
    def crowded_out(self) -> bool:
        """Whether there was no room for the message among the others."""
        return self._share is not None and self._share.lost

    def store(self, raw: bytes) -> Answer[Accepted]:
        """Have the message stored."""
        transaction = self.transaction
        sender = transaction.mail_from
        self._size = len(raw)
        answer = self.storing = self._shared.mailboxes.store(
            sender if sender and sender != "<>" else "",
            transaction.recipients,
            raw,
            self.login,
            self.origin,
        )
        return answer

    def _conclude(self, now: float) -> Step:
        """Answer the final dot if the message is durable."""
        assert self.storing is not None
        accepted = self.storing.result()
        if accepted.error is not None or not accepted.stored:
            return False
        self.welcome(accepted)
        self.reset()
        return self._obey(now)

    def welcome(self, accepted: Accepted) -> None:
        """Answer the final dot of a message that is durable."""
        name = str(next(iter(accepted.stored.values())))
        reply = CAPTURED if accepted.captured else STORED
        self.replies.append(reply % name.encode())
        self._stored(self._size, accepted.stored.values())

    def reset(self) -> None:
        """Forget the transaction, and its message."""
        self.release()
        self.transaction = Transaction()
        self.receiving = self.complete = False
        self.message = None
        self._answer = None

    def release(self) -> None:
        """Give back what the message has of the budget: now, or once whoever stores it is done."""
        storing, self.storing = self.storing, None
        share, self._share = self._share, None
        held, self._held = self._held, 0
        if share is not None:
            # Cut off before there is an answer, it is in memory still.
            if storing is None or storing.settled:
                share.end()
            else:
                share.keep()
                storing.then(share.end)
        elif held:
            budget = self._shared.budget
            if storing is None or storing.settled:
                budget.free(held)
            else:
                storing.then(lambda: budget.free(held))
