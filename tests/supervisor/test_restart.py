"""Restart types, strategies, intensity, back-off, readiness, fatal errors."""

import math
import random
import time

import pytest
import trio

from supervisor import (
    Backoff,
    ChildSpec,
    Context,
    Exited,
    GaveUp,
    Mailbox,
    Restart,
    State,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from tests.supervisor.house import House, dies_after, finishes, idle, running


def starts(house: House, name: str) -> list[float]:
    """The seconds at which a child was started."""
    return [at for at, who, what in house.events if who == name and what == "started"]


async def test_children_start_one_after_the_other(autojump_clock):
    """The next child starts when the one before it has said it is ready."""

    async def slow(ctx: Context) -> None:
        await trio.sleep(2)
        ctx.ready()
        await ctx.draining.wait()

    tree = SupervisorSpec(
        "root", (ChildSpec("a", slow), ChildSpec("b", slow), ChildSpec("c", idle))
    )
    async with running(tree) as house:
        assert house.node("b").state is State.STARTING
        await house.settle(10)
        assert house.of("started", "ready") == [
            (0, "root", "started"),
            (0, "a", "started"),
            (2, "a", "ready"),
            (2, "b", "started"),
            (4, "b", "ready"),
            (4, "c", "started"),
            (4, "c", "ready"),
            (4, "root", "ready"),
        ]


async def test_a_child_that_fails_before_ready_is_retried_and_holds_up_the_next(autojump_clock):
    """A failed first start is backed off like any crash; those after it wait meanwhile."""

    async def third_time_lucky(ctx: Context) -> None:
        if ctx.incarnation < 3:
            raise OSError("not yet")
        ctx.ready()
        await ctx.draining.wait()

    tree = SupervisorSpec("root", (ChildSpec("a", third_time_lucky), ChildSpec("b", idle)))
    async with running(tree) as house:
        await house.settle(10)
        assert starts(house, "a") == [0, 0.5, 1.5]
        assert starts(house, "b") == [1.5]


async def test_start_timeout(autojump_clock):
    """A child that does not say ready in time is cancelled and retried."""

    async def never(ctx: Context) -> None:
        await trio.sleep_forever()

    tree = SupervisorSpec("root", (ChildSpec("a", never, start_timeout=3),))
    async with running(tree) as house:
        await house.settle(4)
        assert house.of("exited", "backing")[0] == (3, "a", "exited (start_timeout)")
        assert starts(house, "a") == [0, 3.5]


@pytest.mark.parametrize(
    ("restart", "after_return", "after_crash", "returned", "crashed"),
    [
        (Restart.PERMANENT, 2, 2, State.RUNNING, State.RUNNING),
        (Restart.TRANSIENT, 1, 2, State.STOPPED, State.RUNNING),
        (Restart.TEMPORARY, 1, 1, State.STOPPED, State.FAILED),
    ],
)
async def test_restart_types(autojump_clock, restart, after_return, after_crash, returned, crashed):
    """Permanent children always come back, transient after a failure, temporary never."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("returns", finishes, restart=restart),
            ChildSpec("crashes", dies_after(1), restart=restart),
        ),
    )
    async with running(tree) as house:
        await house.settle(2)
        assert len(starts(house, "returns")) == after_return
        assert len(starts(house, "crashes")) == after_crash
        assert house.node("returns").state is returned
        assert house.node("crashes").state is crashed


async def test_backoff_grows_to_its_cap_and_is_forgotten_when_stable(autojump_clock):
    """Delays double up to the cap; a child that was ready long enough begins anew."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        await trio.sleep(60 if ctx.incarnation == 5 else 0)
        raise ValueError

    backoff = Backoff(base=1, factor=2, cap=4, stable_after=60)
    tree = SupervisorSpec("root", (ChildSpec("a", run, backoff=backoff),), max_restarts=100)
    async with running(tree) as house:
        await house.settle(80)
        delays = [what for _, _, what in house.of("backing")]
        assert [float(delay.split()[3]) for delay in delays][:7] == [1, 2, 4, 4, 1, 2, 4]


def test_backoff_has_full_jitter_and_no_overflow():
    """A delay is drawn from zero to its bound, however many failures there were."""
    rng, backoff = random.Random(1), Backoff(base=1, factor=2, cap=8)
    for failures, bound in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (100_000, 8)]:
        drawn = [backoff.delay(failures, rng) for _ in range(500)]
        assert 0 <= min(drawn) < bound * 0.02
        assert bound * 0.98 < max(drawn) <= bound


