"""Push and receive sessions, over real sockets, by a peer that knows only docs/devices.md."""

import math
import struct

import pytest
import trio

from relay.devices.channel import Memory
from relay.devices.intake import BURST, RecipientRates
from relay.devices.limits import DeviceLimits
from tests.devices import peer as wire
from tests.devices.peer import HandshakeRefused, Peer, key_pair
from tests.devices.world import world

MIB = 2**20


# --- push -----------------------------------------------------------------------------------------


async def test_a_blob_that_is_acknowledged_is_stored(tmp_path):
    """Push, Ack; the store has the envelope byte for byte, an empty and the largest one too."""
    _, device = key_pair()
    envelopes = [b"hello", b"", bytes(range(256)) * 255 + bytes(202), b"hello"]
    assert len(envelopes[2]) == 65_482
    async with world(tmp_path) as here, await here.pusher() as pusher:
        for envelope in envelopes:
            assert (await pusher.push(device, envelope)).kind == wire.ACK
        assert [blob.envelope for blob in await here.store.flush(device)] == envelopes


async def test_pipelined_pushes_are_answered_and_stored_in_order(tmp_path):
    """Frames sent without waiting, good and bad ones mixed, get one answer each, in order."""
    _, device = key_pair()
    async with world(tmp_path) as here, await here.pusher() as pusher:
        sent = b""
        for number in range(200):
            sent += pusher.sealed(wire.PUSH, device + b"%d" % number)
            if number % 50 == 7:
                sent += pusher.sealed(wire.PUSH, b"too short")
            if number % 50 == 9:
                sent += pusher.sealed(wire.PUSH, device, length=65_515)
        await pusher.stream.send_all(sent)
        expected: list[tuple[int, int] | None] = []
        for number in range(200):
            expected.append(None)
            if number % 50 == 7:
                expected.append((wire.MALFORMED, 0))
            if number % 50 == 9:
                expected.append((wire.TOO_LARGE, 0))
        for outcome in expected:
            frame = await pusher.expect(wire.ACK if outcome is None else wire.ERROR)
            assert outcome is None or frame.error == outcome
        found = await here.store.flush(device, limit=1000)
        assert [blob.envelope for blob in found] == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize(
    ("kind", "body", "length", "reason"),
    [
        (wire.PUSH, bytes(32), 65_515, wire.TOO_LARGE),
        (wire.PUSH, bytes(32), 2**32 - 1, wire.TOO_LARGE),
        (wire.PUSH, bytes(32), 65_514, wire.MALFORMED),
        (wire.PUSH, bytes(31), None, wire.MALFORMED),
        (wire.PUSH, b"", None, wire.MALFORMED),
        (wire.DELIVER, bytes(20), None, wire.MALFORMED),
        (wire.HEARTBEAT, b"x", None, wire.MALFORMED),
        (wire.ACK, b"", None, wire.MALFORMED),
        (wire.ERROR, bytes(5), None, wire.MALFORMED),
        (wire.DELIVER_ACK, bytes(8), None, wire.MALFORMED),
        (wire.MISSED, bytes(8), None, wire.MALFORMED),
        (0, b"", None, wire.MALFORMED),
        (8, b"", None, wire.MALFORMED),
    ],
)
async def test_a_frame_that_is_wrong_gets_its_reason_and_the_session_goes_on(
    tmp_path, kind, body, length, reason
):
    """Too large is 2; every other wrong, unknown or misdirected frame is 1; then a Push works."""
    async with world(tmp_path) as here, await here.pusher() as pusher:
        await pusher.send(kind, body, length)
        assert (await pusher.expect(wire.ERROR)).error == (reason, 0)
        assert (await pusher.push(bytes(32), b"x")).kind == wire.ACK


async def test_a_heartbeat_is_echoed(tmp_path):
    """On a push session each Heartbeat comes back, and counts as no Push."""
    async with world(tmp_path) as here, await here.pusher() as pusher:
        for _ in range(3):
            await pusher.send(wire.HEARTBEAT)
            await pusher.expect(wire.HEARTBEAT)


async def test_a_full_inbox_is_temporary_and_for_its_device_alone(tmp_path):
    """The blob beyond the cap gets Error 3 with a time; another device's inbox takes it."""
    async with world(tmp_path, max_blobs=3) as here, await here.pusher() as pusher:
        for _ in range(3):
            assert (await pusher.push(bytes(32), b"x")).kind == wire.ACK
        reason, seconds = (await pusher.push(bytes(32), b"x")).error
        assert reason == wire.INBOX_FULL
        assert seconds > 0
        assert (await pusher.push(b"\x01" * 32, b"x")).kind == wire.ACK


