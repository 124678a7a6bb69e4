"""A device and a push client, written from docs/devices.md alone on an independent Noise.

Nothing of the relay is imported here, so that a misreading of the format in the relay's code
cannot hide behind the same misreading on the other side.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import trio
from noise.connection import Keypair, NoiseConnection

PUSH, DELIVER, HEARTBEAT, ACK, ERROR, DELIVER_ACK, MISSED = range(1, 8)
MALFORMED, TOO_LARGE, INBOX_FULL, RATE_LIMITED, UNAVAILABLE = range(1, 6)
PATIENCE = 20.0  # s; on a busy machine everything but a hang is over by then


def key_pair() -> tuple[bytes, bytes]:
    """Return a new (private, public) pair of X25519."""
    connection = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_BLAKE2s")
    connection.set_keypair_from_private_bytes(Keypair.STATIC, private := os.urandom(32))
    return private, bytes(connection.noise_protocol.keypairs["s"].public_bytes)


class HandshakeRefused(Exception):
    """The relay has closed instead of answering."""


@dataclass(frozen=True)
class Frame:
    """A frame as it came."""

    kind: int
    body: bytes

    @property
    def blob_id(self) -> int:
        """The id of a Deliver."""
        assert self.kind == DELIVER
        return int.from_bytes(self.body[:8], "big")

    @property
    def envelope(self) -> bytes:
        """The envelope of a Deliver."""
        assert self.kind == DELIVER
        return self.body[8:]

    @property
    def error(self) -> tuple[int, int]:
        """Reason and retry-after of an Error."""
        assert self.kind == ERROR
        assert len(self.body) == 5
        reason, seconds = struct.unpack(">BI", self.body)
        return reason, seconds


class Peer:
    """One connection to the relay, of either kind.  Waits are bounded by `PATIENCE`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.noise: NoiseConnection
        self.received = b""
        self.relay_key = b""

    @classmethod
    async def open(cls, address: str, source: str | None = None) -> Peer:
        """Connect, from the address `source` if one is given, without a handshake."""
        host, _, port = address.rpartition(":")
        return cls(await trio.open_tcp_stream(host, int(port), local_address=source))

    @classmethod
    async def pusher(cls, address: str, relay_key: bytes, source: str | None = None) -> Peer:
        """Open a push session with the relay of that key."""
        peer = await cls.open(address, source)
        peer.noise = NoiseConnection.from_name(b"Noise_NK_25519_ChaChaPoly_BLAKE2s")
        peer.noise.set_as_initiator()
        peer.noise.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, relay_key)
        await peer.shake_hands()
        return peer

    @classmethod
    async def device(cls, address: str, private: bytes) -> Peer:
        """Open a receive session as the holder of a private key."""
        peer = await cls.open(address)
        peer.noise = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_BLAKE2s")
        peer.noise.set_as_initiator()
        peer.noise.set_keypair_from_private_bytes(Keypair.STATIC, private)
        await peer.shake_hands()
        return peer

    async def shake_hands(self) -> None:
        """Go through the handshake that `noise` was set up for."""
        noise = self.noise
        noise.start_handshake()
        await self.send_message(bytes(noise.write_message()))
        answer = await self.message()
        if answer is None:
            await self.__aexit__()
            raise HandshakeRefused
        assert noise.read_message(answer) == b""
        if not noise.handshake_finished:  # XX: the relay has proven its key, now it is our turn
            self.relay_key = bytes(noise.noise_protocol.handshake_state.rs.public_bytes)
            await self.send_message(bytes(noise.write_message()))
        assert noise.handshake_finished

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.aclose_forcefully(self.stream)

    # Bytes.

    async def send_message(self, message: bytes) -> None:
        """Send a Noise message."""
        with trio.fail_after(PATIENCE):
            await self.stream.send_all(struct.pack(">H", len(message)) + message)

    async def message(self) -> bytes | None:
        """Return the next Noise message, or None when the relay has closed."""
        with trio.fail_after(PATIENCE):
            while True:
                if len(self.received) >= 2:
                    end = 2 + int.from_bytes(self.received[:2], "big")
                    if len(self.received) >= end:
                        message, self.received = self.received[2:end], self.received[end:]
                        return message
                try:
                    more = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    more = b""
                if not more:
                    assert not self.received, "the relay closed within a message"
                    return None
                self.received += more

    # Frames.

    def sealed(self, kind: int, body: bytes = b"", length: int | None = None) -> bytes:
        """Return a frame as it goes over TCP; `length`: what its length field shall say."""
        plain = struct.pack(">BI", kind, len(body) if length is None else length) + body
        message = self.noise.encrypt(plain)
        return struct.pack(">H", len(message)) + bytes(message)

    async def send(self, kind: int, body: bytes = b"", length: int | None = None) -> None:
        """Send a frame."""
        with trio.fail_after(PATIENCE):
            await self.stream.send_all(self.sealed(kind, body, length))

    async def frame(self) -> Frame | None:
        """Return the next frame, or None when the relay has closed."""
        message = await self.message()
        if message is None:
            return None
        plain = bytes(self.noise.decrypt(message))
        kind, length = struct.unpack(">BI", plain[:5])
        assert length == len(plain) - 5, "a frame's length field must be its body's"
        return Frame(kind, plain[5:])

    async def frames(self, count: int) -> list[Frame]:
        """Return the next frames."""
        found = []
        for _ in range(count):
            frame = await self.frame()
            assert frame is not None, "the relay has closed"
            found.append(frame)
        return found

    async def expect(self, kind: int) -> Frame:
        """Return the next frame, which must be of that kind."""
        (frame,) = await self.frames(1)
        assert frame.kind == kind, frame
        return frame

    async def expect_end(self) -> None:
        """Check that the relay closes without another frame."""
        assert await self.frame() is None

    async def nothing_comes(self) -> None:
        """Check that the relay has sent nothing, by having it answer a Heartbeat first."""
        await self.send(HEARTBEAT)
        await self.expect(HEARTBEAT)

    async def nothing_or_errors(self) -> None:
        """Check that the relay has sent nothing but Errors and echoes, and still answers."""
        for _ in range(2):  # one may be an answer to garbage that happened to be a Heartbeat
            await self.send(HEARTBEAT)
            while (await self.frames(1))[0].kind == ERROR:
                pass

    async def push(self, recipient: bytes, envelope: bytes) -> Frame:
        """Push a blob and return the answer."""
        await self.send(PUSH, recipient + envelope)
        (frame,) = await self.frames(1)
        return frame

    async def acknowledge(self, blob_id: int) -> None:
        """Send a DeliverAck."""
        await self.send(DELIVER_ACK, blob_id.to_bytes(8, "big"))

    async def deliveries(self, count: int, *, acknowledge: bool = False) -> list[Frame]:
        """Return the next frames, which must all be Delivers."""
        found = []
        for _ in range(count):
            found.append(await self.expect(DELIVER))
            if acknowledge:
                await self.acknowledge(found[-1].blob_id)
        return found
