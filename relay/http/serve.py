"""Serving: hypercorn's protocol engine on connections that cannot hang the relay.

What: `serve` accepts on copies of bound sockets, speaks HTTP/1.1 and WebSocket by hypercorn's
Trio `TCPServer`, and ends when it is told to drain.

Promises
  * The sockets given are never closed: the control actor can be restarted without losing the
    port, and connections that arrive meanwhile wait in its backlog.
  * A peer that does not read is dropped after `write_timeout`; one that sends headers by the
    drip, or nothing, after `KEEP_ALIVE`.  Neither holds memory beyond one write.
  * HTTP/2 is refused with a 505, and an offer to upgrade to it is not taken.
  * One connection's failure is one log line: it never ends the server.
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
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.events import Closed
from hypercorn.logging import Logger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from quart_trio import QuartTrio

from relay.log import get_logger

KEEP_ALIVE = 30.0
"""Seconds that a connection may idle between requests, headers being sent included."""
MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 4096
"""Connections at once; further ones are closed at once rather than starve the rest."""
LINGER = 1.0
"""Seconds that a refused upload may go on, so that its sender reads our answer, not a reset."""
LINGER_STOPPING = 0.25
"""The same while the relay stops: idle clients do not close by themselves."""

log = get_logger()


class _Log(Logger):
    """hypercorn's log calls, as events of ours: quiet, structured, without query strings."""

    def __init__(self, config: Config) -> None:  # its own would make handlers on stderr
        self.error_logger = None

    async def access(self, request: Any, response: Any, request_time: float) -> None:
        log.debug(
            "http.request",
            method=request.get("method", "WEBSOCKET"),
            path=_loggable(request["path"]),
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
        log.exception("http.failed", detail=message % args if args else message)


_OF_OURS = re.compile(
    r"|v\d|\d{1,6}|[a-z\-]{1,24}(?:\.(?:json|js|css|html|svg|ico))?"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
)
"""What a path is made of here: words, numbers, ids."""


def _loggable(path: str) -> str:
    """Return a path as it may be logged: what else stands in it is an address, or a token."""
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
        self._half_closed = False
        self._reading = False
        self.scope = trio.CancelScope()  # of everything that runs for this connection
        self.socket = stream.socket  # hypercorn asks it for the two addresses

    async def send_all(self, data: bytes) -> None:
        # The caller shields this from cancellation, so the deadline must be here.
        with trio.move_on_after(self._write_timeout) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.cut()
            raise trio.BrokenResourceError("the peer does not read")

    async def receive_some(self, limit: int) -> bytes:
        if self._half_closed and not self._reading:
            raise trio.ClosedResourceError("the connection is being closed")
        self._reading = True
        try:
            data = bytes(await self._stream.receive_some(limit))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        finally:
            self._reading = False
        if not data:
            self.ended.set()
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()
        self._half_closed = True

    async def aclose(self) -> None:
        # Closing with unread bytes resets the connection, and the reset overtakes our answer
        # (RFC 9112, section 9.6).  So what still comes is discarded for a moment: by the task
        # that reads, if it does, else here.
        if self._half_closed and not self.ended.is_set():
            patience = LINGER_STOPPING if self._terminated.is_set() else LINGER
            with trio.move_on_after(patience), contextlib.suppress(trio.BrokenResourceError):
                if self._reading:
                    await self.ended.wait()
                else:
                    self.ended.set()  # one of us is enough
                    while await self._stream.receive_some(65536):
                        pass
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


class _HTTP1(H11Protocol):
    """hypercorn's HTTP/1.1, which never becomes HTTP/2."""

    async def _check_protocol(self, event: Any) -> None:
        """Take no `Upgrade: h2c`: the request is answered as it came."""

    async def _create_stream(self, request: Any) -> None:
        if request.http_version < b"2":
            await super()._create_stream(request)
            return
        # The preface `PRI * HTTP/2.0` of a client that takes HTTP/2 for granted.
        await self._send_error_response(505)
        await self.send(Closed())


class _Server(TCPServer):
    """hypercorn's connection, with our protocol in the place of its choice."""

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
        await super()._read_data()


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


def _config() -> Config:
    config = Config()
    config.logger_class = _Log
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE
    config.keep_alive_max_requests = 100_000
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.alpn_protocols = ["http/1.1"]
    config.websocket_max_message_size = 64 * 1024
    config.websocket_ping_interval = 20.0
    return config


async def serve(
    app: QuartTrio,
    bound: Sequence[socket.socket],
    *,
    wait_draining: Callable[[], Awaitable[object]],
    ready: Callable[[], None] = lambda: None,
    graceful_timeout: float = 5.0,
    write_timeout: float = 20.0,
) -> None:
    """Serve `app` on `bound` until `wait_draining` returns; time-outs are in seconds.

    `ready` is called once connections are accepted.  Returns when the last connection ended.
    """
    config = _config()
    wrapped = _Application(app)
    terminated = EventWrapper()
    streams: set[_Stream] = set()
    stopping = False
    empty = trio.Event()

    async def connection(raw: trio.SocketStream) -> None:
        if len(streams) >= MAX_CONNECTIONS:
            raw.socket.close()
            return
        stream = _Stream(raw, write_timeout, terminated)
        streams.add(stream)
        try:
            context = _Context(terminated, stream.ended)
            server = _Server(wrapped, config, context, ConnectionState({}), cast("Any", stream))
            with stream.scope:
                await server.run()
        except* Exception:
            log.exception("http.connection_failed")
        finally:
            streams.discard(stream)
            stream.cut()
            if stopping and not streams:
                empty.set()

    own = [one.dup() for one in bound]
    try:
        listeners = []
        for one in own:
            one.listen(1024)
            listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(one)))
        async with trio.open_nursery() as connections:
            try:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(
                        partial(
                            trio.serve_listeners,
                            connection,
                            listeners,
                            handler_nursery=connections,
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
