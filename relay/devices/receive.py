"""A receive session: a device proves its key and gets what waits for it, and what comes.

Promises
  * Missed first, if anything was; then each blob of the inbox once, oldest first, and live ones
    as they come.  A blob is deleted by a DeliverAck of the key it is for and by nothing else.
  * At most `window_blobs` and `window_bytes` are unacknowledged, of which at most a page
    (`page_bytes`) is in memory here: the store keeps the others until there is room.
  * Every session of a key gets every blob; an acknowledgement in one counts for all of them, so
    a second session that only listens is not held up by its own window.
  * A DeliverAck that was received is final, also while its deletion is under way: no session of
    the key is sent the blob any more.  (Unless the store then fails until the session ends:
    nothing was promised for it yet, and the blob comes again.)
  * After `heartbeat_every` seconds of the device's silence the relay asks, and again; after
    `receive_idle` it ends the session.  A Heartbeat that answers ours is not answered.

Two tasks: one reads, one delivers.  Each looks after its own half, and `Channel` keeps what they
send in order.
"""

from __future__ import annotations

import math
from contextlib import suppress

import trio
from prometheus_client import Counter

from relay.chance import new_rng
from relay.devices.channel import Channel
from relay.devices.limits import DeviceLimits
from relay.devices.noise import Undecryptable
from relay.devices.store import InboxStore, StoreUnavailable, Wakeups
from relay.devices.wire import (
    DELIVER_ACK,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    Reason,
    Refused,
    decode,
    deliver,
    error,
    missed,
    number,
)
from relay.metrics import registry

DELIVERED = Counter("relay_devices_delivers", "Deliver frames that were sent.", registry=registry)
ACKNOWLEDGED = Counter(
    "relay_devices_deliver_acks", "DeliverAck frames that came.", registry=registry
)

_MAX_ID = 2**63 - 1  # the largest that the stores give; the frame has room for more
_DELETE_PATIENCE = 5.0  # s; that of a session which ends for the deletion under way
_BACKLOG = 16_384  # bytes of our answers that a device may leave unread while we read on

_rng = new_rng()


class Device:
    """A key with at least one session here, or with a deletion under way."""

    __slots__ = ("acknowledged", "sessions")

    def __init__(self) -> None:
        self.sessions: list[ReceiveSession] = []
        self.acknowledged: set[int] = set()  # being deleted: not to be sent any more


class DeviceSessions:
    """The receive sessions of this node, by the key that their device has proven."""

    def __init__(self, limits: DeviceLimits) -> None:
        self._limits = limits
        self._devices: dict[bytes, Device] = {}

    def enter(self, key: bytes, session: ReceiveSession) -> Device | None:
        """Count a session of `key`; None if it has enough."""
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = Device()
        if len(device.sessions) >= self._limits.sessions_per_key:
            return None
        device.sessions.append(session)
        return device

    def leave(self, key: bytes, session: ReceiveSession) -> None:
        """Forget a session that was entered."""
        device = self._devices[key]
        device.sessions.remove(session)
        if not device.sessions:
            del self._devices[key]

    def sessions(self, key: bytes) -> int:
        """Return how many sessions `key` has here."""
        device = self._devices.get(key)
        return 0 if device is None else len(device.sessions)


