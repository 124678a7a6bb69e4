"""Mailboxes that are made for others' domains, in the database."""

from __future__ import annotations

import pytest
import trio

from relay.accepted import Origin
from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes.accept import Row, insert_many
from relay.mailboxes.capture import Capture, Captured, evict, sender_of, set_aside, store

ADA, BOB = "ada@shop.example", "bob@shop.example"


def message(*addresses: str, raw: bytes = b"x\r\n", login: str | None = None) -> Captured:
    """A message for these, all of which may be made."""
    return Captured([(new_id(), each) for each in addresses], "a@b.example", raw, login, addresses)


async def mailboxes(pool) -> dict[str, int]:
    """How many messages each live mailbox has, by its address."""
    rows = await pool.fetch(
        "SELECT b.address, count(m.id) FROM relay.mailboxes b "
        "LEFT JOIN relay.messages m ON m.mailbox_id = b.id "
        "WHERE b.is_active AND b.expires_at > clock_timestamp() GROUP BY b.address"
    )
    return dict(rows)


def test_what_is_captured():
    """All but the relay's own domains, however those are written; their sub-domains are others'."""
    capture = Capture.beside(["Relay.localhost", "b\u00fccher.example"], 60.0, 10)
    assert not capture.takes("ada@relay.localhost")
    assert not capture.takes("ada@xn--bcher-kva.example")
    assert capture.takes("ada@mail.relay.localhost")
    assert capture.among([ADA, "bob@relay.localhost"]) == (ADA,)


async def test_captured_mail_has_an_origin_if_it_came_from_elsewhere(pool):
    """Beside such that came from this machine."""
    elsewhere = message(ADA)._replace(origin=Origin("192.0.2.7", "mx.example"))
    stored, _ = await store(pool, [elsewhere, message(BOB)], 60.0)
    assert len(stored) == 2
    rows = await pool.fetch("SELECT recipient, host(client), helo FROM relay.messages")
    assert set(rows) == {(ADA, "192.0.2.7", "mx.example"), (BOB, None, None)}


async def test_a_mailbox_is_made_once(pool):
    """With its first message; later ones keep it, and are in the order of arrival."""
    first = message(ADA, BOB, login="shop")
    stored, made = await store(pool, [first], 60.0)
    assert stored.keys() == {id_ for id_, _ in first.recipients}
    assert made == 2
    stored, made = await store(pool, [message(ADA), message(ADA)], 60.0)
    assert (len(stored), made) == (2, 0)
    assert await mailboxes(pool) == {ADA: 3, BOB: 1}
    rows = await pool.fetch(
        "SELECT b.owner_type::text, b.owner_id::text, b.plan, "
        "expires_at - captured_at = interval '1 minute', m.login FROM relay.mailboxes b "
        "JOIN relay.messages m ON m.mailbox_id = b.id AND b.address = %s",
        (BOB,),
    )
    assert rows == [("capture", "00000000-0000-0000-0000-000000000000", "free", True, "shop")]


async def test_its_last_mail_keeps_it(pool):
    """From then on it has its whole time again; a time that was longer stays."""
    await store(pool, [message(ADA)], 60.0)
    await store(pool, [message(ADA)], 3600.0)
    await store(pool, [message(ADA)], 60.0)
    ((left,),) = await pool.fetch(
        "SELECT extract(epoch FROM expires_at - now())::float8 FROM relay.mailboxes"
    )
    assert 3000 < left <= 3600


async def test_counts_and_the_queue_know_of_it(pool):
    """As of any message."""
    await store(pool, [message(ADA, raw=b"12345")], 60.0)
    assert await pool.fetch("SELECT messages, bytes FROM relay.usage_changes") == [(1, 5)]
    assert await pool.fetch("SELECT size FROM relay.unsummarised") == [(5,)]


async def test_the_same_again_stores_nothing(pool):
    """Handed over twice, as after a commit in doubt."""
    one = message(ADA)
    await store(pool, [one], 60.0)
    assert await store(pool, [one], 60.0) == ({}, 0)
    assert await mailboxes(pool) == {ADA: 1}
    other = message(BOB)
    stored, made = await store(pool, [one, other], 60.0)
    assert (set(stored), made) == ({other.recipients[0][0]}, 1)
    assert await mailboxes(pool) == {ADA: 1, BOB: 1}


