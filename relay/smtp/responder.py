"""What one SMTP session says, and what is counted of it.

All parts of a session answer by its `Responder`: it queues replies (`relay.smtp.lines` sends them),
counts what the peer did wrong, whom it could not reach and what became of its messages, and lets
it wait where that is the answer.

Promises: a reply that should have an enhanced status code has one; every answered final dot is
counted once.

Fails: never by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, get_args
from uuid import UUID

from prometheus_client import Counter

from relay.accepted import Why
from relay.log import get_logger
from relay.metrics import Counts, registry
from relay.ports.hang_ups import unless_hung_up
from relay.ports.peers import peer_key
from relay.smtp.lines import Lines
from relay.smtp.misses import Misses
from relay.smtp.refused import Note
from relay.smtp.syntax import enhanced
from relay.smtp.waits import Pinned, Waits

log = get_logger()

_NAMED = 8  # messages of a session whose ids are logged

SENDERS_FAULT = "5.1.7"
"""The enhanced code of a malformed address behind MAIL …"""
RECIPIENTS_FAULT = "5.1.3"
_MALFORMED = f"553 {RECIPIENTS_FAULT} Error: malformed address"  # as aiosmtpd has it
"""… and behind RCPT, which is what `enhanced` knows."""

# One object for each child of a labelled counter: labels() takes a lock and a look-up.
_OUTCOMES = ("accepted", "rejected", "deferred")
_RECEIVED = Counts(
    "relay_smtp_messages", "Messages whose final dot was answered.", "outcome", _OUTCOMES
).of
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
_recipients_refused = {why: _RECIPIENTS.labels(why) for why in get_args(Why)}
(_bytes,) = Counts("relay_smtp_received_bytes", "Bytes of messages accepted.").of.values()


class Responder:
    """Answers for one session, and keeps count of what it did."""

    __slots__ = (
        "_accepted",
        "_answered",
        "_lines",
        "_misses",
        "_note",
        "_waits",
        "delayed",
        "errors",
        "host",
        "idle_commands",
        "ids",
        "login",
        "path_code",
        "refused",
        "stored",
        "turned_down",
        "unknown",
    )

    def __init__(
        self,
        lines: Lines,
        waits: Waits,
        misses: Misses,
        host: str,
        *,
        submission: bool,
        note: Note | None = None,
    ) -> None:
        """`misses`: who has named so many unknown recipients; `host`: the peer's;
        `submission`: whether its messages count as submitted; `note` remembers who was refused."""
        self._note = note
        self._lines = lines
        self._waits = waits
        self._misses = misses
        self._answered = _SUBMITTED if submission else _RECEIVED
        self._accepted = self._answered["accepted"]
        self.host = host
        self.login: str | None = None
        """As whom the peer has signed in, where anybody may under any name."""
        self.path_code = RECIPIENTS_FAULT
        """Of a malformed address: sender's or recipient's."""
        self.delayed = False
        """Whether it is we who keep the peer waiting, for what it guessed or asked for."""
        self.errors = self.unknown = self.idle_commands = 0
        """Replies 5xx, commands that are none, and commands since the last message."""
        self.stored = self.refused = 0
        """Messages answered 2xx, and otherwise."""
        self.ids: list[UUID] = []
        """Of the first of them that were stored, by which the log tells their story."""
        self.turned_down: dict[Why, int] = {}
        """Recipients, by why."""

    # ------------------------------------------------------------------------ replies

    def reply(self, status: str) -> None:
        """Queue a reply of one line, which may lack its enhanced code."""
        if status == _MALFORMED:
            status = f"501 {RECIPIENTS_FAULT} This is no address"
        said = enhanced(status).replace(RECIPIENTS_FAULT, self.path_code, 1)
        self.say(said.encode() + b"\r\n")

    def say(self, reply: bytes) -> None:
        """Queue a reply that is complete."""
        self._lines.say(reply)
        if reply[0] == 53:  # b"5"
            self.errors += 1

    # ------------------------------------------------------------------------ of messages

    def kept(self, size: int, ids: Iterable[UUID]) -> None:
        """Count a message of so many bytes that was stored, under an id for each recipient."""
        self.stored += 1
        if len(self.ids) < _NAMED:
            self.ids += ids
        self.errors = self.unknown = self.idle_commands = 0
        self._accepted.value += 1
        _bytes.value += size

    def queued(self, reply: bytes) -> None:
        """Answer a message that was queued."""
        self.say(reply)
        self.stored += 1
        self.errors = self.unknown = self.idle_commands = 0
        self._accepted.value += 1

    def refuse(self, reply: bytes) -> None:
        """Answer a message that is refused for good (5xx), or for now."""
        self.say(reply)
        self.count_refused(rejected=reply[:1] == b"5")

    def count_refused(self, *, rejected: bool) -> None:
        """Count a message that was refused for good (`rejected`), or for now."""
        self.refused += 1
        self._answered["rejected" if rejected else "deferred"].value += 1

    # ------------------------------------------------------------------------ of recipients

    def refuse_all(self, why: Why, reply: str, recipients: Collection[str]) -> None:
        """Answer a message that none of its recipients gets, and turn them down."""
        self.refuse(self.turn_down(why, reply, recipients).encode() + b"\r\n")

    def turn_down(self, why: Why, reply: str, recipients: Collection[str]) -> str:
        """Count recipients who get no mail, for the log and the metrics, and note them.

        Returns the reply, for whoever answers with it.
        """
        self.turned_down[why] = self.turned_down.get(why, 0) + len(recipients)
        _recipients_refused[why].inc(len(recipients))
        if self._note is not None:
            for recipient in recipients:
                self._note(recipient, why, reply, self.login)
        return reply

    # ------------------------------------------------------------------------ waiting

    async def slow_down(self) -> None:
        """Let the peer wait for a recipient that is unknown: longer, the more of them it named."""
        await self.keep_waiting(self._misses.note(peer_key(self.host), self._waits.now()))

    async def keep_waiting(self, seconds: float) -> None:
        """Let the peer wait.  The session may be ended meanwhile: by a drain, or for a newcomer."""
        if seconds:
            self.delayed = True
            async with self._waits.pinned() as pinned:
                await pinned.sleep(seconds)
            self.delayed = False

    async def keep_waiting_for(self, pinned: Pinned, call: Callable[[], Awaitable[None]]) -> None:
        """Let the peer wait for `call`, likewise.  If it hangs up, stop at once with `HungUp`."""
        self.delayed = True
        try:
            await pinned.run(lambda: unless_hung_up(self._lines.sock.fileno(), call))
        finally:
            self.delayed = False

    # ------------------------------------------------------------------------ the log

    def log_end(self, reason: str, seconds: float) -> None:
        """Say that the session has ended, and what happened in it."""
        happened = self.stored or self.refused or self.errors or self.turned_down
        write = log.info if happened else log.debug
        named: dict[str, Any] = {}
        if len(self.ids) == 1:
            named["id"] = str(self.ids[0])
        elif self.ids:
            named["ids"] = [str(one) for one in self.ids[:_NAMED]]
        write(
            "smtp.session_ended",
            peer=self.host,
            reason=reason,
            accepted=self.stored,
            refused=self.refused,
            errors=self.errors,
            **{f"recipients_{why}": count for why, count in self.turned_down.items()},
            seconds=round(seconds, 3),
            **named,
        )
