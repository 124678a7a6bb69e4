"""Two-phase shutdown, haste, stuck children, cancellation of run()."""

import pytest
import trio

from supervisor import (
    ChildSpec,
    Context,
    GaveUp,
    State,
    Supervisor,
    SupervisorSpec,
    Unstoppable,
)
from tests.supervisor.house import Actor, dies_after, idle, running


async def slow_to_drain(ctx: Context) -> None:
    """An actor that takes two seconds to finish what is in hand."""
    ctx.ready()
    await ctx.draining.wait()
    await trio.sleep(2)


async def deaf(ctx: Context) -> None:
    """An actor that does not care about draining."""
    ctx.ready()
    await trio.sleep_forever()


def shielded(seconds: float) -> Actor:
    """An actor that ignores its cancellation for this long."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    return run


async def test_shutdown_is_in_reverse_order_through_nested_supervisors(autojump_clock):
    """Each child drains once all those started after it have gone."""
    inner = SupervisorSpec("inner", (ChildSpec("b", slow_to_drain), ChildSpec("c", slow_to_drain)))
    tree = SupervisorSpec("root", (ChildSpec("a", idle), inner, ChildSpec("d", slow_to_drain)))
    async with running(tree) as house:
        await house.settle(1)
    assert house.events[-13:] == [
        (1, "root", "draining"),
        (1, "d", "draining"),
        (3, "d", "exited (drained)"),
        (3, "inner", "draining"),
        (3, "c", "draining"),
        (5, "c", "exited (drained)"),
        (5, "b", "draining"),
        (7, "b", "exited (drained)"),
        (7, "inner", "stopped"),
        (7, "inner", "exited (drained)"),
        (7, "a", "draining"),
        (7, "a", "exited (drained)"),
        (7, "root", "stopped"),
    ]
    assert house.error is None
    assert house.node("root").state is State.STOPPED


async def test_a_child_that_does_not_drain_is_cancelled(autojump_clock):
    """Past drain_timeout it is cancelled, and the next one is asked."""
    tree = SupervisorSpec("root", (ChildSpec("a", idle), ChildSpec("b", deaf, drain_timeout=4)))
    async with running(tree) as house:
        await house.settle(1)
    assert house.events[-6:] == [
        (1, "root", "draining"),
        (1, "b", "draining"),
        (5, "b", "exited (cancelled)"),
        (5, "a", "draining"),
        (5, "a", "exited (drained)"),
        (5, "root", "stopped"),
    ]


async def test_a_stuck_child_is_reported_and_left_behind(autojump_clock):
    """Past stop_timeout the shutdown goes on without it, and run() says whom it left."""
    spec = ChildSpec("b", shielded(1000), drain_timeout=4, stop_timeout=3)
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), spec))) as house:
        await house.settle(1)
        house.supervisor.shutdown()
        await house.end()
        assert house.events[-6:] == [
            (1, "root", "draining"),
            (1, "b", "draining"),
            (8, "b", "stuck"),
            (8, "a", "draining"),
            (8, "a", "exited (drained)"),
            (8, "root", "stopped"),
        ]
        assert isinstance(house.error, Unstoppable)
        assert house.error.names == house.supervisor.stuck == ("b",)
        assert house.node("b").state is State.FAILED
        await trio.sleep(1000)
        assert len(house.supervisor.stuck) == 0


async def test_a_second_shutdown_cuts_every_deadline(autojump_clock):
    """Drains end now; what is cancelled gets the grace and no more; the order stays."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", deaf, drain_timeout=1000),
            ChildSpec("b", shielded(1000), drain_timeout=1000, stop_timeout=1000),
            ChildSpec("c", deaf, drain_timeout=1000),
        ),
    )
    async with running(tree, grace=0.5) as house:
        await house.settle(1)
        house.supervisor.shutdown()
        await house.settle(1)
        house.supervisor.shutdown()
        await house.end()
    assert house.of("exited", "stuck", "stopped") == [
        (2, "c", "exited (cancelled)"),
        (2.5, "b", "stuck"),
        (2.5, "a", "exited (cancelled)"),
        (2.5, "root", "stopped"),
    ]


async def test_a_second_shutdown_cuts_a_stop_that_has_begun(autojump_clock):
    """A child that is unwinding already has the grace left."""
    spec = ChildSpec("b", shielded(1000), drain_timeout=0, stop_timeout=1000)
    async with running(SupervisorSpec("root", (spec,))) as house:
        house.supervisor.shutdown()
        await house.settle(10)
        assert house.node("b").state is State.DRAINING
        house.supervisor.shutdown()
        await house.end()
    assert house.of("stuck") == [(11, "b", "stuck")]


async def test_shutdown_does_not_wait_for_starts_or_back_offs(autojump_clock):
    """A child that starts is cancelled, one that backs off is let be, later ones never start."""

    async def never_ready(ctx: Context) -> None:
        await trio.sleep_forever()

    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", dies_after(0.1)),
            ChildSpec("b", never_ready, start_timeout=1000, drain_timeout=1000),
            ChildSpec("c", idle),
        ),
    )
    async with running(tree) as house:
        await house.settle(0.4)
        assert house.node("a").state is State.BACKING_OFF
    assert house.events[-3:] == [
        (0.4, "root", "draining"),
        (0.4, "b", "exited (cancelled)"),
        (0.4, "root", "stopped"),
    ]
    assert not [e for e in house.events if e[1] == "c"]


