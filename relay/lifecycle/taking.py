"""Taking a batch of tokens, as many as the budget pays for: one law for both collectors.

    async with connection.transaction():
        async with taking(connection, limit=10, batch_timeout=5.0, budget=budget) as batch:
            batch.refused = hand_over(batch.rows)

Promises
- The budget is locked, the tokens are taken and what they cost is written in the transaction that
  is open on the connection: all of it or nothing.
- Paid for is what was handed over: a token that is refused (its letter cannot be written, its line
  would break) costs nothing, whoever refuses it.  It is taken all the same, and holds up no other.
- A block that ends with an exception writes nothing; the transaction is then the caller's to end.

Fails with `psycopg.Error` from the connection; the transaction is then over.

`relay collect` without a budget takes by a way of its own, `TokenReader`, which says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from relay.db.connection import Connection
from relay.lifecycle import budget_store, token_queue
from relay.lifecycle.budget import Budget, allowance, spend, wait


@dataclass
class Taking:
    """A batch that was taken; `refused`, how many of its rows are not handed over, is the block's
    to say.

    Known after the block: `rest`, None or the seconds that the budget wants to pass before the
    next batch, and `saved`, the letters that it would pay for now.
    """

    rows: list[token_queue.QueuedToken]
    refused: int = 0
    rest: float | None = None
    saved: float | None = None


@asynccontextmanager
async def taking(
    connection: Connection, *, limit: int, batch_timeout: float, budget: Budget | None
) -> AsyncIterator[Taking]:
    """Take up to `limit` tokens; `batch_timeout` in seconds, for `rest`."""
    if budget is None:
        yield Taking(await token_queue.take(connection, limit))
        return
    saved = await budget_store.lock(connection, budget)
    allowed = min(limit, allowance(budget, saved))
    batch = Taking(await token_queue.take(connection, allowed) if allowed else [])
    yield batch
    left = spend(saved, len(batch.rows) - batch.refused)
    await budget_store.save(connection, left)
    batch.saved = left.letters
    if len(batch.rows) == allowed < limit:
        batch.rest = wait(budget, left, limit=limit, timeout=batch_timeout)
