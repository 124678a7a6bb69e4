"""The collector: turns new tokens into letters in the outbound queue, batch by batch.

It is woken by NOTIFY (through the listener), hands over as its timing says (adaptive: at once while
little happens, in growing batches under load; or the documents' timing), and under a budget waits
as the budget says.  Every few seconds it looks by itself: for what nobody announced, and for
tokens whose account fits again.

Promises
- Each token gets one letter, whatever dies when: taking, queueing and paying are one transaction.
- A wake-up is a hint and never a row: however many accounts a transaction made, all are mailed.
- What was queued while the database or this actor was away goes out at once.
- Several collectors share the work; none waits for another.

Fails: never on an outage of the database (back-off, one warning, recovery by itself).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from typing import Any

import trio
from prometheus_client import Counter, Gauge, Histogram

from actors.letters import SweepNow, Wake
from actors.turns import next_turn
from relay.datadir import Keyring
from relay.errors import DatabaseUnavailable
from relay.lifecycle import queue
from relay.lifecycle.batching import Batching, Reason
from relay.lifecycle.handover import Desk, Handed
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.enqueue import announce
from relay.outbound.lanes import Strip
from supervisor import Context, Drained

log = get_logger()

SWEEP_EVERY = 4.0
"""Seconds after which it looks whatever happens, a quarter more or less."""

_BACKOFF = (0.1, 5.0)  # s; first and longest pause in an outage
_LONGEST_REST = 60.0  # s; then the budget is looked at again, for somebody may have changed it
_COUNT_SHARE = 5  # counting takes at most one part in so many of the time

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
    desk: Desk,
    batching: Callable[[], Batching],
    keyring: Keyring,
    wake_outbound: Callable[[Collection[Strip]], None] | None = None,
    sweep_every: float = SWEEP_EVERY,
    rng: random.Random | None = None,
) -> None:
    """Hand over until drained.

    `batching` makes the timing; `wake_outbound` tells this process's claimer what is due, None
    where there is none (then all nodes are told); letters (`Wake`, `SweepNow`) are hints.
    """
    collector = _Collector(
        ctx, desk, batching(), keyring, wake_outbound, sweep_every,
        rng or random.Random(),  # noqa: S311 - jitter
    )  # fmt: skip
    ctx.ready()
    seconds = 0.0
    try:
        while True:
            collector.heed(await next_turn(ctx, seconds))
            seconds = await collector.turn()
    except Drained:
        return  # a batch in hand was finished: it is one turn


class _Collector:
    """One node's collector between its turns.  Deadlines are of Trio's clock, in seconds."""

    def __init__(
        self,
        ctx: Context,
        desk: Desk,
        batching: Batching,
        keyring: Keyring,
        wake_outbound: Callable[[Collection[Strip]], None] | None,
        sweep_every: float,
        rng: random.Random,
    ) -> None:
        self._ctx = ctx
        self._desk = desk
        self._batching = batching
        self._keyring = keyring
        self._wake_outbound = wake_outbound
        self._sweep_every = sweep_every
        self._rng = rng
        self._sweep_at = -math.inf
        self._rests_until = -math.inf  # the budget has nothing left
        self._count_at = -math.inf  # not to be counted again before
        self._uncounted = False  # and it was wanted
        self._outage = 0.0  # the last pause in an outage; 0 when there is none
        batching.connected()

    def heed(self, letters: list[Any]) -> None:
        """Take hints in."""
        for letter in letters:
            if isinstance(letter, Wake):
                self._batching.woken(trio.current_time())
            elif isinstance(letter, SweepNow):
                self._sweep_at = -math.inf

    async def turn(self) -> float:
        """Hand over what is due; return the seconds until there is something to do again."""
        try:
            await self._hand_over()
            if trio.current_time() >= self._sweep_at:
                await self._sweep()
                await self._hand_over()
        except DatabaseUnavailable as error:
            return self._pause(error)
        if self._outage:
            self._outage = 0.0
            log.info("collector.recovered")
        next_at = min(self._batching.next_at, self._count_at if self._uncounted else math.inf)
        next_at = min(max(next_at, self._rests_until), self._sweep_at)
        return max(0.0, next_at - trio.current_time())

    async def _hand_over(self) -> None:
        """Hand over batch by batch while there is a reason to."""
        while not self._ctx.paused and not self._ctx.draining.is_set():
            now = trio.current_time()
            if now < self._rests_until:
                return
            reason = self._batching.decide(now, await self._waiting(now))
            if reason is None:
                return
            began = trio.current_time()
            handed = await self._desk.hand_over(self._keyring.signing[0])
            if handed.rows:
                _SECONDS.observe(trio.current_time() - began)
            self._note(handed, self._batching.sent(handed.rows, trio.current_time(), reason))
            if handed.strips and self._wake_outbound is None:
                await announce(self._desk.pool)
            self._ctx.beat()

    async def _waiting(self, now: float) -> int:
        """How many rows wait, for a timing that goes by it; 0 when it does not or need not know."""
        self._uncounted = False
        if not self._batching.counts or self._batching.next_at in (math.inf, -math.inf):
            return 0
        if now < min(self._count_at, self._batching.next_at):
            self._uncounted = True
            return 1  # some; enough to keep the window open
        count = await self._desk.waiting()
        after = trio.current_time()
        self._count_at = after + _COUNT_SHARE * (after - now)
        return count

    def _note(self, handed: Handed, reason: Reason) -> None:
        """Tell the claimer, the log and the metrics; remember what the budget wants."""
        if handed.strips and self._wake_outbound is not None:
            self._wake_outbound(handed.strips)
        if handed.saved is not None:
            _SAVED.set(handed.saved)
        if handed.rest is not None:
            now = trio.current_time()
            self._rests_until = now + min(handed.rest, _LONGEST_REST)
            self._batching.woken(now)  # there may be more than it paid for
        for refused in handed.refused:
            _REFUSED.inc()
            log.warning("collector.refused", token=refused.token, reason=refused.reason)
        if handed.rows:
            _BATCHES.labels(reason).inc()
            _ROWS.observe(handed.rows)
            log.info("collector.batch", rows=handed.rows, reason=reason)

    async def _sweep(self) -> None:
        """Look for what nobody announced."""
        await queue.sweep(self._desk.pool)
        now = trio.current_time()
        if not self._batching.counts or await self._desk.waiting():
            self._batching.found(now)
        self._sweep_at = now + self._sweep_every * self._rng.uniform(0.75, 1.25)

    def _pause(self, error: DatabaseUnavailable) -> float:
        first, longest = _BACKOFF
        if not self._outage:
            log.warning("collector.waits_for_database", reason=str(error))
        self._outage = min(longest, self._outage * 2 or first)
        self._batching.connected()  # whatever was announced meanwhile was missed
        self._sweep_at = -math.inf
        return self._outage * self._rng.uniform(0.75, 1.25)
