"""Asks the DNS, on Trio: the stub that `relay.dns.questions` are put to.

It asks recursive servers, one after the other, over UDP, and over TCP what does not fit there: a
datagram that is longer than the query allowed counts as one that was cut off.

Promises
- `ask` never raises for what the DNS does, and answers within its time, the wait for its turn not
  counted, which has a bound of its own: NXDOMAIN, no data and failure (SERVFAIL, REFUSED, nobody
  answers, nonsense) are told apart.
- An answer is believed only from the address and port that was asked, at a port of this host
  chosen anew each time, with the id and the question of the query.  Whoever guesses has one guess:
  after the first datagram that is no answer, the question is asked over TCP.
- One question is under way once, however many ask it (single flight); one asker who gives up takes
  nothing from the others.  At most `concurrency` have a turn, and `MOST_LATE` go on without, as
  they are not answered; the others wait (`relay.dns.turns` says how long).
- What was answered is kept for its TTL, at most `MAX_TTL`, that there is nothing at most
  `MAX_NEGATIVE_TTL`, failures for `failed_ttl`, even if their asker has waited in vain, but for
  those of this machine (no file can be opened), which say nothing of a name; the cache
  holds `MAX_CACHED` answers of `MAX_CACHED_BYTES` each at most, the least recently used go first.
- `proof` says whether what an answer says of itself (`Answer.secure`) can be believed: all servers
  are on this host, with no network in between, and validate.
- A server that left a try unanswered is silent for `silent_ttl`, or until it answers: it is asked
  after the others, once.  Where all are silent, a question costs one try of one server, in turn.
  None is passed over for good: a stranger can make a server silent about his own names.

Fails with an `Answer` whose status is `FAILED`, and whose detail says why.

Why not a library's: `dns.asyncresolver` has neither single flight nor a bound on what is under way,
its cache keeps whole responses, and see `relay.dns.wire` for what a large response costs it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import trio

from relay.chance import randbelow
from relay.dns import wire
from relay.dns.questions import NXDOMAIN, ROOT, Answer, Asking, Proof, Question, Status, is_name
from relay.dns.turns import AT_ONCE, MOST_LATE, PATIENCE, Turns
from relay.errors import TemporaryFailure
from relay.ip import is_loopback
from relay.net import open_tcp_stream, open_udp_socket

MAX_TTL = 3600.0
MAX_NEGATIVE_TTL = 300.0
"""Seconds for which an answer is kept, whatever it says; the second, one that there is nothing."""
MAX_RESPONSE = 32768
"""Bytes of a response that are read: a twentieth of a second's work, if a stranger chose them."""
MAX_CACHED = 4096
MAX_CACHED_BYTES = 4096
_RECORD_BYTES = 64  # that a record takes in memory, however short it is
_RESOLV_CONF = Path("/etc/resolv.conf")
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What this machine lacks to ask, whoever is asked."""

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
    """A question under way; `answer` stays None if whoever asked gave up.

    `failure`: why the last try failed; empty: none has, so far.  `failed_ttl`: for how long it is
    kept that it has failed.
    """

    def __init__(self, failed_ttl: float) -> None:
        self.landed = trio.Event()
        self.answer: Answer | None = None
        self.failure = ""
        self.failed_ttl = failed_ttl


class _NoAnswer(Exception):
    """A server gave none that can be used; the text says why, as a clause."""


class Resolver:
    """Asks servers; share one among all who ask."""

    def __init__(
        self,
        servers: Sequence[Server] = (),
        *,
        ask_timeout: float = 10.0,
        turn_timeout: float = 20.0,
        server_timeout: float = 2.0,
        concurrency: int = AT_ONCE,
        failed_ttl: float = 30.0,
        silent_ttl: float = 30.0,
        patience: float = PATIENCE,
    ) -> None:
        """`servers`: none: those of /etc/resolv.conf, read again when it changes.

        `ask_timeout`: seconds for a question, once it has its turn; `turn_timeout`: to wait for
        that, or for whoever asks the same; `server_timeout`: for a server's answer; `patience`: for
        it while others wait.
        """
        self._servers = tuple(servers)
        self._ask_timeout = ask_timeout
        self._turn_timeout = turn_timeout
        self._server_timeout = server_timeout
        self._failed_ttl = failed_ttl
        self._silent_ttl = silent_ttl
        self._silent: dict[Server, float] = {}  # since when
        self._concurrency = concurrency
        self._patience = patience
        self._turns = Turns(concurrency, patience=patience, most_late=MOST_LATE)
        self._flights: dict[Question, _Flight] = {}
        self._cache: OrderedDict[Question, _Cached] = OrderedDict()
        self._system: tuple[int, tuple[Server, ...]] | None = None
        self._asked = 0

    def anew(self) -> Resolver:
        """Return a resolver that asks the same servers and remembers nothing yet."""
        return Resolver(
            self._servers,
            ask_timeout=self._ask_timeout,
            turn_timeout=self._turn_timeout,
            server_timeout=self._server_timeout,
            concurrency=self._concurrency,
            failed_ttl=self._failed_ttl,
            silent_ttl=self._silent_ttl,
            patience=self._patience,
        )

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

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        """The addresses of a host as `relay.net.getaddrinfo` has them, from these servers alone.

        Raises `TemporaryFailure` where they cannot say; a host that has none has an empty list.
        """
        found: list[Any] = []
        failed = ""
        four = await self.ask(Question(host, "A"))
        six = await self.ask(Question(host, "AAAA"))
        for family, answer in ((socket.AF_INET, four), (socket.AF_INET6, six)):
            if answer.status is Status.FAILED:
                failed = answer.detail
            for address in answer.records:
                found.append((family, socket.SOCK_STREAM, 0, "", (address, port)))
        if not found and failed:
            raise TemporaryFailure(f"the DNS gave no answer about {host}: {failed}")
        return found

    async def proof(self) -> Proof:
        """Find out whether the servers validate, each asked anew for what the root has signed."""
        servers = dict.fromkeys(self._servers or self._system_servers())
        unheard = Proof(True) if servers else Proof(None, "silent")
        for server in servers:
            if not is_loopback(server[0]):
                return Proof(False, "remote", server[0])
            try:
                with trio.fail_after(self._server_timeout):
                    answer, _ = await _ask(server, Question(ROOT, "NS"))
            except (trio.TooSlowError, OSError, _NoAnswer, wire.Malformed):
                unheard = Proof(None, "silent", server[0])
            else:
                if not (answer.secure and answer.records):
                    return Proof(False, "unvalidated", server[0])
        return unheard

    async def ask(self, question: Question) -> Answer:
        """Return the answer, from the cache or a server."""
        question = Question(question.name.lower().removesuffix("."), question.type)
        if not is_name(question.name):
            return NXDOMAIN
        mine: _Flight | None = None
        with trio.move_on_after(self._turn_timeout) as within:
            while True:
                if (known := self._known(question)) is not None:
                    await trio.lowlevel.checkpoint()
                    return known
                flight = self._flights.get(question)
                if flight is None:
                    mine = _Flight(self._failed_ttl)
                    return await self._lead(question, mine, within)
                await flight.landed.wait()
                if flight.answer is not None:
                    return flight.answer
        if mine is None or not mine.failure:  # it has waited: for its turn, or for somebody else
            return Answer(Status.FAILED, detail="no answer in time")
        failed = Answer(Status.FAILED, detail=mine.failure)
        self._keep(question, failed, mine.failed_ttl)
        return failed

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
        size = sum(map(len, answer.records)) + _RECORD_BYTES * len(answer.records)
        if size <= MAX_CACHED_BYTES and ttl > 0:
            self._cache[question] = _Cached(answer, trio.current_time() + ttl)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)

    async def _lead(self, question: Question, flight: _Flight, within: trio.CancelScope) -> Answer:
        """Ask for all who want to know; `within`: has its deadline set when the turn is taken."""
        self._flights[question] = flight
        try:
            turn = await self._turns.take()
            within.deadline = trio.current_time() + self._ask_timeout
            try:
                self._asked += 1
                answer, ttl = await self._ask_servers(question, flight)
            finally:
                self._turns.end(turn)
            self._keep(question, answer, ttl)
            flight.answer = answer
            return answer
        finally:
            del self._flights[question]
            flight.landed.set()

    async def _ask_servers(self, question: Question, flight: _Flight) -> tuple[Answer, float]:
        """The first answer that a server gives, and for how long it holds."""
        for server in self._tries():
            try:
                with trio.fail_after(self._server_timeout):
                    answer = await _ask(server, question)
            except trio.TooSlowError:
                # Now, whoever may give up next: others need not find it out again.
                self._silent[server] = trio.current_time()
                flight.failure = f"{server[0]}: no answer within {self._server_timeout:g} s"
            except OSError as error:
                flight.failure = f"{server[0]}: {error}"
                if _is_ours(error):
                    flight.failed_ttl = 0.0
            except (_NoAnswer, wire.Malformed) as error:
                self._silent.pop(server, None)
                flight.failure = f"{server[0]}: {error}"
            else:
                self._silent.pop(server, None)
                return answer
        if not flight.failure:
            return Answer(Status.FAILED, detail=f"{_RESOLV_CONF} cannot be read for now"), 0.0
        return Answer(Status.FAILED, detail=flight.failure), flight.failed_ttl

    def _tries(self) -> list[Server]:
        """The servers to ask, each as often as it is asked."""
        servers = list(dict.fromkeys(self._servers or self._system_servers()))
        now = trio.current_time()
        self._silent = {
            server: since
            for server, since in self._silent.items()
            if server in servers and now < since + self._silent_ttl
        }
        silent = sorted(self._silent, key=self._silent.__getitem__)
        well = [server for server in servers if server not in self._silent]
        return [*well, *silent, *well] if well else silent[:1]

    def _system_servers(self) -> tuple[Server, ...]:
        """Those of the system; none: who they are cannot be read for now."""
        try:
            changed = os.stat(_RESOLV_CONF).st_mtime_ns
            if self._system is None or self._system[0] != changed:
                self._system = changed, system_servers(_RESOLV_CONF.read_text(errors="replace"))
        except OSError as error:
            if not _is_ours(error):
                return (("127.0.0.1", 53),)
        return () if self._system is None else self._system[1]


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


def _is_ours(error: BaseException | None) -> bool:
    """Whether it is this machine that cannot ask; Trio's "all attempts failed" is looked into."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_ours, error.exceptions))
    return isinstance(error, OSError) and (error.errno in _OURS or _is_ours(error.__cause__))


