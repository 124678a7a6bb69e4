"""The supervision engine: actors that crash, stall and hang, and a program that does not.

WHAT IT IS
    A tree of supervisors and children, in the manner of Erlang/OTP, on trio and the standard
    library.  The tree is data (`SupervisorSpec`, `ChildSpec`); `Supervisor.run` brings it to life.
    A child is one async function of one `Context`.  It is started, declared ready by itself,
    restarted by policy, paused, drained, and stopped in reverse start order.

EXAMPLE
    import trio
    from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec

    greetings, said = Mailbox[str]("greeter"), []

    async def greeter(ctx):
        ctx.ready()
        async for name in ctx.inbox:
            if name == "nobody":
                raise ValueError(name)  # the greeter is restarted; after 3 attempts this is dropped
            said.append(f"hello {name}")

    async def guests(ctx):
        ctx.ready()
        for name in ("ann", "nobody", "bob"):
            await greetings.send(name)
        await ctx.draining.wait()

    house = SupervisorSpec("house", (
        ChildSpec("greeter", greeter, mailbox=greetings), ChildSpec("guests", guests),
    ))  # then, in an async function: await Supervisor().run(house)

PROMISES
    * The process outlives its actors: no exception of a child, of whatever type, reaches another
      child or the supervisor, except those it names `fatal`.
    * A message that was accepted by `Mailbox.send` is done, dead-lettered or still in the mailbox:
      never lost by a crash, never looping past its attempt limit, never handed out after `done()`.
    * Order: a child starts when those before it are ready; it stops when those after it are gone.
    * `run` ends.  No child can hold it up for longer than the deadlines of the specs add up to.
    * Supervision waits for nobody: events are dropped (and counted) rather than waited for, and no
      child's back-off, drain or start delays the restart of an independent sibling.

FAILURES, AND WHAT HAPPENS
    child raises                  Exited(crashed), back-off with full jitter, restart by its type
    child returns                 Exited(finished), the same for PERMANENT; others have ended
    not ready in start_timeout    cancelled, Exited(start_timeout), as a crash
    no beat in liveness           Stalled, cancelled, Exited(stalled), as a crash
    a message kills its actor      handed out again, first and alone; after `attempts` it is dead
    too many restarts             the supervisor stops its children and fails, as a child of its
                                  parent, which starts it again after a back-off while the others
                                  go on; at the root `run` raises GaveUp with the cause
    fails before it is ready      those after it wait, unless it is not `awaited`
    `fatal` exception             the others are stopped in order, `run` raises it unchanged
    ignores the drain             cancelled after drain_timeout
    ignores cancellation          Stuck after stop_timeout; a shutdown goes on without it and `run`
                                  raises Unstoppable (see `Supervisor.stuck`); a restart waits for
                                  it `stuck_exit` seconds longer, then the tree is shut down
    `run` itself is cancelled     as a second shutdown(), then Cancelled
    a step blocks the loop        LoopBlocked with its stack, from a thread, while it still blocks,
                                  and again at BLOCKED_LONG; after `blocked_exit` the process
                                  exits 70
    SIGSTOP of the process        nothing: what the loop slept through is held against nobody; each
                                  deadline leaves what it left when the supervisor looked last

WHY THIS WAY
    * One loop for each supervisor and one state per child, moved by synchronous functions; each
      pass compares what is with what should be.  So there are no half-done restarts to cancel: a
      crash during a shutdown during a restart is one more change of state.
    * An exit is judged by the child's own cancel scope, never by the exception's type, and caught
      outside that scope, where trio has already taken its Cancelled out of any group.
    * Children live in a nursery of a system task, not of `run`: a nursery cannot be left while a
      task in it shields itself, and a program that cannot end is worse than a task left behind.
    * Mailboxes belong to the supervisor and are plain objects, not trio channels: a channel loses
      what its dead reader had received.  They are built with the tree, before trio runs.
    * Back-off and intensity are tuned together.  With the defaults a child that dies on arrival
      six times in a row (at most 15.5 s) always exceeds 5 restarts in 30 s; one that dies every
      ten seconds never does.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import random
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import trio

__all__ = [
    "BLOCKED_LONG",
    "BLOCKED_TOLD",
    "BackingOff",
    "Backoff",
    "ChildSpec",
    "Context",
    "DeadLettered",
    "Drained",
    "Draining",
    "Event",
    "Exited",
    "GaveUp",
    "GaveUpOn",
    "Held",
    "Inbox",
    "LoopBlocked",
    "Mailbox",
    "MailboxStatistics",
    "Node",
    "NotRunning",
    "NotUnderstood",
    "Paused",
    "Process",
    "Ready",
    "Restart",
    "Restarting",
    "Resumed",
    "Stalled",
    "Started",
    "State",
    "Stopped",
    "Strategy",
    "Stuck",
    "Subscription",
    "Supervisor",
    "SupervisorError",
    "SupervisorSpec",
    "UnknownChild",
    "Unstoppable",
]

T = TypeVar("T")

_STANDSTILL: Final = 1.0  # s; a loop that wakes so much too late has stood still
BLOCKED_LONG: Final = 1.0  # seconds of one step from which a pause is trouble, not a hiccup
BLOCKED_TOLD: Final = 60.0  # seconds for which it is the last that is told of whoever blocked

# --------------------------------------------------------------------------------------------------
# Errors
# --------------------------------------------------------------------------------------------------


class SupervisorError(Exception):
    """The root of what this module raises on its own account."""


class GaveUp(SupervisorError):
    """A supervisor's children failed more often than it allows; `__cause__` is the last failure."""

    def __init__(self, name: str, child: str, reason: str) -> None:
        """Name the supervisor that gave up, the child that was the last straw, and its reason."""
        super().__init__(f"supervisor {name!r} gave up: child {child!r} {reason}")
        self.name = name
        self.child = child
        self.reason = reason


class Unstoppable(SupervisorError):
    """`run` has ended without these children: they ignore cancellation.  Use `os._exit`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Name the children that are still running."""
        super().__init__(f"still running after cancellation: {', '.join(names)}")
        self.names = names


class UnknownChild(SupervisorError, KeyError):
    """No child of the running tree has this name."""

    def __str__(self) -> str:
        """Say which name it was, without KeyError's quotes."""
        return f"no child is called {self.args[0]!r}"


class NotUnderstood(SupervisorError):
    """No actor of that name does this: it does not hear such messages, or cannot be paused."""


class NotRunning(SupervisorError):
    """The tree has not been started, is being shut down, or has ended."""


class Drained(SupervisorError):
    """The child is draining and its inbox hands nothing more out."""


# --------------------------------------------------------------------------------------------------
# Mailboxes
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """A mailbox at one instant.

    `depth` messages wait, of `capacity`; `in_hand` have been handed out and are not done;
    `redelivered` and `dead` count since the mailbox was made; `senders_waiting` tasks wait in
    `send`.  Messages that came back from a crash may raise `depth` above `capacity`.
    """

    depth: int
    capacity: float
    in_hand: int
    redelivered: int
    dead: int
    senders_waiting: int


class Held(Generic[T]):
    """A message in hand.

    `attempts`: how many times it has been handed out (first: 1), not counting incarnations that
    were merely stopped with it in hand.
    """

    __slots__ = ("_mailbox", "attempts", "message")

    def __init__(self, message: T, mailbox: Mailbox[T]) -> None:
        """Made by the mailbox only."""
        self.message: Final = message
        self.attempts = 1
        self._mailbox: Mailbox[T] | None = mailbox

    def done(self) -> None:
        """Say that the message needs nothing more.  Saying so twice, or late, does no harm.

        Late means after the incarnation that held it has ended: then the message is taken out of
        the mailbox again, or out of the hand of whoever holds it now.
        """
        mailbox = self._mailbox
        if mailbox is not None:
            self._mailbox = None
            mailbox._done(self)


