"""A client written from docs/devices.md alone, on a raw Noise library, against the program."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from tests.devices import peer as wire
from tests.devices.peer import Peer, key_pair
from tests.relay_process import RelayProcess

LARGEST = 65_482


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay for all tests of this file; each uses devices of its own."""
    env = {"RELAY_LOG__LEVEL": "debug"}
    with RelayProcess(tmp_path_factory.mktemp("relay") / "var", env=env) as found:
        yield found


@asynccontextmanager
async def pusher(relay: RelayProcess) -> AsyncIterator[Peer]:
    """A push session."""
    key = bytes.fromhex(relay.run["devices_key"])
    async with await Peer.pusher(relay.run["devices_push"], key) as session:
        yield session


@asynccontextmanager
async def device(relay: RelayProcess, private: bytes) -> AsyncIterator[Peer]:
    """A receive session."""
    async with await Peer.device(relay.run["devices_receive"], private) as session:
        yield session


def put(relay: RelayProcess, key: str, envelope: bytes) -> httpx.Response:
    """Put a blob over HTTP, as nobody."""
    return httpx.post(
        f"{relay.run['http']}/api/v1/devices/{key}/blobs",
        content=envelope,
        headers={"Content-Type": "application/octet-stream"},
        timeout=30,
    )


async def test_one_static_key_on_both_ports(relay):
    """relay.json has it in 64 hex digits; NK needs it, XX proves it; its file has mode 0600."""
    assert len(relay.run["devices_key"]) == 64
    assert (relay.data_dir / "device_key").stat().st_mode & 0o777 == 0o600
    async with pusher(relay) as session:
        await session.nothing_comes()
    async with device(relay, key_pair()[0]) as session:
        assert session.relay_key.hex() == relay.run["devices_key"]


async def test_a_blob_from_push_to_deliver_ack(relay):
    """Live and waiting, the smallest and the largest, byte for byte; acknowledged it is gone."""
    private, public = key_pair()
    envelopes = [b"", b"one", bytes(range(256)) * 255 + bytes(202), b"one"]
    async with pusher(relay) as sender:
        for envelope in envelopes[:2]:
            assert (await sender.push(public, envelope)).kind == wire.ACK
        async with device(relay, private) as receiver:
            found = await receiver.deliveries(2)
            for envelope in envelopes[2:]:
                assert (await sender.push(public, envelope)).kind == wire.ACK
            found += await receiver.deliveries(2)
            assert [frame.envelope for frame in found] == envelopes
            assert len({frame.blob_id for frame in found}) == 4, "equal blobs are two"
            await receiver.acknowledge(found[0].blob_id)
            await receiver.acknowledge(found[2].blob_id)
        async with device(relay, private) as receiver:
            again = await receiver.deliveries(2, acknowledge=True)
            assert [frame.blob_id for frame in again] == [found[1].blob_id, found[3].blob_id]
            await receiver.nothing_comes()
        async with device(relay, private) as receiver:
            await receiver.nothing_comes()