# ------------------------------------------------------------------------ one server


async def _ask(server: Server, question: Question) -> tuple[Answer, float]:
    """What a server answers, and for how many seconds that holds."""
    asked = wire.query(question, randbelow(1 << 16))
    heard = await _over_udp(server, asked)
    response = None
    if len(heard) <= wire.PAYLOAD:
        with suppress(wire.Malformed):
            response = wire.read(asked, heard, question)
    if response is None or response.truncated:
        # It does not fit, or somebody guesses: a connection is hard to forge.
        response = wire.read(asked, await _over_tcp(server, asked), question)
    if response.error or response.truncated:
        raise _NoAnswer(response.error or "an answer that makes no sense")
    most = MAX_TTL if response.answer.status is Status.FOUND else MAX_NEGATIVE_TTL
    return response.answer, min(response.ttl, most)


async def _over_udp(server: Server, asked: bytes) -> bytes:
    """The datagram that comes back; of one that is too long so much as shows it."""
    with await open_udp_socket(*server) as sock:
        await sock.send(asked)
        return await sock.recv(wire.PAYLOAD + 1)


async def _over_tcp(server: Server, asked: bytes) -> bytes:
    try:
        async with await open_tcp_stream(*server) as stream:
            await stream.send_all(len(asked).to_bytes(2, "big") + asked)
            length = int.from_bytes(await _exactly(stream, 2), "big")
            if length > MAX_RESPONSE:
                raise _NoAnswer("an answer that is too long")
            return await _exactly(stream, length)
    except trio.BrokenResourceError as error:
        raise _NoAnswer("it closed the connection") from error


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise _NoAnswer("it closed the connection")
        data += more
    return bytes(data)
