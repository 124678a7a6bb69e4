"""What a store of device inboxes promises, whichever database is behind it.

An inbox is the blobs that wait for one device, named by its 32-byte public key; it needs no
registration.  `relay.devices.sqlite` keeps them on one machine, `relay.devices.postgres` for
many; one contract test (tests/devices/test_store.py) holds both to this page.

Promises
- Put: the blob is durable, byte for byte, before `put` returns.  The same envelope put twice is
  two blobs: de-duplication is the recipient's.  An inbox holds at most `MAX_BLOBS` blobs and
  `MAX_BYTES` bytes; one more is `InboxFull`.
- All inboxes together take about `max_total` bytes at most, `OVERHEAD` a blob included; one more
  blob is `StoreFull`, whosever it is.  What is free again is known within seconds.
- A blob may have a time to live of its own, which is not above the store's.
- Flush: first in, first out for one recipient, in pages; nothing is removed, and nothing that has
  expired is returned.  Ids rise within an inbox *in the order of commits* and are never given
  twice, so who asks for what comes after the last id it saw misses nothing and is given nothing
  again: a thousand blobs cost one delivery each.
- Delete: only what is in the inbox of the recipient named; any other id changes nothing.
- Reap: blobs past their time go, a batch a transaction, and are counted as missed by their device.
- Missed: a blob that expired is counted once, reaped or not, for a device never seen before too,
  until `told` says that the count was sent.  One that is deleted before anybody counted it is not
  missed; one that was reaped before its acknowledgement came still counts as missed.
- Wake-ups are hints: subscribe, flush to the end, then wait, and look again now and then
  whatever happens.

Crash safety
| the relay or the machine dies …       | the blob                         | its sender heard |
|---------------------------------------|----------------------------------|------------------|
| before the commit of Put              | is not there, no part of it      | nothing          |
| after it, before `put` returned       | is there; a replay is a second   | nothing          |
| after `put` returned                  | is there                         | Ack              |
| before the commit of Delete           | is there, and is delivered again | -                |
| after it                              | never comes again                | -                |
| within Reap                           | is there, or gone and counted    | -                |
| between sending Missed and `told`     | - (the count is told again)      | -                |
What is counted (blobs, bytes, missed) is changed by the same transactions as the blobs, or counted
from them, so no crash can part them.

Fails
- `StoreUnavailable`: the store is not running, its disk or database refuses, or no answer came in
  time.  Temporary.  What became of a Put that ended so is unknown: it may be stored, and sending
  it again is allowed.  Nothing is ever acknowledged that is not durable.
- `InboxFull`, `StoreFull`: temporary too; nothing was stored.
- `ConfigError`, from `run` alone: the file or the schema is of a newer relay, or not ours.  Who
  runs the store tries again: the file may be put right meanwhile.
- `ValueError` for a key that is not 32 bytes: the caller's bug.

Cancelling a call gives up the answer, not the work: a Put under way may still be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import trio

from relay.errors import TemporaryFailure

KEY_BYTES = 32
MAX_BLOBS = 10_000
"""Blobs in one inbox at most, those included that have expired and are not reaped yet."""
MAX_BYTES = 256 * 2**20
"""Bytes of envelopes in one inbox at most."""

OVERHEAD = 256
"""Bytes that a blob takes beside its envelope, about: its row, and its place in each index."""

FULL_RETRY_AFTER = 300.0
"""Seconds after which a full inbox is worth another try: its device may have come meanwhile."""
UNAVAILABLE_RETRY_AFTER = 5.0
"""Seconds after which a store that failed is worth another try."""


class StoreUnavailable(TemporaryFailure):
    """The store could not do it, or not say whether it did.  `retry_after` in seconds."""

    retry_after = UNAVAILABLE_RETRY_AFTER


class InboxFull(TemporaryFailure):
    """The recipient's inbox holds all it may; nothing was stored.  `retry_after` in seconds."""

    retry_after = FULL_RETRY_AFTER


