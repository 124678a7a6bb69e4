"""NOTIFY, from the server to whoever waits in this process.

`notifications()` holds one connection that LISTENs; `Hub` fans what it hears out to tasks.

A notification is a hint and the table is the truth: PostgreSQL folds equal payloads, and loses
all of them while the connection is down.  So:
- every (re)connect yields `Reconnected` first, after LISTEN took effect, and whoever waits then
  looks in the database again;
- a `Subscription` carries one flag, not a queue: any number of wake-ups while its owner was
  looking are one more look, and none is lost;
- a connection that died in silence is noticed by a query every `ping_every` seconds that must be
  answered within `ping_timeout`, and by TCP keep-alive;
- one that answers and hears nothing any more is noticed by the same query: who answers must be a
  primary, listen still (a pooler in between may have given the connection another server), and be
  of the system and on the timeline that the pool has met since.

Fails: `notifications()` never ends by itself; an outage is logged once, tried again with jittered
back-off, and logged when it is over.  LISTEN does not survive PgBouncer's transaction mode, so
the DSN must lead to PostgreSQL itself: through one, what is notified between two pings may be lost.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psycopg
import trio
from psycopg import sql

from relay.chance import new_rng
from relay.db.connection import Connection, connect
from relay.db.hosts import Hosts
from relay.log import get_logger
from relay.outage import Outage

log = get_logger()

K = TypeVar("K")
_OWNER = "="  # what `relay.db.channels.of_owner` begins with
EVERYONE = "*"
"""The payload of a notification that concerns every key of its channel."""

AWAITED_FOR = 10.0
"""Seconds for which who waited for one key is taken for somebody who will again."""

_KEYS = 1000  # that a subscription remembers; more are all of them
_RETRY_BASE, _RETRY_CAP = 0.1, 5.0  # s; what the back-off begins with and doubles up to


class Bell:
    """A flag that is raised any number of times before it is waited for, and counts once.

    One bell may be that of several subscriptions: a task that waits for any of them waits for their
    bell, and needs no task for each.  Used by one task at a time.
    """

    def __init__(self) -> None:
        self._event = trio.Event()

    async def wait(self) -> None:
        """Return when it has rung since the last `wait` (or since it was made)."""
        await self._event.wait()
        self._event = trio.Event()

    @property
    def has_rung(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event.is_set()

    def ring(self) -> None:
        """Have `wait` return."""
        self._event.set()

    def silence(self) -> None:
        """Forget that it has rung; while nobody waits."""
        self._event = trio.Event()


class Subscription:
    """One waiter's flag.  Used by one task at a time; made by `Hub.subscribe`."""

    def __init__(self, shared: Bell | None = None, owner: str | None = None) -> None:
        """`shared`: rings with it, and with the others that have the same one."""
        self._bell = Bell()
        self._shared = shared
        self._owner = owner
        self._keys: set[str] | None = set()
        self.is_muted = False
        """Whether `shared` does not ring; what is heard is kept."""
        self.heard: set[str] | None = None
        """For which keys the last `wait` returned; None: for every key of the channel."""

    async def wait(self) -> None:
        """Return when something was published since the last `wait` (or since subscribing)."""
        await self._bell.wait()
        self.heard = self.taken()

    def taken(self) -> set[str] | None:
        """For which keys `wait` would return at once, none maybe, and have it wait for others."""
        self._bell.silence()
        keys, self._keys = self._keys, set()
        return keys

    @property
    def woken(self) -> bool:
        """Whether `wait` would return at once."""
        return self._bell.has_rung

    def _is_among(self, owners: set[str]) -> bool:
        return self._owner is None or self._owner in owners

    def _wake(self, keys: set[str] | None) -> None:
        if keys is None or self._keys is None or len(self._keys) + len(keys) > _KEYS:
            self._keys = None
        else:
            self._keys |= keys
        self._bell.ring()
        if self._shared is not None and not self.is_muted:
            self._shared.ring()


