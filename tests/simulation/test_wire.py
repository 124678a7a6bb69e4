"""What the simulation sees of a server's answers, however they come."""

import socket
import threading

import pytest

from simulation.database import wire

ERROR = b"E\0\0\0\5\0"
NOTICE = b"N\0\0\0\5\0"
READY = b"Z\0\0\0\5I"


@pytest.mark.parametrize("first", [ERROR, NOTICE])
def test_an_answer_that_comes_in_two_pieces_is_one(first: bytes) -> None:
    """What the server sends at once, and the rest when it has come to it."""
    server, client = socket.socketpair()
    with server, client:
        server.sendall(first)
        rest = threading.Timer(0.05, server.sendall, [READY])
        rest.start()
        assert wire.await_rest(client.fileno()) == first + READY
        rest.join()


@pytest.mark.parametrize("first", [ERROR, NOTICE])
def test_an_answer_that_breaks_off_is_what_there_is(first: bytes) -> None:
    """Its server has gone."""
    server, client = socket.socketpair()
    with client:
        server.sendall(first)
        rest = threading.Timer(0.05, server.close)
        rest.start()
        assert wire.await_rest(client.fileno()) == first
        rest.join()
