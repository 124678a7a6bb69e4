"""An authoritative DNS server on loopback, over UDP and TCP, that can also misbehave."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import trio

SOA = "ns.example. admin.example. 1 3600 600 86400 {negative}"


class DnsServer:
    """Answers from `zone`: (name, type) to records as a zone file has them.

    A name `servfail.…` fails, as does its `_mta-sts`, `refused.…` is refused, `silent.…` gets no
    answer, `noise.…` gets nonsense before the answer, `guessed.…` a forgery with a wrong id and
    then one with the right one, `cut.…` a TCP connection that ends too soon, `swollen.…` a datagram
    of any length.
    """

    def __init__(
        self,
        zone: Mapping[tuple[str, str], Sequence[str]],
        *,
        ttl: int = 60,
        negative: int = 60,
        signed: Sequence[str] = (),
    ) -> None:
        """`signed`: under which names it claims to have validated what it answers (AD); an empty
        one is the root itself."""
        self.signed = tuple(signed)
        self.failing: set[tuple[str, str]] = set()
        """What it answers SERVFAIL to."""
        self.silent: set[tuple[str, str]] = set()
        """What it does not answer."""
        self.zone = zone
        self.ttl = ttl
        self.negative = negative
        self.asked: Counter[tuple[str, str]] = Counter()
        self.over_tcp = 0
        self.resets = False
        """Whether it resets each TCP connection."""
        self.held = 0
        self.most_held = 0
        self.gate = trio.Event()
        self.gate.set()
        self.address = ("127.0.0.1", 0)

    async def run(
        self, *, task_status: trio.TaskStatus[DnsServer] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as udp:
            while True:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                self.address = listener.socket.getsockname()
                try:
                    await udp.bind(self.address)
                except OSError:
                    await listener.aclose()
                else:
                    break
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, self._serve_tcp, [listener])
                task_status.started(self)
                while True:
                    wire, peer = await udp.recvfrom(65535)
                    nursery.start_soon(self._serve_udp, udp, wire, peer)

    async def _serve_udp(
        self, udp: trio.socket.SocketType, wire: bytes, peer: tuple[str, int]
    ) -> None:
        query = dns.message.from_wire(wire)
        name = query.question[0].name.to_text().lower()
        self.asked[name.removesuffix("."), dns.rdatatype.to_text(query.question[0].rdtype)] += 1
        self.held += 1
        self.most_held = max(self.most_held, self.held)
        await self.gate.wait()
        self.held -= 1
        kind = dns.rdatatype.to_text(query.question[0].rdtype)
        if name.startswith("silent.") or (name.removesuffix("."), kind) in self.silent:
            return
        response = self._response(query)
        if name.startswith("noise."):
            await udp.sendto(b"", peer)
            await udp.sendto(b"\0" * 40, peer)
        if name.startswith("guessed."):
            forged = dns.message.from_wire(response.to_wire())
            forged.answer = [self._rrset(name.removesuffix("."), "A", ["203.0.113.66"])]
            for guess in (1, 0):
                forged.id ^= guess
                await udp.sendto(forged.to_wire(), peer)
                forged.id ^= guess
        sent = response.to_wire(max_size=65535)
        too_long = len(sent) > query.payload and not name.startswith("swollen.")
        if too_long or name.startswith("cut."):
            response.answer = []
            response.flags |= dns.flags.TC
            sent = response.to_wire()
        await udp.sendto(sent, peer)

    async def _serve_tcp(self, stream: trio.SocketStream) -> None:
        self.over_tcp += 1
        async with stream:
            with suppress(trio.BrokenResourceError):  # who asked has heard enough
                await self._answer(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        if self.resets:
            linger = struct.pack("ii", 1, 0)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return
        length = int.from_bytes(await stream.receive_some(2), "big")
        query = dns.message.from_wire(await stream.receive_some(length))
        wire = self._response(query).to_wire(max_size=65535)
        whole = len(wire).to_bytes(2, "big") + wire
        if query.question[0].name.to_text().startswith("cut."):
            whole = whole[:5]
        for at in range(0, len(whole), 1000):
            await stream.send_all(whole[at : at + 1000])

    def _response(self, query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        asked = query.question[0]
        kind = dns.rdatatype.to_text(asked.rdtype)
        name = asked.name.to_text().lower().removesuffix(".")  # the root's: empty
        if name.startswith(("servfail.", "_mta-sts.servfail.", "refused.")):
            rcode = dns.rcode.REFUSED if name.startswith("refused.") else dns.rcode.SERVFAIL
            response.set_rcode(rcode)
            return response
        if (name, kind) in self.failing:
            response.set_rcode(dns.rcode.SERVFAIL)
            return response
        passed: list[str] = []
        try:
            return self._found(response, name, kind, passed)
        finally:
            if passed and all(self._is_signed(each) for each in passed):
                response.flags |= dns.flags.AD

    def _is_signed(self, name: str) -> bool:
        return any(name == zone or (zone and name.endswith("." + zone)) for zone in self.signed)

    def _found(
        self, response: dns.message.Message, name: str, kind: str, passed: list[str]
    ) -> dns.message.Message:
        for _ in range(20):
            passed.append(name)
            if records := self.zone.get((name, kind)):
                response.answer.append(self._rrset(name, kind, records))
                return response
            if not (alias := self.zone.get((name, "CNAME"))):
                break
            response.answer.append(self._rrset(name, "CNAME", alias))
            name = alias[0].lower().removesuffix(".")
        soa = SOA.format(negative=self.negative)
        response.authority.append(dns.rrset.from_text("example.", self.negative, "IN", "SOA", soa))
        if not any(known == name for known, _ in self.zone):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response

    def _rrset(self, name: str, kind: str, records: Sequence[str]) -> dns.rrset.RRset:
        return dns.rrset.from_text_list(
            f"{name}." if name else ".", self.ttl, "IN", kind, list(records)
        )
