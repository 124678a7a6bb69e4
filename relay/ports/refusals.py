"""What becomes of connections that are not let in: one line for each, and one in the log for many.

A port has `Refusals`: the reply for each reason (`relay.ports.peers.TurnedAway`), in the words of
what is spoken there.  `relay.ports.connections.accept` calls `turn_away` and closes the socket.

Promises: no task, no object and no wait for one of a flood; in the log one line in `every` seconds,
with the `peer` and `why`.

Fails: never; whoever has gone hears nothing.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

from relay.log import get_logger
from relay.ports.peers import TurnedAway
from relay.throttle import Throttle

log = get_logger()

SENTENCES: Mapping[TurnedAway, str] = {
    TurnedAway.PEER: "Too many connections from your address",
    TurnedAway.FULL: "Too many connections, try again later",
    TurnedAway.PAUSED: "Paused, try again later",
}
"""What ports of mail say, behind a code of their own."""


class Refusals:
    """Those of one port."""

    def __init__(
        self,
        event: str,
        replies: Mapping[TurnedAway, bytes],
        *,
        every: float = 1.0,
        counted: Callable[[], object] = lambda: None,
    ) -> None:
        """`event`: of the log; `every`: seconds between two lines of it; `counted` is called for
        each."""
        self._event = event
        self._replies = replies
        self._counted = counted
        self._complaints = Throttle(every)

    def turn_away(
        self, sock: socket.socket, peer: Any, why: TurnedAway, *, silent: bool = False
    ) -> None:
        """Refuse a connection; `silent`: it is told nothing, for it waits for TLS."""
        self._counted()
        if self._complaints.ready():
            log.warning(self._event, peer=str(peer[0]), why=why.value)
        if not silent:
            with contextlib.suppress(OSError):  # it is gone already, or reads nothing
                sock.send(self._replies[why])
