"""Servers that no client can speak TLS with, and what tells how often they were asked."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving import Meet, meeting

from relay_client._local_relay import _installed


@contextmanager
def untrusted(folder: Path) -> Iterator[tuple[str, list[object]]]:
    """Serve with a certificate that nobody else has signed: its URL, and who came."""
    make = [_installed()[0], "tls", "self-signed", "--out", str(folder)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    def greet(peer: socket.socket) -> None:
        context.wrap_socket(peer, server_side=True).close()

    with _serving(greet) as served:
        yield served


@contextmanager
def plain() -> Iterator[tuple[str, list[object]]]:
    """Serve HTTP to who wants HTTPS: the URL, and who came."""

    def greet(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with _serving(greet) as served:
        yield served


@contextmanager
def _serving(greet: Meet) -> Iterator[tuple[str, list[object]]]:
    came: list[object] = []

    def meet(peer: socket.socket) -> None:
        came.append(peer.getpeername())
        peer.settimeout(5.0)
        greet(peer)  # ends, too, where its certificate is refused

    with meeting(meet) as place:
        yield f"https://{place}", came
