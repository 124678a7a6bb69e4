"""Shared look-ups, and the statement that many messages share."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import structlog
import trio

from relay.accepted import Origin
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.ids import new_id
from relay.mailboxes.accept import Lookups, Row, insert_many, insert_one, stored_among


async def test_many_questions_share_a_query(pool, monkeypatch):
    """Each gets its own answer."""
    await pool.execute(
        "INSERT INTO relay.mailboxes (address, expires_at, is_active) VALUES "
        "('live@x', now() + interval '1 h', true), ('gone@x', now(), true), "
        "('shut@x', now() + interval '1 h', false)"
    )
    queries = []
    run = pool.run

    async def counted(*args, **kwargs):
        queries.append(args)
        return await run(*args, **kwargs)

    monkeypatch.setattr(pool, "run", counted)
    lookups = Lookups(pool)
    answers: dict[str, list[str | None]] = {"live@x": [], "gone@x": [], "shut@x": [], "none@x": []}

    async def ask(address):
        answers[address].append(await lookups.find(address).wait())

    async with trio.open_nursery() as service:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                for address in answers:
                    nursery.start_soon(ask, address)
            await trio.testing.wait_all_tasks_blocked()
            service.start_soon(lookups.run)
        service.cancel_scope.cancel()
    assert answers == {
        "live@x": [None] * 50,
        "gone@x": ["expired"] * 50,
        "shut@x": ["expired"] * 50,
        "none@x": ["unknown"] * 50,
    }
    assert len(queries) == 1


class _Nobody:
    """A database in which there is no mailbox, and each answer takes a tenth of a millisecond."""

    def __init__(self) -> None:
        self.began: list[float] = []

    async def run(self, _statement, _columns):
        self.began.append(trio.current_time())
        await trio.sleep(0.0001)
        return self

    ntuples = 0
    get_value = None


@pytest.mark.parametrize(("senders", "each", "queries"), [(20, 500, 0.13), (3, 1050, 1.01)])
async def test_those_who_ask_again_and_again_are_waited_for(autojump_clock, senders, each, queries):
    """Twenty share their queries, though they do not come at once; three wait for nobody."""
    nobody, asked = _Nobody(), 0
    lookups = Lookups(nobody)  # type: ignore[arg-type]  # all that it uses of a pool

    async def ask(number):
        nonlocal asked
        while trio.current_time() < ends:
            await lookups.find("a@x").wait()
            asked += 1
            await trio.sleep(0.0011 + number * 0.00003)

    async with trio.open_nursery() as service:
        service.start_soon(lookups.run)
        ends = trio.current_time() + 1.5
        async with trio.open_nursery() as nursery:
            for number in range(senders):
                nursery.start_soon(ask, number)
        service.cancel_scope.cancel()
    assert asked >= senders * each
    assert len([began for began in nobody.began if began > ends - 1]) <= queries * asked * 2 / 3


async def test_a_question_may_be_given_up(pool):
    """Its session was cancelled; the others are answered."""
    lookups = Lookups(pool)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0):
            await lookups.find("a@x").wait()
        nursery.start_soon(lookups.run)
        assert await lookups.find("b@x").wait() == "unknown"
        nursery.cancel_scope.cancel()


async def test_trouble_is_told_to_everyone_who_asked():
    """The database away, and the look-ups stopping, are `DatabaseUnavailable`."""
    pool = Pool("host=/nonexistent", acquire_timeout=1.0)
    lookups = Lookups(pool)
    failed = []

    async def ask():
        with pytest.raises(DatabaseUnavailable):
            await lookups.find("a@x").wait()
        failed.append(True)

    async with trio.open_nursery() as service:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            service.start_soon(lookups.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            service.cancel_scope.cancel()
    assert len(failed) == 4
    await pool.close()


class _Silent:
    """A database that does not answer so many times, and then has no mailbox."""

    call_timeout = 15.0

    def __init__(self, times: int) -> None:
        self._times = times

    async def run(self, _statement, _columns):
        if self._times:
            self._times -= 1
            await trio.sleep(self.call_timeout)
            raise DatabaseUnavailable("PostgreSQL did not answer within 15 s")
        return self

    ntuples = 0
    get_value = None


async def test_nobody_waits_for_two_silences(autojump_clock):
    """Who asks while the database is silent is answered when that is given up, and each silence
    is waited for by those alone who came in it; the log has its beginning and its end."""
    lookups = Lookups(_Silent(2))  # type: ignore[arg-type]  # all that it uses of a pool
    ends = {}

    async def ask(at):
        await trio.sleep(at)
        with suppress(DatabaseUnavailable):
            await lookups.find("a@x").wait()
        ends[at] = trio.current_time()

    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as service:
            service.start_soon(lookups.run)
            async with trio.open_nursery() as nursery:
                for at in (0, 1, 14, 16, 32):
                    nursery.start_soon(ask, at)
            service.cancel_scope.cancel()
    assert ends == {0: 15, 1: 15, 14: 15, 16: 31, 32: 32}
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("mailboxes.lookup_failed", "warning"),
        ("mailboxes.lookup_failed", "debug"),
        ("mailboxes.lookups_answered", "info"),
    ]


@pytest.mark.parametrize("raws", [[b"a", b"", bytes(range(256))], [b"x" * 200_000] * 4])
async def test_rows_are_stored_as_they_are_and_once(pool, raws):
    """Any bytes; a repetition stores nothing and says so; the look-up by id finds them."""
    await pool.execute("INSERT INTO relay.mailboxes (address) VALUES ('ü@x'), ('b@x')")
    rows = [Row(new_id(), "ü@x", "sender-ö@x", raw) for raw in raws]
    lost = Row(new_id(), "none@x", "", b"lost")
    assert (await insert_many(pool, [*rows, lost])).keys() == {row.id for row in rows}
    assert await insert_many(pool, rows) == {}
    found = await pool.fetch(
        "SELECT id, recipient, reverse_path, raw_email, received_at <= clock_timestamp() "
        "FROM relay.messages"
    )
    assert {(one, to, path, bytes(raw), past) for one, to, path, raw, past in found} == {
        (row.id, "ü@x", "sender-ö@x", row.raw, True) for row in rows
    }
    ids = (new_id(), new_id(), new_id())
    pairs = list(zip(ids, ("ü@x", "b@x", "none@x"), strict=True))
    assert (await insert_one(pool, "", pairs, b"both")).keys() == set(ids[:2])
    assert await insert_one(pool, "", pairs, b"both") == {}
    assert await stored_among(pool, [*ids, lost.id]) == set(ids[:2])
    assert pool.call_timeout < math.inf


async def test_where_a_message_came_from_is_stored_with_it(pool):
    """Of several in one statement, of one for several, and of a repetition; or nothing is known."""
    await pool.execute("INSERT INTO relay.mailboxes (address) VALUES ('a@x'), ('b@x')")
    rows = [Row(new_id(), "a@x", "", b"one"), Row(new_id(), "b@x", "", b"two")]
    four, six = Origin("192.0.2.7", "mx.ö.example"), Origin("2001:db8::7", "")
    assert len(await insert_many(pool, rows[:1], [four])) == 1
    # One of them was stored before: the other way of storing many.
    assert len(await insert_many(pool, rows, [six, None])) == 1
    pairs = [(new_id(), "a@x"), (new_id(), "b@x")]
    assert len(await insert_one(pool, "", pairs, b"three", six)) == 2
    found = await pool.fetch(
        "SELECT convert_from(raw_email, 'UTF8'), client, helo"
        " FROM relay.messages ORDER BY received_at, recipient"
    )
    assert [(raw, client and str(client), helo) for raw, client, helo in found] == [
        ("one", *four), ("two", None, None), ("three", *six), ("three", *six),
    ]  # fmt: skip


async def test_an_address_is_looked_up_whatever_the_statistics_say(any_pool):
    """Planned while nothing was counted, asked when very much is: still a few blocks each."""
    await any_pool.execute("VACUUM ANALYZE relay.usage_changes")
    async with any_pool.connection() as conn:
        for _ in range(8):  # planned, and kept
            await conn.execute("SELECT * FROM relay.find_mailboxes('{b1@x}')")
        await conn.execute(
            "INSERT INTO relay.mailboxes (address) "
            "SELECT 'b' || n || '@x' FROM generate_series(1, 500) n"
        )
        await conn.execute(
            "INSERT INTO relay.usage_changes (mailbox_id, messages, bytes) "
            "SELECT id, 1, 1 FROM relay.mailboxes, generate_series(1, 40)"
        )
        cursor = await conn.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
            "SELECT * FROM relay.find_mailboxes('{b1@x,b250@x,b500@x,none@x}')"
        )
        ((explained,),) = await cursor.fetchall()
        # Forty rows of changes each, scattered.  All of the changes are more.
        assert explained[0]["Plan"]["Actual Rows"] == 3
        pages = await conn.execute("SELECT pg_relation_size('relay.usage_changes') / 8192")
        ((all_of_it,),) = await pages.fetchall()
        assert explained[0]["Plan"]["Shared Hit Blocks"] < all_of_it


async def test_looking_up_passes_over_what_was_folded(any_pool):
    """What came and was counted since the last vacuum is not read again at each RCPT."""
    await any_pool.execute("INSERT INTO relay.mailboxes (address) VALUES ('busy@x')")
    await any_pool.execute(
        "INSERT INTO relay.usage_changes (mailbox_id, messages, bytes) "
        "SELECT id, 1, 1 FROM relay.mailboxes, generate_series(1, 4000)"
    )
    pages = await any_pool.fetch_value("SELECT pg_relation_size('relay.usage_changes') / 8192")
    assert await any_pool.fetch_value("SELECT relay.fold_usage('{busy@x}')") == 1
    blocks = []
    for _ in range(3):
        ((explained,),) = await any_pool.fetch(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM relay.find_mailboxes('{busy@x}')"
        )
        blocks.append(explained[0]["Plan"]["Shared Hit Blocks"])
    assert blocks[-1] < pages


@pytest.mark.parametrize("origins", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
async def test_storing_is_planned_once(database_url, rows, origins):
    """Whatever length the first batches have, and mailboxes are looked up by their addresses."""
    pool = Pool(database_url, size=1)
    await pool.execute(
        "INSERT INTO relay.mailboxes (address) "
        "SELECT 'b' || n || '@x' FROM generate_series(1, 2000) n"
    )
    await pool.execute("ANALYZE relay.mailboxes")
    for _ in range(8):
        batch = [Row(new_id(), f"b{number}@x", "", b"raw") for number in range(1, rows + 1)]
        known = [Origin("192.0.2.1", "x")] * rows if origins else []
        assert len(await insert_many(pool, batch, known)) == rows
    async with pool.connection() as conn:
        cursor = await conn.execute(
            "SELECT name, generic_plans FROM pg_prepared_statements "
            "WHERE statement LIKE '%INSERT INTO relay.messages%'"
        )
        ((name, generic),) = await cursor.fetchall()
        assert generic == 3
        await conn.execute("SET plan_cache_mode = force_generic_plan")
        nulls = ", ".join(["NULL"] * (6 if origins else 4))
        cursor = await conn.execute(f"EXPLAIN EXECUTE {name} ({nulls})")
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    assert "Index Scan using mailboxes_address_key" in plan
    assert "Seq Scan on mailboxes" not in plan
    await pool.close()