class Mailbox(Generic[T]):
    """A bounded queue of messages that outlives its actor; the supervisor owns both ends.

    Anyone may send, from the moment it is made, while its actor is down or paused too.  Only the
    actor of the one child it is declared for receives, through `Context.inbox`.
    """

    def __init__(
        self,
        name: str,
        capacity: float = 1024,
        attempts: int = 3,
        on_dead: Callable[[T, int], None] | None = None,
    ) -> None:
        """Hold up to `capacity` waiting messages (an int of 1 or more, or `math.inf`).

        A message whose actor has failed `attempts` times with it in hand is dead: it is given to
        `on_dead(message, attempts)` and dropped.  What `on_dead` raises is reported in the
        DeadLettered event and otherwise ignored.
        """
        if capacity < 1:
            raise ValueError("a mailbox holds at least one message")
        if attempts < 1:
            raise ValueError("a message has at least one attempt")
        self.name = name
        self.capacity = capacity
        self._limit = attempts
        self._on_dead = on_dead
        self._fresh: deque[T] = deque()
        self._again: deque[Held[T]] = deque()  # came back from a failed incarnation; oldest first
        self._held: dict[Held[T], None] = {}  # handed out and not done; oldest first
        self._senders: dict[trio.lowlevel.Task, T] = {}  # blocked because full; oldest first
        self._refused: dict[trio.lowlevel.Task, Exception] = {}  # were blocked when it closed
        self._receivers: dict[trio.lowlevel.Task, None] = {}
        self._gatherer: trio.lowlevel.Task | None = None  # waits until there are …
        self._enough: float = math.inf  # … so many
        self._closed: type[trio.ClosedResourceError | trio.BrokenResourceError] | None = None
        self._paused = False
        self._redelivered = 0
        self._dead = 0

    def __repr__(self) -> str:
        """Name and depth."""
        return f"<Mailbox {self.name!r} depth={len(self._again) + len(self._fresh)}>"

    def statistics(self) -> MailboxStatistics:
        """Return the state of the mailbox, for looking at only."""
        return MailboxStatistics(
            depth=len(self._again) + len(self._fresh),
            capacity=self.capacity,
            in_hand=len(self._held),
            redelivered=self._redelivered,
            dead=self._dead,
            senders_waiting=len(self._senders),
        )

    def send_nowait(self, message: T) -> None:
        """Put a message in, or raise `trio.WouldBlock` when the mailbox is full.

        Raises `trio.ClosedResourceError` when its actor has ended for good as it was told or
        meant to, `trio.BrokenResourceError` when it has failed for good.
        """
        if self._closed is not None:
            raise self._closed(f"the actor of mailbox {self.name!r} has ended")
        # Messages that came back do not count: they had their place before.  And nobody overtakes a
        # blocked sender: there are some only while `_fresh` is full (see `_admit`).
        if len(self._fresh) >= self.capacity:
            raise trio.WouldBlock
        self._fresh.append(message)
        if self._receivers:
            self._wake_one()
        elif len(self._fresh) >= self._enough:
            self._wake_gatherer()

    async def send(self, message: T) -> None:
        """Put a message in, waiting while the mailbox is full.  Cancelled: it was not put in.

        Raises as `send_nowait` does, at once or when the actor ends while this waits.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self.send_nowait(message)
        except trio.WouldBlock:
            pass
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        self._senders[task] = message

        def abort(_: Any) -> trio.lowlevel.Abort:
            del self._senders[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        refusal = self._refused.pop(task, None)
        if refusal is not None:
            raise refusal

    # What follows is the supervisor's end.

    def _wake_one(self) -> None:
        if not self._paused:
            task = next(iter(self._receivers))
            del self._receivers[task]
            trio.lowlevel.reschedule(task)

    def _wake_all(self) -> None:
        for task in self._receivers:
            trio.lowlevel.reschedule(task)
        self._receivers.clear()
        self._wake_gatherer()

    def _wake_gatherer(self) -> None:
        self._enough = math.inf
        if self._gatherer is not None:
            trio.lowlevel.reschedule(self._gatherer)
            self._gatherer = None

    def _admit(self) -> None:
        """Let blocked senders in, oldest first, as far as there is room."""
        while self._senders and len(self._fresh) < self.capacity:
            task = next(iter(self._senders))
            self._fresh.append(self._senders.pop(task))
            trio.lowlevel.reschedule(task)
            if self._receivers:
                self._wake_one()

    def _next_is_innocent(self) -> bool:
        """Whether there is a message, and it was not in hand when an incarnation failed."""
        return self._again[0].attempts == 0 if self._again else bool(self._fresh)

    def _done(self, held: Held[T]) -> None:
        try:
            del self._held[held]
        except KeyError:
            self._again.remove(held)

    def _recall(self, *, blame: bool) -> list[tuple[int, BaseException | None]]:
        """Take back what is in hand, to be handed out again before all else.

        With `blame` (the incarnation failed, it was not merely stopped) messages that have used up
        their attempts are dead.  Returns (attempts, what on_dead raised) for each of those.
        """
        back: list[Held[T]] = []
        dead: list[tuple[int, BaseException | None]] = []
        for held in self._held:
            if not blame:
                held.attempts -= 1  # it will be counted when it is handed out again
                back.append(held)
            elif held.attempts < self._limit:
                back.append(held)
            else:
                held._mailbox = None
                self._dead += 1
                dead.append((held.attempts, self._bury(held)))
        self._held.clear()
        self._again.extendleft(reversed(back))
        return dead

    def _bury(self, held: Held[T]) -> BaseException | None:
        if self._on_dead is not None:
            try:
                self._on_dead(held.message, held.attempts)
            except Exception as exc:
                return exc
        return None

    def _open(self) -> None:
        self._closed = None

    def _close(self, *, failed: bool) -> None:
        """Refuse messages from now on; those inside stay.  Blocked senders learn it at once."""
        self._closed = trio.BrokenResourceError if failed else trio.ClosedResourceError
        for task in self._senders:
            self._refused[task] = self._closed(f"the actor of mailbox {self.name!r} has ended")
            trio.lowlevel.reschedule(task)
        self._senders.clear()


class Inbox(Generic[T]):
    """The receiving end of a mailbox, for one incarnation of its actor.

    `async for message in ctx.inbox` and `receive()` keep one message in hand for each task: asking
    for the next says that the one before is done.  Whoever hands a message on to another task, or
    works in batches, uses `take()` and says `done()` itself.

    Nothing is handed out while the child is paused.  When it drains for a shutdown, what is in the
    box is still handed out; when it drains to be restarted, nothing more is, since the box stays.
    Waiting can be cancelled without losing a message.
    """

    __slots__ = ("_beat_at", "_clocked", "_closed", "_current", "_final", "_idle", "_mailbox")

    def __init__(self, mailbox: Mailbox[T], *, clocked: bool) -> None:
        """Made by the supervisor only."""
        self._mailbox = mailbox
        self._current: dict[trio.lowlevel.Task, Held[T]] = {}
        self._final: bool | None = None  # None: not draining; True: until empty; False: stop now
        self._closed = False
        self._clocked = clocked  # somebody looks at _beat_at
        self._idle = 0  # tasks that wait for a message or a tick
        self._beat_at = -math.inf

    def __aiter__(self) -> Inbox[T]:
        """Iterate over messages until drained."""
        return self

    async def __anext__(self) -> T:
        """Say that this task's message before is done, and wait for the next one."""
        try:
            return await self.receive()
        except Drained:
            raise StopAsyncIteration from None

    async def receive(self) -> T:
        """Say that this task's message before is done, and wait for the next one.

        Raises Drained when the child is draining and nothing more is handed out, and
        `trio.ClosedResourceError` when this incarnation has ended.
        """
        task = trio.lowlevel.current_task()
        before = self._current.pop(task, None)
        if before is not None:
            before.done()
        await trio.lowlevel.checkpoint()
        held = self._next()
        while held is None:
            await self._wait(task)
            held = self._next()
        self._current[task] = held
        return held.message

    async def gather(self, count: int) -> None:
        """Wait until about so many messages can be taken, or until there is a reason to take those
        that are there: a full box, a drain, the end of a pause.  One task at a time.

        Nothing is taken, so it can be given up at any time.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        mailbox = self._mailbox
        enough = min(count, mailbox.capacity)
        if (
            self._closed
            or self._final is not None
            or mailbox._again
            or len(mailbox._fresh) >= enough
        ):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if mailbox._gatherer is not None:
            raise RuntimeError("another task gathers from this mailbox")

        def abort(_: Any) -> trio.lowlevel.Abort:
            mailbox._gatherer, mailbox._enough = None, math.inf
            return trio.lowlevel.Abort.SUCCEEDED

        mailbox._gatherer, mailbox._enough = trio.lowlevel.current_task(), enough
        self._idle += 1
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            self._idle -= 1

    async def take(self, limit: int) -> list[Held[T]]:
        """Wait for one message, then take up to `limit` of those that are there.

        Each stays in hand until its `done()`.  A message that was in hand when an incarnation
        failed comes alone: were it handed out in company, a poisonous one would take the innocent
        with it.  Raises as `receive` does.
        """
        if limit < 1:
            raise ValueError("take at least one message")
        await trio.lowlevel.checkpoint()
        held = self._next()
        while held is None:
            await self._wait(trio.lowlevel.current_task())
            held = self._next()
        batch = [held]
        if held.attempts == 1:
            mailbox = self._mailbox
            fresh, hold = mailbox._fresh, mailbox._held
            while len(batch) < limit and mailbox._next_is_innocent():
                if mailbox._again:
                    held = self._next()
                    assert held is not None  # nothing ran in between: neither paused nor drained
                    batch.append(held)
                    continue
                # What `_next` would do with each of those that nobody has seen yet.
                for _ in range(min(limit - len(batch), len(fresh))):
                    held = Held(fresh.popleft(), mailbox)
                    hold[held] = None
                    batch.append(held)
                if mailbox._senders:
                    mailbox._admit()
        return batch

    def statistics(self) -> MailboxStatistics:
        """Return the state of the mailbox behind it, for looking at only."""
        return self._mailbox.statistics()

    def _next(self) -> Held[T] | None:
        """Hand out one message, or None when there is a reason to wait."""
        mailbox = self._mailbox
        if self._closed:
            raise trio.ClosedResourceError("this incarnation has ended")
        if self._final is False or (self._final and mailbox._paused):
            raise Drained
        if self._clocked:
            self._beat_at = trio.current_time()
        if not mailbox._paused:
            if mailbox._again:
                held = mailbox._again.popleft()
                held.attempts += 1
                mailbox._redelivered += 1
                mailbox._held[held] = None
                return held
            if mailbox._fresh:
                held = Held(mailbox._fresh.popleft(), mailbox)
                mailbox._held[held] = None
                if mailbox._senders:
                    mailbox._admit()
                return held
            if self._final:
                raise Drained
        return None

    async def _wait(self, task: trio.lowlevel.Task) -> None:
        receivers = self._mailbox._receivers
        receivers[task] = None

        def abort(_: Any) -> trio.lowlevel.Abort:
            del receivers[task]
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle += 1
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            self._idle -= 1

    def _drain(self, *, final: bool) -> None:
        self._final = final
        self._mailbox._wake_all()

    def _close(self) -> None:
        self._closed = True
        self._current.clear()
        self._mailbox._wake_all()


# --------------------------------------------------------------------------------------------------
# The tree as data
# --------------------------------------------------------------------------------------------------


class Restart(enum.Enum):
    """The rule by which a child that has ended is started again."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # when it failed
    TEMPORARY = "temporary"  # never, not even when its siblings are


