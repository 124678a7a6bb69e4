"""A socket that encrypts."""

from __future__ import annotations

import socket
import ssl

import pytest

from relay.ports.tls import TlsSocket


async def test_nothing_is_sent_before_the_handshake():
    """A farewell of a session that ends meanwhile is not said in clear."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        tls = TlsSocket(ours)
        with pytest.raises(ConnectionAbortedError):
            tls.send(b"421 Timed out\r\n")
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


def test_a_handshake_that_does_not_end_is_ended():
    """Of its bytes no more are taken than any peer needs, however they come."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with ours, theirs:
        ours.setblocking(False)
        tls = TlsSocket(ours)
        tls.shake(b"\x16", context)  # the first byte of a record
        with pytest.raises(ssl.SSLError, match="does not end"):
            tls.shake(bytes(65_536), context)
        assert not tls.established