async def test_one_for_one_leaves_siblings_alone(autojump_clock):
    """Only the child that failed is restarted."""
    tree = SupervisorSpec(
        "root", (ChildSpec("a", idle), ChildSpec("b", dies_after(1, times=1)), ChildSpec("c", idle))
    )
    async with running(tree) as house:
        await house.settle(5)
        assert [len(starts(house, name)) for name in "abc"] == [1, 2, 1]


async def test_a_back_off_does_not_delay_an_independent_sibling(autojump_clock):
    """While an elder sibling waits for its back-off, a younger one is restarted in its own time."""
    slow = Backoff(base=20)
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", dies_after(1, times=1), backoff=slow),
            ChildSpec("b", dies_after(2, times=1)),
        ),
    )
    async with running(tree) as house:
        await house.settle(10)
        assert starts(house, "b") == [0, 2.5]
        assert house.node("a").state is State.BACKING_OFF


async def lingers(ctx: Context) -> None:
    """An actor that takes a second to drain and one to start."""
    await trio.sleep(1)
    ctx.ready()
    await ctx.draining.wait()
    await trio.sleep(1)


async def test_one_for_all_stops_all_in_reverse_and_starts_all_in_order(autojump_clock):
    """When one fails the others are drained, last first, and everything starts again in order."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", lingers),
            ChildSpec("b", dies_after(3, times=1)),
            ChildSpec("c", lingers),
        ),
        strategy=Strategy.ONE_FOR_ALL,
    )
    async with running(tree) as house:
        await house.settle(20)
        assert [e for e in house.events if e[0] >= 4] == [
            (4, "b", "exited (crashed): ValueError(1)"),
            (4, "b", "backing off for 0.5 s"),
            (4, "a", "restarting"),
            (4, "c", "restarting"),
            (4, "c", "draining"),
            (5, "c", "exited (drained)"),
            (5, "a", "draining"),
            (6, "a", "exited (drained)"),
            (6, "a", "started"),
            (7, "a", "ready"),
            (7, "b", "started"),
            (7, "b", "ready"),
            (7, "c", "started"),
            (8, "c", "ready"),
        ]


async def test_rest_for_one_restarts_those_after_the_one_that_failed(autojump_clock):
    """Children started before the one that failed go on; temporary ones do not come back."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("a", lingers),
            ChildSpec("b", dies_after(3, times=1)),
            ChildSpec("c", lingers),
            ChildSpec("t", idle, restart=Restart.TEMPORARY),
        ),
        strategy=Strategy.REST_FOR_ONE,
    )
    async with running(tree) as house:
        await house.settle(20)
        assert [e for e in house.of("draining", "exited", "started") if e[0] >= 4] == [
            (4, "b", "exited (crashed): ValueError(1)"),
            (4, "t", "draining"),
            (4, "t", "exited (drained)"),
            (4, "c", "draining"),
            (5, "c", "exited (drained)"),
            (5, "b", "started"),
            (5, "c", "started"),
        ]
        assert house.node("t").state is State.STOPPED


async def test_a_group_brings_back_a_transient_child_that_had_finished(autojump_clock):
    """As in OTP, restarting a group starts again what had ended normally in it."""
    tree = SupervisorSpec(
        "root",
        (
            ChildSpec("once", finishes, restart=Restart.TRANSIENT),
            ChildSpec("b", dies_after(3, times=1)),
        ),
        strategy=Strategy.ONE_FOR_ALL,
    )
    async with running(tree) as house:
        await house.settle(20)
        assert len(starts(house, "once")) == 2


