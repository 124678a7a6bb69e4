"""Serving: hypercorn's protocol engine on connections that cannot hang the relay.

What: `serve` accepts on copies of bound sockets, speaks HTTP/1.1 and WebSocket by hypercorn's
Trio `TCPServer`, and ends when it is told to drain.

Promises
  * The sockets given are never closed: the control actor can be restarted without losing the
    port, and connections that arrive meanwhile wait in its backlog.
  * A peer that does not read is dropped after `write_timeout`; one that sends headers by the
    drip, or nothing, after `KEEP_ALIVE`.  Neither holds memory beyond one write.
  * Connections without a complete request keep nobody out: where all places are taken, the oldest
    of them gives way to whoever comes (`relay.ports.peers`).
  * A body that is refused is read on and thrown away while the answer is on its way, up to
    `DISCARD_BYTES` and `DISCARD_TIMEOUT`: many clients send all of it before they read.
  * A request whose end two headers tell differently (Content-Length and Transfer-Encoding) is a 400
    and the end of its connection: a proxy in front may have believed the other one.
  * So is a WebSocket handshake that announces a body, and a request target that is neither a path
    nor an http(s) URL.  Where it is a URL, its authority is the Host that counts.
  * HTTP/2 is refused with a 505, and an offer to upgrade to it is not taken.
  * One connection's failure never ends the server.  What a peer brought about by breaking the
    protocol is one line for debugging; of others there is one line in `_COMPLAIN_EVERY` seconds.
  * After draining began, requests in hand have `graceful_timeout`; then every connection is
    cut, whatever it is doing.

Fails: an `OSError` of the listening socket itself is raised, for supervision.

Why not `hypercorn.trio.serve`: it shields each write without a deadline, so one reader that
stops reading outlives the graceful time-out and the actor; and a malformed WebSocket
handshake raises through its nursery and ends the server.  The loop below is the thirty lines
of it that remain once there is one plain socket and no lifespan protocol.

Why not HTTP/2: hypercorn buffers an answer without bound while the peer's flow-control window is
closed, and no write ever starts whose deadline could end it.  32 streams of a connection held
800 MB of mail that way.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import trio
import wsproto.utilities
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.logging import Logger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from quart_trio import QuartTrio

from relay.http.problems.types import PREFIX
from relay.locks import Lock
from relay.log import get_logger
from relay.ports.connections import accept
from relay.ports.peers import Place, PortGate, TurnedAway
from relay.ports.proxy import Network
from relay.ports.refusals import Refusals
from relay.throttle import Throttle

KEEP_ALIVE = 30.0
"""Seconds that a connection may idle between requests, headers being sent included."""
MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 4096
"""Connections at once, where there are file descriptors for so many."""
LINGER = 1.0
"""Seconds of silence after which a peer that was answered for good is not waited for."""
DISCARD_BYTES = 64 << 20
"""Bytes of a refused upload that are thrown away, so that its sender reads our answer."""
DISCARD_TIMEOUT = 30.0
"""Seconds likewise."""
LINGER_STOPPING = 0.25
"""The same while the relay stops: idle clients do not close by themselves."""

_COMPLAIN_EVERY = 10.0  # s; of connections that were refused, and of those that failed

_PROTOCOL_ERRORS = (
    h11.ProtocolError,
    wsproto.utilities.LocalProtocolError,
    wsproto.utilities.RemoteProtocolError,
)

log = get_logger()


class _Log(Logger):
    """hypercorn's log calls, as events of ours: quiet, structured, without query strings."""

    def __init__(self, config: Config) -> None:  # its own would make handlers on stderr
        self.error_logger = None

    async def access(self, request: Any, response: Any, request_time: float) -> None:
        log.debug(
            "http.request",
            method=request.get("method", "WEBSOCKET"),
            path=_loggable(request["raw_path"].decode("latin-1")),
            status=None if response is None else response["status"],
            seconds=round(request_time, 6),
        )

    async def _drop(self, message: str, *args: Any, **kwargs: Any) -> None:
        log.debug("http.server", detail=message % args if args else message)

    info = debug = _drop

    async def warning(self, message: str, *args: Any, **kwargs: Any) -> None:
        log.warning("http.server", detail=message % args if args else message)

    error = critical = warning

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:
        error = sys.exception()
        if isinstance(error, BaseExceptionGroup):  # of the task that ran the application
            breaks, others = error.split(_PROTOCOL_ERRORS)
            error = breaks if others is None else None
        if isinstance(error, (*_PROTOCOL_ERRORS, BaseExceptionGroup)):
            log.debug("http.server", detail=str(error))
            return
        log.exception("http.failed", detail=message % args if args else message)


