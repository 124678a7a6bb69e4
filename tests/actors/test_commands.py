"""An operator's hand in the tree: names of now and before, groups, and what cannot be done."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from actors.commands import Commands
from actors.messages import Report, SweepNow
from relay.http.deps import NotNow, NotUnderstood
from supervisor import Backoff, ChildSpec, Context, Mailbox, State, Supervisor, SupervisorSpec


class House:
    """Two groups: one whose actors listen, one whose actor fails when it is told to."""

    def __init__(self) -> None:
        self.supervisor = Supervisor(blocked_after=None)
        self.commands = Commands(self.supervisor)
        self.heard: list[tuple[str, object]] = []
        self.failing = False

    async def listens(self, ctx: Context) -> None:
        """Note what it hears."""
        ctx.ready()
        async for message in ctx.inbox:
            self.heard.append((ctx.name, message))

    async def fails(self, ctx: Context) -> None:
        """Fail on arrival while it should."""
        if self.failing:
            raise ValueError("told to")
        ctx.ready()
        await ctx.draining.wait()


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    """Run the tree for the block."""
    here = House()
    small: Mailbox[Any] = Mailbox("claimer", capacity=1)
    tree = SupervisorSpec(
        "relay",
        (
            SupervisorSpec(
                "outbound",
                (
                    ChildSpec("sender", here.listens),
                    ChildSpec("claimer", here.listens, hears=(SweepNow,), mailbox=small),
                    ChildSpec("webhooks", here.listens, hears=(SweepNow,)),
                ),
            ),
            SupervisorSpec(
                "devices-store",
                (ChildSpec("device_store", here.fails, hears=(Report,)),),
                max_restarts=0,
                backoff=Backoff(base=1000.0, cap=1000.0),
            ),
            SupervisorSpec("core", (ChildSpec("postgres", here.listens, pausable=False),)),
        ),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.supervisor.run, tree)
        await trio.testing.wait_all_tasks_blocked()
        yield here
        here.supervisor.shutdown()


async def test_former_names_are_understood(autojump_clock):
    """What is answered has the name of now."""
    async with house() as here:
        here.commands.sweep("courier")
        here.commands.pause("keeper")
        assert here.commands.node("keeper").name == "device_store"
        assert here.commands.node("device_store").state is State.PAUSED
        here.commands.resume("keeper")
        await here.commands.restart("courier")
        await trio.testing.wait_all_tasks_blocked()
        assert here.commands.node("webhooks").restarts == 1
        assert here.heard == [("webhooks", SweepNow())]


async def test_what_may_be_said_is_told(autojump_clock):
    """Of each actor as it is now; of a group what any in it understands."""
    async with house() as here:
        tell = here.commands

        def told(name: str) -> list[str]:
            return tell.commands(tell.node(name))

        assert told("webhooks") == ["restart", "pause", "sweep"]
        assert told("outbound") == ["restart", "pause", "sweep"]
        assert told("device_store") == ["restart", "pause", "report"]
        assert told("postgres") == ["restart"]
        tell.pause("webhooks")
        assert told("webhooks") == ["restart", "resume", "sweep"]


async def test_a_group_is_meant_as_a_whole(autojump_clock):
    """A sweep goes to those in it that sweep, a pause to all."""
    async with house() as here:
        here.commands.sweep("outbound")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(name for name, _ in here.heard) == ["claimer", "webhooks"]
        assert {message for _, message in here.heard} == {SweepNow()}
        here.commands.pause("outbound")
        states = {child.state for child in here.commands.node("outbound").children}
        assert states == {State.PAUSED}


async def test_a_pause_that_would_hold_nothing_back_is_refused(autojump_clock):
    """By an actor and by its group; one that has others as well pauses those."""
    async with house() as here:
        for name in ("postgres", "core"):
            with pytest.raises(NotUnderstood):
                here.commands.pause(name)
        here.commands.pause("relay")
        assert here.commands.node("relay").state is State.PAUSED
        assert here.commands.node("outbound").state is State.PAUSED
        assert here.commands.node("postgres").state is State.RUNNING
        here.commands.resume("relay")
        assert here.commands.node("relay").state is State.RUNNING


async def test_what_is_not_understood_is_refused(autojump_clock):
    """By an actor, by a group, and by a name that nobody has."""
    async with house() as here:
        for name in ("sender", "devices-store", "device_store"):
            with pytest.raises(NotUnderstood):
                here.commands.sweep(name)
        with pytest.raises(NotUnderstood):
            here.commands.report("outbound")
        for call in (here.commands.sweep, here.commands.pause, here.commands.node):
            with pytest.raises(KeyError):
                call("nobody")
        with pytest.raises(KeyError):
            await here.commands.restart("nobody")


async def test_a_command_waits_for_the_resume(autojump_clock):
    """A paused actor does it when it works again; with a full mailbox it cannot be told."""
    async with house() as here:
        here.commands.pause("claimer")
        here.commands.sweep("claimer")
        with pytest.raises(NotNow, match="full mailbox"):
            here.commands.sweep("claimer")
        assert here.heard == []
        here.commands.resume("claimer")
        await trio.testing.wait_all_tasks_blocked()
        assert here.heard == [("claimer", SweepNow())]


async def test_restarting_an_actor_of_a_group_that_gave_up_brings_the_group_back(autojump_clock):
    """Whoever has put the cause right does not wait for the back-off; in a shutdown: not now."""
    async with house() as here:
        here.failing = True
        await here.commands.restart("device_store")
        await trio.testing.wait_all_tasks_blocked()
        assert here.commands.node("devices-store").state is State.BACKING_OFF
        here.failing = False
        await here.commands.restart("device_store")
        await trio.testing.wait_all_tasks_blocked()
        assert here.commands.node("device_store").state is State.RUNNING
        here.supervisor.shutdown()
        with pytest.raises(NotNow):
            await here.commands.restart("sender")
