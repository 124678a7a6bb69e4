"""Keeps what receivers have asked for as all nodes know it: stores what this one learns, and heeds
what the others did.

Promises
- What was learned here holds here at once, and on the other nodes when it is stored.
- What ended before its time (a flush, somebody's SQL) ends here within a moment.
- `known` is when the database was read first: nothing is to leave before, for it could go to who
  has asked to be left alone.

Fails: never but by cancellation; an outage of the database is waited out, and what was learned
meanwhile is stored afterwards.
"""

from __future__ import annotations

from typing import Protocol

import trio

from relay.db import channels
from relay.db.listen import Hub
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.outbound.active_queue.jobs import Job
from relay.outbound.shaping.store import ShapingStore
from relay.outbound.shaping.traffic import SUSPENDED, Learned, Receiver, Traffic
from relay.outbound.suppression.suppressions import Full, Refused, Suppressions

log = get_logger()

LOOK_EVERY = 30.0
"""Seconds between two looks at the database, whatever was announced."""

_RETRY = 1.0  # s
_MOST_REFUSED = 10_000  # recipients to be stored; in an outage the next reply says it again


class Gatekeeping(Protocol):
    """Who holds back what goes to a receiver: `relay.outbound.delivery.gatekeeper.Gatekeeper`."""

    def suspend(self, learned: Learned, now: float) -> None:
        """Begin nothing more that goes to a receiver."""

    def lift(self, receiver: Receiver) -> None:
        """A receiver may be written to again."""


class ShapingKeeper:
    """The keeper of one sender."""

    def __init__(self, store: ShapingStore, suppressions: Suppressions, traffic: Traffic) -> None:
        self._store = store
        self._suppressions = suppressions
        self._traffic = traffic
        self._learned: list[Learned] = []
        self._refused: list[Refused] = []
        self._full: list[Full] = []
        self._news = trio.Event()
        self._known = trio.Event()

    def learned(self, what: Learned) -> None:
        """A receiver has asked for this."""
        self._learned.append(what)
        self._news.set()

    def refused(self, job: Job, words: str) -> None:
        """The recipient of a job is not to be written to.

        Not so that of a letter with a token: whose address stands there, others have said, and to
        mail to it is up to others still.
        """
        if job.message.letter_of is None and len(self._refused) < _MOST_REFUSED:
            self._refused.append(Refused(job.message.owner, job.message.recipient, words))
            self._news.set()

    def full(self, job: Job, enhanced: str, words: str) -> None:
        """The mailbox of a job's recipient is full; of a letter with a token that counts nothing,
        either."""
        message = job.message
        if message.letter_of is None and len(self._full) < _MOST_REFUSED:
            self._full.append(Full(message.id, message.attempt, enhanced, words))
            self._news.set()

    @property
    def is_ready(self) -> bool:
        """Whether the database has been read."""
        return self._known.is_set()

    async def known(self) -> None:
        """Wait until the database has been read."""
        await self._known.wait()

    async def run(self, hub: Hub, gatekeeping: Gatekeeping) -> None:
        """Store and heed, until cancelled."""
        with hub.subscribe(channels.SHAPING) as told:

            async def wait_told() -> None:
                await told.wait()
                self._news.set()

            while True:
                self._news = trio.Event()
                try:
                    await self._write()
                    await self._read(gatekeeping)
                except DatabaseUnavailable as error:
                    log.debug("sender.shaping_not_kept", reason=str(error))
                    await trio.sleep(_RETRY)
                    continue
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_told)
                    with trio.move_on_after(LOOK_EVERY):
                        await self._news.wait()
                    nursery.cancel_scope.cancel()

    async def _write(self) -> None:
        learned, self._learned = self._learned, []
        refused, self._refused = self._refused, []
        full, self._full = self._full, []
        try:
            await self._store.keep(learned)
            learned = []
            await self._suppressions.suppress(refused)
            refused = []
            await self._suppressions.count_full(full)
            full = []
        finally:
            self._learned = learned + self._learned
            self._refused = refused + self._refused
            self._full = full + self._full

    async def _read(self, gatekeeping: Gatekeeping) -> None:
        rows = await self._store.read()
        now = trio.current_time()
        # What was learned while the database was asked is not in its answer.
        ended = self._traffic.take_over([*rows, *self._learned], now)
        for one in ended:
            if one.kind == SUSPENDED:
                gatekeeping.lift(one.receiver)
        for one in self._traffic.in_force(now, SUSPENDED):
            gatekeeping.suspend(one, now)
        self._known.set()
