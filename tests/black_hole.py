"""An address that hears nobody who knocks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def black_hole(host: str, port: int) -> Iterator[int]:
    """It listens with a full queue: to connect is answered by nothing, not even a refusal.

    Gives its port; 0: one that is free.
    """
    with ExitStack() as stack:
        listening, *knocking = (stack.enter_context(socket.socket()) for _ in range(5))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(0)
        port = listening.getsockname()[1]
        for each in knocking:
            each.setblocking(False)
            each.connect_ex((host, port))
        yield port
