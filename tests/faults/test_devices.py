"""The device ports against kills, strangers and devices that mean harm."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from relay.devices.client import Delivery, Pusher, Receiver, RefusedByRelay
from relay.devices.noise import KeyPair
from relay.settings import parse_endpoint
from tests.devices import peer as wire
from tests.devices.peer import Peer, key_pair
from tests.eventually import eventually, eventually_sync
from tests.relay_process import RelayProcess

PAGE = os.sysconf("SC_PAGE_SIZE")
QUIET = {"RELAY_LOG__LEVEL": "warning"}

# --- kill -9 --------------------------------------------------------------------------------------


class Ledger:
    """What was pushed for one device, and what of it was acknowledged."""

    def __init__(self) -> None:
        self.device = KeyPair.generate()
        self.sent: set[bytes] = set()
        self.acknowledged: list[bytes] = []


def push_until_it_ends(relay: RelayProcess, ledger: Ledger, seed: int, begun: threading.Event):
    """Push blobs of all sizes, several in flight, until the relay is gone."""
    rng = random.Random(seed)
    address = parse_endpoint(relay.run["devices_push"])
    try:
        with Pusher(address, bytes.fromhex(relay.run["devices_key"]), 20) as session:
            while True:
                blobs = [
                    rng.randbytes(rng.choice((24, 100, 1000, 65_482)))
                    for _ in range(rng.randint(1, 8))
                ]
                ledger.sent.update(blobs)
                answers = session.push_all(ledger.device.public, blobs)
                ledger.acknowledged += [
                    blob for blob, refusal in zip(blobs, answers, strict=True) if refusal is None
                ]
                begun.set()
    except OSError:
        return


def receive_all(
    relay: RelayProcess, device: KeyPair, wanted: Collection[bytes] = ()
) -> list[bytes]:
    """Receive and acknowledge what waits for a device, at least what is `wanted` if it comes."""
    address = parse_endpoint(relay.run["devices_receive"])
    found: list[bytes] = []
    missing = set(wanted)
    with Receiver(address, device, bytes.fromhex(relay.run["devices_key"]), 20) as session:
        while True:
            try:
                blob = session.receive(20 if missing else 0.2)
            except TimeoutError:
                break
            assert isinstance(blob, Delivery)
            found.append(blob.envelope)
            missing.discard(blob.envelope)
            session.acknowledge(blob.id)
        session.settle(20)
    return found


def rounds_of_kill(relay: RelayProcess, rounds: int, seed: int) -> int:
    """Kill the relay under load, start it again, count; return how many blobs were checked."""
    rng = random.Random(seed)
    relay.start()
    relay.keep_ports()
    checked = 0
    for number in range(rounds):
        ledgers = [Ledger() for _ in range(3)]
        begun = threading.Event()
        threads = [
            threading.Thread(target=push_until_it_ends, args=(relay, one, seed + number, begun))
            for one in ledgers
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        time.sleep(rng.uniform(0.05, 0.4))  # anywhere within a commit
        relay.kill()
        for thread in threads:
            thread.join(30)
        relay.start()
        for ledger in ledgers:
            found = receive_all(relay, ledger.device, ledger.acknowledged)
            missing = set(ledger.acknowledged) - set(found)
            assert not missing, f"{len(missing)} acknowledged blobs are gone"
            assert set(found) <= ledger.sent, "a blob came that nobody sent"
            assert len(found) == len(set(found)), "a blob came twice in one session"
            assert receive_all(relay, ledger.device) == []
            checked += len(ledger.acknowledged)
    return checked


def test_kill_at_a_random_moment_loses_no_acknowledged_blob(tmp_path: Path) -> None:
    """After kill -9 under load each acknowledged blob comes, whole and once; none half-written."""
    relay = RelayProcess(tmp_path / "var", env=QUIET)
    try:
        assert rounds_of_kill(relay, rounds=2, seed=5) > 20
    finally:
        relay.stop()


@pytest.mark.soak
def test_kill_at_many_random_moments_loses_no_acknowledged_blob(tmp_path: Path) -> None:
    """The same, many times over."""
    relay = RelayProcess(tmp_path / "var", env=QUIET)
    try:
        assert rounds_of_kill(relay, rounds=30, seed=time.time_ns()) > 500
    finally:
        relay.stop()


# --- strangers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay that all of these attack; in the end it stops cleanly."""
    found = RelayProcess(tmp_path_factory.mktemp("relay") / "var", env=QUIET)
    found.start()
    yield found
    assert found.stop() == 0
    assert "session_failed" not in found.log_file.read_text()
    assert "Traceback" not in found.log_file.read_text()


