"""Signing in child processes: the parent's side of `relay.outbound.signing.worker`.

A thread that signs by RSA lets go of the interpreter's lock (GIL) meanwhile, but wants it back
after each signature: it waits for the loop to let it go, and the loop waits to have it again.  To a
child the loop writes once for a batch, and reads once (`python -m tests.bench outbound`).

Promises
- There is no child until so much is to be signed that it pays (`want`; `ahead.MANY` messages),
  and none any more when nothing was for `IDLE` seconds.
- Whoever waits for signatures has them, or `NoProcess`, within `DEADLINE` seconds: a child that
  dies, or stops, is replaced, after a pause that grows while none of them signs anything.
- Keys go to a child over its pipe, when it first needs them; `forget` has all children forget one.
- When `run` is cancelled, the children are killed, whatever they do.

Fails with `NoProcess`: whoever asked signs by other means.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import trio

from relay.child_process import kill, start_module
from relay.errors import TemporaryFailure
from relay.futures import Future
from relay.log import get_logger
from relay.outbound.signing.dkim import PrivateKey, dump
from relay.outbound.signing.worker import FORGET, KEY, LENGTH, READY, REQUEST, SIGN, SIGNED

log = get_logger()

IDLE = 60.0
"""Seconds without anything to sign after which a child is not kept any longer."""
DEADLINE = 5.0
"""Seconds that a child may take for a batch."""
_START = 30.0  # s; what a child may take to start on a busy machine
_PAUSES = (0.1, 60.0)  # s; before another child is started after one that signed nothing
_CHUNK = 64 * 1024


class NoProcess(TemporaryFailure):
    """No child signs this now."""


class ToSign(NamedTuple):
    """What is to be signed, and by which key."""

    id: UUID
    """The key's."""
    key: PrivateKey
    digest: bytes


def processes_on(cores: int) -> int:
    """How many children sign where the relay may use so many cores.

    One for each: what the loop and the database leave of them is theirs.  Four sign as much as a
    loop delivers.
    """
    return min(cores, 4)


