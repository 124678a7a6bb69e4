"""The tokens that are still to be mailed: what waits, and taking some.

Promises
- `take` belongs to the caller's transaction.  Committed, the tokens are out of the queue for good;
  rolled back, or with the connection lost, they are in it as if nothing had happened.
- No two takers get the same token, and no taker waits for another (SKIP LOCKED).
- Nothing is skipped: the queue is a table of what is left to do, not a cursor over ids, so a
  token whose transaction commits late is simply there later.
- What is returned was good at that moment: not expired, not consumed, its account's status fits.
  What does not fit stays, until it fits again or has expired.
- Recoveries come before activations, and within either what expires first.  Activations that have
  waited for ten seconds get a tenth of every batch, so that recoveries without end cannot starve
  them.

Crash safety: which rows exist in which state, and what a kill leaves

    state      token_queue              tokens       a kill here leaves
    ---------  -----------------------  -----------  ---------------------------------------
    queued     ready                    unconsumed   it, unchanged
    parked     not ready                unconsumed   it, unchanged; ready again with the commit
                                                     that makes the account's status fit
    taking     deleted, not committed   unconsumed   queued
    taken      none                     unconsumed   it, unchanged
    expired    until the sweep          unconsumed   it, unchanged
    consumed   none                     consumed_at  it, unchanged

Fails with `psycopg.Error` from the connection; the caller's transaction is then over.

A session that takes remembers for two seconds how far it has come (a setting of PostgreSQL, which
a rollback takes back), so that what was taken is not walked over again; before it says that there
is no more, it looks from the beginning.  That and other reasons are in migration 0004.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relay.db.connection import Connection
from relay.db.pool import Pool


class QueuedToken(NamedTuple):
    """A token that was taken, with all that a mail needs; the columns of relay.take_tokens.

    `action` is a `tokens.Action` by its number, `created_at` and `expires_at` are epoch seconds,
    `secret` has 32 bytes and `code` 5 digits.  `email` is an address and `login` one line without
    a comma (both are checked at the INSERT).
    """

    id: int
    action: int
    account: int
    email: str
    login: str
    secret: bytes
    code: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What waits: counts by kind, and `oldest_at`, when the longest waiting was made (epoch
    seconds; None when nothing can be taken).  `parked` are those that fit no status now."""

    recoveries: int
    activations: int
    parked: int
    oldest_at: int | None

    @property
    def ready(self) -> int:
        """How many could be taken now."""
        return self.recoveries + self.activations


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: tokens forgotten because they had expired, parked ones made ready."""

    expired: int
    readied: int


async def take(connection: Connection, limit: int) -> list[QueuedToken]:
    """Take up to `limit` tokens, in the transaction that is open on `connection`.

    Fewer than `limit` means that there were no more which nobody else was taking.
    """
    cursor = await connection.execute(
        "SELECT * FROM relay.take_tokens(%s)", (limit,), binary=True, prepare=True
    )
    return [QueuedToken._make(row) for row in await cursor.fetchall()]


async def waiting(connection: Connection, most: int) -> int:
    """Count what could be taken now, up to `most`; costs as much as it counts."""
    cursor = await connection.execute("SELECT relay.waiting_tokens(%s)", (most,), prepare=True)
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def counts(connection: Connection) -> TokenCounts:
    """Count what waits.  Reads the whole queue, which is short: for metrics, not for polling."""
    cursor = await connection.execute(
        """
        SELECT count(*) FILTER (WHERE q.ready AND q.action = 'password_recovery'),
               count(*) FILTER (WHERE q.ready AND q.action = 'activation'),
               count(*) FILTER (WHERE NOT q.ready),
               (SELECT t.created_at
                FROM relay.tokens t
                WHERE t.id = min(q.token) FILTER (WHERE q.ready))
        FROM relay.token_queue q
        WHERE q.expires_at > extract(epoch FROM now())
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    return TokenCounts(*row)


async def sweep(pool: Pool) -> Swept:
    """Forget queued tokens that expired a minute ago; ready what triggers could not see fit."""
    row = await pool.fetch_row("SELECT expired, readied FROM relay.sweep_tokens()")
    assert row is not None
    return Swept(*row)


async def forget(pool: Pool, *, keep: float, batch: int = 1000) -> int:
    """Delete up to `batch` tokens that expired more than `keep` seconds ago; return how many.

    Call again while it returns `batch`.
    """
    return await pool.execute(
        """
        DELETE FROM relay.tokens
        WHERE id IN (
            SELECT t.id
            FROM relay.tokens t
            WHERE t.expires_at < extract(epoch FROM now()) - %s
            LIMIT %s
            FOR UPDATE SKIP LOCKED
        )
        """,
        (keep, batch),
    )
