"""Random schedules of crashes, pauses, stalls, restarts and drains: no message is lost."""

import contextlib
import random
from collections import Counter

import pytest
import trio
import trio.testing

from supervisor import (
    Backoff,
    ChildSpec,
    Context,
    Held,
    Inbox,
    Mailbox,
    NotRunning,
    Restart,
    Strategy,
    Supervisor,
    SupervisorSpec,
    Unstoppable,
)
from tests.supervisor.house import Actor

SEEDS = 400
MESSAGES = 40


class Ledger:
    """What became of every message."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.failures: Counter[int] = Counter()
        self.incarnations: Counter[str] = Counter()  # running at this moment, by child

    def begin(self, message: int) -> None:
        """Work on a message: it was accepted, and is neither done nor dead."""
        assert message in self.accepted
        assert message not in self.done
        assert message not in self.dead

    def finish(self, message: int) -> None:
        """A message needs nothing more, from now on."""
        self.done.add(message)

    def bury(self, message: int, attempts: int) -> None:
        """A message was given up: at its limit and not a moment sooner, and only once."""
        assert attempts == 3
        assert message not in self.done
        assert message not in self.dead
        self.dead.add(message)


def actor(ledger: Ledger, rng: random.Random, style: str) -> Actor:
    """An actor that works, crashes, stalls, dawdles and returns as the dice say."""

    async def mishap() -> None:
        dice = rng.random()
        if dice < 0.08:
            raise ValueError
        if dice < 0.10:
            await trio.sleep_forever()  # stalls
        if dice < 0.12:
            with trio.CancelScope(shield=True):
                await trio.sleep(rng.uniform(0, 3))  # slow to obey
        await trio.sleep(rng.choice((0, 0, 0.1, 1)))

    async def singly(ctx: Context) -> None:
        async for message in ctx.inbox:
            ledger.begin(message)
            await mishap()
            # Asking for the next message says that this one is done; nothing runs in between.
            ledger.finish(message)

    async def batches(ctx: Context) -> None:
        inbox: Inbox[int] = ctx.inbox
        while not ctx.draining.is_set():
            for held in await inbox.take(rng.randint(1, 6)):
                ledger.begin(held.message)
                await mishap()
                end(held)
                ctx.beat()

    def end(held: Held[int]) -> None:
        ledger.finish(held.message)
        held.done()

    async def crowd(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(singly, ctx)

    async def run(ctx: Context) -> None:
        ledger.incarnations[ctx.name] += 1
        assert ledger.incarnations[ctx.name] == 1  # never two at a time
        try:
            await trio.sleep(rng.choice((0, 0, 0.5, 5)))
            if rng.random() < 0.1:
                raise OSError
            ctx.ready()
            await {"singly": singly, "batches": batches, "crowd": crowd}[style](ctx)
        finally:
            ledger.incarnations[ctx.name] -= 1

    return run


State = tuple[str, bool, str, bool, bool, bool, bool, bool]
"""Phase; whether it is a supervisor; why it leaves; killed; wanted; gated; failed; stumbled."""


class Watch(trio.abc.Instrument):
    """Notes what the children of a tree are, after every step of the loop."""

    def __init__(self, boss: Supervisor) -> None:
        self.boss = boss
        self.seen: set[State] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Look at all of them."""
        for child in self.boss._by_name.values():
            if child.parent is not None:
                self.seen.add(
                    (
                        child.phase.name,
                        hasattr(child, "children"),
                        child.leaving.name if child.leaving else "",
                        child.killed is not None,
                        child.wanted,
                        child.gated,
                        child.failed,
                        child.stumbled,
                    )
                )


def is_legal(state: State) -> bool:
    """Whether the table in supervisor.py (The tree at work) has it."""
    phase, supervisor, leaving, killed, wanted, gated, failed, stumbled = state
    if phase == "ABSENT":
        return not leaving
    if wanted == (leaving == "FOR_GOOD") or failed or (supervisor and leaving == "TO_RESTART"):
        return False
    if phase in ("CANCELLED", "STUCK"):
        return not supervisor and bool(leaving or killed)
    if killed:
        return False
    if phase == "READY":
        return not stumbled and (not gated or leaving in ("WITH_GROUP", "FOR_GOOD"))
    return phase == "STARTING" or bool(leaving) or supervisor  # … or it is DRAINING


async def left_in(boxes: list[Mailbox[int]]) -> set[int]:
    """What is still in the boxes: they outlive their actors, so others are handed all of it."""
    found: set[int] = set()

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            found.add(message)

    heirs = tuple(ChildSpec(box.name, run, mailbox=box) for box in boxes)
    boss = Supervisor(blocked_after=None, clock=trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boss.run, SupervisorSpec("heirs", heirs))
        await trio.testing.wait_all_tasks_blocked()
        boss.shutdown()
    return found


