"""Parsing in a child process that can be killed: the parent's side of `relay.mailboxes.worker`.

Promises
- Nothing that a message contains takes time or memory of this process beyond its own bytes: the
  child has a deadline a message and limits of its own, and is killed and replaced past them.
- Every message gets a summary.  One in hand when the child dies is parsed once more, alone in a
  fresh child: it need not have been the message, others kill processes, too (a machine out of
  memory, an operator).  If that child dies as well, or one gives up or takes too long, a fresh
  child makes the summary from the headers alone, with the reason in `error`; for a message that
  kills that child too it is the reason and nothing else.  The others of its batch are parsed by the
  next child.
- This process reads nothing of a message: no header, no character set, no pattern.
- A call that is cancelled kills the child: half a conversation is worth nothing.

Fails with `TemporaryFailure` when no child can be started (no process, no memory), or none is ready
within `_START` seconds: a message's deadline begins when the child is ready for it.

One call at a time; others wait their turn.  The child starts with the first call.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

import trio

from relay.child_process import kill, start_module
from relay.errors import TemporaryFailure
from relay.locks import Lock
from relay.log import get_logger
from relay.mailboxes.examination import Examined
from relay.mailboxes.summary import MAX_HEADER_BYTES, Summary
from relay.mailboxes.worker import (
    ATTACHMENT,
    EXAMINE,
    FAILED,
    FILTER,
    FOLLOWS,
    HEADERS,
    HOLD,
    LEFT,
    LENGTH,
    NOTHING,
    REPLY,
    REPORT,
    REQUEST,
    STARTED,
    SUMMARISE,
)
from relay.returns.report import Report

log = get_logger()

_CHUNK = 256 * 1024
_PIPE = 256 * 1024  # bytes that a pipe to or from the child holds, if the kernel lets it
_HARMLESS = 8 * 1024  # bytes; parsing so little can take neither the time nor the memory that kill
_START = 30.0  # s; what a child may take to start on a busy machine


class Parsed(NamedTuple):
    """A message's summary and the CPU seconds it took.

    `row`: the values of `relay.mailboxes.summary.COLUMNS`, as `Summary.as_row` puts them in a row.
    `relay.mailboxes.summaries.arrays` makes parameters of a statement of many.
    """

    row: bytes
    seconds: float


_DIED = "the parser died of it"

_Reply = tuple[int, float, bytes]
"""Status, CPU seconds, payload."""


class Parser:
    """A child process that parses, started when first needed.

    `deadline`: seconds a message may take; `memory`: bytes of address space of the child.
    """

    def __init__(self, *, deadline: float = 5.0, memory: int = 1024 * 2**20) -> None:
        self.deadline = deadline
        self.memory = memory
        self.restarts = 0
        """How many children had to be killed, or died."""
        self._process: trio.Process | None = None
        self._buffer = bytearray()
        self._room = 0  # bytes that the pipe to the child takes at once
        self._fresh = True
        self._lock = Lock()  # one call at a time

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id, or None while there is none."""
        return self._process.pid if self._process else None

    async def summarise(
        self, messages: Sequence[bytes], *, budget: float = math.inf, ids: Sequence[bytes] = ()
    ) -> list[Parsed]:
        """Parse `messages` in order, as many of them as begin within `budget` seconds of CPU.

        On a busy machine that is `STRETCH` times as many seconds.  At least one, if there are any;
        those for which there was no time are not in the answer.  `ids`, of 16 bytes
        each: by which the log names those with which something is wrong.
        """
        done: list[Parsed] = []
        async with self._lock:
            while len(done) < len(messages):
                first = 0 if budget == math.inf else max(1, math.ceil(budget * 1000))
                replies, fault = await self._converse(_requests(messages[len(done) :], first))
                done += [
                    Parsed(payload, seconds)
                    for status, seconds, payload in replies
                    if status != LEFT
                ]
                if fault is not None:
                    # The first without an answer did it; those after it are innocent.
                    id_ = str(UUID(bytes=ids[len(done)])) if ids else None
                    done.append(await self._alone(messages[len(done)], fault, id_))
                if budget != math.inf:
                    break  # a failure has taken more than anything is worth
        return done

    async def attachment(self, raw: bytes, index: int) -> tuple[str, str, bytes] | None:
        """File name, content type and bytes of the attachment `index` of a message, or None.

        `TemporaryFailure` when the message cannot be read within the limits.
        """
        async with self._lock:
            replies, fault = await self._converse(
                [(REQUEST.pack(ATTACHMENT, index, len(raw)), raw)]
            )
        if fault is not None:
            raise TemporaryFailure(f"the attachment could not be read: {fault}")
        status, _, payload = replies[0]
        if status == NOTHING:
            return None
        end = LENGTH.size + LENGTH.unpack_from(payload)[0]
        name, content_type = json.loads(payload[LENGTH.size : end])
        return name, content_type, payload[end:]

    async def examine(self, raw: bytes) -> Examined:
        """What a check of a message is made of; `TemporaryFailure` when it cannot be read within
        the limits."""
        async with self._lock:
            replies, fault = await self._converse([(REQUEST.pack(EXAMINE, 0, len(raw)), raw)])
        if fault is not None:
            raise TemporaryFailure(fault)
        return Examined.from_json(replies[0][2])

    async def report(self, raw: bytes) -> tuple[Report | None, str]:
        """What a mail that came back reports; None, and why, when it cannot be read within the
        limits."""
        async with self._lock:
            replies, fault = await self._converse([(REQUEST.pack(REPORT, 0, len(raw)), raw)])
        return (None, fault) if fault is not None else (Report.from_json(replies[0][2]), "")

    async def filter(self, text: bytes, details: bytes = b"") -> bytes:
        """`relay.mailboxes.worker.filter_of`; `TemporaryFailure` when it could not be made."""
        head = REQUEST.pack(FILTER, len(text), len(text) + len(details))
        async with self._lock:
            replies, fault = await self._converse([(head, text + details)])
        if fault is not None:
            raise TemporaryFailure(f"no filter could be made: {fault}")
        return replies[0][2]

    def close(self) -> None:
        """Kill the child, if there is one.  Never waits; the next call starts another."""
        process, self._process = self._process, None
        self._buffer.clear()
        if process is None:
            return
        kill(process)

    async def _alone(self, raw: bytes, fault: str, id_: str | None) -> Parsed:
        """What becomes of the message that a child had in hand when that ended."""
        if fault == _DIED:
            log.info("summary.again", size=len(raw), id=id_)
            replies, again = await self._converse(_requests([raw], 0))
            if again is None:
                _, seconds, row = replies[0]
                return Parsed(row, seconds)
            fault = again
        return await self._given_up(raw, fault, id_)

    async def _given_up(self, raw: bytes, fault: str, id_: str | None) -> Parsed:
        """What a fresh child finds in the headers of a message that ended those before."""
        log.warning("summary.given_up", reason=fault, size=len(raw), id=id_)
        reason, front = fault.encode(), raw[:MAX_HEADER_BYTES]
        head = REQUEST.pack(HEADERS, len(reason), len(reason) + len(front))
        replies, again = await self._converse([(head, reason + front)])
        if again is None:
            return Parsed(replies[0][2], self.deadline)
        return Parsed(Summary(error=fault).as_row(), 2 * self.deadline)

    async def _converse(
        self, requests: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[_Reply], str | None]:
        """Send the requests and collect replies until all are there or one fails.

        Returns the replies to the first of them, and what ended it (None: nothing).  After a
        failure there is no child.
        """
        replies: list[_Reply] = []
        fault: str | None = None
        process = await self._started()
        assert process.stdin is not None
        finished = False
        try:
            if self._fresh and not await self._ready(process):
                fault = _DIED
            elif sum(len(raw) for _, raw in requests) + REQUEST.size * len(requests) <= self._room:
                # The pipe is empty and takes it all: no task is needed to go on writing, nor is
                # another round of the loop before the child begins.
                _write(process.stdin, requests)
                fault = await self._collect(process, len(requests), replies)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send, process.stdin, requests)
                    fault = await self._collect(process, len(requests), replies)
                    if fault is not None:
                        nursery.cancel_scope.cancel()
            finished = fault is None
        finally:
            if not finished:
                self.restarts += 1
                self.close()
        return replies, fault

    async def _ready(self, process: trio.Process) -> bool:
        """Wait until a child has started; False: it died meanwhile."""
        assert process.stdout is not None
        with trio.move_on_after(_START) as scope:
            while not (found := _replies(self._buffer)):
                chunk = await process.stdout.receive_some(_CHUNK)
                if not chunk:
                    return False
                self._buffer += chunk
        if scope.cancelled_caught:
            raise TemporaryFailure(f"the parser was not ready within {_START:g} s")
        assert [status for status, _, _ in found] == [STARTED]
        self._fresh = False
        return True

    async def _collect(
        self, process: trio.Process, count: int, replies: list[_Reply]
    ) -> str | None:
        """Add the replies as they come, `count` of them, or until one fails: return with what."""
        assert process.stdout is not None
        buffer = self._buffer
        while True:
            with trio.move_on_after(self.deadline) as scope:
                while not (found := _replies(buffer)):
                    chunk = await process.stdout.receive_some(_CHUNK)
                    if not chunk:
                        return _DIED
                    buffer += chunk
            if scope.cancelled_caught:
                return f"not parsed within {self.deadline:g} s"
            replies += found
            if replies[-1][0] == FAILED:
                return replies.pop()[2].decode()
            if len(replies) == count:
                return None

    async def _started(self) -> trio.Process:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.restarts += self._process is not None  # it died while nothing was asked of it
        self.close()
        cpu = math.ceil(self.deadline * 2)
        try:
            self._process = await start_module("relay.mailboxes.worker", str(self.memory), str(cpu))
        except OSError as error:
            raise TemporaryFailure(f"no parser process could be started: {error}") from error
        self._fresh = True
        self._room = 0
        with contextlib.suppress(OSError):  # an unprivileged user may have as much as that, or not
            for pipe in (self._process.stdout, self._process.stdin):
                assert isinstance(pipe, trio.lowlevel.FdStream)
                self._room = fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
        return self._process