_OF_OURS = re.compile(
    r"|v\d|\d{1,6}|[a-z\-]{1,24}(?:\.(?:json|js|css|html|svg|ico))?"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
)
"""What a path is made of here: words, numbers, ids."""


def _loggable(path: str) -> str:
    """Return a path as it may be logged: what else stands in it is an address, or a token.

    It is cut as it came: decoded, a part of an address might look like one of our words.
    """
    return "/".join(part if _OF_OURS.fullmatch(part) else "*" for part in path.split("/"))


class _Stream:
    """A TCP stream whose writes have a deadline and whose close lets the peer finish."""

    def __init__(
        self, stream: trio.SocketStream, write_timeout: float, terminated: EventWrapper
    ) -> None:
        self._terminated = terminated
        self._stream = stream
        self._write_timeout = write_timeout
        self.ended = trio.Event()
        self.protocol: _HTTP1 | None = None  # once there is one
        self._half_closed = False
        self._reading = False
        self._writing = False
        self._discarding = False
        self._discarded = 0
        self.scope = trio.CancelScope()  # of everything that runs for this connection
        self.socket = stream.socket  # hypercorn asks it for the two addresses

    async def send_all(self, data: bytes) -> None:
        if self._half_closed:
            # An answer that comes too late: to a request that was never whole, mostly.
            raise trio.ClosedResourceError("the connection is being closed")
        # The caller shields this from cancellation, so the deadline must be here.
        self._writing = True
        try:
            with trio.move_on_after(self._write_timeout) as scope:
                await self._stream.send_all(data)
        finally:
            self._writing = False
        if scope.cancelled_caught:
            self.cut()
            raise trio.BrokenResourceError("the peer does not read")

    async def receive_some(self, limit: int) -> bytes:
        if self._half_closed:
            raise trio.ClosedResourceError("the connection is being closed")
        self._reading = True
        try:
            data = bytes(await self._stream.receive_some(limit))
            while data and self._half_closed and self._discard(data):
                data = bytes(await self._stream.receive_some(limit))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        finally:
            self._reading = False
        if not data or self._half_closed:
            self.ended.set()
            return b""
        return data

    async def send_eof(self) -> None:
        # In one step: Trio's own has a checkpoint, where an answer would meet it half-way.
        if self._writing:
            raise trio.BusyResourceError("an answer is being written")
        self._half_closed = True
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError("the peer has gone") from error

    async def aclose(self) -> None:
        # Closing with unread bytes resets the connection, and the reset overtakes our answer
        # (RFC 9112, section 9.6).  So what still comes is discarded: by the task that reads, if
        # it does, else here.
        if self._half_closed and not self.ended.is_set():
            with trio.move_on_after(DISCARD_TIMEOUT) as whole:
                while not self.ended.is_set():
                    patience = LINGER_STOPPING if self._terminated.is_set() else LINGER
                    before = self._discarded
                    with trio.move_on_after(patience):
                        await self._discard_some()
                    if self._discarded == before or whole.cancel_called:
                        break
        self.cut()

    async def _discard_some(self) -> None:
        """Throw away what comes, or wait while another task does, until the peer ends."""
        if self._reading or self._discarding:
            await self.ended.wait()
            return
        self._discarding = True
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while (data := await self._stream.receive_some(65536)) and self._discard(data):
                    pass
            self.ended.set()
        finally:
            self._discarding = False

    def _discard(self, data: bytes | bytearray) -> bool:
        self._discarded += len(data)
        return self._discarded < DISCARD_BYTES

    # ------------------------------------------------------------- as the gate sees it

    def idle_since(self) -> float | None:
        """At once, unless a whole request is being answered."""
        if self._half_closed or self.protocol is None or self.protocol.lacking:
            return -math.inf
        return None

    def give_way(self) -> None:
        """Another connection has the place."""
        self.cut()

    def cut(self) -> None:
        """Close at once, and end what still runs: hypercorn's pings outlive their socket."""
        self.ended.set()
        self.socket.close()
        self.scope.cancel()


class _Context(WorkerContext):
    """hypercorn's view of the server, for one connection: its pings end with their peer."""

    def __init__(self, terminated: EventWrapper, ended: trio.Event) -> None:
        super().__init__(None)
        self.terminated = terminated
        self._ended = ended

    async def sleep(self, wait: float) -> None:  # type: ignore[override]  # theirs is static
        with trio.move_on_after(wait):
            await self._ended.wait()
            await trio.sleep(0.1)  # the reading task tells the rest meanwhile


_FRAMING = {b"content-length", b"transfer-encoding"}


