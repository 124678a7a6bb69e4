"""Mailboxes: bounded, cancel-safe, outliving crashes, never losing and never looping."""

import math
from typing import Any

import pytest
import trio
import trio.testing

from supervisor import (
    Backoff,
    ChildSpec,
    Context,
    DeadLettered,
    Drained,
    Mailbox,
    Restart,
    SupervisorSpec,
)
from tests.supervisor.house import Actor, finishes, running

QUICK = Backoff(base=0.5, cap=0.5)


def one(run: Actor, mailbox: Mailbox[Any], **kw: Any) -> SupervisorSpec:
    """A tree of one actor with this mailbox."""
    kw.setdefault("backoff", QUICK)
    return SupervisorSpec("root", (ChildSpec("a", run, mailbox=mailbox, **kw),), max_restarts=100)


async def test_it_can_be_made_and_filled_before_trio_runs_an_actor(autojump_clock):
    """Messages sent while the actor is down wait for it, in order."""
    box, got = Mailbox[int]("a", capacity=3), []
    for n in range(3):
        box.send_nowait(n)
    with pytest.raises(trio.WouldBlock):
        box.send_nowait(3)

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            got.append(message)

    async with running(one(run, box)) as house:
        await house.settle()
        assert got == [0, 1, 2]


def test_a_mailbox_needs_no_running_loop():
    """It is plain data until somebody waits."""
    box = Mailbox[int]("a")
    box.send_nowait(1)
    assert box.statistics().depth == 1
    with pytest.raises(ValueError, match="one message"):
        Mailbox[int]("a", capacity=0)
    with pytest.raises(ValueError, match="one attempt"):
        Mailbox[int]("a", attempts=0)