@asynccontextmanager
async def unhurt(relay: RelayProcess, megabytes: float) -> AsyncIterator[None]:
    """Check that the relay afterwards serves others, and has not grown by more than that."""
    before = resident(relay)
    yield
    private, public = key_pair()
    key = bytes.fromhex(relay.run["devices_key"])
    async with await Peer.pusher(relay.run["devices_push"], key) as sender:
        assert (await sender.push(public, b"still here")).kind == wire.ACK
    async with await Peer.device(relay.run["devices_receive"], private) as receiver:
        assert (await receiver.deliveries(1))[0].envelope == b"still here"
    with relay.http() as http:
        assert http.get("/readyz").status_code == 200
    assert resident(relay) - before < megabytes * 1e6


def resident(relay: RelayProcess) -> int:
    """Return the resident memory of a relay."""
    return int(Path(f"/proc/{relay.pid}/statm").read_text().split()[1]) * PAGE


async def ends(peer: Peer) -> list[wire.Frame | bytes]:
    """Read on until the relay has closed."""
    found: list[wire.Frame | bytes] = []
    with trio.fail_after(20):
        try:
            while more := await peer.stream.receive_some(65536):
                found.append(more)
        except trio.BrokenResourceError:
            pass
    await peer.__aexit__()
    return found


async def test_garbage_instead_of_handshakes(relay):
    """Random bytes, truncated and altered first messages, huge lengths: closed, no word said."""
    rng = random.Random(1)
    key = bytes.fromhex(relay.run["devices_key"])
    async with unhurt(relay, megabytes=30):
        for number in range(150):
            for port in ("devices_push", "devices_receive"):
                peer = await Peer.open(relay.run[port])
                first = rng.choice(
                    (
                        rng.randbytes(rng.randint(1, 300)),
                        b"\xff\xff" + rng.randbytes(1000),
                        struct.pack(">H", 48) + rng.randbytes(48),
                        struct.pack(">H", 48) + key + bytes(16),
                        struct.pack(">H", rng.randint(0, 100)),
                        struct.pack(">H", 32) + rng.randbytes(rng.randint(0, 31)),
                    )
                )
                with trio.move_on_after(20):
                    try:
                        await peer.stream.send_all(first)
                        if number % 2:
                            await peer.stream.send_eof()
                    except trio.BrokenResourceError:
                        pass
                    if number % 2:
                        await ends(peer)
                await peer.__aexit__()


async def test_garbage_within_a_session(relay):
    """Random frames, well encrypted, get an answer each; a broken ciphertext ends the session."""
    rng = random.Random(2)
    key = bytes.fromhex(relay.run["devices_key"])

    def frame() -> bytes:
        kind = rng.choice((*range(9), 255))
        body = rng.randbytes(rng.choice((0, 1, 5, 8, 31, 32, 33, 200)))
        length = rng.choice((None, None, len(body) + 1, 0, 65_514, 65_515, 2**32 - 1))
        return struct.pack(">BI", kind, len(body) if length is None else length) + body

    def sealed(peer: Peer, plain: bytes) -> bytes:
        message = bytes(peer.noise.encrypt(plain))
        return struct.pack(">H", len(message)) + message

    async with unhurt(relay, megabytes=30):
        for _ in range(20):
            pusher = await Peer.pusher(relay.run["devices_push"], key)
            plains = [frame() for _ in range(50)] + [rng.randbytes(n) for n in range(5)]
            await pusher.stream.send_all(b"".join(sealed(pusher, plain) for plain in plains))
            for plain in plains:
                (answer,) = await pusher.frames(1)
                assert answer.kind in {wire.ACK, wire.HEARTBEAT, wire.ERROR}
                if answer.kind == wire.ERROR:
                    too_large = plain[:1] == b"\1" and int.from_bytes(plain[1:5], "big") > 65_514
                    expected = wire.TOO_LARGE if too_large and len(plain) >= 5 else wire.MALFORMED
                    assert answer.error == (expected, 0)
            await pusher.stream.send_all(struct.pack(">H", 30) + rng.randbytes(30))
            await ends(pusher)

            device = await Peer.device(relay.run["devices_receive"], key_pair()[0])
            await device.stream.send_all(b"".join(sealed(device, plain) for plain in plains))
            await device.nothing_or_errors()
            await device.stream.send_all(struct.pack(">H", 0))
            await ends(device)