def _known_length(response: h11.Response) -> bool:
    return response.status_code in {204, 304} or any(
        name == b"content-length" for name, _ in response.headers
    )


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request for a URL as one for its path, with the URL's authority as its Host.

    "A server MUST ignore the received Host header field (if any) and instead use the host
    information of the request-target" (RFC 9112, section 3.2.2).  `ValueError` where it is no URL.
    """
    url = urlsplit(request.target.decode("ascii"))
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("no http(s) URL")
    path = url.path or "/"
    return h11.Request(
        method=request.method,
        target=f"{path}?{url.query}" if url.query else path,
        headers=[
            (b"host", url.netloc.encode("ascii")),
            *((name, value) for name, value in request.headers if name != b"host"),
        ],
        http_version=request.http_version,
    )


class _HTTP1(H11Protocol):
    """hypercorn's HTTP/1.1, which never becomes HTTP/2.

    The head of an answer whose length is known waits for what follows it at once: one write, and
    one wake-up of who reads it, in place of two.
    """

    _head = b""

    async def _send_h11_event(self, event: Any) -> None:
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        self._head = b""
        if isinstance(event, h11.Response) and _known_length(event):
            self._head = data
        elif data:  # none for the end of an answer whose length was told
            await self.send(RawData(data))

    async def _check_protocol(self, event: Any) -> None:
        """Take no `Upgrade: h2c`: the request is answered as it came."""

    async def _create_stream(self, request: Any) -> None:
        if request.http_version >= b"2":
            # The preface `PRI * HTTP/2.0` of a client that takes HTTP/2 for granted.
            await self._refuse(505)
            return
        given = dict(request.headers)
        framing = _FRAMING & given.keys()
        # Both: RFC 9112, section 6.1: "ought to be handled as an error".  A body before a WebSocket
        # would be read as what comes through it.
        if framing == _FRAMING or (framing and given.get(b"upgrade", b"").lower() == b"websocket"):
            await self._refuse(400)
            return
        if not request.target.startswith(b"/"):
            try:
                request = _in_origin_form(request)
            except (ValueError, h11.LocalProtocolError):
                await self._refuse(400)
                return
        await super()._create_stream(request)

    async def _refuse(self, status: int) -> None:
        await self._send_error_response(status)
        await self.send(Closed())

    @property
    def lacking(self) -> bool:
        """Whether the peer owes us a request, or the rest of one."""
        return self.connection.their_state in {h11.IDLE, h11.SEND_BODY}


class _Idling:
    """The idle time-out of a connection, which closes it; so does the end of the server.

    hypercorn's own starts a task for each request, and ends it; this is one for the connection.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._scope = trio.CancelScope()
        self._idle = True
        self._started = self._over = False

    async def restart(self, task_group: Any, _close: object) -> None:
        """The connection is idle from now on: its time-out begins."""
        self._idle = True
        self._scope.deadline = trio.current_time() + self._server.config.keep_alive_timeout
        if not self._started:
            self._started = True
            task_group.spawn(self._run)

    async def stop(self) -> None:
        """A request is in hand: the time-out is off."""
        self._idle = False
        self._scope.deadline = math.inf

    def end(self) -> None:
        """The connection is closed: the task that waits for its time-out ends."""
        self._over = True
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            await self._server.context.terminated.wait()
        # A request in hand is answered, and that answer ends the connection.
        if self._idle and not self._over:
            with trio.CancelScope(shield=True):
                await self._server._initiate_server_close()


