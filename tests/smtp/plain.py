"""Sessions as ordinary Trio tasks: what `relay.smtp.trampoline` is held to, and measured against.

The same interface (`relay.smtp.waits`) and the same promises, by what Trio has for them: one switch
of tasks at each wait, one system call to arm each socket, and nothing of our own.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from relay.ports.tls import ByteSocket
from relay.smtp.waits import Answer, Talk

T = TypeVar("T")


class Plain:
    """Makes what sessions wait through."""

    def waits(self, sock: socket.socket) -> PlainWaits:
        """Return what a session waits through; `sock` is connected and does not block."""
        return PlainWaits(sock)

    async def run(self) -> None:
        """Nothing to be done."""


class PlainWaits:
    """What one session waits through."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: ByteSocket = sock
        self._scope = trio.CancelScope()
        self._over = self._more = False  # read through TLS, which may hold more

    async def host(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """Run the session."""
        with self._scope:
            return await coro
        return None

    def cut_off(self) -> None:
        """End it wherever it waits."""
        self._scope.cancel()

    now = staticmethod(trio.current_time)

    async def read(self, size: int) -> bytes:
        """Wait for bytes."""
        while True:
            if not self._more:
                await trio.lowlevel.wait_readable(self._sock)
            try:
                chunk = self._sock.recv(size)
            except BlockingIOError:
                self._more = False
                continue
            self._more = self._over and len(chunk) == size
            return chunk

    def go_through(self, sock: ByteSocket) -> None:
        """Read from another, which may hold what it has read already."""
        self._sock = sock
        self._over = self._more = True

    async def wait(self, answer: Answer[T]) -> T:
        """Wait for an answer."""
        given = trio.Event()
        answer.then(given.set)
        await given.wait()
        return answer.result()

    async def converse(self, talk: Talk, step: Answer[Any] | bool = True) -> None:
        """Read for it and wait for it, as the session would."""
        while step is not False:
            if step is True:
                step = talk.take(await self.read(talk.size), trio.current_time())
            else:
                with contextlib.suppress(Exception):  # `talk` looks at the answer itself
                    await self.wait(step)
                step = talk.answered(trio.current_time())

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator[PlainWaits]:
        """It always is."""
        yield self

    move_on_after = staticmethod(trio.move_on_after)
    sleep = staticmethod(trio.sleep)
    wait_writable = staticmethod(trio.lowlevel.wait_writable)

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do what waits in ways of its own."""
        return await call()
