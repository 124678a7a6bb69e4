"""Lists of more than a page, of a relay that is behind a path of somebody's server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from relay_client import AsyncRelay, Relay

_IDS = [str(number) for number in range(450)]
_PATH = "/below/api/v1/mailboxes/a@b/messages"
_MESSAGE: dict[str, object] = {
    **dict.fromkeys(("from_address", "subject", "body_text", "body_html", "otp")),
    "to": "a@b",
    "size": 1,
    "received_at": "2026-01-01T00:00:00Z",
    "links": [],
    "headers": {},
    "attachments": [],
}


class _Server(ThreadingHTTPServer):
    pages = 0


class _Relay(BaseHTTPRequestHandler):
    """Answers as the relay does that a proxy has put under `/below`: next pages from its root."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once, and none waits for another's acknowledgement

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        one = re.fullmatch(re.escape(_PATH) + r"/(\d+)", url.path)
        if one:
            self._answer({**_MESSAGE, "id": one[1]})
            return
        if url.path != _PATH:
            self.send_error(404)
            return
        assert isinstance(self.server, _Server)
        self.server.pages += 1
        query = parse_qs(url.query)
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        end = start + limit
        following = f"/api/v1/mailboxes/a@b/messages?limit={limit}&cursor={end}"
        link = f'<{following}>; rel="next"' if end < len(_IDS) else None
        self._answer([{**_MESSAGE, "id": one} for one in _IDS[start:end]], link)

    def _answer(self, value: object, link: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if link:
            self.send_header("Link", link)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    """Return a server, which counts the pages that it is asked for."""
    with _Server(("127.0.0.1", 0), _Relay) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("slash", ["", "/"])
def test_more_than_a_page_is_listed_whole(server: _Server, slash: str) -> None:
    """In order, and no page more than is needed."""
    url = f"http://127.0.0.1:{server.server_port}/below{slash}"
    with Relay(url, None) as relay:
        inbox = relay.mailbox("a@b")
        assert [one.id for one in inbox.messages(1000)] == _IDS
        assert server.pages == 3
        assert len(inbox.messages(200)) == 200
        assert server.pages == 4


def test_the_async_client_lists_it_too(server: _Server) -> None:
    """By the same pages."""

    async def listed() -> None:
        url = f"http://127.0.0.1:{server.server_port}/below"
        async with AsyncRelay(url, None) as relay:
            found = await relay.mailbox("a@b").messages(1000)
            assert [one.id for one in found] == _IDS

    anyio.run(listed)