async def test_send_waits_for_room_in_order_and_can_be_cancelled(autojump_clock):
    """Blocked senders get in oldest first; one that was cancelled has put nothing in."""
    box, got, go = Mailbox[int]("a", capacity=1), [], trio.Event()

    async def run(ctx: Context) -> None:
        ctx.ready()
        await go.wait()
        async for message in ctx.inbox:
            got.append(message)

    async with running(one(run, box)) as house, trio.open_nursery() as nursery:
        await box.send(0)
        nursery.start_soon(box.send, 1)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1) as scope:
            await box.send(99)
        assert scope.cancelled_caught
        nursery.start_soon(box.send, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert box.statistics().senders_waiting == 2
        with pytest.raises(trio.WouldBlock):
            box.send_nowait(98)
        go.set()
        await house.settle()
        assert got == [0, 1, 2]


async def test_a_message_in_hand_at_a_crash_comes_first_to_the_next_incarnation(autojump_clock):
    """The messages before it are done, it comes again, the ones after it follow."""
    box, got = Mailbox[str]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            got.append((ctx.incarnation, message))
            if message == "x" and ctx.incarnation == 1:
                raise ValueError

    async with running(one(run, box)) as house:
        for message in "wxyz":
            await box.send(message)
        await house.settle(2)
        assert got == [(1, "w"), (1, "x"), (2, "x"), (2, "y"), (2, "z")]
        stats = box.statistics()
        assert (stats.depth, stats.in_hand, stats.redelivered, stats.dead) == (0, 0, 1, 0)


async def test_a_poisonous_message_is_dead_after_its_attempts(autojump_clock):
    """It kills its actor `attempts` times, is reported once, and the rest is worked on."""
    dead, got = [], []
    box = Mailbox[str]("a", attempts=3, on_dead=lambda *args: dead.append(args))

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            got.append(message)
            if message == "x":
                raise ValueError

    async with running(one(run, box)) as house:
        for message in "xy":
            await box.send(message)
        await house.settle(5)
        assert got == ["x", "x", "x", "y"]
        assert dead == [("x", 3)]
        assert box.statistics().dead == 1
        assert [e for e in house.events if "dead" in e[2]] == [(1, "a", "dead lettered")]


async def test_the_innocent_of_a_batch_outlive_the_guilty(autojump_clock):
    """After a crash the messages of a batch come one by one, so only the poisonous one dies."""
    dead, done = [], []
    box = Mailbox[int]("a", attempts=3, on_dead=lambda message, _: dead.append(message))

    async def run(ctx: Context) -> None:
        ctx.ready()
        while True:
            batch = await ctx.inbox.take(100)
            if any(held.message == 5 for held in batch):
                raise ValueError
            for held in batch:
                done.append(held.message)
                held.done()

    async with running(one(run, box)) as house:
        for message in range(10):
            box.send_nowait(message)
        await house.settle(10)
        assert dead == [5]
        assert sorted(done) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_what_on_dead_raises_stays_there(autojump_clock):
    """A faulty dead-letter outcome is in the event and harms nobody."""

    def broken(message, attempts):
        raise OSError("disk full")

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for _ in ctx.inbox:
            raise ValueError

    box = Mailbox[int]("a", attempts=1, on_dead=broken)
    async with running(one(run, box)) as house:
        await box.send(1)
        await house.settle(5)
        (event,) = [e for e in house.raw if isinstance(e, DeadLettered)]
        assert isinstance(event.error, OSError)
        assert house.node("a").state == "running"


async def test_a_restart_by_hand_is_no_attempt(autojump_clock):
    """A message is not blamed when its actor was merely stopped, however often."""
    box, got = Mailbox[int]("a", attempts=2), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        (held,) = await ctx.inbox.take(1)
        got.append(held.attempts)
        await trio.sleep_forever()

    async with running(one(run, box, drain_timeout=0)) as house:
        await box.send(1)
        for _ in range(5):
            await house.settle(1)
            await house.supervisor.restart("a")
        await house.settle(1)
        assert got == [1] * 6
        assert box.statistics().in_hand == 1


async def test_take_gives_what_is_there_and_each_is_done_by_itself(autojump_clock):
    """take() waits for one; what was not done comes again, what was done does not."""
    box, batches = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        while True:
            batch = await ctx.inbox.take(3)
            batches.append([(held.message, held.attempts) for held in batch])
            if len(batches) == 1:
                batch[1].done()
                batch[1].done()
                raise ValueError
            for held in batch:
                held.done()

    async with running(one(run, box)) as house:
        for message in range(5):
            box.send_nowait(message)
        await house.settle(5)
        assert batches == [[(0, 1), (1, 1), (2, 1)], [(0, 2)], [(2, 2)], [(3, 1), (4, 1)]]
        assert box.statistics().in_hand == 0


async def test_gather_waits_for_so_many_and_takes_none(autojump_clock):
    """It ends with the last of them, when its time is over, and when the actor drains."""
    box, seen = Mailbox[int]("a", capacity=5), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        began = trio.current_time()
        for count, patience in ((3, 9.0), (5, 0.5), (99, 9.0), (99, 9.0)):
            with trio.move_on_after(patience):
                await ctx.inbox.gather(count)
            depth = box.statistics().depth
            seen.append((round(trio.current_time() - began, 3), depth))
            if depth == box.capacity:
                for held in await ctx.inbox.take(99):
                    held.done()
        await ctx.draining.wait()

    async with running(one(run, box)) as house:
        for message in range(4):
            await trio.sleep(1)
            box.send_nowait(message)  # at 1, 2, 3 and 4
        await trio.sleep(1)
        box.send_nowait(4)  # at 5: no more go in
        await trio.sleep(1)
        house.supervisor.shutdown()  # at 6
    assert seen == [(3.0, 3), (3.5, 3), (5.0, 5), (6.0, 0)]


async def test_done_after_the_crash_still_counts(autojump_clock):
    """A late done() takes the message out of the box, or out of its new holder's hand."""
    box, held_by = Mailbox[int]("a"), {}

    async def run(ctx: Context) -> None:
        ctx.ready()
        held_by[ctx.incarnation] = await ctx.inbox.take(2)
        if ctx.incarnation == 1:
            raise ValueError
        await ctx.draining.wait()

    async with running(one(run, box)) as house:
        box.send_nowait(1)
        box.send_nowait(2)
        await house.settle(0.2)
        held_by[1][0].done()
        assert box.statistics().depth == 1
        await house.settle(1)
        assert [held.message for held in held_by[2]] == [2]
        held_by[1][1].done()
        assert box.statistics().in_hand == 0


async def test_each_task_of_an_actor_has_its_own_message_in_hand(autojump_clock):
    """One task asking for more does not say that the message of another is done."""
    box, got = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()

        async def work() -> None:
            async for message in ctx.inbox:
                got.append(message)
                if message == 0:
                    await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            await trio.sleep(1)
            if ctx.incarnation == 1:
                raise ValueError
            await ctx.draining.wait()

    async with running(one(run, box, drain_timeout=0)) as house:
        for message in range(4):
            box.send_nowait(message)
        await house.settle(0.5)
        assert box.statistics().in_hand == 1
        await house.settle(2)
        assert sorted(got) == [0, 0, 1, 2, 3]


async def test_a_cancelled_receive_loses_nothing(autojump_clock):
    """Whenever the wait ends, the message is in the box or in hand."""
    box, got = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        while True:
            with trio.move_on_after(0.01):
                got.append(await ctx.inbox.receive())

    async with running(one(run, box, drain_timeout=0)) as house:
        for message in range(50):
            await trio.sleep(0.01)
            await box.send(message)
        await house.settle(1)
        assert got == list(range(50))


async def test_a_final_drain_works_the_box_off(autojump_clock):
    """In a shutdown the messages that wait are handed out, and then the iteration ends."""
    box, got, ended = Mailbox[int]("a"), [], []

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            await trio.sleep(1)
            got.append(message)
        with pytest.raises(Drained):
            await ctx.inbox.receive()
        with pytest.raises(Drained):
            await ctx.inbox.take(1)
        ended.append(trio.current_time())

    async with running(one(run, box)) as house:
        for message in range(4):
            box.send_nowait(message)
        await house.settle(0.5)
    assert got == [0, 1, 2, 3]
    assert len(ended) == 1
    assert house.of("exited") == [(4, "a", "exited (drained)")]


async def test_a_drain_for_a_restart_leaves_the_box(autojump_clock):
    """The message in hand is finished; those that wait are the next incarnation's."""
    box, got = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        async for message in ctx.inbox:
            await trio.sleep(1)
            got.append((ctx.incarnation, message))

    async with running(one(run, box)) as house:
        for message in range(3):
            box.send_nowait(message)
        await house.settle(0.5)
        await house.supervisor.restart("a")
        await house.settle(5)
        assert got == [(1, 0), (2, 1), (2, 2)]


async def test_a_stopped_actor_refuses_messages(autojump_clock):
    """After an orderly end send raises ClosedResourceError, blocked senders too."""
    box = Mailbox[int]("a", capacity=1)
    refused = []

    async def deaf(ctx: Context) -> None:
        ctx.ready()
        await ctx.draining.wait()

    async def send() -> None:
        try:
            await box.send(2)
        except trio.ClosedResourceError:
            refused.append("blocked")

    async with running(one(deaf, box)) as house, trio.open_nursery() as nursery:
        await box.send(1)
        nursery.start_soon(send)
        await house.settle(1)
        house.supervisor.shutdown()
        await house.end()
    assert refused == ["blocked"]
    with pytest.raises(trio.ClosedResourceError):
        await box.send(3)
    assert box.statistics().depth == 1


async def test_a_failed_actor_breaks_its_mailbox(autojump_clock):
    """After a failure for good send raises BrokenResourceError; a restart by hand opens it."""
    box = Mailbox[int]("a")

    async def run(ctx: Context) -> None:
        ctx.ready()
        if ctx.incarnation == 1:
            raise ValueError
        await ctx.draining.wait()

    async with running(one(run, box, restart=Restart.TEMPORARY)) as house:
        await house.settle()
        with pytest.raises(trio.BrokenResourceError):
            box.send_nowait(1)
        await house.supervisor.restart("a")
        await house.settle()
        box.send_nowait(1)


async def test_a_finished_actor_closes_its_mailbox(autojump_clock):
    """A transient actor that returned takes no messages."""
    box = Mailbox[int]("a")
    async with running(one(finishes, box, restart=Restart.TRANSIENT)) as house:
        await house.settle(2)
        with pytest.raises(trio.ClosedResourceError):
            box.send_nowait(1)


async def test_a_tree_that_gave_up_breaks_its_mailboxes(autojump_clock):
    """Those of the healthy siblings too, in nested supervisors as well."""
    box = Mailbox[int]("b")

    async def crash(ctx: Context) -> None:
        await trio.sleep(1)
        raise ValueError

    async def run(ctx: Context) -> None:
        ctx.ready()
        await ctx.draining.wait()

    inner = SupervisorSpec("inner", (ChildSpec("b", run, mailbox=box),))
    tree = SupervisorSpec("root", (inner, ChildSpec("a", crash)), max_restarts=0)
    async with running(tree) as house:
        box.send_nowait(1)
        await house.end()
    with pytest.raises(trio.BrokenResourceError):
        box.send_nowait(2)


async def test_an_inbox_dies_with_its_incarnation(autojump_clock):
    """A task that outlived its actor cannot take messages from the next incarnation."""
    box, inboxes = Mailbox[int]("a", capacity=math.inf), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        inboxes.append(ctx.inbox)
        if ctx.incarnation == 1:
            raise ValueError
        await ctx.draining.wait()

    async with running(one(run, box)) as house:
        await house.settle(1)
        box.send_nowait(1)
        with pytest.raises(trio.ClosedResourceError):
            await inboxes[0].receive()
        with pytest.raises(ValueError, match="at least one"):
            await inboxes[1].take(0)
        assert (await inboxes[1].receive()) == 1


async def test_messages_that_came_back_keep_their_order_through_another_crash(autojump_clock):
    """The one in hand at the second crash is still before those that wait since the first."""
    box, got = Mailbox[int]("a"), []

    async def run(ctx: Context) -> None:
        ctx.ready()
        while True:
            batch = await ctx.inbox.take(3)
            got.append([held.message for held in batch])
            if ctx.incarnation < 3:
                raise ValueError
            for held in batch:
                held.done()

    async with running(one(run, box)) as house:
        for message in range(4):
            box.send_nowait(message)
        await house.settle(5)
        assert got == [[0, 1, 2], [0], [0], [1], [2], [3]]
