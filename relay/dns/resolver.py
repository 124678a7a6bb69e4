"""Asks the DNS, on Trio: the stub that `relay.dns.questions` are put to.

It asks recursive servers, one after the other, over UDP, and over TCP what does not fit there.

Promises
- `ask` never raises for what the DNS does, and answers within its time: NXDOMAIN, no data and
  failure (SERVFAIL, REFUSED, nobody answers, nonsense) are told apart.
- An answer is believed only from the address and port that was asked, from a port of this host
  chosen anew each time, with the id and the question of the query.
- One question is under way once, however many ask it (single flight); one asker who gives up takes
  nothing from the others.  At most `concurrency` are under way; the others wait, within their time.
- What was answered is kept for its TTL, at most `MAX_TTL`, failures for `failed_ttl`; the cache
  holds `MAX_CACHED` answers of `MAX_CACHED_BYTES` each at most, the least recently used go first.

Fails with an `Answer` whose status is `FAILED`, and whose detail says why.

Why not `dns.asyncresolver`: it has neither single flight nor a bound on what is under way, and its
cache of answers keeps whole messages.
"""

from __future__ import annotations

import ipaddress
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import trio
from dns.rdtypes.mxbase import MXBase
from dns.rdtypes.nsbase import NSBase
from dns.rdtypes.txtbase import TXTBase

from relay.dns.questions import NXDOMAIN, Answer, Asking, Question, Status, is_name

MAX_TTL = 3600.0
MAX_NEGATIVE_TTL = 300.0
"""Seconds for which an answer is kept, whatever it says; the second, one that there is nothing."""
MAX_CACHED = 4096
MAX_CACHED_BYTES = 4096
_PAYLOAD = 1232  # bytes that a UDP answer may have (EDNS): no path cuts them up
_ROUNDS = 2
_RESOLV_CONF = Path("/etc/resolv.conf")

Server = tuple[str, int]
"""Address and port."""

T = TypeVar("T")


class ResolverStatistics(NamedTuple):
    """What a resolver has in hand, and what it has done so far."""

    in_flight: int
    cached: int
    asked: int
    """Questions that servers were asked, each counted once."""


class _Cached(NamedTuple):
    answer: Answer
    until: float


class _Flight:
    """A question under way; `answer` stays None if whoever asked gave up."""

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.answer: Answer | None = None


class _NoAnswer(Exception):
    """A server gave none that can be used; the text says why, as a clause."""


class Resolver:
    """Asks servers; share one among all who ask."""

    def __init__(
        self,
        servers: Sequence[Server] = (),
        *,
        ask_timeout: float = 10.0,
        server_timeout: float = 2.0,
        concurrency: int = 64,
        failed_ttl: float = 30.0,
    ) -> None:
        """`servers`: none: those of /etc/resolv.conf, read again when it changes.

        `ask_timeout`: seconds for a question in all; `server_timeout`: for a server's answer.
        """
        self._servers = tuple(servers)
        self._ask_timeout = ask_timeout
        self._server_timeout = server_timeout
        self._failed_ttl = failed_ttl
        self._places = trio.CapacityLimiter(concurrency)
        self._flights: dict[Question, _Flight] = {}
        self._cache: OrderedDict[Question, _Cached] = OrderedDict()
        self._system: tuple[int, tuple[Server, ...]] | None = None
        self._asked = 0

    def statistics(self) -> ResolverStatistics:
        """Return what is under way and kept."""
        return ResolverStatistics(len(self._flights), len(self._cache), self._asked)

    async def drive(self, asking: Asking[T], *, timeout: float = 20.0) -> T:  # noqa: ASYNC109 - past it there is a result all the same
        """Answer what `asking` asks until it ends; what it asks after `timeout` seconds fails."""
        deadline = trio.current_time() + timeout
        late = Answer(Status.FAILED, detail=f"no answer within {timeout:g} s")
        try:
            question = next(asking)
            while True:
                answer = late
                with trio.move_on_at(deadline):
                    answer = await self.ask(question)
                question = asking.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            asking.close()

    async def ask(self, question: Question) -> Answer:
        """Return the answer, from the cache or a server."""
        question = Question(question.name.lower().removesuffix("."), question.type)
        if not is_name(question.name):
            return NXDOMAIN
        with trio.move_on_after(self._ask_timeout):
            while True:
                if (known := self._known(question)) is not None:
                    await trio.lowlevel.checkpoint()
                    return known
                flight = self._flights.get(question)
                if flight is None:
                    return await self._lead(question)
                await flight.landed.wait()
                if flight.answer is not None:
                    return flight.answer
        return Answer(Status.FAILED, detail=f"no answer within {self._ask_timeout:g} s")

    def _known(self, question: Question) -> Answer | None:
        known = self._cache.get(question)
        if known is None:
            return None
        if known.until <= trio.current_time():
            del self._cache[question]
            return None
        self._cache.move_to_end(question)
        return known.answer

    def _keep(self, question: Question, answer: Answer, ttl: float) -> None:
        if sum(map(len, answer.records)) <= MAX_CACHED_BYTES and ttl > 0:
            self._cache[question] = _Cached(answer, trio.current_time() + ttl)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)

    async def _lead(self, question: Question) -> Answer:
        """Ask for all who want to know."""
        flight = self._flights[question] = _Flight()
        try:
            async with self._places:
                self._asked += 1
                answer, ttl = await self._ask_servers(question)
            self._keep(question, answer, ttl)
            flight.answer = answer
            return answer
        finally:
            del self._flights[question]
            flight.landed.set()

    async def _ask_servers(self, question: Question) -> tuple[Answer, float]:
        """The first answer that a server gives, and for how long it holds."""
        servers = self._servers or self._system_servers()
        why = "there are no servers"
        for _ in range(_ROUNDS):
            for server in servers:
                try:
                    with trio.fail_after(self._server_timeout):
                        response = await _query(server, question)
                    return _read(response, question)
                except (_NoAnswer, OSError) as error:
                    why = f"{server[0]}: {error}"
                except trio.TooSlowError:
                    why = f"{server[0]}: no answer within {self._server_timeout:g} s"
        return Answer(Status.FAILED, detail=why), self._failed_ttl

    def _system_servers(self) -> tuple[Server, ...]:
        try:
            changed = os.stat(_RESOLV_CONF).st_mtime_ns
            if self._system is None or self._system[0] != changed:
                self._system = changed, system_servers(_RESOLV_CONF.read_text(errors="replace"))
        except OSError:
            return (("127.0.0.1", 53),)
        return self._system[1]