async def test_giving_up_at_the_root_raises_with_the_cause(autojump_clock):
    """One failure more than allowed ends the tree: the others drain, run() raises GaveUp."""
    tree = SupervisorSpec(
        "root", (ChildSpec("a", idle), ChildSpec("b", dies_after(0))), max_restarts=2
    )
    async with running(tree) as house:
        await house.end()
    assert isinstance(house.error, GaveUp)
    assert isinstance(house.error.__cause__, ValueError)
    assert house.error.child == "b"
    assert house.events[-5:] == [
        (1.5, "b", "exited (crashed): ValueError(3)"),
        (1.5, "root", "gave up on b (crashed)"),
        (1.5, "a", "draining"),
        (1.5, "a", "exited (drained)"),
        (1.5, "root", "stopped"),
    ]
    assert house.node("b").state is State.FAILED


async def test_the_default_intensity_catches_a_child_that_dies_on_arrival(autojump_clock):
    """With the defaults, six deaths in a row escalate even with the longest back-off."""
    tree = SupervisorSpec("root", (ChildSpec("a", dies_after(0)),))
    async with running(tree) as house:
        await house.end()
    assert isinstance(house.error, GaveUp)
    assert house.events[-1] == (15.5, "root", "stopped")


async def test_failures_outside_the_period_do_not_count(autojump_clock):
    """A child that fails once in a while is restarted for ever."""
    tree = SupervisorSpec("root", (ChildSpec("a", dies_after(10)),), max_restarts=1, within=9)
    async with running(tree) as house:
        await house.settle(3600)
        assert not house.ended.is_set()
        assert house.node("a").restarts > 80


async def test_a_nested_supervisor_fails_as_a_child_and_is_restarted(autojump_clock):
    """Giving up escalates one level: the parent backs off, restarts it, and at last gives up."""
    inner = SupervisorSpec(
        "inner", (ChildSpec("x", idle), ChildSpec("y", dies_after(1))), max_restarts=0
    )
    tree = SupervisorSpec("root", (ChildSpec("a", idle), inner), max_restarts=1)
    async with running(tree) as house:
        await house.end()
    cause = f"exited (crashed): {GaveUp('inner', 'y', 'crashed')!r}"
    assert [e for e in house.events if e[1] in ("inner", "root")] == [
        (0, "root", "started"),
        (0, "inner", "started"),
        (0, "inner", "ready"),
        (0, "root", "ready"),
        (1, "inner", "gave up on y (crashed)"),
        (1, "inner", "stopped"),
        (1, "inner", cause),
        (1, "inner", "backing off for 0.5 s"),
        (1.5, "inner", "started"),
        (1.5, "inner", "ready"),
        (2.5, "inner", "gave up on y (crashed)"),
        (2.5, "inner", "stopped"),
        (2.5, "inner", cause),
        (2.5, "root", "gave up on inner (crashed)"),
        (2.5, "root", "stopped"),
    ]
    assert isinstance(house.error, GaveUp)
    assert isinstance(house.error.__cause__, GaveUp)
    assert isinstance(house.error.__cause__.__cause__, ValueError)


async def test_a_significant_child_that_finishes_ends_its_supervisor(autojump_clock):
    """Its siblings are stopped in order, and the supervisor has ended normally."""
    inner = SupervisorSpec(
        "inner",
        (
            ChildSpec("x", idle),
            ChildSpec("y", finishes, restart=Restart.TRANSIENT, significant=True),
        ),
        restart=Restart.TRANSIENT,
    )
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        await house.settle(5)
        assert [e for e in house.events if e[0] == 1] == [
            (1, "y", "exited (finished)"),
            (1, "x", "draining"),
            (1, "x", "exited (drained)"),
            (1, "inner", "stopped"),
            (1, "inner", "exited (finished)"),
        ]
        assert house.node("inner").state is State.STOPPED
        assert house.node("a").state is State.RUNNING


async def test_a_significant_transient_child_that_crashes_is_restarted(autojump_clock):
    """Only its normal end is significant."""
    spec = ChildSpec("y", dies_after(1, times=1), restart=Restart.TRANSIENT, significant=True)
    async with running(SupervisorSpec("root", (spec,))) as house:
        await house.settle(5)
        assert house.node("y").state is State.RUNNING


async def test_significance_reaches_the_root(autojump_clock):
    """A significant child of the root that finishes ends the run, without an error."""
    spec = ChildSpec("y", finishes, restart=Restart.TEMPORARY, significant=True)
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), spec))) as house:
        await house.end()
    assert house.error is None
    assert house.events[-1] == (1, "root", "stopped")


