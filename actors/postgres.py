"""postgres: the database, as the first child of the tree and the last to go.

Embedded: runs the server, migrates, says that it is ready; restarted by supervision when the
server ends by itself; under drain a fast shutdown.  External: waits until the server answers
(an outage at start is waited out, with back-off), migrates, says that it is ready, and from then
on looks every few seconds and logs when the database goes and when it is back.  Where the URL
names several hosts (the pool's URL or, behind a pooler, the direct one) it looks every second, so
that calls to a server that froze end as soon as another has taken over, and now and then at the
others, whether one was promoted.  Behind a pooler it asks as often which server the pool speaks to.

Fails with `ConfigError` (fatal: another relay on the directory, a schema from the future, a
server too old) and, embedded, with `DatabaseUnavailable` when the server ended.  An outage of an
external server never ends this actor: everyone who needs the database waits for it themselves.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from relay.chance import new_rng
from relay.db import lookout
from relay.db.embedded import Embedded
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.outage import Outage

if TYPE_CHECKING:
    from supervisor import Context

log = get_logger()

LOOK_EVERY = 15.0
"""Seconds between looks at an external server."""

PING_TIMEOUT = 5.0
"""Seconds for the pool's answer."""


async def run(
    ctx: Context,
    *,
    server: Embedded | None,
    dsn: str,
    pool: Pool,
    prepare: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    look_every: float = LOOK_EVERY,
    rng: random.Random | None = None,
) -> None:
    """Run `server`, or watch the external one at `dsn` (a direct one, not PgBouncer's).

    `prepare` is awaited after the migrations and before ready: what this relay writes at start.
    `pool` is only looked through, by one cheap query at a time.  `look_every` in seconds.
    """

    async def migrate_and_prepare() -> None:
        await migrate(dsn, hosts=pool.hosts)
        await prepare()
        ctx.ready()

    if server is not None:
        await server.run(migrate_and_prepare, ctx.draining, hang_up=pool.hang_up)
    else:
        outage = Outage(first=0.25, longest=10.0, rng=rng or new_rng())
        await _external(ctx, migrate_and_prepare, dsn, pool, look_every, outage)


async def _external(
    ctx: Context,
    migrate_and_prepare: Callable[[], Awaitable[None]],
    dsn: str,
    pool: Pool,
    look_every: float,
    outage: Outage,
) -> None:
    while not ctx.draining.is_set():
        try:
            await migrate_and_prepare()
        except DatabaseUnavailable as error:
            pause = outage.lost()
            log.warning("postgres.waiting", attempt=outage.attempts, error=str(error))
            ctx.beat()
            with trio.move_on_after(pause):
                await ctx.draining.wait()
        else:
            await _watch(ctx, dsn, pool, look_every)


async def _watch(ctx: Context, dsn: str, pool: Pool, look_every: float) -> None:
    lost_at: float | None = None
    around_every = min(look_every, lookout.LOOK_AROUND_EVERY)
    urls = dict.fromkeys((dsn, pool.dsn))
    servers = [lookout.Lookout(url, pool.hosts, around_every=around_every) for url in urls]
    servers = [one for one in servers if one.several_hosts]
    looks = [one.turn for one in servers]
    if len(urls) > 1 or not servers:  # else the look is at the server that the pool speaks to
        looks.append(partial(pool.ping, PING_TIMEOUT))
    closely = min(look_every, lookout.LOOK_CLOSELY_EVERY)
    try:
        async for _ in ctx.every(closely if servers else look_every):
            errors = []
            for look in looks:
                ctx.beat()
                try:
                    await look()
                except DatabaseUnavailable as error:
                    errors.append(str(error))
            if errors:
                if lost_at is None:
                    lost_at = trio.current_time()
                    log.warning("postgres.lost", error=errors[0])
            elif lost_at is not None:
                seconds = round(trio.current_time() - lost_at, 1)
                log.info("postgres.back", after_seconds=seconds)
                lost_at = None
    finally:
        for one in servers:
            one.close()