async def test_answers_come_in_the_order_of_the_pushes(relay):
    """300 frames in one go, every seventh wrong in some way: one answer each, in order."""
    private, public = key_pair()
    wrong = [
        ((wire.PUSH, bytes(31), None), wire.MALFORMED),
        ((wire.PUSH, bytes(32), 65_515), wire.TOO_LARGE),
        ((wire.PUSH, bytes(40), 39), wire.MALFORMED),
        ((wire.DELIVER_ACK, bytes(8), None), wire.MALFORMED),
        ((77, b"", None), wire.MALFORMED),
    ]
    async with pusher(relay) as sender:
        sent, expected = b"", []
        for number in range(300):
            if number % 7 == 3:
                frame, reason = wrong[number // 7 % len(wrong)]
                sent += sender.sealed(*frame)
                expected.append(reason)
            else:
                sent += sender.sealed(wire.PUSH, public + b"%d" % number)
                expected.append(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.stream.send_all, sent)
            frames = await sender.frames(300)
        assert [f.error[0] if f.kind == wire.ERROR else 0 for f in frames] == expected
        assert all(f.kind in {wire.ACK, wire.ERROR} for f in frames)
    async with device(relay, private) as receiver:
        found = await receiver.deliveries(expected.count(0), acknowledge=True)
        assert [f.envelope for f in found] == [b"%d" % n for n in range(300) if n % 7 != 3]


async def test_http_puts_into_the_same_inbox(relay):
    """201 with the id that Deliver has, for any spelling of the key; 404, 413 otherwise."""
    private, public = key_pair()
    async with device(relay, private) as receiver:
        for text in (public.hex(), public.hex().upper()):
            answer = put(relay, text, b"over http")
            assert answer.status_code == 201
            assert set(answer.json()) == {"id", "expires_at"}
            (frame,) = await receiver.deliveries(1, acknowledge=True)
            assert answer.json()["id"] == str(frame.blob_id)
            assert frame.envelope == b"over http"
        assert put(relay, public.hex(), bytes(LARGEST)).status_code == 201
        assert len((await receiver.deliveries(1, acknowledge=True))[0].envelope) == LARGEST
        assert put(relay, public.hex(), bytes(LARGEST + 1)).status_code == 413
        assert put(relay, public.hex()[:-1], b"x").status_code == 404
        assert put(relay, "g" * 64, b"x").status_code == 404
        await receiver.nothing_comes()


async def test_a_recipients_rate_is_one_for_both_ways_in(relay):
    """After a burst of 500: Error 4 on the session, 429 with Retry-After over HTTP."""
    _, public = key_pair()
    async with pusher(relay) as sender:
        sent = b"".join(sender.sealed(wire.PUSH, public + b"x") for _ in range(700))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.stream.send_all, sent)
            frames = await sender.frames(700)
        kinds = [frame.kind for frame in frames]
        assert kinds[:500] == [wire.ACK] * 500
        refused = [frame.error for frame in frames if frame.kind == wire.ERROR]
        assert refused
        assert all(reason == wire.RATE_LIMITED and seconds >= 1 for reason, seconds in refused)
        async with trio.open_nursery() as nursery:

            async def take_what_is_let_in() -> None:
                while True:
                    assert (await sender.push(public, b"x")).kind in {wire.ACK, wire.ERROR}

            nursery.start_soon(take_what_is_let_in)  # twenty a second
            answer = await trio.to_thread.run_sync(put, relay, public.hex(), b"x")
            while answer.status_code == 201:
                answer = await trio.to_thread.run_sync(put, relay, public.hex(), b"x")
            nursery.cancel_scope.cancel()
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.headers["Content-Type"] == "application/problem+json"