class Misconfigured(Exception):
    """A fatal error."""


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_fatal_error_ends_the_tree_and_is_raised_unchanged(autojump_clock, grouped):
    """However deep in supervisors or groups it was raised, the others are stopped in order."""
    error = Misconfigured("port in use")

    async def run(ctx: Context) -> None:
        await trio.sleep(1)
        raise ExceptionGroup("g", [ValueError(), error]) if grouped else error

    inner = SupervisorSpec(
        "inner", (ChildSpec("x", idle), ChildSpec("y", run, fatal=(Misconfigured,)))
    )
    async with running(SupervisorSpec("root", (ChildSpec("a", lingers), inner))) as house:
        await house.end()
    assert house.error is error
    assert not house.of("backing")
    assert house.of("exited", "stopped")[1:] == [
        (2, "x", "exited (drained)"),
        (2, "inner", "stopped"),
        (2, "inner", "exited (drained)"),
        (3, "a", "exited (drained)"),
        (3, "root", "stopped"),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_an_exit_of_the_interpreter_is_always_fatal(autojump_clock, error):
    """KeyboardInterrupt and SystemExit are not a child's to be restarted for."""

    async def run(ctx: Context) -> None:
        await trio.sleep(1)
        raise error

    async with running(SupervisorSpec("root", (ChildSpec("a", run),))) as house:
        await house.end()
    assert house.error is error


async def test_a_cancelled_error_that_is_not_ours_is_a_crash(autojump_clock):
    """An exit is judged by the child's scope: Cancelled raised by mistake is no clean stop."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        if ctx.incarnation == 1:
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await trio.sleep(1)
                except trio.Cancelled as exc:
                    stray = exc
            raise stray
        await ctx.draining.wait()

    async with running(SupervisorSpec("root", (ChildSpec("a", run),))) as house:
        await house.settle(1)
        assert house.of("exited")[0][2].startswith("exited (crashed): Cancelled")
        assert house.node("a").state is State.RUNNING


async def test_an_error_beside_a_cancellation_is_seen_without_the_cancelled(autojump_clock):
    """What a cancelled child raised is in the event, and the child counts as cancelled."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while unwinding")

    async with running(SupervisorSpec("root", (ChildSpec("a", run, drain_timeout=0),))) as house:
        pass
    (exited,) = [e for e in house.raw if isinstance(e, Exited)]
    assert exited.reason == "cancelled"
    assert isinstance(exited.error, BaseExceptionGroup)
    assert exited.error.subgroup(trio.Cancelled) is None


def test_specs_refuse_what_cannot_work():
    """Mistakes in the tree are told when it is built."""
    with pytest.raises(ValueError, match="significant"):
        ChildSpec("a", idle, significant=True)
    with pytest.raises(ValueError, match="significant"):
        SupervisorSpec("s", (), significant=True)
    with pytest.raises(ValueError, match="liveness"):
        ChildSpec("a", idle, liveness=0)


async def test_names_and_mailboxes_belong_to_one_child(autojump_clock):
    """Two children of one name, or with one mailbox, are refused before anything starts."""
    twice = SupervisorSpec("root", (ChildSpec("a", idle), SupervisorSpec("a", ())))
    with pytest.raises(ValueError, match="two children are called 'a'"):
        await Supervisor(blocked_after=None).run(twice)
    box = Mailbox[int]("box")
    shared = (ChildSpec("a", idle, mailbox=box), ChildSpec("b", idle, mailbox=box))
    with pytest.raises(ValueError, match="another child's"):
        await Supervisor(blocked_after=None).run(SupervisorSpec("root", shared))


async def test_an_empty_supervisor_is_ready(autojump_clock):
    """A tree without children runs until shut down."""
    async with running(SupervisorSpec("root", (SupervisorSpec("inner", ()),))) as house:
        assert house.node("inner").state is State.RUNNING


