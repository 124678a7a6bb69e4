"""What goes along with a call: what the relay needs, and what a proxy has asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from relay_client import AsyncRelay, Relay


class _Balancer(ThreadingHTTPServer):
    """Answers as a relay with an empty inbox does, behind a load balancer that sets a cookie."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.heard: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, _Balancer)
        first = not self.server.heard
        self.server.heard.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        if first:
            self.send_header("Set-Cookie", "node=2; Path=/")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def balancer() -> Iterator[_Balancer]:
    with _Balancer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def look(heard: list[dict[str, str]]) -> None:
    first, second, third = heard
    assert set(first) == {"host", "accept", "accept-encoding", "user-agent", "authorization"}
    assert first["accept-encoding"] == "identity"
    assert second.pop("cookie") == third.pop("cookie") == "node=2"
    assert second == third == first


def test_a_cookie_goes_back_and_nothing_needless_goes_along(balancer: _Balancer) -> None:
    """A balancer keeps a client at its node; what httpx would say besides costs each call."""
    with Relay(balancer.url, "rk_x") as relay:
        for _ in range(3):
            assert relay.mailbox("a@shop.example").messages() == []
    look(balancer.heard)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_asynchronous_client_sends_the_same(balancer: _Balancer, backend: str) -> None:
    """On asyncio and on Trio."""

    async def read() -> None:
        async with AsyncRelay(balancer.url, "rk_x") as relay:
            for _ in range(3):
                assert await relay.mailbox("a@shop.example").messages() == []

    anyio.run(read, backend=backend)
    look(balancer.heard)
