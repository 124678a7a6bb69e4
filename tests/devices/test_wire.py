"""The frames of the device wire format, and what is wrong with one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.devices import wire
from relay.devices.wire import Reason, Refused, Splitter, decode

KEY = bytes(range(32))

FRAMES = {  # by the table of docs/devices.md, spelt out
    "01 00000023" + KEY.hex() + "616263": wire.push(KEY, b"abc"),
    "01 00000020" + KEY.hex(): wire.push(KEY, b""),
    "02 0000000b 0000000000000102 616263": wire.deliver(258, b"abc"),
    "02 00000008 0000000000000001": wire.deliver(1, b""),
    "03 00000000": wire.HEARTBEAT_FRAME,
    "04 00000000": wire.ACK_FRAME,
    "05 00000005 01 00000000": wire.error(Reason.MALFORMED),
    "05 00000005 02 00000000": wire.error(Reason.TOO_LARGE),
    "05 00000005 03 0000012c": wire.error(Reason.INBOX_FULL, 300),
    "05 00000005 04 00000019": wire.error(Reason.RATE_LIMITED, 25),
    "05 00000005 05 00000005": wire.error(Reason.UNAVAILABLE, 5),
    "06 00000008 7fffffffffffffff": wire.deliver_ack(2**63 - 1),
    "07 00000008 0000000000000003": wire.missed(3),
}


@pytest.mark.parametrize("text", FRAMES, ids=lambda text: text[:11])
def test_every_frame_is_written_and_read_as_the_specification_says(text):
    """Type, length and body of each frame, in bytes, both ways."""
    raw = bytes.fromhex(text)
    assert FRAMES[text] == raw
    assert decode(raw) == (raw[0], raw[5:])


def test_bodies_are_taken_apart():
    """Ids, counts and errors come back."""
    assert wire.number(wire.deliver(7, b"xyz")[5:]) == 7
    assert wire.number(wire.missed(9)[5:]) == 9
    assert wire.parse_error(wire.error(Reason.INBOX_FULL, 300)[5:]) == (3, 300)


def test_the_largest_push_fills_a_noise_message():
    """An envelope of 65,482 bytes makes a plaintext that with its tag is 65,535."""
    assert (wire.MAX_ENVELOPE, wire.MAX_BODY) == (65_482, 65_514)
    frame = wire.push(KEY, bytes(wire.MAX_ENVELOPE))
    assert len(frame) + wire.TAG_SIZE == wire.MAX_MESSAGE
    assert decode(frame) == (wire.PUSH, frame[5:])


def header(kind: int, length: int) -> bytes:
    """Return the first five bytes of a frame."""
    return struct.pack(">BI", kind, length)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (header(1, 65_515) + bytes(100), Reason.TOO_LARGE),
        (header(1, 2**32 - 1), Reason.TOO_LARGE),
        (header(1, 65_514) + KEY, Reason.MALFORMED),
        (header(1, 31) + bytes(31), Reason.MALFORMED),
        (header(1, 0), Reason.MALFORMED),
        (header(1, 40) + bytes(39), Reason.MALFORMED),
        (header(1, 40) + bytes(41), Reason.MALFORMED),
        (header(2, 65_515), Reason.MALFORMED),
        (header(2, 7) + bytes(7), Reason.MALFORMED),
        (header(3, 1) + b"x", Reason.MALFORMED),
        (header(4, 1) + b"x", Reason.MALFORMED),
        (header(5, 4) + bytes(4), Reason.MALFORMED),
        (header(6, 9) + bytes(9), Reason.MALFORMED),
        (header(6, 2**31), Reason.MALFORMED),
        (header(7, 7) + bytes(7), Reason.MALFORMED),
        (header(0, 0), Reason.MALFORMED),
        (header(8, 0), Reason.MALFORMED),
        (header(255, 2**32 - 1), Reason.MALFORMED),
        (b"", Reason.MALFORMED),
        (b"\x01", Reason.MALFORMED),
        (b"\x01\xff\xff\xff", Reason.MALFORMED),
    ],
)
def test_inconsistent_frames_are_refused_with_their_reason(frame, reason):
    """Too large is a Push whose length field says so; everything else is malformed."""
    with pytest.raises(Refused) as refused:
        decode(frame)
    assert refused.value.reason is reason
    assert not reason.temporary


@given(st.binary(max_size=100))
def test_any_bytes_are_a_frame_or_refused(raw):
    """Whatever is decoded encodes to the same bytes; nothing else but `Refused` comes of it."""
    try:
        kind, body = decode(raw)
    except Refused:
        return
    assert wire.encode(kind, body) == raw


def test_reasons_say_whether_to_try_again():
    """1 and 2 are permanent, 3 to 5 temporary; seconds are rounded up."""
    assert [reason.temporary for reason in Reason] == [False, False, True, True, True]
    assert Refused(Reason.RATE_LIMITED, 1.2).frame == wire.error(Reason.RATE_LIMITED, 2)


@given(st.lists(st.binary(max_size=600), max_size=8), st.randoms())
def test_the_splitter_finds_messages_however_they_arrive(messages, random):
    """A stream of messages, cut anywhere, gives the same messages; only a part of one is held."""
    stream = b"".join(map(wire.prefixed, messages))
    splitter, found, at = Splitter(), [], 0
    while at < len(stream):
        size = random.randint(1, 700)
        found += splitter.feed(stream[at : at + size])
        at += size
        assert splitter.held < 2 + 600
        if splitter.held >= 2:
            assert splitter.announced == len(messages[len(found)])
    assert found == messages
    assert splitter.held == 0
    assert splitter.announced is None
