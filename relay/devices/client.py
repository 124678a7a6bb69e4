"""A blocking client for both device ports: what the command line, and anyone in a thread, uses.

Promises
  * `push` returns when the relay has said that the blob is durable, and raises `RefusedByRelay`
    with the reason when it has said no; the session may be used on.
  * `receive` gives what the relay sends, blobs and the count of missed ones, and answers its
    heartbeats; a blob is acknowledged only by `acknowledge`.
  * Nothing is sent to, and nothing taken from, a relay whose key is not the one that is expected.

Fails with `OSError`: `TimeoutError` when nothing came in time, `ConnectionError` when the relay
has gone, closed the session, or is not the one with that key.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from relay.devices import wire
from relay.devices.noise import (
    NK,
    XX,
    Handshake,
    HandshakeFailed,
    KeyPair,
    Transport,
    Undecryptable,
)
from relay.devices.wire import Refused, Splitter, decode, prefixed

_CHUNK = 65_536
_SEND_TIMEOUT = 60.0  # s
_FIRST_WAIT = 10.0  # s; the relay gives a handshake as long


class RefusedByRelay(Exception):
    """The relay refused a blob or a session; if `temporary`, for `retry_after` seconds."""

    def __init__(self, reason: int, retry_after: int) -> None:
        try:
            name = wire.Reason(reason).name.lower().replace("_", " ")
        except ValueError:
            name = f"reason {reason}"
        super().__init__(name)
        self.reason = reason
        self.retry_after = retry_after
        self.temporary = reason >= wire.Reason.INBOX_FULL


class Delivery(NamedTuple):
    """A blob that was delivered."""

    id: int
    envelope: bytes


class Missed(NamedTuple):
    """The number of blobs that expired before the device came."""

    blobs: int


class _Session:
    """A Noise session as the initiator."""

    def __init__(self, address: tuple[str, int], handshake: Handshake, timeout: float) -> None:
        self._sock = socket.create_connection(address, timeout)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Splitter()
        self._arrived: list[bytes] = []
        try:
            self._transport = self._shake_hands(handshake, timeout)
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._sock.close()

    def _shake_hands(self, handshake: Handshake, timeout: float) -> Transport:
        expected = handshake.remote_static
        ends_at = time.monotonic() + min(timeout, _FIRST_WAIT)
        try:
            self._sock.sendall(prefixed(handshake.write()))
            handshake.read(self._message(ends_at))
        except HandshakeFailed as error:
            raise ConnectionError("the relay does not have the key that is expected") from error
        except ConnectionError as error:
            raise ConnectionError(
                "the relay has ended the handshake; it may have another key, or take no more"
            ) from error
        if expected is not None and handshake.remote_static != expected:
            raise ConnectionError("the relay does not have the key that is expected")
        if not handshake.finished:
            self._sock.sendall(prefixed(handshake.write()))
        return handshake.transport()

    def _message(self, ends_at: float) -> bytes:
        while not self._arrived:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing came in time")
            self._sock.settimeout(left)
            data = self._sock.recv(_CHUNK)
            if not data:
                raise ConnectionError("the relay has closed the session")
            self._arrived = self._splitter.feed(data)
        return self._arrived.pop(0)

    def _any_frame(self, ends_at: float) -> tuple[int, bytes]:
        try:
            return decode(self._transport.decrypt(self._message(ends_at)))
        except (Undecryptable, Refused) as error:
            raise ConnectionError("the relay broke the protocol") from error

    def _frame(self, ends_at: float) -> tuple[int, bytes]:
        """Return the next frame that is no Heartbeat; those are answered."""
        while True:
            kind, body = self._any_frame(ends_at)
            if kind != wire.HEARTBEAT:
                return kind, body
            self._send(wire.HEARTBEAT_FRAME)

    def _send(self, *frames: bytes) -> None:
        self._sock.settimeout(_SEND_TIMEOUT)
        try:
            self._sock.sendall(b"".join(prefixed(self._transport.encrypt(each)) for each in frames))
        except BrokenPipeError as error:  # not to be taken for that of somebody's output
            raise ConnectionError("the relay has closed the session") from error


class Pusher(_Session):
    """A push session with the relay that has `relay_key`."""

    def __init__(self, address: tuple[str, int], relay_key: bytes, timeout: float = 30.0) -> None:
        """Connect; `timeout` in seconds, of this and of each wait for an answer."""
        self._timeout = timeout
        super().__init__(address, Handshake(NK, initiator=True, remote_static=relay_key), timeout)

    def push(self, recipient: bytes, envelope: bytes) -> None:
        """Return when the blob is durable.  `RefusedByRelay`."""
        for refusal in self.push_all(recipient, [envelope]):
            if refusal is not None:
                raise refusal

    def push_all(self, recipient: bytes, envelopes: Sequence[bytes]) -> list[RefusedByRelay | None]:
        """Push without waiting in between; return for each None if it is durable."""
        self._send(*(wire.push(recipient, envelope) for envelope in envelopes))
        answers: list[RefusedByRelay | None] = []
        for _ in envelopes:
            kind, body = self._frame(time.monotonic() + self._timeout)
            if kind == wire.ERROR:
                answers.append(RefusedByRelay(*wire.parse_error(body)))
            elif kind == wire.ACK:
                answers.append(None)
            else:
                raise ConnectionError("the relay broke the protocol")
        return answers


class Receiver(_Session):
    """A receive session of `device`; `relay_key` None takes any relay at its word."""

    def __init__(
        self,
        address: tuple[str, int],
        device: KeyPair,
        relay_key: bytes | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Connect; `timeout` in seconds, of this alone."""
        handshake = Handshake(XX, initiator=True, static=device)
        handshake.remote_static = relay_key
        super().__init__(address, handshake, timeout)

    def receive(self, timeout: float) -> Delivery | Missed:
        """Return what comes next; `TimeoutError` after `timeout` seconds without anything.

        An Error ends the session: `RefusedByRelay` with its reason.
        """
        kind, body = self._frame(time.monotonic() + timeout)
        if kind == wire.DELIVER:
            return Delivery(wire.number(body), body[8:])
        if kind == wire.MISSED:
            return Missed(wire.number(body))
        if kind == wire.ERROR:
            raise RefusedByRelay(*wire.parse_error(body))
        raise ConnectionError("the relay broke the protocol")

    def acknowledge(self, *ids: int) -> None:
        """Say that these blobs are safe here: the relay deletes them."""
        self._send(*(wire.deliver_ack(each) for each in ids))

    def settle(self, timeout: float) -> None:
        """Wait until the relay has dealt with what was acknowledged; blobs that come are dropped.

        By a Heartbeat: the relay echoes it when it is through with what came before.
        """
        ends_at = time.monotonic() + timeout
        self._send(wire.HEARTBEAT_FRAME)
        while self._any_frame(ends_at)[0] != wire.HEARTBEAT:
            pass