class Strategy(enum.Enum):
    """The rule of who is restarted when one child has failed."""

    ONE_FOR_ONE = "one_for_one"  # the child
    ONE_FOR_ALL = "one_for_all"  # all children
    REST_FOR_ONE = "rest_for_one"  # the child and those started after it


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter, in seconds.

    The n-th restart in a row waits a random time between 0 and min(cap, base * factor**(n-1)).
    A child that was ready for `stable_after` begins anew.
    """

    base: float = 0.5
    factor: float = 2.0
    cap: float = 30.0
    stable_after: float = 60.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after this many failures in a row (1 or more)."""
        # Past 64 doublings every cap is reached, and a float power would overflow one day.
        return rng.uniform(0.0, min(self.cap, self.base * self.factor ** min(failures - 1, 64)))


@dataclass(frozen=True)
class ChildSpec:
    """One actor.  Times are in seconds.

    `significant`: when it ends for good in its own way (normally; a TEMPORARY one in any way), its
    supervisor shuts down.  As in OTP a PERMANENT child cannot be significant: it never ends.
    `start_timeout`: from start to `ctx.ready()`.  `drain_timeout`: to finish what is in hand.
    `stop_timeout`: to end once cancelled.  `liveness`: the longest time between two beats while
    ready; waiting for a message or a tick is not silence.  `fatal`: exceptions that end the tree.
    `awaited`: later siblings wait until it is ready; if not, they wait only until its first attempt
    has ended, in whatever way.  `hears`: the kinds of message that `Supervisor.tell` may give
    it; what else its mailbox takes is between it and who holds the mailbox.  `pausable`: whether a
    pause holds any of its work back; one that has none refuses it.
    """

    name: str
    run: Callable[[Context], Awaitable[None]]
    restart: Restart = Restart.PERMANENT
    significant: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    start_timeout: float = 30.0
    drain_timeout: float = 10.0
    stop_timeout: float = 5.0
    liveness: float | None = None
    mailbox: Mailbox[Any] | None = None
    fatal: tuple[type[BaseException], ...] = ()
    awaited: bool = True
    hears: tuple[type, ...] = ()
    pausable: bool = True

    def __post_init__(self) -> None:
        """Make a mailbox where none was given, and refuse what cannot work."""
        if self.mailbox is None:
            object.__setattr__(self, "mailbox", Mailbox[Any](self.name))
        if self.liveness is not None and not self.liveness > 0:
            raise ValueError(f"{self.name}: liveness is a time above zero, or None")
        _check_significant(self)


@dataclass(frozen=True)
class SupervisorSpec:
    """A supervisor and its children, in start order.

    More than `max_restarts` restarts within `within` seconds: it gives up (`math.inf`: never).
    `restart`, `significant`, `backoff` and `awaited` are its own, as the child of another
    supervisor.
    """

    name: str
    children: tuple[ChildSpec | SupervisorSpec, ...]
    strategy: Strategy = Strategy.ONE_FOR_ONE
    max_restarts: float = 5
    within: float = 30.0
    restart: Restart = Restart.PERMANENT
    significant: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    awaited: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check_significant(self)


def _check_significant(spec: ChildSpec | SupervisorSpec) -> None:
    if spec.significant and spec.restart is Restart.PERMANENT:
        raise ValueError(f"{spec.name}: a significant child is transient or temporary")


class State(enum.StrEnum):
    """What a child is doing.  `failed`: ended for good by failing, or stuck."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    BACKING_OFF = "backing_off"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that an actor runs, in the snapshot of a tree.

    `pid`: None while there is none.  `restarts`: how often one ended and had to be replaced.
    `cpu_seconds`: what this one has used; None where that is not known.
    """

    name: str
    pid: int | None
    restarts: int
    cpu_seconds: float | None


