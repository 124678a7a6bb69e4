"""Pause, resume, restart by name; the snapshot; the event stream; the wrapper."""

import itertools

import pytest
import trio
import trio.testing

from supervisor import (
    ChildSpec,
    Context,
    Mailbox,
    NotRunning,
    NotUnderstood,
    Process,
    Restart,
    State,
    Strategy,
    Supervisor,
    SupervisorSpec,
    UnknownChild,
)
from tests.supervisor.house import dies_after, finishes, idle, running


async def test_a_paused_child_gets_no_messages_until_resumed(autojump_clock):
    """Its messages wait, it keeps running, and it is told."""
    box, got, told = Mailbox[int]("a"), [], []

    async def run(ctx: Context) -> None:
        async def watch() -> None:
            while True:
                told.append(await ctx.wait_pause_changed())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            ctx.ready()
            async for message in ctx.inbox:
                got.append(message)
            nursery.cancel_scope.cancel()

    async with running(SupervisorSpec("root", (ChildSpec("a", run, mailbox=box),))) as house:
        await box.send(1)
        await house.settle()
        house.supervisor.pause("a")
        house.supervisor.pause("a")
        await box.send(2)
        await house.settle(5)
        assert got == [1]
        assert house.node("a").state is State.PAUSED
        assert house.node("a").mailbox_depth == 1
        house.supervisor.resume("a")
        await house.settle()
        assert got == [1, 2]
        assert told == [True, False]
        assert house.of("paused", "resumed") == [(0, "a", "paused"), (5, "a", "resumed")]


async def test_no_change_of_pause_is_missed_between_two_waits(autojump_clock):
    """An actor that is busy while it is resumed learns it at its next wait."""
    told = []

    async def run(ctx: Context) -> None:
        ctx.ready()
        while not ctx.draining.is_set():
            told.append(await ctx.wait_pause_changed())
            await trio.sleep(10)

    tree = SupervisorSpec("root", (ChildSpec("a", run, drain_timeout=0),))
    async with running(tree) as house:
        house.supervisor.pause("a")
        await house.settle(5)
        house.supervisor.resume("a")
        await house.settle(20)
        assert told == [True, False]


async def test_a_pause_outlives_a_crash(autojump_clock):
    """The next incarnation begins paused."""
    box, got = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        if ctx.incarnation == 1:
            await trio.sleep(1)
            raise ValueError
        assert ctx.paused
        got.extend([message async for message in ctx.inbox])

    async with running(SupervisorSpec("root", (ChildSpec("a", run, mailbox=box),))) as house:
        house.supervisor.pause("a")
        box.send_nowait(1)
        await house.settle(5)
        assert house.node("a").state is State.PAUSED
        assert got == []


async def test_a_paused_child_can_be_shut_down(autojump_clock):
    """Its messages stay in the box; it does not wait for a resume that never comes."""
    box = Mailbox[int]("a")
    async with running(SupervisorSpec("root", (ChildSpec("a", idle, mailbox=box),))) as house:
        house.supervisor.pause("a")
        box.send_nowait(1)
        await house.settle(1)
    assert house.of("exited") == [(1, "a", "exited (drained)")]
    assert box.statistics().depth == 1


async def test_a_supervisor_is_paused_with_all_its_children(autojump_clock):
    """Its name stands for those below it, and only those."""
    inner = SupervisorSpec("inner", (ChildSpec("b", idle), ChildSpec("c", idle)))
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        house.supervisor.pause("inner")
        assert [house.node(n).state for n in ("a", "b", "c", "inner")] == [
            State.RUNNING,
            State.PAUSED,
            State.PAUSED,
            State.PAUSED,
        ]
        house.supervisor.resume("inner")
        assert house.node("b").state is house.node("inner").state is State.RUNNING


async def test_a_supervisor_is_paused_while_all_its_children_are(autojump_clock):
    """However they were paused and resumed: one that works again, and it is running."""
    inner = SupervisorSpec("inner", (ChildSpec("b", idle), ChildSpec("c", idle)))
    async with running(SupervisorSpec("root", (inner,))) as house:
        await house.settle(1)
        house.supervisor.pause("inner")
        house.supervisor.resume("c")
        assert house.node("inner").state is State.RUNNING
        house.supervisor.pause("c")
        assert house.node("inner").state is State.PAUSED
        house.supervisor.resume("b")
        house.supervisor.resume("c")
        assert house.node("inner").state is State.RUNNING


async def test_a_restart_by_hand_drains_and_starts_at_once(autojump_clock):
    """Without back-off, counted in `restarts`, but not towards the intensity."""

    async def slow(ctx: Context) -> None:
        ctx.ready()
        await ctx.draining.wait()
        await trio.sleep(1)

    tree = SupervisorSpec(
        "root",
        (ChildSpec("a", slow), ChildSpec("b", idle)),
        strategy=Strategy.ONE_FOR_ALL,
        max_restarts=0,
    )
    async with running(tree) as house:
        await house.settle(1)
        for _ in range(3):
            await house.supervisor.restart("a")
            await house.settle(2)
        assert [e for e in house.events if 1 <= e[0] <= 2] == [
            (1, "a", "restarting"),
            (1, "a", "draining"),
            (2, "a", "exited (drained)"),
            (2, "a", "started"),
            (2, "a", "ready"),
        ]
        assert house.node("a").restarts == 3
        assert house.node("b").restarts == 0


