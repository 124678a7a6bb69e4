"""The door of the SMTP port: who is let in, and what those hear who are not.

`Door` holds the gate of the port (`relay.peers`), and accepts; what becomes of a connection that
was let in is the business of who opened the door: `relay.smtp.server` runs its session here,
`relay.smtp.front` passes it to a process.

Promises: no more connections than the limits say, of one peer and in all; whoever is not let in is
told why, in one line.

Fails: with the error of a listening socket, for supervision.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from prometheus_client import Counter, Gauge

from relay.connections import accept
from relay.log import get_logger
from relay.metrics import registry
from relay.peers import Place, PortGate, TurnedAway
from relay.smtp.limits import SmtpLimits
from relay.throttle import Throttle

log = get_logger()

_NOT_LET_IN = {
    TurnedAway.PEER: "421 4.7.0 Too many connections from your address",
    TurnedAway.FULL: "421 4.3.2 Too many connections, try again later",
    TurnedAway.PAUSED: "421 4.3.2 Paused, try again later",
}

_SESSIONS = Counter(
    "relay_smtp_sessions",
    "SMTP connections, by what became of them.",
    ["outcome"],
    registry=registry,
)
served, _refused = _SESSIONS.labels("served"), _SESSIONS.labels("refused")
_OPEN = Gauge("relay_smtp_sessions_open", "SMTP sessions open now.", registry=registry)
_BUFFERED = Gauge(
    "relay_smtp_buffered_bytes", "Bytes of messages in flight now.", registry=registry
)


class Door:
    """One port's."""

    def __init__(self, limits: SmtpLimits, buffered: Callable[[], int]) -> None:
        """`buffered`: how many bytes of messages are in flight behind it."""
        self.gate = PortGate(
            "smtp",
            limits.max_connections,
            limits.max_connections_per_peer,
            local_per_peer=limits.max_connections_per_peer,
            patience=limits.idle_patience,
        )
        self._buffered = buffered
        self._refusals = Throttle(1.0)
        _OPEN.set_function(lambda: self.gate.open)
        _BUFFERED.set_function(buffered)

    async def accept(
        self,
        listener: socket.socket,
        welcome: Callable[[socket.socket, Any, Place], object],
        *,
        paused: Callable[[], bool],
    ) -> NoReturn:
        """Let in whoever connects, until cancelled; `listener` listens and does not block."""
        await accept(
            listener,
            self.gate,
            welcome=welcome,
            turn_away=self.turn_away,
            starved="smtp.accept_failed",
            paused=paused,
        )

    def figures(self) -> dict[str, int]:
        """Return what is under way: sessions, and bytes of messages that arrive."""
        return {"sessions": self.gate.open, "buffered_bytes": self._buffered()}

    def turn_away(self, sock: socket.socket, peer: Any, why: TurnedAway) -> None:
        """Refuse a connection: no task, no object, no line in the log for each of a flood."""
        _refused.inc()
        reply = _NOT_LET_IN[why]
        if self._refusals.ready():
            log.warning("smtp.refused", peer=str(peer[0]), reply=reply)
        with contextlib.suppress(OSError):  # it is gone already
            sock.send(reply.encode() + b"\r\n")