async def test_a_mailbox_that_is_over_gives_its_address(pool):
    """And keeps its mail to itself."""
    await store(pool, [message(ADA)], 60.0)
    await pool.execute("UPDATE relay.mailboxes SET expires_at = now()")
    assert await store(pool, [message(ADA)], 60.0) == ({}, 0)
    assert await set_aside(pool, [ADA]) == 1
    assert await set_aside(pool, [ADA]) == 0
    stored, made = await store(pool, [message(ADA)], 60.0)
    assert (len(stored), made) == (1, 1)
    assert await mailboxes(pool) == {ADA: 1}


async def test_a_live_mailbox_of_somebody_takes_it_as_ever(pool):
    """Its owner, its time and its kind stay."""
    await pool.execute(
        "INSERT INTO relay.mailboxes (address, expires_at) VALUES (%s, '2099-01-01')", (ADA,)
    )
    stored, made = await store(pool, [message(ADA)], 60.0)
    assert (len(stored), made) == (1, 0)
    assert await pool.fetch(
        "SELECT owner_type::text, captured_at, expires_at = '2099-01-01' FROM relay.mailboxes"
    ) == [("anonymous", None, True)]


async def test_what_may_not_be_made_is_not(pool):
    """An unknown address of the relay's own among the recipients."""
    mixed = message(ADA, "nobody@relay.localhost")._replace(captured=[ADA])
    stored, _ = await store(pool, [mixed], 60.0)
    assert stored.keys() == {mixed.recipients[0][0]}


async def test_two_at_once_make_one_mailbox(pool):
    """Many that capture for the same addresses, named in any order."""
    addresses = [f"{number}@shop.example" for number in range(20)]

    async def one(number: int) -> None:
        turned = addresses[number:] + addresses[:number]
        stored, _ = await store(pool, [message(each) for each in turned], 60.0)
        assert len(stored) == 20

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(one, number)
    assert await mailboxes(pool) == dict.fromkeys(addresses, 8)


async def test_the_oldest_go_first(pool):
    """By their last mail; others' mailboxes do not count."""
    await pool.execute("INSERT INTO relay.mailboxes (address) VALUES ('bob@relay.localhost')")
    for each in ("one@x.example", "two@x.example", "one@x.example", "three@x.example"):
        await store(pool, [message(each)], 60.0)
    assert await evict(pool, 3) is None
    assert await evict(pool, 2) == 1
    assert await evict(pool, 2) is None
    assert sorted(await mailboxes(pool)) == [
        "bob@relay.localhost",
        "one@x.example",
        "three@x.example",
    ]


def test_by_what_a_sender_is_known():
    """The address of a client goes before what it says of itself, and a login before a domain."""
    plain = message(ADA)
    assert sender_of(plain) == "domain b.example"
    assert sender_of(plain._replace(reverse_path="BOUNCE+1@B.example")) == "domain b.example"
    assert sender_of(plain._replace(reverse_path="")) == "domain "
    signed_in = plain._replace(login="b.example")
    assert sender_of(signed_in) == "login b.example"
    assert sender_of(signed_in._replace(origin=Origin("192.0.2.7", "a"))) == "client 192.0.2.7"
    ours, theirs = (plain._replace(origin=Origin(f"2001:db8::{n}", "a")) for n in (1, 2))
    assert sender_of(ours) == sender_of(theirs) == "client 2001:db8::/64"


async def test_a_flood_pushes_out_its_own(pool):
    """Whoever has less loses nothing to it, were it older; mail to another's mailbox takes none."""
    shop, tests = message("one@shop", "two@shop"), message("one@test", "two@test", login="tests")
    for one in (shop, tests):
        await store(pool, [one], 60.0)
    flood = Origin("192.0.2.7", "x")
    for number in range(5):
        said = message(f"{number}a@x", f"{number}b@x", login=str(number))  # changed each time
        said = said._replace(reverse_path=f"{number}@{number}", origin=flood)
        await store(pool, [said], 60.0)
    await store(pool, [message("one@shop")._replace(origin=flood)], 60.0)
    assert await evict(pool, 8) == 6
    assert sorted(await mailboxes(pool)) == [
        *("3a@x", "3b@x", "4a@x", "4b@x"),
        *("one@shop", "one@test", "two@shop", "two@test"),
    ]
    assert await evict(pool, 5) == 3  # then all have two, and of them the oldest goes
    assert sorted(await mailboxes(pool)) == ["4a@x", "4b@x", "one@shop", "one@test", "two@test"]