async def test_shutdown_before_run_makes_it_return(autojump_clock):
    """A signal that comes before the tree runs is not forgotten; the next run is a new one."""
    supervisor = Supervisor(blocked_after=None)
    started = []

    async def run(ctx: Context) -> None:
        started.append(ctx.name)
        supervisor.shutdown()

    tree = SupervisorSpec("root", (ChildSpec("a", run),))
    supervisor.shutdown()
    with trio.fail_after(1):
        await supervisor.run(tree)
        assert started == []
        await supervisor.run(tree)
    assert started == ["a"]


async def test_a_crash_while_shutting_down_restarts_nothing(autojump_clock):
    """Nor does a crash while draining: its error is reported, that is all."""

    async def breaks(ctx: Context) -> None:
        ctx.ready()
        await ctx.draining.wait()
        raise ValueError

    async with running(SupervisorSpec("root", (ChildSpec("a", breaks),))) as house:
        await house.settle(1)
    assert house.error is None
    assert house.of("exited", "backing") == [(1, "a", "exited (crashed): ValueError()")]


async def test_a_child_needed_by_a_draining_one_is_still_restarted(autojump_clock):
    """Until its own turn has come, a nested supervisor looks after its children."""
    inner = SupervisorSpec("inner", (ChildSpec("a", dies_after(2, times=1)),))
    drains = ChildSpec("b", slow_to_drain, drain_timeout=50)
    async with running(SupervisorSpec("root", (inner, drains))) as house:
        await house.settle(1.2)
    assert (2.5, "a", "started") in house.events
    assert house.events[-1] == (3.2, "root", "stopped")


async def test_cancelling_run_stops_the_children_first(autojump_clock):
    """Cancelled passes through run() only after every child has had its grace."""
    supervisor = Supervisor(blocked_after=None, grace=2)
    unwound = []

    def unwinds(seconds: float) -> Actor:
        async def run(ctx: Context) -> None:
            ctx.ready()
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(seconds, shield=True):
                    await trio.sleep_forever()
                unwound.append((ctx.name, trio.current_time()))

        return run

    tree = SupervisorSpec(
        "root", (ChildSpec("a", unwinds(1)), SupervisorSpec("n", (ChildSpec("b", unwinds(1.5)),)))
    )
    began = trio.current_time()
    with trio.move_on_after(10) as scope:
        await supervisor.run(tree)
    assert scope.cancelled_caught
    assert unwound == [("b", began + 11.5), ("a", began + 12.5)]


async def test_a_stuck_child_ends_the_tree_when_a_restart_needs_it(autojump_clock):
    """A restart waits for a stuck child; past stuck_exit the whole tree is shut down."""
    spec = ChildSpec("b", shielded(1000), drain_timeout=0, stop_timeout=3)
    tree = SupervisorSpec("root", (ChildSpec("a", idle), spec))
    async with running(tree, stuck_exit=20) as house:
        await house.settle(1)
        await house.supervisor.restart("b")
        await house.end()
    assert house.of("stuck", "stopped") == [(4, "b", "stuck"), (24, "root", "stopped")]
    assert isinstance(house.error, Unstoppable)


async def test_a_stuck_child_that_ends_in_time_is_restarted(autojump_clock):
    """Never is there a second incarnation beside the first."""
    spec = ChildSpec("b", shielded(10), drain_timeout=0, stop_timeout=3)
    async with running(SupervisorSpec("root", (spec,)), stuck_exit=20) as house:
        await house.settle(1)
        await house.supervisor.restart("b")
        await house.settle(30)
        assert [e for e in house.events if e[0] > 1] == [
            (4, "b", "stuck"),
            (11, "b", "exited (cancelled)"),
            (11, "b", "started"),
            (11, "b", "ready"),
        ]


async def test_the_end_of_a_child_stuck_in_an_earlier_life_is_no_failure(autojump_clock):
    """Its supervisor gave up and was started again meanwhile: it is started when it has ended."""
    stuck = ChildSpec("a", shielded(10), drain_timeout=0, stop_timeout=1)
    inner = SupervisorSpec("inner", (stuck, ChildSpec("y", dies_after(1, 1))), max_restarts=0)
    async with running(SupervisorSpec("root", (inner,))) as house:
        await house.settle(13)
        assert [event for event in house.events if event[0] >= 2 and event[1] != "root"] == [
            (2, "a", "stuck"),
            (2, "inner", "stopped"),
            (2, "inner", f"exited (crashed): {GaveUp('inner', 'y', 'crashed')!r}"),
            (2, "inner", "backing off for 0.5 s"),
            (2.5, "inner", "started"),
            (11, "a", "exited (cancelled)"),
            (11, "a", "started"),
            (11, "a", "ready"),
            (11, "y", "started"),
            (11, "y", "ready"),
            (11, "inner", "ready"),
        ]


async def test_the_first_error_wins_over_stuck_children(autojump_clock):
    """GaveUp is raised as ever; `stuck` tells that the process needs os._exit."""
    tree = SupervisorSpec(
        "root",
        (ChildSpec("a", shielded(1000), drain_timeout=0), ChildSpec("b", dies_after(1))),
        max_restarts=0,
    )
    async with running(tree) as house:
        await house.end()
        assert isinstance(house.error, GaveUp)
        assert house.supervisor.stuck == ("a",)


async def test_one_supervisor_runs_one_tree(autojump_clock):
    """A second run() beside the first is refused and does it no harm."""
    tree = SupervisorSpec("root", (ChildSpec("a", idle),))
    async with running(tree) as house:
        with pytest.raises(RuntimeError, match="already"):
            await house.supervisor.run(tree)
        assert house.node("a").state is State.RUNNING
