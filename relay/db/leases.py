"""Leadership: one row a role, held for a few seconds at a time, with a term that only rises.

Promises
- At most one node holds an unexpired lease, by the database's clock.
- `term` rises with every change of holder and with every release, so a statement that carries
  the condition of `FENCE` does nothing for a leader that has been replaced, however late it
  wakes up.  A node is a fresh uuid per start: a restarted process is never its own dead twin.
- Each operation is one statement in a transaction of its own, so it works behind PgBouncer,
  where session advisory locks do not.

Fails with `DatabaseUnavailable` from the pool; a holder that cannot renew must stop when its
own clock says that `ttl` has passed since it *began* its last successful renewal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relay.db.pool import Pool

FENCE = """EXISTS (
    SELECT FROM relay.leases
    WHERE name = %(lease_name)s
      AND node = %(lease_node)s
      AND term = %(lease_term)s
      AND expires_at > now())"""
"""A condition for the statements of a leader; takes the parameters of `Lease.fence`."""


@dataclass(frozen=True)
class Lease:
    """A lease as it was when it was acquired or renewed."""

    name: str
    node: UUID
    term: int

    @property
    def fence(self) -> dict[str, Any]:
        """The parameters of `FENCE`."""
        return {"lease_name": self.name, "lease_node": self.node, "lease_term": self.term}


async def acquire(pool: Pool, name: str, node: UUID, ttl: float) -> Lease | None:
    """Take the lease `name` for `ttl` seconds if it is free or has run out; else None.

    A node that holds it already renews it and keeps the term.
    """
    term = await pool.fetch_value(
        # Two nodes that try at once meet on the row; the second re-checks the WHERE after the
        # first has committed, and finds an unexpired lease.
        """
        INSERT INTO relay.leases AS l (name, node, term, expires_at)
        VALUES (%(name)s, %(node)s, 1, now() + make_interval(secs => %(ttl)s))
        ON CONFLICT (name) DO UPDATE
        SET node = excluded.node,
            term = CASE WHEN l.node = excluded.node AND l.expires_at > now() THEN l.term
                        ELSE l.term + 1 END,
            expires_at = excluded.expires_at
        WHERE l.expires_at <= now() OR l.node = excluded.node
        RETURNING term
        """,
        {"name": name, "node": node, "ttl": ttl},
    )
    return None if term is None else Lease(name, node, term)


async def renew(pool: Pool, lease: Lease, ttl: float) -> bool:
    """Hold `lease` for another `ttl` seconds from now.  False: it is lost (run out, or taken)."""
    changed = await pool.execute(
        """
        UPDATE relay.leases
        SET expires_at = now() + make_interval(secs => %(ttl)s)
        WHERE name = %(lease_name)s
          AND node = %(lease_node)s
          AND term = %(lease_term)s
          AND expires_at > now()
        """,
        {"ttl": ttl, **lease.fence},
    )
    return changed > 0


async def release(pool: Pool, lease: Lease) -> bool:
    """Give `lease` up, so that another node need not wait for its end.  False: it was lost."""
    changed = await pool.execute(
        """
        UPDATE relay.leases
        SET expires_at = '-infinity', term = term + 1
        WHERE name = %(lease_name)s
          AND node = %(lease_node)s
          AND term = %(lease_term)s
        """,
        lease.fence,
    )
    return changed > 0
