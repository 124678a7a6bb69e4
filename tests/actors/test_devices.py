"""devices and device_store under a real supervisor: ports, restarts, pauses, the end."""

import functools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from actors import device_store, devices
from relay.devices.intake import Intake
from relay.devices.noise import KeyPair
from relay.devices.server import DeviceServer
from relay.devices.sqlite import SqliteStore
from relay.errors import ConfigError
from relay.metrics import registry, render
from supervisor import ChildSpec, Supervisor, SupervisorSpec
from tests.actors.running import state
from tests.devices import peer as wire
from tests.devices.peer import Peer, key_pair
from tests.devices.world import listening
from tests.eventually import eventually

TTL = 100.0


@dataclass
class House:
    """What a test sees of a running node."""

    supervisor: Supervisor
    store: SqliteStore
    server: DeviceServer
    key: KeyPair
    push_address: str
    receive_address: str
    now: float = 2_000_000_000.0

    async def pusher(self) -> Peer:
        """Open a push session."""
        return await Peer.pusher(self.push_address, self.key.public)

    async def device(self, private: bytes) -> Peer:
        """Open a receive session."""
        return await Peer.device(self.receive_address, private)

    def restarts(self, name: str) -> int:
        """How often a child was restarted."""
        return next(
            child.restarts for child in self.supervisor.tree().children if child.name == name
        )

    async def becomes(self, name: str, wanted: str) -> None:
        """Wait until a child is in that state."""
        await eventually(
            lambda: state(self.supervisor, name),
            f"{name} is {wanted}",
            until=lambda found: found == wanted,
        )


@asynccontextmanager
async def house(path: Path, reap_every: float = 3600.0) -> AsyncIterator[House]:
    """Run device_store and devices until the block ends, then shut down in order."""
    store = SqliteStore(path / "devices.db", ttl=TTL, clock=lambda: here.now)
    key = KeyPair.generate()
    server = DeviceServer(key, store, Intake(store))
    supervisor = Supervisor()
    with listening() as push, listening() as receive:
        push_address, receive_address = (
            f"127.0.0.1:{one.getsockname()[1]}" for one in (push, receive)
        )
        here = House(supervisor, store, server, key, push_address, receive_address)
        tree = SupervisorSpec(
            "root",
            (
                ChildSpec(
                    "device_store",
                    functools.partial(device_store.run, store=store, reap_every=reap_every),
                    awaited=False,
                ),
                ChildSpec(
                    "devices",
                    functools.partial(
                        devices.run, server=server, push_sockets=[push], receive_sockets=[receive]
                    ),
                    drain_timeout=15.0,
                ),
            ),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, tree)
            with trio.fail_after(60):
                await here.becomes("devices", "running")
                yield here
                supervisor.shutdown()


async def test_a_blob_goes_through(tmp_path):
    """Pushed on one port, delivered on the other; the scrape counts sessions and blobs."""
    private, public = key_pair()
    async with house(tmp_path) as here:
        await here.becomes("device_store", "running")
        async with await here.pusher() as sender, await here.device(private) as receiver:
            assert (await sender.push(public, b"x")).kind == wire.ACK
            (frame,) = await receiver.deliveries(1, acknowledge=True)
            assert frame.envelope == b"x"
            await receiver.nothing_comes()
            assert b'relay_devices_sessions{kind="push"} 1.0' in render()
            assert b'relay_devices_sessions{kind="receive"} 1.0' in render()
            assert b'relay_devices_blobs{store="sqlite"}' in render()
    assert b"relay_devices_sessions{" not in render(), "it goes with its actor"


async def test_ports_survive_a_restart_of_the_sessions(tmp_path):
    """Sessions end, who connects meanwhile waits, and what was not acknowledged comes again."""
    private, public = key_pair()
    async with house(tmp_path) as here:
        sender, receiver = await here.pusher(), await here.device(private)
        assert (await sender.push(public, b"x")).kind == wire.ACK
        await receiver.deliveries(1)
        await here.supervisor.restart("devices")
        await sender.expect_end()
        await receiver.expect_end()
        for peer in (sender, receiver):
            await peer.__aexit__()
        async with await here.device(private) as receiver:
            assert (await receiver.deliveries(1))[0].envelope == b"x"


async def test_paused_it_lets_nobody_in_and_goes_on_with_who_is(tmp_path):
    """Connections are closed at once; open sessions work; resumed, all may come."""
    private, public = key_pair()
    async with house(tmp_path) as here, await here.pusher() as sender:
        here.supervisor.pause("devices")
        await here.becomes("devices", "paused")
        async with await Peer.open(here.receive_address) as refused:
            await refused.expect_end()
        assert (await sender.push(public, b"x")).kind == wire.ACK
        here.supervisor.resume("devices")
        await here.becomes("devices", "running")
        async with await here.device(private) as receiver:
            await receiver.deliveries(1)


