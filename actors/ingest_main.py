"""The program of an SMTP process: `python -m actors.ingest_main CHANNEL BOARD`, two descriptors.

`actors/ingest_process.py` starts it and is the other end of the channel (`relay.smtp.channel`).
In it runs a small tree of its own, of the same actors that serve where there is one process:

    ingest-N
    ├── writer    commits accepted mail, many sessions in one transaction
    └── sessions  SMTP sessions (`actors/ingest.py`), of the connections that the channel brings

Promises:
- It listens on nothing and ignores SIGINT, SIGTERM and SIGHUP: its relay decides when it ends.
- When the channel ends its relay is dead, and it ends at once: what was not committed was not
  acknowledged, and goes with it.
- A 250 is sent after COMMIT, as ever: the writer here is the writer there.
- Every `_EVERY` seconds it says that it is alive, which sessions have kept it waiting for how long,
  and what its metrics have grown by; when it begins or ceases to lack the CPU, at once.

Fails: its actors are started again by its tree.  If that gives up, or anything else goes wrong, it
says why and ends with status 70; sessions end, and its relay starts another.  Where it cannot read
what it is to run with it says so, and ends with 78: that takes a restart of Relay.  Without a file
descriptor for it a connection is lost, and the others go on.

Why a tree: a crash of the writer costs no session where there is one process, and none here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import trio

from actors import ingest, writer
from actors.messages import Accept
from actors.serving import SMTP_DRAIN
from relay import log as logging
from relay.db.hosts import Hosts
from relay.db.pool import Pool
from relay.errors import ConfigError, innermost
from relay.load import Load
from relay.log import Line, get_logger, render_json
from relay.mailboxes.capture import Capture
from relay.memory import return_large_blocks, settle_garbage
from relay.metrics import Moved
from relay.ports.certificate import Certificate
from relay.ports.memory_budget import PooledBudget
from relay.ports.peers import Guest
from relay.returns.paths import ReturnPaths
from relay.smtp.channel import (
    ID_ROWS,
    IDLE_ROWS,
    MAX_PACKET,
    MAX_PAYLOAD,
    Channel,
    Kind,
    Packet,
    Setup,
    ids,
    pack,
    pack_idle,
    pack_ids,
    pack_json,
    pack_metrics,
    session,
)
from relay.smtp.chaos import DOMAIN as CHAOS_DOMAIN
from relay.smtp.front import Board
from relay.smtp.refused import LONGEST_ADDRESS, LONGEST_REPLY
from relay.smtp.server import Server
from relay.smtp.session import Session
from relay.storage import Space
from relay.throttle import Throttle
from supervisor import (
    ChildSpec,
    Event,
    Exited,
    GaveUp,
    GaveUpOn,
    Mailbox,
    Stuck,
    Supervisor,
    SupervisorSpec,
)

log = get_logger()

STATUS_FAILED = 70
STATUS_CONFIG = 78  # EX_CONFIG, as everywhere: to try again does not help

_EVERY = 1.0  # s
_LOOK_EVERY = 0.26  # s; whether it lacks the CPU, which is measured over a little less
_LOG_EVERY = 0.1  # s
_WAKE_EVERY = 0.02  # s; between two hints that there is something to summarise
_LINES = 10_000  # of the log, kept while the relay does not read them
_LONG = 30_000  # bytes of a line of the log, from which it is shortened: to so many …
_FIELDS, _VALUE, _TRACE = 20, 200, 4000  # … fields, and characters of one and of a traceback
_LAST_WORDS = 2.0  # s

_orderly = {"finished", "drained", "cancelled"}


def main() -> NoReturn:
    """Serve until told to end, or until the relay is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel, board = (int(argument) for argument in sys.argv[1:])
    sock = socket.socket(fileno=channel)
    sock.set_inheritable(False)
    try:
        setup = Setup.receive(sock)
    except ConfigError as error:
        sock.send(pack(Kind.FAILED, str(error).encode(errors="replace")[:MAX_PAYLOAD]))
        sys.exit(STATUS_CONFIG)
    if setup is None:
        os._exit(STATUS_FAILED)
    os.environ.update(setup.environment)
    return_large_blocks()
    shared = Board(board)
    os.close(board)
    trio.run(_run, sock, setup, shared)
    sys.exit()