@dataclass(frozen=True, slots=True)
class Node:
    """A child in the snapshot of a tree.

    `started_at` in seconds since the epoch, or None.  `last_error`: what ended an incarnation since
    the child was last ready; of a supervisor, why it gave up.  `processes`: those that the actor
    runs, as far as it says so.  `pausable` and `hears` as in `ChildSpec`; of a supervisor, what any
    of its children has.  `restart`, and of a supervisor `strategy`, `max_restarts` and `within`, as
    in their specs.
    """

    name: str
    state: State
    restarts: int
    started_at: float | None
    mailbox_depth: int
    last_event: str | None
    children: tuple[Node, ...]
    last_error: BaseException | None = None
    processes: tuple[Process, ...] = ()
    last_event_at: float | None = None
    pausable: bool = True
    hears: tuple[type, ...] = ()
    restart: Restart = Restart.PERMANENT
    strategy: Strategy | None = None
    max_restarts: float | None = None
    within: float | None = None


# --------------------------------------------------------------------------------------------------
# Events
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to `name`, `at` seconds since the epoch.

    `kind` is what logs and streams call it.
    """

    kind: ClassVar[str] = "event"
    at: float
    name: str

    def __str__(self) -> str:
        """What happened, without when and to whom."""
        return self.kind.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Started(Event):
    """An incarnation has begun; the first is 1."""

    kind: ClassVar[str] = "started"

    incarnation: int


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """The child has said it is ready; of a supervisor: all its children have been."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """An incarnation has ended.

    `reason`: finished (returned), crashed, drained (returned because it was asked to), cancelled
    (was stopped), stalled, start_timeout.  `error`: what it raised, in any of these cases.
    """

    kind: ClassVar[str] = "exited"

    reason: str
    error: BaseException | None

    def __str__(self) -> str:
        """Include the reason and the error."""
        return f"exited ({self.reason})" + (f": {self.error!r}" if self.error else "")


@dataclass(frozen=True, slots=True)
class BackingOff(Event):
    """The child will be started again in `delay` seconds."""

    kind: ClassVar[str] = "backing_off"

    delay: float

    def __str__(self) -> str:
        """Include the delay."""
        return f"backing off for {self.delay:.1f} s"


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """The child has not beaten for `quiet` seconds and is cancelled."""

    kind: ClassVar[str] = "stalled"

    quiet: float


@dataclass(frozen=True, slots=True)
class Draining(Event):
    """The child has been asked to finish what is in hand and end."""

    kind: ClassVar[str] = "draining"


@dataclass(frozen=True, slots=True)
class Stuck(Event):
    """The child has been cancelled and has not ended in its stop_timeout."""

    kind: ClassVar[str] = "stuck"


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """Its inbox hands nothing out until resumed."""

    kind: ClassVar[str] = "paused"


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """Its inbox hands messages out again."""

    kind: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True)
class Restarting(Event):
    """The child is restarted by hand, or because a sibling failed (`because`)."""

    kind: ClassVar[str] = "restarting"

    because: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    """A message that failed its actor `attempts` times was given up; `error`: on_dead raised it."""

    kind: ClassVar[str] = "dead_lettered"

    attempts: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class GaveUpOn(Event):
    """The supervisor `name` gives up: `child` failed once too often."""

    kind: ClassVar[str] = "gave_up_on"

    child: str
    reason: str

    def __str__(self) -> str:
        """Include the child."""
        return f"gave up on {self.child} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """A step of `task`, of the actor `name`, has not yielded for `seconds`; `stack` is where.

    Said when it is `blocked_after` old, and once more at `BLOCKED_LONG`.
    """

    kind: ClassVar[str] = "loop_blocked"

    task: str
    stack: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """The supervisor has no running children any more.  The root's is the last event."""

    kind: ClassVar[str] = "stopped"


class Subscription:
    """Events from now on, at most `capacity` waiting: the oldest are dropped, and counted.

    Iterate until the tree has ended.  For one task.
    """

    def __init__(self, capacity: int) -> None:
        """Made by `Supervisor.subscribe`."""
        self.dropped = 0
        self._events: deque[Event] = deque(maxlen=capacity)
        self._over = False
        self._lot = trio.lowlevel.ParkingLot()

    def __aiter__(self) -> Subscription:
        """Iterate over events."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        await trio.lowlevel.checkpoint()
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            await self._lot.park()
        return self._events.popleft()

    def _put(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._lot.unpark()

    def _end(self) -> None:
        self._over = True
        self._lot.unpark_all()


# --------------------------------------------------------------------------------------------------
# What an actor sees
# --------------------------------------------------------------------------------------------------


class Context:
    """All an actor sees of its supervisor; one for each incarnation (the first is 1)."""

    def __init__(self, child: _Worker, incarnation: int) -> None:
        """Made by the supervisor only."""
        self._child = child
        self.name: str = child.name
        self.incarnation = incarnation
        self.inbox: Inbox[Any] = Inbox(child.mailbox, clocked=child.spec.liveness is not None)
        self.draining = trio.Event()
        self.processes: Callable[[], Iterable[Process]] = tuple
        """Asked when the tree is shown; an actor that runs processes puts its own here."""
        self._pause_lot = trio.lowlevel.ParkingLot()
        self._paused_at_start = child.paused
        self._told: weakref.WeakKeyDictionary[trio.lowlevel.Task, bool] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def paused(self) -> bool:
        """Whether the child is paused.  Its inbox hands nothing out; the actor keeps running."""
        return self._child.paused

    def ready(self) -> None:
        """Say that the actor does its work from now on; the next child may start."""
        self.inbox._beat_at = trio.current_time()
        self._child.became_ready(self)

    def beat(self) -> None:
        """Say that the actor is alive, for those whose spec has `liveness`."""
        self.inbox._beat_at = trio.current_time()

    def every(self, seconds: float) -> AsyncIterator[None]:
        """Tick now and every `seconds`; end when draining starts.

        Ticks keep to their times; those missed while the actor was busy are skipped.
        """
        return _Ticks(self, seconds)

    async def wait_pause_changed(self) -> bool:
        """Wait until the child was paused or resumed, and return whether it is paused.

        Returns at once when that differs from what this method last told this task (at first: from
        what it was when the actor started), so that no change is missed between two calls.
        """
        task = trio.lowlevel.current_task()
        await trio.lowlevel.checkpoint()
        while self.paused == self._told.get(task, self._paused_at_start):
            await self._pause_lot.park()
            self.beat()
        self._told[task] = self.paused
        return self.paused


class _Ticks:
    """The iterator of `Context.every`.  A class, as an abandoned generator needs closing."""

    def __init__(self, ctx: Context, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError("ticks need time between them")
        self._ctx = ctx
        self._seconds = seconds
        self._next = -math.inf

    def __aiter__(self) -> _Ticks:
        return self

    async def __anext__(self) -> None:
        ctx, inbox = self._ctx, self._ctx.inbox
        if self._next == -math.inf:
            self._next = trio.current_time()
        inbox._idle += 1
        try:
            with trio.move_on_at(self._next):
                await ctx.draining.wait()
        finally:
            inbox._idle -= 1
        if ctx.draining.is_set():
            raise StopAsyncIteration
        now = trio.current_time()
        inbox._beat_at = now
        self._next += self._seconds * (1 + (now - self._next) // self._seconds)


# --------------------------------------------------------------------------------------------------
# The tree at work
#
# What a child below the root may be, between two steps of the loop (tests/supervisor/
# test_schedules.py asserts it, and sees every line of it):
#
#     phase       leaving           killed        wanted        gated         failed     stumbled
#     ---------   ---------------   -----------   -----------   -----------   --------   --------
#     ABSENT      no                maybe (1)     maybe         maybe         maybe      maybe
#     STARTING    maybe             no            see (2)       maybe         no         maybe
#     READY       maybe             no            see (2)       see (3)       no         no
#     DRAINING    yes, or see (4)   no            see (2)       maybe         no         maybe
#     CANCELLED   yes if no killed  if no leave   see (2)       maybe         no         maybe
#     STUCK       as CANCELLED
#
# (1) why its last incarnation was cancelled, until the next.  (2) not exactly when it leaves
# FOR_GOOD.  (3) only when it leaves WITH_GROUP, or FOR_GOOD after that.  (4) a supervisor that has
# given up, or whose significant child has ended, drains unasked.  A supervisor is never killed or
# cancelled, only drained: it is never CANCELLED or STUCK.  Nor does it leave TO_RESTART: by hand
# those under it are restarted.  Paused goes with anything.
# --------------------------------------------------------------------------------------------------


class _Phase(enum.Enum):
    """The phase of an incarnation's life; the order is the order in which it goes through them."""

    ABSENT = enum.auto()  # there is none
    STARTING = enum.auto()  # until ready, or start_timeout
    READY = enum.auto()  # watched for liveness
    DRAINING = enum.auto()  # until drain_timeout
    CANCELLED = enum.auto()  # until stop_timeout
    STUCK = enum.auto()  # for as long as it likes


