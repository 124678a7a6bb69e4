"""Turns for TLS handshakes: what they take of the CPU is bounded, and shared by peers.

A handshake is a millisecond of computing that any stranger can ask for.  So no session does it as
soon as it could: it waits for its `turn`, and `run` gives turns one after another, to one peer
after another.

Promises:
- Between two turns everybody else has as much time as the turn took, so handshakes have at most
  half of the thread, and no wait of others is longer by more than one of them.
- A peer that asks for many waits for its own: another's first is next but those of other peers.

Fails: never.  A turn that nobody waits for any more is passed over.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NoReturn

import trio

from relay.futures import Future


class Handshakes:
    """Who waits for a turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()
        self._some = trio.Event()

    def turn(self, peer: str) -> Future[None]:
        """Return what is settled when it is the turn of `peer` (a `relay.peers.peer_key`)."""
        turn: Future[None] = Future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._some.set()
        return turn

    def next(self) -> Future[None] | None:
        """Take the turn that is next; None: nobody waits."""
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
            await self._some.wait()
            self._some = trio.Event()
            while (turn := self.next()) is not None:
                began = trio.current_time()
                turn.settle(None)
                await trio.sleep(trio.current_time() - began)
