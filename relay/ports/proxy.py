"""The PROXY protocol, versions 1 and 2: for whom a proxy has opened a connection.

A proxy (haproxy's `send-proxy` and `send-proxy-v2`) says it in front of everything else.  `read` is
given the first bytes of a connection and says how many of them are the proxy's and whom it names.
Source: haproxy's doc/proxy-protocol.txt (2.2).

Promises:
- Only what the specification says is a header; anything else is `Malformed`, never read another
  way.  A header has at most `LONGEST` bytes.
- Whom a header names is an IP address and a port, or nobody: then the proxy speaks for itself (a
  look whether we live), or for somebody without an address, and its own counts.

Fails with `Malformed`.

Pure: no I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from relay.ip import ip_address, is_loopback

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""What version 2 begins with."""

LONGEST = 4096
"""Bytes of the longest header; the addresses of one take 216 at most, certificates more."""

_LONGEST_1 = 107  # bytes, with CRLF
_FIXED = 16  # bytes of version 2 before the addresses
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|(TCP4|TCP6) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+)"
    rb" (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4}))\r\n"
)
_ADDRESSES = {0x1: 12, 0x2: 36, 0x3: 216}  # by family: IPv4, IPv6, Unix; their bytes

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

NamedPeer: TypeAlias = tuple[str, int, str]
"""A peer that a proxy has named: its host and port, and the proxy's host."""


class Malformed(ValueError):
    """What came is no header of the PROXY protocol."""


def read(data: bytes) -> tuple[int, tuple[str, int] | None]:
    """Return how long the header is that `data` begins with, and whom it names: host and port.

    0: it has not come whole.  None: it names nobody.  Raises `Malformed`, as early as it can.
    """
    if data[:1] == b"P":
        return _read_line(data)
    if not SIGNATURE.startswith(data[: len(SIGNATURE)]):
        raise Malformed("neither version begins so")
    if len(data) < _FIXED:
        return 0, None
    return _read_binary(data)


def _read_line(data: bytes) -> tuple[int, tuple[str, int] | None]:
    end = data.find(b"\r\n", 0, _LONGEST_1)
    if end < 0:
        if not b"PROXY ".startswith(data[:6]) or len(data) >= _LONGEST_1:
            raise Malformed("no line of version 1")
        return 0, None
    found = _LINE.fullmatch(data, 0, end + 2)
    if found is None:
        raise Malformed("no line of version 1")
    kind, *rest = found.groups()
    if kind is None:
        return end + 2, None
    source, target, port, other = (text.decode() for text in rest)
    version = 4 if kind == b"TCP4" else 6
    for host in (source, target):
        try:
            address = ipaddress.ip_address(host)
        except ValueError as error:
            raise Malformed("no address") from error
        if address.version != version:
            raise Malformed("an address of the other family")
    if max(int(port), int(other)) > 65535:
        raise Malformed("no port")
    return end + 2, (_plain(source), int(port))


def _read_binary(data: bytes) -> tuple[int, tuple[str, int] | None]:
    kind, family, length = data[12], data[13], int.from_bytes(data[14:16], "big")
    if kind not in (0x20, 0x21):
        raise Malformed("another version or command")
    size = _FIXED + length
    if size > LONGEST:
        raise Malformed("a header that is too long")
    local = kind == 0x20
    addresses = _ADDRESSES.get(family >> 4, 0)
    if not local and (family >> 4 > 3 or family & 0xF > 2 or length < addresses):
        raise Malformed("no addresses")
    if len(data) < size:
        return 0, None
    if local or family not in (0x11, 0x21):  # itself; a Unix socket, a datagram, or unknown
        return size, None
    half = 4 if family == 0x11 else 16
    host = str(ipaddress.ip_address(data[_FIXED : _FIXED + half]))
    ports = _FIXED + 2 * half
    return size, (_plain(host), int.from_bytes(data[ports : ports + 2], "big"))


def _plain(host: str) -> str:
    """Return an address as a socket would show it (::ffff:192.0.2.7 is IPv4)."""
    return str(ip_address(host))


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks (`10.0.0.0/8`, `::1`); ValueError says which is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_among(host: str, trusted: Sequence[Network]) -> bool:
    """Whether a socket's host is in one of these networks."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in trusted)


def is_local(peer: Any) -> bool:
    """Whether a peer (a socket address, or a `NamedPeer`) is on this machine, its proxy too."""
    hosts = (peer[0], peer[2]) if len(peer) == 3 else (peer[0],)
    return all(is_loopback(str(host)) for host in hosts)
