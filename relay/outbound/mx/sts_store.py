"""The policies of MTA-STS in `relay.mta_sts_policies`, which all nodes share.

Promises
- A policy that was fetched outlasts whoever fetched it: it holds on other nodes, and after a
  restart, until it expires by the database's clock.
- What has expired is removed as others are stored.

Fails with `DatabaseUnavailable`, from the pool.

What a crash leaves

| it crashes                 | then                                                               |
|----------------------------|--------------------------------------------------------------------|
| before COMMIT              | the policy of before holds; the domain's record has another's id,  |
|                            | so it is fetched again                                             |
| after COMMIT               | the policy holds                                                   |
"""

from __future__ import annotations

from typing import NamedTuple

import trio

from relay.checks.sts import Mode, StsPolicy
from relay.db.pool import Pool


class Kept(NamedTuple):
    """A policy that was fetched."""

    policy_id: str
    """What the record of the domain said then."""
    policy: StsPolicy
    fetched_at: float
    """On Trio's clock."""

    def holds(self, now: float) -> bool:
        """Whether it has not expired."""
        return now < self.fetched_at + self.policy.max_age


class StsStore:
    """What is kept of domains (A-labels, in small letters)."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self, domain: str) -> Kept | None:
        """The policy of a domain that holds, if there is one."""
        row = await self._pool.fetch_row(
            """
            SELECT policy_id, mode, hosts, max_age, extract(epoch FROM now() - fetched_at)::float8
            FROM relay.mta_sts_policies
            WHERE domain = %s
              AND expires_at > now()
            """,
            (domain,),
        )
        if row is None:
            return None
        policy_id, mode, hosts, max_age, age = row
        policy = StsPolicy(Mode(mode), tuple(hosts), max_age)
        return Kept(policy_id, policy, trio.current_time() - age)

    async def keep(self, domain: str, policy_id: str, policy: StsPolicy) -> None:
        """Store what was fetched just now, in place of what there was."""
        await self._pool.execute_durable(
            """
            WITH expired AS (
                DELETE FROM relay.mta_sts_policies
                WHERE domain IN (SELECT p.domain
                                 FROM relay.mta_sts_policies p
                                 WHERE p.expires_at < now()
                                   AND p.domain <> %(domain)s
                                 ORDER BY p.expires_at
                                 LIMIT 100
                                 FOR UPDATE SKIP LOCKED)
            )
            INSERT INTO relay.mta_sts_policies (domain, policy_id, mode, hosts, max_age, expires_at)
            VALUES (%(domain)s, %(policy_id)s, %(mode)s, %(hosts)s, %(max_age)s,
                    now() + make_interval(secs => %(max_age)s))
            ON CONFLICT (domain) DO UPDATE
            SET policy_id = excluded.policy_id,
                mode = excluded.mode,
                hosts = excluded.hosts,
                max_age = excluded.max_age,
                fetched_at = now(),
                expires_at = excluded.expires_at
            """,
            {
                "domain": domain,
                "policy_id": policy_id,
                "mode": policy.mode.value,
                "hosts": list(policy.hosts),
                "max_age": policy.max_age,
            },
        )