class StoreFull(TemporaryFailure):
    """All inboxes together hold all they may; nothing was stored.  `retry_after` in seconds."""

    retry_after = FULL_RETRY_AFTER


class Stored(NamedTuple):
    """A blob that is durable.  `id` from 1 up, below 2⁶³; `expires_at` in Unix seconds."""

    id: int
    expires_at: float


class Blob(NamedTuple):
    """A blob as it waits.  `expires_at` in Unix seconds."""

    id: int
    envelope: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class Missed:
    """How many blobs expired that this device was not told of; `mark` is for `told`."""

    count: int
    mark: int


@dataclass(frozen=True, slots=True)
class Fullness:
    """One inbox and what is in it."""

    recipient: bytes
    blobs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """A store as it was some seconds ago (a minute, of a million inboxes); `waiting` as of now.

    `oldest_age` is in seconds, reckoned from the store's time to live (so too high where a blob had
    a shorter one of its own); 0 when nothing waits.  `fullest`
    are the inboxes with the most bytes, at most five: keys are for an operator's eyes, never for
    labels.
    """

    blobs: int = 0
    bytes: int = 0
    inboxes: int = 0
    oldest_age: float = 0.0
    fullest: tuple[Fullness, ...] = ()
    waiting: int = 0


class Wakeups(Protocol):
    """One waiter's flag, as `relay.db.listen.Subscription` has it."""

    async def wait(self) -> None:
        """Return when something was put since the last `wait` (or since subscribing)."""


class InboxStore(Protocol):
    """Device inboxes.  Made before Trio runs; serves while somebody runs `run`.

    Every call may be made by any number of tasks at once; concurrent Puts share commits.
    """

    @property
    def name(self) -> str:
        """What the metrics call it: sqlite or postgres."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled: `task_status.started()` once the store answers.

        Raises `ConfigError` for a store that this program must not touch, and `StoreUnavailable`
        for a file that could not be opened for long; shorter outages are waited out inside, and
        all of a shared database.  When cancelled, the commit under way is finished (within
        seconds) and answered; what waits behind it fails with `StoreUnavailable`, as does every
        call while nobody runs this.
        """

    async def put(self, recipient: bytes, envelope: bytes, ttl: float | None = None) -> Stored:
        """Make a blob durable, for `ttl` seconds if that is less than the store's own.

        `InboxFull`, `StoreFull`, `StoreUnavailable`.
        """

    async def flush(
        self, recipient: bytes, after: int = 0, *, limit: int = 64, max_bytes: int = 2**20
    ) -> list[Blob]:
        """Return what waits with an id above `after`, oldest first: a page of it.

        At most `limit` blobs and `max_bytes` bytes, but at least one blob if any waits.  Ask on
        from the last id until the page is empty.
        """

    async def delete(self, recipient: bytes, ids: Sequence[int]) -> None:
        """Delete the blobs of `recipient` with these ids; others and unknown ones are ignored."""

    async def missed(self, recipient: bytes) -> Missed:
        """Count what expired undelivered: what is expired now is reaped and counted first."""

    async def told(self, recipient: bytes, mark: int) -> None:
        """Forget what `missed` counted when it gave this mark; call it once the count was sent."""

    async def reap(self, limit: int = 500) -> int:
        """Delete at most `limit` blobs that have expired; return how many.  Call it until 0."""

    def subscribe(self, recipient: bytes) -> AbstractContextManager[Wakeups]:
        """Hear of new blobs for `recipient`, stored by any node, while in the block."""

    async def check(self) -> None:
        """Return if the store answers and can take a Put; else `StoreUnavailable` with why."""

    def statistics(self) -> StoreStatistics:
        """Return the store's figures, some seconds old; no I/O."""


def checked_key(recipient: bytes) -> bytes:
    """Return `recipient`, or raise `ValueError` if it is no key."""
    if len(recipient) != KEY_BYTES:
        raise ValueError(f"a device's key has {KEY_BYTES} bytes, not {len(recipient)}")
    return recipient
