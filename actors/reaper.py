"""The reaper: deletes what expired long ago, and repairs what workers that crashed left behind.

When it looks and who leads is decided here; what is deleted of mailboxes, and how, is
`relay/mailboxes/reclaim.py`.

Promises
- A mailbox that stopped being active more than `retention` seconds ago is deleted for good, with
  its messages; nothing younger is touched.
- Outbound messages whose lease ran out are queued again, or set aside when that happened too often,
  and counted; those whose outcome is unknown and was to be held are held.  (Claims do the same for
  what they meet; this is for what nobody claims.)
- Account tokens that expired more than `retention` seconds ago are deleted, in batches; those that
  could be mailed and were missed by the triggers are made ready.
- Partitions of finished outbound mail are made ahead and dropped after
  `outbound_retention`.
- What was reported of messages is deleted when full mailboxes are not counted by it any more.
- What was appended to the counts of mailboxes is folded, and that of mailboxes that are gone
  removed.
- One node reaps at a time, under the lease `reaper`; its statements carry the term.
- Trouble with the outbound queue keeps neither tokens nor mailboxes: it is told, and the round goes
  on.

Fails: never on an outage of the database; the next round finds the same rows.

Rounds come every few minutes with jitter, so that nodes started together do not ask together,
and when `SweepNow` says so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter

from actors.messages import SweepNow
from actors.periodic import wait_for_messages
from relay.chance import new_rng, uuid4
from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, RolledBack
from relay.jitter import jittered
from relay.lifecycle import token_queue
from relay.log import get_logger
from relay.mailboxes import reclaim
from relay.metrics import registry
from relay.outage import Outage
from relay.outbound.bounces.returned import forget_reports
from relay.outbound.queue.store import Queue
from supervisor import Context, Drained

log = get_logger()

_RECLAIMED = Counter(
    "relay_reclaimed_rows", "Rows removed after their retention.", ["kind"], registry=registry
)

_FOUND = Counter(
    "relay_outbound_reaped", "Messages whose worker vanished.", ["what"], registry=registry
)

_LEASE = "reaper"
_LEASE_TTL = 30.0  # s; far above the few hundredths that a batch takes
_TOKENS = 1000  # a batch
_ROLL_EVERY = 3600.0  # s; partitions are made two weeks ahead


async def run(
    ctx: Context,
    *,
    pool: Pool,
    queue: Queue | None = None,
    retention: float = 7 * 86400.0,
    outbound_retention: float = 30 * 86400.0,
    sweep_every: float = 60.0,
    retry_every: float = 10.0,
    rng: random.Random | None = None,
) -> None:
    """Reclaim until drained.

    `queue`: the outbound queue, if it is to be looked after; `retention`: seconds that a closed
    mailbox, or an expired token, is kept; `outbound_retention`: seconds that finished mail is
    kept; `sweep_every`: seconds between rounds, a quarter more or less; `retry_every`: seconds
    while another node reaps, and at most between two attempts in an outage.
    """
    rng = rng or new_rng()
    reaper = Reaper(pool, retention=retention, queue=queue, outbound_retention=outbound_retention)
    outage = Outage(longest=retry_every, rng=rng)
    ctx.ready()
    try:
        while True:
            try:
                led = await reaper.round(ctx, back=outage.is_on)
            except DatabaseUnavailable as error:
                if not outage.is_on:
                    log.warning("reaper.waits_for_database", reason=str(error))
                seconds = outage.lost()
            else:
                if outage.over():
                    log.info("reaper.recovered")
                seconds = jittered(sweep_every if led else min(retry_every, sweep_every), rng)
            reaper.heed(await wait_for_messages(ctx, seconds))
    except Drained:
        return


@dataclass
class Reaper:
    """One node's reaper; `retention` in seconds."""

    pool: Pool
    retention: float
    node: UUID = field(default_factory=uuid4)
    queue: Queue | None = None
    outbound_retention: float = 30 * 86400.0
    rolled_at: float = -math.inf

    def heed(self, messages: list[Any]) -> None:
        """Take hints in: any is a reason for a round, `SweepNow` one for all that has its time."""
        if any(isinstance(message, SweepNow) for message in messages):
            self.rolled_at = -math.inf

    async def round(self, ctx: Context, *, back: bool = False) -> bool:
        """Reclaim everything that is due.  False when another leads.  `back`: the database may be
        back after an outage."""
        lease = await leases.acquire(self.pool, _LEASE, self.node, _LEASE_TTL)
        if lease is None:
            return False
        if self.queue is not None:
            if back:
                await self.queue.spare()
            with _told("reap", RolledBack, psycopg.Error):
                await self._reap(self.queue)
            # Not in time, too: if the database is away, the next statement finds that out.
            with _told("roll", DatabaseUnavailable, psycopg.Error):
                await self._roll(self.queue)
        forgotten = await self._forget_tokens(ctx)
        if not await leases.renew(self.pool, lease, _LEASE_TTL):
            return False  # the above took longer than the lease
        mailboxes, messages = await self._reclaim(ctx, lease)
        await reclaim.fold_usage(self.pool)
        await leases.release(self.pool, lease)
        _RECLAIMED.labels("mailboxes").inc(mailboxes)
        _RECLAIMED.labels("messages").inc(messages)
        _RECLAIMED.labels("tokens").inc(forgotten)
        if mailboxes or messages:
            log.info("mailbox.reclaimed", rows=mailboxes, messages=messages)
        return True

    async def _reap(self, queue: Queue) -> None:
        """Set right what vanished workers left in the outbound queue."""
        reaped = await queue.reap()
        for what in ("lost", "quarantined", "unknown"):
            ids = getattr(reaped, what)
            if ids:
                _FOUND.labels(what).inc(len(ids))
                log.warning(
                    "outbound.reaped",
                    what=what,
                    messages=len(ids),
                    ids=[str(each) for each in ids[:20]],
                )

    async def _roll(self, queue: Queue) -> None:
        """Make and drop partitions of the outbound queue, when it is time to."""
        if trio.current_time() < self.rolled_at + _ROLL_EVERY:
            return
        self.rolled_at = trio.current_time()  # what fails holds up deliveries once an hour at most
        await forget_reports(self.pool)
        try:
            dropped = await queue.forget(keep=self.outbound_retention)
        except RolledBack:
            log.info("outbound.not_rolled")  # somebody reads for long; there are weeks of time
            self.rolled_at = -math.inf
            return
        if dropped:
            log.info("outbound.forgotten", partitions=dropped)

    async def _forget_tokens(self, ctx: Context) -> int:
        """Delete tokens past their time; no fence, for two nodes that do this do it once."""
        await token_queue.sweep(self.pool)
        forgotten = 0
        while not (ctx.draining.is_set() or ctx.paused):
            began = trio.current_time()
            deleted = await token_queue.forget(self.pool, keep=self.retention, batch=_TOKENS)
            forgotten += deleted
            if deleted < _TOKENS:
                break
            ctx.beat()
            await trio.sleep(trio.current_time() - began)  # half of the time belongs to others
        return forgotten

    async def _reclaim(self, ctx: Context, lease: Lease) -> tuple[int, int]:
        mailboxes = messages = 0
        renewed_at = trio.current_time()
        while not (ctx.draining.is_set() or ctx.paused):
            closed = await reclaim.closed(self.pool, retention=self.retention)
            if not closed:
                break
            deleted = 1
            while deleted and not ctx.draining.is_set():
                began = trio.current_time()
                deleted = await reclaim.delete_messages(self.pool, lease, closed)
                messages += deleted
                ctx.beat()
                if began - renewed_at > _LEASE_TTL / 3:
                    if not await leases.renew(self.pool, lease, _LEASE_TTL):
                        return mailboxes, messages
                    renewed_at = began
                # Half of the time belongs to others.
                await trio.sleep(trio.current_time() - began)
            if ctx.draining.is_set():
                break
            gone = await reclaim.delete_mailboxes(
                self.pool, lease, closed, retention=self.retention
            )
            mailboxes += gone
            if not gone:
                break  # the lease is lost, or all of them were made active again
        return mailboxes, messages


@contextmanager
def _told(step: str, *errors: type[Exception]) -> Iterator[None]:
    """Tell of a step that ended in one of these errors; their words may hold values of rows."""
    try:
        yield
    except errors as error:
        log.warning("reaper.step_failed", step=step, error=type(error).__name__)
