"""Accounts, for those who do not write SQL: make, find, suspend, recover.

Promises
- An account and its activation mail are one transaction: neither without the other (the triggers
  of migration 0004 do it, for these statements as for anybody's).
- Asking twice for what is already so (suspending a suspended account) changes nothing.
- Whoever made an account sees it, and nobody else but the administrator; an account that SQL made
  is the administrator's to see.
- An account gets at most five mails of a kind in 15 minutes.

Fails with `MalformedMessage` (email or login cannot be used), `Taken`, `WrongStatus`,
`TooManyMails`, and `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

import psycopg
from psycopg import sql

from relay.db.pool import Pool
from relay.errors import Bug, PermanentFailure, TemporaryFailure
from relay.lifecycle.tokens import Action
from relay.outbound.composing.message import MalformedMessage, bare_address, check_text

MAX_LOGIN = 254
"""Characters of a login."""
MAX_ID = 2**63 - 1


class Status(StrEnum):
    """The state of an account in its life."""

    PROVISIONED = "provisioned"
    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Account:
    """One account; instants are those of `relay.accounts`, whole seconds."""

    id: int
    email: str
    login: str
    status: Status
    created_at: datetime
    status_changed_at: datetime | None
    activated_at: datetime | None
    suspended_at: datetime | None
    unsuspended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Letter:
    """A mail to an account: `message` is its id in the outbound queue, `at` when it was queued."""

    action: Action
    message: UUID
    status: str
    at: datetime


class Taken(PermanentFailure):
    """Another account has this email or this login; `field` says which."""

    def __init__(self, field: str) -> None:
        super().__init__(f"another account has this {field}")
        self.field = field


class WrongStatus(PermanentFailure):
    """What was asked for does not fit the account's status."""


class TooManyMails(TemporaryFailure):
    """The account was mailed as often as it may be within 15 minutes."""


_COLUMNS = sql.SQL(
    "a.id, a.email, a.login, a.status, a.created_at, a.status_changed_at, a.activated_at,"
    " a.suspended_at, a.unsuspended_at"
)


class Accounts:
    """The accounts of `relay.accounts`.  `owner` None means the administrator, who sees all."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(self, email: str, login: str, owner: UUID) -> Account:
        """Make a provisioned account of `owner`'s; its activation is on its way with it."""
        address = bare_address(email, "email")
        if not login or "," in login or "\t" in login:
            raise MalformedMessage("login", "must not be empty and must not hold a comma or a tab")
        check_text(login, "login", limit=MAX_LOGIN)
        try:
            rows = await self._pool.fetch(
                _query(
                    """
                    INSERT INTO relay.accounts AS a (email, login, owner)
                    VALUES (%s, %s, %s)
                    RETURNING {columns}
                    """
                ),
                (address, login, owner),
            )
        except psycopg.errors.UniqueViolation as error:
            named = error.diag.constraint_name or ""
            # It is there, the caller hears, who may have made it in a call that ended in doubt.
            await self._pool.fetch_durable(
                "SELECT FROM relay.accounts WHERE email = %s OR login = %s", (address, login)
            )
            raise Taken("login" if "login" in named else "email") from error
        except (psycopg.errors.CheckViolation, psycopg.errors.StringDataRightTruncation) as error:
            field = "login" if "login" in (error.diag.constraint_name or "") else "email"
            raise MalformedMessage(field, "is none that this relay can mail") from error
        return _account(rows[0])

    async def get(self, account: int, owner: UUID | None) -> Account | None:
        """Return an account, or None where there is none or it is not the owner's."""
        rows = await self._pool.fetch(
            _query(
                """
                SELECT {columns}
                FROM relay.accounts a
                WHERE a.id = %(id)s
                  AND (%(owner)s::uuid IS NULL OR a.owner = %(owner)s)
                """
            ),
            {"id": account, "owner": owner},
        )
        return _account(rows[0]) if rows else None

    async def letters(self, account: int) -> Sequence[Letter]:
        """Return the mails to an account whose tokens are kept still, newest first (at most 50)."""
        rows = await self._pool.fetch(
            """
            SELECT t.action, l.id, m.status, l.created_at
            FROM relay.tokens t
            JOIN relay.outbound_letters l ON l.token = t.id
            CROSS JOIN LATERAL (
                SELECT o.status
                FROM relay.outbound_messages o
                WHERE o.id = l.id
                OFFSET 0
            ) m
            WHERE t.account = %s
            ORDER BY l.id DESC
            LIMIT 50
            """,
            (account,),
        )
        return [
            Letter(Action[action.upper()], message, status, at)
            for action, message, status, at in rows
        ]

    async def list(
        self, owner: UUID | None, *, limit: int, before: int | None = None
    ) -> list[Account]:
        """Return the owner's accounts, newest first, from below the id `before`."""
        # Two statements: each has its index (accounts_owner, the primary key).
        mine = sql.SQL("a.owner = %(owner)s") if owner else sql.SQL("true")
        rows = await self._pool.fetch(
            _query(
                """
                SELECT {columns}
                FROM relay.accounts a
                WHERE {mine}
                  AND a.id < %(before)s
                ORDER BY a.id DESC
                LIMIT %(limit)s
                """,
                mine=mine,
            ),
            {"owner": owner, "before": MAX_ID if before is None else before, "limit": limit},
        )
        return [_account(row) for row in rows]

    async def suspend(self, account: int, owner: UUID | None) -> Account | None:
        """Suspend an account; what is still to be mailed to it waits.  None: there is none."""
        return await self._change(account, owner, Status.SUSPENDED, "a.status <> 'suspended'")

    async def unsuspend(self, account: int, owner: UUID | None) -> Account | None:
        """End a suspension: active again, or provisioned if it never was.  None: there is none."""
        return await self._change(account, owner, Status.ACTIVE, "a.status = 'suspended'")

    async def mail(self, account: int, owner: UUID | None, action: Action) -> Account | None:
        """Make a token, whose mail is on its way with it.  None: there is no such account.

        A recovery is for active accounts, an activation (another one) for provisioned ones.
        """
        found = await self.get(account, owner)
        if found is None:
            return None
        try:
            await self._pool.execute(
                "SELECT relay.new_token(%s, %s::relay.token_action)", (account, action.label)
            )
        except psycopg.errors.NoDataFound:
            return None
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            raise WrongStatus(_plain(error)) from error
        except psycopg.errors.ProgramLimitExceeded as error:
            raise TooManyMails(_plain(error)) from error
        return found

    async def _change(
        self, account: int, owner: UUID | None, status: Status, where: str
    ) -> Account | None:
        await self._pool.execute_durable(
            _query(
                """
                UPDATE relay.accounts a
                SET status = %(status)s
                WHERE a.id = %(id)s
                  AND (%(owner)s::uuid IS NULL OR a.owner = %(owner)s)
                  AND {where}
                """,
                where=sql.SQL(where),
            ),
            {"id": account, "owner": owner, "status": status.value},
        )
        return await self.get(account, owner)


def _query(text: str, **parts: sql.Composable) -> str:
    return sql.SQL(text).format(columns=_COLUMNS, **parts).as_string()


def _plain(error: psycopg.Error) -> str:
    """What the database's function says, which names the account by its number only."""
    return error.diag.message_primary or "refused"


def _account(row: tuple[object, ...]) -> Account:
    number, email, login, status, created, *rest = row
    if not (isinstance(number, int) and isinstance(created, int)):
        raise Bug("an account without an id")
    instants = [_instant(value) if isinstance(value, int) else None for value in rest]
    return Account(
        number, str(email), str(login), Status(str(status)), _instant(created), *instants
    )


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