class _Leave(enum.Enum):
    """Why a child was asked to leave, which says what comes after."""

    FOR_GOOD = enum.auto()
    TO_RESTART = enum.auto()  # by hand: at once
    WITH_GROUP = enum.auto()  # when the whole group has stopped, in order


class _Child:
    """What a worker and a nested supervisor have in common: a row in their supervisor's table."""

    start_timeout: float = math.inf
    drain_timeout: float = math.inf
    stop_timeout: float = math.inf
    fatal: tuple[type[BaseException], ...] = ()

    def __init__(
        self, spec: ChildSpec | SupervisorSpec, boss: Supervisor, parent: _Branch | None
    ) -> None:
        self.name = spec.name
        self.policy = spec
        self.boss = boss
        self.parent = parent
        self.phase = _Phase.ABSENT
        self.deadline = math.inf  # when the phase has lasted too long
        self.leaving: _Leave | None = None
        self.killed: str | None = None  # the reason why it was cancelled as a failure
        self.scope = trio.CancelScope()
        self.wanted = True  # it should run, from `due` on
        self.due = -math.inf
        self.gated = True  # only when those before it are ready and those after it are gone
        self.paused = False
        self.failed = False
        self.incarnation = 0
        self.failures = 0  # in a row, for the back-off
        self.ready_at = math.inf
        self.started_at: float | None = None
        self.last_event: Event | None = None  # but that it blocked the loop
        self.last_blocked: LoopBlocked | None = None
        self.last_error: BaseException | None = None  # since it was ready
        self.stumbled = False  # it, or one under it, has failed since it was last ready

    # What differs.

    def prepare(self) -> None:
        """Make ready for an incarnation, before its task exists."""
        raise AssertionError("abstract")

    async def body(self) -> None:
        """Be the incarnation."""
        raise AssertionError("abstract")

    def ask_to_drain(self, *, final: bool) -> None:
        raise AssertionError("abstract")

    @property
    def pausable(self) -> bool:
        raise AssertionError("abstract")

    def set_paused(self, paused: bool) -> None:
        raise AssertionError("abstract")

    def is_paused(self) -> bool:
        return self.paused

    def close(self, *, failed: bool) -> None:
        raise AssertionError("abstract")

    # What does not.

    @property
    def alive(self) -> bool:
        return self.phase is not _Phase.ABSENT

    @property
    def settled(self) -> bool:
        """Whether those after it may start: it is ready, or has ended and will not be back.

        Nor do they wait for one that has failed and is not awaited.
        """
        if self.phase is _Phase.READY or not (self.alive or self.wanted):
            return True
        return self.stumbled and not self.policy.awaited

    def state(self) -> State:
        if self.phase in (_Phase.DRAINING, _Phase.CANCELLED):
            return State.DRAINING
        if self.phase is _Phase.READY:
            return State.PAUSED if self.is_paused() else State.RUNNING
        if self.phase is _Phase.STARTING:
            return State.STARTING
        if self.failed or self.phase is _Phase.STUCK:
            return State.FAILED
        if not self.wanted:
            return State.STOPPED
        return State.BACKING_OFF if self.due > trio.current_time() else State.STARTING

    def last(self) -> Event | None:
        """What happened to it last; that it blocked the loop is over, and told for a while only."""
        event, blocked = self.last_event, self.last_blocked
        if blocked is None or self.boss._clock() - blocked.at > BLOCKED_TOLD:
            return event
        return event if event is not None and event.at > blocked.at else blocked

    def node(self) -> Node:
        last = self.last()
        return Node(
            name=self.name,
            state=self.state(),
            restarts=max(0, self.incarnation - 1),
            started_at=self.started_at,
            mailbox_depth=0,
            last_event=None if last is None else str(last),
            children=(),
            last_error=self.last_error,
            last_event_at=None if last is None else last.at,
            pausable=self.pausable,
            restart=self.policy.restart,
        )

    def enter(self, phase: _Phase, timeout: float = math.inf) -> None:
        self.phase = phase
        self.deadline = trio.current_time() + timeout

    def cancel(self) -> None:
        self.enter(_Phase.CANCELLED, self.boss._cut(self.stop_timeout, to=self.boss._grace))
        self.scope.cancel()


class _Worker(_Child):
    """A child that is an actor."""

    def __init__(self, spec: ChildSpec, boss: Supervisor, parent: _Branch) -> None:
        super().__init__(spec, boss, parent)
        self.spec = spec
        self.start_timeout = spec.start_timeout
        self.drain_timeout = spec.drain_timeout
        self.stop_timeout = spec.stop_timeout
        self.fatal = spec.fatal
        self.mailbox = cast(Mailbox[Any], spec.mailbox)
        self.mailbox._open()
        self.mailbox._paused = False
        self.context: Context | None = None

    def prepare(self) -> None:
        self.mailbox._open()
        self.context = Context(self, self.incarnation)

    async def body(self) -> None:
        ctx = cast(Context, self.context)
        if self.boss._wrap is None:
            await self.spec.run(ctx)
        else:
            await self.boss._wrap(ctx, lambda: self.spec.run(ctx))

    def became_ready(self, ctx: Context) -> None:
        if ctx is self.context and self.phase is _Phase.STARTING:
            self.ready_at = trio.current_time()
            self.gated = self.stumbled = False
            self.last_error = None
            self.enter(_Phase.READY, self.spec.liveness or math.inf)
            self.boss._publish(Ready, self)
            cast(_Branch, self.parent).wake()

    def last_beat(self, now: float) -> float:
        """When the actor beat last; one that waits for something to do beats all the time."""
        ctx = cast(Context, self.context)
        if ctx.inbox._idle or (self.paused and ctx._pause_lot):
            return now
        return ctx.inbox._beat_at

    def ask_to_drain(self, *, final: bool) -> None:
        ctx = cast(Context, self.context)
        ctx.draining.set()
        ctx.inbox._drain(final=final)

    @property
    def pausable(self) -> bool:
        return self.spec.pausable

    def set_paused(self, paused: bool) -> None:
        if paused == self.paused:
            return
        self.paused = self.mailbox._paused = paused
        self.boss._publish(Paused if paused else Resumed, self)
        self.mailbox._wake_all()
        if self.context is not None:
            self.context._pause_lot.unpark_all()

    def recall(self, *, blame: bool) -> None:
        """Take the messages back from an incarnation that has ended."""
        if self.context is not None:
            self.context.inbox._close()
            self.context = None
        for attempts, error in self.mailbox._recall(blame=blame):
            self.boss._publish(DeadLettered, self, attempts, error)

    def close(self, *, failed: bool) -> None:
        self.mailbox._close(failed=failed)

    def node(self) -> Node:
        return replace(
            super().node(),
            mailbox_depth=self.mailbox.statistics().depth,
            processes=() if self.context is None else tuple(self.context.processes()),
            hears=self.spec.hears,
        )


