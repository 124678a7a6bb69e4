"""One HTTP exchange: bodies whole or broken, however they come, and nothing that is not HTTP."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relay.cli.exchange import BrokenExchange, Exchange

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[Exchange, list[bytes]]]:
    """An exchange with a server that sends these pieces, one after the other, and closes."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as peer:
                asked.append(peer.recv(65536))
                for piece in pieces:
                    peer.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with Exchange(*listener.getsockname(), connect_timeout=5) as exchange:
                yield exchange, asked
        finally:
            thread.join()


def get(*pieces: bytes) -> tuple[Exchange, bytes]:
    with answering(*pieces) as (exchange, _):
        exchange.ask("GET", "/", {"Host": "x"}, None, 5)
        return exchange, exchange.read()


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([OK + b"Content-Length: 5\r\n\r\nhello"], b"hello"),
        ([OK + b"content-length: 5\r\n\r\nhel", b"lo"], b"hello"),
        ([OK + b"Content-Length: 0\r\n\r\n"], b""),
        ([OK + b"\r\n", b"up to ", b"the end"], b"up to the end"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
        ([b"HTTP/1.1 103 Early\r\nLink: <x>\r\n\r\n", OK + b"Content-Length: 1\r\n\r\nx"], b"x"),
        ([CHUNKED + b"5\r\nhel", b"lo\r\n1;a=b\r\n!\r\n0\r\n\r\n"], b"hello!"),
        ([CHUNKED + b"0\r\nTrailer: x\r\n\r\n"], b""),
    ],
)  # fmt: skip
def test_a_body_is_given_whole(pieces: list[bytes], body: bytes) -> None:
    """By its length, in chunks, or up to the end of the connection."""
    assert get(*pieces)[1] == body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"220 mail.example ESMTP\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        OK + b"Content-Length: 6\r\n\r\nhello",
        OK + b"Content-Length: -6\r\n\r\nhello",
        OK + b"no header\r\n\r\n",
        OK + b"X: y\r\n" * 200 + b"\r\n",
        OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhelloworld",
        CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_whole_or_no_http_is_an_error(answer: bytes) -> None:
    """Nothing that was cut off is taken for an answer."""
    with pytest.raises(BrokenExchange):
        get(answer)


def test_a_body_is_given_as_it_comes() -> None:
    """What has come is there at once; what has not is waited for, for as long as was said."""
    with answering(OK + b"Content-Length: 9\r\n\r\nnow") as (exchange, _):
        exchange.ask("GET", "/", {}, None, 5)
        assert exchange.read_some(100) == b"now"
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Exchange(*silent.getsockname(), connect_timeout=5) as exchange,
        pytest.raises(TimeoutError),
    ):
        exchange.ask("GET", "/", {}, None, 0.05)


def test_the_head_is_what_was_sent() -> None:
    """Status, reason, and headers by their names in small letters."""
    exchange, _ = get(
        b"HTTP/1.1 404 Not  Found \r\nLINK:  <x>; rel=next \r\nContent-Length: 0\r\n\r\n"
    )
    assert (exchange.status, exchange.reason) == (404, "Not  Found")
    assert exchange.headers["link"] == "<x>; rel=next"


def test_a_request_is_one_request() -> None:
    """It says its length where it has a body; a target or a header cannot make another of it."""
    with answering(OK + b"\r\n") as (exchange, asked):
        for target, value in (("/ HTTP/1.1", "x"), ("/a\r\nb", "x"), ("", "x"), ("/", "x\r\nY: z")):
            with pytest.raises(BrokenExchange):
                exchange.ask("GET", target, {"X": value}, None, 5)
        exchange.ask("POST", "/a?b=%20", {"Host": "h:1", "X": "caf\xe9"}, b"{}", 5)
        assert exchange.read() == b""
    assert asked == [
        b"POST /a?b=%20 HTTP/1.1\r\nAccept-Encoding: identity\r\nHost: h:1\r\nX: caf\xe9\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    ]