async def test_the_window_is_64_frames_or_a_mebibyte(relay):
    """No 65th before an acknowledgement; sixteen of the largest."""
    private, public = key_pair()
    async with pusher(relay) as sender, device(relay, private) as receiver:
        for number in range(66):
            assert (await sender.push(public, b"%d" % number)).kind == wire.ACK
        found = await receiver.deliveries(64)
        await receiver.nothing_comes()
        for frame in found:
            await receiver.acknowledge(frame.blob_id)
        await receiver.deliveries(2, acknowledge=True)
        for _ in range(18):
            assert (await sender.push(public, bytes(LARGEST))).kind == wire.ACK
        found = await receiver.deliveries(2**20 // LARGEST)
        await receiver.nothing_comes()
        await receiver.acknowledge(found[0].blob_id)
        await receiver.deliveries(1)
        await receiver.nothing_comes()


async def test_another_devices_acknowledgement_deletes_nothing(relay):
    """Nor does one of a blob that never was."""
    private, public = key_pair()
    async with pusher(relay) as sender, device(relay, private) as receiver:
        assert (await sender.push(public, b"mine")).kind == wire.ACK
        (frame,) = await receiver.deliveries(1)
        async with device(relay, key_pair()[0]) as stranger:
            for blob_id in (frame.blob_id, 0, 2**64 - 1):
                await stranger.acknowledge(blob_id)
            await stranger.nothing_comes()
    async with device(relay, private) as receiver:
        assert (await receiver.deliveries(1))[0] == frame


async def test_four_sessions_of_a_key_and_no_fifth(relay):
    """Each gets every blob once; the fifth hears Error 4 and is closed."""
    private, public = key_pair()
    address = relay.run["devices_receive"]
    sessions = [await Peer.device(address, private) for _ in range(4)]
    for session in sessions:
        await session.nothing_comes()
    async with device(relay, private) as fifth:
        reason, seconds = (await fifth.expect(wire.ERROR)).error
        assert (reason, seconds > 0) == (wire.RATE_LIMITED, True)
        await fifth.expect_end()
    async with pusher(relay) as sender:
        for number in range(3):
            assert (await sender.push(public, b"%d" % number)).kind == wire.ACK
    for session in sessions:
        assert [f.envelope for f in await session.deliveries(3)] == [b"0", b"1", b"2"]
        await session.nothing_comes()
        await session.__aexit__()


async def test_missed_blobs_are_told_first_and_once(tmp_path):
    """What expired unacknowledged is told first, and each blob once."""
    private, public = key_pair()
    env = {"RELAY_DEVICES__TTL": "1s", "RELAY_DEVICES__REAP_EVERY": "100ms"}
    with RelayProcess(tmp_path / "var", env=env) as relay:
        async with pusher(relay) as sender:
            for number in range(3):
                assert (await sender.push(public, b"%d" % number)).kind == wire.ACK
        missed = 0
        with trio.fail_after(20):
            while missed < 3:  # delivered for as long as they live, and never afterwards
                async with device(relay, private) as receiver:
                    # Who comes between the expiry and its sweep hears nothing: the next one does.
                    with trio.move_on_after(0.5):
                        frame = await receiver.frame()
                        assert frame is not None
                        assert frame.kind in {wire.DELIVER, wire.MISSED}
                        if frame.kind == wire.MISSED:
                            missed += int.from_bytes(frame.body, "big")
        assert missed == 3
        async with device(relay, private) as receiver:
            await receiver.nothing_comes()


async def test_relays_that_share_a_database_share_the_inboxes(tmp_path, database_url):
    """Pushed to one, put to another over HTTP, received live from a third, acknowledged for all."""
    private, public = key_pair()
    env = {"RELAY_DATABASE__URL": database_url, "RELAY_DEVICES__STORE": "postgres"}
    env["RELAY_DEVICES__KEY"] = "42" * 32
    with (
        RelayProcess(tmp_path / "one", env=env) as one,
        RelayProcess(tmp_path / "two", env=env) as two,
        RelayProcess(tmp_path / "three", env=env, arguments=("--only", "control")) as three,
    ):
        assert one.run["devices_key"] == two.run["devices_key"]
        assert "devices_push" not in three.run
        async with pusher(one) as sender, device(two, private) as receiver:
            await receiver.nothing_comes()
            for number in range(5):
                assert (await sender.push(public, b"%d" % number)).kind == wire.ACK
                (frame,) = await receiver.deliveries(1, acknowledge=number < 4)
                assert frame.envelope == b"%d" % number
            answer = put(three, public.hex(), b"http")
            assert answer.status_code == 201
            (last,) = await receiver.deliveries(1)
            assert answer.json()["id"] == str(last.blob_id)
            await receiver.nothing_comes()
        async with device(one, private) as receiver:
            assert await receiver.deliveries(2, acknowledge=True) == [frame, last]
            await receiver.nothing_comes()
        async with device(two, private) as receiver, pusher(one) as sender:
            await receiver.nothing_comes()
            sent = [sender.sealed(wire.PUSH, public + b"%d" % number) for number in range(300)]
            await sender.stream.send_all(b"".join(sent))
            assert {frame.kind for frame in await sender.frames(300)} == {wire.ACK}
            found = await receiver.deliveries(300, acknowledge=True)
            assert [frame.envelope for frame in found] == [b"%d" % number for number in range(300)]


async def test_no_log_knows_who_came(relay):
    """Neither addresses nor keys of peers are in the log, at its most talkative."""
    private, public = key_pair()
    ports = []
    async with pusher(relay) as sender, device(relay, private) as receiver:
        ports += [peer.stream.socket.getsockname()[1] for peer in (sender, receiver)]
        assert (await sender.push(public, b"x")).kind == wire.ACK
        await receiver.deliveries(1, acknowledge=True)
        await sender.stream.send_all(b"\0\x20" + bytes(32))
        await sender.expect_end()
    async with await Peer.open(relay.run["devices_push"]) as stranger:
        ports.append(stranger.stream.socket.getsockname()[1])
        await stranger.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await stranger.expect_end()
    with relay.http() as http:
        assert http.get("/readyz").status_code == 200  # the log is written by then
    log = relay.log_file.read_text()
    assert '"debug"' in log
    assert public.hex() not in log
    assert not [port for port in ports if f":{port}" in log or f" {port}" in log]


def command(relay: RelayProcess, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run `relay device …` on the relay's data directory: code, output, errors."""
    done = subprocess.run(
        [sys.executable, "-m", "relay", "device", *arguments],
        env={**os.environ, "RELAY_DATA_DIR": str(relay.data_dir)},
        input=stdin,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_commands_are_working_clients(relay, tmp_path):
    """keygen, put, receive: what was put comes once, acknowledged only when it was written."""
    code, out, _ = command(relay, "keygen")
    pair = json.loads(out)
    assert (code, len(pair["private"]), len(pair["public"])) == (0, 64, 64)
    file = tmp_path / "device.json"
    file.write_bytes(out)
    blob = bytes(range(256))
    code, out, _ = command(relay, "put", "--to", pair["public"], "--json", stdin=blob)
    assert (code, json.loads(out)["acknowledged"]) == (0, True)
    code, out, _ = command(relay, "receive", "--key", str(file), "--no-ack", "--wait", "0.5")
    assert code == 0
    assert b"256 B" in out
    code, out, _ = command(relay, "receive", "--key", pair["private"], "--count", "1", "--json")
    assert (code, base64.b64decode(json.loads(out)["envelope"])) == (0, blob)
    code, out, err = command(
        relay, "receive", "--key", "-", "--count", "1", "--wait", "0.3", stdin=file.read_bytes()
    )
    assert (code, out) == (1, b"")
    assert b"did not come" in err


def test_the_commands_say_what_is_wrong(relay, tmp_path):
    """Wrong keys, large blobs, a relay that is not there: a sentence, a code, no traceback."""
    public = key_pair()[1].hex()
    push = relay.run["devices_push"]
    for code, arguments in (
        (2, ("put", "--to", "abc")),
        (2, ("put",)),
        (2, ("put", "--flush")),
        (2, ("put", "--to", public, "--flush", "--outbox", str(tmp_path))),
        (2, ("put", "--to", public, "--ttl", "soon")),
        (2, ("put", "--to", public, "--ttl", "0")),
        (1, ("put", "--to", public, "--outbox", "/dev/null")),
        (69, ("put", "--to", public, "--relay", "http://127.0.0.1:1")),
        (2, ("receive", "--key", "no-such-file")),
        (2, ("put", "--to", public, "--relay", push)),
        (1, ("put", "--to", public, "/dev/zero")),
        (69, ("put", "--to", public, "--relay", push, "--relay-key", public)),
        (69, ("put", "--to", public, "--relay", "127.0.0.1:1", "--relay-key", public)),
        (69, ("receive", "--key", "11" * 32, "--relay-key", public)),
    ):
        found, out, err = command(relay, *arguments)
        assert (found, out) == (code, b""), arguments
        assert err
        assert b"Traceback" not in err


def test_an_outbox_keeps_what_cannot_be_pushed(relay, tmp_path):
    """75 and kept while there is no relay; 0 when all of it was pushed, in order; 1 for what has
    expired, set aside; a time to live goes over HTTP."""
    private, public = key_pair()
    to, outbox = public.hex(), str(tmp_path / "out")
    nobody = ("--relay", "127.0.0.1:1", "--relay-key", to)
    code, out, err = command(relay, "put", "--to", to, "--outbox", outbox, *nobody, stdin=b"1")
    assert (code, b"1 waiting" in out, b"refused" in err) == (75, True, True)
    code, out, _ = command(
        relay, "put", "--to", to, "--outbox", outbox, "--json", *nobody, stdin=b"2"
    )
    said = json.loads(out)
    assert (code, said["waiting"], said["acknowledged"]) == (75, 2, False)
    gone = ("--relay", "http://127.0.0.1:1")
    brief = ("put", "--to", to, "--outbox", outbox, "--ttl")
    assert command(relay, *brief, "1h", *gone, stdin=b"3")[0] == 75
    assert command(relay, *brief, "1ms", *gone, stdin=b"too late")[0] in {1, 75}
    code, out, _ = command(relay, "put", "--to", to, "--outbox", outbox, "--json", stdin=b"4")
    said = json.loads(out)
    assert (said["pushed"], said["waiting"], said["acknowledged"]) == (4, 0, True)
    assert (code, len(said["refused"])) in {(1, 1), (0, 0)}, "it expired now, or just before"
    (aside,) = (tmp_path / "out" / "refused").glob("*.txt")
    assert "expired" in aside.read_text()
    assert command(relay, "put", "--flush", "--outbox", outbox)[:2] == (
        0,
        f"0 pushed, 0 waiting in {outbox}\n".encode(),
    )
    code, out, _ = command(
        relay, "receive", "--key", private.hex(), "--count", "4", "--json", "--wait", "5"
    )
    found = [base64.b64decode(json.loads(line)["envelope"]) for line in out.splitlines()]
    assert (code, found) == (0, [b"1", b"2", b"3", b"4"])


def test_a_blob_may_be_put_for_a_while(relay):
    """`--ttl`, at the relay on the data directory or at a URL; a push port has no place for it."""
    private, public = key_pair()
    to = public.hex()
    assert command(relay, "put", "--to", to, "--ttl", "1h", stdin=b"kept")[0] == 0
    url = ("--relay", relay.run["http"])
    assert command(relay, "put", "--to", to, "--ttl", "1ms", *url, stdin=b"gone")[0] == 0
    assert command(relay, "put", "--to", to, *url, stdin=b"usual")[0] == 0
    port = ("--relay", relay.run["devices_push"], "--relay-key", relay.run["devices_key"])
    code, _, err = command(relay, "put", "--to", to, "--ttl", "1h", *port, stdin=b"x")
    assert (code, b"URL" in err) == (2, True)
    code, out, _ = command(relay, "receive", "--key", private.hex(), "--json", "--wait", "0.5")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [base64.b64decode(one["envelope"]) for one in lines if "envelope" in one] == [
        b"kept",
        b"usual",
    ]


async def test_key_and_blobs_outlive_a_restart(relay):
    """A clean stop ends sessions and exits 0; afterwards key and inbox are as they were."""
    private, public = key_pair()
    relay.keep_ports()
    key = relay.run["devices_key"]
    async with pusher(relay) as sender, device(relay, private) as receiver:
        assert (await sender.push(public, b"kept")).kind == wire.ACK
        (frame,) = await receiver.deliveries(1)
        assert relay.process is not None
        relay.process.send_signal(signal.SIGTERM)
        await sender.expect_end()
        await receiver.expect_end()
    assert relay.stop() == 0
    relay.start()
    assert relay.run["devices_key"] == key
    async with device(relay, private) as receiver:
        assert (await receiver.deliveries(1))[0] == frame


@pytest.mark.soak
async def test_deadlines_in_real_time(relay):
    """Handshake 10 s, push idle 30 s, Heartbeat after 25 s, receive idle 75 s."""

    async def ends(session: Peer, after: float) -> None:
        began = trio.current_time()
        heartbeats = []
        with trio.fail_after(after + 5):
            while True:
                try:
                    with trio.fail_after(after + 5):
                        message = await session.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    message = b""
                if not message:
                    break
                heartbeats.append(trio.current_time() - began)
        await session.__aexit__()
        assert trio.current_time() - began == pytest.approx(after, abs=2)
        expected = [25, 50] if after == 75 else []
        assert heartbeats[:2] == [pytest.approx(each, abs=2) for each in expected]

    async with trio.open_nursery() as nursery:
        for port in ("devices_push", "devices_receive"):
            nursery.start_soon(ends, await Peer.open(relay.run[port]), 10)
        key = bytes.fromhex(relay.run["devices_key"])
        nursery.start_soon(ends, await Peer.pusher(relay.run["devices_push"], key), 30)
        silent = await Peer.device(relay.run["devices_receive"], key_pair()[0])
        await silent.nothing_comes()
        nursery.start_soon(ends, silent, 75)
