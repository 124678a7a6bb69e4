"""The DNS of a simulated world: a zone that is data, and a server that answers from it.

It stands for the recursive server that the relays ask, which validates.  What it answers is true:
that a name or a record is not there, too, and what is signed.  While peers misbehave it says
nothing, or that it has failed (SERVFAIL).

Mail for the domains of `DANE` is secured: these and their exchangers are signed, and have TLSA
records.  Others have the same exchangers, and no signature that says so.
"""

from __future__ import annotations

import socket
import struct

from simulation.around import Around
from simulation.keys import tlsa
from simulation.places import DNS, LOOPBACK, RESOLVER, SERVERS

PORT = 53
_ADDRESSES = {host: f"198.51.100.{number}" for number, host in enumerate(SERVERS[1:], 1)}
"""Of the exchangers of domains."""

_MX = {
    "one.example": ((10, "mx1.example"), (10, "mx2.example")),
    "two.example": ((10, "mx2.example"), (20, "mx3.example")),
    "people.example": ((10, "mx1.example"),),
    "sender.example": ((10, "mx1.example"),),
}
_A = {f"{host}.example": address for host, address in _ADDRESSES.items()}
_A["three.example"] = _ADDRESSES["mx3"]  # the implicit MX
DANE = {"two.example"}
"""Domains whose mail goes by TLS, to whoever has the key that the zone names, or not at all."""
_SECURED = {host for domain in DANE for _, host in _MX[domain]}
_SIGNED = {*DANE, *_SECURED}
"""These names, and those below them."""
_TLSA = {f"_25._tcp.{host}" for host in _SECURED}
_ROOT = ""
_TYPES = {1: "A", 2: "NS", 15: "MX", 52: "TLSA"}
_TTL = 300
_HEADER = struct.Struct("!6H")
_SERVFAIL, _NXDOMAIN = 2, 3
_FLAGS = 0x8180  # a response, recursion desired and available
_AUTHENTIC = 0x0020  # it is signed, and that was verified


def open_dns(around: Around) -> None:
    """Let the DNS be asked, and the servers that it names be reached."""
    around.network.name(SERVERS[0], LOOPBACK)
    around.network.name(DNS, RESOLVER)
    for host, address in _ADDRESSES.items():
        around.network.name(host, address)

    async def answering(asker: str, asked: bytes) -> bytes | None:
        rng = around.world.rng(DNS)
        if around.peers_fail and rng.random() < 0.2:
            how = rng.choice(("silence", "fail"))
            around.world.tell("dns.misbehaves", DNS, how=how, asker=asker)
            return None if how == "silence" else answer(asked, failed=True)
        return answer(asked)

    around.network.answer(DNS, PORT, answering)


def answer(asked: bytes, *, failed: bool = False) -> bytes:
    """Return the response to a query of one question."""
    number, *_ = _HEADER.unpack_from(asked)
    name, end = _name(asked, _HEADER.size)
    (kind,) = struct.unpack_from("!H", asked, end)
    question = asked[_HEADER.size : end + 4]
    records = [] if failed else _records(name, _TYPES.get(kind, ""))
    there = name == _ROOT or name in _MX or name in _A or name in _TLSA
    code = _SERVFAIL if failed else 0 if there else _NXDOMAIN
    flags = _FLAGS | code | (_AUTHENTIC if _is_signed(name) and not failed else 0)
    body = b"".join(
        b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, _TTL, len(data)) + data for data in records
    )
    return _HEADER.pack(number, flags, 1, len(records), 0, 0) + question + body


def _records(name: str, kind: str) -> list[bytes]:
    if kind == "MX":
        return [struct.pack("!H", number) + _wire(host) for number, host in _MX.get(name, ())]
    if kind == "TLSA" and name in _TLSA:
        return [tlsa()]
    if kind == "NS" and name == _ROOT:
        return [_wire("root.example")]
    return [socket.inet_aton(_A[name])] if kind == "A" and name in _A else []


def _is_signed(name: str) -> bool:
    return name == _ROOT or any(name == one or name.endswith(f".{one}") for one in _SIGNED)


def _name(data: bytes, at: int) -> tuple[str, int]:
    labels = []
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode().lower())
        at += 1 + size
    return ".".join(labels), at + 1


def _wire(name: str) -> bytes:
    return b"".join(bytes((len(part),)) + part.encode() for part in name.split(".")) + b"\0"
