"""notifier: tells submitters what became of their mail.

Promises
- A notice is made a report within milliseconds when idle; a message is a reason to look, and so is
  the clock (`sweep_every`).
- Mail that waits for long is found within `watch_every`.
- Several notifiers share the work, and none waits for another to tell; one at a time looks for what
  waits for long, some thousand messages in a statement.
- While the disk is nearly full notices stay where they are: a report is new data.
- `relay.outbound.reporting.notices` says what is told to whom, once; nothing is lost when this
  dies.

Fails: never on an outage of the database (back-off, one warning).
"""

from __future__ import annotations

import math
from typing import Any

import psycopg
import trio

from actors.messages import SweepNow
from actors.periodic import wait_for_messages
from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.outage import Outage
from relay.outbound.queue.enqueue import announce
from relay.outbound.reporting.notices import Notices
from relay.outbound.submission.sending import WakeOutbound
from relay.storage import AMPLE, REFUSED, Space
from supervisor import Context, Drained

log = get_logger()

SWEEP_EVERY = 5.0
WATCH_EVERY = 60.0

_NO_SPACE = REFUSED.labels("report")


async def run(
    ctx: Context,
    *,
    pool: Pool,
    notices: Notices,
    wake_outbound: WakeOutbound | None = None,
    space: Space = AMPLE,
    sweep_every: float = SWEEP_EVERY,
    watch_every: float = WATCH_EVERY,
) -> None:
    """Tell until drained.

    `wake_outbound` tells this process's claimer of reports, None where none runs; without `space`
    on the disk none are made; `sweep_every`: seconds after which it looks although nobody called;
    `watch_every`: after which it looks for what waits for long.
    """
    telling = _Telling(ctx, pool, notices, wake_outbound, space, watch_every)
    outage = Outage(longest=sweep_every)
    seconds = 0.0
    ctx.ready()
    try:
        while True:
            telling.heed(await wait_for_messages(ctx, seconds))
            try:
                await telling.all()
            except (TemporaryFailure, psycopg.Error) as error:
                if not outage.is_on:
                    own = isinstance(error, TemporaryFailure)
                    log.warning(
                        "notifier.waits_for_database",
                        reason=str(error) if own else type(error).__name__,
                    )
                seconds = outage.lost()
            else:
                seconds = sweep_every
                if outage.over():
                    log.info("notifier.recovered")
    except Drained:
        return


class _Telling:
    def __init__(
        self,
        ctx: Context,
        pool: Pool,
        notices: Notices,
        wake_outbound: WakeOutbound | None,
        space: Space,
        watch_every: float,
    ) -> None:
        self._ctx = ctx
        self._pool = pool
        self._notices = notices
        self._wake = wake_outbound
        self._space = space
        self._watch_every = watch_every
        self._watch_at = -math.inf

    def heed(self, messages: list[Any]) -> None:
        """Look for what waits for long, too, if somebody said so."""
        if any(isinstance(message, SweepNow) for message in messages):
            self._watch_at = -math.inf

    async def all(self) -> None:
        """Tell everything that is due."""
        ctx = self._ctx
        if self._space.short():
            _NO_SPACE.inc()
            return
        if trio.current_time() >= self._watch_at and not ctx.paused:
            await self._notices.watch()
            self._watch_at = trio.current_time() + self._watch_every
        while not (ctx.draining.is_set() or ctx.paused):
            told = await self._notices.tell()
            ctx.beat()
            if told.due_lanes:
                if self._wake is not None:
                    self._wake(told.due_lanes)
                else:
                    await announce(self._pool)
            if not told.notices:
                return