async def test_a_restarted_supervisor_begins_a_new_count(autojump_clock):
    """The failures of its former life do not count towards its intensity."""
    inner = SupervisorSpec(
        "inner", (ChildSpec("y", dies_after(0, times=3)),), max_restarts=1, within=1000
    )
    async with running(SupervisorSpec("root", (inner,))) as house:
        await house.settle(100)
        assert len(house.of("gave up")) == 1
        assert house.node("y").state is State.RUNNING


async def test_a_child_that_is_not_awaited_holds_up_nobody_once_it_has_failed(autojump_clock):
    """Those after it wait for its first start, and no longer; it is tried again all the same."""

    async def third_time_lucky(ctx: Context) -> None:
        await trio.sleep(1)
        if ctx.incarnation < 3:
            raise OSError("not yet")
        ctx.ready()
        await ctx.draining.wait()

    store = SupervisorSpec("store", (ChildSpec("a", third_time_lucky),), awaited=False)
    async with running(SupervisorSpec("root", (store, ChildSpec("b", idle)))) as house:
        await house.settle(0.5)
        assert starts(house, "b") == []
        await house.settle(20)
        assert starts(house, "a") == [0, 1.5, 3.5]
        assert starts(house, "b") == [1]
        ready = [(at, who) for at, who, what in house.events if what == "ready"]
        assert ready == [(1, "b"), (1, "root"), (4.5, "a"), (4.5, "store")]


async def test_a_child_that_is_not_awaited_and_starts_well_comes_first(autojump_clock):
    """Order is as ever where nothing fails."""

    async def slow(ctx: Context) -> None:
        await trio.sleep(2)
        ctx.ready()
        await ctx.draining.wait()

    tree = SupervisorSpec("root", (ChildSpec("a", slow, awaited=False), ChildSpec("b", idle)))
    async with running(tree) as house:
        await house.settle(10)
        assert starts(house, "b") == [2]


async def test_without_an_intensity_it_never_gives_up(autojump_clock):
    """A child may fail for ever, at the pace of its back-off."""
    inner = SupervisorSpec("inner", (ChildSpec("y", dies_after(0)),), max_restarts=math.inf)
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        await house.settle(10_000)
        assert house.of("gave up") == []
        assert house.node("y").restarts > 300
        assert house.node("a").restarts == 0


async def test_the_last_error_is_shown_until_it_is_ready_again(autojump_clock):
    """Of a child what it raised; of a supervisor why it gave up."""
    inner = SupervisorSpec("inner", (ChildSpec("y", dies_after(1, times=2)),), max_restarts=1)
    async with running(SupervisorSpec("root", (ChildSpec("a", idle), inner))) as house:
        await house.settle(1.1)
        assert isinstance(house.node("y").last_error, ValueError)
        assert house.node("inner").last_error is None
        await house.settle(1.4)
        assert isinstance(house.node("y").last_error, ValueError)
        assert isinstance(house.node("inner").last_error, GaveUp)
        await house.settle(10)
        assert house.node("y").last_error is None
        assert house.node("inner").last_error is None


class Slow(trio.abc.Clock):
    """A machine so busy that every look at the clock takes a millisecond."""

    def __init__(self) -> None:
        self._looks = 0

    def start_clock(self) -> None:
        """Nothing is to be started."""

    def current_time(self) -> float:
        """Return the time, a millisecond later than it would be."""
        self._looks += 1
        return time.perf_counter() + self._looks / 1000

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the real seconds until then."""
        return deadline - self.current_time()


@pytest.mark.parametrize("looks", range(1, 13))
def test_what_falls_due_while_the_supervisor_looks_is_started(looks: int):
    """Between its look at who is due and its plan for the next look, time goes on."""
    failures = 20

    async def dies_often(ctx: Context) -> None:
        if ctx.incarnation <= failures:
            raise OSError
        ctx.ready()
        await ctx.draining.wait()

    async def main() -> None:
        backoff = Backoff(base=looks / 1000, cap=looks / 1000)
        child = ChildSpec("a", dies_often, backoff=backoff)
        async with running(SupervisorSpec("root", (child,), max_restarts=math.inf)) as house:
            for _ in range(100):  # unlike a wait for its readiness, this does not wake it
                if house.node("a").state is State.RUNNING:
                    break
                await trio.sleep(0.1)
            assert house.node("a").restarts == failures

    trio.run(main, clock=Slow())
