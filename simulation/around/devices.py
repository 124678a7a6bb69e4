"""Who leaves blobs for devices, and the devices that fetch them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, call, virtual
from simulation.day import after
from simulation.history import Answer, Blob, Delivery, Visit
from simulation.places import PUSH, RECEIVE
from simulation.world import NODE

_LIVES = (inf, inf, 5.0, 20.0, 60.0)
"""Seconds for which a blob is to be kept that comes over HTTP; or as long as a relay keeps any."""
_SIZES = (0,) * 9 + (30_000,)
"""Bytes of a blob besides its marker."""
_ALL_HAVE_IT = 2.0  # seconds; what is acknowledged in one session goes to no other


async def pusher(around: Around, name: str, mean: float, devices: Sequence[Any]) -> None:
    """Leave blobs for devices, in sessions of a few pushes, or over HTTP."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        host = around.choose(rng)
        one = rng.randrange(len(devices))
        blobs = []
        for _ in range(rng.choice((1, 3))):
            to = one if rng.random() < 0.5 else rng.randrange(len(devices))
            blob = Blob(around.marker("blob"), to, at=around.world.now())
            blob.envelope = blob.marker.encode() + b"\0" + bytes(rng.choice(_SIZES))
            around.history.blobs[blob.marker] = blob
            blobs.append(blob)
        if rng.random() < 0.4:
            for blob in blobs:
                await post(around, host, blob, devices[blob.device], rng.choice(_LIVES))
        else:
            await _push(around, host, blobs, devices)
        for blob in blobs:
            around.world.tell("blob.answered", marker=blob.marker, answer=blob.answer)


async def post(around: Around, host: str, blob: Blob, key: Any, lives: float = inf) -> None:
    """Leave a blob over HTTP."""
    blob.at, blob.lives = around.world.now(), lives
    ttl = f"?ttl={1000 * lives:.0f}ms" if lives < inf else ""
    path = f"/api/v1/devices/{key.public.hex()}/blobs{ttl}"
    try:
        status, said = await call(around, host, "POST", path, blob.envelope)
    except HttpFailed:
        return
    blob.answered_at = around.world.now()
    if status == 201:
        blob.answer, blob.expires_at = Answer.KEPT, virtual(said["expires_at"])
        blob.number = int(said["id"])
    elif status < 500:
        blob.answer = Answer.REFUSED


async def _push(around: Around, host: str, blobs: Sequence[Blob], devices: Sequence[Any]) -> None:
    from relay.devices import wire
    from relay.devices.noise import NK, Handshake, KeyPair

    relay = KeyPair.from_private(around.world.secret)
    try:
        with trio.fail_after(PATIENCE):
            async with await around.network.open_tcp_stream(host, PUSH) as stream:
                session = _Noise(stream)
                await session.shake(Handshake(NK, initiator=True, remote_static=relay.public))
                for blob in blobs:
                    blob.session = blobs[0].marker
                    await session.send(wire.push(devices[blob.device].public, blob.envelope))
                for blob in blobs:
                    kind, _ = await session.frame()
                    while kind == wire.HEARTBEAT:
                        kind, _ = await session.frame()
                    blob.answered_at = around.world.now()
                    if kind == wire.ACK:
                        blob.answer = Answer.KEPT
    except BROKEN:
        pass


async def device(around: Around, number: int, key: Any, mean: float) -> None:
    """Be a device: come now and then, take what there is, acknowledge most of it."""
    NODE.set(f"device{number + 1}")
    rng = around.world.here
    while True:
        with trio.move_on_at(after(around.world.now(), rng.expovariate(1 / mean))):
            await around.stopped.wait()
        if around.stopped.is_set():  # what is left for it is fetched soon, whatever the hour
            await trio.sleep(rng.expovariate(1 / mean))
        await Device(around, number, key).come(around.choose(rng), rng)