class _Branch(_Child):
    """A supervisor: the table of its children and the loop that looks after them."""

    def __init__(self, spec: SupervisorSpec, boss: Supervisor, parent: _Branch | None) -> None:
        super().__init__(spec, boss, parent)
        self.spec = spec
        self.children: list[_Child] = [
            _Branch(child, boss, self)
            if isinstance(child, SupervisorSpec)
            else _Worker(child, boss, self)
            for child in spec.children
        ]
        self.stopping = False
        self.defeat: GaveUp | None = None
        self.recent: deque[float] = deque()  # when its children failed, within the period
        self.attention = trio.Event()

    def wake(self) -> None:
        self.attention.set()

    # The loop.

    def prepare(self) -> None:
        self.stopping, self.defeat = False, None
        self.recent.clear()
        for child in self.children:
            child.wanted, child.gated, child.failed = True, True, False
            child.due, child.failures = -math.inf, 0
            if child.alive:  # stuck, from the life before: it is started when it has ended
                child.leaving = _Leave.WITH_GROUP

    async def body(self) -> None:
        while True:
            self.attention = trio.Event()
            now = trio.current_time()
            for child in self.children:
                self.look_at(child, now)
            self.stop_next()
            if self.stopping:
                if all(child.phase in (_Phase.ABSENT, _Phase.STUCK) for child in self.children):
                    break
            else:
                self.start_next(now)
            looked_at, planned = trio.current_time(), self.next_deadline(now)
            with trio.move_on_at(planned):
                await self.attention.wait()
            now = trio.current_time()
            if now - planned > _STANDSTILL:
                self.postpone(now - looked_at, now)
        self.boss._publish(Stopped, self)
        if self.defeat is not None:
            raise self.defeat

    def postpone(self, seconds: float, now: float) -> None:
        """The loop stood still (SIGSTOP, a blocked step): what was left at the last look is left.

        By less it would not do: who had time left then may need a few steps of the loop to beat.
        """
        for child in self.children:
            child.deadline += seconds
            if isinstance(child, _Worker) and child.context is not None:
                inbox = child.context.inbox
                inbox._beat_at = min(inbox._beat_at + seconds, now)

    def look_at(self, child: _Child, now: float) -> None:
        """Move on a child whose phase has lasted too long."""
        if now < child.deadline:
            return
        if child.phase is _Phase.STARTING:
            self.kill(child, "start_timeout")
        elif child.phase is _Phase.READY and isinstance(child, _Worker):
            beat_at = child.last_beat(now)
            child.deadline = beat_at + cast(float, child.spec.liveness)
            if child.deadline <= now:
                self.boss._publish(Stalled, child, now - beat_at)
                self.kill(child, "stalled")
        elif child.phase is _Phase.DRAINING:
            child.cancel()
        elif child.phase is _Phase.CANCELLED:
            child.enter(_Phase.STUCK, self.boss._stuck_exit)
            self.boss._publish(Stuck, child)
        elif child.phase is _Phase.STUCK:
            child.deadline = math.inf
            self.boss._stop()

    def kill(self, child: _Child, reason: str) -> None:
        child.killed = reason
        child.cancel()

    def stop_next(self) -> None:
        """Ask the last of those that should leave; the others wait until it is gone."""
        for child in reversed(self.children):
            if child.leaving is None or child.phase in (_Phase.ABSENT, _Phase.STUCK):
                continue
            if child.phase is _Phase.STARTING and isinstance(child, _Worker):
                child.cancel()  # nothing to drain
            elif child.phase in (_Phase.STARTING, _Phase.READY):
                final = child.leaving is _Leave.FOR_GOOD
                self.boss._publish(Draining, child)
                child.enter(_Phase.DRAINING, self.boss._cut(child.drain_timeout, to=0.0))
                child.ask_to_drain(final=final)
            return

    def start_next(self, now: float) -> None:
        """Start every child whose time has come."""
        before_settled = True
        for i, child in enumerate(self.children):
            if child.wanted and not child.alive and child.due <= now:
                after_gone = not any(later.leaving for later in self.children[i + 1 :])
                if not child.gated or (before_settled and after_gone):
                    self.start(child)
            before_settled = before_settled and child.settled
        if self.phase is _Phase.STARTING and before_settled:
            self.ready_at = now
            self.gated = self.stumbled = False
            self.last_error = None
            self.enter(_Phase.READY)
            self.boss._publish(Ready, self)
            if self.parent is not None:
                self.parent.wake()

    def next_deadline(self, now: float) -> float:
        """When it must look again; `now`: the time of the look that is just over.

        Not the time of this moment: what fell due in between has not been started.
        """
        alive = (child.deadline for child in self.children if child.alive)
        if self.stopping:
            return min(alive, default=math.inf)
        absent = (
            child.due
            for child in self.children
            if child.wanted and not child.alive and child.due > now
        )
        return min(min(alive, default=math.inf), min(absent, default=math.inf))

    # Births and deaths.

    def start(self, child: _Child) -> None:
        child.incarnation += 1
        child.scope = trio.CancelScope()
        child.leaving = child.killed = None
        child.failed = False
        child.ready_at = math.inf
        child.started_at = self.boss._clock()
        child.enter(_Phase.STARTING, child.start_timeout)
        child.prepare()
        self.boss._publish(Started, child, child.incarnation)
        self.boss._open_nursery.start_soon(self.boss._live, child, name=child.name)

    def exited(self, child: _Child, error: BaseException | None) -> None:
        """Judge the end of an incarnation, and decide what comes next."""
        now = trio.current_time()
        leaving, child.leaving = child.leaving, None
        if child.killed is not None:
            reason = child.killed
        elif child.scope.cancel_called:
            reason = "cancelled"
        elif error is not None:
            reason = "crashed"
        else:
            reason = "finished" if leaving is None else "drained"
        child.enter(_Phase.ABSENT)
        child.last_error = error
        self.boss._publish(Exited, child, reason, error)
        if isinstance(child, _Worker):
            child.recall(blame=reason not in ("cancelled", "drained"))
        self.wake()
        fatal = error and _find(error, (*child.fatal, KeyboardInterrupt, SystemExit))
        if fatal:
            child.wanted, child.failed = False, True
            self.boss._stop(fatal)
        elif self.stopping:
            child.wanted = False
        elif leaving is _Leave.TO_RESTART:
            child.due = now
        elif leaving is _Leave.WITH_GROUP:
            child.due = now
            child.wanted = child.policy.restart is not Restart.TEMPORARY
        else:
            self.decide(child, reason, error, now)
        if not child.wanted and not self.stopping:
            child.close(failed=child.failed)

    def decide(self, child: _Child, reason: str, error: BaseException | None, now: float) -> None:
        """Apply the restart policy to a child that ended unasked."""
        policy = child.policy
        normal = reason == "finished"
        again = policy.restart is Restart.PERMANENT or (
            policy.restart is Restart.TRANSIENT and not normal
        )
        if not again:
            child.wanted = False
            child.failed = not normal
            if policy.significant:
                self.stop()
            return
        self.recent.append(now)
        while self.recent[0] < now - self.spec.within:
            self.recent.popleft()
        if len(self.recent) > self.spec.max_restarts:
            child.wanted, child.failed = False, True
            self.give_up(child, reason, error)
            return
        stable = now - child.ready_at >= policy.backoff.stable_after
        child.failures = 1 if stable else child.failures + 1
        delay = policy.backoff.delay(child.failures, self.boss._rng)
        child.due = now + delay
        self.boss._publish(BackingOff, child, delay)
        self.stumble(child)
        if self.spec.strategy is not Strategy.ONE_FOR_ONE:
            first = self.children.index(child)
            if self.spec.strategy is Strategy.ONE_FOR_ALL:
                first = 0
            self.regroup(self.children[first:], because=child)

    def stumble(self, child: _Child) -> None:
        """Note a failure as that of all whose start it holds up, for those that wait for them."""
        above: _Child | None = child
        while above is not None:
            above.stumbled = above.phase is not _Phase.READY
            if above.parent is not None:
                above.parent.wake()
            above = above.parent

    def regroup(self, group: list[_Child], because: _Child | None) -> None:
        """Stop these children and start them again, in order."""
        for child in group:
            child.gated = True
            if child.alive:
                child.leaving = _Leave.WITH_GROUP
                self.boss._publish(Restarting, child, because.name if because else None)
            elif child.policy.restart is not Restart.TEMPORARY:
                child.wanted = True

    def give_up(self, child: _Child, reason: str, error: BaseException | None) -> None:
        self.boss._publish(GaveUpOn, self, child.name, reason)
        self.defeat = GaveUp(self.name, child.name, reason)
        self.defeat.__cause__ = error
        self.stop()

    def stop(self) -> None:
        """Stop all children for good, in reverse order; then the loop ends."""
        self.stopping = True
        self.enter(_Phase.DRAINING)
        for child in self.children:
            child.leaving = _Leave.FOR_GOOD if child.alive else None
            child.wanted = False
        self.wake()

    # Being a child.

    def ask_to_drain(self, *, final: bool) -> None:
        self.stop()

    @property
    def pausable(self) -> bool:
        return any(child.pausable for child in self.children)

    def set_paused(self, paused: bool) -> None:
        if paused != self.is_paused():
            self.boss._publish(Paused if paused else Resumed, self)
        for child in self.children:
            if child.pausable:
                child.set_paused(paused)

    def is_paused(self) -> bool:
        """Whether all under it are that can be: it hands out nothing itself."""
        return self.pausable and all(child.is_paused() for child in self.children if child.pausable)

    def close(self, *, failed: bool) -> None:
        for child in self.children:
            child.close(failed=failed)

    def node(self) -> Node:
        children = tuple(child.node() for child in self.children)
        hears = tuple({kind: None for child in children for kind in child.hears})
        return replace(
            super().node(),
            children=children,
            hears=hears,
            strategy=self.spec.strategy,
            max_restarts=self.spec.max_restarts,
            within=self.spec.within,
        )

    # By hand.

    def restart_all(self) -> None:
        self.boss._publish(Restarting, self)
        if self.alive:
            for child in self.children:
                child.due = -math.inf
            self.regroup(self.children, because=None)
            self.wake()
        else:
            cast(_Branch, self.parent).restart_child(self)

    def restart_child(self, child: _Child) -> None:
        self.boss._publish(Restarting, child)
        child.wanted, child.gated = True, False
        if child.alive:
            child.leaving = _Leave.TO_RESTART
        else:
            child.due = -math.inf
        self.wake()


