"""The liveness watch-dog on the virtual clock, the blocked-loop watch-dog on the real one."""

import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from supervisor import (
    BLOCKED_LONG,
    BLOCKED_TOLD,
    ChildSpec,
    Context,
    LoopBlocked,
    Mailbox,
    State,
    Supervisor,
    SupervisorSpec,
)
from tests.supervisor.house import Actor, running

HERE = Path(__file__).parents[2]


def alone(run: Actor, **kw: Any) -> SupervisorSpec:
    """A tree of one watched actor."""
    return SupervisorSpec("root", (ChildSpec("a", run, liveness=10, **kw),), max_restarts=100)


async def test_a_silent_actor_is_stalled_cancelled_and_restarted(autojump_clock):
    """Exactly `liveness` after its last beat."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        for _ in range(3):
            await trio.sleep(9)
            ctx.beat()
        await trio.sleep_forever()

    async with running(alone(run)) as house:
        await house.settle(38)
        assert house.events[3:] == [
            (0, "root", "ready"),
            (37, "a", "stalled"),
            (37, "a", "exited (stalled)"),
            (37, "a", "backing off for 0.5 s"),
            (37.5, "a", "started"),
            (37.5, "a", "ready"),
        ]


async def test_a_message_that_stalls_its_actor_is_not_handed_out_for_ever(autojump_clock):
    """A stall counts as an attempt, as a crash does."""
    dead = []
    box = Mailbox[int]("a", attempts=2, on_dead=lambda *args: dead.append(args))

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for _ in ctx.inbox:
            await trio.sleep_forever()

    async with running(alone(run, mailbox=box)) as house:
        box.send_nowait(7)
        await house.settle(60)
        assert dead == [(7, 2)]
        assert len(house.of("stalled")) == 2
        assert house.node("a").state is State.RUNNING


@pytest.mark.parametrize("waits", ["inbox", "take", "ticks", "pause"])
async def test_waiting_for_something_to_do_is_not_silence(autojump_clock, waits):
    """An idle actor is alive: on its inbox, between ticks, while paused."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        if waits == "inbox":
            async for _ in ctx.inbox:
                pass
        elif waits == "take":
            await ctx.inbox.take(5)
        elif waits == "ticks":
            async for _ in ctx.every(100):
                pass
        else:
            await ctx.wait_pause_changed()
            await ctx.wait_pause_changed()

    async with running(alone(run, drain_timeout=0)) as house:
        if waits == "pause":
            house.supervisor.pause("a")
        await house.settle(1000)
        assert not house.of("stalled", "exited")


async def test_messages_are_beats(autojump_clock):
    """An actor that is busy all the time, each message in less than `liveness`, is alive."""
    box = Mailbox[int]("a")

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for _ in ctx.inbox:
            await trio.sleep(9)

    async with running(alone(run, mailbox=box)) as house:
        for n in range(20):
            box.send_nowait(n)
        await house.settle(170)
        assert not house.of("stalled")


