"""Servers that say what a test wants said: each connection has a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Callable

Meet = Callable[[socket.socket], None]
Answer = Callable[[socket.socket, bytes], None]


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
