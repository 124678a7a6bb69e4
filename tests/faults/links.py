"""Links that can be parted: TCP ports of this machine that lead to Unix sockets.

`Link` passes on what either side says.  While it is `parted` nothing passes, and nobody is told:
connections stay open, new ones are let in and hear nothing, as over a network that lost its route.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path

_CHUNK = 65536
_LOOK_EVERY = 0.02  # s


class Link:
    """Use it as a context manager."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._parted = threading.Event()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._listener.close()

    def part(self) -> None:
        """Let nothing through from now on."""
        self._parted.set()

    def heal(self) -> None:
        """Let through what was kept, and all that comes."""
        self._parted.clear()

    def _run(self) -> None:
        with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as stack:
            waiting.register(self._listener, selectors.EVENT_READ)
            while not self._stopped.is_set():
                if self._parted.wait(0) and not self._stopped.wait(_LOOK_EVERY):
                    continue
                for key, _ in waiting.select(_LOOK_EVERY):
                    if key.fileobj is self._listener:
                        self._join(waiting, stack)
                    elif not self._parted.is_set():
                        self._pass_on(waiting, key.fileobj, key.data)  # type: ignore[arg-type]

    def _join(self, waiting: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        for sock in (near, far):
            stack.enter_context(sock)
        try:
            far.connect(self._target)
        except OSError:
            near.close()
            far.close()
            return
        waiting.register(near, selectors.EVENT_READ, far)
        waiting.register(far, selectors.EVENT_READ, near)

    @staticmethod
    def _pass_on(waiting: selectors.BaseSelector, source: socket.socket, to: socket.socket) -> None:
        try:
            data = source.recv(_CHUNK)
            if data:
                to.sendall(data)
                return
        except OSError:
            pass
        for sock in (source, to):
            with contextlib.suppress(KeyError, ValueError):
                waiting.unregister(sock)
            sock.close()
