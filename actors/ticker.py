"""The ticker: expires mailboxes the moment they are due.

When it looks and who leads is decided here; the statements are `relay/mailboxes/expiry.py`.

Promises
- A live mailbox is flipped (`is_active` false) within milliseconds of its `expires_at`; by the next
  sweep, where its announcement was lost.
- One node flips at a time: the holder of the lease `ticker`.
- A million mailboxes that expire in the same second are flipped in short statements with pauses
  between, so deliveries go on.

Nothing here is enforcement: every statement that reads or accepts tests the time stamp itself,
so with the ticker dead an expired mailbox still gets no mail and shows none.

Fails: never on an outage of the database (back-off, one warning, recovery by itself).

Why sleep instead of poll: the earliest `expires_at` is known; a message announces an earlier one
(most messages announce a later one and cost no query).  Delays are differences of the database's
own clock, so a wrong clock on this machine changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio
from prometheus_client import Counter

from actors.messages import SweepNow, Wake
from actors.periodic import wait_for_messages
from relay.chance import uuid4
from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.mailboxes import expiry
from relay.metrics import registry
from relay.outage import Outage
from supervisor import Context, Drained

log = get_logger()

_EXPIRED = Counter("relay_mailboxes_expired", "Mailboxes flipped by this node.", registry=registry)

_LEASE = "ticker"
LEASE_TTL = 9.0
"""Seconds of the lease; a third passes between two renewals, each of which is a write."""
_EARLY = 0.0005  # s; wake this much after the instant rather than before it
_LOCKED_RETRY = 0.02  # s; a due row was locked by somebody's transaction
_SHARE = 1.5  # pause after a batch, as a multiple of what it took
_REPORT_EVERY = 1.0  # s; progress of a long run of batches


async def run(
    ctx: Context, *, pool: Pool, sweep_every: float = 60.0, lease_ttl: float = LEASE_TTL
) -> None:
    """Flip what is due until drained.

    `sweep_every`: seconds after which it looks whatever happens; `lease_ttl`: seconds after
    which another node may lead when this one falls silent.
    """
    ticker = Ticker(pool, sweep_every=sweep_every, lease_ttl=lease_ttl)
    ctx.ready()
    try:
        while True:
            ticker.heed(await wait_for_messages(ctx, await ticker.turn(ctx)))
    except Drained:
        await ticker.resign()


@dataclass
class Ticker:
    """What one node's ticker knows from turn to turn.  All deadlines are of Trio's clock."""

    pool: Pool
    sweep_every: float = 60.0
    lease_ttl: float = LEASE_TTL
    node: UUID = field(default_factory=uuid4)
    lease: Lease | None = None
    batch: int = 500
    _renew_at: float = -math.inf
    _sweep_at: float = -math.inf
    _due_at: float = -math.inf
    _clock: float = 0.0  # the database's epoch seconds minus Trio's clock
    _outage: Outage = field(default_factory=Outage)

    async def turn(self, ctx: Context) -> float:
        """Do what is due; return the seconds until there is something to do again."""
        try:
            if not await self._lead():
                return self.lease_ttl / 3
            if trio.current_time() >= min(self._due_at, self._sweep_at):
                await self._expire(ctx)
        except DatabaseUnavailable as error:
            return self._pause(error)
        if self._outage.over():
            log.info("ticker.recovered")
        return min(self._due_at, self._sweep_at, self._renew_at) - trio.current_time()

    def heed(self, messages: list[Any]) -> None:
        """Take hints in: an earlier expiry, or the order to look now."""
        for message in messages:
            if isinstance(message, Wake) and message.due_at is not None:
                self._due_at = min(self._due_at, message.due_at - self._clock + _EARLY)
            elif isinstance(message, (Wake, SweepNow)):
                self._due_at = -math.inf

    async def resign(self) -> None:
        """Release the lease, so that another node leads at once."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        with trio.move_on_after(self.lease_ttl):
            try:
                await leases.release(self.pool, lease)
            except DatabaseUnavailable as error:
                log.info("ticker.lease_left", reason=str(error))

    async def _lead(self) -> bool:
        now = trio.current_time()
        if self.lease is not None and now < self._renew_at:
            return True
        if self.lease is not None and not await leases.renew(self.pool, self.lease, self.lease_ttl):
            log.warning("ticker.lease_lost", term=self.lease.term)
            self.lease = None
        if self.lease is None:
            self.lease = await leases.acquire(self.pool, _LEASE, self.node, self.lease_ttl)
            if self.lease is not None:
                log.info("ticker.leads", term=self.lease.term)
                self._due_at = -math.inf
        # Counted from before the statement was sent: never later than the database's own end.
        self._renew_at = now + self.lease_ttl / 3
        return self.lease is not None

    async def _expire(self, ctx: Context) -> None:
        """Flip everything that is due, then find out when to look again."""
        rows, since = 0, trio.current_time()
        position = expiry.START
        while await self._lead():
            assert self.lease is not None
            began = trio.current_time()
            flipped, last = await expiry.flip(self.pool, self.lease, position, self.batch)
            took = trio.current_time() - began
            rows += flipped
            _EXPIRED.inc(flipped)
            if last is None:
                break
            position = last
            full = flipped >= self.batch
            self.batch = expiry.resized(self.batch, flipped, took)
            if ctx.draining.is_set() or ctx.paused:
                break
            if full:
                # Leave room for deliveries; the rest is late by the flag only.
                await trio.sleep(took * _SHARE)
                ctx.beat()
            if rows and trio.current_time() - since > _REPORT_EVERY:
                log.info("mailbox.expired", rows=rows)
                rows, since = 0, trio.current_time()
        if rows:
            log.info("mailbox.expired", rows=rows)
        await self._look_ahead()

    async def _look_ahead(self) -> None:
        epoch, due = await expiry.next_due(self.pool)
        now = trio.current_time()
        self._clock = epoch - now
        self._sweep_at = now + self.sweep_every
        if due is None:
            self._due_at = math.inf
        elif due <= epoch:
            self._due_at = now + _LOCKED_RETRY
        else:
            self._due_at = now + (due - epoch) + _EARLY

    def _pause(self, error: DatabaseUnavailable) -> float:
        if not self._outage.is_on:
            log.warning("ticker.waits_for_database", reason=str(error))
        # What was planned is unknown after an outage: look at once when it is over.
        self._renew_at = self._due_at = -math.inf
        return self._outage.lost()
