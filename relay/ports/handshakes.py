"""Turns for TLS handshakes: what they take of the CPU is bounded, and shared by peers.

A handshake is a millisecond of computing that any stranger can ask for.  So no session does it as
soon as it could: it waits for its `turn`, and `run` gives turns one after another, to one peer
after another.

Promises:
- Between two turns everybody else has as much time as the turn took, so handshakes have at most
  half of the thread, whatever ports they come to, and no wait of others is longer by more than one
  of them.
- A peer that asks for many waits for its own: another's first is next but those of other peers.
- One network begins `RATE` a second, on all ports of the process together, and a burst of
  `AT_ONCE` before: what it asks for beyond that waits for its time, in the order it came, and
  takes no turn of others meanwhile.  This machine, with its applications and their tests, has no
  such limit.

Fails: never.  A turn that nobody waits for any more is passed over.

Why they wait, and are not refused: a client that is refused TLS may go on in clear.  How many wait
is bounded by their places on the port (`relay.ports.peers`).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NoReturn

import trio

from relay.futures import Future
from relay.gcra import Gcra
from relay.metrics import Counts
from relay.ports.peers import is_this_machine

RATE = 50.0
"""Handshakes that one network begins a second: a twentieth of the thread, or less."""
AT_ONCE = 500
"""Those that it may begin before that, after a while without any."""
REMEMBERED = 20_000
"""Networks whose handshakes are counted."""

(_delayed,) = Counts(
    "relay_tls_handshakes_delayed",
    "TLS handshakes that waited, because their network begins too many.",
).of.values()

_begun: trio.lowlevel.RunVar[Gcra[str]] = trio.lowlevel.RunVar("begun")
"""What networks have begun: one for all ports, too."""
_others_until: trio.lowlevel.RunVar[float] = trio.lowlevel.RunVar("others_until", -math.inf)
"""Until when the thread is the others'.  One for all ports, of which each has turns of its own."""


class Handshakes:
    """Who waits for a turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()
        self._later: list[tuple[float, int, str, Future[None]]] = []  # a heap, by when it may be
        self._count = 0
        self._some = trio.Event()

    def turn(self, peer: str, *, begins: bool) -> Future[None]:
        """Return what is settled when it is the turn of `peer` (a `relay.ports.peers.peer_key`).

        `begins`: it is the first of its handshake.  What is to be done in the turn is done by what
        `then` was given.
        """
        turn: Future[None] = Future()
        delay = _delay(peer) if begins and not is_this_machine(peer) else 0.0
        if delay:
            _delayed.value += 1
            self._count += 1
            heapq.heappush(self._later, (trio.current_time() + delay, self._count, peer, turn))
        else:
            self._wait(peer, turn)
        self._some.set()
        return turn

    def _wait(self, peer: str, turn: Future[None]) -> None:
        self._waiting.setdefault(peer, deque()).append(turn)

    async def take_turn(self, peer: str, work: Callable[[], None], *, begins: bool) -> None:
        """Wait for the turn of `peer`, and do its work in it; raises what `work` raises.

        A task that waited for its `turn` would do the work afterwards, and nobody would count it.
        """
        done: Future[None] = Future()
        given_up = False

        def act() -> None:
            if given_up:
                return
            try:
                work()
            except Exception as error:
                done.fail(error)
            else:
                done.settle(None)

        self.turn(peer, begins=begins).then(act)
        try:
            await done.wait()
        finally:
            given_up = True

    def next(self) -> Future[None] | None:
        """Take the turn that is next; None: there is none now."""
        while self._later and self._later[0][0] <= trio.current_time():
            _, _, peer, turn = heapq.heappop(self._later)
            self._wait(peer, turn)
        if not self._waiting:
            return None
        peer, turns = self._waiting.popitem(last=False)
        turn = turns.popleft()
        if turns:
            self._waiting[peer] = turns
        return turn

    async def run(self) -> NoReturn:
        """Give turns until cancelled.  What waits for one is done in here, at once."""
        while True:
            with trio.move_on_at(self._later[0][0] if self._later else math.inf):
                await self._some.wait()
            self._some = trio.Event()
            while self._waiting or (self._later and self._later[0][0] <= trio.current_time()):
                if (began := trio.current_time()) < _others_until.get():
                    await trio.sleep_until(_others_until.get())
                elif (turn := self.next()) is not None:
                    turn.settle(None)
                    ended = trio.current_time()
                    _others_until.set(ended + (ended - began))
                    await trio.sleep_until(_others_until.get())


def _delay(peer: str) -> float:
    """Count a handshake that a network begins; return the seconds after which it may."""
    try:
        begun = _begun.get()
    except LookupError:
        begun = Gcra(REMEMBERED)
        _begun.set(begun)
    now, cost = trio.current_time(), 1 / RATE
    delay = begun.wait(peer, now, cost, cost * AT_ONCE)
    begun.spend(peer, now, cost)
    return delay