async def test_a_restart_by_hand_ends_a_back_off_and_wakes_the_ended(autojump_clock):
    """Whatever the child was waiting for, it starts now."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", dies_after(0, times=1)),
            ChildSpec("b", finishes, restart=Restart.TEMPORARY),
        ),
    )
    async with running(tree) as house:
        await house.settle(0.2)
        await house.supervisor.restart("a")
        await house.settle()
        assert house.node("a").state is State.RUNNING
        await house.settle(2)
        await house.supervisor.restart("b")
        await house.settle()
        assert house.node("b").state is State.RUNNING


async def test_an_actor_may_restart_itself(autojump_clock):
    """restart() does not wait for the end of what may be the caller."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        if ctx.incarnation == 1:
            await house.supervisor.restart("a")
        await ctx.draining.wait()

    async with running(SupervisorSpec("root", (ChildSpec("a", run),))) as house:
        await house.settle(1)
        assert house.node("a").restarts == 1


@pytest.mark.parametrize("name", ["inner", "root"])
async def test_restarting_a_supervisor_restarts_its_children_in_order(autojump_clock, name):
    """They stop in reverse order and start in order; the supervisor itself goes on."""
    inner = SupervisorSpec("inner", (ChildSpec("b", idle), ChildSpec("c", idle)))
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        await house.settle(1)
        await house.supervisor.restart(name)
        await house.settle(1)
        order = [e[1:] for e in house.of("exited", "started") if e[0] == 1 and e[1] in "abc"]
        a = [("a", "exited (drained)"), ("a", "started")] if name == "root" else []
        assert order == [
            ("c", "exited (drained)"),
            ("b", "exited (drained)"),
            *a,
            ("b", "started"),
            ("c", "started"),
        ]
        assert house.node("c").restarts == 1
        assert house.node("inner").state is State.RUNNING


async def test_wrong_names_and_wrong_times(autojump_clock):
    """UnknownChild for a name nobody has; NotRunning before, after and during a shutdown."""
    supervisor = Supervisor(blocked_after=None)
    with pytest.raises(NotRunning):
        supervisor.pause("a")
    with pytest.raises(NotRunning):
        supervisor.tree()
    inner = SupervisorSpec("inner", (ChildSpec("b", dies_after(1)),), max_restarts=0)
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        for call in (house.supervisor.pause, house.supervisor.resume):
            with pytest.raises(UnknownChild, match="no child is called 'z'"):
                call("z")
        with pytest.raises(KeyError):
            await house.supervisor.restart("z")
        await house.settle(1.1)
        assert house.node("inner").state is State.BACKING_OFF
        with pytest.raises(NotRunning):
            await house.supervisor.restart("b")
        await house.supervisor.restart("inner")
        await house.settle()
        assert house.node("b").state is State.RUNNING
        house.supervisor.shutdown()
        with pytest.raises(NotRunning):
            await house.supervisor.restart("a")
        await house.end()
        with pytest.raises(NotRunning):
            await house.supervisor.restart("a")
    assert house.node("a").state is State.STOPPED


async def test_the_snapshot(autojump_clock):
    """tree() shows every child in start order, with what happened to it last."""
    box = Mailbox[int]("a")
    inner = SupervisorSpec("inner", (ChildSpec("b", dies_after(1)),))
    async with running(SupervisorSpec("root", (ChildSpec("a", idle, mailbox=box), inner))) as house:
        await house.settle(1.1)
        root = house.supervisor.tree()
        assert [node.name for node in root.children] == ["a", "inner"]
        b = root.children[1].children[0]
        assert (b.state, b.restarts, b.mailbox_depth) == (State.BACKING_OFF, 0, 0)
        assert b.last_event == "backing off for 0.5 s"
        assert b.started_at == house.began


async def test_the_snapshot_says_when_a_child_is_started_again(autojump_clock):
    """The policy of each child, and of a supervisor whom it takes along and when it gives up."""
    inner = SupervisorSpec(
        "inner",
        (ChildSpec("b", idle, Restart.TRANSIENT),),
        Strategy.REST_FOR_ONE,
        max_restarts=2,
        within=9.0,
    )
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        a, group = house.supervisor.tree().children
        assert (a.restart, a.strategy, a.max_restarts) == (Restart.PERMANENT, None, None)
        assert (group.strategy, group.max_restarts, group.within) == (Strategy.REST_FOR_ONE, 2, 9.0)
        assert group.children[0].restart is Restart.TRANSIENT