async def test_none_goes_in_the_place_of_one_that_is_passed_over(pool):
    """Mail comes to the oldest while it would be closed: others stay all the same."""
    for number in range(6):
        await store(pool, [message(f"{number}@x.example")], 60.0)
    async with pool.transaction() as conn:
        await conn.execute("SELECT FROM relay.mailboxes WHERE address = '0@x.example' FOR UPDATE")
        assert await evict(pool, 4) == 1
        assert await evict(pool, 4) == 0
    assert sorted(await mailboxes(pool)) == [f"{number}@x.example" for number in (0, 2, 3, 4, 5)]
    await store(pool, [message("0@x.example")], 60.0)
    assert await evict(pool, 4) == 1
    assert sorted(await mailboxes(pool)) == [f"{number}@x.example" for number in (0, 3, 4, 5)]


async def test_many_that_evict_at_once_leave_as_many_as_may_stay(any_pool):
    """While others capture: in the end the newest are there, as many as there may be."""

    async def capture(writer: int) -> None:
        for number in range(10):
            names = [f"{writer}-{number}-{each}@x.example" for each in range(10)]
            await store(any_pool, [message(each) for each in names], 60.0)

    async def evict_all() -> None:
        for _ in range(10):
            await evict(any_pool, 30)

    async with trio.open_nursery() as nursery:
        for writer in range(3):
            nursery.start_soon(capture, writer)
            nursery.start_soon(evict_all)
    while await evict(any_pool, 30) is not None:
        pass
    rows = await any_pool.fetch(
        "SELECT is_active FROM relay.mailboxes ORDER BY captured_at DESC, id DESC"
    )
    assert [live for (live,) in rows] == [True] * 30 + [False] * 270


@pytest.mark.parametrize("rows", [1, 3])
async def test_capturing_is_planned_once(database_url, rows):
    """Whatever length the first batches have, and mailboxes are looked up by their addresses."""
    pool = Pool(database_url, size=1)
    await pool.execute(
        "INSERT INTO relay.mailboxes (address) "
        "SELECT 'b' || n || '@x' FROM generate_series(1, 2000) n"
    )
    await pool.execute("ANALYZE relay.mailboxes")
    for number in range(8):
        batch = [message(f"{number}-{each}@shop.example") for each in range(rows)]
        stored, made = await store(pool, batch, 60.0)
        assert (set(stored), made) == ({one.recipients[0][0] for one in batch}, rows)
    async with pool.connection() as conn:
        cursor = await conn.execute(
            "SELECT name, generic_plans FROM pg_prepared_statements "
            "WHERE statement LIKE '%INSERT INTO relay.messages%'"
        )
        ((name, generic),) = await cursor.fetchall()
        assert generic == 3
        await conn.execute("SET plan_cache_mode = force_generic_plan")
        cursor = await conn.execute(f"EXPLAIN EXECUTE {name} ({', '.join(['NULL'] * 11)})")
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    assert "Index Scan using mailboxes_address_key" in plan
    assert "Seq Scan on mailboxes" not in plan
    await pool.close()


async def test_however_many_mailboxes_there_are_none_is_read(database_url):
    """All that is planned for storing, the check of the foreign key too, was planned with one."""
    pool = Pool(database_url, size=1)
    await pool.execute("INSERT INTO relay.mailboxes (address) VALUES (%s)", (ADA,))
    await pool.execute("VACUUM ANALYZE relay.mailboxes")

    async def read() -> int:
        await pool.fetch("SELECT pg_stat_force_next_flush()")
        rows: int = await pool.fetch_value(
            "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'relay.mailboxes'::regclass"
        )
        return rows

    for number in range(8):
        assert len(await insert_many(pool, [Row(new_id(), ADA, "", b"x")])) == 1
        assert (await store(pool, [message(f"{number}@shop.example")], 60.0))[1] == 1
    await pool.execute(
        "INSERT INTO relay.mailboxes (address) "
        "SELECT 'b' || n || '@x' FROM generate_series(1, 2000) n"
    )
    before = await read()
    assert (await store(pool, [message(BOB)], 60.0))[1] == 1
    assert await read() == before
    await pool.close()
