"""Noise: the published vectors, an independent implementation, and whatever a peer may send."""

import gc
import json
import weakref
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from relay.devices.noise import (
    NK,
    XX,
    Handshake,
    HandshakeFailed,
    KeyPair,
    Pattern,
    Transport,
    Undecryptable,
)

VECTORS = json.loads(Path(__file__).with_name("noise_vectors.json").read_text())["vectors"]
PATTERNS = {pattern.protocol_name.decode(): pattern for pattern in (NK, XX)}

RELAY = KeyPair.from_private(bytes(range(32)))
DEVICE = KeyPair.from_private(bytes(range(1, 33)))


def pair(pattern: Pattern) -> tuple[Handshake, Handshake]:
    """Return an initiator and a responder."""
    return (
        Handshake(
            pattern,
            initiator=True,
            static=None if pattern is NK else DEVICE,
            remote_static=RELAY.public if pattern is NK else None,
        ),
        Handshake(pattern, initiator=False, static=RELAY),
    )


def shaken(pattern: Pattern) -> tuple[Transport, Transport]:
    """Return the transports of an initiator and a responder."""
    one, other = pair(pattern)
    writer, reader = one, other
    while not one.finished:
        assert reader.read(writer.write()) == b""
        writer, reader = reader, writer
    return one.transport(), other.transport()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["protocol_name"])
def test_published_vectors(vector):
    """Every message of the published vectors comes out, and is read, byte for byte."""

    def side(prefix: str, initiator: bool) -> Handshake:
        def key(name: str) -> KeyPair | None:
            text = vector.get(f"{prefix}_{name}")
            return None if text is None else KeyPair.from_private(bytes.fromhex(text))

        known = vector.get(f"{prefix}_remote_static")
        return Handshake(
            PATTERNS[vector["protocol_name"]],
            initiator=initiator,
            static=key("static"),
            remote_static=None if known is None else bytes.fromhex(known),
            prologue=bytes.fromhex(vector[f"{prefix}_prologue"]),
            ephemeral=key("ephemeral"),
        )

    one, other = side("init", True), side("resp", False)
    writer, reader = one, other
    hashes, transports = [], None
    for message in vector["messages"]:
        payload, expected = bytes.fromhex(message["payload"]), bytes.fromhex(message["ciphertext"])
        if transports is None:
            assert writer.next_size + len(payload) == len(expected)
            assert writer.write(payload) == expected
            assert reader.read(expected) == payload
            assert writer.hash == reader.hash
            hashes.append(writer.hash.hex())
            writer, reader = reader, writer
            if one.finished:
                transports = [one.transport(), other.transport()]
                if len(hashes) % 2:  # the initiator wrote last, so the responder is next
                    transports.reverse()
        else:
            assert transports[0].encrypt(payload) == expected
            assert transports[1].decrypt(expected) == payload
            transports.reverse()
    # In the published file this is the hash before the last message of the handshake.
    assert vector["handshake_hash"] == hashes[-2]


@pytest.mark.parametrize("ours_initiates", [True, False])
@pytest.mark.parametrize("pattern", [NK, XX], ids=lambda pattern: pattern.name)
def test_an_independent_implementation_understands(pattern, ours_initiates):
    """The package noiseprotocol shakes hands with ours, in both roles, and messages pass."""
    theirs = NoiseConnection.from_name(pattern.protocol_name)
    initiator, responder = pair(pattern)
    ours = initiator if ours_initiates else responder
    if ours_initiates:
        theirs.set_as_responder()
        theirs.set_keypair_from_private_bytes(Keypair.STATIC, RELAY.private_bytes())
    else:
        theirs.set_as_initiator()
        if pattern is NK:
            theirs.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, RELAY.public)
        else:
            theirs.set_keypair_from_private_bytes(Keypair.STATIC, DEVICE.private_bytes())
    theirs.start_handshake()
    writing = ours_initiates
    while not ours.finished:
        if writing:
            theirs.read_message(ours.write())
        else:
            ours.read(bytes(theirs.write_message()))
        writing = not writing
    assert ours.hash == theirs.get_handshake_hash()
    transport = ours.transport()
    for number in range(3):
        text = b"%d" % number * number
        assert transport.decrypt(theirs.encrypt(text)) == text
        assert theirs.decrypt(transport.encrypt(text)) == text


