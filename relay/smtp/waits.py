"""How an SMTP session waits: for bytes, for an answer, and, pinned to its task, for all of Trio.

`Waits` is everything a session may wait through; `relay.smtp.trampoline` implements it.  The
session's own modules import no Trio (import-linter holds them to that), so all that belongs to a
task, a deadline, a sleep, a lock, can be had only from the `Pinned` that `pinned()` gives, and
`pinned()` is what makes it safe.

Why: the code of a session between two waits may be run by another task than its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from relay.ports.tls import ByteSocket

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Answer(Protocol[T_co]):
    """What somebody else finds out for a session (`relay.futures.Future` is one)."""

    @property
    def settled(self) -> bool:
        """Whether it is there."""

    def then(self, call: Callable[[], object]) -> None:
        """Have `call`, which raises nothing, called once when it is there; the last one given."""

    def result(self) -> T_co:
        """Return it, or raise what prevented it; once settled."""


class Talk(Protocol):
    """What goes on between a session and its peer without resuming the session.

    Each call says what is next: True: more bytes; False: the session is resumed; an answer: once
    it is there, `answered`.  What a call raises is raised in the session.  `now` is the time of
    Trio's clock, as of when bytes were noticed, of many sessions at once perhaps.
    """

    @property
    def size(self) -> int:
        """How many bytes it takes at most the next time."""

    def take(self, chunk: bytes, now: float) -> Answer[Any] | bool:
        """Take bytes; none: the stream has ended."""

    def answered(self, now: float) -> Answer[Any] | bool:
        """Go on with the answer that was waited for."""


class Deadline(Protocol):
    """What `Pinned.move_on_after` gives."""

    cancelled_caught: bool
    """Whether the block ended because its time was over."""


class Pinned(Protocol):
    """What only a session that is pinned to its task may do; of no use afterwards."""

    def move_on_after(self, seconds: float) -> AbstractContextManager[Deadline]:
        """Break the block off after so many seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""

    async def wait_writable(self, sock: ByteSocket) -> None:
        """Wait until the socket takes bytes."""

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do what waits in ways of its own."""


class Waits(Protocol):
    """The waits of one session; used by its coroutine alone, but for `host` and `cut_off`."""

    async def host(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """Run the session, whose `coro` this is, in this task; None when it was cut off."""

    def cut_off(self) -> None:
        """End it wherever it waits."""

    def now(self) -> float:
        """The time of Trio's clock, in seconds."""

    async def read(self, size: int) -> bytes:
        """Wait for bytes and return at most `size`; none at the end of the stream.  OSError."""

    def go_through(self, sock: ByteSocket) -> None:
        """Read from `sock` from now on, which is over the socket read from until now."""

    async def wait(self, answer: Answer[T]) -> T:
        """Wait for an answer."""

    async def converse(self, talk: Talk, step: Answer[Any] | bool = True) -> None:
        """Leave it to `talk`, which said `step` last, until it says False.  Not pinned.  OSError.

        It is called by whoever has the bytes or the answer, not in the session's context.
        """

    def pinned(self) -> AbstractAsyncContextManager[Pinned]:
        """Stay in the session's own task while in the block."""