async def test_the_snapshot_has_the_processes_that_an_actor_runs(autojump_clock):
    """As it says whenever the tree is asked for; an incarnation that has ended has none."""
    used = itertools.count(1.5)

    async def run(ctx: Context) -> None:
        ctx.processes = lambda: [Process("p", 17, 3, next(used))]
        ctx.ready()
        await ctx.draining.wait()

    async with running(SupervisorSpec("root", (ChildSpec("a", run),))) as house:
        await house.settle()
        assert house.node("a").processes == (Process("p", 17, 3, 1.5),)
        assert house.node("a").processes == (Process("p", 17, 3, 2.5),)
        house.supervisor.shutdown()
        await house.end()
        assert house.node("a").processes == ()


async def test_a_slow_reader_of_events_loses_the_oldest(autojump_clock):
    """Supervision does not wait for it; what it missed is counted; it ends with the tree."""
    supervisor = Supervisor(blocked_after=None)

    async def run(ctx: Context) -> None:
        ctx.ready()
        for _ in range(50):
            supervisor.pause("a")
            supervisor.resume("a")
        supervisor.shutdown()
        await ctx.draining.wait()

    with trio.fail_after(10), supervisor.subscribe(capacity=4) as events:
        await supervisor.run(SupervisorSpec("root", (ChildSpec("a", run),)))
        seen = [(e.name, str(e)) async for e in events]
    assert seen == [
        ("root", "draining"),
        ("a", "draining"),
        ("a", "exited (drained)"),
        ("root", "stopped"),
    ]
    assert events.dropped == 3 + 100  # the starts and ready; the pauses and resumes


async def test_the_wrapper_runs_around_every_incarnation(autojump_clock):
    """It knows the context, and what it raises is the actor's failure."""
    seen = []

    async def wrap(ctx, run) -> None:
        seen.append((ctx.name, ctx.incarnation))
        await run()
        raise OSError("from the wrapper")

    spec = ChildSpec("a", finishes)
    async with running(SupervisorSpec("root", (spec,)), wrap=wrap) as house:
        await house.settle(2)
        assert seen == [("a", 1), ("a", 2)]
        assert house.of("exited") == [(1, "a", "exited (crashed): OSError('from the wrapper')")]


async def test_ticks_keep_time_skip_the_missed_and_end_with_the_drain(autojump_clock):
    """every() ticks now, then at its times; a late actor skips; draining ends it at once."""
    ticks = []

    async def run(ctx: Context) -> None:
        ctx.ready()
        began = trio.current_time()
        async for _ in ctx.every(10):
            ticks.append(trio.current_time() - began)
            if len(ticks) == 2:
                await trio.sleep(25)

    async with running(SupervisorSpec("root", (ChildSpec("a", run),))) as house:
        await house.settle(55)
    assert ticks == [0, 10, 35, 40, 50]
    assert house.events[-1] == (55, "root", "stopped")


async def test_a_child_is_told_what_it_hears_and_nothing_else(autojump_clock):
    """By name, or by the name of a supervisor, to all that hear it; a full mailbox says so."""
    got: list[tuple[str, object]] = []

    async def listens(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            got.append((ctx.name, message))

    inner = SupervisorSpec(
        "inner",
        (
            ChildSpec("b", listens, hears=(int,)),
            ChildSpec("c", listens, hears=(int, str), mailbox=Mailbox("c", capacity=1)),
        ),
    )
    async with running(SupervisorSpec("root", (ChildSpec("a", listens), inner))) as house:
        house.supervisor.tell("b", 1)
        house.supervisor.tell("inner", 2)
        with pytest.raises(trio.WouldBlock):
            house.supervisor.tell("c", 3)
        await house.settle()
        house.supervisor.tell("root", "four")
        await house.settle()
        assert [one for one in got if one[0] == "b"] == [("b", 1), ("b", 2)]
        assert [one for one in got if one[0] != "b"] == [("c", 2), ("c", "four")]
        for name, message in (("a", 5), ("b", "five"), ("inner", 5.0)):
            with pytest.raises(NotUnderstood, match=name):
                house.supervisor.tell(name, message)
        with pytest.raises(UnknownChild):
            house.supervisor.tell("z", 1)


async def test_what_cannot_be_paused_refuses(autojump_clock):
    """Alone, and as all that a supervisor has; beside others it goes on while they are paused."""

    async def waits(ctx):
        ctx.ready()
        await ctx.draining.wait()

    inner = SupervisorSpec("inner", (ChildSpec("b", waits, pausable=False),))
    spec = SupervisorSpec("root", (ChildSpec("a", waits), inner))
    async with running(spec) as house:
        await house.settle()
        for name in ("b", "inner"):
            with pytest.raises(NotUnderstood, match=name):
                house.supervisor.pause(name)
        house.supervisor.pause("root")
        states = {node.name: node.state for node in house.supervisor.tree().children}
        assert states == {"a": State.PAUSED, "inner": State.RUNNING}
        assert house.supervisor.tree().state is State.PAUSED
