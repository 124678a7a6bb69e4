"""A tree under test on the virtual clock: it runs, and everything that happens is noted down."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import trio
import trio.testing

from supervisor import (
    Context,
    Event,
    Node,
    Supervisor,
    SupervisorSpec,
)

Actor = Callable[[Context], Awaitable[None]]


class Most(random.Random):
    """Jitter that always draws the longest delay, so that times in tests are exact."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper bound."""
        return b


class House:
    """A supervisor, its events as (second, name, what), and how its run ended."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.began = trio.current_time()
        self.raw: list[Event] = []
        self.error: BaseException | None = None
        self.ended = trio.Event()

    @property
    def events(self) -> list[tuple[float, str, str]]:
        """What has happened so far."""
        return [(round(e.at - self.began, 3), e.name, str(e)) for e in self.raw]

    def of(self, *words: str) -> list[tuple[float, str, str]]:
        """The events that begin with one of these words."""
        return [event for event in self.events if event[2].startswith(words)]

    def node(self, name: str) -> Node:
        """The node of this name."""
        waiting = [self.supervisor.tree()]
        while waiting:
            node = waiting.pop()
            if node.name == name:
                return node
            waiting.extend(node.children)
        raise LookupError(name)

    async def end(self) -> None:
        """Wait until the run has ended and everything was noted down."""
        await self.ended.wait()
        await trio.testing.wait_all_tasks_blocked()

    async def settle(self, seconds: float = 0.0) -> None:
        """Let this much time pass and everything that is due happen."""
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked()


@contextlib.asynccontextmanager
async def running(
    tree: SupervisorSpec,
    *,
    rng: random.Random | None = None,
    grace: float = 1.0,
    stuck_exit: float = 60.0,
    wrap: Callable[[Context, Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
) -> AsyncIterator[House]:
    """Run a tree beside the block; shut it down at the end of the block if it still runs."""
    supervisor = Supervisor(
        rng=rng or Most(),
        clock=trio.current_time,
        blocked_after=None,
        grace=grace,
        stuck_exit=stuck_exit,
        wrap=wrap,
    )
    house = House(supervisor)

    async def run() -> None:
        try:
            await supervisor.run(tree)
        except BaseException as exc:
            house.error = exc
            if isinstance(exc, trio.Cancelled):
                raise
        finally:
            house.ended.set()

    async def note() -> None:
        with supervisor.subscribe(10_000) as subscription:
            async for event in subscription:
                house.raw.append(event)

    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            yield house
            if not house.ended.is_set():
                supervisor.shutdown()
                await house.end()


async def idle(ctx: Context) -> None:
    """An actor that is ready at once and works until drained."""
    ctx.ready()
    async for _ in ctx.inbox:
        pass


def dies_after(seconds: float, times: int = 1_000_000) -> Callable[[Context], Awaitable[None]]:
    """An actor whose first incarnations crash this long after they are ready."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        if ctx.incarnation <= times:
            with trio.move_on_after(seconds):
                await ctx.draining.wait()
                return
            raise ValueError(ctx.incarnation)
        await ctx.draining.wait()

    return run


async def finishes(ctx: Context) -> None:
    """An actor that works for a second and returns."""
    ctx.ready()
    await trio.sleep(1)
