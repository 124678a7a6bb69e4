"""The front of several SMTP processes: lets connections in for all, and says who serves each.

`Front` accepts (`relay.smtp.door`) and passes every connection to the process with the fewest, by
that process's `Link` (`relay.smtp.channel`).  The places of the port, and all that counts there,
stay here; so does the `Board` on which the processes note how much memory their messages take.

Promises
  * The limits hold for all processes together: of connections in all and of one peer here, of
    bytes by the board (`relay.ports.memory_budget.PooledBudget`).
  * Silent connections give way to newcomers, as in one process, by what their processes said of
    them last, every second.  That takes an answer, too: the newcomer waits for its process until
    the other connection has ended.  If that has something in hand after all it goes on, unless its
    place was taken meanwhile: then it is cut off.  The newcomer looks for another (`TRIES` times)
    or hears 421.
  * A connection that its process has not read when that dies is passed to another; one that was
    read dies with it.
  * While no process serves, nobody is accepted: connections wait in the port's own queue.
  * From `clear` until somebody accepts again no connection is passed on, whoever waited for a turn.

Fails: never by itself.  A process that takes nothing more (`FULL` packets wait for it) gets no
more; when none takes any, newcomers hear 421.

| a process dies …                    | its sessions | places, bytes | the connection            |
|-------------------------------------|--------------|---------------|---------------------------|
| before it serves                    | none         | none          | waits in the port's queue |
| with a connection in its channel    | none         | kept for it   | goes to another process   |
| with a session, nothing stored      | end          | given back    | is closed; comes again    |
| after COMMIT, before 250            | end          | given back    | likewise: a repeat        |
| after 250                           | end          | given back    | has its answer            |
| asked to yield                      | end          | given back    | the newcomer has its turn |
| when the relay does (its channel)   | end          | none          | is closed                 |

Why the parent accepts, and not each process (SO_REUSEPORT): the kernel would go on to give a hung
process its part of the connections and would reset those that wait for a dead one, and limits would
hold for each process instead of for all.  Passing one on takes 22 µs of both processes together.
"""

from __future__ import annotations

import mmap
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import trio

from relay.ports.memory_budget import PooledBudget
from relay.ports.peers import Place, PortGate, TurnedAway
from relay.ports.proxy import Network
from relay.smtp.channel import Channel, Kind, Packet, pack, pack_ids, pack_session, session
from relay.smtp.door import Door
from relay.smtp.limits import SmtpLimits

FULL = 256
"""Packets that wait for a process before it gets no further connection."""

TRIES = 16
"""How many silent connections are asked to give way to one newcomer."""


