"""The submission port's side of the queue: who may sign in, and what becomes of what they submit.

`Submission` is what the sessions of that port ask (`relay.smtp.shared.Authenticator` and
`Submissions`).

Promises
- Whoever signs in has an API key with the scope `send`, or the administrator's token; the user name
  is not looked at.  A key that this relay revokes opens nothing from the next command on, its
  message in hand included; one that another relay on the same database revokes, nothing behind the
  final dot, and its session ends there or at the first command `LOOK_EVERY` after the last look.
- 250 comes after COMMIT, with the ids; 4xx and 5xx after the final dot mean that nothing is queued,
  but for 451, after which nobody knows.
- What may be sent from which address, suppressions, idempotency keys and the queue itself are what
  they are over HTTP (`relay.outbound.submission.sending`); a message costs a key as much as a call
  does.
- No reply repeats an address or a value.

Fails with `TemporaryFailure`, which is 451.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from uuid import UUID

import trio

from relay.access.bearers import bearer_of
from relay.access.keys import ApiKey, Keys
from relay.access.owners import ADMINISTRATOR_ID
from relay.access.password_checks import PasswordChecks
from relay.chance import utc_now
from relay.errors import PermanentFailure
from relay.gcra import Gcra
from relay.ids import new_id
from relay.outbound.composing.message import (
    LATEST,
    Address,
    AskedFor,
    MalformedMessage,
    Message,
    parse_address,
    parse_recipients,
)
from relay.outbound.queue.enqueue import KeyConflict, Suppressed
from relay.outbound.submission.sending import ForeignSender, ReservedSender, Sending, UnclearSender
from relay.outbound.submission.submitted import Orders, Submitted, Trace
from relay.outbound.suppression.suppressions import Suppressions
from relay.smtp.dsn import RcptParameters
from relay.smtp.shared import SubmittedMessage, WrongLogin

BURST = 10.0
"""Seconds' worth of messages that a key may submit at once, as of its calls over HTTP."""

LOOK_EVERY = 2.0
"""Seconds for which a key that was found live is believed at commands, unless one is revoked
here; it is not at the final dot."""

_INSTANT = timedelta(seconds=1)
_KEYS = 20_000  # of which the rate is remembered
_IN_A_THREAD = 256 * 1024  # bytes of a message from which preparing it would be felt by others

_SIGN_IN = (
    "530 5.7.0 Authentication required: any user name, and as the password an API key with the"
    " scope send. From another machine AUTH is offered in TLS only"
)
_REVOKED = "421 4.7.0 This key may send no more; good-bye"
_TOO_OFTEN = "450 4.7.1 This key sends more often than it may, try again later"
_NOT_FROM = "550 5.7.1 This key may not send from this address"
_SUPPRESSED = "550 5.7.1 This recipient is on the suppression list"


class Login:
    """Who has signed in: the holder of `key`, as it was found at `found_at`.

    None: the administrator.  `revocations`: how many keys had been revoked here by then.
    """

    def __init__(self, key: ApiKey | None, found_at: float, revocations: int) -> None:
        self.key = key
        self.found_at = found_at
        self.revocations = revocations

    @property
    def owner(self) -> UUID:
        """The owner of what they send."""
        return ADMINISTRATOR_ID if self.key is None else self.key.id