async def test_half_messages_are_bounded(relay):
    """1,150 sessions that each leave a frame of 64 KiB unfinished: 64 MiB at most.

    The sessions beyond that are ended; those that behave are served meanwhile.
    """
    key = bytes.fromhex(relay.run["devices_key"])
    half = struct.pack(">H", 65_535) + bytes(60_000)
    async with unhurt(relay, megabytes=160):
        peers = []
        for _ in range(1150):
            peer = await Peer.pusher(relay.run["devices_push"], key)
            peers.append(peer)
            try:
                await peer.stream.send_all(half)
            except trio.BrokenResourceError:
                continue
        async with await Peer.pusher(relay.run["devices_push"], key) as good:
            assert (await good.push(bytes(32), b"meanwhile")).kind in {wire.ACK, wire.ERROR}
        for peer in peers:
            await peer.__aexit__()
        with relay.http() as http:
            await eventually(
                lambda: http.get("/api/v1/devices").json()["push_sessions"],
                "none is open",
                until=lambda sessions: sessions == 0,
                within=30.0,
            )


def test_a_device_that_drops_without_acknowledging_gets_it_again(relay) -> None:
    """However often, also when the connection is reset; after the DeliverAck never."""
    device = KeyPair.generate()
    key = bytes.fromhex(relay.run["devices_key"])
    with Pusher(parse_endpoint(relay.run["devices_push"]), key, 20) as sender:
        sender.push(device.public, b"x")
    address = parse_endpoint(relay.run["devices_receive"])
    for number in range(6):
        with Receiver(address, device, key, 20) as session:
            blob = session.receive(20)
            assert isinstance(blob, Delivery)
            assert blob.envelope == b"x"
            if number == 5:
                session.acknowledge(blob.id)  # and gone at once, without waiting for anything
    with (
        Pusher(parse_endpoint(relay.run["devices_push"]), key, 20) as sender,
        Receiver(address, device, key, 20) as session,
    ):
        sender.push(device.public, b"last")  # what came again would come before it
        blob = session.receive(20)
        assert isinstance(blob, Delivery)
        assert blob.envelope == b"last"
        session.acknowledge(blob.id)


def test_devices_that_come_and_go_leave_nothing(relay) -> None:
    """Hundreds of sessions, ended in every way: in the end none is open, and a fifth may come."""
    device = KeyPair.generate()
    key = bytes.fromhex(relay.run["devices_key"])
    address = parse_endpoint(relay.run["devices_receive"])
    for _ in range(50):
        held = []
        for _ in range(5):
            try:
                held.append(Receiver(address, device, key, 20))
                with pytest.raises(TimeoutError):
                    held[-1].receive(0.0)
            except (RefusedByRelay, ConnectionError):
                pass
        for session in held:
            session.close()
    with relay.http() as http:
        eventually_sync(
            lambda: http.get("/api/v1/devices").json()["receive_sessions"],
            "none is open",
            until=lambda sessions: sessions == 0,
        )
    with (
        Pusher(parse_endpoint(relay.run["devices_push"]), key, 20) as sender,
        Receiver(address, device, key, 20) as session,
    ):
        sender.push(device.public, b"x")
        blob = session.receive(20)
        assert isinstance(blob, Delivery)
        assert blob.envelope == b"x"
        session.acknowledge(blob.id)
