"""Accounts made by plain SQL, as a product makes them."""

import itertools
from typing import Any

from relay.db.pool import Pool

_numbers = itertools.count(1)


async def insert(
    pool: Pool, count: int = 1, *, status: str = "provisioned", prefix: str = ""
) -> list[int]:
    """Insert accounts in one statement; return their ids."""
    prefix = prefix or f"p{next(_numbers)}x"
    rows = await pool.fetch(
        """
        INSERT INTO relay.accounts (email, login, status)
        SELECT %(prefix)s || i || '@example.org', %(prefix)s || i, %(status)s
        FROM generate_series(1, %(count)s) i
        RETURNING id
        """,
        {"prefix": prefix, "status": status, "count": count},
    )
    return [row[0] for row in rows]


async def account(pool: Pool, number: int) -> dict[str, Any]:
    """Return an account's row."""
    return dict(
        await pool.fetch_value("SELECT to_jsonb(a) FROM relay.accounts a WHERE id = %s", (number,))
    )


async def tokens(pool: Pool, number: int) -> list[dict[str, Any]]:
    """Return an account's tokens, oldest first."""
    rows = await pool.fetch(
        "SELECT to_jsonb(t) FROM relay.tokens t WHERE account = %s ORDER BY id", (number,)
    )
    return [row[0] for row in rows]


async def set_status(pool: Pool, number: int, status: str) -> None:
    """Change an account's status."""
    await pool.execute("UPDATE relay.accounts SET status = %s WHERE id = %s", (status, number))
