"""Posting: whatever an address says, nothing inside this network is reached."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from relay.response_body import MOST_PIECES, body_of
from relay.response_bounds import MOST_HEAD, MOST_INTERIM, MOST_LINES
from relay.ssrf_guard import BadUrl, check_url, is_public
from relay.webhooks.post import NotPosted, Poster
from tests.webhooks.receiver import receiving

PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.31.255.255",
    "192.0.0.170", "192.88.99.1", "192.168.1.1", "198.18.0.1", "203.0.113.9", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "192.31.196.1", "192.52.193.1", "192.175.48.6",
    "100.100.100.200", "168.63.129.16", "192.0.0.192",  # where clouds keep their metadata
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1",
    "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
    "2002:808:808::1", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0", "fec0::1",
    "ff02::1", "2001:4:112::1", "2001:20::1", "2620:4f:8000::6", "5f00::1", "100:0:0:1::1",
    "2606:4700::5efe:a00:1", "2606:4700::200:5efe:a00:1", "::a00:1", "64:ff9b:1:a00:1::",
    "fd00:ec2::254", "fd20:ce::254", "fd00:42::42",  # where clouds keep their metadata
    "not an address",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
async def test_no_address_that_is_not_public_is_connected_to(address: str):
    """Named in the URL or given by a name, alone or beside a public one."""
    assert not is_public(address)

    async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("93.184.215.14", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)),
        ]

    with pytest.raises(NotPosted, match="not on the public internet"):
        await Poster(resolve=resolve).post("https://inner.example/", b"", {})


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8", "93.184.215.14", "168.63.129.15", "168.63.129.17", "192.175.49.1",
        "2606:4700::1111", "2606:4700::5eff:a00:1", "2620:4f:8001::1", "2a00::1",
    ],
)  # fmt: skip
def test_public_addresses_are_told_from_the_others(address: str):
    """What is routed on the internet is public."""
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://localhost/",
        "http://[::ffff:127.0.0.1]/", "http://[::1]:80/", "http://①②⑦.0.0.1/",
    ],
)  # fmt: skip
async def test_disguises_of_this_machine_are_seen_through(url: str):
    """Whatever the resolver makes of them is checked, and it is the resolver that is connected."""
    with pytest.raises(NotPosted) as caught:
        await Poster(timeout=5.0).post(url, b"", {})
    assert "127" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.example/", "file:///etc/passwd", "https://", "x", "https://u:p@x.example/",
        "https://x.example/#f", "https://x.example/ y", "https://x.example/\r\nX: y",
        "https://127.0.0.1/", "https://[::1]/", "https://x.example/" + "a" * 2048,
        "https://x.example:99999/", "http://a..x.example/", "http://xn--a.x.example/",
        f"http://{'a' * 64}.x.example/", "https://.x.example/",
    ],
)  # fmt: skip
def test_a_url_that_is_never_posted_to_is_refused_at_once(url: str):
    """With a sentence that does not repeat it."""
    with pytest.raises(BadUrl) as caught:
        check_url(url)
    assert "x.example" not in str(caught.value)


@pytest.mark.parametrize("error", [UnicodeError("x"), httpx.InvalidURL("x")])
async def test_a_url_that_a_codec_refuses_is_refused_for_good(error: Exception):
    """Whatever `check_url` overlooks."""

    async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        raise error

    with pytest.raises(NotPosted):
        await Poster(resolve=resolve).post("https://x.example/", b"", {})


async def test_the_connection_goes_to_the_address_that_was_checked():
    """One look-up a post: what the name stands for the next moment does not matter."""
    asked = []

    async with receiving() as receiver:

        async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            asked.append((host, port))
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", receiver.port))]

        poster = Poster(allow_private=True, resolve=resolve)
        url = f"http://does-not-resolve.example:{receiver.port}/path"
        with trio.fail_after(10):
            assert await poster.post(url, b"{}", {}) == 204
    assert asked == [("does-not-resolve.example", receiver.port)]
    assert receiver.got[0][0]["host"] == f"does-not-resolve.example:{receiver.port}"


async def test_authorities_are_read_by_the_first_post_and_no_other():
    """A relay that posts nothing reads none; one that does, once."""
    made = []

    def context() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    poster = Poster(allow_private=True, context=context)
    assert not made
    async with receiving() as receiver:
        with trio.fail_after(10):
            for _ in range(2):
                await poster.post(f"http://127.0.0.1:{receiver.port}/", b"{}", {})
    assert len(made) == 1


@asynccontextmanager
async def answering(
    answer: bytes, *, for_ever: bool = False
) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that says this to whoever asks, `for_ever` again and again: its URL, and how many
    bytes were taken of it."""
    taken: list[int] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer)
            taken.append(len(answer))
            while for_ever:
                await stream.send_all(answer)
                taken.append(len(answer))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/", taken
        nursery.cancel_scope.cancel()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 102 \r\n\r\n" * (MOST_INTERIM + 1) + b"HTTP/1.1 204 \r\n\r\n",
        b"HTTP/1.1 102 \n\n" * (MOST_INTERIM + 1) + b"HTTP/1.1 204 \n\n",
        b"HTTP/1.1 204 \r\n" + b"a:\r\n" * MOST_LINES + b"\r\n",
        b"HTTP/1.1 103 \r\n" + b"a:\r\n" * MOST_LINES + b"\r\nHTTP/1.1 204 \r\n\r\n",
        b"HTTP/1.1 204 \r\na: " + b"b" * MOST_HEAD + b"\r\n\r\n",
        CHUNKED + b"1\r\na\r\n" * (MOST_PIECES + 1) + b"0\r\n\r\n",
        CHUNKED + (b"1;" + b"x" * 15_000 + b"\r\na\r\n") * 100 + b"0\r\n\r\n",
        CHUNKED + b"0\r\n" + b"a:\r\n" * 20_000 + b"\r\n",
    ],
)
async def test_no_more_of_an_answer_is_read_than_its_bounds(answer: bytes):
    """Interim answers, fields, chunks and what stands about them: each costs, whatever its size."""
    async with answering(answer) as (url, _):
        with pytest.raises(NotPosted, match="the answer is too large"):
            await Poster(allow_private=True).get(url, {}, 10_000)


async def test_an_answer_without_end_is_left_after_its_first_bytes():
    """For who posts alone, too; what the server could send was taken by the system."""
    async with answering(b"HTTP/1.1 102 \r\n\r\n" * 4096, for_ever=True) as (url, taken):
        with pytest.raises(NotPosted, match="the answer is too large"):
            await Poster(allow_private=True).post(url, b"{}", {})
        assert sum(taken) < 64 * 2**20


async def test_an_answer_within_its_bounds_is_read_whole():
    """Early hints, many fields, small chunks."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * MOST_INTERIM
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"v" * 200) for number in range(100))
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n")
    body = b"7\r\nHTTP/1.\r\n" + b"2\r\n\n\n\r\n" * 1000 + b"0\r\n\r\n"
    async with answering(hints + head + body) as (url, _):
        got = await Poster(allow_private=True).get(url, {}, 10_000)
    assert (got.status, got.body) == (200, b"HTTP/1." + b"\n\n" * 1000)


async def test_who_reads_many_small_pieces_lets_others_go_on():
    """One read can bring thousands, and none of them waits for anything."""

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(MOST_PIECES):
                yield b"a"

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        body = await body_of(httpx.Response(200, stream=Pieces()), MOST_PIECES)
        nursery.cancel_scope.cancel()
    assert body == b"a" * MOST_PIECES
    # Of the first and the last turn it is Trio's throw who has it.
    assert turns >= MOST_PIECES // 64 - 2
