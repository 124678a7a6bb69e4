"""A coroutine trampoline: the task that reads for all sessions resumes the session's coroutine.

A session is a coroutine with a Trio task of its own, since cancel scopes, deadlines and clean-up
belong to tasks.  But each switch to a task is a pass through the scheduler, and each wait for a
socket a system call that arms it: ordinary SMTP waits six times a message for what then takes
microseconds.  So where a session waits for bytes or for an answer, whoever has them runs its
coroutine on to its next wait, while its own task sleeps.

    the session's coroutine     its own task            the trampoline's task

    wait    read() ───────────▶ sleeps in Trio
    resume                      (sleeps on)             bytes have come: coro.send()
            goes on ◀───────────────────────────────────┘
            read() ────────────────────────────────────▶ on to the next session
    pin     pinned() ──────────────────────────────────▶ wakes the session's task
                                wakes: coro.send()
            goes on ◀───────────┘
            sleep() ──────────▶ sleeps in Trio for it, and goes on with it
            leaves, read() ───▶ sleeps in Trio
    cancel                      Trio wakes it: coro.send() of the Cancelled
            raises ◀────────────┘

To resume a coroutine is a walk through all its frames, down and up again.  A session that leaves
it to a `Talk` (`converse`) is resumed only when the `Talk` returns False or raises: bytes and
answers are given to the `Talk`, by whoever has them.

What it gains, against a switch of tasks at each wait (`tests/smtp/plain.py`): 7,570 messages a
second instead of 5,490, and 0.089 CPU seconds for a thousand instead of 0.134.  Median of five
interleaved rounds of `python -m tests.bench.ingest run --rounds 5 relay "relay, plain tasks"`, on
two cores.

Promises:
- What a session does between two waits is done in one piece, by one task at a time.
- In a `pinned` block only its own task runs it, so scopes, sleeps and all that waits in other ways
  are as anywhere in Trio.  Outside of one it cannot have them: see `relay.smtp.waits`.
- Cancelling a session's task ends its wait wherever it waits, as always in Trio.
- What a session raises is raised in its own task, never in the one that resumed it; what it
  logs carries its own context; a `Talk` runs in the context of whoever calls it.
- Fair: a session gets one read a turn, and `_BURST` sessions a turn before other tasks have one;
  sessions that have more to read than a turn gives share `_TURN`, in their order, however many.
  What one commit answers resumes all who wait for it, in the task that commits.

Fails with `RuntimeError`, in the session, if it waits for anything of Trio's unpinned after all.

The tests of the server and of the trampoline run on the plain variant, too.  Sockets are watched by
an epoll of our own, edge-triggered: each is registered once in its life.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType, coroutine
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import trio
from trio.lowlevel import (
    Abort,
    checkpoint,
    current_task,
    reschedule,
    wait_readable,
    wait_task_rescheduled,
)

from relay.ports.tls import ByteSocket
from relay.smtp.waits import Answer, Talk

P = ParamSpec("P")
T = TypeVar("T")

_BURST = 64
_TURN = 0.002  # s; a chunk of a large message takes a tenth of it
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_IN = select.EPOLLIN


class _Resumed:
    """What a wait returns that was ended by another task (Trio's own return an `outcome`)."""

    __slots__ = ()

    def unwrap(self) -> None:
        """All is well."""


_RESUMED = _Resumed()


def _awaited(
    waiting: Callable[P, Generator[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """`types.coroutine`, of a type that holds from Python 3.13 on, too: a generator's `close`
    returns there what a coroutine's does not."""
    return cast(Callable[P, Coroutine[Any, Any, T]], coroutine(waiting))


class Trampoline:
    """Notices what sessions wait for, and resumes them."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sessions: dict[int, TrampolineWaits] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._idle: trio.lowlevel.Task | None = None
        self.now: Callable[[], float] = trio.current_time
        self.moment = 0.0
        """The instant at which bytes were looked for last."""

    def waits(self, sock: socket.socket) -> TrampolineWaits:
        """Return what a session waits through; `sock` is connected and does not block."""
        return TrampolineWaits(self, sock)

    async def run(self) -> NoReturn:
        """Resume sessions until cancelled.  Once."""
        self.now = trio.lowlevel.current_clock().current_time  # without three calls on the way
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._resume_soon)
                await self._watch()
        finally:
            self._epoll.close()
        raise AssertionError  # not reached: _watch ends by an exception only

    async def _watch(self) -> NoReturn:
        """Resume those whose sockets have something."""
        fileno, poll, sessions = self._epoll.fileno(), self._epoll.poll, self._sessions
        while True:
            await wait_readable(fileno)
            self.moment = self.now()
            for fd, events in poll(0, _BURST):
                session = sessions.get(fd)
                if session is not None:
                    session._notice(events)

    async def _resume_soon(self) -> NoReturn:
        """Resume those that need not wait, after others had their turn."""
        while True:
            if self._soon:
                await checkpoint()
            else:
                self._idle = current_task()
                await wait_task_rescheduled(self._stop_idling)
            self.moment = now = self.now()
            soon, ends = self._soon, now + _TURN
            for _ in range(len(soon)):  # what is added meanwhile is for the next turn
                soon.popleft()()
                if self.now() > ends:
                    break

    def _stop_idling(self, _: Any) -> Abort:
        self._idle = None
        return Abort.SUCCEEDED

    def _call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)
        if self._idle is not None:
            reschedule(self._idle)
            self._idle = None


class _Pin:
    """The block of `pinned`, and what may be done in it."""

    __slots__ = ("_open", "_waits")

    def __init__(self, waits: TrampolineWaits) -> None:
        self._waits = waits
        self._open = False

    async def __aenter__(self) -> _Pin:
        await self._waits._pin()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        self._waits._pins -= 1

    def move_on_after(self, seconds: float) -> trio.CancelScope:
        self._check()
        return trio.move_on_after(seconds)

    async def sleep(self, seconds: float) -> None:
        self._check()
        await trio.sleep(seconds)

    async def wait_writable(self, sock: ByteSocket) -> None:
        self._check()
        await trio.lowlevel.wait_writable(sock)

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check()
        return await call()

    def _check(self) -> None:
        if not self._open:
            raise RuntimeError("the session is no longer pinned to its task")


class TrampolineWaits:
    """What one session waits through (`relay.smtp.waits.Waits`)."""

    __slots__ = (
        "_answer",
        "_coro",
        "_failure",
        "_finished",
        "_gone",
        "_hosted",
        "_more",
        "_parked",
        "_pins",
        "_reading",
        "_rescheduled",
        "_scope",
        "_sock",
        "_talk",
        "_task",
        "_trampoline",
        "_trap",
        "_value",
        "now",
    )

    def __init__(self, trampoline: Trampoline, sock: socket.socket) -> None:
        self._trampoline = trampoline
        self._sock: ByteSocket = sock
        self.now = trampoline.now
        self._scope = trio.CancelScope()
        self._coro: Coroutine[Any, Any, Any] | None = None
        self._task: trio.lowlevel.Task | None = None
        self._finished = False
        self._value: Any = None  # what it returned, or …
        self._failure: BaseException | None = None  # … raised, while another task ran it
        self._answer: Answer[Any] | None = None
        self._talk: Talk | None = None  # what is called in its stead, while it converses
        self._parked = False  # in one of the waits below
        self._reading = False  # … in that for bytes
        self._rescheduled = False  # its own task has been told to run
        self._hosted = True  # it is its own task that runs it now
        self._pins = 0  # above 0, only its own task may run it
        self._more = False  # there may be bytes that no event will tell of
        self._gone = False  # the peer has closed its end, or both
        # What every wait of ours yields.  Trio makes it in two more frames each time.
        waiting = wait_task_rescheduled(self._unpark)  # noqa: ASYNC105 - looked into, not awaited
        self._trap = waiting.send(None)
        waiting.close()

    # ------------------------------------------------------------------- its own task

    async def host(self, coro: Coroutine[Any, Any, T]) -> T | None:
        """Run the session in this task and, while it waits, in those that resume it."""
        self._task = current_task()
        self._coro = coro
        fileno = self._sock.fileno()
        trampoline = self._trampoline
        try:
            trampoline._epoll.register(fileno, _EVENTS)
            trampoline._sessions[fileno] = self
            with self._scope:
                return await self._drive(coro)
            return None
        finally:
            self._forget(fileno)
            coro.close()

    def cut_off(self) -> None:
        """End it wherever it waits."""
        self._scope.cancel()

    def closing(self) -> None:
        """Its socket is about to be closed, whose number may be another's the next moment."""
        self._forget(self._sock.fileno())
        self.cut_off()

    def _forget(self, fileno: int) -> None:
        trampoline = self._trampoline
        if trampoline._sessions.get(fileno) is self:
            del trampoline._sessions[fileno]
            if not trampoline._epoll.closed:  # closed: all that it watched is cancelled at once
                trampoline._epoll.unregister(fileno)

    @_awaited
    def _drive(self, coro: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        sent: Any = None
        while True:
            self._hosted = True
            try:
                trap = coro.send(sent)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            finally:
                self._hosted = False
            sent = yield trap  # it is Trio's, and so is its answer
            self._rescheduled = False
            if self._failure is not None:
                raise self._failure
            if self._finished:
                return self._value  # type: ignore[no-any-return]

    # ------------------------------------------------------------------- in the session

    @_awaited
    def read(self, size: int) -> Generator[Any, Any, bytes]:
        """Wait for bytes and return at most `size`; none at the end of the stream.  OSError."""
        while True:
            if self._more:
                self._trampoline._call_soon(self._read_on)
            self._reading = self._parked = True
            (yield self._trap).unwrap()
            try:
                chunk = self._sock.recv(size)
            except BlockingIOError:
                self._more = False
                continue
            # Fewer bytes than asked for: all there was, and what comes now is a new event.  The
            # end of the stream is none if it came along with the last bytes.
            self._more = len(chunk) == size or self._gone
            return chunk

    def go_through(self, sock: ByteSocket) -> None:
        """Read from `sock` from now on, which is over the socket read from until now."""
        self._sock = sock
        self._more = True  # it may have read already what no event will tell of again

    @_awaited
    def wait(self, answer: Answer[T]) -> Generator[Any, Any, T]:
        """Wait for an answer."""
        if not answer.settled:
            self._answer = answer
            answer.then(self._answered)
            self._parked = True
            (yield self._trap).unwrap()
        return answer.result()

    @_awaited
    def converse(self, talk: Talk, step: Answer[Any] | bool = True) -> Generator[Any, Any, None]:
        """Leave it to `talk` until it says False."""
        while step is not True and step is not False and step.settled:
            step = talk.answered(self.now())
        if step is not False:
            self._talk = talk
            self._parked = True
            self._go_on(talk, step)
            (yield self._trap).unwrap()

    def pinned(self) -> _Pin:
        """Stay in the session's own task while in the block."""
        return _Pin(self)

    async def _pin(self) -> None:
        self._pins += 1
        if not self._hosted:
            try:
                await wait_task_rescheduled(self._unpark)
            except BaseException:
                self._pins -= 1
                raise

    # ------------------------------------------------------------------- in other tasks

    def _unpark(self, _: Any) -> Abort:
        """The session's task is cancelled in a wait."""
        self._parked = self._reading = False
        self._answer = self._talk = None
        self._rescheduled = True
        return Abort.SUCCEEDED

    def _notice(self, events: int) -> None:
        if events != _IN:
            self._gone = True
        if not self._reading:
            self._more = True
        elif self._talk is None:
            self._resume()
        else:
            self._hear(self._talk)

    def _read_on(self) -> None:
        if self._reading:
            if self._talk is None:
                self._resume()
            else:
                self._hear(self._talk)

    def _hear(self, talk: Talk) -> None:
        """Read what has come for `talk`."""
        size = talk.size
        try:
            chunk = self._sock.recv(size)
            self._more = len(chunk) == size or self._gone  # as in `read`
            self._reading = False
            step = talk.take(chunk, self._trampoline.moment)
        except BlockingIOError as error:
            if self._reading:
                self._more = False  # nothing had come
            else:
                self._interrupt(error)
        except BaseException as error:
            self._interrupt(error)
        else:
            if step is True and not self._more:
                self._reading = True  # as it is nearly always
            else:
                self._go_on(talk, step)

    def _answered(self) -> None:
        answer = self._answer
        if answer is None or not answer.settled:
            return
        self._answer = None
        talk = self._talk
        if talk is None:
            self._resume()
            return
        try:
            step = talk.answered(self.now())
        except BaseException as error:
            self._interrupt(error)
        else:
            if step is True and not self._more:
                self._reading = True
            else:
                self._go_on(talk, step)

    def _go_on(self, talk: Talk, step: Answer[Any] | bool) -> None:
        """Wait for what `talk` needs next, or resume the session."""
        try:
            while step is not True and step is not False and step.settled:
                step = talk.answered(self.now())
        except BaseException as error:
            self._interrupt(error)
            return
        if step is True:
            self._reading = True
            if self._more:
                self._trampoline._call_soon(self._read_on)
        elif step is False:
            self._talk = None
            self._resume()
        else:
            self._answer = step
            step.then(self._answered)

    def _interrupt(self, error: BaseException) -> None:
        """Raise in the session what went wrong in its stead."""
        self._talk = None
        self._resume(error)

    def _resume(self, error: BaseException | None = None) -> None:
        """Run the session on to its next wait: here, or if it is pinned, in its own task."""
        assert self._coro is not None
        assert self._task is not None
        self._parked = self._reading = False
        if not self._pins:
            if error is None:
                self._step(self._coro.send, _RESUMED)
            else:
                self._step(self._coro.throw, error)
            if self._parked:
                return
            if not (self._pins or self._finished):
                # It waits for something of Trio's, which would wake the wrong task.
                self._step(self._coro.throw, RuntimeError("a session waits unpinned"))
                if self._parked:
                    return
        if not self._rescheduled:
            self._rescheduled = True
            reschedule(self._task)

    def _step(self, step: Callable[[Any], Any], argument: Any) -> None:
        assert self._task is not None
        try:
            self._task.context.run(step, argument)  # whoever runs it, it logs as itself
        except StopIteration as done:
            self._finished, self._value = True, done.value
        except BaseException as error:
            self._finished, self._failure = True, error