async def test_a_shutdown_finishes_pushes_in_hand(tmp_path):
    """A half received push is taken and answered; receive sessions end; then all is over."""
    private, public = key_pair()
    async with house(tmp_path) as here:
        sender, receiver = await here.pusher(), await here.device(private)
        await receiver.nothing_comes()
        sealed = sender.sealed(wire.PUSH, public + bytes(5000))
        await sender.stream.send_all(sealed[:3000])
        await trio.testing.wait_all_tasks_blocked(0.02)
        here.supervisor.shutdown()
        await receiver.expect_end()
        await sender.stream.send_all(sealed[3000:])
        await sender.expect(wire.ACK)
        await sender.expect_end()
        for peer in (sender, receiver):
            await peer.__aexit__()
    with sqlite3.connect(tmp_path / "devices.db") as file:
        assert file.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
    file.close()


async def test_a_shutdown_does_not_wait_for_strangers(tmp_path, mock_clock):
    """A connection without a handshake ends at once, half a frame after the drain's ten seconds."""
    async with house(tmp_path) as here:
        silent = await Peer.open(here.push_address)
        half = await here.pusher()
        await half.stream.send_all(half.sealed(wire.PUSH, bytes(5000))[:3000])
        await trio.testing.wait_all_tasks_blocked(0.02)
        here.supervisor.shutdown()
        await silent.expect_end()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert here.server.statistics().push == 1
        mock_clock.jump(here.server.limits.drain + 0.1)
        await half.expect_end()
        for peer in (silent, half):
            await peer.__aexit__()


async def test_the_store_comes_and_goes_under_open_sessions(tmp_path):
    """While device_store restarts a push may get Error 5; afterwards the same session works."""
    _, public = key_pair()
    async with house(tmp_path) as here, await here.pusher() as sender:
        assert (await sender.push(public, b"before")).kind == wire.ACK
        await here.supervisor.restart("device_store")
        answers = [await sender.push(public, b"after")]
        while here.restarts("device_store") == 0 or answers[-1].kind == wire.ERROR:
            await trio.sleep(0.01)  # a restart that takes long is not to exhaust a limit
            answers.append(await sender.push(public, b"after"))
        assert {answer.error[0] for answer in answers if answer.kind == wire.ERROR} <= {
            wire.UNAVAILABLE
        }
        found = [blob.envelope for blob in await here.store.flush(public, limit=5000)]
        # A push that was cut off may have been stored; one that was acknowledged was.
        acknowledged = [answer for answer in answers if answer.kind == wire.ACK]
        assert found[0] == b"before"
        assert len(acknowledged) <= len(found) - 1 <= len(answers)


def waiting() -> float:
    """Calls that wait for the store, as the metric counts them."""
    return registry.get_sample_value("relay_devices_store_waiting", {"store": "sqlite"}) or 0.0


async def test_what_waits_for_the_store_is_counted(tmp_path):
    """While hundreds of puts are open the metric says so, and some time later that none is."""
    _, public = key_pair()
    async with house(tmp_path) as here:
        async with trio.open_nursery() as nursery:
            for _ in range(600):
                nursery.start_soon(here.store.put, public, b"x")
            await eventually(
                waiting, "somebody waits", until=lambda calls: calls >= 2
            )  # one at a time
        await eventually(waiting, "nobody waits", until=lambda calls: calls == 0)


async def test_the_store_is_reaped(tmp_path):
    """Every so often, in batches; devices hear how many they missed."""
    private, public = key_pair()
    async with house(tmp_path, reap_every=0.1) as here:
        async with trio.open_nursery() as nursery:
            for _ in range(600):
                nursery.start_soon(here.store.put, public, b"x")
        here.now += TTL + 1
        await eventually(
            lambda: b"relay_devices_reaped_blobs_total 600.0" in render(), "all of them are reaped"
        )
        async with await here.device(private) as receiver:
            assert int.from_bytes((await receiver.expect(wire.MISSED)).body, "big") == 600


async def test_a_newer_relays_file_is_refused_and_tried_again(tmp_path):
    """Everything else runs, the error names the file, which stays; put right, it is served."""
    path = tmp_path / "devices.db"
    _, public = key_pair()
    async with house(tmp_path):
        pass
    with sqlite3.connect(path) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        file.execute("PRAGMA user_version = 99")
    file.close()
    before = path.read_bytes()
    async with house(tmp_path) as here:
        await eventually(
            lambda: here.restarts("device_store"),
            "it is tried again",
            until=lambda times: times >= 2,
        )
        error = here.supervisor.tree().children[0].last_error
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, ConfigError)
        assert "devices.db" in str(error)
        async with await here.pusher() as sender:
            refused = await sender.push(public, b"x")
            assert refused.kind == wire.ERROR
        assert path.read_bytes() == before
        with sqlite3.connect(path) as file:
            file.execute(f"PRAGMA user_version = {version}")
        file.close()
        await here.supervisor.restart("device_store")
        await here.becomes("device_store", "running")
        async with await here.pusher() as sender:
            assert (await sender.push(public, b"x")).kind == wire.ACK