class ReceiveSession:
    """One session, after its handshake.  `run` in a task of its own."""

    __slots__ = (
        "_after", "_channel", "_device", "_device_sessions", "_gone", "_key", "_limits",
        "_nursery", "_room", "_scope", "_store", "_unacked", "_unacked_bytes", "_wanted",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        key: bytes,
        store: InboxStore,
        device_sessions: DeviceSessions,
        limits: DeviceLimits,
    ) -> None:
        """Serve the device that has proven `key`."""
        self._channel = channel
        self._key = key
        self._store = store
        self._device_sessions = device_sessions
        self._limits = limits
        self._after = 0  # the last id that was looked at
        self._unacked: dict[int, int] = {}  # id -> bytes
        self._unacked_bytes = 0
        self._wanted = 0  # bytes that the next blob is known to have
        self._room: trio.Event | None = None  # set when something was acknowledged
        self._gone: set[int] | None = None  # acknowledged while a page is being read
        self._scope = trio.CancelScope()

    @property
    def unsent(self) -> int:
        """Bytes for the peer that the kernel has not taken."""
        return self._channel.pending

    def drain(self) -> None:
        """End now: what is not acknowledged comes again."""
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the device has gone, is silent for too long, or breaks the protocol.

        Raises `Ended` and `Undecryptable`, in groups too.
        """
        device = self._device_sessions.enter(self._key, self)
        if device is None:
            await self._refuse(Reason.RATE_LIMITED, self._limits.receive_idle)
            return
        self._device = device
        try:
            with self._scope, self._store.subscribe(self._key) as wakeups:
                self._scope.deadline = trio.current_time() + self._limits.receive_idle
                try:
                    await self._tell_missed()
                except StoreUnavailable as failure:
                    # Missed comes first or not at all, so nothing can be said before it.
                    await self._refuse(Reason.UNAVAILABLE, failure.retry_after)
                    return
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._deliver, wakeups)
                    await self._read()
        finally:
            self._device_sessions.leave(self._key, self)

    async def _refuse(self, reason: Reason, retry_after: float) -> None:
        self._channel.post(error(reason, math.ceil(retry_after)))
        await self._channel.finish(self._limits.linger)

    async def _tell_missed(self) -> None:
        found = await self._store.missed(self._key)
        if found.count:
            self._channel.post(missed(found.count))
            await self._channel.drain()
            with suppress(StoreUnavailable):  # it is told again next time
                await self._store.told(self._key, found.mark)

    # What the device sends.

    async def _read(self) -> None:
        asked = 0  # heartbeats of ours that were not answered yet
        heartbeat_at = trio.current_time() + self._limits.heartbeat_every
        while True:
            messages: list[bytes] = []
            with trio.move_on_at(heartbeat_at):
                messages = await self._channel.receive()
            now = trio.current_time()
            heartbeat_at = now + self._limits.heartbeat_every
            if not messages:
                asked += 1
                await self._say(HEARTBEAT_FRAME)
                continue
            self._scope.deadline = now + self._limits.receive_idle
            asked = await self._turn(messages, asked)
            self._channel.done()

    async def _turn(self, messages: list[bytes], asked: int) -> int:
        """Deal with what came; return how many of our heartbeats are unanswered now."""
        answers: list[bytes] = []
        acknowledged: list[int] = []
        intact = True
        for message in messages:
            try:
                kind, body = decode(self._channel.open(message))
                if kind == DELIVER_ACK:
                    acknowledged.append(number(body))
                elif kind != HEARTBEAT:
                    answers.append(Refused(Reason.MALFORMED).frame)
                elif asked:
                    asked -= 1
                else:
                    answers.append(HEARTBEAT_FRAME)
            except Refused as refused:
                answers.append(refused.frame)
            except Undecryptable:
                intact = False  # what came before it was the device's own word
                break
        if acknowledged:
            ACKNOWLEDGED.inc(len(acknowledged))
            await self._delete({blob_id for blob_id in acknowledged if blob_id <= _MAX_ID})
        if not intact:
            raise Undecryptable
        if answers:
            await self._say(*answers)
        return asked

    async def _delete(self, ids: set[int]) -> None:
        """Delete blobs of this device; in an outage, again and again."""
        device = self._device
        ids -= device.acknowledged  # another session is at it
        device.acknowledged |= ids
        try:
            for session in device.sessions:
                session._release(ids)
            while ids:
                try:
                    # Shielded, for a session that begins after the end of this one must not be
                    # sent what is just being deleted.
                    with trio.move_on_after(_DELETE_PATIENCE, shield=True):
                        await self._store.delete(self._key, sorted(ids))
                        break
                    await trio.lowlevel.checkpoint()  # one that has ended has waited long enough
                except StoreUnavailable as failure:
                    await trio.sleep(failure.retry_after * _rng.uniform(0.5, 1.0))
        finally:
            device.acknowledged -= ids

    async def _say(self, *frames: bytes) -> None:
        """Send small frames; wait for the device to read only when it leaves many unread."""
        channel = self._channel
        channel.post(*frames)
        if channel.pending > self._limits.page_bytes + _BACKLOG:
            await channel.drain()
        elif not channel.flush():
            self._nursery.start_soon(channel.drain)

    # What it is sent.

    async def _deliver(self, wakeups: Wakeups) -> None:
        every = self._limits.rescan_every
        while True:
            try:
                while await self._deliver_page():
                    pass
            except StoreUnavailable as failure:
                await trio.sleep(failure.retry_after * _rng.uniform(0.5, 1.5))
                continue
            with trio.move_on_after(every * _rng.uniform(0.5, 1.5)):
                await wakeups.wait()

    async def _deliver_page(self) -> bool:
        """Send what waits, as far as the window and a page go; False if nothing waits."""
        limits, device = self._limits, self._device
        while not self._fits(self._wanted):
            self._room = trio.Event()
            await self._room.wait()
        self._gone = set(device.acknowledged)  # from now on, while the page is read
        page = await self._store.flush(
            self._key,
            self._after,
            limit=limits.window_blobs - len(self._unacked),
            max_bytes=max(0, min(limits.page_bytes, limits.window_bytes - self._unacked_bytes)),
        )
        gone, self._gone = self._gone, None
        self._wanted = 0
        frames = []
        for blob in page:
            size = len(blob.envelope)
            if not self._fits(size):  # the store gives one at least, whatever its size
                self._wanted = size
                break
            self._after = blob.id
            if blob.id not in gone:
                self._unacked[blob.id] = size
                self._unacked_bytes += size
                frames.append(deliver(blob.id, blob.envelope))
        if frames:
            DELIVERED.inc(len(frames))
            self._channel.post(*frames)
            await self._channel.drain()
        return bool(page)

    def _fits(self, size: int) -> bool:
        """Whether the window has room for a blob of so many bytes."""
        limits = self._limits
        return not self._unacked or (
            len(self._unacked) < limits.window_blobs
            and self._unacked_bytes + size <= limits.window_bytes
        )

    def _release(self, ids: set[int]) -> None:
        """Take acknowledged blobs out of the window, and out of a page that is being read."""
        if self._gone is not None:
            self._gone |= ids
        released = [self._unacked.pop(blob_id) for blob_id in ids & self._unacked.keys()]
        self._unacked_bytes -= sum(released)
        if released and self._room is not None:
            self._room.set()
            self._room = None