async def _run(sock: socket.socket, setup: Setup, board: Board) -> None:
    channel = Channel(sock)
    hosts = Hosts()
    certificate = setup.certificate and Certificate(*setup.certificate)
    budget = setup.limits.pooled_budget(board.numbers, setup.place)
    process = _Process(channel, hosts, budget, certificate)
    logging.configure(setup.level, write=process.log)
    pool = Pool(
        setup.dsn,
        size=setup.connections,
        prepare=setup.prepare,
        hosts=hosts,
        call_timeout=setup.call_timeout,
    )

    if certificate is not None:
        # Where it is no good any more, STARTTLS is answered 454 until it is: nothing in clear.
        certificate.reload()

    async def serve() -> None:
        await process.supervisor.run(_tree(setup, process, pool, certificate))
        process.say_all()
        with trio.move_on_after(_LAST_WORDS):
            await channel.flushed()

    async def guarded(part: Callable[[], Awaitable[object]]) -> None:
        try:
            await part()
        except Exception as error:
            await _fail(process, channel, error)

    async with trio.open_nursery() as nursery:
        for part in (
            channel.run,
            process.listen,
            process.say_ended,
            process.say_stored,
            process.send_log,
            process.show_life,
            process.narrate,
        ):
            nursery.start_soon(guarded, part)
        if certificate is not None:
            nursery.start_soon(guarded, certificate.watch)
        await guarded(serve)
        nursery.cancel_scope.cancel()
    await pool.close()


async def _fail(process: _Process, channel: Channel, error: Exception) -> NoReturn:
    """Say why, and end at once: an actor may be stuck, and the channel may be what failed."""
    reason = innermost(error)
    if isinstance(reason, GaveUp) and reason.__cause__ is not None:
        reason = reason.__cause__
    with contextlib.suppress(Exception):
        channel.put(pack(Kind.FAILED, _text(reason).encode(errors="replace")[:MAX_PAYLOAD]))
        process.say_all()
    with trio.move_on_after(_LAST_WORDS):
        await channel.flushed()
    os._exit(STATUS_FAILED)


def _tree(
    setup: Setup, process: _Process, pool: Pool, certificate: Certificate | None
) -> SupervisorSpec:
    box: Mailbox[Accept] = writer.mailbox()
    return_paths = None
    if setup.returns is not None:
        domain, keys = setup.returns
        process.return_keys = tuple(map(bytes.fromhex, keys))
        return_paths = ReturnPaths(domain, lambda: process.return_keys)
    capture = None
    if setup.capture is not None:
        # Faults on demand are for one process; elsewhere their addresses are nobody's.
        capture = Capture.beside(
            (*setup.domains, CHAOS_DOMAIN, *([setup.returns[0]] if setup.returns else ())),
            *setup.capture,
        )
    return SupervisorSpec(
        "ingest",
        (
            ChildSpec(
                "writer",
                partial(writer.run, pool=pool, wake_summariser=process.wake, capture=capture),
                mailbox=box,
                liveness=writer.LIVENESS,
            ),
            ChildSpec(
                "sessions",
                partial(
                    ingest.run,
                    sockets=(),
                    pool=pool,
                    writer=box,
                    limits=setup.limits,
                    domains=setup.domains,
                    capture=capture,
                    space=process.space,
                    budget=process.budget,
                    certificate=certificate,
                    connections=process.connections,
                    return_paths=return_paths,
                    note_refused=process.note_refused,
                ),
                drain_timeout=SMTP_DRAIN,
            ),
        ),
    )


class _Seat:
    """What a session holds of the relay's limits (`relay.smtp.server.Seat`)."""

    __slots__ = ("_ended", "guest", "id", "told")

    def __init__(self, id_: int, ended: Callable[[_Seat], None]) -> None:
        self._ended = ended
        self.id = id_
        self.guest: Guest | None = None
        self.told: float | None = None  # since when the relay thinks that it has kept us waiting

    def leave(self) -> None:
        """The session is over."""
        self._ended(self)


