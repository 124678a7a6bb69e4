"""Noise, one suite and two patterns: `NK` and `XX` with `25519_ChaChaPoly_BLAKE2s`.

What: `Handshake` is the HandshakeState and SymmetricState of the Noise specification (revision
34, sections 5.2 and 5.3), `Transport` the pair of CipherStates that it leaves behind.  The
primitives are those of `cryptography`; here is only how they are put together.  No I/O.

Promises
  * The published test vectors come out byte for byte, and an independent implementation is
    understood and understands (tests/devices/test_noise.py).
  * Whatever a peer sends, the one exception is `HandshakeFailed` or `Undecryptable`; a key of
    low order (an all-zero secret) is a failed handshake.
  * A transport keeps two ciphers and two counters.  Everything else, the ephemeral key first,
    goes with the `Handshake`, by reference count: there are no cycles.

Limits: a nonce is used once, and the counters end at 2^64 - 2 messages a direction as the
specification has it (at a million messages a second: after 584,000 years), so there is no rekey;
a message has 65,535 bytes at most, which is the framing's to keep (`wire`).

Why not the package `noiseprotocol`, which is conformant and works with a current `cryptography`:
it has had no release since 2020; it does not give out the key that the peer has proven, which
is what a receive session is about; failures come as five families of exceptions; and each
session leaves a cycle of a dozen objects to the garbage collector.  It is the independent
implementation of the tests instead.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_SIZE: Final = 32
TAG_SIZE: Final = 16

_MAX_NONCE: Final = 2**64 - 1  # reserved by the specification: never used for a message
_nonce = struct.Struct("<4xQ").pack  # ChaChaPoly: 32 bits of zeros, 64 bits little-endian


class HandshakeFailed(Exception):
    """The peer's handshake message is not one of this protocol, or was not meant for this key."""


class Undecryptable(Exception):
    """A transport message that the peer did not write, or not at this place."""


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key; `public` is its 32 raw bytes."""

    private: X25519PrivateKey = field(repr=False)
    public: bytes

    @classmethod
    def generate(cls) -> KeyPair:
        """Return a new pair from the operating system's generator."""
        return cls._of(X25519PrivateKey.generate())

    @classmethod
    def from_private(cls, raw: bytes) -> KeyPair:
        """Return the pair of 32 private bytes; any 32 bytes are a key."""
        return cls._of(X25519PrivateKey.from_private_bytes(raw))

    @classmethod
    def _of(cls, private: X25519PrivateKey) -> KeyPair:
        return cls(private, private.public_key().public_bytes_raw())

    def private_bytes(self) -> bytes:
        """Return the 32 private bytes, for keeping."""
        return self.private.private_bytes_raw()


@dataclass(frozen=True)
class Pattern:
    """A handshake pattern: what each message carries, and whose key is known beforehand."""

    name: str
    messages: tuple[tuple[str, ...], ...]
    responder_known: bool = False  # the pre-message "<- s"

    @property
    def protocol_name(self) -> bytes:
        """The name that both sides hash."""
        return f"Noise_{self.name}_25519_ChaChaPoly_BLAKE2s".encode()


NK: Final = Pattern("NK", (("e", "es"), ("e", "ee")), responder_known=True)
"""The initiator is anonymous; the responder is who the initiator already knows."""

XX: Final = Pattern("XX", (("e",), ("e", "ee", "s", "es"), ("s", "se")))
"""The pattern in which each side proves a key that the other need not know beforehand."""

_DH: Final = {"ee": ("e", "e"), "es": ("e", "s"), "se": ("s", "e")}  # (initiator's, responder's)


