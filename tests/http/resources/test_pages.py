"""The pages' files over HTTP: packed for those who take that, as they are for all others."""

from __future__ import annotations

import gzip
import time

import pytest
import trio

from relay.http.description.openapi import describe
from tests.http.conftest import House
from tests.http.gate.test_gate import routes

SHEET = "/ui/style.css"


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0.8, identity;q=0.8", True),
        ("identity", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *;q=1", False),
        ("*;q=0, identity", False),
        ("gzip;q=0.5, identity", False),
        ("gzip;q=much, ,;=", False),
    ],
)
async def test_a_file_is_packed_for_those_who_take_gzip(house: House, accepted: str, packed: bool):
    """The same bytes either way, and the headers say which, to GET and to HEAD."""
    plain = await house.client.get(SHEET, headers={"Accept-Encoding": "identity"})
    for method in ("GET", "HEAD"):
        headers = {"Accept-Encoding": accepted}
        async with house.client.stream(method, SHEET, headers=headers) as answer:
            sent = b"".join([piece async for piece in answer.aiter_raw()])
        assert (answer.headers.get("Content-Encoding") == "gzip") is packed
        assert answer.headers["Vary"] == "Accept-Encoding"
        for name in ("Content-Type", "Content-Security-Policy", "Cache-Control"):
            assert answer.headers[name] == plain.headers[name]
        length = int(answer.headers["Content-Length"])
        assert length < len(plain.content) / 2 if packed else length == len(plain.content)
        if method == "HEAD":
            assert sent == b""
        else:
            assert length == len(sent)
            assert (gzip.decompress(sent) if packed else sent) == plain.content


async def test_every_page_is_packed(house: House):
    """The two pages, a problem's, and each file that the page names; what is missing is not."""
    for path in ("/", "/docs", "/problems/not-found", "/ui/app.js", "/ui/strings.de.js"):
        answer = await house.client.get(path, headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        assert answer.headers["Content-Encoding"] == "gzip"
        assert int(answer.headers["Content-Length"]) < len(answer.content)
    missing = await house.client.get("/ui/none.js", headers={"Accept-Encoding": "gzip"})
    assert missing.status_code == 404
    assert "Content-Encoding" not in missing.headers


class _Steps(trio.abc.Instrument):
    """The most CPU that the loop's own thread gave to one step of a task, in seconds."""

    def __init__(self) -> None:
        self.most = 0.0
        self._began = time.thread_time()  # the step that adds it is under way

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, time.thread_time() - self._began)


async def test_the_description_is_not_made_on_the_loop(house: House):
    """No step of a task takes half of the CPU that the description takes when it is made again."""
    steps = _Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        answer = await house.client.get("/openapi.json")
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert answer.status_code == 200
    began = time.thread_time()
    describe(tuple(route for route in routes(house) if not route.operation.compat), "x")
    assert 0.0 < steps.most < (time.thread_time() - began) / 2
