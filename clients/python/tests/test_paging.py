"""Lists of more than a page, of a relay that is behind a path of somebody's server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

import anyio
import pytest
from serving import MESSAGE, reply, serving

from relay_client import AsyncRelay, Refused, Relay

_IDS = [str(number) for number in range(450)]
_PATH = "/below/api/v1/mailboxes/a@b/messages"


class _Server:
    """Answers as the relay does that a proxy has put under `/below`: next pages from its root.

    It counts the pages that it is asked for.
    """

    url = ""
    most = 200
    """Messages of a page, however many are asked for."""
    empty: tuple[int, ...] = ()
    """The pages that have nothing, by the number of the call: a search looked for long enough."""
    ends = True
    """Whether the last message has no next page behind it."""
    pages = rows = 0

    def serve(self, peer: socket.socket, request: bytes) -> None:
        peer.sendall(self._answer(urlsplit(request.split()[1].decode())))

    def _answer(self, url: SplitResult) -> bytes:
        if url.path != _PATH:
            return reply("", 404)
        query = parse_qs(url.query)
        assert query["whole"] == ["true"]
        self.pages += 1
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        end = start + min(limit, self.most)
        if self.pages in self.empty:
            end = start
        values = {name: one for name, (one,) in query.items()}
        values |= {"cursor": str(end), "n": str(self.pages)}  # each is another
        ids = _IDS[start:end]
        self.rows += len(ids)
        rows = json.dumps([{**MESSAGE, "id": one} for one in ids])
        if end >= len(_IDS) and self.ends:
            return reply(rows)
        link = f'</api/v1/mailboxes/a@b/messages?{urlencode(values)}>; rel="next"'
        return reply(rows, headers={"Link": link})


@pytest.fixture
def server() -> Iterator[_Server]:
    """Return a server that answers so."""
    running = _Server()
    with serving(running.serve) as (url, _):
        running.url = f"{url}/below"
        yield running


@pytest.mark.parametrize("slash", ["", "/"])
def test_more_than_a_page_is_listed_whole(server: _Server, slash: str) -> None:
    """In order, by a call a page; no message more than is asked for, which marks it read."""
    with Relay(f"{server.url}{slash}", None) as relay:
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


def test_an_empty_page_is_not_the_end(server: _Server) -> None:
    """Nor are several, the first among them: a slow search finds nothing for a while."""
    server.empty = (1, 2, 4)
    with Relay(server.url, None) as relay:
        found = relay.mailbox("a@b").search("word", 250)
    assert [one.id for one in found] == _IDS[:250]
    assert (server.pages, server.rows) == (5, 250)


def test_a_list_without_an_end_is_given_up(server: _Server) -> None:
    """After a thousand pages with nothing; one that has all that is asked for is no such list."""
    server.ends = False
    with Relay(server.url, None) as relay:
        inbox = relay.mailbox("a@b")
        assert [one.id for one in inbox.messages(450)] == _IDS
        server.pages = 0
        with pytest.raises(Refused, match="no relay answered: 1000 pages of its list are empty"):
            inbox.messages(451)
    assert server.pages == 3 + 1000


def test_the_async_client_lists_it_too(server: _Server) -> None:
    """By the same pages."""

    async def listed() -> None:
        async with AsyncRelay(server.url, None) as relay:
            found = await relay.mailbox("a@b").messages(1000)
            assert [one.id for one in found] == _IDS

    anyio.run(listed)