async def test_a_recipient_takes_a_burst_and_then_its_rate(tmp_path, mock_clock):
    """500 pushes at once, then Error 4; a second later twenty more; others are not concerned."""
    _, device = key_pair()
    async with world(tmp_path) as here, await here.pusher() as pusher:

        async def push_many(count: int) -> list[int]:
            await pusher.stream.send_all(
                b"".join(pusher.sealed(wire.PUSH, device + b"x") for _ in range(count))
            )
            return [frame.kind for frame in await pusher.frames(count)]

        assert set(await push_many(BURST)) == {wire.ACK}
        assert (await pusher.push(device, b"x")).error == (wire.RATE_LIMITED, 1)
        assert (await pusher.push(bytes(32), b"x")).kind == wire.ACK
        mock_clock.jump(1.0)
        assert await push_many(25) == [wire.ACK] * 20 + [wire.ERROR] * 5


async def test_a_store_that_does_not_answer_is_error_5(tmp_path):
    """While the store is away a Push gets a temporary Error, and the session goes on."""
    async with world(tmp_path) as here, await here.pusher() as pusher:
        await here.stop_store()
        for _ in range(2):
            reason, seconds = (await pusher.push(bytes(32), b"x")).error
            assert reason == wire.UNAVAILABLE
            assert seconds > 0


async def test_ciphertext_that_does_not_decrypt_ends_the_session(tmp_path):
    """Nothing is answered but what came before it, and the relay serves others."""
    async with world(tmp_path) as here, await here.pusher() as pusher:
        good = pusher.sealed(wire.PUSH, bytes(32) + b"before")
        await pusher.stream.send_all(good + struct.pack(">H", 40) + bytes(40))
        await pusher.expect(wire.ACK)
        await pusher.expect_end()
        async with await here.pusher() as other:
            assert (await other.push(bytes(32), b"x")).kind == wire.ACK


async def test_a_silent_push_session_ends_after_30_seconds(tmp_path, mock_clock):
    """Frames put the end off, bytes of half a frame do not."""
    async with world(tmp_path) as here, await here.pusher() as pusher:
        for _ in range(3):
            mock_clock.jump(29.9)
            assert (await pusher.push(bytes(32), b"x")).kind == wire.ACK
        sealed = pusher.sealed(wire.PUSH, bytes(32) + b"x")
        mock_clock.jump(20.0)
        await pusher.stream.send_all(sealed[:20])
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(10.1)
        await here.until_sessions(push=0, receive=0)


# --- handshakes -----------------------------------------------------------------------------------