class SigningProcesses:
    """The children of one relay; `run` has to be running."""

    def __init__(
        self, count: int | None = None, *, idle: float = IDLE, deadline: float = DEADLINE
    ) -> None:
        """`count`: children at most; None: as `processes_on` this machine."""
        self.count = count or processes_on(len(os.sched_getaffinity(0)))
        self._idle = idle
        self._deadline = deadline
        self._children: list[_Child] = []
        self._wanted = trio.Event()

    @property
    def pids(self) -> list[int]:
        """The process ids of the children that sign."""
        return [child.process.pid for child in self._children]

    @property
    def ready(self) -> bool:
        """Whether a child signs."""
        return bool(self._children)

    def want(self) -> None:
        """There is more to sign than a few mails: children do it as soon as they run."""
        self._wanted.set()

    async def sign(self, digests: Sequence[ToSign]) -> list[bytes]:
        """The signatures, in order; `NoProcess` if no child makes them."""
        if not self._children:
            raise NoProcess("no process signs")
        return await min(self._children, key=len).sign(digests)

    def forget(self, ids: Collection[UUID]) -> None:
        """These keys sign no more."""
        for child in self._children:
            child.forgotten.update(ids)

    async def run(self) -> None:
        """Start, serve and replace children, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(self.count):
                nursery.start_soon(self._keep)

    async def _keep(self) -> None:
        pause = _PAUSES[0]
        while True:
            await self._wanted.wait()
            try:
                signed = await self._serve()
            except (OSError, TemporaryFailure) as error:
                log.warning("signing.process_not_started", reason=str(error))
                signed = False
            pause = _PAUSES[0] if signed else min(2 * pause, _PAUSES[1])
            await trio.sleep(pause)

    async def _serve(self) -> bool:
        """Run a child until it ends; whether it signed anything."""
        process = await start_module("relay.outbound.signing.worker")
        child = _Child(process, self._deadline)
        try:
            await child.is_ready()
            self._children.append(child)
            if await child.read(self._idle):
                self._wanted = trio.Event()
            else:
                log.warning("signing.process_died", code=process.poll())
        finally:
            if child in self._children:
                self._children.remove(child)
            child.close()
        return child.has_signed


class _Child:
    """One child and what it was asked for."""

    def __init__(self, process: trio.Process, deadline: float) -> None:
        self.process = process
        self.has_signed = False
        self.forgotten: set[UUID] = set()
        """Keys that it is to forget before it signs anything more."""
        self._deadline = deadline
        self._keys: set[UUID] = set()
        self._asked: deque[tuple[int, Future[list[bytes]]]] = deque()
        self._writing = trio.Lock()
        self._buffer = bytearray()
        self._closed = False

    def __len__(self) -> int:
        """Batches under way."""
        return len(self._asked)

    async def is_ready(self) -> None:
        """Wait until it has started."""
        assert self.process.stdout is not None
        with trio.move_on_after(_START):
            if await self.process.stdout.receive_some(1) == READY:
                return
        raise NoProcess("it did not start")

    async def sign(self, digests: Sequence[ToSign]) -> list[bytes]:
        """The signatures, in order, within the deadline."""
        answer: Future[list[bytes]] = Future()
        with trio.move_on_after(self._deadline):
            await self._ask(digests, answer)
            return await answer.wait()
        self.close()
        raise NoProcess("a process took too long to sign")

    async def _ask(self, digests: Sequence[ToSign], answer: Future[list[bytes]]) -> None:
        assert self.process.stdin is not None
        async with self._writing:
            if self._closed:
                raise NoProcess("the process has ended")
            request = b"".join((*self._key_changes(digests), *_request(digests)))
            self._asked.append((len(digests), answer))
            try:
                await self.process.stdin.send_all(request)
            except BaseException as error:
                self.close()  # half a request is worth nothing
                if isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError):
                    raise NoProcess("the process has died") from error
                raise

    def _key_changes(self, digests: Sequence[ToSign]) -> Iterator[bytes]:
        for id in self.forgotten & self._keys:
            yield REQUEST.pack(FORGET, 0) + id.bytes
        self._keys -= self.forgotten
        self.forgotten.clear()
        for id, key, _ in digests:
            if id not in self._keys:
                self._keys.add(id)
                text = dump(key).encode()
                yield REQUEST.pack(KEY, len(text)) + id.bytes + text

    async def read(self, idle: float) -> bool:
        """Take its answers until it ends, or nothing was asked for so long: true, then."""
        assert self.process.stdout is not None
        while True:
            with trio.move_on_after(idle) as waiting:
                try:
                    chunk = await self.process.stdout.receive_some(_CHUNK)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return False
                if not chunk:
                    return False
                self._buffer += chunk
                self._answer()
            if waiting.cancelled_caught and not self._asked:
                return True

    def _answer(self) -> None:
        """Settle what is answered."""
        start = 0
        while self._asked:
            count, answer = self._asked[0]
            found, end = _signatures(self._buffer, start, count)
            if len(found) < count:
                break
            start = end
            self._asked.popleft()
            self.has_signed = True
            answer.settle(found)
        del self._buffer[:start]

    def close(self) -> None:
        """Kill it, and let those who wait for it do without."""
        self._closed = True
        kill(self.process)
        for _, answer in self._asked:
            answer.fail(NoProcess("the process has died"))
        self._asked.clear()


def _request(digests: Sequence[ToSign]) -> Iterator[bytes]:
    yield REQUEST.pack(SIGN, len(digests))
    for id, _, digest in digests:
        yield SIGNED.pack(id.bytes, digest)


def _signatures(buffer: bytearray, start: int, count: int) -> tuple[list[bytes], int]:
    """So many signatures from there on, or as many as are whole, and where they end."""
    found: list[bytes] = []
    while len(found) < count and len(buffer) >= start + LENGTH.size:
        begin = start + LENGTH.size
        end = begin + LENGTH.unpack_from(buffer, start)[0]
        if len(buffer) < end:
            break
        found.append(bytes(buffer[begin:end]))
        start = end
    return found, start