def test_the_peer_has_proven_its_key():
    """After XX each side knows the other's key; after NK the initiator stays unknown."""
    for pattern, proven in ((XX, DEVICE.public), (NK, None)):
        one, other = pair(pattern)
        writer, reader = one, other
        while not one.finished:
            reader.read(writer.write())
            writer, reader = reader, writer
        assert one.remote_static == RELAY.public
        assert other.remote_static == proven


def test_another_relays_key_fails_the_handshake():
    """A push for one relay's key cannot be read by a relay with another."""
    client = Handshake(NK, initiator=True, remote_static=DEVICE.public)
    with pytest.raises(HandshakeFailed):
        Handshake(NK, initiator=False, static=RELAY).read(client.write())


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)], ids=["zero", "one"])
@pytest.mark.parametrize("pattern", [NK, XX], ids=lambda pattern: pattern.name)
def test_a_key_of_low_order_fails_the_handshake(pattern, point):
    """A public key that makes every secret zero is refused, whoever sends it."""
    responder = Handshake(pattern, initiator=False, static=RELAY)
    if pattern is NK:
        with pytest.raises(HandshakeFailed):
            responder.read(point + bytes(16))
    else:
        responder.read(point)
        with pytest.raises(HandshakeFailed):
            responder.write()


@given(data=st.data())
@pytest.mark.parametrize("pattern", [NK, XX], ids=lambda pattern: pattern.name)
def test_altered_handshakes_fail(pattern, data):
    """A handshake message that was changed, cut or lengthened anywhere fails the handshake."""
    one, other = pair(pattern)
    at = data.draw(st.integers(0, len(pattern.messages) - 1))
    writer, reader = one, other
    for _ in range(at):
        reader.read(writer.write())
        writer, reader = reader, writer
    message = writer.write()
    altered = data.draw(
        st.one_of(
            st.integers(0, len(message) - 1).map(lambda size: message[:size]),
            st.integers(0, 8 * len(message) - 1).map(lambda bit: flipped(message, bit)),
            st.binary(min_size=1, max_size=40).map(lambda more: message + more),
            st.binary(max_size=200),
        )
    )
    try:
        payload = reader.read(altered)
        while not one.finished or not other.finished:
            writer, reader = reader, writer
            reader.read(writer.write())
    except HandshakeFailed:
        return
    # Unencrypted parts show only where both sides use their hash: here the first payload may be.
    if payload == b"" and one.hash == other.hash:
        assert altered == message or same_key(altered, message)


def flipped(message: bytes, bit: int) -> bytes:
    """Return `message` with one bit changed."""
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def same_key(one: bytes, other: bytes) -> bool:
    """Whether two messages differ only in the bit of a key that X25519 ignores."""
    return one == flipped(other, 255)


@given(noise=st.binary(max_size=300))
def test_whatever_comes_is_undecryptable(noise):
    """Bytes that the peer did not write are `Undecryptable`, and the next true message is read."""
    one, other = TRANSPORTS
    with pytest.raises(Undecryptable):
        other.decrypt(noise)
    assert other.decrypt(one.encrypt(b"still here")) == b"still here"


TRANSPORTS = shaken(XX)


def test_messages_are_read_once_and_in_order():
    """A message that is repeated, left out or reflected does not decrypt."""
    one, other = shaken(NK)
    first, second = one.encrypt(b"1"), one.encrypt(b"2")
    with pytest.raises(Undecryptable):
        other.decrypt(second)
    with pytest.raises(Undecryptable):
        one.decrypt(first)
    assert other.decrypt(first) == b"1"
    with pytest.raises(Undecryptable):
        other.decrypt(first)


def test_no_nonce_is_used_twice():
    """At the last nonce but one a transport stops; it never wraps."""
    cipher = ChaCha20Poly1305(bytes(32))
    transport = Transport(cipher, cipher, 2**64 - 2)
    assert transport.decrypt(transport.encrypt(b"last")) == b"last"
    with pytest.raises(OverflowError):
        transport.encrypt(b"")
    with pytest.raises(Undecryptable):
        transport.decrypt(bytes(16))


def test_the_handshake_goes_at_once():
    """What a handshake holds is freed when it is dropped, without the garbage collector."""
    gc.disable()
    try:
        handshake, _ = pair(XX)
        handshake.write()
        gone = weakref.ref(handshake)
        del handshake
        assert gone() is None
    finally:
        gc.enable()


def test_keys_are_not_shown():
    """A pair's text does not hold its private half."""
    assert RELAY.private_bytes().hex() not in repr(RELAY)
    assert "private" not in repr(RELAY)
