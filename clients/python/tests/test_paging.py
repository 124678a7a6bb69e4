"""Lists of more than a page, of a relay that is behind a path of somebody's server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import pytest

from relay_client import AsyncRelay, Refused, Relay

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
_LISTED = ("from_address", "subject", "received_at")


class _Server(ThreadingHTTPServer):
    knows_whole = True
    """Whether it gives whole messages; an older one refuses to, or has never heard that names of a
    query can be wrong."""
    refuses = False
    most = 200
    """Messages of a page of whole ones, however many are asked for."""
    empty: tuple[int, ...] = ()
    """The pages that have nothing, by the number of the call: a search looked for long enough."""
    ends = True
    """Whether the last message has no next page behind it."""
    pages = rows = singles = 0


class _Relay(BaseHTTPRequestHandler):
    """Answers as the relay does that a proxy has put under `/below`: next pages from its root."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once, and none waits for another's acknowledgement

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        one = re.fullmatch(re.escape(_PATH) + r"/(\d+)", url.path)
        if one:
            self._relay.singles += 1
            self._answer({**_MESSAGE, "id": one[1]})
            return
        if url.path != _PATH:
            self.send_error(404)
            return
        query = parse_qs(url.query)
        whole = query.get("whole") == ["true"]
        if whole and self._relay.refuses:
            self._answer({"type": "/problems/unknown-parameter", "detail": "no whole"}, status=422)
            return
        self._relay.pages += 1
        whole = whole and self._relay.knows_whole
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        end = start + min(limit, self._relay.most if whole else limit)
        if self._relay.pages in self._relay.empty:
            end = start
        values = {name: one for name, (one,) in query.items()}
        values |= {"cursor": str(end), "n": str(self._relay.pages)}  # each is another
        following = urlencode(values)
        link = f'</api/v1/mailboxes/a@b/messages?{following}>; rel="next"'
        shown = _MESSAGE if whole else {name: _MESSAGE[name] for name in _LISTED}
        rows = [{**shown, "id": one} for one in _IDS[start:end]]
        self._relay.rows += len(rows)
        self._answer(rows, link if end < len(_IDS) or not self._relay.ends else None)

    @property
    def _relay(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def _answer(self, value: object, link: str | None = None, *, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
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
    """In order, by a call a page; no message more than is asked for, which marks it read."""
    url = f"http://127.0.0.1:{server.server_port}/below{slash}"
    with Relay(url, None) as relay:
        inbox = relay.mailbox("a@b")
        assert [one.id for one in inbox.messages(1000)] == _IDS
        assert (server.pages, server.rows) == (3, 450)
        assert len(inbox.messages(200)) == 200
        assert (server.pages, server.rows) == (4, 650)
        assert [one.id for one in inbox.messages(250)] == _IDS[:250]
        assert (server.pages, server.rows) == (6, 900)
        server.most = 60  # they are large
        assert [one.id for one in inbox.messages(100)] == _IDS[:100]
        assert (server.pages, server.rows) == (8, 1000)
        assert server.singles == 0


def test_an_empty_page_is_not_the_end(server: _Server) -> None:
    """Nor are several, the first among them: a slow search finds nothing for a while."""
    server.empty = (1, 2, 4)
    with Relay(f"http://127.0.0.1:{server.server_port}/below", None) as relay:
        found = relay.mailbox("a@b").search("word", 250)
    assert [one.id for one in found] == _IDS[:250]
    assert (server.pages, server.rows) == (5, 250)


def test_a_list_without_an_end_is_given_up(server: _Server) -> None:
    """After a thousand pages with nothing; one that has all that is asked for is no such list."""
    server.ends = False
    with Relay(f"http://127.0.0.1:{server.server_port}/below", None) as relay:
        inbox = relay.mailbox("a@b")
        assert [one.id for one in inbox.messages(450)] == _IDS
        server.pages = 0
        with pytest.raises(Refused, match="no relay answered: 1000 pages of its list are empty"):
            inbox.messages(451)
    assert server.pages == 3 + 1000


@pytest.mark.parametrize("refuses", [True, False])
def test_an_older_relay_gives_them_one_by_one(server: _Server, refuses: bool) -> None:
    """One that lists only what lists show, whether or not it says what it does not know."""
    server.knows_whole, server.refuses = False, refuses
    with Relay(f"http://127.0.0.1:{server.server_port}/below", None) as relay:
        found = relay.mailbox("a@b").messages(250)
    assert [one.id for one in found] == _IDS[:250]
    assert (server.pages, server.rows, server.singles) == (2, 250, 250)


def test_the_async_client_lists_it_too(server: _Server) -> None:
    """By the same pages."""

    async def listed() -> None:
        url = f"http://127.0.0.1:{server.server_port}/below"
        async with AsyncRelay(url, None) as relay:
            found = await relay.mailbox("a@b").messages(1000)
            assert [one.id for one in found] == _IDS

    anyio.run(listed)
