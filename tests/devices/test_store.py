"""The contract of a store of device inboxes (relay/devices/store.py), held to by every back end."""

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from relay.devices.store import Blob, InboxFull, InboxStore, StoreFull, StoreUnavailable
from tests.conftest import TEMPLATE, Clusters
from tests.devices.stores import TTL, House, PostgresHouse, SqliteHouse, running
from tests.eventually import eventually

A, B = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture(params=["sqlite", "pg18", "pg15"])
def place(request: pytest.FixtureRequest, tmp_path: Path, clusters: Clusters) -> Iterator[House]:
    """A place for stores, of each kind."""
    if request.param == "sqlite":
        yield SqliteHouse(tmp_path / "devices.sqlite")
        return
    cluster = clusters.get(int(request.param[2:]))
    name = cluster.new_database(TEMPLATE)
    yield PostgresHouse(cluster.dsn(name))
    cluster.drop_database(name)


@pytest.fixture
async def house(place: House) -> AsyncIterator[House]:
    """The same, with all that the stores need."""
    async with place.open():
        yield place


@pytest.fixture
async def store(house: House) -> AsyncIterator[InboxStore]:
    """A running store of each kind."""
    async with running(house.store()) as store:
        yield store


async def all_of(store: InboxStore, recipient: bytes, **page: int) -> list[Blob]:
    """Flush page by page, to the end."""
    found: list[Blob] = []
    while blobs := await store.flush(recipient, found[-1].id if found else 0, **page):
        found += blobs
    return found


async def envelopes(store: InboxStore, recipient: bytes) -> list[bytes]:
    """What waits, in order."""
    return [blob.envelope for blob in await all_of(store, recipient)]


class TestPutAndFlush:
    async def test_what_was_put_is_there_byte_for_byte_in_order(self, store):
        """First in, first out, for each recipient alone; every byte, an empty envelope, 64 kB."""
        sent = [b"", bytes(range(256)), b"\0", os.urandom(65_482), b"again", b"again"]
        for envelope in sent:
            await store.put(A, envelope)
            await store.put(B, envelope + b"!")
        assert await envelopes(store, A) == sent
        assert await envelopes(store, B) == [envelope + b"!" for envelope in sent]

    async def test_the_same_envelope_twice_is_two_blobs(self, store):
        """Put never de-duplicates: a replay gets an id of its own."""
        first, second = await store.put(A, b"x"), await store.put(A, b"x")
        assert 1 <= first.id < second.id < 2**63
        assert await envelopes(store, A) == [b"x", b"x"]

    async def test_put_tells_id_and_expiry(self, store):
        """What Put answered is what Flush shows."""
        stored = await store.put(A, b"x")
        (blob,) = await store.flush(A)
        assert (blob.id, blob.envelope) == (stored.id, b"x")
        assert blob.expires_at == pytest.approx(stored.expires_at, abs=0.001)

    async def test_flush_deletes_nothing(self, store):
        """Flushing again returns the same."""
        await store.put(A, b"x")
        assert await store.flush(A) == await store.flush(A) != []

    async def test_pages_go_on_behind_an_id(self, store):
        """A thousand blobs in pages are a thousand blobs, each once."""
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(store.put, A, b"%d" % number)
        found = await all_of(store, A, limit=64)
        ids = [blob.id for blob in found]
        assert ids == sorted(set(ids))
        assert sorted(int(blob.envelope) for blob in found) == list(range(1000))
        assert len(await store.flush(A, ids[-2], limit=64)) == 1

    async def test_a_page_is_bounded_by_bytes_but_never_empty(self, store):
        """Pages keep to their bytes; a blob that is larger alone comes alone."""
        for size in (10, 10, 10, 500, 1):
            await store.put(A, b"x" * size)
        pages = []
        last = 0
        while page := await store.flush(A, last, limit=10, max_bytes=25):
            pages.append([len(blob.envelope) for blob in page])
            last = page[-1].id
        assert pages == [[10, 10], [10], [500], [1]]

    async def test_a_reader_that_goes_on_from_the_last_id_misses_nothing(self, house):
        """Ids rise in the order of commits: reading beside many writers never skips one."""
        reader = house.store()
        writers = (
            [house.store()] if isinstance(house, SqliteHouse) else [house.store(), house.store()]
        )
        if isinstance(house, SqliteHouse):
            reader = writers[0]
        seen: list[Blob] = []
        async with trio.open_nursery() as stores:
            for one in {*writers, reader}:
                await stores.start(one.run)
            async with trio.open_nursery() as nursery:
                finished = trio.Event()

                async def read() -> None:
                    while True:
                        last = finished.is_set()
                        page = await reader.flush(A, seen[-1].id if seen else 0, limit=7)
                        seen.extend(page)
                        if last and not page:
                            return

                nursery.start_soon(read)
                async with trio.open_nursery() as puts:

                    async def put(store: InboxStore, number: int) -> None:
                        for count in range(20):
                            await store.put(A if count % 2 else B, b"%d.%d" % (number, count))

                    for number in range(16):
                        puts.start_soon(put, writers[number % len(writers)], number)
                finished.set()
            stores.cancel_scope.cancel()
        assert len(seen) == len({blob.id for blob in seen}) == 160
        for number in range(16):
            prefix = b"%d." % number
            own = [blob.envelope for blob in seen if blob.envelope.startswith(prefix)]
            assert own == [b"%d.%d" % (number, count) for count in range(1, 20, 2)]