class Device:
    """A device that comes to a node, and stays for a while."""

    def __init__(self, around: Around, number: int, key: Any) -> None:
        self._around = around
        self._number = number
        self._key = key
        self._session: _Noise | None = None
        self._said: dict[str, float] = {}  # what it has acknowledged, and when
        self._asked: deque[list[str]] = deque()
        self._unsure: list[str] = []  # what it has acknowledged since it last asked

    async def come(
        self, host: str, rng: Any, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Come to a node and take what there is.  `rng`: of how it goes about that; None: it stays
        for ever, and acknowledges what all of its sessions have by then."""
        from relay.devices.noise import XX, Handshake

        world, history = self._around.world, self._around.history
        visit = Visit(self._number, host, world.now())
        try:
            async with await self._around.network.open_tcp_stream(host, RECEIVE) as stream:
                self._session = _Noise(stream)
                with trio.fail_after(PATIENCE):
                    await self._session.shake(Handshake(XX, initiator=True, static=self._key))
                visit.began = world.now()
                history.visits.append(visit)
                task_status.started()
                with trio.move_on_after(inf if rng is None else rng.uniform(1.0, 120.0)) as stays:
                    visit.whole = await self._take(visit, rng)
                visit.whole |= stays.cancelled_caught
        except BROKEN:
            pass
        visit.ended = world.now()
        # What it said in its last moment may not have arrived.
        for marker, at in self._said.items():
            if at < world.now() - 0.1:
                history.acknowledged.setdefault(marker, at)

    async def _take(self, visit: Visit, rng: Any) -> bool:
        """Take blobs until it is gone; False: it was cut off."""
        send, arrived = trio.open_memory_channel[Delivery](inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, visit, send)
            whole = await self._store(arrived, rng)
            nursery.cancel_scope.cancel()
        return whole

    async def _hear(self, visit: Visit, arrived: trio.MemorySendChannel[Delivery]) -> None:
        """Hear what comes, when it comes."""
        from relay.devices import wire

        world, history = self._around.world, self._around.history
        assert self._session is not None
        async with arrived:
            try:
                while True:
                    kind, body = await self._session.frame()
                    if kind == wire.HEARTBEAT:
                        await self._session.send(wire.HEARTBEAT_FRAME)
                    elif kind == wire.MISSED:
                        visit.missed = wire.number(body)
                        world.tell("blobs.missed", count=visit.missed)
                    elif kind == wire.ERROR and self._asked:
                        for marker in self._asked.popleft():
                            history.heard.setdefault(marker, world.now())
                    elif kind == wire.DELIVER:
                        marker = body[8:].partition(b"\0")[0].decode(errors="replace")
                        blob = Delivery(marker, world.now(), wire.number(body), visit, body[8:])
                        history.received.setdefault(marker, []).append(blob)
                        visit.got.append(blob)
                        world.tell("blob.delivered", marker=marker)
                        await arrived.send(blob)
            except BROKEN:
                pass

    async def _store(self, arrived: trio.MemoryReceiveChannel[Delivery], rng: Any) -> bool:
        """Store what came and acknowledge it, until it is gone; False: it was cut off."""
        from relay.devices import wire

        session, world = self._session, self._around.world
        assert session is not None
        try:
            async for blob in arrived:
                if rng is None:
                    await trio.sleep_until(blob.at + _ALL_HAVE_IT)
                elif rng.random() < 0.3:  # it is slow
                    await trio.sleep(rng.uniform(0.0, 20.0))
                await session.send(wire.deliver_ack(blob.number))
                if rng is not None and rng.random() < 0.1 and (other := self._anothers()):
                    await session.send(wire.deliver_ack(other))
                self._said[blob.marker] = world.now()
                self._unsure.append(blob.marker)
                if rng is not None and rng.random() < 0.5:
                    # A frame that is not its to send is answered, once all before it is done: so it
                    # learns that what it acknowledged is gone.
                    self._asked.append(self._unsure)
                    self._unsure = []
                    await session.send(wire.ACK_FRAME)
                if rng is not None and rng.random() < 0.15:  # and may be gone before the next
                    return True
        except BROKEN:
            pass
        return False

    def _anothers(self) -> int:
        """Return the id of a blob that waits for another device; 0: none is known of."""
        history = self._around.history
        waiting = (
            each.number
            for each in history.blobs.values()
            if each.device != self._number and each.number and each.marker not in history.received
        )
        return next(waiting, 0)


class _Noise:
    """A Noise session as its initiator."""

    def __init__(self, stream: trio.SocketStream) -> None:
        from relay.devices.wire import Splitter

        self._stream = stream
        self._splitter = Splitter()
        self._arrived: list[bytes] = []
        self._transport: Any = None
        self._sending = trio.Lock()

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

        async with self._sending:
            await self._stream.send_all(prefixed(self._transport.encrypt(frame)))

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame."""
        from relay.devices import wire

        return wire.decode(self._transport.decrypt(await self._message()))