def system_servers(text: str) -> tuple[Server, ...]:
    """The servers that a resolv.conf names; where there is none, this machine (resolv.conf(5))."""
    servers = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            try:
                ipaddress.ip_address(words[1])
            except ValueError:
                continue
            servers.append((words[1], 53))
    return tuple(servers[:3]) or (("127.0.0.1", 53),)


# ------------------------------------------------------------------------ one server


async def _query(server: Server, question: Question) -> dns.message.Message:
    labels = [label.encode("ascii") for label in question.name.split(".")]
    query = dns.message.make_query(
        dns.name.Name([*labels, b""]), question.type, use_edns=0, payload=_PAYLOAD
    )
    response = await _over_udp(server, query)
    if response.flags & dns.flags.TC:
        response = await _over_tcp(server, query)
    return response


async def _over_udp(server: Server, query: dns.message.Message) -> dns.message.Message:
    family = trio.socket.AF_INET6 if ":" in server[0] else trio.socket.AF_INET
    with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as sock:
        await sock.connect(server)  # so that nobody else's datagram arrives here
        await sock.send(query.to_wire())
        while True:
            response = _parsed(await sock.recv(65535))
            if response is not None and query.is_response(response):
                return response


async def _over_tcp(server: Server, query: dns.message.Message) -> dns.message.Message:
    async with await trio.open_tcp_stream(*server) as stream:
        wire = query.to_wire()
        await stream.send_all(len(wire).to_bytes(2, "big") + wire)
        length = int.from_bytes(await _exactly(stream, 2), "big")
        response = _parsed(await _exactly(stream, length))
    if response is None or not query.is_response(response):
        raise _NoAnswer("an answer that makes no sense")
    return response


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            more = await stream.receive_some(size - len(data))
        except trio.BrokenResourceError as error:
            raise _NoAnswer("it closed the connection") from error
        if not more:
            raise _NoAnswer("it closed the connection")
        data += more
    return bytes(data)


def _parsed(wire: bytes) -> dns.message.Message | None:
    """The message; None for anything that is none, of which a stranger may send any kind."""
    try:
        return dns.message.from_wire(wire, ignore_trailing=True, raise_on_truncation=False)
    except (dns.exception.DNSException, ValueError, LookupError, OverflowError):
        return None


def _read(response: dns.message.Message, question: Question) -> tuple[Answer, float]:
    rcode = response.rcode()
    if rcode not in {dns.rcode.NOERROR, dns.rcode.NXDOMAIN}:
        raise _NoAnswer(dns.rcode.to_text(rcode))
    if not isinstance(response, dns.message.QueryMessage):
        raise _NoAnswer("an answer that makes no sense")
    try:
        chain = response.resolve_chaining()
    except dns.exception.DNSException as error:
        raise _NoAnswer(f"an answer that makes no sense ({type(error).__name__})") from error
    ttl = float(chain.minimum_ttl)
    if chain.answer is None:
        status = Status.NXDOMAIN if rcode == dns.rcode.NXDOMAIN else Status.NO_DATA
        return Answer(status), min(ttl, MAX_NEGATIVE_TTL)
    records = tuple(_text(rdata) for rdata in chain.answer)
    return Answer(Status.FOUND, records), min(ttl, MAX_TTL)


def _text(rdata: dns.rdata.Rdata) -> str:
    """A record as `Answer` has it."""
    if isinstance(rdata, TXTBase):
        return b"".join(rdata.strings).decode("latin-1")
    if isinstance(rdata, MXBase):
        return f"{rdata.preference} {_name(rdata.exchange)}"
    if isinstance(rdata, NSBase):  # PTR and CNAME, too
        return _name(rdata.target)
    return rdata.to_text()


def _name(name: dns.name.Name) -> str:
    """A name without the final dot; the root is the dot alone."""
    return ".".join(label.decode("latin-1") for label in name.labels[:-1]) or "."
