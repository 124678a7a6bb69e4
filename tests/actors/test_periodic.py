"""How an actor that works now and then waits: a pause, a message, the drain."""

import structlog
import trio
import trio.testing

from actors.periodic import wait_for_messages
from supervisor import Drained
from tests.actors.running import running


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
            while not waits:
                await trio.sleep(0.001)
            supervisor.pause("actor")
            mailbox.send_nowait("hint")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not any(waits), "a paused actor's inbox hands nothing out"
            supervisor.resume("actor")
            while ["hint"] not in waits:
                await trio.sleep(0.001)
            supervisor.pause("actor")
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert ended.is_set()