class Handshake:
    """One side of a handshake; `write` and `read` take turns until `finished`.

    `static` is our key (XX, and the responder of NK), `remote_static` the responder's known one
    (the initiator of NK).  `ephemeral` is for test vectors only.
    """

    def __init__(
        self,
        pattern: Pattern,
        *,
        initiator: bool,
        static: KeyPair | None = None,
        remote_static: bytes | None = None,
        prologue: bytes = b"",
        ephemeral: KeyPair | None = None,
    ) -> None:
        self.remote_static = remote_static  # 32 bytes; proven by the peer once `finished`
        self._pattern = pattern
        self._initiator = initiator
        self._static = static
        self._ephemeral = ephemeral
        self._remote_ephemeral: bytes = b""
        self._next = 0
        self._cipher: ChaCha20Poly1305 | None = None
        self._nonce = 0
        name = pattern.protocol_name
        self.hash = _hash(name) if len(name) > 32 else name.ljust(32, b"\0")
        self._chaining_key = self.hash
        self._mix_hash(prologue)
        if pattern.responder_known:
            known = remote_static
            if not initiator:
                assert static is not None
                known = static.public
            assert known is not None
            self._mix_hash(known)

    @property
    def finished(self) -> bool:
        """Whether the last message was written or read; then `transport` may be called."""
        return self._next == len(self._pattern.messages)

    @property
    def next_size(self) -> int:
        """Bytes of the message that comes next, if its payload is empty."""
        size, keyed = 0, self._cipher is not None
        for part in self._pattern.messages[self._next]:
            if part == "e":
                size += KEY_SIZE
            elif part == "s":
                size += KEY_SIZE + (TAG_SIZE if keyed else 0)
            else:
                keyed = True
        return size + (TAG_SIZE if keyed else 0)

    def write(self, payload: bytes = b"") -> bytes:
        """Return our next message.  `HandshakeFailed` for a key that the peer's last one held."""
        sent: list[bytes] = []
        for part in self._take_turn(ours=True):
            if part == "e":
                if self._ephemeral is None:
                    self._ephemeral = KeyPair.generate()
                sent.append(self._ephemeral.public)
                self._mix_hash(self._ephemeral.public)
            elif part == "s":
                assert self._static is not None
                sent.append(self._encrypt_and_hash(self._static.public))
            else:
                self._mix_dh(part)
        sent.append(self._encrypt_and_hash(payload))
        return b"".join(sent)

    def read(self, message: bytes) -> bytes:
        """Take the peer's next message and return its payload, or raise `HandshakeFailed`.

        After a failure the handshake is of no use any more.
        """
        rest = message
        try:
            for part in self._take_turn(ours=False):
                if part == "e":
                    self._remote_ephemeral, rest = rest[:KEY_SIZE], rest[KEY_SIZE:]
                    self._mix_hash(self._remote_ephemeral)
                elif part == "s":
                    size = KEY_SIZE + (TAG_SIZE if self._cipher is not None else 0)
                    sealed, rest = rest[:size], rest[size:]
                    self.remote_static = self._decrypt_and_hash(sealed)
                else:
                    self._mix_dh(part)
            return self._decrypt_and_hash(rest)
        except InvalidTag as error:
            raise HandshakeFailed("the handshake message does not verify") from error

    def transport(self) -> Transport:
        """Return the ciphers of the session; the handshake should be dropped then."""
        if not self.finished:
            raise ValueError("the handshake is not finished")
        first, second = _hkdf(self._chaining_key, b"")
        sending, receiving = (first, second) if self._initiator else (second, first)
        return Transport(ChaCha20Poly1305(sending), ChaCha20Poly1305(receiving))

    def _take_turn(self, *, ours: bool) -> tuple[str, ...]:
        if self.finished or (self._next % 2 == 0) != (self._initiator == ours):
            raise RuntimeError("it is not this side's turn")
        tokens = self._pattern.messages[self._next]
        self._next += 1
        return tokens

    def _mix_dh(self, token: str) -> None:
        mine, theirs = _DH[token] if self._initiator else _DH[token][::-1]
        pair = self._ephemeral if mine == "e" else self._static
        public = self._remote_ephemeral if theirs == "e" else self.remote_static
        assert pair is not None
        assert public is not None
        try:
            shared = pair.private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a short key; an all-zero secret
            raise HandshakeFailed("the peer's public key is no key") from error
        self._chaining_key, key = _hkdf(self._chaining_key, shared)
        self._cipher, self._nonce = ChaCha20Poly1305(key), 0

    def _mix_hash(self, data: bytes) -> None:
        self.hash = _hash(self.hash + data)

    def _encrypt_and_hash(self, plain: bytes) -> bytes:
        sealed = plain
        if self._cipher is not None:
            sealed = self._cipher.encrypt(_nonce(self._nonce), plain, self.hash)
            self._nonce += 1
        self._mix_hash(sealed)
        return sealed

    def _decrypt_and_hash(self, sealed: bytes) -> bytes:
        plain = sealed
        if self._cipher is not None:
            plain = self._cipher.decrypt(_nonce(self._nonce), sealed, self.hash)
            self._nonce += 1
        self._mix_hash(sealed)
        return plain


class Transport:
    """The two ciphers of a session.  Messages are decrypted in the order they were encrypted."""

    __slots__ = ("_received", "_receiving", "_sending", "_sent")

    def __init__(
        self, sending: ChaCha20Poly1305, receiving: ChaCha20Poly1305, number: int = 0
    ) -> None:
        """`number`: of the next message in either direction, as after so many."""
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = number

    def encrypt(self, plain: bytes) -> bytes:
        """Return the next message for the peer."""
        number = self._sent
        if number == _MAX_NONCE:
            raise OverflowError("no nonce is left")
        self._sent = number + 1
        return self._sending.encrypt(_nonce(number), plain, None)

    def decrypt(self, message: bytes) -> bytes:
        """Return what the peer's next message says, or raise `Undecryptable`."""
        number = self._received
        if number == _MAX_NONCE:
            raise Undecryptable("no nonce is left")
        try:
            plain = self._receiving.decrypt(_nonce(number), message, None)
        except InvalidTag as error:
            raise Undecryptable("a message does not verify") from error
        self._received = number + 1
        return plain


def _hash(data: bytes) -> bytes:
    return hashlib.blake2s(data).digest()


def _hkdf(chaining_key: bytes, material: bytes) -> tuple[bytes, bytes]:
    """HKDF of the specification (section 4.3) with two outputs, by HMAC-BLAKE2s."""
    secret = hmac.digest(chaining_key, material, "blake2s")
    first = hmac.digest(secret, b"\x01", "blake2s")
    return first, hmac.digest(secret, first + b"\x02", "blake2s")
