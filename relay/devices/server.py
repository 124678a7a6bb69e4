"""The device sessions of one node: who is let in, what they share, and how they end.

Promises
  * One peer's failure, of whatever kind, ends its own session and nothing else.
  * A connection that has not shaken hands after `handshake` seconds is closed.
  * Where a port is full, one that has not shaken hands, or a push session that is idle, gives way
    to whoever comes (`relay.ports.peers`); where none is, the newcomer is closed, which costs no
    task.
  * Out of file descriptors or memory, accepting waits for sessions to end.
  * `drain`: receive sessions end, push sessions answer what is in hand.
  * Nothing of who a peer is, address or key, reaches a log or a metric.
"""

from __future__ import annotations

import enum
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import trio
from prometheus_client import Counter

from relay.devices.channel import Channel, Ended, Memory
from relay.devices.intake import Intake
from relay.devices.limits import DeviceLimits
from relay.devices.noise import NK, XX, HandshakeFailed, KeyPair, Undecryptable
from relay.devices.push import PushSession
from relay.devices.receive import DeviceSessions, ReceiveSession
from relay.devices.store import InboxStore
from relay.log import get_logger
from relay.metrics import registry
from relay.ports.connections import accept
from relay.ports.peers import Place, PortGate, TurnedAway

log = get_logger()

_ENDED = Counter(
    "relay_devices_sessions_ended", "Device sessions that ended, by kind and how.", ["kind", "how"],
    registry=registry,
)  # fmt: skip


class Kind(enum.Enum):
    """The two ports."""

    PUSH = "push"
    RECEIVE = "receive"


_PATTERNS = {Kind.PUSH: NK, Kind.RECEIVE: XX}


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """Sessions at one instant, those shaking hands included; bytes of input in memory."""

    push: int
    receive: int
    bytes_in_hand: int


class _Attended:
    """A connection as its port's gate sees it."""

    __slots__ = ("scope", "session")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.session: PushSession | ReceiveSession | None = None  # once hands were shaken

    def idle_since(self) -> float | None:
        """A device that has proven its key stays; a pusher while something is in hand."""
        if self.session is None:
            return -math.inf
        return self.session.idle_since if isinstance(self.session, PushSession) else None

    def give_way(self) -> None:
        """Another connection has the place."""
        self.scope.cancel()


class DeviceServer:
    """Push and receive sessions over sockets that the caller listens on."""

    def __init__(
        self,
        key: KeyPair,
        store: InboxStore,
        intake: Intake,
        limits: DeviceLimits | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Serve as the holder of `key`; `intake` puts into `store`; all input shares `memory`."""
        self.limits = limits or DeviceLimits()
        self._key = key
        self._store = store
        self._intake = intake
        self._device_sessions = DeviceSessions(self.limits)
        self._memory = memory or Memory()
        self._open = dict.fromkeys(Kind, 0)
        self._gates = {
            kind: PortGate(kind.value, cap, max(1, cap // 4), patience=self.limits.idle_patience)
            for kind, cap in (
                (Kind.PUSH, self.limits.max_push_sessions),
                (Kind.RECEIVE, self.limits.max_receive_sessions),
            )
        }
        self._sessions: set[PushSession | ReceiveSession] = set()
        self._shaking: set[trio.CancelScope] = set()
        self._draining = False

    def statistics(self) -> SessionStatistics:
        """Return the figures of this instant."""
        return SessionStatistics(
            self._open[Kind.PUSH], self._open[Kind.RECEIVE], self._memory.in_hand
        )

    def unsent(self) -> int:
        """Bytes that peers have not taken yet; looks at every session."""
        return sum(session.unsent for session in self._sessions)

    def sessions_of(self, key: bytes) -> int:
        """Return how many receive sessions a device has on this node."""
        return self._device_sessions.sessions(key)

    async def accept(
        self,
        kind: Kind,
        listener: socket.socket,
        nursery: trio.Nursery,
        *,
        paused: Callable[[], bool],
    ) -> NoReturn:
        """Start a session in `nursery` for everyone who connects, until cancelled.

        `listener` listens and does not block.  While `paused` connections are closed at once.
        """

        def welcome(sock: socket.socket, _peer: Any, place: Place) -> None:
            self._open[kind] += 1
            place.guest = attended = _Attended()
            nursery.start_soon(self._attend, kind, sock, place, attended)

        def turn_away(_sock: socket.socket, _peer: Any, _why: TurnedAway) -> None:
            _ENDED.labels(kind.value, "not_let_in").inc()

        await accept(
            listener,
            self._gates[kind],
            welcome=welcome,
            turn_away=turn_away,
            starved="device.accept_failed",
            paused=paused,
        )

    def open(self) -> None:
        """Let sessions in (again): the opposite of `drain`."""
        self._draining = False

    def drain(self) -> None:
        """End receive sessions now, push sessions when what is in hand is answered."""
        self._draining = True
        for scope in self._shaking:
            scope.cancel()
        for session in tuple(self._sessions):
            session.drain()

    async def _attend(
        self, kind: Kind, sock: socket.socket, place: Place, attended: _Attended
    ) -> None:
        channel = Channel(sock, self._memory)
        how = "no_handshake"
        try:
            with attended.scope:
                peer = await self._shake_hands(kind, channel)
                if peer is not None:
                    how = "ended"
                    await self._serve(kind, channel, peer, attended)
            if attended.scope.cancelled_caught:
                how = "gave_way"
        except* (Ended, HandshakeFailed):
            pass
        except* Undecryptable:
            how = "undecryptable"
        except* Exception:
            how = "failed"
            log.exception("device.session_failed", kind=kind.value)
        finally:
            channel.close()
            place.leave()
            self._open[kind] -= 1
            _ENDED.labels(kind.value, how).inc()

    async def _shake_hands(self, kind: Kind, channel: Channel) -> bytes | None:
        """Return the peer's key (of a pusher: nothing, b""), or None when that took too long."""
        with trio.move_on_after(self.limits.handshake) as scope:
            self._shaking.add(scope)
            try:
                return await channel.accept(_PATTERNS[kind], self._key) or b""
            finally:
                self._shaking.discard(scope)
        return None

    async def _serve(self, kind: Kind, channel: Channel, peer: bytes, attended: _Attended) -> None:
        session: PushSession | ReceiveSession
        if kind is Kind.PUSH:
            session = PushSession(channel, self._intake, self.limits)
        else:
            session = ReceiveSession(channel, peer, self._store, self._device_sessions, self.limits)
        attended.session = session
        if self._draining:
            return
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
