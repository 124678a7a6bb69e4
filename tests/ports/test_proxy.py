"""The PROXY protocol: what is a header, and whom it names."""

from __future__ import annotations

import contextlib
import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.ports.proxy import LONGEST, SIGNATURE, Malformed, is_among, is_local, networks, read

ONE, OTHER = (
    b"PROXY TCP4 192.0.2.1 10.0.0.1 1234 25\r\n",
    b"PROXY TCP4 192.0.2.2 10.0.0.1 1234 25\r\n",
)


def version2(
    source: str, port: int = 1234, *, command: int = 1, more: bytes = b"", family: int | None = None
) -> bytes:
    """A header of version 2."""
    address = ipaddress.ip_address(source)
    target = ipaddress.ip_address("10.0.0.1" if address.version == 4 else "::1")
    body = address.packed + target.packed + struct.pack("!HH", port, 25) + more
    kind = (0x11 if address.version == 4 else 0x21) if family is None else family
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, kind, len(body)) + body


GOOD = [
    (ONE, ("192.0.2.1", 1234)),
    (b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", ("2001:db8::1", 1)),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", ("192.0.2.7", 1)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    (version2("192.0.2.1"), ("192.0.2.1", 1234)),
    (version2("2001:db8::1"), ("2001:db8::1", 1234)),
    (version2("192.0.2.1", more=b"\x20\x00\x05\x00\x00\x00\x00\x01"), ("192.0.2.1", 1234)),
    (version2("192.0.2.1", command=0), None),
    (SIGNATURE + b"\x20\x00\x00\x00", None),
    (SIGNATURE + b"\x21\x00\x00\x00", None),
    (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), None),
]


@pytest.mark.parametrize(("header", "named"), GOOD)
def test_a_header_is_read_whole_or_not_yet(header, named):
    """Whatever stands behind it; with any part of it alone, nothing is known yet."""
    for behind in (b"", b"EHLO x\r\n", b"PROXY TCP4 "):
        assert read(header + behind) == (len(header), named)
    for cut in range(len(header)):
        assert read(header[:cut]) == (0, None)


BAD = [
    b"EHLO client.example\r\n",
    b"proxy TCP4 192.0.2.1 10.0.0.1 1 2\r\n",
    b"PROXY\r\n",
    b"PROXY TCP4\r\n",
    b"PROXY  TCP4 192.0.2.1 10.0.0.1 1 2\r\n",
    b"PROXY TCP5 192.0.2.1 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2 3\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\n\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 1\r2\r\n",
    b"PROXY TCP4 192.0.2.256 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
    b"PROXY TCP6 192.0.2.1 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 65536 2\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 01 2\r\n",
    b"PROXY TCP4 192.0.2.1 10.0.0.1 -1 2\r\n",
    b"PROXY UNKNOWN " + b"x" * 200 + b"\r\n",
    b"PROXY " + b"x" * 101,
    SIGNATURE[:8] + b"x",
    SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
    SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x41\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x13\x00\x0c" + bytes(12),
    SIGNATURE + struct.pack("!BBH", 0x21, 0x11, LONGEST) + bytes(LONGEST),
]


@pytest.mark.parametrize("data", BAD)
def test_anything_else_is_malformed(data):
    """Nothing is guessed."""
    with pytest.raises(Malformed):
        read(data)


@given(
    st.binary(max_size=60), st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11"])
)
def test_any_bytes_are_a_header_or_malformed_or_too_few(data, first):
    """No other exception, and nothing is read that has not come."""
    with contextlib.suppress(Malformed):
        size, _ = read(first + data)
        assert size <= len(first + data)


def test_who_is_trusted():
    """By network, whatever the family that the socket shows."""
    trusted = networks(["10.0.0.0/8", "::1"])
    assert is_among("10.1.2.3", trusted)
    assert is_among("::ffff:10.1.2.3", trusted)
    assert is_among("::1", trusted)
    assert not is_among("11.0.0.1", trusted)
    assert not is_among("", trusted)


def test_loopback_is_what_all_of_the_way_is():
    """A proxy elsewhere names no peer that is on this machine."""
    assert is_local(("127.0.0.1", 1))
    assert is_local(("::1", 1, 0, 0))
    assert is_local(("127.0.0.1", 1, "127.0.0.1"))
    assert not is_local(("127.0.0.1", 1, "192.0.2.1"))
    assert not is_local(("192.0.2.1", 1, "127.0.0.1"))
