"""The door of an SMTP port: who is let in, and what those hear who are not.

`Door` holds the gate of the port (`relay.ports.peers`), and accepts; what becomes of a connection
that was let in is the business of who opened the door: `relay.smtp.server` runs its session here,
`relay.smtp.front` passes it to a process.

Promises
  * No more connections than the limits say, of one peer and in all; whoever is not let in is told
    why, in one line (but where TLS comes first).
  * Those of trusted proxies count as whoever the proxy names (`relay.ports.trusted_proxies`).

Fails: with the error of a listening socket, for supervision.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from prometheus_client import Counter, Gauge

from relay.log import get_logger
from relay.metrics import registry
from relay.ports.connections import accept
from relay.ports.peers import Place, PortGate, TurnedAway
from relay.ports.proxy import Network
from relay.ports.refusals import SENTENCES, Refusals
from relay.ports.trusted_proxies import TrustedProxies
from relay.smtp.limits import SmtpLimits

log = get_logger()

_CODES = {TurnedAway.PEER: "4.7.0", TurnedAway.FULL: "4.3.2", TurnedAway.PAUSED: "4.3.2"}
_NOT_LET_IN = {why: f"421 {_CODES[why]} {SENTENCES[why]}\r\n".encode() for why in TurnedAway}

_SESSIONS = Counter(
    "relay_smtp_sessions",
    "SMTP connections, by what became of them.",
    ["outcome"],
    registry=registry,
)
served, _refused = _SESSIONS.labels("served"), _SESSIONS.labels("refused")
_OPEN = {
    "smtp": Gauge("relay_smtp_sessions_open", "SMTP sessions open now.", registry=registry),
    "lmtp": Gauge("relay_lmtp_sessions_open", "LMTP sessions open now.", registry=registry),
    "submission": Gauge(
        "relay_submission_sessions_open", "Submission sessions open now.", registry=registry
    ),
}
_BUFFERED = {
    "smtp": Gauge(
        "relay_smtp_buffered_bytes", "Bytes of messages in flight now.", registry=registry
    ),
    "lmtp": Gauge(
        "relay_lmtp_buffered_bytes",
        "Bytes of messages in flight by LMTP now.",
        registry=registry,
    ),
    "submission": Gauge(
        "relay_submission_buffered_bytes",
        "Bytes of submitted messages in flight now.",
        registry=registry,
    ),
}


class Door:
    """The gate of one port, and what is said and counted of those who come to it."""

    def __init__(
        self,
        limits: SmtpLimits,
        buffered: Callable[[], int],
        proxies: Sequence[Network] = (),
        port: str = "smtp",
    ) -> None:
        """`buffered`: how many bytes of messages are in flight behind it; `proxies`: whose
        connections begin with the PROXY protocol; `port`: its name."""
        self.gate = PortGate(
            port,
            limits.max_connections,
            limits.max_connections_per_peer,
            local_per_peer=limits.max_connections_per_peer,
            patience=limits.idle_patience,
        )
        self._buffered = buffered
        self._proxies = TrustedProxies(
            proxies,
            timeout=limits.proxy_timeout,
            closed=_refused.inc,
            complain=lambda host, why: log.warning("smtp.proxy_refused", peer=host, reason=why),
        )
        self.refusals = Refusals("smtp.refused", _NOT_LET_IN, counted=_refused.inc)
        """What becomes of those who are not let in."""
        _OPEN[port].set_function(lambda: self.gate.open)
        _BUFFERED[port].set_function(buffered)

    async def accept(
        self,
        listener: socket.socket,
        welcome: Callable[[socket.socket, Any, Place], object],
        *,
        paused: Callable[[], bool],
        silent: bool = False,
    ) -> NoReturn:
        """Let in whoever connects, until cancelled; `listener` listens and does not block.

        `silent`: who is turned away is told nothing, for it waits for TLS.
        """
        await accept(
            listener,
            self.gate,
            welcome=welcome,
            turn_away=partial(self.refusals.turn_away, silent=silent),
            starved="smtp.accept_failed",
            paused=paused,
            proxies=self._proxies,
        )

    def figures(self) -> dict[str, int]:
        """Return what is under way: sessions, and bytes of messages that arrive."""
        return {"sessions": self.gate.open, "buffered_bytes": self._buffered()}
