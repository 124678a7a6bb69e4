"""API keys: who may call, what for, and under which plan.

Promises: a token is shown once, at its creation, and stored as a hash; a revoked key stops
working with the commit that revokes it, one that has an end with that instant by the database's
clock.  Fails with `Invalid` for a bad value and with `DatabaseUnavailable` from the pool.

When a key was used last is noted once a minute by each process, so an instant that is shown may be
a minute old; where the database does not take the note, nobody waits for it or hears of it.

A key with an end is a program's own, for as long as it runs: it is renewed while that lives, and
deleted rather than revoked, since there may be one for each start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from relay.addresses import canonical
from relay.chance import monotonic
from relay.crypto import hash_token, new_api_token
from relay.db.pool import Pool
from relay.errors import Invalid, TemporaryFailure
from relay.times import rfc3339

SCOPES = ("read", "send", "accounts", "admin")
"""What a key may do: read its mailboxes and make some; send, and delete what it has; make and
change accounts; everything."""
OWN = "own"
"""What stands among a key's `senders` for the addresses of its own live mailboxes."""

_MAX_OWNER = 200
_MAX_SENDERS = 50
_NOTED_EVERY = 60.0  # s between two notes of one key's use
_MOST_NOTED = 10_000  # keys that are remembered as noted; then all are forgotten
_KEPT = "1 day"  # a key that has ended may be renewed for so long: a machine may have slept


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
    kind: str = "api"
    """The owner type of the mailboxes that the key makes: `api` or `mcp`."""
    senders: tuple[str, ...] | None = None
    """What it may send from: addresses, `@domain`, `own`; None: anything that others may."""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """When its token was shown last, to the minute; None: never, or before this was noted."""

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
            "expires_at": rfc3339(self.expires_at) if self.expires_at else None,
            "last_used_at": rfc3339(self.last_used_at) if self.last_used_at else None,
            "from": None if self.senders is None else list(self.senders),
            "kind": self.kind,
        }


_COLUMNS = """id, owner, scopes, plan, created_at, revoked_at,
    (SELECT q.calls_per_second FROM relay.plans q WHERE q.name = plan), kind::text, senders,
    expires_at, last_used_at"""
_IS_LIVE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"


