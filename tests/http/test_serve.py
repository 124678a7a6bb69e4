"""The server under the application: idle connections, slow readers, sockets that outlive it."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from quart import Response, websocket
from quart_trio import QuartTrio
from trio.testing import MockClock

from relay.http.serve import serve


def application() -> QuartTrio:
    """An application with a short answer and an endless one."""
    app = QuartTrio("tests")
    app.config["RESPONSE_TIMEOUT"] = None

    @app.get("/short")
    async def short() -> str:
        return "short"

    @app.get("/endless")
    async def endless() -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536

        return Response(body())

    @app.websocket("/ws")
    async def ws() -> None:
        await websocket.send("over a websocket")

    return app


class Served:
    """A running server."""

    def __init__(self, nursery: trio.Nursery, **options: Any) -> None:
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.stop = trio.Event()
        self.ended = trio.Event()
        self._nursery = nursery
        self._options = options

    async def start(self) -> None:
        """Serve until `stop`."""
        ready = trio.Event()

        async def run() -> None:
            await serve(
                application(),
                [self.bound],
                wait_draining=self.stop.wait,
                ready=ready.set,
                **self._options,
            )
            self.ended.set()

        self._nursery.start_soon(run)
        await ready.wait()

    async def open(self, path: str) -> trio.SocketStream:
        """Connect and ask."""
        stream = await trio.open_tcp_stream(*self.bound.getsockname())
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return stream


@pytest.fixture
async def served(nursery: trio.Nursery) -> AsyncIterator[Served]:
    """A server whose writes may take a fifth of a second."""
    running = Served(nursery, write_timeout=0.2, graceful_timeout=3.0)
    await running.start()
    yield running
    running.stop.set()
    with trio.fail_after(20):
        await running.ended.wait()
    running.bound.close()


async def test_an_answer_of_known_length_comes_in_one_piece(served: Served):
    """Head and body together: who waits for it is woken once; and again for the next."""
    async with await served.open("/short") as stream:
        for _ in range(2):
            answer = await stream.receive_some(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert f"content-length: {len(body)}".encode() in head.lower()
            assert body
            await stream.send_all(b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_an_idle_connection_is_closed_after_its_last_answer(
    served: Served, nursery: trio.Nursery
):
    """Keep-alive has an end, also behind a request that was answered."""
    other = Served(nursery, keep_alive=0.2)
    await other.start()
    async with await other.open("/short") as stream:
        received = b""
        with trio.fail_after(20):
            async for chunk in stream:
                received += chunk
    assert received.startswith(b"HTTP/1.1 200")
    other.stop.set()
    await other.ended.wait()
    other.bound.close()


async def test_a_stop_closes_idle_connections_at_once(nursery: trio.Nursery):
    """Nobody waits for a client that asks nothing."""
    patient = Served(nursery, graceful_timeout=300.0)
    await patient.start()
    async with await patient.open("/short") as stream:
        assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200")
        patient.stop.set()
        with trio.fail_after(20):  # far below the grace of calls in hand
            while await stream.receive_some(65536):
                pass
            await patient.ended.wait()
    patient.bound.close()


async def test_a_reader_that_stops_reading_is_dropped(virtual: MockClock, served: Served):
    """Its connection ends by the write deadline, not by the client's grace."""
    async with await served.open("/endless") as stream:
        assert await stream.receive_some(100)
        await trio.testing.wait_all_tasks_blocked()  # nothing more can be written
        virtual.jump(0.3)
        with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some(65536):  # what had been sent, then the end
                pass


async def test_a_stop_does_not_wait_for_an_endless_answer(served: Served):
    """After the grace the connection is cut and the server returns."""
    async with await served.open("/endless") as stream:
        assert await stream.receive_some(100)
        served.stop.set()
        with trio.fail_after(10):
            await served.ended.wait()


async def test_the_socket_outlives_the_server(served: Served):
    """Who connects between two servers is answered by the second."""
    served.stop.set()
    await served.ended.wait()
    async with await served.open("/short") as stream:
        served.stop, served.ended = trio.Event(), trio.Event()
        await served.start()
        with trio.fail_after(20):
            assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("more", [b"", b"\0\0\6\4\0\0\0\0\0\0\4\0\0\0\0"])
async def test_http_2_by_prior_knowledge_is_refused(served: Served, more: bytes):
    """Its preface, with settings of no window or without, is a 505 and the end."""
    async with await trio.open_tcp_stream(*served.bound.getsockname()) as stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + more)
        received = b""
        with trio.fail_after(20):
            async for chunk in stream:
                received += chunk
    assert received.startswith(b"HTTP/1.1 505")
    assert b"connection: close" in received.lower()


async def test_an_offer_of_http_2_is_not_taken(served: Served):
    """The request is answered as HTTP/1.1, and so is the next of the connection."""
    async with await trio.open_tcp_stream(*served.bound.getsockname()) as stream:
        with trio.fail_after(20):
            for _ in range(2):
                await stream.send_all(
                    b"GET /short HTTP/1.1\r\nHost: localhost\r\n"
                    b"Connection: Upgrade, HTTP2-Settings\r\n"
                    b"Upgrade: h2c\r\nHTTP2-Settings: AAQAAAAA\r\n\r\n"
                )
                received = b""
                while not received.endswith(b"\r\n\r\nshort"):
                    chunk = await stream.receive_some(65536)
                    assert chunk, received
                    received += chunk
                assert received.startswith(b"HTTP/1.1 200")


async def test_a_websocket_is_still_an_upgrade(served: Served):
    """The one that is taken."""
    async with await trio.open_tcp_stream(*served.bound.getsockname()) as stream:
        await stream.send_all(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        received = b""
        with trio.fail_after(20):
            while b"over a websocket" not in received:
                chunk = await stream.receive_some(65536)
                assert chunk, received
                received += chunk
    assert received.startswith(b"HTTP/1.1 101")
