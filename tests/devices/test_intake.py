"""What strangers may hand in: a recipient's rate, shared by its sources, and each source's own."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from relay.devices.intake import BURST, RATE, RecipientRates, SourceRates
from relay.devices.store import OVERHEAD
from tests.devices import peer as wire
from tests.devices.peer import Peer
from tests.devices.world import world
from tests.eventually import eventually

KEY, OTHER = b"k" * 32, b"o" * 32


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(rates: RecipientRates, source: str, most: int = 10_000) -> int:
    """Take until refused; return how often it went well."""
    for number in range(most):
        if rates.take(KEY, source) > 0:
            return number
    return most


class TestShares:
    def test_a_source_alone_has_all_of_it(self):
        """500 at once, then 20 a second, as docs/devices.md has it."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        assert taken(rates, "a") == BURST
        for _ in range(100):
            clock.now += 1.0
            assert taken(rates, "a") == RATE

    def test_a_flood_does_not_lock_a_quiet_source_out(self):
        """One takes whatever there is, a hundred times a second; another's blob goes through."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        flood = quiet = 0
        for tick in range(6000):
            flood += taken(rates, "flood")
            if tick % 20 == 0:
                assert rates.take(KEY, "quiet") == 0.0, tick
                quiet += 1
            clock.now += 0.01
        assert quiet == 300
        # What the quiet one had was taken from the flood: the recipient's rate is what it was.
        assert flood + quiet <= BURST + BURST // 25 + RATE * 60

    @pytest.mark.parametrize("sources", [2, 3, 5])
    def test_sources_that_want_all_get_alike(self, sources):
        """However greedy, in the long run none has less than most of its share."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        had: Counter[str] = Counter()
        names = [f"source {number}" for number in range(sources)]
        assert taken(rates, names[0]) == BURST
        for _ in range(6000):
            for name in names:  # the first always comes first
                had[name] += taken(rates, name)
            clock.now += 0.01
        assert sum(had.values()) <= BURST // 25 + RATE * 60 + 1
        share = RATE * 60 / sources
        for name in names:
            assert had[name] > 0.8 * share, had

    def test_a_recipient_is_not_slowed_for_another(self):
        """The sources of one key are nobody else's."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        assert taken(rates, "a") == BURST
        assert all(rates.take(OTHER, "a") == 0.0 for _ in range(BURST))

    def test_who_is_refused_is_not_remembered(self):
        """A flood from a hundred thousand addresses at a used-up key leaves nothing behind, and
        one more address has no less for it."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        for number in range(100_000):
            rates.take(KEY, str(number))
        assert len(rates) == 1
        assert rates.remembered <= BURST + BURST // 25
        clock.now += 1.0
        assert rates.take(KEY, "late") == 0.0

    def test_shares_go_with_their_recipients(self):
        """What is remembered follows the pushes of half a minute."""
        clock = Clock()
        rates = RecipientRates(clock=clock)
        for number in range(3000):
            key = number.to_bytes(32, "big")
            for _ in range(BURST // 2 + 10):
                rates.take(key, "a")
            clock.now += 0.5
        assert len(rates) < 2048
        assert rates.remembered < 2048


class TestSourceRates:
    def test_so_many_bytes_a_second_and_half_a_minute_at_once(self):
        """What a blob takes on the disk counts, an empty one too."""
        clock = Clock()
        sources = SourceRates(1000 + OVERHEAD, clock)
        assert [sources.take("a", 1000) for _ in range(30)] == [0.0] * 30
        assert sources.take("a", 1000) == pytest.approx(1.0)
        assert sources.take("b", 1000) == 0.0
        clock.now += 1.0
        assert sources.take("a", 1000) == 0.0
        clock.now += 1.0
        empty = 0
        while sources.take("a", 0) == 0.0:
            empty += 1
        assert empty == (1000 + OVERHEAD) // OVERHEAD

    def test_one_may_always_come(self):
        """A blob larger than half a minute's worth is not refused for ever."""
        clock = Clock()
        sources = SourceRates(10, clock)
        assert sources.take("a", 60_000) == 0.0
        assert sources.take("a", 60_000) > 6000

    def test_no_rate_is_no_limit(self):
        """0 turns it off."""
        sources = SourceRates(0)
        assert all(sources.take("a", 65_482) == 0.0 for _ in range(10_000))
        assert len(sources) == 0

    def test_sources_at_rest_are_forgotten(self):
        """Memory follows the pushes of the last half minute."""
        clock = Clock()
        sources = SourceRates(1 << 20, clock)
        for number in range(200_000):
            sources.take(str(number), 1000)
            clock.now += 0.001
            assert len(sources) < 4096


async def answers(pusher: Peer, recipient: bytes, count: int, size: int = 0) -> list[int]:
    """Push so many blobs at once; return 0 for each Ack, and the reason for each Error."""
    found = []
    for _ in range(count):
        await pusher.send(wire.PUSH, recipient + bytes(size))
    for _ in range(count):
        frame = await pusher.frame()
        assert frame is not None
        found.append(0 if frame.kind == wire.ACK else frame.error[0])
    return found


async def test_empty_pushes_do_not_block_a_device(tmp_path):
    """A stranger's flood of empty pushes at one device; another address's blobs arrive."""
    device = os.urandom(32)
    async with world(tmp_path) as here:
        stranger, friend = await here.pusher("127.0.0.2"), await here.pusher("127.0.0.3")
        refused = 0
        for _ in range(12):
            refused += (await answers(stranger, device, 100)).count(wire.RATE_LIMITED)
        assert refused > 300
        for _ in range(5):
            await answers(stranger, device, 20)
            assert await answers(friend, device, 1) == [0]
        for peer in (stranger, friend):
            await peer.__aexit__()


async def test_invented_keys_gain_a_stranger_nothing(tmp_path):
    """Large blobs to a key each: Error 4 with a time once the source's bytes are used up, over any
    number of sessions; others push on."""
    sources = SourceRates(64 << 10)  # 30 blobs of 64 kB at once
    async with world(tmp_path, sources=sources) as here:
        found: list[int] = []
        for _ in range(6):
            async with await here.pusher("127.0.0.2") as stranger:
                for _ in range(8):
                    found += await answers(stranger, os.urandom(32), 1, 65_000)
        assert found[:29] == [0] * 29
        assert set(found[34:]) == {wire.RATE_LIMITED}
        async with await here.pusher("127.0.0.3") as friend:
            assert await answers(friend, os.urandom(32), 3, 65_000) == [0, 0, 0]


async def test_a_store_that_is_full_says_so_and_delivers(tmp_path):
    """Error 3 for everybody's blobs; devices fetch theirs, and then there is room."""
    private, public = wire.key_pair()
    async with world(tmp_path, max_total=2 << 20) as here, await here.pusher() as pusher:
        assert await answers(pusher, public, 10, 60_000) == [0] * 10
        found = []
        for _ in range(40):
            found += await answers(pusher, os.urandom(32), 1, 60_000)
        assert found[0] == 0
        assert found[-1] == wire.INBOX_FULL
        async with await here.device(private) as device:
            for _ in range(10):
                frame = await device.frame()
                assert frame is not None
                await device.send(wire.DELIVER_ACK, frame.blob_id.to_bytes(8, "big"))
            await eventually(
                lambda: answers(pusher, public, 1, 60_000),
                "there is room",
                until=lambda got: got == [0],
            )
