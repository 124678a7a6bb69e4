"""Do links answer: real sockets, and nothing that is not public."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio

from relay.http.probes.links import Links
from relay.webhooks.post import Poster

ANSWERS = {"/ok": 200, "/moved": 302, "/head": 405, "/login": 401, "/gone": 404, "/broken": 500}


class Site:
    """A web site: which requests came, and how many at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = self.most = 0
        self.port = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        line = head.partition(b"\r\n")[0].decode()
        self.asked.append(line)
        path = line.split()[1]
        if path == "/slow":
            await trio.sleep_forever()
        self.open -= 1
        if path != "/closed":
            status = ANSWERS.get(path, 200)
            await stream.send_all(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\n" % status)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
async def site(nursery: trio.Nursery) -> AsyncIterator[Site]:
    made = Site()
    listeners = await nursery.start(partial(trio.serve_tcp, made.serve, 0, host="127.0.0.1"))
    made.port = listeners[0].socket.getsockname()[1]
    yield made
    nursery.cancel_scope.cancel()


async def test_dead_links_are_found(site: Site):
    """Not there, failing, broken off, silent; not what has moved, or wants to know more."""
    links = Links(Poster(allow_private=True, timeout=0.5))
    paths = [*ANSWERS, "/ok#part", "/closed", "/slow"]
    found = await links.look_at([site.url(path) for path in paths])
    assert [(one.id, one.severity) for one in found] == [("dead-link", "error")] * 4
    assert [one.text.partition(site.url(""))[2] for one in found] == [
        "/gone' answers 404.",
        "/broken' answers 500.",
        "/closed' is dead: the connection broke before an answer came.",
        "/slow' is dead: no answer within 0.5 s.",
    ]
    assert sorted(site.asked) == sorted(
        f"HEAD {path} HTTP/1.1" for path in paths if "#" not in path
    )


async def test_not_all_are_asked(site: Site):
    """So many, so many at once, and for so long; how many were not is said."""
    links = Links(Poster(allow_private=True, timeout=5.0), most=7, at_once=2)
    found = await links.look_at([site.url(f"/{number}") for number in range(10)])
    assert [(one.id, one.text[:27]) for one in found] == [
        ("more-links", "3 of 10 links were not aske")
    ]
    assert len(site.asked) == 7
    assert site.most <= 2
    links = Links(Poster(allow_private=True, timeout=60.0), within=0.5)
    found = await links.look_at([site.url("/slow"), site.url("/gone")])
    assert [one.id for one in found] == ["dead-link", "more-links"]


async def test_nothing_private_is_asked(site: Site):
    """By address, by name or in disguise: it is said that nobody looked, and nobody did."""
    links = Links(Poster(timeout=5.0))
    wanted = [
        site.url("/ok"),
        f"http://localhost:{site.port}/ok",
        f"http://2130706433:{site.port}/ok",
        f"http://user:password@127.0.0.1:{site.port}/ok",
        f"https://[::ffff:127.0.0.1]:{site.port}/ok",
        "http://169.254.169.254/latest/meta-data/",
    ]
    found = await links.look_at(wanted)
    assert {one.id for one in found} == {"link-not-asked"}
    assert len(found) == len(wanted)
    assert site.asked == []
