"""How an actor that works now and then waits: a pause, a message, the drain."""

import structlog
import trio
import trio.testing

from actors.periodic import wait_for_messages
from supervisor import Drained
from tests.actors.running import running
from tests.eventually import eventually


async def test_paused_it_waits_and_drained_meanwhile_it_ends():
    """However long the pause, one wait lasts it out; a shutdown in it is an ordinary end."""
    waits = []
    ended = trio.Event()

    async def actor(ctx) -> None:
        ctx.ready()
        try:
            while True:
                waits.append(await wait_for_messages(ctx, 0.01))
        except Drained:
            ended.set()

    with structlog.testing.capture_logs():
        async with running(actor) as (supervisor, mailbox):
            await eventually(lambda: waits, "it waits")
            supervisor.pause("actor")
            mailbox.send_nowait("hint")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not any(waits), "a paused actor's inbox hands nothing out"
            supervisor.resume("actor")
            await eventually(
                lambda: waits, "the hint is taken", until=lambda taken: ["hint"] in taken
            )
            supervisor.pause("actor")
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert ended.is_set()
