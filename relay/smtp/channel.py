"""The channel between a relay and one of its SMTP processes: packets on a Unix socket.

The relay accepts connections and passes each to a process (`relay.smtp.front` says to which);
sessions run there.  Both ends speak in packets (`SOCK_SEQPACKET`): whole, in order, each a byte
that says its kind and a payload, and with a connection its file descriptor.

    from the relay                          from the process
    --------------------------------------  ------------------------------------------------------
    SETUP     what to run with, in parts    READY    it serves
    SESSION   id, peer; and the connection  ENDED    ids of sessions that are over
    YIELD     id: give its place away       BUSY     id: it has something in hand, and goes on
    TICK      disk, log level, timeline     IDLE     ids, and for how long each has waited
    CLEAR     end all sessions, as a drain  WAKE     there is something to summarise
    CUT       end them all now              BEAT     it is alive; timeline; if it lacks the CPU
    RELOAD    read the certificate again    LOG, METRICS, FAILED   lines, what moved, a last word
    DRAIN     as CLEAR, then end             REFUSED  a recipient, why, reply and login

Promises
  * `put` never waits: what the socket does not take is sent by `run`, in order.
  * A connection is closed here when it has been passed on, and not before.
  * What was not passed on, or passed on and not read, can be taken back (`unsent`, `unread`).

Fails: `receive` says by `closed` that the other end is gone.  What is put afterwards is kept.  A
packet above `MAX_PACKET` is a ValueError, where it is packed and where it is read.  Any error of
the socket but that it is full is raised by `put` or `run`: to try again would hold up the rest.

Secrets (the database's URL) go this way, since arguments and environments can be read by others.
"""

from __future__ import annotations

import enum
import errno
import json
import math
import socket
import struct
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import trio
from trio.lowlevel import wait_readable, wait_writable

from relay.errors import ConfigError
from relay.metrics import Steps
from relay.smtp.limits import SmtpLimits

MAX_PACKET = 60_000
"""Bytes of the largest packet; a socket's buffer takes several."""
MAX_PAYLOAD = MAX_PACKET - 1
"""Without the byte that says its kind."""

_BURST = 64  # packets read before others have a turn
_PAUSE = 0.05  # s; when the system has too many descriptors under way
_FULL = {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}
_MORE, _LAST = b"+", b"."  # begin a part of what comes in several packets
_ID = struct.Struct("=Q")
_IDLE = struct.Struct("=Qd")


class Kind(enum.IntEnum):
    """What a packet is about; see the table above."""

    SETUP = 1
    SESSION = 2
    YIELD = 3
    TICK = 4
    CLEAR = 5
    CUT = 6
    DRAIN = 7
    RELOAD = 8
    READY = 16
    ENDED = 17
    BUSY = 18
    IDLE = 19
    WAKE = 20
    BEAT = 21
    LOG = 22
    METRICS = 23
    FAILED = 24
    REFUSED = 25


class Packet(NamedTuple):
    """One packet as it came; `sock` is the connection that came along, and the reader's now.

    None where there is one in `SESSION`: this process has no file descriptor left, and the
    connection is gone.
    """

    kind: int
    payload: bytes
    sock: socket.socket | None = None


@dataclass(frozen=True)
class Setup:
    """What a process runs with.

    `place` is its own on the board; `capture`: for how many seconds mail for others' domains is
    kept, and in how many mailboxes at most, or None; `certificate`: for STARTTLS, the paths of the
    files (with the key) that it reads itself; `returns`: the domain of return paths, and the keys
    that they are read by, in hexadecimal digits; `environment`: variables that are not for all to
    read.
    """

    place: int
    level: str
    dsn: str
    connections: int
    prepare: bool
    call_timeout: float
    domains: tuple[str, ...]
    limits: SmtpLimits
    capture: tuple[float, int] | None = None
    certificate: tuple[str, str] | None = None
    returns: tuple[str, tuple[str, ...]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def packets(self) -> list[bytes]:
        """Return it as packets, to be sent in order; it may name thousands of domains."""
        text, size = _json(asdict(self)), MAX_PAYLOAD - len(_MORE)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        marks = [_MORE] * (len(parts) - 1) + [_LAST]
        return [pack(Kind.SETUP, mark + part) for mark, part in zip(marks, parts, strict=True)]

    @classmethod
    def receive(cls, sock: socket.socket) -> Setup | None:
        """Wait, in this thread, for what `packets` returned; None: the other end is gone.

        ConfigError: it cannot be read, as where the two ends are of different releases.
        """
        sock.setblocking(True)
        text, mark = b"", _MORE
        while mark == _MORE:
            packet = _receive(sock)
            if packet is None:
                return None
            mark = packet.payload[:1]
            text += packet.payload[1:]
        try:
            return cls._read(json.loads(text))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                "an SMTP process cannot read what it is to run with"
                f" ({type(error).__name__}: {error}): Relay was replaced while it ran; restart it"
            ) from error

    @classmethod
    def _read(cls, said: dict[str, Any]) -> Setup:
        limits, domains = SmtpLimits(**said.pop("limits")), tuple(said.pop("domains"))
        certificate, returns = said.pop("certificate"), said.pop("returns")
        return cls(
            limits=limits,
            domains=domains,
            certificate=None if certificate is None else tuple(certificate),
            returns=None if returns is None else (returns[0], tuple(returns[1])),
            **said,
        )


