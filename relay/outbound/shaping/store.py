"""What receivers have asked for, in `relay.outbound_shaping`, which all nodes share.

Promises
- What was learned outlasts whoever learned it: it holds on other nodes, and after a restart, until
  its time is over by the database's clock.
- Learned by several nodes, what lasts longest and leaves least holds.

Fails with `DatabaseUnavailable`, from the pool.

What a crash leaves

| it crashes    | then                                                                  |
|---------------|-----------------------------------------------------------------------|
| before COMMIT | what was learned is not known; the next reply of that kind teaches it |
| after COMMIT  | it holds                                                              |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from relay.db.pool import Pool
from relay.outbound.shaping.traffic import Learned, Receiver


class ShapingStore:
    """What is kept of receivers.  Instants are Trio's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self) -> list[Learned]:
        """All that holds."""
        rows = await self._pool.fetch(
            """
            SELECT receiver, source, kind, extract(epoch FROM until - clock_timestamp())::float8,
                   factor, domain, reason, extract(epoch FROM clock_timestamp() - since)::float8,
                   rule
            FROM relay.outbound_shaping
            WHERE until > clock_timestamp()
            """
        )
        now = trio.current_time()
        return [
            Learned(
                *(Receiver(receiver, source), kind, now + left, factor, domain, reason),
                held_since=now - age,
                rule=rule,
            )
            for receiver, source, kind, left, factor, domain, reason, age, rule in rows
        ]

    async def keep(self, learned: Sequence[Learned]) -> None:
        """Store what was learned, beside what other nodes have; what is over is removed."""
        now = trio.current_time()
        last = {(one.receiver, one.kind): one for one in learned}.values()
        rows = [
            (*one.receiver, one.kind, one.factor, one.domain, one.reason, one.rule, one.until - now)
            for one in sorted(last, key=lambda one: (one.receiver, one.kind))
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        if not columns:
            return
        await self._pool.execute(
            """
            WITH over AS (
                DELETE FROM relay.outbound_shaping
                WHERE until < now() - interval '1 minute'
            )
            INSERT INTO relay.outbound_shaping
                (receiver, source, kind, factor, domain, reason, rule, until)
            SELECT receiver, source, kind, factor, domain, reason, rule,
                   clock_timestamp() + make_interval(secs => seconds)
            FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[], %s::text[], %s::text[],
                        %s::text[], %s::float8[])
                 AS one (receiver, source, kind, factor, domain, reason, rule, seconds)
            ON CONFLICT (receiver, source, kind) DO UPDATE
            SET factor = CASE WHEN outbound_shaping.until > now()
                              THEN LEAST(outbound_shaping.factor, excluded.factor)
                              ELSE excluded.factor END,
                until = GREATEST(outbound_shaping.until, excluded.until),
                since = CASE WHEN outbound_shaping.until > now()
                             THEN outbound_shaping.since ELSE now() END,
                domain = excluded.domain,
                reason = excluded.reason,
                rule = excluded.rule
            """,
            columns,
        )

    async def let_go(
        self, *, domain: str | None = None, route: str | None = None, names: Collection[str] = ()
    ) -> int:
        """End what holds: all of it, or that of a domain, or of receivers called so.

        `names`: of the receivers that the domain's mail is known to go to; `route` as
        `Receiver.shown` has it.  Returns how many ended.
        """
        return await self._pool.execute(
            """
            DELETE FROM relay.outbound_shaping
            WHERE (%(domain)s::text IS NULL OR domain = %(domain)s OR receiver = ANY (%(names)s))
              AND (%(route)s::text IS NULL
                   OR %(route)s = split_part(receiver, ' #', 1)
                                  || CASE WHEN source = '' THEN '' ELSE ' via ' || source END)
            """,
            {"domain": domain, "route": route, "names": list(names)},
        )