async def test_a_handshake_has_ten_seconds(tmp_path, mock_clock):
    """A connection that says nothing, or half of it, is closed on both ports."""
    async with world(tmp_path) as here:
        peers = [
            await Peer.open(address)
            for address in (here.push_address, here.receive_address)
            for _ in range(2)
        ]
        for peer in peers[::2]:
            await peer.stream.send_all(struct.pack(">H", 48)[:1])
        await here.until_sessions(push=2, receive=2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(9.9)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert here.server.statistics().push == 2
        mock_clock.jump(0.2)
        await here.until_sessions(push=0, receive=0)
        for peer in peers:
            await peer.expect_end()
            await peer.__aexit__()


@pytest.mark.parametrize(
    "first",
    [
        b"\x00\x00",
        b"\xff\xff",
        b"\x00\x30" + bytes(48),
        b"\x00\x20" + bytes(32),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
    ],
)
async def test_what_is_no_handshake_is_closed(tmp_path, first):
    """A wrong length is not waited for, and nothing is said to a stranger."""
    async with world(tmp_path) as here:
        for address in (here.push_address, here.receive_address):
            async with await Peer.open(address) as peer:
                await peer.stream.send_all(first)
                if address == here.push_address or first[:2] != b"\x00\x20":
                    await peer.expect_end()
                else:  # a first message of XX is any 32 bytes; zeros are no key
                    await peer.expect_end()
        await here.until_sessions(push=0, receive=0)


async def test_a_push_for_another_relays_key_is_closed(tmp_path):
    """A client that knows a wrong key gets no handshake."""
    async with world(tmp_path) as here:
        with pytest.raises(HandshakeRefused):
            await Peer.pusher(here.push_address, key_pair()[1])


async def test_both_ports_have_one_key(tmp_path):
    """The key that the relay proves to devices is the one that pushers know."""
    async with world(tmp_path) as here, await here.device(key_pair()[0]) as device:
        assert device.relay_key == here.key.public


async def test_caps_close_connections_at_once(tmp_path):
    """Beyond the caps, and while paused, a connection is closed without a handshake."""
    limits = DeviceLimits(max_push_sessions=1, max_receive_sessions=1)
    async with world(tmp_path, limits=limits) as here, await here.pusher() as pusher:
        async with await Peer.open(here.push_address) as refused:
            await refused.expect_end()
        here.paused = True
        async with await Peer.open(here.receive_address) as refused:
            await refused.expect_end()
        assert (await pusher.push(bytes(32), b"x")).kind == wire.ACK


# --- receive --------------------------------------------------------------------------------------


async def test_what_waits_comes_first_in_first_out_and_then_what_comes(tmp_path):
    """Waiting blobs, then live ones, each once; ids rise; another device's do not come."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        for number in range(5):
            await here.store.put(public, b"%d" % number)
            await here.store.put(bytes(32), b"not yours")
        async with await here.device(private) as device, await here.pusher() as pusher:
            found = await device.deliveries(5)
            for number in range(5, 8):
                assert (await pusher.push(public, b"%d" % number)).kind == wire.ACK
                found += await device.deliveries(1)
            assert [frame.envelope for frame in found] == [b"%d" % n for n in range(8)]
            assert sorted({frame.blob_id for frame in found}) == [f.blob_id for f in found]
            await device.nothing_comes()


async def test_only_a_deliver_ack_ends_a_blob(tmp_path):
    """Dropped before it: again. After it: never. A device's own alone counts."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        stored = [(await here.store.put(public, b"%d" % n)).id for n in range(3)]
        for _ in range(2):  # dropped twice
            async with await here.device(private) as device:
                assert [f.blob_id for f in await device.deliveries(3)] == stored
        async with await here.device(key_pair()[0]) as stranger:
            for blob_id in [*stored, 0, 10**6, 2**63, 2**64 - 1]:
                await stranger.acknowledge(blob_id)
            await stranger.nothing_comes()
        async with await here.device(private) as device:
            await device.deliveries(3)
            await device.acknowledge(stored[1])
        async with await here.device(private) as device:
            assert [f.blob_id for f in await device.deliveries(2)] == [stored[0], stored[2]]
            await device.nothing_comes()


async def test_a_thousand_waiting_blobs_cost_a_thousand_frames(tmp_path):
    """Each is delivered once in a session, and none in the next, in windows of 64."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(here.store.put, public, b"%d" % number)
        async with await here.device(private) as device:
            frames = await device.deliveries(1000, acknowledge=True)
            assert len({frame.blob_id for frame in frames}) == 1000
            await device.nothing_comes()
        async with await here.device(private) as device:
            await device.nothing_comes()


async def test_at_most_64_are_unacknowledged(tmp_path):
    """The 65th comes when one of the 64 was acknowledged, whichever."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        for number in range(70):
            await here.store.put(public, b"%d" % number)
        async with await here.device(private) as device:
            found = await device.deliveries(64)
            await device.nothing_comes()
            await device.acknowledge(found[30].blob_id)
            await device.acknowledge(found[30].blob_id)  # twice is once
            assert (await device.deliveries(1))[0].envelope == b"64"
            await device.nothing_comes()


async def test_at_most_a_mebibyte_is_unacknowledged_but_at_least_one(tmp_path):
    """Envelopes of 65,482 bytes: sixteen, and the next when there is room for it whole."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        for number in range(18):
            await here.store.put(public, bytes([number]) * 65_482)
        await here.store.put(public, b"small")
        async with await here.device(private) as device:
            found = await device.deliveries(MIB // 65_482)
            await device.nothing_comes()
            await device.acknowledge(found[0].blob_id)
            assert (await device.deliveries(1))[0].envelope[:1] == bytes([16])
            await device.nothing_comes()
    limits = DeviceLimits(window_bytes=10)
    (tmp_path / "other").mkdir()
    async with world(tmp_path / "other", limits=limits) as here:
        for size in (11, 4, 6, 1):
            await here.store.put(public, bytes(size))
        async with await here.device(private) as device:
            (first,) = await device.deliveries(1)
            assert len(first.envelope) == 11
            await device.nothing_comes()
            await device.acknowledge(first.blob_id)
            assert [len(f.envelope) for f in await device.deliveries(2)] == [4, 6]
            await device.nothing_comes()


async def test_every_session_of_a_key_gets_every_blob_once(tmp_path):
    """Four sessions, blobs from before and live ones; an Ack in one counts for all."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        await here.store.put(public, b"before")
        devices = [await here.device(private) for _ in range(4)]
        for device in devices:
            assert [f.envelope for f in await device.deliveries(1)] == [b"before"]
        for number in range(100):
            await here.store.put(public, b"%d" % number)
            for device in devices:
                (frame,) = await device.deliveries(1)
                assert frame.envelope == b"%d" % number
            await devices[number % 4].acknowledge(frame.blob_id)
        for device in devices:
            await device.nothing_comes()
            await device.__aexit__()


async def test_a_fifth_session_gets_error_4_and_is_closed(tmp_path):
    """The four go on; when one of them has ended there is a place again."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        devices = [await here.device(private) for _ in range(4)]
        for device in devices:
            await device.nothing_comes()
        async with await here.device(private) as fifth:
            reason, seconds = (await fifth.expect(wire.ERROR)).error
            assert (reason, seconds > 0) == (wire.RATE_LIMITED, True)
            await fifth.expect_end()
        await devices.pop().__aexit__()
        await here.until_sessions(push=0, receive=3)
        devices.append(await here.device(private))
        await here.store.put(public, b"x")
        for device in devices:
            await device.deliveries(1)
            await device.__aexit__()


async def test_missed_is_first_and_told_once(tmp_path):
    """Blobs that expired undelivered are counted, to a device never seen before; then forgotten."""
    private, public = key_pair()
    now = 1_800_000_000.0
    async with world(tmp_path, clock=lambda: now, ttl=100.0) as here:
        for number in range(5):
            await here.store.put(public, b"%d" % number)
        now += 101
        await here.store.reap(limit=2)  # reaped or not, each counts once
        await here.store.put(public, b"alive")
        async with await here.device(private) as device:
            await device.send(wire.HEARTBEAT)  # even what comes at once is answered after it
            assert int.from_bytes((await device.expect(wire.MISSED)).body, "big") == 5
            kinds = {frame.kind for frame in await device.frames(2)}
            assert kinds == {wire.DELIVER, wire.HEARTBEAT}
        async with await here.device(private) as device:
            assert (await device.deliveries(1))[0].envelope == b"alive"


async def test_the_relay_asks_after_25_seconds_and_ends_after_75(tmp_path, mock_clock):
    """A Heartbeat for each 25 s of the device's silence; answers are not answered."""
    private, _ = key_pair()
    async with world(tmp_path) as here, await here.device(private) as device:
        await device.nothing_comes()
        for _ in range(4):
            mock_clock.jump(25.0)
            await device.expect(wire.HEARTBEAT)
            await device.send(wire.HEARTBEAT)  # the answer
            await device.nothing_comes()  # asked by the device: one echo, for that one alone
        mock_clock.jump(24.9)
        await device.nothing_comes()
        for _ in range(2):
            mock_clock.jump(25.0)
            await device.expect(wire.HEARTBEAT)
        mock_clock.jump(25.1)
        while (frame := await device.frame()) is not None:
            assert frame.kind == wire.HEARTBEAT
        await here.until_sessions(push=0, receive=0)


@pytest.mark.parametrize(
    ("kind", "body", "length", "reason"),
    [
        (wire.PUSH, bytes(40), None, wire.MALFORMED),
        (wire.PUSH, bytes(40), 65_515, wire.TOO_LARGE),
        (wire.DELIVER, bytes(8), None, wire.MALFORMED),
        (wire.HEARTBEAT, b"x", None, wire.MALFORMED),
        (wire.ACK, b"", None, wire.MALFORMED),
        (wire.DELIVER_ACK, bytes(7), None, wire.MALFORMED),
        (wire.MISSED, bytes(8), None, wire.MALFORMED),
        (99, b"", None, wire.MALFORMED),
    ],
)
async def test_a_device_is_told_of_a_wrong_frame_too(tmp_path, kind, body, length, reason):
    """Error, and the session goes on."""
    async with world(tmp_path) as here, await here.device(key_pair()[0]) as device:
        await device.send(kind, body, length)
        assert (await device.expect(wire.ERROR)).error == (reason, 0)
        await device.nothing_comes()


async def test_without_a_store_a_device_is_told_to_come_again(tmp_path):
    """Missed would have to come first, so the session is refused as a whole: Error 5."""
    async with world(tmp_path) as here:
        await here.stop_store()
        async with await here.device(key_pair()[0]) as device:
            reason, seconds = (await device.expect(wire.ERROR)).error
            assert (reason, seconds > 0) == (wire.UNAVAILABLE, True)
            await device.expect_end()


async def test_a_device_that_does_not_read_costs_a_page(tmp_path):
    """Of 40 MiB that wait, what a stuck session holds is its page, not its window."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        for number in range(640):
            await here.store.put(public, bytes([number % 256]) * 65_000)
        async with await here.device(private) as device:
            await device.expect(wire.DELIVER)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert here.server.unsent() <= 70_000


async def test_a_flood_of_heartbeats_is_held_back(tmp_path):
    """A device that asks and asks and does not read is read no further; nothing is lost."""
    async with world(tmp_path) as here, await here.device(key_pair()[0]) as device:
        flood = b"".join(device.sealed(wire.HEARTBEAT) for _ in range(40_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.stream.send_all, flood)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert here.server.unsent() < 300_000
            for _ in range(40_000):
                await device.expect(wire.HEARTBEAT)


async def test_unfinished_messages_of_all_sessions_have_a_limit(tmp_path):
    """Whose bytes exceed it is ended, the others go on, and what ended has given back."""
    memory = Memory(partial=200_000)
    async with world(tmp_path, memory=memory) as here:
        peers = [await here.pusher() for _ in range(4)]
        frames = [peer.sealed(wire.PUSH, bytes(32) + bytes(60_000)) for peer in peers]
        for number, (peer, frame) in enumerate(zip(peers, frames, strict=True)):
            await peer.stream.send_all(frame[:60_000])
            await here.until_sessions(push=3 if number == 3 else 4, receive=0)
            await trio.testing.wait_all_tasks_blocked(0.02)
        for peer, frame in zip(peers[:3], frames[:3], strict=True):
            await peer.stream.send_all(frame[60_000:])
            assert (await peer.frames(1))[0].kind == wire.ACK
        assert memory.partial == 0
        for peer in peers:
            await peer.__aexit__()


async def test_input_waits_while_too_much_is_in_hand(tmp_path):
    """Sessions that push more than may be in memory are slowed down, and all is stored."""
    _, public = key_pair()
    memory = Memory(in_hand=100_000)
    async with world(tmp_path, memory=memory) as here:

        async def push_much() -> None:
            async with await here.pusher() as peer:
                sent = b"".join(peer.sealed(wire.PUSH, public + bytes(30_000)) for _ in range(10))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peer.stream.send_all, sent)
                    for frame in await peer.frames(10):
                        assert frame.kind == wire.ACK
                    assert memory.in_hand < 100_000 + 2 * 65_536

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(push_much)
        assert len(await here.store.flush(public, limit=500, max_bytes=2**30)) == 100
        await here.until_sessions(push=0, receive=0)
        assert memory.in_hand == 0


# --- the end --------------------------------------------------------------------------------------


async def test_draining_answers_what_is_in_hand_and_ends_receives(tmp_path):
    """Idle pushes end, one that is half received may finish, devices are let go."""
    private, public = key_pair()
    async with world(tmp_path) as here:
        idle, busy, device = await here.pusher(), await here.pusher(), await here.device(private)
        await device.nothing_comes()
        sealed = busy.sealed(wire.PUSH, public + bytes(1000))
        await busy.stream.send_all(sealed[:500])
        silent = await Peer.open(here.receive_address)
        await here.until_sessions(push=2, receive=2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        here.server.drain()
        await idle.expect_end()
        await device.expect_end()
        await silent.expect_end()
        await busy.stream.send_all(sealed[500:])
        await busy.expect(wire.ACK)
        await busy.expect_end()
        for peer in (idle, busy, device, silent):
            await peer.__aexit__()
        await here.until_sessions(push=0, receive=0)


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_exact_and_forgotten():
    """A burst, then one an interval; a silent key is forgotten, so memory follows the load."""
    now = 0.0
    rates = RecipientRates(rate=20, burst=500, clock=lambda: now)
    assert [rates.take(b"k") for _ in range(500)] == [0.0] * 500
    assert rates.take(b"k") == pytest.approx(0.05)
    now = 0.05
    assert rates.take(b"k") == 0.0
    assert rates.take(b"k") > 0
    now = math.inf
    assert rates.take(b"k") == 0.0
    now = 0.0
    rates = RecipientRates(rate=20, burst=500, clock=lambda: now)
    for number in range(200_000):
        now = number / 10_000
        rates.take(number.to_bytes(4, "big"))
        assert len(rates) < 4096