class Hub:
    """Wake-ups by channel and key, inside one process.  No I/O, nothing waits but subscribers."""

    def __init__(self) -> None:
        # A key of None holds those who want every payload of the channel.
        self._waiting: dict[tuple[str, str | None], set[Subscription]] = {}
        # Who waits for all of an owner's mailboxes, by channel and key.
        self._of_owners: dict[str, dict[str, set[Subscription]]] = {}
        self._last_awaited: dict[str, float] = {}  # when who waited for one key ended

    @contextmanager
    def subscribe(
        self,
        channel: str,
        key: str | None = None,
        *,
        bell: Bell | None = None,
        owner: str | None = None,
    ) -> Iterator[Subscription]:
        """Hear of `key` on `channel`, or with None of every key, while in the block.

        `bell` rings with it, and with the others that have the same one; `owner` is the =OWNER
        whose `key` is, if that is known.  Subscribe first, look in the database second, wait third:
        then nothing falls between.
        """
        subscription = Subscription(bell, owner)
        if key is not None and key.startswith(_OWNER):
            with _among(self._of_owners.setdefault(channel, {}), key, subscription):
                yield subscription
        else:
            with _among(self._waiting, (channel, key), subscription):
                try:
                    yield subscription
                finally:
                    if key is not None:
                        self._last_awaited[channel] = trio.current_time()

    def publish(self, channel: str, keys: Iterable[str] | None) -> None:
        """Wake those who wait for any of `keys`; None, or a key of "*", wakes the whole channel.

        Who waits for KEY hears of KEY:PART, too; who waits for =OWNER hears all keys that come with
        it, or without any such, and "*" likewise, as does who waits for a key of that owner's.  Of
        owners nobody is told.
        """
        wanted = None if keys is None else set(keys)
        named = {key for key in wanted or () if key.startswith(_OWNER)}
        if wanted is not None:
            wanted = None if EVERYONE in wanted else wanted - named
        if of_owners := self._of_owners.get(channel):
            for owner in named or of_owners:  # none is named by a relay of before
                _wake(of_owners.get(owner, ()), wanted)
        if wanted is None:
            for (name, _), waiting in self._waiting.items():
                if name == channel:
                    _wake((one for one in waiting if not named or one._is_among(named)), None)
            return
        _wake(self._waiting.get((channel, None), ()), wanted)
        for key in wanted:
            _wake(self._waiting.get((channel, key), ()), {key})
            whole, _, part = key.partition(":")
            if part:
                _wake(self._waiting.get((channel, whole), ()), {key})

    def publish_all(self) -> None:
        """Wake everybody: notifications may have been lost."""
        for waiting in self._waiting.values():
            _wake(waiting, None)
        for of_owners in self._of_owners.values():
            for waiting in of_owners.values():
                _wake(waiting, None)

    def is_awaited(self, channel: str) -> bool:
        """Whether somebody waits for one key of a channel."""
        return any(name == channel and key is not None for name, key in self._waiting)

    def was_awaited(self, channel: str) -> bool:
        """Whether somebody waits for one key of a channel, or did within `AWAITED_FOR`."""
        ended = self._last_awaited.get(channel, -math.inf)
        return trio.current_time() - ended < AWAITED_FOR or self.is_awaited(channel)

    def statistics(self) -> dict[str, int]:
        """How many wait, by channel."""
        counts: dict[str, int] = {}
        for (channel, _), waiting in self._waiting.items():
            counts[channel] = counts.get(channel, 0) + len(waiting)
        for channel, of_owners in self._of_owners.items():
            for waiting in of_owners.values():
                counts[channel] = counts.get(channel, 0) + len(waiting)
        return counts


@dataclass(frozen=True, slots=True)
class Notification:
    """What somebody notified."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Reconnected:
    """LISTEN is in effect from here on; anything before may have been missed."""

    first: bool


async def notifications(
    dsn: str,
    channels: Iterable[str],
    *,
    ping_every: float = 15.0,
    ping_timeout: float = 5.0,
    rng: random.Random | None = None,
    hosts: Hosts | None = None,
) -> AsyncGenerator[Notification | Reconnected, None]:
    """Yield what is notified on `channels`, for ever.  Use it with `contextlib.aclosing`.

    Times in seconds.  `hosts`: what the process knows of the servers.
    """
    names = tuple(channels)
    outage = Outage(_RETRY_BASE, _RETRY_CAP, rng or new_rng())
    first = True
    while True:
        conn: Connection | None = None
        try:
            conn = await connect(
                dsn,
                application_name="relay-listen",
                connect_timeout=ping_timeout,
                hosts=hosts,
            )
            await _listen(conn, names, ping_timeout)
            attempts = outage.attempts
            if outage.over():
                log.info("db.listening_again", attempts=attempts)
            yield Reconnected(first)
            first = False
            while True:
                # notifies() gives the connection's lock back between pings.
                async with aclosing(conn.notifies(timeout=ping_every)) as stream:
                    async for note in stream:
                        yield Notification(note.channel, note.payload)
                await _ping(conn, names, ping_timeout, hosts)
        except psycopg.Error as error:
            if not outage.is_on:
                log.warning("db.listen_lost", error=str(error).strip())
            pause = outage.lost()
        finally:
            if conn is not None:
                conn.abandon()
        await trio.sleep(pause)


async def _listen(conn: Connection, names: tuple[str, ...], seconds: float) -> None:
    statements = [sql.SQL("LISTEN {}").format(sql.Identifier(name)) for name in names]
    with trio.move_on_after(seconds):
        await conn.execute(sql.SQL("; ").join(statements))
        return
    raise psycopg.OperationalError(f"LISTEN was not answered within {seconds:g} s")


_PING = "SELECT pg_is_in_recovery(), ARRAY(SELECT pg_listening_channels())"


async def _ping(
    conn: Connection, names: tuple[str, ...], seconds: float, hosts: Hosts | None
) -> None:
    with trio.move_on_after(seconds) as scope:
        row = await (await conn.execute(_PING)).fetchone()
    if scope.cancelled_caught or row is None:
        raise psycopg.OperationalError(f"the connection was silent for {seconds:g} s")
    in_recovery, channels = row
    if in_recovery:
        raise psycopg.OperationalError("the server is no longer the primary")
    if missing := set(names) - set(channels):
        raise psycopg.OperationalError(
            f"the server does not listen to {', '.join(sorted(missing))} any more:"
            " a pooler in between has changed it"
        )
    if hosts is not None and (why := hosts.left_behind(conn)):
        raise psycopg.OperationalError(why)


@contextmanager
def _among(
    waiting: dict[K, set[Subscription]], key: K, subscription: Subscription
) -> Iterator[None]:
    """Have it among those of a key within the block."""
    those = waiting.setdefault(key, set())
    those.add(subscription)
    try:
        yield
    finally:
        those.discard(subscription)
        if not those and waiting.get(key) is those:
            del waiting[key]


def _wake(waiting: Iterable[Subscription], keys: set[str] | None) -> None:
    for subscription in waiting:
        subscription._wake(keys)
