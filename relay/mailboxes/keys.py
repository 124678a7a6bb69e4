"""API keys: who may call, what for, and under which plan.

Promises: a token is shown once, at its creation, and stored as a hash; a revoked key stops
working with the commit that revokes it.  Fails with `Invalid` for a bad value and with
`DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from relay.crypto import hash_token, new_api_token
from relay.db.pool import Pool
from relay.mailboxes.plans import Invalid
from relay.mailboxes.store import rfc3339

SCOPES = ("read", "send", "admin")
_MAX_OWNER = 200


@dataclass(frozen=True)
class ApiKey:
    """An API key without its secret.  `scopes` are among `SCOPES`; `admin` includes the others."""

    id: UUID
    owner: str
    scopes: tuple[str, ...]
    plan: str
    created_at: datetime
    revoked_at: datetime | None = None
    calls_per_second: float = 0.0
    """How often the key may call, by its plan; 0: no limit."""

    def allows(self, scope: str) -> bool:
        """Whether the key may do what needs `scope`."""
        return scope in self.scopes or "admin" in self.scopes

    def as_json(self) -> dict[str, Any]:
        """The key as the HTTP API shows it."""
        return {
            "id": str(self.id),
            "owner": self.owner,
            "scopes": list(self.scopes),
            "plan": self.plan,
            "created_at": rfc3339(self.created_at),
            "revoked_at": rfc3339(self.revoked_at) if self.revoked_at else None,
        }


_COLUMNS = """id, owner, scopes, plan, created_at, revoked_at,
    (SELECT q.calls_per_second FROM relay.plans q WHERE q.name = plan)"""


class Keys:
    """The API keys in `relay.api_keys`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(
        self, owner: str, scopes: Iterable[str], plan: str = "free"
    ) -> tuple[ApiKey, str]:
        """Make a key; the second value is its token, which nobody can read again."""
        wanted = set(scopes)
        if not wanted or not wanted <= set(SCOPES):
            raise Invalid(f"scopes must be one or more of {', '.join(SCOPES)}")
        if not owner.strip() or len(owner) > _MAX_OWNER or not owner.isprintable():
            raise Invalid(f"owner must be 1 to {_MAX_OWNER} printable characters")
        token = new_api_token()
        row = await self._pool.fetch_row(
            f"""
            INSERT INTO relay.api_keys (owner, scopes, plan, token_hash)
            SELECT %s, %s, p.name, %s
            FROM relay.plans p
            WHERE p.name = %s
            RETURNING {_COLUMNS}
            """,  # noqa: S608 - constants of this module only
            (owner, [s for s in SCOPES if s in wanted], hash_token(token), plan),
        )
        if row is None:
            raise Invalid(f"there is no plan named {plan!r}")
        return _key(row), token

    async def list(self) -> list[ApiKey]:
        """Every key, revoked ones too, newest first."""
        rows = await self._pool.fetch(
            f"""
            SELECT {_COLUMNS}
            FROM relay.api_keys
            ORDER BY id DESC
            """,  # noqa: S608 - constants of this module only
        )
        return [_key(row) for row in rows]

    async def revoke(self, key_id: UUID) -> bool:
        """Revoke a key for good.  False if there is none, or it was revoked before."""
        changed = await self._pool.execute(
            """
            UPDATE relay.api_keys
            SET revoked_at = now()
            WHERE id = %s
              AND revoked_at IS NULL
            """,
            (key_id,),
        )
        return changed > 0

    async def authenticate(self, token_hash: bytes) -> ApiKey | None:
        """The live key whose token has this hash (`crypto.hash_token`), or None."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {_COLUMNS}
            FROM relay.api_keys
            WHERE token_hash = %s
              AND revoked_at IS NULL
            """,  # noqa: S608 - constants of this module only
            (token_hash,),
        )
        return _key(row) if row else None


def _key(row: tuple[Any, ...]) -> ApiKey:
    key_id, owner, scopes, plan, created_at, revoked_at, rate = row
    return ApiKey(key_id, owner, tuple(scopes), plan, created_at, revoked_at, rate)
