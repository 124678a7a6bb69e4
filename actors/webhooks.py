"""webhooks: posts what happened to those who asked to be told, signed.

Promises
  * Each event is posted until its receiver answers 2xx, by the rules of mail: the delay after
    attempt n is n² units, and after the last attempt it is given up.  410 Gone is final at once,
    and so is a URL that cannot be posted to.
  * At least once: between an answer and its commit the same event may be posted again; receivers
    know it by its id.
  * A receiver that hangs holds a few places for one deadline; the others do not notice.  Nor do
    other owners notice one all of whose receivers hang: a quarter of the places is not for one.
    All anonymous mailboxes together are one.
  * A message is a reason to look; `SweepNow` one to forget what is past its time, too.
  * Draining: posts under way end (each has its deadline), nothing new is claimed.

Fails: never by a receiver, a URL or an event.  Without the database it tries again, by and by
less often, at last as often as it sweeps.

No log line, error or metric names a URL: it may hold a token.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import UUID

import prometheus_client
import psycopg
import trio

from actors.messages import SweepNow
from actors.periodic import wait_for_messages
from relay.chance import new_rng, time
from relay.errors import DatabaseUnavailable
from relay.keyring import Keyring
from relay.log import get_logger
from relay.metrics import registry
from relay.outage import Outage
from relay.outbound.pacing.backoff import retry_delay
from relay.webhooks.post import NotPosted, Poster, Refused
from relay.webhooks.signing import signed_headers
from relay.webhooks.store import Event, Webhooks
from supervisor import Context, Drained

SWEEP_EVERY = 5.0
"""Seconds after which it looks even if nothing woke it."""

_LEASE = 60.0  # s; beyond the longest post and the statements around it
_FORGET_EVERY = 3600.0  # s
_GONE = 410

POSTS = prometheus_client.Counter(
    "relay_webhook_posts", "Webhooks by what became of them.", ["kind", "outcome"],
    registry=registry,
)  # fmt: skip
SECONDS = prometheus_client.Histogram(
    "relay_webhook_seconds", "How long a webhook's post took.", registry=registry
)

log = get_logger()


async def run(
    ctx: Context,
    *,
    webhooks: Webhooks,
    poster: Poster,
    keyring: Keyring,
    retry_unit: float,
    max_attempts: int,
    concurrency: int = 16,
    sweep_every: float = SWEEP_EVERY,
    rng: random.Random | None = None,
) -> None:
    """Post what is due until drained.

    `retry_unit` in seconds; `concurrency` posts at once; `sweep_every`: seconds after which it
    looks although nobody called.
    """
    posting = _Posting(
        ctx, webhooks, poster, keyring, retry_unit, max_attempts, concurrency, sweep_every,
        rng or new_rng(),
    )  # fmt: skip
    async with trio.open_nursery() as posts:
        posts.start_soon(posting.claim_as_wanted, posts)
        ctx.ready()
        with suppress(Drained):
            while True:
                posting.heed(await wait_for_messages(ctx, sweep_every))
        posting.stop()


class _Posting:
    """What is under way, and when it looks again."""

    def __init__(
        self,
        ctx: Context,
        webhooks: Webhooks,
        poster: Poster,
        keyring: Keyring,
        retry_unit: float,
        max_attempts: int,
        concurrency: int,
        sweep_every: float,
        rng: random.Random,
    ) -> None:
        self._ctx = ctx
        self._webhooks = webhooks
        self._poster = poster
        self._keyring = keyring
        self._retry_unit = retry_unit
        self._max_attempts = max_attempts
        self._concurrency = concurrency
        self._sweep_every = sweep_every
        self._rng = rng
        self._bell = trio.Event()
        self._stopping = False
        self._under_way: Counter[str] = Counter()  # by receiver
        self._of_owners: Counter[UUID] = Counter()
        self._forget_at = -math.inf
        self._outage = Outage(longest=SWEEP_EVERY, rng=rng)

    def heed(self, messages: list[Any]) -> None:
        """Look, for it is time or somebody said so."""
        if any(isinstance(message, SweepNow) for message in messages):
            self._forget_at = -math.inf
        self.look()

    def look(self) -> None:
        """Something may be due, or there is room again."""
        self._bell.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._bell.set()

    async def claim_as_wanted(self, posts: trio.Nursery) -> None:
        """Claim whenever there may be something and there is room, until stopped."""
        wait = 0.0
        while True:
            with trio.move_on_after(wait):
                await self._bell.wait()
            if self._stopping:
                return
            self._bell = trio.Event()
            wait = self._sweep_every
            room = self._concurrency - self._under_way.total()
            if self._ctx.paused or room <= 0:
                continue  # resuming and each post's end ring the bell
            try:
                each = self._concurrency - self._concurrency // 4
                events, at = await self._webhooks.claim(
                    room, _LEASE, self._under_way, self._of_owners, each
                )
                if len(events) < room:
                    soon = await self._webhooks.next_due(at)
                    # Below 0: what was not due when it was claimed became so meanwhile.
                    if soon is not None:
                        wait = min(wait, max(0.0, soon) + 0.001)
                    await self._forget()
            except DatabaseUnavailable as error:
                wait = self._lost(error)
                continue
            self._outage.over()
            for event in events:
                self._under_way[event.origin] += 1
                self._of_owners[event.owner] += 1
                posts.start_soon(self._tell, event)

    async def _forget(self) -> None:
        if trio.current_time() >= self._forget_at:
            self._forget_at = trio.current_time() + _FORGET_EVERY
            await self._webhooks.forget()

    def _lost(self, error: DatabaseUnavailable) -> float:
        """The database is away; return the seconds until the next attempt."""
        if not self._outage.is_on:
            log.warning("webhook.database_unavailable", reason=str(error))
        return self._outage.lost()

    async def _tell(self, event: Event) -> None:
        began = trio.current_time()
        try:
            await self._post(event)
        except DatabaseUnavailable as error:
            self._lost(error)  # its lease runs out, and it is due again
        except Exception as error:
            # Nobody foresaw it: it must not take the others with it, nor come back for ever.
            await self._set_aside(event, error)
        finally:
            SECONDS.observe(trio.current_time() - began)
            self._under_way[event.origin] -= 1
            if not self._under_way[event.origin]:
                del self._under_way[event.origin]
            self._of_owners[event.owner] -= 1
            if not self._of_owners[event.owner]:
                del self._of_owners[event.owner]
            self.look()

    async def _post(self, event: Event) -> None:
        body = await self._webhooks.body(event)
        if body is None:
            # The mailbox has expired, or the message is past its retention.
            await self._webhooks.told(event)
            self._note(event, "moot")
            return
        headers = signed_headers(self._keyring.signing, event.signer, event.id, body, int(time()))
        status = 0
        final = False
        try:
            status = await self._poster.post(event.url, body, headers)
            error = f"the answer was {status}"
            final = status == _GONE
        except NotPosted as failure:
            error = str(failure)
            final = isinstance(failure, Refused)
        if 200 <= status < 300:
            await self._settle_told(event)
        else:
            await self._failed(event, error, final=final)

    async def _failed(self, event: Event, error: str, *, final: bool = False) -> None:
        if final or event.attempt >= self._max_attempts:
            await self._webhooks.give_up(event, error)
            self._note(event, "given_up", error)
        else:
            delay = retry_delay(event.attempt, self._retry_unit, self._rng)
            await self._webhooks.defer(event, delay, error)
            self._note(event, "deferred", error)

    async def _set_aside(self, event: Event, crash: Exception) -> None:
        # Its text could hold the URL, so only its kind is logged.
        log.error("webhook.crashed", id=str(event.id), error=type(crash).__name__)
        try:
            await self._failed(event, "an internal error of the relay")
        except DatabaseUnavailable as error:
            self._lost(error)
        except psycopg.Error:
            pass  # the database refuses even that; its lease runs out, and it is tried again

    async def _settle_told(self, event: Event) -> None:
        """Record an answer; insist for a while, since forgetting it means posting twice."""
        for pause in (0.2, 1.0, 5.0, None):
            try:
                await self._webhooks.told(event)
                break
            except DatabaseUnavailable:
                if pause is None:
                    raise
                await trio.sleep(pause)
        self._note(event, "delivered")

    def _note(self, event: Event, outcome: str, error: str | None = None) -> None:
        POSTS.labels(event.kind, outcome).inc()
        level = log.warning if outcome == "given_up" else log.info if error else log.debug
        level(
            f"webhook.{outcome}",
            id=str(event.id),
            kind=event.kind,
            attempt=event.attempt,
            **({} if error is None else {"reason": error}),
        )
