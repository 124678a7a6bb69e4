"""The collector: turns new tokens into letters in the outbound queue, batch by batch.

It is woken by NOTIFY (through the listener), hands over as its timing says (adaptive: at once while
little happens, in growing batches under load; or at the limit and the timeout), and under a budget
waits as the budget says.  Every few seconds it looks by itself: for what nobody announced, and for
tokens whose account fits again.

Promises
- Each token gets one letter, whatever dies when: taking, queueing and paying are one transaction.
- A wake-up is a hint and never a row: however many accounts a transaction made, all are mailed.
- What was queued while the database or this actor was away goes out at once.
- Several collectors share the work; none waits for another.
- While the disk is nearly full tokens stay in their queue: a letter is new data.

Fails: never on an outage of the database (back-off, one warning, recovery by itself).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from typing import Any

import trio
from prometheus_client import Counter, Gauge, Histogram

from actors.messages import SweepNow, Wake
from actors.periodic import wait_for_messages
from relay.chance import new_rng
from relay.errors import DatabaseUnavailable
from relay.keyring import Keyring
from relay.lifecycle import token_queue
from relay.lifecycle.batching import Batching, Reason
from relay.lifecycle.pacing import Pacing
from relay.lifecycle.token_mailer import MailedBatch, TokenMailer
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.queue.enqueue import HIGH, announce
from relay.outbound.queue.lanes import DueLane, any_high
from relay.storage import AMPLE, REFUSED, Space
from supervisor import Context, Drained

log = get_logger()

SWEEP_EVERY = 4.0
"""Seconds after which it looks whatever happens, a quarter more or less."""

_WHEN_SHORT = 1.0  # s; between two looks while the disk is nearly full
_NO_SPACE = REFUSED.labels("letter")

_BATCHES = Counter("relay_collector_batches", "Batches handed over.", ["reason"], registry=registry)
_ROWS = Histogram(
    "relay_collector_batch_rows",
    "Tokens a batch.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 500, 1000, math.inf),
    registry=registry,
)
_SECONDS = Histogram(
    "relay_collector_batch_seconds",
    "Duration of a hand-over.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, math.inf),
    registry=registry,
)
_REFUSED = Counter(
    "relay_collector_refused", "Tokens whose letter cannot be sent.", registry=registry
)
_SAVED = Gauge(
    "relay_collector_budget_letters", "Letters that the budget pays for now.", registry=registry
)


async def run(
    ctx: Context,
    *,
    mailer: TokenMailer,
    batching: Callable[[], Batching],
    keyring: Keyring,
    wake_outbound: Callable[[Collection[DueLane]], None] | None = None,
    sweep_every: float = SWEEP_EVERY,
    rng: random.Random | None = None,
    space: Space = AMPLE,
) -> None:
    """Hand over until drained.

    `batching` makes the timing; `wake_outbound` tells this process's claimer what is due, None
    where there is none (then all nodes are told); without `space` on the disk nothing is handed
    over; messages (`Wake`, `SweepNow`) are hints.
    """
    pacing = Pacing(batching(), sweep_every, rng or new_rng())
    collector = _Collector(ctx, mailer, keyring, wake_outbound, pacing, space)
    log.info("collector.configured", **pacing.described())
    ctx.ready()
    seconds = 0.0
    try:
        while True:
            collector.heed(await wait_for_messages(ctx, seconds))
            seconds = await collector.turn()
    except Drained:
        return  # a batch in hand was finished: it is one turn


class _Collector:
    """One node's collector between its turns."""

    def __init__(
        self,
        ctx: Context,
        mailer: TokenMailer,
        keyring: Keyring,
        wake_outbound: Callable[[Collection[DueLane]], None] | None,
        pacing: Pacing,
        space: Space,
    ) -> None:
        self._ctx = ctx
        self._mailer = mailer
        self._keyring = keyring
        self._wake_outbound = wake_outbound
        self._pacing = pacing
        self._space = space

    def heed(self, messages: list[Any]) -> None:
        """Take hints in."""
        for message in messages:
            if isinstance(message, Wake):
                self._pacing.batching.woken(trio.current_time())
            elif isinstance(message, SweepNow):
                self._pacing.sweep_now()

    async def turn(self) -> float:
        """Hand over what is due; return the seconds until there is something to do again."""
        if self._space.short():
            _NO_SPACE.inc()
            return _WHEN_SHORT
        try:
            await self._mail_batches()
            if self._pacing.wants_sweep(trio.current_time()):
                await self._sweep()
                await self._mail_batches()
        except DatabaseUnavailable as error:
            if not self._pacing.is_lost:
                log.warning("collector.waits_for_database", reason=str(error))
            return self._pacing.lost()
        if self._pacing.is_lost:
            self._pacing.recovered()
            log.info("collector.recovered")
        return max(0.0, self._pacing.next_at() - trio.current_time())

    async def _mail_batches(self) -> None:
        """Hand over batch by batch while there is a reason to."""
        pacing = self._pacing
        while not self._ctx.paused and not self._ctx.draining.is_set():
            now = trio.current_time()
            if pacing.wants_count(now):
                pacing.counted(await self._mailer.waiting(), now, trio.current_time())
            began = trio.current_time()
            reason = pacing.decide(began)
            if reason is None:
                return
            batch = await self._mailer.mail_batch(self._keyring.signing[0])
            ended = trio.current_time()
            if batch.rows:
                _SECONDS.observe(ended - began)
            self._note(batch, pacing.batching.sent(batch.rows, ended, reason))
            if batch.due_lanes and self._wake_outbound is None:
                payload = HIGH if any_high(batch.due_lanes) else ""
                await announce(self._mailer.pool, payload)
            self._ctx.beat()

    def _note(self, batch: MailedBatch, reason: Reason) -> None:
        """Tell the claimer, the log and the metrics; remember what the budget wants."""
        if batch.due_lanes and self._wake_outbound is not None:
            self._wake_outbound(batch.due_lanes)
        if batch.saved is not None:
            _SAVED.set(batch.saved)
        if batch.rest is not None:
            self._pacing.rest(trio.current_time(), batch.rest)
        for refused in batch.refused:
            _REFUSED.inc()
            log.warning("collector.refused", token=refused.token, reason=refused.reason)
        if batch.rows:
            _BATCHES.labels(reason).inc()
            _ROWS.observe(batch.rows)
            log.info("collector.batch", rows=batch.rows, reason=reason)

    async def _sweep(self) -> None:
        """Look for what nobody announced."""
        await token_queue.sweep(self._mailer.pool)
        self._pacing.swept(trio.current_time(), await self._mailer.waiting())