def _find(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the first exception of these kinds, however deep in groups."""
    if isinstance(error, kinds):
        return error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            found = _find(part, kinds)
            if found is not None:
                return found
    return None


class Supervisor:
    """Runs one tree.  Made before the tree, so that actors can be given it."""

    def __init__(
        self,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
        grace: float = 1.0,
        stuck_exit: float = 60.0,
        blocked_after: float | None = 0.2,
        blocked_exit: float | None = None,
        on_blocked: Callable[[LoopBlocked], None] | None = None,
        wrap: Callable[[Context, Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
    ) -> None:
        """Times are in seconds.

        `rng` draws the jitter.  `clock` stamps events and `started_at`.  `grace` is all that a
        cancelled child is given once deadlines are cut to zero: time to unwind, not to work.
        `stuck_exit`: how long a restart waits for a stuck child before the tree is shut down.
        `blocked_after`: how long a step may block the loop unreported (None: no watch-dog);
        `blocked_exit`: how long before the process exits 70 (None: never); `on_blocked` is called
        in the watch-dog's thread, while the loop is still blocked.  `wrap(ctx, run)` is awaited
        in place of each `run()`, to bind the context of logs around it.
        """
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - jitter, no secret
        self._clock = clock
        self._grace = grace
        self._stuck_exit = stuck_exit
        self._blocked_after = blocked_after
        self._blocked_exit = blocked_exit
        self._on_blocked = on_blocked
        self._wrap = wrap
        self._root: _Branch | None = None
        self._by_name: dict[str, _Child] = {}
        self._actors: dict[trio.lowlevel.Task, str] = {}
        self._subscriptions: dict[Subscription, None] = {}
        self._asked = 0  # how many times shutdown() was called
        self._fatal: BaseException | None = None
        self._outcome: BaseException | None = None  # how the root ended
        self._over = trio.Event()
        self._nursery: trio.Nursery | None = None

    # For everybody.

    async def run(self, tree: SupervisorSpec) -> None:
        """Run the tree until it has ended; returns after a shutdown.

        Raises the fatal exception of a child unchanged; GaveUp, with the cause, when failures
        escalate past the root; Unstoppable when children ignore their cancellation.
        """
        if self._nursery is not None:
            raise RuntimeError("this supervisor is running already")
        self._root = root = self._build(tree)
        self._fatal = self._outcome = None
        self._over = over = trio.Event()
        opened, leave = trio.Event(), trio.Event()

        async def house() -> None:
            # A task of its own, outside `run`, so that `run` can leave a stuck child behind.
            async with trio.open_nursery() as self._nursery:
                opened.set()
                await leave.wait()

        trio.lowlevel.spawn_system_task(house, name=f"house of {tree.name}")
        with trio.CancelScope(shield=True):  # ends at once: the task has only to begin
            await opened.wait()
        watch_dog = self._start_watch_dog()
        root.incarnation = 1
        root.started_at = self._clock()
        root.enter(_Phase.STARTING)
        root.prepare()
        if self._asked:
            root.stop()
        self._publish(Started, root, 1)
        self._open_nursery.start_soon(self._live, root, name=root.name)
        try:
            await over.wait()
        except trio.Cancelled:
            self._asked = 2
            self._hurry()
            # Longer than the deadlines of all children, which are at most `grace` each by now.
            with trio.move_on_after(1.0 + self._grace * 2 * len(self._by_name), shield=True):
                await over.wait()
            raise
        finally:
            leave.set()
            self._nursery = None
            self._asked = 0
            if watch_dog is not None:
                watch_dog.stop()
            root.close(failed=self._fatal is not None or self._outcome is not None)
            for subscription in self._subscriptions:
                subscription._end()
        if self._fatal is not None:
            raise self._fatal
        if self._outcome is not None:
            raise self._outcome
        if self.stuck:
            raise Unstoppable(self.stuck)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The children that ignore their cancellation.

        While there are any after `run` has ended, `trio.run` cannot end: use `os._exit`.
        """
        return tuple(c.name for c in self._by_name.values() if c.phase is _Phase.STUCK)

    def shutdown(self) -> None:
        """Stop the tree: drain in reverse start order.  Called again: all deadlines are zero.

        Called before `run`, it makes `run` return at once.
        """
        self._asked += 1
        if self._asked == 1:
            self._stop()
        else:
            self._hurry()

    async def restart(self, name: str) -> None:
        """Begin to stop a child (draining it) and start it again, without back-off.

        A supervisor restarts its children, in order; one that has given up is started now.  Does
        not wait for the end of it: the caller may be running in that very child.  Raises
        UnknownChild, and NotRunning in a shutdown or while the supervisor above it is down.
        """
        child = self._child(name)
        above: _Branch | None = (
            child if isinstance(child, _Branch) and child.alive else child.parent
        )
        while above is not None:
            if above.stopping or not above.alive:
                raise NotRunning(f"{above.name!r} is down or on its way down")
            above = above.parent
        if isinstance(child, _Branch):
            child.restart_all()
        else:
            cast(_Branch, child.parent).restart_child(child)
        await trio.lowlevel.checkpoint()

    def pause(self, name: str) -> None:
        """Let the inbox of a child hand nothing out, or of all in a supervisor that can be paused.

        Holds across restarts until `resume`.  Raises UnknownChild, NotUnderstood where nothing
        can be paused.
        """
        child = self._child(name)
        if not child.pausable:
            raise NotUnderstood(f"{name!r} cannot be paused")
        child.set_paused(True)

    def resume(self, name: str) -> None:
        """Undo `pause`.  Raises UnknownChild."""
        self._child(name).set_paused(False)

    def tell(self, name: str, message: object) -> None:
        """Put a message into the mailbox of a child that `hears` its kind.

        Of a supervisor: of all children that do, in start order.  Raises UnknownChild,
        NotUnderstood where none does, and as `Mailbox.send_nowait` at the first mailbox that is
        full or whose actor has ended.
        """
        waiting, found = [self._child(name)], False
        while waiting:
            child = waiting.pop(0)
            if isinstance(child, _Branch):
                waiting += child.children
            elif isinstance(child, _Worker) and isinstance(message, child.spec.hears):
                child.mailbox.send_nowait(message)
                found = True
        if not found:
            raise NotUnderstood(f"{name!r} does not understand {type(message).__name__}")

    def tree(self) -> Node:
        """Return a snapshot of the tree, also after it has ended.  Raises NotRunning before."""
        if self._root is None:
            raise NotRunning("the tree has not been started")
        return self._root.node()

    @contextlib.contextmanager
    def subscribe(self, capacity: int = 256) -> Iterator[Subscription]:
        """Open a stream of events that holds up to `capacity` of them for a slow reader."""
        subscription = Subscription(capacity)
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]

    # For the rest of this module.

    @property
    def _open_nursery(self) -> trio.Nursery:
        return cast(trio.Nursery, self._nursery)

    def _publish(self, kind: Callable[..., Event], child: _Child, *details: Any) -> None:
        """Tell everybody what happened; never waits, never fails."""
        self._spread(kind(self._clock(), child.name, *details), child)

    def _cut(self, timeout: float, *, to: float) -> float:
        """Return the time-out, or what is left of it once deadlines are cut."""
        return min(timeout, to) if self._asked > 1 and timeout < math.inf else timeout

    def _stop(self, fatal: BaseException | None = None) -> None:
        """End the tree in order; `run` raises the first fatal exception."""
        if self._fatal is None:
            self._fatal = fatal
        if self._nursery is not None and self._root is not None and not self._root.stopping:
            self._publish(Draining, self._root)
            self._root.stop()

    async def _live(self, child: _Child) -> None:
        """One incarnation of a child, from its first step to its last."""
        task = trio.lowlevel.current_task()
        self._actors[task] = child.name
        error: BaseException | None = None
        try:
            with child.scope:
                await child.body()
        except BaseException as exc:
            error = exc
        finally:
            del self._actors[task]
        if child.parent is not None:
            child.parent.exited(child, error)
        else:
            self._outcome = error
            child.enter(_Phase.ABSENT)
            child.wanted, child.failed = False, error is not None
            self._over.set()

    def _build(self, tree: SupervisorSpec) -> _Branch:
        root = _Branch(tree, self, None)
        self._by_name = {}
        mailboxes: set[int] = set()
        waiting: list[_Child] = [root]
        while waiting:
            child = waiting.pop(0)
            if child.name in self._by_name:
                raise ValueError(f"two children are called {child.name!r}")
            self._by_name[child.name] = child
            if isinstance(child, _Branch):
                waiting.extend(child.children)
            elif isinstance(child, _Worker):
                if id(child.mailbox) in mailboxes:
                    raise ValueError(f"the mailbox of {child.name!r} is another child's too")
                mailboxes.add(id(child.mailbox))
        return root

    def _child(self, name: str) -> _Child:
        if self._nursery is None:
            raise NotRunning("the tree is not running")
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownChild(name) from None

    def _hurry(self) -> None:
        """Cut the deadlines of those that are on their way out already."""
        self._stop()
        now = trio.current_time()
        for child in self._by_name.values():
            if isinstance(child, _Branch):
                child.wake()
            elif child.phase is _Phase.DRAINING:
                child.deadline = now
            elif child.phase is _Phase.CANCELLED:
                child.deadline = min(child.deadline, now + self._grace)

    def _spread(self, event: Event, child: _Child | None) -> None:
        if isinstance(event, LoopBlocked) and child is not None:
            child.last_blocked = event
        elif child is not None:
            child.last_event = event
        for subscription in self._subscriptions:
            subscription._put(event)

    def _start_watch_dog(self) -> _WatchDog | None:
        if self._blocked_after is None:
            return None
        return _WatchDog(self, self._blocked_after, self._blocked_exit, self._on_blocked)