async def test_waiting_for_a_pause_is_silence_while_not_paused(autojump_clock):
    """A side task that waits to be paused does not hide that the actor hangs."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.wait_pause_changed)
            await trio.sleep_forever()

    async with running(alone(run)) as house:
        await house.settle(11)
        assert house.of("stalled") == [(10, "a", "stalled")]


async def test_starting_and_draining_have_deadlines_of_their_own(autojump_clock):
    """liveness is for the time in between."""

    async def run(ctx: Context) -> None:
        await trio.sleep(25)
        ctx.ready()
        await ctx.draining.wait()
        await trio.sleep(25)

    async with running(alone(run, start_timeout=30, drain_timeout=30)) as house:
        await house.settle(26)
    assert house.events[-2:] == [(51, "a", "exited (drained)"), (51, "root", "stopped")]


def works(seconds: float) -> Actor:
    """An actor that beats every second by many steps of the loop, and hangs after `seconds`."""

    async def run(ctx: Context) -> None:
        ctx.ready()
        ends_at = trio.current_time() + seconds
        while trio.current_time() < ends_at:
            with trio.move_on_after(1):
                await ctx.draining.wait()
                return
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            ctx.beat()
        await ctx.draining.wait()

    return run


async def pass_by(clock: trio.testing.MockClock, seconds: int) -> None:
    """Let time pass, second by second."""
    for _ in range(seconds):
        clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("before", [0, 4, 9])
async def test_what_the_loop_slept_through_is_nobodys_silence(mock_clock, before):
    """It stood still for six times the liveness: who worked before and works on is left alone."""
    async with running(alone(works(math.inf))) as house:
        await pass_by(mock_clock, before)
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        await pass_by(mock_clock, 30)
        assert not house.of("stalled", "exited")


async def test_who_hangs_after_a_standstill_is_stalled_all_the_same(mock_clock):
    """The standstill is forgiven, not what comes after it."""
    async with running(alone(works(5))) as house:
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        assert not house.of("stalled")
        await pass_by(mock_clock, 12)
        assert [what for _, _, what in house.of("stalled")] == ["stalled"]


async def test_a_start_that_the_loop_slept_through_goes_on(mock_clock):
    """The start time-out is for the time in which something could be done."""

    async def run(ctx: Context) -> None:
        await trio.sleep(70)
        await trio.sleep(5)
        ctx.ready()
        await ctx.draining.wait()

    async with running(alone(run, start_timeout=30)) as house:
        await pass_by(mock_clock, 5)
        mock_clock.jump(66)  # awake at 71: one second late for its first sleep
        await trio.testing.wait_all_tasks_blocked()
        await pass_by(mock_clock, 5)
        assert house.node("a").state is State.RUNNING
        assert not house.of("exited")


def block(seconds: float) -> None:
    """Hold the loop, in a function with a name to look for."""
    time.sleep(seconds)


async def test_a_blocked_loop_is_reported_while_it_is_blocked():
    """With the actor, the task and the stack; once for each step; and as an event."""
    told: list[tuple[LoopBlocked, bool]] = []
    blocking = False

    async def helper() -> None:
        nonlocal blocking
        blocking = True
        block(0.3)
        blocking = False

    async def run(ctx: Context) -> None:
        ctx.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(helper, name="the helper")
        await ctx.draining.wait()

    supervisor = Supervisor(
        blocked_after=0.04, on_blocked=lambda event: told.append((event, blocking))
    )
    with trio.fail_after(20), supervisor.subscribe() as events:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, SupervisorSpec("root", (ChildSpec("a", run),)))
            async for event in events:
                if isinstance(event, LoopBlocked):
                    break
            supervisor.shutdown()
    mine = [(event, still) for event, still in told if event.task == "the helper"]
    assert len(mine) == 1
    ((event, still),) = mine
    assert still
    assert event.name == "a"
    assert 0.04 <= event.seconds < 0.3
    assert "in block" in event.stack


async def test_a_loop_blocked_for_a_second_is_reported_once_more():
    """So that a short pause and a long one can be told apart while the long one lasts."""
    told: list[float] = []

    async def run(ctx: Context) -> None:
        ctx.ready()
        deadline = time.monotonic() + 15
        while not any(seconds >= BLOCKED_LONG for seconds in told) and time.monotonic() < deadline:
            block(0.02)  # in one step of the loop
        await ctx.draining.wait()

    ahead = 0.0
    supervisor = Supervisor(
        blocked_after=0.1,
        on_blocked=lambda event: told.append(event.seconds),
        clock=lambda: time.time() + ahead,
    )
    with trio.fail_after(20), supervisor.subscribe() as events:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, SupervisorSpec("root", (ChildSpec("a", run),)))
            async for event in events:
                if isinstance(event, LoopBlocked) and event.seconds >= BLOCKED_LONG:
                    break
            # It is what is told of the actor last, for a minute: then what was before it.
            assert supervisor.tree().children[0].last_event == "loop blocked"
            ahead = BLOCKED_TOLD
            assert supervisor.tree().children[0].last_event == "ready"
            supervisor.shutdown()
    assert len([seconds for seconds in told if seconds >= BLOCKED_LONG]) == 1
    assert told[0] < told[-1]


def run_program(text: str) -> subprocess.Popen[str]:
    """Start a program that uses the supervisor."""
    program = "import os, signal, sys, time, trio\nfrom supervisor import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", program + textwrap.dedent(text)],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_loop_blocked_for_too_long_ends_the_process():
    """Past the hard limit: the stack on stderr, and exit 70."""
    program = run_program("""
        async def hangs(ctx):
            ctx.ready()
            time.sleep(60)
        tree = SupervisorSpec("root", (ChildSpec("a", hangs),))
        trio.run(Supervisor(blocked_after=0.05, blocked_exit=0.2).run, tree)
    """)
    _, err = program.communicate(timeout=30)
    assert program.returncode == 70
    assert re.search(r"task a blocks the loop for 0\.\d s, exit 70", err)
    assert "in hangs" in err


def test_a_stopped_process_is_not_a_blocked_loop():
    """SIGSTOP and SIGCONT in the middle of a step: nobody is accused, nothing ends."""
    program = run_program("""
        async def busy(ctx):
            ctx.ready()
            print("ready", flush=True)
            end = time.monotonic() + 1.2
            while time.monotonic() < end:
                await trio.sleep(0)
        spec = ChildSpec("a", busy, restart=Restart.TEMPORARY, significant=True)
        boss = Supervisor(blocked_after=0.3, blocked_exit=0.5, on_blocked=lambda e: os._exit(1))
        trio.run(boss.run, SupervisorSpec("root", (spec,)))
    """)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    time.sleep(0.1)
    os.kill(program.pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(program.pid, signal.SIGCONT)
    _, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (0, "")


def test_a_stopped_process_is_no_silent_actor():
    """SIGSTOP for twice the liveness of an actor that works: it is not restarted."""
    program = run_program("""
        async def works(ctx):
            ctx.ready()
            after = 0
            while after < 30:
                before = time.monotonic()
                await trio.sleep(0.02)
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
                ctx.beat()
                if after or time.monotonic() - before > 3:
                    after += 1
        async def note():
            with boss.subscribe() as events:
                async for event in events:
                    print(event.name, event, flush=True)
        async def main():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(note)
                await trio.lowlevel.checkpoint()
                nursery.start_soon(boss.run, SupervisorSpec("root", (spec,)))
        spec = ChildSpec("a", works, liveness=2, restart=Restart.TEMPORARY, significant=True)
        boss = Supervisor(blocked_after=None)
        trio.run(main)
    """)
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(4)][-1] == "root ready\n"
    os.kill(program.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(program.pid, signal.SIGCONT)
    out, err = program.communicate(timeout=30)
    assert out.splitlines()[0] == "a exited (finished)"
    assert (program.returncode, err) == (0, "")


def test_a_stuck_child_does_not_keep_the_process():
    """run() comes back with Unstoppable, and the program can end itself."""
    program = run_program("""
        async def shielded(ctx):
            ctx.ready()
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        spec = ChildSpec("a", shielded, drain_timeout=0.1, stop_timeout=0.1)
        boss = Supervisor()
        async def main():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end)
                try:
                    await boss.run(SupervisorSpec("root", (spec,)))
                except Unstoppable as exc:
                    print(exc, flush=True)
                    os._exit(70)
        async def end():
            await trio.sleep(0.1)
            boss.shutdown()
        trio.run(main)
    """)
    out, _ = program.communicate(timeout=30)
    assert program.returncode == 70
    assert out == "still running after cancellation: a\n"