class Submission:
    """What the submission port of one relay asks: its `Authenticator` and its `Submissions`."""

    def __init__(
        self,
        keys: Keys,
        sending: Sending,
        suppressions: Suppressions,
        admin_token_hash: bytes,
        hostname: str,
        password_checks: PasswordChecks,
        *,
        reports: bool = True,
        lifetime: float = math.inf,
    ) -> None:
        """`hostname` is what the relay calls itself in Received fields; `reports`: whether
        submitters are told what becomes of their mail; `lifetime`: seconds for which mail may wait
        that has no deadline of its own.
        """
        self.reports = reports
        self._lifetime = lifetime
        self.password_checks: PasswordChecks | None = password_checks
        self.wanted = (
            "Wrong password: it must be an API key with the scope send, as `relay key create"
            " --owner NAME --scope send` makes one; the user name may be any"
        )
        self._keys = keys
        self._suppressions = suppressions
        self._sending = sending
        self._admin_token_hash = admin_token_hash
        self._hostname = hostname
        self._rates = Gcra[UUID](_KEYS)

    async def check(self, user: str, password: str) -> Login:
        """Return who this is, by the password alone."""
        now, revocations = trio.current_time(), self._keys.revocations
        bearer = await bearer_of(password, self._keys, self._admin_token_hash)
        if bearer is None:
            raise WrongLogin("no_key")
        if bearer.administrator:
            return Login(None, math.inf, 0)
        key = bearer.key
        if key is None:
            raise WrongLogin("unknown_key")
        if not key.allows("send"):
            raise WrongLogin("wrong_scope", key=str(key.id), scopes=list(key.scopes), needs="send")
        return Login(key, now, revocations)

    async def look_again(self, login: object) -> str | None:
        """Refuse a key that has been revoked, or has ended; one just found live is believed."""
        if isinstance(login, Login) and (
            login.revocations != self._keys.revocations
            or trio.current_time() >= login.found_at + LOOK_EVERY
        ):
            return await self._find(login)
        return None

    async def _find(self, login: Login) -> str | None:
        """Refuse a key that is not live now."""
        if login.key is not None:
            now, revocations = trio.current_time(), self._keys.revocations
            found = await self._keys.live(login.key.id)
            if found is None:
                return _REVOKED
            login.key, login.found_at, login.revocations = found, now, revocations
        return None

    async def begin(self, login: object, sender: str) -> str | None:
        """Refuse a reverse-path that is not theirs, and what comes too often."""
        if not isinstance(login, Login):
            return _SIGN_IN
        if sender:
            try:
                address = parse_address(sender, "the sender").address
            except MalformedMessage:
                return "501 5.1.7 This is no address that mail can be sent from"
            if (refusal := await self._refused_sender(login, [address])) is not None:
                return refusal
        key = login.key
        if key is not None and key.calls_per_second > 0:
            cost = 1 / key.calls_per_second
            if self._rates.take(key.id, trio.current_time(), cost, BURST):
                return _TOO_OFTEN
        return None

    async def name(self, login: object, recipient: str) -> str | None:
        """Refuse a recipient to whom no mail can or may go."""
        if not isinstance(login, Login):
            return _SIGN_IN
        try:
            address = parse_address(recipient, "a recipient").address
        except MalformedMessage:
            return "501 5.1.3 This is no address that mail can be sent to"
        suppressed = await self._suppressions.holds(login.owner, address)
        return _SUPPRESSED if suppressed else None

    async def submit(self, login: object, taken: SubmittedMessage) -> str:
        """Queue a message, one row a recipient."""
        if not isinstance(login, Login):
            return _SIGN_IN
        if (refusal := await self._find(login)) is not None:
            return refusal
        large = len(taken.raw) > _IN_A_THREAD
        prepare = partial(
            _prepared, taken, self._hostname, login, reports=self.reports, lifetime=self._lifetime
        )
        try:
            ready = await trio.to_thread.run_sync(prepare) if large else prepare()
            message, orders, senders, digest = ready
            await self._sending.check_header(login.key, senders)
            queued = await self._sending.queue(message, key=orders.key, key_hash=digest)
        except UnclearSender:
            return "550 5.7.1 From is not clear, and this key may not send from every address"
        except (ReservedSender, ForeignSender):
            return _NOT_FROM
        except MalformedMessage as error:
            return f"554 5.6.0 {str(error)[:1].upper()}{str(error)[1:]}"
        except Suppressed as error:
            return _suppressed(len(error.addresses))
        except KeyConflict:
            return "554 5.7.0 X-Relay-Idempotency-Key was used for another message within 24 hours"
        except PermanentFailure:
            return "554 5.6.0 The message cannot be queued"
        return f"250 2.0.0 queued as {','.join(str(each.id) for each in queued.messages)}"

    async def _refused_sender(self, login: Login, addresses: Iterable[str]) -> str | None:
        try:
            await self._sending.check_senders(login.key, addresses)
        except (ReservedSender, ForeignSender):
            return _NOT_FROM
        return None


def _suppressed(count: int) -> str:
    """The refusal of a message for so many of its recipients, who at RCPT were none.

    That it is bulk mail, from which they have unsubscribed, only its header says.  No address is
    repeated: whoever gets the answer may log it.
    """
    who = "A recipient is" if count == 1 else f"{count} recipients are"
    return f"550 5.7.1 {who} on the suppression list for such mail, so nothing was queued"


def _prepared(
    taken: SubmittedMessage, hostname: str, login: Login, *, reports: bool, lifetime: float
) -> tuple[Message, Orders, list[str] | None, bytes | None]:
    """What is to be queued, what is asked for, every address in From, and an idempotency hash."""
    submitted = Submitted(taken.raw)
    orders = submitted.orders
    now = utc_now()
    trace = Trace(taken.helo, taken.host, hostname, taken.encrypted, taken.utf8)
    recipients = parse_recipients(taken.recipients, "a recipient")
    sender = parse_address(taken.sender, "the sender") if taken.sender else Address("")
    send_at = orders.send_at
    not_after = orders.not_after
    if not_after is None and lifetime < math.inf:
        not_after = min(max(send_at or now, now) + timedelta(seconds=lifetime), LATEST - _INSTANT)
    rcpt_parameters: dict[str, RcptParameters] = {}
    for text, parameters in taken.rcpt_parameters.items():
        rcpt_parameters.setdefault(parse_address(text, "a recipient").address.lower(), parameters)
    message = Message(
        sender=sender,
        recipients=tuple(recipients.values()),
        subject=submitted.subject,
        raw=submitted.prepared(trace, new_id(), now, sender.address.rpartition("@")[2]),
        priority=orders.priority,
        send_at=send_at,
        not_after=not_after,
        owner=login.owner,
        tag=orders.tag,
        tls_optional=submitted.tls_optional,
        submitted=AskedFor(taken.mail_parameters, rcpt_parameters, reports),
    )
    digest = None
    if orders.key is not None:
        digest = submitted.digest(sender.address, list(recipients))
    return message, orders, submitted.senders, digest