class Board:
    """Numbers in memory that several processes see: of each so many, as `PooledBudget` knows."""

    def __init__(self, fileno: int) -> None:
        """`fileno`: of a file in memory; the caller's, and not needed any more afterwards."""
        self._memory = mmap.mmap(fileno, 0)
        self.numbers = memoryview(self._memory).cast("q")

    @staticmethod
    def make(places: int) -> int:
        """Return the descriptor of a file for so many processes, all zero."""
        fileno = os.memfd_create("relay-smtp", os.MFD_CLOEXEC)
        os.ftruncate(fileno, 8 * PooledBudget.NUMBERS * places)
        return fileno

    @property
    def used(self) -> int:
        """The bytes of messages that all processes hold."""
        return sum(self.numbers[: len(self.numbers) // PooledBudget.NUMBERS])

    def clear(self, place: int) -> None:
        """Forget what a process noted that has ended."""
        for at in range(place, len(self.numbers), len(self.numbers) // PooledBudget.NUMBERS):
            self.numbers[at] = 0


class Guest:
    """A connection in another process, as the gate here sees it (`relay.ports.peers.Guest`)."""

    __slots__ = ("_front", "host", "id", "link", "newcomer", "place", "since", "yields")

    def __init__(self, front: Front, link: Link, id_: int, host: str, place: Place) -> None:
        self._front = front
        self.link = link
        self.id = id_
        self.host = host
        self.place = place
        self.since: float | None = trio.current_time()  # it has said nothing yet
        self.yields = False  # it was asked to, and its place is given away
        self.newcomer: _Newcomer | None = None  # whose turn it is when it has ended

    def idle_since(self) -> float | None:
        """Since when it keeps its process waiting, as that said last."""
        return self.since

    def give_way(self) -> None:
        """Have it end; it is the newcomer's turn when it has."""
        self._front._yields(self)


class Link:
    """One process that serves."""

    def __init__(self, channel: Channel, paused: Callable[[], bool]) -> None:
        """`paused`: whether an operator lets it have no more connections."""
        self.channel = channel
        self.paused = paused
        self.guests: dict[int, Guest] = {}
        """Its connections, by id."""
        self.lacking = False
        """Whether it lacks the CPU (`relay.load`), as it said last."""

    @property
    def full(self) -> bool:
        """Whether it does not take what was sent to it."""
        return self.channel.backlog >= FULL


class _Newcomer(NamedTuple):
    sock: socket.socket
    address: Any
    place: Place
    tries: int


class Front:
    """What the processes of one port have in common; as long-lived as this one."""

    def __init__(self, limits: SmtpLimits, places: int, proxies: Sequence[Network] = ()) -> None:
        """`places`: how many processes there may be; `proxies`: as `Door` has them."""
        self.places = places
        self.board_file = Board.make(places)
        """What a process makes its `Board` of."""
        weakref.finalize(self, os.close, self.board_file)
        self.board = Board(self.board_file)
        self._door = Door(limits, lambda: self.board.used, proxies)
        self._links: list[Link] = []
        self._parked: deque[_Newcomer] = deque()  # no process serves
        self._yielding: Guest | None = None  # asked by the gate, for who comes next
        self._last_id = 0
        self._closing = False  # nobody is served any more
        self._served = trio.Event()  # there is a link
        self._emptied = trio.Event()
        self._accepting: set[trio.CancelScope] = set()

    @property
    def gate(self) -> PortGate:
        """Who counts the connections of all processes."""
        return self._door.gate

    # ------------------------------------------------------------------------ who comes

    async def accept(self, listener: socket.socket, *, paused: Callable[[], bool]) -> NoReturn:
        """Pass on whoever connects while a process serves, until cancelled.

        `listener` listens and does not block.
        """

        def closed() -> bool:
            return paused() or (bool(self._links) and all(link.paused() for link in self._links))

        self._closing = False
        while True:
            await self._served.wait()
            with trio.CancelScope() as scope:
                self._accepting.add(scope)
                try:
                    await self._door.accept(listener, self._welcome, paused=closed)
                finally:
                    self._accepting.discard(scope)

    def _welcome(self, sock: socket.socket, address: Any, place: Place, tries: int = 1) -> None:
        asked, self._yielding = self._yielding, None
        newcomer = _Newcomer(sock, address, place, tries)
        if asked is None:
            self._pass_on(newcomer)
        else:
            asked.newcomer = newcomer

    def _pass_on(self, newcomer: _Newcomer) -> None:
        if self._closing:
            self._refuse(newcomer, TurnedAway.PAUSED)
            return
        if not self._links:
            self._parked.append(newcomer)
            return
        free = [link for link in self._links if not (link.full or link.paused())]
        if not free:
            paused = all(link.paused() for link in self._links)
            self._refuse(newcomer, TurnedAway.PAUSED if paused else TurnedAway.FULL)
            return
        link = min(free, key=lambda one: len(one.guests))
        self._last_id += 1
        host = str(newcomer.address[0])
        guest = Guest(self, link, self._last_id, host, newcomer.place)
        link.guests[guest.id] = newcomer.place.guest = guest
        link.channel.put(pack_session(guest.id, newcomer.address), newcomer.sock)

    def _refuse(self, newcomer: _Newcomer, why: TurnedAway) -> None:
        newcomer.place.leave()
        self._door.refusals.turn_away(newcomer.sock, newcomer.address, why)
        newcomer.sock.close()

    # ------------------------------------------------------------------------ who yields

    def _yields(self, guest: Guest) -> None:
        guest.since = None  # and is not asked twice
        guest.yields = True
        self._yielding = guest
        guest.link.channel.put(pack_ids(Kind.YIELD, (guest.id,)))

    def ended(self, link: Link, ids: Iterable[int]) -> None:
        """These connections are over."""
        for id_ in ids:
            guest = link.guests.pop(id_, None)
            if guest is None:
                continue
            guest.place.leave()
            newcomer, guest.newcomer = guest.newcomer, None
            if newcomer is not None:
                self._pass_on(newcomer)
        self._look_whether_empty()

    def busy(self, link: Link, ids: Iterable[int]) -> None:
        """These were asked to give way, and have something in hand: they go on."""
        for id_ in ids:
            guest = link.guests.get(id_)
            if guest is None:
                continue
            newcomer, guest.newcomer = guest.newcomer, None
            if newcomer is not None:
                newcomer.place.leave()
            place = self.gate.enter(guest.host, None)
            self._yielding = None
            if isinstance(place, Place):
                guest.place, place.guest, guest.yields = place, guest, False
            else:  # somebody of the same peer has come in meanwhile
                link.channel.put(pack_ids(Kind.CUT, (id_,)))
            if newcomer is not None:
                self._try_again(newcomer)

    def _try_again(self, newcomer: _Newcomer) -> None:
        place: Place | TurnedAway = TurnedAway.PAUSED if self._closing else TurnedAway.FULL
        if newcomer.tries < TRIES and not self._closing:
            place = self.gate.enter(str(newcomer.address[0]), trio.current_time())
        if isinstance(place, Place):
            self._welcome(newcomer.sock, newcomer.address, place, newcomer.tries + 1)
        else:
            self._door.refusals.turn_away(newcomer.sock, newcomer.address, place)
            newcomer.sock.close()

    def idle(self, link: Link, rows: Iterable[tuple[int, float | None]]) -> None:
        """Note for how many seconds connections have kept their process waiting; None: not."""
        now = trio.current_time()
        for id_, seconds in rows:
            guest = link.guests.get(id_)
            if guest is not None:
                guest.since = None if seconds is None else now - seconds

    # ------------------------------------------------------------------------ who serves

    def join(self, link: Link) -> None:
        """A process serves from now on."""
        self._links.append(link)
        self._served.set()
        parked, self._parked = self._parked, deque()
        for newcomer in parked:
            self._pass_on(newcomer)

    def part(self, link: Link) -> None:
        """A process gets no more connections; those it has it keeps.  Twice does no harm."""
        if link not in self._links:
            return
        self._links.remove(link)
        if not self._links:
            self._served = trio.Event()  # the one before is set: nobody waits for it
            for scope in self._accepting:
                scope.cancel()

    def lost(self, link: Link, left: Iterable[Packet]) -> None:
        """A process has ended; what it had `left` in its channel goes to others."""
        self.part(link)
        for packet in left:
            if packet.sock is None:
                continue
            id_, address = session(packet.payload)
            guest = link.guests.get(id_)
            if guest is None or guest.yields:
                packet.sock.close()
            else:
                del link.guests[id_]
                guest.place.guest = None
                self._pass_on(_Newcomer(packet.sock, address, guest.place, TRIES))
        self.ended(link, tuple(link.guests))

    # ------------------------------------------------------------------------ the end

    def clear(self) -> None:
        """Have all sessions end: now, or when the message in hand is done; `emptied` waits."""
        self._closing = True
        while self._parked:
            self._refuse(self._parked.popleft(), TurnedAway.PAUSED)
        self._tell_all(Kind.CLEAR)

    def cut(self) -> None:
        """Have all sessions end now."""
        self._tell_all(Kind.CUT)

    async def emptied(self) -> None:
        """Wait until there is no session left."""
        self._emptied = trio.Event()
        self._look_whether_empty()
        await self._emptied.wait()

    def figures(self) -> dict[str, int]:
        """Return what is under way in all processes: sessions, bytes of messages that arrive."""
        return self._door.figures()

    def lacking(self) -> bool:
        """Whether a process lacks the CPU: accepting is theirs, so others give way for it."""
        return any(link.lacking for link in self._links)

    def _tell_all(self, kind: Kind) -> None:
        for link in self._links:
            link.channel.put(pack(kind))

    def _look_whether_empty(self) -> None:
        if not self.gate.open:
            self._emptied.set()
