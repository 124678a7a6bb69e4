"""Taking what is to be mailed: never twice, never lost, never skipped."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from relay.db.connection import Connection, connect
from relay.db.pool import Pool
from relay.lifecycle.token_queue import QueuedToken, Swept, TokenCounts, counts, forget, sweep, take
from tests.eventually import eventually
from tests.lifecycle.people import account, insert, set_status, tokens

EVERYTHING = 1_000_000


@asynccontextmanager
async def taking(pool: Pool) -> AsyncIterator[Connection]:
    """A connection of the pool in a transaction."""
    async with pool.transaction() as connection:
        yield connection


async def taken(pool: Pool, limit: int = EVERYTHING) -> list[QueuedToken]:
    """Take, and commit."""
    async with taking(pool) as connection:
        return await take(connection, limit)


async def recover(pool: Pool, numbers: list[int]) -> None:
    """Insert a recovery token for each account, in one statement."""
    await pool.execute(
        "INSERT INTO relay.tokens (account, action)"
        " SELECT unnest(%s::bigint[]), 'password_recovery'",
        (numbers,),
    )


async def age(pool: Pool, seconds: int, where: str = "true") -> None:
    """Let tokens be as if they had been made so many seconds earlier."""
    await pool.execute(
        "UPDATE relay.tokens SET created_at = created_at - %(s)s, expires_at = expires_at - %(s)s"
        f" WHERE {where}",
        {"s": seconds},
    )


async def test_a_row_has_all_that_a_mail_needs(pool: Pool):
    """As it stands in accounts and tokens."""
    (number,) = await insert(pool)
    made, (token,) = await account(pool, number), await tokens(pool, number)
    (row,) = await taken(pool)
    assert row == QueuedToken(
        token["id"], 1, number, made["email"], made["login"],
        bytes.fromhex(token["secret"][2:]), token["code"], token["created_at"], token["expires_at"],
    )  # fmt: skip
    assert await taken(pool) == []


async def test_rolled_back_they_are_there_again(any_pool: Pool):
    """As if nobody had taken them."""
    await insert(any_pool, 5)
    with pytest.raises(ZeroDivisionError):
        async with taking(any_pool) as connection:
            assert len(await take(connection, 3)) == 3
            assert len(await take(connection, EVERYTHING)) == 2
            raise ZeroDivisionError
    assert len(await taken(any_pool)) == 5


async def test_a_taker_that_dies_gives_them_back(any_pool: Pool, any_database_url: str):
    """The backend is terminated in the middle of its transaction."""
    await insert(any_pool, 5)
    dying = await connect(any_database_url, autocommit=False)
    assert len(await take(dying, EVERYTHING)) == 5
    assert await taken(any_pool) == []
    await any_pool.execute("SELECT pg_terminate_backend(%s)", (dying.info.backend_pid,))
    await eventually(lambda: taken(any_pool), "they are there again")
    await dying.close()


async def test_a_token_that_commits_late_is_not_skipped(any_pool: Pool):
    """A lower id becomes visible after higher ones have gone."""
    async with any_pool.transaction() as slow:
        await slow.execute(
            "INSERT INTO relay.accounts (email, login) VALUES ('slow@example.org', 'slow')"
        )
        later = await insert(any_pool, 20)
        assert {row.account for row in await taken(any_pool)} == set(later)
    (row,) = await taken(any_pool)
    assert row.login == "slow"
    assert row.id < min([token["id"] for n in later for token in await tokens(any_pool, n)])


async def test_two_takers_share_without_waiting_or_repeating(any_pool: Pool):
    """The second gets what the first does not hold, and at once."""
    await insert(any_pool, 10)
    with trio.fail_after(10):
        async with taking(any_pool) as first, taking(any_pool) as second:
            mine = await take(first, 6)
            theirs = await take(second, 6)
    assert (len(mine), len(theirs)) == (6, 4)
    assert len({row.id for row in mine + theirs}) == 10


async def test_many_takers_drain_twenty_thousand_each_once(any_pool: Pool):
    """Five at once in odd batches, one of them rolling back every other batch."""
    await insert(any_pool, 20_000)
    got: list[int] = []

    async def drain(limit: int, *, faulty: bool = False) -> None:
        turn = 0
        while True:
            turn += 1
            try:
                async with taking(any_pool) as connection:
                    rows = await take(connection, limit)
                    if faulty and turn % 2 and rows:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            got.extend(row.id for row in rows)
            # Others may hold the rest and yet give it back.
            if not rows and not (await _due(any_pool)).ready:
                return

    async with trio.open_nursery() as nursery:
        for limit in (7, 100, 333, 1000):
            nursery.start_soon(drain, limit)
        async with trio.open_nursery() as faulty:
            faulty.start_soon(lambda: drain(500, faulty=True))
    assert len(got) == 20_000
    assert max(Counter(got).values()) == 1


async def test_recoveries_go_first_and_in_the_order_in_which_they_expire(pool: Pool):
    """Whatever the ids."""
    early = await insert(pool, 4)
    known = await insert(pool, 3, status="active")
    await recover(pool, known)
    await age(pool, 60, f"account = {known[2]}")
    rows = await taken(pool, 5)
    assert [row.account for row in rows] == [known[2], known[0], known[1], early[0], early[1]]
    assert [row.action for row in rows] == [2, 2, 2, 1, 1]


async def test_recoveries_without_end_do_not_starve_activations(any_pool: Pool):
    """Those that have waited for ten seconds get a tenth; the others wait."""
    await insert(any_pool, 50, prefix="waiting")
    known = await insert(any_pool, 30, status="active")
    for _ in range(10):
        await recover(any_pool, known)
    first = await taken(any_pool, 100)
    assert Counter(row.action for row in first) == {2: 100}
    await age(any_pool, 15, "action = 'activation'")
    second = await taken(any_pool, 100)
    assert Counter(row.action for row in second) == {2: 90, 1: 10}
    # In batches of one by lot, so that it comes to a tenth too (1 in 10^9 that none of 196).
    single = [(await taken(any_pool, 1))[0].action for _ in range(105)]
    assert 0 < Counter(single)[1] < 50


async def test_a_full_batch_whatever_the_shares(pool: Pool):
    """Fewer than asked for means that there are no more."""
    known = await insert(pool, 30, status="active")
    await insert(pool, 3)
    await recover(pool, known)
    await age(pool, 15)
    assert len(await taken(pool, 20)) == 20
    assert len(await taken(pool, 20)) == 13


@pytest.mark.parametrize("limit", [0, 1])
async def test_nothing_is_taken_beyond_the_limit(pool: Pool, limit: int):
    """Small limits are limits."""
    await insert(pool, 3)
    assert len(await taken(pool, limit)) == limit


async def test_what_expired_or_was_consumed_is_never_taken(pool: Pool):
    """And is out of the queue."""
    old, used, gone, good = await insert(pool, 4)
    await age(pool, 900, f"account = {old}")
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s", (used,))
    await pool.execute("DELETE FROM relay.accounts WHERE id = %s", (gone,))
    assert [row.account for row in await taken(pool)] == [good]
    assert (await _due(pool)).parked == 0


async def test_an_expiry_that_is_changed_by_sql_counts(pool: Pool):
    """Put off, it is taken after all; brought forward, it goes first."""
    first, second = await insert(pool, 2)
    await age(pool, 1000)
    assert await taken(pool) == []
    await age(pool, -2000, f"account = {first}")
    await age(pool, -1500, f"account = {second}")
    assert [row.account for row in await taken(pool)] == [second, first]


async def test_suspended_it_waits_and_unsuspended_it_is_sent(any_pool: Pool, any_database_url: str):
    """The commit that makes it fit again announces it."""
    pending, known = (await insert(any_pool))[0], (await insert(any_pool, status="active"))[0]
    await recover(any_pool, [known])
    for number in (pending, known):
        await set_status(any_pool, number, "suspended")
    assert await taken(any_pool) == []
    assert await _due(any_pool) == TokenCounts(0, 0, 2, None)
    async with await connect(any_database_url) as listening:
        await listening.execute("LISTEN token_insert")
        for number in (pending, known):
            await set_status(any_pool, number, "active")
        heard = [notice.channel async for notice in listening.notifies(timeout=10, stop_after=2)]
        assert heard == ["token_insert"] * 2
    assert [row.account for row in await taken(any_pool)] == [known, pending]


async def test_what_no_longer_fits_is_not_sent(pool: Pool):
    """A second activation of an account that is active now; a recovery of one that is not yet."""
    (number,) = await insert(pool)
    await pool.execute("SELECT relay.resend_activation(%s)", (number,))
    await recover(pool, [number])
    assert (await _due(pool)).recoveries == 0
    first, _, _ = await tokens(pool, number)
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1 WHERE id = %s", (first["id"],))
    assert [row.action for row in await taken(pool)] == [2]


async def test_a_taker_that_dawdles_makes_no_user_wait(any_pool: Pool):
    """Whoever suspends, consumes, deletes or puts off meanwhile goes on; a rollback then gives
    back what still fits."""
    numbers = await insert(any_pool, 5)
    with trio.fail_after(10), pytest.raises(ZeroDivisionError):
        async with taking(any_pool) as connection:
            assert len(await take(connection, EVERYTHING)) == 5
            await set_status(any_pool, numbers[0], "suspended")
            await any_pool.execute(
                "UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s", (numbers[1],)
            )
            await any_pool.execute("DELETE FROM relay.accounts WHERE id = %s", (numbers[2],))
            await age(any_pool, 10, f"account = {numbers[3]}")
            raise ZeroDivisionError
    assert {row.account for row in await taken(any_pool)} == set(numbers[3:])
    # Missed by the trigger, because it was held: the token is stepped over until it fits again.
    await set_status(any_pool, numbers[0], "active")
    assert [row.account for row in await taken(any_pool)] == [numbers[0]]


async def test_a_suspension_and_a_token_committed_at_once_are_set_right(any_pool: Pool):
    """Neither transaction sees the other; whatever the order, takers look at the status, and the
    sweep readies what was parked for nothing."""
    (known,) = await insert(any_pool, status="active")
    async with any_pool.transaction() as suspending:
        await suspending.execute(
            "UPDATE relay.accounts SET status = 'suspended' WHERE id = %s", (known,)
        )
        await recover(any_pool, [known])
    assert await taken(any_pool) == []
    async with any_pool.transaction() as unsuspending:
        await unsuspending.execute(
            "UPDATE relay.accounts SET status = 'active' WHERE id = %s", (known,)
        )
        await recover(any_pool, [known])
    assert len(await taken(any_pool)) == 1
    assert await sweep(any_pool) == Swept(expired=0, readied=1)
    assert len(await taken(any_pool)) == 1
    assert await sweep(any_pool) == Swept(0, 0)


async def test_thousands_that_do_not_fit_are_not_looked_at(pool: Pool):
    """Neither parked nor expired tokens are in the range that a taker reads."""
    await insert(pool, 3000, prefix="suspended")
    await pool.execute("UPDATE relay.accounts SET status = 'suspended'")
    await insert(pool, 3000, prefix="late")
    await age(pool, 1000)
    await pool.execute("VACUUM relay.token_queue")
    await insert(pool, 20, prefix="good")
    async with taking(pool) as connection:
        before = await _queue_rows_read(connection)
        assert len(await take(connection, 10)) == 10
        assert await _queue_rows_read(connection) - before < 100


async def test_an_old_snapshot_makes_no_taker_read_what_was_taken(any_pool: Pool):
    """A backup keeps the dead entries of the index; a session goes on from where it was."""

    async def pages(connection: Connection) -> int:
        cursor = await connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT * FROM relay.take_tokens(10)"
        )
        plan = "\n".join(row[0] for row in await cursor.fetchall())
        hit = re.search(r"shared hit=(\d+)", plan)
        assert hit is not None, plan
        return int(hit[1])

    await insert(any_pool, 5000)
    async with any_pool.transaction() as backup:
        await backup.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await backup.execute("SELECT count(*) FROM relay.token_queue")
        async with any_pool.connection() as connection:
            await take(connection, 10)
            first = await pages(connection)
            for _ in range(40):
                assert len(await take(connection, 100)) == 100
            assert await pages(connection) < 3 * first + 100


async def test_going_on_from_where_it_was_skips_nothing(pool: Pool):
    """What comes to fit behind a session's back is there when it has nothing more before it, and
    what it took and gave back is."""
    first, second, *_ = await insert(pool, 30)
    await set_status(pool, first, "suspended")
    async with pool.connection() as connection:
        assert (await take(connection, 10))[0].account == second
        await set_status(pool, first, "active")
        async with connection.transaction(force_rollback=True):
            await take(connection, 10)
        rest = await take(connection, EVERYTHING)
        assert first in {row.account for row in rest}
        assert len(rest) == 20


async def test_the_sweep_forgets_what_expired_a_minute_ago(pool: Pool):
    """Parked or ready, of either kind; retention deletes the tokens themselves."""
    await insert(pool, 10)
    known = await insert(pool, 10, status="active")
    await recover(pool, known)
    await set_status(pool, known[0], "suspended")
    await age(pool, 930)
    assert await sweep(pool) == Swept(0, 0)
    await age(pool, 60)
    assert await sweep(pool) == Swept(expired=20, readied=0)
    assert await pool.fetch_value("SELECT count(*) FROM relay.token_queue") == 0
    assert await forget(pool, keep=3600) == 0
    assert await forget(pool, keep=60, batch=15) == 15
    assert await forget(pool, keep=60, batch=15) == 5
    assert await pool.fetch_value("SELECT count(*) FROM relay.tokens") == 0


async def test_jobs_shows_how_far_the_documents_cursor_would_be(pool: Pool):
    """Zero at first; behind what waits; the last id when nothing does."""

    async def last_seq() -> int:
        rows = await pool.fetch("SELECT * FROM relay.jobs")
        assert [row[0] for row in rows] == ["mailroom"]
        return int(rows[0][1])

    assert await last_seq() == 0
    await insert(pool, 5)
    assert await last_seq() == 0
    rows = await taken(pool, 2)
    assert await last_seq() == rows[-1].id
    await taken(pool)
    assert await last_seq() == await pool.fetch_value("SELECT max(id) FROM relay.tokens")


async def test_due_counts_what_waits(pool: Pool):
    """By kind, with the age of the oldest."""
    assert await _due(pool) == TokenCounts(0, 0, 0, None)
    pending = await insert(pool, 3)
    known = await insert(pool, 2, status="active")
    await recover(pool, known)
    await set_status(pool, pending[0], "suspended")
    counted = await _due(pool)
    assert (counted.recoveries, counted.activations, counted.parked) == (2, 2, 1)
    assert counted.ready == 4
    (second,) = await tokens(pool, pending[1])
    assert counted.oldest_at == second["created_at"]


async def _due(pool: Pool) -> TokenCounts:
    async with pool.connection() as connection:
        return await counts(connection)


async def _queue_rows_read(connection: Connection) -> int:
    cursor = await connection.execute(
        """
        SELECT seq_tup_read + COALESCE(idx_tup_fetch, 0)
        FROM pg_stat_xact_user_tables
        WHERE relid = 'relay.token_queue'::regclass
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])