class _Server(TCPServer):
    """hypercorn's connection, with our protocol in the place of its choice."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._idling = _Idling(self)
        self.idle_task = cast("Any", self._idling)
        self.send_lock = cast("Any", Lock())  # where it is free, without a round of the loop

    async def protocol_send(self, event: Any) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        # Nothing was read yet, and to initiate HTTP/1.1 is to do nothing: it can be replaced.
        chosen = self.protocol
        chosen.protocol = _HTTP1(
            chosen.app,
            chosen.config,
            chosen.context,
            chosen.task_group,
            chosen.state,
            chosen.ssl,
            chosen.client,
            chosen.server,
            chosen.send,
        )
        cast("_Stream", self.stream).protocol = chosen.protocol
        await super()._read_data()
        # The peer has ended; its idle time-out would hold the socket for as long as it lasts.
        self._idling.end()


class _Application:
    """The application, kept from seeing its own end as a client that hung up.

    hypercorn reports `http.disconnect` as soon as an answer is complete.  quart-trio cancels
    the request for it, and with it the very task in which hypercorn is about to make the
    connection ready for the next request: the idle time-out is then never started.
    """

    def __init__(self, app: QuartTrio) -> None:
        self._app = app

    async def __call__(
        self, scope: Any, receive: Any, send: Any, sync_spawn: object, call_soon: object
    ) -> None:
        complete = False

        async def sending(message: Any) -> None:
            nonlocal complete
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                complete = True
            await send(message)

        async def receiving() -> Any:
            message = await receive()
            if complete and message["type"] == "http.disconnect":
                await trio.sleep_forever()  # until the request has ended by itself
            return message

        await self._app(scope, receiving, sending)


def _config(keep_alive: float) -> Config:
    config = Config()
    config.logger_class = _Log
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = keep_alive
    config.keep_alive_max_requests = 100_000
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.alpn_protocols = ["http/1.1"]
    config.websocket_max_message_size = 64 * 1024
    config.websocket_ping_interval = 20.0
    return config


def gate_of(connections: int, trusted: Collection[Network] = ()) -> PortGate:
    """Return the gate of a server that may have so many connections; `trusted`: proxies."""
    # An office, or a test machine, shows itself by one address; what is idle gives way anyhow.
    return PortGate("http", connections, max(1, connections // 4), trusted=trusted)


_NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
    b"Retry-After: 5\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
)
_WHY = {
    TurnedAway.PEER: "Your address has as many connections open as one may have.",
    TurnedAway.FULL: "The relay has as many connections open as it may have.",
}
_SAID = {
    why: _NO_ROOM % (len(body), body)
    for why, text in _WHY.items()
    for body in [
        json.dumps(
            {
                "type": f"{PREFIX}unavailable", "title": "Service Unavailable", "status": 503,
                "detail": text,
            }
        ).encode()
    ]
}  # fmt: skip


async def serve(
    app: QuartTrio,
    bound: Sequence[socket.socket],
    *,
    wait_draining: Callable[[], Awaitable[object]],
    ready: Callable[[], None] = lambda: None,
    graceful_timeout: float = 5.0,
    write_timeout: float = 20.0,
    keep_alive: float = KEEP_ALIVE,
    gate: PortGate | None = None,
) -> None:
    """Serve `app` on `bound` until `wait_draining` returns; time-outs are in seconds.

    `ready` is called once connections are accepted, `gate` says how many there may be.  Returns
    when the last connection ended.
    """
    gate = gate or gate_of(MAX_CONNECTIONS)
    config = _config(keep_alive)
    wrapped = _Application(app)
    terminated = EventWrapper()
    streams: set[_Stream] = set()
    stopping = False
    empty = trio.Event()

    refusals = Refusals("http.refused", _SAID, every=_COMPLAIN_EVERY)
    failures = Throttle(_COMPLAIN_EVERY)

    def failed(error: BaseExceptionGroup) -> None:
        """Tell of a connection that failed, for few of them: peers may bring it about."""
        if failures.ready():
            log.error("http.connection_failed", exc_info=error)

    def welcome(sock: socket.socket, _peer: Any, place: Place) -> None:
        raw = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        connections.start_soon(connection, raw, place)

    async def connection(raw: trio.SocketStream, place: Place) -> None:
        stream = _Stream(raw, write_timeout, terminated)
        place.guest = stream
        streams.add(stream)
        try:
            context = _Context(terminated, stream.ended)
            server = _Server(wrapped, config, context, ConnectionState({}), cast("Any", stream))
            with stream.scope:
                await server.run()
        except* _PROTOCOL_ERRORS as errors:
            log.debug("http.server", detail=str(errors.exceptions[0]))
        except* Exception as errors:
            failed(errors)
        finally:
            streams.discard(stream)
            stream.cut()
            place.leave()
            if stopping and not streams:
                empty.set()

    own = [one.dup() for one in bound]
    try:
        for one in own:
            one.setblocking(False)
            one.listen(1024)
        async with trio.open_nursery() as connections:
            try:
                async with trio.open_nursery() as accepting:
                    for one in own:
                        accepting.start_soon(
                            partial(
                                accept,
                                one,
                                gate,
                                welcome=welcome,
                                turn_away=refusals.turn_away,
                                starved="http.accept_failed",
                            )
                        )
                    ready()
                    await wait_draining()
                    accepting.cancel_scope.cancel()
                await terminated.set()  # idle connections close now, others after theirs
                stopping = True
                if streams:
                    with trio.move_on_after(graceful_timeout):
                        await empty.wait()
                connections.cancel_scope.cancel()
            finally:
                for stream in tuple(streams):
                    stream.cut()  # a shielded write ends only with its socket
    finally:
        for one in own:
            one.close()
