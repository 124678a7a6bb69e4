"""The way into the queue for those who have a credential: over HTTP, by submission, by release.

`Sending` says from which addresses a key may send, queues, and tells the claimer.

Promises
- Whoever could speak for a domain of the relay's own would be believed by anybody, so its role
  names are the administrator's; a key that is limited to some addresses sends from no other.
- What a header says is checked as the envelope is: readers believe the header.
- `queue` returns after COMMIT, and what it queued is known to this node's claimer at once.
- High mail has the right of way from the moment that it is known to come.

Fails with `ReservedSender`, `ForeignSender`, and as `enqueue` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import trio

from relay.access.keys import ApiKey, Keys
from relay.db.pool import Pool
from relay.errors import PermanentFailure
from relay.mailboxes.names import Names
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.composing.message import Message
from relay.outbound.queue.enqueue import Enqueued, enqueue
from relay.outbound.queue.lanes import DueLane


class ReservedSender(PermanentFailure):
    """Only the administrator sends from a role name of the relay's own domains."""

    def __init__(self) -> None:
        super().__init__("this name is the administrator's")


class ForeignSender(PermanentFailure):
    """The key may not send from this address."""

    def __init__(self) -> None:
        super().__init__("this key may not send from this address")


class UnclearSender(ForeignSender):
    """A header does not say from whom it is so that every program reads the same."""


class Enqueue(Protocol):
    """Queue messages durably, all or none; see `relay.outbound.queue.enqueue.enqueue`."""

    async def __call__(
        self, messages: Sequence[Message], *, key: str | None = None, key_hash: bytes | None = None
    ) -> Enqueued: ...


WakeOutbound = Callable[[Collection[DueLane]], None]
"""Say at once that these lanes have something due, to this process's claimer and through it to
the other nodes.  Never waits; what it says is found without it too, only later."""


class Enqueuer:
    """Queues mail, and clears the way for high mail as soon as it is known to come."""

    def __init__(self, pool: Pool, right_of_way: RightOfWay) -> None:
        self._pool = pool
        self._right_of_way = right_of_way

    async def enqueue(
        self, messages: Sequence[Message], *, key: str | None = None, key_hash: bytes | None = None
    ) -> Enqueued:
        """As `relay.outbound.queue.enqueue.enqueue`."""
        if any(message.priority == "high" and message.send_at is None for message in messages):
            # If nothing comes of it after all, it is over in a moment.
            self._right_of_way.expect(trio.current_time())
        return await enqueue(self._pool, messages, key=key, key_hash=key_hash)


class Sending:
    """What a credential may send, and how that is queued."""

    def __init__(self, keys: Keys, names: Names, enqueue: Enqueue, wake: WakeOutbound) -> None:
        self._keys = keys
        self._names = names
        self._enqueue = enqueue
        self._wake = wake

    async def check_senders(self, key: ApiKey | None, addresses: Iterable[str]) -> None:
        """Raise unless a key (None: the administrator) may send from all these addresses."""
        if key is None:
            return
        for address in addresses:
            if self._names.reserves_address(address):
                raise ReservedSender
            if not await self._keys.may_send_from(key, address):
                raise ForeignSender

    async def check_header(self, key: ApiKey | None, senders: Collection[str] | None) -> None:
        """Raise unless a key may send what says that it is from these: `Submitted.senders`."""
        if key is None:
            return
        if senders is None or (not senders and key.senders is not None):
            raise UnclearSender
        await self.check_senders(key, senders)

    async def queue(
        self, message: Message, *, key: str | None = None, key_hash: bytes | None = None
    ) -> Enqueued:
        """Queue a message; `key` and `key_hash` as `enqueue` has them."""
        queued = await self._enqueue([message], key=key, key_hash=key_hash)
        if due_lanes := queued.due_lanes:
            self._wake(due_lanes)
        return queued
