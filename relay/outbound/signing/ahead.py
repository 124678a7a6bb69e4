"""Messages that are composed and signed before a worker takes them, some at a time.

A signature by RSA takes as long as several deliveries, so it is made beside the loop: that of a few
mails in threads, that of many in processes (`relay.outbound.signing.processes`).

Promises
- High mail is signed before other, and waits for no more than the batches under way.
- The mails of a line are handed over together, `TOGETHER` of them, or what there is once nothing of
  the line is left to be signed: so a connection that is used has the next mail when it needs it.
  High mail is handed over as it is made.
- The loop composes twice `LONG` bytes at the most before it has its turn, however much is signed:
  a mail that is longer is composed in a thread.
- Nothing is kept running: tasks end when there is nothing to sign, so a nursery can end.
- What one message fails with is its own.

Fails: never; how each message failed is told with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import trio

from relay.outbound.active_queue.jobs import Job
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.lanes import PRIORITIES
from relay.outbound.signing.processes import NoProcess
from relay.outbound.signing.signer import Begun, Signer
from relay.smtp.client import Mail

L = TypeVar("L")

THREADS = 2
"""Batches at a time where threads sign: with the loop's own they keep two processors busy."""
PER_PROCESS = 4
"""Batches at a time for each process that signs: it has the next while the loop is busy elsewhere
for some milliseconds."""
BATCH = 16
"""Messages that are signed together: five milliseconds."""
MANY = BATCH * THREADS
"""Messages that wait behind those in threads, and from which on processes are to sign."""
TOGETHER = 128
"""Mails of a line: several for each of its connections, as a mail that follows another on one costs
a third less of all (`python -m tests.bench outbound`)."""
LONG = 64 * 1024
"""Bytes of a mail from which on it is composed, and its canonical form made, in a thread, too; and
bytes of shorter ones that are composed in a row, after which the loop has its turn."""

Result = tuple[L, Job, Mail | Exception]
"""A job of a line, and its mail, or what that failed with."""
Write = Callable[[Claimed], Mail]
"""Makes the mail of a message."""


class Signing(Generic[L]):
    """The messages that wait to be signed, each with the line that it goes to then."""

    def __init__(
        self, signer: Signer, write: Write, done: Callable[[Sequence[Result[L]]], None]
    ) -> None:
        """`done` is told what came of messages, of some at a time."""
        self._signer = signer
        self._processes = signer.processes
        self._write = write
        self._done = done
        self._waiting: tuple[deque[tuple[L, Job]], ...] = tuple(deque() for _ in PRIORITIES)
        self._tasks = 0
        self._row = trio.Lock()  # of who composes on the loop
        self._left: dict[L, int] = {}  # of each line, what has not been signed
        self._held: dict[L, list[Result[L]]] = {}

    def put(self, line: L, job: Job, nursery: trio.Nursery) -> None:
        """Have a job's mail made and signed, by a task in `nursery`."""
        self._waiting[job.priority].append((line, job))
        self._left[line] = self._left.get(line, 0) + 1
        if self._tasks < self._most:
            self._tasks += 1
            nursery.start_soon(self._work)
        elif sum(map(len, self._waiting)) >= MANY:
            self._processes.want()

    def take_all(self) -> list[tuple[L, Job]]:
        """Take out what nobody has begun to sign, and what is signed and not handed over."""
        found = [(line, job) for held in self._held.values() for line, job, _ in held]
        self._held.clear()
        for waiting in self._waiting:
            for line, _ in waiting:
                self._count(line)
            found += waiting
            waiting.clear()
        return found

    @property
    def _most(self) -> int:
        return self._processes.count * PER_PROCESS if self._processes.ready else THREADS

    def _batch(self) -> list[tuple[L, Job]]:
        for waiting in self._waiting:
            if waiting:
                return [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        return []

    async def _work(self) -> None:
        try:
            while batch := self._batch():
                messages = [job.message for _, job in batch]
                if self._processes.ready:
                    mails = await self._by_process(messages)
                else:
                    mails = await trio.to_thread.run_sync(self._mails, messages)
                self._hand_over(
                    [(line, job, mail) for (line, job), mail in zip(batch, mails, strict=True)]
                )
        finally:
            self._tasks -= 1

    def _hand_over(self, results: Sequence[Result[L]]) -> None:
        full = set()
        for one in results:
            line, job, _ = one
            held = self._held.setdefault(line, [])
            held.append(one)
            self._count(line)
            if line not in self._left or len(held) >= TOGETHER or not job.priority:
                full.add(line)
        for line in full:
            self._done(self._held.pop(line))

    def _count(self, line: L) -> None:
        self._left[line] -= 1
        if not self._left[line]:
            del self._left[line]

    async def _by_process(self, messages: Sequence[Claimed]) -> list[Mail | Exception]:
        """Compose here, have a process sign; in a thread what is long, and all if there is none."""
        begun = await self._begin(messages)
        digests = [
            digest for one in begun if not isinstance(one, Exception) for digest in one.digests
        ]
        try:
            signatures = iter(await self._processes.sign(digests)) if digests else iter(())
        except NoProcess:
            return await trio.to_thread.run_sync(self._mails, messages)
        return [
            one
            if isinstance(one, Exception)
            else one.signed([next(signatures) for _ in one.digests])
            for one in begun
        ]

    async def _begin(self, messages: Sequence[Claimed]) -> list[Begun | Exception]:
        """Compose each; short ones here, `LONG` bytes in a row, by one task at a time."""
        begun: dict[int, Begun | Exception] = {}
        async with self._row:
            row = 0
            for number, message in enumerate(messages):
                if message.size <= LONG:
                    if row > LONG:
                        await trio.lowlevel.checkpoint()
                        row = 0
                    begun[number] = one = self._begun(message)
                    row += message.size if isinstance(one, Exception) else one.mail.size
        for number, message in enumerate(messages):
            if number not in begun:
                begun[number] = await trio.to_thread.run_sync(self._begun, message)
        return [begun[number] for number in range(len(messages))]

    def _begun(self, message: Claimed) -> Begun | Exception:
        try:
            return self._signer.begin(self._write(message))
        except Exception as error:  # its own, and none of the others'
            return error

    def _mails(self, messages: Sequence[Claimed]) -> list[Mail | Exception]:
        found: list[Mail | Exception] = []
        for message in messages:
            try:
                found.append(self._signer.signed(self._write(message)))
            except Exception as error:  # its own, and none of the others'
                found.append(error)
        return found