class TestDelete:
    async def test_a_deleted_blob_never_comes_again(self, house):
        """After Delete it is gone, after a restart too; the others stay."""
        async with running(house.store()) as store:
            ids = [(await store.put(A, b"%d" % number)).id for number in range(5)]
            await store.delete(A, [ids[1], ids[3]])
            assert await envelopes(store, A) == [b"0", b"2", b"4"]
        async with running(house.store()) as store:
            assert await envelopes(store, A) == [b"0", b"2", b"4"]

    async def test_only_the_owner_deletes(self, store):
        """Another's id, an unknown one, one deleted before, none: nothing happens, no error."""
        stored = await store.put(A, b"x")
        await store.delete(B, [stored.id])
        await store.delete(A, [stored.id + 1, 2**63 - 1])
        await store.delete(A, [])
        assert await envelopes(store, A) == [b"x"]
        await store.delete(A, [stored.id, stored.id])
        await store.delete(A, [stored.id])
        assert await envelopes(store, A) == []

    async def test_ids_are_never_given_twice(self, house):
        """Not after the newest was deleted, not after a restart."""
        given = []
        for _ in range(3):
            async with running(house.store()) as store:
                stored = await store.put(A, b"x")
                given.append(stored.id)
                await store.delete(A, [stored.id])
        assert given == sorted(set(given))


class TestExpiry:
    async def test_what_has_expired_is_not_flushed(self, house, store):
        """Not an instant after its time, reaped or not."""
        await store.put(A, b"old")
        await house.age(TTL - 10)
        await store.put(A, b"new")
        assert await envelopes(store, A) == [b"old", b"new"]
        await house.age(20)
        assert await envelopes(store, A) == [b"new"]

    async def test_reap_takes_what_has_expired_in_batches(self, house, store):
        """So many at a time, until none is left; what has not expired stays."""
        for number in range(10):
            await store.put(A if number % 2 else B, b"%d" % number)
        await house.age(TTL + 1)
        await store.put(A, b"new")
        assert [await store.reap(4) for _ in range(4)] == [4, 4, 2, 0]
        assert await envelopes(store, A) == [b"new"]

    @pytest.mark.parametrize("reaped", [0, 1, 5], ids=["unreaped", "half", "reaped"])
    async def test_missed_counts_once_reaped_or_not(self, house, reaped):
        """What expired is counted for each device, until it was told; then only what is new."""
        async with running(house.store()) as store:
            for _ in range(3):
                await store.put(A, b"x")
            await store.put(B, b"x")
            assert (await store.missed(A)).count == 0
            await house.age(TTL + 1)
            await store.put(A, b"new")
            await store.reap(reaped or 1) if reaped else None
        async with running(house.store()) as store:
            found = await store.missed(A)
            assert found.count == 3
            assert await store.missed(A) == found
            assert await store.reap(100) == 1 - (reaped == 5)
            await store.told(A, found.mark)
            assert (await store.missed(A)).count == 0
            assert (await store.missed(B)).count == 1
            assert await envelopes(store, A) == [b"new"]
            await house.age(TTL + 1)
            assert (await store.missed(A)).count == 1

    async def test_telling_twice_forgets_nothing_that_is_new(self, house, store):
        """Two sessions that told the same count do not take from what expires later."""
        await store.put(A, b"x")
        await store.put(A, b"x")
        await house.age(TTL + 1)
        one, two = await store.missed(A), await store.missed(A)
        assert one == two
        await store.told(A, one.mark)
        await store.put(A, b"y")
        await house.age(TTL + 1)
        assert (await store.missed(A)).count == 1
        await store.told(A, two.mark)
        assert (await store.missed(A)).count == 1

    async def test_a_delete_after_the_time_is_no_loss(self, house, store):
        """A late acknowledgement still counts, as long as the blob was not reaped."""
        stored = await store.put(A, b"x")
        await house.age(TTL + 1)
        await store.delete(A, [stored.id])
        assert (await store.missed(A)).count == 0