class Keys:
    """The API keys in `relay.api_keys`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.revocations = 0
        """How many have been revoked through this object: who holds a key looks it up anew then."""
        self._noted: dict[UUID, float] = {}  # by the monotonic clock

    async def create(
        self,
        owner: str,
        scopes: Iterable[str],
        plan: str = "free",
        *,
        kind: str = "api",
        senders: Iterable[str] | None = None,
        expires_in: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; the second value is its token, which nobody can read again.

        `senders` limits what it may send from (see `ApiKey`); `expires_in`: seconds until its end,
        unless it is renewed.
        """
        wanted = set(scopes)
        if not wanted or not wanted <= set(SCOPES):
            raise Invalid(f"scopes must be one or more of {', '.join(SCOPES)}")
        if not owner.strip() or len(owner) > _MAX_OWNER or not owner.isprintable():
            raise Invalid(f"owner must be 1 to {_MAX_OWNER} printable characters")
        limits = None if senders is None else [_sender(text) for text in senders]
        if limits is not None and not 1 <= len(limits) <= _MAX_SENDERS:
            raise Invalid(f"from must be 1 to {_MAX_SENDERS} addresses or domains")
        if limits is not None and "admin" in wanted:
            # It could make itself a key without them.
            raise Invalid("a key with the scope admin has no limits on what it sends from")
        token = new_api_token()
        row = await self._pool.fetch_row(
            # Those that ended long ago go with the next that is made: one for each start of a
            # program that did not live to delete its own.
            f"""
            WITH ended AS (
                DELETE FROM relay.api_keys
                WHERE expires_at < now() - interval '{_KEPT}'
            )
            INSERT INTO relay.api_keys
                (owner, scopes, plan, token_hash, kind, senders, expires_at)
            SELECT %s, %s, p.name, %s, %s, %s, now() + make_interval(secs => %s)
            FROM relay.plans p
            WHERE p.name = %s
            RETURNING {_COLUMNS}
            """,  # noqa: S608 - constants of this module only
            (
                owner,
                [s for s in SCOPES if s in wanted],
                hash_token(token),
                kind,
                limits,
                expires_in,
                plan,
            ),
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
        """Revoke a key for good.  False if there is none, or it was revoked before.

        One that has an end is deleted.
        """
        changed = await self._pool.execute_durable(
            """
            WITH deleted AS (
                DELETE FROM relay.api_keys
                WHERE id = %(id)s
                  AND expires_at IS NOT NULL
                RETURNING id
            ), revoked AS (
                UPDATE relay.api_keys
                SET revoked_at = now()
                WHERE id = %(id)s
                  AND expires_at IS NULL
                  AND revoked_at IS NULL
                RETURNING id
            )
            SELECT id FROM deleted UNION ALL SELECT id FROM revoked
            """,
            {"id": key_id},
        )
        self.revocations += 1
        return changed > 0

    async def renew(self, key_id: UUID, expires_in: float) -> ApiKey | None:
        """Let a key that has an end live for so many seconds from now, also one that just ended.

        None if there is none, or it has no end.
        """
        row = await self._pool.fetch_row(
            f"""
            UPDATE relay.api_keys
            SET expires_at = now() + make_interval(secs => %s)
            WHERE id = %s
              AND expires_at IS NOT NULL
            RETURNING {_COLUMNS}
            """,  # noqa: S608 - constants of this module only
            (expires_in, key_id),
        )
        return _key(row) if row else None

    async def may_send_from(self, key: ApiKey, address: str) -> bool:
        """Whether the key's own limit, if it has one, lets it send from an address."""
        if key.senders is None:
            return True
        try:
            spelled = canonical(address)
        except ValueError:
            return False
        if spelled in key.senders or f"@{spelled.rpartition('@')[2]}" in key.senders:
            return True
        return OWN in key.senders and bool(
            await self._pool.fetch_value(
                """
                SELECT true
                FROM relay.mailboxes b
                WHERE b.address = %s
                  AND b.owner_id = %s
                  AND b.is_active
                  AND b.expires_at > now()
                """,
                (spelled, key.id),
            )
        )

    async def authenticate(self, token_hash: bytes) -> ApiKey | None:
        """The live key whose token has this hash (`crypto.hash_token`), or None."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {_COLUMNS}
            FROM relay.api_keys
            WHERE token_hash = %s
              AND {_IS_LIVE}
            """,  # noqa: S608 - constants of this module only
            (token_hash,),
        )
        if row is None:
            return None
        key = _key(row)
        await self._note_use(key.id)
        return key

    async def _note_use(self, key_id: UUID) -> None:
        now = monotonic()
        if now - self._noted.get(key_id, -_NOTED_EVERY) < _NOTED_EVERY:
            return
        if len(self._noted) >= _MOST_NOTED:
            self._noted.clear()
        self._noted[key_id] = now
        with contextlib.suppress(TemporaryFailure):
            await self._pool.execute(
                """
                UPDATE relay.api_keys
                SET last_used_at = now()
                WHERE id = %s
                  AND (last_used_at IS NULL OR last_used_at < now() - make_interval(secs => %s))
                """,
                (key_id, _NOTED_EVERY / 2),
            )

    async def live(self, key_id: UUID) -> ApiKey | None:
        """The live key of this id, or None."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {_COLUMNS}
            FROM relay.api_keys
            WHERE id = %s
              AND {_IS_LIVE}
            """,  # noqa: S608 - constants of this module only
            (key_id,),
        )
        return _key(row) if row else None


def _sender(text: str) -> str:
    """One of a key's `senders` in the spelling that addresses are compared in."""
    text = text.strip()
    if text == OWN:
        return text
    try:
        if text.startswith("@"):
            return canonical("x" + text)[1:]
        return canonical(text)
    except ValueError as error:
        raise Invalid(f"from: {text!r} is no address, @domain or {OWN}") from error


def _key(row: tuple[Any, ...]) -> ApiKey:
    key_id, owner, scopes, plan, created_at, revoked_at, rate, kind, senders, *ends = row
    limits = None if senders is None else tuple(senders)
    return ApiKey(
        key_id, owner, tuple(scopes), plan, created_at, revoked_at, rate, kind, limits, *ends
    )
