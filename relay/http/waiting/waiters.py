"""Whoever waits for mail: what wakes them, and how many there may be.

Promises
  * Whoever waits is woken by new mail, by the end of their mailbox, by the relay's stopping, and
    when their page session may be over.
  * Whoever asks for it is also woken by messages that were changed, and by mailboxes that took
    theirs along, and told which; where these are too many, that it may be any, and so once a second
    at most.
  * Nobody's waits use up the places of others: there are so many a mailbox (of calls over all
    mailboxes: an owner), a key and an address, and some that only calls with a key, this machine's
    own and the administrator's get.

Fails with a 429 or a 503 when there is no room for one more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import trio
from prometheus_client import Gauge

from relay.db.channels import CHANGES, MAILBOXES, SUMMARIES, of_owner
from relay.db.listen import Bell, Hub, Subscription
from relay.http.credentials.callers import address_of
from relay.http.deps import Limits
from relay.http.operations import Call
from relay.http.problems.details import Problem, unavailable
from relay.mailboxes.visibility import Reach
from relay.metrics import registry
from relay.ports.peers import Place, PortGate, TurnedAway
from relay.ports.proxy import Network

K = TypeVar("K")

STREAMS = Gauge(
    "relay_http_streams", "Calls that wait for mail now, by kind.", ["kind"], registry=registry
)


_ENOUGH = "Your key has as many calls waiting for mail as one may have."
_NO_STRANGERS = "As many calls without a key wait for mail as may."
_EDITED = 1000  # keys that are kept; more are all of them
_ALL_EVERY = 1.0  # s; that any message may be changed is told no more often


class Watch:
    """Wake-ups that concern one mailbox, or all of an owner's, or all.

    `bell` rings at them; `changes`: of what is changed of messages, for those who want to know, all
    with the bell `changed`.
    """

    def __init__(
        self,
        bell: Bell,
        changes: Sequence[Subscription] = (),
        mail: Subscription | None = None,
        *,
        changed: Bell | None = None,
    ) -> None:
        self._bell = bell
        self._mail = mail
        self._changes = changes
        self._changed = changed
        self._edited: set[str] | None = set()
        self._quiet_until = -math.inf

    @property
    def edited(self) -> bool:
        """Whether messages were changed since they were `taken`."""
        return self._edited is None or bool(self._edited)

    def taken(self) -> set[str] | None:
        """The keys of what was changed since the last call; None: of any message."""
        edited, self._edited = self._edited, set()
        if _is_much(edited):
            self._quiet_until = trio.current_time() + _ALL_EVERY
        return edited

    def give_back(self) -> None:
        """What was taken could not be told: by now it may be any message."""
        self._edited = None

    def ring(self) -> None:
        """Wake who waits."""
        self._bell.ring()

    def mute(self, muted: bool) -> None:
        """Have new mail wake nobody, or again."""
        assert self._mail is not None
        self._mail.is_muted = muted

    @property
    def has_mail(self) -> bool:
        """Whether there was new mail since it was `heard`."""
        return self._mail is not None and self._mail.woken

    async def heard(self) -> bool:
        """Whether there was new mail since this was asked last."""
        if not self.has_mail:
            return False
        assert self._mail is not None
        await self._mail.wait()
        return True

    async def _hear(self) -> None:
        assert self._changed is not None
        await self._changed.wait()
        self._gather(self._changed)
        if _is_much(self._edited):
            # Mailboxes end as fast as tests do, and very many are changed however often.
            await trio.sleep_until(self._quiet_until)
            self._gather(self._changed)

    def _gather(self, bell: Bell) -> None:
        # Nothing waits here: who is cancelled between the bell and what it rang for would lose it.
        bell.silence()
        for changes in self._changes:
            heard = changes.taken()
            if heard is None or self._edited is None or len(self._edited) > _EDITED:
                self._edited = None
            else:
                self._edited |= heard

    async def wait(self, seconds: float) -> bool:
        """Return at the next wake-up, or after `seconds`; whether there was one."""
        woken = False

        async def one(wait: Callable[[], Awaitable[None]]) -> None:
            nonlocal woken
            await wait()
            woken = True
            nursery.cancel_scope.cancel()

        with trio.move_on_after(max(0.0, seconds)):
            if self._changed is None:  # most wait for mail alone: at once, and in no other task
                await self._bell.wait()
                return True
            async with trio.open_nursery() as nursery:
                for wait in (self._bell.wait, self._hear):
                    nursery.start_soon(one, wait)
        return woken


def _is_much(keys: set[str] | None) -> bool:
    """Whether any message may be changed, or all of a mailbox."""
    return keys is None or any(":" not in key for key in keys)


def key_of(reach: Reach) -> str | None:
    """Return what `SUMMARIES`, `CHANGES` and `MAILBOXES` name it by."""
    if reach.mailbox_id is not None:
        return str(reach.mailbox_id)
    return None if reach.owner_id is None else of_owner(reach.owner_id)


@contextmanager
def watching(hub: Hub, reach: Reach, call: Call, *, edits: bool = False) -> Iterator[Watch]:
    """Hear of new summaries within reach, of changes to a mailbox that is all of it, and when the
    caller's page session may be over; with `edits` of changed messages, too, and of mailboxes that
    ended.  That the relay is stopping everybody hears who listens to the hub
    (`actors/control.py`)."""
    key, bell, changed = key_of(reach), Bell(), Bell()
    one = reach.mailbox_id is not None
    owner = of_owner(call.mailbox.owner_id) if one else None
    with ExitStack() as stack:

        def hear(channel: str, bell: Bell) -> Subscription:
            return stack.enter_context(hub.subscribe(channel, key, bell=bell, owner=owner))

        stack.enter_context(call.admission.watched(bell))
        mail = hear(SUMMARIES, bell)
        if one:
            hear(MAILBOXES, bell)
        changes = [hear(CHANGES, changed)] if edits else []
        if edits and not one:
            changes.append(hear(MAILBOXES, changed))
        yield Watch(bell, changes, mail, changed=changed if edits else None)


@dataclass(frozen=True)
class Waiter:
    """One that waits: who it is, and on what, as it counts against the limits.

    `subject`: the mailbox, or the owner of all that are waited on; `key`: the API key's id, if the
    call has one.
    """

    subject: UUID
    host: str
    administrator: bool
    key: UUID | None

    @classmethod
    def of(cls, call: Call, connection: Any, trusted: Collection[Network]) -> Waiter:
        """Return the waiter of a call; `trusted`: proxies whose word on the address counts."""
        caller = call.caller
        key = None if caller is None or caller.key is None else caller.key.id
        subject = caller.owner_id if call.mailbox is None else call.mailbox.id
        administrator = caller is not None and key is None
        return cls(subject, address_of(connection, trusted), administrator, key)


class Slots:
    """How many wait at once: on one mailbox, with one key, of one address, and in all.

    One key, and one address, may take a quarter of all places, calls without a key half of them;
    the administrator may take the last.
    """

    def __init__(self, limits: Limits, trusted: Collection[Network] = ()) -> None:
        self._limits = limits
        self._held: dict[UUID, int] = {}
        self._with: dict[UUID | None, int] = {}  # by key; None: without one
        self._gate = PortGate(
            "streams", limits.streams, max(1, limits.streams // 4), trusted=trusted
        )

    def check(self, waiter: Waiter) -> None:
        """Raise the 429 or the 503 when there is no room for one more."""
        self._enter(waiter).leave()

    def on(self, subject: UUID) -> int:
        """How many wait on a mailbox now, or on all of an owner."""
        return self._held.get(subject, 0)

    def _enter(self, waiter: Waiter) -> Place:
        subject = waiter.subject
        if self._held.get(subject, 0) >= self._limits.streams_per_mailbox:
            raise Problem(
                429,
                "too-many-waits",
                f"At most {self._limits.streams_per_mailbox} calls may wait on one mailbox, or of"
                " one owner on all mailboxes.",
                headers={"Retry-After": "5"},
            )
        self._check_key(waiter)
        place = self._gate.enter(waiter.host, trio.current_time(), privileged=waiter.administrator)
        if place is TurnedAway.PEER:
            raise Problem(
                429,
                "too-many-waits",
                "Your address has as many calls waiting for mail as one may have.",
                headers={"Retry-After": "5"},
            )
        if isinstance(place, TurnedAway):
            raise unavailable("Too many calls wait for mail; try again.", retry_after=5)
        return place

    def _check_key(self, waiter: Waiter) -> None:
        if waiter.administrator:
            return
        share = 2 if waiter.key is None else 4
        if self._with.get(waiter.key, 0) >= max(1, self._limits.streams // share):
            raise Problem(
                429, "too-many-waits", _NO_STRANGERS if waiter.key is None else _ENOUGH,
                headers={"Retry-After": "5"},
            )  # fmt: skip

    @contextmanager
    def hold(self, waiter: Waiter, kind: str) -> Iterator[None]:
        """Count one more for the block; `check` first."""
        place = self._enter(waiter)
        with (
            _one_more(self._held, waiter.subject),
            nullcontext() if waiter.administrator else _one_more(self._with, waiter.key),
        ):
            STREAMS.labels(kind).inc()
            try:
                yield
            finally:
                STREAMS.labels(kind).dec()
                place.leave()


@contextmanager
def _one_more(counts: dict[K, int], key: K) -> Iterator[None]:
    counts[key] = counts.get(key, 0) + 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
