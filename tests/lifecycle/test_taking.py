"""Taking within a budget: what is paid for, and that it is one transaction."""

import pytest

from relay.db.pool import Pool
from relay.lifecycle.budget import Budget
from relay.lifecycle.taking import Taking, taking
from tests.lifecycle.people import insert

# A hundred letters a month: one at once, the next after hours.
SMALL = Budget(monthly=1.0, per_thousand=10.0)

WAITING = "SELECT count(*) FROM relay.token_queue"
SPENT = "SELECT spent FROM relay.token_budget"


async def take(pool: Pool, budget: Budget | None, *, limit: int = 10, refused: int = 0) -> Taking:
    """Take a batch of whose rows so many are refused, and commit."""
    async with (
        pool.transaction() as connection,
        taking(connection, limit=limit, batch_timeout=5.0, budget=budget) as batch,
    ):
        batch.refused = refused
    return batch


async def save(pool: Pool, letters: int) -> None:
    """Let the budget pay for so many letters now."""
    await pool.execute("UPDATE relay.token_budget SET at = now(), letters = %s", (letters,))


async def test_what_is_refused_costs_nothing(pool: Pool):
    """It is out of the queue, and its letter is still to be spent."""
    await insert(pool, 5)
    await save(pool, 3)
    batch = await take(pool, SMALL, refused=2)
    assert len(batch.rows) == 3
    assert await pool.fetch_value(SPENT) == 1
    assert await pool.fetch_value(WAITING) == 2
    assert batch.saved == pytest.approx(2.0, abs=0.01)
    assert batch.rest == 0.0
    assert len((await take(pool, SMALL)).rows) == 2
    assert await pool.fetch_value(SPENT) == 3


async def test_no_more_is_taken_than_is_paid_for(pool: Pool):
    """And the batch says when the next letter is due."""
    await insert(pool, 5)
    first, second = await take(pool, SMALL), await take(pool, SMALL)
    assert (len(first.rows), len(second.rows)) == (1, 0)
    assert first.rest is not None
    assert second.rest is not None
    assert 3600 < second.rest <= first.rest <= 31 * 86_400 / 99


async def test_a_full_batch_is_followed_by_the_next_at_once(pool: Pool):
    """Where the budget is not what ended it."""
    await insert(pool, 5)
    await save(pool, 10)
    assert (await take(pool, SMALL, limit=2)).rest is None
    assert (await take(pool, SMALL, limit=4)).rest is None


async def test_what_fails_spends_nothing_and_takes_nothing(pool: Pool):
    """The transaction is rolled back with all of it."""
    await insert(pool, 2)
    await save(pool, 2)
    with pytest.raises(ZeroDivisionError):
        async with (
            pool.transaction() as connection,
            taking(connection, limit=10, batch_timeout=5.0, budget=SMALL) as batch,
        ):
            assert len(batch.rows) == 2
            raise ZeroDivisionError
    assert await pool.fetch_value(SPENT) == 0
    assert await pool.fetch_value(WAITING) == 2


async def test_without_a_budget_the_limit_is_all_there_is(pool: Pool):
    """Nothing is counted."""
    await insert(pool, 5)
    batch = await take(pool, None, limit=4, refused=1)
    assert (len(batch.rows), batch.rest, batch.saved) == (4, None, None)
    assert await pool.fetch_value(SPENT) == 0