class Channel:
    """One end.  `sock` is a connected `SOCK_SEQPACKET`, and the caller's to close."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._waiting: deque[tuple[bytes, socket.socket | None]] = deque()
        self._more = trio.Event()
        self._none = trio.Event()  # nothing waits any more
        self.closed = False
        """Whether the other end is gone."""

    @property
    def backlog(self) -> int:
        """How many packets wait for the socket."""
        return len(self._waiting)

    def put(self, packet: bytes, sock: socket.socket | None = None) -> None:
        """Send a packet, and `sock` along with it, as soon as there is room."""
        if self._waiting or not self._send(packet, sock):
            self._waiting.append((packet, sock))
            self._more.set()

    async def run(self) -> None:
        """Send what waits, until cancelled or closed."""
        while True:
            await self._more.wait()
            while self._waiting:
                await wait_writable(self._sock)
                if self._send(*self._waiting[0]):
                    self._waiting.popleft()
                elif self.closed:
                    return
                else:
                    await trio.sleep(_PAUSE)  # writable, and yet it does not take this one
            self._more = trio.Event()
            self._none.set()

    async def flushed(self) -> None:
        """Wait until nothing waits; someone must `run`."""
        while self._waiting:
            self._none = trio.Event()
            await self._none.wait()

    async def receive(self) -> list[Packet]:
        """Wait for packets and return those that are there; none at the end (`closed`)."""
        await wait_readable(self._sock)
        return self.receive_nowait()

    def receive_nowait(self) -> list[Packet]:
        """Return the packets that are there, at most a burst of them."""
        found: list[Packet] = []
        while len(found) < _BURST:
            try:
                packet = _receive(self._sock)
            except BlockingIOError:
                break
            except OSError:  # the other end is gone, and had not read all
                packet = None
            if packet is None:
                self.closed = True
                break
            found.append(packet)
        return found

    def unsent(self) -> list[Packet]:
        """Take back what waits for the socket."""
        waiting, self._waiting = self._waiting, deque()
        return [Packet(packet[0], packet[1:], sock) for packet, sock in waiting]

    def _send(self, packet: bytes, sock: socket.socket | None) -> bool:
        """Whether the socket has taken it."""
        try:
            if sock is None:
                self._sock.send(packet)
            else:
                passed = array("i", [sock.fileno()])
                self._sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
                sock.close()
        except ConnectionError:
            self.closed = True
            return False
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        return True


def unread(sock: socket.socket) -> list[Packet]:
    """Take back the packets that the process with this end of the channel has not read."""
    sock.setblocking(False)
    found: list[Packet] = []
    while True:
        try:
            packet = _receive(sock)
        except OSError:
            return found
        if packet is None:
            return found
        found.append(packet)


def _receive(sock: socket.socket) -> Packet | None:
    data, ancillary, flags, _ = sock.recvmsg(
        MAX_PACKET, socket.CMSG_SPACE(array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    passed = None
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            (fileno,) = array("i", content)
            # Family and type are of no consequence for what sessions do, and asking costs calls.
            passed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fileno)
            passed.setblocking(False)
    if flags & socket.MSG_TRUNC:
        if passed is not None:
            passed.close()
        raise ValueError(f"a packet of more than {MAX_PACKET} bytes")
    return Packet(data[0], data[1:], passed) if data else None


def pack(kind: Kind, payload: bytes = b"") -> bytes:
    """Return a packet; ValueError: it is too large."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"{len(payload)} bytes in one packet ({kind.name}), over {MAX_PAYLOAD}")
    return bytes((kind,)) + payload


def pack_json(kind: Kind, value: object) -> bytes:
    """Return a packet whose payload is JSON."""
    return pack(kind, _json(value))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def pack_metrics(steps: Steps) -> Iterator[bytes]:
    """Return packets with what metrics have grown by: of one that is too large, parts of it."""
    for name, samples in steps:
        text = _json([[name, samples]])
        if len(text) <= MAX_PAYLOAD or len(samples) < 2:
            yield pack(Kind.METRICS, text)
        else:
            half = len(samples) // 2
            yield from pack_metrics([(name, samples[:half]), (name, samples[half:])])


def pack_session(id_: int, address: Any) -> bytes:
    """Return the packet of a connection: its id, and its peer's socket address."""
    return pack(Kind.SESSION, _ID.pack(id_) + json.dumps(address).encode())


def session(payload: bytes) -> tuple[int, Any]:
    """Read what `pack_session` wrote."""
    return _ID.unpack_from(payload)[0], tuple(json.loads(payload[_ID.size :]))


def pack_ids(kind: Kind, ids: Iterable[int]) -> bytes:
    """Return a packet that names sessions."""
    return pack(kind, array("Q", ids).tobytes())


def ids(payload: bytes) -> array[int]:
    """Read what `pack_ids` wrote."""
    found = array("Q")
    found.frombytes(payload)
    return found


def pack_idle(rows: Iterable[tuple[int, float | None]]) -> bytes:
    """Return a packet with (id, seconds for which it has kept us waiting) of sessions; None: it
    does not."""
    return pack(
        Kind.IDLE, b"".join(_IDLE.pack(id_, math.nan if s is None else s) for id_, s in rows)
    )


def idle(payload: bytes) -> list[tuple[int, float | None]]:
    """Read what `pack_idle` wrote."""
    return [(id_, None if math.isnan(s) else s) for id_, s in _IDLE.iter_unpack(payload)]


IDLE_ROWS = MAX_PAYLOAD // _IDLE.size
"""How many sessions fit into one packet of `pack_idle` …"""
ID_ROWS = MAX_PAYLOAD // _ID.size
"""… and of `pack_ids`."""
