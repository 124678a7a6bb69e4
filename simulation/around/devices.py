"""Who leaves blobs for devices, and the devices that fetch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, call
from simulation.day import after
from simulation.history import Answer, Blob
from simulation.places import PUSH, RECEIVE
from simulation.world import NODE


async def pusher(around: Around, name: str, mean: float, devices: Sequence[Any]) -> None:
    """Leave blobs for devices, in sessions of a few pushes, or over HTTP."""
    from relay.devices import wire
    from relay.devices.noise import NK, Handshake

    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        host = around.choose(rng)
        blobs = []
        for _ in range(rng.choice((1, 3))):
            blob = Blob(around.marker("blob"), rng.randrange(len(devices)), at=around.world.now())
            around.history.blobs[blob.marker] = blob
            blobs.append(blob)
        if rng.random() < 0.3:
            for blob in blobs:
                path = f"/api/v1/devices/{devices[blob.device].public.hex()}/blobs"
                try:
                    status, _ = await call(around, host, "POST", path, blob.marker.encode())
                except HttpFailed:
                    continue
                if status == 201:
                    blob.answer = Answer.KEPT
                elif status < 500:
                    blob.answer = Answer.REFUSED
        else:
            try:
                with trio.fail_after(PATIENCE):
                    stream = await around.network.open_tcp_stream(host, PUSH)
                    async with stream:
                        session = _Noise(stream)
                        relay_key = around_key(around)
                        await session.shake(Handshake(NK, initiator=True, remote_static=relay_key))
                        for blob in blobs:
                            to = devices[blob.device].public
                            await session.send(wire.push(to, blob.marker.encode()))
                        for blob in blobs:
                            kind, _ = await session.frame()
                            if kind == wire.ACK:
                                blob.answer = Answer.KEPT
                            elif kind == wire.ERROR:
                                blob.answer = Answer.DOUBT
            except BROKEN:
                pass
        for blob in blobs:
            around.world.tell("blob.answered", marker=blob.marker, answer=blob.answer)


async def device(around: Around, name: str, key: Any, mean: float) -> None:
    """Be a device: come now and then, take what there is, acknowledge most of it."""
    from relay.devices.noise import XX, Handshake

    NODE.set(name)
    rng = around.world.rng(name)
    while True:
        with trio.move_on_at(after(around.world.now(), rng.expovariate(1 / mean))):
            await around.stopped.wait()
        if around.stopped.is_set():  # what is left for it is fetched soon, whatever the hour
            await trio.sleep(rng.expovariate(1 / mean))
        said: dict[str, float] = {}
        try:
            stream = await around.network.open_tcp_stream(around.choose(rng), RECEIVE)
            async with stream:
                session = _Noise(stream)
                with trio.fail_after(PATIENCE):
                    await session.shake(Handshake(XX, initiator=True, static=key))
                with trio.move_on_after(rng.uniform(1.0, 120.0)):
                    await _take_blobs(around, rng, session, said)
        except BROKEN:
            pass
        # What it said in its last moment may not have arrived.
        for marker, at in said.items():
            if at < around.world.now() - 0.1:
                around.history.acknowledged.setdefault(marker, at)


async def _take_blobs(around: Around, rng: Any, session: _Noise, said: dict[str, float]) -> None:
    """Take blobs until the device is gone; `said`: what it has acknowledged, and when."""
    from relay.devices import wire

    while True:
        kind, body = await session.frame()
        if kind != wire.DELIVER:
            continue
        marker = body[8:].decode()
        around.history.received.setdefault(marker, []).append(around.world.now())
        around.world.tell("blob.delivered", marker=marker)
        if rng.random() < 0.3:  # it is slow to store it
            await trio.sleep(rng.uniform(0.0, 20.0))
        await session.send(wire.deliver_ack(wire.number(body)))
        said[marker] = around.world.now()
        if rng.random() < 0.2:  # and may be gone before it reads the next
            return


def around_key(around: Around) -> bytes:
    """Return the public key of the relay's device ports."""
    import hashlib

    from relay.devices.noise import KeyPair

    secret = hashlib.sha256(f"{around.world.seed}".encode()).digest()
    return KeyPair.from_private(secret).public


class _Noise:
    """A Noise session as its initiator."""

    def __init__(self, stream: trio.SocketStream) -> None:
        from relay.devices.wire import Splitter

        self._stream = stream
        self._splitter = Splitter()
        self._arrived: list[bytes] = []
        self._transport: Any = None

    async def _message(self) -> bytes:
        while not self._arrived:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._arrived = self._splitter.feed(data)
        return self._arrived.pop(0)

    async def shake(self, handshake: Any) -> None:
        """Shake hands."""
        from relay.devices.wire import prefixed

        await self._stream.send_all(prefixed(handshake.write()))
        handshake.read(await self._message())
        if not handshake.finished:
            await self._stream.send_all(prefixed(handshake.write()))
        self._transport = handshake.transport()

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        from relay.devices.wire import prefixed

        await self._stream.send_all(prefixed(self._transport.encrypt(frame)))

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame that is no Heartbeat; those are answered."""
        from relay.devices import wire

        while True:
            kind, body = wire.decode(self._transport.decrypt(await self._message()))
            if kind != wire.HEARTBEAT:
                return kind, body
            await self.send(wire.HEARTBEAT_FRAME)