# --------------------------------------------------------------------------------------------------
# The watch-dog of the loop
# --------------------------------------------------------------------------------------------------


class _LastStep(trio.abc.Instrument):
    """The place of the loop: the task that was resumed last, or a number while it waits for I/O.

    Both hooks are the C method `append` of a deque that holds one item: no Python code of ours
    runs in a step.  The thread takes the item out: while none comes back, no step has begun.
    """

    def __init__(self) -> None:
        self.last: deque[Any] = deque(maxlen=1)
        self.before_task_step = self.last.append  # type: ignore[assignment]  # see above
        self.before_io_wait = self.last.append  # type: ignore[assignment]


class _WatchDog:
    """A thread that looks at `_LastStep` twice in `after` seconds."""

    def __init__(
        self,
        boss: Supervisor,
        after: float,
        exit_after: float | None,
        on_blocked: Callable[[LoopBlocked], None] | None,
    ) -> None:
        self._boss = boss
        self._after = after
        self._exit_after = math.inf if exit_after is None else exit_after
        self._on_blocked = on_blocked
        self._token = trio.lowlevel.current_trio_token()
        self._loop = threading.get_ident()
        self._instrument = _LastStep()
        self._stopped = threading.Event()
        trio.lowlevel.add_instrument(self._instrument)
        threading.Thread(target=self._watch, name="watch-dog", daemon=True).start()

    def stop(self) -> None:
        """End the thread, soon."""
        trio.lowlevel.remove_instrument(self._instrument)
        self._stopped.set()

    def _watch(self) -> None:
        interval = self._after / 2
        last: Any = None
        blocked, due = 0.0, self._after
        then, cpu = time.monotonic(), time.process_time()
        while not self._stopped.wait(interval):
            now, cpu_now = time.monotonic(), time.process_time()
            passed, busy = now - then, cpu_now - cpu
            then, cpu = now, cpu_now
            try:
                last = self._instrument.last.pop()
            except IndexError:
                pass
            else:
                blocked, due = 0.0, self._after
                continue
            if not isinstance(last, trio.lowlevel.Task):
                continue
            # A pause of this thread too counts only if the process was at work in it (some C code
            # held the interpreter); otherwise the process was stopped, or the machine slept.
            blocked += passed if busy > passed / 2 else min(passed, 2 * interval)
            if blocked >= due:
                due = BLOCKED_LONG if blocked < BLOCKED_LONG else math.inf
                self._report(last, blocked)
            if blocked >= self._exit_after:
                root = cast(_Branch, self._boss._root).name
                text = f"{root}: task {last.name} blocks the loop for {blocked:.1f} s, exit 70\n"
                os.write(2, (text + self._stack()).encode(errors="replace"))
                os._exit(70)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _report(self, task: trio.lowlevel.Task, blocked: float) -> None:
        boss = self._boss
        root = cast(_Branch, boss._root)
        name, above = root.name, cast(trio.lowlevel.Task | None, task)
        while above is not None:
            if above in boss._actors:
                name = boss._actors[above]
                break
            above = above.parent_nursery.parent_task if above.parent_nursery else None
        event = LoopBlocked(boss._clock(), name, task.name, self._stack(), blocked)
        if self._on_blocked is not None:
            try:
                self._on_blocked(event)
            except Exception:
                traceback.print_exc()
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(boss._spread, event, boss._by_name.get(name))
