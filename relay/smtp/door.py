"""The door of an SMTP port: who is let in, and what those hear who are not.

`Door` holds the gate of the port (`relay.peers`), and accepts; what becomes of a connection that
was let in is the business of who opened the door: `relay.smtp.server` runs its session here,
`relay.smtp.front` passes it to a process.

A connection of a trusted proxy counts as that of whoever the proxy names (`relay.smtp.proxy`), and
not at all before it has: such wait aside, `UNNAMED` of them at most, for a few seconds.

Promises
  * No more connections than the limits say, of one peer and in all; whoever is not let in is told
    why, in one line.
  * Of a proxy's header no byte too many is read: what follows it is the session's.
  * A trusted proxy's connection without a header that is good, or in time, is closed; nobody else's
    header is read as one.
  * Those that say nothing keep nobody out: where too many wait aside, the one that has waited
    longest is closed for the newcomer.  A proxy says whom it serves at once.

Fails: with the error of a listening socket, for supervision.
"""

from __future__ import annotations

import contextlib
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import trio
from prometheus_client import Counter, Gauge

from relay.connections import accept, admit
from relay.log import get_logger
from relay.metrics import registry
from relay.peers import Place, PortGate, TurnedAway
from relay.smtp import proxy
from relay.smtp.limits import SmtpLimits
from relay.throttle import Throttle

log = get_logger()

UNNAMED = 256
"""Connections of proxies that have not said yet for whom they are, at most."""

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
    """One port's."""

    def __init__(
        self,
        limits: SmtpLimits,
        buffered: Callable[[], int],
        proxies: Sequence[proxy.Network] = (),
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
        self._proxies = proxies
        self._proxy_timeout = limits.proxy_timeout
        # The oldest first; the first of a plain dict is found by walking over all that went.
        self._unnamed: OrderedDict[trio.CancelScope, None] = OrderedDict()
        self._complaints = Throttle(1.0)
        self._refusals = Throttle(1.0)
        _OPEN[port].set_function(lambda: self.gate.open)
        _BUFFERED[port].set_function(buffered)

    async def accept(
        self,
        listener: socket.socket,
        welcome: Callable[[socket.socket, Any, Place], object],
        *,
        paused: Callable[[], bool],
    ) -> NoReturn:
        """Let in whoever connects, until cancelled; `listener` listens and does not block."""

        def hold(sock: socket.socket, address: Any) -> bool:
            host = str(address[0])
            if not proxy.is_among(host, self._proxies):
                return False
            if len(self._unnamed) >= UNNAMED:
                oldest, _ = self._unnamed.popitem(last=False)
                oldest.cancel()
            patience = trio.CancelScope(deadline=trio.current_time() + self._proxy_timeout)
            self._unnamed[patience] = None
            nursery.start_soon(introduce, sock, address, patience)
            return True

        async def introduce(sock: socket.socket, address: Any, patience: trio.CancelScope) -> None:
            named = await self._named(sock, address, patience)
            if named is not None:
                admit(
                    sock,
                    named,
                    self.gate,
                    welcome=welcome,
                    turn_away=self.turn_away,
                    paused=paused,
                )

        let_in = partial(
            accept,
            listener,
            self.gate,
            welcome=welcome,
            turn_away=self.turn_away,
            starved="smtp.accept_failed",
            paused=paused,
        )
        if not self._proxies:
            await let_in()
        async with trio.open_nursery() as nursery:
            await let_in(hold=hold)
        raise AssertionError  # not reached: accept ends by an exception only

    async def _named(self, sock: socket.socket, address: Any, patience: trio.CancelScope) -> Any:
        """Return for whom a proxy has connected; None: it did not say, and is gone."""
        reason = "it said nothing in time"
        try:
            with patience:
                found = await _header(sock)
                return address if found is None else (*found, str(address[0]))
        except proxy.Malformed as error:
            reason = str(error)
        except OSError:
            reason = "it broke the connection"
        except BaseException:
            sock.close()
            raise
        finally:
            self._unnamed.pop(patience, None)
        if self._complaints.ready():
            log.warning("smtp.proxy_refused", peer=str(address[0]), reason=reason)
        _refused.inc()
        sock.close()
        return None

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


async def _header(sock: socket.socket) -> tuple[str, int] | None:
    """Read a header of the PROXY protocol, and nothing behind it; return whom it names."""
    header = b""
    while True:
        try:
            seen = sock.recv(proxy.LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        if not seen:
            raise proxy.Malformed("it ended the connection")
        size, named = proxy.read(header + seen)
        # As long as it has not come whole, all that has come is part of it.
        header += sock.recv(size - len(header) if size else len(seen))
        if size:
            return named