class TestCaps:
    async def test_an_inbox_takes_so_many_blobs(self, house):
        """One more is InboxFull, for this recipient alone, until there is room again."""
        async with running(house.store(max_blobs=3)) as store:
            ids = [(await store.put(A, b"x")).id for _ in range(3)]
            with pytest.raises(InboxFull) as refused:
                await store.put(A, b"y")
            assert refused.value.retry_after > 0
            await store.put(B, b"x")
            await store.delete(A, ids[:1])
            await store.put(A, b"y")
            with pytest.raises(InboxFull):
                await store.put(A, b"z")
        async with running(house.store(max_blobs=3)) as store:
            with pytest.raises(InboxFull):
                await store.put(A, b"z")
            assert await envelopes(store, A) == [b"x", b"x", b"y"]

    async def test_an_inbox_takes_so_many_bytes(self, house):
        """A blob that does not fit is refused; a smaller one that does is taken."""
        async with running(house.store(max_bytes=100)) as store:
            await store.put(A, b"x" * 60)
            with pytest.raises(InboxFull):
                await store.put(A, b"y" * 41)
            await store.put(A, b"z" * 40)
            with pytest.raises(InboxFull):
                await store.put(A, b"!")
            await store.put(A, b"")

    async def test_puts_at_once_share_what_is_left(self, house):
        """Of 20 at once as many are stored as fit, and each knows whether it was."""
        outcomes: list[bool] = []

        async def put(store: InboxStore, recipient: bytes) -> None:
            try:
                await store.put(recipient, b"x")
            except InboxFull:
                outcomes.append(False)
            else:
                outcomes.append(True)

        async with running(house.store(max_blobs=7)) as store:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(put, store, A)
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(put, store, B)
            assert sum(outcomes) == 12
            assert len(await envelopes(store, A)) == 7

    async def test_what_has_expired_makes_room(self, house):
        """A full inbox is looked through for what has expired; that counts as missed."""
        async with running(house.store(max_blobs=2)) as store:
            await store.put(A, b"x")
            await store.put(A, b"x")
            await house.age(TTL + 1)
            await store.put(A, b"new")
            assert await envelopes(store, A) == [b"new"]
            assert (await store.missed(A)).count == 2


class TestWakeups:
    async def test_a_put_wakes_its_recipient(self, store):
        """Whoever subscribed to the key hears of it, nobody else; a hint before waiting counts."""
        with store.subscribe(A) as ours, store.subscribe(B) as others:
            await store.put(A, b"x")
            with trio.fail_after(20):
                await ours.wait()
            with trio.move_on_after(0.05) as nothing:
                await others.wait()
            assert nothing.cancelled_caught
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.put, B, b"x")
                with trio.fail_after(20):
                    await others.wait()


class TestFigures:
    async def test_counts_stay_true(self, house):
        """After any mix of calls, the counts are what is there."""
        rng = random.Random(7)
        keys = [bytes([n]) * 32 for n in range(4)]
        there: dict[bytes, dict[int, int]] = {key: {} for key in keys}
        store = house.store(max_blobs=6, max_bytes=300)
        async with running(store):
            for _ in range(150):
                key = rng.choice(keys)
                if rng.random() < 0.6:
                    size = rng.randrange(80)
                    try:
                        there[key][(await store.put(key, b"x" * size)).id] = size
                    except InboxFull:
                        assert len(there[key]) == 6 or sum(there[key].values()) + size > 300
                elif there[key]:
                    gone = rng.sample(sorted(there[key]), rng.randint(1, len(there[key])))
                    await store.delete(key, gone)
                    for number in gone:
                        del there[key][number]
        again = house.store(**({"tallied": 3} if isinstance(house, SqliteHouse) else {}))  # of four
        async with running(again):
            await eventually(lambda: again.statistics().inboxes, "they are counted")
            found = again.statistics()
            assert found.blobs == sum(map(len, there.values()))
            assert found.bytes == sum(sum(sizes.values()) for sizes in there.values())
            assert found.inboxes == sum(1 for sizes in there.values() if sizes)
            assert 0 <= found.oldest_age < TTL
            assert found.waiting == 0
            sizes = {one.recipient: (one.blobs, one.bytes) for one in found.fullest}
            assert sizes == {
                key: (len(each), sum(each.values())) for key, each in there.items() if each
            }


