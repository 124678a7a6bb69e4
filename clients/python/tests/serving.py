"""Servers that say what a test wants said: each connection has a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Callable

Meet = Callable[[socket.socket], None]
Answer = Callable[[socket.socket, bytes], None]

ENTRY: dict[str, object] = {
    "id": "1",
    "from_address": None,
    "subject": None,
    "received_at": "2026-01-01T00:00:00Z",
}
"""What a list shows of a message."""

MESSAGE: dict[str, object] = {
    **ENTRY,
    **dict.fromkeys(("body_text", "body_html", "otp")),
    "to": "a@b",
    "size": 1,
    "links": [],
    "headers": {},
    "attachments": [],
}
"""All of it."""


def reply(body: str, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return what goes over the connection."""
    said = body.encode()
    every = {**headers, "Content-Length": str(len(said)), "Connection": "close"}
    fields = [f"{name}: {value}" for name, value in every.items()]
    return "\r\n".join([f"HTTP/1.1 {status} x", *fields, "", ""]).encode("latin-1") + said


def fields_of(request: bytes) -> dict[str, str]:
    """Return the header fields of a request, their names in lower case."""
    _, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    named = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in named}


@contextmanager
def meeting(meet: Meet) -> Iterator[str]:
    """Do this with each connection, and close it: host and port."""

    def attend(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            meet(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=attend, args=(peer,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Answer what each connection asks first: the URL, and what was asked."""
    asked: list[bytes] = []

    def meet(peer: socket.socket) -> None:
        request = peer.recv(65536)
        asked.append(request)
        answer(peer, request)

    with meeting(meet) as place:
        yield f"http://{place}", asked