async def play(seed: int, seen: set[State] | None = None) -> Ledger:
    """Run one random tree through one random schedule and check the books.

    What its children were goes to `seen`.
    """
    rng = random.Random(seed)
    ledger = Ledger()
    boxes = [
        Mailbox[int](f"box{n}", capacity=rng.choice((1, 3, 100)), on_dead=ledger.bury)
        for n in range(3)
    ]

    def child(n: int) -> ChildSpec:
        return ChildSpec(
            f"c{n}",
            actor(ledger, rng, rng.choice(("singly", "batches", "crowd"))),
            restart=rng.choice((Restart.PERMANENT, Restart.PERMANENT, Restart.TRANSIENT)),
            backoff=Backoff(base=0.2, cap=2),
            start_timeout=4,
            drain_timeout=rng.choice((0, 1, 10)),
            stop_timeout=rng.choice((0.5, 5)),
            liveness=4,
            mailbox=boxes[n],
        )

    inner = SupervisorSpec(
        "inner", (child(1), child(2)), rng.choice(list(Strategy)), max_restarts=3, within=10
    )
    tree = SupervisorSpec("root", (child(0), inner), rng.choice(list(Strategy)), max_restarts=1000)
    boss = Supervisor(rng=rng, blocked_after=None, clock=trio.current_time)

    async def run() -> None:
        with contextlib.suppress(Unstoppable):  # the shielded are slow to obey
            await boss.run(tree)

    async def send(first: int) -> None:
        for message in range(first, first + MESSAGES):
            await trio.sleep(rng.choice((0, 0, 0.05, 1)))
            box = rng.choice(boxes)
            # Noted before it is sent, as the actor may begin before send() has returned.
            ledger.accepted.add(message)
            with trio.move_on_after(rng.choice((0, 1, 1000))) as scope:
                try:
                    await box.send(message)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    ledger.accepted.discard(message)
            if scope.cancelled_caught:
                assert message not in ledger.done
                ledger.accepted.discard(message)

    async def meddle() -> None:
        names = ["c0", "c1", "c2", "inner", "root"]
        for _ in range(15):
            await trio.sleep(rng.uniform(0, 4))
            name = rng.choice(names)
            dice = rng.random()
            if dice < 0.3:
                boss.pause(name)
            elif dice < 0.7:
                boss.resume(name)
            else:
                with contextlib.suppress(NotRunning):  # it is below a supervisor that is down
                    await boss.restart(name)
        boss.resume("root")

    watch = Watch(boss)
    if seen is not None:
        trio.lowlevel.add_instrument(watch)
    with trio.fail_after(10_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as world:
                world.start_soon(send, 0)
                world.start_soon(send, 1000)
                world.start_soon(meddle)
            await trio.sleep(rng.choice((0, 0.3, 60)))
            boss.shutdown()
            if rng.random() < 0.3:
                await trio.sleep(rng.uniform(0, 2))
                boss.shutdown()
    left = await left_in(boxes)
    missing = ledger.accepted - ledger.done - ledger.dead - left
    # An actor that ignored its cancellation may have kept some longer than there was somebody to
    # hand them to.
    late = sum(box.statistics().in_hand + box.statistics().depth for box in boxes)
    assert len(missing) <= late, "lost"
    assert not ledger.dead & ledger.done
    if seen is not None:
        seen |= watch.seen
    return ledger


@pytest.fixture(autouse=True, scope="module")
def _deterministic():
    """Trio shuffles the tasks that are due, for fairness; here a seed says it all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        yield


@pytest.fixture(scope="module")
def played(_deterministic) -> tuple[list[Ledger], set[State]]:
    """Hundreds of random schedules: what became of the messages, and what the children were."""
    seen: set[State] = set()
    return [books(seed, seen) for seed in range(SEEDS)], seen


def books(seed: int, seen: set[State] | None = None) -> Ledger:
    """Play a schedule on the virtual clock."""
    trio._core._run._r.seed(seed)
    try:
        return trio.run(play, seed, seen, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as exc:
        exc.add_note(f"seed {seed}")
        raise


def test_every_message_is_done_dead_or_still_held(played):
    """In every schedule; and together they have seen every kind of outcome."""
    done = dead = left = 0
    for ledger in played[0]:
        done += len(ledger.done)
        dead += len(ledger.dead)
        left += len(ledger.accepted - ledger.done - ledger.dead)
    assert done > SEEDS * MESSAGES / 2
    assert dead > SEEDS / 10
    assert left > SEEDS / 10


def test_children_are_what_the_table_says_and_nothing_else(played):
    """In every schedule, after every step of the loop; and each line of the table is needed."""
    _, seen = played
    assert not [state for state in seen if not is_legal(state)]
    lines = {(phase, supervisor, leaving) for phase, supervisor, leaving, *_ in seen}
    for phase in ("STARTING", "READY", "DRAINING", "CANCELLED", "STUCK"):
        for leaving in ("FOR_GOOD", "TO_RESTART", "WITH_GROUP"):
            assert (phase, False, leaving) in lines
    for phase in ("STARTING", "READY", "DRAINING"):
        for leaving in ("FOR_GOOD", "WITH_GROUP"):
            assert (phase, True, leaving) in lines
    assert {(phase, True, "") for phase in ("ABSENT", "DRAINING")} <= lines
    assert any(phase == "CANCELLED" and not leaving for phase, _, leaving in lines)


@pytest.mark.parametrize("seed", [3, 17])
def test_a_schedule_is_repeatable(seed):
    """The same seed gives the same books, so that a failure can be looked into."""
    first, second = books(seed), books(seed)
    assert first.done == second.done
    assert first.dead == second.dead