class TestRunning:
    async def test_nothing_is_served_before_and_after(self, house):
        """Every call is StoreUnavailable while nobody runs the store; then it works again."""
        store = house.store()
        for _ in range(2):
            for call in (
                store.put(A, b"x"),
                store.flush(A),
                store.delete(A, [1]),
                store.missed(A),
                store.told(A, 1),
                store.reap(),
                store.check(),
            ):
                with pytest.raises(StoreUnavailable):
                    await call
            async with running(store):
                await store.check()
                await store.put(A, b"x")
        async with running(store):
            assert await envelopes(store, A) == [b"x", b"x"]

    async def test_stopping_answers_everybody(self, house):
        """Calls under way when the store is stopped end: stored, or StoreUnavailable."""
        store = house.store()
        stored: list[bytes] = []
        failed: list[bytes] = []

        async def put(envelope: bytes) -> None:
            try:
                await store.put(A, envelope)
            except StoreUnavailable:
                failed.append(envelope)
            else:
                stored.append(envelope)

        async with trio.open_nursery() as puts, trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for number in range(200):
                puts.start_soon(put, b"%d" % number)
            await eventually(lambda: stored, "one is stored")
            nursery.cancel_scope.cancel()
        assert len(stored) + len(failed) == 200
        async with running(store):
            assert set(stored) <= set(await envelopes(store, A))

    async def test_a_cancelled_call_disturbs_nobody(self, store):
        """A Put that was given up is stored whole or not at all; the others are answered."""
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(store.put, A, b"%d" % number)
            with trio.move_on_after(0):
                await store.put(A, b"given up")
        found = await envelopes(store, A)
        assert (
            {b"%d" % number for number in range(20)}
            <= set(found)
            <= {
                b"given up",
                *(b"%d" % number for number in range(20)),
            }
        )

    async def test_a_key_has_32_bytes(self, store):
        """Anything else is the caller's bug."""
        with pytest.raises(ValueError, match="32 bytes"):
            await store.put(b"short", b"x")
        with pytest.raises(ValueError, match="32 bytes"):
            await store.flush(b"short")


class TestLifetimesOfTheirOwn:
    async def test_a_blob_may_expire_before_the_others(self, house):
        """Put side by side, each has its own; none is delivered past it, and it is counted."""
        async with running(house.store()) as store:
            async with trio.open_nursery() as nursery:
                for ttl in (None, TTL / 10, TTL / 2, 10 * TTL):
                    nursery.start_soon(store.put, A, repr(ttl).encode(), ttl)
            assert len(await envelopes(store, A)) == 4
            await house.age(TTL / 5)
            left = {repr(ttl).encode() for ttl in (None, TTL / 2, 10 * TTL)}
            assert set(await envelopes(store, A)) == left
            assert (await store.missed(A)).count == 1

    async def test_none_is_longer_than_the_stores(self, store):
        """What was asked for beyond it is cut, and Put says so."""
        usual, long, brief = [await store.put(A, b"x", ttl) for ttl in (None, 9 * TTL, TTL / 2)]
        assert long.expires_at == pytest.approx(usual.expires_at, abs=60)
        assert brief.expires_at == pytest.approx(usual.expires_at - TTL / 2, abs=60)


class TestAllInboxesTogether:
    async def test_invented_keys_fill_no_more_than_there_is_for_all(self, house):
        """However many keys, all together keep to their bytes; what is there can be fetched, and
        makes room."""
        options = {} if isinstance(house, SqliteHouse) else {"statistics_every": 0.05}
        async with running(house.store(max_total=4 << 20, **options)) as store:
            kept = []
            with pytest.raises(StoreFull):
                for number in range(1000):
                    key = number.to_bytes(32, "big")
                    await store.put(key, bytes(60_000))
                    kept.append(key)
            assert 50 < len(kept) < 72
            with pytest.raises(StoreFull):
                await store.put(B, bytes(60_000))
            for key in kept[:10]:
                (blob,) = await store.flush(key)
                await store.delete(key, [blob.id])
            more = 0

            async def put_more() -> int:
                nonlocal more
                with suppress(StoreFull):
                    await store.put(B, bytes(60_000))
                    more += 1
                return more

            await eventually(put_more, "there is room for five", until=lambda count: count == 5)
            with pytest.raises(StoreFull):
                for _ in range(20):
                    await store.put(A, bytes(60_000))

    async def test_a_store_that_was_full_is_full_when_it_runs_again(self, house):
        """What is there counts, whoever put it and when."""
        options = {} if isinstance(house, SqliteHouse) else {"statistics_every": 0.05}
        async with running(house.store()) as store:
            for number in range(20):
                await store.put(number.to_bytes(32, "big"), bytes(60_000))
        async with running(house.store(max_total=1 << 20, **options)) as store:

            async def refuses() -> bool:
                with suppress(StoreFull):
                    await store.put(A, b"")
                    return False
                return True

            await eventually(refuses, "it is full")
