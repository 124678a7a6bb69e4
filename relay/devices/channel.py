"""One peer on a non-blocking socket: Noise messages in, frames out.

Promises
  * `accept` makes the responder's side of a handshake; until it is done, not a byte more is kept
    than its messages are long.
  * `receive` gives whole messages as they came, `open` decrypts them in that order; `post` seals
    frames in the order of its calls, `drain` hands them to the kernel.  So a session may have one
    task that receives and any number that send.
  * What all channels keep of incomplete messages, and what they have received and not yet dealt
    with, has a limit each (`Memory`): beyond the first a channel ends, beyond the second
    receiving waits, and TCP slows the peers down.
  * An idle channel keeps two ciphers and a socket; no buffer.

Fails: `Ended` when the peer has gone or is not let go on; `HandshakeFailed`; `Undecryptable`.
Deadlines are the session's.  Nothing here knows or logs who the peer is.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import trio
from trio.lowlevel import wait_readable, wait_writable

from relay.devices.noise import Handshake, HandshakeFailed, KeyPair, Pattern, Transport
from relay.devices.wire import Splitter, prefixed
from relay.net import peer_address

_CHUNK = 65_536  # bytes of one recv
_HANDSHAKE_CHUNK = 4096


class Ended(Exception):
    """The peer has gone, or may not go on."""


class Memory:
    """What all channels of a server keep together, in bytes."""

    def __init__(self, partial: int = 64 << 20, in_hand: int = 32 << 20) -> None:
        """Allow `partial` bytes of incomplete messages, `in_hand` of complete ones."""
        self.partial_limit, self.in_hand_limit = partial, in_hand
        self.partial = self.in_hand = 0
        self._lot = trio.lowlevel.ParkingLot()

    async def wait_room(self) -> None:
        """Return when less is in hand than may be.  What is taken without a wait stays below."""
        while self.in_hand >= self.in_hand_limit:
            await self._lot.park()

    def give(self, count: int) -> None:
        """Say that `count` bytes are in hand no more."""
        self.in_hand -= count
        if self._lot and self.in_hand < self.in_hand_limit:
            self._lot.unpark_all()


class Channel:
    """A Noise session with one peer, over `sock`, which does not block and is closed here."""

    __slots__ = (
        "_early", "_held", "_in_hand", "_memory", "_pending", "_splitter", "_transport",
        "_writing", "sock",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, memory: Memory) -> None:
        self.sock = sock
        self._memory = memory
        self._splitter = Splitter()
        self._transport: Transport | None = None
        self._early: list[bytes] = []  # what came in one piece with the end of the handshake
        self._held = 0  # of `memory.partial`
        self._in_hand = 0  # of `memory.in_hand`
        self._pending = b""  # sealed, not yet the kernel's
        self._writing: trio.Event | None = None  # set when the task that writes has ended

    @property
    def host(self) -> str:
        """The peer's address; empty when it has gone already."""
        try:
            return str(peer_address(self.sock)[0])
        except (OSError, IndexError):  # the latter: a pair of sockets, as tests use
            return ""

    async def accept(self, pattern: Pattern, key: KeyPair) -> bytes | None:
        """Shake hands as the holder of `key`; return the key that the peer has proven, if any."""
        handshake = Handshake(pattern, initiator=False, static=key)
        while not handshake.finished:
            while not self._early:
                self._early = await self._read(_HANDSHAKE_CHUNK)
                if self._splitter.announced not in {None, handshake.next_size}:
                    break  # the one after the last may be any frame; it is looked at below
            if not self._early or len(self._early[0]) != handshake.next_size:
                raise HandshakeFailed("a handshake message of another length")
            handshake.read(self._early.pop(0))
            if not handshake.finished:
                self._pending += prefixed(handshake.write())
                await self.drain()
        self._transport = handshake.transport()
        return handshake.remote_static

    async def receive(self) -> list[bytes]:
        """Wait until at least one message is complete; return what is.  `Ended`.

        They are in hand until `done`.  Cancelled, it has lost nothing.
        """
        messages, self._early = self._early, []
        while not messages:
            messages = await self._read(_CHUNK)
        self._in_hand = sum(map(len, messages))
        self._memory.in_hand += self._in_hand
        return messages

    def done(self) -> None:
        """Say that what `receive` returned is dealt with."""
        if self._in_hand:
            self._memory.give(self._in_hand)
            self._in_hand = 0

    @property
    def mid_message(self) -> bool:
        """Whether a part of a message has come."""
        return self._splitter.held > 0

    def open(self, message: bytes) -> bytes:
        """Return what a message says, or raise `Undecryptable`."""
        assert self._transport is not None
        return self._transport.decrypt(message)

    def post(self, *frames: bytes) -> None:
        """Seal frames, for the next `drain` to send."""
        assert self._transport is not None
        encrypt = self._transport.encrypt
        sealed = [prefixed(encrypt(frame)) for frame in frames]
        self._pending = b"".join((self._pending, *sealed))

    @property
    def pending(self) -> int:
        """Bytes that were posted and are not the kernel's yet."""
        return len(self._pending)

    def flush(self) -> bool:
        """Send what goes without waiting; False if somebody must `drain` the rest."""
        if self._writing is None:
            while self._pending and self._send():
                pass
        return not self._pending or self._writing is not None

    async def drain(self) -> None:
        """Wait until everything posted is the kernel's.  `Ended`."""
        while self._pending:
            if self._writing is not None:
                await self._writing.wait()
            elif not self._send():
                self._writing = trio.Event()
                try:
                    await wait_writable(self.sock)
                finally:
                    self._writing.set()
                    self._writing = None

    def _send(self) -> bool:
        """Send what goes without waiting; False if the kernel takes nothing."""
        try:
            sent = self.sock.send(self._pending)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Ended("the peer has gone") from error
        self._pending = self._pending[sent:]
        return True

    async def _read(self, size: int) -> list[bytes]:
        """Read once, at most `size` bytes, and return the messages that are complete now."""
        await wait_readable(self.sock)
        memory = self._memory
        if memory.in_hand >= memory.in_hand_limit:
            await memory.wait_room()
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Ended("the peer has gone") from error
        if not data:
            raise Ended("the peer has closed")
        messages = self._splitter.feed(data)
        held = self._splitter.held
        if held != self._held:
            memory.partial += held - self._held
            self._held = held
            if memory.partial > memory.partial_limit:
                raise Ended("too much of incomplete messages is in memory")
        return messages

    async def finish(self, patience: float) -> None:
        """End so that the peer can read all that was sent; at most `patience` seconds.

        Closing with something unread would make TCP discard what the peer has not read yet.
        """
        with trio.move_on_after(patience), suppress(OSError, Ended):
            await self.drain()
            self.sock.shutdown(socket.SHUT_WR)
            while True:
                await wait_readable(self.sock)
                with suppress(BlockingIOError):
                    if not self.sock.recv(_CHUNK):
                        return

    def close(self) -> None:
        """Close the socket and give everything back."""
        self.done()
        self._memory.partial -= self._held
        self._held = 0
        self.sock.close()