class _Process:
    """This end of the channel."""

    def __init__(
        self,
        channel: Channel,
        hosts: Hosts,
        budget: PooledBudget,
        certificate: Certificate | None = None,
    ) -> None:
        self.supervisor = Supervisor(blocked_after=None)  # the relay sees whether this one blocks
        self.space = Space()
        self.budget = budget
        self._certificate = certificate
        self.return_keys: tuple[bytes, ...] = ()
        self._channel = channel
        self._hosts = hosts
        self._seats: dict[int, _Seat] = {}
        self._server: Server | None = None
        self._nursery: trio.Nursery | None = None  # where its sessions run, while it takes any
        self._arrived: dict[int, tuple[socket.socket, Any]] = {}  # while it takes none: with peer
        self._complaints = Throttle(10.0)
        self._moved = Moved()
        self._ended: list[int] = []
        self._over_now = trio.Event()
        self._stored = trio.Event()
        self._lines: deque[Line] = deque(maxlen=_LINES)
        self._line = trio.Event()
        self._ready = False

    def note_refused(self, address: str, why: str, reply: str, login: str | None) -> None:
        """Tell the relay of a recipient that is refused, unless it is behind with reading."""
        if not self._channel.backlog:
            what = (address[:LONGEST_ADDRESS], why, reply[:LONGEST_REPLY], login)
            self._channel.put(pack_json(Kind.REFUSED, what))

    # ------------------------------------------------------------------------ sessions

    async def connections(self, server: Server, nursery: trio.Nursery) -> NoReturn:
        """Have a server serve what the channel brings, until cancelled."""
        self._server, self._nursery = server, nursery
        try:
            for id_ in tuple(self._arrived):
                self._serve(id_, *self._arrived.pop(id_), server, nursery)
            await trio.sleep_forever()
        finally:
            self._nursery = None

    def _take(self, packet: Packet) -> None:
        id_, peer = session(packet.payload)
        if packet.sock is None:
            if self._complaints.ready():
                log.error("ingest.connection_lost", error="no file descriptor is left for it")
            self._is_over(id_)
        elif self._nursery is None or self._server is None:
            self._arrived[id_] = packet.sock, peer
        else:
            self._serve(id_, packet.sock, peer, self._server, self._nursery)

    def _serve(
        self, id_: int, sock: socket.socket, peer: Any, server: Server, nursery: trio.Nursery
    ) -> None:
        seat = self._seats[id_] = _Seat(id_, self._over)
        server.resume()
        server.serve(sock, peer, seat, nursery)

    def _over(self, seat: _Seat) -> None:
        del self._seats[seat.id]
        self._is_over(seat.id)

    def _is_over(self, id_: int) -> None:
        self._ended.append(id_)
        self._over_now.set()

    def _drop(self, *which: int) -> None:
        """Close what has arrived and was not served yet."""
        for id_ in which:
            sock, _ = self._arrived.pop(id_, (None, None))
            if sock is not None:
                sock.close()
                self._is_over(id_)

    def _yield(self, id_: int) -> None:
        """Give a session's place away, if it still keeps us waiting as it did."""
        self._drop(id_)
        seat = self._seats.get(id_)
        if seat is None or seat.guest is None:
            return  # it has ended, and that is said
        since = seat.guest.idle_since()
        if since is None or (seat.told is not None and since != seat.told):
            seat.told = None
            self._channel.put(pack_ids(Kind.BUSY, (id_,)))
        else:
            seat.guest.give_way()

    def _clear(self) -> None:
        self._drop(*self._arrived)
        if self._server is not None:
            self._server.drain()

    def _cut(self, which: bytes) -> None:
        for id_ in ids(which) if which else tuple(self._arrived):
            self._drop(id_)
            seat = self._seats.get(id_)
            if seat is not None and isinstance(seat.guest, Session):
                seat.guest.cut()
        if not which and self._server is not None:
            self._server.cut()

    # ------------------------------------------------------------------------ what is heard

    async def listen(self) -> NoReturn:
        """Do what the relay says; end the process when that is dead."""
        while True:
            for packet in await self._channel.receive():
                self._obey(packet)
            if self._channel.closed:
                os._exit(STATUS_FAILED)
            await trio.lowlevel.checkpoint()

    def _obey(self, packet: Packet) -> None:
        kind, payload = packet.kind, packet.payload
        if kind == Kind.SESSION:
            self._take(packet)
        elif kind == Kind.YIELD:
            for id_ in ids(payload):
                self._yield(id_)
        elif kind == Kind.TICK:
            self._heed(*json.loads(payload))
        elif kind == Kind.CLEAR:
            self._clear()
        elif kind == Kind.CUT:
            self._cut(payload)
        elif kind == Kind.RELOAD:
            if self._certificate is not None:
                self._certificate.reload()
        elif kind == Kind.DRAIN:
            self.supervisor.shutdown()

    def _heed(
        self,
        space: list[Any],
        known: tuple[int, int] | None,
        level: str,
        return_keys: Sequence[str] = (),
    ) -> None:
        self.space.tell(space)
        if return_keys:
            self.return_keys = tuple(map(bytes.fromhex, return_keys))
        if known is not None:
            self._hosts.learn(*known)
        if level != logging.level():
            logging.configure(level, write=self.log)

    # ------------------------------------------------------------------------ what is said

    def wake(self) -> None:
        """There is something to summarise."""
        self._stored.set()

    def log(self, line: Line) -> None:
        """Take a line of the log."""
        self._lines.append(line)
        self._line.set()

    async def say_ended(self) -> NoReturn:
        """Say which sessions have ended: at once, for others may wait for their places."""
        while True:
            await self._over_now.wait()
            self._over_now = trio.Event()
            self._say_ended()

    def _say_ended(self) -> None:
        while self._ended:
            self._channel.put(pack_ids(Kind.ENDED, self._ended[:ID_ROWS]))
            del self._ended[:ID_ROWS]

    async def say_stored(self) -> NoReturn:
        """Say that there is something to summarise, after the first commit and now and then."""
        while True:
            await self._stored.wait()
            self._stored = trio.Event()
            self._channel.put(pack(Kind.WAKE))
            await trio.sleep(_WAKE_EVERY)

    async def send_log(self) -> NoReturn:
        """Send the lines of the log on, as long as the relay reads them."""
        while True:
            await self._line.wait()
            self._line = trio.Event()
            if not self._channel.backlog:
                self._say_lines()
            await trio.sleep(_LOG_EVERY)
            if self._lines:
                self._line.set()

    def _say_lines(self) -> None:
        said: list[bytes] = []
        size = 0
        while self._lines:
            line = _as_json(self._lines.popleft())
            if said and size + len(line) > MAX_PACKET - _LONG:
                self._channel.put(pack(Kind.LOG, b"[%b]" % b",".join(said)))
                said, size = [], 0
            said.append(line)
            size += len(line) + 1
        if said:
            self._channel.put(pack(Kind.LOG, b"[%b]" % b",".join(said)))

    async def show_life(self) -> NoReturn:
        """Say again and again that we live, and what has changed."""
        load, was_lacking, due = Load(), False, -math.inf
        while True:
            now = trio.current_time()
            lacking = load.lacking(now)
            if now >= due or lacking != was_lacking:
                self._channel.put(pack_json(Kind.BEAT, (self._hosts.known, lacking)))
                was_lacking = lacking
            if now >= due:
                due = now + _EVERY
                if not self._channel.backlog:
                    self._say_idle()
                    self._say_moved()
                self.budget.relieve(now)
            await trio.sleep(_LOOK_EVERY)

    def _say_idle(self) -> None:
        now = trio.current_time()
        rows: list[tuple[int, float | None]] = []
        for seat in self._seats.values():
            since = None if seat.guest is None else seat.guest.idle_since()
            if since != seat.told:
                seat.told = since
                rows.append((seat.id, None if since is None else now - since))
        for at in range(0, len(rows), IDLE_ROWS):
            self._channel.put(pack_idle(rows[at : at + IDLE_ROWS]))

    def _say_moved(self) -> None:
        for packet in pack_metrics(self._moved.steps()):
            self._channel.put(packet)

    def say_all(self) -> None:
        """Say all that was not said yet, at the end."""
        self._say_ended()
        if self._stored.is_set():
            self._channel.put(pack(Kind.WAKE))
        self._say_lines()
        self._say_moved()

    async def narrate(self) -> None:
        """Say that we serve, once all actors do, and what becomes of them."""
        with self.supervisor.subscribe() as events:
            async for event in events:
                self._tell_of(event)

    def _tell_of(self, event: Event) -> None:
        if not self._ready and self.supervisor.tree().state == "running":
            self._ready = True
            settle_garbage()
            self._channel.put(pack(Kind.READY))
        failed = isinstance(event, Exited) and event.reason not in _orderly
        if failed or isinstance(event, Stuck | GaveUpOn):
            error = getattr(event, "error", None)
            log.error(
                "ingest.part_failed",
                part=event.name,
                event_kind=event.kind,
                error=None if error is None else _text(error),
            )


def _text(error: BaseException) -> str:
    cause = innermost(error)
    return f"{type(cause).__name__}: {cause}"


def _as_json(line: Line) -> bytes:
    """Return a line of the log as it travels; of one that is very long, the ends of its values."""
    text = render_json(line).encode()
    if len(text) > _LONG:
        short = {key: str(value)[-(_TRACE if key == "exception" else _VALUE) :]
                 for key, value in list(line.items())[:_FIELDS]}  # fmt: skip
        text = render_json(short).encode()
    return text


if __name__ == "__main__":
    main()