def _requests(messages: Sequence[bytes], first: int) -> list[tuple[bytes, bytes]]:
    """Head and payload for each; `first` is the argument of the first.

    A reply is held back while what follows is harmless.  Before anything else it is written, so
    that whatever kills the child is the first without an answer.
    """
    following = [*messages[1:], None]
    return [
        (
            REQUEST.pack(
                SUMMARISE | HOLD if then is not None and len(then) <= _HARMLESS else SUMMARISE,
                FOLLOWS if number else first,
                len(raw),
            ),
            raw,
        )
        for number, (raw, then) in enumerate(zip(messages, following, strict=True))
    ]


def _replies(buffer: bytearray) -> list[_Reply]:
    """Take the replies that are complete out of the buffer."""
    found: list[_Reply] = []
    position = 0
    with memoryview(buffer) as view:
        while len(buffer) >= position + REPLY.size:
            status, microseconds, length = REPLY.unpack_from(buffer, position)
            end = position + REPLY.size + length
            if len(buffer) < end:
                break
            found.append((status, microseconds / 1e6, bytes(view[position + REPLY.size : end])))
            position = end
    del buffer[:position]
    return found


def _write(pipe: trio.abc.SendStream, requests: Sequence[tuple[bytes, bytes]]) -> None:
    """Write the requests at once: the pipe has room for them."""
    assert isinstance(pipe, trio.lowlevel.FdStream)
    data = b"".join(chain.from_iterable(requests))
    with contextlib.suppress(BrokenPipeError):  # the child died, as for `_send`
        written = os.write(pipe.fileno(), data)
        assert written == len(data)


async def _send(pipe: trio.abc.SendStream, requests: Sequence[tuple[bytes, bytes]]) -> None:
    """Write the requests; small ones together, as each write is a system call and a wake-up."""
    pending: list[bytes] = []
    size = 0
    try:
        for head, raw in requests:
            if len(raw) >= _CHUNK:
                await pipe.send_all(b"".join(pending) + head)
                await pipe.send_all(raw)
                pending, size = [], 0
                continue
            pending += (head, raw)
            size += len(raw)
            if size >= _CHUNK:
                await pipe.send_all(b"".join(pending))
                pending, size = [], 0
        if pending:
            await pipe.send_all(b"".join(pending))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # the child died; whoever reads its replies sees that
